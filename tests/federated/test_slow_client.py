"""Clients of different speed, in processes over a super-link, by the clock on the wall."""

import json
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.federated import helpers
from tfdpbc.federated import deploy, files, hosting, log, loop
from tfdpbc.federated.processes import Processes, free_port
from tfdpbc.ledger import Ledger

NAMES, SLOW, EVEN = ("a", "b", "c"), "c", 0.5
PROGRAM = Path(__file__).with_name("paced.py")


@pytest.mark.slow
def test_one_slow_client_slows_nobody_else_but_where_all_wait(tmp_path):
    """The others' rate falls by less than a tenth when one takes five times as long; beside it, the same clients in step."""
    pytest.importorskip("flwr")
    x, y = helpers.examples()
    np.savez(tmp_path / "data.npz", x=x, y=y)
    keras.utils.set_random_seed(0)
    net = keras.Sequential([keras.Input((helpers.DIM,)), keras.layers.Dense(2)])
    net.save(tmp_path / "model.keras")
    plan = helpers.plan(epochs=500)

    def pace(name, seconds, synchronous):
        text = json.dumps({"seconds": seconds, "synchronous": synchronous}).encode()
        files.write_atomically(tmp_path / f"{name}.pace", lambda file: file.write(text), sync=False)

    def position(name):
        return Ledger.from_config(json.loads((tmp_path / name / "ledger.json").read_text())).position(plan)

    def rates(slowness, synchronous, seconds):
        """Rounds per second of those that are not slow; from the moments at which their ledgers count on."""
        for name in NAMES:
            pace(name, EVEN * (slowness if name == SLOW else 1), synchronous)
        time.sleep(12 * EVEN)  # what was under way, also in the network
        seen, until = {name: [(position(name), 0.0)] for name in NAMES}, time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            for name, found in seen.items():
                if (reached := position(name)) != found[-1][0]:
                    found.append((reached, now))
            time.sleep(0.01)
        assert all(len(found) > 2 for found in seen.values()), (slowness, synchronous, seen)
        spans = {name: (found[1], found[-1]) for name, found in seen.items()}
        speed = {name: (last[0] - first[0]) / (last[1] - first[1]) for name, (first, last) in spans.items()}
        assert speed[SLOW] < 1.2 / EVEN / slowness
        return min(speed[name] for name in NAMES if name != SLOW)

    address = deploy.Address("127.0.0.1", free_port(), None)
    with Processes(tmp_path / "logs", deploy.environment(tmp_path / "flower")) as processes:
        for name in NAMES:
            config = {
                "client": name,
                "directory": str(tmp_path / name),
                "data": {"npz": str(tmp_path / "data.npz"), "classes": 2},
                "model": {"keras": str(tmp_path / "model.keras")},
                "plan": plan.to_config(),
                "optimizer": {"learning_rate": 0.01},
            }
            (tmp_path / f"{name}.json").write_text(json.dumps(config))
            pace(name, EVEN, False)
            program = [sys.executable, PROGRAM, tmp_path / f"{name}.json", tmp_path / f"{name}.pace"]
            processes.start(f"trainer-{name}", program)
        deploy.configure(tmp_path / "flower", address)
        deploy.start_server(processes, address, tmp_path / "flower.db")
        initial = hosting.read_keras(tmp_path / "model.keras")
        server = {"clients": list(NAMES), "linger": 0.0}
        loop.prepare(tmp_path / "server", initial, {"max_norm": 1e3, "clients": list(NAMES)}, server)
        deploy.start_run(processes, tmp_path / "app", tmp_path / "server")
        for name in NAMES:
            deploy.start_node(processes, name, address, tmp_path / name)
        begun = lambda: all((tmp_path / n / "ledger.json").exists() and position(n) > 2 for n in NAMES)  # noqa: E731
        processes.wait_for("all clients train", begun, 120)
        even, slowed = rates(1, False, 10), rates(5, False, 10)
        waiting = rates(5, True, 14)
    said = f"others' rounds a second: {even:.3f}, with a slow client {slowed:.3f}, in step with it {waiting:.3f}"
    print(said)
    assert slowed > 0.9 * even and abs(even * EVEN - 1) < 0.1, said
    assert waiting < 1.05 / (5 * EVEN) and waiting < slowed / 4, said  # no faster than the slow one
    log.check(tmp_path / "server" / loop.LOG, {name: position(name) for name in NAMES})
