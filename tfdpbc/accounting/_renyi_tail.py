r"""The privacy profile that a Rényi curve implies, for δ below what a lattice of losses resolves.

A mechanism with Rényi divergences R(ω) is (ε, δ)-DP for every real ε and ω > 1 with

    log δ = (ω − 1) (R(ω) − ε + log(1 − 1/ω)) − log ω,

and the least over ω is taken. Both directions, ε from δ and δ from ε, use the same few orders, so they agree.

Source: Balle, Barthe, Gaboardi, Hsu, Sato, "Hypothesis testing interpretations and Rényi differential privacy" (2020),
Theorem 21; Canonne, Kamath, Steinke (2020), Proposition 12; accounting.md section 4.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from tfdpbc.accounting._gaussian import TINY, ULP

_SMALLEST = 1e-300  # the least δ that the orders are made for; below it they still give bounds
_ORDERS = 40  # geometric in ω − 1: at most 5 % off the best one, which costs ε about 0.1 %
_HALVES = (-40, 80)  # the orders searched are ω = 1 + 2^(j/2), j in this range


class RenyiTail:
    """ε(δ) and δ(ε) by the conversion above.

    Args:
      renyi: ω ↦ R(ω), a bound on the Rényi divergence of order ω > 1; may be inf, not NaN.
      delta: the largest δ that will be asked for.
    """

    def __init__(self, renyi: Callable[[float], float], delta: float):
        low, high = (self._best(renyi, value) for value in (max(delta, _SMALLEST), _SMALLEST))
        low, high = min(low, high), max(low, high)
        orders = 1 + 2.0 ** np.linspace((low - 1) / 2, (high + 1) / 2, _ORDERS)
        values = np.array([renyi(float(order)) for order in orders])
        keep = np.isfinite(values)
        self._order, self._value = orders[keep], np.maximum(values[keep], 0.0)
        self._constant = (self._order - 1) * np.log1p(-1 / self._order) - np.log(self._order)

    @staticmethod
    def _best(renyi: Callable[[float], float], delta: float) -> int:
        """The j of the best order, by ternary search: ε is quasi-convex in ω, since log E[e^{(ω−1)L}] is convex."""
        known = {}

        def epsilon(j: int) -> float:
            if j not in known:
                less = 2.0 ** (j / 2)
                value = renyi(1 + less)
                known[j] = value - np.log1p(1 / less) - (np.log(delta) + np.log1p(less)) / less
            return known[j]

        low, high = _HALVES
        while high - low > 1:
            middle = (low + high) // 2
            if epsilon(middle) <= epsilon(middle + 1):
                high = middle
            else:
                low = middle + 1
        return low if epsilon(low) <= epsilon(high) else high

    def epsilon(self, delta: float) -> float:
        """The smallest ε >= 0 that the curve implies at `delta`; inf if no order is finite."""
        if self._order.size == 0:
            return np.inf
        paid = (self._constant - np.log(delta)) / (self._order - 1)
        return max(0.0, float(np.min(self._value + paid + 1e-13 * (self._value + np.abs(paid)))))

    def delta(self, epsilon: np.ndarray) -> np.ndarray:
        """The least δ that the curve implies at each real `epsilon`, in [0, 1]; shape of `epsilon`."""
        if self._order.size == 0:
            return np.ones_like(epsilon)
        less = self._order - 1
        gap = less * (self._value - epsilon[:, None])
        slack = 8 * ULP * (less * (self._value + np.abs(epsilon[:, None])) + np.abs(self._constant) + 1)
        with np.errstate(invalid="ignore"):
            log_delta = np.where(np.isinf(gap), gap, gap + self._constant + slack)
        return np.maximum(np.exp(np.minimum(log_delta.min(axis=1), 0.0)), np.where(np.isinf(epsilon), 0.0, TINY))


class RenyiTable:
    """A Rényi curve at some orders, and bounds between them: (ω − 1) R(ω) is convex in ω, so chords lie above it.

    Args:
      renyi: as for :class:`RenyiTail`.
    """

    _OCTAVE = 4  # orders per doubling of ω − 1: chords are at most 0.8 % above the curve of a Gaussian

    def __init__(self, renyi: Callable[[float], float]):
        self._renyi = functools.lru_cache(maxsize=None)(lambda i: renyi(1 + self._less(i)))

    def _less(self, i: int) -> float:
        return 2.0 ** (i / self._OCTAVE)

    def __call__(self, order: float) -> float:
        """A bound on R(order)."""
        less = order - 1
        i = int(np.floor(np.log2(less) * self._OCTAVE))
        low, high = self._less(i), self._less(i + 1)
        if not np.isfinite(self._renyi(i + 1)):
            return np.inf
        share = min(max((less - low) / (high - low), 0.0), 1.0)
        moment = (1 - share) * low * self._renyi(i) + share * high * self._renyi(i + 1)
        return float(moment / less * (1 + 1e-12))
