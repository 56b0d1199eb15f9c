"""Balls-in-bins: certified bounds against the issue's reference values, quadrature, Monte Carlo of the mechanism itself.

Statistical assertions allow 5.5 standard errors: with under 20 of them the false-alarm rate is below 1e-6 (and the
seeds are fixed).
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from tfdpbc.accounting import Gaussian, _averages
from tfdpbc.accounting.balls_in_bins import _log_moment_of_inverse, balls_in_bins, lower_bound

SIGMAS = 5.5


@pytest.mark.parametrize(
    "noise_multiplier, rounds, epochs, low, high",
    [
        (1, 10, 1, 2.166, 2.209),
        (1, 100, 1, 0.609, 0.636),
        (1, 1000, 1, 0.136, 0.142),
        (0.5, 100, 1, 5.384, 5.408),
        (2, 100, 10, 0.591, 0.617),
    ],
)
def test_reference_values(noise_multiplier, rounds, epochs, low, high):
    upper = balls_in_bins(rounds, noise_multiplier, epochs).epsilon(1e-5)
    lower = lower_bound(rounds, noise_multiplier, epochs, 1e-5)
    assert low <= lower <= upper <= high
    assert upper <= lower * 1.002


@settings(max_examples=10, deadline=None)
@given(
    st.floats(math.log(0.05), math.log(100)),
    st.integers(1, 300),
    st.integers(1, 50),
    st.sampled_from([1e-10, 1e-5, 1e-2]),
)
@pytest.mark.slow
def test_lower_bound_is_below_and_near(log_sigma, rounds, epochs, delta):
    sigma = math.exp(log_sigma)
    upper, lower = balls_in_bins(rounds, sigma, epochs).epsilon(delta), lower_bound(rounds, sigma, epochs, delta)
    assert 0 <= lower <= upper <= Gaussian(math.sqrt(epochs) / sigma).epsilon(delta) * (1 + 1e-3)
    assert upper <= lower * 1.01 + 1e-3


def test_one_round_per_epoch_is_the_gaussian():
    assert balls_in_bins(1, 2.0, 9).mu == 1.5
    assert balls_in_bins(1, 2.0, 9, group_size=2).mu == 3.0
    assert lower_bound(1, 2.0, 9, 1e-5) == pytest.approx(Gaussian(1.5).epsilon(1e-5), rel=1e-8)
    assert balls_in_bins(7, 2.0, 0).mu == 0
    assert lower_bound(7, 2.0, 0, 1e-5) == 0


def test_the_law_of_one_log_normal_gives_the_gaussian_profile():
    """The grid itself against a closed form: with T = 1 both laws bracket δ of G_μ, closely."""
    for mu in (0.01, 1.0, 8.0):
        epsilon = mu * np.array([0.1, 1.0, 3.0]) + mu**2 / 2
        exact = Gaussian(mu).delta(epsilon)
        above, below = _averages.Spread.log_normal(mu), _averages.Lumped.log_normal(mu)
        ratio = np.exp(epsilon)[:, None]
        upper = (above.weights * np.maximum(above.values - ratio, 0)).sum(axis=1) + above.lost
        lower = np.maximum(below.moments - ratio * below.weights, 0).sum(axis=1)
        # Where e^ε is a point of the grid, connecting the dots is exact: up to the rounding that `error` bounds.
        assert (lower <= exact * (1 + 2 * below.error)).all()
        assert (exact <= upper * (1 + 2 * above.error)).all()
        np.testing.assert_allclose([lower, upper], [exact, exact], rtol=1e-3)


@pytest.mark.parametrize("noise_multiplier", [0.4, 1.0, 5.0])
def test_two_rounds_are_what_quadrature_gives(noise_multiplier):
    """For T = 2, (W₁ + W₂)/2 − e^ε is positive for N₂ above a known point: one smooth integral per direction."""
    mu = 1 / noise_multiplier
    curve = balls_in_bins(2, noise_multiplier, 1)
    for epsilon in (0.5 * mu, 2 * mu):
        need = 2 * math.exp(epsilon)

        def removal(z, need=need):
            # E over W₂ of ((w + W₂)/2 − e^ε)₊ given w = e^{μz − μ²/2}.
            w = math.exp(mu * z - mu**2 / 2)
            gap = need - w
            if gap <= 0:
                return stats.norm.pdf(z) * (w + 1 - need) / 2
            d = (math.log(gap) + mu**2 / 2) / mu
            return stats.norm.pdf(z) * (stats.norm.sf(d - mu) - gap * stats.norm.sf(d)) / 2

        def addition(z, epsilon=epsilon):
            # E over W₂ of (1 − e^ε (w + W₂)/2)₊.
            give = 2 * math.exp(-epsilon)
            gap = give - math.exp(mu * z - mu**2 / 2)
            if gap <= 0:
                return 0.0
            d = (math.log(gap) + mu**2 / 2) / mu
            return stats.norm.pdf(z) * (gap * stats.norm.cdf(d) - stats.norm.cdf(d - mu)) / give

        kinks = [(math.log(value) + mu**2 / 2) / mu for value in (need, 2 * math.exp(-epsilon))]
        ends = sorted({-12.0, 12.0 + mu, *(min(max(k, -11.9), 11.9 + mu) for k in kinks)})
        exact = max(
            sum(integrate.quad(f, a, b, epsabs=0, epsrel=1e-11, limit=400)[0] for a, b in itertools.pairwise(ends))
            for f in (removal, addition)
        )
        assert exact <= curve.delta(epsilon) <= exact * 1.002
        assert lower_bound(2, noise_multiplier, 1, exact) <= epsilon <= curve.epsilon(exact)
        assert lower_bound(2, noise_multiplier, 1, exact) == pytest.approx(epsilon, rel=2e-3)


@pytest.mark.parametrize("rounds, noise_multiplier, epochs", [(5, 1.0, 1), (20, 0.5, 2), (8, 2.0, 6)])
def test_monte_carlo_of_the_mechanism(rounds, noise_multiplier, epochs):
    """Runs the mechanism on two neighbouring data sets, round by round, and estimates δ(ε) in both directions."""
    rng, trials = np.random.default_rng(rounds), 200_000
    loss = {"remove": np.zeros(trials), "add": np.zeros(trials)}
    for _ in range(epochs):
        for direction, total in loss.items():
            outputs = noise_multiplier * rng.standard_normal((trials, rounds))
            if direction == "remove":
                outputs[np.arange(trials), rng.integers(rounds, size=trials)] += 1.0
            with_it = stats.norm.logpdf(outputs, 1.0, noise_multiplier)
            without = stats.norm.logpdf(outputs, 0.0, noise_multiplier)
            ratio = np.log(np.exp(with_it - without).mean(axis=1))
            total += ratio if direction == "remove" else -ratio
    curve = balls_in_bins(rounds, noise_multiplier, epochs)
    for epsilon in (0.2, 1.0):
        found, errors = [], []
        for total in loss.values():
            charge = -np.expm1(np.minimum(epsilon - total, 0.0))
            found.append(charge.mean())
            errors.append(charge.std() / math.sqrt(trials))
        slack = SIGMAS * max(errors)
        assert max(found) - slack <= curve.delta(epsilon) <= (max(found) + slack) * 1.003
        assert lower_bound(rounds, noise_multiplier, epochs, max(found) + slack) <= epsilon
        assert lower_bound(rounds, noise_multiplier, epochs, max(found) - slack) >= epsilon * 0.99


def test_renyi_is_above_monte_carlo_and_exact_for_removal_at_order_two():
    """E X² = 1 + (e^{1/σ²} − 1)/T. The other direction, E 1/X, by Monte Carlo under Q."""
    rounds, sigma = 10, 1.0
    curve = balls_in_bins(rounds, sigma, 3)
    exact = 3 * math.log1p(math.expm1(1 / sigma**2) / rounds)
    assert exact <= curve.renyi(2.0) <= exact * (1 + 1e-6)
    rng, trials = np.random.default_rng(0), 200_000
    x = np.exp(rng.standard_normal((trials, rounds)) / sigma - 0.5 / sigma**2).mean(axis=1)
    for order in (1.5, 3.0):
        samples = x ** (1 - order)
        least = samples.mean() - SIGMAS * samples.std() / math.sqrt(trials)
        assert 3 * math.log(least) / (order - 1) <= curve.renyi(order)
        assert balls_in_bins(rounds, sigma, 1).renyi(order) <= order / 2
    law = _averages.average(_averages.Spread, 1 / sigma, rounds)
    bound = _log_moment_of_inverse(law, 1 / sigma, 1.0)
    mean, error = (1 / x).mean(), (1 / x).std() / math.sqrt(trials)
    assert math.log(mean - SIGMAS * error) <= bound <= math.log(mean + SIGMAS * error) + 1e-3


def test_renyi_gives_an_epsilon_above_the_lower_bound():
    """Two analyses of one mechanism: RDP may never claim less than what is known to be given away."""
    for rounds, sigma, epochs in [(10, 1.0, 1), (100, 0.5, 5), (1000, 3.0, 20)]:
        curve, delta = balls_in_bins(rounds, sigma, epochs), 1e-5
        orders = np.concatenate([np.linspace(1.1, 10, 30), np.arange(11, 300, 7)])
        values = curve.renyi(orders) + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
        assert np.min(values) >= lower_bound(rounds, sigma, epochs, delta)
        assert (np.diff(curve.renyi(np.arange(2.0, 40.0))) >= 0).all()


def test_pitfall_23_monotone_and_repeatable():
    """pitfall 23: ε grows with E, 1/σ, 1/δ, g and falls with T; it is 0 where δ(0) is below δ; asking twice agrees."""
    base = balls_in_bins(50, 1.0, 4)
    assert base.epsilon(1e-5) < balls_in_bins(50, 1.0, 5).epsilon(1e-5)
    assert base.epsilon(1e-5) < balls_in_bins(50, 0.9, 4).epsilon(1e-5)
    assert base.epsilon(1e-5) < base.epsilon(1e-6)
    assert base.epsilon(1e-5) > balls_in_bins(51, 1.0, 4).epsilon(1e-5)
    assert base.epsilon(1e-5) < balls_in_bins(50, 1.0, 4, group_size=2).epsilon(1e-5)
    assert balls_in_bins(20, 1e5, 1).epsilon(1e-5) == 0
    assert balls_in_bins(50, 1.0, 4).epsilon(1e-5) == base.epsilon(1e-5)


@pytest.mark.parametrize("noise_multiplier", [1e-3, 0.03, 0.05, 100.0, 1e6])
def test_pitfall_27_extreme_noise_is_finite(noise_multiplier):
    """pitfall 27: tiny and huge σ; below 1/26 the Gaussian takes over, and the two meet within log T per epoch."""
    epsilon = balls_in_bins(20, noise_multiplier, 2).epsilon(1e-5)
    gaussian = Gaussian(math.sqrt(2) / noise_multiplier).epsilon(1e-5)
    assert 0 <= epsilon <= gaussian * 1.001
    assert math.isfinite(epsilon)
    assert epsilon >= gaussian - 2 * math.log(20) or epsilon == 0
    assert lower_bound(20, noise_multiplier, 2, 1e-5) <= epsilon


def test_many_rounds_are_bracketed():
    """T = 30 000 takes fifteen halvings; the bounds still meet."""
    upper, lower = balls_in_bins(30_000, 1.0, 1).epsilon(1e-5), lower_bound(30_000, 1.0, 1, 1e-5)
    assert lower <= upper <= lower * 1.01


@pytest.mark.parametrize("size", [2, 3, 7, 12])
def test_laws_bracket_every_convex_function(size):
    """What the certificate rests on: E φ rises from `Lumped` over the truth to `Spread`, for φ with known means."""
    mu = 0.6
    above, below = (_averages.average(kind, mu, size) for kind in (_averages.Spread, _averages.Lumped))
    values = below.moments / below.weights
    assert above.weights.sum() + above.zero == pytest.approx(1, abs=1e-11)
    assert above.weights @ above.values + above.lost == pytest.approx(1, abs=1e-11)
    assert below.weights.sum() == pytest.approx(1, abs=1e-11)
    assert below.moments.sum() == pytest.approx(1, abs=1e-11)
    square = 1 + math.expm1(mu**2) / size
    third = (math.exp(3 * mu**2) + 3 * (size - 1) * math.exp(mu**2) + (size - 1) * (size - 2)) / size**2
    for power, exact in ((2, square), (3, third)):
        assert below.weights @ values**power < exact < above.weights @ above.values**power
        assert below.weights @ values**power == pytest.approx(exact, rel=1e-3)
        assert above.weights @ above.values**power == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(
    "given_, name",
    [
        ((0, 1.0, 1), "rounds_per_epoch"),
        ((2, 0.0, 1), "noise_multiplier"),
        ((2, math.nan, 1), "noise_multiplier"),
        ((2, 1.0, -1), "epochs"),
        ((2, 1.0, 1, 0), "group_size"),
    ],
)
def test_nonsense_is_refused(given_, name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        balls_in_bins(*given_)
    with pytest.raises(ValueError, match="delta must be"):
        lower_bound(2, 1.0, 1, 0.0)
