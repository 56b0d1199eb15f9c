"""Plans trained on one model and data: what is measured, chosen and refused."""

import math

import numpy as np
import pytest

from tests.experiments import helpers
from tfdpbc import FullGradientClipping, LayerwiseClipping, Poisson, PrivacyPlan, ScaledClipping, Subsampling
from tfdpbc.errors import IncompatibleModel
from tfdpbc.experiments.comparison import Contest, signal_to_noise


def contest(model="mlp", normalization=None, learning_rates=(0.1,), seeds=1):
    train, test = helpers.stripes("stripes"), helpers.stripes("stripes", split="test")
    return Contest(train, test, model, normalization, learning_rates, 0.0, seeds)


def test_a_plan_with_little_noise_learns():
    """The halves are told apart by their brightness: without much noise nearly all of the test set."""
    plan = PrivacyPlan(Poisson.individual(200, 20), FullGradientClipping(1.0), 0.01, 2)
    assert contest().accuracy(plan, 0.1, 0) > 90


def test_batch_normalisation_is_refused_where_contributions_are_examples():
    plan = PrivacyPlan(Subsampling.individual(200, 20), FullGradientClipping(1.0), 1.0, 1)
    with pytest.raises(IncompatibleModel, match="normali"):
        contest("convnet", "batch").accuracy(plan, 0.1, 0)


def test_the_best_step_by_the_mean_over_seeds(monkeypatch):
    reached = {(0.1, 0): 50.0, (0.1, 1): 70.0, (1.0, 0): 90.0, (1.0, 1): 20.0}
    monkeypatch.setattr(Contest, "accuracy", lambda self, plan, rate, seed: reached[rate, seed])
    best = contest(learning_rates=(0.1, 1.0), seeds=2).best(None)
    assert best["learning_rate"] == 0.1
    assert best["accuracy"] == {"mean": 60.0, "std": pytest.approx(np.std([50, 70], ddof=1))}
    assert [one["accuracy"]["mean"] for one in best["tried"]] == [60.0, 55.0]


def test_the_size_of_the_model():
    assert contest().size() == (64 * 512 + 512 + 512 * 512 + 512 + 512 * 2 + 2, 3)


@pytest.mark.parametrize("sampling", [Poisson.individual(200, 20), Subsampling(200, 4, 5), Subsampling.batch(200, 20)])
def test_signal_to_noise(sampling):
    """Norm of m agreeing clipped contributions over the root of the noise's expected square, from the plan's own numbers."""
    d, blocks = 600, 3  # of 200 numbers each
    full = PrivacyPlan(sampling, FullGradientClipping(0.3), 1.7, 2)
    expected = full.divisor * 0.3 / math.sqrt(d * full.noise_std(0)[0] ** 2)
    assert signal_to_noise(full, d) == pytest.approx(expected)

    layerwise = PrivacyPlan(sampling, LayerwiseClipping(0.3, blocks, estimates="fixed"), 1.7, 2)
    stds = layerwise.noise_std(0, [0.3] * blocks)
    expected = layerwise.divisor * math.sqrt(blocks * 0.3**2) / math.sqrt(sum(d / blocks * std**2 for std in stds))
    assert signal_to_noise(layerwise, d) == pytest.approx(expected)

    scaled = PrivacyPlan(sampling, ScaledClipping(0.3, blocks, estimates="fixed"), 1.7, 2)
    assert signal_to_noise(scaled, d) == pytest.approx(signal_to_noise(full, d))
