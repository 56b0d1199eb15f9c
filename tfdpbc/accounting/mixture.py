r"""The mixture Σ_c q(c) G_{c/σ} that random participation induces, with the index c shown to the adversary.

A round in which k contributions hold a differing example has the trade-off function G_{k/σ}; a run with c² = Σ k²
composes to G_{c/σ}; the sampling makes c² random (participation.py). Showing c to the adversary only helps him, so
f = the trade-off function of this mixture is a guarantee (seed paper A; accounting.md section 2):

    α(λ) = Σ q Φ(−λ/μ_c − μ_c/2),   f(λ) = Σ q Φ(λ/μ_c − μ_c/2)      (equal slopes −e^λ, μ_c = c/σ)
    δ(ε) = Σ q δ_{G_{μ_c}}(ε),       RDP(ω) = log Σ q exp(ω(ω−1) μ_c²/2) / (ω − 1).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
from scipy import special

from tfdpbc import _validate
from tfdpbc.accounting import _roots
from tfdpbc.accounting._gaussian import ULP, gaussian_delta, gaussian_epsilon_bound, gaussian_f
from tfdpbc.accounting.participation import Participation
from tfdpbc.accounting.tradeoff import Gaussian, TradeOff

MAX_ATOMS = 200_000  # compositions beyond this are merged upwards, to the private side
_BLOCK = 1 << 18  # elements of a table held at a time
_F_ATOMS = 1 << 13  # atoms that f is evaluated with, and those of a mixture that is asked a thousand questions
_LIGHT_ATOMS = 512


class GaussianMixture(TradeOff):
    """The trade-off function of Σ_c probability(c) G_{c/noise_multiplier}, c public.

    Args:
      c_squared: values of c² >= 0, increasing; shape [n]. Integers for a plan; any reals for compositions.
      probability: their probabilities; shape [n], sum 1 (to 1e-9).
      noise_multiplier: σ > 0, noise standard deviation over sensitivity; inf allowed.
      log_moment: t ↦ log E[exp(t c²)] if it is known better than from the probabilities (see Participation).
    """

    def __init__(
        self, c_squared, probability, noise_multiplier: float, log_moment: Callable[[float], float] | None = None
    ):
        self.noise_multiplier = _validate.number("noise_multiplier", noise_multiplier, above=0, finite=False)
        values, weights = np.asarray(c_squared, np.float64), np.asarray(probability, np.float64)
        if values.ndim != 1 or values.shape != weights.shape or values.size == 0:
            _validate.fail("c_squared", "a non-empty vector as long as probability", values.shape)
        if not np.all(np.isfinite(values)) or values[0] < 0 or np.any(np.diff(values) <= 0):
            _validate.fail("c_squared", "finite, >= 0 and increasing", c_squared)
        if not np.all(weights >= 0) or abs(weights.sum() - 1) > 1e-9:
            _validate.fail("probability", "non-negative with sum 1", probability)
        keep = weights > 0
        self.c_squared, self.probability = values[keep], weights[keep]
        self._log_moment = log_moment
        with np.errstate(over="ignore"):
            self._mus = np.sqrt(self.c_squared) / self.noise_multiplier
        still = self._mus == 0  # rounds that never met the group, or so little of it that the loss underflows
        self._zero = float(self.probability[still].sum())
        self._mu, self._q = self._mus[~still], self.probability[~still]

    @classmethod
    def of(cls, participation: Participation, noise_multiplier: float) -> GaussianMixture:
        """The guarantee of a plan whose participation is known."""
        return cls(participation.c_squared, participation.probability, noise_multiplier, participation.log_moment)

    @property
    def mu(self) -> float | None:
        """μ if c is certain, else None."""
        return float(self._mus[0]) if self._mus.size == 1 else None

    def privacy_loss(self):
        """The privacy loss log dP/dQ under P, as a tensorflow_probability (numpy, float64) distribution.

        `MixtureSameFamily` over c of Normal(μ_c²/2, μ_c); where c = 0 the loss is 0, given as a Normal of width 1e-12.
        """
        from tensorflow_probability.substrates import numpy as tfp  # seconds to import

        normal = tfp.distributions.Normal(self._mus**2 / 2, np.maximum(self._mus, 1e-12))
        index = tfp.distributions.Categorical(probs=self.probability / self.probability.sum(), dtype=np.int64)
        return tfp.distributions.MixtureSameFamily(index, normal)

    def compose(self, other: TradeOff) -> TradeOff:
        """Independent mixtures compose atom by atom: c²/σ² adds up."""
        if isinstance(other, Gaussian):
            return self.compose_gaussian(other.mu)
        if not isinstance(other, GaussianMixture) or np.isinf(other.noise_multiplier):
            return super().compose(other)
        if np.isinf(self.noise_multiplier):
            return other
        ratio = (self.noise_multiplier / other.noise_multiplier) ** 2
        mine, mine_q = coarsened(self.c_squared, self.probability, MAX_ATOMS)
        theirs, theirs_q = coarsened(other.c_squared * ratio, other.probability, max(1, 20 * MAX_ATOMS // mine.size))
        sums, inverse = np.unique(np.add.outer(mine, theirs).ravel(), return_inverse=True)
        weights = np.bincount(inverse.ravel(), np.multiply.outer(mine_q, theirs_q).ravel(), sums.size)
        sums, weights = coarsened(sums, weights / weights.sum(), MAX_ATOMS)
        return GaussianMixture(
            sums, weights, self.noise_multiplier, lambda t: self._moment(t) + other._moment(t * ratio)
        )

    def compose_gaussian(self, mu: float) -> TradeOff:
        """This ⊗ G_μ: every μ_c² grows by μ²."""
        if np.isinf(mu) or np.isinf(self.noise_multiplier):
            return Gaussian(mu)
        more = (mu * self.noise_multiplier) ** 2
        return GaussianMixture(
            self.c_squared + more, self.probability, self.noise_multiplier, lambda t: self._moment(t) + t * more
        )

    def _moment(self, t: float) -> float:
        if self._log_moment is not None:
            return self._log_moment(t)
        return float(special.logsumexp(t * self.c_squared + np.log(self.probability)))

    def _renyi(self, order):
        if np.isinf(order):
            return 0.0 if self._mu.size == 0 else np.inf
        with np.errstate(over="ignore"):
            exponent = order * (order - 1) / 2 / self.noise_multiplier / self.noise_multiplier
        if not np.isfinite(exponent * self.c_squared[-1]):
            return 0.0 if self._mu.size == 0 else np.inf
        return max(0.0, self._moment(exponent) / (order - 1)) * (1 + 1e-12)

    def _delta(self, epsilon):
        if self._mu.size == 0:
            return -np.expm1(np.minimum(epsilon, 0.0))
        block = max(1, _BLOCK // self._mu.size)
        starts = range(0, epsilon.size, block)
        total = np.concatenate(
            # not a matrix product, whose last digit depends on how many ε are asked for at once
            [(gaussian_delta(epsilon[i : i + block, None], self._mu) * self._q).sum(axis=1) for i in starts]
            or [np.zeros(0)]
        )
        total += self._zero * -np.expm1(np.minimum(epsilon, 0.0))
        return np.minimum(total * (1 + 64 * ULP), 1.0)

    def _epsilon_bound(self, delta):
        # Never above the component whose c is exceeded with probability delta/2, asked for the other half.
        tail = np.cumsum(self._q[::-1])[::-1]
        index = int(np.searchsorted(-tail, -delta / 2)) if self._mu.size else 0
        if self._mu.size == 0:
            return 1.0
        return gaussian_epsilon_bound(delta / 2, float(self._mu[min(index, self._mu.size - 1)]))

    def _f(self, alpha):
        if self._mu.size == 0:
            return 1.0 - alpha
        if self._mus.size == 1:
            return gaussian_f(alpha, float(self._mus[0]))
        light = self if self.probability.size <= _F_ATOMS else self._merged(_F_ATOMS)
        return np.array([light._f_at(float(value)) for value in alpha])

    def _light(self):
        return self if self.probability.size <= _LIGHT_ATOMS else self._merged(_LIGHT_ATOMS)

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def _merged(self, limit: int) -> GaussianMixture:
        return GaussianMixture(*coarsened(self.c_squared, self.probability, limit), self.noise_multiplier)

    def _f_at(self, alpha: float) -> float:
        if alpha <= 0 or alpha >= 1:
            return 1.0 if alpha <= 0 else 0.0
        finite = self._mu < 1e100  # where μ_c is beyond that the adversary errs nowhere, at no cost in α
        mu, q, zero = self._mu[finite], self._q[finite], self._zero
        rest = (1 - alpha) - float(self._q[~finite].sum())
        if rest <= 0:
            return 0.0
        kink = float(q @ special.ndtr(-mu / 2))  # α just right of the segment, and f just left of it, at λ = 0
        if mu.size == 0 or kink <= alpha <= kink + zero:
            return max(0.0, min(1 - alpha, kink * (1 - 64 * ULP) + (zero - (alpha - kink)) - 4 * ULP))
        # α(λ) is a mean of decreasing functions that reach α at λ_c, so the root is between the extremes of λ_c.
        first, half = 1.0 / mu, mu / 2
        if alpha < kink:

            def excess(lam: float) -> float:
                return log(q @ special.ndtr(-lam * first - half)) - log(alpha * (1 + 64 * ULP))

            ends = mu * (-special.ndtri(min(alpha / q.sum(), 1.0)) - half)
        else:

            def excess(lam: float) -> float:  # the same condition through 1 − α, which keeps its digits near α = 1
                return log(rest * (1 - 64 * ULP)) - log(q @ special.ndtr(lam * first + half))

            ends = mu * (special.ndtri(min(rest / q.sum(), 1.0)) - half)
        lam = _private_crossing(excess, float(np.min(ends)), float(np.max(ends)))
        # At this λ the test's α is at least the one asked for, so its f is at most the one asked for.
        result = float(q @ special.ndtr(lam * first - half)) + (zero if lam > 0 else 0.0)
        return max(0.0, min(1 - alpha, result * (1 - 256 * ULP)))

    def __repr__(self):
        c = self.c_squared
        return f"GaussianMixture(c_squared={c[0]:g}..{c[-1]:g} ({c.size}), noise_multiplier={self.noise_multiplier!r})"


def f_at_least(alpha, noise_multiplier: float, c_squared: float, exceeded: float):
    """A lower bound on f if Pr[c² > `c_squared`] <= `exceeded`: (1 − u) G_{c_U/σ}(min(1, α/(1 − u))), rounded down.

    Args:
      alpha: in [0, 1]; any shape, which is that of the result.
      noise_multiplier: σ > 0.
      c_squared: c_U² >= 0.
      exceeded: u in [0, 1).

    Source: seed paper A; accounting.md section 2. It needs a tail bound of q_E only, not the distribution.
    """
    values, mu, u = _tail_arguments(alpha, noise_multiplier, c_squared, "exceeded", exceeded)
    inside = np.minimum(1.0, np.nextafter(values / (1 - u), 2.0)) if u else values
    return _shaped(np.maximum(0.0, (1 - u) * gaussian_f(inside, mu * (1 + 4 * ULP)) * (1 - 4 * ULP)))


def f_at_most(alpha, noise_multiplier: float, c_squared: float, undercut: float):
    """An upper bound on f if Pr[c² < `c_squared`] <= `undercut`: min(1 − α, G_{c_L/σ}(α) + l), rounded up.

    No analysis against this adversary can promise more. Arguments as for :func:`f_at_least`, l = `undercut`.
    """
    values, mu, least = _tail_arguments(alpha, noise_multiplier, c_squared, "undercut", undercut)
    return _shaped(np.minimum(1 - values, (gaussian_f(values, mu * (1 - 4 * ULP), up=True) + least) * (1 + 4 * ULP)))


def _tail_arguments(alpha, noise_multiplier, c_squared, name, tail):
    values = np.asarray(alpha, np.float64)
    if not np.all((values >= 0) & (values <= 1)):
        _validate.fail("alpha", "numbers in [0, 1]", alpha)
    sigma = _validate.number("noise_multiplier", noise_multiplier, above=0)
    mu = float(np.sqrt(_validate.number("c_squared", c_squared, at_least=0)) / sigma)
    return values, mu, _validate.number(name, tail, at_least=0, below=1)


def _shaped(values):
    return float(values) if values.ndim == 0 else values


def log(value: float) -> float:
    return float(np.log(value)) if value > 0 else -np.inf


def _private_crossing(excess: Callable[[float], float], low: float, high: float) -> float:
    """The largest known λ with α(λ) >= α, that is excess(λ) >= 0; `excess` decreases in λ."""
    width = max(1e-12, 1e-9 * max(abs(low), abs(high)))
    # `crossing` returns the side on which its function is <= 0, so look at −excess with the axis turned round.
    return -_roots.crossing(lambda x: -excess(-x), -(high + width), -(low - width))


def coarsened(values: np.ndarray, weights: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """About `limit` atoms: neighbours are merged, upwards (to the private side), but not across wide gaps."""
    if values.size <= limit:
        return values, weights
    bins = np.arange(values.size) * limit // values.size
    gaps = np.diff(values)
    ends = (np.diff(bins) > 0) | (gaps > 4 * np.median(gaps) * (values.size / limit))
    last = np.append(np.flatnonzero(ends), values.size - 1)
    sums = np.add.reduceat(weights, np.concatenate([[0], last[:-1] + 1]))
    return values[last], sums / sums.sum()
