"""The socket: who may ask, what may be asked, and that nothing hostile ends it. No TensorFlow."""

import os
import pickle
import secrets
import stat
import subprocess
import sys
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import pytest

from tfdpbc.errors import FederatedError, MalformedMessage
from tfdpbc.federated import socket


def echo(header, payload):
    if header.get("op") == "fail":
        raise RuntimeError("the data are 1, 2, 3")
    return {"echo": header}, [payload, b"", payload[::-1]]


@pytest.fixture
def server(tmp_path):
    told = []
    running = socket.Server(tmp_path / "s", echo, max_bytes=1 << 16, tell=told.append)
    running.told, running.folder = told, tmp_path / "s"
    yield running
    running.close()


def key(server):
    return (server.folder / socket.KEY).read_bytes()


def alive(server):
    return socket.ask(server.folder, {"op": "x"}, b"ab")[1] == [b"ab", b"", b"ba"]


def test_a_request_and_its_reply(server):
    payload = os.urandom(5000)
    header, parts = socket.ask(server.folder, {"op": "x", "n": 1}, payload)
    assert header == {"echo": {"op": "x", "n": 1}} and parts == [payload, b"", payload[::-1]]


def test_nobody_else_may_read_the_folder(server):
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in server.folder.iterdir()}
    assert modes == {socket.SOCKET: 0o600, socket.KEY: 0o600}
    assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700
    assert len(key(server)) == 32


def test_a_wrong_key_is_refused(server):
    with pytest.raises((AuthenticationError, EOFError, OSError)):
        Client(str(server.folder / socket.SOCKET), "AF_UNIX", authkey=secrets.token_bytes(32))
    # Nor does one get anywhere who leaves the challenge unanswered.
    with Client(str(server.folder / socket.SOCKET), "AF_UNIX") as connection:
        connection.send_bytes(b'{"op": "x"}\n')
        assert connection.recv_bytes(1 << 16).startswith(b"#CHALLENGE#")
        with pytest.raises((EOFError, OSError)):
            while True:
                assert b"echo" not in connection.recv_bytes(1 << 16)
    assert any("Authentication" in line for line in server.told) and alive(server)


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\n",
        b"{}",
        b"[1]\n",
        b'{"op": "x"',
        b"\xff\xfe\n",
        b"[" * 50_000 + b"\n",
        pickle.dumps({"op": "x"}) + b"\n",
    ],
    ids=range(8),
)
def test_malformed_requests_are_refused(server, request_):
    with Client(str(server.folder / socket.SOCKET), "AF_UNIX", authkey=key(server)) as connection:
        connection.send_bytes(request_)
        header, _ = socket.split(connection.recv_bytes(1 << 16))
    assert "error" in header and alive(server)


def test_too_long_a_request_is_not_read(server):
    known = Client(str(server.folder / socket.SOCKET), "AF_UNIX", authkey=key(server))
    with known as connection, pytest.raises((EOFError, OSError)):
        connection.send_bytes(b'{"op": "x"}\n' + bytes(1 << 20))
        connection.recv_bytes(1 << 16)
    assert alive(server)


def test_an_error_says_its_kind_only(server):
    with pytest.raises(FederatedError, match="refuses: RuntimeError$"):
        socket.ask(server.folder, {"op": "fail"})
    assert alive(server)


def test_who_says_nothing_keeps_nobody_waiting_and_is_hung_up_on(server, monkeypatch):
    with Client(str(server.folder / socket.SOCKET), "AF_UNIX"):
        assert alive(server)
    monkeypatch.setattr(socket, "PATIENCE", 0.3)
    with Client(str(server.folder / socket.SOCKET), "AF_UNIX") as silent:
        assert silent.recv_bytes(1 << 16).startswith(b"#CHALLENGE#")
        with pytest.raises((EOFError, OSError)):
            silent.recv_bytes(1 << 16)  # until the server hangs up


def test_a_killed_process_leaves_a_socket_that_is_replaced(server, tmp_path):
    old = key(server)
    server.close()
    (server.folder / socket.SOCKET).touch()
    with pytest.raises(FederatedError, match="no trainer answers"):
        socket.ask(server.folder, {"op": "x"})
    again = socket.Server(server.folder, echo)
    assert alive(server) and key(server) != old
    again.close()
    with pytest.raises(FederatedError, match="at most 107 bytes"):
        socket.Server(tmp_path / ("long" * 30), echo)


@pytest.mark.parametrize("body", [b"\0", bytes(7), (9).to_bytes(8, "big") + b"12345678", (1 << 63).to_bytes(8, "big")])
def test_replies_that_lie_about_their_length(body):
    with pytest.raises(MalformedMessage):
        socket.parts_of(body)


def test_a_courier_needs_no_tensorflow():
    code = (
        "import sys, tfdpbc.federated.socket, tfdpbc.federated.messages; "
        "sys.exit(any(name.split('.')[0] in ('tensorflow', 'keras') for name in sys.modules))"
    )
    start = time.monotonic()
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
    assert time.monotonic() - start < 120
