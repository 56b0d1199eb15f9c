"""PrivateModel: what Keras users expect of fit, and what the guarantee forbids."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import SAMPLINGS, N, private, weights
from tfdpbc.errors import BudgetExhausted, DataError, IncompatibleModel

X, Y = oracles.blobs(N)


class TestFit:
    def test_history_validation_metrics_and_epsilon(self):
        model = private(dp.Shuffling(N, 6, 1), noise=2.0, metrics=["accuracy"], epochs=2)
        history = model.fit(X, Y, validation_data=(X, Y), verbose=0, callbacks=[dp.callbacks.PrivacyMeter(delta=1e-5)])
        assert set(history.history) == {"accuracy", "loss", "val_accuracy", "val_loss", "epsilon"}
        want = [model.plan.epsilon(1e-5, rounds=r) for r in (4, 8)]
        assert history.history["epsilon"] == pytest.approx(want)
        assert history.epoch == [0, 1]
        loss, accuracy = model.evaluate(X, Y, verbose=0)
        assert history.history["val_loss"][-1] == pytest.approx(loss, rel=1e-5)
        assert history.history["val_accuracy"][-1] == pytest.approx(accuracy, rel=1e-5)

    def test_training_metrics_are_those_of_the_rows_that_took_part(self):
        model = private(dp.Poisson(1.0, 1, N), norm=1e-6, metrics=["accuracy"], epochs=1)
        want = dict(zip(["loss", "accuracy"], list(self._evaluate(model)), strict=True))
        got = model.fit(X, Y, verbose=0).history
        assert got["loss"] == pytest.approx([want["loss"]], rel=1e-5)
        assert got["accuracy"] == pytest.approx([want["accuracy"]], rel=1e-5)

    def _evaluate(self, model):
        model.model.compile(loss=oracles.LOSS, metrics=["accuracy"])
        return model.model.evaluate(X, Y, verbose=0)

    def test_the_progress_bar_shows_epsilon(self, capsys):
        model = private(dp.Shuffling(N, 6, 1), noise=2.0, epochs=1)
        model.fit(X, Y, verbose=2, callbacks=[dp.callbacks.PrivacyMeter(1e-5)])
        assert "epsilon: " in capsys.readouterr().out

    @pytest.mark.parametrize("name", SAMPLINGS)
    def test_one_trace_serves_all_rounds_epochs_and_calls(self, name):
        model = private(SAMPLINGS[name], noise=1.0, epochs=4, steps_per_execution=3)
        model.fit(X, Y, epochs=2, verbose=0)
        other = np.concatenate([X, X[:1]]) if name.startswith("poisson") else X[::-1].copy()
        model.fit(other, np.resize(Y, len(other)), epochs=1, verbose=0)
        assert model._rounds.traces == 1

    @pytest.mark.parametrize("name", ["shuffling-individual", "poisson-mixed"])
    def test_steps_per_execution_changes_nothing(self, name):
        results = []
        for steps in (1, 3):
            model = private(SAMPLINGS[name], noise=1.0, epochs=2, steps_per_execution=steps)
            model.fit(X, Y, verbose=0)
            results.append(oracles.flat(weights(model)))
        np.testing.assert_allclose(*results, atol=1e-6)

    def test_eager_and_xla_give_the_same(self):
        # XLA draws other numbers from the same key, so it is compared without noise.
        for noise, other in ((1.0, {"run_eagerly": True}), (0.0, {"jit_compile": True})):
            results = []
            for options in ({}, other):
                model = private(dp.Shuffling(N, 6, 1), noise=noise, norm=0.5, epochs=1, **options)
                model.fit(X, Y, verbose=0)
                results.append(oracles.flat(weights(model)))
            np.testing.assert_allclose(*results, atol=1e-5)

    def test_a_seed_is_a_caveat_of_the_guarantee(self):
        for seed, count in ((1, 1), (None, 0)):
            stated = private(dp.Shuffling(N, 6, 1), noise=5.0, seed=seed).spent.guarantee(1e-5)
            assert sum("seed" in w for w in stated["warnings"]) == count

    def test_a_seed_reproduces_a_run_and_none_does_not(self):
        results = []
        for seed in (3, 3, 4, None, None):
            model = private(dp.Shuffling(N, 6, 1), noise=1.0, seed=seed, epochs=1)
            model.fit(X, Y, verbose=0)
            results.append(oracles.flat(weights(model)))
        np.testing.assert_array_equal(results[0], results[1])
        for i, j in ((0, 2), (2, 3), (3, 4)):
            assert not np.allclose(results[i], results[j])

    @pytest.mark.parametrize("name", ["shuffling-individual", "subsampling-batch", "poisson-individual"])
    def test_pitfall_29_5_plus_5_is_10(self, name):
        """Two calls of fit are one run: the same draws, noise, schedule and optimizer state."""
        results = []
        for calls in ([4], [1, 3]):
            clipping = dp.FullGradientClipping(1.0, decay=0.8)
            model = private(
                SAMPLINGS[name], noise=1.0, epochs=4, clipping=clipping, optimizer=keras.optimizers.Adam(0.1)
            )
            for epochs in calls:
                model.fit(X, Y, epochs=epochs, verbose=0)
            results.append(oracles.flat(weights(model)))
            assert model.spent.rounds == 4 * SAMPLINGS[name].rounds_per_epoch
        np.testing.assert_array_equal(*results)

    def test_an_epoch_that_was_stopped_goes_on_where_it_stopped(self):
        class Stop(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                self.model.stop_training = batch == 1

        drawn = []
        model = private(dp.Shuffling(N, 6, 1), noise=1.0, epochs=1, seed=None)
        original = dp.Shuffling.batches

        def watched(self, *arguments, **options):
            for batch in original(self, *arguments, **options):
                drawn.extend(batch.indices.ravel())
                yield batch

        try:
            dp.Shuffling.batches = watched
            model.fit(X, Y, verbose=0, callbacks=[Stop()])
            assert model.spent.rounds == 2
            del drawn[12:]  # what was prepared ahead was not released
            model.fit(X, Y, verbose=0)
        finally:
            dp.Shuffling.batches = original
        assert model.spent.rounds == 4
        assert sorted(drawn) == list(range(N))  # each example once: the stopped epoch's permutation went on

    def test_random_access_sources_and_arrays_give_the_same(self):
        class Reader:
            def __len__(self):
                return N

            def __getitem__(self, indices):
                return X[indices], Y[indices]

        results = []
        for data in ((X, Y), (Reader(), None), (tf.data.Dataset.from_tensor_slices((X, Y)).batch(5), None)):
            model = private(dp.Poisson(0.25, 4, 6), noise=1.0, epochs=2)
            model.fit(*data, verbose=0)
            results.append(oracles.flat(weights(model)))
        np.testing.assert_array_equal(results[0], results[2])
        np.testing.assert_allclose(results[0], results[1], atol=1e-6)

    def test_sample_weight_is_clipped_with_its_example(self):
        model = private(dp.Shuffling(4, 4, 1), norm=1e-3, epochs=1)
        before = weights(model)
        model.fit(X[:4], Y[:4], sample_weight=np.array([1e6, 0, 0, 0], np.float32), verbose=0)
        moved = np.linalg.norm(oracles.flat(weights(model)) - oracles.flat(before))
        assert moved == pytest.approx(1e-3 / 4, rel=1e-4)

    def test_sequential_models_without_an_input_shape_are_built(self):
        model = private(dp.Shuffling(N, 6, 1), keras.Sequential([keras.layers.Dense(3)]), noise=1.0)
        model.fit(X, Y, epochs=1, verbose=0)
        assert model.predict(X, verbose=0).shape == (N, 3)

    def test_spectral_normalisation_is_not_mapped(self):
        layers = [keras.Input((6,)), keras.layers.SpectralNormalization(keras.layers.Dense(4)), keras.layers.Dense(3)]
        model = private(dp.Shuffling(N, 6, 1), keras.Sequential(layers), noise=1.0)
        model.fit(X, Y, epochs=1, verbose=0)
        assert "is not safe inside tf.vectorized_map" in model.engine_reason

    def test_attention_does_not_kill_the_process(self):
        inputs = keras.Input((4, 6))
        hidden = keras.layers.MultiHeadAttention(2, 3)(inputs, inputs)
        net = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.GlobalAveragePooling1D()(hidden)))
        model = private(dp.Shuffling(N, 6, 1), net, noise=1.0, engine="vectorized")
        model.fit(np.repeat(X[:, None], 4, 1), Y, epochs=1, verbose=0)
        assert model.spent.rounds == 4


class TestRefusals:
    @pytest.mark.parametrize(
        "name, value",
        [
            ("batch_size", 32),
            ("shuffle", True),
            ("steps_per_epoch", 3),
            ("class_weight", {0: 2.0}),
            ("validation_split", 0.1),
            ("initial_epoch", 1),
        ],
    )
    def test_arguments_that_would_break_the_guarantee_are_errors(self, name, value):
        model = private(dp.Shuffling(N, 6, 1), noise=1.0)
        with pytest.raises(ValueError, match=f"^{name} must not be given: .*; got {name}="):
            model.fit(X, Y, verbose=0, **{name: value})
        with pytest.raises(TypeError, match="unexpected argument 'speed'"):
            model.fit(X, Y, speed=1)

    def test_plain_training_steps_are_refused(self):
        model = private(dp.Shuffling(N, 6, 1), noise=1.0)
        with pytest.raises(RuntimeError, match="trained by fit alone"):
            model.train_on_batch(X[:6], Y[:6])

    def test_pitfall_29_the_budget_is_checked_before_anything_is_released(self):
        model = private(dp.Shuffling(N, 6, 1), noise=1.0, epochs=2)
        model.fit(X, Y, epochs=1, verbose=0)
        before = oracles.flat(weights(model))
        with pytest.raises(BudgetExhausted, match="2 epochs .8 rounds., of which 4"):
            model.fit(X, Y, epochs=2, verbose=0)
        np.testing.assert_array_equal(oracles.flat(weights(model)), before)
        assert model.spent.rounds == 4
        model.fit(X, Y, verbose=0)
        with pytest.raises(BudgetExhausted):
            model.fit(X, Y, verbose=0)

    def test_rounds_are_recorded_before_they_run(self):
        model = private(dp.Shuffling(N, 6, 1), noise=1.0)
        model.fit(X, Y, epochs=1, verbose=0)

        def broken(*arguments):
            raise RuntimeError("the device is gone")

        model._rounds.run = broken
        with pytest.raises(RuntimeError, match="device"):
            model.fit(X, Y, epochs=1, verbose=0)
        assert model.spent.rounds == 5

    def test_restoring_weights_does_not_lower_the_count(self):
        model = private(dp.Shuffling(N, 6, 1), noise=1.0)
        start = model.get_weights()
        model.fit(X, Y, epochs=1, verbose=0)
        model.set_weights(start)
        assert model.spent.rounds == 4

    @pytest.mark.parametrize("size", [N - 1, N + 1])
    def test_data_of_another_size_than_planned_are_refused(self, size):
        model = private(dp.Shuffling(N, 6, 1), noise=1.0)
        x, y = oracles.blobs(size)
        with pytest.raises(DataError, match=f"the {N} examples .* got {size}"):
            model.fit(x, y, verbose=0)
        assert model.spent.rounds == 0

    @pytest.mark.parametrize("label", [-1, 3])
    def test_labels_out_of_range_are_refused(self, label):
        model = private(dp.Shuffling(N, 6, 1), noise=1.0)
        y = Y.copy()
        y[5] = label
        with pytest.raises(DataError, match=f"got {label} at position 5"):
            model.fit(X, y, verbose=0)
        assert model.spent.rounds == 0

    def test_a_scalar_loss_is_refused(self):
        model = private(dp.Shuffling(N, 6, 1), noise=1.0, loss=lambda y, p: tf.reduce_mean(p))
        with pytest.raises(IncompatibleModel, match="one value for each example"):
            model.fit(X, Y, verbose=0)

    @pytest.mark.parametrize(
        "options, name",
        [
            ({"engine": "fast"}, "engine"),
            ({"seed": -1}, "seed"),
            ({"physical_batch_size": 0}, "physical_batch_size"),
            ({"algorithm": 3}, "algorithm"),
        ],
    )
    def test_bad_options_are_named(self, options, name):
        with pytest.raises((ValueError, TypeError), match=f"{name} must be .*; got {name}="):
            private(dp.Shuffling(N, 6, 1), noise=1.0, **options).fit(X, Y, verbose=0)

    def test_fit_needs_compile_and_labels(self):
        plan = dp.PrivacyPlan(dp.Shuffling(N, 6, 1), dp.FullGradientClipping(1.0), 1.0, 1)
        model = dp.PrivateModel(oracles.dense_net(), plan)
        with pytest.raises(ValueError, match="must be compiled"):
            model.fit(X, Y)
        with pytest.raises(ValueError, match="loss must be"):
            model.compile("sgd")
        model.compile("sgd", oracles.LOSS)
        with pytest.raises(DataError, match="y must be given"):
            model.fit(X)


class TestSaving:
    def test_keras_files_keep_plan_weights_optimizer_and_count(self, tmp_path):
        """pitfall 21: .keras reloads, get_config round-trips."""
        model = private(dp.Shuffling(N, 6, 1), noise=1.0, epochs=3, optimizer=keras.optimizers.Adam(0.1))
        model.fit(X, Y, epochs=1, verbose=0)
        model.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
        assert isinstance(again, dp.PrivateModel)
        assert again.plan == model.plan and again.spent.rounds == 4
        np.testing.assert_array_equal(again.predict(X, verbose=0), model.predict(X, verbose=0))
        slots = [np.asarray(v) for v in model.optimizer.variables]
        for old, new in zip(slots, again.optimizer.variables, strict=True):
            np.testing.assert_allclose(new.numpy(), old, rtol=1e-6)
        again.fit(X, Y, epochs=1, verbose=0)
        assert again.spent.rounds == 8 and again.streams.seed is None  # the seed is not in the file
        with pytest.raises(BudgetExhausted):
            again.fit(X, Y, epochs=2, verbose=0)

    def test_a_shuffled_epoch_cut_by_a_restart_counts_as_a_whole(self, tmp_path):
        """Another permutation could use an example twice in one epoch, so its rounds are given up."""

        class Stop(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                self.model.stop_training = True

        model = private(dp.Shuffling(N, 6, 1), noise=1.0, epochs=2, seed=None)
        model.fit(X, Y, verbose=0, callbacks=[Stop()])
        model.save(tmp_path / "model.keras")
        again = keras.models.load_model(tmp_path / "model.keras")
        assert again.spent.rounds == 1
        with pytest.warns(UserWarning, match="counts as released"):
            again.fit(X, Y, verbose=0)
        assert again.spent.rounds == 8

    def test_the_guarantee_travels_with_the_export(self, tmp_path):
        model = private(dp.Shuffling(N, 6, 1), noise=1.0, epochs=2)
        model.fit(X, Y, epochs=1, verbose=0)
        model.export(tmp_path / "out", delta=1e-6)
        from tfdpbc.export import load_exported

        loaded = load_exported(tmp_path / "out")
        assert loaded.guarantee["rounds"] == 4 and loaded.guarantee["delta"] == 1e-6
        assert loaded.guarantee["epsilon"] == pytest.approx(model.spent.epsilon(1e-6))
        np.testing.assert_allclose(loaded.predict(X), model.predict(X, verbose=0), atol=1e-5)
