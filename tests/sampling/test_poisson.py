"""Poisson sampling: the law of its coins, and rounds of every size."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from tests.sampling.yardsticks import ALARM, chi_square_p, epoch, key
from tfdpbc.sampling import Poisson


def poisson_state(sampling, n, batch):
    """For each round and example the contribution it joined (0 for all in individual mode), or -1."""
    state = np.full((len(batch.indices), n), -1)
    rounds, rows, columns = np.nonzero(batch.mask)
    state[rounds, batch.indices[rounds, rows, columns]] = 0 if sampling.is_individual else rows
    assert (state >= 0).sum() == batch.mask.sum(), "an example joined a round twice"
    return state


@pytest.mark.parametrize(("n", "rounds", "contributions"), [(4, 2, None), (3, 1, 2), (2, 2, 2), (6, 1, 1)])
def test_poisson_coins_are_independent_and_of_the_right_probability(n, rounds, contributions):
    """Inclusion probability, independence (pairwise and all higher) of examples and rounds, uniform choice of group."""
    rate, trials = 0.4, 8_000
    sampling = Poisson(rate, rounds, 2, contributions)
    rng = np.random.default_rng(n)
    outcomes = (key(poisson_state(sampling, n, epoch(sampling, rng, n))) for _ in range(trials))
    groups = 1 if contributions is None else contributions
    one = {-1: 1 - rate, **dict.fromkeys(range(groups), rate / groups)}
    cells = {c: math.prod(one[x] for x in c) for c in itertools.product(one, repeat=n * rounds)}
    assert chi_square_p(outcomes, cells) > ALARM


@pytest.mark.parametrize("contributions", [None, 8])
def test_poisson_count_has_the_binomial_law(contributions):
    """Mean and variance of the realised size, and no dependence of the groups' sizes on each other."""
    n, rate, trials = 5_000, 0.02, 3_000
    sampling, rng = Poisson(rate, trials, 100, contributions), np.random.default_rng(6)
    mask = epoch(sampling, rng, n).mask
    counts = mask.sum((1, 2))
    law = stats.binom(n, rate)
    # Normal approximations: the mean of 3,000 counts, their variance (relative sd sqrt(2/3,000)); |z| < 5.7 is 1e-8.
    assert abs(counts.mean() - law.mean()) < 5.7 * law.std() / math.sqrt(trials)
    assert abs(counts.var() / law.var() - 1) < 5.7 * math.sqrt(2 / trials)
    if contributions:
        sizes = mask.sum(2)
        each = stats.binom(n, rate / contributions)
        assert np.abs(sizes.mean(0) - each.mean()).max() < 5.9 * each.std() / math.sqrt(trials)
        correlation = np.corrcoef(sizes.T)[np.triu_indices(contributions, 1)]
        assert np.abs(correlation).max() < 6.3 / math.sqrt(trials)  # 28 pairs


def test_empty_poisson_rounds_are_rounds():
    """pitfall 10: a round that nobody joined comes with its planned shape, all of it padding, and counts."""
    for contributions in (None, 3):
        sampling = Poisson(1e-12, 5, 8, contributions)
        indices, mask = epoch(sampling, np.random.default_rng(0), 10)
        assert indices.shape == (5, *sampling.shape)
        assert not mask.any()
        assert not indices.any()


@pytest.mark.parametrize("contributions", [None, 1, 2])
def test_poisson_never_truncates(contributions):
    """Everybody joins although the plan expected 2: the arrays grow instead of dropping examples."""
    indices, mask = epoch(Poisson(1.0, 3, 2, contributions), np.random.default_rng(0), 100)
    for round_indices, round_mask in zip(indices, mask, strict=True):
        assert sorted(round_indices[round_mask].tolist()) == list(range(100))


def test_group_capacity_covers_all_groups_together():
    sampling = Poisson(0.01, 10, 640, 64)
    assert 64 * stats.poisson.sf(sampling.shape[1], 10) < 1e-12
