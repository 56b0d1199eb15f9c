"""A sequence of inner algorithms: which one a round runs depends on the round's place in its epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdpbc import _validate


class AlgorithmSequence:
    """Paper A, Section 3: "We may even predefine a sequence of algorithms {A_b} per epoch and use A_b in round b".

    The sequence begins anew with each epoch and is repeated to its end; all that picks an algorithm is the public number
    of the round.

    Args:
      algorithms: at least one, none of them a sequence.
      rounds: for how many consecutive rounds each runs before the next; 1 each by default.

    Formal guarantee: that of its algorithms, whose contributions all are clipped and noised the same way.
    """

    config_name = "sequence"

    def __init__(self, algorithms: Sequence[Any], rounds: Sequence[int] | None = None):
        if not isinstance(algorithms, Sequence) or not algorithms:
            _validate.fail("algorithms", "a list of at least one algorithm", algorithms)
        for one in algorithms:
            if isinstance(one, type) or not callable(one):
                _validate.fail("algorithms", "a list of algorithms, none of them a sequence", one, TypeError)
        rounds = [1] * len(algorithms) if rounds is None else rounds
        if not isinstance(rounds, Sequence) or len(rounds) != len(algorithms):
            _validate.fail("rounds", f"a list of {len(algorithms)} numbers, one for each algorithm", rounds)
        self._algorithms = tuple(algorithms)
        self._rounds = tuple(_validate.integer("rounds", number, at_least=1) for number in rounds)

    algorithms = property(lambda self: self._algorithms, doc="The algorithms, in their order.")
    rounds = property(lambda self: self._rounds, doc="For how many rounds each runs.")

    def index(self, round_in_epoch: Any) -> Any:
        """Which of `algorithms` runs: an int for an int, a scalar int32 tensor for a tensor."""
        place = round_in_epoch % sum(self.rounds)
        ends = [sum(self.rounds[: i + 1]) for i in range(len(self.rounds))]
        if not tf.is_tensor(place):
            return sum(place >= end for end in ends)
        return tf.reduce_sum(tf.cast(place >= tf.constant(ends, place.dtype), tf.int32))

    def examples_at_once(self, examples: int) -> int:
        """The most of a contribution's examples that one of the algorithms computes at once."""
        return max(getattr(one, "examples_at_once", int)(examples) for one in self.algorithms)

    def to_config(self) -> dict[str, Any]:
        """JSON-able description (see `algorithms.from_config`)."""
        for one in self.algorithms:
            if not hasattr(one, "to_config"):
                raise NotImplementedError(f"only algorithms of tfdpbc can be serialised; got {one!r}")
        return {
            "name": self.config_name,
            "algorithms": [one.to_config() for one in self.algorithms],
            "rounds": list(self.rounds),
        }

    def __repr__(self) -> str:
        return f"AlgorithmSequence({list(self.algorithms)!r}, rounds={list(self.rounds)!r})"
