"""The C++ operation: built here, equal to TensorFlow's own operations, and absent without harm."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import N, private
from tfdpbc import native
from tfdpbc.gradients.onepass.recording import Call
from tfdpbc.gradients.onepass.rules import conv2d

built = pytest.mark.skipif(native.operations() is None, reason="the C++ operations were not built (no compiler)")


def case(kernel, strides, padding, size, channels, filters, examples, contributions=3, seed=0):
    """(layer, call, x, d) with random numbers."""
    layer = keras.layers.Conv2D(filters, kernel, strides, padding=padding)
    shape = (contributions * examples, *size, channels)
    layer.build(shape)
    rng = np.random.default_rng(seed)
    x = tf.constant(rng.normal(size=shape).astype(np.float32))
    d = tf.constant(rng.normal(size=layer.compute_output_shape(shape)).astype(np.float32))
    return layer, Call((x,), {}, [], contributions, examples, None), x, d


@st.composite
def cases(draw):
    kernel = (draw(st.integers(1, 4)), draw(st.integers(1, 4)))
    strides = (
        (draw(st.integers(1, 3)),) * 2 if draw(st.booleans()) else (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    )
    size = tuple(draw(st.integers(k, 13)) for k in kernel)
    channels, filters = draw(st.integers(1, 9)), draw(st.sampled_from([1, 3, 15, 16, 17, 40, 70]))
    return kernel, strides, draw(st.sampled_from(["same", "valid"])), size, channels, filters, draw(st.integers(1, 3))


@built
@settings(max_examples=60)
@given(cases())
def test_equal_to_the_gradient_of_each_contribution(drawn):
    """Every kernel, stride, padding and number of channels, lanes of the processor filled or not."""
    layer, call, x, d = case(*drawn)
    term = conv2d.Native(native.operations().tfdpbc_conv_gradients, layer, call, x, d)
    want = []
    for h in range(call.k):
        rows = slice(h * call.s, (h + 1) * call.s)
        kernel = tf.zeros(layer.kernel.shape, tf.float64)
        with tf.GradientTape() as tape:
            tape.watch(kernel)
            out = tf.nn.conv2d(tf.cast(x[rows], tf.float64), kernel, list(layer.strides), layer.padding.upper())
            objective = tf.reduce_sum(out * tf.cast(d[rows], tf.float64))
        want.append(tape.gradient(objective, kernel).numpy())
    np.testing.assert_allclose(term.materialized(), want, rtol=1e-5, atol=2e-5)
    for h, gradient in enumerate(want):
        rows = slice(h * call.s, (h + 1) * call.s)
        # Rounding is relative to what is added up, of which little may be left.
        scale = np.linalg.norm(x[rows]) * np.linalg.norm(d[rows])
        assert np.sqrt(term.squares[h]) == pytest.approx(np.linalg.norm(gradient), rel=1e-6, abs=1e-6 * float(scale))
    np.testing.assert_allclose(term.bias, tf.reduce_sum(call.split(d), [1, 2, 3]), rtol=1e-5, atol=2e-5)
    weights = tf.constant([0.3, 0.0, 2.0])
    for keep in (None, tf.constant([True, True, False])):
        kept = np.ones(3) if keep is None else np.float32(keep)
        total = sum(w * k * np.float64(g) for w, k, g in zip(weights.numpy(), kept, want, strict=True))
        np.testing.assert_allclose(term.weighted_sum(weights, keep), total, rtol=1e-5, atol=1e-4)


@built
@pytest.mark.parametrize("size", [4, 12])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_shows_in_its_norm_alone(bad, size):
    layer, call, x, d = case((3, 3), (1, 1), "same", (size, size), 2, 5, 1)
    x = tf.tensor_scatter_nd_update(x, [[1, 0, 0, 0]], [bad])
    term = conv2d.Native(native.operations().tfdpbc_conv_gradients, layer, call, x, d)
    assert np.isfinite(term.squares).tolist() == [True, False, True]
    assert np.all(np.isfinite(term.weighted_sum(tf.constant([1.0, 0.0, 1.0]), tf.constant([True, False, True]))))


@built
def test_rows_that_make_no_whole_contributions_are_refused():
    x = tf.zeros([3, 4, 4, 1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="whole contributions"):
        native.operations().tfdpbc_conv_gradients(
            x=x, d=x, kernel=[1, 1], strides=[1, 1], offset=[0, 0], examples=2, keep=False
        )


@built
def test_xla_takes_tensorflows_own_operations():
    """XLA cannot compile the operation; the result is the same."""
    found = []
    for jit_compile in (False, True):
        net = oracles.conv_net()
        model = private(dp.Shuffling(N, 6, 1), net, jit_compile=jit_compile, engine="onepass")
        model.fit(*oracles.blobs(N, (6, 6, 2)), verbose=0, epochs=1)
        found.append(oracles.flat(net.get_weights()))
    np.testing.assert_allclose(found[0], found[1], atol=2e-5)
