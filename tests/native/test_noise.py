"""The C++ noise is that of TensorFlow's own operations."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdpbc import native, noise

built = pytest.mark.skipif(native.operations() is None, reason="the C++ operations were not built (no compiler)")


@built
@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 70), max_size=3), min_size=1, max_size=4),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=2),
)
def test_both_ways_draw_the_same(shapes, key):
    """A run goes on with the same noise on a machine without a compiler."""
    sums = [tf.random.stateless_normal(shape, [1, i]) for i, shape in enumerate(shapes)]
    stddevs, key = [0.5 * i for i in range(len(shapes))], tf.constant(key, tf.int64)
    with native.off():
        want = noise.add_gaussian(sums, stddevs, key, 3)
    for one, other in zip(noise.add_gaussian(sums, stddevs, key, 3), want, strict=True):
        np.testing.assert_allclose(one, other, atol=5e-6)


@built
def test_a_key_of_another_size_is_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="key, stddev and factor must hold one number"):
        native.operations().tfdpbc_add_gaussian(
            sum=tf.zeros([4]),
            key=tf.zeros([2], tf.uint64),
            counter=tf.zeros([2], tf.uint64),
            stddev=1.0,
            factor=1.0,
            offset=0,
        )
