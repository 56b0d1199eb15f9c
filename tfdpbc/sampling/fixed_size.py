"""Rounds of a fixed size: shuffling and subsampling."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from tfdpbc import _validate
from tfdpbc.sampling.base import Batch, Sampling, index_type


@dataclasses.dataclass(frozen=True)
class FixedSize(Sampling):
    """Rounds of exactly m contributions of exactly s examples each.

    Neighbouring: data sets of the same, public size that differ in one example (in g examples for a group of g), the
    index positions of the common ones unchanged. A differing example replaces one contribution of norm <= C by another,
    which moves the sum by at most 2C.
    """

    num_examples: int
    contributions: int
    examples_per_contribution: int

    neighbouring: ClassVar[str] = "replace"
    sensitivity_factor: ClassVar[float] = 2.0
    masked: ClassVar[bool] = False

    def __post_init__(self):
        for field in dataclasses.fields(self):
            self._set(field.name, _validate.integer(field.name, getattr(self, field.name), at_least=1))
        m, s = self.shape
        if self.num_examples < m * s:
            _validate.fail("num_examples", f"at least one round ({m} x {s} = {m * s} examples)", self.num_examples)

    @classmethod
    def individual(cls, num_examples: int, batch_size: int):
        """Individual clipping: `batch_size` contributions of one example each."""
        return cls(num_examples, batch_size, 1)

    @classmethod
    def batch(cls, num_examples: int, batch_size: int):
        """Batch clipping: one contribution of `batch_size` examples."""
        return cls(num_examples, 1, batch_size)

    @property
    def planned_examples(self) -> float:
        return float(self.num_examples)

    @property
    def divisor(self) -> int:
        return self.contributions

    @property
    def examples_divisor(self) -> float:
        return float(self.examples_per_contribution)

    @property
    def rounds_per_epoch(self) -> int:
        """N // (m s): what does not fill a round is left out of the epoch, for a smaller round would tell its size."""
        return self.num_examples // (self.contributions * self.examples_per_contribution)

    @property
    def shape(self) -> tuple[int, int]:
        return self.contributions, self.examples_per_contribution

    @property
    def is_individual(self) -> bool:
        return self.examples_per_contribution == 1

    def _num_examples(self, given: int | None) -> int:
        if given is not None and _validate.integer("num_examples", given) != self.num_examples:
            _validate.fail("num_examples", f"the {self.num_examples} of the sampling", given)
        return self.num_examples


@dataclasses.dataclass(frozen=True)
class Shuffling(FixedSize):
    """Each epoch draws a fresh uniform permutation and cuts it into consecutive index sets, all disjoint.

    The N - rounds_per_epoch m s examples at its end stay out of that epoch. Neighbouring: replace one example, which
    moves the sum of clipped contributions by at most 2C. Memory: the permutation, 4 N bytes.

    Args:
      num_examples: size N of the data set, public here; at least m s.
      contributions: m, the contributions of a round, each clipped as one.
      examples_per_contribution: s, the examples of each contribution.
    """

    name: ClassVar[str] = "shuffling"
    epoch_is_joint: ClassVar[bool] = True

    def _draw(self, num_examples, spans, stream):
        permutation = np.arange(num_examples, dtype=index_type(num_examples))
        stream(0).shuffle(permutation)
        size = math.prod(self.shape)
        for span in spans:
            indices = permutation[span.start * size : span.stop * size].reshape(len(span), *self.shape)
            yield Batch(indices, np.ones(indices.shape, bool))


@dataclasses.dataclass(frozen=True)
class Subsampling(FixedSize):
    """Each round draws a fresh uniform subset of m s examples without replacement and splits it at random.

    Rounds are independent of each other. Neighbouring: replace one example, which moves the sum of clipped
    contributions by at most 2C. Memory: the round (N numbers for rounds larger than N / 50).

    Args:
      num_examples: size N of the data set, public here; at least m s.
      contributions: m, the contributions of a round, each clipped as one.
      examples_per_contribution: s, the examples of each contribution.
    """

    name: ClassVar[str] = "subsampling"
    epoch_is_joint: ClassVar[bool] = False

    def _draw(self, num_examples, spans, stream):
        size = math.prod(self.shape)
        for span in spans:
            indices = np.empty((len(span), size), index_type(num_examples))
            for row, round_number in zip(indices, span, strict=True):
                # `choice` shuffles what it has chosen, so that consecutive slices are a random split.
                row[:] = stream(round_number).choice(num_examples, size, replace=False)
            indices = indices.reshape(len(span), *self.shape)
            yield Batch(indices, np.ones(indices.shape, bool))
