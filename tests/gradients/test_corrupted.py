"""Marked contributions are the adversary's vectors, before clipping; the honest ones stay as they are."""

import keras
import numpy as np
import pytest

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import one_round, weights
from tfdpbc.attacked_model import AttackedModel
from tfdpbc.gradients.corrupted import CorruptedEngine

N, C = 10, 0.8
X, Y = oracles.blobs(N)
MARKS = np.where(np.isin(np.arange(N), [1, 4, 7]), -1.0, 1.0).astype(np.float32)
HONEST = [i for i in range(N) if MARKS[i] > 0]


def released(kind, engine, norm, **options):
    plan = dp.PrivacyPlan(dp.Poisson(0.5, 2, 5), dp.FullGradientClipping(norm), 0.0, 1)
    model = AttackedModel(
        oracles.dense_net(), plan, engine=engine, physical_batch_size=40, attack=kind, attack_options=options
    )
    model.compile(keras.optimizers.SGD(1.0), oracles.LOSS)
    from tfdpbc.data.sources import as_source

    model._prepare(as_source(X, Y, MARKS))
    indices, mask = np.zeros(plan.sampling.shape, int), np.zeros(plan.sampling.shape, bool)
    indices[:N, 0], mask[:N] = np.arange(N), True
    before = oracles.flat(weights(model))
    one_round(model, X, Y, indices, mask, sample_weight=MARKS)
    return (before - oracles.flat(weights(model))) * 5, model


def honest():
    net = oracles.dense_net()
    return np.array([oracles.flat(oracles.example_gradient(net, X[[i]], Y[[i]])) for i in HONEST])


def clipped(vector, norm):
    return vector / max(1.0, np.linalg.norm(vector) / norm)


@pytest.mark.parametrize("engine", ["onepass", "vectorized"])
@pytest.mark.parametrize("norm", [C, pytest.param(1e6, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["gradient-negated", "gradient-little"])
def test_the_adversary_adds_what_it_says(kind, norm, engine):
    found, model = released(kind, engine, norm, scale=20.0, deviations=1.5)
    mean, spread = honest().mean(axis=0), honest().std(axis=0)
    theirs = -20.0 * mean if kind == "gradient-negated" else mean - 1.5 * spread
    want = sum(clipped(v, norm) for v in honest()) + 3 * clipped(theirs, norm)
    np.testing.assert_allclose(found, want, atol=1e-4)
    assert model.spent.void and "attacked" in model.engine_reason


def test_a_random_vector_has_its_size_and_is_clipped():
    for norm in (C, 1e6):
        found, model = released("gradient-random", "onepass", norm, scale=50.0)
        theirs = found - sum(clipped(v, norm) for v in honest())
        assert np.linalg.norm(theirs) == pytest.approx(3 * min(norm, 50.0), rel=1e-4)
    assert model.spent.void is None


def test_what_cannot_be_attacked_is_refused():
    with pytest.raises(ValueError, match="kind must be one of"):
        CorruptedEngine(None, "label")
    plan = dp.PrivacyPlan(dp.Poisson(0.5, 2, 5), dp.FullGradientClipping(C), 0.0, 1)
    model = AttackedModel(oracles.dense_net(), plan, attack="gradient-random")
    model.compile(keras.optimizers.SGD(1.0), oracles.LOSS)
    with pytest.raises(ValueError, match="sample_weight must be"):
        model.fit(X, Y, verbose=0)
