"""The server's loop: asks every idle node for updates, adds what comes, broadcasts when due. Without Flower.

Nodes may leave, die and join at any time; a node that does not answer is asked again when the transport says it is there.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

from tfdpbc import _validate
from tfdpbc.errors import RunFolderError
from tfdpbc.federated import files
from tfdpbc.federated.coordinator import Coordinator
from tfdpbc.federated.messages import MAX_INTEGER, GlobalModel, decode, encode, is_client_name

LOCK_SECONDS = 60.0
CHECKPOINT, LOG, INITIAL, SETTINGS, RESULT = "server.npz", "updates.jsonl", "initial.bin", "server.json", "result.json"
FINISHED, LOCK, FAILED = "finished.json", "lock", "failed.txt"


@dataclasses.dataclass(frozen=True)
class Reply:
    """What came back for a request: from `node`, for the request `ticket`; `header` is None where it failed."""

    ticket: Any
    node: Any
    header: dict[str, Any] | None = None
    parts: tuple[Any, ...] = ()


class Link(Protocol):
    """A transport, as the loop sees it. Replies may come in any order, twice, late or never."""

    def nodes(self) -> Iterable[Any]:
        """The nodes that are there."""

    def send(self, node: Any, header: dict[str, Any], payload: bytes) -> Any:
        """Hands a request to a node; a ticket, or None if it could not be sent."""

    def replies(self, tickets: list[Any]) -> Iterable[Reply]:
        """The replies that are there, without waiting."""


@dataclasses.dataclass
class Settings:
    """When the loop ends and how it asks.

    Attributes:
      clients: names of all clients; the loop ends when each has finished its plan. Empty: it does not end by that.
      max_updates, max_seconds: other ends; None: none. Seconds count per process, updates over resumed ones.
      linger: seconds between what a courier brings (model, acknowledgement) and what it takes along, so that a message is
        worth its cost: Flower starts a process for each.
      wait: seconds a courier waits for an update where there is none.
      most: updates a reply holds at most.
      pause: seconds between two requests to a node.
      save_seconds: least time between two checkpoints (which is longer where writing one takes long). Nothing is lost with
        the server: what is not on its disk is not acknowledged, and clients send it again.
      lost_seconds: a request that is not answered in this time is given up.
    """

    clients: tuple[str, ...] = ()
    max_updates: int | None = None
    max_seconds: float | None = None
    linger: float = 0.5
    wait: float = 1.0
    most: int = 64
    pause: float = 0.2
    save_seconds: float = 0.0
    lost_seconds: float = 60.0

    def __post_init__(self):
        for name in ("max_updates", "max_seconds"):
            if getattr(self, name) is not None:
                _validate.number(name, getattr(self, name), above=0)


class Loop:
    """See the module.

    Args:
      coordinator: holds the model; a checkpoint in `folder` is loaded into it.
      link: the transport.
      folder: for the checkpoint, the names of the clients that have finished, and the result.
      tell: is called with a line where something happens.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        link: Link,
        folder: Any,
        settings: Settings | None = None,
        tell: Callable[[str], None] = lambda line: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self.coordinator, self.link, self.folder = coordinator, link, Path(folder)
        self.settings, self.tell, self._clock, self._sleep = settings or Settings(), tell, clock, sleep
        self.finished = _read_finished(self.folder / FINISHED)
        self.lost = 0
        self.held: Any = None  # a lock, as long as this object lives
        self._waiting: dict[Any, tuple[Any, float]] = {}  # ticket → node, when it was asked
        # The same of nodes that left: they may have answered before, and who has finished leaves at once.
        self._orphans: dict[Any, tuple[Any, float]] = {}
        self._names: dict[Any, str] = {}
        self._versions: dict[Any, int] = {}
        self._next: dict[Any, float] = {}
        self._done: set[Any] = set()
        self._acknowledged: dict[str, int] = {}
        self._begun = self._saved = clock()
        self._changed, self._cost = False, 0.0
        if (self.folder / CHECKPOINT).exists():
            coordinator.load(self.folder / CHECKPOINT)
            self.tell(f"resumed at version {coordinator.version}")
        self.save()

    def run(self) -> str:
        """Until an end is reached; says which ("finished", "updates" or "time")."""
        while (reason := self._end()) is None:
            self.turn()
            self._sleep(0.05)
        if self.coordinator.fresh:
            self.coordinator.broadcast()
        self.save()
        self._write_result(reason)
        return reason

    def _end(self) -> str | None:
        s = self.settings
        if s.clients and self.finished >= set(s.clients):
            return "finished"
        if s.max_updates is not None and self.coordinator.counts["accepted"] >= s.max_updates:
            return "updates"
        if s.max_seconds is not None and self._clock() - self._begun >= s.max_seconds:
            return "time"
        return None

    def turn(self) -> None:
        """Asks who is idle, takes what came, broadcasts if due."""
        now = self._clock()
        there = set(self.link.nodes())
        for node in [n for n in self._names if n not in there]:
            self._left(node)
        if self._changed and now - self._saved >= max(self.settings.save_seconds, 10 * self._cost):
            self.save()
        busy = {node for node, _ in self._waiting.values()}
        for node in sorted(there - busy - self._done, key=str):
            if now >= self._next.get(node, 0.0):
                self._ask(node, now)
        for reply in self.link.replies([*self._waiting, *self._orphans]):
            self._take(reply)
        for ticket, (node, since) in list(self._waiting.items()):
            if now - since > self.settings.lost_seconds:
                self._failed(ticket, node)
        lost = self.settings.lost_seconds
        self._orphans = {ticket: asked for ticket, asked in self._orphans.items() if now - asked[1] <= lost}
        if self.coordinator.due():
            version = self.coordinator.broadcast().version
            self.save()  # a version that was sent must never be given to another model
            self.tell(f"version {version}, {self.coordinator.counts['accepted']} updates")

    def _ask(self, node: Any, now: float) -> None:
        s, name = self.settings, self._names.get(node)
        header = {"op": "exchange", "wait": s.wait, "max": s.most, "linger": s.linger}
        header["acknowledged"] = self._acknowledged.get(name, 0)
        model = self.coordinator.model
        # A client that died may hold an older model than it was sent: it says itself which one it has.
        payload = encode(model) if self._versions.get(node) != model.version else b""
        ticket = self.link.send(node, header, payload)
        self._next[node] = now + s.pause
        if ticket is not None:
            self._waiting[ticket] = node, now

    def _take(self, reply: Reply) -> None:
        orphan = self._orphans.pop(reply.ticket, None)
        asked = self._waiting.pop(reply.ticket, orphan)
        node = reply.node if asked is None else asked[0]
        if reply.header is None:
            if orphan is None:
                self._failed(reply.ticket, node)
            return
        for part in reply.parts:
            self.coordinator.receive(part, sender=node)
            self._changed = True
        name, version = reply.header.get("client"), reply.header.get("version")
        if not is_client_name(name) or not self.coordinator.may_send(name, node):
            return
        if name not in self.finished:
            self.coordinator.join(name)
        self._names[node] = name
        self._versions[node] = version if type(version) is int and abs(version) <= MAX_INTEGER else -1
        if reply.header.get("finished") is True and not reply.parts:
            self._done.add(node)
            self._has_finished(name)

    def _has_finished(self, name: str) -> None:
        if name in self.finished:
            return
        self.finished.add(name)
        # On the disk, for its node goes now: a server that is killed will not hear of it again.
        text = json.dumps(sorted(self.finished)).encode()
        files.write_atomically(self.folder / FINISHED, lambda file: file.write(text))
        self.coordinator.leave(name)
        self.tell(f"{name} has finished")

    def _failed(self, ticket: Any, node: Any) -> None:
        self._waiting.pop(ticket, None)
        self._versions.pop(node, None)
        self._next[node] = self._clock() + 1.0
        self.lost += 1
        self.tell(f"no answer from {self._names.get(node, node)}")

    def _left(self, node: Any) -> None:
        name = self._names.pop(node)
        self._versions.pop(node, None)
        for ticket in [ticket for ticket, (asked, _) in self._waiting.items() if asked == node]:
            self._orphans[ticket] = self._waiting.pop(ticket)  # it is asked anew once it is back
        self._done.discard(node)
        if name not in self._names.values() and name not in self.finished:
            self.coordinator.leave(name)
            self.tell(f"{name} has left")

    def save(self) -> None:
        """The checkpoint; from then on what arrived is acknowledged."""
        begun = self._clock()
        self.coordinator.save(self.folder / CHECKPOINT)
        self._cost = self._clock() - begun
        self._acknowledged = {name: self.coordinator.acknowledged(name) for name in self.coordinator.known}
        self._saved, self._changed = self._clock(), False

    def _write_result(self, reason: str) -> None:
        c = self.coordinator
        result = {
            "reason": reason,
            "version": c.version,
            "counts": c.counts,
            "client_counts": c.client_counts,
            "missing": {name: c.missing(name) for name in sorted(c.known)},
            "unanswered": self.lost,
            "seconds": self._clock() - self._begun,
        }
        files.write_atomically(self.folder / RESULT, lambda file: file.write(json.dumps(result, indent=2).encode()))


def prepare(folder: Any, initial: GlobalModel, coordinator: dict[str, Any], loop: dict[str, Any]) -> None:
    """Writes a server's folder: the initial model and the settings, JSON-able, of `Coordinator` and `Settings`.

    Raises:
      ValueError, TypeError: settings that cannot be.
    """
    folder = Path(folder)
    check(initial, coordinator, loop)
    text = json.dumps({"coordinator": coordinator, "loop": loop}, indent=2).encode()
    files.write_atomically(folder / INITIAL, lambda file: file.write(encode(initial)))
    files.write_atomically(folder / SETTINGS, lambda file: file.write(text))


def check(initial: GlobalModel, coordinator: dict[str, Any], loop: dict[str, Any]) -> None:
    """Raises ValueError or TypeError for settings that cannot be."""
    Coordinator(initial.weights, **coordinator)
    Settings(**loop)


def open_folder(folder: Any, link: Link, tell: Callable[[str], None] = lambda line: None) -> Loop:
    """The loop of a folder that `prepare` wrote, resumed if it ran before.

    Raises:
      RunFolderError: the folder is not one, or damaged.
    """
    folder = Path(folder)
    held = _held(folder)
    try:
        initial = decode((folder / INITIAL).read_bytes())
        settings = json.loads((folder / SETTINGS).read_text())
        loop = settings["loop"] | {"clients": tuple(settings["loop"].get("clients", ()))}
        coordinator = Coordinator(initial.weights, log=folder / LOG, **settings["coordinator"])
        opened = Loop(coordinator, link, folder, Settings(**loop), tell)
        opened.held = held
        return opened
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(f"{folder} is no server's folder, or damaged: {error}") from error


def _read_finished(path: Path) -> set[str]:
    if not path.exists():
        return set()
    names = json.loads(path.read_text())
    if not isinstance(names, list) or not all(map(is_client_name, names)):
        raise ValueError(f"{path.name} is no list of clients")
    return set(names)


def _held(folder: Path) -> Any:
    """A lock on the folder: a server that was killed may leave its app running for a moment, and Flower may start it again."""
    try:
        return files.lock(folder / LOCK, LOCK_SECONDS)
    except BlockingIOError:
        raise RunFolderError(f"another server runs in {folder}") from None
    except OSError as error:
        raise RunFolderError(f"{folder} is no server's folder: {error}") from error


def read_initial(folder: Any) -> GlobalModel:
    """The model a server's folder began with.

    Raises:
      RunFolderError: the folder is not one, or damaged.
    """
    try:
        return decode((Path(folder) / INITIAL).read_bytes())
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{folder} is no server's folder: {error}") from error


def last_model(folder: Any) -> GlobalModel:
    """The model of a server's folder as of its last broadcast.

    Raises:
      RunFolderError: the folder is not one, or damaged.
    """
    return Coordinator(read_initial(folder).weights, max_norm=1.0).load(Path(folder) / CHECKPOINT).model
