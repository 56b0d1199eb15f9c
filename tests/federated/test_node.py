"""The node runs this package's courier on whatever a super-link sends, and never asks for an app."""

import contextlib
import json
import subprocess
import sys
import threading

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.proto.fleet_pb2 import ActivateNodeResponse
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatResponse
from flwr.supercore import heartbeat
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import generate_key_pairs
from flwr.supercore.run import RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import fleet_http_connection

from tfdpbc.federated import node as module
from tfdpbc.federated.flower_client import packed, unpacked
from tfdpbc.federated.messages import GlobalModel, Update, decode, encode
from tfdpbc.federated.node import Node
from tfdpbc.federated.socket import Server, parts_of

STEP = encode(Update("a", 1, 0, (np.float32([1, 2]),)))
MODEL = encode(GlobalModel(0, (np.float32([0, 0]),)))


class Link:
    """A super-link that holds one message for the node, as Flower's connection shows it."""

    def __init__(self, message=None, lie=lambda tree: tree, size=lambda content: content):
        self.waiting, self.replies, self.pieces, self.asked = message, [], {}, []
        self.lie, self.size = lie, size
        confirm = lambda run, piece: self.asked.append((run, piece))  # noqa: E731
        unused = self.forbidden, self.forbidden
        self.connection = (7, self.receive, self.send, *unused, self.pull, self.push, confirm)

    def forbidden(self, *_):
        raise AssertionError("the node asked for a run or an app")

    def receive(self):
        if self.waiting is None:
            return None
        message, self.waiting = self.waiting, None
        message.metadata.__dict__["_message_id"] = message.object_id
        self.contents = {key: one.deflate() for key, one in get_all_nested_objects(message).items()}
        return remove_content_from_message(message), self.lie(get_object_tree(message))

    def pull(self, run, piece):
        return self.size(self.contents[piece])

    def send(self, message, tree, seconds):
        assert seconds >= 0
        self.root = tree.object_id
        if message.has_error():
            self.replies.append(message)
        return set(get_all_nested_objects(message)), "session"

    def push(self, run, session, piece, content):
        assert session == "session"
        self.pieces[piece] = content

    @property
    def reply(self):
        return inflate_object_from_contents(self.root, dict(self.pieces))


def message(header, payload=b"", kind="query"):
    content = RecordDict(
        {"request": ConfigRecord({"header": json.dumps(header) if isinstance(header, dict) else header})}
    )
    if payload:
        content["model"] = packed(payload)
    return from_server(content, kind)


def from_server(content, kind="query"):
    return Message(content, dst_node_id=7, message_type=kind, ttl=30.0)


@pytest.fixture(autouse=True)
def server_identity(monkeypatch):
    """Messages are made here as the server makes them, in a process that has a run."""
    for name, value in (("_task_id", 1), ("_run_id", 3), ("_node_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)


@pytest.fixture
def trainer(tmp_path):
    """A stand-in behind a real socket; `trainer.seen` is what it was asked, `trainer.says` the facts it answers."""
    seen, says = [], {"client": "a", "finished": False}

    def answer(header, payload):
        seen.append((header, payload))
        return says, [] if says["finished"] else [STEP]

    server = Server(tmp_path / "t", answer)
    server.seen, server.says, server.folder = seen, says, tmp_path / "t"
    yield server
    server.close()


def test_a_message_is_carried_to_the_trainer_and_back(trainer):
    link = Link(message({"op": "stop", "wait": 0.0, "max": 5, "acknowledged": 0}, MODEL))
    node = Node(link.connection, trainer.folder)
    assert node.turn() == 0.0 and not node.finished
    # Whatever the server calls it, it is an exchange.
    assert trainer.seen == [({"op": "exchange", "wait": 0.0, "max": 5, "acknowledged": 0}, MODEL)]
    assert json.loads(link.reply.content["reply"]["header"])["client"] == "a"
    (step,) = parts_of(unpacked(link.reply.content["updates"]))
    assert decode(step).round == 1
    assert link.reply.metadata.reply_to_message_id == link.asked[0][1] and link.asked[0][0] == 3
    assert node.turn() == module.IDLE_SECONDS  # nothing more


def test_it_ends_when_the_server_has_heard_that_its_client_has_finished(trainer):
    trainer.says["finished"] = True
    link = Link(message({"wait": 0.0, "max": 5, "acknowledged": 0}))
    node = Node(link.connection, trainer.folder)
    node._push = None  # the reply does not get through
    node.turn()
    assert not node.finished
    link.waiting, node._push = message({"wait": 0.0, "max": 5, "acknowledged": 0}), link.push
    node.turn()
    assert node.finished


@pytest.mark.parametrize(
    "foreign",
    [
        lambda: message({}, kind="train"),
        lambda: message({}, kind="query.exec"),
        lambda: message("[]"),
        lambda: message("{"),
        lambda: message("[" * 100_000),
        lambda: message({"linger": "long"}),
        lambda: message({"linger": float("nan")}),
        lambda: message({"wait": "x"}),
        lambda: from_server(RecordDict()),
        lambda: from_server(RecordDict({"request": packed(b"x")})),
        lambda: from_server(RecordDict({"request": ConfigRecord({"header": "{}"}), "model": ConfigRecord({})})),
    ],
    ids=range(11),
)
def test_what_another_app_may_send_is_refused_and_runs_nothing(trainer, foreign):
    """No app is fetched (`Link.forbidden`), the server hears of a refusal, the node goes on."""
    told, link = [], Link(foreign())
    node = Node(link.connection, trainer.folder, told.append)
    assert node.turn() == 0.0
    assert "courier of tfdpbc only" in link.replies[0].error.reason and "refused" in told[0]
    link.waiting = message({"wait": 0.0, "max": 1, "acknowledged": 0})
    assert node.turn() == 0.0 and json.loads(link.reply.content["reply"]["header"])["client"] == "a"


def test_a_message_of_a_run_that_is_over_ends_nothing(trainer):
    """What a super-link that was killed had sent; Flower's error for it is no `Exception`."""
    told, link = [], Link(message({"wait": 0.0, "max": 1, "acknowledged": 0}))
    node = Node(link.connection, trainer.folder, told.append)
    pull, node._pull = node._pull, over
    assert node.turn() == module.FAILED_SECONDS and not trainer.seen
    link.waiting, node._pull = message({"wait": 0.0, "max": 1, "acknowledged": 0}), pull
    assert node.turn() == 0.0 and trainer.seen and "RunNotRunning" in told[0]


def over(run, piece):
    raise RunNotRunningException


def many(tree):
    for _ in range(module.MAX_OBJECTS):
        tree.children.add().object_id = "0" * 64
    return tree


@pytest.mark.parametrize(
    "lies", [{"lie": many}, {"size": lambda content: bytes(module.OVERHEAD)}, {"size": lambda content: content[:-1]}]
)
def test_messages_of_no_size_are_given_up(trainer, monkeypatch, lies):
    monkeypatch.setattr(module, "MAX_BYTES", 1 << 10)
    told, link = [], Link(message({"wait": 0.0, "max": 1, "acknowledged": 0}, MODEL), **lies)
    node = Node(link.connection, trainer.folder, told.append)
    assert node.turn() == module.FAILED_SECONDS
    assert len(told) == 1 and not trainer.seen and not link.pieces
    link.waiting, link.lie, link.size = message({"wait": 0.0}), lambda tree: tree, lambda content: content
    assert node.turn() == 0.0 and trainer.seen


def test_heartbeats_as_often_as_a_super_link_takes_them(monkeypatch):
    """So that a client that was killed is back after 20 s; both of Flower's modules are told, under names it still has."""
    for flowers in (fleet_http_connection, heartbeat):
        monkeypatch.setattr(flowers, "HEARTBEAT_DEFAULT_INTERVAL", 30)
    told, beaten = [], threading.Event()

    class Client(contextlib.nullcontext):
        def ActivateNode(self, request):
            told.append(request.heartbeat_interval)
            return ActivateNodeResponse(node_id=7)

        def SendNodeHeartbeat(self, request):
            told.append(request.heartbeat_interval)
            beaten.set()
            return SendNodeHeartbeatResponse(success=True)

        def DeactivateNode(self, request):
            told.append(request.node_id)

    client = Client()
    client.enter_result = client
    monkeypatch.setattr(fleet_http_connection.FleetHttpClient, "from_server_address", lambda *given, **named: client)
    with module.connect("127.0.0.1:1", True, None, generate_key_pairs()) as connection:
        assert connection[0] == 7 and beaten.wait(30)
    assert told == [10, 10, 7] and heartbeat.HEARTBEAT_DEFAULT_INTERVAL == 10


def test_a_trainer_that_is_away_is_said_so_without_paths(tmp_path):
    link = Link(message({"wait": 0.0, "max": 1, "acknowledged": 0}))
    assert Node(link.connection, tmp_path / "nobody").turn() == 0.0
    assert json.loads(link.reply.content["reply"]["header"]) == {"error": "FederatedError"}
    assert not any(b"nobody" in piece for piece in link.pieces.values())


def test_a_node_loads_no_tensorflow_and_no_runner_of_apps():
    code = (
        "import sys, tfdpbc.federated.node; "
        "print([m for m in ('tensorflow', 'keras', 'flwr.supernode.runtime.run_clientapp', 'flwr.cli.install') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr
