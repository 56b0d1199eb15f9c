"""Poisson sampling: every round flips a coin for every example."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from tfdpbc import _validate
from tfdpbc.sampling.base import OVERFLOW_PROBABILITY, Joined, Sampling, capacity, padded


@dataclasses.dataclass(frozen=True)
class Poisson(Sampling):
    """Every example joins a round independently of all others and of other rounds.

    Neighbouring: one data set has one example more than the other. Their size N is therefore private: it is an argument
    of `batches`, and nothing else here depends on it. Where each joined example is a contribution of its own, the
    example moves the sum of clipped contributions by at most C. With groups it can turn its contribution from +C into
    -C, so 2C.

    No draw is ever cut: a round that does not fit the planned shape (probability below 1e-12 if N * rate <=
    expected_size) comes in a larger array.

    Args:
      rate: probability q of joining a round, 0 < q <= 1.
      rounds_per_epoch: rounds that are called one epoch.
      expected_size: planned number of examples of a round, the public stand-in for q N; divides the noisy sum.
      contributions: None makes each joined example a contribution of its own (individual clipping). A number m makes
        groups: each joined example picks one of m contributions independently and uniformly.
    """

    rate: float
    rounds_per_epoch: int
    expected_size: int
    contributions: int | None = None

    name: ClassVar[str] = "poisson"
    neighbouring: ClassVar[str] = "add-remove"
    masked: ClassVar[bool] = True
    epoch_is_joint: ClassVar[bool] = False

    def __post_init__(self):
        self._set("rate", _validate.probability("rate", self.rate, one=True))
        for field in ("rounds_per_epoch", "expected_size"):
            self._set(field, _validate.integer(field, getattr(self, field), at_least=1))
        if self.contributions is not None:
            most = self.expected_size
            self._set("contributions", _validate.integer("contributions", self.contributions, at_least=1, at_most=most))

    @classmethod
    def individual(cls, num_examples: int, batch_size: int) -> Poisson:
        """Individual clipping, `batch_size` expected; the `num_examples` these numbers come from becomes public."""
        return cls._expecting(num_examples, batch_size, None)

    @classmethod
    def batch(cls, num_examples: int, batch_size: int) -> Poisson:
        """Batch clipping: all joined examples (`batch_size` expected) form one contribution."""
        return cls._expecting(num_examples, batch_size, 1)

    @classmethod
    def _expecting(cls, num_examples, batch_size, contributions):
        num_examples = _validate.integer("num_examples", num_examples, at_least=1)
        batch_size = _validate.integer("batch_size", batch_size, at_least=1, at_most=num_examples)
        return cls(batch_size / num_examples, num_examples // batch_size, batch_size, contributions)

    @property
    def planned_examples(self) -> float:
        return self.expected_size / self.rate

    @property
    def sensitivity_factor(self) -> float:
        return 1.0 if self.is_individual else 2.0

    @property
    def divisor(self) -> int:
        return self.expected_size if self.contributions is None else self.contributions

    @property
    def examples_per_contribution(self) -> int | None:
        """1 for individual clipping, None for groups (their sizes are random)."""
        return 1 if self.is_individual else None

    @property
    def examples_divisor(self) -> float:
        return 1.0 if self.contributions is None else self.expected_size / self.contributions

    @property
    def shape(self) -> tuple[int, int]:
        if self.contributions is None:
            return capacity(self.expected_size, OVERFLOW_PROBABILITY), 1
        group = capacity(self.examples_divisor, OVERFLOW_PROBABILITY / self.contributions)
        return self.contributions, group

    @property
    def is_individual(self) -> bool:
        return self.contributions is None

    def _num_examples(self, given: int | None) -> int:
        return _validate.integer("num_examples", given, at_least=1)

    def _draw(self, num_examples, spans, stream):
        for span in spans:
            rounds = (self._round(num_examples, stream(round_number)) for round_number in span)
            yield padded(rounds, len(span), self.shape, num_examples)

    def _round(self, num_examples: int, rng: np.random.Generator) -> Joined:
        # Independent coins, drawn as their number and a uniform subset of that size: O(joined), not O(N).
        count = rng.binomial(num_examples, self.rate)
        joined = rng.choice(num_examples, count, replace=False)
        if self.contributions is None:
            return joined, np.arange(count), np.zeros(count, np.int64)
        row = np.sort(rng.integers(self.contributions, size=count))  # `joined` is in random order already
        first = np.searchsorted(row, np.arange(self.contributions))
        return joined, row, np.arange(count) - first[row]
