"""What every trade-off function can be asked, scalars and arrays alike; searches and argument checks are made here."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfdpbc import _validate
from tfdpbc.accounting import _plot, _roots
from tfdpbc.accounting._roots import log_excess


class Answers(abc.ABC):
    """The questions that a trade-off function answers (tradeoff.py has what can be made of several).

    All methods accept a scalar (and return a float) or an array (and return an array of the same shape).
    Subclasses give `_f`, `_delta` on float64 arrays of one dimension, and `_renyi` on one order.
    """

    @property
    def mu(self) -> float | None:
        """μ if this is exactly the Gaussian trade-off function G_μ, else None."""
        return None

    def f(self, alpha):
        """The least type II error of any test with type I error `alpha` (in [0, 1])."""
        return _elementwise("alpha", alpha, self._f, lambda a: (a >= 0) & (a <= 1), "numbers in [0, 1]")

    def __call__(self, alpha):
        return self.f(alpha)

    def delta(self, epsilon):
        """The privacy profile: the smallest δ with which the mechanism is (`epsilon`, δ)-DP; any real `epsilon`."""
        return _elementwise("epsilon", epsilon, self._delta, lambda e: ~np.isnan(e), "real numbers")

    def epsilon(self, delta):
        """The smallest ε >= 0 for which the mechanism is (ε, `delta`)-DP; inf if there is none. `delta` in (0, 1)."""
        return _elementwise(
            "delta",
            delta,
            lambda values: np.array([self._epsilon(float(value)) for value in values]),
            lambda d: (d > 0) & (d < 1),
            "numbers > 0 and < 1",
        )

    def renyi(self, order):
        """A bound on the Rényi divergence of `order` > 1 (order 1 is refused) in either direction, in nats."""
        return _elementwise(
            "order",
            order,
            lambda values: np.array([self._renyi(float(value)) for value in values]),
            lambda w: w > 1,
            "numbers > 1",
        )

    def isclose(self, other: Answers, tolerance: float = 1e-9) -> bool:
        """Whether the two functions agree to `tolerance` (absolute) over a grid of α that is dense near 0 and 1."""
        small = np.logspace(-9, np.log10(0.5), 60)
        alpha = np.concatenate([[0.0], small, 1 - small, [1.0]])
        return bool(np.max(np.abs(self.f(alpha) - other.f(alpha))) <= tolerance)

    def plot(
        self,
        axes: Any = None,
        *,
        label: str = "this guarantee",
        gaussians: Sequence[float] = (0.5, 1.0, 2.0),
        points: int = 200,
        **line: Any,
    ) -> Any:
        """Draws the type I error α against the least type II error f(α).

        Args:
          axes: matplotlib axes to draw on; None makes a figure.
          label: the curve's name in the legend.
          gaussians: values of μ >= 0; each G_μ is drawn dashed, for reference.
          points: about how many α are evaluated.
          line: passed on to `axes.plot` for the curve.

        Returns:
          The axes.
        """
        return _plot.plot(self.f, axes, label, gaussians, points, **line)

    @abc.abstractmethod
    def _f(self, alpha: np.ndarray) -> np.ndarray: ...

    @abc.abstractmethod
    def _delta(self, epsilon: np.ndarray) -> np.ndarray: ...

    @abc.abstractmethod
    def _renyi(self, order: float) -> float: ...

    def _epsilon(self, delta: float) -> float:
        def excess(epsilon: float) -> float:
            return log_excess(float(self._delta(np.array([epsilon]))[0]), delta)

        if excess(0.0) <= 0:
            return 0.0
        high = self._epsilon_bound(delta)
        while excess(high) > 0:
            high *= 2.0
            if high > 1e300:
                return np.inf
        # The point returned satisfies delta(epsilon) <= delta for the rounded-up profile, hence for the true one.
        return _roots.crossing(excess, 0.0, high)

    def _epsilon_bound(self, delta: float) -> float:
        """Some positive ε, the better the closer above epsilon(delta): where the search for it starts."""
        return 1.0


def _elementwise(name: str, values, function, allowed, expected: str):
    """Applies `function` to a flat float64 array made of `values`; the shape comes back, a scalar as a float."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        _validate.fail(name, expected, values, TypeError)
    if isinstance(values, bool) or np.any(np.isnan(array)) or not np.all(allowed(array)):
        _validate.fail(name, expected, values)
    result = np.asarray(function(array.reshape(-1)), np.float64).reshape(array.shape)
    return float(result) if array.ndim == 0 else result
