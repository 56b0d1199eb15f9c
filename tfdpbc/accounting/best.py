"""Several guarantees that hold for one mechanism at once, each the best somewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfdpbc import _validate
from tfdpbc.accounting.tradeoff import Gaussian, TradeOff


class Best(TradeOff):
    """The pointwise best of trade-off functions that one mechanism keeps.

    Formal guarantee: a mechanism that is f_i-DP for every i is f-DP for f = max_i f_i, which is a trade-off function (a
    maximum of convex functions is convex). So δ(ε) = min_i δ_i(ε), and every Rényi divergence is at most the least of
    the bounds. Composition and groups act on each f_i: the true curve lies above each of the results.

    Args:
      curves: one or more trade-off functions, all against the same adversary (or a stronger one than is claimed) and
        under the same neighbouring relation.
    """

    def __init__(self, curves: Sequence[TradeOff]):
        if not curves:
            _validate.fail("curves", "a non-empty sequence of TradeOff", curves)
        self.curves = tuple(_validate.instance("curves", curve, TradeOff, "of TradeOff objects") for curve in curves)

    @property
    def mu(self) -> float | None:
        mus = [curve.mu for curve in self.curves]
        return None if any(mu is None for mu in mus) else min(mus)

    def compose(self, other: TradeOff) -> TradeOff:
        """Each with `other` (each pair, where `other` is such a set too)."""
        others = other.curves if isinstance(other, Best) else (other,)
        return Best([mine.compose(theirs) for mine in self.curves for theirs in others])

    def compose_gaussian(self, mu: float) -> TradeOff:
        """Each with G_mu."""
        return Best([curve.compose(Gaussian(mu)) for curve in self.curves])

    def group(self, size: int) -> TradeOff:
        return Best([curve.group(size) for curve in self.curves])

    def _f(self, alpha):
        return np.max([curve.f(alpha) for curve in self.curves], axis=0)

    def _delta(self, epsilon):
        return np.min([curve.delta(epsilon) for curve in self.curves], axis=0)

    def _epsilon(self, delta):
        return min(curve.epsilon(delta) for curve in self.curves)

    def _renyi(self, order):
        return min(curve.renyi(order) for curve in self.curves)

    def __repr__(self):
        return f"Best({list(self.curves)!r})"
