r"""Power series with positive coefficients, in logs: exact (to rounding) however extreme the terms are.

Notation as in participation.py. Every z is scaled by g/N, so that no binomial coefficient of N is ever formed.
"""

from __future__ import annotations

import functools

import numpy as np
from scipy import special


def log_mean_exp(exponents: np.ndarray, weights: np.ndarray) -> float:
    """log Σ weights·exp(exponents), weights summing to 1."""
    with np.errstate(divide="ignore"):
        return float(special.logsumexp(exponents + np.log(weights)))


def log_mean_exp_of_logs(values: np.ndarray, log_weights: np.ndarray, t: float) -> float:
    """log E[exp(t V)] of a distribution given by logs; for small t·V through expm1, which keeps its first digits."""
    exponents = t * values
    if np.max(np.abs(exponents)) < 1:
        return float(np.log1p(np.exp(log_weights) @ np.expm1(exponents)))
    return float(special.logsumexp(exponents + log_weights))


def log_choose(total: int, scale: float, size: int) -> np.ndarray:
    """log(C(total, n)·scale^n) for n = 0..size, by products of ratios: lgamma would lose eight digits at N = 1e6."""
    n = np.arange(size, dtype=np.float64)
    with np.errstate(divide="ignore"):
        steps = np.log(np.maximum(total - n, 0.0)) + np.log(scale / (n + 1))
    return np.concatenate([[0.0], np.cumsum(steps)])


@functools.lru_cache(maxsize=32)
def round_coefficients(m: int, s: int, g: int, scale: float) -> np.ndarray:
    """log(h(k, n)·scale^n), h(k, n) = [z^n] C(m,k)((1+z)^s − 1)^k: shape [min(m,g)+1, g+1].

    h(k, n) counts the n-subsets of the round's m·s places that touch exactly k of the m contributions. Adding one
    place at a time gives (n+1) h(k, n+1) = (ks − n) h(k, n) + s(m−k+1) h(k−1, n), a recurrence without a negative term.
    """
    k = np.arange(min(m, g) + 1, dtype=np.float64)
    result = np.full((k.size, g + 1), -np.inf)
    result[0, 0] = 0.0
    with np.errstate(divide="ignore"):
        enter = np.log(s * np.maximum(m - k[1:] + 1, 0.0))
        for n in range(g):
            column = result[:, n] + np.log(np.maximum(k * s - n, 0.0))
            column[1:] = np.logaddexp(column[1:], result[:-1, n] + enter)
            result[:, n + 1] = column + np.log(scale / (n + 1))
    result.setflags(write=False)
    return result


def round_log_probability(n: int, m: int, s: int, g: int) -> np.ndarray:
    """log Pr[k] of one subsampled round, k = 0..min(m, g): Σ_j h(k, j) C(N−ms, g−j)/C(N, g)."""
    scale = g / n
    inside = round_coefficients(m, s, g, scale)
    outside = log_choose(n - m * s, scale, g)[::-1]
    return special.logsumexp(inside + outside, axis=1) - log_choose(n, scale, g)[-1]


def epoch_log_moment(n: int, m: int, s: int, rounds: int, g: int, t: float) -> float:
    """log E[exp(t Σk²)] over the first `rounds` rounds of an epoch: [z^g] R(z, e^t)^rounds (1+z)^rest / C(N, g)."""
    if g == 1:
        return float(np.log1p(rounds * m * s / n * np.expm1(t))) if t < 700 else float(t + np.log(rounds * m * s / n))
    scale = g / n
    coefficients = round_coefficients(m, s, g, scale)
    k = np.arange(coefficients.shape[0], dtype=np.float64)
    base = special.logsumexp(coefficients + t * k[:, None] ** 2, axis=0)
    total = log_choose(n - rounds * m * s, scale, g)
    power = rounds
    while power:
        if power & 1:
            total = _multiply(total, base)
        power >>= 1
        if power:
            base = _multiply(base, base)
    return float(total[-1] - log_choose(n, scale, g)[-1])


def _multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product of two series given by the logs of their coefficients, cut at their common length."""
    size = a.size
    padded = np.concatenate([np.full(size - 1, -np.inf), b])
    shifted = np.lib.stride_tricks.sliding_window_view(padded, size)[:, ::-1]  # shifted[n, i] = b[n - i]
    return special.logsumexp(a + shifted, axis=1)
