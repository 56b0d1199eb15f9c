"""The server on Flower: a ServerApp that runs `loop.Loop` over Flower's message queue, without rounds and without waiting."""

from __future__ import annotations

import itertools
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tfdpbc.federated.flower_client import packed, unpacked
from tfdpbc.federated.flower_missing import explain
from tfdpbc.federated.loop import FAILED, Reply, open_folder
from tfdpbc.federated.socket import parts_of

with explain():
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.serverapp import Grid, ServerApp

AT_ONCE, FETCH_SECONDS = 8, 0.25
"""How many replies a turn asks for, and how long it waits for them."""

app = ServerApp()


class GridLink:
    """Flower's grid as a `loop.Link`.

    A node that announces a reply and dies before all of it is there makes Flower wait for the rest, minutes long; one whose
    reply cannot be read makes it raise. So each reply is fetched by itself, in a thread that nobody waits for.

    Args:
      grid: Flower's.
      ttl: seconds a message lives; one whose node died is reported lost after that.
    """

    def __init__(self, grid: Grid, ttl: float = 30.0):
        self._grid, self._ttl = grid, ttl
        self._sent: dict[str, int] = {}
        self._fetching: dict[str, threading.Thread] = {}
        self._fetched: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._asked = itertools.count()
        self._order: dict[str, int] = {}  # tickets that were asked for longest ago come first

    def nodes(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def send(self, node: int, header: dict[str, Any], payload: bytes) -> str | None:
        content = RecordDict({"request": ConfigRecord({"header": json.dumps(header)})})
        if payload:
            content["model"] = packed(payload)
        message = Message(content, dst_node_id=node, message_type="query", ttl=self._ttl)
        tickets = [ticket for ticket in self._grid.push_messages([message]) if ticket]
        if not tickets:
            return None
        self._sent[tickets[0]] = node
        return tickets[0]

    def replies(self, tickets: list[str]) -> Iterable[Reply]:
        idle = [ticket for ticket in tickets if ticket not in self._fetching]
        begun = []
        for ticket in sorted(idle, key=lambda one: self._order.get(one, -1))[:AT_ONCE]:
            self._order[ticket] = next(self._asked)
            self._fetching[ticket] = threading.Thread(target=self._fetch, args=(ticket,), daemon=True)
            self._fetching[ticket].start()
            begun.append(self._fetching[ticket])
        until = time.monotonic() + FETCH_SECONDS
        for thread in begun:
            thread.join(max(0.0, until - time.monotonic()))
        self._fetching = {ticket: thread for ticket, thread in self._fetching.items() if thread.is_alive()}
        self._order = {ticket: at for ticket, at in self._order.items() if ticket in tickets}
        while not self._fetched.empty():
            reply = self._fetched.get()
            self._sent.pop(reply.ticket, None)
            yield reply

    def _fetch(self, ticket: str) -> None:
        node = self._sent.get(ticket)
        try:
            for message in self._grid.pull_messages([ticket]):
                self._fetched.put(_reply(message, ticket, message.metadata.src_node_id if node is None else node))
        except Exception:  # what came is no message, or the super-link is away: the node is asked again
            self._fetched.put(Reply(ticket, node))


def _reply(message: Message, ticket: str, node: int) -> Reply:
    if message.has_error():
        return Reply(ticket, node)
    try:
        header = json.loads(message.content["reply"]["header"])
    except Exception:  # whatever a node that is no courier of ours may send
        header = None
    if not isinstance(header, dict) or "error" in header:
        return Reply(ticket, node)
    return Reply(ticket, node, header, tuple(_parts(message)))


def _parts(message: Message) -> Iterable[bytes | None]:
    if "updates" not in message.content:
        return ()
    try:
        return parts_of(unpacked(message.content["updates"]))
    except Exception:  # as above; the coordinator counts it as malformed
        return (None,)


def _end_with_super_link() -> None:
    """The super-link runs apps in a session of their own: one that waits for a node's reply would outlive it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)  # the checkpoint is whole at any time, and what is not in it comes again

    threading.Thread(target=watch, daemon=True).start()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the server of the folder named in the run's configuration to its end."""

    def tell(line: str) -> None:
        sys.stdout.write(f"[server] {line}\n")
        sys.stdout.flush()

    _end_with_super_link()
    folder = Path(str(context.run_config["folder"]))
    try:
        tell("ended: " + open_folder(folder, GridLink(grid), tell).run())
    except Exception as error:
        (folder / FAILED).write_text(f"{type(error).__name__}: {error}")  # for whoever started the super-link
        raise
