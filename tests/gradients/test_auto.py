"""The choice of engine and physical micro-batch, and its reasons."""

import keras
import numpy as np
import pytest

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import N, private
from tfdpbc.errors import IncompatibleModel
from tfdpbc.gradients.auto import MATERIALIZED_SHARE, MEMORY_BUDGET, _kind, build_engine, contributions_per_pass
from tfdpbc.gradients.function import ModelFunction
from tfdpbc.gradients.losses import PerExampleLoss
from tfdpbc.gradients.onepass import OnePassEngine
from tfdpbc.gradients.vectorized import VectorizedEngine


def big(units):
    return keras.Sequential([keras.Input((1000,)), keras.layers.Dense(units)])


def per_pass(kind, model, sampling, *limits, **options):
    blocks = [0] * len(model.trainable_variables)
    engine = kind(ModelFunction(model, None), dp.BatchGradient(), sampling.examples_divisor, blocks, 1, 1)
    return contributions_per_pass(engine, sampling, *limits, **options)


def test_one_contribution_is_not_mapped():
    assert per_pass(VectorizedEngine, oracles.dense_net(), dp.Shuffling(512, 1, 512))[0] == 1


def test_large_contributions_run_one_by_one():
    k, reason = per_pass(VectorizedEngine, oracles.dense_net(), dp.Shuffling(512, 8, 64))
    assert k == 1 and "64 examples" in reason


@pytest.mark.parametrize("units", [1, 100, 5000])
def test_memory_for_contributions_is_bounded(units):
    model = big(units)
    k, _ = per_pass(VectorizedEngine, model, dp.Shuffling(4096, 1024, 1))
    assert k == 1 or k * 4 * model.count_params() <= MEMORY_BUDGET / MATERIALIZED_SHARE
    assert k <= 256


def test_poisson_passes_are_small_against_the_planned_size():
    k, _ = per_pass(VectorizedEngine, oracles.dense_net(), dp.Poisson(0.1, 10, 1024))
    assert k == 128


def test_the_users_limit_counts_examples():
    sampling = dp.Shuffling(512, 16, 4)
    assert per_pass(VectorizedEngine, oracles.dense_net(), sampling, 8)[0] == 2
    assert per_pass(VectorizedEngine, oracles.dense_net(), sampling, 10**6)[0] == 16
    assert per_pass(VectorizedEngine, oracles.dense_net(), sampling, 3)[0] == 1


def test_a_contribution_that_mixes_its_examples_is_not_computed_in_parts():
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), keras.layers.BatchNormalization(name="mixer")])
    model = private(dp.Shuffling(N, 1, 6), net, statistics="unprotected", physical_batch_size=3)
    with pytest.raises(IncompatibleModel, match="must hold one contribution.*'mixer'.*got physical_batch_size=3"):
        model.fit(*oracles.blobs(N), verbose=0)


def test_a_loss_that_may_mix_its_examples_is_not_computed_in_parts():
    net = oracles.dense_net()
    losses = {True: oracles.LOSS, False: lambda y, p: keras.losses.sparse_categorical_crossentropy(y, p) ** 2}
    for known, loss in losses.items():
        model = private(dp.Shuffling(N, 1, 6), net, physical_batch_size=2, loss=loss)
        if known:
            model.fit(*oracles.blobs(N), verbose=0, epochs=1)
        else:
            with pytest.raises(IncompatibleModel, match="the loss is not known"):
                model.fit(*oracles.blobs(N), verbose=0, epochs=1)


def strided(filters, **options):
    layers = keras.layers
    first = layers.Conv2D(filters, 1, strides=3, name="culprit", **options)
    return keras.Sequential([keras.Input((15, 15, 16)), first, layers.GlobalAveragePooling2D(), layers.Dense(3)])


def test_filters_whose_gradient_corrupts_memory_are_refused_by_name(monkeypatch):
    """TensorFlow with oneDNN writes beyond its memory there; the process may die (see the subprocess test)."""
    sampling = dp.Shuffling(64, 1, 8)

    def build(model, sampling=sampling):
        function, blocks = ModelFunction(model, PerExampleLoss("mse")), [0] * len(model.trainable_variables)
        return build_engine("auto", function, dp.BatchGradient(), sampling, blocks, 1)[0].name

    with pytest.raises(IncompatibleModel, match="'culprit'.*engine='onepass'"):
        build(strided(3))
    assert build(strided(16)) == build(strided(3, trainable=False)) == "vectorized"
    assert build(strided(3), dp.Shuffling(64, 8, 1)) == "onepass"
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert build(strided(3)) == "vectorized"


def test_layers_that_abort_inside_the_map_are_not_mapped_and_named():
    inputs = keras.Input((4, 6))
    attention = keras.layers.MultiHeadAttention(2, 3, name="attend")
    model = keras.Model(inputs, attention(inputs, inputs))
    k, reason = per_pass(VectorizedEngine, model, dp.Shuffling(64, 8, 1), 8)
    assert k == 1 and "'attend'" in reason


def test_auto_takes_onepass_where_every_layer_has_a_rule_and_says_why_not():
    sampling = dp.Shuffling(64, 8, 1)
    assert _kind("auto", oracles.conv_net(), dp.BatchGradient(), sampling)[0] is OnePassEngine
    recurrent = keras.Sequential(
        [
            keras.Input((4, 6, 1)),
            keras.layers.ConvLSTM1D(3, 2, name="memory"),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    kind, why = _kind("auto", recurrent, dp.BatchGradient(), sampling)
    assert kind is VectorizedEngine and "'memory'" in why
    kind, why = _kind("auto", oracles.dense_net(), lambda *a: None, sampling)
    assert kind is VectorizedEngine and "BatchGradient only" in why
    assert _kind("auto", oracles.dense_net(), dp.BatchGradient(), dp.Shuffling(64, 1, 8))[0] is VectorizedEngine
    assert _kind("vectorized", oracles.dense_net(), dp.BatchGradient(), sampling)[0] is VectorizedEngine


def test_onepass_fills_the_processor_and_skips_empty_poisson_passes():
    assert per_pass(OnePassEngine, oracles.dense_net(), dp.Shuffling(4096, 1024, 1))[0] == 256
    assert per_pass(OnePassEngine, oracles.dense_net(), dp.Poisson(0.1, 10, 256))[0] == 32


def test_a_memory_budget_bounds_the_contributions_at_once():
    net, sampling = oracles.conv_net(), dp.Shuffling(4096, 1024, 1)
    assert per_pass(OnePassEngine, net, sampling)[0] == 256
    k, reason = per_pass(OnePassEngine, net, sampling, budget=2**19)
    assert 1 <= k < 256 and "within memory_budget = 0.5 MiB" in reason
    passes = -(-1024 // k)
    assert passes * k - 1024 < passes  # none of them mostly padding
    half = per_pass(OnePassEngine, net, sampling, budget=2**18)[0]
    assert 2 * passes - 1 <= -(-1024 // half) <= 2 * passes + 1
    assert per_pass(OnePassEngine, net, sampling, budget=1)[0] == 1
    # Contributions of several examples are larger; what is held for them together is not.
    four = per_pass(OnePassEngine, net, dp.Shuffling(4096, 256, 4), budget=2**19)[0]
    assert k // 4 <= four <= k
    dense = per_pass(VectorizedEngine, big(100), sampling, budget=2**24)[0]
    assert dense == 2**24 // MATERIALIZED_SHARE // (4 * 100_100)
    # The users' own limit comes first.
    assert per_pass(OnePassEngine, net, sampling, 64, budget=2**20)[0] == 64


def test_replicas_share_the_contributions():
    assert per_pass(OnePassEngine, oracles.conv_net(), dp.Shuffling(512, 64, 1), replicas=2)[0] == 32


def test_inputs_of_unknown_size_are_measured_once_there_is_data():
    net = keras.Sequential([keras.Input((None, 6)), keras.layers.Dense(4), keras.layers.GlobalAveragePooling1D()])
    sampling = dp.Shuffling(4096, 1024, 1)
    assert per_pass(OnePassEngine, net, sampling, budget=2**16)[0] == 256
    assert per_pass(OnePassEngine, net, sampling, budget=2**16, inputs=np.zeros([2, 90, 6], np.float32))[0] < 256


def test_the_budget_changes_nothing_but_memory():
    """pitfall 12: micro-batching gives the same update."""
    weights = []
    for budget in (None, 40_000, 1):
        net = oracles.conv_net()
        model = private(dp.Shuffling(N, 6, 1), net, memory_budget=budget, seed=1)
        model.fit(*oracles.blobs(N, (6, 6, 2)), verbose=0, epochs=1)
        weights.append((model.engine_reason, oracles.flat(net.get_weights())))
    assert "256 examples" in weights[0][0] and "1 of 6" in weights[2][0]
    for _, found in weights[1:]:
        np.testing.assert_allclose(found, weights[0][1], atol=2e-6)
