r"""One Poisson-sampled round on a lattice of privacy losses, by connect-the-dots, with every cell relatively accurate.

The pair is P = Σ_k p_k N(k/σ, 1) against Q = N(0, 1) (noise of unit variance); its loss L(x) = log dP/dQ increases in
x.
Each cell (l − h, l] of the lattice is spread over its two ends so that its mass under P and under Q is kept: the
pessimistic connect-the-dots of Doroshenko, Ghazi, Kamath, Kumar, Manurangsi (2022). dp-accounting gets the same weights
from second differences of δ(ε), whose rounding noise of 1e-16/h per cell a million rounds turn into a mass of 1e-6, and
takes a minute for groups; here the masses are integrals of positive functions over each cell.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np
from scipy import special

_NODES, _WEIGHTS = special.roots_legendre(6)
_GROWTH = 128  # a cell is at most that part of its loss wide: inflates the variance by less than 1e-4
_PANEL = 0.1  # widest interval of x that one quadrature rule covers
_BLOCK = 1 << 20  # elements of a table held at a time
_RANGE = 1 << 16  # longest range of x that a moment is integrated over


@dataclasses.dataclass(frozen=True, eq=False)
class Round:
    """Lattice weights of one round.

    Attributes:
      step: h, the width of the lattice.
      index: increasing lattice indices, shape [n].
      remove: shape [n], weights under P of the losses log dP/dQ = index·step; infinite losses are apart.
      add: shape [n], weights under Q of the losses log dQ/dP = −index·step.
      lost: probability beyond the integration range, to be counted as an infinite loss, in each direction.
    """

    step: float
    index: np.ndarray
    remove: np.ndarray
    add: np.ndarray
    lost: float


class Pair:
    """P = Σ_k e^{log_weights[k]} N(k/noise_multiplier, 1) against Q = N(0, 1), out to where less than `tail` is left."""

    def __init__(self, log_weights: np.ndarray, noise_multiplier: float, tail: float):
        keep = log_weights > -np.inf
        self.shift = np.flatnonzero(keep) / noise_multiplier
        self.log_weight = log_weights[keep]
        self.noise_multiplier = noise_multiplier
        self.low = float(special.ndtri(tail))
        self._tail = tail

    @functools.cached_property
    def high(self) -> float:
        """An x that P exceeds with probability at most `tail`."""
        weight = np.exp(self.log_weight)
        low, high = 0.0, self.shift[-1] - self.low
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (low, middle) if weight @ special.ndtr(self.shift - middle) <= self._tail else (middle, high)
        return high

    def loss(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """L(x) and dL/dx, in blocks."""
        value, slope = np.empty_like(x), np.empty_like(x)
        block = max(1, _BLOCK // self.shift.size)
        for start in range(0, x.size, block):
            here = slice(start, start + block)
            terms = self.log_weight + self.shift * (x[here, None] - self.shift / 2)
            top = terms.max(axis=1)
            parts = np.exp(terms - top[:, None])
            total = parts.sum(axis=1)
            value[here], slope[here] = top + np.log(total), (parts @ self.shift) / total
        if self.shift[0] == 0 and self.log_weight[0] > -0.5:
            value = self._near_zero(x, value)
        return value, slope

    def _near_zero(self, x: np.ndarray, value: np.ndarray) -> np.ndarray:
        """L = log(1 + Σ_k p_k (e^{...} − 1)) where that is small: a round that hardly ever touches the group."""
        small = np.abs(value) < 0.1
        weight, shift = np.exp(self.log_weight[1:]), self.shift[1:]
        where = np.flatnonzero(small)
        block = max(1, _BLOCK // max(1, shift.size))
        for start in range(0, where.size, block):
            here = where[start : start + block]
            value[here] = np.log1p(np.expm1(shift * (x[here, None] - shift / 2)) @ weight)
        return value

    def panels(self) -> np.ndarray:
        """Ends of intervals of x that a quadrature rule covers, fine wherever P or Q has any mass."""
        reach = -self.low
        count = int(2 * reach / _PANEL) + 2
        around = [np.linspace(centre - reach, centre + reach, count) for centre in np.append(self.shift, 0.0)]
        if self.high - self.low < count * _PANEL * len(around):
            around = [np.linspace(self.low, self.high, int((self.high - self.low) / _PANEL) + 2)]
        return np.unique(np.clip(np.concatenate([*around, [self.low, self.high]]), self.low, self.high))

    def deviation(self) -> float:
        """The standard deviation of the loss under P."""
        mean, square = 0.0, 0.0
        for x, width in _panels(self.panels()):
            value = self.loss(x.ravel())[0].reshape(x.shape)
            mass = _density(x, value) * (_WEIGHTS / 2) * width[:, None]
            mean += float((mass * value).sum())
            square += float((mass * value**2).sum())
        return float(np.sqrt(max(square - mean * mean, 0.0)))

    def log_moment(self, power: float) -> float:
        """log E_Q[(dP/dQ)^power] for power > 1 or < 0, where it is positive; inf if the range is too long to integrate.

        Integrates (1+y)^power − 1 − power·y >= 0 with y = dP/dQ − 1, whose last term has mean 0: so a tiny moment
        keeps its digits. The integrand has its mass where x is near power·k/σ; panels where it has none are left out.
        """
        top = 12 + max(power, 0.0) * self.shift[-1]
        bottom = -12 - max(-power, 0.0) * float(self.loss(np.zeros(1))[1][0])
        width = min(0.5, 0.25 / max(self.shift[-1], self.shift[-1] - self.shift[0], 0.5) * max(self.shift.size - 1, 1))
        found = self._alive(power, bottom, top, width)
        if found is None:
            return np.inf
        nodes, weight = found
        loss = self.loss(nodes.ravel())[0].reshape(nodes.shape)
        peak = float(np.max(power * loss - nodes**2 / 2))
        if peak > 300:
            return float(peak + np.log((weight * np.exp(power * loss - nodes**2 / 2 - peak)).sum()))
        near = np.abs(power * loss) < 1
        y = np.expm1(np.minimum(loss, 700.0))
        small = np.expm1(np.where(near, power * loss, 0.0)) - power * y
        with np.errstate(over="ignore"):
            large = np.exp(power * loss - nodes**2 / 2) - np.exp(-(nodes**2) / 2) * (1 + power * y)
        return float(np.log1p((weight * np.where(near, np.exp(-(nodes**2) / 2) * small, large)).sum()))

    def log_gain_moment(self, power: float) -> float:
        """log E[e^{(power − 1) L}], L the loss of the symmetrised pair of :func:`discretise` with `gains_only`; power > 1.

        Outcomes with L > 0 have density φe^L, their mirror images φ, the rest has loss 0. Hence the moment less 1 is
        ∫ φ (e^{power·L} − 1) (1 − e^{−(power−1) L}) over L > 0: no term is negative, so a tiny one keeps its digits. Beyond
        the range the integrand falls faster than e^{−12 x}, as L' <= shift; that bound on the rest is added. inf if
        the range is too long to integrate.
        """
        shift = float(self.shift[-1])
        low, high = shift / 2, power * shift + 12  # L > 0 where x > shift/2
        width = min(0.25, 0.125 / shift)
        found = self._alive(power, low, high, width)
        if found is None:
            return np.inf
        nodes, weight = found
        last = float(power * self.loss(np.array([high]))[0][0] - high**2 / 2)
        loss = np.maximum(self.loss(nodes.ravel())[0].reshape(nodes.shape), 0.0)
        rise = power * loss
        with np.errstate(divide="ignore"):
            log_rise = np.where(rise < 1, np.log(np.expm1(np.minimum(rise, 1.0))), rise + np.log1p(-np.exp(-rise)))
            terms = log_rise + np.log(-np.expm1(-(power - 1) * loss)) - nodes**2 / 2
        total = np.logaddexp(special.logsumexp(terms, b=weight), last - np.log(12 * np.sqrt(2 * np.pi)))
        return float(np.logaddexp(0.0, total) if total > -30 else np.exp(total))

    def _alive(self, power: float, bottom: float, top: float, width: float) -> tuple[np.ndarray, np.ndarray] | None:
        """Quadrature nodes and weights (dx/√2π) of the panels in bottom..top, `width` wide, that matter for the integral of
        φ or of φ e^{power·L}; what is left out is e^{−80} of the peak. None if they are too many.

        The height h = power·L − x²/2 is scanned coarsely: for power > 0 (L is convex) h'' >= −1, so over a gap it
        rises by at most gap²/8 above its ends; for power < 0 it is concave and stays below its tangents.
        """
        if top - bottom > _RANGE:
            return None
        ends = np.linspace(bottom, top, int(top - bottom) + 2)
        value, slope = self.loss(ends)
        gap = ends[1] - ends[0]
        height, plain = power * value - ends**2 / 2, -(ends**2) / 2
        above = np.maximum(height[:-1], height[1:]) + gap**2 / 8
        if power < 0:
            tilt = power * slope - ends
            left, right = height[:-1] + np.maximum(tilt[:-1], 0) * gap, height[1:] + np.maximum(-tilt[1:], 0) * gap
            above = np.minimum(left, right)
        above = np.maximum(above, np.maximum(plain[:-1], plain[1:]) + gap**2 / 8)
        start, parts = ends[:-1][above > max(height.max(), plain.max()) - 80], int(np.ceil(gap / width))
        if start.size * parts * self.shift.size > 4 * _BLOCK:
            return None
        left = (start[:, None] + gap / parts * np.arange(parts)).reshape(-1, 1)
        return left + gap / parts * (1 + _NODES) / 2, np.full_like(left, gap / parts) * _WEIGHTS / 2 / np.sqrt(
            2 * np.pi
        )

    def boundaries(self, step: float, widest: float) -> tuple[np.ndarray, np.ndarray]:
        """(indices, x) of lattice losses, L(x) = index·step, that cut the range into cells: by guarded Newton.

        Cells are `step` wide near 0, where most losses are, then grow in proportion to the loss, up to `widest`. The
        first and the last index lie outside the range and have no x.
        """
        grid = np.linspace(self.low, self.high, 4096)
        value, _ = self.loss(grid)
        index = _cell_ends(int(np.floor(value[0] / step)), int(np.ceil(value[-1] / step)), max(1, int(widest / step)))
        ends, index = index, index[1:-1]
        target = index * step
        cell = np.clip(np.searchsorted(value, target), 1, grid.size - 1)
        below, above = grid[cell - 1], grid[cell]
        x = np.interp(target, value, grid)
        open_ = np.arange(x.size)
        for _ in range(60):
            found, slope = self.loss(x[open_])
            miss = found - target[open_]
            left = np.abs(miss) > 1e-9 * step
            open_, miss, slope = open_[left], miss[left], slope[left]
            if open_.size == 0:
                break
            here = x[open_]
            above[open_] = np.where(miss > 0, here, above[open_])
            below[open_] = np.where(miss > 0, below[open_], here)
            better = here - miss / np.maximum(slope, 1e-300)
            inside = (better > below[open_]) & (better < above[open_])
            x[open_] = np.where(inside, better, (below[open_] + above[open_]) / 2)
        return ends, x


def _cell_ends(low: int, high: int, widest: int) -> np.ndarray:
    """Increasing lattice indices from `low` to `high`, at most max(1, |index|/_GROWTH) and `widest` apart."""
    outward = [0]
    top = max(high, -low)
    while outward[-1] < top:
        outward.append(outward[-1] + min(max(1, outward[-1] // _GROWTH), widest))
    outward = np.array(outward, np.int64)
    both = np.concatenate([-outward[:0:-1], outward])
    inside = both[(both > low) & (both < high)]
    return np.concatenate([[low], inside, [max(high, low + 1)]])


def discretise(pair: Pair, step: float, widest: float, gains_only: bool = False) -> Round:
    """The round on the lattice of width `step`, with cells at most `widest` wide (see Pair.boundaries).

    `gains_only` keeps only the outcomes with log dP/dQ > 0.
    """
    ends, x = pair.boundaries(step, widest)
    breaks = np.unique(np.concatenate([pair.panels(), x]))
    cells = ends.size - 1
    left, wide = ends[:-1] * step, np.diff(ends) * step
    upper = np.zeros((2, cells))  # weights that go to the greater loss of their cell, for remove and add
    mass = np.zeros((2, cells))
    for nodes, width in _panels(breaks):
        value = pair.loss(nodes.ravel())[0].reshape(nodes.shape)
        cell = np.searchsorted(x, nodes[:, nodes.shape[1] // 2])  # 0: below the first boundary
        weight = (_WEIGHTS / 2) * width[:, None]
        under_q, under_p = _density(nodes) * weight, _density(nodes, value) * weight
        span = wide[cell, None]
        add_to_cells(mass, upper, cell, value - left[cell, None], span, under_p, under_q)
    if gains_only:
        mass, upper = np.where(left >= 0, mass, 0.0), np.where(left >= 0, upper, 0.0)
    lower = np.maximum(mass - upper, 0.0)
    remove = np.append(lower[0], 0.0) + np.append(0.0, upper[0])
    add = np.append(upper[1], 0.0) + np.append(0.0, lower[1])
    return Round(step, ends, remove, add, float(special.ndtr(pair.low)) * 2)


def add_to_cells(
    mass: np.ndarray,
    upper: np.ndarray,
    cell: np.ndarray,
    gap: np.ndarray,
    span: np.ndarray,
    under_p: np.ndarray,
    under_q: np.ndarray,
) -> None:
    """Connect-the-dots: adds the masses of some nodes to their cells, in place.

    Args:
      mass: shape [2, cells]; all the mass under P and under Q.
      upper: shape [2, cells]; of it, what goes to the greater loss of the cell under P, to the lesser one under Q.
      cell: the cell of each row of nodes; shape [n].
      gap: loss of each node above the lesser loss of its cell; shape [n, nodes].
      span: width of each cell, in loss; shape [n, 1].
      under_p, under_q: masses of the nodes; shape [n, nodes].
    """
    gap = np.clip(gap, 0.0, span)
    for row, masses, part in ((0, under_p, gap), (1, under_q, span - gap)):
        share = np.expm1(-part) / np.expm1(-span)
        mass[row] += np.bincount(cell, masses.sum(axis=1), mass.shape[1])
        upper[row] += np.bincount(cell, (masses * share).sum(axis=1), mass.shape[1])


def _panels(breaks: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(quadrature nodes [n, 6], widths [n]) of the intervals between `breaks`, in blocks."""
    block = _BLOCK // 64
    for start in range(0, breaks.size - 1, block):
        ends = breaks[start : start + block + 1]
        width = np.diff(ends)
        yield ends[:-1, None] + width[:, None] * (1 + _NODES) / 2, width


def _density(x: np.ndarray, loss: np.ndarray | float = 0.0) -> np.ndarray:
    """φ(x)·e^loss."""
    return np.exp(loss - x * x / 2) / np.sqrt(2 * np.pi)
