r"""The distribution of Σk² over (the first rounds of) one shuffled epoch, by Cauchy's integral in z and u.

Choosing z = p/(1−p)·e^{iθ} turns [z^g] into a conditional probability: let every example differ independently with
probability p = g/N, so that G ~ Binomial(N, p) differ, and condition on G = g. Then every quantity is a probability or
a characteristic function (nothing overflows for any N, m, s, g), and dividing by Pr[G = g] ~ 1/√(2πg) is all the
amplification that rounding errors see.
"""

from __future__ import annotations

import functools

import numpy as np
from scipy import special

from tfdpbc.accounting import _sums
from tfdpbc.accounting._series import log_choose

TAIL = 1e-18  # probability that may be cut from each end; it is added to the error, which goes to the largest c²
_BLOCK = 1 << 21  # complex numbers held at a time


@functools.lru_cache(maxsize=64)
def epoch(n: int, m: int, s: int, rounds: int, g: int) -> tuple[np.ndarray, np.ndarray, float]:
    """(values, probabilities, error) of Σk² over `rounds` rounds; `error` bounds the misplaced probability."""
    if g == 1:
        hit = rounds * m * s / n
        return _two_points(0, 1, hit)
    if g == n:
        return np.array([rounds * m * m]), np.ones(1), 0.0
    if m == 1 and rounds == 1:
        miss = float(np.exp(log_choose(n - s, g / n, g)[-1] - log_choose(n, g / n, g)[-1]))
        return _two_points(0, 1, 1 - miss)
    p = g / n
    log_condition = _log_probability_of(n, g)
    hits = _contributions_hit(m, s, p, g, TAIL * np.exp(log_condition) / rounds)
    low, high = _window(hits, rounds, log_condition, m, g)
    size = _sums.smooth_size(high - low + 1)
    spectrum, wrong = _conditional_spectrum(n, m, s, rounds, g, hits, low, size)
    scale = np.exp(-log_condition)
    # Aliases and cut tails are below 5·TAIL; rounding is bounded in mean square, then summed over the window.
    return _sums.invert(spectrum * scale, wrong * scale, low, high, 5 * TAIL)


def _two_points(first: int, second: int, probability: float) -> tuple[np.ndarray, np.ndarray, float]:
    if probability >= 1:
        return np.array([second]), np.ones(1), 0.0
    return np.array([first, second]), np.array([1 - probability, probability]), 0.0


def _contributions_hit(m: int, s: int, p: float, g: int, tail: float) -> tuple[np.ndarray, np.ndarray, float]:
    """(k, log Pr[k], Pr[any other k]) of one round under independently differing examples.

    k > g has no part in [z^g]; k so large that all of them have probability below `tail` are left out too.
    """
    k = np.arange(min(m, g + 60) + 1, dtype=np.float64)
    log_miss = s * np.log1p(-p)  # a contribution without any differing example
    log_hit = np.log(-np.expm1(log_miss))
    log_k = log_choose(m, 1.0, k.size - 1) + k * log_hit + (m - k) * log_miss
    beyond = np.append(np.cumsum(np.exp(log_k[:0:-1]))[::-1], 0.0)  # beyond[i] = Pr[k > i]
    size = min(int(np.argmax(beyond < tail)), g, m) + 1
    return k[:size], log_k[:size], float(beyond[size - 1])


def _log_probability_of(n: int, g: int) -> float:
    """log Pr[Binomial(n, g/n) = g]."""
    return float(log_choose(n, g / n, g)[-1] + (n - g) * np.log1p(-g / n))


def _window(hits, rounds: int, log_condition: float, m: int, g: int) -> tuple[int, int]:
    """A range that Σk² leaves at either end with probability below TAIL, by Chernoff's bound on the conditional law."""
    k, log_k, _ = hits
    full, rest = divmod(g, m)
    largest = rounds * m * m if full >= rounds else full * m * m + rest * rest
    slack = -np.log(TAIL) - log_condition

    def log_moment(t):
        return rounds * special.logsumexp(log_k + np.multiply.outer(t, k * k), axis=-1)

    low, high = _sums.chernoff(log_moment, slack)
    return max(0, low), min(largest, high)


def _circle(n: int, g: int) -> int:
    """How many values of θ make the aliases of G = g (that is G = g ± that many, ...) less likely than TAIL of it."""
    reach = min(n - g, int(60 * np.sqrt(g) + 200))
    steps = np.arange(reach, dtype=np.float64)
    odds = np.log(g / (n - g))
    with np.errstate(divide="ignore"):
        up = np.cumsum(np.log((n - g - steps) / (g + 1 + steps)) + odds)
        down = np.cumsum(np.log((g - np.arange(g)) / (n - g + 1.0 + np.arange(g))) - odds)
    beyond = [int(np.searchsorted(-side, -np.log(TAIL * 1e-3))) + 1 for side in (up, down) if side.size]
    return max(beyond) + 1


def _conditional_spectrum(n, m, s, rounds, g, hits, low, size) -> tuple[np.ndarray, np.ndarray]:
    """E[exp(−2πi j (Σk² − low)/size); G = g] for j = 0..size//2, and a bound on the rounding error of each."""
    k, log_k, dropped = hits
    p, angles = g / n, _circle(n, g)
    less_one = np.conj(_sums.unit_less_one(angles))
    log_single = _sums.complex_log1p(p * less_one)  # log E[e^{iθ·differs}]
    log_miss = s * np.log1p(-p)
    hit_ratio = 1 - np.expm1(s * log_single) / np.expm1(log_miss)  # E[e^{iθ·count} | hit]
    outside = (n - rounds * m * s) * log_single
    extract = np.conj(1 + less_one[np.arange(angles) * g % angles])  # e^{−iθg}
    # E[one round] − 1 = Σ_{k>0} Pr[k] (ratio^k u^{k²} − 1) − dropped: small when Pr[k > 0] is, so that raising it to
    # the power `rounds` by log1p loses nothing.
    k, weight = k[1:], np.exp(log_k[1:])
    powers = weight * hit_ratio[:, None] ** k  # [angles, k]
    constant = weight.sum() + dropped
    squares = (k * k).astype(np.int64)
    unit = np.exp(-2j * np.pi * np.arange(size) / size)
    result, wrong = np.empty(size // 2 + 1, np.complex128), np.empty(size // 2 + 1)
    block = max(1, _BLOCK // (angles + k.size))
    for start in range(0, result.size, block):
        j = np.arange(start, min(start + block, result.size), dtype=np.int64)
        turns = unit[np.multiply.outer(squares, j) % size]  # u^{k²}, the angle reduced in integers
        inside = rounds * _sums.complex_log1p(powers @ turns - constant)
        terms = np.exp(inside + outside[:, None]) * extract[:, None]
        digits = _sums.EPS * (4 + np.abs(inside) + np.abs(outside)[:, None])
        here = slice(start, start + j.size)
        result[here] = terms.mean(axis=0) * np.conj(unit[(low * j) % size])
        wrong[here] = np.where(terms == 0, 0.0, np.abs(terms) * digits).mean(axis=0)
    return result, wrong
