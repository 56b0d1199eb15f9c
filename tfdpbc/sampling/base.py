"""What every sampling is, and the arrays that rounds of a random size come in."""

from __future__ import annotations

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tfdpbc import _validate

OVERFLOW_PROBABILITY = 1e-12  # of one round of a random size needing more room than its planned shape
CHUNK_ENTRIES = 2**20  # indices per chunk when the caller leaves the number of rounds open: 4 MB

Joined = tuple[np.ndarray, np.ndarray, np.ndarray]
"""The examples that join one round, and the row (contribution) and column at which each of them stands."""


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
      name: "shuffling", "subsampling", "poisson" or "balls-in-bins".
      neighbouring: "replace" or "add-remove": what makes two data sets neighbours.
      sensitivity_factor: by how many clipping norms one changed contribution moves the sum of clipped contributions.
      divisor: the planned (never the realised) number of contributions of a round; divides the noisy sum.
      examples_divisor: the planned number of examples of a contribution.
      rounds_per_epoch: rounds, hence noisy releases, of one epoch.
      contributions: m, None where it is random (individual Poisson, balls-in-bins).
      examples_per_contribution: s, None for Poisson groups, where it is random.
      shape: (m, s) of the index arrays; public, the same for every round.
      is_individual: is every contribution made of at most one example?
      masked: may the arrays hold padding?
      epoch_is_joint: are the rounds of an epoch dependent, drawn as a whole (a permutation, an assignment)? Then the
        guarantee counts whole epochs: one that was broken off and cannot be entered again with the same draw is over,
        for another draw in its place could use an example twice. Where rounds are independent it may go on.
      planned_examples: N where it is public, else the N that the plan's numbers stand for.
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
    epoch_is_joint: ClassVar[bool]
    planned_examples: float

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
          num_examples: size N of the data set. Required under add/remove, where N is private and no field; otherwise it
            may be given as a check and must equal the field.
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


def padded(rounds: Iterable[Joined], count: int, shape: tuple[int, int], num_examples: int) -> Batch:
    """`count` rounds of a random size as one `Batch` of the planned `shape`.

    No draw is ever cut: where a round does not fit, all come in a larger array (each side by a multiple of 8).
    """
    indices = np.zeros((count, *shape), index_type(num_examples))
    mask = np.zeros(indices.shape, bool)
    for i, (joined, row, column) in enumerate(rounds):
        places = zip((row, column), indices.shape[1:], strict=True)
        lacking = [max(0, _round_up(int(place.max(initial=-1)) + 1 - room)) for place, room in places]
        if any(lacking):
            wider = [(0, 0), *((0, more) for more in lacking)]
            indices, mask = np.pad(indices, wider), np.pad(mask, wider)
        indices[i, row, column] = joined
        mask[i, row, column] = True
    return Batch(np.where(mask, indices, indices[..., :1]), mask)


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


def index_type(num_examples: int) -> type[np.signedinteger]:
    return np.int32 if num_examples < 2**31 else np.int64
