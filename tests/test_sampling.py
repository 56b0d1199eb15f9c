"""Shuffling, Subsampling, Poisson.

The statistical tests compare the whole joint distribution of tiny cases with the enumerated one (every arrangement is a
cell of a chi-square test), and marginals and moments of larger cases. Each asks for a p-value above 1e-8: the 30 or so
p-values of this file together raise a false alarm with probability below 1e-6, and the seeds are fixed anyway.
`test_chi_square_detects` shows that the yardstick rejects samplers with the mistakes one would make.
"""

import dataclasses
import itertools
import json
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tfdpbc.sampling import CHUNK_ENTRIES, Batch, Poisson, Shuffling, Subsampling, capacity, from_config

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


# --- the whole distribution of tiny cases ---------------------------------------------------------------------------


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


# --- larger cases ---------------------------------------------------------------------------------------------------


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


# --- shapes, padding, resuming (property tests) ---------------------------------------------------------------------

fixed = st.tuples(
    st.sampled_from([Shuffling, Subsampling]), st.integers(1, 5), st.integers(1, 5), st.integers(0, 40)
).map(lambda t: t[0](t[1] * t[2] + t[3], t[1], t[2]))
poisson = st.builds(
    lambda rate, rounds, m, per: Poisson(rate, rounds, (m or 1) * per, m),
    st.floats(1e-3, 1.0),
    st.integers(1, 7),
    st.none() | st.integers(1, 4),
    st.integers(1, 9),
)
samplings = fixed | poisson
seeds = st.integers(0, 2**32)


def size_of(sampling):
    return getattr(sampling, "num_examples", 50)


@given(samplings, seeds)
def test_every_round_is_sound(sampling, seed):
    n = size_of(sampling)
    batches = list(sampling.batches(np.random.default_rng(seed), num_examples=n, rounds_per_chunk=2))
    assert sum(len(b.indices) for b in batches) == sampling.rounds_per_epoch
    seen = []
    for indices, mask in batches:
        assert indices.shape == mask.shape
        assert indices.dtype == np.int32
        assert mask.dtype == bool
        assert mask.all() or sampling.masked
        assert ((indices >= 0) & (indices < n)).all()
        rooms = zip(indices.shape[1:], sampling.shape, strict=True)
        assert all(got == planned or (sampling.masked and got > planned and got % 8 == 0) for got, planned in rooms)
        assert (mask[..., 1:] <= mask[..., :-1]).all(), "padding before a valid entry of its contribution"
        if sampling.is_individual:
            assert (mask[:, 1:] <= mask[:, :-1]).all(), "an empty contribution before a filled one"
        first = np.where(mask[..., :1], indices[..., :1], 0)
        assert (indices == np.where(mask, indices, first)).all(), "padding must repeat its contribution's first index"
        for round_indices, round_mask in zip(indices, mask, strict=True):
            valid = round_indices[round_mask]
            assert len(set(valid.tolist())) == len(valid)
            seen.extend(valid.tolist())
    if sampling.name == "shuffling":
        assert len(set(seen)) == len(seen) == n - n % math.prod(sampling.shape)


@given(samplings, seeds, st.data())
def test_start_gives_the_tail_of_the_epoch_whatever_the_chunks(sampling, seed, data):
    n = size_of(sampling)
    start = data.draw(st.integers(0, sampling.rounds_per_epoch))
    chunks = [data.draw(st.none() | st.integers(1, 9)) for _ in range(2)]
    whole_rng, tail_rng = np.random.default_rng(seed), np.random.default_rng(seed)

    def rounds(rng, chunk, **options):
        batches = sampling.batches(rng, num_examples=n, rounds_per_chunk=chunk, **options)
        return [
            [contribution[valid].tolist() for contribution, valid in zip(*round_, strict=True) if valid.any()]
            for batch in batches
            for round_ in zip(*batch, strict=True)
        ]

    whole, tail = rounds(whole_rng, chunks[0]), rounds(tail_rng, chunks[1], start=start)
    assert tail == whole[start:]
    assert whole_rng.integers(2**60) == tail_rng.integers(2**60), "the epoch after a resumed one must not differ"


@given(samplings)
def test_config_round_trips_through_json(sampling):
    config = json.loads(json.dumps(sampling.to_config()))
    assert from_config(config) == sampling
    assert config["name"] == sampling.name


def test_epochs_differ_and_lazy_iteration_does_not_move_the_generator():
    sampling = Subsampling(100, 2, 5)
    rng = np.random.default_rng(0)
    first, second = sampling.batches(rng), sampling.batches(rng)
    late, early = next(second).indices, next(first).indices  # consumed in the opposite order
    again = np.random.default_rng(0)
    np.testing.assert_array_equal(early, epoch(sampling, again).indices)
    np.testing.assert_array_equal(late, epoch(sampling, again).indices)
    assert (early != late).any()


# --- what follows from the sampling ---------------------------------------------------------------------------------


def test_consequences_of_the_fields():
    """pitfall 4: a group that an example joins or leaves can turn from +C to -C, so 2C even under add/remove."""
    table = {
        Shuffling(100, 3, 7): ("replace", 2.0, 3, 7.0, 4, (3, 7), False, False),
        Shuffling.individual(100, 7): ("replace", 2.0, 7, 1.0, 14, (7, 1), True, False),
        Subsampling.batch(100, 7): ("replace", 2.0, 1, 7.0, 14, (1, 7), False, False),
        Poisson.individual(100, 7): ("add-remove", 1.0, 7, 1.0, 14, (40, 1), True, True),
        Poisson.batch(100, 7): ("add-remove", 2.0, 1, 7.0, 14, (1, 40), False, True),
        Poisson(0.1, 4, 10, 4): ("add-remove", 2.0, 4, 2.5, 4, (4, 24), False, True),
    }
    for sampling, expected in table.items():
        got = (
            sampling.neighbouring,
            sampling.sensitivity_factor,
            sampling.divisor,
            sampling.examples_divisor,
            sampling.rounds_per_epoch,
            sampling.shape,
            sampling.is_individual,
            sampling.masked,
        )
        assert got == expected, sampling
    assert Poisson.individual(100, 7).rate == 0.07
    assert Poisson.individual(100, 7).contributions is None
    assert Poisson.individual(100, 7).examples_per_contribution == 1
    assert Poisson.individual(7, 7).rate == 1.0
    assert Shuffling(np.int64(10), np.int32(1), np.int8(2)) == Shuffling(10, 1, 2)
    assert type(Shuffling(np.int64(10), 1, 2).num_examples) is int


def test_nothing_public_depends_on_the_private_size():
    """pitfall 2: data sets of N and N - 1 examples under one Poisson plan have the same divisor and the same shapes."""
    for contributions in (None, 1, 4):
        sampling = Poisson(0.05, 30, 50, contributions)
        shapes = {epoch(sampling, np.random.default_rng(0), n).indices.shape for n in (1_000, 999)}
        assert shapes == {(30, *sampling.shape)}
        assert not {"num_examples"} & {f.name for f in dataclasses.fields(sampling)}


def test_neighbouring_cannot_be_chosen_or_changed():
    """pitfall 9: a fixed or shuffled sampling is what its class says; neighbouring and factor are nobody's input."""
    sampling = Shuffling(100, 2, 5)
    for attribute in ("neighbouring", "name", "sensitivity_factor", "num_examples", "divisor"):
        with pytest.raises(AttributeError):
            setattr(sampling, attribute, 1)
    with pytest.raises(TypeError):
        Shuffling(100, 2, 5, neighbouring="add-remove")
    with pytest.raises(ValueError, match="poisson fields must be rate, rounds_per_epoch, expected_size, contributions"):
        from_config({**sampling.to_config(), "name": "poisson"})
    assert not isinstance(sampling, Poisson)
    assert not isinstance(Poisson.individual(10, 2), Shuffling | Subsampling)


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


@pytest.mark.parametrize("mean", [0.5, 1, 3, 10, 64, 1024, 50_000])
def test_capacity_bounds_the_tail_and_wastes_little(mean):
    room = capacity(mean, 1e-12)
    assert room % 8 == 0
    assert stats.poisson.sf(room, mean) < 1e-12
    for n in (math.ceil(mean), 3 * math.ceil(mean), 10**6):
        assert stats.binom.sf(room, n, mean / n) < 1e-12
    # Chernoff's bound costs half a standard deviation, the rounding 8.
    assert room <= stats.poisson.isf(1e-12, mean) + 0.5 * math.sqrt(mean) + 10


def test_group_capacity_covers_all_groups_together():
    sampling = Poisson(0.01, 10, 640, 64)
    assert 64 * stats.poisson.sf(sampling.shape[1], 10) < 1e-12


# --- size -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "limit"),
    [
        # A chunk (indices and mask: 5 bytes each, a few temporaries) and, for shuffling, the permutation.
        (Shuffling.individual(4_000_000, 256), 4 * 4_000_000 + 24 * CHUNK_ENTRIES),
        (Subsampling(50_000_000, 16, 64), 24 * CHUNK_ENTRIES),
        (Poisson.individual(50_000_000, 4096), 24 * CHUNK_ENTRIES),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_memory_does_not_grow_with_rounds_or_data(sampling, limit):
    """An epoch of N = 50 million costs a chunk, at 4 bytes an index; N appears only in shuffling's one permutation."""
    tracemalloc.start()
    try:
        batches = sampling.batches(np.random.default_rng(0), num_examples=getattr(sampling, "num_examples", 50_000_000))
        for _, batch in zip(range(3), batches, strict=False):
            assert batch.indices.dtype == np.int32
            assert batch.indices.size <= CHUNK_ENTRIES
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def test_indices_beyond_int32():
    sampling = Subsampling(2**40, 2, 3)
    indices = next(sampling.batches(np.random.default_rng(0), rounds_per_chunk=4)).indices
    assert indices.dtype == np.int64
    assert indices.max() > 2**32


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Shuffling(0, 1, 1), ValueError, "num_examples must be an integer >= 1; got num_examples=0"),
        (lambda: Shuffling(10, 0, 1), ValueError, "contributions must be an integer >= 1"),
        (lambda: Subsampling(10, 1, 2.0), TypeError, "examples_per_contribution must be an integer"),
        (lambda: Shuffling(10, True, 1), TypeError, "contributions must be an integer"),
        (lambda: Shuffling(11, 3, 4), ValueError, r"num_examples must be at least one round \(3 x 4 = 12 examples\)"),
        (lambda: Shuffling.batch(10, 11), ValueError, "num_examples must be at least one round"),
        (lambda: Poisson(0.0, 1, 1), ValueError, "rate must be a finite number > 0 and <= 1; got rate=0.0"),
        (lambda: Poisson(1.1, 1, 1), ValueError, "rate must be"),
        (lambda: Poisson(math.nan, 1, 1), ValueError, "rate must be"),
        (lambda: Poisson(0.1, 0, 1), ValueError, "rounds_per_epoch must be"),
        (lambda: Poisson(0.1, 1, 0), ValueError, "expected_size must be"),
        (lambda: Poisson(0.1, 1, 4, 5), ValueError, "contributions must be an integer >= 1 and <= 4"),
        (lambda: Poisson.individual(10, 11), ValueError, "batch_size must be an integer >= 1 and <= 10"),
        (lambda: from_config({"name": "stratified"}), ValueError, "sampling name must be one of 'shuffling'"),
        (lambda: from_config({"name": "poisson", "rate": 1}), ValueError, "poisson fields must be"),
        (lambda: from_config("poisson"), TypeError, "sampling must be a dict"),
    ],
)
def test_bad_fields(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("sampling", "options", "error", "message"),
    [
        (Shuffling(10, 1, 2), {"num_examples": 11}, ValueError, "num_examples must be the 10 of the sampling"),
        (Poisson(0.1, 2, 1), {}, TypeError, "num_examples must be an integer >= 1"),
        (Poisson(0.1, 2, 1), {"num_examples": 0}, ValueError, "num_examples must be an integer >= 1"),
        (Shuffling(10, 1, 2), {"start": 6}, ValueError, "start must be an integer >= 0 and <= 5"),
        (Shuffling(10, 1, 2), {"start": -1}, ValueError, "start must be"),
        (Shuffling(10, 1, 2), {"rounds_per_chunk": 0}, ValueError, "rounds_per_chunk must be"),
        (Shuffling(10, 1, 2), {"rng": np.random.RandomState(0)}, TypeError, "rng must be a numpy.random.Generator"),
    ],
)
def test_bad_calls_fail_at_the_call_and_leave_the_generator_alone(sampling, options, error, message):
    rng = np.random.default_rng(0)
    with pytest.raises(error, match=message):
        sampling.batches(**{"rng": rng, **options})
    assert rng.integers(2**60) == np.random.default_rng(0).integers(2**60)
