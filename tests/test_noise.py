"""Gaussian noise: its law, its independence, its reproducibility."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from tfdpbc import noise

KEY = tf.constant([3, 4], tf.int64)


def test_the_law_is_gaussian_with_the_standard_deviation_asked_for():
    # Kolmogorov-Smirnov at p < 1e-7: false alarm 1e-7 (and the seed is fixed).
    small, large = (np.asarray(t).ravel() for t in noise.gaussian([[300, 200], [50_000]], [0.5, 3.0], KEY))
    assert stats.kstest(small / 0.5, "norm").pvalue > 1e-7
    assert stats.kstest(large / 3.0, "norm").pvalue > 1e-7
    assert stats.kstest(small / 0.53, "norm").pvalue < 1e-7  # the test can tell 6 %


def test_variables_and_keys_are_independent():
    # pitfall 6: |correlation| of n independent pairs exceeds 6/sqrt(n) with probability 2e-9.
    a, b = (np.asarray(t) for t in noise.gaussian([[40_000], [40_000]], [1.0, 1.0], KEY))
    c = np.asarray(noise.gaussian([[40_000]], [1.0], KEY + 1)[0])
    for one, other in ((a, b), (a, c), (b, c), (a[:-1], a[1:])):
        assert abs(np.corrcoef(one, other)[0, 1]) < 6 / np.sqrt(40_000)


def test_a_key_gives_its_noise_again_in_graph_and_eagerly():
    eager = noise.gaussian([[3, 2], []], [1.0, 2.0], KEY)
    graph = tf.function(lambda key: noise.gaussian([[3, 2], []], [1.0, 2.0], key))(KEY)
    for one, other in zip(eager, graph, strict=True):
        np.testing.assert_array_equal(one, other)
    assert [t.shape for t in eager] == [(3, 2), ()]
    assert all(t.dtype == tf.float32 for t in eager)


def test_zero_standard_deviation_is_exact_zero():
    first, second = noise.gaussian([[4], [4]], [0.0, 1.0], KEY)
    assert not np.any(first) and np.all(np.asarray(second) != 0)


def test_lengths_must_agree():
    with pytest.raises(ValueError):
        noise.gaussian([[4], [4]], [1.0], KEY)
