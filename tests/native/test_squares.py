"""The C++ sums of squares are those of TensorFlow's own operations, and no worse."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdpbc import native

built = pytest.mark.skipif(native.operations() is None, reason="the C++ operations were not built (no compiler)")


@built
@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 40), max_size=3), st.integers(0, 5), st.integers(-15, 15))
def test_sums_over_all_axes_but_the_first(shape, rows, exponent):
    t = np.random.default_rng(rows).normal(size=(rows, *shape)).astype(np.float32) * np.float32(10.0**exponent)
    want = (np.float64(t).reshape(rows, -1 if t.size else 0) ** 2).sum(1)
    np.testing.assert_allclose(native.row_squares(tf.constant(t)), want, rtol=2e-6)
    if t.size:
        with native.off():
            np.testing.assert_allclose(native.row_squares(tf.constant(t)), want, rtol=2e-5)


@built
def test_a_product_of_sums_neither_vanishes_nor_overflows_on_the_way():
    a, d = (np.random.default_rng(i).normal(size=(3, n)).astype(np.float32) for i, n in enumerate((300, 70)))
    scale = np.float32([1e-25, 1.0, 1e25])[:, None]
    want = (np.float64(a) ** 2).sum(1) * (np.float64(d) ** 2).sum(1)
    got = native.operations().tfdpbc_row_squares([tf.constant(a * scale), tf.constant(d / scale)])
    np.testing.assert_allclose(got, want, rtol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="all inputs as many"):
        native.operations().tfdpbc_row_squares([tf.zeros([2, 3]), tf.zeros([3, 2])])


@built
@pytest.mark.parametrize("width", [70_000, 32_768, 1])
def test_long_rows_are_cut_and_what_is_not_finite_stays_in_its_row(width):
    t = np.random.default_rng(0).normal(size=(3, width)).astype(np.float32)
    np.testing.assert_allclose(native.row_squares(tf.constant(t)), (np.float64(t) ** 2).sum(1), rtol=1e-6)
    for bad in (np.nan, np.inf, 1e30):
        t[1, -1] = bad
        assert np.isfinite(native.row_squares(tf.constant(t))).tolist() == [True, False, True]
