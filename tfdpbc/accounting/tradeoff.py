r"""Trade-off functions: the one object every guarantee of this library is.

A mechanism M is *f-DP* if no test that tells M(d) from a neighbour's M(d') at false-alarm rate alpha misses with a
probability below f(alpha). Everything else follows from f: the privacy profile ``delta(epsilon) = 1 + f*(-e^epsilon)``,
its inverse ``epsilon(delta)``, and Rényi divergences.

Rounding: numbers are computed in float64 and err on the private side, that is ``f`` is never above, and ``delta``,
``epsilon`` and ``renyi`` are never below their true values.

Sources: Dong, Roth, Su, "Gaussian differential privacy" (2019); seed papers A and B; accounting.md section 1.
"""

from __future__ import annotations

import abc
from collections.abc import Callable

import numpy as np
from scipy import special

from tfdpbc import _validate
from tfdpbc.accounting import _roots, pld
from tfdpbc.accounting._gaussian import ULP, gaussian_delta, gaussian_epsilon_bound, gaussian_f, reflect
from tfdpbc.accounting.pld import LossDistribution


class TradeOff(abc.ABC):
    """A symmetric trade-off function f: [0, 1] → [0, 1] (convex, continuous, non-increasing, f(α) ≤ 1 − α).

    All methods accept a scalar (and return a float) or an array (and return an array of the same shape).
    Subclasses give `_f`, `_delta` on float64 arrays of one dimension, and `_renyi` on one order.
    """

    @property
    def mu(self) -> float | None:
        """μ if this is exactly the Gaussian trade-off function G_μ, else None."""
        return None

    def f(self, alpha):
        """The least type II error of any test with type I error `alpha` (in [0, 1])."""
        return _elementwise("alpha", alpha, self._f, lambda a: (a >= 0) & (a <= 1), "numbers in [0, 1]")

    def __call__(self, alpha):
        return self.f(alpha)

    def delta(self, epsilon):
        """The privacy profile: the smallest δ with which the mechanism is (`epsilon`, δ)-DP; any real `epsilon`."""
        return _elementwise("epsilon", epsilon, self._delta, lambda e: ~np.isnan(e), "real numbers")

    def epsilon(self, delta):
        """The smallest ε >= 0 for which the mechanism is (ε, `delta`)-DP; inf if there is none. `delta` in (0, 1)."""
        return _elementwise(
            "delta",
            delta,
            lambda values: np.array([self._epsilon(float(value)) for value in values]),
            lambda d: (d > 0) & (d < 1),
            "numbers > 0 and < 1",
        )

    def renyi(self, order):
        """A bound on the Rényi divergence of `order` > 1 (order 1 is refused) in either direction, in nats."""
        return _elementwise(
            "order",
            order,
            lambda values: np.array([self._renyi(float(value)) for value in values]),
            lambda w: w > 1,
            "numbers > 1",
        )

    def compose(self, other: TradeOff) -> TradeOff:
        """f ⊗ g: both mechanisms run on the same data, the second one possibly chosen by the first's output."""
        _validate.instance("other", other, TradeOff, "a TradeOff")
        return compose(self, other)

    def group(self, size: int) -> TradeOff:
        """What remains for groups of `size` examples: 1 − (1 − f)^{∘size} (Dong, Roth, Su, Theorem 2.14).

        The rule is general, hence linear in `size`. Where the sampling is known, count the group when the trade-off
        function is made (participation.py): that grows like √size.
        """
        size = _validate.integer("size", size, at_least=1)
        return self if size == 1 else Grouped(self, size)

    def isclose(self, other: TradeOff, tolerance: float = 1e-9) -> bool:
        """Whether the two functions agree to `tolerance` (absolute) over a grid of α that is dense near 0 and 1."""
        small = np.logspace(-9, np.log10(0.5), 60)
        alpha = np.concatenate([[0.0], small, 1 - small, [1.0]])
        return bool(np.max(np.abs(self.f(alpha) - other.f(alpha))) <= tolerance)

    @abc.abstractmethod
    def _f(self, alpha: np.ndarray) -> np.ndarray: ...

    @abc.abstractmethod
    def _delta(self, epsilon: np.ndarray) -> np.ndarray: ...

    @abc.abstractmethod
    def _renyi(self, order: float) -> float: ...

    def _epsilon(self, delta: float) -> float:
        def excess(epsilon: float) -> float:
            return log_excess(float(self._delta(np.array([epsilon]))[0]), delta)

        if excess(0.0) <= 0:
            return 0.0
        high = self._epsilon_bound(delta)
        while excess(high) > 0:
            high *= 2.0
            if high > 1e300:
                return np.inf
        # The point returned satisfies delta(epsilon) <= delta for the rounded-up profile, hence for the true one.
        return _roots.crossing(excess, 0.0, high)

    def _epsilon_bound(self, delta: float) -> float:
        """Some positive ε, the better the closer above epsilon(delta): where the search for it starts."""
        return 1.0


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
    """1 − (1 − f)^{∘size}, evaluated by bounds that are valid whatever f is, and tight for Gaussians.

    With F = 1 − f, each (ε_i, δ(ε_i)) gives a line above F, and a chain of `size` such lines with Σ ε_i = ε bounds
    δ_group(ε) <= Σ_i δ(ε_i) exp(Σ_{j>i} ε_j). The ε_i are taken in arithmetic progression (the optimum for Gaussians)
    and their step is optimised.
    """

    def __init__(self, base: TradeOff, size: int):
        self._base = _validate.instance("base", base, TradeOff, "a TradeOff")
        self._size = _validate.integer("size", size, at_least=1)

    def group(self, size: int) -> TradeOff:
        return self._base.group(self._size * _validate.integer("size", size, at_least=1))

    def _f(self, alpha):
        for _ in range(self._size - 1):
            alpha = np.nextafter(1 - self._base.f(alpha), 2.0).clip(0, 1)
        return self._base.f(alpha)

    def _delta(self, epsilon):
        return reflect(epsilon, np.array([self._delta_at(float(value)) for value in np.abs(epsilon)]))

    def _delta_at(self, epsilon: float) -> float:
        total = float(self._base.delta(0.0))
        if total == 0 or np.isinf(epsilon):
            return total if total == 0 else float(self._base.delta(np.inf)) * self._size
        step = (2 * float(special.ndtri(min((1 + total) / 2, 1 - ULP)))) ** 2
        scale = minimise(lambda s: self._log_bound(epsilon, step * np.exp(s)), -4.0, 4.0)
        return float(min(1.0, np.exp(self._log_bound(epsilon, step * np.exp(scale))) * (1 + 8 * ULP * self._size)))

    def _log_bound(self, epsilon: float, step: float) -> float:
        parts = epsilon / self._size + step * ((self._size - 1) / 2 - np.arange(self._size))
        later = np.concatenate([np.cumsum(parts[:0:-1])[::-1], [0.0]])
        with np.errstate(divide="ignore"):
            return float(special.logsumexp(np.log(self._base.delta(parts)) + later))

    def _renyi(self, order):
        # Mironov (2017), Proposition 11, once per member; the exponent p is the one that is optimal for Gaussians.
        total = 0.0
        for left in range(self._size - 1, 0, -1):
            p = 1 + left * (order - 1) / order
            total += (order - 1 / p) / (order - 1) * self._base.renyi(p * order)
            order = p / (p - 1) * (order - 1 / p)
        return total + self._base.renyi(order)

    def __repr__(self):
        return f"{self._base!r}.group({self._size})"


class LossTradeOff(TradeOff):
    """The trade-off function of pairs given by loss distributions: one per direction (only one where they are equal).

    Args:
      directions: the loss distributions that have to be covered; δ(ε) is the largest of theirs.
      renyi: order ↦ a bound on the Rényi divergence, if it is known better than from the lattice, on which an infinite
        loss has some weight, so that no order is finite there.
    """

    def __init__(self, directions: list[LossDistribution], renyi: Callable[[float], float] | None = None):
        self.directions = list(directions)
        self._renyi_of = renyi
        self._lines: tuple[np.ndarray, np.ndarray] | None = None

    def _delta(self, epsilon):
        size = np.abs(epsilon)
        largest = np.max([direction.delta(size) for direction in self.directions], axis=0)
        return reflect(epsilon, largest)

    def _epsilon(self, delta):
        if max(direction.infinity for direction in self.directions) >= delta:
            return np.inf
        # At the largest loss the profile is `infinity` alone. Two passes over a whole grid of ε, then the root between.
        low, high = 0.0, max(0.0, *(float(direction.losses[-1]) for direction in self.directions))
        for _ in range(2):
            grid = np.linspace(low, high, 256)
            kept = self._delta(grid) <= delta
            if kept[0]:
                return float(low)
            low, high = grid[int(np.argmax(kept)) - 1 :][:2]

        def excess(epsilon: float) -> float:
            return log_excess(float(self._delta(np.array([epsilon]))[0]), delta)

        return _roots.crossing(excess, float(low), float(high))

    def _f(self, alpha):
        # Each (ε, δ(ε)) is a pair of lines below f; the best of a few thousand is a lower bound on f.
        if self._lines is None:
            top = max(float(direction.losses[-1]) for direction in self.directions)
            near, far = np.geomspace(max(top, 1e-6) * 1e-7, max(top, 1e-6), 1500), np.linspace(0, top, 1500)
            epsilon = np.unique(np.maximum(np.concatenate([near, far]), 0.0))
            self._lines = epsilon, self._delta(epsilon)
        epsilon, delta = self._lines
        with np.errstate(over="ignore", invalid="ignore"):
            steep = 1 - delta - np.where(alpha[:, None] > 0, np.exp(epsilon) * alpha[:, None], 0.0)
        flat = np.exp(-epsilon) * (1 - delta - alpha[:, None])
        return np.clip(np.maximum(steep, flat).max(axis=1) - 4 * ULP, 0.0, np.maximum(1 - alpha, 0.0))

    def _renyi(self, order):
        return np.inf if self._renyi_of is None else self._renyi_of(order)

    def __repr__(self):
        sizes = "+".join(str(direction.weights.size) for direction in self.directions)
        return f"LossTradeOff(step={self.directions[0].step:g}, size={sizes})"


def compose(first: TradeOff, second: TradeOff) -> LossTradeOff:
    """f ⊗ g for trade-off functions of any kind, direction by direction, on the coarser of their lattices."""
    pair = (first, second)
    steps = [trade_off.directions[0].step for trade_off in pair if isinstance(trade_off, LossTradeOff)]
    reach = [None if isinstance(trade_off, LossTradeOff) else _reach(trade_off) for trade_off in pair]
    longest = max((r for r in reach if r is not None), default=0.0)
    step = max([*steps, longest / 500_000]) if steps else max(longest, 1e-9) / 20_000
    laws = []
    for trade_off, top in zip(pair, reach, strict=True):
        own = trade_off.directions if top is None else [pld.from_profile(trade_off.delta, step, top)]
        laws.append([law.on_lattice(step) for law in own])
    count = max(map(len, laws))
    mine, theirs = (own * count if len(own) == 1 else own for own in laws)
    directions = [a.compose(b) for a, b in zip(mine, theirs, strict=True)]
    return LossTradeOff(directions, lambda order: first.renyi(order) + second.renyi(order))


def _reach(trade_off: TradeOff) -> float:
    """An ε beyond which the profile is (nearly) flat; what is left of it becomes an infinite loss."""
    for delta in (1e-15, 1e-13, 1e-11, 1e-9, 1e-6):
        epsilon = trade_off.epsilon(delta)
        if np.isfinite(epsilon):
            return max(epsilon, 1e-9)
    return 1.0


def log_excess(value: float, delta: float) -> float:
    """log(value/delta), positive exactly where value > delta: a difference of logarithms may round to the wrong side."""
    if value <= 0:
        return -np.inf
    ratio = float(np.log(value) - np.log(delta))
    return max(ratio, ULP) if value > delta else min(ratio, 0.0)


def minimise(function: Callable[[float], float], low: float, high: float, steps: int = 40) -> float:
    """Golden-section search for the minimum of a unimodal function of one variable (any answer is a valid bound)."""
    golden = (np.sqrt(5) - 1) / 2
    a, b = low, high
    x, y = b - golden * (b - a), a + golden * (b - a)
    fx, fy = function(x), function(y)
    for _ in range(steps):
        if fx <= fy:
            b, y, fy = y, x, fx
            x = b - golden * (b - a)
            fx = function(x)
        else:
            a, x, fx = x, y, fy
            y = a + golden * (b - a)
            fy = function(y)
    return x if fx <= fy else y


def _elementwise(name: str, values, function, allowed, expected: str):
    """Applies `function` to a flat float64 array made of `values`; the shape comes back, a scalar as a float."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        _validate.fail(name, expected, values, TypeError)
    if isinstance(values, bool) or np.any(np.isnan(array)) or not np.all(allowed(array)):
        _validate.fail(name, expected, values)
    result = np.asarray(function(array.reshape(-1)), np.float64).reshape(array.shape)
    return float(result) if array.ndim == 0 else result
