"""Flower itself: its programs on loopback, over TLS with node keys. Trainers are stand-ins without TensorFlow."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tfdpbc.errors import FederatedError
from tfdpbc.federated import deploy, keys, log, loop
from tfdpbc.federated.messages import GlobalModel, decode
from tfdpbc.federated.processes import Processes, free_port, listens
from tfdpbc.federated.socket import Server

from .test_loop import START, Client

CODE = "import sys; {}; import tfdpbc.federated.flower_client"


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_missing_flower_says_what_to_install():
    done = python(CODE.format("sys.modules['flwr'] = None"))
    assert done.returncode != 0 and "pip install 'tfdpbc[federated]'" in done.stderr.splitlines()[-1]
    assert "FederatedError" in done.stderr


def test_courier_loads_no_tensorflow():
    pytest.importorskip("flwr")
    done = python(CODE.format("import os") + "; print([m for m in ('tensorflow', 'keras') if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_in_the_clear_on_loopback_only():
    deploy.Address("127.0.0.1", 1, None)
    with pytest.raises(FederatedError, match="loopback"):
        deploy.Address("0.0.0.0", 1, None)


def test_secrets_are_secret_and_never_replaced(tmp_path):
    pytest.importorskip("flwr")
    keys.make_certificates(tmp_path, ["127.0.0.1", "example.org"])
    private, public = keys.make_node_key(tmp_path, "a")
    assert (tmp_path / keys.PRIVATE).stat().st_mode & 0o777 == private.stat().st_mode & 0o777 == 0o600
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    with pytest.raises(FileExistsError):
        keys.make_certificates(tmp_path, ["127.0.0.1"])
    with pytest.raises(FileExistsError):
        keys.make_node_key(tmp_path, "a")


class StandIn:
    """A `Client` behind a real trainer's socket; it makes a step every `seconds`."""

    def __init__(self, folder, name, rounds, seconds):
        self.client, self.seconds = Client(name, rounds, steps=0), seconds
        self.server, self.next = Server(folder, self.answer), 0.0

    def answer(self, header, payload):
        if payload:
            assert isinstance(decode(payload), GlobalModel)
        until = time.monotonic() + header["wait"]
        while True:
            self.client.steps = int(time.monotonic() >= self.next)
            self.next = time.monotonic() + self.seconds if self.client.steps else self.next
            reply, parts = self.client.answer(header | {"linger": 0.0}, payload)
            payload = b""
            if parts or reply["finished"] or time.monotonic() > until:
                return reply, parts
            time.sleep(0.05)


@pytest.mark.slow
def test_super_link_with_keys_faults_and_a_restart(tmp_path):
    """Two registered clients finish though the server is killed with -9 on the way; a third without a key stays out."""
    pytest.importorskip("flwr")
    names = ["a", "b", "stranger"]
    stand_ins = {name: StandIn(tmp_path / name, name, 12, 1.0) for name in names}
    server = tmp_path / "server"
    address = deploy.Address("127.0.0.1", free_port(), tmp_path / "certificates")
    keys.make_certificates(tmp_path / "certificates", ["127.0.0.1"])
    pairs = {name: keys.make_node_key(tmp_path / "keys", name) for name in names}
    public = {name: pairs[name][1] for name in names[:2]}
    with Processes(tmp_path / "logs", deploy.environment(tmp_path / "flower")) as processes:
        deploy.configure(tmp_path / "flower", address)
        started = []

        def start():
            deploy.start_server(processes, address, tmp_path / "flower.db")
            senders = deploy.register_all(processes, public, tmp_path / "nodes.json")
            settings = {"max_norm": 1e3, "clients": names[:2], "senders": senders}
            loop.prepare(server, GlobalModel(0, (START,)), settings, {"clients": names[:2], "max_seconds": 120})
            deploy.start_run(processes, tmp_path / "app", server)
            started.append(time.monotonic())

        start()
        for name in names:
            deploy.start_node(processes, name, address, tmp_path / name, pairs[name][0])
        updates = server / loop.LOG
        enough = lambda n: updates.exists() and len(log.read(updates)) >= n  # noqa: E731
        until = time.monotonic() + 60
        while not enough(4) or "node-stranger" not in processes.ended():
            assert time.monotonic() < until
            time.sleep(0.2)
        assert processes.ended() == {"node-stranger": 1}  # refused
        processes.end("node-stranger")
        processes.end("superlink", signal.SIGKILL)
        assert not listens("127.0.0.1", address.port)
        start()
        until = time.monotonic() + 100
        while not (server / loop.RESULT).exists():
            assert time.monotonic() < until, processes.output("superlink")[-3000:]
            time.sleep(0.2)
        ids = [process.pid for process in processes._running.values()]
    for number in ids:  # nothing that was started is left
        with pytest.raises(ProcessLookupError):
            os.killpg(number, 0)
    clients = {name: stand_in.client for name, stand_in in stand_ins.items()}
    np.testing.assert_array_equal(loop.last_model(server).weights[0][0], clients["a"].total + clients["b"].total)
    log.check(updates, {name: clients[name].round for name in names[:2]})
    assert clients["stranger"].round == 0 and clients["stranger"].version == -1  # never heard from
    assert {line["client"] for line in log.read(updates)} == {"a", "b"}
    assert [c.round for c in clients.values()] == [12, 12, 0]
    for stand_in in stand_ins.values():
        stand_in.server.close()
