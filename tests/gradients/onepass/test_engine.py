"""The one-pass engine keeps the engine contract, leaves the model alone, and refuses what it cannot compute."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import oracles
from tests.contracts.engine import EngineContract
from tests.gradients.onepass.agreement import check, onepass
from tfdpbc import models
from tfdpbc.algorithms import BatchGradient
from tfdpbc.errors import IncompatibleModel
from tfdpbc.gradients.function import Examples, ModelFunction
from tfdpbc.gradients.losses import PerExampleLoss
from tfdpbc.gradients.onepass import OnePassEngine, register, rowwise, total, unsupported


class TestOnePass(EngineContract):
    def engine(self, function, algorithm, s, blocks, num_blocks, k):
        return OnePassEngine(function, algorithm, s, blocks, num_blocks, contributions_per_pass=k)

    def test_an_unused_weight_has_gradient_zero(self):
        """As in the contract, with a sum that treats rows on their own; the contract's adds up rows and is refused."""
        with pytest.raises(IncompatibleModel, match="operation .* may mix rows"):
            super().test_an_unused_weight_has_gradient_zero()
        inputs = keras.Input((6,))
        unused = keras.layers.Dense(2, name="unused")(inputs)
        model = keras.Model(inputs, keras.layers.Dense(3)(inputs) + 0 * keras.ops.sum(unused, -1, keepdims=True))
        x, y = oracles.blobs(2)
        norms, total = self.compute(model, x, y, [[0], [1]])
        assert np.isfinite(norms).all()
        position = [v.path.startswith("unused") for v in model.trainable_variables].index(True)
        assert (total[position] == 0).all()

    def test_an_inf_in_a_convolutional_net_adds_nothing(self):
        """pitfall 13, through every kind of rule: 0 times NaN must not get in."""
        model = oracles.conv_net()
        x, y = oracles.blobs(3, (6, 6, 2))
        _, want = self.compute(model, x, y, [[0], [2]])
        for bad in (np.nan, np.inf):
            x[1, 3, 3] = bad
            # The engine itself takes out what is not finite, whatever its weight.
            for weight in (0, 1):
                weights = np.array([[1], [weight], [1]], np.float32)
                norms, got = self.compute(model, x, y, [[0], [1], [2]], weights)
                assert not np.isfinite(norms[1, 0])
                np.testing.assert_allclose(oracles.flat(got), oracles.flat(want), rtol=1e-5, atol=1e-6)


def model_of(*layers, shape=(6,)):
    return keras.Sequential([keras.Input(shape), *layers, keras.layers.Dense(3)])


def test_the_model_is_left_as_it_was():
    model = oracles.conv_net()
    before = [v.numpy() for v in model.variables]
    attributes = [dict(vars(layer)) for layer in model.layers]
    x, y = oracles.blobs(3, (6, 6, 2))
    TestOnePass().compute(model, x, y, [[0], [1], [2]])
    for old, new in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, new)
    for layer, old in zip(model.layers, attributes, strict=True):
        assert "call" not in vars(layer)
        assert getattr(layer, "activation", None) is old.get("activation")


def test_the_model_is_left_as_it_was_after_an_error():
    model = oracles.dense_net()
    x, y = oracles.blobs(2)

    def broken(y, outputs):
        raise RuntimeError("broken loss")

    with pytest.raises(RuntimeError, match="broken loss"):
        TestOnePass().compute(model, x, y, [[0], [1]], loss=broken)
    assert all("call" not in vars(layer) for layer in model.layers)
    TestOnePass().compute(model, x, y, [[0], [1]])


def test_other_threads_use_the_model_as_it_is_while_it_is_recorded():
    model = oracles.dense_net()
    x, y = oracles.blobs(4)
    want = model(x).numpy()
    recorded, results = [], []

    def loss(y, outputs):  # runs in the middle of the recording
        thread = threading.Thread(target=lambda: results.append(model(x).numpy()))
        thread.start()
        thread.join()
        recorded.append([layer for layer in model.layers if "call" in vars(layer)])
        return keras.losses.sparse_categorical_crossentropy(y, outputs, from_logits=True)

    rowwise(loss)
    TestOnePass().compute(model, x, y, [[0], [1], [2], [3]], loss=loss)
    assert len(recorded[0]) == 2
    np.testing.assert_array_equal(results[0], want)


def test_engines_on_several_threads_agree():
    model = oracles.dense_net()
    x, y = oracles.blobs(4)
    want, _ = TestOnePass().compute(model, x, y, [[0], [1], [2], [3]])
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: TestOnePass().compute(model, x, y, [[0], [1], [2], [3]])[0], range(4)))
    for norms in found:
        np.testing.assert_allclose(norms, want, rtol=1e-6)


def test_a_loss_of_the_users_own_sees_one_contribution_at_a_time():
    """pitfall 18: a loss that couples rows cannot couple contributions."""
    model = oracles.dense_net()
    x, y = oracles.blobs(4)

    def coupled(y, outputs):
        return tf.reduce_sum((outputs - tf.reduce_mean(outputs, 0, keepdims=True) + 1.0) ** 2, -1)

    loss = keras.losses.Loss()
    loss.call = coupled
    groups = [[0, 1], [2, 3]]
    norms, _ = TestOnePass().compute(model, x, y, groups, loss=coupled)
    each = [oracles.flat(oracles.example_gradient(model, x[g], y[g], loss)) for g in groups]
    np.testing.assert_allclose(norms[:, 0], [np.linalg.norm(g) for g in each], rtol=1e-5)


def test_the_evaluation_is_that_of_each_row():
    model = oracles.dense_net()
    x, y = oracles.blobs(4)
    _, _, evaluation = onepass(model, x, y, [[0, 1], [2, 3]], [1, 1])
    np.testing.assert_allclose(evaluation.outputs, model(x).numpy().reshape(2, 2, 3), rtol=1e-5)
    np.testing.assert_allclose(tf.reshape(evaluation.losses, -1), oracles.LOSS.call(y, model(x)), rtol=1e-5)
    assert evaluation.penalty.shape == (2,)


def test_rows_of_one_contribution_have_dropout_masks_of_their_own():
    """pitfall 17: dropout differs between identical rows of a batch."""
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5)])
    model.add(keras.layers.Dense(3))
    x, y = np.ones((4, 64), np.float32), np.zeros(4, np.int64)
    _, _, evaluation = onepass(model, x, y, [[0, 1], [2, 3]], [1, 1])
    # Two rows of 64 coins agree by chance with probability 2^-64.
    assert len(np.unique(evaluation.losses)) == 4


class Custom(keras.layers.Layer):
    """z = x w, one weight for each feature."""

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1],), name="w")

    def call(self, x):
        return x * self.w


class Tied(keras.layers.Layer):
    """Multiplies with the transposed kernel of another layer."""

    def __init__(self, dense):
        super().__init__()
        self.dense = dense

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(self.dense.kernel))


class MeanOverRows(keras.layers.Layer):
    def call(self, x):
        return x - keras.ops.mean(x, 0, keepdims=True)


class OwnNormalization(keras.layers.BatchNormalization):
    pass


def functional(operation, **options):
    inputs = keras.Input((6,), name="x", **options)
    return keras.Model(inputs, keras.layers.Dense(3)(operation(inputs)))


REFUSED = {
    "batch normalisation": (lambda: model_of(keras.layers.BatchNormalization()), "BatchNormalization"),
    "its subclasses, frozen too": (lambda: model_of(OwnNormalization(trainable=False)), "OwnNormalization"),
    "a layer without a rule": (lambda: model_of(Custom()), "Custom.*no rule"),
    "a layer that mixes rows": (lambda: model_of(MeanOverRows()), "MeanOverRows"),
    "a Lambda": (lambda: model_of(keras.layers.Lambda(lambda x: x)), "Lambda"),
    "an activation of one's own": (lambda: model_of(keras.layers.Dense(3, lambda x: x)), "activation"),
    "a weight regularizer": (lambda: model_of(keras.layers.Dense(3, kernel_regularizer="l2")), "regularizer"),
    "an activity regularizer": (lambda: model_of(keras.layers.Dense(3, activity_regularizer="l2")), "regularizer"),
    "a mean over rows": (lambda: functional(lambda x: x - keras.ops.mean(x, 0)), "may mix rows"),
    "a transposition": (lambda: functional(lambda x: keras.ops.reshape(x, (-1, 3))), "may mix rows"),
    "softmax over rows": (lambda: model_of(keras.layers.Softmax(axis=0)), "Softmax"),
    "a fixed batch size": (
        lambda: keras.Sequential([keras.Input((6,), batch_size=2), keras.layers.Dense(3)]),
        "fixed batch size",
    ),
    "a sparse input": (lambda: functional(lambda x: x, sparse=True), "input 'x' is sparse"),
    "sparse tokens": (
        lambda: functional(keras.layers.Embedding(5, 2), sparse=True, dtype="int32"),
        "input 'x' is sparse",
    ),
    "a ragged input": (lambda: functional(lambda x: x, ragged=True), "input 'x' is ragged"),
    "a sparse tensor inside": (
        lambda: functional(keras.layers.CategoryEncoding(5, "one_hot", sparse=True)),
        "CategoryEncoding.* is not known",
    ),
    "dropout inside a recurrent layer": (lambda: model_of(keras.layers.LSTM(3, dropout=0.1), shape=(4, 6)), "dropout"),
    "a cell of one's own": (
        lambda: model_of(keras.layers.RNN(keras.layers.GRUCell(3)), shape=(4, 6)),
        "RNN.*treat rows",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_may_mix_rows_or_has_no_rule_is_refused_by_name(case):
    """pitfalls 16 and 19: what the engine cannot do it names, subclasses are not taken for what they extend."""
    make, words = REFUSED[case]
    reasons = unsupported(make(), BatchGradient())
    assert any(re.search(words, reason) for reason in reasons), reasons


def test_a_sparse_tensor_for_a_dense_input_is_an_error():
    """It has no number for each row's place in the batch; nothing is computed from it."""
    model = oracles.dense_net()
    engine = TestOnePass().engine(
        ModelFunction(model, PerExampleLoss(oracles.LOSS)), BatchGradient(), 1.0, [0] * 4, 1, 2
    )
    x = tf.sparse.from_dense(oracles.blobs(2)[0][:, None])
    seeds = tf.zeros([2, 0, 2], tf.int64)
    with pytest.raises((TypeError, ValueError), match="SparseTensor"):
        engine.contributions(Examples(x, tf.zeros([2, 1], tf.int64), None, tf.ones([2, 1], tf.bool), seeds))


def test_other_algorithms_are_refused():
    class Other(BatchGradient):
        pass

    (reason,) = unsupported(oracles.dense_net(), Other())
    assert "Other" in reason


@pytest.mark.parametrize("build", [models.tutorial_cnn, models.convnet, models.mlp])
def test_the_library_s_models_are_supported(build):
    assert unsupported(build((28, 28, 1), 10), BatchGradient()) == []


def test_a_weight_used_outside_its_layer_is_refused():
    """pitfall 15: a use that no recorded call shows must not be forgotten."""
    rowwise(Tied)
    dense = keras.layers.Dense(4)
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(3)(Tied(dense)(dense(inputs))))
    (reason,) = unsupported(model, BatchGradient())
    assert re.search("kernel.*also used outside", reason)
    x, y = oracles.blobs(2)
    with pytest.raises(IncompatibleModel, match="also used outside"):
        onepass(model, x, y, [[0], [1]], [1, 1])


def test_a_weight_used_outside_its_layer_of_a_sequential_model_is_refused():
    rowwise(Tied)
    dense = keras.layers.Dense(4)
    (reason,) = unsupported(model_of(dense, Tied(dense)), BatchGradient())
    assert re.search("kernel.*also used outside", reason)


def test_a_weight_used_outside_its_layer_in_some_passes_only_is_refused_there():
    """What the check of the model cannot see is seen in the pass itself."""

    class Sometimes(Tied):
        def call(self, x):
            return super().call(x) if x.shape[0] == 3 else keras.ops.tile(x, (1, 2))[:, :6]

    rowwise(Sometimes)
    dense = keras.layers.Dense(4)
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(3)(Sometimes(dense)(dense(inputs))))
    x, y = oracles.blobs(3)
    onepass(model, x, y, [[0], [1]], [1, 1])
    with pytest.raises(IncompatibleModel, match="also used outside"):
        onepass(model, x, y, [[0], [1], [2]], [1, 1, 1])


def test_users_register_rules():
    class Scale(Custom):
        pass

    def rule(layer, call):
        yield layer.w, total(call.split(call.inputs * call.gradient), layer.w.shape)

    register(Scale, rule)
    model = keras.Sequential([keras.Input((4, 6)), Scale(), keras.layers.Flatten(), keras.layers.Dense(3)])
    check(model, oracles.blobs(4, (4, 6))[0], groups=[[0, 1], [2, 3]])


@pytest.mark.parametrize(("arguments", "error"), [(("Dense", lambda: 0), "layer_type"), ((Custom, 3), "rule")])
def test_register_checks_its_arguments(arguments, error):
    with pytest.raises(TypeError, match=error):
        register(*arguments)


def test_a_rule_that_forgets_a_weight_is_an_error():
    class Forgotten(Custom):
        pass

    register(Forgotten, lambda layer, call: [])
    model = model_of(Forgotten())
    x, y = oracles.blobs(2)
    with pytest.raises(IncompatibleModel, match="gives no gradient for .*w"):
        onepass(model, x, y, [[0], [1]], [1, 1])
