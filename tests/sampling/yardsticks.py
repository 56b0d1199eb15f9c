"""What the statistical tests of the samplings share.

They compare the whole joint distribution of tiny cases with the enumerated one (every arrangement is a cell of a
chi-square test), and marginals and moments of larger cases. Each asks for a p-value above 1e-8: the 40 or so p-values
of this folder together raise a false alarm with probability below 1e-6, and the seeds are fixed anyway.
`test_chi_square_detects` shows that the yardstick rejects samplers with the mistakes one would make.
"""

import math

import numpy as np
from scipy import stats

from tfdpbc.sampling import Batch

ALARM = 1e-8


def epoch(sampling, rng, num_examples=None, **options):
    """All rounds of an epoch in one pair of arrays; the chunks must have the same m and s."""
    batches = list(sampling.batches(rng, num_examples=num_examples, **options))
    return Batch(np.concatenate([b.indices for b in batches]), np.concatenate([b.mask for b in batches]))


def chi_square_p(outcomes, probabilities):
    """The p-value of independent `outcomes` (hashable) under `probabilities` (outcome -> probability, complete)."""
    assert math.isclose(sum(probabilities.values()), 1.0)
    counts = dict.fromkeys(probabilities, 0)
    for outcome in outcomes:
        counts[outcome] += 1  # an outcome that cannot occur is a KeyError
    observed = np.array(list(counts.values()), float)
    expected = np.array(list(probabilities.values())) * observed.sum()
    assert expected.min() >= 5, "too few trials for the chi-square approximation"
    return stats.chi2.sf(((observed - expected) ** 2 / expected).sum(), len(expected) - 1)


def uniform(outcomes):
    outcomes = list(outcomes)
    return dict.fromkeys(outcomes, 1 / len(outcomes))


def key(array):
    return tuple(array.ravel().tolist())
