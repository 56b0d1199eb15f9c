"""The protocol of gradient engines: block norms, then weights, then the weighted sum."""

from __future__ import annotations

from typing import Any, Protocol

from tfdpbc.gradients.function import Evaluation, Examples


class Contributions(Protocol):
    """Some contributions a_1..a_k of one round, however the engine holds them."""

    evaluation: Evaluation
    """Per-contribution results with leading axis k (`losses` ``[k, s]``, `outputs` ``[k, s, ...]``)."""

    def block_norms(self) -> Any:
        """Euclidean norms of the blocks, float32 ``[k, L]``; not finite where a contribution is not."""

    def weighted_sum(self, weights: Any) -> list[Any]:
        """``sum_h weights[h, block(v)] a_h[v]`` in float32, one tensor for each trainable variable v.

        A contribution whose weights are 0 adds exactly 0, even where it holds inf or NaN.
        """

    def materialized(self) -> list[Any]:
        """The contributions themselves, float32 ``[k, *shape]`` for each trainable variable."""


class Engine(Protocol):
    """Computes contributions. Engines differ in speed and memory, never in the result."""

    name: str
    contributions_per_pass: int
    """k, how many contributions are computed at once (the physical micro-batch)."""
    seeds_by_row: bool
    """Whether a contribution follows its own seeds wherever it is computed; else random layers draw for a pass as one."""

    def contributions(self, batch: Examples, round_in_epoch: Any = 0) -> Contributions:
        """The contributions of `batch`, whose leaves have leading axes ``[k, s]``.

        `round_in_epoch` (a scalar integer, public) picks the algorithm of an `AlgorithmSequence`.
        """
