"""Balls-in-bins: each example in exactly one round of each epoch, independently and uniformly."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tests.sampling.yardsticks import ALARM, chi_square_p, epoch, key, uniform
from tfdpbc.sampling import BallsInBins, Poisson


def picks(sampling, rng, n):
    """The round that each example joined."""
    indices, mask = epoch(sampling, rng, n)
    rounds = np.nonzero(mask)[0]
    assert sorted(indices[mask].tolist()) == list(range(n)), "an example must join exactly one round"
    return rounds[np.argsort(indices[mask])]


@pytest.mark.parametrize(("n", "rounds"), [(4, 3), (6, 2), (2, 5)])
def test_every_assignment_is_equally_likely(n, rounds):
    """The joint law of all picks: uniform, and independent between examples."""
    sampling, rng = BallsInBins(rounds, 2), np.random.default_rng(n)
    outcomes = (key(picks(sampling, rng, n)) for _ in range(4_000))
    assert chi_square_p(outcomes, uniform(itertools.product(range(rounds), repeat=n))) > ALARM


def test_epochs_are_independent():
    sampling, rng = BallsInBins(3, 1), np.random.default_rng(1)
    outcomes = (key(picks(sampling, rng, 2)) + key(picks(sampling, rng, 2)) for _ in range(4_000))
    assert chi_square_p(outcomes, uniform(itertools.product(range(3), repeat=4))) > ALARM


def test_order_within_a_round_tells_nothing():
    """All three examples in one round, in uniform order: a fixed order would tie padding and passes to positions."""
    sampling, rng = BallsInBins(1, 3), np.random.default_rng(2)
    outcomes = (key(epoch(sampling, rng, 3).indices[0, :3, 0]) for _ in range(2_000))
    assert chi_square_p(outcomes, uniform(itertools.permutations(range(3)))) > ALARM


def test_chi_square_detects_sizes_that_are_not_random():
    """Rounds of equal size (a shuffled epoch) are no balls in bins: the yardstick above rejects them."""
    rng = np.random.default_rng(0)
    outcomes = (key(rng.permutation(np.repeat(np.arange(2), 3))) for _ in range(4_000))
    assert chi_square_p(outcomes, uniform(itertools.product(range(2), repeat=6))) < ALARM


def test_sizes_are_multinomial():
    """Mean and variance of the sizes, and the covariance −N/T² between rounds that their fixed sum implies."""
    n, rounds, trials = 5_000, 50, 300
    sampling, rng = BallsInBins(rounds, 100), np.random.default_rng(3)
    sizes = np.stack([epoch(sampling, rng, n).mask.sum((1, 2)) for _ in range(trials)])
    assert (sizes.sum(axis=1) == n).all()
    # Pearson's statistic of one epoch is chi-square with T − 1 degrees of freedom; their sum over epochs adds up.
    statistic = ((sizes - n / rounds) ** 2 / (n / rounds)).sum()
    law = stats.chi2(trials * (rounds - 1))
    assert min(law.cdf(statistic), law.sf(statistic)) > ALARM
    assert stats.chi2.sf(((sizes.mean(axis=0) - 100) ** 2 / 100).sum() * trials, rounds - 1) > ALARM


def test_large_data_sets_are_picked_in_pieces():
    """More examples than are drawn at once (2**20): still everybody, once, and evenly."""
    n, rounds = 2**20 + 12_345, 16
    indices, mask = epoch(BallsInBins(rounds, 70_000), np.random.default_rng(4), n)
    seen = indices[mask]
    assert np.array_equal(np.sort(seen), np.arange(n))
    halves = np.array(
        [[(x < n // 2).sum(), (x >= n // 2).sum()] for x in (i[m] for i, m in zip(indices, mask, strict=True))]
    )
    expected = np.array([n // 2, n - n // 2]) / rounds
    assert stats.chi2.sf(((halves - expected) ** 2 / expected).sum(), 2 * (rounds - 1)) > ALARM


def test_a_round_is_never_cut():
    """pitfall 10: rounds larger than planned come in larger arrays, empty ones are rounds of padding."""
    sampling = BallsInBins(2, 1)
    indices, mask = epoch(sampling, np.random.default_rng(0), 100)
    assert indices.shape[1] > sampling.shape[0]
    assert sorted(indices[mask].tolist()) == list(range(100))
    sampling = BallsInBins(50, 8)
    indices, mask = epoch(sampling, np.random.default_rng(0), 3)
    assert indices.shape == (50, *sampling.shape)
    assert (~mask.any(axis=(1, 2))).sum() >= 47


def test_shapes_are_those_of_poisson_rounds_of_the_same_expected_size():
    assert BallsInBins(20, 64).shape == Poisson(0.05, 20, 64).shape


@pytest.mark.parametrize(("n", "batch_size"), [(100, 7), (100, 10), (15, 8), (7, 7)])
def test_individual_keeps_the_expected_size_at_most_the_batch_size(n, batch_size):
    sampling = BallsInBins.individual(n, batch_size)
    assert sampling == BallsInBins(math.ceil(n / batch_size), batch_size)
    assert n / sampling.rounds_per_epoch <= batch_size == sampling.divisor
