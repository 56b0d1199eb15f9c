"""Averages of the weights: the numpy recursion over the weights after each round; what is evaluated, saved and exported."""

import keras
import numpy as np
import pytest

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import N, private, weights
from tfdpbc.export import load_exported

X, Y = oracles.blobs(N)
SAMPLING = dp.Shuffling(N, 6, 1)  # 4 rounds an epoch


class Trace(keras.callbacks.Callback):
    """The weights after each round."""

    def on_train_begin(self, logs=None):
        self.seen = [weights(self.model)]

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(weights(self.model))


def recursion(seen, decay):
    average = [w.astype(np.float64) for w in seen[0]]
    for t, now in enumerate(seen[1:]):
        d = min(decay, (1 + t) / (10 + t))
        average = [d * a + (1 - d) * w for a, w in zip(average, now, strict=True)]
    return oracles.flat(average)


def averages(model):
    return oracles.flat([v.numpy() for v in model.averages.variables])


def fresh(decay=0.9, **options):
    options = {"noise": 1.0, "epochs": 5, "optimizer": keras.optimizers.SGD(0.5, momentum=0.9), **options}
    return private(options.pop("sampling", SAMPLING), averaging=decay, **options)


@pytest.mark.parametrize("decay", [0.05, 0.5, 0.999])
def test_the_average_is_the_recursion_over_the_noisy_weights(decay):
    model, trace = fresh(decay), Trace()
    model.fit(X, Y, verbose=0, callbacks=[trace])
    assert len(trace.seen) == 21
    np.testing.assert_allclose(averages(model), recursion(trace.seen, decay), rtol=1e-5, atol=1e-6)
    assert int(model.averages.count.numpy()) == 20


def test_it_changes_neither_weights_nor_guarantee():
    plain, averaging = private(SAMPLING, noise=1.0), private(SAMPLING, noise=1.0, averaging=0.9)
    for model in (plain, averaging):
        model.fit(X, Y, verbose=0)
    np.testing.assert_array_equal(oracles.flat(weights(plain)), oracles.flat(weights(averaging)))
    assert plain.spent.guarantee(1e-5) == averaging.spent.guarantee(1e-5)


def test_several_rounds_in_one_call_are_averaged_round_by_round():
    whole, parts = fresh(steps_per_execution=3), fresh()
    for model in (whole, parts):
        model.fit(X, Y, verbose=0)
    np.testing.assert_allclose(averages(whole), averages(parts), rtol=1e-5, atol=1e-7)


def test_it_starts_at_the_weights_that_training_starts_at():
    model, trace = fresh(), Trace()
    model.model.set_weights([np.full(w.shape, 3.0) for w in model.model.get_weights()])
    model.fit(X, Y, verbose=0, callbacks=[trace], epochs=1)
    np.testing.assert_allclose(averages(model), recursion(trace.seen, 0.9), rtol=1e-5, atol=1e-6)


def test_a_resumed_run_averages_as_the_uninterrupted_one(tmp_path):
    whole, first, second = fresh(), fresh(), fresh(model=oracles.dense_net(seed=99))
    whole.fit(X, Y, verbose=0)
    first.fit(X, Y, epochs=2, verbose=0)
    first.save_checkpoint(tmp_path / "state.npz")
    second.load_checkpoint(tmp_path / "state.npz")
    np.testing.assert_array_equal(averages(second), averages(first))
    second.fit(X, Y, verbose=0)
    np.testing.assert_array_equal(averages(second), averages(whole))


def test_averages_are_part_of_keras_files(tmp_path):
    model = fresh()
    model.fit(X, Y, epochs=2, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.averaging == 0.9
    np.testing.assert_array_equal(averages(loaded), averages(model))
    assert int(loaded.averages.count.numpy()) == 8
    np.testing.assert_array_equal(oracles.flat(weights(loaded)), oracles.flat(weights(model)))
    model.save_weights(tmp_path / "model.weights.h5")
    other = fresh(model=oracles.dense_net(seed=99))
    other.load_weights(tmp_path / "model.weights.h5")
    np.testing.assert_array_equal(averages(other), averages(model))
    private(SAMPLING, noise=1.0, epochs=5).load_weights(tmp_path / "model.weights.h5")  # without averages of its own


def test_weights_of_a_file_without_averages_are_where_they_begin(tmp_path):
    plain = private(SAMPLING, noise=1.0, epochs=5)
    plain.fit(X, Y, epochs=1, verbose=0)
    plain.save_weights(tmp_path / "plain.weights.h5")
    model, trace = fresh(), Trace()
    model.fit(X, Y, epochs=1, verbose=0)
    model.load_weights(tmp_path / "plain.weights.h5")
    model.fit(X, Y, epochs=1, verbose=0, callbacks=[trace])
    np.testing.assert_allclose(averages(model), recursion(trace.seen, 0.9), rtol=1e-5, atol=1e-6)


def test_averaged_weights_are_evaluated_exported_and_put_back(tmp_path):
    model = fresh()
    history = model.fit(X, Y, verbose=0, validation_data=(X, Y)).history
    last = weights(model)
    reference = oracles.dense_net()
    reference.set_weights([v.numpy() for v in model.averages.variables])
    want, plain = reference(X).numpy(), model.predict(X, verbose=0)
    assert np.abs(want - plain).max() > 1e-2
    with model.averaged() as averaged:
        assert averaged is model
        np.testing.assert_allclose(model.predict(X, verbose=0), want, rtol=1e-5, atol=1e-6)
        loss = model.evaluate(X, Y, verbose=0)
        for refused in (
            lambda: model.fit(X, Y),
            lambda: model.save_checkpoint(tmp_path / "x"),
            lambda: model.load_checkpoint(tmp_path / "x"),
            lambda: model.load_weights(tmp_path / "x"),
        ):
            with pytest.raises(RuntimeError, match="must not be called within averaged"):
                refused()
        with pytest.raises(RuntimeError, match="in place already"), model.averaged():
            pass
        np.testing.assert_allclose(model.predict(X, verbose=0), want, rtol=1e-5, atol=1e-6)
    assert history["val_loss"][-1] == pytest.approx(loss, rel=1e-5)
    np.testing.assert_array_equal(oracles.flat(weights(model)), oracles.flat(last))
    for name, wanted in (("averaged", want), ("last", plain)):
        model.export(tmp_path / name, averaged=name == "averaged", note=name)
        exported = load_exported(tmp_path / name)
        np.testing.assert_allclose(exported.predict(X), wanted, rtol=1e-5, atol=1e-6)
        assert exported.guarantee["epsilon"] == model.spent.epsilon(1e-5) and exported.extra == {"note": name}
    np.testing.assert_array_equal(oracles.flat(weights(model)), oracles.flat(last))


def test_an_error_within_puts_the_weights_back():
    model = fresh()
    model.fit(X, Y, epochs=1, verbose=0)
    last = oracles.flat(weights(model))
    with pytest.raises(KeyError), model.averaged():
        raise KeyError
    np.testing.assert_array_equal(oracles.flat(weights(model)), last)


def test_a_model_without_averages_says_so(tmp_path):
    model = private(SAMPLING)
    for use in (lambda: model.averaged().__enter__(), lambda: model.export(tmp_path / "x", averaged=True)):
        with pytest.raises(ValueError, match="averaging must be given when the model is made"):
            use()
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "decay, error", [(0, ValueError), (1, ValueError), (float("nan"), ValueError), ("0.9", TypeError)]
)
def test_impossible_decays(decay, error):
    with pytest.raises(error, match="averaging must be"):
        private(SAMPLING, averaging=decay)


def test_layers_that_are_frozen_and_thawed_between_fits():
    """What is trained is averaged: an average goes on where it was, and that of a thawed layer begins at its weights."""
    net = oracles.dense_net()
    net.layers[0].trainable = False
    model = fresh(model=net)
    model.fit(X, Y, epochs=1, verbose=0)
    assert len(model.averages.variables) == 2
    kept = averages(model)
    net.layers[0].trainable = True
    model.compile(keras.optimizers.SGD(1e-12), oracles.LOSS)
    first = weights(model)[:2]
    model.fit(X, Y, epochs=1, verbose=0)
    assert len(model.averages.variables) == 4
    np.testing.assert_allclose(averages(model)[: oracles.flat(first).size], oracles.flat(first), rtol=1e-5, atol=1e-7)
    assert 0 < np.abs(averages(model)[oracles.flat(first).size :] - kept).max() < np.abs(kept).max()


def test_a_model_that_is_built_by_its_data():
    net = keras.Sequential([keras.layers.Dense(3)])
    model, trace = fresh(model=net), Trace()
    model.fit(X, Y, epochs=1, verbose=0)
    model.fit(X, Y, epochs=1, verbose=0, callbacks=[trace])
    assert int(model.averages.count.numpy()) == 8 and len(model.averages.variables) == 2


# Keras's own averages.


def ema(**options):
    return private(SAMPLING, noise=1.0, optimizer=keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.7, **options))


def test_keras_use_ema_becomes_the_weights_at_the_end_of_fit_as_in_keras():
    model, trace = ema(), Trace()
    model.fit(X, Y, verbose=0, callbacks=[trace])
    average = [w.astype(np.float64) for w in trace.seen[1]]
    for now in trace.seen[2:]:
        average = [0.7 * a + 0.3 * w for a, w in zip(average, now, strict=True)]
    np.testing.assert_allclose(oracles.flat(weights(model)), oracles.flat(average), rtol=1e-5, atol=1e-6)


def test_keras_use_ema_overwrites_as_often_as_asked():
    model, trace = ema(ema_overwrite_frequency=2), Trace()
    model.fit(X, Y, verbose=0, callbacks=[trace], epochs=1)
    plain, other = private(SAMPLING, noise=1.0, optimizer=keras.optimizers.SGD(0.5)), Trace()
    plain.fit(X, Y, verbose=0, callbacks=[other], epochs=1)
    first, second = (oracles.flat(w).astype(np.float64) for w in other.seen[1:3])
    np.testing.assert_allclose(oracles.flat(trace.seen[1]), first, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(oracles.flat(trace.seen[2]), 0.7 * first + 0.3 * second, rtol=1e-5, atol=1e-6)


def test_keras_use_ema_is_part_of_a_checkpoint(tmp_path):
    model = ema()
    model.fit(X, Y, epochs=1, verbose=0)
    model.save_checkpoint(tmp_path / "state.npz")
    other = ema()
    other.load_checkpoint(tmp_path / "state.npz")
    for a, b in zip(model.optimizer.variables, other.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_both_kinds_of_averages_are_refused():
    with pytest.raises(ValueError, match="averaging must be None with an optimizer that averages itself"):
        fresh(optimizer=keras.optimizers.SGD(0.5, use_ema=True))
