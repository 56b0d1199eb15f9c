r"""One sampled Propose-Test-Release round on a lattice of privacy losses: the pointwise maximum over its pairs.

The largest of several profiles δ(ε), each convex in γ = e^ε, is convex, hence the profile of a pair (P*, Q*) that
dominates every one of them, also when rounds with different pairs follow each other adaptively (Zhu, Dong, Wang, 2022,
Theorem 10). Its swap (Q*, P*) has the largest of the reverse profiles, so one lattice serves both directions.

Connect-the-dots joins the values of the largest profile at the lattice losses. Where one pair is the largest at both
ends of a cell, its masses in the cell are spread over the ends, as integrals of positive functions (see _rounds.py).
Where the largest pair changes, from a to b, the slope differs from a's by (δ_b − δ_a)/Δγ at the right end and from b's
by (δ_a − δ_b)/Δγ at the left end: both differences are >= 0 and add to the weights of the two ends.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special

from tfdpbc.accounting import _ptr_pairs, _rounds
from tfdpbc.accounting._ptr_pairs import Pairs
from tfdpbc.accounting.best import Best
from tfdpbc.accounting.pld import LossDistribution
from tfdpbc.accounting.tradeoff import LossTradeOff, TradeOff

MAX_SHIFT = 4000.0  # a branch whose means differ by more standard deviations would take too many nodes
_FINE = 40  # lattice points per standard deviation of the loss, see subsampled.py
_CELLS = 1 << 20
_WIDE = 1 << 16
_TOTAL = 1 << 20
_PANEL = 0.1  # widest interval of x under one quadrature rule; at most 1/(2r), as the loss bends within 1/r
_DIGITS = 1e-13  # bound on the relative error of a profile, and of a difference relative to its terms
_NODES, _WEIGHTS = special.roots_legendre(6)


def trade_off(pairs: Pairs, rate: float, rounds: int, renyi: Callable[[float], float]) -> TradeOff:
    """What `rounds` rounds leave of privacy; `renyi` is their Rényi curve."""
    if pairs.shift.max() > MAX_SHIFT:
        return LossTradeOff([LossDistribution(1.0, 0, np.zeros(1), 1.0)], renyi)
    laws = [[law.self_compose(rounds) for law in pair] for pair in directions(pairs, rate, rounds)]
    curves = [LossTradeOff(pair, renyi) for pair in laws]
    return curves[0] if len(curves) == 1 else Best(curves)


def directions(pairs: Pairs, rate: float, rounds: int) -> list[list[LossDistribution]]:
    """Loss distributions [remove, add] of one round that dominate all pairs; the best is to be taken of the lattices.

    The first lattice reaches to the largest loss. If that would leave it coarse where most losses are, a second one
    counts the losses beyond those of a rightful pass as infinite: better wherever δ exceeds their probability.
    """
    tail = 1e-20 / rounds
    spans = [_span(pairs, pair, rate, tail) for pair in range(len(pairs.margins))]
    low, high = min(s[0] for s in spans), max(s[1] for s in spans)
    fine = min(_deviation(pairs, pair, rate, tail) for pair in range(len(pairs.margins)))
    wide = max(_deviation(pairs, pair, rate, tail) for pair in range(len(pairs.margins)))
    fine = min(fine, float(pairs.shift.min())) / _FINE
    usual = [s[:2] for s, margins in zip(spans, pairs.margins, strict=True) if margins.any()]
    ranges = [(low, high)]
    if usual and (high - low) * min(rounds, 3) / _CELLS > fine:
        capped = min(s[0] for s in usual), max(s[1] for s in usual)
        beyond = max(float(profile[0].max()) for profile in _ptr_pairs.profiles(pairs, np.array([capped[1]]), rate))
        if rounds * beyond < 0.5:
            ranges.append(capped)
    result = []
    for low, high in ranges:
        total = min(rounds * (high - low), 25 * min(wide, high - low) * np.sqrt(rounds) + (high - low))
        step = max(fine, (high - low) / _CELLS, total / _TOTAL, 1e-12)
        widest = max(step, float(pairs.shift.min()) / _FINE, (high - low) / _WIDE)
        result.append(round_on_lattice(pairs, rate, step, widest, low, high, tail))
    return result


def round_on_lattice(
    pairs: Pairs, rate: float, step: float, widest: float, low: float, high: float, tail: float
) -> list[LossDistribution]:
    """[remove, add] on the lattice of width `step`, with cells up to `widest`; losses outside low..high are infinite."""
    first, last = min(int(np.floor(low / step)), -1), max(int(np.ceil(high / step)), 1)
    index = _rounds._cell_ends(first, last, max(1, int(widest / step)))
    losses = index * step
    start = int(np.searchsorted(index, 0))
    # Values: δ(ε) at losses >= 0, the swapped pair's δ(−ε) at losses < 0, which is (δ(ε) − (1 − γ))/γ.
    forward, _ = _ptr_pairs.profiles(pairs, losses[start:], rate)
    _, reverse = _ptr_pairs.profiles(pairs, -losses[:start], rate)
    values = np.concatenate([reverse, forward], axis=1)
    winner = np.argmax(values, axis=0)
    lower_end, upper_end = values[winner[0], 0], values[winner[-1], -1]
    if lower_end == 0:
        winner[0] = winner[1]
    remove, add = np.zeros(index.size), np.zeros(index.size)
    for pair in np.unique(winner):
        mine = winner == pair
        lower, upper = _cells(pairs, pair, rate, losses, mine[:-1] | mine[1:], tail)
        for row, weights in enumerate((remove, add)):
            weights[:-1] += np.where(mine[:-1], lower[row], 0.0)
            weights[1:] += np.where(mine[1:], upper[row], 0.0)
    _add_changes(remove, add, losses, values, winner, start)
    # What lies outside the lattice: its mass under the law that finds it likely is infinite, the other's is at the end.
    above, below = _beyond(pairs, winner[-1], rate, losses[-1], True), _beyond(pairs, winner[0], rate, losses[0], False)
    remove[-1], add[-1] = remove[-1] + above, add[-1] + above * np.exp(-losses[-1])
    add[0], remove[0] = add[0] + below, remove[0] + below * np.exp(losses[0])
    lost = 16 * len(pairs.margins) * tail
    return [
        _law(step, index, remove, float(upper_end) + lost),
        _law(step, -index[::-1], add[::-1], float(lower_end) + lost),
    ]


def _law(step: float, index: np.ndarray, weights: np.ndarray, infinity: float) -> LossDistribution:
    """A surplus over probability 1, from rounding to the private side, is taken off the smallest losses."""
    infinity = min(infinity, 1.0)
    surplus = max(0.0, float(weights.sum()) + infinity - 1)
    taken = np.minimum(np.concatenate([[0.0], np.cumsum(weights)]), surplus)
    weights = np.maximum(weights - np.diff(taken), 0.0)
    if not weights.sum() > 0:
        weights = np.where(np.arange(index.size) == index.size - 1, 1.0, 0.0)
    return LossDistribution.sparse(step, index, weights, infinity)


def _add_changes(remove, add, losses, values, winner, start) -> None:
    """Adds what a change of the largest pair within a cell puts on the cell's ends (see above), rounded up."""
    for left in np.flatnonzero(winner[:-1] != winner[1:]):
        a, b, width = winner[left], winner[left + 1], losses[left + 1] - losses[left]
        for at, end, more, less in ((left + 1, left, b, a), (left, left + 1, a, b)):
            gain = values[more, at] - values[less, at] + _DIGITS * values[more, at]
            ahead = end < at  # γ_end/Δγ is 1/(e^width − 1) at the left end, 1/(1 − e^−width) at the right end
            if at >= start:
                weight = gain / (np.expm1(width) if ahead else -np.expm1(-width))
                remove[end] += weight
                add[end] += weight * np.exp(-losses[end])
            else:  # gain·γ_at/Δγ
                weight = gain / (-np.expm1(-width) if ahead else np.expm1(width))
                add[end] += weight
                remove[end] += weight * np.exp(losses[end])


def _branches(pairs: Pairs, pair: int, rate: float, tail: float):
    """(p, q p', c, r, low, high) of each branch that has any mass, x in low..high leaving out at most 4 `tail`."""
    for branch in range(2):
        c, r = float(pairs.log_ratio[pair, branch]), float(pairs.shift[pair, branch])
        p = float(np.exp(pairs.log_base[pair, branch]))
        hit = rate * float(np.exp(pairs.log_other[pair, branch]))
        if p <= tail and hit <= tail:
            continue
        low = float(special.ndtri(min(tail / max(p, hit), 0.25)))
        high = max(-float(special.ndtri(min(tail / p, 0.25))), r - float(special.ndtri(min(tail / hit, 1.0))))
        yield p, hit, c, r, low, high


def _loss(x: np.ndarray, c: float, r: float, rate: float) -> np.ndarray:
    exponent = c + r * x - r * r / 2
    if rate == 1.0:
        return exponent
    near = np.log1p(rate * np.expm1(np.minimum(exponent, 1.0)))
    return np.where(exponent > 1, np.logaddexp(np.log1p(-rate), np.log(rate) + exponent), near)


def _span(pairs: Pairs, pair: int, rate: float, tail: float) -> tuple[float, float]:
    ends = [_loss(np.array([low, high]), c, r, rate) for _, _, c, r, low, high in _branches(pairs, pair, rate, tail)]
    return float(min(end[0] for end in ends)), float(max(end[1] for end in ends))


def _deviation(pairs: Pairs, pair: int, rate: float, tail: float) -> float:
    """About the standard deviation of the loss under P; it sets the step only."""
    mean = square = 0.0
    for p, _, c, r, low, high in _branches(pairs, pair, rate, tail):
        x = np.linspace(low, high, int(np.clip((high - low) * 4 * max(r, 1.0), 64, 1 << 14)))
        value = _loss(x, c, r, rate)
        mass = p * np.exp(value - x * x / 2) / np.sqrt(2 * np.pi) * (x[1] - x[0])
        mean += float(mass @ value)
        square += float(mass @ value**2)
    return float(np.sqrt(max(square - mean * mean, square * 1e-6)))


def _boundaries(losses: np.ndarray, c: float, r: float, rate: float) -> np.ndarray:
    """x at which the loss of a branch is each of `losses`; −inf below all of them."""
    return (_ptr_pairs.log_reach(losses, rate) - np.log(rate) - c) / r + r / 2


def _beyond(pairs: Pairs, pair: int, rate: float, loss: float, above: bool) -> float:
    """e^loss·Q[L > loss] if `above`, else e^−loss·P[L < loss], of one pair."""
    total = 0.0
    for branch in range(2):
        c, r = float(pairs.log_ratio[pair, branch]), float(pairs.shift[pair, branch])
        base, other = float(pairs.log_base[pair, branch]), float(pairs.log_other[pair, branch])
        x = float(_boundaries(np.array([loss]), c, r, rate)[0])
        if x == -np.inf:
            continue
        if above:
            total += float(np.exp(loss + base + special.log_ndtr(-x)))
        else:
            total += float(np.exp(np.log(rate) + other - loss + special.log_ndtr(x - r)))
            if rate < 1:  # then −loss <= −log(1−q)
                total += float((1 - rate) * np.exp(base - loss + special.log_ndtr(x)))
    return total


def _cells(pairs: Pairs, pair: int, rate: float, losses: np.ndarray, needed: np.ndarray, tail: float):
    """(lower, upper): what a pair's masses under P and Q (rows) put on either end of each cell; shapes [2, cells]."""
    cells = losses.size - 1
    mass, upper = np.zeros((2, cells)), np.zeros((2, cells))
    width = np.diff(losses)
    for p, _, c, r, low, high in _branches(pairs, pair, rate, tail):
        x = _boundaries(losses, c, r, rate)
        count = int((high - low) / min(_PANEL, 0.5 / r)) + 2
        inside = x[(x > low) & (x < high)]
        breaks = np.unique(np.concatenate([np.linspace(low, high, count), inside]))
        middle = (breaks[1:] + breaks[:-1]) / 2
        cell = np.searchsorted(x, middle) - 1
        keep = (cell >= 0) & (cell < cells)
        keep[keep] = needed[cell[keep]]
        # Between the two bells there is nothing.
        keep &= np.minimum(np.abs(middle), np.abs(middle - r)) < max(-low, 12.0) + 1
        left, size, cell = breaks[:-1][keep], np.diff(breaks)[keep], cell[keep]
        block = 1 << 15
        for begin in range(0, left.size, block):
            here = slice(begin, begin + block)
            where = cell[here]
            nodes = left[here, None] + size[here, None] * (1 + _NODES) / 2
            value = _loss(nodes, c, r, rate)
            weight = (p / np.sqrt(2 * np.pi) * _WEIGHTS / 2) * size[here, None]
            under_q = weight * np.exp(-nodes * nodes / 2)
            under_p = weight * np.exp(value - nodes * nodes / 2)
            span = width[where, None]
            _rounds.add_to_cells(mass, upper, where, value - losses[where, None], span, under_p, under_q)
    rest = np.maximum(mass - upper, 0.0)
    return np.stack([rest[0], upper[1]]), np.stack([upper[0], rest[1]])
