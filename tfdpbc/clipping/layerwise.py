"""Adaptive layer-wise clipping."""

from __future__ import annotations

from typing import Any

import keras

from tfdpbc.clipping.blockwise import BlockwiseClipping


@keras.saving.register_keras_serializable("tfdpbc")
class LayerwiseClipping(BlockwiseClipping):
    r"""Clips each layer's part of a contribution on its own (ALC; paper B).

    .. math:: C_j = C e_j / M,\quad M = \max_j e_j,\quad a[j] \leftarrow a[j] / \max(1, \|a[j]\|/C_j)

    Block j is noised for its own sensitivity: N(0, (2 C_j σ)² I) under fixed sizes. A hit round composes L Gaussian
    mechanisms, so the guarantee is that of σ/√L.

    Args:
      master_norm: C > 0, the clip norm of the block with the largest e_j; or a schedule (see `NormSchedule`).
      num_blocks: L, how many layers of the model own trainable variables. None: `PrivateModel` (or `plan.for_model`)
        counts them; until then the plan states no guarantee.
      estimates: where e_j comes from: `FixedNorms`, `PublicNorms`, `ReleasedNorms`, `PrivateNorms`, or such a name.
      decay, decay_every: as for `FullGradientClipping`.
      floor: the least C_j / C.

    Formal guarantee: block j of every clipped contribution has norm at most C_j.
    """

    config_name = "layerwise"
    norm_name = "master_norm"
    public = ("master_norm", "num_blocks", "estimates", "decay", "decay_every", "floor")

    def __init__(
        self,
        master_norm: Any,
        num_blocks: int | None = None,
        estimates: Any = "released",
        decay: float = 1.0,
        decay_every: str = "epoch",
        floor: float = 1e-3,
        **kwargs: Any,
    ):
        super().__init__(master_norm, num_blocks, estimates, decay, decay_every, floor, **kwargs)

    master_norm = property(lambda self: self.norm, doc="C, or its schedule.")
