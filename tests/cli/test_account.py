"""`tfdpbc account` and `calibrate` against the reference values of the design notes (accounting.md, section 6)."""

import math

import pytest

# (N, s, m, g, E, sigma) of the reference runs, as options.
MIXED = ("--num-examples", 1024, "--epochs", 10, "--noise-multiplier", 2, "--group-size", 8)


@pytest.mark.parametrize(
    "sampling, m, s, epsilon",
    [
        ("shuffling", 1, 16, 27.486603848539),
        ("shuffling", 16, 4, 36.936223283715),
        # Binomial(640, Pr[k > 0]) in 40 digits; the design note's 29.0467380391 carries an FFT's round-off.
        ("subsampling", 1, 16, 29.046737991575),
    ],
)
def test_reference_values(answer, sampling, m, s, epsilon):
    shape = ("--sampling", sampling, "--contributions", m, "--examples-per-contribution", s)
    got = answer("account", *MIXED, *shape)
    found = got["bounds"]
    assert found["mixture"]["epsilon"] == pytest.approx(epsilon, rel=1e-9)
    assert found["mixture"]["certified"] is True and "stronger" in found["mixture"]["adversary"]
    best = "subsampled" if sampling == "subsampling" else "mixture"
    assert (got["epsilon"], got["adversary"]) == (found[best]["epsilon"], found[best]["adversary"])
    assert got["delta"] == 1e-5 and got["group_size"] == 8


def test_one_shuffled_epoch_has_its_exact_participation(answer):
    shape = ("--num-examples", 24, "--examples-per-contribution", 2, "--contributions", 3, "--group-size", 4)
    got = answer("account", "--sampling", "shuffling", *shape, "--epochs", 1, "--noise-multiplier", 1)
    expected = {
        2: 0.005081874647,
        3: 0.121964991530,
        4: 0.123094297007,
        5: 0.121964991530,
        6: 0.487859966121,
        8: 0.081309994353,
        9: 0.004517221909,
        10: 0.054206662902,
    }
    assert dict(map(tuple, got["participation"])) == pytest.approx(expected, abs=1e-11)
    assert got["participation_left_out"] == 0


def test_trade_off_is_a_curve(answer):
    got = answer("account", "--sampling", "shuffling", "--clip", "batch", "--batch-size", 16, *MIXED[:-2])
    alphas, values = zip(*got["trade_off"], strict=True)
    assert alphas[0] == 0 and alphas[-1] == 1 and list(alphas) == sorted(alphas) and len(alphas) == 200
    assert list(values) == sorted(values, reverse=True) and values[-1] == 0
    # Batch clipping under shuffling is exactly Gaussian with mu = sqrt(E) / sigma (Table 1 of paper A).
    assert got["mu"] == pytest.approx(math.sqrt(10) / 2, rel=1e-12)
    assert got["bounds"]["gaussian_bound"]["epsilon"] == pytest.approx(got["epsilon"], rel=1e-9)


def test_many_atoms_are_cut_to_the_most_probable(answer):
    shape = ("--num-examples", 100_000, "--contributions", 64, "--examples-per-contribution", 16)
    got = answer(
        "account", "--sampling", "subsampling", *shape, "--epochs", 40, "--group-size", 32, "--noise-multiplier", 2
    )
    atoms = got["participation"]
    assert len(atoms) == 200 and [c for c, _ in atoms] == sorted(c for c, _ in atoms)
    assert sum(p for _, p in atoms) + got["participation_left_out"] == pytest.approx(1, abs=1e-9)
    assert 0 < got["participation_left_out"] < 0.5


def test_poisson_by_rate(answer):
    got = answer("account", "--rate", 1, "--rounds-per-epoch", 1, "--epochs", 1, "--noise-multiplier", 1)
    assert got["epsilon"] == pytest.approx(4.377178095681, rel=2e-3) and got["epsilon"] >= 4.377178095681
    assert got["neighbouring"] == "add-remove"
    assert got["participation"] == []
    assert list(got["bounds"]) == ["pld", "rdp", "black_box"]


def test_pitfall_27_poisson_with_little_noise_is_finite(answer):
    """pitfall 27: sigma = 0.1, q = 0.01, T = 100 gives 354.2."""
    got = answer("account", "--rate", 0.01, "--rounds-per-epoch", 100, "--epochs", 1, "--noise-multiplier", 0.1)
    assert got["epsilon"] == pytest.approx(354.2, rel=2e-3)


def test_words_name_relation_adversary_and_methods(run):
    """pitfall 28: the statement names neighbouring, adversary and delta."""
    result = run("account", "--num-examples", 60000, "--batch-size", 600, "--epochs", 1, "--noise-multiplier", 1)
    assert result.exit_code == 0, result.stderr
    for words in ("δ = 1e-05", "one example more than the other", "Adversary: ", "Not covered: ", "pld", "certified"):
        assert words in result.stdout
    assert result.stderr == ""


def test_pitfall_28_warnings(run):
    """pitfall 28: warns where delta >= 1/N and where epsilon > 10; on stderr, beside a clean JSON object."""
    result = run(
        "account", "--num-examples", 100, "--batch-size", 10, "--delta", 0.01, "--noise-multiplier", 1, "--json"
    )
    assert result.exit_code == 0
    assert result.stdout.startswith("{") and result.stderr.startswith("Warning: delta")
    assert len(result.stderr.splitlines()) == 1
    loud = run("account", "--num-examples", 1000, "--batch-size", 100, "--epochs", 100, "--noise-multiplier", 0.5)
    assert "> 10 says little" in loud.stdout


@pytest.mark.parametrize(
    "args, message",
    [
        (("--noise-multiplier", 0), "noise_multiplier must be a finite number > 0; got noise_multiplier=0.0"),
        (("--noise-multiplier", "nan"), "noise_multiplier must be a finite number > 0; got noise_multiplier=nan"),
        (("--epsilon", 0), "epsilon must be a finite number > 0; got epsilon=0.0"),
        (("--noise-multiplier", 1, "--norm", "nan"), "norm must be a finite number > 0; got norm=nan"),
        (("--noise-multiplier", 1, "--delta", 1), "delta must be"),
        (
            ("--noise-multiplier", 1, "--group-size", 1001, "--sampling", "shuffling", "--batch-size", 5),
            "group_size must be",
        ),
        (
            ("--noise-multiplier", 1, "--sampling", "shuffling", "--batch-size", 2000),
            "num_examples must be at least one round",
        ),
    ],
)
def test_bad_input(refused, args, message):
    assert message in refused("account", "--num-examples", 1000, "--batch-size", 10, *args)


@pytest.mark.parametrize(
    "args",
    [
        ("account", "--noise-multiplier", 1),
        ("account", "--num-examples", 10_000),
        ("account", "--num-examples", 10_000, "--noise-multiplier", 1, "--epsilon", 1),
        ("account", "--num-examples", "many", "--noise-multiplier", 1),
        ("account", "--sampling", "sorting", "--num-examples", 10_000, "--noise-multiplier", 1),
        ("account", "--clipping", "layerwise", "--num-examples", 10_000, "--noise-multiplier", 1),
        ("calibrate", "--num-examples", 10_000),
        ("calibrate", "--num-examples", 10_000, "--epsilon", 1, "--noise-multiplier", 1),
        ("reproduce",),
    ],
)
def test_usage_errors(run, args):
    result = run(*args)
    assert result.exit_code == 2
    assert result.stdout == "" and "Usage: tfdpbc" in result.stderr


@pytest.mark.parametrize("shape", [("--sampling", "shuffling", "--clip", "batch"), ("--sampling", "poisson")])
def test_calibrate_keeps_its_promise(answer, shape):
    size = ("--num-examples", 10_000, "--batch-size", 100, "--epochs", 4)
    got = answer("calibrate", *size, *shape, "--epsilon", 2)
    assert 1.98 <= got["epsilon"] <= 2
    back = answer("account", *size, *shape, "--noise-multiplier", repr(got["noise_multiplier"]))
    assert back["epsilon"] == got["epsilon"]
    directly = answer("account", *size, *shape, "--epsilon", 2)
    assert directly["noise_multiplier"] == got["noise_multiplier"]


def test_calibrate_in_words(run):
    result = run("calibrate", "--num-examples", 10_000, "--batch-size", 100, "--epsilon", 2)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("noise multiplier: ") and "Adversary: " in result.stdout
