"""What may not train under a plan is refused before data is read (pitfall 16)."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import N, private
from tfdpbc.compatibility import batch_normalizations
from tfdpbc.errors import IncompatibleModel


class Renamed(keras.layers.BatchNormalization):
    """A subclass that an exact type test would let slip."""


class Hidden(keras.layers.Layer):
    """Holds its batch normalisation inside."""

    def __init__(self):
        super().__init__()
        self.inner = Renamed()

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x, training=None):
        return self.inner(x, training=training)


def net(*layers):
    keras.utils.set_random_seed(4)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(5, "tanh"), *layers, keras.layers.Dense(3)])


INDIVIDUAL, BATCH = dp.Shuffling(N, 6, 1), dp.Shuffling(N, 1, 6)


@pytest.mark.parametrize("layer", [keras.layers.BatchNormalization, Renamed, Hidden])
@pytest.mark.parametrize("sampling", [INDIVIDUAL, dp.Subsampling(N, 6, 1), dp.Poisson(0.25, 4, 6)], ids=repr)
def test_pitfall_16_batch_normalisation_is_refused_under_individual_clipping(layer, sampling):
    inner = layer()
    name = getattr(inner, "inner", inner).name
    for statistics in (None, "unprotected"):
        with pytest.raises(IncompatibleModel, match=f"individual clipping.*'{name}'.*GroupNormalization"):
            private(sampling, net(inner), statistics=statistics)


def test_pitfall_16_nested_models_are_searched():
    outer = keras.Sequential([keras.Input((6,)), net(keras.layers.BatchNormalization()), keras.layers.Dense(3)])
    assert len(batch_normalizations(outer)) == 1
    with pytest.raises(IncompatibleModel, match="individual clipping"):
        private(INDIVIDUAL, outer)


def test_pitfall_16_frozen_batch_normalisation_is_allowed_and_stays_bit_identical():
    layer = keras.layers.BatchNormalization(trainable=False)
    model = net(layer)
    layer.moving_mean.assign(np.arange(5.0))
    held = layer.get_weights()
    private(INDIVIDUAL, model, noise=1.0).fit(*oracles.blobs(N), epochs=1, verbose=0)
    for old, new in zip(held, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_statistics_must_be_chosen():
    with pytest.raises(IncompatibleModel, match="statistics must be chosen.*moving statistics"):
        private(BATCH, net(keras.layers.BatchNormalization()))
    with pytest.raises(ValueError, match="statistics must be one of 'private', 'public', 'batch', 'unprotected'"):
        private(BATCH, net(keras.layers.BatchNormalization()), statistics="hidden")


@pytest.mark.parametrize(
    "statistics, options, message",
    [(how, {"renorm": True}, "renorm=True in 'odd'") for how in ("public", "batch")]
    + [(how, {"synchronized": True}, "synchronized=True in 'odd'") for how in ("batch", "unprotected")]
    + [("public", {"momentum": 1.5}, "momentum=1.5 in 'odd'")],
)
def test_layers_that_the_choice_cannot_serve_are_named(statistics, options, message):
    try:
        layer = keras.layers.BatchNormalization(name="odd", **options)
    except (TypeError, ValueError):
        pytest.skip("this Keras has no such layer")
    with pytest.raises(IncompatibleModel, match=message):
        private(BATCH, net(layer), statistics=statistics)


@pytest.mark.parametrize("statistics", ["public", "batch"])
def test_pitfall_16_no_choice_lifts_the_refusal_under_individual_clipping(statistics):
    with pytest.raises(IncompatibleModel, match="individual clipping"):
        private(INDIVIDUAL, net(Renamed()), statistics=statistics)
    with pytest.raises(IncompatibleModel, match="fixed size"):
        private(dp.Poisson(0.25, 4, 6, 1), net(Renamed()), statistics=statistics)


def test_padding_may_not_enter_the_statistics():
    with pytest.raises(IncompatibleModel, match="fixed size"):
        private(dp.Poisson(0.25, 4, 6, 1), net(keras.layers.BatchNormalization()), statistics="unprotected")


@pytest.mark.parametrize("sampling", [BATCH, dp.Shuffling(N, 3, 2)], ids=repr)
def test_unprotected_statistics_move_and_void_the_guarantee(sampling):
    layer = keras.layers.BatchNormalization()
    model = private(sampling, net(layer), noise=1.0, statistics="unprotected")
    x, y = oracles.blobs(N)
    assert model.spent.epsilon(1e-5) == np.inf  # void from the start: nothing may be claimed for what fit will release
    model.fit(x, y, epochs=1, verbose=0)
    assert np.any(layer.moving_mean.numpy() != 0)
    stated = model.spent.guarantee(1e-5)
    assert stated["epsilon"] is None and "moving statistics" in stated["covers"]["not_covered"][0]
    assert np.isfinite(model.plan.epsilon(1e-5))  # the noisy updates themselves keep theirs


def test_unprotected_statistics_are_the_mean_over_contributions():
    layer = keras.layers.BatchNormalization(momentum=0.5)
    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(3)])
    sampling = dp.Shuffling(6, 3, 2)
    x, y = oracles.blobs(6)
    private(sampling, model, statistics="unprotected").fit(x, y, epochs=1, verbose=0)
    # One round holds all six examples; the mean of the three batch means is the overall mean.
    np.testing.assert_allclose(layer.moving_mean.numpy(), 0.5 * x.mean(axis=0), rtol=1e-5, atol=1e-6)


class Counter(keras.layers.Layer):
    """Writes a statistic of the data it sees into a variable, as a user's layer may."""

    def build(self, shape):
        self.seen = self.add_weight(shape=shape[-1:], trainable=False, initializer="zeros")

    def call(self, x):
        self.seen.assign(self.seen + tf.reduce_sum(x, axis=0))
        return x


@pytest.mark.parametrize("sampling", [INDIVIDUAL, BATCH], ids=repr)
def test_state_that_a_users_layer_writes_from_data_does_not_outlive_the_round(sampling):
    layer = Counter()
    private(sampling, net(layer), noise=1.0).fit(*oracles.blobs(N), epochs=1, verbose=0)
    np.testing.assert_array_equal(layer.seen.numpy(), 0)


def test_a_model_without_trainable_weights_is_refused():
    model = oracles.dense_net()
    model.trainable = False
    with pytest.raises(IncompatibleModel, match="at least one trainable weight"):
        private(INDIVIDUAL, model)


def test_adapted_preprocessing_is_warned_of():
    layer = keras.layers.Normalization()
    x, y = oracles.blobs(N)
    layer.adapt(x)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(3)])
    with pytest.warns(UserWarning, match="may hold statistics"):
        private(INDIVIDUAL, model, noise=1.0).fit(x, y, epochs=1, verbose=0)
