r"""Trade-off functions: the one object every guarantee of this library is.

A mechanism M is *f-DP* if no test that tells M(d) from a neighbour's M(d') at false-alarm rate alpha misses with a
probability below f(alpha). Everything else follows from f: the privacy profile ``delta(epsilon) = 1 + f*(-e^epsilon)``,
its inverse ``epsilon(delta)``, and Rényi divergences.

Rounding: numbers are computed in float64 and err on the private side, that is ``f`` is never above, and ``delta``,
``epsilon`` and ``renyi`` are never below their true values.

Sources: Dong, Roth, Su, "Gaussian differential privacy" (2019); seed papers A and B; accounting.md section 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np

from tfdpbc import _validate
from tfdpbc.accounting import _group, _roots, pld
from tfdpbc.accounting._answers import Answers
from tfdpbc.accounting._envelope import Envelope
from tfdpbc.accounting._gaussian import ULP, gaussian_delta, gaussian_epsilon_bound, gaussian_f, reflect
from tfdpbc.accounting._renyi_tail import RenyiTable, RenyiTail
from tfdpbc.accounting._roots import log_excess
from tfdpbc.accounting.pld import LossDistribution


class TradeOff(Answers):
    """A symmetric trade-off function f: [0, 1] → [0, 1] (convex, continuous, non-increasing, f(α) ≤ 1 − α).

    All methods accept a scalar (and return a float) or an array (and return an array of the same shape).
    Subclasses give `_f`, `_delta` on float64 arrays of one dimension, and `_renyi` on one order.
    """

    def compose(self, other: TradeOff) -> TradeOff:
        """f ⊗ g: both mechanisms run on the same data, the second one possibly chosen by the first's output."""
        _validate.instance("other", other, TradeOff, "a TradeOff")
        return self if other.mu == 0 else compose(self, other)

    def group(self, size: int) -> TradeOff:
        """What remains for groups of `size` examples: 1 − (1 − f)^{∘size} (Dong, Roth, Su, Theorem 2.14).

        The rule is general, hence linear in `size`. Where the sampling is known, count the group when the trade-off
        function is made (participation.py): that grows like √size.
        """
        size = _validate.integer("size", size, at_least=1)
        return self if size == 1 else Grouped(self, size)

    def _light(self) -> TradeOff:
        """This or a slightly worse one whose profile is quick to evaluate at a thousand ε."""
        return self

    def _profile(self, top: float) -> Callable[[np.ndarray], np.ndarray]:
        """δ, or a slightly worse one that is quick to evaluate at a hundred thousand ε in −top..top."""
        return self.delta


class Gaussian(TradeOff):
    """G_μ(α) = Φ(Φ⁻¹(1 − α) − μ): telling N(0, 1) from N(μ, 1).

    Args:
      mu: >= 0; 0 is perfect privacy, inf is none.
    """

    def __init__(self, mu: float):
        self._mu = _validate.number("mu", mu, at_least=0, finite=False)

    @property
    def mu(self) -> float:
        return self._mu

    def compose(self, other: TradeOff) -> TradeOff:
        """G_μ₁ ⊗ G_μ₂ = G_√(μ₁² + μ₂²); anything else composes by its own rule."""
        if isinstance(other, Gaussian):
            return Gaussian(float(np.hypot(self._mu, other._mu)))
        if self._mu == 0 and isinstance(other, TradeOff):
            return other
        if np.isinf(self._mu) and isinstance(other, TradeOff):
            return self
        if hasattr(other, "compose_gaussian"):
            return other.compose_gaussian(self._mu)
        return super().compose(other)

    def group(self, size: int) -> Gaussian:
        """G_{size·μ}."""
        return Gaussian(_validate.integer("size", size, at_least=1) * self._mu)

    def _f(self, alpha):
        return gaussian_f(alpha, self._mu)

    def _delta(self, epsilon):
        return gaussian_delta(epsilon, self._mu)

    def _epsilon(self, delta):
        return np.inf if np.isinf(self._mu) else super()._epsilon(delta)

    def _epsilon_bound(self, delta):
        return gaussian_epsilon_bound(delta, self._mu)

    def _renyi(self, order):
        return 0.0 if self._mu == 0 else order * self._mu**2 / 2 * (1 + 4 * ULP)

    def __eq__(self, other):
        return isinstance(other, Gaussian) and self._mu == other._mu

    def __hash__(self):
        return hash((Gaussian, self._mu))

    def __repr__(self):
        return f"Gaussian(mu={self._mu!r})"


class Grouped(TradeOff):
    """1 − (1 − f)^{∘size}, evaluated by bounds that are valid whatever f is, and tight for Gaussians (_group.py)."""

    def __init__(self, base: TradeOff, size: int):
        self._base = _validate.instance("base", base, TradeOff, "a TradeOff")
        self._size = _validate.integer("size", size, at_least=1)

    def group(self, size: int) -> TradeOff:
        return self._base.group(self._size * _validate.integer("size", size, at_least=1))

    @functools.cached_property
    def _one(self) -> TradeOff | Envelope:
        """f and δ of the base, quick enough to be asked for thousands of values."""
        if self._base.mu is not None:
            return self._base
        light = self._base._light()
        return Envelope.of(light.delta, _reach(light, (1e-300, *_DELTAS)), 1500)

    @functools.cached_property
    def _chains(self) -> Callable[[np.ndarray], np.ndarray]:
        if isinstance(self._one, Envelope):
            return _group.Chains(self._one, self._size)
        return functools.partial(_group.gaussian_chain, mu=self._base.mu, size=self._size)

    @functools.cached_property
    def _tail(self) -> RenyiTail:
        """Where ε is so large that e^ε δ of one member has no digits, Rényi divergences still give a bound."""
        table = RenyiTable(self._base._renyi)
        return RenyiTail(lambda order: _group.renyi(table, order, self._size), 0.5)

    def _f(self, alpha):
        return _group.f(self._one.f, alpha, self._size)

    def _delta(self, epsilon):
        size = np.abs(epsilon)
        return reflect(epsilon, np.minimum(self._chain(size), self._tail.delta(size)))

    def _chain(self, epsilon: np.ndarray) -> np.ndarray:
        # No chain ends at infinity: there δ is what f leaves at 0.
        bound = 1 - np.nextafter(self._f(np.zeros(epsilon.shape)), 0)
        finite = np.isfinite(epsilon)
        bound[finite] = _group.delta(self._one.delta, self._chains, epsilon[finite], self._size)
        return bound

    def _profile(self, top):
        return Envelope.of(self.delta, top, 2000).delta

    def _epsilon(self, delta):
        def excess(epsilon: float) -> float:
            return log_excess(float(self._chain(np.array([epsilon]))[0]), delta)

        high = self._tail.epsilon(delta)
        low = 0.0
        if excess(low) <= 0:
            return low
        top = high if np.isfinite(high) else 2 * self._size * max(1.0, self._base.epsilon(delta))
        return _roots.crossing(excess, low, top) if np.isfinite(top) and excess(top) <= 0 else high

    def _renyi(self, order):
        return _group.renyi(self._base.renyi, order, self._size)

    def __repr__(self):
        return f"{self._base!r}.group({self._size})"


class LossTradeOff(TradeOff):
    """The trade-off function of pairs given by loss distributions: one per direction (only one where they are equal).

    Args:
      directions: the loss distributions that have to be covered; δ(ε) is the largest of theirs.
      renyi: order ↦ a bound on the Rényi divergence, if it is known better than from the lattice, on which an infinite
        loss has some weight (so that no order is finite there, and no ε for a δ below it: _renyi_tail.py takes over).
    """

    def __init__(self, directions: list[LossDistribution], renyi: Callable[[float], float] | None = None):
        self.directions = list(directions)
        self._renyi_of = renyi
        self._lost = max(direction.infinity for direction in self.directions)

    def _delta(self, epsilon):
        size = np.abs(epsilon)
        largest = self._lattice_delta(size)
        # Where the lattice knows δ to a thousandth, it alone is asked: the profile stays monotone, δ(ε(δ)) <= δ.
        far = size >= self._known_to if self._renyi_of is not None else np.zeros(size.shape, bool)
        if far.any():
            largest[far] = np.minimum(largest[far], self._tail.delta(size[far]))
        return reflect(epsilon, largest)

    def _epsilon(self, delta):
        found = self._lattice_epsilon(delta)
        if self._renyi_of is None or delta >= 1e3 * self._lost:
            return found
        return min(found, max(self._known_to, self._tail.epsilon(delta)))

    @functools.cached_property
    def _known_to(self) -> float:
        return self._lattice_epsilon(min(1e3 * self._lost, 1.0))

    @functools.cached_property
    def _tail(self) -> RenyiTail:
        return RenyiTail(self._renyi, min(1e3 * self._lost, 0.5))

    def _lattice_delta(self, epsilon: np.ndarray) -> np.ndarray:
        return np.max([direction.delta(epsilon) for direction in self.directions], axis=0)

    def _lattice_epsilon(self, delta: float) -> float:
        if self._lost >= delta:
            return np.inf

        def excess(epsilon: float) -> float:
            return log_excess(float(self._lattice_delta(np.array([epsilon]))[0]), delta)

        # At the largest loss the profile is `infinity` alone.
        return _roots.crossing(excess, 0.0, self._largest) if excess(0.0) > 0 else 0.0

    @property
    def _largest(self) -> float:
        return max(0.0, *(float(direction.losses[-1]) for direction in self.directions))

    @functools.cached_property
    def _envelope(self) -> Envelope:
        return Envelope.of(self._lattice_delta, self._largest, 4000)

    def _f(self, alpha):
        return self._envelope.f(alpha)

    def _renyi(self, order):
        return np.inf if self._renyi_of is None else self._renyi_of(order)

    def __repr__(self):
        sizes = "+".join(str(direction.weights.size) for direction in self.directions)
        return f"LossTradeOff(step={self.directions[0].step:g}, size={sizes})"


def compose(first: TradeOff, second: TradeOff) -> LossTradeOff:
    """f ⊗ g for trade-off functions of any kind, direction by direction, on the coarser of their lattices."""
    if hasattr(second, "curves"):  # several guarantees at once (best.py): their least profile is not convex
        return second.compose(first)
    pair = (first, second)
    steps = [trade_off.directions[0].step for trade_off in pair if isinstance(trade_off, LossTradeOff)]
    reach = [None if isinstance(trade_off, LossTradeOff) else _reach(trade_off) for trade_off in pair]
    longest = max((r for r in reach if r is not None), default=0.0)
    step = max([*steps, longest / 500_000]) if steps else max(longest, 1e-9) / 20_000
    laws = []
    for trade_off, top in zip(pair, reach, strict=True):
        own = trade_off.directions if top is None else [pld.from_profile(trade_off._profile(top), step, top)]
        laws.append([law.on_lattice(step) for law in own])
    count = max(map(len, laws))
    mine, theirs = (own * count if len(own) == 1 else own for own in laws)
    directions = [a.compose(b) for a, b in zip(mine, theirs, strict=True)]
    return LossTradeOff(directions, lambda order: first.renyi(order) + second.renyi(order))


_DELTAS = (1e-15, 1e-13, 1e-11, 1e-9, 1e-6)


def _reach(trade_off: TradeOff, deltas: Sequence[float] = _DELTAS) -> float:
    """An ε beyond which the profile is (nearly) flat; what is left of it becomes an infinite loss."""
    for delta in deltas:
        epsilon = trade_off.epsilon(delta)
        if np.isfinite(epsilon):
            return max(epsilon, 1e-9)
    return 1.0
