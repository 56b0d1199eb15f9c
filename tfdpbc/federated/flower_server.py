"""The server on Flower: a ServerApp that runs `loop.Loop` over Flower's message queue, without rounds and without waiting."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

from tfdpbc.federated.flower_client import packed, unpacked
from tfdpbc.federated.flower_missing import explain
from tfdpbc.federated.loop import Reply, open_folder

with explain():
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.serverapp import Grid, ServerApp

app = ServerApp()


class GridLink:
    """Flower's grid as a `loop.Link`.

    Args:
      grid: Flower's.
      ttl: seconds a message lives; one whose node died is reported lost after that.
    """

    def __init__(self, grid: Grid, ttl: float = 30.0):
        self._grid, self._ttl = grid, ttl
        self._sent: dict[str, int] = {}

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
        for message in self._grid.pull_messages(tickets) if tickets else ():
            ticket = message.metadata.reply_to_message_id
            yield _reply(message, ticket, self._sent.pop(ticket, message.metadata.src_node_id))


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
    i = 0
    while f"update{i}" in message.content:
        try:
            yield unpacked(message.content[f"update{i}"])
        except Exception:  # as above; the coordinator counts it as malformed
            yield None
        i += 1


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the server of the folder named in the run's configuration to its end."""

    def tell(line: str) -> None:
        sys.stdout.write(f"[server] {line}\n")
        sys.stdout.flush()

    tell("ended: " + open_folder(str(context.run_config["folder"]), GridLink(grid), tell).run())
