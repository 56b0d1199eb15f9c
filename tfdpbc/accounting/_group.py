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

from tfdpbc.accounting._gaussian import TINY, ULP

_GRID = np.linspace(-1, 1, 25)
_BLOCK = 1 << 18  # elements of a table held at a time


def f(one: Callable[[np.ndarray], np.ndarray], alpha: np.ndarray, size: int) -> np.ndarray:
    """1 − (1 − f)^{∘size} at each α, rounded down."""
    for _ in range(size - 1):
        alpha = np.nextafter(1 - one(alpha), 2.0).clip(0, 1)
    return one(alpha)


def step(delta: Callable[[np.ndarray], np.ndarray], middle: float) -> float:
    """About the step that is best for the group: μ², if δ were that of G_μ; `middle` is ε at δ = 1/2, about μ²/2."""
    total = float(delta(np.zeros(1))[0])
    return max((2 * float(special.ndtri(min((1 + total) / 2, 1 - ULP)))) ** 2, 2 * middle if middle < np.inf else 0.0)


def delta(one: Callable[[np.ndarray], np.ndarray], epsilon: np.ndarray, size: int, step: float) -> np.ndarray:
    """The bound on δ_group at each `epsilon` >= 0; `one` is δ of one member, `step` as above."""
    if step == 0:
        return np.zeros_like(epsilon)
    block = max(1, _BLOCK // (_GRID.size * size))
    blocks = [epsilon[start : start + block] for start in range(0, epsilon.size, block)]
    return np.concatenate([np.zeros(0), *(_delta(one, part, size, step) for part in blocks)])


def _delta(one, epsilon, size, step):
    back = (size - 1) / 2 - np.arange(size)
    endless = np.isinf(epsilon)
    total = np.where(endless, 0.0, epsilon)

    def log_bounds(steps: np.ndarray) -> np.ndarray:
        parts = total[:, None, None] / size + steps[..., None] * back
        later = np.cumsum(parts[..., ::-1], axis=-1)[..., ::-1] - parts
        with np.errstate(divide="ignore"):
            terms = np.log(one(parts.ravel())).reshape(parts.shape) + later
        return np.logaddexp.reduce(terms, axis=-1) + ULP * size * (8 + 2 * np.abs(parts).sum(axis=-1))

    # Any step is valid: finer and finer grids around the best of the last. Heavy tails want steps up to the order of ε.
    low, high = np.log(step) - 4, np.maximum(np.log(step) + 4, np.log(4 * total / size + TINY))
    middle, width, best = (low + high) / 2, (high - low) / 2, np.full(epsilon.size, np.inf)
    for _ in range(5):
        scales = middle[:, None] + width[:, None] * _GRID
        found = log_bounds(np.exp(scales))
        middle = np.take_along_axis(scales, np.argmin(found, axis=1)[:, None], axis=1)[:, 0]
        best = np.minimum(best, found.min(axis=1))
        width = width * (2 / (_GRID.size - 1))
    return np.where(endless, min(1.0, float(one(np.array([np.inf]))[0]) * size), np.exp(np.minimum(best, 0.0)))


def renyi(one: Callable[[float], float], order: float, size: int) -> float:
    """A bound on the group's Rényi divergence: once per member, the exponent p the one that is best for Gaussians."""
    total = 0.0
    for left in range(size - 1, 0, -1):
        p = 1 + left * (order - 1) / order
        total += (order - 1 / p) / (order - 1) * one(p * order)
        order = p / (p - 1) * (order - 1 / p)
    return total + one(order)
