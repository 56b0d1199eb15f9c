r"""Propose-Test-Release of a trimmed sum: Rényi curves, exact profiles, and privacy loss distributions.

One release tests in private whether the trimmed sum is safe to release with little noise, and releases that, or else the
plain sum with the noise of its global sensitivity. A wrong pass is rare but dear: Rényi divergences charge e^{dear}
for it, a privacy loss distribution its probability. Both are computed, the smaller ε is reported.

Source: seed paper C; algorithm.md and accounting.md section 4. The worst pairs: _ptr_pairs.py; the lattice:
_ptr_lattice.py.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings

import numpy as np

from tfdpbc import _validate
from tfdpbc.accounting import _ptr_lattice, _ptr_pairs, renyi
from tfdpbc.accounting._roots import minimise
from tfdpbc.accounting.tradeoff import Gaussian, TradeOff

_INTEGERS = np.unique(np.concatenate([np.arange(2, 65), np.geomspace(64, 8192, 43).round()])).astype(int)
_FRACTIONS = 1 + np.geomspace(2.0**-26, 0.9, 14)
_ATTEMPTS = 8  # orders that are evaluated in both directions


@dataclasses.dataclass(frozen=True)
class ProposeTestRelease:
    """One release: test Δ + Lap(b) > threshold, then TSUM_F + N(0, (τσ)²) on pass, SUM + N(0, (Cσ_f)²) on fail.

    Δ in 0..F is the safety margin max(0, F − #{i : ‖x_i‖ > τ}) of the contributions x_i, each clipped to norm C.

    Attributes:
      trim: F >= 0, how many of the largest contributions are left out; with F = 0 the margin is always 0.
      threshold: t, any real number; the larger, the rarer a pass.
      laplace_scale: b > 0, in units of the margin.
      release_norm: τ in (0, C], the local sensitivity that is proposed.
      clip_norm: C > 0.
      release_noise: σ > 0, noise standard deviation over τ, on pass.
      fallback_noise: σ_f > 0, noise standard deviation over C, on fail; as `release_noise` if None.

    Guarantee: add/remove of one contribution. Which branch ran counts as public. The margins of neighbours differ by at
    most 1. On pass the means differ by at most τ, or by C if both margins are 0 (if one is positive, the step between
    the two sets is bounded by that one's local sensitivity); on fail by at most C. Methods with a `rate` are about
    Poisson sampling of the contributions (1: no sampling), which needs this kind of neighbours. All hold for adaptive
    composition, whatever margins each round meets.
    """

    trim: int
    threshold: float
    laplace_scale: float
    release_norm: float
    clip_norm: float
    release_noise: float
    fallback_noise: float | None = None

    def __post_init__(self):
        fallback = self.release_noise if self.fallback_noise is None else self.fallback_noise
        clip_norm = _validate.number("clip_norm", self.clip_norm, above=0)
        checked = {
            "trim": _validate.integer("trim", self.trim, at_least=0),
            "threshold": _validate.number("threshold", self.threshold),
            "laplace_scale": _validate.number("laplace_scale", self.laplace_scale, above=0),
            "clip_norm": clip_norm,
            "release_norm": _validate.number("release_norm", self.release_norm, above=0, at_most=clip_norm),
            "release_noise": _validate.number("release_noise", self.release_noise, above=0),
            "fallback_noise": _validate.number("fallback_noise", fallback, above=0),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def pass_probability(self, margin):
        """Pr[margin + Lap(b) > threshold]; `margin` a scalar or an array of any shape, >= 0 and at most F."""
        values = np.asarray(margin, np.float64)
        if not np.all((values >= 0) & (values <= self.trim)):
            _validate.fail("margin", f"in 0..trim = {self.trim}", margin)
        result = np.exp(_ptr_pairs.log_laplace_above((self.threshold - values) / self.laplace_scale))
        return float(result) if result.ndim == 0 else result

    @property
    def shifts(self) -> tuple[float, float, float]:
        """How far the means of neighbours may lie apart, in noise deviations: on pass, on pass at (0, 0), on fail."""
        wrong = self.clip_norm / self.release_norm / self.release_noise
        return 1 / self.release_noise, wrong, 1 / self.fallback_noise

    def renyi(self, order, rate: float = 1.0):
        """The Rényi divergence of one release (seed paper C's white-box bound), the largest of all pairs and directions.

        Args:
          order: α > 1, scalar or array; order 1 is refused, inf gives inf.
          rate: q in (0, 1].

        Returns:
          Nats, rounded up, of the shape of `order`. Without sampling and, forward, for integer orders it is a closed
          sum; otherwise an integral (relative slack 1e-9 and more for large orders, see _ptr_pairs.quadrature_moment)
          or, where that would be too long, a bound by convexity.
        """
        order = renyi._orders(order)
        rate = _validate.probability("rate", rate, one=True)
        flat = order.reshape(-1)
        values = np.array([self._renyi(float(value), rate) for value in flat]).reshape(order.shape)
        return float(values) if values.ndim == 0 else values

    def plain_renyi(self, order):
        """The bound without this analysis: Laplace test and worst branch composed, as seed paper C compares with."""
        return renyi.compose(
            lambda a: renyi.laplace(a, self.laplace_scale), lambda a: renyi.gaussian(a, 1 / max(self.shifts))
        )(order)

    def black_box_upper(self, order: int, rate: float) -> float:
        """What Poisson sampling makes of `renyi` when nothing else is known of the mechanism; integer `order` >= 2."""
        return renyi.subsampled_upper(self._unsampled, rate, order)

    def black_box_lower(self, order: int, rate: float) -> float:
        """What no black-box bound can be below, for the worst single pair; never above `renyi(order, rate)`."""
        rate = _validate.probability("rate", rate, one=True)
        order = _validate.integer("order", order, at_least=2)
        powers = np.arange(2.0, order + 1)
        moments = _ptr_pairs.log_moments(self._pairs(), powers) * (1 - 1e-12) - 1e-14
        sampled = np.max(renyi.sampled_log_moment(np.maximum(moments, 0.0), rate, order))
        return float(max(0.0, sampled - renyi.moment_slack(sampled, order)) / (order - 1))

    def delta(self, epsilon, rate: float = 1.0):
        """The exact profile of one release: the smallest δ with which it is (`epsilon`, δ)-DP; any real `epsilon`.

        Scalar or array; rounded up. The largest of all pairs and both directions.
        """
        values = np.asarray(epsilon, np.float64)
        if isinstance(epsilon, bool) or np.any(np.isnan(values)):
            _validate.fail("epsilon", "real numbers", epsilon)
        rate = _validate.probability("rate", rate, one=True)
        result = _ptr_pairs.largest_profile(self._pairs(), values.reshape(-1), rate).reshape(values.shape)
        return float(result) if result.ndim == 0 else result

    def trade_off(self, rate: float = 1.0, rounds: int = 1) -> TradeOff:
        """The guarantee of `rounds` releases, each of a Poisson sample at `rate`, by privacy loss distributions.

        Never above the truth; δ below about 1e-15 is out of reach of the lattice (ε is inf there), as are means more
        than 4000 deviations apart on a wrong pass. Its `renyi` is `rounds` times that of one release.
        """
        rate = _validate.probability("rate", rate, one=True)
        rounds = _validate.integer("rounds", rounds, at_least=0)
        return _trade_off(self, rate, rounds) if rounds else Gaussian(0.0)

    def epsilon(self, delta: float, rate: float = 1.0, rounds: int = 1) -> float:
        """The smaller ε of the Rényi and the loss-distribution accountants (both hold)."""
        return self.accountant(delta, rate, rounds)[1]

    def accountant(self, delta: float, rate: float = 1.0, rounds: int = 1) -> tuple[str, float]:
        """("pld" or "rdp", ε): the better accountant and its answer."""
        answers = {
            "pld": self.trade_off(rate, rounds).epsilon(_validate.probability("delta", delta)),
            "rdp": self.renyi_epsilon(delta, rate, rounds),
        }
        best = min(answers, key=answers.get)
        return best, answers[best]

    def bounds(self, delta: float, rate: float = 1.0, rounds: int = 1) -> dict[str, float]:
        """ε at `delta` by every method, all of them valid but the last.

        Keys: "rdp" (white-box), "pld", "advanced_composition" (of the direct (ε, δ) analysis), "black_box" (sampling
        amplification of the unsampled Rényi curve), "lower_bound" (the ε to which the lower bound on any black-box
        Rényi curve converts, at integer orders: where the Rényi method ends, not a bound on ε itself).
        """
        delta = _validate.probability("delta", delta)
        rate = _validate.probability("rate", rate, one=True)
        rounds = _validate.integer("rounds", rounds, at_least=0)
        if rounds == 0:
            return dict.fromkeys(("rdp", "pld", "advanced_composition", "black_box", "lower_bound"), 0.0)
        orders = _INTEGERS[_INTEGERS <= 512]
        black, low = (
            _least(orders, [rounds * float(bound(int(order), rate)) for order in orders], delta)
            for bound in (self.black_box_upper, self.black_box_lower)
        )
        rdp = self.renyi_epsilon(delta, rate, rounds)
        return {
            "rdp": rdp,
            "pld": self.trade_off(rate, rounds).epsilon(delta),
            "advanced_composition": self.advanced_composition(delta, rate, rounds),
            "black_box": black,
            "lower_bound": min(low, rdp),
        }

    def renyi_epsilon(self, delta: float, rate: float = 1.0, rounds: int = 1) -> float:
        """ε at `delta` by `renyi` alone; orders are chosen by the forward direction, then evaluated in both."""
        delta = _validate.probability("delta", delta)
        rate = _validate.probability("rate", rate, one=True)
        rounds = _validate.integer("rounds", rounds, at_least=0)
        if rounds == 0:
            return 0.0
        if rate == 1.0:
            orders = np.array(renyi.ORDERS)
            return renyi.to_epsilon(rounds * self._unsampled(orders), delta, orders)
        table = _ptr_pairs.log_moments(self._pairs(), np.arange(2.0, _INTEGERS[-1] + 1))
        forward = [float(renyi.sampled_log_moment(table[:, : n - 1], rate, n).max()) / (n - 1) for n in _INTEGERS]
        guess = renyi.converted(_INTEGERS.astype(np.float64), rounds * np.array(forward), delta)
        first = float(_INTEGERS[int(np.argmin(guess))])
        tried: dict[float, float] = {}

        def attempt(order: float) -> float:
            if order not in tried:
                value = rounds * self._renyi(order, rate)
                tried[order] = float(renyi.converted(np.array([order]), np.array([value]), delta)[0])
            return tried[order]

        for at in np.argsort(guess)[:_ATTEMPTS]:
            if tried and (min(tried.values()) <= max(guess[at], 0.0)):
                break
            attempt(float(_INTEGERS[at]))
        if first <= 3 and min(tried.values()) > 0:
            for order in _FRACTIONS:
                attempt(float(order))
        best = min(tried, key=tried.get)
        if tried[best] > 0 and best < 32:
            known = np.log(np.array(sorted(tried)) - 1)
            at = int(np.searchsorted(known, np.log(best - 1) - 1e-9))
            low, high = known[max(at - 1, 0)], known[min(at + 1, known.size - 1)]
            minimise(lambda log_less: attempt(1 + float(np.exp(log_less))), low, high, steps=8)
        best = min(tried, key=tried.get)
        if tried[best] > 0 and best in (_FRACTIONS[0], _INTEGERS[-1]):
            warnings.warn(f"the best order {best:g} is at the end of the orders tried", stacklevel=2)
        return float(max(0.0, tried[best]))

    def advanced_composition(self, delta: float, rate: float = 1.0, rounds: int = 1) -> float:
        """ε at `delta` by the direct (ε, δ) analysis: Laplace test + Gaussian release, sampling, advanced composition.

        A release is (1/b + ε_N, p₀ + δ_N)-DP where the Gaussian mechanisms with r = 1/σ and 1/σ_f are (ε_N, δ_N)-DP and
        p₀ is the probability of a pass at margin 0; and (1/b + ε_r, δ_N)-DP with the largest r instead. Sampling makes
        (ε, δ) (log(1 + q(e^ε − 1)), qδ); T rounds make Tε, or √(2T log(1/δ')) ε + T ε (e^ε − 1) for another δ' (Dwork,
        Rothblum, Vadhan 2010). The best of a grid of splits of δ.
        """
        delta = _validate.probability("delta", delta)
        rate = _validate.probability("rate", rate, one=True)
        rounds = _validate.integer("rounds", rounds, at_least=0)
        if rounds == 0:
            return 0.0
        usual, wrong, fail = self.shifts
        sure = self.pass_probability(0)
        cases = [(max(usual, fail) if self.trim else fail, sure), (max(usual, wrong, fail), 0.0)]
        best = np.inf
        for shift, failure in cases:
            for share in (0.0, *np.geomspace(1e-3, 0.95, 12)):
                left = delta * (1 - share) / (rounds * rate) * (1 - 1e-12) - failure
                if left <= 0:
                    continue
                one = 1 / self.laplace_scale + Gaussian(shift).epsilon(min(left, 0.999))
                one = one if rate == 1 else float(np.logaddexp(np.log1p(-rate), np.log(rate) + one))
                one *= 1 + 1e-12
                total = rounds * one
                if share:
                    with np.errstate(over="ignore"):
                        total = np.sqrt(2 * rounds * -np.log(share * delta)) * one + rounds * one * np.expm1(one)
                best = min(best, float(total) * (1 + 1e-12))
        return best

    def _pairs(self) -> _ptr_pairs.Pairs:
        return _pairs_of(self)

    def _unsampled(self, order: np.ndarray) -> np.ndarray:
        return _ptr_pairs.log_moments(self._pairs(), order).max(axis=0) / (order - 1)

    def _renyi(self, order: float, rate: float) -> float:
        if np.isinf(order):
            return np.inf
        pairs, less = self._pairs(), order - 1
        if rate == 1.0:  # ordered pairs of margins: both directions are among them
            return float(self._unsampled(np.array([order]))[0])
        above = int(np.ceil(order))
        # log E is convex in α and 0 at α = 1: a chord bounds a fractional order, exact for an integer one.
        forward = _ptr_pairs.sampled_moments(pairs, max(2, above), rate) * (less / (max(2, above) - 1))
        best = float(forward.max()) if above == order else 0.0
        if above != order:
            best = _largest(pairs, order, rate, forward, best)
        # The reverse divergence is at most its unsampled one, mixed, and that of (1−q)·without against without.
        unsampled = _ptr_pairs.log_moments(pairs, np.array([1 - order]))[:, 0]
        mixed = np.log1p(-rate) + np.logaddexp(0.0, np.log(rate) - np.log1p(-rate) + unsampled)
        reverse = np.minimum(mixed, -less * np.log1p(-rate)) * (1 + 1e-12) + 1e-15
        return _largest(pairs, 1 - order, rate, reverse, best) / less


@dataclasses.dataclass(frozen=True)
class Test:
    """A `ProposeTestRelease` whose noise on pass is still open; fields as there.

    Attributes:
      fallback_noise: σ_f, or None: as the noise on pass.
    """

    __test__ = False  # not one of pytest's

    trim: int
    threshold: float
    laplace_scale: float
    release_norm: float
    clip_norm: float
    fallback_noise: float | None = None

    def release(self, noise_multiplier: float) -> ProposeTestRelease:
        """The release with noise of standard deviation τ `noise_multiplier` on pass."""
        return ProposeTestRelease(
            self.trim,
            self.threshold,
            self.laplace_scale,
            self.release_norm,
            self.clip_norm,
            noise_multiplier,
            self.fallback_noise,
        )


def _largest(pairs, power: float, rate: float, bounds: np.ndarray, best: float) -> float:
    """The largest moment of all pairs, if above `best`: by integration where the `bounds` do not rule a pair out."""
    for pair in np.argsort(-bounds):
        if bounds[pair] > best:
            best = max(best, min(_ptr_pairs.quadrature_moment(pairs, int(pair), power, rate), float(bounds[pair])))
    return best


def _least(orders: np.ndarray, values: list[float], delta: float) -> float:
    epsilon = renyi.converted(orders.astype(np.float64), np.array(values), delta)
    return float(max(0.0, np.min(epsilon[np.isfinite(epsilon)], initial=np.inf)))


@functools.lru_cache(maxsize=64)
def _pairs_of(release: ProposeTestRelease) -> _ptr_pairs.Pairs:
    margins = _ptr_pairs.worst_margins(release.trim, release.threshold)
    return _ptr_pairs.make(margins, release.threshold, release.laplace_scale, release.shifts)


@functools.lru_cache(maxsize=16)
def _trade_off(release: ProposeTestRelease, rate: float, rounds: int) -> TradeOff:
    def curve(order: float) -> float:
        return rounds * release.renyi(order, rate)

    return _ptr_lattice.trade_off(_pairs_of(release), rate, rounds, curve)
