"""Who may ask the super-link for what."""

import asyncio

import pytest

pytest.importorskip("flwr")

from tfdpbc.federated import link
from tfdpbc.federated.link import Guard

HERE, THERE = ("127.0.0.1", 5), ("203.0.113.9", 5)


def ask(path, client, server=("127.0.0.1", 9092), kind="http", body=(b"x",)):
    """What Flower got of a request (None: it was not handed on), and what was sent back."""
    got, sent, pieces = [], [], [{"type": "http.request", "body": piece, "more_body": True} for piece in body]

    async def flower(scope, receive, send):
        for _ in body:
            got.append(await receive())

    async def receive():
        return pieces.pop(0)

    async def send(event):
        sent.append(event)

    asyncio.run(Guard(flower)({"type": kind, "path": path, "client": client, "server": server}, receive, send))
    return got or None, sent


CLOSED = ["/v1/control/start-run", "/v1/control/register-node", "/v1/runtime/acquire-task", "/docs", "/health", "/", ""]
CLOSED += ["/v1/fleet", "/V1/FLEET/x", "/x/v1/fleet/", "//v1/fleet/push-messages", "/v1/control/../fleet/x"]


@pytest.mark.parametrize("path", CLOSED)
def test_other_machines_reach_the_nodes_interface_only(path):
    got, sent = ask(path, THERE)
    assert got is None and sent[0]["status"] == 403
    assert ask(path, HERE)[0]


def test_the_nodes_interface_is_open():
    assert ask("/v1/fleet/pull-messages", THERE)[0][0]["body"] == b"x"
    got, sent = ask("/v1/fleet/pull-messages", THERE, kind="websocket")
    assert got is None and sent == [{"type": "websocket.close", "code": 1008}]
    assert ask("", None, kind="lifespan")[0]


@pytest.mark.parametrize(
    "client, server, local",
    [
        (("127.0.0.1", 1), ("127.0.0.1", 2), True),
        (("127.8.9.1", 1), ("127.0.0.1", 2), True),
        (("::1", 1, 0, 0), ("::1", 2), True),
        (("::ffff:127.0.0.1", 1), ("::", 2), True),
        (("192.0.2.7", 1), ("192.0.2.7", 2), True),  # a server that listens on one address, and its own programs
        (("192.0.2.8", 1), ("192.0.2.7", 2), False),
        (("::ffff:192.0.2.8", 1), ("::", 2), False),
        (("192.0.2.8", 1), None, False),
        (("localhost", 1), ("localhost", 2), False),
        (("", 1), ("", 2), False),
        (None, ("127.0.0.1", 2), False),
    ],
)
def test_local(client, server, local):
    assert link.is_local({"client": client, "server": server}) is local


def test_long_requests_of_other_machines_are_cut_off(monkeypatch):
    monkeypatch.setattr(link, "MAX_BODY", 10)
    got, _ = ask("/v1/fleet/push-object", THERE, body=[bytes(6), bytes(6), b""])
    assert [one["type"] for one in got] == ["http.request", "http.disconnect", "http.disconnect"]
    got, _ = ask("/v1/fleet/push-object", HERE, body=[bytes(6), bytes(6)])
    assert [one["type"] for one in got] == ["http.request"] * 2
