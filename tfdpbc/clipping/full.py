"""Full-gradient clipping: the whole contribution is one block."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdpbc import _validate
from tfdpbc.clipping.base import Clipping


@keras.saving.register_keras_serializable("tfdpbc")
class FullGradientClipping(Clipping):
    r"""Clips each contribution as one vector: :math:`[x]_C = x / \max(1, \|x\|/C)` (FGC; paper A, Algorithm 1; paper B).

    The clip norm may decay: :math:`C_r = C \cdot decay^{k}` with k the epoch (`decay_every="epoch"`) or the round
    (`"round"`) that r belongs to. The schedule is public and the noise follows it, so it costs no privacy (paper A,
    Section 3: "we may adapt the clipping constant at the start of each round").

    Args:
      norm: C > 0, in units of the gradient's Euclidean norm.
      decay: factor in (0, 1] applied once per epoch or round.
      decay_every: `"epoch"` or `"round"`.

    Formal guarantee: every clipped contribution has norm at most :math:`C_r` (L = 1).
    """

    config_name = "full"

    def __init__(self, norm: float, decay: float = 1.0, decay_every: str = "epoch", **kwargs: Any):
        super().__init__(**kwargs)
        self._norm = _validate.number("norm", norm, above=0.0, at_most=1e15)
        self._decay = _validate.number("decay", decay, above=0.0, at_most=1.0)
        self._decay_every = _validate.choice("decay_every", decay_every, ("epoch", "round"))

    # Read-only: a plan is frozen, and its noise is derived from these.
    norm = property(lambda self: self._norm, doc="C, the initial clip norm.")
    decay = property(lambda self: self._decay, doc="Factor per epoch or round.")
    decay_every = property(lambda self: self._decay_every, doc='"epoch" or "round".')

    def fields(self) -> dict[str, Any]:
        return {"norm": self.norm, "decay": self.decay, "decay_every": self.decay_every}

    def num_blocks(self) -> int:
        return 1

    def assign_blocks(self, variables: list) -> list[int]:
        return [0] * len(variables)

    def bounds(self, round_index: Any, rounds_per_epoch: int) -> Any:
        steps = round_index // rounds_per_epoch if self.decay_every == "epoch" else round_index
        if not tf.is_tensor(steps):
            return [self.norm * self.decay**steps]
        return tf.reshape(self.norm * tf.pow(tf.constant(self.decay, tf.float32), tf.cast(steps, tf.float32)), [1])
