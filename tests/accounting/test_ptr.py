"""Propose-Test-Release against the mechanism itself, 30-digit integrals, brute force over margins, and dp-accounting."""

import dataclasses
import itertools
import math
import tracemalloc

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special

from tfdpbc.accounting import Gaussian, _ptr_lattice, _ptr_pairs, _rounds, ptr, renyi
from tfdpbc.accounting.best import Best
from tfdpbc.accounting.ptr import ProposeTestRelease

PAPER = ProposeTestRelease(20, 6.0, 2.0, 0.1, 1.0, 1.0)
SMALL = ProposeTestRelease(3, 1.4, 0.7, 0.4, 1.0, 1.3, 0.9)


def passes(release, margin):
    x = (mp.mpf(release.threshold) - margin) / mp.mpf(release.laplace_scale)
    return mp.exp(-x) / 2 if x >= 0 else 1 - mp.exp(x) / 2


def neighbours(release):
    for first, second in itertools.product(range(release.trim + 1), repeat=2):
        if abs(first - second) <= 1:
            yield first, second


def branches(release, first, second):
    """[(p, p', r)] in high precision."""
    usual = mp.mpf(1) / release.release_noise
    wrong = mp.mpf(release.clip_norm) / release.release_norm / release.release_noise
    p, other = passes(release, first), passes(release, second)
    fail = mp.mpf(1) / release.fallback_noise
    return [(p, other, wrong if first == second == 0 else usual), (1 - p, 1 - other, fail)]


def exact_delta(release, epsilon, q):
    """max over pairs and directions of ∫ (density − e^ε density)₊, from the likelihood-ratio test; 40 digits."""
    with mp.workdps(40):
        q, gamma, best = mp.mpf(q), mp.exp(mp.mpf(epsilon)), mp.mpf(0)
        for first, second in neighbours(release):
            forward = reverse = mp.mpf(0)
            for p, other, r in branches(release, first, second):
                for sign, reach in ((1, gamma - (1 - q)), (-1, 1 / gamma - (1 - q))):
                    if reach <= 0:
                        test = mp.inf * -sign if sign == 1 else -mp.inf  # always, or never
                        test = -mp.inf
                    else:
                        test = mp.log(reach * p / (q * other)) / r + r / 2
                    if sign == 1:
                        base, hit = mp.ncdf(-test), mp.ncdf(r - test)
                        forward += p * (1 - q) * base + q * other * hit - gamma * p * base
                    else:
                        base, hit = mp.ncdf(test), mp.ncdf(test - r)
                        reverse += p * base - gamma * (p * (1 - q) * base + q * other * hit)
            best = max(best, forward, reverse)
        return float(best)


def test_reference_values():
    assert PAPER.pass_probability(0) == pytest.approx(0.024893534184, rel=1e-9)
    assert PAPER.pass_probability(20) == pytest.approx(0.999544059017, rel=1e-9)
    assert PAPER.renyi(2) == pytest.approx(96.306852819, rel=1e-9)
    assert PAPER.renyi(2, 0.02) == pytest.approx(88.482806809, rel=1e-9)
    # accounting.md section 6 gives .157162719 and 4.98002e-4; the first is right to 1e-7 only (see exact_delta).
    assert PAPER.delta(1.0) == pytest.approx(0.157162719, rel=2e-7)
    assert PAPER.delta(1.0, 0.02) == pytest.approx(4.98002e-4, rel=1e-5)


@pytest.mark.parametrize("rate", [1.0, 0.01, 1e-7])
@pytest.mark.parametrize("release", [PAPER, SMALL], ids=["paper", "small"])
def test_the_profile_is_the_largest_of_all_pairs_to_forty_digits(release, rate):
    for epsilon in (-3.0, -0.4, -1e-3, 0.0, 1e-3, 0.25, 1.0, 4.0, 30.0):
        truth, found = exact_delta(release, epsilon, rate), release.delta(epsilon, rate)
        assert truth <= found <= truth * (1 + 1e-9) + 1e-300, (epsilon, truth, found)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 12),
    st.floats(-4, 16),
    st.floats(0.1, 6),
    st.floats(0.05, 1),
    st.floats(0.3, 5),
    st.floats(0.3, 5),
    st.sampled_from([1.0, 0.4, 0.02]),
)
def test_a_dozen_pairs_stand_for_all(trim, threshold, scale, norm, sigma, fallback, rate):
    release = ProposeTestRelease(trim, threshold, scale, norm, 1.0, sigma, fallback)
    every = _ptr_pairs.make(_ptr_pairs.all_margins(trim), threshold, scale, release.shifts)
    worst = release._pairs()
    assert len(every.margins) == len(list(neighbours(release)))
    assert len(worst.margins) <= 15
    epsilon = np.array([-2.0, -0.1, 0.0, 0.05, 0.7, 3.0, 9.0])
    mine, all_of_them = (_ptr_pairs.largest_profile(pairs, epsilon, rate) for pairs in (worst, every))
    np.testing.assert_allclose(mine, all_of_them, rtol=1e-10, atol=1e-300)
    for order in (1.3, 2, 20):
        mine, all_of_them = (_ptr_pairs.log_moments(pairs, np.array([order])).max() for pairs in (worst, every))
        assert mine == pytest.approx(all_of_them, rel=1e-10, abs=1e-14)


def exact_moment(release, first, second, power, q):
    """log E_B[(M/B)^power] by scipy's adaptive quadrature, branch by branch."""
    total = 0.0
    for p, other, r in branches(release, first, second):
        p, ratio, r = float(p), float(other / p), float(r)

        def integrand(x, p=p, ratio=ratio, r=r):
            density = 1 - q + q * ratio * math.exp(r * x - r * r / 2)
            return p * math.exp(-x * x / 2) / math.sqrt(2 * math.pi) * density**power

        peaks = [0.0, r, power * r] if power > 0 else [0.0, power * r]
        cuts = np.unique(np.concatenate([np.linspace(min(peaks) - 12, max(peaks) + 12, 60), peaks]))
        total += sum(integrate.quad(integrand, a, b, epsabs=0, epsrel=1e-11)[0] for a, b in itertools.pairwise(cuts))
    return math.log(total)


@pytest.mark.parametrize("order", [1.2, 2.0, 3.7, 9.0])
@pytest.mark.parametrize("rate", [1.0, 0.25, 0.01])
def test_renyi_is_the_largest_integral_over_all_pairs_and_directions(order, rate):
    truth = max(
        exact_moment(SMALL, first, second, power, rate)
        for first, second in neighbours(SMALL)
        for power in (order, 1 - order)
    ) / (order - 1)
    assert truth * (1 - 1e-8) <= SMALL.renyi(order, rate) <= truth * (1 + 1e-7)


def test_quadrature_keeps_the_digits_of_tiny_moments():
    # q = 1e-6: E − 1 is about q²·χ²·α(α−1)/2, far below an ulp of E. Order 2 forward has a closed form to compare with.
    pairs = SMALL._pairs()
    for pair in range(len(pairs.margins)):
        closed = _ptr_pairs.sampled_moments(pairs, 2, 1e-6)[pair]
        assert 0 < closed < 1e-8
        assert _ptr_pairs.quadrature_moment(pairs, pair, 2.0, 1e-6) == pytest.approx(closed, rel=1e-7)
        assert _ptr_pairs.quadrature_moment(pairs, pair, 5.0, 0.1) == pytest.approx(
            _ptr_pairs.sampled_moments(pairs, 5, 0.1)[pair], rel=1e-7
        )


def test_renyi_arguments_and_shapes():
    assert PAPER.renyi(np.inf) == np.inf
    assert PAPER.renyi([[2, 3.5]], 0.02).shape == (1, 2)
    assert PAPER.renyi(2) == pytest.approx(PAPER.renyi(2, 1 - 1e-12), rel=1e-6), "pitfall 27: q = 1 is no sampling"
    for order in (1, 0.5, np.nan):
        with pytest.raises(ValueError, match="order must be numbers > 1"):  # pitfall 25
            PAPER.renyi(order)
    plain = PAPER.plain_renyi(8.0)
    assert plain == pytest.approx(renyi.laplace(8.0, 2.0) + 8 * 100 / 2, rel=1e-12)
    for order in (1.1, 2, 8, 64):
        assert PAPER.renyi(order) < PAPER.plain_renyi(order)


@pytest.mark.parametrize("release", [PAPER, SMALL], ids=["paper", "small"])
@pytest.mark.parametrize("rate", [1e-4, 0.02, 0.3, 1.0])
def test_white_box_lies_between_the_black_box_bounds(release, rate):
    for order in (2, 3, 8, 40):
        lower, white = release.black_box_lower(order, rate), release.renyi(order, rate)
        assert 0 < lower <= white * (1 + 1e-12)
        assert white <= release.black_box_upper(order, rate) * (1 + 1e-7)


class Mechanism:
    """Propose-Test-Release on numbers, written from its definition; vectorised over runs."""

    def __init__(self, release, seed):
        self.release, self.generator = release, np.random.default_rng(seed)

    def margin(self, values):
        """min{r : LS^(r) > τ}, with LS^(r) the norm of rank n − F + 1 + r, 0 below rank 1, and C from r = F on."""
        trim, norms = self.release.trim, np.sort(np.abs(values))
        for r in range(trim):
            rank = norms.size - trim + 1 + r
            if rank >= 1 and norms[rank - 1] > self.release.release_norm:
                return r
        return trim

    def run(self, values, runs):
        """(pass?, output) of `runs` independent releases."""
        release, values = self.release, np.asarray(values, float)
        noise = self.generator.laplace(0.0, release.laplace_scale, runs)
        passed = self.margin(values) + noise > release.threshold
        trimmed = values[np.argsort(np.abs(values), kind="stable")][: max(0, values.size - release.trim)].sum()
        normal = self.generator.standard_normal(runs)
        small = trimmed + release.release_norm * release.release_noise * normal
        large = values.sum() + release.clip_norm * release.fallback_noise * normal
        return passed, np.where(passed, small, large)

    def sampled(self, values, extra, rate, runs):
        """As run, with `extra` present in each run with probability `rate`."""
        there = self.generator.random(runs) < rate
        first, second = self.run(values, runs), self.run([*values, extra], runs)
        return tuple(np.where(there, b, a) for a, b in zip(first, second, strict=True))


def log_density(release, mechanism, values, passed, output):
    """log of the density of (passed, output) on `values`, for the optimal test."""
    margin = mechanism.margin(np.asarray(values, float))
    p = release.pass_probability(margin)
    trimmed = np.asarray(values)[np.argsort(np.abs(values), kind="stable")][: max(0, len(values) - release.trim)].sum()
    mean = np.where(passed, trimmed, np.sum(values))
    scale = np.where(passed, release.release_norm * release.release_noise, release.clip_norm * release.fallback_noise)
    return np.log(np.where(passed, p, 1 - p)) - ((output - mean) / scale) ** 2 / 2 - np.log(scale)


DATA = [
    ([0.9, -1.0, 1.0, 0.2, -0.3], 1.0),  # margin 0 on both sides: a wrong pass releases a step up to C
    ([1.0, 1.0, 1.0, 1.0], 1.0),
    ([0.9, 0.8, 0.1, 0.4, -0.4], -1.0),  # margin 1 to 0
    ([0.4, -0.4, 0.4], 0.4),  # full margin
    ([], 1.0),
]


@pytest.mark.parametrize("values, extra", DATA)
def test_the_margin_moves_by_one_at_most_and_has_the_short_form(values, extra):
    mechanism = Mechanism(SMALL, 0)
    for data in (values, [*values, extra]):
        assert mechanism.margin(np.array(data)) == max(0, SMALL.trim - np.sum(np.abs(data) > SMALL.release_norm))
    assert abs(mechanism.margin(np.array(values)) - mechanism.margin(np.array([*values, extra]))) <= 1


@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("values, extra", DATA)
def test_the_mechanism_itself_keeps_the_profile(values, extra, rate):
    """Monte Carlo, 2e5 runs a side, the likelihood-ratio test of the true densities; false alarms below 1e-6 in all."""
    runs, mechanism = 200_000, Mechanism(SMALL, 7)
    without = mechanism.run(values, runs)
    with_it = mechanism.sampled(values, extra, rate, runs)

    def loss(outcome):
        base = log_density(SMALL, mechanism, values, *outcome)
        hit = log_density(SMALL, mechanism, [*values, extra], *outcome)
        if rate == 1.0:
            return hit - base
        return np.logaddexp(np.log1p(-rate), np.log(rate) + hit - base)

    tail = 5.8  # deviations: two-sided 7e-9 a test, 60 tests
    for first, second, sign in ((with_it, without, 1), (without, with_it, -1)):
        for epsilon in (0.0, 0.3, 1.0):
            p, q = (np.mean(sign * loss(outcome) > epsilon) for outcome in (first, second))
            found = p - math.exp(epsilon) * q
            error = tail * math.sqrt((p * (1 - p) + math.exp(2 * epsilon) * q * (1 - q) + 1e-5) / runs)
            assert found <= SMALL.delta(epsilon, rate) + error


def test_the_profile_is_attained_by_the_worst_data():
    """At margin 0 on both sides, adding a number that moves the trimmed sum by C: what the first pair says, within 1 %."""
    release = ProposeTestRelease(1, 1.0, 1.0, 0.5, 1.0, 1.0, 1.0)
    mechanism, runs = Mechanism(release, 3), 1_000_000
    values, extra = [1.0, 1.0], 1.0
    pairs = _ptr_pairs.make([[0, 0]], release.threshold, release.laplace_scale, release.shifts)
    first, second = mechanism.run([*values, extra], runs), mechanism.run(values, runs)

    def loss(outcome):
        return log_density(release, mechanism, [*values, extra], *outcome) - log_density(
            release, mechanism, values, *outcome
        )

    p, q = np.mean(loss(first) > 1.0), np.mean(loss(second) > 1.0)
    truth = float(_ptr_pairs.largest_profile(pairs, np.array([1.0]), 1.0)[0])
    assert p - math.e * q == pytest.approx(truth, abs=6 * math.sqrt((p + math.e**2 * q) / runs))
    assert truth == pytest.approx(exact_delta(release, 1.0, 1.0), rel=0.05) or truth < exact_delta(release, 1.0, 1.0)


@pytest.mark.parametrize("rate", [1.0, 0.3, 0.01])
@pytest.mark.parametrize("release", [PAPER, SMALL], ids=["paper", "small"])
def test_one_round_on_the_lattice_is_the_profile(release, rate):
    found = release.trade_off(rate, 1)
    for epsilon in (0.0, 0.01, 0.31, 1.0, 2.7, 20.0):
        truth, lattice = release.delta(epsilon, rate), found.delta(epsilon)
        assert truth * (1 - 1e-12) <= lattice <= truth * 1.002 + 1e-17, (epsilon, truth, lattice)
    for direction in found.directions:
        assert direction.weights.sum() + direction.infinity == pytest.approx(1.0, abs=1e-13)
        assert direction.weights.min() >= 0


@pytest.mark.parametrize("rate", [1.0, 0.05])
def test_negative_losses_are_exact_too(rate):
    """Composition needs the whole law: δ(−ε) − (1 − e^{−ε}) = e^{−ε} times the other direction's δ(ε).

    Up to 1e-11: a weight is rounded up by 1e-13 of δ over the width of its cell where the largest pair changes.
    """
    epsilon = np.array([1e-3, 0.02, 0.3, 0.9, 2.0])
    profiles = [profile.max(axis=0) for profile in _ptr_pairs.profiles(SMALL._pairs(), epsilon, rate)]
    for direction, other in zip(SMALL.trade_off(rate, 1).directions, profiles[::-1], strict=True):
        found = direction.delta(-epsilon) + np.expm1(-epsilon)
        np.testing.assert_array_less(np.exp(-epsilon) * other - 1e-14, found)
        np.testing.assert_array_less(found, np.exp(-epsilon) * other * 1.003 + 1e-11)


@pytest.mark.parametrize("rate", [1.0, 0.2])
def test_two_rounds_against_the_double_integral(rate):
    """Two rounds at margins (0, 0): E_{P×P}[(1 − e^{ε−L₁−L₂})₊] on a fine grid of both outputs, both directions."""
    release = ProposeTestRelease(0, 1.0, 0.8, 0.5, 1.0, 1.5, 1.0)
    found = release.trade_off(rate, 2)
    losses, base, mixed = [], [], []
    for p, other, r in branches(release, 0, 0):
        x = np.linspace(-9, 9 + float(r), 1201)
        step = x[1] - x[0]
        density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi) * step * float(p)
        ratio = 1 - rate + rate * float(other / p) * np.exp(float(r) * x - float(r) ** 2 / 2)
        losses.append(np.log(ratio))
        base.append(density)
        mixed.append(density * ratio)
    losses, base, mixed = map(np.concatenate, (losses, base, mixed))
    for epsilon in (0.1, 0.8, 2.0):
        both = losses[:, None] + losses
        remove = np.sum(np.multiply.outer(mixed, mixed) * np.maximum(-np.expm1(epsilon - both), 0))
        add = np.sum(np.multiply.outer(base, base) * np.maximum(-np.expm1(epsilon + both), 0))
        truth = max(remove, add)
        assert truth * (1 - 1e-4) <= found.delta(epsilon) <= truth * 1.003


def subsampled_gaussian(sigma, rate, rounds, pessimistic):
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        sigma,
        sampling_prob=rate,
        value_discretization_interval=2e-4,
        pessimistic_estimate=pessimistic,
        use_connect_dots=pessimistic,
    ).self_compose(rounds)


@pytest.mark.parametrize(
    "release, sigma",
    [
        (ProposeTestRelease(5, -1e9, 2.0, 0.5, 1.0, 2.4, 0.3), 1.2),  # always passes; margins 0 move by C = 2τ
        (ProposeTestRelease(5, 1e9, 2.0, 0.5, 1.0, 0.1, 1.2), 1.2),  # always fails
    ],
    ids=["always", "never"],
)
def test_without_a_test_it_is_the_sampled_gaussian_of_dp_accounting(release, sigma):
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    rate, rounds = 0.02, 300
    found = release.trade_off(rate, rounds)
    for delta in (1e-7, 1e-4):
        upper, lower = (
            subsampled_gaussian(sigma, rate, rounds, side).get_epsilon_for_delta(delta) for side in (True, False)
        )
        assert lower <= found.epsilon(delta) <= upper * 1.002
    for order in (2, 7.25, 32):  # at order 1.5 dp-accounting is 5 % above the integral, which the tests above check
        peer = RdpAccountant([order]).compose(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)))
        assert release.renyi(order, rate) == pytest.approx(peer._rdp[0], rel=1e-5)
    assert release.trade_off(1.0, 1).epsilon(1e-5) == pytest.approx(Gaussian(1 / sigma).epsilon(1e-5), rel=2e-3)
    assert release.trade_off(1.0, 1).epsilon(1e-5) >= Gaussian(1 / sigma).epsilon(1e-5)


@pytest.mark.parametrize(
    "release, rate, rounds",
    [(PAPER, 0.02, 1), (PAPER, 0.3, 10), (SMALL, 1e-4, 20_000)],
)
def test_loss_distributions_beat_renyi_under_sampling_and_every_bound_is_in_order(release, rate, rounds):
    bounds = release.bounds(1e-5, rate, rounds)
    assert bounds["pld"] <= 1.002 * bounds["rdp"]
    assert bounds["lower_bound"] <= bounds["rdp"] <= bounds["black_box"]
    assert bounds["pld"] <= bounds["advanced_composition"]
    name, epsilon = release.accountant(1e-5, rate, rounds)
    assert epsilon == release.epsilon(1e-5, rate, rounds) == bounds[name] == min(bounds["pld"], bounds["rdp"])


def test_where_the_largest_profile_of_all_pairs_is_worse_than_each_pair_renyi_is_reported():
    # Little noise but the test's: no single pair has the largest profile, and 1000 unsampled rounds pay for each round's
    # maximum. Rényi takes the maximum once per order.
    release = ProposeTestRelease(20, 6.0, 2.0, 0.1, 1.0, 100.0)
    assert release.accountant(1e-5, 1.0, 1000)[0] == "rdp"
    assert PAPER.accountant(1e-5, 0.02, 100)[0] == "pld"


def test_a_rare_wrong_pass_costs_its_probability_not_its_price():
    # Pr[wrong pass in any round] < 1e-13, its loss about 3000: the loss distribution must not pay for it at δ = 1e-6.
    release = ProposeTestRelease(64, 40.0, 1.0, 0.02, 1.0, 1.0)
    found = release.trade_off(0.01, 500)
    assert isinstance(found, Best)
    assert found.epsilon(1e-6) < 4
    assert release.renyi_epsilon(1e-6, 0.01, 500) > 10 * found.epsilon(1e-6)
    alpha = np.array([0.0, 1e-3, 0.3, 1.0])
    for bound in found.curves:
        assert np.all(found.f(alpha) >= bound.f(alpha))
        assert np.all(found.delta([0.1, 3.0]) <= bound.delta([0.1, 3.0]))


@pytest.mark.parametrize(
    "release, rate, rounds, delta",
    [
        (PAPER, 0.02, 100, 1e-5),
        (SMALL, 0.05, 200, 1e-6),
        (ProposeTestRelease(1000, 500.0, 10.0, 0.5, 1.0, 5.0), 0.01, 10_000, 1e-6),
        (ProposeTestRelease(20, 6.0, 2.0, 0.1, 1.0, 100.0), 0.01, 1000, 1e-5),
    ],
)
def test_the_lattice_is_within_two_thousandths_of_a_finer_one(release, rate, rounds, delta, monkeypatch):
    found = release.trade_off(rate, rounds).epsilon(delta)
    monkeypatch.setattr(_ptr_lattice, "_FINE", 100)
    monkeypatch.setattr(_ptr_lattice, "_TOTAL", 1 << 21)
    monkeypatch.setattr(_ptr_lattice, "_WIDE", 1 << 18)
    monkeypatch.setattr(_rounds, "_GROWTH", 512)
    finer = ptr._trade_off.__wrapped__(release, rate, rounds).epsilon(delta)
    assert finer * (1 - 1e-6) <= found <= finer * 1.002


def test_guarantees_grow_with_every_cost_and_repeat():
    def both(release, delta, rate, rounds):
        return release.trade_off(rate, rounds).epsilon(delta), release.renyi_epsilon(delta, rate, rounds)

    base = both(SMALL, 1e-5, 0.02, 50)
    assert both(SMALL, 1e-5, 0.02, 50) == base
    assert SMALL.epsilon(1e-5, 0.02, 50) == min(base)
    louder = dataclasses.replace(SMALL, release_noise=1.0)
    for more in ((SMALL, 1e-5, 0.02, 80), (SMALL, 1e-5, 0.03, 50), (SMALL, 1e-6, 0.02, 50), (louder, 1e-5, 0.02, 50)):
        assert np.all(np.array(both(*more)) > base)
    assert SMALL.epsilon(1e-5, 0.02, 0) == 0.0
    bounds = SMALL.bounds(1e-5, 0.02, 0)
    assert bounds == dict.fromkeys(["rdp", "pld", "advanced_composition", "black_box", "lower_bound"], 0.0)
    # pitfall 23: little enough is 0.
    quiet = ProposeTestRelease(20, 6.0, 100.0, 1.0, 1.0, 100.0)
    assert quiet.epsilon(1e-3, 1e-4, 1) == 0.0


def test_pitfall_27_tiny_noise_and_extreme_epsilon_are_finite():
    loud = ProposeTestRelease(20, 6.0, 2.0, 0.1, 1.0, 0.05)
    found = loud.bounds(1e-5, 1.0, 3)
    assert all(709 < value < np.inf for value in found.values())
    far = ProposeTestRelease(20, 6.0, 2.0, 0.004, 1.0, 0.05)  # means 5 000 deviations apart: the lattice gives up
    assert far.trade_off(0.01, 10).epsilon(1e-5) == np.inf
    name, epsilon = far.accountant(1e-5, 0.01, 10)
    assert name == "rdp"
    assert np.isfinite(epsilon)


def test_a_million_rounds_stay_within_memory():
    tracemalloc.start()
    found = PAPER.trade_off(1e-5, 1_000_000).epsilon(1e-5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0 < found < 1000
    assert peak < 1e9


def test_advanced_composition_is_the_textbook_formula():
    """One grid point by hand, and T = 1 without any composition."""
    one = PAPER.advanced_composition(0.1, 1.0, 1)
    wrong_pass = 0.5 + Gaussian(1.0).epsilon(0.1 - PAPER.pass_probability(0))
    assert one == pytest.approx(wrong_pass, rel=1e-9)
    share, delta, rate, rounds = 0.95, 1e-2, 1e-3, 100
    epsilon = 0.5 + Gaussian(10.0).epsilon(delta * (1 - share) / (rate * rounds))
    epsilon = math.log1p(rate * math.expm1(epsilon))
    total = math.sqrt(2 * rounds * math.log(1 / (share * delta))) * epsilon + rounds * epsilon * math.expm1(epsilon)
    assert PAPER.advanced_composition(delta, rate, rounds) <= total


@pytest.mark.parametrize(
    "change, error",
    [
        ({"trim": -1}, "trim must be an integer >= 0; got trim=-1"),
        ({"trim": 2.5}, "trim must be an integer"),
        ({"threshold": np.inf}, "threshold must be a finite number"),
        ({"laplace_scale": 0.0}, "laplace_scale must be a finite number > 0"),
        ({"release_norm": 1.5}, "release_norm must be a finite number > 0 and <= 1"),
        ({"clip_norm": np.nan}, "clip_norm must be"),
        ({"release_noise": 0.0}, "release_noise must be"),
        ({"fallback_noise": -1.0}, "fallback_noise must be"),
    ],
)
def test_the_constructor_checks(change, error):
    given_ = {
        "trim": 5,
        "threshold": 2.0,
        "laplace_scale": 1.0,
        "release_norm": 0.5,
        "clip_norm": 1.0,
        "release_noise": 1.0,
    } | change
    with pytest.raises((ValueError, TypeError), match=error):
        ProposeTestRelease(**given_)


def test_method_arguments_are_checked():
    assert PAPER.fallback_noise == 1.0
    for call, name in (
        (lambda: PAPER.pass_probability(21), "margin"),
        (lambda: PAPER.delta(np.nan), "epsilon"),
        (lambda: PAPER.delta(1.0, 0.0), "rate"),
        (lambda: PAPER.trade_off(1.5, 1), "rate"),
        (lambda: PAPER.trade_off(0.5, -1), "rounds"),
        (lambda: PAPER.epsilon(0.0), "delta"),
        (lambda: PAPER.bounds(1.0), "delta"),
        (lambda: PAPER.black_box_lower(1, 0.1), "order"),
    ):
        with pytest.raises(ValueError, match=f"{name} must be"):
            call()


def test_the_trade_off_carries_its_renyi_curve():
    found = PAPER.trade_off(0.02, 7)
    assert found.renyi(2.5) == pytest.approx(7 * PAPER.renyi(2.5, 0.02), rel=1e-12)
    assert found.f(0.0) == pytest.approx(1.0, abs=1e-2)
    mills = special.ndtr(-1.0)  # the trade-off function at one point is below that of its loosest pair, G_1 on a pass
    assert found.f(mills) < 1 - mills
