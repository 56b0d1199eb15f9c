"""Batch normalisation by the batch at hand and by public data: inference without any statistic of private data."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import N, private
from tfdpbc import normalization
from tfdpbc.compatibility import batch_normalizations
from tfdpbc.errors import DataError, IncompatibleModel

X, Y = oracles.blobs(N)
BATCH = dp.Shuffling(N, 1, 6)


class Renamed(keras.layers.BatchNormalization):
    """A subclass with a forward pass of its own."""

    def call(self, inputs, training=None, mask=None):
        return 2.0 * super().call(inputs, training=training, mask=mask)


class Hidden(keras.layers.Layer):
    """Holds its batch normalisation inside."""

    def __init__(self):
        super().__init__()
        self.inner = Renamed()

    def build(self, shape):
        self.inner.build(shape)

    def call(self, x, training=None):
        return self.inner(x, training=training)


def net(layer=None, dropout=True):
    keras.utils.set_random_seed(4)
    layers = [keras.layers.Dense(5, "tanh"), layer or keras.layers.BatchNormalization()]
    layers += [keras.layers.Dropout(0.5)] if dropout else []
    return keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(3)])


def expected(model, x):
    """Keras's own training mode, of a copy without dropout."""
    kept = [layer for layer in model.layers if not isinstance(layer, keras.layers.Dropout)]
    plain = keras.Sequential([keras.Input(model.input_shape[1:]), *kept])
    trained, rest = ([v.value for v in group] for group in (plain.trainable_variables, plain.non_trainable_variables))
    return plain.stateless_call(trained, rest, x, training=True)[0]


def by_batch(model, x):
    return normalization.inference(model, batch_normalizations(model))(x)


class TestByBatch:
    @pytest.mark.parametrize("layer", [keras.layers.BatchNormalization, Renamed, Hidden])
    def test_it_is_training_mode_of_these_layers_alone(self, layer):
        """pitfalls 16, 17: no layer is replaced, nothing is stored, dropout is off."""
        model = net(layer())
        found = batch_normalizations(model)
        held = [v.numpy() for v in model.variables]
        np.testing.assert_allclose(by_batch(model, X), expected(model, X), rtol=1e-5, atol=1e-6)
        assert batch_normalizations(model)[0] is found[0] and "call" not in vars(found[0])
        for old, variable in zip(held, model.variables, strict=True):
            np.testing.assert_array_equal(old, variable.numpy())
        stored = model(X, training=False)
        assert np.abs(stored - by_batch(model, X)).max() > 0.1  # afterwards it normalises as before

    def test_nested_and_shared_layers(self):
        layer, inputs = keras.layers.BatchNormalization(), keras.Input((6,))
        inner = keras.Model(inputs, layer(inputs))
        outer = keras.Input((6,))
        model = keras.Model(outer, layer(3.0 * inner(outer) + 1.0))
        rows = X.astype(np.float64)
        once = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-3)
        twice = 3 * once + 1
        twice = (twice - twice.mean(0)) / np.sqrt(twice.var(0) + 1e-3)
        np.testing.assert_allclose(by_batch(model, X), twice, rtol=1e-4, atol=1e-5)

    def test_other_threads_see_the_layer_as_it_is(self):
        model, seen = net(), []
        before = model(X, training=False).numpy()
        with normalization.by_batch(batch_normalizations(model)):
            thread = threading.Thread(target=lambda: seen.append(model(X, training=False).numpy()))
            thread.start()
            thread.join()
            inside = model(X, training=False).numpy()
        np.testing.assert_array_equal(seen[0], before)
        assert np.abs(inside - before).max() > 0.1

    def test_an_inner_use_or_an_error_leaves_the_outer_one_alone(self):
        model = net()
        [layer] = batch_normalizations(model)
        with normalization.by_batch([layer]):
            outer = model(X, training=False).numpy()
            with pytest.raises(ZeroDivisionError), normalization.by_batch([layer]):
                1 / 0  # noqa: B018
            np.testing.assert_array_equal(model(X, training=False), outer)
        assert "call" not in vars(layer)

    def test_a_call_of_the_users_own_is_put_back(self):
        model = net()
        [layer] = batch_normalizations(model)
        original = layer.call
        own = vars(layer)["call"] = lambda inputs, training=None, mask=None: original(inputs, training=training) + 1.0
        found = by_batch(model, X)
        assert vars(layer)["call"] is own
        del vars(layer)["call"]
        shift = model.layers[-1].kernel.numpy().sum(0)
        np.testing.assert_allclose(found - by_batch(model, X), np.broadcast_to(shift, (N, 3)), rtol=1e-3, atol=1e-4)

    def test_it_obeys_a_stateless_call_around_it(self):
        model = net(dropout=False)
        [layer] = batch_normalizations(model)
        values = [v.value * 3.0 if v is layer.gamma else v.value for v in model.trainable_variables]
        rest = [v.value for v in model.non_trainable_variables]
        with normalization.by_batch([layer]):
            found, state = model.stateless_call(values, rest, X, training=False)
        layer.gamma.assign(3.0 * layer.gamma)
        np.testing.assert_allclose(found, expected(model, X), rtol=1e-5, atol=1e-6)
        for old, new in zip(rest, state, strict=True):
            np.testing.assert_array_equal(old, new)

    def test_half_precision(self):
        model = net(keras.layers.BatchNormalization(dtype="mixed_float16"))
        np.testing.assert_allclose(by_batch(model, X), expected(model, X), rtol=1e-2, atol=1e-2)


class TestBatchStatistics:
    @pytest.mark.parametrize("sampling", [BATCH, dp.Shuffling(N, 3, 2)], ids=repr)
    def test_evaluate_predict_and_the_exported_model_normalise_by_the_batch(self, sampling, tmp_path):
        model = private(sampling, net(), noise=1.0, statistics="batch")
        model.fit(X, Y, epochs=1, verbose=0)
        outputs = expected(model.model, X[:8])
        np.testing.assert_allclose(model.predict(X[:8], batch_size=8, verbose=0), outputs, rtol=1e-5, atol=1e-5)
        loss = model.evaluate(X[:8], Y[:8], batch_size=8, verbose=0)
        assert loss == pytest.approx(float(oracles.LOSS(Y[:8], outputs)), rel=1e-5)
        model.export(tmp_path / "one")
        loaded = tf.saved_model.load(tmp_path / "one")  # TensorFlow alone
        np.testing.assert_allclose(loaded.serve(X[:8]), outputs, rtol=1e-5, atol=1e-5)
        assert np.abs(loaded.serve(X[:4]) - outputs[:4]).max() > 1e-3
        assert np.isfinite(model.spent.epsilon(1e-5)) and "call" not in vars(model.model.layers[1])

    def test_keras_file(self, tmp_path):
        model = private(BATCH, net(), noise=1.0, statistics="batch", seed=None)
        model.fit(X, Y, epochs=1, verbose=0)
        model.save(tmp_path / "m.keras")
        again = keras.models.load_model(tmp_path / "m.keras")
        np.testing.assert_allclose(again.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-6)


class TestRecompute:
    @pytest.mark.parametrize("size", [2, 5, 10, 100])
    def test_the_first_layer_gets_the_statistics_of_all_rows_whatever_the_batch(self, size):
        x = X[:20] * 100 + 1000  # pooled without cancellation
        layer = keras.layers.BatchNormalization()
        model = keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(3)])
        normalization.PublicStatistics(model, [layer]).recompute(x, size)
        np.testing.assert_allclose(layer.moving_mean, x.astype(np.float64).mean(0), rtol=1e-5)
        np.testing.assert_allclose(layer.moving_variance, x.astype(np.float64).var(0), rtol=1e-3)

    def test_a_deeper_layer_sees_what_it_sees_in_training_but_for_dropout(self):
        first, second = keras.layers.BatchNormalization(), keras.layers.BatchNormalization(axis=1)
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((6,)), first, keras.layers.Dropout(0.9), keras.layers.Dense(4), second])
        normalization.PublicStatistics(model, [first, second]).recompute(X, 8)
        parts = []
        for rows in np.split(X.astype(np.float64), 3):
            rows = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-3)
            parts.append(rows @ model.layers[2].kernel.numpy().astype(np.float64))
        np.testing.assert_allclose(second.moving_mean, np.concatenate(parts).mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(second.moving_variance, np.concatenate(parts).var(0), rtol=1e-4)

    def test_the_rest_of_a_batch_is_left_out(self):
        layer = keras.layers.BatchNormalization(axis=-1)
        model = keras.Sequential([keras.Input((2, 3)), layer])
        x, _ = oracles.blobs(11, (2, 3))
        normalization.PublicStatistics(model, [layer]).recompute(tf.data.Dataset.from_tensor_slices(x).batch(5), 4)
        np.testing.assert_allclose(layer.moving_mean, x[:8].reshape(-1, 3).mean(0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(layer.moving_variance, x[:8].reshape(-1, 3).var(0), rtol=1e-4)

    def test_what_is_not_finite_or_too_little_changes_nothing(self):
        layer = keras.layers.BatchNormalization()
        model = keras.Sequential([keras.Input((6,)), layer])
        bad = X.copy()
        bad[-1, 0] = np.inf
        with pytest.raises(DataError, match=f"finite statistics.*'{layer.name}'"):
            normalization.PublicStatistics(model, [layer]).recompute(bad, 8)
        with pytest.raises(DataError, match="at least 2 examples"):
            normalization.PublicStatistics(model, [layer]).recompute(X[:1], 8)
        with pytest.raises(ValueError, match="batch_size must be an integer >= 2"):
            normalization.PublicStatistics(model, [layer]).recompute(X, 1)
        np.testing.assert_array_equal(layer.moving_mean, 0)
        np.testing.assert_array_equal(layer.moving_variance, 1)


class TestPublicStatistics:
    PUBLIC = oracles.blobs(40, seed=9)[0]

    def test_old_ones_are_warned_of_and_not_exported(self, tmp_path):
        model = private(BATCH, net(), noise=1.0, statistics="public")
        model.fit(X, Y, epochs=1, verbose=0)
        for use in (lambda: model.predict(X, verbose=0), lambda: model.evaluate(X, Y, verbose=0)):
            with pytest.warns(UserWarning, match="recompute_statistics"):
                use()
        with pytest.raises(IncompatibleModel, match=r"recompute_statistics\(x\) after training"):
            model.export(tmp_path / "one")
        model.recompute_statistics(self.PUBLIC)
        model.export(tmp_path / "one")
        assert any("called public" in warning for warning in model.spent.guarantee(1e-5)["warnings"])
        loaded = tf.saved_model.load(tmp_path / "one")
        np.testing.assert_allclose(loaded.serve(X), model.predict(X, verbose=0), rtol=1e-5, atol=1e-5)
        model.fit(X, Y, epochs=1, verbose=0)  # the weights moved on
        with pytest.raises(IncompatibleModel, match="does not belong to their weights"):
            model.export(tmp_path / "one")

    def test_files_remember_whether_they_were_computed(self, tmp_path):
        model = private(BATCH, net(), noise=1.0, statistics="public", seed=None)
        model.fit(X, Y, epochs=1, verbose=0)
        model.recompute_statistics(self.PUBLIC)
        model.save(tmp_path / "m.keras")
        model.save_checkpoint(tmp_path / "c")
        again = private(BATCH, net(), noise=1.0, statistics="public", seed=None)
        again.load_checkpoint(tmp_path / "c")
        for other in (keras.models.load_model(tmp_path / "m.keras"), again):
            other.export(tmp_path / "one")
            np.testing.assert_array_equal(other.model.layers[1].moving_mean, model.model.layers[1].moving_mean)

    def test_fit_computes_them_before_it_validates(self):
        model = private(BATCH, net(), noise=1.0, statistics="public", optimizer=keras.optimizers.SGD(0.1))
        history = model.fit(X, Y, epochs=2, validation_data=(X, Y), public_data=self.PUBLIC, verbose=0)
        assert history.history["val_loss"][-1] == pytest.approx(model.evaluate(X, Y, verbose=0), rel=1e-5)
        held = model.model.layers[1].moving_mean.numpy()
        model.recompute_statistics(self.PUBLIC)
        np.testing.assert_array_equal(held, model.model.layers[1].moving_mean)

    def test_other_models_refuse_public_data(self):
        model = private(BATCH, net(), noise=1.0, statistics="batch")
        with pytest.raises(ValueError, match="statistics must be 'public'"):
            model.recompute_statistics(self.PUBLIC)
        with pytest.raises(
            ValueError, match="public_data must be None: neither the clipping nor the statistics use it"
        ):
            model.fit(X, Y, public_data=self.PUBLIC, verbose=0)
