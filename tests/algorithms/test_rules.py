"""Each rule is the Keras optimizer of its name, step by step."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdpbc.algorithms import SGD, AdaGrad, Adam, Momentum, Nesterov, RMSprop, rules

SHAPES = [(3, 2), (4,)]
KERAS = {
    "sgd": keras.optimizers.SGD,
    "momentum": lambda rate, momentum=0.9: keras.optimizers.SGD(rate, momentum=momentum),
    "nesterov": lambda rate, momentum=0.9: keras.optimizers.SGD(rate, momentum=momentum, nesterov=True),
    "adam": keras.optimizers.Adam,
    "adagrad": keras.optimizers.Adagrad,
    "rmsprop": keras.optimizers.RMSprop,
}
UNIT = st.floats(0.0, 0.999)
EPSILON = st.floats(1e-8, 1e-2)
CASES = st.one_of(
    st.tuples(st.just("sgd"), st.just({})),
    st.tuples(st.sampled_from(["momentum", "nesterov"]), st.fixed_dictionaries({"momentum": UNIT})),
    st.tuples(
        st.just("adam"),
        st.fixed_dictionaries({"beta_1": UNIT, "beta_2": UNIT, "epsilon": EPSILON, "amsgrad": st.booleans()}),
    ),
    st.tuples(
        st.just("adagrad"),
        st.fixed_dictionaries({"initial_accumulator_value": st.floats(1e-3, 1.0), "epsilon": EPSILON}),
    ),
    st.tuples(
        st.just("rmsprop"),
        # A centered variance may fall below zero by rounding; a larger epsilon keeps both roots away from there.
        st.fixed_dictionaries(
            {"rho": UNIT, "momentum": UNIT, "epsilon": st.floats(1e-3, 1e-2), "centered": st.booleans()}
        ),
    ),
)


def walk(rule, start, gradients, rate):
    """The weights after each step of a rule."""
    state = rule.init([tf.constant(w) for w in start])
    weights, path = [w.astype(np.float64) for w in start], []
    for i, gradient in enumerate(gradients):
        state, direction = rule.update(state, [tf.constant(g) for g in gradient], tf.constant(i))
        weights = [w - rate * d.numpy() for w, d in zip(weights, direction, strict=True)]
        path.append(weights)
    return path


def keras_walk(optimizer, start, gradients):
    """The weights after each step of a Keras optimizer."""
    variables, path = [keras.Variable(w) for w in start], []
    optimizer.build(variables)
    for gradient in gradients:
        optimizer.apply([tf.constant(g) for g in gradient], variables)
        path.append([v.numpy().copy() for v in variables])
    return path


def drawn(seed, steps=5):
    rng = np.random.default_rng(seed)
    start, *gradients = ([rng.normal(size=s).astype(np.float32) for s in SHAPES] for _ in range(steps + 1))
    return start, gradients


def assert_same_path(got, want):
    for ours, theirs in zip(got, want, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", rules.by_name)
def test_the_defaults_are_those_of_keras(name):
    start, gradients = drawn(1)
    assert_same_path(walk(rules.get(name), start, gradients, 0.1), keras_walk(KERAS[name](0.1), start, gradients))


@settings(max_examples=30, deadline=None, derandomize=True)
@given(case=CASES, rate=st.floats(1e-4, 0.5), seed=st.integers(0, 1000))
def test_every_setting_steps_as_keras_does(case, rate, seed):
    name, fields = case
    start, gradients = drawn(seed)
    want = keras_walk(KERAS[name](rate, **fields), start, gradients)
    assert_same_path(walk(rules.by_name[name](**fields), start, gradients, rate), want)


@pytest.mark.parametrize(
    "rule",
    [SGD(), Momentum(0.5), Nesterov(0.2), Adam(0.8, amsgrad=True), AdaGrad(0.2), RMSprop(centered=True)],
    ids=str,
)
def test_a_configuration_gives_the_rule_back(rule):
    assert rules.get(rules.to_config(rule)) == rule
    assert rules.get(rule) is rule


@pytest.mark.parametrize("bad", [keras.optimizers.Adam(), Adam, object(), None, 3])
def test_what_is_no_rule_is_refused_by_name(bad):
    with pytest.raises(TypeError, match="rule must be a rule such as SGD"):
        rules.get(bad)


def test_unknown_names_and_bad_numbers_are_refused_by_name():
    with pytest.raises(ValueError, match="rule must be one of 'sgd'.*got rule='adamw'"):
        rules.get("adamw")
    for kind, name, value in [
        (Momentum, "momentum", 1.5),
        (Nesterov, "momentum", -0.1),
        (Adam, "beta_1", 1.0),
        (Adam, "beta_2", float("nan")),
        (Adam, "epsilon", 0.0),
        (AdaGrad, "initial_accumulator_value", -1.0),
        (RMSprop, "rho", 1.0),
    ]:
        with pytest.raises(ValueError, match=f"{name} must be a finite number"):
            kind(**{name: value})
    with pytest.raises(TypeError, match="amsgrad must be True or False"):
        Adam(amsgrad=1)
