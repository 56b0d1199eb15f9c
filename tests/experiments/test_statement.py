"""The figures of privacy that are printed: the paper's, and the certified ones beside them."""

import dataclasses
import math

import pytest
from scipy.stats import norm

from tfdpbc.accounting import fixed_size
from tfdpbc.experiments import registry, statement


def stated(name, setting):
    return statement.state_of_paper(registry.chosen(registry.get(name), [setting])[0], 1e-5)


def formula_4(sigma, blocks, share, epochs):
    """Paper B's central limit formula, μ = √2 c h(σ/√L) with c = √(E m/N)."""
    s = sigma / math.sqrt(blocks)
    h = math.sqrt(math.exp(s**-2) * norm.cdf(1.5 / s) + 3 * norm.cdf(-0.5 / s) - 2)
    return math.sqrt(2 * epochs * share) * h


@pytest.mark.parametrize("sigma, mu", [("sigma=2.5", 0.5213), ("sigma=1.5", 1.991)])
def test_figures_of_paper_b(sigma, mu):
    found = stated("b-lenet-sigma", sigma)
    assert found["num_layers"] == found["num_blocks"] == 8
    assert found["num_private"] == 54_000 and found["epochs"] == 50 and found["rounds"] == 50 * 843
    assert found["mu_clt"] == pytest.approx(mu, rel=3e-4)
    assert found["mu_clt"] == pytest.approx(formula_4(float(sigma[6:]), 8, 64 / 54_000, 50), rel=1e-9)
    assert found["mu"] is None  # subsampling is not exactly Gaussian
    assert found["released_model"] == statement.VOID


def test_certified_epsilon_beside_it():
    """accounting.md: p = 64/54000, σ = 2.5/√8, T = 42187 → 2.08265; here 42150 rounds are run, and no fewer are stated."""
    found = stated("b-lenet-sigma", "sigma=2.5")
    exact = fixed_size(64 / 54_000, 2.5 / math.sqrt(8), 42_150).epsilon(1e-5)
    assert found["epsilon"] == pytest.approx(exact, rel=1e-9)
    assert 0.999 * 2.08265 < found["epsilon"] * math.sqrt(42_187 / 42_150) < 1.002 * 2.08265
    assert found["neighbouring"] == "replace" and "stays secret" in found["adversary"]


def test_both_readings_of_paper_a():
    """Noise as Algorithm 1 says, μ = √E/σ; noise divided by the batch size, μ = 64 √E/σ."""
    said, divided = stated("a-mnist", "batch-C=0.2"), stated("a-mnist", "divided-C=0.2")
    assert said["mu"] == pytest.approx(math.sqrt(50) / 2) and said["noise_multiplier"] == 2
    assert divided["mu"] == pytest.approx(64 * math.sqrt(50) / 2) and divided["noise_multiplier"] == 2 / 64
    assert divided["epsilon"] > 100 * said["epsilon"]


def test_no_privacy_is_said_to_be_none():
    found = stated("b-convnet-no-dp", "batch=64")
    assert found == {"num_layers": 9, "released_model": statement.NONE}


def test_a_model_without_raw_statistics_keeps_the_guarantee():
    assert stated("b-individual", "constant-step-constant-C")["released_model"] == "as the updates"


def test_equal_mu_is_equal():
    found = [stated("b-multipliers", f"lenet-2.5-{kind}") for kind in ("alc", "fgc", "scaled", "grouped")]
    assert [one["num_blocks"] for one in found] == [8, 1, 1, 4]
    assert [one["mu_clt"] for one in found] == pytest.approx([found[0]["mu_clt"]] * 4, rel=1e-9)
    assert [one["epsilon"] for one in found] == pytest.approx([found[0]["epsilon"]] * 4, rel=1e-6)


@pytest.mark.parametrize(
    "value, text",
    [(None, "–"), (math.inf, "∞"), (0.0, "0"), (0.521282, "0.5213"), (1.99091, "1.991"), (2.08101, "2.082")]
    + [
        (20.66502, "20.67"),
        (835.41, "835.5"),
        (3055521.0, "3.056e+06"),
        (99990.0, "99990"),
        (3051001.0, "3.052e+06"),
        (1.0, "1.000"),
    ],
)
def test_shown(value, text):
    """Rounded up in the last place: what is printed is never below the truth."""
    assert statement.shown(value) == text
    assert value is None or math.isinf(value) or float(text) >= value * (1 - 1e-9)


def test_the_model_is_that_of_the_setting():
    (setting,) = registry.chosen(registry.get("b-lenet-sigma"), ["sigma=2.5"])
    setting = dataclasses.replace(setting, activation="tanh")
    net = statement.build(setting, (28, 28, 1), 10, seed=1)
    assert net.get_layer("f6").activation.__name__ == net.get_layer("c1_activation").activation.__name__ == "tanh"
    again = statement.build(setting, (28, 28, 1), 10, seed=1)
    assert all((a.numpy() == b.numpy()).all() for a, b in zip(net.weights, again.weights, strict=True))
    # Black margins would not be 0 after it: standardising is the first layer.
    assert net.layers[1].name == "standardize"
