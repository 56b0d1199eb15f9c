"""A client's node: ``python -m tfdpbc.federated.node`` speaks to a super-link and runs this package's courier, nothing else.

Flower's own super-node fetches the app that a message belongs to from the super-link and runs it, so whoever submits an app
there runs code here, beside the data. This node uses Flower's connection (TLS, the registered key, heartbeats, retries) and
hands every message to `flower_client.app`, whatever app it belongs to. It never asks for an app, so none can come. What a
super-link can do here is what `carry` does with its bytes: hand the trainer a model, ask for steps, acknowledge some.
"""

from __future__ import annotations

import argparse
import functools
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdpbc.errors import MalformedMessage
from tfdpbc.federated import keys
from tfdpbc.federated.flower_missing import explain
from tfdpbc.federated.messages import MAX_BYTES
from tfdpbc.federated.processes import end_with_parent

with explain():
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, ErrorCode
    from flwr.supercore import heartbeat
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
    from flwr.supercore.run import RunNotRunningException
    from flwr.supernode import fleet_http_connection

    from tfdpbc.federated import flower_client

IDLE_SECONDS, FAILED_SECONDS = 0.5, 3.0
"""Between two questions to the super-link where it had nothing, or where something failed."""
MAX_OBJECTS = 1024
"""Pieces of a message; Flower cuts arrays into some of 5 MiB."""
OVERHEAD = 1 << 20
"""Bytes that Flower puts around `MAX_BYTES` of ours."""


class Node:
    """Answers messages over one connection.

    Args:
      connection: what Flower's `http_request_response` yields.
      directory: of the trainer.
      tell: is called with a line for each message that was refused.
    """

    def __init__(self, connection: Any, directory: Any, tell: Callable[[str], None] = lambda line: None):
        self.id, self._receive, self._send, _, _, self._pull, self._push, self._confirm = connection
        self._config, self._tell = {"trainer": str(directory)}, tell
        self.finished = False
        """Whether the super-link has the reply by which the trainer says that there is nothing more to come."""

    def turn(self) -> float:
        """Answers a message, if there is one; seconds until the next turn. A message that makes no sense ends nothing."""
        try:
            found = self._receive()
            if found is None:
                return IDLE_SECONDS
            message = self._whole(*found)
            begun = time.monotonic()
            reply = self._answer(message)
            last = _says_finished(reply)
            self._reply(reply, time.monotonic() - begun)
            self.finished = last
            return 0.0
        except (
            Exception,
            RunNotRunningException,
        ) as error:  # the latter, a BaseException, after a super-link's restart
            self._tell(f"message not answered: {error!r}"[:500])
            return FAILED_SECONDS

    def _whole(self, announced: Message, tree: Any) -> Message:
        """The message with its content, which is fetched piece by piece."""
        run, total = announced.metadata.run_id, [0]
        if sum(1 for _ in iterate_object_tree(tree)) > MAX_OBJECTS:
            raise MalformedMessage(f"a message has at most {MAX_OBJECTS} pieces")

        def pull(piece: str) -> bytes:
            content = self._pull(run, piece)
            total[0] += len(content)
            if total[0] > MAX_BYTES + OVERHEAD:
                raise MalformedMessage(f"a message has at most {MAX_BYTES} bytes")
            return content

        confirm = functools.partial(self._confirm, run)
        message = pull_and_inflate_object_from_tree(tree, pull, confirm, return_type=Message)
        message.metadata.__dict__["_message_id"] = tree.object_id  # what the reply refers to; Flower sets it so, too
        return message

    def _answer(self, message: Message) -> Message:
        run = message.metadata.run_id
        context = Context(run_id=run, node_id=self.id, node_config=self._config, state=RecordDict(), run_config={})
        try:
            return flower_client.app(message, context)
        except Exception as error:
            self._tell(f"message refused: {error!r}"[:500])
            refused = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "this node runs the courier of tfdpbc only")
            return Message(refused, reply_to=message)

    def _reply(self, reply: Message, seconds: float) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        wanted, session = self._send(reply, get_object_tree(reply), seconds)
        push = functools.partial(self._push, reply.metadata.run_id, session)
        push_objects(get_all_nested_objects(reply), push, object_ids_to_push=wanted)


def connect(*given: Any) -> Any:
    """Flower's `http_request_response`, with heartbeats as often as a super-link takes them. It counts a node as online, waits
    for it and refuses its successor until two are missing: 20 s instead of 60 after a ``kill -9``."""
    for module in (fleet_http_connection, heartbeat):
        module.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT_MIN_INTERVAL
    return fleet_http_connection.http_request_response(*given)


def _says_finished(reply: Message) -> bool:
    return reply.has_content() and json.loads(reply.content["reply"]["header"]).get("finished") is True


def main(arguments: list[str] | None = None) -> int:
    """Runs a node until its client has finished or SIGTERM (0), or until the super-link does not know its key (1)."""
    end_with_parent()
    parser = argparse.ArgumentParser(prog="tfdpbc.federated.node")
    parser.add_argument("--server", required=True, help="HOST:PORT of the super-link")
    parser.add_argument("--trainer", required=True, help="folder of the trainer")
    parser.add_argument("--ca", type=Path, help="certificate that signed the super-link's; without one, in the clear")
    parser.add_argument("--key", type=Path, help="private key of this node")
    given = parser.parse_args(arguments)
    certificate, pair = None if given.ca is None else given.ca.read_bytes(), None
    if given.key is not None:
        private = keys.read_private(given.key)
        pair = private, private.public_key()

    def tell(line: str) -> None:
        sys.stderr.write(f"[node] {line}\n")
        sys.stderr.flush()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with connect(given.server, certificate is None, certificate, pair) as connection:
            node = Node(connection, Path(given.trainer).resolve(), tell)
            tell(f"node {node.id} at {given.server}")
            while not node.finished:
                time.sleep(node.turn())
            return 0
    except KeyboardInterrupt:  # Flower's way to say it
        tell("the super-link does not know this node's key (any more)")
    return 1  # Flower has logged why the connection ended


if __name__ == "__main__":
    sys.exit(main())
