"""Attempts to make what is released less private than what `spent` states; each test asserts what should hold."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import warnings
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import N, one_round, private, weights
from tfdpbc.errors import BudgetExhausted, DataError, IncompatibleModel, RunFolderError
from tfdpbc.random import Streams
from tfdpbc.training import loop

X, Y = oracles.blobs(N)
INDIVIDUAL, BATCH = dp.Shuffling(N, 6, 1), dp.Shuffling(N, 1, 6)


def net(*layers, features=6):
    keras.utils.set_random_seed(4)
    return keras.Sequential([keras.Input((features,)), *layers, keras.layers.Dense(3)])


class _Counting(keras.callbacks.Callback):
    """Notes each round that is run."""

    def __init__(self, ran):
        super().__init__()
        self.ran = ran

    def on_train_batch_end(self, batch, logs=None):
        self.ran.append(batch)


class At(keras.callbacks.Callback):
    """Calls `action(model)` after the round with this position of the epoch, once."""

    def __init__(self, position, action):
        super().__init__()
        self.position, self.action = position, action

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.position and self.action is not None:
            action, self.action = self.action, None
            action(self.model)


def stop(model):
    model.stop_training = True


@pytest.fixture
def drawn(monkeypatch):
    """The examples of every round that was run."""
    seen = []
    original = loop.Rounds.run

    def run(self, draw, first, streams):
        seen.extend(np.asarray(draw.indices).ravel().tolist())
        return original(self, draw, first, streams)

    monkeypatch.setattr(loop.Rounds, "run", run)
    return seen


class TestLedger:
    def test_restored_best_weights_do_not_lower_the_saved_count(self, tmp_path):
        """pitfall 30: EarlyStopping(restore_best_weights=True), then save, load, copy."""

        class Worse(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                logs["val_loss"] = epoch

        model = private(INDIVIDUAL, noise=1.0, epochs=4)
        early = keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True)
        model.fit(X, Y, verbose=0, callbacks=[Worse(), early])
        assert model.spent.rounds == 12
        model.save(tmp_path / "m.keras")
        assert keras.models.load_model(tmp_path / "m.keras").spent.rounds == 12
        assert copy.deepcopy(model).spent.rounds == 12

    def test_backup_and_restore_resumes_or_refuses_clearly(self, tmp_path):
        def crash(model):
            raise RuntimeError("crash")

        model = private(INDIVIDUAL, noise=1.0, epochs=4)
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
        with pytest.raises(RuntimeError, match="crash"):
            model.fit(X, Y, verbose=0, callbacks=[backup, _AtEpoch(2, crash)])
        again = private(INDIVIDUAL, noise=1.0, epochs=4)
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
        ran = []
        again.fit(X, Y, verbose=0, callbacks=[backup, _Counting(ran)])
        # What the first process released and what the second did: every round once, and the ledger knows all.
        assert model.spent.rounds + len(ran) == again.spent.rounds == again.plan.rounds

    def test_a_callback_that_trains_cannot_exceed_the_plan_or_use_an_example_twice(self, drawn):
        """pitfall 29: the budget is checked before each round, not once a call."""
        model = private(INDIVIDUAL, noise=1.0, epochs=1)
        with contextlib.suppress(RuntimeError, BudgetExhausted):
            model.fit(X, Y, verbose=0, callbacks=[At(1, lambda m: m.fit(X, Y, verbose=0))])
        assert len(drawn) == len(set(drawn)) <= N
        assert model.spent.rounds <= model.plan.rounds

    def test_another_plan_does_not_rewrite_what_was_spent(self):
        model = private(INDIVIDUAL, noise=0.1)
        model.fit(X, Y, epochs=1, verbose=0)
        spent = model.spent.epsilon(1e-5)
        with contextlib.suppress(AttributeError):
            model.plan = dp.PrivacyPlan(INDIVIDUAL, dp.FullGradientClipping(1.0), 10.0, 3)
        assert model.spent.epsilon(1e-5) >= spent

    def test_weights_trained_under_another_plan_do_not_pass_as_this_one(self, tmp_path):
        """`load_weights` carries the count of rounds but not the noise they had."""
        model = private(INDIVIDUAL, noise=0.1)
        model.fit(X, Y, epochs=1, verbose=0)
        model.save_weights(tmp_path / "w.weights.h5")
        other = private(INDIVIDUAL, noise=10.0)
        try:
            other.load_weights(tmp_path / "w.weights.h5")
        except ValueError:
            return
        assert other.spent.epsilon(1e-5) >= model.spent.epsilon(1e-5)

    def test_more_rounds_than_planned_in_a_weights_file_do_not_crash_spent(self, tmp_path):
        model = private(INDIVIDUAL, noise=1.0, epochs=3)
        model.fit(X, Y, verbose=0)
        model.save_weights(tmp_path / "w.weights.h5")
        other = private(INDIVIDUAL, noise=1.0, epochs=2)
        try:
            other.load_weights(tmp_path / "w.weights.h5")
        except ValueError:
            return
        assert other.spent.epsilon(1e-5) >= model.spent.epsilon(1e-5)

    def test_a_model_that_was_trained_is_not_stated_as_untouched_by_a_second_wrapper(self):
        model = private(INDIVIDUAL, noise=0.1)
        model.fit(X, Y, epochs=1, verbose=0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            second = private(INDIVIDUAL, model.model, noise=0.1)
        assert caught or second.spent.epsilon(1e-5) >= model.spent.epsilon(1e-5)

    def test_copies_keep_the_count(self, tmp_path):
        model = private(INDIVIDUAL, noise=1.0, seed=None)
        model.fit(X, Y, epochs=1, verbose=0)
        for other in (copy.copy(model), copy.deepcopy(model)):
            assert other.spent.rounds == 4
            other.fit(X, Y, epochs=1, verbose=0)
            assert other.spent.rounds == 8
        assert model.spent.rounds == 4


class _AtEpoch(keras.callbacks.Callback):
    def __init__(self, epoch, action):
        super().__init__()
        self.epoch, self.action = epoch, action

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            self.action(self.model)


class TestOneUsePerEpoch:
    """The exact accounting of shuffling rests on an example being used once an epoch."""

    @pytest.mark.parametrize("kind", ["interrupt", "stop", "recompile", "other steps"])
    def test_an_interrupted_epoch_goes_on_with_its_permutation(self, kind, drawn):
        def interrupt(model):
            raise KeyboardInterrupt

        model = private(INDIVIDUAL, noise=1.0, epochs=1, seed=None)
        with contextlib.suppress(KeyboardInterrupt):
            model.fit(X, Y, verbose=0, callbacks=[At(1, interrupt if kind == "interrupt" else stop)])
        if kind in ("recompile", "other steps"):
            model.compile("sgd", oracles.LOSS, steps_per_execution=3 if kind == "other steps" else 1)
        model.fit(X, Y, verbose=0)
        assert sorted(drawn) == list(range(N)) and model.spent.rounds == 4

    def test_a_data_source_that_fails_once_costs_nothing(self):
        class Reader:
            reads = 0

            def __len__(self):
                return N

            def __getitem__(self, indices):
                Reader.reads += 1
                if Reader.reads == 6:
                    raise OSError("disk")
                if len(indices) == 6:
                    asked.append(indices)
                return X[indices], Y[indices]

        asked = []
        model = private(INDIVIDUAL, noise=1.0, epochs=1, seed=None)
        with pytest.raises(DataError, match="disk"):
            model.fit(Reader(), verbose=0)
        done = model.spent.rounds
        assert done < 4
        asked = asked[:done]  # rows read ahead were not used
        model.fit(Reader(), verbose=0)
        assert sorted(np.concatenate(asked)) == list(range(N)) and model.spent.rounds == 4

    @pytest.mark.parametrize("seeds", [(1, 2), (None, 5)])
    def test_a_checkpoint_of_another_seed_does_not_mix_permutations(self, seeds, tmp_path, drawn):
        model = private(INDIVIDUAL, noise=1.0, epochs=1, seed=seeds[0])
        model.fit(X, Y, verbose=0, callbacks=[At(1, stop)])
        model.save_checkpoint(tmp_path / "c")
        other = private(INDIVIDUAL, noise=1.0, epochs=1, seed=seeds[1])
        other.load_checkpoint(tmp_path / "c")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other.fit(X, Y, verbose=0)
        assert len(drawn) == len(set(drawn))

    def test_a_checkpoint_into_the_middle_of_an_own_epoch_does_not_mix_permutations(self, tmp_path, drawn):
        model = private(INDIVIDUAL, noise=1.0, epochs=1, seed=None)
        model.fit(X, Y, verbose=0, callbacks=[At(1, stop)])
        model.save_checkpoint(tmp_path / "c")
        of_the_checkpoint = list(drawn)
        other = private(INDIVIDUAL, noise=1.0, epochs=1, seed=None)
        other.fit(X, Y, verbose=0, callbacks=[At(0, stop)])
        other.load_checkpoint(tmp_path / "c")
        drawn.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other.fit(X, Y, verbose=0)
        # False alarm if a fresh permutation avoids the 12 used examples in its last 12: 1 in C(24, 12) = 2.7e6.
        assert not drawn or not set(drawn) & set(of_the_checkpoint)


class TestRandomness:
    def test_a_saved_model_does_not_give_away_the_seed(self, tmp_path):
        """Whoever has the file could compute the noise and take it off."""
        model = private(INDIVIDUAL, noise=1.0, seed=987654321)
        model.fit(X, Y, epochs=1, verbose=0)
        model.save(tmp_path / "m.keras")
        with zipfile.ZipFile(tmp_path / "m.keras") as file:
            assert "987654321" not in json.dumps(json.loads(file.read("config.json")))

    @pytest.mark.parametrize("seed", [3, None])
    def test_copies_do_not_repeat_the_noise(self, seed):
        """Two releases with the same noise on different data differ by the data alone."""
        model = private(INDIVIDUAL, noise=1.0, seed=seed)
        other = copy.deepcopy(model)
        assert not np.array_equal(model.streams.key("noise", 0), other.streams.key("noise", 0))

    def test_a_forked_process_does_not_repeat_the_noise(self):
        streams = Streams()
        here = streams.key("noise", 0)
        read, write = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of forking with threads
            child = os.fork()
        if child == 0:
            try:
                os.write(write, streams.key("noise", 0).tobytes())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        there = os.read(read, 64)
        os.close(read)
        assert there != here.tobytes()

    def test_no_two_rounds_or_streams_share_a_key(self):
        streams = Streams(1)
        keys = {tuple(streams.key(name, r)) for name in ("noise", "layers") for r in range(2000)}
        assert len(keys) == 4000


class TestState:
    @pytest.mark.parametrize("way", ["weights", "checkpoint", "keras"])
    def test_files_of_a_voided_model_do_not_give_a_frozen_one_a_guarantee(self, way, tmp_path):
        """The raw statistics travel in the file, so must the void."""

        def make(trainable):
            layer = keras.layers.BatchNormalization(trainable=trainable)
            return private(BATCH, net(layer), noise=1.0, statistics="unprotected")

        model, frozen = make(True), make(False)
        model.fit(X, Y, epochs=1, verbose=0)
        model.model.layers[0].trainable = False  # so that the shapes of optimizer and weights agree
        assert frozen.spent.epsilon(1e-5) == 0  # nothing released, nothing written
        if way == "weights":
            model.save_weights(tmp_path / "w.weights.h5")
            frozen.load_weights(tmp_path / "w.weights.h5")
        elif way == "checkpoint":
            model.compile(keras.optimizers.SGD(1.0), oracles.LOSS)
            model.save_checkpoint(tmp_path / "state.npz")
            try:
                frozen.load_checkpoint(tmp_path / "state.npz")
            except RunFolderError:
                return
        else:
            model.save(tmp_path / "m.keras")
            frozen = keras.models.load_model(tmp_path / "m.keras")
        assert frozen.spent.epsilon(1e-5) == np.inf

    @pytest.mark.parametrize("how", ["layer", "model", "statistics", "reload"])
    def test_unprotected_statistics_stay_void_whatever_is_toggled_afterwards(self, how, tmp_path):
        layer = keras.layers.BatchNormalization()
        model = private(BATCH, net(layer), noise=1.0, statistics="unprotected")
        model.fit(X, Y, epochs=1, verbose=0)
        assert model.spent.epsilon(1e-5) == np.inf and np.any(layer.moving_mean.numpy() != 0)
        if how == "statistics":
            with contextlib.suppress(AttributeError):
                model.statistics = None
        elif how == "model":
            model.trainable = False
        else:
            layer.trainable = False
        if how == "reload":
            model.save(tmp_path / "m.keras")
            model = keras.models.load_model(tmp_path / "m.keras")
        assert model.spent.epsilon(1e-5) == np.inf

    def test_statistics_of_a_layer_frozen_between_two_fits_stop_moving_or_stay_void(self):
        layer = keras.layers.BatchNormalization()
        model = private(BATCH, net(layer), noise=1.0, statistics="unprotected")
        model.fit(X, Y, epochs=1, verbose=0)
        layer.trainable = False
        held = layer.moving_mean.numpy()
        model.fit(X, Y, epochs=1, verbose=0)
        assert np.array_equal(held, layer.moving_mean.numpy())

    def test_weights_frozen_between_two_fits_stay_bit_identical(self):
        """pitfall 6"""
        model = private(INDIVIDUAL, noise=1.0)
        model.fit(X, Y, epochs=1, verbose=0)
        layer = model.model.layers[0]
        layer.trainable = False
        held = layer.get_weights()
        model.fit(X, Y, epochs=1, verbose=0)
        for old, new in zip(held, layer.get_weights(), strict=True):
            np.testing.assert_array_equal(old, new)

    def test_batch_normalisation_unfrozen_between_two_fits_is_refused(self):
        layer = keras.layers.BatchNormalization(trainable=False)
        model = private(INDIVIDUAL, net(layer), noise=1.0)
        model.fit(X, Y, epochs=1, verbose=0)
        layer.trainable = True
        with pytest.raises(IncompatibleModel, match="individual clipping"):
            model.fit(X, Y, epochs=1, verbose=0)

    def test_a_layer_that_writes_at_every_call_keeps_nothing_of_the_training_data(self):
        class Always(keras.layers.Layer):
            def build(self, shape):
                self.seen = self.add_weight(shape=shape[-1:], trainable=False, initializer="zeros")

            def call(self, x):
                self.seen.assign(self.seen + tf.reduce_sum(x, axis=0))
                return x

        for sampling in (INDIVIDUAL, BATCH):
            layer = Always()
            private(sampling, net(layer), noise=1.0).fit(X, Y, epochs=1, verbose=0)
            np.testing.assert_array_equal(layer.seen.numpy(), 0)

    def test_the_states_of_a_stateful_recurrent_layer_hold_nothing_of_the_training_data(self):
        found = []
        for x in (X, X + 1):
            keras.utils.set_random_seed(0)
            layer = keras.layers.SimpleRNN(4, stateful=True)
            model = keras.Sequential([keras.Input(batch_shape=(2, 3, 6)), layer, keras.layers.Dense(3)])
            model = private(dp.Shuffling(N, 1, 2), model, noise=1.0)
            model.fit(np.repeat(x[:, None], 3, 1), Y, epochs=1, verbose=0)
            found.append(layer.states[0].numpy())
        np.testing.assert_array_equal(*found)

    @pytest.mark.parametrize("sampling", [INDIVIDUAL, BATCH], ids=["individual", "batch"])
    def test_a_layer_that_writes_to_a_plain_tensorflow_variable_is_refused(self, sampling):
        """Keras does not know it, so a stateless call writes it: raw data outlives the round and meets other examples."""

        class Raw(keras.layers.Layer):
            def __init__(self):
                super().__init__()
                self.seen = tf.Variable(tf.zeros([6]), trainable=False)

            def call(self, x, training=None):
                if training:
                    self.seen.assign_add(tf.reduce_sum(x, axis=0))
                return x + 0 * self.seen

        layer = Raw()
        with contextlib.suppress(IncompatibleModel):
            private(sampling, net(layer), noise=1.0).fit(X, Y, epochs=1, verbose=0)
        np.testing.assert_array_equal(layer.seen.numpy(), 0)

    @pytest.mark.parametrize("hidden", ["loop", "condition", "function"])
    def test_a_write_inside_a_loop_or_a_condition_is_seen(self, hidden):
        class Raw(keras.layers.Layer):
            def __init__(self):
                super().__init__()
                self.seen = tf.Variable(tf.zeros([6]), trainable=False)

            def call(self, x):
                def write(i):
                    self.seen.assign_add(tf.reduce_sum(x, axis=0))
                    return i + 1

                if hidden == "loop":
                    tf.while_loop(lambda i: i < 1, lambda i: [write(i)], [tf.constant(0)])
                elif hidden == "condition":
                    tf.cond(tf.reduce_sum(x) > -1e9, lambda: write(0), lambda: 1)
                else:
                    tf.function(lambda: tf.cond(tf.reduce_sum(x) > -1e9, lambda: write(0), lambda: 1))()
                return x

        layer = Raw()
        with pytest.raises(IncompatibleModel, match="AssignAdd"):
            private(BATCH, net(layer), noise=1.0).fit(X, Y, epochs=1, verbose=0)

    def test_a_loss_that_keeps_state_is_refused(self):
        state = tf.Variable(1.0)

        def loss(y, p):
            values = tf.square(tf.cast(y, tf.float32)[:, None] - p)
            state.assign(0.5 * state + tf.reduce_mean(values))
            return tf.reduce_mean(values / state, -1)

        with pytest.raises(IncompatibleModel):
            private(INDIVIDUAL, net(), noise=1.0, loss=loss).fit(X, Y, epochs=1, verbose=0)

    def test_keras_files_hold_weights_optimizer_and_count_only(self, tmp_path):
        h5py = pytest.importorskip("h5py")
        model = private(INDIVIDUAL, noise=1.0, metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)])
        model.fit(X, Y, epochs=1, verbose=0)
        model.save(tmp_path / "m.keras")
        names = []
        with zipfile.ZipFile(tmp_path / "m.keras") as file, file.open("model.weights.h5") as stored:
            h5py.File(stored, "r").visititems(lambda n, o: names.append(n) if hasattr(o, "shape") else None)
        assert {name.split("/")[0] for name in names} <= {"model", "layers", "optimizer", "vars"}
        for metric in model.metrics:  # whatever else saves the model finds nothing in them
            for variable in metric.variables:
                np.testing.assert_array_equal(np.asarray(variable), 0)

    def test_a_metric_with_several_values_does_not_stop_the_training(self):
        model = private(
            INDIVIDUAL,
            loss=keras.losses.CategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.F1Score(average=None)],
        )
        model.fit(X, keras.utils.to_categorical(Y, 3), epochs=1, verbose=0)
        assert model.spent.rounds == 4


class _CentreOnBatch(keras.layers.Layer):
    def call(self, x):
        return x - tf.reduce_mean(x, axis=0, keepdims=True)


class _Penalty(keras.layers.Layer):
    def call(self, x):
        self.add_loss(tf.reduce_sum(tf.square(x)))
        return x


def _functional(operation):
    keras.utils.set_random_seed(4)
    inputs = keras.Input((6,))
    return keras.Model(inputs, keras.layers.Dense(3)(operation(keras.layers.Dense(5)(inputs))))


MODELS = {
    "plain": lambda: net(),
    "centre": lambda: net(keras.layers.Dense(5), _CentreOnBatch()),
    "lambda": lambda: net(keras.layers.Lambda(lambda x: x - tf.reduce_mean(x, 0, keepdims=True))),
    "add_loss": lambda: net(_Penalty()),
    "activity": lambda: net(keras.layers.Dense(5, activity_regularizer="l2")),
    "weight penalty": lambda: net(keras.layers.Dense(5, kernel_regularizer="l2")),
    "mean over rows": lambda: _functional(lambda h: h - keras.ops.mean(h, axis=0, keepdims=True)),
    "flip rows": lambda: _functional(lambda h: h + keras.ops.flip(h, axis=0)),
    "roll all": lambda: _functional(lambda h: keras.ops.roll(h, 1)),
    "first row": lambda: _functional(lambda h: h - keras.ops.take(h, [0], axis=0)),
    "activation over rows": lambda: net(keras.layers.Dense(5, activation=lambda x: x / tf.reduce_sum(tf.abs(x)))),
}
LOSSES = {
    "coupled": lambda y, p: tf.reduce_sum(tf.square(p - tf.reduce_mean(p, 0, keepdims=True)), -1) * 100,
    "ranking": lambda y, p: tf.reduce_sum(p, -1) - tf.reduce_max(p),
}


class TestSensitivity:
    """Without noise, one replaced example moves the update by at most 2C/m (C/m where it is added or removed)."""

    @staticmethod
    def moved(model, x, y, other_x, *, norm=0.1, sample_weights=(None, None), **options):
        """How much farther the round with `other_x` moves the weights than 2C/m allows, against the round with `x`."""
        n = len(x)
        model = private(dp.Shuffling(n, n, 1), model, norm=norm, **options)
        updates = []
        start = model.model.get_weights()
        for xs, w in zip((x, other_x), sample_weights, strict=True):
            model.model.set_weights(start)
            before = oracles.flat(weights(model))
            one_round(model, xs, y, np.arange(n).reshape(n, 1), sample_weight=w)
            updates.append(oracles.flat(weights(model)) - before)
        assert np.isfinite(updates).all()
        return np.linalg.norm(updates[0] - updates[1]) / (2 * norm / n)

    @pytest.mark.parametrize("name", MODELS)
    def test_of_models_that_mix_rows_or_add_penalties(self, name):
        x, y = X[:8], Y[:8]
        other = x.copy()
        other[3] = 50.0
        assert self.moved(MODELS[name](), x, y, other) <= 1 + 1e-3

    @pytest.mark.parametrize("name", LOSSES)
    def test_of_losses_that_mix_rows(self, name):
        x, y = X[:8], Y[:8]
        other = x.copy()
        other[3] = 50.0
        assert self.moved(net(), x, y, other, loss=LOSSES[name]) <= 1 + 1e-3

    @pytest.mark.parametrize("weight", [np.nan, np.inf, -np.inf, -1e6, 1e30, 3e38, 1e-45])
    def test_of_odd_sample_weights(self, weight):
        x, y = X[:8], Y[:8]
        ones = np.ones(8, np.float32)
        odd = ones.copy()
        odd[3] = weight
        assert self.moved(net(), x, y, x, sample_weights=(ones, odd)) <= 1 + 1e-3

    @pytest.mark.parametrize("value", [np.nan, np.inf, 1e38, 1e19, 1e-42])
    def test_of_odd_inputs(self, value):
        x, y = X[:8], Y[:8]
        other = x.copy()
        other[3] = value
        assert self.moved(net(), x, y, other) <= 1 + 1e-3

    @pytest.mark.parametrize("policy", ["mixed_float16", "float16", "float64", "bfloat16"])
    def test_of_other_precisions(self, policy):
        x, y = X[:8], Y[:8]
        other = x.copy()
        other[3] = 1e5
        # Weights of half precision round the update themselves, after the noise; C is large against that.
        model = net(keras.layers.Dense(5, "tanh", dtype=policy))
        assert self.moved(model, x, y, other, norm=10.0) <= 1.05

    @pytest.mark.parametrize("engine", ["auto", "onepass"])
    def test_of_a_layer_along_the_last_axis_of_a_tensor_that_has_only_rows(self, engine):
        """The last axis of a tensor [n] is the rows' axis: here one example turns the gradients of all others round."""
        inputs = keras.Input((1,))
        score = keras.layers.Reshape(())(keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(inputs))
        model = keras.Model(inputs, keras.layers.Reshape((1,))(keras.layers.UnitNormalization()(score)))
        x = np.ones((8, 1), np.float32)
        x[3] = 0.5
        other = x.copy()
        other[3] = -0.5
        try:
            moved = self.moved(
                model, x, np.zeros(8), other, norm=1e-3, engine=engine, loss=lambda y, p: tf.reduce_sum(p, -1)
            )
        except IncompatibleModel:
            assert engine == "onepass"
            return
        assert moved <= 1 + 1e-3

    def test_of_a_poisson_round_larger_than_its_arrays(self):
        """All 60 examples join a round planned for one; the divisor stays 1."""
        x, y = oracles.blobs(60)
        results = []
        for n in (60, 59):
            model = private(dp.Poisson(1.0, 1, 1), norm=0.1, epochs=1)
            assert model.plan.sampling.shape[0] < 59
            model.fit(x[:n], y[:n], verbose=0)
            results.append(oracles.flat(weights(model)))
        assert 0.01 < np.linalg.norm(results[0] - results[1]) <= 0.1 * (1 + 1e-4)

    def test_padding_does_not_enter_penalties_of_the_activity(self):
        """pitfall 13: rows that are no examples count in the batch mean that Keras takes of an activity penalty."""

        def make():
            return net(keras.layers.Dense(5, activity_regularizer=keras.regularizers.L2(10.0)))

        with pytest.raises(IncompatibleModel, match="activity regularizer"):
            private(dp.Poisson(1.0, 1, 4, 1), make())


def _linear(features, **options):
    return keras.Sequential(
        [keras.Input((features,)), keras.layers.Dense(1, kernel_initializer="zeros", use_bias=False, **options)]
    )


class TestArithmetic:
    def test_squares_that_underflow_do_not_pass_a_small_clip_norm(self):
        """A clip norm so small that float32 squares vanish must be refused or kept."""
        x = np.zeros((4, 6), np.float32)
        x[0] = 1e-20
        try:
            model = private(dp.Shuffling(4, 4, 1), _linear(6), norm=1e-30, loss=lambda y, p: tf.reduce_sum(p, -1))
            model.fit(x, np.zeros(4), epochs=1, verbose=0)
        except ValueError:
            return
        assert np.linalg.norm(weights(model)[0].astype(np.float64)) <= 1e-30 / 4 * 1.001

    def test_a_norm_that_decays_to_nothing_is_refused_or_harmless(self):
        """C = 0 in float32 gives 0/0 where a gradient is 0: an update without noise that tells of it."""
        x = np.ones((4, 6), np.float32)
        x[0] = 0
        try:
            clipping = dp.FullGradientClipping(1.0, decay=1e-25, decay_every="round")
            model = private(
                dp.Shuffling(4, 4, 1),
                _linear(6),
                clipping=clipping,
                noise=1.0,
                epochs=6,
                loss=lambda y, p: tf.reduce_sum(p, -1),
            )
            model.fit(x, np.zeros(4), verbose=0)
        except ValueError:
            return
        assert np.isfinite(weights(model)[0]).all()

    @pytest.mark.parametrize("engine", ["onepass", "vectorized"])
    def test_a_product_of_a_vanishing_and_a_huge_factor_is_clipped(self, engine):
        """Norm |a||d| with a = 1e-20 (its square vanishes) and d = 1e18: the contribution has norm 0.02."""
        x = np.zeros((4, 4), np.float32)
        x[0] = 1e-20
        w = np.array([1e18, 0, 0, 0], np.float32)
        model = private(
            dp.Shuffling(4, 4, 1), _linear(4), norm=1e-3, engine=engine, loss=lambda y, p: tf.reduce_sum(p, -1)
        )
        model.fit(x, np.zeros(4), sample_weight=w, epochs=1, verbose=0)
        assert np.linalg.norm(weights(model)[0]) <= 1e-3 / 4 * 1.001

    @pytest.mark.parametrize("engine", ["onepass", "vectorized"])
    def test_gradients_that_cancel_over_positions_are_clipped(self, engine):
        """Two positions with inputs of the size of pixels and opposite gradients: |sum|^2 from Gram matrices cancels."""
        n, p, norm = 16, 16, 0.01
        rng = np.random.default_rng(0)
        x = np.repeat(rng.uniform(0, 255, (n, 1, p)), 2, 1).astype(np.float32)
        x[:, 1] += rng.choice([-1, 1], (n, p)) * 0.005
        model = keras.Sequential([keras.Input((2, p)), keras.layers.Dense(p, use_bias=False)])
        model = private(
            dp.Shuffling(n, n, 1),
            model,
            norm=norm,
            engine=engine,
            epochs=n,
            loss=lambda y, out: tf.reduce_sum(out[:, 0] - out[:, 1], -1),
        )
        sizes = []
        for weight in np.eye(n, dtype=np.float32):  # one example at a time: the others weigh nothing
            before = oracles.flat(weights(model))
            model.fit(x, np.zeros(n), sample_weight=weight, epochs=1, verbose=0)
            sizes.append(np.linalg.norm(oracles.flat(weights(model)) - before) * n)
        assert max(sizes) <= norm * 1.01

    def test_several_blocks_are_accounted_as_several(self):
        """algorithm.md: clipping L blocks composes L Gaussian mechanisms, so σ counts as σ/√L."""

        class TwoBlocks(dp.FullGradientClipping):
            config_name = "two"

            def num_blocks(self):
                return 2

            def assign_blocks(self, variables):
                return [i % 2 for i in range(len(variables))]

            def bounds(self, round_index, rounds_per_epoch):
                bound = super().bounds(round_index, rounds_per_epoch)
                return bound * 2 if isinstance(bound, list) else tf.concat([bound, bound], 0)

        two, one = (dp.PrivacyPlan(INDIVIDUAL, kind(1.0), 1.5, 3) for kind in (TwoBlocks, dp.FullGradientClipping))
        weaker = dataclasses.replace(one, noise_multiplier=1.5 / np.sqrt(2))
        assert two.noise_std(0) == [*one.noise_std(0)] * 2
        assert two.epsilon(1e-5) == weaker.epsilon(1e-5) > one.epsilon(1e-5)
        assert two.trade_off(2).f(0.1) == weaker.trade_off(2).f(0.1)
        assert two.bounds(1e-5)["mixture"] == weaker.bounds(1e-5)["mixture"]
        done = two.calibrate(2.0, 1e-5)
        assert done.noise_multiplier == pytest.approx(one.calibrate(2.0, 1e-5).noise_multiplier * np.sqrt(2), rel=2e-3)
        assert 1.98 <= done.epsilon(1e-5) <= 2.0
