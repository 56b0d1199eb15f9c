"""The parts of an answer that several commands give."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from tfdpbc.cli.base import warn
from tfdpbc.reporting.run_folder import to_json

MOST_ATOMS = 200
PICTURES = (".svg", ".png", ".pdf")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")


def print_json(answer: Mapping[str, Any]) -> None:
    """The answer as the one JSON object on stdout; what is infinite or undefined is null."""
    click.echo(to_json(answer), nl=False)


@contextlib.contextmanager
def cautions() -> Iterator[None]:
    """Prints the library's warnings as one line each on stderr, without Python's file and line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught if warning.category is UserWarning):
        warn(message)


def sampled(curve: Any) -> list[tuple[float, float]]:
    """The trade-off curve at 200 type I errors, close together where it is steep: [(alpha, f(alpha))]."""
    # The left end matters most: an adversary that must hardly ever be wrong is the one that does harm.
    alpha = np.concatenate([[0.0], np.geomspace(1e-12, 1e-2, 60, endpoint=False), np.linspace(0.01, 1.0, 139)])
    return list(zip(alpha.tolist(), np.asarray(curve(alpha), float).tolist(), strict=True))


def check_picture(path: Path) -> None:
    """Refuses a picture file of an unknown kind, or in a folder that is not there, before anything is computed."""
    if path.suffix not in PICTURES:
        raise click.UsageError(f"--plot must end in {', '.join(PICTURES)}; got {path}")
    if not path.parent.is_dir():
        raise click.UsageError(f"--plot must be in an existing folder; got {path}")


def participation(distribution: Any) -> tuple[list[tuple[int, float]], float]:
    """The `MOST_ATOMS` most probable values of c² with their probabilities, and the probability of all the others.

    ([], 0.0) where the plan has no such distribution (Poisson sampling).
    """
    if distribution is None:
        return [], 0.0
    c_squared, probability = np.asarray(distribution.c_squared), np.asarray(distribution.probability)
    kept = np.sort(np.argsort(-probability, kind="stable")[:MOST_ATOMS])
    left_out = np.delete(probability, kept).sum()
    return list(zip(c_squared[kept].tolist(), probability[kept].tolist(), strict=True)), float(left_out)
