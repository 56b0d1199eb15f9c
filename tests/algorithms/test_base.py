"""Inner algorithms: BatchGradient, and any callable that keeps the protocol."""

import keras
import numpy as np
import tensorflow as tf

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import N, one_round, private, weights
from tfdpbc.algorithms import Algorithm, BatchGradient


def test_penalties_are_part_of_each_contribution():
    x, y = oracles.blobs(4)
    net = oracles.dense_net(kernel_regularizer=keras.regularizers.L2(0.1))
    model = private(dp.Shuffling(4, 2, 2), net, norm=1e9)
    before = weights(model)
    one_round(model, x, y, [[0, 1], [2, 3]])
    moved = [old - new for old, new in zip(before, weights(model), strict=True)]
    want = oracles.example_gradient(oracles.dense_net(), x, y)
    want[0] = want[0] + 0.2 * before[0]
    np.testing.assert_allclose(oracles.flat(moved), oracles.flat(want), atol=1e-6)


def test_a_users_algorithm_is_clipped_like_any_other():
    def sign(function, weights, batch, examples):
        """A contribution that knows nothing of norms."""
        gradient, evaluation = BatchGradient()(function, weights, batch, examples)
        return [100.0 * tf.sign(g) for g in gradient], evaluation

    assert isinstance(sign, Algorithm) and isinstance(BatchGradient(), Algorithm)
    x, y = oracles.blobs(N)
    model = private(dp.Shuffling(N, 6, 1), norm=0.5, algorithm=sign)
    before = oracles.flat(weights(model))
    one_round(model, x, y, np.arange(6)[:, None])
    assert np.linalg.norm(oracles.flat(weights(model)) - before) <= 0.5 * (1 + 1e-5)
