"""Attacks change what was chosen and nothing else, and are repeatable."""

import numpy as np
import pytest

from tfdpbc.data import corruption
from tfdpbc.data.corruption import Attack

X = np.random.default_rng(0).uniform(size=(200, 8, 8, 1)).astype(np.float32)
Y = np.arange(200) % 10


def test_the_choice_has_the_share_is_seeded_and_grows():
    ten, twenty = (corruption.choose(200, share, 3) for share in (0.1, 0.2))
    assert (ten.sum(), twenty.sum()) == (20, 40) and not (ten & ~twenty).any()
    np.testing.assert_array_equal(ten, corruption.choose(200, 0.1, 3))
    assert (ten != corruption.choose(200, 0.1, 4)).any()


@pytest.mark.parametrize("kind", corruption.ATTACKS)
def test_only_the_chosen_examples_change_and_the_data_stays(kind):
    x, y = X.copy(), Y.copy()
    found = corruption.attacked(X, Y, Attack(kind, 0.1), 10, seed=5)
    np.testing.assert_array_equal(X, x)
    np.testing.assert_array_equal(Y, y)
    kept = ~found.chosen
    np.testing.assert_array_equal(found.x[kept], X[kept])
    np.testing.assert_array_equal(found.y[kept], Y[kept])
    changed_x = (found.x != X).reshape(200, -1).any(axis=1)
    assert (changed_x == found.chosen).all() if kind in ("noise", "trigger") else not changed_x.any()
    labels = kind in ("label", "label-random", "trigger")
    assert ((found.y != Y) == found.chosen).all() if labels else (found.y == Y).all()
    assert (found.y < 10).all() and (found.y >= 0).all()
    if kind in corruption.GRADIENT_ATTACKS:
        np.testing.assert_array_equal(found.sample_weight < 0, found.chosen)
        assert (np.abs(found.sample_weight) == 1).all()
    else:
        assert found.sample_weight is None


def test_fixed_and_random_labels():
    chosen = np.ones(200, bool)
    np.testing.assert_array_equal(corruption.flip_labels(Y, chosen, 10), (Y + 1) % 10)
    random = corruption.flip_labels(Y, chosen, 10, seed=1)
    assert set((random - Y) % 10) == set(range(1, 10))


def test_the_trigger_and_the_noise():
    chosen = corruption.choose(200, 0.5, 0)
    marked = corruption.add_trigger(X, chosen, 2.0, 3)
    assert (marked[chosen][:, -3:, -3:] == 2).all() and (marked != X).reshape(200, -1).sum() == 100 * 9
    flat = corruption.add_trigger(X.reshape(200, -1), chosen, 2.0, 3)
    assert (flat[chosen][:, -3:] == 2).all() and (flat != X.reshape(200, -1)).sum() == 300
    noise = (corruption.add_noise(X, chosen, 4.0, 7) - X)[chosen]  # 6,400 numbers
    assert noise.std() == pytest.approx(4.0, rel=6 / np.sqrt(2 * noise.size))


def test_the_text_of_an_attack():
    assert Attack.parse("label-random:0.25") == Attack("label-random", 0.25)
    for wrong in ("label", "label:", "label:2", "flip:0.1", "label:x"):
        with pytest.raises(ValueError, match="attack must be"):
            Attack.parse(wrong)
