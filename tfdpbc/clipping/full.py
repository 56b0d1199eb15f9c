"""Full-gradient clipping: the whole contribution is one block."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdpbc.clipping.base import Scheduled


class OneBlock(Scheduled):
    """The whole contribution is one block, whose clip norm follows a public schedule."""

    public = ("norm", "decay", "decay_every")

    def num_blocks(self) -> int:
        return 1

    def assign_blocks(self, variables: list) -> list[int]:
        return [0] * len(variables)

    def bounds(self, round_index: Any, rounds_per_epoch: int) -> Any:
        norm = self._schedule(round_index, rounds_per_epoch)
        return tf.reshape(norm, [1]) if tf.is_tensor(norm) else [norm]


@keras.saving.register_keras_serializable("tfdpbc")
class FullGradientClipping(OneBlock):
    r"""Clips each contribution as one vector: :math:`[x]_C = x / \max(1, \|x\|/C)` (FGC; paper A, Algorithm 1; paper B).

    Args:
      norm: C > 0, in units of the gradient's Euclidean norm; or a schedule (see `NormSchedule`).
      decay: factor in (0, 1] applied once per epoch or round.
      decay_every: `"epoch"` or `"round"`.

    Formal guarantee: every clipped contribution has norm at most :math:`C_r` (L = 1).
    """

    config_name = "full"

    def __init__(self, norm: Any, decay: float = 1.0, decay_every: str = "epoch", **kwargs: Any):
        super().__init__(norm, decay, decay_every, **kwargs)
