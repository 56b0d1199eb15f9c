"""Rounds that are decided as a whole: trimmed sums with and without a test, medians; engines, micro-batches, replicas."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import one_round, weights
from tfdpbc.training.loop import Draw

N, C, TAU = 24, 1.5, 1.25
SAMPLING = dp.Poisson(0.25, 4, 6)
PASS, FAIL = -1e9, 1e9
X, Y = oracles.blobs(N)
X *= np.linspace(0.02, 0.6, N, dtype=np.float32)[:, None]  # norms below and above C
X[3] = X[4] = X[5]  # equal norms
Y[3] = Y[4] = Y[5]


def trainer(aggregation, engine="onepass", physical=None, noise=0.0, net=None, loss=oracles.LOSS, norm=C, **options):
    plan = dp.PrivacyPlan(options.pop("sampling", SAMPLING), dp.FullGradientClipping(norm), noise, 3, aggregation)
    model = dp.PrivateModel(
        net or oracles.dense_net(), plan, seed=1, engine=engine, physical_batch_size=physical, **options
    )
    model.compile(keras.optimizers.SGD(1.0), loss)
    return model


def draw(rows):
    """Arrays of a Poisson round with these examples; padding shows an example with a huge gradient."""
    indices, mask = np.full(SAMPLING.shape, N - 1), np.zeros(SAMPLING.shape, bool)
    indices[: len(rows), 0], mask[: len(rows)] = rows, True
    return indices, mask


def moved(model, rows, x=X, y=Y):
    """The released sum, and the logs. A model keeps its compiled round, for the same data."""
    before = oracles.flat(weights(model))
    indices, mask = draw(rows)
    if model._rounds is None:
        logs = one_round(model, x, y, indices, mask)
    else:
        found, places = model._rounds.feed.rows(indices[None].astype(np.int32))
        logs = model._rounds.run(Draw(found, places, mask[None]), 0, model.streams)
    return (before - oracles.flat(weights(model))) * SAMPLING.divisor, logs


def contributions(rows):
    """The clipped gradients of these examples, one at a time."""
    every = _contributions()
    return [every[i].copy() for i in rows]


@functools.cache
def _contributions():
    net = oracles.dense_net()
    return [oracles.flat(oracles.clipped(oracles.example_gradient(net, X[[i]], Y[[i]]), C)) for i in range(N)]


def trimmed_sum(vectors, trim):
    """Plainly: sort, leave out, add; of equal norms (up to rounding) the first is trimmed."""
    order = sorted(range(len(vectors)), key=lambda i: (-round(float(np.linalg.norm(vectors[i])), 6), i))
    return sum((vectors[i] for i in order[trim:]), np.zeros_like(vectors[0]))


@pytest.mark.parametrize("trim, threshold", [(3, PASS), (3, FAIL), pytest.param(7, PASS, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "engine, physical",
    [
        ("onepass", None),
        ("onepass", 3),
        pytest.param("onepass", 40, marks=pytest.mark.slow),
        pytest.param("vectorized", None, marks=pytest.mark.slow),
        ("vectorized", 4),
        pytest.param("vectorized", 1, marks=pytest.mark.slow),
    ],
)
def test_the_sum_is_the_plain_loops_in_any_micro_batches(engine, physical, trim, threshold):
    model, rng = trainer(dp.TrimmedSum(trim, TAU, 1.0, threshold), engine, physical), np.random.default_rng(physical)
    start = model.model.get_weights()
    for size in (0, 1, trim, trim + 1, 9, 20, N):
        model.model.set_weights(start)
        rows = rng.permutation(N)[:size]
        found, logs = moved(model, rows)
        vectors = contributions(rows) or [np.zeros(found.shape)]
        np.testing.assert_allclose(found, trimmed_sum(vectors, trim if threshold == PASS else 0), atol=2e-5)
        if threshold == PASS and size <= trim:
            assert (found == 0).all()  # not only nearly: nothing of them was ever added
        assert logs["test_failures"] > 0 if threshold == FAIL else logs["test_failures"] == 0


@pytest.mark.parametrize("physical", [None, 3, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize("bad", [np.nan, pytest.param(np.inf, marks=pytest.mark.slow), 3e38])
def test_what_is_not_finite_counts_as_zero(physical, bad):
    x = X.copy()
    x[2] = bad
    rows = list(range(9))
    vectors = contributions(rows)
    vectors[2] = np.zeros_like(vectors[2])
    model = trainer(dp.TrimmedSum(2, TAU, 1.0, PASS), "onepass", physical)
    found, _ = moved(model, rows, x)
    np.testing.assert_allclose(found, trimmed_sum(vectors, 2), atol=2e-5)


@pytest.mark.parametrize("physical", [None, 3, pytest.param(40, marks=pytest.mark.slow)])
def test_the_margin_counts_the_whole_round(physical):
    """A threshold between Δ and Δ + 1 tells the margin; the Laplace noise is far smaller than a half."""
    rows = list(range(14))
    norms = [np.linalg.norm(v) for v in contributions(rows)]
    margin = 10 - sum(n > TAU for n in norms)
    assert 0 < margin < 10 and min(abs(n - TAU) for n in norms) > 1e-4
    for threshold, fails in ((margin - 0.5, 0.0), (margin + 0.5, 1.0)):
        model = trainer(dp.TrimmedSum(10, TAU, 1e-3, threshold), "onepass", physical)
        assert moved(model, rows)[1]["test_failures"] == fails
        assert model.test_failures == fails


def wide_net():
    keras.utils.set_random_seed(5)
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(1500), keras.layers.Dense(3)])


def flat_loss(y, outputs):
    return 0.0 * tf.reduce_sum(outputs, axis=-1)


@pytest.mark.parametrize("threshold, want", [(PASS, 1.7 * TAU), (FAIL, 0.9 * C)])
def test_the_noise_is_that_of_the_branch(threshold, want):
    """About 15,000 numbers: their standard deviation is within 6 / sqrt(2 · 15,000) = 3.5 % but for 2e-9."""
    kind = dp.TrimmedSum(3, TAU, 1.0, threshold, fail_noise_multiplier=0.9)
    model = trainer(kind, noise=1.7, net=wide_net(), loss=flat_loss)
    found, _ = moved(model, range(6))
    assert found.std() == pytest.approx(want, rel=6 / np.sqrt(2 * found.size))
    assert abs(found.mean()) < 6 * want / np.sqrt(found.size)


def test_global_trimming_has_the_noise_of_the_clip_norm_and_no_test():
    model = trainer(dp.GlobalTrimmedSum(3), noise=1.7, net=wide_net(), loss=flat_loss)
    found, logs = moved(model, range(6))
    assert found.std() == pytest.approx(1.7 * C, rel=6 / np.sqrt(2 * found.size))
    assert "test_failures" not in logs and model.test_failures == 0
    model = trainer(dp.GlobalTrimmedSum(3), "vectorized", 4)
    np.testing.assert_allclose(moved(model, range(11))[0], trimmed_sum(contributions(range(11)), 3), atol=2e-5)


@pytest.mark.parametrize("engine, physical", [("onepass", None), ("onepass", 3), ("vectorized", 3)])
def test_what_is_trimmed_leaves_no_trace_where_layers_are_random(engine, physical):
    """Each example moves a weight of its own, and half of them are dropped: no weight of a trimmed one may move."""
    wide = 16  # weights of each example: it is dropped as a whole but once in 2^16
    net = keras.Sequential([keras.Input((N * wide,)), keras.layers.Dropout(0.5), keras.layers.Dense(1, use_bias=False)])
    x = np.kron(np.diag(np.r_[np.full(N // 2, 1e-3), np.full(N // 2, 100.0)]), np.ones(wide)).astype(np.float32)

    def loss(y, p):
        return p[:, 0]

    model = trainer(dp.TrimmedSum(12, TAU, 1.0, PASS), engine, physical, net=net, loss=loss)
    rows = np.random.default_rng(0).permutation(N)
    found, _ = moved(model, rows, x, np.zeros(N))
    small, large = np.split(found, 2)
    assert (large == 0).all()
    kept = small != 0
    np.testing.assert_allclose(small[kept], 2e-3, rtol=1e-4)  # once each: what was put off is not counted twice
    # 192 coins: 5.5 standard deviations, a false alarm in 2.6e7; and the seed is fixed.
    assert abs(kept.mean() - 0.5) < 5.5 * 0.5 / np.sqrt(kept.size)


@pytest.mark.parametrize("engine", ["onepass", "vectorized"])
@pytest.mark.parametrize("physical", [3, 40])
def test_medians(engine, physical):
    vectors = np.array(contributions(range(9)))
    found, _ = moved(trainer(dp.CoordinateMedian(), engine, physical), range(9))
    np.testing.assert_allclose(found / SAMPLING.divisor, np.median(vectors, axis=0), atol=1e-5)
    found, _ = moved(trainer(dp.GeometricMedian(200), engine, physical), range(9))
    point = found / SAMPLING.divisor
    # The optimum: unit vectors towards the others add up to 0, or to less than 1 where the point is one of them.
    away = vectors - point
    sizes = np.linalg.norm(away, axis=1)
    far = sizes > 1e-4
    assert np.linalg.norm((away[far] / sizes[far, None]).sum(axis=0)) < 0.02 + (~far).sum()


@pytest.mark.parametrize("kind", [dp.CoordinateMedian(), dp.GeometricMedian(), dp.TrimmedSum(3, TAU, 1.0, PASS)])
def test_an_empty_round_moves_nothing(kind):
    assert (moved(trainer(kind, "onepass", 3), [])[0] == 0).all()


def test_failures_follow_the_tail_of_the_laplace_number():
    """Every round holds the same contributions, so its margin is known: the share of 800 failures is that of Lap(b) < t - Δ.

    Within 5.5 standard deviations of it: a false alarm in 2.6e7, and the seed is fixed.
    """
    b, rounds, everyone = 1.5, 800, dp.Poisson(1.0, 800, N)
    net = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, use_bias=False)])
    x = np.zeros((N, 6), np.float32)
    x[:, 0] = np.where(np.arange(N) < 4, 1.4, 0.5)  # norms of the gradients: 4 of them above τ

    def loss(y, p):
        return p[:, 0]

    kind = dp.TrimmedSum(9, TAU, b, 4.0)  # margin 5
    plan = dp.PrivacyPlan(everyone, dp.FullGradientClipping(C), 1.0, 1, kind)
    model = dp.PrivateModel(net, plan, seed=2)
    model.compile(keras.optimizers.SGD(1e-3), loss, steps_per_execution=400)
    model.fit(x, np.zeros(N), verbose=0)
    want = 0.5 * np.exp((4.0 - 5) / b)
    assert want == pytest.approx(1 - kind.test(plan.clipping).release(1.0).pass_probability(5), rel=1e-9)
    assert abs(model.test_failures - want * rounds) < 5.5 * np.sqrt(rounds * want * (1 - want))


def test_clipping_to_tau_trims_the_same_without_a_test():
    """What Propose-Test-Release gives on pass, the baseline gives at clip norm τ: the same sum, and noise τσ (results.md)."""
    rows = list(range(14))
    above = sum(np.linalg.norm(v) > TAU for v in contributions(rows))
    assert 0 < above < 10
    tested = moved(trainer(dp.TrimmedSum(10, TAU, 1.0, PASS)), rows)[0]
    baseline = trainer(dp.GlobalTrimmedSum(10), norm=TAU)
    np.testing.assert_allclose(tested, moved(baseline, rows)[0], atol=2e-5)
    noisy = [dp.PrivacyPlan(SAMPLING, dp.FullGradientClipping(norm), 1.0, 1, kind)
             for norm, kind in ((C, dp.TrimmedSum(10, TAU, 1.0, PASS)), (TAU, dp.GlobalTrimmedSum(10)))]  # fmt: skip
    assert noisy[0].noise_std(0, passed=True) == noisy[1].noise_std(0)


def test_failures_are_kept_in_checkpoints_and_shown(tmp_path):
    model = trainer(dp.TrimmedSum(3, TAU, 2.0, 2.0), noise=1.0)
    history = model.fit(X, Y, verbose=0).history["test_failures"]
    assert len(history) == 3 and 0 < model.test_failures < 12
    assert history[-1] == pytest.approx(model.test_failures / 12)
    model.save_checkpoint(tmp_path / "checkpoint")
    fresh = trainer(dp.TrimmedSum(3, TAU, 2.0, 2.0), noise=1.0)
    fresh.load_checkpoint(tmp_path / "checkpoint")
    assert fresh.test_failures == model.test_failures


@pytest.mark.parametrize(
    "options, physical",
    [({"steps_per_execution": 4}, 40), ({"jit_compile": True}, 40), ({"jit_compile": True}, None)],
    ids=str,
)
@pytest.mark.slow
def test_steps_per_execution_and_xla_change_nothing(options, physical):
    found = []
    for execution in ({}, options):
        model = trainer(dp.TrimmedSum(3, TAU, 1.0, PASS), physical=physical)
        model.compile(keras.optimizers.SGD(0.1), oracles.LOSS, **execution)
        model.fit(X, Y, verbose=0, epochs=1)
        found.append(oracles.flat(weights(model)))
    np.testing.assert_allclose(found[1], found[0], atol=1e-5)
