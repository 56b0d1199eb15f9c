"""Best: guarantees that hold at once."""

import numpy as np
import pytest

from tfdpbc.accounting import Gaussian, GaussianMixture, fixed_size
from tfdpbc.accounting.best import Best

ALPHA = np.linspace(0, 1, 41)
# They cross: the mixture is better at small δ, where its chance of c = 3 no longer counts, and worse at large δ.
GAUSSIAN, MIXTURE = Gaussian(1.2), GaussianMixture([1, 9], [0.999, 0.001], 1.0)


def test_every_question_is_answered_by_the_best():
    best = Best([GAUSSIAN, MIXTURE])
    epsilon = np.linspace(-1, 12, 60)
    assert np.array_equal(best.f(ALPHA), np.maximum(GAUSSIAN.f(ALPHA), MIXTURE.f(ALPHA)))
    assert np.array_equal(best.delta(epsilon), np.minimum(GAUSSIAN.delta(epsilon), MIXTURE.delta(epsilon)))
    gaussian_wins = GAUSSIAN.delta(epsilon) < MIXTURE.delta(epsilon)
    assert gaussian_wins.any() and not gaussian_wins.all()
    for delta in (0.2, 1e-2, 1e-9):
        assert best.epsilon(delta) == min(GAUSSIAN.epsilon(delta), MIXTURE.epsilon(delta))
        assert best.delta(best.epsilon(delta)) <= delta
    assert best.renyi(20.0) == min(GAUSSIAN.renyi(20.0), MIXTURE.renyi(20.0))


def test_it_stays_a_trade_off_function():
    f = Best([GAUSSIAN, MIXTURE]).f(np.linspace(0, 1, 2001))
    assert np.all(np.diff(f) <= 1e-12) and np.all(np.diff(f, 2) >= -1e-12)


def test_composition_and_groups_act_on_each():
    best = Best([GAUSSIAN, Gaussian(1.0)])
    assert best.mu == 1.0 and Best([MIXTURE, GAUSSIAN]).mu is None
    assert best.compose(Gaussian(1.0)).mu == pytest.approx(np.sqrt(2))
    assert best.compose(Best([Gaussian(1.0), Gaussian(5.0)])).mu == pytest.approx(np.sqrt(2))
    assert best.group(3).mu == 3.0
    mixed = Best([fixed_size(0.1, 2.0, 20), GAUSSIAN]).compose(MIXTURE)
    parts = (fixed_size(0.1, 2.0, 20).compose(MIXTURE), GAUSSIAN.compose(MIXTURE))
    assert mixed.epsilon(1e-5) == min(part.epsilon(1e-5) for part in parts)


@pytest.mark.parametrize("curves", [[], [1.0], [GAUSSIAN, None]])
def test_bad_curves_are_named(curves):
    with pytest.raises((TypeError, ValueError), match="^curves must be .*; got curves="):
        Best(curves)


def test_composing_something_with_several_guarantees_composes_each():
    best = Best([GAUSSIAN, MIXTURE])
    for other in (fixed_size(0.1, 2.0, 20), Gaussian(0.5)):
        want = min(other.compose(curve).epsilon(1e-5) for curve in best.curves)
        assert other.compose(best).epsilon(1e-5) == pytest.approx(want, rel=1e-3)
        assert best.compose(other).epsilon(1e-5) == pytest.approx(want, rel=1e-3)
