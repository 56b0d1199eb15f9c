"""The choice of engine and physical micro-batch, and its reasons."""

import keras
import pytest

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import N, private
from tfdpbc.errors import IncompatibleModel
from tfdpbc.gradients.auto import MATERIALIZED_BYTES, _kind, contributions_per_pass
from tfdpbc.gradients.onepass import OnePassEngine
from tfdpbc.gradients.vectorized import VectorizedEngine


def big(units):
    return keras.Sequential([keras.Input((1000,)), keras.layers.Dense(units)])


def test_one_contribution_is_not_mapped():
    assert contributions_per_pass(VectorizedEngine, oracles.dense_net(), dp.Shuffling(512, 1, 512), None)[0] == 1


def test_large_contributions_run_one_by_one():
    k, reason = contributions_per_pass(VectorizedEngine, oracles.dense_net(), dp.Shuffling(512, 8, 64), None)
    assert k == 1 and "64 examples" in reason


@pytest.mark.parametrize("units", [1, 100, 5000])
def test_memory_for_contributions_is_bounded(units):
    model = big(units)
    k, _ = contributions_per_pass(VectorizedEngine, model, dp.Shuffling(4096, 1024, 1), None)
    assert k == 1 or k * 4 * model.count_params() <= MATERIALIZED_BYTES
    assert k <= 256


def test_poisson_passes_are_small_against_the_planned_size():
    k, _ = contributions_per_pass(VectorizedEngine, oracles.dense_net(), dp.Poisson(0.1, 10, 1024), None)
    assert k == 128


def test_the_users_limit_counts_examples():
    sampling = dp.Shuffling(512, 16, 4)
    assert contributions_per_pass(VectorizedEngine, oracles.dense_net(), sampling, 8)[0] == 2
    assert contributions_per_pass(VectorizedEngine, oracles.dense_net(), sampling, 10**6)[0] == 16
    assert contributions_per_pass(VectorizedEngine, oracles.dense_net(), sampling, 3)[0] == 1


def test_a_contribution_that_mixes_its_examples_is_not_computed_in_parts():
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), keras.layers.BatchNormalization(name="mixer")])
    model = private(dp.Shuffling(N, 1, 6), net, statistics="unprotected", physical_batch_size=3)
    with pytest.raises(IncompatibleModel, match="must hold one contribution.*'mixer'.*got physical_batch_size=3"):
        model.fit(*oracles.blobs(N), verbose=0)


def test_layers_that_abort_inside_the_map_are_not_mapped_and_named():
    inputs = keras.Input((4, 6))
    attention = keras.layers.MultiHeadAttention(2, 3, name="attend")
    model = keras.Model(inputs, attention(inputs, inputs))
    k, reason = contributions_per_pass(VectorizedEngine, model, dp.Shuffling(64, 8, 1), 8)
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
    assert contributions_per_pass(OnePassEngine, oracles.dense_net(), dp.Shuffling(4096, 1024, 1), None)[0] == 256
    assert contributions_per_pass(OnePassEngine, oracles.dense_net(), dp.Poisson(0.1, 10, 256), None)[0] == 32
