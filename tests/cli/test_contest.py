"""`tfdpbc compare --train`: which plans are trained, and what is said of them. The training itself: test_comparison.py."""

import itertools
import math

import pytest

from tests.experiments import helpers
from tfdpbc import data
from tfdpbc.cli import contest
from tfdpbc.experiments.comparison import Contest

SMALL = ("compare", "--train", "--dataset", "stripes", "--model", "mlp", "--batch-size", 20, "--epochs", 2)


@pytest.fixture(autouse=True)
def no_training(monkeypatch):
    """Accuracy is what the plan, the step and the seed say; returns the plans that were asked for."""
    seen = []

    def accuracy(self, plan, learning_rate, seed):
        seen.append(plan)
        return 50.0 + 10 * math.tanh(1 / plan.noise_multiplier) + learning_rate + seed

    monkeypatch.setattr(data, "load", helpers.stripes)
    monkeypatch.setattr(Contest, "accuracy", accuracy)
    return seen


@pytest.mark.slow
def test_every_kind_at_every_promise(answer, no_training):
    got = answer(*SMALL, "--epsilons", "2,8", "--norm", 0.3, "--seeds", 2)
    assert (got["dataset"], got["examples"], got["num_layers"], got["epsilons"]) == ("stripes", 200, 3, [2.0, 8.0])
    rows = {(r["target_epsilon"], r["sampling"], r["clipped"], r["clipping"]): r for r in got["plans"]}
    assert set(rows) == {(e, *p, c) for e, p, c in itertools.product((2.0, 8.0), contest.PLANS, contest.CLIPPINGS)}
    for (epsilon, sampling, clipped, kind), row in rows.items():
        assert 0.99 * epsilon <= row["epsilon"] <= epsilon
        assert row["contributions"] == {"individual": 20, "mixed": 4, "batch": 1}[clipped]
        assert row["neighbouring"] == ("add-remove" if sampling == "poisson" else "replace")
        blocks = {"layerwise": 3, "grouped": 3}.get(kind, 1)
        assert row["num_blocks"] == blocks and row["norm"] == pytest.approx(0.3 * (3**0.5 if kind == "scaled" else 1))
        full = rows[epsilon, sampling, clipped, "full"]
        # √L more noise for the same promise; and as much more signal, at the best.
        assert row["noise_multiplier"] == pytest.approx(blocks**0.5 * full["noise_multiplier"], rel=2e-3)
        assert row["signal_to_noise_per_round"] == pytest.approx(full["signal_to_noise_per_round"], rel=2e-3)
        assert row["learning_rate"] == 1.0 and row["accuracy"]["std"] == pytest.approx(0.5**0.5)
    assert len(no_training) == 32 * 2 * 2  # plans, steps, seeds
    assert {plan.sampling.num_examples for plan in no_training if hasattr(plan.sampling, "num_examples")} == {200}


def test_words_and_picture(run, tmp_path):
    picture = tmp_path / "plans.svg"
    result = run(*SMALL, "--epsilon", 3, "--clippings", "full, scaled", "--plot", picture)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 2 + 8 + 2 and lines[0].startswith("mlp (") and "200 examples" in lines[0]
    assert sum(line.endswith("%") for line in lines) == 8
    assert "too good to be quoted" in lines[-1]
    assert result.stderr.count("ε = 3, individual, poisson, full: ") == 1
    assert b"<svg" in picture.read_bytes()


@pytest.mark.slow
def test_one_step_is_no_choice(run):
    assert "quoted" not in run(*SMALL, "--epsilon", 3, "--clippings", "full", "--learning-rates", 0.5).stdout


def test_refused_plans_say_why(answer, monkeypatch):
    def accuracy(self, plan, learning_rate, seed):
        if plan.sampling.is_individual:
            raise ValueError("contributions of one\n example")
        return 40.0

    monkeypatch.setattr(Contest, "accuracy", accuracy)
    rows = answer(*SMALL, "--epsilon", 3, "--clippings", "full")["plans"]
    assert [row.get("refused") for row in rows] == ["contributions of one example"] * 2 + [None] * 2


def test_when_none_can_be_trained(run, monkeypatch):
    def accuracy(self, plan, learning_rate, seed):
        raise ValueError("nothing will do")

    monkeypatch.setattr(Contest, "accuracy", accuracy)
    result = run(*SMALL, "--epsilon", 3, "--clippings", "full")
    assert result.exit_code == 1 and result.stderr.splitlines()[-1] == "Error: no plan could be trained"
    assert result.stdout.count("nothing will do") == 4


@pytest.mark.slow
def test_mixed_as_given(answer):
    shape = ("--contributions", 10, "--examples-per-contribution", 3)
    command = [part for part in SMALL if part not in ("--batch-size", 20)]
    rows = answer(*command, *shape, "--epsilon", 3, "--clippings", "full")["plans"]
    assert [row["contributions"] for row in rows] == [30, 30, 10, 1]


@pytest.mark.parametrize("size, shape", [(250, (10, 25)), (64, (8, 8)), (1, (1, 1)), (7, (1, 7)), (1024, (32, 32))])
def test_mixed_by_itself(size, shape):
    m, s = contest._mixed({"contributions": None, "batch_size": size})
    assert m * s == size and sorted((m, s)) == sorted(shape)


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--epsilon", 3, "--epsilons", "1,2"),
        ("--epsilons", "few"),
        ("--epsilon", 3, "--num-examples", 100),
        ("--epsilon", 3, "--plot", "plans.txt"),
        ("--epsilon", 3, "--num-parameters", 10),
    ],
)
def test_usage(run, args):
    assert run(*SMALL, *args).exit_code == 2


@pytest.mark.parametrize(
    "args, message",
    [
        (("--epsilons", "1,0"), "epsilons must be"),
        (("--epsilon", 3, "--clippings", "full,automatic"), "clippings must be one of"),
        (("--epsilon", 3, "--seeds", 0), "seeds must be"),
        (("--epsilon", 3, "--learning-rates", "-1"), "learning_rates must be"),
        (("--epsilon", 3, "--examples", 0), "examples must be"),
    ],
)
def test_bad_input(refused, args, message):
    assert message in refused(*SMALL, *args)


def test_options_of_training_need_it(run):
    result = run("compare", "--num-examples", 100, "--epsilon", 3, "--learning-rates", "1,2")
    assert result.exit_code == 2 and "--learning-rates is for --train" in result.stderr
