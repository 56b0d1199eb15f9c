"""`tfdpbc federate key`, `server` and `client` as processes of their own, over TLS with keys; killed with -9, started again."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

import tfdpbc as dp
from tests.federated import helpers
from tfdpbc.federated import log, loop
from tfdpbc.federated.processes import free_port
from tfdpbc.ledger import Ledger

NAMES, ROUNDS, PATIENCE = ("a", "b"), 24, 180.0
KILLED = "a"


class Command:
    """A `tfdpbc federate` command that runs, and what it started."""

    def __init__(self, output, *words):
        self.words, self.output = [sys.executable, "-m", "tfdpbc", "federate", *map(str, words)], output
        self.start()

    def start(self):
        with self.output.open("ab") as file:
            self.process = subprocess.Popen(self.words, stdout=file, stderr=file, stdin=subprocess.DEVNULL)

    def children(self):
        """Ids of the processes whose parent it is."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(number) for number in found.split()]

    def kill(self):
        """kill -9, and wait until what it started is gone, too."""
        started = self.children()
        assert started
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        wait_for(lambda: not any(map(alive, started)), self)

    def said(self):
        return self.output.read_text()[-3000:]


def alive(number):
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_for(there, *commands):
    until = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < until, [command.said() for command in commands]
        time.sleep(0.2)


def client_config(folder, name, seed):
    x, y = helpers.examples(seed=seed)
    np.savez(folder / f"{name}.npz", x=x, y=y)
    plan = dp.PrivacyPlan(dp.Subsampling.individual(len(y), 12), dp.FullGradientClipping(1.0), 1.0, 1)
    plan = dp.PrivacyPlan(plan.sampling, plan.clipping, 1.0, -(-ROUNDS // plan.rounds_per_epoch))
    config = {
        "client": name,
        "directory": str(folder / name),
        "data": {"npz": str(folder / f"{name}.npz"), "classes": 2},
        "model": {"keras": str(folder / "model.keras")},
        "plan": plan.to_config(),
        "optimizer": {"learning_rate": 0.5},
        "max_outbox": 2,  # so that it lasts some exchanges
    }
    (folder / f"{name}.json").write_text(json.dumps(config))
    return plan


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are found in /proc")
def test_server_and_clients_killed_and_started_again(tmp_path):
    """Ledgers complete, no noise sent twice, every step added once, nothing left running."""
    pytest.importorskip("flwr")
    keras.utils.set_random_seed(0)
    net = keras.Sequential([keras.Input((helpers.DIM,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(2)])
    net.save(tmp_path / "model.keras")
    plans = {name: client_config(tmp_path, name, i) for i, name in enumerate(NAMES)}
    for name in NAMES:
        made = Command(tmp_path / "key.log", "key", name, "--folder", tmp_path / "keys")
        assert made.process.wait() == 0, made.said()
    folder, port = tmp_path / "federation", free_port()
    options = ["--folder", folder, "--initial", tmp_path / "model.keras", "--keys", tmp_path / "keys", "--port", port]
    server, clients = Command(tmp_path / "server.log", "server", *options, "--max-seconds", 500), {}
    commands = [server]
    try:
        wait_for((folder / "certificates" / "ca.pem").exists, server)
        at = ["--server", f"127.0.0.1:{port}", "--ca", folder / "certificates" / "ca.pem"]
        for name in NAMES:
            given = ["--config", tmp_path / f"{name}.json", *at, "--key", tmp_path / "keys" / f"{name}.key"]
            clients[name] = Command(tmp_path / f"{name}.log", "client", *given)
            commands.append(clients[name])
        updates = folder / loop.LOG

        def received(least):
            return updates.exists() and len(log.read(updates)) >= least

        wait_for(lambda: received(3), *commands)
        clients[KILLED].kill()
        clients[KILLED].start()
        seen = len(log.read(updates))
        wait_for(lambda: received(seen + 3), *commands)
        server.kill()
        server.start()
        for command in commands:
            assert command.process.wait(PATIENCE) == 0, [one.said() for one in commands]
    finally:
        for command in commands:
            if command.process.poll() is None:
                command.process.terminate()
                command.process.wait()
    spent = {}
    for name, plan in plans.items():
        ledger = Ledger.from_config(json.loads((tmp_path / name / "ledger.json").read_text()))
        spent[name] = ledger.position(plan)
        assert spent[name] == plan.rounds and ledger.spent(plan).repeated == ()
    lines = log.read(updates)
    log.check(updates, spent)
    result = json.loads((folder / loop.RESULT).read_text())
    assert result["reason"] == "finished"
    for name, plan in plans.items():
        accepted = {line["round"] for line in lines if line["outcome"] == "accepted" and line["client"] == name}
        lost = set(range(1, plan.rounds + 1)) - accepted
        # A round that was under way when the trainer was killed is spent and lost. A server that was killed may log
        # a step twice, but its model holds it once: the counts are those of the checkpoint that it went on from.
        assert max(accepted) <= plan.rounds and len(lost) <= (name == KILLED)
        assert result["client_counts"][name]["accepted"] == len(accepted)
        assert set(result["client_counts"][name]) <= {"accepted", "duplicate"}
    for now, before in zip(loop.last_model(folder).weights, net.get_weights(), strict=True):
        assert np.isfinite(now).all() and np.abs(now - before).max() > 0
    assert "Traceback" not in server.said()
