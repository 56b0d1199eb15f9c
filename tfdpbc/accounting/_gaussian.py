"""Gaussian trade-off functions in float64: the formulas, with a bound on their rounding put on the private side."""

from __future__ import annotations

import numpy as np
from scipy import special

ULP = float(np.finfo(np.float64).eps)
TINY = float(np.finfo(np.float64).smallest_subnormal)
_SQRT_HALF = np.sqrt(0.5)
_GAUSS = tuple(x / 2 + y for x, y in zip(special.roots_legendre(8), (0.5, 0.0), strict=True))  # on [0, 1]


def gaussian_f(alpha: np.ndarray, mu: float, up: bool = False) -> np.ndarray:
    """G_μ(α), rounded down, or up, by a bound on the rounding error of its float64 evaluation."""
    if np.isinf(mu):
        return np.zeros_like(alpha)
    if mu == 0:
        return 1.0 - alpha
    quantile = -special.ndtri(alpha)
    with np.errstate(invalid="ignore"):
        x = quantile - mu
        slack = ULP * (4 + 4 * np.abs(x) * (np.abs(quantile) + mu))
        result = special.ndtr(x) * (1 + slack if up else 1 - np.minimum(slack, 1.0))
        result = np.maximum(result, TINY) if up else result
    return np.where(alpha == 0, 1.0, np.where(alpha == 1, 0.0, np.minimum(result, 1.0 - alpha)))


def gaussian_delta(epsilon: np.ndarray, mu) -> np.ndarray:
    r"""δ_{G_μ}(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) for every real ε, rounded up; `mu` broadcasts against `epsilon`.

    With R the Mills ratio, e^ε Φ(−μ/2 − ε/μ) = φ(a) R(μ/2 + ε/μ) for a = μ/2 − ε/μ (the exponential is absorbed before
    it can overflow), so for a <= 0 the two terms share the factor φ(a) and nothing cancels but a difference of Mills
    ratios.
    """
    epsilon, mu = np.broadcast_arrays(np.asarray(epsilon, np.float64), np.asarray(mu, np.float64))
    size = np.abs(epsilon)
    with np.errstate(all="ignore"):
        ratio = size / mu
        a, b = mu / 2 - ratio, mu / 2 + ratio
        density = 0.5 * np.exp(-a * a / 2)
        second = density * special.erfcx(b * _SQRT_HALF)
        first = np.where(a <= 0, density * special.erfcx(-a * _SQRT_HALF), special.ndtr(a))
        slack = ULP * (first * (4 + 4 * np.abs(a) * b) + 4 * second)
        result = np.clip(first - second + slack, TINY, 1.0)
        small = (mu < 0.1) & (mu > 0) & np.isfinite(size)
        if small.any():
            result = result.copy()
            result[small] = np.maximum(_small_mu_delta(a[small], mu[small]), TINY)
    # The limits, where the formula above is 0/0: no privacy at all, perfect privacy, ε = ∞.
    result = np.where(np.isinf(mu) | np.isinf(b) & (a > 0), 1.0, result)
    result = np.where((mu == 0) | np.isinf(size) & np.isfinite(mu), 0.0, result)
    return reflect(epsilon, result)


def _small_mu_delta(a: np.ndarray, mu: np.ndarray) -> np.ndarray:
    """The same for small μ, where the two Mills ratios are nearly equal: φ(a) ∫_0^μ (1 − tR(t)) dt over t = −a + [0, μ]."""
    nodes, weights = _GAUSS
    t = -a[..., None] + mu[..., None] * nodes
    slope = 1 - t * np.sqrt(np.pi / 2) * special.erfcx(t * _SQRT_HALF)
    mean = np.maximum(slope, 0.0) @ weights
    rounding = ULP * (8 + 8 * (1 + a * a) * mean)
    return np.exp(-a * a / 2) / np.sqrt(2 * np.pi) * mu * (mean + rounding)


def reflect(epsilon: np.ndarray, delta_of_size: np.ndarray) -> np.ndarray:
    """δ(ε) from δ(|ε|) for a symmetric trade-off function: δ(−ε) = 1 − e^{−ε} + e^{−ε} δ(ε)."""
    size = np.abs(epsilon)
    return np.where(epsilon < 0, -np.expm1(-size) + np.exp(-size) * delta_of_size, delta_of_size)


def gaussian_epsilon_bound(delta: float, mu: float) -> float:
    """An upper bound on epsilon(delta) of G_μ, from δ(ε) <= Φ(μ/2 − ε/μ)."""
    bound = mu * mu / 2 - mu * float(special.ndtri(delta))
    return max(bound, TINY) * (1 + 1e-9) if np.isfinite(bound) else 1.0
