r"""Test, then one of two releases: Propose-Test-Release of any statistic that knows how stable it is.

A `MarginTest` releases a `Statistic` with little noise where a private test finds the data stable, else a fallback with the
noise of its global sensitivity. `TrimmedSum` (in `tfdpbc.aggregation`) is this for contributions inside the training round;
here it is for a statistic of one's own, in numpy, outside of training.

Source: Dwork and Lei (2009); seed paper C, whose accounting (`accounting.ptr`) only needs what `Statistic` promises.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, NamedTuple

import numpy as np

from tfdpbc import _validate
from tfdpbc.accounting.ptr import ProposeTestRelease


class Statistic(abc.ABC):
    """A statistic of a set of values with a computable safety margin.

    What a subclass promises, for all sets that differ in one value which one has more than the other (add/remove):

    - margins are integers in 0..`most_margin` that differ by at most 1;
    - `value` moves by at most `proposed` (Euclidean norm) where either margin is positive, and by at most `largest` always;
    - `fallback` moves by at most `fallback_sensitivity`.

    Attributes:
      most_margin: F >= 0.
      proposed: τ > 0; at most `largest`.
      largest: the global sensitivity of `value`.
      fallback_sensitivity: that of `fallback`.
    """

    most_margin: int
    proposed: float
    largest: float
    fallback_sensitivity: float

    @abc.abstractmethod
    def margin(self, values: np.ndarray) -> int: ...

    @abc.abstractmethod
    def value(self, values: np.ndarray) -> np.ndarray: ...

    @abc.abstractmethod
    def fallback(self, values: np.ndarray) -> np.ndarray: ...


class Outcome(NamedTuple):
    """What a test released: the noisy value, and whether the test was passed (public)."""

    value: Any
    passed: bool


@dataclasses.dataclass(frozen=True)
class MarginTest:
    """Passes if margin + Lap(b) > t; then `value` + N(0, (τσ)²), else `fallback` + N(0, (fallback_sensitivity σ_f)²).

    Args:
      statistic: what is released.
      threshold: t.
      laplace_scale: b > 0.
      noise_multiplier: σ > 0.
      fallback_noise_multiplier: σ_f > 0; None is σ.

    Formal guarantee: `accounting`, an `accounting.ptr.ProposeTestRelease`: ask it for `delta`, `trade_off`, `epsilon`, also of
    several releases (`rounds`) and of Poisson samples (`rate`). Noise is numpy's, in float64: its digits are not those of an
    exact sampler.
    """

    statistic: Statistic
    threshold: float
    laplace_scale: float
    noise_multiplier: float
    fallback_noise_multiplier: float | None = None

    def __post_init__(self) -> None:
        _validate.instance("statistic", self.statistic, Statistic, "a Statistic")
        _validate.number("fallback_sensitivity", self.statistic.fallback_sensitivity, above=0)
        _ = self.accounting  # checks the rest

    @property
    def accounting(self) -> ProposeTestRelease:
        """The guarantee. The fallback's noise is in units of its own sensitivity, so only σ_f counts."""
        made = self.statistic
        return ProposeTestRelease(
            made.most_margin,
            self.threshold,
            self.laplace_scale,
            made.proposed,
            made.largest,
            self.noise_multiplier,
            self.fallback_noise_multiplier,
        )

    def release(self, values: Any, rng: np.random.Generator) -> Outcome:
        """One release of `values` (first axis: the values, of which one may be added or removed).

        Raises:
          TypeError: `rng` is no numpy Generator.
        """
        _validate.instance("rng", rng, np.random.Generator, "a numpy.random.Generator")
        values, made = np.asarray(values, np.float64), self.statistic
        margin = _validate.integer("margin", made.margin(values), at_least=0, at_most=made.most_margin)
        passed = bool(margin + rng.laplace(scale=self.laplace_scale) > self.threshold)
        if passed:
            exact, std = made.value(values), made.proposed * self.noise_multiplier
        else:
            fallback = (
                self.noise_multiplier if self.fallback_noise_multiplier is None else self.fallback_noise_multiplier
            )
            exact, std = made.fallback(values), made.fallback_sensitivity * fallback
        exact = np.asarray(exact, np.float64)
        return Outcome(exact + std * rng.normal(size=exact.shape), passed)


@dataclasses.dataclass(frozen=True)
class TrimmedSumOfRows(Statistic):
    """The rows of a matrix, each clipped to norm C, summed without the F largest (seed paper C); fallback: the plain sum.

    Args:
      most_margin: F.
      proposed: τ in (0, C].
      largest: C.
    """

    most_margin: int
    proposed: float
    largest: float

    @property
    def fallback_sensitivity(self) -> float:
        return self.largest

    def margin(self, values: np.ndarray) -> int:
        norms = np.linalg.norm(self._clipped(values), axis=1)
        return max(0, self.most_margin - int((norms > self.proposed).sum()))

    def value(self, values: np.ndarray) -> np.ndarray:
        rows = self._clipped(values)
        order = np.argsort(np.linalg.norm(rows, axis=1), kind="stable")
        return rows[order[: max(0, len(rows) - self.most_margin)]].sum(axis=0)

    def fallback(self, values: np.ndarray) -> np.ndarray:
        return self._clipped(values).sum(axis=0)

    def _clipped(self, values: np.ndarray) -> np.ndarray:
        rows = np.where(np.isfinite(values).all(axis=1, keepdims=True), values, 0.0)
        # min: a clipped norm may come out above C by a rounding error.
        return rows / np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True) / (self.largest * (1 - 1e-12)))


@dataclasses.dataclass(frozen=True)
class ClippedMedian(Statistic):
    r"""The lower median of numbers clipped to [low, high]; fallback: the same with the noise of its global sensitivity.

    With sorted :math:`x_1..x_n`, :math:`x_i` = low for i < 1 and high for i > n, the median is :math:`x_j`,
    j = ⌊(n+1)/2⌋. After r changes it lies in the window :math:`[x_{j-r}, x_{j+r}]`, and the window of r changes of a neighbour
    is a part of that of r + 1. So :math:`W_r = x_{j+r+1} - x_{j-r-1}` bounds what one more change does after r of them, and the
    margin min{r : W_r > τ}, cut at F, changes by at most 1.

    Args:
      low, high: public bounds, low < high.
      proposed: τ in (0, high − low].
      most_margin: F, beyond which the margin does not count: any number well above the threshold.
    """

    low: float
    high: float
    proposed: float
    most_margin: int = 1000

    @property
    def largest(self) -> float:
        return self.high - self.low

    @property
    def fallback_sensitivity(self) -> float:
        return self.high - self.low

    def margin(self, values: np.ndarray) -> int:
        ordered, middle = self._sorted(values)
        wide = [
            self._at(ordered, middle + r + 1) - self._at(ordered, middle - r - 1) > self.proposed
            for r in range(min(self.most_margin, len(ordered) + 1))
        ]
        return wide.index(True) if True in wide else self.most_margin

    def value(self, values: np.ndarray) -> np.ndarray:
        ordered, middle = self._sorted(values)
        return np.asarray(self._at(ordered, middle))

    fallback = value

    def _sorted(self, values: np.ndarray) -> tuple[np.ndarray, int]:
        numbers = np.clip(np.where(np.isnan(values), self.low, values), self.low, self.high)
        return np.sort(numbers), (len(numbers) + 1) // 2

    def _at(self, ordered: np.ndarray, place: int) -> float:
        """x_place, counted from 1."""
        if place < 1:
            return self.low
        return self.high if place > len(ordered) else float(ordered[place - 1])
