r"""Shuffled training in the usual adversary model: a certified LOWER bound on its ε.

The usual adversary sees every noisy update but not which round an example was in. An upper bound is section 2 of
accounting.md (G_{√E/σ} for one example: it holds even if the rounds are shown). No better upper bound is claimed, but
what can certainly not be claimed is computed here: pairs of neighbouring data sets and a test whose errors are exact.

One epoch: T rounds, an example takes part in one of them, with probability p, uniformly. In the direction u that all
clipped contributions ±Cu, 0 share, and in units of the noise (2Cσ on the sum), minus what the others add, the T updates
of an epoch are a sample of

    M_a = (1 − p) N(0, I_T) + p/T Σ_t N(a e_t, I_T),

a = (own contribution − that of any other)/(2Cσ). Neighbours may thus be told apart as well as M_a from M_b for any
|a − b| <= 1/σ that the clip norm admits; the pair used is (a, b) = (1/σ, 0) (others −C, x: +C, x': −C).
docs/accounting.md has a model and data that realise it, batch clipping included, and the pairs that were never better.

Tests. Whatever is computed from the updates can only hide. An epoch is reduced to one number, whose law is exact:
  - the maximum of the T updates: F_a(c) = ((1 − p) Φ(c) + p Φ(c − a)) Φ(c)^{T−1}, good where σ is small;
  - their sum over √T: F_a(c) = (1 − p) Φ(c) + p Φ(c − a/√T), good where σ is large;
  - Σ_t k(x_t), k the likelihood ratio e^{x/σ − 1/(2σ²)} of a round rounded to a lattice, good in between: a convolution;
and cut into slices, which makes a pair of discrete distributions; of several epochs, composed by convolution.

Rounding. For measures p_low <= P and q_high >= Q on the slices, (P^E − e^ε Q^E)_+ >= (p_low^E − e^ε q_high^E)_+. So
rounding P's weights down, Q's up, privacy losses log(p/q) down to a lattice, merging slices and leaving some out all
make the bound smaller, never wrong; the error of the Fourier transform is taken off last.

Source: Chua, Ghazi, Kamath, Kumar, Manurangsi, Sinha, Zhang, "How private are DP-SGD implementations?" (2024) for the
maximum of a shuffled epoch under zero-out neighbours; section 3 of accounting.md for what may not be claimed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np
from scipy import special

from tfdpbc import _validate
from tfdpbc.accounting import pld
from tfdpbc.accounting._gaussian import TINY, ULP
from tfdpbc.accounting._roots import minimise

_SLICES = 1 << 16
_REACH = 38.5  # Φ(−38.5) is the smallest positive float64
_CELLS = (1 << 12, 1 << 15)  # least and most lattice cells over the losses of one epoch
_PER_DEVIATION = 64  # lattice cells per standard deviation of the loss, if the above allow
_OFFSETS = (0.0, 0.01, 0.05, 0.2, 0.5)  # where in its group a lattice point may lie; the best is taken
_RATIO_CELLS = (1 << 14, 1 << 11)  # values of a rounded likelihood ratio of one round: at most, else
_BOTH = 100  # epochs up to which both directions are tried: beyond, P against Q is always the better
_RATIO_SHIFTS = (0.02, 1.7)  # below, the sum is as good; above, the maximum
_NODES, _WEIGHTS = special.roots_legendre(16)


@dataclasses.dataclass(frozen=True, eq=False)
class _Observed:
    """Weights of a discrete observation of one epoch, shape [n]: `low` under P, `high` under Q.

    `low` exceeds P by at most `wrong` in total (all slices where it does taken together), `high` falls short of Q
    by at most `wrong`; 0 makes them plain lower and upper bounds.
    """

    low: np.ndarray
    high: np.ndarray
    wrong: float = 0.0


@dataclasses.dataclass(frozen=True)
class _Pair:
    """What is observed of one epoch: M_a against M_b, with `rounds` T and `participation` p."""

    rounds: int
    a: float
    b: float
    participation: float

    def cut_short(self, rounds: int) -> _Pair:
        """Its first `rounds` rounds: the example is in one of them with probability p·rounds/T."""
        share = self.participation * rounds / self.rounds * (1 - 4 * ULP)  # the pair gets harder to tell with less
        return dataclasses.replace(self, rounds=rounds, participation=share)

    def reversed(self) -> _Pair:
        return dataclasses.replace(self, a=self.b, b=self.a)

    def by_maximum(self, tail: float) -> _Observed:
        """Slices of the largest update; slices beyond are merged where less than `tail` is left."""
        least = min(tail, 1e-20)
        reach = min(_REACH, 1 - float(special.ndtri_exp(np.log(least) - np.log(self.rounds))))
        # Below `start` the maximum of T − 1 standard normal variables falls with a probability less than `least`.
        start = float(special.ndtri_exp(np.log(least) / max(1, self.rounds - 1)))
        if self.rounds == 1:
            start += min(self.a, self.b, 0.0)
        cuts = np.linspace(start, max(self.a, self.b, 0.0) + reach, _SLICES)
        low, wrong_low = _masses(cuts, self.rounds, self.a, self.participation)
        high, wrong_high = _masses(cuts, self.rounds, self.b, self.participation)
        return _Observed(np.maximum(low - wrong_low, 0.0), np.maximum(high, 0.0) + wrong_high + TINY)

    def by_sum(self, tail: float) -> _Observed:
        """Slices of the sum of the updates over √T, which looks like an epoch of one round."""
        root = np.sqrt(self.rounds)
        return _Pair(1, self.a / root, self.b / root, self.participation).by_maximum(tail)

    def by_ratio(self, tail: float) -> _Observed | None:
        """Σ_t k(x_t) with k(x) the likelihood ratio of a round rounded to a lattice; None if that is out of reach.

        x_1..x_T are independent under N(0, I); under N(a e_t, I) one of them has another law, so that the law of the sum
        is a convolution: for any function k, exactly. That k is rounded costs information, never validity.
        Needs a = 0 or b = 0: with a third law in play the sum is no longer what tells the two apart.
        """
        shift, reverse = max(self.a, self.b), self.b > 0
        if self.rounds < 2 or min(self.a, self.b) != 0 or not _RATIO_SHIFTS[0] <= shift <= _RATIO_SHIFTS[1]:
            return None
        laws = _ratio_sums(self.rounds, shift)
        if laws is None:
            return None
        without, present, wrong = laws
        low, high = self.participation * present + (1 - self.participation) * without, without
        # The weights of a round are relatively accurate, that of T rounds to T times as much; but for what lies more
        # than 6 deviations out, where a weight of 2e-9 may be wrong by 1e-12 of itself.
        relative = 256 * ULP * (self.rounds + 8)
        low, high = (high, low) if reverse else (low, high)
        return _Observed(low * (1 - relative), high * (1 + relative), wrong)


@functools.lru_cache(maxsize=2)
@np.errstate(over="ignore")  # within pld.py, of a Chernoff bound that is not the best one then
def _ratio_sums(rounds: int, shift: float) -> tuple[np.ndarray, np.ndarray, float] | None:
    """The laws of Σ k(x_t) under N(0, I) and N(shift·e_1, I), shape [n] each, and their errors' total variation."""
    for cells in _RATIO_CELLS:
        one, other = (pld.LossDistribution(1.0, 0, law / law.sum(), 0.0) for law in _ratio_laws(shift, rounds, cells))
        rest = one.self_compose(rounds - 1)
        if rest.step != 1.0:  # pld.py widened the lattice: no longer the same function of every round
            continue
        without, present = rest.compose(one), rest.compose(other)
        if without.step != 1.0 or present.step != 1.0:
            continue
        first = min(without.first, present.first)
        size = max(law.first + law.weights.size for law in (without, present)) - first
        aligned = np.zeros((2, size))
        for row, law in zip(aligned, (without, present), strict=True):
            row[law.first - first :][: law.weights.size] = law.weights
        wrong = 8 * (rest.infinity + without.infinity + present.infinity) + 1e-20 * rounds
        return aligned[0], aligned[1], wrong
    return None


def _ratio_laws(shift: float, rounds: int, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """The laws of k(x) = min(K, round(r(x)/g)), r(x) = e^{shift·x − shift²/2}, for x from N(0, 1) and N(shift, 1).

    Each weight is accurate to a few dozen ulp: the integral of a positive density over a narrow interval, or Φ itself.
    """
    top = np.exp(shift * (shift + 5.5) - shift * shift / 2)
    # Fine against the deviation of one round's ratio, and against a lattice cell of the epoch's loss.
    grain = np.sqrt(np.expm1(shift * shift)) * min(1 / 12, np.sqrt(rounds) / (16 * _PER_DEVIATION))
    grain = max(grain, top / cells)
    count = int(np.ceil(top / grain))
    cuts = (np.log((np.arange(count) + 0.5) * grain) + shift * shift / 2) / shift
    cuts = cuts[cuts > -37.0]
    half, middle = np.diff(cuts) / 2, (cuts[1:] + cuts[:-1]) / 2
    skipped = np.zeros(count - cuts.size)
    laws = []
    for mean in (0.0, shift):
        x = (middle - mean)[:, None] + half[:, None] * _NODES
        inner = (np.exp(-x * x / 2) @ _WEIGHTS) * half / np.sqrt(2 * np.pi)
        ends = special.ndtr(cuts[0] - mean), special.ndtr(mean - cuts[-1])
        laws.append(np.concatenate([skipped, [ends[0]], inner, [ends[1]]]))
    return laws[0], laws[1]


def _masses(cuts: np.ndarray, rounds: int, shift: float, participation: float) -> tuple[np.ndarray, np.ndarray]:
    """Weights of (−∞, cuts[0]], …, (cuts[-1], ∞) under the maximum's law, and a bound on their error; shape [n + 1].

    Differences of F where F < 1/2, of 1 − F elsewhere: each is accurate relative to itself, tails included.
    """
    below, above = np.zeros(cuts.size), np.zeros(cuts.size)
    wrong_below, wrong_above = np.zeros(cuts.size), np.zeros(cuts.size)
    others = (rounds - 1) * special.log_ndtr(cuts)
    for weight, mean in ((1 - participation, 0.0), (participation, shift)):
        x = cuts - mean
        log = others + special.log_ndtr(x)
        # An error of an ulp in σ, in a cut or in x moves log Φ(±x) by up to (1 + |x|) (|x| + |mean|) ulp.
        slack = ULP * (16 + 8 * (1 + np.abs(x)) * (np.abs(x) + abs(mean)) + 8 * (1 + np.abs(cuts)) * np.abs(cuts))
        lower, upper = weight * np.exp(log), -weight * np.expm1(log)
        below += lower
        above += upper
        wrong_below += lower * (slack + 8 * ULP * np.abs(log))
        wrong_above += upper * slack + TINY
    by_below = np.diff(np.concatenate([[0.0], below, [1.0]]))
    by_above = -np.diff(np.concatenate([[1.0], above, [0.0]]))
    use_below = np.append(below, 1.0) < 0.5
    errors = np.where(
        use_below,
        np.append(wrong_below, 0.0) + np.insert(wrong_below, 0, 0.0),
        np.append(wrong_above, 0.0) + np.insert(wrong_above, 0, 0.0),
    )
    return np.where(use_below, by_below, by_above), errors


def _one_epoch(observed: _Observed, epsilon: float) -> float:
    """A lower bound on δ(ε): Σ (p − e^ε q)_+, rounded down."""
    with np.errstate(over="ignore", divide="ignore"):
        scaled = np.exp(np.minimum(epsilon + np.log(observed.high), 800.0)) * (1 + 4 * ULP * (800 + epsilon))
    total = float(np.sum(np.maximum(observed.low - scaled, 0.0))) * (1 - 64 * ULP)
    return max(0.0, total - observed.wrong * (1 + np.exp(min(epsilon, 700.0)) if observed.wrong else 0.0))


def _largest(function: Callable[[float], float], target: float, low: float, high: float) -> float:
    """An ε in [low, high] with function(ε) > target next to where the decreasing `function` crosses it; 0 if none."""
    if not function(low) > target:
        return 0.0
    for _ in range(200):
        middle = (low + high) / 2
        if high - low <= 4 * ULP * high or not low < middle < high:
            break
        low, high = (middle, high) if function(middle) > target else (low, middle)
    return low


@dataclasses.dataclass(frozen=True, eq=False)
class _Losses:
    """Weights p of privacy losses log(p/q), none too high, on the lattice (first + i)·step; shape [n]."""

    step: float
    first: int
    weights: np.ndarray

    @property
    def values(self) -> np.ndarray:
        return (self.first + np.arange(self.weights.size)) * self.step

    def tilted(self, theta: float) -> tuple[pld.LossDistribution, float]:
        """The distribution ∝ p e^{θ l}, and the logarithm of Σ p e^{θ l}."""
        with np.errstate(divide="ignore"):
            logs = np.log(self.weights) + theta * self.values
        scale = _log_sum(logs)
        weights = np.exp(logs - scale)
        keep = np.flatnonzero(weights > 1e-22)
        part = slice(int(keep[0]), int(keep[-1]) + 1)
        kept = weights[part]
        total = float(kept.sum())
        return pld.LossDistribution(self.step, self.first + part.start, kept / total, 0.0), scale + np.log(total)


def _on_lattice(observed: _Observed, step: float, floor: float) -> _Losses:
    """Slices grouped by their loss, the loss of each group rounded down to a lattice.

    A group spans a step about a lattice point, a little more of it above: so its loss is nearly always just above the
    point, and rounding costs much less than half a step. Of a few such offsets the one with the largest mean is taken.
    """
    keep = (observed.low > max(floor, observed.wrong * 1e-3)) & (observed.high > 0)
    low, high = observed.low[keep], observed.high[keep]
    scaled = (np.log(low) - np.log(high)) / step
    rounding = 2 * ULP * (low.size + 16)  # of the sums below, at worst
    best, best_mean = None, -np.inf
    for offset in _OFFSETS:
        group = np.floor(scaled + 0.5 - offset).astype(np.int64)
        first = int(group.min())
        weights, others = np.bincount(group - first, low), np.bincount(group - first, high)
        used = weights > 0
        weights, others = weights[used] * (1 - rounding), others[used] * (1 + rounding)
        losses = np.log(weights) - np.log(others)
        index = np.floor((losses - 1e-12 * (1 + np.abs(losses))) / step).astype(np.int64)
        mean = float(index @ weights)
        if mean > best_mean:
            start = int(index.min())
            best, best_mean = _Losses(step, start, np.bincount(index - start, weights) * (1 - rounding)), mean
    return best


def _step(observed: _Observed, floor: float) -> float:
    """The lattice width for an epoch: fine against the spread of its loss, within what can be stored."""
    keep = (observed.low > max(floor, observed.wrong * 1e-3)) & (observed.high > 0)
    weights = observed.low[keep]
    losses = np.log(weights) - np.log(observed.high[keep])
    width = float(np.ptp(losses))
    mean = float(losses @ weights) / weights.sum()
    deviation = float(np.sqrt(((losses - mean) ** 2) @ weights / weights.sum()))
    return float(np.clip(deviation / _PER_DEVIATION, width / _CELLS[1], width / _CELLS[0])) or 1e-9


def _compose(factors: Sequence[tuple[_Losses, int]], delta: float, wrong: float) -> float | None:
    """A lower bound on ε(δ) of independent copies, `count` of each, on one lattice; `wrong` as in _Observed, summed."""
    theta = _tilt(factors, delta)
    total, log_scale, size, error = None, 0.0, 0.0, 0.0
    for losses, count in factors:
        law, log = losses.tilted(theta)
        log_scale += count * log
        size += count * (abs(log) + theta * float(np.abs(law.losses).max()) + 8)
        with np.errstate(over="ignore"):
            many = law.self_compose(count)
            if many.step == law.step:
                total = many if total is None else total.compose(many)
        if many.step != law.step or total.step != law.step:  # pld.py widened the lattice, which is pessimistic
            return None
    # Total variation: the transform's own account, four times for clipping negative weights and normalising.
    error = 4 * total.infinity
    relative = 8 * ULP * size + 1e-11
    if relative > 0.5:
        return 0.0
    # The tail lies a few 1/θ below the tilted mean: what is computed is scaled to that point.
    mean = float(total.losses @ total.weights)
    centre = mean - 3 / theta
    gap = total.losses - centre
    near = np.where(gap * (1 + theta) > -600.0, gap, np.inf)  # what is far below the tail is left out: no overflow
    first, second = total.weights * np.exp(-theta * near), total.weights * np.exp(-(1 + theta) * near)

    def excess(epsilon: float) -> float:
        """log of the bound on δ(ε), less the log of what it has to exceed."""
        # Sums are in units of e^{log_scale − θ·centre}.
        start = int(np.searchsorted(total.losses, epsilon, side="right"))
        whole = float(np.sum(first[start:]))
        part = np.exp(min(epsilon - centre, 700.0)) * float(np.sum(second[start:]))
        slack = error / (1 + theta) * np.exp(min(-theta * (epsilon - centre), 700.0))
        found = whole * (1 - 1e-11) - part * (1 + 1e-11) - slack
        if not found > 0 or epsilon - centre > 700:  # e^{ε − centre} was cut off there
            return -np.inf
        target = delta + (wrong * (1 + np.exp(min(epsilon, 700.0))) if wrong else 0.0)
        return np.log(found) + log_scale - theta * centre + np.log1p(-relative) - np.log(target)

    # Far below the window the transform's error dominates: start from the largest point that is certain.
    most = max(1e-9, float(total.losses[-1]))
    points = np.concatenate([np.linspace(0, most, 129), centre + np.linspace(-599, 599, 129) / (1 + theta), [mean]])
    points = np.unique(np.clip(points, 0.0, most))
    good = [i for i, point in enumerate(points) if excess(float(point)) > 0]
    if not good:
        return 0.0
    return _largest(excess, 0.0, float(points[good[-1]]), float(points[min(good[-1] + 1, points.size - 1)]))


def _log_sum(logs: np.ndarray) -> float:
    most = float(np.max(logs))
    return most + float(np.log(np.sum(np.exp(logs - most))))


def _tilt(factors: Sequence[tuple[_Losses, int]], delta: float) -> float:
    """θ near the saddle point, the minimiser of (log Π E e^{θ l} − log δ)/θ: the tail is then computed at full precision."""
    laws = []
    for losses, count in factors:
        stride = max(1, losses.weights.size >> 12)
        size = -(-losses.weights.size // stride)
        coarse = np.bincount(np.arange(losses.weights.size) // stride, losses.weights, size)
        values = losses.values[0] + stride * losses.step * np.arange(size)
        keep = coarse > 0
        laws.append((np.log(coarse[keep]), values[keep], count))

    def chernoff(log_theta: float) -> float:
        theta = np.exp(log_theta)
        moment = sum(count * _log_sum(logs + theta * values) for logs, values, count in laws)
        return (moment - np.log(delta)) / theta

    grid = np.linspace(np.log(1e-5), np.log(1e5), 24)
    best = int(np.argmin([chernoff(x) for x in grid]))
    return float(np.exp(minimise(chernoff, grid[max(best - 1, 0)], grid[min(best + 1, 23)], 16)))


@dataclasses.dataclass(frozen=True)
class _Run:
    """`full` epochs and `rest` further rounds of `pair`."""

    pair: _Pair
    full: int
    rest: int

    def bound(self, delta: float, both: bool) -> float:
        """The best bound on ε(δ) of the three tests, in the direction P against Q, and Q against P."""
        pairs = [self.pair, self.pair.reversed()] if both else [self.pair]
        return max(self._tested(test, pair, delta) for pair in pairs for test in _TESTS)

    def _tested(self, test: Callable[[_Pair, float], _Observed | None], pair: _Pair, delta: float) -> float:
        tail = max(delta * 1e-6 / (self.full + 1), 1e-305)
        epoch = test(pair, tail) if self.full else None
        part = test(pair.cut_short(self.rest), tail) if self.rest else None
        parts = [(one, count) for one, count in ((epoch, self.full), (part, 1)) if one is not None]
        alone = (_largest(functools.partial(_one_epoch, one), delta, 0.0, 800.0) for one, _ in parts)
        best = max(alone, default=0.0) if self.full <= 1 or epoch is None else 0.0
        if epoch is None or (self.full == 1 and part is None):
            return best
        floor = max(delta * 1e-8 / (_SLICES * self.full), 1e-300)  # slices lighter than that are left out
        step = _step(epoch, floor)
        # Without the rest too: where its losses are finer than the lattice, rounding may cost more than they give.
        for used in range(1 if self.full > 1 else 2, len(parts) + 1):
            wrong = sum(one.wrong * count for one, count in parts[:used])
            for widen in (1, 4, 16, 64):
                factors = [(_on_lattice(one, step * widen, floor), count) for one, count in parts[:used]]
                bound = _compose(factors, delta, wrong)
                if bound is not None:
                    best = max(best, bound)
                    break
        return best or max(alone, default=0.0)


_TESTS = (_Pair.by_maximum, _Pair.by_sum, _Pair.by_ratio)


def _gaussian(mu: float, delta: float) -> float:
    """A lower bound on ε(δ) of G_μ, next to it: what the sums of whole epochs, p = 1, are worth."""

    def lower(epsilon: float) -> float:
        a, b = mu / 2 - epsilon / mu, mu / 2 + epsilon / mu
        slack = ULP * (16 + 8 * (1 + abs(a)) * b)
        first, second = float(special.ndtr(a)), float(np.exp(epsilon + special.log_ndtr(-b)))
        return first * (1 - slack) - second * (1 + slack + 8 * ULP * (epsilon + b * b))

    return _largest(lower, delta, 0.0, mu * mu / 2 + 40 * mu)


def lower_bound(
    rounds_per_epoch: int, noise_multiplier: float, rounds: int, delta: float, participation: float = 1.0
) -> float:
    """A certified lower bound on ε(δ) of shuffled training, one example replaced, no round shown to the adversary.

    No analysis of whatever kind can claim less than this for `Shuffling`: neither a Poisson number nor an
    extrapolation. What may be claimed is the bound of section 2; the truth lies between the two.

    Args:
      rounds_per_epoch: T >= 1.
      noise_multiplier: σ > 0, noise standard deviation over the sensitivity 2C of the sum.
      rounds: rounds released, >= 0; of the last epoch any number.
      delta: 0 < δ < 1.
      participation: chance p = T m s/N that an example takes part in an epoch, 0 < p <= 1.

    Returns:
      ε >= 0 such that the training is not (ε', δ)-DP for any ε' < ε.

    Raises:
      TypeError, ValueError: for an argument out of range.
    """
    rounds_per_epoch = _validate.integer("rounds_per_epoch", rounds_per_epoch, at_least=1)
    noise_multiplier = _validate.number("noise_multiplier", noise_multiplier, above=0)
    rounds = _validate.integer("rounds", rounds, at_least=0)
    delta = _validate.probability("delta", delta)
    participation = _validate.probability("participation", participation, one=True)
    if rounds == 0:
        return 0.0
    full, rest = divmod(rounds, rounds_per_epoch)
    mu = np.sqrt(full / rounds_per_epoch) / noise_multiplier
    whole = _gaussian(mu * (1 - 4 * ULP), delta) if participation == 1 and full else 0.0
    if rounds_per_epoch == 1 and participation == 1:
        return whole  # that is all there is to know
    run = _Run(_Pair(rounds_per_epoch, 1 / noise_multiplier, 0.0, participation), full, rest)
    return max(whole, run.bound(delta, both=full <= _BOTH))


def zero_out_lower_bound(rounds_per_epoch: int, noise_over_clip: float, epochs: int, delta: float) -> float:
    """The same where a neighbour's example counts as 0 ("zero-out") and noise is measured in clip norms.

    The pair is the mixture of N(2e_t, σ²I) against that of N(e_t, σ²I): all others contribute −C, the example +C or 0.
    One epoch observed by its maximum has δ(ε) >= max_c (1 − F_2(c)) − e^ε (1 − F_1(c)), F_a(c) =
    Φ((c − a)/σ) Φ(c/σ)^{T−1}.

    Args:
      rounds_per_epoch: T >= 1.
      noise_over_clip: σ > 0, noise standard deviation over the clip norm C.
      epochs: E >= 1 whole epochs, every example in each.
      delta: 0 < δ < 1.

    Returns:
      ε >= 0 such that the training is not (ε', δ)-DP for any ε' < ε.

    Raises:
      TypeError, ValueError: for an argument out of range.
    """
    rounds_per_epoch = _validate.integer("rounds_per_epoch", rounds_per_epoch, at_least=1)
    noise_over_clip = _validate.number("noise_over_clip", noise_over_clip, above=0)
    epochs = _validate.integer("epochs", epochs, at_least=1)
    delta = _validate.probability("delta", delta)
    pair = _Pair(rounds_per_epoch, 2 / noise_over_clip, 1 / noise_over_clip, 1.0)
    return _Run(pair, epochs, 0).bound(delta, both=epochs <= _BOTH)


def epoch_profile(epsilon, rounds_per_epoch: int, noise_multiplier: float, participation: float = 1.0):
    """A lower bound on δ(ε) of one shuffled epoch, for ε >= 0 (a number or an array); arguments as in `lower_bound`."""
    rounds_per_epoch = _validate.integer("rounds_per_epoch", rounds_per_epoch, at_least=1)
    noise_multiplier = _validate.number("noise_multiplier", noise_multiplier, above=0)
    participation = _validate.probability("participation", participation, one=True)
    points = np.asarray(epsilon, np.float64)
    if not np.all(points >= 0):
        _validate.fail("epsilon", "numbers >= 0", epsilon)
    pair = _Pair(rounds_per_epoch, 1 / noise_multiplier, 0.0, participation)
    seen = [test(one, 1e-305) for one in (pair, pair.reversed()) for test in _TESTS]
    found = [max(_one_epoch(one, float(e)) for one in seen if one is not None) for e in points.reshape(-1)]
    result = np.asarray(found).reshape(points.shape)
    return float(result) if points.ndim == 0 else result
