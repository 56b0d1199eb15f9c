"""A post-processing B of clipped contributions: what it is given, and that no B can break the bound."""

import numpy as np
import pytest
import tensorflow as tf

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import N, one_round, private, weights
from tfdpbc.algorithms import AlgorithmSequence, BatchGradient, LocalOptimizer, PostProcessed
from tfdpbc.errors import IncompatibleModel

GROUPS = np.arange(6).reshape(3, 2)


def moved(algorithm, norm, x=None, y=None):
    """The update of one round over `GROUPS` without noise, as one vector."""
    if x is None:
        x, y = oracles.blobs(N)
    model = private(dp.Shuffling(N, 3, 2), norm=norm, algorithm=algorithm)
    before = oracles.flat(weights(model))
    one_round(model, x, y, GROUPS)
    return before - oracles.flat(weights(model))


def halved_signs(contribution):
    """Keeps ‖B(x)‖ <= 0.5 for every x: signs, scaled by the root of the number of weights."""
    size = sum(t.shape.num_elements() for t in contribution)
    return [0.5 * tf.sign(t) / size**0.5 for t in contribution]


@pytest.mark.parametrize("inner", [BatchGradient(), LocalOptimizer("sgd", 0.1, 2, 2)], ids=["gradient", "local"])
def test_a_round_adds_up_b_of_clipped_contributions(inner):
    """B halves and adds a constant, so that it shows what it was given; it keeps its promise for C = 2."""
    got = moved(PostProcessed(inner, lambda a: [0.5 * t + 0.01 for t in a], norm=0.1), norm=2.0)
    x, y = oracles.blobs(N)
    want = 0
    for g in GROUPS:
        part = oracles.example_gradient(oracles.dense_net(), x[g], y[g])
        if inner != BatchGradient():
            part = np.split(moved_alone(inner, x, y, g), np.cumsum([p.size for p in part])[:-1])
        want = want + 0.5 * oracles.flat(oracles.clipped(part, 0.1)) + 0.01
    np.testing.assert_allclose(got, want / 3, atol=1e-6)


def moved_alone(inner, x, y, group):
    model = private(dp.Shuffling(N, 1, 2), norm=1e9, algorithm=inner)
    before = oracles.flat(weights(model))
    one_round(model, x, y, group[None])
    return before - oracles.flat(weights(model))


def test_a_promise_that_is_kept_is_left_alone():
    got = moved(PostProcessed(BatchGradient(), halved_signs, norm=3.0), norm=0.5)
    x, y = oracles.blobs(N)
    signs = [np.sign(oracles.flat(oracles.example_gradient(oracles.dense_net(), x[g], y[g]))) for g in GROUPS]
    np.testing.assert_allclose(got, sum(signs) * 0.5 / len(got) ** 0.5 / 3, atol=1e-6)


@pytest.mark.parametrize("bad", [1e3, np.inf, np.nan])
def test_a_broken_promise_is_clipped_to_the_plans_norm(bad):
    got = moved(PostProcessed(BatchGradient(), lambda a: [bad * tf.sign(t) for t in a], norm=1.0), norm=0.2)
    assert np.isfinite(got).all()
    assert np.linalg.norm(got) <= 0.2 * (1 + 1e-5)
    assert (np.linalg.norm(got) > 0.01) == np.isfinite(bad)  # it is clipped where it is finite, else left out


def test_one_contribution_cannot_move_the_sum_by_more_than_2c_whatever_b_does():
    x, y = oracles.blobs(N)
    algorithm = PostProcessed(BatchGradient(), lambda a: [1e6 * tf.math.sin(1e6 * t) for t in a], norm=1.0)
    one = moved(algorithm, 0.2, x, y)
    x[:2] = np.nan
    other = moved(algorithm, 0.2, x, y)
    x[:2] = 1e3
    third = moved(algorithm, 0.2, x, y)
    for a, b in ((one, other), (one, third), (other, third)):
        assert np.linalg.norm(3 * (a - b)) <= 2 * 0.2 * (1 + 1e-5)


def test_engines_say_why():
    algorithm = PostProcessed(BatchGradient(), halved_signs, 1.0)
    model = private(dp.Shuffling(N, 3, 2), algorithm=algorithm)
    assert "onepass computes the algorithm BatchGradient only, not PostProcessed" in str(model.engine_report())
    with pytest.raises(IncompatibleModel, match="not PostProcessed"):
        private(dp.Shuffling(N, 3, 2), algorithm=algorithm, engine="onepass").engine_report()


def test_what_is_no_post_processing_is_refused_by_name():
    with pytest.raises(TypeError, match="function must be a function of a contribution"):
        PostProcessed(BatchGradient(), None, 1.0)
    with pytest.raises(TypeError, match="algorithm must be a single algorithm"):
        PostProcessed(AlgorithmSequence([BatchGradient()]), halved_signs, 1.0)
    with pytest.raises(TypeError, match="algorithm must be an algorithm"):
        PostProcessed("sgd", halved_signs, 1.0)
    with pytest.raises(ValueError, match="norm must be a finite number > 0"):
        PostProcessed(BatchGradient(), halved_signs, 0.0)
    with pytest.raises(ValueError, match="function must be one that returns a list of tensors shaped like"):
        moved(PostProcessed(BatchGradient(), lambda a: a[:1], 1.0), 1.0)


def test_a_function_that_writes_is_refused():
    kept = tf.Variable(0.0)

    def leak(contribution):
        kept.assign(contribution[0][0, 0])
        return contribution

    with pytest.raises(IncompatibleModel, match="function must not write data"):
        moved(PostProcessed(BatchGradient(), leak, 1.0), 1.0)
    assert kept.numpy() == 0
