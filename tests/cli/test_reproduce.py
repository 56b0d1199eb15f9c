"""`tfdpbc reproduce` from end to end, on a small data set."""

import json

import pytest

from tests.experiments import helpers
from tfdpbc.experiments import registry, training


@pytest.fixture(scope="module", autouse=True)
def small():
    with helpers.small() as experiment:
        yield experiment


ONE = ("reproduce", "b-small", "--settings", "sigma=2.5", "--epochs", 1)


def test_end_to_end_and_resumed(run, answer, tmp_path, monkeypatch):
    """Killed in the second seed, the same command trains the second seed alone."""
    out, original, trained = tmp_path / "out", training.train, []

    def dies(setting, split, epochs, seed, *rest):
        if seed == 1 and not trained.count(1):
            trained.append(1)
            raise KeyboardInterrupt
        trained.append(seed)
        return original(setting, split, epochs, seed, *rest)

    monkeypatch.setattr(training, "train", dies)
    command = (*ONE, "--seeds", 2, "--examples", 150, "--out", out)
    result = run(*command)
    assert result.exit_code == 1 and result.stdout == ""
    assert f"interrupted; the same command goes on, with --out {out}" in result.stderr
    assert "b-small sigma=2.5 seed 0: epoch 1/1, test accuracy" in result.stderr
    got = answer(*command)
    assert trained == [0, 1, 1]
    (row,) = got["rows"]
    assert row["seeds"] == 2 and 0 <= row["accuracy"]["mean"] <= 100 and row["accuracy"]["std"] >= 0
    assert (row["run"]["num_private"], row["run"]["rounds"]) == (135, 6)
    assert got["scale"] == {"epochs": 1, "examples": 150, "seeds": 2} and got["refused"] == {}
    assert [json.loads(line)["run"]["seed"] for line in (out / "results.jsonl").read_text().splitlines()] == [0, 1]
    assert got["plots"] == [str(out / "by-epoch.svg")] and (out / "by-epoch.svg").exists()
    words = run(*command)
    assert words.exit_code == 0 and "(2 seeds)" in words.stdout and trained == [0, 1, 1]


def test_guarantees_alone_train_nothing(answer, run, tmp_path):
    got = answer("reproduce", "b-small", "--guarantees", "--out", tmp_path / "out")
    assert len(got["rows"]) == 3 and all("accuracy" not in row for row in got["rows"]) and got["plots"] == []
    assert not (tmp_path / "out").exists()
    assert "not certified" in run("reproduce", "b-small", "--guarantees", "--out", tmp_path / "out").stdout


def test_lists(run, answer):
    lines = run("reproduce", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == registry.names()
    text = run("reproduce", "b-lenet-sigma", "--list").stdout
    assert "  sigma=1.5: claimed ≈ 67 %\n" in text
    found = answer("reproduce", "--list")["experiments"]
    assert [one["experiment"] for one in found] == registry.names()


def test_groups(answer, tmp_path):
    got = answer("reproduce", "a-groups", "--epochs", 1, "--examples", 640, "--out", tmp_path / "groups")
    assert got["scale"] == {"epochs": 1, "examples": 640} and len(got["rows"]) == 60
    assert (tmp_path / "groups" / "groups.svg").exists()


@pytest.mark.parametrize(
    "args, message",
    [
        (("--epochs", 0), "epochs must be an integer >= 1; got epochs=0"),
        (("--seeds", 0), "seeds must be"),
        (("--examples", -1), "examples must be"),
        (("--delta", 1), "delta must be"),
        (
            ("--settings", "sigma=2.5,sigma=9"),
            "'sigma=2.5', 'no-dp'; got settings='sigma=9'",
        ),
        (("--settings", "sigma=2.5", "--examples", 15), "num_examples"),
    ],
)
def test_bad_input(refused, tmp_path, args, message):
    assert message in refused("reproduce", "b-small", *args, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_in_the_place_of_the_folder(refused, tmp_path):
    (tmp_path / "out").write_text("")
    assert "out must be a folder" in refused(*ONE, "--out", tmp_path / "out")


@pytest.mark.parametrize("args", [(), ("b-nothing",), ("b-small", "--epochs", "few")])
def test_usage(run, args):
    assert run("reproduce", *args).exit_code == 2


def test_a_name_that_is_close(run):
    assert "did you mean b-lenet-sigma?" in run("reproduce", "b-lenet-sigm").stderr
