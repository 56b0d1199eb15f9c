"""The command as a process: what reaches the two streams, TensorFlow's own log included, and the exit status."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}


def process(*args, cwd=None):
    return subprocess.run(
        [sys.executable, *map(str, args)], capture_output=True, text=True, check=False, cwd=cwd, env=ENVIRONMENT
    )


def test_json_is_all_there_is():
    plan = ("--num-examples", 1000, "--batch-size", 100, "--epochs", 1, "--noise-multiplier", 2)
    done = process("-m", "tfdpbc", "account", *plan, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["epsilon"] > 0
    assert done.stderr == ""


def test_failure_is_one_line(tmp_path):
    done = process("-m", "tfdpbc", "train", "--dataset", "no-such-data", "--out", "run", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "no-such-data" in line
    assert list(tmp_path.iterdir()) == []


def test_usage_is_status_2():
    done = process("-m", "tfdpbc", "train", "--epochs", "few")
    assert done.returncode == 2 and done.stdout == "" and "Usage: tfdpbc train" in done.stderr


@pytest.mark.parametrize("name", ["train", "evaluate", "account", "calibrate", "compare", "reproduce", "audit"])
def test_scripts_are_the_commands(name):
    done = process(SCRIPTS / f"{name}.py", "-h")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith(f"Usage: {name}.py [OPTIONS]")


@pytest.mark.parametrize(
    "args", [(), ("train",), ("evaluate",), ("account",), ("calibrate",), ("compare",), ("reproduce",), ("audit",)]
)
def test_help_everywhere(run, args):
    short, long = run(*args, "-h"), run(*args, "--help")
    assert short.exit_code == long.exit_code == 0
    assert short.stdout == long.stdout and short.stdout.startswith("Usage: tfdpbc")


def test_version(run):
    import tfdpbc

    assert run("--version").stdout == f"tfdpbc, version {tfdpbc.__version__}\n"


def test_traceback_on_request(run, monkeypatch):
    monkeypatch.setenv("TFDPBC_TRACEBACK", "1")
    result = run("account", "--num-examples", 1000, "--noise-multiplier", 0)
    assert isinstance(result.exception, ValueError)
