"""Every command and every Python block of the README runs as it stands there, and every link leads somewhere."""

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tfdpbc.cli.app import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, flags=re.M | re.S)
# `tfdpbc` of this interpreter, wherever PATH leads.
ENVIRONMENT = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
# A process of its own loads TensorFlow, seconds each: what only computes runs in this one, what trains as a reader runs it.
COMPUTES = {"account", "calibrate", "compare", "reproduce"}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The blocks run one after the other in one folder, as a reader would run them."""
    return tmp_path_factory.mktemp("readme")


def run(place, *command):
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place, env=ENVIRONMENT)
    assert done.returncode == 0, f"{command}: {done.stderr}\n{done.stdout}"
    return done


def options_in(text):
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", text))


@pytest.mark.parametrize("language, block", BLOCKS, ids=[f"{n}-{kind}" for n, (kind, _) in enumerate(BLOCKS)])
def test_block(place, language, block, monkeypatch):
    if language == "python":
        run(place, sys.executable, "-c", block)
        return
    assert language == "sh"
    for line in block.splitlines():
        if line == "pip install .":
            continue  # .ci/run builds the wheel; here nothing is installed
        assert line.startswith("tfdpbc "), f"no test knows how to run {line!r}"
        if line.startswith("tfdpbc federate"):
            continue  # tests/federated/test_demo.py runs it (slow, and Flower is an extra)
        _, command, *rest = line.split()
        if command in COMPUTES:
            monkeypatch.chdir(place)
            result = CliRunner().invoke(app, [command, *rest], prog_name="tfdpbc")
            assert result.exit_code == 0, f"{line}: {result.output}"
        else:
            run(place, *line.split())


def test_there_are_blocks_to_run():
    assert [kind for kind, _ in BLOCKS].count("sh") >= 3 and [kind for kind, _ in BLOCKS].count("python") >= 1


def test_commands_inside_sentences_exist(place):
    """`tfdpbc train --resume ...` and the like: their options are options of the command."""
    commands = re.findall(r"`tfdpbc (\w+)([^`]*)`", README)
    assert commands
    for command, rest in commands:
        assert options_in(rest) <= options_in(run(place, "tfdpbc", command, "-h").stdout), (command, rest)


def test_table_lists_options_of_train(place):
    table = "\n".join(line for line in README.splitlines() if line.startswith("|"))
    assert options_in(table) and options_in(table) <= options_in(run(place, "tfdpbc", "train", "-h").stdout)


@pytest.mark.parametrize("target", sorted(set(re.findall(r"`make ([a-z-]+)`", README))))
def test_make_target_exists(target):
    done = subprocess.run(["make", "-n", target], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert {"train": "tfdpbc train --out runs/", "test": '-m "not slow"', "test-slow": "-m slow"}[target] in done.stdout


def test_links_and_pictures_lead_somewhere():
    for page in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "saved_models/README.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert (ROOT / page).parent.joinpath(link).exists(), f"{page} links to {link}"


def test_python_versions_are_those_of_the_metadata():
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    low, high = re.search(r"Python (3\.\d+) to (3\.\d+)", README).groups()
    below = f"3.{int(high.split('.')[1]) + 1}"
    assert metadata["options"]["python_requires"] == f">={low},<{below}"
