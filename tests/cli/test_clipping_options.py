"""The options of the clippings: plans that they describe, contradictions that are refused."""

import json

import click
import pytest

import tfdpbc as dp
from tests.cli.test_options import SIZE, plan
from tfdpbc.cli import defaults
from tfdpbc.clipping.estimates import by_name

COMMON = ("--num-examples", 54_000, "--sampling", "subsampling", "--clip", "batch", "--batch-size", 64, "--epochs", 50)


def test_estimates_are_those_of_the_registry():
    assert set(defaults.NORM_ESTIMATES) == set(by_name)


def test_each_clipping():
    assert plan(clipping="layerwise", num_blocks=8).clipping == dp.LayerwiseClipping(0.5, 8, decay=0.9)
    assert plan(clipping="layerwise", model="bn_lenet5").clipping == dp.LayerwiseClipping(0.5, 8, decay=0.9)
    assert plan(clipping="grouped", num_groups=3).clipping == dp.GroupedClipping(0.5, 3, decay=0.9)
    fixed = plan(clipping="scaled", norm_estimates="fixed").clipping
    assert fixed == dp.ScaledClipping(0.5, estimates="fixed", decay=0.9)
    private = plan(clipping="scaled", norm_estimates="private", estimates_noise=7.0, num_blocks=2).clipping
    assert private.estimates == dp.PrivateNorms(noise_multiplier=7.0)
    assert plan(clipping="automatic").clipping == dp.AutomaticClipping(0.5, decay=0.9)
    quantile = plan(clipping="quantile", count_noise=9.0, target_quantile=0.7, norm_decay=1.0)
    assert quantile.clipping == dp.QuantileClipping(0.5, 9.0, 0.7)


def test_calibration_with_a_measurement_starts_from_any_noise():
    done = plan(
        num_examples=SIZE, clipping="quantile", count_noise=0.9, norm_decay=1.0, noise_multiplier=None, epsilon=20.0
    )
    assert 0.4 < done.noise_multiplier < 1.8


@pytest.mark.parametrize(
    "given",
    [
        {"clipping": "full", "num_groups": 3},
        {"clipping": "full", "num_blocks": 3},
        {"clipping": "scaled", "count_noise": 3.0},
        {"clipping": "grouped"},
        {"clipping": "quantile", "norm_decay": 1.0},
        {"clipping": "quantile", "count_noise": 3.0},
        {"clipping": "layerwise", "norm_estimates": "private"},
        {"clipping": "layerwise", "estimates_noise": 3.0},
    ],
    ids=str,
)
def test_contradictions_are_usage_errors(given):
    with pytest.raises(click.UsageError):
        plan(**given)


def test_account_and_calibrate_count_the_blocks(answer, run):
    """Paper B's σ = 2.5 and L = 8, with √8 in σ: accounting.md section 6 (2.0825 for exactly T = 42187 rounds)."""
    given = *COMMON, "--clipping", "layerwise"
    found = answer("account", *given, "--num-blocks", 8, "--noise-multiplier", 2.5)
    assert found["epsilon"] == pytest.approx(2.0825, rel=1e-3)
    eight = answer("calibrate", *given, "--model", "bn_lenet5", "--epsilon", 2)
    assert eight["epsilon"] <= 2 and eight["noise_multiplier"] == pytest.approx(2.5, rel=0.1)
    missing = run("account", *given, "--noise-multiplier", 2.5)
    assert missing.exit_code == 2 and "--num-blocks" in missing.stderr


def test_train_with_layers_and_resume(run, tmp_path):
    """A run folder holds the number of layers that the model has; public data cannot be given on the command line."""
    given = ("train", "--examples", 64, "--epochs", 1, "--batch-size", 32, "--model", "mlp", "--clipping", "scaled")
    done = run(*given, "--out", tmp_path / "run", "--json")
    assert done.exit_code == 0, done.stderr
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["plan"]["clipping"]["num_blocks"] == len(dp.clipping.layers_of(dp.models.mlp((28, 28, 1), 10)))
    public = run(*given, "--norm-estimates", "public", "--out", tmp_path / "other")
    assert public.exit_code == 2 and "public data" in public.stderr
