"""The vectorized engine keeps the engine contract, mapped and one contribution at a time."""

import numpy as np
import pytest
import tensorflow as tf

from tests import oracles
from tests.contracts.engine import EngineContract
from tfdpbc.algorithms import BatchGradient
from tfdpbc.gradients.function import Examples, ModelFunction
from tfdpbc.gradients.losses import PerExampleLoss
from tfdpbc.gradients.vectorized import VectorizedEngine


class TestVectorized(EngineContract):
    def engine(self, function, algorithm, s, blocks, num_blocks, k):
        return VectorizedEngine(function, algorithm, s, blocks, num_blocks, contributions_per_pass=k)


@pytest.mark.parametrize("k", [1, 2])
def test_one_at_a_time_and_mapped_are_the_same(k):
    model = oracles.dense_net()
    x, y = oracles.blobs(2)
    function = ModelFunction(model, PerExampleLoss(oracles.LOSS))
    engine = VectorizedEngine(function, BatchGradient(), 1.0, [0] * 4, 1, contributions_per_pass=k)
    examples = Examples(x[:k, None], y[:k, None], None, np.ones((k, 1), bool), np.zeros((k, 0, 2), np.int64))
    contributions = tf.function(lambda: engine.contributions(examples).block_norms())()
    want = [np.linalg.norm(oracles.flat(oracles.example_gradient(model, x[i : i + 1], y[i : i + 1]))) for i in range(k)]
    np.testing.assert_allclose(contributions[:, 0], want, rtol=2e-5)


def test_the_model_is_left_as_it_was():
    model = oracles.dense_net()
    before = [np.array(v) for v in model.variables]
    calls = [layer.call for layer in model.layers]
    x, y = oracles.blobs(3)
    TestVectorized().compute(model, x, y, [[0], [1], [2]])
    for old, new in zip(before, model.variables, strict=True):
        np.testing.assert_array_equal(old, new)
    assert calls == [layer.call for layer in model.layers]
