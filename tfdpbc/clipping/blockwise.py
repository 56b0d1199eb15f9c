"""What layer-wise, grouped and scaled clipping share: a block per layer, and estimates of the layers' norms."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from tfdpbc import _validate
from tfdpbc.clipping import blocks
from tfdpbc.clipping.base import Released, Scheduled, optional_integer
from tfdpbc.clipping.estimates import PrivateNorms, as_estimates
from tfdpbc.errors import IncompatibleModel


class BlockwiseClipping(Scheduled):
    """A block for each layer object that owns trainable variables; its clip norm follows e_j, the layer's expected norm.

    The state is what is known of e_j. It is a function of released quantities, of public data, or of nothing
    (`estimates`), so the bounds that are made of it may be shown to anyone.
    """

    adaptive = True

    def __init__(
        self,
        norm: Any,
        num_blocks: int | None,
        estimates: Any,
        decay: float,
        decay_every: str,
        floor: float,
        **kwargs: Any,
    ):
        super().__init__(norm, decay, decay_every, **kwargs)
        self._num_blocks = optional_integer("num_blocks", num_blocks)
        self._estimates = as_estimates(estimates)
        self._floor = _validate.number("floor", floor, at_least=1e-9, at_most=1.0)

    estimates = property(lambda self: self._estimates, doc="Where e_j comes from.")
    floor = property(lambda self: self._floor, doc="The least e_j / M.")
    needs_public_data = property(lambda self: self._estimates.public_data)

    def num_blocks(self) -> int:
        if self._num_blocks is None:
            raise ValueError(
                f"num_blocks must be given before {type(self).__name__} knows its blocks: the number of layers that own "
                "trainable variables. A PrivateModel fills it in; plan.for_model(model) does so without one; "
                "got num_blocks=None"
            )
        return self._num_blocks

    def blocks_of(self, model: Any) -> list[int]:
        found = blocks.layers_of(model)
        self._check(found, model)
        block_of = {position: j for j, (_, positions) in enumerate(found) for position in positions}
        return [block_of[i] for i in range(len(block_of))]

    def for_model(self, model: Any) -> Any:
        found = blocks.layers_of(model)
        self._check(found, model)
        bound = self if self._num_blocks else type(self)(**{**self.fields(), "num_blocks": len(found)})
        bound.initial_state([1.0] * len(found))  # a prior for other blocks is refused here
        return bound

    def _check(self, found: list[Any], model: Any) -> None:
        if self._num_blocks not in (None, len(found)):
            names = ", ".join(repr(layer.name) for layer, _ in found)
            raise IncompatibleModel(
                f"num_blocks must be the {len(found)} layers of model {model.name!r} that own trainable variables "
                f"({names}); got num_blocks={self._num_blocks}"
            )

    # A round.

    def bounds(self, round_index: Any, rounds_per_epoch: int, state: dict[str, Any]) -> Any:
        norm = tf.convert_to_tensor(self._schedule(round_index, rounds_per_epoch), tf.float32)
        sizes = self._sizes(state)
        return norm * tf.clip_by_value(sizes / tf.reduce_max(sizes), self.floor, 1.0)

    def _sizes(self, state: dict[str, Any]) -> Any:
        """The expected norm that each layer's bound is in proportion to, ``[L]``, positive and finite."""
        return tf.convert_to_tensor(state["estimates"])

    def smallest_bound(self, rounds: int, rounds_per_epoch: int) -> float:
        return self.floor * super().smallest_bound(rounds, rounds_per_epoch)

    # What adapts.

    def initial_state(self, dimensions: Any) -> dict[str, Any]:
        return self.estimates.initial_state(dimensions)

    def with_estimates(self, state: dict[str, Any], found: Any) -> dict[str, Any]:
        """The state with new measurements `found` ``[L]`` of the norms; what is not positive and finite keeps its value."""
        old = state["estimates"]
        usable = tf.math.is_finite(found) & (found > 0)
        return {**state, "estimates": self.estimates.blended(old, tf.where(usable, found, old))}

    def update(self, state: dict[str, Any], released: Released) -> dict[str, Any]:
        sizes = self._sizes(state)
        return self.estimates.update(state, released, tf.maximum(sizes, self.floor * tf.reduce_max(sizes)))

    def measured(self) -> int:
        return self.num_blocks() if isinstance(self.estimates, PrivateNorms) else 0

    def measurement_std(self, sensitivity_factor: float) -> float:
        if not self.measured():
            return 0.0
        return self.estimates.noise_multiplier * math.sqrt(self.measured()) * sensitivity_factor / 2

    def measure(self, norms: Any, bounds: Any, state: dict[str, Any]) -> Any:
        return self.estimates.measure(norms, state["estimates"])

    def call(self, norms: Any, bounds: Any, state: Any = None) -> Any:
        return super().call(norms, bounds)

    def caveats(self) -> list[str]:
        return self.estimates.caveats()
