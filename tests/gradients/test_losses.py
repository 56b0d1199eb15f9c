"""Per-example losses: their mean is the Keras loss, and nothing couples rows."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdpbc.errors import IncompatibleModel
from tfdpbc.gradients.losses import PerExampleLoss

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(5, 4)).astype(np.float32)
LABELS = np.array([0, 3, 1, 1, 2])
ONE_HOT = np.eye(4, dtype=np.float32)[LABELS]


@pytest.mark.parametrize(
    "loss, y, outputs",
    [
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), LABELS, LOGITS),
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), LABELS[:, None], LOGITS),
        (keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1), ONE_HOT, LOGITS),
        (keras.losses.BinaryCrossentropy(from_logits=True), ONE_HOT, LOGITS),
        (keras.losses.Huber(), ONE_HOT, LOGITS),
        ("mse", ONE_HOT, LOGITS),
        ("mean_absolute_error", ONE_HOT[:, :1], LOGITS[:, :1]),
        (keras.losses.sparse_categorical_crossentropy, LABELS, np.abs(LOGITS)),
    ],
    ids=lambda value: (
        "" if isinstance(value, np.ndarray) else getattr(value, "name", getattr(value, "__name__", value))
    ),
)
def test_the_mean_over_rows_is_the_keras_loss(loss, y, outputs):
    got = PerExampleLoss(loss)(y, tf.constant(outputs))
    assert got.shape == (5,) and got.dtype == tf.float32
    model = keras.Sequential([keras.Input(outputs.shape[1:]), keras.layers.Identity()])
    model.compile(loss=loss)
    np.testing.assert_allclose(np.mean(got), model.evaluate(outputs, y, verbose=0), rtol=1e-6)


def test_each_row_stands_alone():
    loss = PerExampleLoss("mse")
    whole = loss(ONE_HOT, tf.constant(LOGITS)).numpy()
    for i in range(5):
        alone = loss(ONE_HOT[i : i + 1], tf.constant(LOGITS[i : i + 1])).numpy()
        np.testing.assert_allclose(whole[i], alone[0], rtol=1e-6)


def test_sequences_average_over_their_positions_and_sample_weights_scale_rows():
    y, outputs = np.tile(LABELS[:, None], [1, 3]), np.tile(LOGITS[:, None], [1, 3, 1])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    plain = PerExampleLoss(loss)(LABELS, tf.constant(LOGITS)).numpy()
    np.testing.assert_allclose(PerExampleLoss(loss)(y, tf.constant(outputs)), plain, rtol=1e-6)
    weight = np.array([0, 1, 2, 10, 0.5], np.float32)
    for shaped in (weight, weight[:, None]):
        got = PerExampleLoss(loss)(y, tf.constant(outputs), shaped)
        np.testing.assert_allclose(got, plain * weight, rtol=1e-6)
    positions = np.zeros((5, 3), np.float32)
    positions[:, 1] = 3.0
    np.testing.assert_allclose(PerExampleLoss(loss)(y, tf.constant(outputs), positions), plain, rtol=1e-6)


def test_masked_positions_change_nothing():
    y, outputs = np.tile(LABELS[:, None], [1, 3]), np.tile(LOGITS[:, None], [1, 3, 1])
    outputs[:, 2] = np.nan
    predictions = tf.constant(outputs)
    predictions._keras_mask = tf.constant([[True, True, False]] * 5)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    plain = PerExampleLoss(loss)(LABELS, tf.constant(LOGITS)).numpy()
    np.testing.assert_allclose(PerExampleLoss(loss)(y, predictions), plain, rtol=1e-6)


def test_several_outputs_add_up_with_their_weights():
    outputs = {"a": tf.constant(LOGITS), "b": tf.constant(LOGITS[:, :1])}
    loss = PerExampleLoss({"a": "mse", "b": "mae"}, {"a": 2.0, "b": 0.5}, ["a", "b"])
    got = loss({"b": ONE_HOT[:, :1], "a": ONE_HOT}, outputs)
    want = 2 * np.mean((LOGITS - ONE_HOT) ** 2, 1) + 0.5 * np.abs(LOGITS - ONE_HOT)[:, 0]
    np.testing.assert_allclose(got, want, rtol=1e-6)
    with pytest.raises(ValueError, match="loss must name outputs"):
        PerExampleLoss({"c": "mse"}, None, ["a", "b"])({"a": ONE_HOT, "b": ONE_HOT}, outputs)


@pytest.mark.parametrize(
    "reduced",
    [lambda y, p: tf.reduce_mean((y - p) ** 2), lambda y, p: tf.reduce_mean((y - p) ** 2, axis=0)],
    ids=["scalar", "over rows"],
)
def test_a_loss_that_mixed_rows_already_is_refused(reduced):
    with pytest.raises(IncompatibleModel, match="loss must return one value for each example"):
        PerExampleLoss(reduced)(ONE_HOT, tf.constant(LOGITS))


@pytest.mark.parametrize("loss", ["mse", "mae", "hinge", "poisson", keras.losses.Huber(), keras.losses.LogCosh()])
def test_targets_that_would_be_broadcast_over_the_rows_are_refused(loss):
    """y [n] against outputs [n, n]: each example's y would meet all other examples."""
    with pytest.raises(ValueError, match="y must have the shape of the model's output"):
        PerExampleLoss(loss)(tf.zeros([2]), tf.zeros([2, 2]))
    with pytest.raises(ValueError, match="y must have the shape of the model's output"):
        PerExampleLoss(loss)(tf.zeros([3, 2]), tf.zeros([3, 3, 2]))
    for y, outputs in (([3], [3, 1]), ([3, 1], [3]), ([3, 4], [3, 4]), ([3, 1], [3, 4])):
        assert PerExampleLoss(loss)(tf.zeros(y), tf.zeros(outputs)).shape == [3]


def test_no_loss_is_named():
    with pytest.raises(ValueError, match="loss must be"):
        PerExampleLoss(None)
