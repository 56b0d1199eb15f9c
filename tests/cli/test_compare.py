"""`tfdpbc compare`, and the pictures of `account`."""

import math

import pytest

SIZE = ("--num-examples", 6000, "--batch-size", 60, "--epochs", 4)


def test_every_plan_keeps_the_promise(answer):
    got = answer("compare", *SIZE, "--epsilon", 3, "--num-parameters", 100)
    rows = {(row["sampling"], row["clipped"]): row for row in got["plans"]}
    assert len(rows) == len(got["plans"]) == 6
    for (sampling, clipped), row in rows.items():
        assert 0.99 * 3 <= row["epsilon"] <= 3
        assert row["rounds"] == 400
        one = answer(
            *("account", *SIZE, "--sampling", sampling, "--clip", clipped),
            *("--noise-multiplier", repr(row["noise_multiplier"])),
        )
        assert (one["epsilon"], one["adversary"]) == (row["epsilon"], row["adversary"])
        contributions = 1 if clipped == "batch" else 60
        std = row["noise_multiplier"] * (1 if row["neighbouring"] == "add-remove" else 2)
        assert row["signal_to_noise_per_round"] == pytest.approx(contributions / 10 / std)
        assert row["signal_to_noise_of_all_rounds"] == pytest.approx(20 * contributions / 10 / std)
    # Batch clipping needs the same noise and has a 60th of the (aligned) signal.
    ratio = rows["shuffling", "individual"]["signal_to_noise_per_round"]
    assert ratio == pytest.approx(60 * rows["shuffling", "batch"]["signal_to_noise_per_round"], rel=2e-3)


def test_mixed_plans(answer):
    shape = ("--contributions", 4, "--examples-per-contribution", 15)
    got = answer("compare", "--num-examples", 6000, *shape, "--epochs", 4, "--epsilon", 2)
    assert [row["sampling"] for row in got["plans"]] == ["subsampling", "shuffling", "poisson"]
    assert {row["contributions"] for row in got["plans"]} == {4} and {row["clipped"] for row in got["plans"]} == {
        "mixed"
    }
    assert all(row["noise_std_over_norm"] == 2 * row["noise_multiplier"] for row in got["plans"])


def test_words(run):
    result = run("compare", *SIZE, "--epsilon", 3)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("Promise: ε = 3, δ = 1e-05, 4 epochs\n")
    assert "stronger adversary than the usual one: shuffling (individual), shuffling (batch)." in result.stdout
    assert len(result.stdout.splitlines()) == 9


@pytest.mark.parametrize(
    "args, message",
    [
        (("--epsilon", 0), "epsilon must be a finite number > 0; got epsilon=0.0"),
        (("--epsilon", 1, "--num-parameters", 0), "num_parameters must be"),
    ],
)
def test_bad_input(refused, args, message):
    assert message in refused("compare", *SIZE, *args)


@pytest.mark.parametrize("args", [(), ("--epsilon", 1, "--sampling", "poisson"), ("--epsilon", 1, "--clip", "batch")])
def test_usage_errors(run, args):
    assert run("compare", *SIZE, *args).exit_code == 2


@pytest.mark.parametrize("kind, start", [("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_plots(run, tmp_path, kind, start):
    picture = tmp_path / f"plan.{kind}"
    shape = ("--sampling", "shuffling", "--clip", "batch", "--noise-multiplier", 2)
    result = run("account", *SIZE, *shape, "--plot", picture)
    assert result.exit_code == 0, result.stderr
    assert picture.read_bytes().startswith(start)
    # μ is exactly √E/σ for one example.
    assert f"{math.sqrt(4) / 2:g}-Gaussian DP" in result.stdout


@pytest.mark.parametrize("name", ["plan.txt", "plan", "missing/plan.svg"])
def test_plots_of_no_kind_are_refused_before_the_work(run, tmp_path, name):
    result = run("account", *SIZE, "--noise-multiplier", 2, "--plot", tmp_path / name)
    assert result.exit_code == 2 and "--plot must" in result.stderr and not list(tmp_path.iterdir())


def test_lower_bounds_are_printed_as_such(run, answer):
    shape = (*SIZE, "--sampling", "shuffling", "--noise-multiplier", 0.6)
    text = run("account", *shape).stdout
    found = answer("account", *shape)["bounds"]
    assert "ε ≥ " in text and "for some model and data so much is given away" in text
    low, high = found["lower_bound"], found["mixture"]
    assert (low["kind"], low["certified"], high["kind"], high["certified"]) == ("lower", False, "upper", True)
    assert 0 < low["epsilon"] < high["epsilon"]
