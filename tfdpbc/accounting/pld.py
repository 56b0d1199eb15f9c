r"""Privacy loss distributions on a lattice: exact composition, pessimistic everywhere.

A lattice of losses l = i·h with weights w under P, and a weight for l = ∞, stands for a pair (P, Q) that dominates the
mechanism's; composition is the convolution of such distributions, and

    δ(ε) = Pr[l = ∞] + Σ_{l > ε} w(l) (1 − e^{ε − l}).

Discretisation (_rounds.py, `from_profile`) is pessimistic connect-the-dots. What the transform may get wrong, and what
its window cuts off, is added to the weight of l = ∞. dp-accounting serves as the oracle of the tests and takes over
any result through `to_dp_accounting`; its own convolution raises the spectrum to the power T, which multiplies
rounding by T.

Source: Koskela, Jälkö, Honkela (2020); Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the dots" (2022).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
from scipy import special

from tfdpbc import _validate
from tfdpbc.accounting import _sums
from tfdpbc.accounting._gaussian import ULP

TAIL = 1e-18  # weight that may be cut from each end of a composition; it goes to the infinite loss
MAX_SIZE = 1 << 21  # lattice points of a composition
_HEAVY = 12  # weights that are transformed exactly
_REFINED = 1 << 24  # terms of the transform that may be summed exactly besides


@dataclasses.dataclass(frozen=True, eq=False)
class LossDistribution:
    """The law of the privacy loss under P, on the lattice (first + i)·step.

    Attributes:
      step: h > 0, in nats.
      first: lattice index of the first weight.
      weights: shape [n], >= 0.
      infinity: the weight of an infinite loss.
    """

    step: float
    first: int
    weights: np.ndarray
    infinity: float

    @classmethod
    def sparse(cls, step: float, index: np.ndarray, weights: np.ndarray, infinity: float) -> LossDistribution:
        """From weights at some increasing lattice indices, rescaled to leave `infinity` for the infinite loss."""
        full = np.zeros(int(index[-1] - index[0]) + 1)
        full[index - index[0]] = weights / weights.sum() * (1 - infinity)
        return cls(step, int(index[0]), full, infinity)

    @functools.cached_property
    def losses(self) -> np.ndarray:
        """The lattice losses, shape [n]."""
        return (self.first + np.arange(self.weights.size)) * self.step

    @functools.cached_property
    def _tails(self) -> tuple[np.ndarray, np.ndarray]:
        """(V, D) with V_i = Σ_{j >= i} w_j e^{l_i − l_j} and D_i = δ(l_i) − infinity, each of shape [n].

        Both follow from the far end without a subtraction, V_i = w_i + e^{−h} V_{i+1} and D_i = D_{i+1} + (1 − e^{−h})
        V_{i+1}, so that they are relatively accurate however small they are. V is summed by doubling.
        """
        v, reach = self.weights.copy(), 1
        while reach < v.size and reach * self.step < 750:
            v[:-reach] += np.exp(-reach * self.step) * v[reach:]
            reach *= 2
        return v, np.append(np.cumsum(v[:0:-1])[::-1], 0.0) * -np.expm1(-self.step)

    def delta(self, epsilon: np.ndarray) -> np.ndarray:
        """δ(ε) for a vector of any real ε, rounded up."""
        v, at = self._tails
        index = np.searchsorted(self.losses, epsilon, side="right")
        inside = np.minimum(index, v.size - 1)
        share = -np.expm1(np.minimum(epsilon - self.losses[inside], 0.0))
        above = np.where(index < v.size, at[inside] + v[inside] * share, 0.0)
        return np.minimum(self.infinity + above * (1 + ULP * (v.size + 256)), 1.0)

    def self_compose(self, count: int) -> LossDistribution:
        """`count` independent copies."""
        if count == 1:
            return self
        return _convolved([(self, count)])

    def compose(self, other: LossDistribution) -> LossDistribution:
        """This and `other`, on the same lattice."""
        if self.step != other.step:
            _validate.fail("other", f"a distribution on the lattice of width {self.step}", other.step)
        return _convolved([(self, 1), (other, 1)])

    def on_lattice(self, step: float) -> LossDistribution:
        """The same on a lattice of width `step`, not finer than its own, by connect-the-dots."""
        if step == self.step:
            return self
        losses = self.losses
        low = np.floor(losses / step).astype(np.int64)
        inside = np.clip(losses - low * step, 0.0, step)
        upper = self.weights * np.expm1(-inside) / np.expm1(-step)
        first, size = int(low[0]), int(low[-1] - low[0]) + 2
        weights = np.bincount(low - first, self.weights - upper, size) + np.bincount(low - first + 1, upper, size)
        return LossDistribution(step, first, np.maximum(weights, 0.0), self.infinity)

    def to_dp_accounting(self):
        """The same as a dp_accounting PLDPmf (pessimistic)."""
        from dp_accounting.pld import pld_pmf

        return pld_pmf.DensePLDPmf(self.step, self.first, self.weights, self.infinity, True)


def _convolved(factors: list[tuple[LossDistribution, int]]) -> LossDistribution:
    step = factors[0][0].step
    low, high = _window(factors)
    widen = 1
    while (high - low) // widen > MAX_SIZE:
        widen *= 2
    if widen > 1:
        return _convolved([(factor.on_lattice(step * widen), count) for factor, count in factors])
    size = _sums.smooth_size(max(2, high - low + 1))
    logs, wrong, shift = np.zeros(size // 2 + 1, np.complex128), np.zeros(size // 2 + 1), -low
    for factor, count in factors:
        centre = int(np.argmax(factor.weights))
        shift += count * (factor.first + centre)
        mine, error = _log_spectrum(factor.weights / factor.weights.sum(), centre, size, count)
        logs += mine
        wrong += error
    spectrum = np.exp(logs)
    weights = np.roll(np.fft.irfft(spectrum, size), shift % size)[: high - low + 1]
    weights = np.maximum(weights, 0.0)
    noise = np.sqrt(size * np.mean((np.abs(spectrum) * np.minimum(wrong + 4 * ULP, 1.0)) ** 2))
    finite = np.exp(sum(count * np.log1p(-factor.infinity) for factor, count in factors))
    infinity = 1 - finite if finite < 0.9 else -np.expm1(np.log(finite))
    infinity = min(1.0, float(infinity + 4 * TAIL + noise))
    return LossDistribution(step, low, weights / weights.sum() * (1 - infinity), infinity)


def _log_spectrum(weights: np.ndarray, centre: int, size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """count·log φ on the `size`-th roots of unity, indices counted from `centre`, and its rounding error.

    φ − 1 comes from a transform without the heaviest weights, which are added exactly, as terms w·(u − 1): so its
    error is relative to the light ones. Where many copies would magnify even that and φ^count still matters (for most
    laws a few dozen low frequencies), all of φ − 1 is summed that way.
    """
    offsets = np.arange(weights.size, dtype=np.int64) - centre
    unit, light = _sums.unit_less_one(size), weights.copy()
    light[centre] = 0.0
    less_one, wrong = _transformed(offsets, light, size)
    logs = _sums.complex_log1p(less_one)
    matter = np.flatnonzero(count * logs.real > -45) if count > 100 else np.zeros(0, np.int64)
    terms = np.count_nonzero(weights)
    if matter.size * terms < _REFINED:
        some, weight = offsets[weights > 0], weights[weights > 0]
        for j in matter:
            less_one[j] = unit[(some * j) % size] @ weight
        wrong[matter] = 4 * ULP * np.abs(less_one[matter])
        logs[matter] = _sums.complex_log1p(less_one[matter])
    else:
        heavy = np.argsort(light)[-_HEAVY:]
        added, light[heavy] = light[heavy], 0.0
        less_one, wrong = _transformed(offsets, light, size)
        frequency = np.arange(less_one.size, dtype=np.int64)
        for i, weight in zip(heavy, added, strict=True):
            less_one += weight * unit[(offsets[i] * frequency) % size]
        wrong += 4 * ULP * np.abs(less_one)
        logs = _sums.complex_log1p(less_one)
    return count * logs, count * wrong + ULP * np.abs(count * logs)


def _transformed(offsets: np.ndarray, weights: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Σ w (u^offset − 1) on the roots of unity by one fast transform, and its rounding error."""
    result = np.fft.rfft(np.bincount(offsets % size, weights, size)) - weights.sum()
    error = 4 * ULP * (np.sqrt(np.log2(size) * (weights @ weights)) + weights.sum())
    return result, error + 4 * ULP * np.abs(result)


def _window(factors: list[tuple[LossDistribution, int]]) -> tuple[int, int]:
    """The range of lattice indices that the sum leaves at either end with probability at most TAIL."""
    least = sum(factor.first * count for factor, count in factors)
    most = sum((factor.first + factor.weights.size - 1) * count for factor, count in factors)
    if most - least < 1 << 12:
        return least, most
    laws = []
    for factor, count in factors:
        keep = (
            factor.weights > 1e-36 * factor.weights.max()
        )  # the others, in a million copies, are far below TAIL (and slow: denormals)
        index = np.flatnonzero(keep).astype(np.float64)
        weights = factor.weights[keep] / factor.weights.sum()
        centre = float(index @ weights)
        spread = float(np.sqrt(((index - centre) ** 2) @ weights)) or 1.0
        laws.append((index - centre, np.log(weights), factor.first + centre, spread, count))
    total = np.sqrt(sum(count * spread**2 for *_, spread, count in laws))
    # Chernoff's bound is optimal at t = (distance in deviations)/deviation, about 9; any t is valid.
    t = np.geomspace(0.01, 30, 48) / total

    def log_moment(values: np.ndarray) -> np.ndarray:
        return np.array([sum(law[-1] * (_log_mean(law, v) + v * law[2]) for law in laws) for v in values])

    slack = -np.log(TAIL)
    high = np.min((log_moment(t) + slack) / t)
    low = np.max(-(log_moment(-t) + slack) / t)
    return max(least, int(np.floor(low))), min(most, int(np.ceil(high)))


def _log_mean(law, t: float) -> float:
    offsets, log_weights = law[0], law[1]
    exponents = t * offsets
    if max(-exponents[0], exponents[-1], -exponents[-1], exponents[0]) < 1:
        return float(np.log1p(np.exp(log_weights) @ np.expm1(exponents)))
    return float(special.logsumexp(exponents + log_weights))


def from_profile(profile: Callable[[np.ndarray], np.ndarray], step: float, top: float) -> LossDistribution:
    """Connect-the-dots of a symmetric pair given by its δ(ε), on the losses −top..top.

    The weight of (l, l + h] under P is split so that δ is exact on the lattice; beyond `top` it is infinite.
    """
    count = int(np.ceil(top / step))
    epsilon = np.arange(-count, count + 1) * step
    delta = np.minimum.accumulate(np.clip(profile(epsilon), 0.0, 1.0))
    slope = -np.diff(delta) / np.expm1(step)  # e^ε-slopes, in units of the left end
    upper = np.append(slope * np.exp(step), 0.0)
    weights = np.concatenate([[1 - delta[0]], upper[:-1]]) - np.append(slope, 0.0)
    weights, infinity = np.maximum(weights, 0.0), float(delta[-1])
    # What clipping the rounding noise has added is taken from the least losses: that can only raise the others' share.
    excess = max(0.0, float(weights.sum()) - (1 - infinity))
    weights -= np.diff(np.minimum(np.cumsum(weights), excess), prepend=0.0)
    return LossDistribution(step, -count, np.maximum(weights, 0.0), infinity)
