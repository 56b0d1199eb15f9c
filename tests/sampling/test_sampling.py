"""What holds for every sampling: sound rounds, resuming, the consequences of the fields, sizes, errors."""

import dataclasses
import json
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tests.sampling.yardsticks import epoch
from tfdpbc.sampling import CHUNK_ENTRIES, BallsInBins, Poisson, Shuffling, Subsampling, capacity, from_config

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
bins = st.builds(BallsInBins, st.integers(1, 7), st.integers(1, 30))
samplings = fixed | poisson | bins
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
    if sampling.name == "balls-in-bins":
        assert sorted(seen) == list(range(n))


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


def test_consequences_of_the_fields():
    """pitfall 4: a group that an example joins or leaves can turn from +C to -C, so 2C even under add/remove."""
    table = {
        Shuffling(100, 3, 7): ("replace", 2.0, 3, 7.0, 4, (3, 7), False, False),
        Shuffling.individual(100, 7): ("replace", 2.0, 7, 1.0, 14, (7, 1), True, False),
        Subsampling.batch(100, 7): ("replace", 2.0, 1, 7.0, 14, (1, 7), False, False),
        Poisson.individual(100, 7): ("add-remove", 1.0, 7, 1.0, 14, (40, 1), True, True),
        Poisson.batch(100, 7): ("add-remove", 2.0, 1, 7.0, 14, (1, 40), False, True),
        Poisson(0.1, 4, 10, 4): ("add-remove", 2.0, 4, 2.5, 4, (4, 24), False, True),
        BallsInBins(14, 7): ("add-remove", 1.0, 7, 1.0, 14, (40, 1), True, True),
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


def test_epochs_that_are_drawn_as_a_whole_say_so():
    """pitfall 14: only they may not go on with another draw after a restart."""
    assert [kind.epoch_is_joint for kind in (Shuffling, BallsInBins, Subsampling, Poisson)] == [
        True,
        True,
        False,
        False,
    ]


def test_planned_examples():
    assert Shuffling(100, 3, 7).planned_examples == Subsampling.batch(100, 7).planned_examples == 100
    assert Poisson(0.1, 4, 10).planned_examples == 100
    assert BallsInBins(4, 10).planned_examples == 40


def test_nothing_public_depends_on_the_private_size():
    """pitfall 2: data sets of N and N - 1 examples under one Poisson plan have the same divisor and the same shapes."""
    for sampling in [*(Poisson(0.05, 30, 50, contributions) for contributions in (None, 1, 4)), BallsInBins(30, 50)]:
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


@pytest.mark.parametrize("mean", [0.5, 1, 3, 10, 64, 1024, 50_000])
def test_capacity_bounds_the_tail_and_wastes_little(mean):
    room = capacity(mean, 1e-12)
    assert room % 8 == 0
    assert stats.poisson.sf(room, mean) < 1e-12
    for n in (math.ceil(mean), 3 * math.ceil(mean), 10**6):
        assert stats.binom.sf(room, n, mean / n) < 1e-12
    # Chernoff's bound costs half a standard deviation, the rounding 8.
    assert room <= stats.poisson.isf(1e-12, mean) + 0.5 * math.sqrt(mean) + 10


@pytest.mark.parametrize(
    ("sampling", "limit"),
    [
        # A chunk (indices and mask: 5 bytes each, a few temporaries) and, for shuffling, the permutation.
        (Shuffling.individual(4_000_000, 256), 4 * 4_000_000 + 24 * CHUNK_ENTRIES),
        (Subsampling(50_000_000, 16, 64), 24 * CHUNK_ENTRIES),
        (Poisson.individual(50_000_000, 4096), 24 * CHUNK_ENTRIES),
        (BallsInBins.individual(50_000_000, 4096), 4 * 50_000_000 + 24 * CHUNK_ENTRIES),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_memory_does_not_grow_with_rounds_or_data(sampling, limit):
    """An epoch of N = 50 million costs a chunk, at 4 bytes an index; N appears only in a permutation of it."""
    tracemalloc.start()
    try:
        batches = sampling.batches(np.random.default_rng(0), num_examples=getattr(sampling, "num_examples", 50_000_000))
        for _, batch in zip(range(3), batches, strict=False):
            assert batch.indices.dtype == np.int32
            assert batch.indices.size <= CHUNK_ENTRIES
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


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
        (lambda: BallsInBins(0, 1), ValueError, "rounds_per_epoch must be an integer >= 1; got rounds_per_epoch=0"),
        (lambda: BallsInBins(1, 0), ValueError, "expected_size must be an integer >= 1"),
        (lambda: BallsInBins(2.0, 1), TypeError, "rounds_per_epoch must be an integer"),
        (lambda: BallsInBins.individual(10, 11), ValueError, "batch_size must be an integer >= 1 and <= 10"),
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
        (BallsInBins(2, 1), {}, TypeError, "num_examples must be an integer >= 1"),
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
