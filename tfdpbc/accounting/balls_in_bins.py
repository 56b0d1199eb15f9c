r"""Balls-in-bins sampling: in each epoch every example joins exactly one of T rounds, picked uniformly, independently.

Adding one example to the data shifts one coordinate of the epoch's T (unit-noise, adaptively chosen) outputs, a random
one, by at most 1/σ. So one epoch is dominated, in each direction, by

    P = (1/T) Σ_i N(e_i/σ, I)  against  Q = N(0, I),    dP/dQ = (W_1 + … + W_T)/T,   W_i = e^{N_i},

with independent N_i ~ N(−1/(2σ²), 1/σ²) under Q; epochs compose. Under P one of the W_i has the mean of its logarithm
at +1/(2σ²), which is the same law weighted with dP/dQ. The law of the average is bounded on either side in
_averages.py: deterministically, no Monte Carlo.

Source: Chua, Ghazi, Harrison, Leeman, Kamath, Kumar, Manurangsi, Sinha, Zhang, "Balls-and-Bins sampling for DP-SGD"
(2024): the dominating pair, for adaptive rounds too. The bounds on its privacy profile are ours.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from scipy import special

from tfdpbc import _validate
from tfdpbc.accounting import _averages
from tfdpbc.accounting._gaussian import ULP
from tfdpbc.accounting.pld import LossDistribution
from tfdpbc.accounting.tradeoff import Gaussian, LossTradeOff, TradeOff

_LEAST_NOISE = 1 / 26  # below, e^{1/(2σ²)} leaves the range of float64
_LOWER_POINTS = 1 << 20  # of the lattice on which lower bounds compose
_ORDERS = 256  # Rényi orders above that are bounded by the Gaussian's
_GRID = 64  # ε per pass of a search


def balls_in_bins(rounds_per_epoch: int, noise_multiplier: float, epochs: int, group_size: int = 1) -> TradeOff:
    """The guarantee of `epochs` epochs of balls-in-bins rounds under add/remove of `group_size` examples; certified.

    The adversary sees every round's noisy sum, not who took part. An epoch that was broken off counts as a whole (its
    released rounds are a post-processing of it).

    Args:
      rounds_per_epoch: T >= 1, the rounds among which each example picks one; 1 gives a Gaussian, exactly.
      noise_multiplier: σ > 0, noise standard deviation over the sensitivity to one example. Below 1/26 the bound is
        the Gaussian of one participation per epoch in a round that is known, which is at most log T per epoch above.
      epochs: E >= 0.
      group_size: g >= 1; more than one example by the general rule (`TradeOff.group`), hence linear in g.

    Returns:
      A trade-off function that is never above the truth (see `lower_bound` for how far below). δ below about 1e-15 is
      out of reach of the lattice (ε is then inf).
    """
    rounds_per_epoch = _validate.integer("rounds_per_epoch", rounds_per_epoch, at_least=1)
    noise_multiplier = _validate.number("noise_multiplier", noise_multiplier, above=0)
    epochs = _validate.integer("epochs", epochs, at_least=0)
    group_size = _validate.integer("group_size", group_size, at_least=1)
    if epochs == 0:
        return Gaussian(0.0)
    if rounds_per_epoch == 1 or noise_multiplier < _LEAST_NOISE:
        # The adversary who is told the round of each epoch sees this; being told can only help.
        return Gaussian(group_size * float(np.sqrt(epochs)) / noise_multiplier)
    return _balls_in_bins(rounds_per_epoch, noise_multiplier, epochs).group(group_size)


@functools.lru_cache(maxsize=16)
def _balls_in_bins(rounds_per_epoch: int, noise_multiplier: float, epochs: int) -> TradeOff:
    law = _above(rounds_per_epoch, noise_multiplier)
    directions = [direction.self_compose(epochs) for direction in _directions(law)]
    return LossTradeOff(directions, functools.partial(_renyi, rounds_per_epoch, noise_multiplier, epochs))


@functools.lru_cache(maxsize=8)
def _above(rounds_per_epoch: int, noise_multiplier: float) -> _averages.Spread:
    return _averages.average(_averages.Spread, 1 / noise_multiplier, rounds_per_epoch)


@functools.lru_cache(maxsize=8)
def _below(rounds_per_epoch: int, noise_multiplier: float) -> _averages.Lumped:
    return _averages.average(_averages.Lumped, 1 / noise_multiplier, rounds_per_epoch)


def _directions(law: _averages.Spread) -> list[LossDistribution]:
    """The losses of one epoch, log dP/dQ under P (removal) and log dQ/dP under Q (addition)."""
    last = law.first + law.weights.size - 1
    remove = LossDistribution(law.step, law.first, law.weights * law.values, law.lost)
    add = LossDistribution(law.step, -last, law.weights[::-1], law.zero)
    return [_worst(direction, law.error, law.shift) for direction in (remove, add)]


def _worst(law: LossDistribution, error: float, shift: float) -> LossDistribution:
    """The stochastically largest of the laws whose weights are wrong by `error` (relative) and losses by `shift`.

    With X′ = X(1 + η), |η| <= shift, in place of the likelihood ratio X, losses move by `shift` and weights under P by
    a factor 1 + shift; the slack of 2 covers second orders. What exceeds 1 is taken from the least losses.
    """
    shift *= 2
    up = np.expm1(-shift) / np.expm1(-law.step)  # connect the dots: exact for e^−loss
    weights = np.append(law.weights, 0.0) * (1 - up) + np.append(0.0, law.weights) * up
    infinity = law.infinity * (1 + 1e-9)
    weights = weights * (1 + 2 * error + shift)
    excess = max(0.0, float(weights.sum()) + infinity - 1)
    weights -= np.diff(np.minimum(np.append(0.0, np.cumsum(weights)), excess))
    return LossDistribution(law.step, law.first, np.maximum(weights, 0.0), infinity)


def lower_bound(rounds_per_epoch: int, noise_multiplier: float, epochs: int, delta: float) -> float:
    """An ε that `epochs` epochs of balls-in-bins rounds with worst-case data do not keep at this `delta`; certified.

    The profile of a post-processing of the dominating pair (values of dP/dQ merged), whose losses are rounded down to
    a fine lattice for more than one epoch. The pair is attained by data whose clipped gradients are all along one
    direction and constant, so this is below the ε of the mechanism, not only of its analysis. 0 where nothing is known.

    Args:
      rounds_per_epoch: T >= 1.
      noise_multiplier: σ > 0; 0 is returned below 1/26, T = 1 apart.
      epochs: E >= 0.
      delta: in (0, 1).
    """
    rounds_per_epoch = _validate.integer("rounds_per_epoch", rounds_per_epoch, at_least=1)
    noise_multiplier = _validate.number("noise_multiplier", noise_multiplier, above=0)
    epochs = _validate.integer("epochs", epochs, at_least=0)
    delta = _validate.probability("delta", delta)
    most = Gaussian(float(np.sqrt(epochs)) / noise_multiplier).epsilon(delta)
    if rounds_per_epoch == 1:
        return most * (1 - 1e-9)
    if most == 0 or noise_multiplier < _LEAST_NOISE:
        return 0.0
    return _largest_kept_out(_profiles_below(rounds_per_epoch, noise_multiplier, epochs), delta, most)


def _largest_kept_out(profiles: list[Callable[[np.ndarray], np.ndarray]], delta: float, most: float) -> float:
    """The largest ε on a grid refined three times over 0..most for which a profile exceeds `delta`."""
    found = 0.0
    for profile in profiles:
        low, high = 0.0, most
        for _ in range(4):
            grid = np.linspace(low, high, _GRID)
            exceeds = np.flatnonzero(profile(grid) > delta)
            if exceeds.size == 0:
                break
            last = int(exceeds[-1])
            low, high = float(grid[last]), float(grid[min(last + 1, _GRID - 1)])
            found = max(found, low)
    return found


@functools.lru_cache(maxsize=8)
def _profiles_below(
    rounds_per_epoch: int, noise_multiplier: float, epochs: int
) -> list[Callable[[np.ndarray], np.ndarray]]:
    """Lower bounds on δ(ε) in either direction."""
    law = _below(rounds_per_epoch, noise_multiplier)
    keep = (law.weights > 0) & (law.moments > 0)
    q, p = law.weights[keep], law.moments[keep]
    if epochs == 1:
        return [functools.partial(_single, p, q, law.error), functools.partial(_single, q, p, law.error)]
    return [_composed(first, np.log(first) - np.log(other), law.error, epochs) for first, other in ((p, q), (q, p))]


def _single(first: np.ndarray, other: np.ndarray, error: float, epsilon: np.ndarray) -> np.ndarray:
    """Σ (p − e^ε q)₊, each term rounded down."""
    with np.errstate(over="ignore"):
        charged = np.exp(epsilon[:, None] + np.log(other)) * (1 + 2 * error + 1e-12)
    return np.maximum(first * (1 - 2 * error) - charged, 0.0).sum(axis=1) * (1 - 1e-12)


def _composed(weights: np.ndarray, losses: np.ndarray, error: float, epochs: int) -> Callable[[np.ndarray], np.ndarray]:
    """δ(ε) of `epochs` copies from below: losses rounded down, the composition's own errors taken off."""
    centre = float(weights @ losses) / float(weights.sum())
    spread = float(np.sqrt(weights @ (losses - centre) ** 2))
    width = min(epochs * float(np.ptp(losses)), 24 * spread * np.sqrt(epochs) + float(np.ptp(losses)))
    step = width / _LOWER_POINTS
    while True:
        index = np.floor((losses - 4 * error) / step - 1e-6).astype(np.int64)
        first = int(index.min())
        composed = LossDistribution(step, first, np.bincount(index - first, weights), 0.0).self_compose(epochs)
        if composed.step == step:
            break
        step *= 2  # self_compose would have rounded up to a coarser lattice
    slack = epochs * np.log1p(-2 * error) - 1e-11

    def profile(epsilon: np.ndarray) -> np.ndarray:
        # `infinity` bounds what the composition cut or got wrong, in total variation.
        return np.maximum(composed.delta(epsilon) - 3 * composed.infinity, 0.0) * np.exp(slack)

    return profile


def _renyi(rounds_per_epoch: int, noise_multiplier: float, epochs: int, order: float) -> float:
    """A bound on the Rényi divergence in either direction: the Gaussian's (the round is told), or a better one."""
    if np.isinf(order):
        return np.inf
    mu = 1 / noise_multiplier
    best = order * mu**2 / 2
    if order <= _ORDERS:
        law, moments = _above(rounds_per_epoch, noise_multiplier), _log_moments(rounds_per_epoch, mu)
        for one in {order, float(np.ceil(order))}:  # the divergence grows with its order
            low, share = int(np.floor(one)), one - np.floor(one)
            # log E X^t is convex in t, and 0 at t = 1: between whole orders the chord is above it.
            remove = (1 - share) * moments[low] + share * moments[low + 1]
            add = _log_moment_of_inverse(law, mu, one - 1)
            best = min(best, float(max(remove, add)) / (one - 1))
    return epochs * best * (1 + 1e-9)


def _log_moment_of_inverse(law: _averages.Spread, mu: float, power: float) -> float:
    """log E X^−s, s = `power`, rounded up.

    A mean is at least the geometric one, which is log-normal: E X^−s <= e^{s(s/T + 1)μ²/2}. Mostly better: E X^−s − 1 =
    E h(X) with h(x) = x^−s − 1 + s(x − 1) >= 0, as E X = 1. With h replaced by its tangent left of the first point x₀ of
    `law` it is convex and finite at 0, so that `law` bounds its mean; what the tangent leaves out is by Cauchy-Schwarz
    at most √(E X^−2s · Pr[X < x₀]), and Pr[X < x₀] <= E(1 − X/x)₊ / (1 − x₀/x) for every x > x₀.
    """

    def geometric(s: float) -> float:
        return s * (s / law.size + 1) * mu**2 / 2

    log = (law.first + np.arange(law.weights.size)) * law.step
    small = (power + 2) * np.abs(log) < 1e-3
    with np.errstate(over="ignore"):
        # Near 1 the difference would cancel: h(x) <= s(s+1)/2·(x − 1)²·max(1, x^−(s+2)) is as good.
        curved = power * (power + 1) / 2 * np.expm1(log) ** 2 * np.exp(-(power + 2) * np.minimum(log, 0.0))
        height = np.where(small, curved, np.expm1(-power * log) + power * np.expm1(log))
        at_zero = np.exp(-power * log[0]) * (1 + power)
        mean = float(law.weights @ height) + law.zero * at_zero + power * law.lost
        below = float(np.min(law.zero / -np.expm1(log[0] - log[1:]) + np.cumsum(law.weights[:-1])))
        left_out = np.exp(geometric(2 * power) / 2 + np.log(max(below, 1e-300)) / 2)
        mean = mean * (1 + 2 * law.error + 4 * power * law.shift) + left_out + 4 * power * law.shift
    return float(min(np.log1p(mean * (1 + 1e-9)), geometric(power)))


@functools.lru_cache(maxsize=8)
def _log_moments(rounds_per_epoch: int, mu: float) -> np.ndarray:
    """log E X^n for n = 0.._ORDERS + 1 of the average X of T log-normals, rounded up.

    E X^n/n! = T^−n [u^n] (Σ_k E W^k u^k/k!)^T with E W^k = e^{k(k−1)μ²/2}: powers of a series with positive terms.
    """
    k = np.arange(_ORDERS + 2)
    base = k * (k - 1) * mu**2 / 2 - special.gammaln(k + 1)
    result, power, left = None, base, rounds_per_epoch
    while left:
        if left & 1:
            result = power if result is None else _log_product(result, power)
        left >>= 1
        power = _log_product(power, power) if left else power
    result = result + special.gammaln(k + 1) - k * np.log(rounds_per_epoch)
    # At most n factors of a coefficient n are not the exact 1; each product rounds relative to its terms' logarithms.
    scale = np.abs(base) + special.gammaln(k + 1) + k * np.log(rounds_per_epoch)
    return np.maximum(result, 0.0) + 64 * ULP * k * (1 + scale)


def _log_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.array([special.logsumexp(a[: n + 1] + b[n::-1]) for n in range(a.size)])
