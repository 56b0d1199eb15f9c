"""A clip norm that follows a quantile of the contributions' norms."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpbc import _validate
from tfdpbc.clipping.base import Clipping, Released
from tfdpbc.clipping.schedule import LARGEST, SMALLEST


@keras.saving.register_keras_serializable("tfdpbc")
class QuantileClipping(Clipping):
    r"""Full-gradient clipping whose norm tracks the `target_quantile` of the contributions' norms.

    .. math:: C \leftarrow C \exp(-\eta_C (\tilde b - \gamma)),\quad
        \tilde b = \tfrac1m \big(\textstyle\sum_h (b_h - \tfrac12) + N(0, \sigma_b^2)\big) + \tfrac12

    with :math:`b_h = 1[\|a_h\| \le C]`, in every round. The bits are released with noise of their own, and the plan's
    noise multiplier z is kept as that of both together: the update's noise rises to

    .. math:: z_\Delta = (z^{-2} - (\Delta_b/\sigma_b)^2)^{-1/2}.

    One differing contribution moves the sum of centred bits by Δ_b = 1/2 if it may only come or go (individual Poisson,
    balls in bins), which is the paper's :math:`(z^{-2} - (2\sigma_b)^{-2})^{-1/2}`; and by Δ_b = 1 where it can be
    replaced (+1/2 by −1/2: fixed sizes, groups).

    Source: Andrew, Thakkar, McMahan, Ramaswamy, "Differentially Private Learning with Adaptive Clipping" (NeurIPS 2021),
    Algorithm 1 and Theorem 1. They advise σ_b = m/20 and η_C = 0.2.

    Args:
      initial_norm: C of the first round, > 0.
      count_noise: σ_b > 0, standard deviation of the noise on the count of bits. The plan refuses it where
        σ_b <= z Δ_b (that is z/2 under individual Poisson): nothing would be left for the update.
      target_quantile: γ in [0, 1], the share of contributions that shall stay unclipped.
      learning_rate: η_C > 0.

    Formal guarantee: every clipped contribution has norm at most the round's C (L = 1), and C is a function of released
    quantities.
    """

    config_name = "quantile"
    public = ("initial_norm", "count_noise", "target_quantile", "learning_rate")
    adaptive = True

    def __init__(
        self,
        initial_norm: float,
        count_noise: float,
        target_quantile: float = 0.5,
        learning_rate: float = 0.2,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self._initial_norm = _validate.number("initial_norm", initial_norm, at_least=SMALLEST, at_most=LARGEST)
        self._count_noise = _validate.number("count_noise", count_noise, above=0.0, at_most=1e12)
        self._target_quantile = _validate.probability("target_quantile", target_quantile, zero=True, one=True)
        self._learning_rate = _validate.number("learning_rate", learning_rate, above=0.0, at_most=10.0)

    initial_norm = property(lambda self: self._initial_norm, doc="C of the first round.")
    count_noise = property(lambda self: self._count_noise, doc="σ_b.")
    target_quantile = property(lambda self: self._target_quantile, doc="γ.")
    learning_rate = property(lambda self: self._learning_rate, doc="η_C.")

    def num_blocks(self) -> int:
        return 1

    def assign_blocks(self, variables: list) -> list[int]:
        return [0] * len(variables)

    def initial_state(self, dimensions: Any) -> dict[str, Any]:
        return {"norm": np.full([1], self.initial_norm, np.float32)}

    def bounds(self, round_index: Any, rounds_per_epoch: int, state: dict[str, Any]) -> Any:
        return tf.convert_to_tensor(state["norm"])

    def smallest_bound(self, rounds: int, rounds_per_epoch: int) -> float:
        return SMALLEST  # `update` sees to it

    def call(self, norms: Any, bounds: Any, state: Any = None) -> Any:
        return super().call(norms, bounds)

    def measured(self) -> int:
        return 1

    def measurement_std(self, sensitivity_factor: float) -> float:
        return self.count_noise

    def measure(self, norms: Any, bounds: Any, state: dict[str, Any]) -> Any:
        """The bits b, ``[m, 1]``; 0 where the norm is not finite (a comparison with NaN is false)."""
        return tf.cast(norms <= bounds, tf.float32)

    def update(self, state: dict[str, Any], released: Released) -> dict[str, Any]:
        step = self.learning_rate * (released.measured - self.target_quantile)
        # One noisy count never moves the norm by more than e^10.
        norm = state["norm"] * tf.exp(-tf.clip_by_value(step, -10.0, 10.0))
        return {"norm": tf.clip_by_value(norm, SMALLEST, LARGEST)}
