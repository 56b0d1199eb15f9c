"""Paper A's many clients as data: asynchronous against synchronous rounds, at equal ε for each client. Loads nothing heavy."""

from __future__ import annotations

import dataclasses
from typing import Any

from tfdpbc.experiments.setting import Experiment

NAME = "a-federated"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ManySetting:
    """One network of clients that each train on a part of one data set; times in units of an even client's round.

    Args:
      name: within the experiment.
      clients: how many.
      split: "iid" or "label" (`federated.splits.split`).
      synchronous: whether the server waits for all before each broadcast, and the clients for it.
      slow: what a round of the first client takes; the others' take 1.
      share: of the clients, whose new updates make an asynchronous broadcast due.
      delay: of each message.
      dataset, model: names for `data.load` and `models.build`.
      epsilon, delta: each client's promise, for its own data.
      rounds_per_epoch: an epoch of a client; its batches are Poisson samples of N/rounds_per_epoch expected examples.
      norm, learning_rate, momentum: of each client's DP-SGD; the server adds updates with weight 1/clients.
      epochs: of each client's plan.
    """

    name: str
    clients: int
    split: str
    synchronous: bool
    slow: float = 5.0
    share: float = 0.4
    delay: float = 0.05
    dataset: str = "mnist"
    model: str = "tutorial_cnn"
    epsilon: float = 3.0
    delta: float = 1e-5
    rounds_per_epoch: int = 10
    norm: float = 0.1
    learning_rate: float = 2.0
    momentum: float = 0.9
    epochs: int = 10
    claimed: tuple[float, ...] = ()
    claim: str = "–"
    note: str = ""

    def config(self) -> dict[str, Any]:
        """What the training depends on, JSON-able, but for its scale."""
        left_out = ("name", "epochs", "claimed", "claim", "note")
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in left_out}


def _settings() -> tuple[ManySetting, ...]:
    made = []
    for clients in (5, 50):
        for split in ("iid", "label"):
            for synchronous in (False, True):
                kind = "sync" if synchronous else "async"
                name = f"{clients}-{split}-{kind}"
                made.append(ManySetting(name=name, clients=clients, split=split, synchronous=synchronous))
    even = [dataclasses.replace(one, name=f"{one.name}-even", slow=1.0) for one in made[:2]]
    return (*made, *even)


EXPERIMENT = Experiment(
    name=NAME,
    paper="A",
    title="many clients in simulation: asynchronous against synchronous rounds with one client 5 times slower",
    where="Section 2, asynchronous SGD (Algorithm 1)",
    claim="a slow client holds up nobody where communication is asynchronous; no accuracies are claimed",
    settings=_settings(),
    notes=(
        "Time is virtual: in units of an even client's round, whatever this machine needed. Updates: as they reached the server.",
        "Each client keeps its own promise (add/remove one of its examples), whatever the server and the others do.",
        "Client k's seed is known here; real clients take their randomness from the operating system.",
    ),
)
