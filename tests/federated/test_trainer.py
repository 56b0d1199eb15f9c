"""The trainer process: killed in the middle of a round, restarted, asked in bad faith, told to stop."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import numpy as np
import pytest

import tfdpbc as dp
from tests.federated import helpers
from tfdpbc import models
from tfdpbc.errors import FederatedError, TfdpbcError
from tfdpbc.federated import socket, trainer
from tfdpbc.federated.messages import GlobalModel, decode, encode
from tfdpbc.ledger import Ledger

N, M = 800, 200
PATIENCE = 120


def write_config(folder, **changes):
    """Rounds of 200 micro-batches, so that there is a middle; noise that drowns all else (σ = 100)."""
    rng = np.random.default_rng(0)
    np.savez(folder / "data.npz", x=rng.normal(size=(N, 8, 8, 1)).astype(np.float32), y=rng.integers(10, size=N))
    plan = dp.PrivacyPlan(dp.Subsampling.individual(N, M), dp.FullGradientClipping(1.0), 100.0, 2)
    config = {
        "client": "alice",
        "directory": str(folder / "c"),
        "data": {"npz": str(folder / "data.npz"), "classes": 10},
        "model": {"name": "mlp"},
        "plan": plan.to_config(),
        "optimizer": {"learning_rate": 0.01},
        "physical_batch_size": 1,
        "engine": "onepass",
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return plan, config


def start(folder):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    return subprocess.Popen(
        [sys.executable, "-m", "tfdpbc.federated.trainer", str(folder / "config.json")], env=environment
    )


def until(condition, process):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert process.poll() is None, f"the trainer ended with {process.returncode}"
        try:
            if found := condition():
                return found
        except FederatedError:
            pass  # not there yet
        time.sleep(0.002)
    raise AssertionError("it did not come to that")


def position(folder, plan):
    return Ledger.from_config(json.loads((folder / "c" / "ledger.json").read_text())).position(plan)


def test_kill_in_the_middle_of_a_round_and_restart(tmp_path):
    plan, _ = write_config(tmp_path)
    folder, first_model = tmp_path / "c", _initial(0)
    got, processes = {}, []

    def fetch(acknowledged, payload=b""):
        header = {"op": "exchange", "wait": 5, "max": 3, "acknowledged": acknowledged}
        header, parts = socket.ask(folder, header, payload)
        assert header["count"] == len(parts) and header["client"] == "alice"
        for update in map(decode, parts):
            assert update.client == "alice" and not (update.round in got and update.round <= acknowledged)
            got[update.round] = np.concatenate([w.ravel() for w in update.weights])
        return header

    def in_the_middle():
        spent = position(tmp_path, plan)
        done = [int(path.stem) for path in (folder / "outbox").glob("*.update")]
        return spent if spent > max([1, *done]) and 1 in done else None

    try:
        processes.append(start(tmp_path))
        until(lambda: socket.ask(folder, {"op": "status"}), processes[-1])
        assert position(tmp_path, plan) == 0  # nothing begins before the first global model
        fetch(0, encode(first_model))
        spent = until(in_the_middle, processes[-1])
        os.kill(processes[-1].pid, signal.SIGKILL)
        processes[-1].wait(PATIENCE)
        spent = position(tmp_path, plan)  # it may have come one round further
        left = sorted(int(path.stem) for path in (folder / "outbox").glob("*.update"))

        processes.append(start(tmp_path))
        status = until(lambda: socket.ask(folder, {"op": "status"})[0], processes[-1])
        assert status["round"] >= spent and status["version"] == 0 and status["delta"] == 1e-5
        _bad_faith(folder)
        header = fetch(0, encode(_initial(7)))
        while not header["finished"]:
            header = fetch(max(got, default=0))
        assert header["version"] == 7
        status, _ = socket.ask(folder, {"op": "status"})
        assert status["round"] == plan.rounds and status["epsilon"] >= plan.epsilon(1e-5) * (1 - 1e-9)
        assert socket.ask(folder, {"op": "stop"})[0]["finished"]
        assert processes[-1].wait(PATIENCE) == 0
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    assert set(left) <= set(got)  # what was in the outbox was not lost
    lost = set(range(1, plan.rounds + 1)) - set(got)
    assert lost <= {spent}, "only the round under way is lost"
    ledger = Ledger.from_config(json.loads((folder / "ledger.json").read_text()))
    assert ledger.position(plan) == plan.rounds and ledger.spent(plan).repeated == ()
    assert [(e.start, e.stop) for e in ledger.entries] == [(0, spent), (spent, plan.rounds)]
    noise = np.array(list(got.values()))
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    products = np.abs(noise @ noise.T - np.eye(len(noise)))
    # Of independent noise in d > 10,000 dimensions: 0.01 at one standard deviation; of the same noise twice: 1.
    assert noise.shape[1] > 10_000 and products.max() < 0.2


def _initial(version):
    net = models.build("mlp", (8, 8, 1), 10, seed=0)
    return GlobalModel(version, tuple(v.numpy() for v in net.trainable_variables))


def _bad_faith(folder):
    """Nothing of this is taken in, and the trainer goes on."""
    good, wrong = _initial(9), _initial(9)
    for weights in ((*wrong.weights[:-1], np.full(10, np.nan, np.float32)), wrong.weights[1:], ()):
        with pytest.raises(FederatedError, match="refuses"):
            socket.ask(folder, {"op": "exchange"}, encode(GlobalModel(9, weights)))
    cut = encode(good)[:-1]
    for header, payload in (
        ({"op": "exchange"}, cut),
        ({"op": "exchange", "acknowledged": 10**6}, b""),
        ({"op": "exchange", "max": "all"}, b""),
        ({"op": "exchange", "seed": 1}, b""),
        ({"op": "ledger"}, b""),
        ({}, b""),
    ):
        with pytest.raises(FederatedError, match="refuses"):
            socket.ask(folder, header, payload)
    with pytest.raises((AuthenticationError, EOFError, OSError)):
        Client(str(folder / socket.SOCKET), "AF_UNIX", authkey=secrets.token_bytes(32))
    assert socket.ask(folder, {"op": "status"})[0]["version"] == 0


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"seed": 1}, "unknown fields .'seed'"),
        ({"client": "a b"}, "client must be"),
        ({"data": {"npz": "data.npz", "dataset": "glyphs"}}, "not both"),
        ({"data": {"labels": 1}}, "unknown fields .'labels'"),
        ({"data": {"npz": "/nowhere.npz", "classes": 2}}, "/nowhere.npz"),
        ({"model": "mlp"}, "model must be a JSON object"),
        ({"model": {}}, "model must have a name"),
        ({"plan": None}, "plan must be"),
        ({"optimizer": []}, "optimizer must be"),
        ({"physical_batch_size": "x"}, "physical_batch_size must be"),
    ],
)
def test_configurations_that_are_refused(tmp_path, capsys, changes, words):
    _, config = write_config(tmp_path, **changes)
    with pytest.raises((TfdpbcError, ValueError, TypeError, OSError), match=words):
        trainer.from_config(config)
    assert trainer.main([str(tmp_path / "config.json")]) == 1
    assert "the client cannot start: " in capsys.readouterr().err


def test_a_part_of_a_data_set(tmp_path):
    data = {"dataset": "glyphs", "examples": 600, "clients": 3, "index": 1, "split": "label", "classes_per_client": 2}
    plan = dp.PrivacyPlan(dp.Poisson.individual(200, 20), dp.FullGradientClipping(1.0), 1.0, 1)
    _, config = write_config(tmp_path, data=data, plan=plan.to_config(), physical_batch_size=None, delta=1e-6)
    client = trainer.from_config(config)
    x, y = client._data["x"], client._data["y"]
    assert len(x) == len(y) == 200 and len(set(y.tolist())) <= 8
    assert client.delta == 1e-6 and client.model.streams.seed is None
    client.receive(helpers.global_model(client))
    assert client.step().round == 1
    client.close()
