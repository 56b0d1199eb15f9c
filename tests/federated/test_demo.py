"""The demonstration of the README, with real trainers."""

import json
import subprocess
import sys

import pytest

from tfdpbc.federated.demo import Demo, plan_of, trainer_config


def test_configurations_are_the_trainers(tmp_path):
    demo = Demo(clients=2, examples=500, batch_size=100, epochs=1)
    plan = plan_of(demo)
    assert plan.epsilon(demo.delta) <= demo.epsilon
    first, second = (json.loads(json.dumps(trainer_config(demo, plan, i, tmp_path))) for i in range(2))
    assert first["data"] | {"index": 1} == second["data"] and first["client"] != second["client"]
    assert first["data"]["examples"] == 2 * 500 and plan.sampling.rate == 100 / 500


@pytest.mark.slow
def test_demo():
    pytest.importorskip("flwr")
    command = [sys.executable, "-m", "tfdpbc", "federate", "demo", "--clients", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stderr
    first, *clients, compared, last = done.stdout.splitlines()
    reached = float(first.split("accuracy ")[1].split()[0])
    assert len(clients) == 3 and "agrees with every ledger" in last and "finished" in last
    assert "the same plan once more" in compared
    assert float(last.split(", ")[-1].split()[0]) < 180
    rounds = plan_of(Demo()).rounds
    for line in clients:
        assert f"-DP after {rounds} of {rounds} rounds" in line and float(line.split("alone ")[1]) < reached
