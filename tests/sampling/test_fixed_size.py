"""Shuffling and subsampling: the law of their arrangements."""

import itertools

import numpy as np
import pytest
from scipy import stats

from tests.sampling.yardsticks import ALARM, chi_square_p, epoch, key, uniform
from tfdpbc.sampling import Shuffling, Subsampling


@pytest.mark.parametrize(("n", "m", "s"), [(4, 2, 1), (5, 1, 2), (5, 2, 2), (3, 1, 3)])
def test_shuffled_epoch_is_a_uniform_arrangement(n, m, s):
    """Every sequence of distinct indices is equally likely: marginals, left-overs, split into contributions, order."""
    sampling, rng = Shuffling(n, m, s), np.random.default_rng(n)
    used = sampling.rounds_per_epoch * m * s
    outcomes = (key(epoch(sampling, rng).indices) for _ in range(4_000))
    assert chi_square_p(outcomes, uniform(itertools.permutations(range(n), used))) > ALARM


def test_shuffled_epochs_are_independent():
    sampling, rng = Shuffling(3, 3, 1), np.random.default_rng(1)
    outcomes = (key(epoch(sampling, rng).indices) + key(epoch(sampling, rng).indices) for _ in range(2_000))
    cells = [a + b for a, b in itertools.product(itertools.permutations(range(3)), repeat=2)]
    assert chi_square_p(outcomes, uniform(cells)) > ALARM


@pytest.mark.parametrize(("n", "m", "s"), [(4, 2, 1), (4, 1, 2), (3, 1, 1)])
def test_subsampled_rounds_are_independent_uniform_arrangements(n, m, s):
    """The joint law of the first two rounds: m s distinct indices in uniform order each, independent of each other."""
    sampling, rng = Subsampling(n, m, s), np.random.default_rng(n)
    outcomes = (key(epoch(sampling, rng).indices[:2]) for _ in range(4_000))
    arrangements = list(itertools.permutations(range(n), m * s))
    cells = [a + b for a, b in itertools.product(arrangements, repeat=2)]
    assert chi_square_p(outcomes, uniform(cells)) > ALARM


def test_subsampled_epochs_are_independent():
    sampling, rng = Subsampling(4, 1, 3), np.random.default_rng(2)
    outcomes = (
        key(np.sort(epoch(sampling, rng).indices)) + key(np.sort(epoch(sampling, rng).indices)) for _ in range(2_000)
    )
    subsets = list(itertools.combinations(range(4), 3))
    assert chi_square_p(outcomes, uniform(a + b for a, b in itertools.product(subsets, repeat=2))) > ALARM


@pytest.mark.parametrize("mistake", ["identity", "first batch reused", "sorted within round", "biased by a sixth"])
def test_chi_square_detects(mistake):
    """The yardstick of the tests above rejects samplers with the usual mistakes, at the same number of trials."""
    rng = np.random.default_rng(0)

    def draw():
        first, second = (rng.permutation(4)[:2] for _ in range(2))
        if mistake == "identity":
            first, second = np.arange(2), np.arange(2)
        elif mistake == "first batch reused":
            second = first
        elif mistake == "sorted within round":
            first, second = np.sort(first), np.sort(second)
        elif rng.random() < 1 / 6:
            first = np.arange(2)
        return key(first) + key(second)

    cells = [a + b for a, b in itertools.product(itertools.permutations(range(4), 2), repeat=2)]
    assert chi_square_p((draw() for _ in range(4_000)), uniform(cells)) < ALARM


def inclusion_p(counts, trials, probability):
    """p-value of how often each of N indices was in `trials` rounds of a fixed size.

    The counts sum to a constant: their covariance is t p (1 - p) on the diagonal and minus that / (N - 1) off it, so
    the statistic below is chi-square with N - 1 degrees of freedom.
    """
    n = len(counts)
    assert counts.sum() == round(trials * n * probability)
    statistic = ((counts - trials * probability) ** 2).sum() / (trials * probability * (1 - probability)) * (n - 1) / n
    return stats.chi2.sf(statistic, n - 1)


@pytest.mark.parametrize("kind", [Shuffling, Subsampling])
def test_every_index_is_equally_likely_in_a_round(kind):
    sampling, rng, n, trials = kind(101, 3, 5), np.random.default_rng(3), 101, 2_000
    rounds = np.concatenate([next(sampling.batches(rng, start=4, rounds_per_chunk=1)).indices for _ in range(trials)])
    counts = np.bincount(rounds.ravel(), minlength=n)
    assert inclusion_p(counts, trials, 15 / n) > ALARM


def test_left_overs_of_a_shuffled_epoch_vary_and_are_uniform():
    """pitfall 11: N not divisible by m s leaves N mod m s examples out, other ones each epoch, all equally likely."""
    sampling, rng, n, trials = Shuffling(31, 2, 4), np.random.default_rng(4), 31, 2_000
    assert sampling.rounds_per_epoch == 3
    left = np.stack([np.setdiff1d(np.arange(n), epoch(sampling, rng).indices) for _ in range(trials)])
    assert left.shape == (trials, 7)
    assert inclusion_p(np.bincount(left.ravel(), minlength=n), trials, 7 / n) > ALARM


def test_overlap_of_subsampled_rounds_is_hypergeometric():
    n, size = 200, 40
    sampling, rng = Subsampling.individual(n, size), np.random.default_rng(5)
    rounds = [epoch(sampling, rng).indices[:2] for _ in range(4_000)]
    overlaps = [min(max(np.intersect1d(a, b).size, 3), 13) for a, b in rounds]  # the tails are pooled
    law = stats.hypergeom(n, size, size)
    cells = {k: law.pmf(k) for k in range(4, 13)} | {3: law.cdf(3), 13: law.sf(12)}
    assert chi_square_p(overlaps, cells) > ALARM


@pytest.mark.parametrize("size", [100, 1_000])
def test_large_data_sets_are_covered_evenly(size):
    """numpy draws small and large shares of a large set by different algorithms: both, at each end of the round."""
    n, trials = 20_000, 300
    sampling, rng = Subsampling.individual(n, size), np.random.default_rng(size)
    rounds = np.concatenate([next(sampling.batches(rng, rounds_per_chunk=1)).indices for _ in range(trials)])[..., 0]
    for positions in (slice(0, 1), slice(-1, None), slice(0, 10)):
        cells = rounds[:, positions].ravel() * 10 // n  # ten rows of one draw are as good as independent at this n
        assert chi_square_p(cells.tolist(), uniform(range(10))) > ALARM


def test_epochs_differ_and_lazy_iteration_does_not_move_the_generator():
    sampling = Subsampling(100, 2, 5)
    rng = np.random.default_rng(0)
    first, second = sampling.batches(rng), sampling.batches(rng)
    late, early = next(second).indices, next(first).indices  # consumed in the opposite order
    again = np.random.default_rng(0)
    np.testing.assert_array_equal(early, epoch(sampling, again).indices)
    np.testing.assert_array_equal(late, epoch(sampling, again).indices)
    assert (early != late).any()


def test_indices_beyond_int32():
    sampling = Subsampling(2**40, 2, 3)
    indices = next(sampling.batches(np.random.default_rng(0), rounds_per_chunk=4)).indices
    assert indices.dtype == np.int64
    assert indices.max() > 2**32
