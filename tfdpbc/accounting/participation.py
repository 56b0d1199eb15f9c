r"""How often, and how hard, a protected group of examples is hit: the exact distribution of c² = Σ_rounds k².

k is the number of contributions of a round that hold one of the g differing examples; c² decides the guarantee
(mixture.py). Papers call its distribution prohibitive because the vectors of all k are exponentially many, but only the
integer c² matters. It is computed from the generating function of one round (z marks differing examples, u marks k²),

    R(z, u) = Σ_{k=0}^{min(m,g)} C(m,k) ((1+z)^s − 1)^k u^{k²},

by two independent ways that check each other: `_series` (all terms positive, in logs: exact moments, no cancellation)
and `_contour` (probabilities, by a discrete Fourier transform in both z and u).

Source: seed paper A, Table 1 and its appendices; accounting.md section 2.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from tfdpbc import _validate
from tfdpbc.accounting import _contour, _series, _sums
from tfdpbc.accounting._sums import Part


@dataclasses.dataclass(frozen=True, eq=False)
class Participation:
    """The distribution of c², an integer.

    Attributes:
      c_squared: the values, increasing; int64, shape [n].
      probability: their probabilities, float64, shape [n], sum 1. Rounding and truncation errors have been moved to the
        private side: the true distribution is dominated by this one in every increasing function of c² with values in
        [0, 1], in particular in every δ(ε).
      log_moment: t ↦ log E[exp(t c²)], exact to rounding for any real t (None: to be summed from the probabilities).
        Rényi divergences need it: a probability that is wrong by 1e-17 is multiplied by e^{huge} there.
    """

    c_squared: np.ndarray
    probability: np.ndarray
    log_moment: Callable[[float], float] | None = None

    def __post_init__(self):
        values = np.asarray(self.c_squared, np.int64)
        weights = np.asarray(self.probability, np.float64)
        if values.ndim != 1 or values.shape != weights.shape or values.size == 0:
            _validate.fail("c_squared", "a non-empty vector as long as probability", values.shape)
        if np.any(np.diff(values) <= 0) or values[0] < 0:
            _validate.fail("c_squared", "increasing and >= 0", values)
        if not np.all(weights >= 0) or abs(weights.sum() - 1) > 1e-9:
            _validate.fail("probability", "non-negative with sum 1", weights)
        object.__setattr__(self, "c_squared", values)
        object.__setattr__(self, "probability", weights)

    @property
    def mean(self) -> float:
        """E[c²]."""
        return float(self.c_squared @ self.probability)

    def quantiles(self, probability):
        """The smallest values v with Pr[c² <= v] >= `probability` (in [0, 1]), of the same shape."""
        wanted = np.asarray(probability, np.float64)
        if not np.all((wanted >= 0) & (wanted <= 1)):
            _validate.fail("probability", "numbers in [0, 1]", probability)
        index = np.searchsorted(np.cumsum(self.probability), wanted * (1 - 1e-15))
        result = self.c_squared[np.minimum(index, self.c_squared.size - 1)]
        return int(result) if result.ndim == 0 else result

    def upper_tail(self, value: float) -> float:
        """Pr[c² > value]."""
        return float(self.probability[self.c_squared > value].sum())

    def lower_tail(self, value: float) -> float:
        """Pr[c² < value]."""
        return float(self.probability[self.c_squared < value].sum())

    def log_moment_at(self, t: float) -> float:
        """log E[exp(t c²)]."""
        if self.log_moment is not None:
            return self.log_moment(t)
        return _series.log_mean_exp(t * self.c_squared.astype(np.float64), self.probability)


def shuffling(
    num_examples: int, contributions: int, examples_per_contribution: int, rounds: int, group_size: int = 1
) -> Participation:
    """The distribution of c² after `rounds` rounds of shuffled epochs.

    Args:
      num_examples: N. Every epoch is a fresh uniform permutation; it has N // (m s) rounds, its remainder is left out.
      contributions: m, contributions per round.
      examples_per_contribution: s.
      rounds: >= 0 rounds released; they may end inside an epoch.
      group_size: g, how many examples differ between the neighbouring data sets (1..N).
    """
    n, m, s, rounds, g = _checked(num_examples, contributions, examples_per_contribution, rounds, group_size)
    epochs, partial = divmod(rounds, n // (m * s))
    parts = []
    for length, count in ((n // (m * s), epochs), (partial, 1)):
        if length and count:
            values, weights, missing = _contour.epoch(n, m, s, length, g)
            moment = functools.partial(_series.epoch_log_moment, n, m, s, length, g)
            parts.append(Part(values, weights, count, missing, moment))
    return _total(parts, _largest(m, g, n // (m * s)) * epochs + _largest(m, g, partial))


def subsampling(
    num_examples: int, contributions: int, examples_per_contribution: int, rounds: int, group_size: int = 1
) -> Participation:
    """The distribution of c² after `rounds` rounds, each on a fresh uniform m·s-subset of the N examples.

    Arguments as for :func:`shuffling`.
    """
    n, m, s, rounds, g = _checked(num_examples, contributions, examples_per_contribution, rounds, group_size)
    if rounds == 0:
        return _total([], 0)
    log_weights = _series.round_log_probability(n, m, s, g)
    k = np.arange(log_weights.size, dtype=np.int64)
    keep = log_weights > -np.inf
    values, log_weights = (k * k)[keep], log_weights[keep]
    weights = np.exp(log_weights)
    moment = functools.partial(_series.log_mean_exp_of_logs, values.astype(np.float64), log_weights)
    part = Part(values, weights / weights.sum(), rounds, 0.0, moment)
    return _total([part], int(values[-1]) * rounds)


def shuffled_batch_mu(
    num_examples: int, rounds: int, rounds_per_epoch: int, noise_multiplier: float, group_size: int = 1
):
    """Table 1, shuffling with m = 1: √(min(g, B)·E)/σ, the μ of a Gaussian lower bound on f (exact for g = 1).

    A group of g examples falls into at most min(g, B) of an epoch's B rounds, so c² <= min(g, B)·E, E = epochs begun.
    """
    _validate.integer("num_examples", num_examples, at_least=1)
    per_epoch = _validate.integer("rounds_per_epoch", rounds_per_epoch, at_least=1)
    g = _validate.integer("group_size", group_size, at_least=1, at_most=num_examples)
    epochs, partial = divmod(_validate.integer("rounds", rounds, at_least=0), per_epoch)
    hits = epochs * min(g, per_epoch) + min(g, partial)
    return float(np.sqrt(hits) / _validate.number("noise_multiplier", noise_multiplier, above=0))


def asymptotic_mu(epochs: float, noise_multiplier: float, group_size: int = 1) -> float:
    """Table 1: √(gE)/σ, what every case tends to for large N. A bound only for shuffling with m = 1."""
    sigma = _validate.number("noise_multiplier", noise_multiplier, above=0)
    epochs = _validate.number("epochs", epochs, at_least=0)
    return float(np.sqrt(_validate.integer("group_size", group_size, at_least=1) * epochs) / sigma)


def individual_mean(num_examples: int, contributions: int, epochs: float, group_size: int = 1) -> float:
    """Table 1, shuffling with s = 1 and m dividing N: E[c²] = E (g + g (g−1) (m−1)/(N−1))."""
    n = _validate.integer("num_examples", num_examples, at_least=1)
    m = _validate.integer("contributions", contributions, at_least=1, at_most=n)
    g = _validate.integer("group_size", group_size, at_least=1, at_most=n)
    pairs = g * (g - 1) * (m - 1) / (n - 1) if n > 1 else 0.0
    return float(_validate.number("epochs", epochs, at_least=0) * (g + pairs))


def subsampled_batch_binomial(num_examples: int, examples_per_contribution: int, group_size: int = 1) -> float:
    """Table 1, subsampling with m = 1: c² ~ Binomial(rounds, p), and this is p = 1 − C(N−g, s)/C(N, s)."""
    n = _validate.integer("num_examples", num_examples, at_least=1)
    s = _validate.integer("examples_per_contribution", examples_per_contribution, at_least=1, at_most=n)
    g = _validate.integer("group_size", group_size, at_least=1, at_most=n)
    if s + g > n:
        return 1.0
    few, many = sorted((g, s))  # C(N−g, s)/C(N, s) is symmetric in g and s; take the shorter product
    return float(-np.expm1(np.log1p(-many / (n - np.arange(few, dtype=np.float64))).sum()))


def _checked(num_examples, contributions, examples_per_contribution, rounds, group_size):
    n = _validate.integer("num_examples", num_examples, at_least=1)
    m = _validate.integer("contributions", contributions, at_least=1)
    s = _validate.integer("examples_per_contribution", examples_per_contribution, at_least=1)
    if m * s > n:
        _validate.fail("num_examples", f">= contributions * examples_per_contribution = {m * s}", n)
    rounds = _validate.integer("rounds", rounds, at_least=0)
    return n, m, s, rounds, _validate.integer("group_size", group_size, at_least=1, at_most=n)


def _largest(m: int, g: int, rounds: int) -> int:
    """The largest Σ k² that g examples can cause in so many disjoint rounds: fill one round after the other."""
    full, rest = divmod(g, m)
    return rounds * m * m if full >= rounds else full * m * m + rest * rest


def _total(parts: Sequence[Part], largest: int) -> Participation:
    if not parts:
        return Participation(np.zeros(1, np.int64), np.ones(1), lambda t: 0.0)
    values, weights, error = _sums.distribution(parts)
    values, weights = _sums.to_private_side(values, weights, error, largest)
    return Participation(values, weights, lambda t: float(sum(p.count * p.log_moment(t) for p in parts)))
