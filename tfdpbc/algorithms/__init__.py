"""The inner algorithms A of Algorithm 1: what one contribution computes from the weights and its examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfdpbc import _validate
from tfdpbc.algorithms.base import Algorithm, BatchGradient
from tfdpbc.algorithms.local import LocalOptimizer
from tfdpbc.algorithms.post_processing import PostProcessed
from tfdpbc.algorithms.rules import SGD, AdaGrad, Adam, Momentum, Nesterov, RMSprop, Rule
from tfdpbc.algorithms.sequence import AlgorithmSequence

__all__ = [
    "AdaGrad",
    "Adam",
    "Algorithm",
    "AlgorithmSequence",
    "BatchGradient",
    "LocalOptimizer",
    "Momentum",
    "Nesterov",
    "PostProcessed",
    "RMSprop",
    "Rule",
    "SGD",
    "checked",
    "from_config",
    "to_config",
]

by_name = {kind.config_name: kind for kind in (BatchGradient, LocalOptimizer, AlgorithmSequence)}


def checked(algorithm: Any) -> Any:
    """`algorithm` if it may be given to a `PrivateModel`; None stands for `BatchGradient()`."""
    if algorithm is None:
        return BatchGradient()
    if isinstance(algorithm, type) or not (callable(algorithm) or isinstance(algorithm, AlgorithmSequence)):
        expected = "an algorithm such as BatchGradient(), LocalOptimizer(...) or a function that keeps the protocol"
        _validate.fail("algorithm", expected, algorithm, TypeError)
    return algorithm


def to_config(algorithm: Any) -> dict[str, Any]:
    """JSON-able description of an algorithm of this package; `from_config` is its inverse.

    Raises:
      NotImplementedError: the algorithm, or its rule, is a user's own.
    """
    if type(algorithm) not in by_name.values():
        raise NotImplementedError(f"only algorithms of tfdpbc can be serialised; got {algorithm!r}")
    return algorithm.to_config()


def from_config(config: Mapping[str, Any]) -> Any:
    """The inverse of `to_config`."""
    fields = dict(config)
    kind = by_name[_validate.choice("algorithm", fields.pop("name", None), by_name)]
    if kind is AlgorithmSequence:
        fields["algorithms"] = [from_config(one) for one in fields["algorithms"]]
    return kind(**fields)
