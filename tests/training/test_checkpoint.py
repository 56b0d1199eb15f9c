"""Checkpoints go on where they were written, or change nothing."""

import keras
import numpy as np
import pytest

import tfdpbc as dp
from tests import oracles
from tests.training.helpers import N, private, weights
from tfdpbc.errors import RunFolderError

X, Y = oracles.blobs(N)


def fresh(**options):
    options = {"noise": 1.0, "epochs": 3, "optimizer": keras.optimizers.Adam(0.1), **options}
    return private(options.pop("sampling", dp.Shuffling(N, 6, 1)), **options)


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    """pitfall 29 over a restart: optimizer slots, norm schedule, sampler position, noise, count."""
    whole = fresh()
    whole.fit(X, Y, verbose=0)
    first = fresh()
    first.fit(X, Y, epochs=1, verbose=0)
    first.save_checkpoint(tmp_path / "state.npz")
    second = fresh(model=oracles.dense_net(seed=99))
    second.load_checkpoint(tmp_path / "state.npz")
    assert second.spent.rounds == 4
    second.fit(X, Y, verbose=0)
    assert second.spent.rounds == 12
    np.testing.assert_array_equal(oracles.flat(weights(second)), oracles.flat(weights(whole)))
    assert [p.name for p in tmp_path.iterdir()] == ["state.npz"]


def test_an_old_checkpoint_does_not_lower_the_count(tmp_path):
    model = fresh()
    model.fit(X, Y, epochs=1, verbose=0)
    model.save_checkpoint(tmp_path / "state.npz")
    model.fit(X, Y, epochs=1, verbose=0)
    model.load_checkpoint(tmp_path / "state.npz")
    assert model.spent.rounds == 8


def test_no_randomness_is_written(tmp_path):
    model = fresh(seed=None)
    model.save_checkpoint(tmp_path / "state.npz")
    content = (tmp_path / "state.npz").read_bytes()
    entropy = model.streams._entropy
    assert entropy.to_bytes(32, "little") not in content and str(entropy).encode() not in content


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "text"])
def test_damaged_files_are_one_clear_error_and_change_nothing(tmp_path, damage):
    path = tmp_path / "state.npz"
    model = fresh()
    model.save_checkpoint(path)
    content = {"missing": None, "empty": b"", "cut": path.read_bytes()[:-300], "text": b"not a checkpoint"}[damage]
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    before = oracles.flat(weights(model))
    with pytest.raises(RunFolderError, match="checkpoint"):
        model.load_checkpoint(path)
    np.testing.assert_array_equal(oracles.flat(weights(model)), before)


@pytest.mark.parametrize(
    "other, message",
    [
        ({"noise": 2.0}, "another plan"),
        ({"sampling": dp.Shuffling(N, 3, 1)}, "another plan"),
        ({"model": keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])}, "another shape"),
        ({"optimizer": keras.optimizers.SGD(0.1)}, "another shape"),
    ],
)
def test_checkpoints_of_something_else_are_refused(tmp_path, other, message):
    fresh().save_checkpoint(tmp_path / "state.npz")
    with pytest.raises(RunFolderError, match=message):
        fresh(**other).load_checkpoint(tmp_path / "state.npz")
