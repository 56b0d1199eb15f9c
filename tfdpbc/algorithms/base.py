"""What an inner algorithm A is, and the simplest one."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Protocol, runtime_checkable

import tensorflow as tf

from tfdpbc.gradients.function import Evaluation, Examples, ModelFunction


@runtime_checkable
class Algorithm(Protocol):
    """A: ``(function, weights, batch, examples) -> (contribution, evaluation)``.

    A contribution is a list of float tensors shaped like `weights`. It may depend on `weights` and `batch` only (that is
    all the guarantee asks of A), must be made of TensorFlow operations, and may not write to any variable.

    Args (of a call):
      function: the model as a pure function; ``function.evaluate(weights, batch)`` is one forward pass.
      weights: the trainable weights, the same for all contributions of a round.
      batch: the examples of the contribution.
      examples: s, the planned number of examples (a public divisor; never the realised number).
    """

    def __call__(
        self, function: ModelFunction, weights: list[Any], batch: Examples, examples: float
    ) -> tuple[list[Any], Evaluation]: ...


@dataclasses.dataclass(frozen=True)
class BatchGradient:
    r"""The mean gradient of the contribution's examples, all at the same weights.

    .. math:: a = \frac1s \sum_{i \in S} \nabla f(w; \xi_i)

    With s = 1 this is DP-SGD (paper A, eq. 1); with m = 1 it is the batch clipping that papers A and B run. Penalties of
    the model (weight regularisers) are part of each contribution and clipped with it.
    """

    config_name: ClassVar[str] = "batch-gradient"

    def to_config(self) -> dict[str, Any]:
        """JSON-able description (see `algorithms.from_config`)."""
        return {"name": self.config_name}

    def __call__(
        self, function: ModelFunction, weights: list[Any], batch: Examples, examples: float
    ) -> tuple[list[Any], Evaluation]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            evaluation = function.evaluate(weights, batch)
            objective = tf.reduce_sum(evaluation.losses) / examples + evaluation.penalty
        # A weight that the loss does not use has gradient zero (and still gets noise).
        gradient = tape.gradient(objective, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return [tf.convert_to_tensor(g) for g in gradient], evaluation
