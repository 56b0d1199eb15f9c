"""How the examples of a round are drawn (`Sample_{s,m}` of Algorithm 1, paper A): shuffling, subsampling, Poisson,
balls-in-bins.

A sampling is a frozen set of public numbers. It never holds data, random state or a realised size: those are arguments
of `batches`, which yields the index arrays of one epoch, a few rounds at a time, so that no epoch is ever held as a
whole (shuffling and balls-in-bins hold one permutation of its N indices).

Which data sets count as neighbours, and how far one differing example can move the sum of clipped contributions, are
consequences of the sampling and so are properties of it (`neighbouring`, `sensitivity_factor`); nobody types them in.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tfdpbc import _validate
from tfdpbc.sampling.balls_in_bins import BallsInBins
from tfdpbc.sampling.base import CHUNK_ENTRIES, OVERFLOW_PROBABILITY, Batch, Sampling, capacity
from tfdpbc.sampling.fixed_size import Shuffling, Subsampling
from tfdpbc.sampling.poisson import Poisson

__all__ = [
    "CHUNK_ENTRIES",
    "OVERFLOW_PROBABILITY",
    "BallsInBins",
    "Batch",
    "Poisson",
    "Sampling",
    "Shuffling",
    "Subsampling",
    "by_name",
    "capacity",
    "from_config",
]

by_name = {kind.name: kind for kind in (Shuffling, Subsampling, Poisson, BallsInBins)}


def from_config(config: dict[str, Any]) -> Sampling:
    """The sampling whose `to_config` gave `config`."""
    _validate.instance("sampling", config, dict, "a dict with the name and the fields of a sampling")
    kind = by_name[_validate.choice("sampling name", config.get("name"), by_name)]
    given = {key: value for key, value in config.items() if key != "name"}
    fields = [field.name for field in dataclasses.fields(kind)]
    if set(given) != set(fields):
        _validate.fail(f"{kind.name} fields", ", ".join(fields), sorted(map(str, given)))
    return kind(**given)
