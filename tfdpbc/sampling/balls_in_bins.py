"""Balls-in-bins sampling: once per epoch, every example picks the round that it joins."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from tfdpbc import _validate
from tfdpbc.sampling.base import CHUNK_ENTRIES, OVERFLOW_PROBABILITY, Sampling, capacity, index_type, padded


@dataclasses.dataclass(frozen=True)
class BallsInBins(Sampling):
    """In each epoch every example joins exactly one round, which it picks uniformly, independently of all others.

    Neighbouring: one data set has one example more than the other. Their size N is therefore private: it is an argument
    of `batches`, and nothing else here depends on it. Each example is a contribution of its own (individual clipping),
    so one more of them moves the sum of a round by at most C. The rounds of one epoch are dependent: the guarantee
    counts whole epochs.

    No draw is ever cut: a round that does not fit the planned shape (probability below 1e-12 if N <= rounds_per_epoch *
    expected_size) comes in a larger array. Memory: the order of the epoch, 4 N bytes.

    Source: Chua, Ghazi, Harrison, Leeman, Kamath, Kumar, Manurangsi, Sinha, Zhang, "Balls-and-Bins sampling for DP-SGD"
    (2024).

    Args:
      rounds_per_epoch: T, the rounds among which each example picks one.
      expected_size: planned number of examples of a round, the public stand-in for N / T; divides the noisy sum.
    """

    rounds_per_epoch: int
    expected_size: int

    name: ClassVar[str] = "balls-in-bins"
    neighbouring: ClassVar[str] = "add-remove"
    sensitivity_factor: ClassVar[float] = 1.0
    contributions: ClassVar[None] = None
    examples_per_contribution: ClassVar[int] = 1
    examples_divisor: ClassVar[float] = 1.0
    is_individual: ClassVar[bool] = True
    masked: ClassVar[bool] = True
    epoch_is_joint: ClassVar[bool] = True

    def __post_init__(self):
        for field in dataclasses.fields(self):
            self._set(field.name, _validate.integer(field.name, getattr(self, field.name), at_least=1))

    @classmethod
    def individual(cls, num_examples: int, batch_size: int) -> BallsInBins:
        """As few rounds as keep the expected size of each at most `batch_size`, which becomes the planned one.

        The `num_examples` these numbers come from becomes public.
        """
        num_examples = _validate.integer("num_examples", num_examples, at_least=1)
        batch_size = _validate.integer("batch_size", batch_size, at_least=1, at_most=num_examples)
        return cls(-(-num_examples // batch_size), batch_size)

    @property
    def planned_examples(self) -> float:
        return float(self.rounds_per_epoch * self.expected_size)

    @property
    def divisor(self) -> int:
        return self.expected_size

    @property
    def shape(self) -> tuple[int, int]:
        return capacity(self.expected_size, OVERFLOW_PROBABILITY), 1

    def _num_examples(self, given: int | None) -> int:
        return _validate.integer("num_examples", given, at_least=1)

    def _draw(self, num_examples, spans, stream):
        # Independent picks, drawn as how many picked each round and a uniform order of the examples that is cut into
        # pieces of these sizes. Everything comes from one stream, whatever the round an epoch is entered at.
        rng = stream(0)
        sizes = np.zeros(self.rounds_per_epoch, np.int64)
        for first in range(0, num_examples, CHUNK_ENTRIES):
            picks = rng.integers(self.rounds_per_epoch, size=min(CHUNK_ENTRIES, num_examples - first))
            sizes += np.bincount(picks, minlength=self.rounds_per_epoch)
        ends = np.cumsum(sizes)
        order = np.arange(num_examples, dtype=index_type(num_examples))
        rng.shuffle(order)
        for span in spans:
            pieces = (order[ends[r] - sizes[r] : ends[r]] for r in span)
            rounds = ((piece, np.arange(piece.size), np.zeros(piece.size, np.int64)) for piece in pieces)
            yield padded(rounds, len(span), self.shape, num_examples)
