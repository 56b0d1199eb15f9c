"""What scores certify: against scipy, and on Gaussian mechanisms whose trade-off function is known."""

import math

import numpy as np
import pytest
from scipy import stats

from tfdpbc.accounting import Gaussian
from tfdpbc.audit import evidence


@pytest.mark.parametrize("failure", [0.05, 1e-3, 1e-9])
@pytest.mark.parametrize("count, runs", [(0, 10), (1, 10), (9, 10), (10, 10), (37, 400), (399, 400)])
def test_upper_is_clopper_and_pearson(count, runs, failure):
    oracle = stats.binomtest(count, runs, alternative="less").proportion_ci(1 - failure, method="exact").high
    assert float(evidence.upper(count, runs, failure)) == pytest.approx(oracle, rel=1e-9)


def test_randomised_response_is_told_exactly():
    epsilon = 1.7
    lie = 1 / (1 + math.exp(epsilon))
    assert evidence.Errors(lie, lie).epsilon(1e-15) == pytest.approx(epsilon, abs=1e-9)
    # (ε, δ): δ of the mass tells all.
    assert evidence.Errors(lie * 0.9, lie * 0.9).epsilon(0.1) == pytest.approx(epsilon, abs=1e-9)


def test_errors_are_read_both_ways():
    assert evidence.Errors(0.5, 0.01).epsilon(1e-5) == evidence.Errors(0.01, 0.5).epsilon(1e-5) > 3.8
    assert evidence.Errors(1.0, 1.0).epsilon(1e-5) == evidence.Errors(1.0, 1.0).mu == 0


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
def test_errors_on_the_curve_have_its_mu(mu):
    curve = Gaussian(mu)
    for alpha in (1e-3, 0.1, 0.5):
        beta = float(curve(alpha))
        assert evidence.Errors(alpha, beta).mu == pytest.approx(mu, rel=1e-6)
        assert evidence.Errors(alpha, beta * 0.999).refutes(curve)
        assert not evidence.Errors(alpha, beta * 1.001).refutes(curve)


def scores(mu, runs, rng):
    """Log-likelihood ratios of one number from N(μ, 1) and from N(0, 1)."""
    return [mu * (rng.normal(size=runs) + mean) - mu**2 / 2 for mean in (mu, 0.0)]


def test_many_runs_come_near_to_the_truth_and_not_beyond():
    # False alarm 1e-8 in all.
    rng, mu, delta = np.random.default_rng(1), 1.3, 0.05
    found = evidence.weigh(*scores(mu, 400_000, rng), Gaussian(mu), delta, 1 - 1e-8)
    assert not found.claim.refutes(Gaussian(mu)) and found.claim.refutes(Gaussian(0.95 * mu))
    assert 0.95 * mu < found.claim.mu <= mu
    truth = Gaussian(mu).epsilon(delta)
    assert 0.9 * truth < found.plain.epsilon(delta) <= truth


def test_false_alarms_are_as_rare_as_stated():
    # The claim is exactly true, so this is where false alarms are most frequent. Both statements hold together with
    # probability 0.8, so alarms are at most binomial(400, 0.2): above the bound with probability < 1e-7.
    rng, mu, delta, alarms = np.random.default_rng(2), 1.0, 0.1, 0
    curve, truth = Gaussian(mu), Gaussian(mu).epsilon(delta)
    for _ in range(400):
        found = evidence.weigh(*scores(mu, 60, rng), curve, delta, 0.8)
        alarms += found.claim.refutes(curve) or found.plain.epsilon(delta) > truth
    assert alarms <= stats.binom.isf(1e-7, 400, 0.2)


def test_nothing_is_found_where_there_is_nothing():
    # False alarm: 100 times 1e-9.
    rng = np.random.default_rng(3)
    for _ in range(100):
        found = evidence.weigh(rng.normal(size=50), rng.normal(size=50), Gaussian(1e-9), 1e-5, 1 - 1e-9)
        assert not found.claim.refutes(Gaussian(1e-9)) and found.plain.epsilon(1e-5) == 0


def test_runs_that_judge_do_not_choose():
    """Judging scores on the wrong side of a threshold chosen elsewhere count against it, whatever else would suit them."""
    first, second = np.full(100, 1.0), np.full(100, -1.0)
    first[20:], second[20:] = -5.0, -5.0
    found = evidence.weigh(first, second, Gaussian(1.0), 1e-5, 0.99)
    assert found.claim.beta == found.plain.beta == 1.0


@pytest.mark.parametrize("bad", [np.zeros(9), np.array([np.nan] * 20)])
def test_useless_scores_are_refused(bad):
    with pytest.raises(ValueError, match="scores must be"):
        evidence.weigh(bad, np.zeros(20), Gaussian(1.0), 1e-5, 0.99)
