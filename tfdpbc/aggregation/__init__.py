"""How clipped contributions become one update: sums, trimmed sums with and without a private test, medians."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfdpbc import _validate
from tfdpbc.aggregation.base import Sum
from tfdpbc.aggregation.medians import CoordinateMedian, GeometricMedian
from tfdpbc.aggregation.trimmed import GlobalTrimmedSum, TrimmedSum, most_corrupted

by_name = {kind.name: kind for kind in (Sum, TrimmedSum, GlobalTrimmedSum, CoordinateMedian, GeometricMedian)}


def from_config(config: dict[str, Any]) -> Sum:
    """The inverse of `to_config`; fields with a default may be left out.

    Raises:
      ValueError: a field is missing, unknown or out of range.
    """
    fields = dict(config)
    kind = by_name[_validate.choice("aggregation", fields.pop("name", None), by_name)]
    known = {field.name: field.default is dataclasses.MISSING for field in dataclasses.fields(kind)}
    if not {name for name, required in known.items() if required} <= set(fields) <= set(known):
        _validate.fail(f"{kind.name} fields", ", ".join(known), sorted(map(str, fields)))
    return kind(**fields)


__all__ = [
    "CoordinateMedian",
    "GeometricMedian",
    "GlobalTrimmedSum",
    "Sum",
    "TrimmedSum",
    "by_name",
    "from_config",
    "most_corrupted",
]
