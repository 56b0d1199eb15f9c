"""The server's side of Flower's message queue: what nodes send there stops nobody."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from tfdpbc.federated import flower_server
from tfdpbc.federated.flower_client import packed
from tfdpbc.federated.flower_server import GridLink
from tfdpbc.federated.socket import body_of


class Grid:
    """Flower's, as far as `GridLink` goes; `self.replies[node](message)` is what comes back, once."""

    def __init__(self, **replies):
        self.replies = {int(node[1:]): reply for node, reply in replies.items()}
        self.sent, self.asked = {}, []

    def get_node_ids(self):
        return list(self.replies)

    def push_messages(self, messages):
        for message in messages:
            self.sent[str(len(self.sent))] = message
            yield str(len(self.sent) - 1)

    def pull_messages(self, tickets):
        (ticket,) = tickets  # one at a time: what is wrong with it is wrong with no other
        self.asked.append(ticket)
        message = self.sent[ticket]
        reply = self.replies[message.metadata.dst_node_id](message)
        return [] if reply is None else [reply]


def honest(message):
    return answer(body_of([b"step", b"next"]), message)


def answer(body, message):
    content = RecordDict({"reply": ConfigRecord({"header": json.dumps({"client": "a"})}), "updates": packed(body)})
    return Message(content, reply_to=message)


@pytest.fixture(autouse=True)
def server_identity(monkeypatch):
    for name, value in (("_task_id", 1), ("_run_id", 3), ("_node_id", 1)):
        monkeypatch.setattr(TaskIdentity, name, value)


def broken(message):
    raise ValueError("no message can be made of this")


def test_a_reply_that_never_ends_and_one_that_is_none_stop_nobody():
    """A node killed while its reply was on its way: Flower waits for the rest of it, for minutes."""
    over = threading.Event()
    try:
        grid = Grid(n1=lambda message: over.wait() and None, n2=broken, n3=honest)
        link = GridLink(grid)
        tickets = {link.send(node, {"op": "exchange"}, b""): node for node in link.nodes()}
        begun = time.monotonic()
        replies = {tickets[reply.ticket]: reply for reply in link.replies(list(tickets))}
        assert time.monotonic() - begun < 5
        assert sorted(replies) == [2, 3] and replies[2].header is None and replies[2].node == 2
        assert replies[3].header == {"client": "a"} and replies[3].parts == (b"step", b"next") and replies[3].node == 3
        grid.asked.clear()
        assert list(link.replies([t for t, node in tickets.items() if node == 1])) == []
        assert grid.asked == []  # it is not asked for a second time
    finally:
        over.set()


def test_with_many_nodes_all_are_asked_for_in_turn(monkeypatch):
    monkeypatch.setattr(flower_server, "AT_ONCE", 3)
    grid = Grid(**{f"n{node}": (honest if node == 7 else lambda message: None) for node in range(1, 8)})
    link = GridLink(grid)
    tickets = [link.send(node, {}, b"") for node in link.nodes()]
    got = [reply.node for _ in range(3) for reply in link.replies(tickets)]
    assert got == [7] and set(grid.asked) == set(tickets) and len(grid.asked) == 9


def test_what_is_no_courier_of_ours():
    empty = Grid(n1=lambda message: Message(RecordDict(), reply_to=message))
    link = GridLink(empty)
    (reply,) = link.replies([link.send(1, {}, b"")])
    assert reply.header is None and reply.parts == ()
    cut = Grid(n1=lambda message: answer(body_of([b"step"])[:-1], message))
    link = GridLink(cut)
    (reply,) = link.replies([link.send(1, {}, b"")])
    assert reply.header == {"client": "a"} and reply.parts == (None,)  # counted as malformed


def test_the_server_app_ends_with_its_super_link():
    """It has a session of its own there, which nobody else ends."""
    app = "import time; from tfdpbc.federated import flower_server as f; f._end_with_super_link(); print(1); time.sleep(99)"
    parent = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {app!r}], stdout=-1); p.stdout.readline()"
    )
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", parent + "; print(p.pid)"], capture_output=True, text=True, check=True)
    number = int(done.stdout)
    while os.path.exists(f"/proc/{number}") and time.monotonic() < begun + 60:
        time.sleep(0.1)
    assert not os.path.exists(f"/proc/{number}")
