"""The lower bound for shuffling against quadrature, a pessimistic twin, Poisson's accountant and the mechanism itself."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from tfdpbc.accounting import Gaussian, poisson, shuffled
from tfdpbc.accounting.shuffled import epoch_profile, lower_bound, zero_out_lower_bound

FALSE_ALARM = 1e-7


def two_rounds(shift, epsilon, participation=1.0):
    """(δ(ε) of P against Q, of Q against P) for T = 2, P = (1 − p) N(0, I) + p/2 Σ_t N(shift·e_t, I), Q = N(0, I).

    Given x_1 the likelihood ratio increases in x_2, so the inner integral is a difference of Φ; the outer is quadrature.
    """
    p, a = participation, shift

    def needed(ratio, x):
        """The x_2 from which the likelihood ratio exceeds `ratio`, given x_1 = x."""
        rest = (ratio - (1 - p)) * 2 / p - math.exp(a * x - a * a / 2)
        return (math.log(rest) + a * a / 2) / a if rest > 0 else -math.inf

    def weights(x, ratio):
        """The densities at x_1 = x of the event "ratio exceeded", under P and Q; and of its complement."""
        t = needed(ratio, x)
        here, moved = (math.exp(-y * y / 2) / math.sqrt(2 * math.pi) for y in (x, x - a))
        above = special.ndtr(-t), special.ndtr(a - t)
        below = special.ndtr(t), special.ndtr(t - a)
        return [
            ((1 - p) * here * far[0] + p / 2 * (moved * far[0] + here * far[1]), here * far[0])
            for far in (above, below)
        ]

    def forward(x):
        mine, other = weights(x, math.exp(epsilon))[0]
        return mine - math.exp(epsilon) * other

    def backward(x):
        other, mine = weights(x, math.exp(-epsilon))[1]
        return mine - math.exp(epsilon) * other

    kinks = [(math.log(r) + a * a / 2) / a for r in ((math.exp(s * epsilon) - 1 + p) * 2 / p for s in (1, -1)) if r > 0]
    return [
        integrate.quad(f, -12, 12 + a, points=sorted(kinks), limit=400, epsabs=1e-13, epsrel=1e-10)[0]
        for f in (forward, backward)
    ]


@pytest.mark.parametrize("noise_multiplier", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_one_epoch_of_two_rounds_against_quadrature(noise_multiplier, participation):
    """Every test, each way, is below the exact profile of the pair; the best of them comes within a percent of it."""
    pair = shuffled._Pair(2, 1 / noise_multiplier, 0.0, participation)
    for epsilon in (0.0, 0.3, 1.0, 2.5):
        truth = two_rounds(1 / noise_multiplier, epsilon, participation)
        for one, exact in zip((pair, pair.reversed()), truth, strict=True):
            for test in shuffled._TESTS:
                seen = test(one, 1e-20)
                if seen is not None:
                    assert shuffled._one_epoch(seen, epsilon) <= exact * (1 + 1e-8) + 1e-12, test.__name__
        found = epoch_profile(epsilon, 2, noise_multiplier, participation)
        # Without the ratio (σ < 0.6) the maximum loses more. The transform's error, 1e-12 or so, is taken off.
        assert found >= (0.99 if noise_multiplier > 0.6 else 0.9) * max(truth) - 1e-11


def updates(rng, count, rounds, noise_multiplier, present, epochs=1, contributions=2, per_contribution=3):
    """`count` runs of the mechanism itself, batch clipping, as the adversary sees it: shape [count, epochs, rounds].

    Loss −w·ξ, gradient −ξ whatever the weights (one dimension is enough). All examples but the first are −1, clip norm
    C = 1, and the first is ±1000: it outvotes the others of its contribution, which clipping then takes to ±C.
    """
    size = contributions * per_contribution
    examples = np.full(rounds * size, -1.0)
    examples[0] = 1000.0 if present else -1000.0
    order = rng.permuted(np.tile(np.arange(rounds * size), (count * epochs, 1)), axis=1)
    means = examples[order].reshape(count, epochs, rounds, contributions, per_contribution).mean(-1)
    sums = np.clip(means, -1.0, 1.0).sum(-1)
    noise_std = 2 * noise_multiplier
    noisy = sums + noise_std * rng.standard_normal(sums.shape)
    return (noisy + contributions) / noise_std  # in units of the noise, without what the others add


@pytest.mark.parametrize("rounds, epochs", [(2, 1), (3, 1), (2, 2), (3, 2)])
def test_below_the_optimal_attack_on_the_mechanism(rounds, epochs):
    """Shuffle, clip and add noise as training does; the likelihood-ratio test is optimal, so that it measures the truth.

    Hoeffding's bound on the mean of numbers in [0, 1]: false alarms of all assertions here together < 2 FALSE_ALARM.
    """
    rng, count, noise_multiplier = np.random.default_rng(7 + rounds + 10 * epochs), 150_000, 1.0
    radius = math.sqrt(math.log(1 / (FALSE_ALARM / 16)) / (2 * count))
    for present in (True, False):
        seen = updates(rng, count, rounds, noise_multiplier, present, epochs)
        ratio = np.exp(seen / noise_multiplier - 1 / (2 * noise_multiplier**2)).mean(-1)
        loss = np.log(ratio).sum(-1) * (1 if present else -1)
        for epsilon in (0.5, 1.5):
            truth = float(np.maximum(-np.expm1(epsilon - loss), 0.0).mean())
            if epochs == 1:
                pair = shuffled._Pair(rounds, 1 / noise_multiplier, 0.0, 1.0)
                one = pair if present else pair.reversed()
                found = max(shuffled._one_epoch(test(one, 1e-20), epsilon) for test in shuffled._TESTS)
                assert found <= truth + radius
                assert found >= 0.97 * (truth - radius), "the likelihood ratio is observed almost unrounded"
            elif present:  # the better direction
                assert lower_bound(rounds, noise_multiplier, epochs * rounds, truth + radius) <= epsilon
                assert lower_bound(rounds, noise_multiplier, epochs * rounds, truth - radius) >= 0.93 * epsilon


@pytest.mark.parametrize(
    "noise, rounds, epochs, reference",
    [(1, 10, 1, 4.343), (1, 100, 1, 4.063), (1, 1000, 1, 2.882), (2, 100, 10, 0.944), (1.1, 235, 60, 10.82)],
)
def test_reference_values(noise, rounds, epochs, reference):
    found = zero_out_lower_bound(rounds, noise, epochs, 1e-5)
    if epochs == 1:
        assert found == pytest.approx(reference, abs=5.1e-4)
    # The references for several epochs come from coarser slices: they are lower bounds of the same quantity.
    assert reference <= found + 5.1e-4
    assert found <= reference * 1.005
    assert found <= pessimistic_maximum(noise, rounds, epochs, 1e-5)


def pessimistic_maximum(noise, rounds, epochs, delta):
    """An upper bound on ε of the zero-out pair seen through its maximum, by dp-accounting: slices' largest losses."""
    from dp_accounting.pld import pld_pmf

    a, b = 2 / noise, 1 / noise
    cuts = np.linspace(-3, a + 9, 40_001)

    def log_density(x, mean):
        """log f/(φ(x) Φ(x)^{T−2}) of the maximum."""
        return np.logaddexp(
            mean * x - mean**2 / 2 + stats.norm.logcdf(x), math.log(rounds - 1) + stats.norm.logcdf(x - mean)
        )

    cdf = stats.norm.cdf(cuts - a) * stats.norm.cdf(cuts) ** (rounds - 1)
    ratio = log_density(cuts, a) - log_density(cuts, b)
    assert np.all(np.diff(ratio) > -1e-12), "increasing: a slice's largest loss is at its upper end"
    step = 5e-4 if epochs < 20 else 1e-4
    index = np.ceil(ratio[1:] / step).astype(int)
    weights = np.bincount(index - index.min(), np.diff(cdf))
    lost = 1 - weights.sum()
    law = pld_pmf.DensePLDPmf(step, int(index.min()), weights, float(lost), True)
    with np.errstate(over="ignore"):  # within dp-accounting
        return law.self_compose(epochs).get_epsilon_for_delta(delta)


def test_one_round_per_epoch_is_the_gaussian():
    for noise_multiplier, epochs, delta in ((1.0, 1, 1e-5), (2.0, 7, 1e-9), (0.1, 3, 1e-5), (30.0, 100, 1e-3)):
        exact = Gaussian(math.sqrt(epochs) / noise_multiplier).epsilon(delta)
        assert exact * (1 - 1e-6) <= lower_bound(1, noise_multiplier, epochs, delta) <= exact
    # The sliced observation too.
    for epsilon in (0.0, 1.0, 3.0, 6.0):
        exact = Gaussian(1.0).delta(epsilon)
        assert exact * (1 - 1e-4) <= epoch_profile(epsilon, 1, 1.0) <= exact


@pytest.mark.parametrize(
    "rate, noise_multiplier, rounds", [(0.2, 1.0, 10), (0.9, 2.0, 50), (0.05, 0.7, 200), (0.5, 0.5, 3)]
)
def test_one_round_per_epoch_is_poisson(rate, noise_multiplier, rounds):
    """T = 1 and p < 1 is exactly the pair of Poisson sampling: an oracle for the composition."""
    for delta in (1e-8, 1e-5, 1e-2):
        exact = poisson(rate, noise_multiplier, rounds).epsilon(delta)
        found = lower_bound(1, noise_multiplier, rounds, delta, participation=rate)
        assert 0.995 * exact - 1e-4 <= found <= exact


@settings(max_examples=6)
@given(
    rounds_per_epoch=st.integers(1, 2000),
    noise_multiplier=st.floats(0.05, 100),
    epochs=st.integers(0, 20),
    rest=st.floats(0, 0.99),
    log_delta=st.floats(-12, -1),
    participation=st.floats(0.5, 1),
)
@pytest.mark.slow
def test_never_above_the_upper_bound(rounds_per_epoch, noise_multiplier, epochs, rest, log_delta, participation):
    """Section 2: whoever sees which round an example is in learns no more than G_{√E/σ} tells."""
    rounds = epochs * rounds_per_epoch + int(rest * rounds_per_epoch)
    upper = Gaussian(math.sqrt(math.ceil(rounds / rounds_per_epoch)) / noise_multiplier) if rounds else None
    delta = 10.0**log_delta
    found = lower_bound(rounds_per_epoch, noise_multiplier, rounds, delta, participation)
    assert 0 <= found <= (upper.epsilon(delta) if upper else 0.0)


@pytest.mark.slow
def test_grows_with_rounds_and_participation():
    """pitfall 23."""
    for noise_multiplier in (0.3, 1.0):
        previous = 0.0
        for rounds in (5, 10, 15, 100):
            found = lower_bound(10, noise_multiplier, rounds, 1e-5, participation=0.95)
            assert found >= previous * (1 - 1e-4)
            assert found > previous or found == 0
            previous = found
        assert previous <= lower_bound(10, noise_multiplier, 100, 1e-5)
        assert previous == lower_bound(10, noise_multiplier, 100, 1e-5, participation=0.95)


def test_limits():
    """pitfalls 23 and 27."""
    assert lower_bound(100, 1e6, 1000, 1e-5) == 0.0
    assert lower_bound(100, 1.0, 0, 1e-5) == 0.0
    # Without noise worth the name, the bound tends to what the upper bound says.
    assert lower_bound(10, 0.05, 1000, 1e-5) >= 0.98 * Gaussian(math.sqrt(100) / 0.05).epsilon(1e-5)
    # Large σ: the sum of all updates, G_{√(E/T)/σ}, is all there is.
    assert lower_bound(10, 50.0, 1000, 1e-5) == pytest.approx(Gaussian(math.sqrt(10) / 50).epsilon(1e-5), rel=1e-3)
    # Far out, an epoch is worth its hit round, but for a factor T in the odds: ε about log T below the Gaussian's.
    for delta in (1e-20, 1e-100, 1e-250):
        upper = Gaussian(1.0).epsilon(delta)
        assert upper - math.log(10) - 0.5 <= lower_bound(10, 1.0, 10, delta) <= upper
        upper = Gaussian(math.sqrt(3)).epsilon(delta)
        assert upper - 3 * math.log(10) - 0.5 <= lower_bound(10, 1.0, 30, delta) <= upper
    with np.errstate(all="raise", under="ignore"):
        assert np.isfinite(lower_bound(3, 1e-3, 3, 1e-5))


def test_the_ratio_beats_maximum_and_sum_in_between():
    pair, tests = shuffled._Pair(100, 1.0, 0.0, 1.0), shuffled._TESTS
    run = shuffled._Run(pair, 10, 0)
    maximum, total, ratio = (run._tested(test, pair, 1e-5) for test in tests)
    assert ratio > 1.3 * max(maximum, total)
    assert ratio <= lower_bound(100, 1.0, 1000, 1e-5)
    # Its law under M_b is computed for b = 0 or a = 0 alone.
    assert shuffled._Pair(100, 1.0, 0.5, 1.0).by_ratio(1e-20) is None


def test_laws_of_the_rounded_ratio_are_relatively_accurate():
    base, moved = shuffled._ratio_laws(0.8, 50, 1 << 8)
    assert base.sum() == pytest.approx(1, abs=1e-13) and moved.sum() == pytest.approx(1, abs=1e-13)
    grain = max(math.sqrt(math.expm1(0.64)) * min(1 / 12, math.sqrt(50) / 1024), math.exp(0.8 * 6.3 - 0.32) / (1 << 8))
    with mp.workdps(40):
        for k in (0, 1, 7, 200, base.size - 1):
            ends = [
                (mp.log((k + side) * mp.mpf(grain)) + mp.mpf("0.32")) / mp.mpf("0.8")
                for side in (-0.5, 0.5)
                if k + side > 0
            ]
            low, high = (ends if len(ends) == 2 else (-mp.inf, ends[0])) if k < base.size - 1 else (ends[0], mp.inf)
            for mean, law in ((0, base), (mp.mpf("0.8"), moved)):
                exact = (mp.erfc((low - mean) / mp.sqrt(2)) - mp.erfc((high - mean) / mp.sqrt(2))) / 2
                assert abs(law[k] / exact - 1) < 1e-12


def test_slices_enclose_their_weights():
    """40 digits, tails included: what is computed is off by less than it says."""
    cuts = np.array([-1.0, 0.5, 2.0, 2.001, 5.0, 12.0, 20.0, 37.0])
    for rounds, shift, p in ((1, 1.0, 1.0), (50, 20.0, 0.7), (10**6, 0.3, 1.0)):
        found, wrong = shuffled._masses(cuts, rounds, shift, p)
        with mp.workdps(400):
            cdf = [
                ((1 - mp.mpf(p)) * mp.ncdf(c) + mp.mpf(p) * mp.ncdf(mp.mpf(c) - mp.mpf(shift)))
                * mp.ncdf(c) ** (rounds - 1)
                for c in map(mp.mpf, cuts.tolist())
            ]
            exact = [b - a for a, b in zip([mp.mpf(0), *cdf], [*cdf, mp.mpf(1)], strict=True)]
            for value, slack, truth in zip(found, wrong, exact, strict=True):
                assert abs(mp.mpf(value) - truth) <= slack + 5e-324
                assert slack <= 1e-7 * truth + 1e-300 or truth < 1e-10 or slack < 1e-12


@pytest.mark.parametrize(
    "change, name",
    [
        ({"rounds_per_epoch": 0}, "rounds_per_epoch"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"rounds": -1}, "rounds"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"participation": 0.0}, "participation"),
        ({"participation": 1.1}, "participation"),
    ],
)
def test_arguments(change, name):
    arguments = {"rounds_per_epoch": 10, "noise_multiplier": 1.0, "rounds": 20, "delta": 1e-5, "participation": 1.0}
    with pytest.raises(ValueError, match=rf"{name} must be .*got {name}="):
        lower_bound(**(arguments | change))


def test_the_profile_takes_arrays():
    grid = np.array([[0.0, 1.0], [2.0, 500.0]])
    found = epoch_profile(grid, 20, 0.7)
    assert found.shape == grid.shape and found[0, 0] > found[0, 1] > found[1, 0] > found[1, 1] >= 0
    assert isinstance(epoch_profile(1.0, 20, 0.7), float)
    with pytest.raises(ValueError, match="epsilon must be"):
        epoch_profile(-1.0, 20, 0.7)
    with pytest.raises(ValueError, match="epsilon must be"):
        epoch_profile(math.nan, 20, 0.7)
