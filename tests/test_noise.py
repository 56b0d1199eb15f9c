"""Gaussian noise: its law, its independence, its reproducibility, with the C++ operation and without."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfdpbc import native, noise

KEY = tf.constant([3, 4], tf.int64)
built = pytest.mark.skipif(native.operations() is None, reason="the C++ operations were not built (no compiler)")


@pytest.fixture(params=[pytest.param("native", marks=built), "tensorflow"], autouse=True)
def way(request):
    with native.off() if request.param == "tensorflow" else contextlib.nullcontext():
        yield request.param


def drawn(shapes, stddevs, key=KEY):
    """The noise alone."""
    return noise.add_gaussian([tf.zeros(shape) for shape in shapes], stddevs, key)


def test_the_law_is_gaussian_with_the_standard_deviation_asked_for():
    # Kolmogorov-Smirnov at p < 1e-7: false alarm 1e-7 (and the seed is fixed).
    small, large = (np.asarray(t).ravel() for t in drawn([[300, 200], [50_000]], [0.5, 3.0], KEY))
    assert stats.kstest(small / 0.5, "norm").pvalue > 1e-7
    assert stats.kstest(large / 3.0, "norm").pvalue > 1e-7
    assert stats.kstest(small / 0.53, "norm").pvalue < 1e-7  # the test can tell 6 %


def test_variables_and_keys_are_independent():
    # pitfall 6: |correlation| of n independent pairs exceeds 6/sqrt(n) with probability 2e-9.
    a, b = (np.asarray(t) for t in drawn([[40_000], [40_000]], [1.0, 1.0], KEY))
    c = np.asarray(drawn([[40_000]], [1.0], KEY + 1)[0])
    for one, other in ((a, b), (a, c), (b, c), (a[:-1], a[1:])):
        assert abs(np.corrcoef(one, other)[0, 1]) < 6 / np.sqrt(40_000)


def test_a_key_gives_its_noise_again_in_graph_and_eagerly():
    eager = drawn([[3, 2], []], [1.0, 2.0], KEY)
    graph = tf.function(lambda key: drawn([[3, 2], []], [1.0, 2.0], key))(KEY)
    for one, other in zip(eager, graph, strict=True):
        np.testing.assert_array_equal(one, other)
    assert [t.shape for t in eager] == [(3, 2), ()]
    assert all(t.dtype == tf.float32 for t in eager)


def test_zero_standard_deviation_is_exact_zero():
    first, second = drawn([[4], [4]], [0.0, 1.0], KEY)
    assert not np.any(first) and np.all(np.asarray(second) != 0)


def test_lengths_must_agree():
    with pytest.raises(ValueError):
        drawn([[4], [4]], [1.0])


def test_the_sum_is_noised_and_then_divided():
    sums = [tf.constant([[1.0, -2.0, 3.0]]), tf.constant(5.0)]
    plain = drawn([[1, 3], []], [0.5, 2.0])
    for noised, t, z in zip(noise.add_gaussian(sums, [0.5, 2.0], KEY, divisor=4), sums, plain, strict=True):
        np.testing.assert_allclose(noised, (t + z) / 4, rtol=1e-6)
    for t, same in zip(sums, noise.add_gaussian(sums, [0.0, 0.0], KEY), strict=True):
        np.testing.assert_array_equal(t, same)


def test_the_bits_are_those_of_philox_and_the_numbers_those_of_box_and_muller():
    """In double precision from the generator's words; the sines of all pairs come first."""
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=KEY)
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(shape=[8], key=key, counter=counter, alg=1, dtype=tf.uint32)
    first, second = np.float64(words).reshape(4, 2).T / 2**32
    radius, angle = np.sqrt(-2 * np.log(first + 2**-33)), 2 * np.pi * second
    want = np.concatenate([radius * np.sin(angle), radius * np.cos(angle)])
    np.testing.assert_allclose(drawn([[8]], [1.0])[0], want, atol=3e-6)


def test_the_tails_are_there():
    """Of 4 million numbers about 4e6 * 5.7e-7 = 2.3 lie beyond 5; none has probability .1, more than 20 below 1e-12."""
    beyond = np.abs(np.asarray(drawn([[4_000_000]], [1.0])[0]))
    assert 0 < np.sum(beyond > 4.5) < 80  # 27 expected: 0 has probability 2e-12, 80 or more below 1e-15
    assert np.sum(beyond > 5) <= 20
    assert np.all(np.isfinite(beyond))
