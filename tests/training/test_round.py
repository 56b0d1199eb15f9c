"""One round of Algorithm 1: sensitivity, noise, divisor, padding (pitfalls 1-6, 10-13, 20)."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import SAMPLINGS, N, one_round, private, weights


def flat_loss(y, outputs):
    """A loss without gradient: what moves is noise."""
    return 0.0 * tf.reduce_sum(outputs, axis=-1)


def wide_net():
    keras.utils.set_random_seed(5)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(1500), keras.layers.Dense(3)])


@pytest.mark.parametrize("name", SAMPLINGS)
def test_pitfall_1_noise_of_the_sum_is_calibrated_once_and_divided_by_the_planned_size(name):
    """With a zero gradient and SGD(1) every weight moves with std σ · sensitivity / m.

    About 15,000 numbers: their standard deviation is within 6 / sqrt(2 · 15,000) = 3.5 % but for 2e-9.
    """
    sampling = SAMPLINGS[name]
    sigma, norm = 1.7, 0.3
    model = private(sampling, wide_net(), norm=norm, noise=sigma, loss=flat_loss)
    x, y = oracles.blobs(N)
    before = oracles.flat(weights(model))
    m, s = sampling.shape
    one_round(model, x, y, np.arange(m * s).reshape(m, s) % N)
    moved = oracles.flat(weights(model)) - before
    want = sigma * sampling.sensitivity_factor * norm / sampling.divisor
    assert model.plan.noise_std(0) == [pytest.approx(sigma * sampling.sensitivity_factor * norm)]
    assert moved.std() == pytest.approx(want, rel=6 / np.sqrt(2 * moved.size))
    assert abs(moved.mean()) < 6 * want / np.sqrt(moved.size)
    assert stats.kstest(moved / want, "norm").pvalue > 1e-7


def test_pitfall_2_the_divisor_and_the_shapes_do_not_depend_on_the_data():
    sampling = dp.Poisson(0.25, 4, 6)
    for size in (N, N - 1):
        model = private(sampling, noise=0.0, norm=1e9)
        x, y = oracles.blobs(size)
        before = weights(model)
        indices, mask = np.zeros(sampling.shape, int), np.zeros(sampling.shape, bool)
        indices[:3, 0], mask[:3] = [0, 1, 2], True
        one_round(model, x, y, indices, mask)
        moved = [old - new for old, new in zip(before, weights(model), strict=True)]
        want = oracles.clipped_sum(oracles.dense_net(), x, y, [[0], [1], [2]], 1e9)
        # Three examples joined, six were planned: the sum is divided by six.
        np.testing.assert_allclose(oracles.flat(moved), oracles.flat(want) / 6, rtol=1e-4, atol=1e-7)


def test_pitfall_3_doubling_the_clip_norm_doubles_the_noise():
    sampling = dp.Shuffling(N, 6, 1)
    moved = []
    for norm in (0.3, 0.6):
        model = private(sampling, wide_net(), norm=norm, noise=1.0, loss=flat_loss)
        before = oracles.flat(weights(model))
        one_round(model, *oracles.blobs(N), np.arange(6)[:, None])
        moved.append(oracles.flat(weights(model)) - before)
    np.testing.assert_allclose(moved[1], 2 * moved[0], rtol=1e-3, atol=1e-6)  # the same seed, hence the same draws


def test_pitfall_3_noise_comes_after_clipping():
    model = private(dp.Shuffling(N, 6, 1), wide_net(), norm=0.1, noise=1.0)
    before = oracles.flat(weights(model))
    one_round(model, *oracles.blobs(N), np.arange(6)[:, None])
    assert np.linalg.norm(oracles.flat(weights(model)) - before) > 0.1


def test_a_decaying_clip_norm_takes_the_noise_with_it():
    clipping = dp.FullGradientClipping(0.4, decay=0.5)
    plan = dp.PrivacyPlan(dp.Shuffling(N, 6, 1), clipping, 1.0, 3)
    assert [plan.noise_std(r)[0] for r in (0, 3, 4, 8)] == pytest.approx([0.8, 0.8, 0.4, 0.2])
    moved = []
    for round_index in (0, 4):
        model = private(plan.sampling, wide_net(), clipping=clipping, noise=1.0, loss=flat_loss)
        before = oracles.flat(weights(model))
        one_round(model, *oracles.blobs(N), np.arange(6)[:, None], round_index=round_index)
        moved.append((oracles.flat(weights(model)) - before).std())
    assert moved[1] / moved[0] == pytest.approx(0.5, rel=0.1)  # 15,000 numbers each


@pytest.mark.parametrize("sampling", [dp.Shuffling(N, 1, 6), dp.Poisson(0.25, 4, 6, 1)], ids=["shuffling", "poisson"])
def test_pitfall_4_a_group_can_turn_from_plus_to_minus(sampling):
    """One example decides where a group's contribution points: it moves the sum by 2C, and the noise knows."""
    norm = 0.5
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    x = np.zeros((N, 2), np.float32)
    x[0], x[1] = [1, 0], [-5, 0]

    def loss(y, p):
        return 1e3 * p[:, 0]

    sums = []
    for present in ([0], [0, 1]):
        wrapped = private(sampling, model, norm=norm, loss=loss)
        model.set_weights([np.zeros((2, 1))])
        indices = np.full(sampling.shape, 2)
        indices[0, : len(present)] = present
        one_round(wrapped, x, np.zeros(N), indices)
        sums.append(-model.get_weights()[0] * sampling.divisor)
    assert np.linalg.norm(sums[0] - sums[1]) == pytest.approx(2 * norm, rel=1e-5)
    assert wrapped.plan.sensitivities(norm) == 2 * norm


@pytest.mark.parametrize(
    "name, net",
    [(n, oracles.dense_net) for n in SAMPLINGS if not n.startswith("poisson")]
    + [("shuffling-mixed", oracles.conv_net)],
)
def test_pitfall_5_without_noise_and_clipping_it_is_plain_sgd(name, net):
    sampling = SAMPLINGS[name]
    model = private(sampling, net(), norm=1e9)
    x, y = oracles.blobs(N, model.model.input_shape[1:])
    before = weights(model)
    indices = np.arange(6).reshape(sampling.shape)
    want = oracles.example_gradient(net(), x[:6], y[:6])
    one_round(model, x, y, indices)
    moved = [old - new for old, new in zip(before, weights(model), strict=True)]
    np.testing.assert_allclose(oracles.flat(moved), oracles.flat(want), atol=1e-6)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_the_update_is_the_clipped_sum_over_the_planned_number(name):
    sampling = SAMPLINGS[name]
    m, s = sampling.shape
    norm = 0.4
    x, y = oracles.blobs(N)
    model = private(sampling, norm=norm)
    before = weights(model)
    indices = np.arange(m * s).reshape(m, s) % N
    one_round(model, x, y, indices)
    scale = s / sampling.examples_divisor  # Poisson groups are divided by their planned size
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    total = [np.zeros(v.shape) for v in before]
    for group in indices:
        gradient = [scale * g for g in oracles.example_gradient(oracles.dense_net(), x[group], y[group], loss)]
        total = [t + c for t, c in zip(total, oracles.clipped(gradient, norm), strict=True)]
    moved = [old - new for old, new in zip(before, weights(model), strict=True)]
    np.testing.assert_allclose(oracles.flat(moved), oracles.flat(total) / sampling.divisor, rtol=2e-4, atol=1e-7)


class TestPitfall6:
    def test_noise_differs_between_variables_and_rounds(self):
        keras.utils.set_random_seed(5)
        layers = [keras.Input((6,)), keras.layers.Dense(40), keras.layers.Dense(40), keras.layers.Dense(40)]
        model = private(dp.Shuffling(N, 6, 1), keras.Sequential(layers), noise=1.0, loss=flat_loss)
        moved = []
        for round_index in range(2):
            before = weights(model)
            one_round(model, *oracles.blobs(N), np.arange(6)[:, None], round_index=round_index)
            moved.append([new - old for new, old in zip(weights(model), before, strict=True)])
        (a, b), (c, _) = [(parts[2].ravel(), parts[4].ravel()) for parts in moved]
        for one, other in ((a, b), (a, c)):  # 1600 pairs: |correlation| > 6/40 with probability 2e-9
            assert abs(np.corrcoef(one, other)[0, 1]) < 6 / np.sqrt(one.size)

    def test_without_a_seed_no_noise_is_repeated(self):
        sampling, moved = dp.Shuffling(N, 6, 1), []
        for _ in range(2):  # as after a restart: the same weights, the same round
            model = private(sampling, noise=1.0, loss=flat_loss, seed=None)
            before = oracles.flat(weights(model))
            one_round(model, *oracles.blobs(N), np.arange(6)[:, None])
            moved.append(oracles.flat(weights(model)) - before)
        assert not np.any(moved[0] == moved[1])

    def test_frozen_weights_stay_bit_identical_and_unused_ones_get_noise(self):
        inputs = keras.Input((6,))
        frozen = keras.layers.Dense(5, "tanh", trainable=False)
        unused = keras.layers.Dense(4)
        outputs = keras.layers.Dense(3)(frozen(inputs)) + 0 * keras.ops.sum(unused(inputs))
        model = private(dp.Shuffling(N, 6, 1), keras.Model(inputs, outputs), noise=1.0)
        held, idle = frozen.get_weights(), unused.get_weights()
        one_round(model, *oracles.blobs(N), np.arange(6)[:, None])
        for old, new in zip(held, frozen.get_weights(), strict=True):
            np.testing.assert_array_equal(old, new)
        for old, new in zip(idle, unused.get_weights(), strict=True):
            assert np.all(old != new)


def test_pitfall_10_an_empty_poisson_round_adds_pure_noise_and_counts():
    sampling = dp.Poisson(1e-9, 2, 6)
    model = private(sampling, wide_net(), noise=1.0, norm=0.3, epochs=1)
    x, y = oracles.blobs(N)
    before = oracles.flat(weights(model))
    model.fit(x, y, verbose=0)
    moved = oracles.flat(weights(model)) - before
    assert model.spent.rounds == 2
    assert moved.std() == pytest.approx(np.sqrt(2) * 0.3 / 6, rel=6 / np.sqrt(2 * moved.size))


def test_pitfall_10_structures_keep_their_form_and_type():
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b", dtype="int32")
    merged = keras.layers.Concatenate()([a, keras.layers.Flatten()(keras.layers.Embedding(7, 2)(b))])
    outputs = {
        "first": keras.layers.Dense(3, name="first")(merged),
        "second": keras.layers.Dense(1, name="second")(merged),
    }
    keras.utils.set_random_seed(2)
    net = keras.Model({"a": a, "b": b}, outputs)
    rng = np.random.default_rng(0)
    x = {"a": rng.normal(size=(N, 4)).astype("f4"), "b": rng.integers(0, 7, (N, 3)).astype("i4")}
    y = {"first": rng.integers(0, 3, N), "second": rng.normal(size=(N, 1)).astype("f4")}
    losses = {"first": oracles.LOSS, "second": "mse"}
    plan = dp.PrivacyPlan(dp.Poisson(1e-9, 1, 6), dp.FullGradientClipping(1.0), 0.0, 2)
    for rate, moves in ((1e-9, False), (0.9, True)):
        model = dp.PrivateModel(net, dp.PrivacyPlan(dp.Poisson(rate, 1, 6), plan.clipping, 0.0, 2), seed=0)
        model.compile(keras.optimizers.SGD(0.1), losses)
        before = oracles.flat(weights(model))
        model.fit(x, y, epochs=1, verbose=0)
        assert np.any(oracles.flat(weights(model)) != before) == moves


@pytest.mark.parametrize("size", [24, 26, 29])
def test_pitfall_11_left_over_examples_are_left_out_and_known(size):
    sampling = dp.Shuffling(size, 3, 2)
    assert sampling.rounds_per_epoch == 4
    model = private(sampling, noise=1.0, epochs=2)
    model.fit(*oracles.blobs(size), verbose=0)
    assert model.spent.rounds == 8
    exact = model.plan.participation()
    # An example is in an epoch's rounds with probability 24/size, so c² ~ Binomial(2, 24/size).
    want = stats.binom.pmf(exact.c_squared, 2, 24 / size)
    np.testing.assert_allclose(exact.probability, want, atol=1e-12)


@pytest.mark.parametrize(
    "name, net",
    [
        ("shuffling-individual", oracles.conv_net),
        pytest.param("subsampling-mixed", oracles.dense_net, marks=pytest.mark.slow),
        ("poisson-individual", oracles.dense_net),
        ("poisson-mixed", oracles.dense_net),
    ],
)
def test_pitfall_12_micro_batches_change_nothing(name, net):
    """One contribution at a time, a number that does not divide, and all at once: the same update, one noise."""
    sampling = SAMPLINGS[name]
    m, s = sampling.shape
    x, y = oracles.blobs(N, net().input_shape[1:])
    indices = np.arange(m * s).reshape(m, s) % N
    mask = np.arange(m)[:, None] < max(m - 1, 1)
    mask = np.broadcast_to(mask, indices.shape) if sampling.masked else None
    results = []
    for contributions in (1, 2, m):
        model = private(sampling, net(), norm=0.5, noise=2.0, physical_batch_size=contributions * s)
        one_round(model, x, y, indices, mask)
        results.append(oracles.flat(weights(model)))
    assert f"{m} of {m} contributions" in model.engine_reason
    for other in results[1:]:
        # The same seed gives the same noise: were it added per micro-batch, the results would differ.
        np.testing.assert_allclose(other, results[0], atol=2e-6)


@pytest.mark.parametrize("name", ["shuffling-batch", "poisson-batch", "subsampling-mixed"])
def test_pitfall_12_parts_of_a_contribution_change_nothing(name):
    sampling = SAMPLINGS[name]
    m, s = sampling.shape
    x, y = oracles.blobs(N, (6, 6, 2))
    indices = np.arange(m * s).reshape(m, s) % N
    mask = np.broadcast_to(np.arange(s) < 6, (m, s)) if sampling.masked else None
    results = []
    for examples in (1, 4, s):
        model = private(sampling, oracles.conv_net(), norm=0.5, noise=2.0, physical_batch_size=examples)
        one_round(model, x, y, indices, mask)
        results.append(oracles.flat(weights(model)))
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0], atol=2e-6)


@pytest.mark.parametrize("name", ["poisson-individual", "poisson-batch", "poisson-mixed"])
def test_pitfall_13_padding_rows_change_nothing(name):
    sampling = SAMPLINGS[name]
    m, s = sampling.shape
    x, y = oracles.blobs(N)
    indices = np.full((m, s), 20)
    mask = np.zeros((m, s), bool)
    indices[: min(m, 3), : min(s, 2)] = np.arange(min(m, 3) * min(s, 2)).reshape(min(m, 3), min(s, 2))
    mask[: min(m, 3), : min(s, 2)] = True
    results = []
    for filling in (0.0, 1e6):
        x[20] = filling
        model = private(sampling, norm=0.5)
        one_round(model, x, y, indices, mask)
        results.append(oracles.flat(weights(model)))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("physical", [1, 4, 6])
def test_pitfall_13_a_nan_example_gives_the_sum_of_the_others(bad, physical):
    x, y = oracles.blobs(N)
    want = oracles.clipped_sum(oracles.dense_net(), x, y, [[0], [2], [3], [4], [5]], 0.5)
    x[1] = bad
    model = private(dp.Shuffling(N, 6, 1), norm=0.5, physical_batch_size=physical)
    before = weights(model)
    one_round(model, x, y, np.arange(6)[:, None])
    moved = [old - new for old, new in zip(before, weights(model), strict=True)]
    np.testing.assert_allclose(oracles.flat(moved), oracles.flat(want) / 6, rtol=1e-4, atol=1e-7)


def test_pitfall_20_a_learning_rate_of_zero_stops_the_weights():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([3], [1.0, 0.0])
    model = private(dp.Shuffling(N, 6, 1), noise=1.0, optimizer=keras.optimizers.SGD(schedule), epochs=4)
    x, y = oracles.blobs(N)
    start = oracles.flat(weights(model))
    model.fit(x, y, epochs=1, verbose=0)  # 4 rounds at rate 1
    moved = oracles.flat(weights(model))
    assert np.all(moved != start)
    model.fit(x, y, epochs=2, verbose=0)
    np.testing.assert_array_equal(oracles.flat(weights(model)), moved)


def test_pitfall_20_gradients_are_those_of_this_rounds_batch():
    x, y = oracles.blobs(N)
    model = private(dp.Shuffling(N, 6, 1), norm=0.5)
    reference = oracles.dense_net()
    for round_index, group in enumerate(([0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11])):
        total = oracles.clipped_sum(reference, x, y, [[i] for i in group], 0.5)
        for variable, step in zip(reference.trainable_variables, total, strict=True):
            variable.assign(variable - step / 6)
        one_round(model, x, y, np.array(group)[:, None], round_index=round_index)
    np.testing.assert_allclose(oracles.flat(weights(model)), oracles.flat(weights(reference)), atol=1e-6)
