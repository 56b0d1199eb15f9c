"""Robust aggregations that are not private, to compare with: coordinate-wise and geometric medians."""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

from tfdpbc import _validate
from tfdpbc.aggregation.base import Sum


class Median(Sum, abc.ABC):
    """A middle of the contributions; noise calibrated to its sensitivity would drown it, so it is released without any.

    It holds all contributions of a round at once: m times the memory of the weights. Formal guarantee: none (ε = ∞).
    """

    whole_round: ClassVar[bool] = True

    def check(self, sampling: Any, clipping: Any, noise_multiplier: float, statistics: Any) -> None:
        if noise_multiplier != 0:
            expected = f"0 with {type(self).__name__}: no noise multiplier makes it private (Sum or TrimmedSum are)"
            _validate.fail("noise_multiplier", expected, noise_multiplier)
        if statistics is not None or clipping.adaptive:
            name, value = ("statistics", statistics) if statistics is not None else ("clipping", clipping)
            _validate.fail(name, f"one that measures nothing, with {type(self).__name__}", value)

    def void(self) -> str | None:
        return f"{type(self).__name__} releases the {self.name.replace('-', ' ')} of the contributions without noise"

    @abc.abstractmethod
    def combine(self, vectors: list[Any], valid: Any) -> list[Any]:
        """The middle of the valid contributions; 0 where there are none.

        Args:
          vectors: float32 ``[m, *shape]`` for each variable, finite, 0 where invalid.
          valid: bool ``[m]``.
        """


@dataclasses.dataclass(frozen=True)
class CoordinateMedian(Median):
    """The median of each coordinate (Yin et al. 2018); the mean of the two middle ones where their number is even."""

    name: ClassVar[str] = "coordinate-median"

    def combine(self, vectors: list[Any], valid: Any) -> list[Any]:
        import tensorflow as tf

        count = tf.reduce_sum(tf.cast(valid, tf.int32))
        low, high = tf.maximum(count - 1, 0) // 2, tf.minimum(count // 2, valid.shape[0] - 1)
        found = []
        for t in vectors:
            there = tf.reshape(valid, [-1] + [1] * (t.shape.rank - 1))
            ordered = tf.sort(tf.where(there, t, float("inf")), axis=0)  # those that do not exist come last
            middle = (ordered[low] + ordered[high]) / 2
            found.append(tf.where(count > 0, middle, tf.zeros_like(middle)))
        return found


@dataclasses.dataclass(frozen=True)
class GeometricMedian(Median):
    r"""The point with the least sum of distances to the contributions, by Weiszfeld's iteration from their mean.

    Args:
      iterations: how many steps (fixed: the graph is static).
      smoothing: distances count as at least this much, in units of the largest norm (Pillutla et al. 2022).
    """

    iterations: int = 32
    smoothing: float = 1e-6

    name: ClassVar[str] = "geometric-median"

    def __post_init__(self) -> None:
        object.__setattr__(self, "iterations", _validate.integer("iterations", self.iterations, at_least=1))
        object.__setattr__(self, "smoothing", _validate.number("smoothing", self.smoothing, above=0))

    def combine(self, vectors: list[Any], valid: Any) -> list[Any]:
        import tensorflow as tf

        flat = tf.concat([tf.reshape(t, [t.shape[0], -1]) for t in vectors], axis=1)
        there = tf.cast(valid, tf.float32)
        least = self.smoothing * tf.reduce_max(tf.norm(flat, axis=1)) + 1e-30

        def step(i: Any, point: Any) -> tuple[Any, Any]:
            shares = there / tf.maximum(tf.norm(flat - point, axis=1), least)
            return i + 1, tf.linalg.matvec(flat, shares, transpose_a=True) / tf.maximum(tf.reduce_sum(shares), 1e-30)

        point = tf.linalg.matvec(flat, there, transpose_a=True) / tf.maximum(tf.reduce_sum(there), 1.0)
        _, point = tf.while_loop(lambda i, _: i < self.iterations, step, (tf.constant(0), point))
        parts = tf.split(point, [t.shape[1:].num_elements() for t in vectors])
        return [tf.reshape(part, t.shape[1:]) for part, t in zip(parts, vectors, strict=True)]
