"""Automatic clipping: contributions are normalised, so that no clip norm has to be found."""

from __future__ import annotations

from typing import Any

import keras

from tfdpbc import _validate
from tfdpbc.clipping.base import of_finite
from tfdpbc.clipping.full import OneBlock


@keras.saving.register_keras_serializable("tfdpbc")
class AutomaticClipping(OneBlock):
    r"""Normalises each contribution: :math:`C x / (\|x\| + \gamma)` (AUTO-S).

    Since all are scaled, C only sets the unit of the update (it can be absorbed in the learning rate); γ keeps small
    contributions small, without which convergence is not proved.

    Source: Bu, Wang, Zha, Karypis, "Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger"
    (NeurIPS 2023), eq. (3.3); they use γ = 0.01.

    Args:
      norm: C > 0; or a schedule (see `NormSchedule`).
      stability: γ > 0, in units of the gradient's norm.
      decay, decay_every: as for `FullGradientClipping`.

    Formal guarantee: every weighted contribution has norm below :math:`C_r` (L = 1), for w‖x‖ = C ‖x‖/(‖x‖ + γ) < C.
    """

    config_name = "automatic"
    public = (*OneBlock.public, "stability")

    def __init__(
        self, norm: Any = 1.0, stability: float = 0.01, decay: float = 1.0, decay_every: str = "epoch", **kwargs: Any
    ):
        super().__init__(norm, decay, decay_every, **kwargs)
        self._stability = _validate.number("stability", stability, at_least=1e-12, at_most=1e12)

    stability = property(lambda self: self._stability, doc="γ.")

    def call(self, norms: Any, bounds: Any) -> Any:
        """Weights ``bounds / (norms + stability)``; 0 for a contribution whose norm is not finite."""
        return of_finite(norms, bounds / (norms + self.stability))
