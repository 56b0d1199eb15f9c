"""Augmentation inside a round, and its multiplicity: the plain loop over examples and augmentations, both engines."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import SAMPLINGS, N, one_round, private, weights
from tfdpbc.errors import IncompatibleModel
from tfdpbc.training.augment import Augmenter, PerRow, rowwise

X, Y = oracles.blobs(N, (6, 6, 2))
SHIFT = dp.data.Augmentation(pad=2)
LAYER_KEY = 0  # the first round's


def small_net():
    """Images into a small smooth network: quick to trace."""
    keras.utils.set_random_seed(9)
    flat = [keras.Input((6, 6, 2)), keras.layers.Flatten(), keras.layers.Dense(4, "tanh"), keras.layers.Dense(3)]
    return keras.Sequential(flat)


def jitter(row, seed):
    """A user's function: noise and a factor."""
    return row * 0.5 + tf.random.stateless_normal(row.shape, seed)


def draws_of(name, n=N):
    """Indices and mask of one round; where rounds are padded, some contributions are short and some empty."""
    m, s = SAMPLINGS[name].shape
    indices, mask = np.arange(m * s).reshape(m, s) % n, np.ones((m, s), bool)
    if SAMPLINGS[name].masked:
        mask[3:] = False
        mask[:, 2:] = False
        mask[1:2, 1:] = False
        indices = np.where(mask, indices, indices[:, :1])
    return indices, mask


def moved(model, x, y, indices, mask=None, **options):
    before = weights(model)
    one_round(model, x, y, indices, mask, **options)
    return oracles.flat([old - new for old, new in zip(before, weights(model), strict=True)])


def plain(model, net, augment, k, indices, mask, norm, x=X):
    """The clipped sum by one tape for each augmentation of each example."""
    plan = model.plan.sampling
    keys = np.asarray(Augmenter(None, k).seeds(model.streams.key("layers", LAYER_KEY), *indices.shape))
    total = [np.zeros(v.shape) for v in net.trainable_variables]
    for h in range(len(indices)):
        if not mask[h].any():
            continue
        gradient = [np.zeros(v.shape) for v in net.trainable_variables]
        for i in np.flatnonzero(mask[h]):
            for r in range(k):
                key = tf.constant(keys[h, i * k + r])
                image = tf.constant(x[indices[h, i]])
                changed = augment(image, key) if augment is jitter else augment(image[None], key[None])[0]
                one = oracles.example_gradient(net, np.asarray(changed)[None], Y[indices[h, i]][None])
                gradient = [g + o / (k * plan.examples_divisor) for g, o in zip(gradient, one, strict=True)]
        total = [t + c for t, c in zip(total, oracles.clipped(gradient, norm), strict=True)]
    return oracles.flat(total) / plan.divisor


@pytest.mark.parametrize("engine", ["onepass", "vectorized"])
@pytest.mark.parametrize(
    "name, augment, k",
    [
        ("shuffling-individual", SHIFT, 3),
        ("shuffling-batch", SHIFT, 2),
        ("poisson-individual", SHIFT, 1),
        ("poisson-individual", jitter, 2),
        ("poisson-mixed", SHIFT, 3),
    ],
)
def test_a_contribution_is_the_clipped_mean_gradient_over_its_augmentations(name, engine, augment, k):
    norm, net = 0.3, oracles.conv_net if (name, k) == ("shuffling-individual", 3) else small_net
    model = private(SAMPLINGS[name], net(), norm=norm, engine=engine, augment=augment, augmentations=k)
    indices, mask = draws_of(name)
    want = plain(model, net(), augment, k, indices, mask, norm)
    got = moved(model, X, Y, indices, mask)
    # Of the largest number: an update is read off as the difference of float32 weights.
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("name", ["shuffling-mixed", "poisson-individual", "shuffling-batch"])
def test_pitfall_12_micro_batches_change_nothing(name):
    indices, mask = draws_of(name)
    updates, counts = [], set()
    for size in (4, 7, None):
        options = {"augment": SHIFT, "augmentations": 3, "physical_batch_size": size}
        model = private(SAMPLINGS[name], small_net(), norm=0.3, **options)
        updates.append(moved(model, X, Y, indices, mask))
        engine = model._rounds.round.engine
        counts.add((engine.name, engine.contributions_per_pass, getattr(engine, "examples_per_pass", None)))
    assert len(counts) > 1
    for update in updates[1:]:
        np.testing.assert_allclose(update, updates[0], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    "name, augment, engine",
    [
        ("poisson-individual", SHIFT, "onepass"),
        ("poisson-individual", jitter, "vectorized"),
        ("poisson-mixed", SHIFT, "vectorized"),
        ("poisson-mixed", jitter, "onepass"),
    ],
)
def test_pitfall_13_masked_rows_stay_masked(name, augment, engine):
    """Padding that points at an example of 1e6 (and of NaN) changes nothing, repeated and shifted or not."""
    indices, mask = draws_of(name)
    assert not mask.all()
    model, updates = private(SAMPLINGS[name], small_net(), engine=engine, augment=augment, augmentations=2), []
    first = model.model.get_weights()
    for filling in (0.0, 1e6, np.nan):
        x = X.copy()
        x[-1] = filling
        model.model.set_weights(first)
        updates.append(moved(model, x, Y, np.where(mask, indices, N - 1), mask))
    assert model._rounds.traces == 1 and np.abs(updates[0]).max() > 1e-3
    np.testing.assert_array_equal(updates[1], updates[0])
    if mask.any(axis=1).sum() == mask.sum():  # a NaN beside an example of the same contribution takes it out
        np.testing.assert_array_equal(updates[2], updates[0])


@pytest.mark.parametrize("k", [1, 4])
def test_the_noise_is_the_same_as_without(k):
    """With a flat loss all that moves is noise, and it does not know of augmentations."""

    def flat_loss(y, outputs):
        return 0.0 * tf.reduce_sum(outputs, axis=-1)

    indices, mask = draws_of("shuffling-individual")
    updates = []
    for options in ({}, {"augment": SHIFT, "augmentations": k}):
        model = private(SAMPLINGS["shuffling-individual"], small_net(), noise=1.0, loss=flat_loss, **options)
        updates.append(moved(model, X, Y, indices, mask))
        assert model.plan == private(SAMPLINGS["shuffling-individual"], noise=1.0).plan
    np.testing.assert_array_equal(*updates)
    assert np.abs(updates[0]).min() > 0


def test_every_row_repeat_and_round_has_a_seed_of_its_own():
    augmenter, streams = Augmenter(None, 4), dp.random.Streams(1)
    found = [np.asarray(augmenter.seeds(streams.key("layers", r), 6, 2)) for r in range(3)]
    assert all(keys.shape == (6, 8, 2) for keys in found)
    assert len(np.unique(np.concatenate(found).reshape(-1, 2), axis=0)) == 3 * 6 * 8
    assert len(np.unique(np.concatenate(found))) == 2 * 3 * 6 * 8
    # One round cut into other passes, which may end in contributions that do not exist.
    np.testing.assert_array_equal(augmenter.seeds(streams.key("layers", 0), 9, 2)[:6], found[0])


def trained(tmp_path, parts, **options):
    """Weights after 3 epochs in which the process ends after each of `parts`."""
    options = {"augment": SHIFT, "augmentations": 2, "noise": 0.5, **options}
    path = tmp_path / "state.npz"
    for epochs in parts:
        model = private(SAMPLINGS["shuffling-individual"], small_net(), **options)
        if path.exists():
            model.load_checkpoint(path)
        model.fit(X, Y, epochs=epochs, verbose=0)
        model.save_checkpoint(path)
    path.unlink()
    return oracles.flat(weights(model))


def test_a_seed_repeats_it_also_after_a_resume_and_with_several_rounds_a_call(tmp_path):
    whole = trained(tmp_path, [3], steps_per_execution=3)
    np.testing.assert_allclose(trained(tmp_path, [1, 2]), whole, rtol=1e-5, atol=1e-6)


def test_another_seed_and_another_round_augment_in_other_ways():
    updates, indices = [], np.arange(6)[:, None]
    model = private(SAMPLINGS["shuffling-individual"], small_net(), augment=SHIFT)
    first = model.model.get_weights()
    for round_index in (0, 0, 1):
        model.model.set_weights(first)
        updates.append(moved(model, X, Y, indices, round_index=round_index))
    updates.append(moved(private(SAMPLINGS["shuffling-individual"], small_net(), augment=SHIFT, seed=2), X, Y, indices))
    np.testing.assert_array_equal(updates[1], updates[0])
    for a, b in ((0, 2), (0, 3), (2, 3)):
        assert np.abs(updates[a] - updates[b]).max() > 1e-3


@pytest.mark.parametrize("way", ["jit_compile", "run_eagerly"])
@pytest.mark.slow
def test_xla_and_eager_rounds_augment_alike(way):
    indices, mask = draws_of("shuffling-individual")
    updates = [
        moved(
            private(SAMPLINGS["shuffling-individual"], small_net(), augment=SHIFT, **options),
            X,
            Y,
            indices,
            mask,
        )
        for options in ({}, {way: True})
    ]
    np.testing.assert_allclose(*updates, rtol=1e-3, atol=1e-5)


def test_examples_that_do_not_live_on_the_device_are_augmented_alike():
    class Rows:
        def __len__(self):
            return N

        def __getitem__(self, indices):
            return X[indices], Y[indices]

    results = []
    for data in ((X, Y), (Rows(),)):
        model = private(SAMPLINGS["shuffling-mixed"], small_net(), augment=SHIFT, augmentations=2)
        model.fit(*data, epochs=1, verbose=0)
        results.append(oracles.flat(weights(model)))
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-7)


def test_loss_and_metrics_count_each_example_once():
    """The mean of an example's losses, and the output of its first augmentation, at the weights before the round."""
    k, name = 3, "poisson-individual"
    model = private(SAMPLINGS[name], small_net(), augment=SHIFT, augmentations=k, metrics=["accuracy"])
    indices, mask = draws_of(name)
    logs = one_round(model, X, Y, indices, mask)
    net = small_net()
    keys = np.asarray(Augmenter(None, k).seeds(model.streams.key("layers", 0), *indices.shape))
    losses, right = [], []
    for h, i in np.argwhere(mask):
        rows = SHIFT(tf.constant(X[np.full(k, indices[h, i])]), tf.constant(keys[h, i * k : (i + 1) * k]))
        outputs, label = net(rows), Y[indices[h, i]]
        losses.append(np.mean(oracles.LOSS.call(tf.fill([k], label), outputs)))
        right.append(np.argmax(outputs[0]) == label)
    assert logs["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert logs["accuracy"] == pytest.approx(np.mean(right), abs=1e-6)


def test_evaluation_sees_the_examples_as_they_are():
    model = private(SAMPLINGS["shuffling-individual"], small_net(), augment=lambda row, seed: row * 0.0)
    model.fit(X, Y, epochs=1, verbose=0)
    np.testing.assert_array_equal(model.predict(X, verbose=0), model.model.predict(X, verbose=0))
    assert np.ptp(model.predict(X, verbose=0), axis=0).min() > 0


def test_several_inputs_sample_weights_and_a_users_function():
    inputs = {"a": keras.Input((3,), name="a"), "b": keras.Input((2,), dtype="int32", name="b")}
    keras.utils.set_random_seed(3)
    joined = keras.layers.Concatenate()([inputs["a"], keras.layers.Rescaling(1.0)(inputs["b"])])
    net = keras.Model(inputs, keras.layers.Dense(3)(joined))
    x = {"a": X[:, 0, :3, 0], "b": np.arange(2 * N, dtype=np.int32).reshape(N, 2)}
    sample_weight = np.arange(N, dtype=np.float32) / N

    def twice(row, seed):
        return {"a": row["a"] * 2.0, "b": row["b"] + 1}

    results = []
    for data, options in ((x, {"augment": twice, "augmentations": 2}), ({"a": x["a"] * 2, "b": x["b"] + 1}, {})):
        model = private(dp.Shuffling(N, 6, 1), keras.models.clone_model(net), **options)
        model.model.set_weights(net.get_weights())
        model.fit(data, Y, sample_weight=sample_weight, epochs=1, verbose=0)
        results.append(oracles.flat(weights(model)))
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-6)


def test_a_users_function_cannot_mix_rows():
    """It is given one row, whatever it makes of it."""
    centred = PerRow(lambda row, seed: row - tf.reduce_mean(row))
    got = np.asarray(centred(tf.constant(X), tf.zeros([N, 2], tf.int64)))
    np.testing.assert_allclose(got, X - X.mean(axis=(1, 2, 3), keepdims=True), atol=1e-6)


counter = tf.Variable(0.0)


@tf.function
def inside(row):
    counter.assign_add(tf.reduce_sum(row))


def keeps(row, seed):
    counter.assign_add(tf.reduce_sum(row))
    return row


def keeps_inside(row, seed):
    inside(row)
    return row


def keeps_sometimes(row, seed):
    if tf.reduce_sum(row) > 0:
        counter.assign(1.0)
    return row


def runs_python(row, seed):
    return tf.ensure_shape(tf.numpy_function(lambda a: a, [row], tf.float32), row.shape)


def shows(row, seed):
    tf.print(row)
    return row


@pytest.mark.parametrize("function", [keeps, keeps_inside, keeps_sometimes, runs_python, shows])
def test_a_function_that_keeps_something_is_refused_before_anything_is_released(function):
    model = private(SAMPLINGS["shuffling-individual"], small_net(), noise=1.0, augment=function)
    with pytest.raises(IncompatibleModel, match="augment must keep nothing of a row"):
        model.fit(X, Y, verbose=0)
    assert model.spent.rounds == 0 and float(counter) == 0


@pytest.mark.parametrize(
    "function",
    [lambda r, s: r[:-1], lambda r, s: tf.cast(r, tf.float64), lambda r, s: (r, r)],
    ids=["shape", "type", "nest"],
)
def test_a_function_that_returns_something_else_is_refused_before_anything_is_released(function):
    model = private(SAMPLINGS["shuffling-individual"], small_net(), noise=1.0, augment=function)
    with pytest.raises(ValueError, match=r"result is like its row, float32\(6, 6, 2\)"):
        model.fit(X, Y, verbose=0)
    assert model.spent.rounds == 0


def test_images_only():
    model = private(dp.Shuffling(N, 6, 1), augment=dp.data.Augmentation())
    with pytest.raises(ValueError, match="augment must be a function of one example"):
        model.fit(*oracles.blobs(N), verbose=0)
    assert model.spent.rounds == 0


@pytest.mark.parametrize("augment", ["paper", 3, keras.layers.RandomFlip()])
def test_what_is_no_augmentation(augment):
    with pytest.raises(TypeError, match="augment must be an Augmentation or a function"):
        rowwise(augment)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"augmentations": 2}, ValueError, "augmentations must be 1 without an augment"),
        ({"augmentations": 0, "augment": SHIFT}, ValueError, "augmentations must be an integer >= 1"),
        ({"augmentations": 2.0, "augment": SHIFT}, TypeError, "augmentations must be an integer"),
    ],
)
def test_impossible_arguments(options, error, message):
    with pytest.raises(error, match=message):
        private(dp.Shuffling(N, 6, 1), **options)


def test_pitfall_16_several_augmentations_do_not_make_batch_normalisation_legal():
    net = keras.Sequential([keras.Input((6, 6, 2)), keras.layers.BatchNormalization(), keras.layers.Flatten()])
    net.add(keras.layers.Dense(3))
    with pytest.raises(IncompatibleModel, match="must not mix examples under individual clipping"):
        private(dp.Shuffling(N, 6, 1), net, augment=SHIFT, augmentations=4)


def test_the_engine_counts_all_rows():
    model = private(dp.Shuffling(512, 512, 1), small_net(), augment=SHIFT, augmentations=16)
    x, y = oracles.blobs(512, (6, 6, 2))
    one_round(model, x, y, np.arange(512)[:, None])
    assert model._rounds.round.engine.contributions_per_pass == 16  # 256 rows
    alone = private(dp.Shuffling(512, 512, 1), small_net())
    dense, more = (m.engine_report().layers[-1].megaflops for m in (alone, model))
    assert more > 4 * dense


def test_it_is_saved_with_the_model(tmp_path):
    model = private(dp.Shuffling(N, 6, 1), small_net(), augment=SHIFT, augmentations=2)
    model.fit(X, Y, epochs=1, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.augment == SHIFT and loaded.augmentations == 2 and loaded.averaging is None
    with pytest.raises(AttributeError, match="augment of a PrivateModel is fixed"):
        loaded.augment = None
    with pytest.raises(NotImplementedError, match="user-defined augmentation"):
        private(dp.Shuffling(N, 6, 1), small_net(), augment=jitter).get_config()
