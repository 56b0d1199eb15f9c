"""A network of clients in one process, in virtual time: what real clients compute, in the order that a real network brings.

Each client is a `Trainer` (or anything with its methods), the server a `Coordinator`. Time passes in events: a round ends, a
message arrives. Nothing waits for a clock and nothing depends on how fast this machine is, so a run can be repeated.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfdpbc import _validate
from tfdpbc.federated.messages import GlobalModel, encode


@dataclasses.dataclass
class Participant:
    """A client in the network; times in units of virtual seconds.

    Attributes:
      trainer: with `client`, `exhausted`, `step`, `receive` and `exchange` of `Trainer`.
      seconds: what a round takes.
      delay: what a message takes, either way, at least.
      jitter: up to how much more, uniformly at random: messages may overtake each other.
      loss: probability that a message never arrives.
      duplication: probability that an update arrives twice.
    """

    trainer: Any
    seconds: float = 1.0
    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    duplication: float = 0.0

    def __post_init__(self) -> None:
        _validate.number("seconds", self.seconds, above=0.0)
        for name in ("delay", "jitter"):
            _validate.number(name, getattr(self, name), at_least=0.0)
        for name in ("loss", "duplication"):
            _validate.probability(name, getattr(self, name), zero=True)


class Simulation:
    """Runs participants against a coordinator.

    Asynchronous: a client begins its next round the moment one ends, and takes over whatever model comes, in the middle of a
    round as well: at the micro-batch that the round has come to by then. Synchronous: a client begins a round when a model
    comes that was made after its last one; the coordinator must then wait for all (share 1), and nothing may be lost.

    Args:
      coordinator: with `receive`, `due`, `broadcast`, `model`, `join` and `leave` of `Coordinator`.
      participants: the clients, with names of their own.
      synchronous: see above.
      seed: of jitter, loss and duplication; training takes its randomness elsewhere.
      observe: called as ``observe(time, updates)`` after each `every` updates that reached the server, and at the end.
      every: see `observe`.

    Attributes:
      time: virtual seconds so far.
      rounds: name → times at which its rounds ended.
      updates: how many arrived at the server (each copy counts).
    """

    def __init__(
        self,
        coordinator: Any,
        participants: Sequence[Participant],
        synchronous: bool = False,
        seed: int = 0,
        observe: Callable[[float, int], None] | None = None,
        every: int = 1,
    ):
        self.coordinator, self.synchronous = coordinator, synchronous
        self.participants = {one.trainer.client: one for one in participants}
        if len(self.participants) < len(participants):
            _validate.fail("participants", "clients with names of their own", [p.trainer.client for p in participants])
        if synchronous and any(one.loss for one in participants):
            _validate.fail("loss", "0 for synchronous rounds, which would wait forever", [p.loss for p in participants])
        self._rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0x51,)))
        self._observe, self._every = observe, _validate.integer("every", every, at_least=1)
        self.time, self.updates = 0.0, 0
        self.rounds: dict[str, list[float]] = {name: [] for name in self.participants}
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = itertools.count()
        self._began: dict[str, float] = {}  # of the round under way
        self._finished: set[str] = set()
        for name in self.participants:
            coordinator.join(name)
        self._broadcast(coordinator.model)

    def run(self, until: float = float("inf")) -> None:
        """Goes on until virtual time `until`, or until every plan is used up and every message arrived."""
        while self._events and self._events[0][0] <= until:
            self.time, _, act, given = heapq.heappop(self._events)
            act(*given)
        if not self._events and self._observe is not None:
            self._observe(self.time, self.updates)

    def _after(self, seconds: float, act: Callable[..., None], *given: Any) -> None:
        heapq.heappush(self._events, (self.time + seconds, next(self._numbers), act, given))

    def _send(self, name: str, act: Callable[..., None], *given: Any) -> None:
        one = self.participants[name]
        if self._rng.random() >= one.loss:
            self._after(one.delay + one.jitter * self._rng.random(), act, *given)

    def _broadcast(self, model: GlobalModel) -> None:
        for name in self.participants:
            if name not in self._finished:
                self._send(name, self._model_arrives, name, model)

    def _model_arrives(self, name: str, model: GlobalModel) -> None:
        if name in self._finished:
            return
        began, one = self._began.get(name), self.participants[name]
        at = 0.0 if began is None else (self.time - began) / one.seconds
        newer = one.trainer.receive(model, at=at)
        if began is None and newer:
            self._begin(name)

    def _begin(self, name: str) -> None:
        self._began[name] = self.time
        self._after(self.participants[name].seconds, self._round_ends, name)

    def _round_ends(self, name: str) -> None:
        one = self.participants[name]
        # Computed now, when it is known what arrived in the meantime and when.
        update = one.trainer.step()
        del self._began[name]
        if update is None:
            self._leave(name)
            return
        self.rounds[name].append(self.time)
        one.trainer.exchange(acknowledged=update.round)  # what the network loses stays lost
        data = encode(update)
        for _ in range(1 + (self._rng.random() < one.duplication)):
            self._send(name, self._update_arrives, data)
        if one.trainer.exhausted:
            self._finished.add(name)
            self._after(one.delay + one.jitter, self._leave, name)  # no sooner than its last update arrives
        elif not self.synchronous:
            self._begin(name)

    def _leave(self, name: str) -> None:
        self._finished.add(name)
        self.coordinator.leave(name)
        self._broadcast_if_due()  # perhaps the others waited for this one

    def _update_arrives(self, data: bytes) -> None:
        self.coordinator.receive(data)
        self.updates += 1
        self._broadcast_if_due()
        if self._observe is not None and self.updates % self._every == 0:
            self._observe(self.time, self.updates)

    def _broadcast_if_due(self) -> None:
        if self.coordinator.due():
            self._broadcast(self.coordinator.broadcast())
