r"""Amplification by subsampling, against the usual adversary (who does not see who was sampled).

Poisson: every example joins a round independently with probability q. A group of g examples has k ~ Binomial(g, q)
members in a round, which move the (unit-noise) output by at most k/σ, so Σ_k Pr[k] N(k/σ, 1) against N(0, 1), in both
directions, dominates the round; rounds compose by convolution of the privacy losses (pld.py).

Source: Zhu, Dong, Wang, "Optimal accounting of differential privacy via characteristic function" (2022) for dominating
pairs; accounting.md section 3.
"""

from __future__ import annotations

import functools

import numpy as np
from scipy import special

from tfdpbc import _validate
from tfdpbc.accounting import _rounds
from tfdpbc.accounting._series import log_choose
from tfdpbc.accounting.pld import LossDistribution
from tfdpbc.accounting.tradeoff import Gaussian, LossTradeOff, TradeOff

_FINE = 40  # lattice points per standard deviation of one round's loss: inflates its variance by about 1e-4
_CELLS = 1 << 20  # lattice points of one round
_WIDE = 1 << 16  # cells of one round that may have the greatest width
_TOTAL = 1 << 20  # lattice points of all rounds


def poisson(rate: float, noise_multiplier: float, rounds: int, group_size: int = 1) -> TradeOff:
    """The guarantee of Poisson-sampled rounds under add/remove of `group_size` examples.

    Args:
      rate: q in (0, 1], the probability with which each example joins a round; 1 gives a Gaussian, exactly.
      noise_multiplier: σ > 0, noise standard deviation over the sensitivity to one example.
      rounds: T >= 0.
      group_size: g >= 1.

    Returns:
      A trade-off function that is never above the truth. ε is at most 0.2 % above it for δ above about 1e-12 and
      up to 10^7 rounds (0.7 % at 10^8); smaller δ are out of reach of the lattice, and ε is that of the Rényi
      divergences, by several per cent too high.
    """
    rate = _validate.probability("rate", rate, one=True)
    noise_multiplier = _validate.number("noise_multiplier", noise_multiplier, above=0)
    rounds = _validate.integer("rounds", rounds, at_least=0)
    group_size = _validate.integer("group_size", group_size, at_least=1)
    if rounds == 0:
        return Gaussian(0.0)
    if rate == 1.0:
        return Gaussian(group_size * float(np.sqrt(rounds)) / noise_multiplier)
    return _poisson(rate, noise_multiplier, rounds, group_size)


@functools.lru_cache(maxsize=16)
def _poisson(rate: float, noise_multiplier: float, rounds: int, group_size: int) -> TradeOff:
    pair = joined(rate, noise_multiplier, group_size, rounds)
    one = _rounds.discretise(pair, *lattice(pair, rounds))
    directions = [
        LossDistribution.sparse(one.step, one.index, one.remove, one.lost),
        LossDistribution.sparse(one.step, -one.index[::-1], one.add[::-1], one.lost),
    ]
    renyi = functools.partial(_renyi, rate, noise_multiplier, rounds, group_size)
    return LossTradeOff([direction.self_compose(rounds) for direction in directions], renyi)


def joined(rate: float, noise_multiplier: float, group_size: int, rounds: int) -> _rounds.Pair:
    """The dominating pair of one round: k ~ Binomial(group_size, rate) members of the group join."""
    log_weights = _log_binomial(group_size, rate)
    # Members so many that they never join in any round would only stretch the lattice; `tail` covers them.
    tail = 1e-20 / rounds
    above = np.append(np.cumsum(np.exp(log_weights)[::-1])[::-1], 0.0)
    log_weights = log_weights[: max(2, int(np.argmax(above <= tail)))]
    return _rounds.Pair(log_weights, noise_multiplier, tail)


def _log_binomial(count: int, probability: float) -> np.ndarray:
    k = np.arange(count + 1)
    return log_choose(count, 1.0, count) + k * np.log(probability) + (count - k) * np.log1p(-probability)


def _renyi(rate: float, noise_multiplier: float, rounds: int, group_size: int, order: float) -> float:
    """Rényi divergence of `rounds` rounds, the larger of both directions, by quadrature."""
    if np.isinf(order):
        return np.inf
    pair = _rounds.Pair(_log_binomial(group_size, rate), noise_multiplier, 1e-30)
    moment = max(pair.log_moment(order), pair.log_moment(1 - order))
    if np.isinf(moment):  # showing k to the adversary can only help him
        moment = special.logsumexp(pair.log_weight + order * (order - 1) / 2 * pair.shift**2)
    return float(rounds * moment / (order - 1) * (1 + 1e-9))


def fixed_size(participation: float, noise_multiplier: float, rounds: int, num_blocks: int = 1) -> TradeOff:
    """C_p(G_{1/σ})^{⊗rounds}: fresh fixed-size subsets (Subsampling), replace-one, g = 1, the usual adversary;
    certified.

    C_p(f) = min{f_p, f_p⁻¹}** with f_p = p f + (1−p) Id. For ε >= 0 its profile is that of (1−p) N(0,1) + p N(1/σ,1)
    against N(0,1), for ε < 0 it follows by symmetry: outcomes with a positive loss come with their mirror images, the
    rest has loss 0.

    Args:
      participation: p = m·s/N in (0, 1], the probability of taking part in a round.
      noise_multiplier: σ > 0.
      rounds: T >= 0.
      num_blocks: L separately clipped and noised blocks; σ becomes σ/√L.

    Source: Dong, Roth, Su (2019), Section 4; seed paper B; accounting.md section 3.
    """
    participation = _validate.probability("participation", participation, one=True)
    noise_multiplier = _validate.number("noise_multiplier", noise_multiplier, above=0)
    rounds = _validate.integer("rounds", rounds, at_least=0)
    noise_multiplier /= float(np.sqrt(_validate.integer("num_blocks", num_blocks, at_least=1)))
    if rounds == 0:
        return Gaussian(0.0)
    if participation == 1.0:
        return Gaussian(float(np.sqrt(rounds)) / noise_multiplier)
    return _fixed_size(participation, noise_multiplier, rounds)


@functools.lru_cache(maxsize=16)
def _fixed_size(participation: float, noise_multiplier: float, rounds: int) -> TradeOff:
    pair = joined(participation, noise_multiplier, 1, rounds)
    one = _rounds.discretise(pair, *lattice(pair, rounds), gains_only=True)
    index, start = one.index, int(np.searchsorted(one.index, 0))
    gain, mirror = one.remove[start:], one.add[start:]
    rest = max(0.0, 1.0 - one.lost - gain.sum() - mirror.sum())
    weights = np.concatenate([mirror[:0:-1], [gain[0] + mirror[0] + rest], gain[1:]])
    index = np.concatenate([-index[:start:-1], index[start:]])
    law = LossDistribution.sparse(one.step, index, weights, one.lost)
    renyi = functools.partial(_fixed_size_renyi, participation, noise_multiplier, rounds)
    return LossTradeOff([law.self_compose(rounds)], renyi)


def _fixed_size_renyi(participation: float, noise_multiplier: float, rounds: int, order: float) -> float:
    """Rényi divergence of `rounds` rounds of C_p(G_{1/σ}), by quadrature: rounds·log E[e^{(ω−1)L}]/(ω−1)."""
    if np.isinf(order):
        return np.inf
    pair = _rounds.Pair(np.log([1 - participation, participation]), noise_multiplier, 1e-30)
    moment = pair.log_gain_moment(order)
    if np.isinf(moment):  # showing who takes part can only help the adversary
        moment = np.logaddexp(
            np.log1p(-participation), np.log(participation) + order * (order - 1) / 2 * pair.shift[-1] ** 2
        )
    return float(rounds * moment / (order - 1) * (1 + 1e-9))


def clt_mu(participation: float, noise_multiplier: float, rounds: float, num_blocks: int = 1) -> float:
    """μ of the Gaussian that C_p(G_{1/σ})^{⊗rounds} tends to: √2·p√T·h(σ/√L). **Not certified**: it under-reports ε.

    h(σ) = √(e^{1/σ²} Φ(3/(2σ)) + 3Φ(−1/(2σ)) − 2). Source: Bu, Dong, Long, Su (2019); seed paper B, formula (4).
    """
    participation = _validate.probability("participation", participation, one=True)
    noise_multiplier = _validate.number("noise_multiplier", noise_multiplier, above=0)
    rounds = _validate.number("rounds", rounds, at_least=0)
    effective = noise_multiplier / np.sqrt(_validate.integer("num_blocks", num_blocks, at_least=1))
    return float(np.sqrt(2 * rounds) * participation * clt_h(float(effective)))


def clt_h(noise_multiplier: float) -> float:
    """h(σ) of :func:`clt_mu`; inf where e^{1/σ²} overflows."""
    inverse = 1 / _validate.number("noise_multiplier", noise_multiplier, above=0)
    with np.errstate(over="ignore"):
        # e^{a²} Φ(3a/2) + 3Φ(−a/2) − 2 = (e^{a²} − 1) Φ(3a/2) + [Φ(3a/2) − Φ(a/2)] − 2 [Φ(a/2) − 1/2]: no cancellation
        # of ones
        half = 2 * (special.ndtr(inverse / 2) - 0.5)
        square = np.expm1(inverse**2) * special.ndtr(1.5 * inverse) + (special.ndtr(1.5 * inverse) - 0.5) - 1.5 * half
    return float(np.sqrt(max(square, 0.0)))


def effective_noise(noise_multipliers) -> float:
    """The single multiplier that equals blocks noised with their own: 1/σ² = Σ_j 1/σ_j²."""
    values = [_validate.number("noise_multipliers", value, above=0) for value in noise_multipliers]
    if not values:
        _validate.fail("noise_multipliers", "non-empty", noise_multipliers)
    return float(1 / np.sqrt(sum(1 / value**2 for value in values)))


def lattice(pair: _rounds.Pair, rounds: int) -> tuple[float, float]:
    """(step, widest cell): fine against one round's loss and against one hit's, coarse enough for memory."""
    deviation = pair.deviation()
    ends = pair.loss(np.array([pair.low, pair.high]))[0]
    hit = float(pair.shift[pair.shift > 0][0])
    total = min(rounds * float(ends[1] - ends[0]), 25 * deviation * np.sqrt(rounds) + float(ends[1] - ends[0]))
    step = max(min(deviation, hit) / _FINE, (ends[1] - ends[0]) / _CELLS, total / _TOTAL, 1e-12)
    return float(step), float(max(step, hit / _FINE, (ends[1] - ends[0]) / _WIDE))
