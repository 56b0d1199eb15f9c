"""The engine's report, through the model that shows it."""

import keras
import pytest

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import N, private


def test_before_and_after_fit_the_report_is_the_same():
    model = private(dp.Shuffling(N, 4, 1), oracles.conv_net())
    before = model.engine_report()
    model.fit(*oracles.blobs(N, (6, 6, 2)), verbose=0, epochs=1)
    after = model.engine_report()
    assert before == after and after.engine == "onepass" and after.reason == model.engine_reason
    lines = str(after).splitlines()
    assert lines[0] == f"engine: {after.reason}"
    assert lines[2].split() == ["layer", "kind", "rule", "norms", "from", "Mflop", "KiB"]
    assert len(lines) == 3 + len(after.layers) == 3 + sum(1 for layer in model.model.layers if layer.weights)


def test_the_vectorized_engine_says_why_it_was_taken():
    net = keras.Sequential(
        [
            keras.Input((4, 6, 1)),
            keras.layers.ConvLSTM1D(3, 2, name="memory"),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )
    report = private(dp.Shuffling(N, 4, 1), net).engine_report()
    assert report.engine == "vectorized" and "'memory'" in report.reason
    assert [c.norms for c in report.layers] == ["tf.vectorized_map"] * 2
    assert [c.layer for c in report.layers][1].startswith("dense")
    assert report.layers[1].kibibytes == pytest.approx(4 * net.layers[-1].count_params() / 2**10)
    one = private(dp.Shuffling(N, 1, 6), oracles.dense_net()).engine_report()
    assert {c.norms for c in one.layers} == {"a backward pass each"}


def test_a_model_that_is_not_built_has_no_report():
    net = keras.Sequential([keras.layers.Dense(3)])
    with pytest.raises(ValueError, match="must be built"):
        private(dp.Shuffling(N, 4, 1), net).engine_report()
