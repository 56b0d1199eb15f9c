"""The server's side of paper A: adds clients' updates as they come and says when to broadcast. numpy only.

A `Coordinator` knows nothing of networks. The transports (`flower_server`, the in-process simulator) hand it what arrived
and send what it gives back.
"""

from __future__ import annotations

import collections
import enum
import json
import math
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfdpbc import _validate
from tfdpbc.errors import MalformedMessage, RunFolderError
from tfdpbc.federated import files
from tfdpbc.federated.log import UpdateLog, digest
from tfdpbc.federated.messages import GlobalModel, Update, check_update, decode, is_client_name
from tfdpbc.federated.rounds import RoundSet

FORMAT = 1
MAX_CLIENTS = 100_000
AGGREGATORS = ("sum", "trimmed")
STALENESS: dict[str, Callable[[int], float]] = {
    "constant": lambda lag: 1.0,
    "polynomial": lambda lag: (1.0 + lag) ** -0.5,
}


class Outcome(enum.Enum):
    """What became of something received; only `ACCEPTED` changes the model."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    LATE = "late"
    MALFORMED = "malformed"
    NEGATIVE_ROUND = "negative-round"
    WRONG_SHAPE = "wrong-shape"
    WRONG_TYPE = "wrong-type"
    NON_FINITE = "non-finite"
    TOO_LARGE = "too-large"
    FROM_THE_FUTURE = "from-the-future"
    UNKNOWN_CLIENT = "unknown-client"
    WRONG_SENDER = "wrong-sender"


class Coordinator:
    """Holds the global model; adds what clients send; says when to broadcast.

    Nothing a client can send raises an error or stops it: `receive` answers with an `Outcome` and counts it. Updates may
    come late, out of order, twice or never. Between broadcasts sums are kept in double precision.

    Args:
        initial_weights: The released variables' values, in `PrivateModel`'s order.
        share: In (0, 1]; a broadcast is due once new updates of this share of the active clients arrived.
        client_weights: Factor per client name (1 for those not named). A mapping name → factor > 0, or None.
        staleness: Factor for an update whose base is `lag` broadcasts old: None (as in the paper) and "constant": 1;
            "polynomial": (1 + lag)^(−1/2) (Xie et al. 2019, FedAsync); or a function of the lag that returns a factor >= 0.
            An update made before the first global model reached its client counts as based on version 0.
        max_norm: Updates of a larger Euclidean norm are refused; of all that may arrive, the honest ones must fit.
        max_lag: Updates with a larger lag are not added ("late"); None: all are.
        aggregator: "sum": updates are added as they come. "trimmed": they are gathered per client until the broadcast,
            then the sums of the `trim` clients with the largest norms are left out (algorithm.md, TSUM_F). It guards
            against few clients that send large wrong updates; it adds no privacy and needs none, since what arrives is
            private already. A client that is much faster than the others is trimmed as well.
        trim: F >= 0, for "trimmed".
        clients: The names that may send, or None: any name.
        senders: Name → sender (node id) that alone may use the name, as known from registered keys; or None.
        log: A file for one JSON line per update received (see `tfdpbc.federated.log`), or None.

    Formal guarantee: what the server does is post-processing of the clients' noisy updates; it costs no client anything.
    """

    def __init__(
        self,
        initial_weights: Sequence[np.ndarray],
        *,
        max_norm: float,
        share: float = 1.0,
        client_weights: Mapping[str, float] | None = None,
        staleness: str | Callable[[int], float] | None = None,
        max_lag: int | None = None,
        aggregator: str = "sum",
        trim: int = 1,
        clients: Iterable[str] | None = None,
        senders: Mapping[str, Any] | None = None,
        log: Any = None,
    ):
        self._weights = [np.array(weight, np.float64) for weight in initial_weights]
        if not self._weights or not all(np.isfinite(weight).all() for weight in self._weights):
            _validate.fail("initial_weights", "arrays of finite numbers, at least one", initial_weights)
        self.shapes = [weight.shape for weight in self._weights]
        self.max_norm = _validate.number("max_norm", max_norm, above=0)
        self.share = _validate.probability("share", share, one=True)
        self.max_lag = None if max_lag is None else _validate.integer("max_lag", max_lag, at_least=0)
        self.aggregator = _validate.choice("aggregator", aggregator, AGGREGATORS)
        self.trim = _validate.integer("trim", trim, at_least=0)
        self._factors = _factors(client_weights)
        if not callable(staleness) and staleness is not None:
            _validate.choice("staleness", staleness, sorted(STALENESS))
        self._staleness = staleness if callable(staleness) else STALENESS[staleness or "constant"]
        self.clients = None if clients is None else frozenset(clients)
        for name in self.clients or ():
            if not is_client_name(name):
                _validate.fail("clients", "names of letters, digits and ._-", name)
        self._senders = None if senders is None else dict(senders)
        self._log = None if log is None else UpdateLog(log)

        self.version = 0
        self._sent = self._rounded()  # what the version number stands for
        self._seen: dict[str, RoundSet] = {}
        self._handled: dict[str, int] = {}  # highest round that arrived, whatever became of it
        self._active: set[str] = set()
        self._fresh: set[str] = set()
        self._gathered: dict[str, list[np.ndarray]] = {}
        self.counts: collections.Counter[str] = collections.Counter()
        self.client_counts: dict[str, collections.Counter[str]] = {}

    # What comes in.

    def receive(self, message: bytes | Update, sender: Any = None) -> Outcome:
        """Judges and counts what arrived; adds it if it is an acceptable new update. Never raises on what a client sent.

        Args:
            message: An encoded or decoded update.
            sender: Whom the transport got it from, compared with `senders`.
        """
        update = message
        if not isinstance(update, Update):
            try:
                update = decode(message)
            except MalformedMessage:
                update = None
        if not isinstance(update, Update):
            return self._count(None, Outcome.MALFORMED, sender)
        outcome = self._judge(update, sender)
        if outcome is Outcome.ACCEPTED:
            self._add(update)
        # One from the future stays unacknowledged: this server lost its own past, and the client must not burn its plan on it.
        if outcome not in (Outcome.UNKNOWN_CLIENT, Outcome.WRONG_SENDER, Outcome.FROM_THE_FUTURE):
            self._handled[update.client] = max(update.round, self._handled.get(update.client, update.round))
        return self._count(update, outcome, sender)

    def _judge(self, update: Update, sender: Any) -> Outcome:
        full = len(self._seen) >= MAX_CLIENTS and update.client not in self._seen
        if full or (self.clients is not None and update.client not in self.clients):
            return Outcome.UNKNOWN_CLIENT
        if self._senders is not None and self._senders.get(update.client) != sender:
            return Outcome.WRONG_SENDER
        reason = check_update(update, self.shapes, self.max_norm)
        if reason is not None:
            return Outcome(reason)
        if update.base_version > self.version:
            return Outcome.FROM_THE_FUTURE
        # Refused so far: a correct copy may still come, so the round does not count as seen.
        if not self._seen.setdefault(update.client, RoundSet()).add(update.round):
            return Outcome.DUPLICATE
        late = self.max_lag is not None and self._lag(update) > self.max_lag
        return Outcome.LATE if late else Outcome.ACCEPTED

    def _lag(self, update: Update) -> int:
        return self.version - max(update.base_version, 0)

    def _add(self, update: Update) -> None:
        factor = self._factors.get(update.client, 1.0)
        factor *= _validate.number("staleness(lag)", self._staleness(self._lag(update)), at_least=0)
        into = self._weights
        if self.aggregator == "trimmed":
            into = self._gathered.setdefault(update.client, [np.zeros(shape) for shape in self.shapes])
        for total, step in zip(into, update.weights, strict=True):
            total += factor * step.astype(np.float64)
        self._active.add(update.client)
        self._fresh.add(update.client)

    def _count(self, update: Update | None, outcome: Outcome, sender: Any) -> Outcome:
        self.counts[outcome.value] += 1
        # Only names that may be: a stranger must not fill the table.
        if update is not None and update.client in self._seen:
            self.client_counts.setdefault(update.client, collections.Counter())[outcome.value] += 1
        if self._log is not None:
            told = {"sender": sender} if isinstance(sender, int | str) else {}
            if update is not None:
                told |= {"client": update.client, "round": update.round, "base": update.base_version}
                told["digest"] = digest(update.weights)
            self._log.write(time=time.time(), version=self.version, outcome=outcome.value, **told)
        return outcome

    def join(self, client: str) -> None:
        """Counts `client` among the active ones before its first update: a broadcast then waits for it as well."""
        if not is_client_name(client):
            _validate.fail("client", "a name of letters, digits and ._-", client)
        self._active.add(client)

    def leave(self, client: str) -> None:
        """No broadcast waits for `client` any more; what it sent stays, and so does what is known of its rounds."""
        self._active.discard(client)

    def may_send(self, client: str, sender: Any) -> bool:
        """Whether `sender` may use this name."""
        allowed = self.clients is None or client in self.clients
        return allowed and (self._senders is None or self._senders.get(client) == sender)

    # What goes out.

    @property
    def fresh(self) -> frozenset[str]:
        """The clients with new updates since the last broadcast."""
        return frozenset(self._fresh)

    @property
    def known(self) -> frozenset[str]:
        """The clients that ever sent something."""
        return frozenset(self._handled)

    @property
    def active(self) -> frozenset[str]:
        """The clients that broadcasts wait for."""
        return frozenset(self._active)

    def due(self) -> bool:
        """Whether new updates of the stated share of the clients arrived since the last broadcast.

        The clients are the active ones and those that left after sending something new.
        """
        needed = max(1, math.ceil(self.share * len(self._active | self._fresh) - 1e-9))
        return len(self._fresh) >= needed

    def broadcast(self) -> GlobalModel:
        """Makes what arrived so far the next version of the global model."""
        if self.aggregator == "trimmed":
            self._add_trimmed()
        self.version += 1
        self._fresh.clear()
        self._sent = self._rounded()
        # Clients go on from what was sent. With an update a broadcast the sum is then the client's own in float32, to the
        # last bit (rounding a double precision sum of two floats once more is innocuous).
        self._weights = [weight.astype(np.float64) for weight in self._sent]
        return self.model

    def _add_trimmed(self) -> None:
        sums = sorted(self._gathered.items())
        norms = [math.sqrt(sum(float(np.sum(np.square(total))) for total in totals)) for _, totals in sums]
        kept = sorted(range(len(sums)), key=lambda i: norms[i])[: max(0, len(sums) - self.trim)]
        for i in kept:
            for weight, total in zip(self._weights, sums[i][1], strict=True):
                weight += total
        self._gathered.clear()

    @property
    def model(self) -> GlobalModel:
        """The last version broadcast (the initial model at first)."""
        return GlobalModel(self.version, self._sent)

    @property
    def weights(self) -> tuple[np.ndarray, ...]:
        """The model with all that was added until now, float32 (with "trimmed": until the last broadcast)."""
        return self._rounded()

    def acknowledged(self, client: str) -> int:
        """The highest round that arrived from `client`, 0 before the first; report it only after `save`.

        A trainer sends what is not acknowledged oldest first, so all that it would still send up to this round arrived.
        """
        return max(0, self._handled.get(client, 0))

    def missing(self, client: str) -> int:
        """Rounds of `client` that never arrived, before its latest one."""
        return self._seen[client].missing() if client in self._seen else 0

    def _rounded(self) -> tuple[np.ndarray, ...]:
        with np.errstate(over="ignore"):
            rounded = tuple(weight.astype(np.float32) for weight in self._weights)
        for weight in rounded:
            weight.setflags(write=False)
        return rounded

    # Checkpoints.

    def save(self, path: Any) -> None:
        """Writes the state; the file is whole at any time, and on the disk when this returns."""
        state = {
            "format": FORMAT,
            "version": self.version,
            "seen": {client: rounds.intervals for client, rounds in self._seen.items()},
            "handled": self._handled,
            "active": sorted(self._active),
            "fresh": sorted(self._fresh),
            "gathered": sorted(self._gathered),
            "counts": self.counts,
            "client_counts": self.client_counts,
        }
        arrays = {f"weight{i}": weight for i, weight in enumerate(self._weights)}
        arrays |= {f"sent{i}": weight for i, weight in enumerate(self._sent)}
        for j, client in enumerate(state["gathered"]):
            arrays |= {f"gathered{j}_{i}": total for i, total in enumerate(self._gathered[client])}
        text = np.frombuffer(json.dumps(state).encode(), np.uint8)
        files.write_atomically(path, lambda file: np.savez(file, state=text, **arrays))

    def load(self, path: Any) -> Coordinator:
        """Goes on from what `save` wrote; settings are this object's own. Returns itself.

        Raises:
            RunFolderError: The file is missing, damaged or of another model; nothing changed.
        """
        try:
            with np.load(Path(path), allow_pickle=False) as file:
                state = json.loads(file["state"].tobytes())
                if state["format"] != FORMAT:
                    raise ValueError(f"format {state['format']}")
                weights = [self._array(file, f"weight{i}", np.float64, i) for i in range(len(self.shapes))]
                sent = [self._array(file, f"sent{i}", np.float32, i) for i in range(len(self.shapes))]
                gathered = {
                    client: [self._array(file, f"gathered{j}_{i}", np.float64, i) for i in range(len(self.shapes))]
                    for j, client in enumerate(state["gathered"])
                }
            seen = {client: RoundSet(intervals) for client, intervals in state["seen"].items()}
            counts = collections.Counter(state["counts"])
            client_counts = {client: collections.Counter(found) for client, found in state["client_counts"].items()}
            version = _validate.integer("version", state["version"], at_least=0)
            handled = {client: int(number) for client, number in state["handled"].items()}
            active, fresh = set(state["active"]), set(state["fresh"])
        except FileNotFoundError as error:
            raise RunFolderError(f"no checkpoint at {path}") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
            raise RunFolderError(f"the checkpoint {path} is damaged or of another model: {error}") from error
        self._weights, self._sent, self._gathered = weights, tuple(sent), gathered
        self._seen, self._handled, self.counts, self.client_counts = seen, handled, counts, client_counts
        self.version, self._active, self._fresh = version, active, fresh
        return self

    def _array(self, file: Any, name: str, dtype: Any, i: int) -> np.ndarray:
        array = file[name]
        if array.shape != self.shapes[i] or array.dtype != dtype:
            raise ValueError(f"{name} has shape {array.shape}")
        return array


def _factors(client_weights: Mapping[str, float] | None) -> dict[str, float]:
    return {
        client: _validate.number(f"client_weights[{client!r}]", factor, above=0)
        for client, factor in (client_weights or {}).items()
    }
