"""LocalOptimizer against a plain Keras loop, one contribution at a time."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import SAMPLINGS, N, one_round, private, weights
from tfdpbc import algorithms
from tfdpbc.algorithms import Adam, BatchGradient, LocalOptimizer, Momentum
from tfdpbc.errors import IncompatibleModel
from tfdpbc.gradients import auto
from tfdpbc.gradients.function import Examples, ModelFunction
from tfdpbc.gradients.losses import PerExampleLoss
from tfdpbc.gradients.vectorized import VectorizedEngine

RATE = 0.3
OPTIMIZERS = {
    "sgd": keras.optimizers.SGD,
    "nesterov": lambda rate: keras.optimizers.SGD(rate, momentum=0.9, nesterov=True),
    "adam": keras.optimizers.Adam,
}


def hand_loop(model, x, y, optimizer, rate, passes, size, divisor=None):
    """(w_start - w_end) / rate of a plain training loop; the model is put back."""
    start = weights(model)
    optimizer.build(model.trainable_variables)
    for _ in range(passes):
        for first in range(0, len(x), size):
            rows = slice(first, first + size)
            with tf.GradientTape() as tape:
                losses = oracles.LOSS.call(tf.convert_to_tensor(y[rows]), model(x[rows], training=True))
                value = tf.reduce_sum(losses) / (divisor or len(y[rows])) + sum(model.losses)
            optimizer.apply(tape.gradient(value, model.trainable_variables), model.trainable_variables)
    moved = [(old - new) / rate for old, new in zip(start, weights(model), strict=True)]
    for variable, value in zip(model.trainable_variables, start, strict=True):
        variable.assign(value)
    return moved


def contributions(model, algorithm, x, y, k=None, mask=None, seeds=None, examples=None, state=()):
    """(contributions as rows, Evaluation) of arrays ``[m, s, ...]``, k of them at once (all by default)."""
    m, s = y.shape
    k = k or m
    function = ModelFunction(model, PerExampleLoss(oracles.LOSS), state)
    engine = VectorizedEngine(function, algorithm, examples or s, [0] * len(model.trainable_variables), 1, k)
    mask = np.ones((m, s), bool) if mask is None else mask
    seeds = np.zeros((m, function.num_generators, 2), np.int64) if seeds is None else seeds

    @tf.function(autograph=False)
    def run(x, y, mask, seeds):
        found = engine.contributions(Examples(x, y, None, mask, seeds))
        return found.gradients, found.evaluation.losses, found.evaluation.outputs, found.evaluation.state

    parts = [run(*(tf.constant(t[i : i + k]) for t in (x, y, mask, seeds))) for i in range(0, m, k)]
    gradients, *evaluation = tf.nest.map_structure(lambda *t: np.concatenate([v.numpy() for v in t]), *parts)
    return np.stack([oracles.flat([g[h] for g in gradients]) for h in range(m)]), evaluation


def data(m, s, shape=(6,)):
    x, y = oracles.blobs(m * s, shape)
    return x.reshape(m, s, *shape), y.reshape(m, s)


@pytest.mark.parametrize(
    "rule, size, passes",
    [("sgd", 1, 1), ("sgd", 1, 2), ("sgd", 5, 2), ("sgd", 9, 1), ("sgd", 2, 2), ("nesterov", 2, 2), ("adam", 2, 2)],
)
def test_a_contribution_is_what_a_plain_loop_moves(rule, size, passes):
    """s = 5: minibatches of 2 leave one of 1."""
    model = oracles.dense_net(kernel_regularizer=keras.regularizers.L2(0.05))
    x, y = data(3, 5)
    got, _ = contributions(model, LocalOptimizer(rule, RATE, passes, size), x, y)
    for h in range(3):
        want = hand_loop(model, x[h], y[h], OPTIMIZERS[rule](RATE), RATE, passes, size)
        np.testing.assert_allclose(got[h], oracles.flat(want), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("net, size", [("dense_net", 2), ("conv_net", 1)])
def test_mapped_and_one_at_a_time_are_the_same(net, size):
    model = getattr(oracles, net)()
    x, y = data(3, 4, model.input_shape[1:])
    algorithm = LocalOptimizer(Momentum(0.5), RATE, minibatch_size=size)
    mapped, (losses, outputs, _) = contributions(model, algorithm, x, y)
    single, (losses_1, outputs_1, _) = contributions(model, algorithm, x, y, k=1)
    np.testing.assert_allclose(mapped, single, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(losses, losses_1, atol=1e-5)
    np.testing.assert_allclose(outputs, outputs_1, atol=1e-5)


@pytest.mark.parametrize(
    "sampling, size", [("shuffling-batch", 100), ("shuffling-mixed", None), ("poisson-mixed", 100)]
)
def test_one_step_over_all_examples_is_the_batch_gradient(sampling, size):
    chosen, moved = SAMPLINGS[sampling], []
    x, y = oracles.blobs(N)
    for algorithm in (BatchGradient(), LocalOptimizer("sgd", 1e-3, minibatch_size=size)):
        model = private(chosen, norm=1e9, algorithm=algorithm, engine="vectorized")
        mask = np.zeros(chosen.shape, bool) if chosen.masked else None
        if mask is not None:
            mask[:, :2] = True
        one_round(model, x, y, np.arange(np.prod(chosen.shape)).reshape(chosen.shape) % N, mask)
        moved.append(oracles.flat(weights(model)))
    np.testing.assert_allclose(*moved, rtol=0, atol=3e-7)


def test_the_losses_are_those_of_the_first_visit_in_the_order_of_the_rows():
    model = oracles.dense_net()
    x, y = data(2, 5)
    _, (losses, outputs, _) = contributions(model, LocalOptimizer("sgd", RATE, passes=3, minibatch_size=2), x, y)
    for h in range(2):
        start, optimizer = weights(model), keras.optimizers.SGD(RATE)
        for first in (0, 2, 4):
            rows = slice(first, min(first + 2, 5))
            seen = model(x[h, rows])
            np.testing.assert_allclose(outputs[h, rows], seen, atol=1e-5)
            np.testing.assert_allclose(losses[h, rows], oracles.LOSS.call(tf.constant(y[h, rows]), seen), atol=1e-5)
            optimizer.apply(oracles.example_gradient(model, x[h, rows], y[h, rows]), model.trainable_variables)
        for variable, value in zip(model.trainable_variables, start, strict=True):
            variable.assign(value)


def test_padding_changes_nothing():
    """Minibatches of 2 of 7 rows, planned s = 4: one full, one half full, one empty, and an empty rest."""
    model = oracles.dense_net()
    x, y = data(2, 7)
    mask = np.zeros((2, 7), bool)
    mask[:, :3] = True
    algorithm = LocalOptimizer("adam", RATE, 2, 2)
    got, _ = contributions(model, algorithm, x, y, mask=mask, examples=4.0)
    x[:, 3:] = 1e6
    again, _ = contributions(model, algorithm, x, y, mask=mask, examples=4.0)
    np.testing.assert_array_equal(got, again)
    for h in range(2):  # the planned size divides, although the second minibatch holds one example
        want = hand_loop(model, x[h, :3], y[h, :3], keras.optimizers.Adam(RATE), RATE, 2, 2, divisor=2)
        np.testing.assert_allclose(got[h], oracles.flat(want), rtol=1e-5, atol=2e-6)


def test_an_empty_minibatch_between_others_is_no_step():
    """Nothing here relies on groups that are filled from the front."""
    model, algorithm = oracles.dense_net(), LocalOptimizer("adam", RATE, minibatch_size=2)
    x, y = data(1, 6)
    holes = np.array([[True, True, False, False, True, True]])
    got, _ = contributions(model, algorithm, x, y, mask=holes, examples=4.0)
    close, _ = contributions(model, algorithm, x[:, [0, 1, 4, 5]], y[:, [0, 1, 4, 5]])
    np.testing.assert_allclose(got, close, rtol=1e-6, atol=1e-6)


def test_an_empty_contribution_is_zero():
    x, y = data(2, 3)
    got, _ = contributions(oracles.dense_net(), LocalOptimizer("adam", RATE), x, y, mask=np.zeros((2, 3), bool))
    assert (got == 0).all()


def test_random_layers_draw_anew_in_each_step_and_pass():
    """One example seen six times at a rate too small to matter: only the dropout masks tell the outputs apart."""
    keras.utils.set_random_seed(2)
    model = keras.Sequential([keras.Input((40,)), keras.layers.Dropout(0.5), keras.layers.Dense(3)])
    x, y = np.ones((2, 6, 40), np.float32), np.zeros((2, 6), np.int64)
    seeds = np.random.default_rng(0).integers(0, 2**62, (2, 1, 2))
    algorithm = LocalOptimizer("sgd", 1e-12)
    got, (_, outputs, _) = contributions(model, algorithm, x, y, seeds=seeds)
    # Two equal draws of 40 coins: 66 pairs, probability 66 / 2^40 < 1e-10.
    assert len(np.unique(np.round(outputs.reshape(12, 3), 4), axis=0)) == 12
    again, _ = contributions(model, algorithm, x, y, seeds=seeds)
    np.testing.assert_array_equal(got, again)
    twice, _ = contributions(model, LocalOptimizer("sgd", 1e-12, passes=2), x, y, seeds=seeds)
    assert np.abs(twice - 2 * got).max() > 1e-3  # the second pass has masks of its own


def test_moving_statistics_are_carried_from_step_to_step():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((6,)), keras.layers.BatchNormalization(), keras.layers.Dense(3)])
    x, y = data(2, 5)
    state = model.layers[0].non_trainable_variables
    before = [v.numpy().copy() for v in state]
    got, (_, _, new) = contributions(model, LocalOptimizer("sgd", RATE, 2, 2), x, y, state=state)
    for variable, value in zip(state, before, strict=True):
        np.testing.assert_array_equal(variable, value)
    for h in range(2):
        want = hand_loop(model, x[h], y[h], keras.optimizers.SGD(RATE), RATE, 2, 2)
        np.testing.assert_allclose(got[h], oracles.flat(want), rtol=1e-4, atol=1e-5)
        for variable, value, old in zip(state, new, before, strict=True):
            np.testing.assert_allclose(value[h], variable, rtol=1e-5, atol=1e-6)
            variable.assign(old)


def test_a_schedule_sets_each_step_and_its_first_rate_the_unit():
    model = oracles.dense_net()
    x, y = data(2, 4)
    schedule = keras.optimizers.schedules.InverseTimeDecay(RATE, 1, 0.5)
    got, _ = contributions(model, LocalOptimizer("sgd", schedule, 2), x, y)
    for h in range(2):
        want = hand_loop(model, x[h], y[h], keras.optimizers.SGD(schedule), RATE, 2, 1)
        np.testing.assert_allclose(got[h], oracles.flat(want), rtol=1e-5, atol=2e-6)


def test_a_small_rate_costs_no_digits():
    """w_start - w_end would be lost in float32 at this rate."""
    model = oracles.dense_net()
    x, y = data(2, 3)
    got, _ = contributions(model, LocalOptimizer("sgd", 1e-12), x, y)
    want = [3 * oracles.flat(oracles.example_gradient(model, x[h], y[h])) for h in range(2)]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_float16_models_are_walked_in_float32():
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, dtype="mixed_float16")])
    x, y = data(2, 4)
    got, _ = contributions(model, LocalOptimizer("adam", RATE), x, y)
    want = oracles.flat(hand_loop(model, x[0], y[0], keras.optimizers.Adam(RATE), RATE, 1, 1))
    np.testing.assert_allclose(got[0], want, rtol=2e-2, atol=2e-2)


class Signs:
    """A user's rule with a state: majority votes of the gradients' signs so far."""

    def init(self, weights):
        return {"votes": [tf.zeros(w.shape) for w in weights], "steps": tf.constant(0)}

    def update(self, state, gradient, step):
        tf.debugging.assert_equal(state["steps"], step)
        votes = [v + tf.sign(g) for v, g in zip(state["votes"], gradient, strict=True)]
        return {"votes": votes, "steps": state["steps"] + 1}, [tf.sign(v) for v in votes]


def test_a_users_rule():
    model = oracles.dense_net()
    x, y = data(2, 3)
    got, _ = contributions(model, LocalOptimizer(Signs(), 0.01), x, y, k=1)
    start = weights(model)
    votes = total = np.zeros(got.shape[1])
    for i in range(3):
        gradient = oracles.flat(oracles.example_gradient(model, x[1, i : i + 1], y[1, i : i + 1]))
        votes = votes + np.sign(gradient)
        total = total + np.sign(votes)
        ends = np.cumsum([0] + [w.size for w in start])
        for v, w, a, b in zip(model.trainable_variables, start, ends[:-1], ends[1:], strict=True):
            v.assign(w - 0.01 * total[a:b].reshape(w.shape))
    np.testing.assert_allclose(got[1], total, atol=1e-5)


def broken(**methods):
    good = {"init": lambda self, w: [tf.zeros(v.shape) for v in w], "update": lambda self, s, g, step: (s, g)}
    return type("Broken", (), good | methods)()


@pytest.mark.parametrize(
    "rule, expected",
    [
        (broken(update=lambda self, s, g, step: (s[:1], g)), "state structured like that of init"),
        (broken(update=lambda self, s, g, step: ([v[None] for v in s], g)), "keeps the shapes and dtypes"),
        (broken(update=lambda self, s, g, step: (s, g[:1])), "direction shaped like the gradient"),
        (broken(update=lambda self, s, g, step: (s, [v[None] for v in g])), "direction shaped like the gradient"),
    ],
)
def test_a_rule_that_breaks_the_protocol_is_refused_by_name(rule, expected):
    x, y = data(2, 2)
    with pytest.raises(ValueError, match=f"rule must be one whose update .*{expected}"):
        contributions(oracles.dense_net(), LocalOptimizer(rule, RATE), x, y)


def test_a_rule_that_writes_is_refused():
    kept = tf.Variable(0.0)

    def update(self, state, gradient, step):
        kept.assign(gradient[0][0, 0])
        return state, gradient

    model = private(dp.Shuffling(N, 1, 6), algorithm=LocalOptimizer(broken(update=update), RATE))
    with pytest.raises(IncompatibleModel, match="rule must not write data"):
        model.fit(*oracles.blobs(N), verbose=0)
    assert kept.numpy() == 0


@pytest.mark.parametrize(
    "name, options",
    [
        ("learning_rate", {"learning_rate": 0.0}),
        ("learning_rate", {"learning_rate": lambda step: -1.0}),
        ("passes", {"passes": 0}),
        ("minibatch_size", {"minibatch_size": 0}),
        ("rule", {"rule": "newton"}),
    ],
)
def test_bad_arguments_are_refused_by_name(name, options):
    with pytest.raises(ValueError, match=f"{name} must be"):
        LocalOptimizer(**{"rule": "sgd", "learning_rate": 0.1} | options)


@pytest.mark.parametrize("sampling", [dp.Shuffling(N, 3, 4), dp.Shuffling(N, 1, 6)], ids=["mixed", "batch"])
def test_fit_is_the_hand_loop_over_rounds(sampling):
    """Noise 0: each round adds up clipped local walks from the same weights, the outer optimizer applies their mean."""
    x, y = oracles.blobs(N)
    algorithm = LocalOptimizer("nesterov", RATE, 2, 2)
    model = private(sampling, norm=0.7, algorithm=algorithm, epochs=2, seed=5)
    oracle = oracles.dense_net()
    for epoch in range(2):
        for drawn in sampling.batches(model.streams.generator("sampling", epoch), num_examples=N):
            for groups in drawn.indices:
                total = [np.zeros(v.shape) for v in oracle.trainable_variables]
                for g in groups:
                    moved = hand_loop(oracle, x[g], y[g], OPTIMIZERS["nesterov"](RATE), RATE, 2, 2)
                    total = [t + p for t, p in zip(total, oracles.clipped(moved, 0.7), strict=True)]
                for variable, t in zip(oracle.trainable_variables, total, strict=True):
                    variable.assign(variable - t / len(groups))
    model.fit(x, y, verbose=0)
    np.testing.assert_allclose(oracles.flat(weights(model)), oracles.flat(weights(oracle)), atol=2e-5)


def test_auto_says_why_and_onepass_refuses_by_name():
    algorithm = LocalOptimizer("adam", RATE)
    model = private(dp.Shuffling(N, 3, 2), algorithm=algorithm)
    assert "onepass computes the algorithm BatchGradient only, not LocalOptimizer" in str(model.engine_report())
    with pytest.raises(IncompatibleModel, match="not LocalOptimizer"):
        private(dp.Shuffling(N, 3, 2), algorithm=algorithm, engine="onepass").engine_report()


def test_contributions_at_once_follow_the_minibatch():
    """Contributions of 128 examples fill the processor, minibatches of 1 do not."""
    for size, k in ((1, 8), (8, 1), (128, 1)):
        model = private(dp.Shuffling(1024, 8, 128), algorithm=LocalOptimizer("sgd", RATE, 1, size))
        assert model._build_engine()[0].contributions_per_pass == k
    numbers = oracles.dense_net().count_params()
    small = private(
        dp.Shuffling(1024, 8, 128),
        algorithm=LocalOptimizer("sgd", RATE),
        memory_budget=auto.MATERIALIZED_SHARE * auto.LOCAL_COPIES * 4 * numbers * 3,
    )
    assert small._build_engine()[0].contributions_per_pass == 3


def test_a_contribution_is_not_computed_in_parts():
    model = private(dp.Shuffling(N, 1, 6), algorithm=LocalOptimizer("sgd", RATE), physical_batch_size=3)
    with pytest.raises(
        IncompatibleModel, match="physical_batch_size must hold one contribution .* LocalOptimizer is not"
    ):
        model.engine_report()


def test_configurations():
    algorithm = LocalOptimizer(Adam(0.8), 0.1, 2, None)
    model = private(dp.Shuffling(N, 3, 2), algorithm=algorithm)
    again = dp.PrivateModel.from_config(model.get_config())
    assert again.algorithm.to_config() == algorithm.to_config()
    assert repr(algorithms.from_config(algorithm.to_config())) == repr(algorithm)
    for own in (LocalOptimizer(Signs(), 0.1), LocalOptimizer("sgd", lambda step: 0.1)):
        with pytest.raises(NotImplementedError, match="got"):
            algorithms.to_config(own)


SLOW = [pytest.param(mode, marks=pytest.mark.slow) for mode in ({"jit_compile": True}, {"run_eagerly": True})]


@pytest.mark.parametrize("mode", [*SLOW, {"steps_per_execution": 2}], ids=str)
def test_every_way_to_run_gives_the_same_weights(mode):
    x, y = oracles.blobs(N)
    ends = []
    for options in ({}, mode):
        model = private(SAMPLINGS["poisson-mixed"], algorithm=LocalOptimizer("adam", 0.1), epochs=1, **options)
        model.fit(x, y, verbose=0)
        ends.append(oracles.flat(weights(model)))
    np.testing.assert_allclose(*ends, atol=1e-6)
