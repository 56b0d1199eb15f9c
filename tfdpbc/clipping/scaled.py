"""Clipping of the scaled contribution: layer-wise robustness to noise without the factor √L."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfdpbc.clipping.base import of_finite
from tfdpbc.clipping.blockwise import BlockwiseClipping


@keras.saving.register_keras_serializable("tfdpbc")
class ScaledClipping(BlockwiseClipping):
    r"""Clips the contribution with its blocks scaled to a like norm, then scales them back (paper B's factors).

    With m_j = M/e_j, M = max_j e_j, the vector (m_1 a[1] ‖ ... ‖ m_L a[L]) is clipped as one to norm C, noised by
    N(0, (2Cσ)² I) under fixed sizes, and block j divided by m_j. So block j is noised with std 2Cσ/m_j = 2 C_j σ, as
    under layer-wise clipping, but a hit round is one Gaussian mechanism: no √L. Since the scaled vector is longer than its
    longest block, C will be chosen larger than the master norm of `LayerwiseClipping` (paper B: by √L or √groups).

    Args:
      norm: C > 0, the clip norm of the scaled contribution; or a schedule (see `NormSchedule`).
      estimates, decay, decay_every, floor: as for `LayerwiseClipping` (`floor` is the least 1/m_j).
      num_blocks: L, checked against the model where given; no guarantee depends on it.

    Formal guarantee: the scaled contribution has norm at most C; so with b_j = C/m_j, Σ_j (w‖a[j]‖/b_j)² <= 1.
    """

    config_name = "scaled"
    public = ("norm", "num_blocks", "estimates", "decay", "decay_every", "floor")

    def __init__(
        self,
        norm: Any,
        num_blocks: int | None = None,
        estimates: Any = "released",
        decay: float = 1.0,
        decay_every: str = "epoch",
        floor: float = 1e-3,
        **kwargs: Any,
    ):
        super().__init__(norm, num_blocks, estimates, decay, decay_every, floor, **kwargs)

    def composed_blocks(self) -> int:
        return 1

    def call(self, norms: Any, bounds: Any, state: Any = None) -> Any:
        """One weight for all blocks, ``[m, L]``: 1 / max(1, ‖(norms / bounds)‖)."""
        relative = norms / bounds
        largest = tf.reduce_max(relative, axis=-1, keepdims=True)
        # Squares of quotients up to 1e38/1e-12 would overflow: the largest is taken out first.
        unit = relative / tf.maximum(largest, 1.0)
        size = tf.maximum(largest, 1.0) * tf.norm(unit, axis=-1, keepdims=True)
        weights = 1.0 / tf.maximum(1.0, size)
        # A quotient may be infinite though both its parts are finite: such a contribution is dropped too.
        return of_finite(relative, tf.broadcast_to(weights, tf.shape(norms)))
