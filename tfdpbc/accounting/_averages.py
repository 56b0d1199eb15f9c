r"""The law of the average of T independent log-normals of mean 1, from above and from below in the convex order.

For a pair (P, Q) the likelihood ratio X = dP/dQ under Q says everything (E X = 1): δ of P against Q is E(X − e^ε)₊, of
Q against P it is E(1 − e^ε X)₊, both means of convex functions. So for X = (W_1 + … + W_T)/T:

- `Spread`: wherever a value falls between two points of a grid it is split between them so that its mean is kept. The
  result is above X in the convex order, hence so are its averages: a pair that dominates (P, Q), also under composition
  (this is "connect the dots" of Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, 2022).
- `Lumped`: values are merged, their mean taking their place. The result is E[X | what was merged], below X in the
  convex order: a pair that (P, Q) dominates, being a post-processing of it.

Both lose only to second order in the width of the grid, and T log-normals are averaged by halving T, each time on a
grid as fine as what has mass allows. On a grid of logarithms, log((e^{ih} + e^{jh})/2) − ih depends on i − j alone: all
pairs of one difference are one product of shifted arrays. Everything added is >= 0, so every weight has a small
*relative* error, of which `error` is a bound (worst case: one ULP per addition, no cancellation of rounding assumed).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TypeVar

import numpy as np
from scipy import special

from tfdpbc.accounting._gaussian import ULP

TAIL = 1e-20  # weight that each average may lose at either end
POINTS = 1800  # of a grid
_REACH = 9.5  # standard deviations of one log-normal's logarithm; beyond: 1e-21
_FAR = 42.0  # e^−42 < ULP²: what a term that much smaller adds is left to the shift
_NODES, _WEIGHTS = special.roots_legendre(6)


@dataclasses.dataclass(frozen=True, eq=False)
class Spread:
    """A law above that of the average in the convex order, but for `error` and `shift`.

    Attributes:
      size: how many log-normals are averaged.
      step: h; the points are e^{(first + i) h}.
      first: index of the first point.
      weights: shape [n], under Q.
      zero: weight under Q of the value 0.
      lost: weight under P of the value infinity.
      error: bound on the relative error of each weight.
      shift: bound on the relative error of each value.
    """

    size: int
    step: float
    first: int
    weights: np.ndarray
    zero: float
    lost: float
    error: float
    shift: float

    @classmethod
    def log_normal(cls, mu: float) -> Spread:
        """e^N with N ~ N(−μ²/2, μ²): what falls into a cell is split between its ends."""
        step, first, q, _, ends, error = _cells(mu, 0.0)
        above = np.expm1(step * (1 + _NODES) / 2) / np.expm1(step)
        up = q @ above
        weights = np.append(q @ (1 - above), 0.0) + np.append(0.0, up)
        return cls(1, step, first, weights, float(ends[0].sum()), float(ends[1].sum()), error, 4 * ULP * step)

    def average(self, other: Spread, refine: int) -> Spread:
        """The average of as many log-normals as both have, on a grid `refine` times as fine."""
        a, b = self.size, other.size
        step = self.step / refine
        first, out = _room(self, other, refine)
        twice = 2.0 if other is self else 1.0
        terms, largest, zero = 2, 0.0, self.zero * other.zero
        for x, y, own, start in _halves(self, other):
            far, offset = _offsets(x, y, own)
            below = np.floor(offset / step)
            above = np.clip(np.expm1(offset - below * step) / np.expm1(step), 0.0, 1.0)
            largest = max(largest, -offset[-1])
            for d, mine, theirs in _differences(x, y, start, far):
                term = x.weights[mine] * y.weights[theirs] * (twice if d else 1.0)
                at = (x.first + mine.start) * refine + int(below[d]) - first
                _add(out, at, refine, term, 1 - above[d], above[d])
                terms += 2
            # y's point is 0 or as good as 0. Where that leaves less than the first point: between 0 and that.
            alone = x.weights * (_up_to(y, y.weights, x, far) + y.zero) * twice
            at = x.first * refine + int(below[-1]) - first
            under = min(max(0, -(at // refine)), alone.size)
            if under < alone.size:
                _add(out, at + under * refine, refine, alone[under:], 1 - above[-1], above[-1])
            ratio = np.exp((at + refine * np.arange(under)) * step) * (1 + above[-1] * np.expm1(step))
            out[0] += alone[:under] @ ratio
            zero += float(alone[:under] @ (1 - ratio)) * (1 + 1e-9)
            terms += y.weights.size + under + 4
        error = self.error + other.error + (terms + 8) * ULP
        shift = max(self.shift, other.shift) + 16 * ULP * (largest + step)
        lost = (a * self.lost + b * other.lost) / (a + b)
        law = Spread(a + b, step, first, out, zero, lost, error, shift)
        # A zero in one half leaves about half the mean: none of these few should hold the grid up.
        return law._trimmed(TAIL + 3 * (self.zero + other.zero))

    def _trimmed(self, below: float) -> Spread:
        """Without the ends that have hardly any weight: spread between 0 and the first point kept, 0 and infinity."""
        p = self.weights * self.values
        keep = _kept(self.weights, p, below)
        weights = self.weights[keep].copy()
        up = float(self.weights[: keep.start] @ np.exp(np.arange(-keep.start, 0) * self.step))
        weights[0] += up
        gone = float(self.weights[: keep.start].sum() - up + self.weights[keep.stop :].sum())
        lost = self.lost + float(p[keep.stop :].sum())
        zero = self.zero + max(gone, 0.0) * (1 + 1e-9)
        return dataclasses.replace(self, first=self.first + keep.start, weights=weights, zero=zero, lost=lost)

    @property
    def values(self) -> np.ndarray:
        """The points, shape [n]."""
        return np.exp((self.first + np.arange(self.weights.size)) * self.step)

    def coarse(self, factor: int) -> Spread:
        """Roughly the same on a coarser grid: to find out where an average has mass, no bound."""
        first = self.first // factor
        padded = np.append(np.zeros(self.first - first * factor), self.weights)
        weights = np.add.reduceat(padded, np.arange(0, padded.size, factor))
        return dataclasses.replace(self, step=self.step * factor, first=first, weights=weights)


@dataclasses.dataclass(frozen=True, eq=False)
class Lumped:
    """A law below that of the average in the convex order, but for `error`.

    Attributes:
      size, step, first: as in `Spread`; the lumps lie near the points.
      weights: shape [n], under Q.
      moments: shape [n], weights under P; moments/weights are the values.
      error: bound on the relative error of each weight and moment.
    """

    size: int
    step: float
    first: int
    weights: np.ndarray
    moments: np.ndarray
    error: float

    @classmethod
    def log_normal(cls, mu: float) -> Lumped:
        """e^N with N ~ N(−μ²/2, μ²), each cell in one lump and the tails with the outermost ones."""
        step, first, q, p, ends, error = _cells(mu, 0.5)
        weights, moments = q.sum(axis=1), p.sum(axis=1)
        for law, tails in ((weights, ends[0]), (moments, ends[1])):
            law[0] += tails[0]
            law[-1] += tails[1]
        return cls(1, step, first, weights, moments, error)

    def average(self, other: Lumped, refine: int) -> Lumped:
        """The average of as many log-normals as both have, on a grid `refine` times as fine."""
        a, b = self.size, other.size
        step = self.step / refine
        first, q = _room(self, other, refine)
        p, terms = np.zeros_like(q), 0
        twice = 2.0 if other is self else 1.0
        for x, y, own, start in _halves(self, other):
            far, offset = _offsets(x, y, own)
            nearest = np.rint(offset / step)
            scaled, rest = own * x.moments, (1 - own) * x.weights

            def add(at, count, weights, moments):
                span = slice(at, at + (count - 1) * refine + 1, refine)
                q[span] += weights
                p[span] += moments

            for d, mine, theirs in _differences(x, y, start, far):
                times = twice if d else 1.0
                weights = times * (x.weights[mine] * y.weights[theirs])
                moments = times * (scaled[mine] * y.weights[theirs] + rest[mine] * y.moments[theirs])
                add((x.first + mine.start) * refine + int(nearest[d]) - first, weights.size, weights, moments)
                terms += 1
            skip = max(0, y.first + far - x.first)  # points of x that have none of y so far below
            if skip < x.weights.size:
                weights, moments = (twice * _up_to(y, law, x, far)[skip:] for law in (y.weights, y.moments))
                at = (x.first + skip) * refine + int(nearest[-1]) - first
                both = scaled[skip:] * weights + rest[skip:] * moments
                add(at, weights.size, x.weights[skip:] * weights, both)
                terms += y.weights.size
        law = Lumped(a + b, step, first, q, p, self.error + other.error + (terms + 8) * ULP)
        return law._trimmed()

    def _trimmed(self) -> Lumped:
        """With the ends that have hardly any weight in one lump each."""
        keep = _kept(self.weights, self.moments)
        laws = []
        for law in (self.weights, self.moments):
            kept = law[keep].copy()
            kept[0] += law[: keep.start].sum()
            kept[-1] += law[keep.stop :].sum()
            laws.append(kept)
        return dataclasses.replace(self, first=self.first + keep.start, weights=laws[0], moments=laws[1])


Law = TypeVar("Law", Spread, Lumped)


def average(kind: type[Law], mu: float, count: int) -> Law:
    """The average of `count` log-normals e^N, N ~ N(−μ²/2, μ²), as a `Spread` or a `Lumped`; 0 < μ <= 26."""
    levels = [{count}]
    while min(levels[-1]) > 1:
        levels.append({half for size in levels[-1] for half in (size // 2, -(-size // 2))})
    rough = Spread.log_normal(mu).coarse(8)
    one = kind.log_normal(mu)
    laws, sketches = {1: one}, {1: rough}
    if 2 in levels[-1]:
        laws[2], sketches[2] = one.average(one, 1), rough.average(rough, 1)
    for sizes in levels[-2::-1]:
        halves = [(size, size // 2, -(-size // 2)) for size in sorted(sizes)]
        step = next(iter(laws.values())).step
        wide, factor = {}, 1
        for size, a, b in halves:
            wide[size] = sketches[a].average(sketches[b], 1)
            points = max(1, wide[size].weights.size - 1) * sketches[a].step / step
            fits = max(1, int(_points(mu, size, count, step) / points))
            factor = fits if len(wide) == 1 else min(factor, fits)
        laws = {size: laws[a].average(laws[b], factor) for size, a, b in halves}
        # The sketches keep a grid of their own, eight times as coarse as that of the laws.
        sketches = {size: sketches[a].average(sketches[b], factor) for size, a, b in halves}
    return laws[count]


def _points(mu: float, size: int, count: int, step: float) -> int:
    """How many points the average of `size` is worth: more where a long tail leaves few of them to the bulk.

    What a level adds to the variance is divided by the number of averages to come, so only the last levels matter.
    """
    deviation = np.sqrt(np.expm1(min(mu**2, 700.0)) / size)
    if step < deviation / 4:
        return POINTS
    return POINTS * (4 if 4 * size >= count else 2 if 64 * size >= count else 1)


def _cells(mu: float, offset: float):
    """(step, first, q, p, ends, error): a log-normal cut into cells [(i − offset) h, (i + 1 − offset) h) of its log.

    q and p, shape [n, 6], are quadrature masses under Q and P at the nodes of each cell; ends, shape [2, 2], the
    masses (Q, P) of the (lower, upper) tail.
    """
    low, high = -mu * (mu / 2 + _REACH), mu * (mu / 2 + _REACH)
    step = (high - low) / POINTS
    first, last = int(np.floor(low / step)), int(np.ceil(high / step))
    edges = (np.arange(first, last + 1) - offset) * step / mu
    z = edges[:-1, None] + (1 + _NODES) / 2 * (step / mu)  # (log value)/μ
    scale = _WEIGHTS / 2 * (step / mu) / np.sqrt(2 * np.pi)
    q, p = (np.exp(-((z + sign * mu / 2) ** 2) / 2) * scale for sign in (1, -1))
    tails = [[special.ndtr(edges[0] + s * mu / 2), special.ndtr(-edges[-1] - s * mu / 2)] for s in (1, -1)]
    return step, first, q, p, np.array(tails), (64 + 2 * (mu + _REACH) ** 2) * ULP


def _halves(x, y) -> list:
    """(greater, lesser, the share of the greater in the average, least difference of indices) for both orders."""
    own = x.size / (x.size + y.size)
    return [(x, y, own, 0)] if x is y else [(x, y, own, 0), (y, x, 1 - own, 1)]


def _room(x, y, refine: int) -> tuple[int, np.ndarray]:
    """(first index, zeros) for the averages of a point of `x` and one of `y`."""
    first = min(x.first, y.first) * refine - 1
    last = max(x.first + x.weights.size, y.first + y.weights.size) * refine
    return first, np.zeros(last - first + 1)


def _offsets(x, y, own: float) -> tuple[int, np.ndarray]:
    """(far, log(average of points d indices apart / the greater one) for d < far, and last that for a lesser of 0)."""
    far = max(1, int(np.ceil(_FAR / x.step)))
    count = max(1, min(far, x.first + x.weights.size - y.first))
    offset = np.log1p((1 - own) * np.expm1(-x.step * np.arange(count + 1)))
    offset[-1] = np.log(own)
    return far, offset


def _differences(x, y, start: int, far: int) -> Iterator[tuple[int, slice, slice]]:
    """(d, positions in x, positions in y) of the points with index difference d = start, start + 1, … below `far`."""
    for d in range(start, min(far, x.first + x.weights.size - y.first)):
        low, high = max(x.first, y.first + d), min(x.first + x.weights.size, y.first + y.weights.size + d)
        if low < high:
            yield d, slice(low - x.first, high - x.first), slice(low - d - y.first, high - d - y.first)


def _up_to(y, law: np.ndarray, x, far: int) -> np.ndarray:
    """For each point i of `x` the sum of `law` over the points j <= i − far of `y`."""
    total = np.append(0.0, np.cumsum(law))
    return total[np.clip(x.first + np.arange(x.weights.size) - far - y.first + 1, 0, law.size)]


def _add(out: np.ndarray, at: int, stride: int, term: np.ndarray, low: float, high: float) -> None:
    stop = at + (term.size - 1) * stride + 1
    out[at:stop:stride] += low * term
    out[at + 1 : stop + 1 : stride] += high * term


def _kept(q: np.ndarray, p: np.ndarray, below: float = TAIL) -> slice:
    """The points to keep: less than them is at most `below` under Q, more than them at most TAIL under P."""
    low = int(np.searchsorted(np.cumsum(q), below, side="right"))
    high = q.size - int(np.searchsorted(np.cumsum(p[::-1]), TAIL, side="right"))
    return slice(low, high)
