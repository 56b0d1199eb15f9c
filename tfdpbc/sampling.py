"""How the examples of a round are drawn (`Sample_{s,m}` of Algorithm 1, paper A): shuffling, subsampling, Poisson.

A sampling is a frozen set of public numbers. It never holds data, random state or a realised size: those are arguments
of `batches`, which yields the index arrays of one epoch, a few rounds at a time, so that no epoch is ever held as a
whole (shuffling holds one permutation of its N indices).

Which data sets count as neighbours, and how far one differing example can move the sum of clipped contributions, are
consequences of the sampling and so are properties of it (`neighbouring`, `sensitivity_factor`); nobody types them in.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tfdpbc import _validate

OVERFLOW_PROBABILITY = 1e-12  # of one Poisson round needing more room than its planned shape
CHUNK_ENTRIES = 2**20  # indices per chunk when the caller leaves the number of rounds open: 4 MB


class Batch(NamedTuple):
    """The draws of some consecutive rounds.

    Attributes:
      indices: [rounds, m, s] example numbers, int32 (int64 where the data set has 2**31 examples or more).
      mask: [rounds, m, s] bool, False where an entry is padding. Padding follows the valid entries of its axis and
        repeats the first index of its contribution (0 where that is empty), so it can be gathered like any other.
    """

    indices: np.ndarray
    mask: np.ndarray


class Sampling(abc.ABC):
    """What the plan, the accountant and the training loop ask of a sampling; m and s as in Algorithm 1.

    Attributes:
      name: "shuffling", "subsampling" or "poisson".
      neighbouring: "replace" or "add-remove": what makes two data sets neighbours.
      sensitivity_factor: by how many clipping norms one changed contribution moves the sum of clipped contributions.
      divisor: the planned (never the realised) number of contributions of a round; divides the noisy sum.
      examples_divisor: the planned number of examples of a contribution.
      rounds_per_epoch: rounds, hence noisy releases, of one epoch.
      contributions: m, None for individual Poisson, where it is random.
      examples_per_contribution: s, None for Poisson groups, where it is random.
      shape: (m, s) of the index arrays; public, the same for every round.
      is_individual: is every contribution made of at most one example?
      masked: may the arrays hold padding?
    """

    name: ClassVar[str]
    neighbouring: ClassVar[str]
    sensitivity_factor: float
    divisor: int
    examples_divisor: float
    rounds_per_epoch: int
    contributions: int | None
    examples_per_contribution: int | None
    shape: tuple[int, int]
    is_individual: bool
    masked: ClassVar[bool]

    def batches(
        self,
        rng: np.random.Generator,
        *,
        num_examples: int | None = None,
        start: int = 0,
        rounds_per_chunk: int | None = None,
    ) -> Iterator[Batch]:
        """Draws one epoch, lazily.

        Every round has a stream of its own, derived from 256 bits taken from `rng` by this call (not later, while the
        iterator runs). So an epoch entered at round k repeats none of the rounds before it and yields what a run from
        its start would yield from round k on, whatever the chunks.

        Args:
          rng: source of randomness, advanced by the same amount in each call.
          num_examples: size N of the data set. Required for Poisson, where N is private and no field; otherwise it may
            be given as a check and must equal the field.
          start: first round to yield, 0 <= start <= rounds_per_epoch.
          rounds_per_chunk: rounds per `Batch` (the last one may be shorter); None chooses about 4 MB of indices.

        Returns:
          An iterator of `Batch`.
        """
        _validate.instance("rng", rng, np.random.Generator, "a numpy.random.Generator")
        size = self._num_examples(num_examples)
        start = _validate.integer("start", start, at_least=0, at_most=self.rounds_per_epoch)
        if rounds_per_chunk is None:
            rounds_per_chunk = max(1, CHUNK_ENTRIES // math.prod(self.shape))
        rounds_per_chunk = _validate.integer("rounds_per_chunk", rounds_per_chunk, at_least=1)
        entropy = int.from_bytes(rng.bytes(32), "little")

        def stream(round_number: int) -> np.random.Generator:
            sequence = np.random.SeedSequence(entropy, spawn_key=(round_number,))
            return np.random.Generator(np.random.PCG64DXSM(sequence))

        starts = range(start, self.rounds_per_epoch, rounds_per_chunk)
        spans = (range(first, min(first + rounds_per_chunk, self.rounds_per_epoch)) for first in starts)
        return self._draw(size, spans, stream)

    @abc.abstractmethod
    def _num_examples(self, given: int | None) -> int:
        """Checks the data set's size given to `batches` and returns it."""

    @abc.abstractmethod
    def _draw(
        self, num_examples: int, spans: Iterator[range], stream: Callable[[int], np.random.Generator]
    ) -> Iterator[Batch]:
        """Yields a `Batch` for each span of rounds; `stream(r)` is the generator of round r."""

    def to_config(self) -> dict[str, Any]:
        """The public fields and the name, ready for JSON; `from_config` takes it back."""
        return {"name": self.name, **dataclasses.asdict(self)}

    def _set(self, field: str, value: Any) -> None:
        object.__setattr__(self, field, value)  # the dataclass is frozen; used while it is being checked only


@dataclasses.dataclass(frozen=True)
class _FixedSize(Sampling):
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
class Shuffling(_FixedSize):
    """Each epoch draws a fresh uniform permutation and cuts it into consecutive index sets, all disjoint.

    The N - rounds_per_epoch m s examples at its end stay out of that epoch. Neighbouring: replace one example, which
    moves the sum of clipped contributions by at most 2C. Memory: the permutation, 4 N bytes.

    Args:
      num_examples: size N of the data set, public here; at least m s.
      contributions: m, the contributions of a round, each clipped as one.
      examples_per_contribution: s, the examples of each contribution.
    """

    name: ClassVar[str] = "shuffling"

    def _draw(self, num_examples, spans, stream):
        permutation = np.arange(num_examples, dtype=_index_type(num_examples))
        stream(0).shuffle(permutation)
        size = math.prod(self.shape)
        for span in spans:
            indices = permutation[span.start * size : span.stop * size].reshape(len(span), *self.shape)
            yield Batch(indices, np.ones(indices.shape, bool))


@dataclasses.dataclass(frozen=True)
class Subsampling(_FixedSize):
    """Each round draws a fresh uniform subset of m s examples without replacement and splits it at random.

    Rounds are independent of each other. Neighbouring: replace one example, which moves the sum of clipped
    contributions by at most 2C. Memory: the round (N numbers for rounds larger than N / 50).

    Args:
      num_examples: size N of the data set, public here; at least m s.
      contributions: m, the contributions of a round, each clipped as one.
      examples_per_contribution: s, the examples of each contribution.
    """

    name: ClassVar[str] = "subsampling"

    def _draw(self, num_examples, spans, stream):
        size = math.prod(self.shape)
        for span in spans:
            indices = np.empty((len(span), size), _index_type(num_examples))
            for row, round_number in zip(indices, span, strict=True):
                # `choice` shuffles what it has chosen, so that consecutive slices are a random split.
                row[:] = stream(round_number).choice(num_examples, size, replace=False)
            indices = indices.reshape(len(span), *self.shape)
            yield Batch(indices, np.ones(indices.shape, bool))


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
            indices = np.zeros((len(span), *self.shape), _index_type(num_examples))
            mask = np.zeros(indices.shape, bool)
            for i, round_number in enumerate(span):
                joined, row, column = self._round(num_examples, stream(round_number))
                places = zip((row, column), indices.shape[1:], strict=True)
                lacking = [max(0, _round_up(int(place.max(initial=-1)) + 1 - room)) for place, room in places]
                if any(lacking):
                    wider = [(0, 0), *((0, more) for more in lacking)]
                    indices, mask = np.pad(indices, wider), np.pad(mask, wider)
                indices[i, row, column] = joined
                mask[i, row, column] = True
            yield Batch(np.where(mask, indices, indices[..., :1]), mask)

    def _round(self, num_examples: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The examples that join one round, and the row (contribution) and column at which each of them stands."""
        # Independent coins, drawn as their number and a uniform subset of that size: O(joined), not O(N).
        count = rng.binomial(num_examples, self.rate)
        joined = rng.choice(num_examples, count, replace=False)
        if self.contributions is None:
            return joined, np.arange(count), np.zeros(count, np.int64)
        row = np.sort(rng.integers(self.contributions, size=count))  # `joined` is in random order already
        first = np.searchsorted(row, np.arange(self.contributions))
        return joined, row, np.arange(count) - first[row]


@functools.cache
def capacity(mean: float, failure: float) -> int:
    """A multiple of 8 that a Poisson or binomial count of at most this mean exceeds with probability < `failure`.

    The smallest for which Chernoff's bound Pr[X >= k] <= exp(k - mean - k log(k / mean)), k > mean, shows it. That
    bound holds whatever the N of the binomial: a public function of the planned size.
    """

    def log_tail(k: int) -> float:
        return k - mean - k * math.log(k / mean)

    size = _round_up(math.ceil(mean))
    while log_tail(size + 1) >= math.log(failure):
        size += 8
    return size


def _round_up(size: int) -> int:
    return -(-size // 8) * 8


def _index_type(num_examples: int) -> type[np.signedinteger]:
    return np.int32 if num_examples < 2**31 else np.int64


def from_config(config: dict[str, Any]) -> Sampling:
    """The sampling whose `to_config` gave `config`."""
    _validate.instance("sampling", config, dict, "a dict with the name and the fields of a sampling")
    kinds = {kind.name: kind for kind in (Shuffling, Subsampling, Poisson)}
    kind = kinds[_validate.choice("sampling name", config.get("name"), kinds)]
    given = {key: value for key, value in config.items() if key != "name"}
    fields = [field.name for field in dataclasses.fields(kind)]
    if set(given) != set(fields):
        _validate.fail(f"{kind.name} fields", ", ".join(fields), sorted(map(str, given)))
    return kind(**given)
