"""Groups of examples for any trade-off function f: bounds on 1 − (1 − f)^{∘size}, all of them tight for Gaussians.

With F = 1 − f, each (ε_i, δ(ε_i)) gives a line above F, and a chain of `size` such lines with Σ ε_i = ε bounds

    δ_group(ε) <= Σ_i δ(ε_i) exp(Σ_{j>i} ε_j).

The ε_i are taken in arithmetic progression (the optimum for Gaussians) and their step is optimised; any step is valid.

Source: Dong, Roth, Su (2019), Theorem 2.14; Mironov (2017), Proposition 11, for Rényi divergences.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special

from tfdpbc.accounting._gaussian import ULP

_GRID = np.linspace(-1, 1, 21)


def f(one: Callable[[np.ndarray], np.ndarray], alpha: np.ndarray, size: int) -> np.ndarray:
    """1 − (1 − f)^{∘size} at each α, rounded down."""
    for _ in range(size - 1):
        alpha = np.nextafter(1 - one(alpha), 2.0).clip(0, 1)
    return one(alpha)


def step(delta: Callable[[np.ndarray], np.ndarray], middle: float) -> float:
    """About the step that is best for the group: μ², if δ were that of G_μ; `middle` is ε at δ = 1/2, about μ²/2."""
    total = float(delta(np.zeros(1))[0])
    return max((2 * float(special.ndtri(min((1 + total) / 2, 1 - ULP)))) ** 2, 2 * middle if middle < np.inf else 0.0)


def delta(one: Callable[[np.ndarray], np.ndarray], epsilon: float, size: int, step: float) -> float:
    """The bound on δ_group at `epsilon` >= 0; `one` is δ of one member, `step` as above."""
    if step == 0 or np.isinf(epsilon):
        return 0.0 if step == 0 else float(min(1.0, one(np.array([np.inf]))[0] * size))
    back = (size - 1) / 2 - np.arange(size)

    def log_bounds(steps: np.ndarray) -> np.ndarray:
        parts = epsilon / size + steps[:, None] * back
        later = np.cumsum(parts[:, ::-1], axis=1)[:, ::-1] - parts
        with np.errstate(divide="ignore"):
            terms = np.log(one(parts.ravel())).reshape(parts.shape) + later
        return np.logaddexp.reduce(terms, axis=1) + ULP * size * (8 + 2 * np.abs(parts).sum(axis=1))

    # The bound is unimodal in the step, and any step is valid: finer and finer grids around the best of the last.
    middle, width, best = 0.0, 4.0, np.inf
    for _ in range(5):
        scales = middle + width * _GRID
        found = log_bounds(step * np.exp(scales))
        middle, best = float(scales[np.argmin(found)]), min(best, float(found.min()))
        width *= 2 / (_GRID.size - 1)
    return float(np.exp(min(0.0, best)))


def renyi(one: Callable[[float], float], order: float, size: int) -> float:
    """A bound on the group's Rényi divergence: once per member, the exponent p the one that is best for Gaussians."""
    total = 0.0
    for left in range(size - 1, 0, -1):
        p = 1 + left * (order - 1) / order
        total += (order - 1 / p) / (order - 1) * one(p * order)
        order = p / (p - 1) * (order - 1 / p)
    return total + one(order)
