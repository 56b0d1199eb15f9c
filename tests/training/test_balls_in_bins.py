"""Training under balls-in-bins sampling: every example once per epoch, rounds of every size, the planned divisor."""

import numpy as np
import pytest
import tensorflow as tf
from keras import Input, Sequential, callbacks, layers

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import N, private, weights
from tfdpbc.accounting.balls_in_bins import balls_in_bins, lower_bound

X, Y = oracles.blobs(N)


def linear_net():
    return Sequential([Input((6,)), layers.Dense(1, use_bias=False, kernel_initializer="zeros")])


class Stop(callbacks.Callback):
    """Stops after a number of rounds."""

    def __init__(self, rounds):
        super().__init__()
        self.left = rounds

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            self.model.stop_training = True


def output(y, outputs):
    """The gradient of an example is the example, whatever the weights."""
    return tf.reduce_sum(outputs, axis=-1)


@pytest.mark.parametrize("sampling", [dp.BallsInBins(4, 6), dp.BallsInBins(1, 6), dp.BallsInBins(7, 1)], ids=repr)
@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_an_epoch_sums_every_example_once_over_the_planned_size(sampling, steps_per_execution):
    """Whatever the assignment, larger and empty rounds included (pitfalls 2, 10)."""
    model = private(sampling, linear_net(), norm=1e9, loss=output, epochs=2, steps_per_execution=steps_per_execution)
    model.fit(X, Y, verbose=0)
    want = -2 * X.sum(axis=0, dtype=np.float64) / sampling.expected_size
    np.testing.assert_allclose(oracles.flat(weights(model)), want, rtol=1e-4, atol=1e-4)
    assert model.spent.rounds == 2 * sampling.rounds_per_epoch


def test_examples_are_clipped_one_by_one():
    model = private(dp.BallsInBins(3, 8), linear_net(), norm=0.5, loss=output, epochs=1)
    model.fit(X, Y, verbose=0)
    clipped = X * np.minimum(1, 0.5 / np.linalg.norm(X, axis=1))[:, None]
    np.testing.assert_allclose(oracles.flat(weights(model)), -clipped.sum(axis=0) / 8, rtol=1e-4, atol=1e-5)


def test_noise_is_that_of_add_remove():
    """One clipping norm, not two, over the planned size: the std of 9,000 numbers, to 6 of its deviations (1e-8)."""
    net = Sequential([Input((6,)), layers.Dense(1500, use_bias=False)])
    model = private(
        dp.BallsInBins(4, 6), net, norm=0.3, noise=1.7, epochs=1, loss=lambda y, outputs: 0.0 * output(y, outputs)
    )
    before = oracles.flat(weights(model))
    model.fit(X, Y, verbose=0)
    moved = oracles.flat(weights(model)) - before
    assert moved.std() == pytest.approx(np.sqrt(4) * 1.7 * 0.3 / 6, rel=6 / np.sqrt(2 * moved.size))


def test_the_model_states_what_the_accountant_says():
    model = private(dp.BallsInBins(4, 6), noise=0.8, epochs=3)
    model.fit(X, Y, epochs=2, verbose=0)
    spent = model.spent.epsilon(1e-5)
    assert spent == balls_in_bins(4, 0.8, 2).epsilon(1e-5)
    assert lower_bound(4, 0.8, 2, 1e-5) <= spent < model.plan.epsilon(1e-5)
    # A broken-off epoch counts as a whole.
    assert model.plan.spent(5).epsilon(1e-5) == spent


@pytest.mark.parametrize("stop", [1, 5])
def test_pitfall_14_a_stopped_epoch_is_entered_again_with_the_same_picks(stop):
    """pitfall 14: stopping within an epoch and fitting on in the same process gives what one run gives."""
    whole = private(dp.BallsInBins(4, 6), noise=1.0, epochs=2)
    whole.fit(X, Y, verbose=0)
    parts = private(dp.BallsInBins(4, 6), noise=1.0, epochs=2)
    parts.fit(X, Y, verbose=0, callbacks=[Stop(stop)])
    assert parts.spent.rounds == stop
    parts.fit(X, Y, verbose=0)
    np.testing.assert_allclose(oracles.flat(weights(parts)), oracles.flat(weights(whole)), atol=1e-6)


def test_pitfall_14_an_epoch_cut_by_a_restart_counts_as_a_whole(tmp_path):
    """pitfall 14: its picks are gone with the process; new ones could use an example twice in the epoch."""
    first = private(dp.BallsInBins(4, 6), noise=1.0, epochs=3, seed=None)
    first.fit(X, Y, verbose=0, callbacks=[Stop(5)])
    first.save_checkpoint(tmp_path / "state")
    second = private(dp.BallsInBins(4, 6), noise=1.0, epochs=3, seed=None)
    second.load_checkpoint(tmp_path / "state")
    before = oracles.flat(weights(second))
    with pytest.warns(UserWarning, match="cannot be resumed"):
        second.fit(X, Y, epochs=1, verbose=0)  # what is left of the second epoch
    assert second.spent.rounds == 8
    np.testing.assert_array_equal(oracles.flat(weights(second)), before)
    second.fit(X, Y, verbose=0)
    assert second.spent.rounds == 12
