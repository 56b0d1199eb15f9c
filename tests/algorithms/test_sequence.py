"""The algorithm of a round is picked by its public place in the epoch."""

import numpy as np
import pytest
import tensorflow as tf

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import N, one_round, private, weights
from tfdpbc.algorithms import AlgorithmSequence, BatchGradient, LocalOptimizer, PostProcessed, from_config


def constant(value):
    """A contribution that shows which algorithm computed it."""

    def algorithm(function, weights, batch, examples):
        _, evaluation = BatchGradient()(function, weights, batch, examples)
        return [tf.fill(w.shape, value) for w in weights], evaluation

    return algorithm


def test_the_sequence_is_cycled_over_each_epoch():
    sequence = AlgorithmSequence([constant(1.0), constant(2.0), constant(3.0)], rounds=[2, 1, 3])
    want = [0, 0, 1, 2, 2, 2, 0, 0, 1, 2]
    assert [sequence.index(b) for b in range(10)] == want
    assert [int(sequence.index(tf.constant(b, tf.int64))) for b in range(10)] == want
    assert [AlgorithmSequence([constant(1.0)] * 2).index(b) for b in range(4)] == [0, 1, 0, 1]


@pytest.mark.parametrize("sampling", [dp.Shuffling(N, 2, 2), dp.Shuffling(N, 1, 4)], ids=["mapped", "single"])
def test_each_round_runs_its_algorithm_and_epochs_begin_anew(sampling):
    """6 rounds an epoch: 1 2 2 1 2 2; a sequence that ran on would differ in the second epoch of a 5-cycle."""
    sequence = AlgorithmSequence([constant(1.0), constant(2.0), constant(4.0)], rounds=[1, 2, 1])
    x, y = oracles.blobs(N)
    model = private(sampling, norm=1e9, algorithm=sequence, epochs=2)
    steps = []
    for number in range(12):
        before = weights(model)
        one_round(model, x, y, np.arange(4).reshape(sampling.shape), round_index=number)
        moved = np.unique(np.round(oracles.flat(before) - oracles.flat(weights(model)), 4))
        assert len(moved) == 1
        steps.append(moved[0])
    assert steps == [1, 2, 2, 4, 1, 2] * 2


def test_fit_with_a_sequence_is_one_round_of_each():
    """Two rounds an epoch: the first by one algorithm, the second by the other, from what the first left."""
    sampling = dp.Shuffling(N, 1, 12)
    first, second = BatchGradient(), LocalOptimizer("sgd", 0.1, 2, 12)
    x, y = oracles.blobs(N)
    model = private(sampling, algorithm=AlgorithmSequence([first, second]), epochs=1, steps_per_execution=2)
    (drawn,) = sampling.batches(model.streams.generator("sampling", 0), num_examples=N)
    model.fit(x, y, verbose=0)
    hand = oracles.dense_net()
    for groups, algorithm in zip(drawn.indices, (first, second), strict=True):
        one_round(private(sampling, hand, algorithm=algorithm, engine="vectorized"), x, y, groups)
    np.testing.assert_allclose(oracles.flat(weights(model)), oracles.flat(weights(hand)), atol=1e-5)


def test_bad_sequences_are_refused_by_name():
    good = BatchGradient()
    for algorithms in ([], good, [good, "sgd"], [AlgorithmSequence([good])], [BatchGradient]):
        with pytest.raises((TypeError, ValueError), match="algorithms must be a list of"):
            AlgorithmSequence(algorithms)
    with pytest.raises(ValueError, match="rounds must be a list of 1 numbers"):
        AlgorithmSequence([good], rounds=[1, 2])
    with pytest.raises(ValueError, match="rounds must be an integer >= 1"):
        AlgorithmSequence([good], rounds=[0])


def test_configurations():
    sequence = AlgorithmSequence([BatchGradient(), LocalOptimizer("adam", 0.1)], rounds=[3, 1])
    assert repr(from_config(sequence.to_config())) == repr(sequence)
    model = private(dp.Shuffling(N, 3, 2), algorithm=sequence)
    assert repr(dp.PrivateModel.from_config(model.get_config()).algorithm) == repr(sequence)
    own = AlgorithmSequence([PostProcessed(BatchGradient(), lambda a: a, 1.0)])
    with pytest.raises(NotImplementedError, match="cannot be serialised"):
        private(dp.Shuffling(N, 3, 2), algorithm=own).get_config()
