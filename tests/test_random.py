"""Named streams of randomness."""

import os
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from tfdpbc import random
from tfdpbc.random import Streams


def draws(streams, *position, size=8):
    return streams.generator(*position).integers(2**63, size=size).tolist()


def test_a_seed_gives_the_same_streams_in_every_process():
    """Names must not go through Python's string hash, which differs from process to process."""
    code = (
        "from tfdpbc.random import Streams as S; print(S(7).generator('noise', 3).integers(2**63), *S(7).key('noise'))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    here = f"{Streams(7).generator('noise', 3).integers(2**63)} {' '.join(map(str, Streams(7).key('noise')))}\n"
    assert outputs == {here}


def test_a_stream_does_not_depend_on_what_was_drawn_before():
    """pitfall 14 (the randomness of a resumed run): position (name, epoch) alone says what comes."""
    first, second = Streams(3), Streams(3)
    draws(first, "noise", 0)
    draws(first, "sampling", 4)
    first.key("noise", 1)
    assert draws(first, "sampling", 5) == draws(second, "sampling", 5)
    assert draws(first, "sampling", 5) == draws(first, "sampling", 5), "a position is a stream, not a cursor"


def test_streams_differ_by_seed_name_and_position():
    """pitfall 6: noise is independent across rounds and of every other use of randomness."""
    positions = [
        (name, *key) for name in ("init", "sampling", "noise") for key in ((), (0,), (1,), (0, 0), (0, 1), (1, 0))
    ]
    seen = {tuple(draws(Streams(seed), *position)) for seed in (0, 1, 2**200) for position in positions}
    assert len(seen) == 3 * len(positions)
    keys = {tuple(Streams(seed).key(*position)) for seed in (0, 1) for position in positions}
    assert len(keys) == 2 * len(positions)
    assert len({value for key in keys for value in key}) == 4 * len(positions)


def test_neighbouring_streams_are_uncorrelated_and_uniform():
    """pitfall 6: successive rounds' streams of one seed look independent.

    Under independence each of the 190 correlations of 4,000 draws is normal with sd 1/sqrt(4,000), and each p-value is
    uniform: false alarm below 190 * 2e-10 + 1e-8 < 1e-7.
    """
    uniform = np.stack([Streams(0).generator("noise", r).random(4_000) for r in range(20)])
    correlation = np.corrcoef(uniform)[np.triu_indices(20, 1)]
    assert np.abs(correlation).max() < 6.4 / np.sqrt(4_000)
    assert stats.kstest(uniform.ravel(), "uniform").pvalue > 1e-8
    # The first draw of each stream, over many streams: a weak derivation of seeds shows here.
    first = [Streams(0).generator("noise", r).random() for r in range(2_000)]
    assert stats.kstest(first, "uniform").pvalue > 1e-8
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 6.4 / np.sqrt(1_999)


def test_without_a_seed_the_entropy_is_the_operating_systems(monkeypatch):
    assert draws(Streams(), "noise") != draws(Streams(), "noise")
    asked = []
    monkeypatch.setattr(random.secrets, "randbits", lambda bits: asked.append(bits) or 5)
    assert draws(Streams(), "noise") == draws(Streams(5), "noise")
    assert asked == [random.ENTROPY_BITS]
    assert random.ENTROPY_BITS >= 128
    Streams(0)
    assert len(asked) == 1, "seed 0 is a seed, not `no seed`"


def test_the_seed_is_recorded_and_the_entropy_is_not():
    assert Streams(12).seed == 12
    streams = Streams()
    assert streams.seed is None
    public = {name: getattr(streams, name) for name in dir(streams) if not name.startswith("_")}
    assert str(streams._entropy) not in f"{public} {streams!r} {streams}"


def test_keys_are_seeds_for_stateless_operations():
    key = Streams(0).key("noise", 2)
    assert key.shape == (2,)
    assert key.dtype == np.int64
    every = np.array([Streams(0).key("noise", r) for r in range(200)])
    assert (every < 0).any(), "all 64 bits must be used, the sign bit too"
    assert (every > 2**62).any()


@pytest.mark.parametrize(
    ("seed", "error"),
    [(-1, ValueError), (1.0, TypeError), (True, TypeError), ("0", TypeError), (float("nan"), TypeError)],
)
def test_bad_seeds(seed, error):
    with pytest.raises(error, match="seed must be an integer >= 0"):
        Streams(seed)
