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


def test_pitfall_14_two_runs_resumed_from_one_checkpoint_add_up(tmp_path):
    """pitfall 14: what two continuations of one checkpoint released is counted for both, once for what they share."""
    model = fresh()
    model.fit(X, Y, epochs=1, verbose=0)
    model.save_checkpoint(tmp_path / "state.npz")
    per_epoch = model.plan.rounds_per_epoch
    twins = [fresh(), fresh()]
    for twin in twins:
        twin.load_checkpoint(tmp_path / "state.npz")
        assert twin.ledger.entries == model.ledger.entries
        twin.fit(X, Y, epochs=1, verbose=0)
        assert twin.spent.rounds == 2 * per_epoch and twin.spent.repeated == ()
    twins[0].ledger.absorb(twins[1].ledger)
    assert twins[0].spent.rounds == 2 * per_epoch and twins[0].spent.repeated == (per_epoch,)
    assert twins[0].spent.epsilon(1e-5) > twins[1].spent.epsilon(1e-5)
    stated = twins[0].spent.guarantee(1e-5)
    assert stated["rounds"] == 3 * per_epoch and "released a second time" in stated["warnings"][-1]
    assert stated["epsilon"] == twins[0].spent.epsilon(1e-5)
