"""The contract of gradient engines; tests/gradients/test_<engine>.py inherits it for each of them."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import oracles
from tfdpbc.algorithms import BatchGradient
from tfdpbc.gradients.function import Examples, ModelFunction, seed_generators
from tfdpbc.gradients.losses import PerExampleLoss


class EngineContract:
    """Every engine gives block norms and weighted sums of the contributions, however it holds them.

    Subclasses give `engine(function, algorithm, s, block_of_variable, num_blocks, k)`.
    """

    def engine(self, *arguments):
        raise NotImplementedError

    def compute(self, model, x, y, groups, weights=None, blocks=None, loss=oracles.LOSS, mask=None, seeds=None):
        """(norms [k, L], weighted sum) of the groups of examples, inside a graph."""
        blocks = blocks or [0] * len(model.trainable_variables)
        function = ModelFunction(model, PerExampleLoss(loss))
        indices = np.asarray(groups)
        k, s = indices.shape
        engine = self.engine(function, BatchGradient(), float(s), blocks, max(blocks) + 1, k)
        mask = np.ones((k, s), bool) if mask is None else mask
        seeds = np.zeros((k, function.num_generators, 2), np.int64) if seeds is None else seeds
        weights = np.ones((k, max(blocks) + 1), np.float32) if weights is None else weights

        @tf.function
        def run(x, y, mask, seeds, weights):
            contributions = engine.contributions(Examples(x, y, None, mask, seeds))
            return contributions.block_norms(), contributions.weighted_sum(weights)

        gathered = [tf.constant(t[indices]) for t in (x, y)]
        norms, total = run(*gathered, tf.constant(mask), tf.constant(seeds), tf.constant(weights, tf.float32))
        return norms.numpy(), [t.numpy() for t in total]

    @pytest.mark.parametrize("groups", [[[0], [1], [2], [3], [4]], [[0, 1, 2], [3, 4, 5]], [[0, 1, 2, 3]]], ids=str)
    @pytest.mark.parametrize("net", ["dense_net", "conv_net"])
    def test_norms_and_sums_are_those_of_a_loop(self, net, groups):
        model = getattr(oracles, net)()
        x, y = oracles.blobs(6, model.input_shape[1:])
        weights = np.linspace(0.2, 1.0, len(groups), dtype=np.float32)[:, None]
        norms, total = self.compute(model, x, y, groups, weights)
        each = [oracles.flat(oracles.example_gradient(model, x[g], y[g])) for g in groups]
        np.testing.assert_allclose(norms[:, 0], [np.linalg.norm(g) for g in each], rtol=2e-5)
        want = sum(w * g for w, g in zip(weights[:, 0], each, strict=True))
        np.testing.assert_allclose(oracles.flat(total), want, atol=2e-5 * np.linalg.norm(want))

    def test_blocks_have_their_own_norms_and_weights(self):
        model = oracles.dense_net()
        x, y = oracles.blobs(3)
        weights = np.array([[1, 0.5], [0, 2], [3, 1]], np.float32)
        norms, total = self.compute(model, x, y, [[0], [1], [2]], weights, blocks=[0, 0, 1, 1])
        each = [oracles.example_gradient(model, x[i : i + 1], y[i : i + 1]) for i in range(3)]
        for block, part in ((0, slice(0, 2)), (1, slice(2, 4))):
            flat = [oracles.flat(g[part]) for g in each]
            np.testing.assert_allclose(norms[:, block], [np.linalg.norm(f) for f in flat], rtol=2e-5)
            want = sum(w * f for w, f in zip(weights[:, block], flat, strict=True))
            np.testing.assert_allclose(oracles.flat(total[part]), want, atol=2e-5 * np.linalg.norm(want))

    @pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
    def test_a_contribution_without_weight_adds_nothing_even_if_not_finite(self, bad):
        """pitfall 13: one NaN or inf example gives the sum of the others."""
        model = oracles.dense_net()
        x, y = oracles.blobs(3)
        _, want = self.compute(model, x, y, [[0], [2]])
        x[1] = bad
        norms, got = self.compute(model, x, y, [[0], [1], [2]], np.array([[1], [0], [1]], np.float32))
        np.testing.assert_allclose(oracles.flat(got), oracles.flat(want), rtol=1e-5, atol=1e-7)
        assert np.isfinite(norms[[0, 2]]).all()

    def test_a_zero_gradient_has_norm_zero(self):
        """pitfall 13: zero norm is not NaN."""
        model = oracles.dense_net()
        x, y = oracles.blobs(2)
        norms, total = self.compute(model, x, y, [[0], [1]], loss=lambda y, p: 0.0 * tf.reduce_sum(p, -1))
        assert (norms == 0).all() and all((t == 0).all() for t in total)

    def test_masked_examples_change_nothing(self):
        """pitfall 13: padding rows filled with 1e6 change nothing."""
        model = oracles.dense_net()
        x, y = oracles.blobs(4)
        mask = np.array([[True, True], [True, False]])
        norms, total = self.compute(model, x, y, [[0, 1], [2, 3]], mask=mask)
        x[3] = 1e6
        norms2, total2 = self.compute(model, x, y, [[0, 1], [2, 3]], mask=mask)
        np.testing.assert_array_equal(norms, norms2)
        np.testing.assert_array_equal(oracles.flat(total), oracles.flat(total2))
        # The divisor is the planned s = 2, not the one example that is there.
        alone = oracles.flat(oracles.example_gradient(model, x[2:3], y[2:3])) / 2
        np.testing.assert_allclose(norms[1, 0], np.linalg.norm(alone), rtol=2e-5)

    def test_an_unused_weight_has_gradient_zero(self):
        inputs = keras.Input((6,))
        unused = keras.layers.Dense(2, name="unused")
        model = keras.Model(inputs, keras.layers.Dense(3)(inputs) + 0 * keras.ops.sum(unused(inputs)))
        x, y = oracles.blobs(2)
        norms, total = self.compute(model, x, y, [[0], [1]])
        assert np.isfinite(norms).all()
        position = [v.path.startswith("unused") for v in model.trainable_variables].index(True)
        assert (total[position] == 0).all()

    def test_a_shared_layer_sums_its_uses(self):
        inputs = keras.Input((6,))
        shared = keras.layers.Dense(6, "tanh")
        model = keras.Model(inputs, keras.layers.Dense(3)(shared(shared(inputs))))
        x, y = oracles.blobs(3)
        norms, _ = self.compute(model, x, y, [[0], [1], [2]])
        each = [oracles.flat(oracles.example_gradient(model, x[i : i + 1], y[i : i + 1])) for i in range(3)]
        np.testing.assert_allclose(norms[:, 0], [np.linalg.norm(g) for g in each], rtol=2e-5)

    def test_a_repeated_embedding_index_counts_as_the_summed_row(self):
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                keras.layers.Embedding(5, 3),
                keras.layers.Flatten(),
                keras.layers.Dense(2),
            ]
        )
        x, y = np.array([[1, 1, 1, 2], [0, 1, 2, 3]], np.int32), np.array([0, 1])
        norms, total = self.compute(model, x, y, [[0], [1]])
        each = [oracles.flat(oracles.example_gradient(model, x[i : i + 1], y[i : i + 1])) for i in range(2)]
        np.testing.assert_allclose(norms[:, 0], [np.linalg.norm(g) for g in each], rtol=2e-5)
        np.testing.assert_allclose(oracles.flat(total), sum(each), atol=1e-6)

    def test_dropout_is_independent_per_contribution_and_reproducible(self):
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5), keras.layers.Dense(3)])
        x, y = np.ones((2, 64), np.float32), np.zeros(2, np.int64)
        assert len(seed_generators(model)) == 1
        seeds = np.random.default_rng(0).integers(0, 2**62, (2, 1, 2))
        # Which inputs were kept shows in which rows of the kernel's gradient are zero: two equal draws of 64 coins
        # happen by chance with probability 2^-64.
        first, second, again = (self._kept(model, x, y, [[0], [1]], i, seeds) for i in (0, 1, 1))
        assert 0 < sum(first) < 64 and first != second == again

    def _kept(self, model, x, y, groups, chosen, seeds):
        weights = np.zeros((len(groups), 1), np.float32)
        weights[chosen] = 1
        _, total = self.compute(model, x, y, groups, weights, seeds=seeds)
        return tuple((total[0] != 0).any(axis=1))

    def test_float16_models_keep_norms_and_sums_in_float32(self):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, dtype="mixed_float16")])
        x, y = oracles.blobs(3)
        norms, total = self.compute(model, 100 * x, y, [[0], [1], [2]])
        assert norms.dtype == np.float32 and all(t.dtype == np.float32 for t in total)
        assert np.isfinite(norms).all()
