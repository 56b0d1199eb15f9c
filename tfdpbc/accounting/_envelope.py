"""A privacy profile known at some ε, as a table: bounds on δ(ε) and f(α) between them, by one search per value.

The profile δ is a convex function of e^ε, so a chord between two of its points lies above it; and each point is a line
below f, and by symmetry another one. Whatever the table holds, if its δ are upper bounds, so is every δ it gives, and
every f is a lower bound; how tight they are is second order in the distance of the points.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tfdpbc.accounting._gaussian import ULP, reflect


def points(top: float, count: int = 3000) -> np.ndarray:
    """Increasing ε from 0 to `top`: half of them evenly spaced, half of them dense near 0; shape [about `count`]."""
    top = max(top, 1e-6)
    return np.unique(
        np.concatenate([[0.0], np.geomspace(top * 1e-7, top, count // 2), np.linspace(0, top, count // 2)])
    )


class Envelope:
    """The table of a symmetric profile.

    Args:
      epsilon: increasing from 0; shape [n], n >= 2.
      delta: upper bounds on δ(epsilon), each in [0, 1]; shape [n].
    """

    def __init__(self, epsilon: np.ndarray, delta: np.ndarray):
        self.epsilon = epsilon
        self.delta_at = np.minimum.accumulate(np.clip(delta, 0.0, 1.0))
        gap = np.diff(epsilon)
        with np.errstate(divide="ignore"):
            log_drop = np.log(-np.diff(self.delta_at))
            log_gap = np.where(gap < 30, np.log(np.expm1(np.minimum(gap, 30.0))), gap)
        # Steep lines 1 − δ_i − e^{ε_i} α: line i + 1 is better than i for log α below this.
        self._steep = np.minimum.accumulate(log_drop - epsilon[:-1] - log_gap)
        # Flat lines e^{−ε_i} (1 − δ_i − α): line i + 1 is better than i for 1 − α below this.
        drop = self.delta_at[:-1] - np.exp(-gap) * self.delta_at[1:]
        self._flat = np.minimum.accumulate(drop / -np.expm1(-gap))

    @classmethod
    def of(cls, profile: Callable[[np.ndarray], np.ndarray], top: float, count: int = 3000) -> Envelope:
        """The table of a vectorised profile on 0..top."""
        epsilon = points(top, count)
        return cls(epsilon, profile(epsilon))

    def f(self, alpha: np.ndarray) -> np.ndarray:
        """A lower bound on f(α), rounded down; shape of `alpha`."""
        steep, _ = self._steep_line(alpha)
        flat, _ = self._flat_line(alpha)
        return np.clip(np.maximum(1 - steep, flat) - 4 * ULP, 0.0, np.maximum(1 - alpha, 0.0))

    def advance(self, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(1 − f(α), the ε of the line that says so: the logarithm of its slope); shapes of `alpha`."""
        steep, up = self._steep_line(alpha)
        flat, down = self._flat_line(alpha)
        return np.minimum(steep, 1 - flat), np.where(steep <= 1 - flat, up, -down)

    def _steep_line(self, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The least of δ_i + e^{ε_i} α, rounded up, and its ε_i."""
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            log_alpha = np.log(alpha)
            i = np.searchsorted(-self._steep, -log_alpha, side="left")
            used = np.where(alpha > 0, np.exp(np.minimum(self.epsilon[i] + log_alpha, 700.0)), 0.0)
        return self.delta_at[i] + used * (1 + ULP * (8 + 4 * self.epsilon[i])), self.epsilon[i]

    def _flat_line(self, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The greatest of e^{−ε_i} (1 − δ_i − α), and its ε_i."""
        i = np.searchsorted(-self._flat, -(1 - alpha), side="left")
        return np.exp(-self.epsilon[i]) * (1 - self.delta_at[i] - alpha), self.epsilon[i]

    def delta(self, epsilon: np.ndarray) -> np.ndarray:
        """An upper bound on δ(ε) for any real ε, rounded up; beyond the table that of its last point."""
        size = np.abs(epsilon)
        i = np.clip(np.searchsorted(self.epsilon, size, side="right") - 1, 0, self.epsilon.size - 2)
        low, high = self.epsilon[i], self.epsilon[i + 1]
        # (e^ε − e^low)/(e^high − e^low) without overflow
        share = np.exp(np.minimum(size - high, 0.0)) * np.expm1(low - np.minimum(size, high)) / np.expm1(low - high)
        last = self.delta_at[i + 1]
        chord = last + (self.delta_at[i] - last) * np.clip(1 - share, 0.0, 1.0)
        return reflect(epsilon, np.minimum(chord + 16 * ULP * self.delta_at[i], self.delta_at[i]))
