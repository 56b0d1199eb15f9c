"""The distribution of c² against enumeration, exact integer series, simulation of the sampler and closed forms."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from tfdpbc.accounting import participation
from tfdpbc.accounting.participation import shuffling, subsampling


def as_dict(found):
    return dict(zip(found.c_squared.tolist(), found.probability.tolist(), strict=True))


def distance(found, exact):
    found = as_dict(found)
    return max(abs(found.get(v, 0.0) - float(exact.get(v, 0))) for v in {*found, *exact})


def enumerate_epoch(n, m, s, rounds, g):
    """All ways to choose where the g differing examples lie in a permutation of n: Fractions, no formula."""
    counts = Counter()
    for places in itertools.combinations(range(n), g):
        hit = {place // s for place in places if place < rounds * m * s}  # contributions in sampled order
        per_round = Counter(contribution // m for contribution in hit)
        counts[sum(k * k for k in per_round.values())] += 1
    return {v: Fraction(c, math.comb(n, g)) for v, c in counts.items()}


def exact_epoch(n, m, s, rounds, g):
    """[z^g u^v] R(z, u)^rounds (1+z)^rest / C(n, g) in Python integers: the generating function, term by term."""
    one_round = [Counter() for _ in range(g + 1)]
    for k in range(min(m, g) + 1):
        for j in range(g + 1):
            ways = sum((-1) ** (k - i) * math.comb(k, i) * math.comb(s * i, j) for i in range(k + 1))
            one_round[j][k * k] += math.comb(m, k) * ways
    total = [Counter({0: math.comb(n - rounds * m * s, j)}) for j in range(g + 1)]
    for _ in range(rounds):
        product = [Counter() for _ in range(g + 1)]
        for i, j in itertools.product(range(g + 1), repeat=2):
            if i + j <= g:
                for (u, a), (v, b) in itertools.product(total[i].items(), one_round[j].items()):
                    product[i + j][u + v] += a * b
        total = product
    return {v: Fraction(c, math.comb(n, g)) for v, c in total[g].items() if c}


def convolve(first, second):
    total = Counter()
    for (u, a), (v, b) in itertools.product(first.items(), second.items()):
        total[u + v] += a * b
    return total


CASES = [  # n, m, s, g: divisible or not, m = 1, s = 1, g = 1, g = n, a whole round in one contribution
    (12, 2, 2, 3),
    (13, 3, 2, 4),
    (9, 1, 2, 3),
    (10, 4, 1, 5),
    (11, 2, 3, 1),
    (8, 2, 2, 8),
    (7, 1, 7, 2),
    (14, 5, 1, 2),
]


@pytest.mark.parametrize("case", CASES)
def test_shuffling_equals_enumeration(case):
    n, m, s, g = case
    per_epoch = n // (m * s)
    whole = enumerate_epoch(n, m, s, per_epoch, g)
    assert distance(shuffling(n, m, s, per_epoch, g), whole) < 1e-13
    assert distance(shuffling(n, m, s, 2 * per_epoch, g), convolve(whole, whole)) < 1e-13
    for partial in range(1, per_epoch):  # rounds that end inside an epoch
        part = enumerate_epoch(n, m, s, partial, g)
        assert distance(shuffling(n, m, s, partial, g), part) < 1e-13
        assert distance(shuffling(n, m, s, per_epoch + partial, g), convolve(whole, part)) < 1e-13


@pytest.mark.parametrize("case", CASES)
def test_subsampling_equals_enumeration(case):
    n, m, s, g = case
    one = enumerate_epoch(n, m, s, 1, g)  # one round on a fresh subset is the first round of a permutation
    assert distance(subsampling(n, m, s, 1, g), one) < 1e-13
    assert distance(subsampling(n, m, s, 3, g), convolve(convolve(one, one), one)) < 1e-13


@pytest.mark.parametrize("case", [(200, 3, 4, 16, 9), (200, 3, 4, 7, 9), (500, 20, 1, 25, 8), (150, 1, 10, 15, 12)])
def test_shuffling_equals_exact_integer_series(case):
    n, m, s, rounds, g = case
    exact = exact_epoch(*case)
    found = shuffling(n, m, s, rounds, g)
    assert distance(found, exact) < 1e-13
    # The moments are a second method (positive series in logs); they agree with the integers to rounding, tails
    # included.
    for t in (-1.0, 1e-6, 0.3, 5.0, 40.0):
        top = max(exact) * max(t, 0)
        mean = sum(p * Fraction(math.exp(t * v - top)) for v, p in exact.items())
        assert found.log_moment_at(t) == pytest.approx(float(top + math.log(mean)), rel=1e-12, abs=1e-14)


def test_reference_values():
    expected = {
        2: 0.005081874647, 3: 0.121964991530, 4: 0.123094297007, 5: 0.121964991530,
        6: 0.487859966121, 8: 0.081309994353, 9: 0.004517221909, 10: 0.054206662902,
    }  # fmt: skip
    assert distance(shuffling(24, 3, 2, 4, 4), expected) < 1e-12
    expected = {0: 0.287972896669, 1: 0.503952569170, 4: 0.193393562959, 9: 0.014680971203}
    assert distance(subsampling(24, 3, 2, 1, 4), expected) < 1e-12


@pytest.mark.parametrize("sampling", [shuffling, subsampling])
def test_simulation_of_the_sampler(sampling):
    n, m, s, rounds, g = 60, 4, 3, 8, 7  # one epoch of 5 rounds and 3 rounds of the next
    rng = np.random.default_rng(5)
    trials = 20_000
    counts = np.zeros(trials)
    orders = rng.permuted(np.tile(np.arange(n), (trials, 1)), axis=1)
    for b in range(rounds):
        slot = b % (n // (m * s)) if sampling is shuffling else 0
        if b and slot == 0:
            orders = rng.permuted(orders, axis=1)
        members = orders[:, slot * m * s : (slot + 1) * m * s].reshape(trials, m, s)
        counts += (members < g).any(axis=2).sum(axis=1) ** 2
    found = sampling(n, m, s, rounds, g)
    cdf = np.cumsum(found.probability)
    empirical = np.array([(counts <= v).mean() for v in found.c_squared])
    # Dvoretzky-Kiefer-Wolfowitz: a gap beyond √(ln(2e7)/(2·trials)) has probability < 1e-7.
    assert np.max(np.abs(cdf - empirical)) < np.sqrt(np.log(2e7) / (2 * trials))


def test_table_1_shuffling_one_contribution_one_example():
    found = shuffling(1024, 1, 16, 640, 1)
    assert as_dict(found) == {10: 1.0}
    assert participation.shuffled_batch_mu(1024, 640, 64, 2.0) == pytest.approx(np.sqrt(10) / 2)


def test_table_1_shuffling_batches_never_exceeds_and_tends_to_g_times_epochs():
    for n in (64, 1024, 1_000_000):
        found = shuffling(n, 1, 16, n // 16 * 10, 8)
        assert found.c_squared[-1] <= 80
        assert participation.shuffled_batch_mu(n, n // 16 * 10, n // 16, 2.0, 8) <= np.sqrt(80) / 2 + 1e-12
    assert found.mean == pytest.approx(80, rel=1e-3)
    assert participation.asymptotic_mu(10, 2.0, 8) == pytest.approx(np.sqrt(80) / 2)


def test_table_1_individual_mean():
    for n, m, g in ((1000, 10, 5), (60_000, 100, 64), (64, 64, 3)):
        expected = participation.individual_mean(n, m, 3, g)
        assert shuffling(n, m, 1, 3 * (n // m), g).mean == pytest.approx(expected, rel=1e-11)


def test_table_1_subsampled_batches_are_binomial():
    n, s, rounds, g = 1024, 16, 640, 8
    p = participation.subsampled_batch_binomial(n, s, g)
    assert p == pytest.approx(float(1 - Fraction(math.comb(n - g, s), math.comb(n, s))), rel=1e-13)
    found = subsampling(n, 1, s, rounds, g)
    exact = {v: math.comb(rounds, v) * p**v * (1 - p) ** (rounds - v) for v in (30, 60, 79, 110)}
    for v, expected in exact.items():
        assert as_dict(found)[v] == pytest.approx(expected, rel=1e-11)
    assert participation.subsampled_batch_binomial(10, 8, 5) == 1.0


@pytest.mark.parametrize("sampling", [shuffling, subsampling])
def test_groups_cost_their_root_not_their_size(sampling):
    """The μ of a group of g is about √(gE)/σ (paper A), where the general rule for one example's √E/σ gives g√E/σ."""
    from tfdpbc.accounting import Gaussian, GaussianMixture

    epochs, sigma, n, s = 20, 10.0, 100_000, 100
    one = GaussianMixture.of(sampling(n, 1, s, epochs * n // s, 1), sigma)
    for g in (4, 16, 64):
        exact = GaussianMixture.of(sampling(n, 1, s, epochs * n // s, g), sigma)
        root = Gaussian(participation.asymptotic_mu(epochs, sigma, g))
        linear = one.group(g)
        # Subsampling spreads c² (here by 1/√(gE)), which costs some per cent; shuffled groups share a batch now and then.
        assert exact.epsilon(1e-5) == pytest.approx(root.epsilon(1e-5), rel=0.03 if sampling is shuffling else 0.2)
        assert linear.epsilon(1e-5) >= Gaussian(g * np.sqrt(epochs) / sigma).epsilon(1e-5) * (1 - 1e-3)
        assert linear.epsilon(1e-5) > 0.9 * np.sqrt(g) * exact.epsilon(1e-5)
        assert np.all(linear.f([0.1, 0.5]) <= exact.f([0.1, 0.5]))
    assert linear.epsilon(1e-5) > 10 * exact.epsilon(1e-5)


@pytest.mark.parametrize("sampling", [shuffling, subsampling])
def test_renyi_moments_hold_no_transform_noise(sampling):
    # E[e^{t c²}] at t so large that a probability wrong by 1e-17 would be all there is: by the largest value's own term.
    n, m, s, rounds, g = 400, 5, 2, 40, 6
    found = sampling(n, m, s, rounds, g)
    exact = exact_epoch(n, m, s, rounds, g) if sampling is shuffling else None
    for t in (2.0, 10.0):
        if exact is not None:
            top = max(exact) * t
            truth = top + math.log(sum(float(p) * math.exp(t * v - top) for v, p in exact.items()))
        else:
            one = exact_epoch(n, m, s, 1, g)
            top = max(one) * t
            truth = rounds * (top + math.log(sum(float(p) * math.exp(t * v - top) for v, p in one.items())))
        assert found.log_moment_at(t) == pytest.approx(truth, rel=1e-12)


def test_pitfall_11_examples_left_out_are_accounted():
    # N = 10 with rounds of 4: an example takes part in an epoch with probability 8/10, not 1.
    assert as_dict(shuffling(10, 2, 2, 2, 1)) == pytest.approx({0: 0.2, 1: 0.8})
    assert as_dict(shuffling(8, 2, 2, 2, 1)) == {1: 1.0}


@pytest.mark.parametrize("sampling", [shuffling, subsampling])
@pytest.mark.parametrize(
    "case",
    [
        (1_000_000, 64, 16, 1_000_000, 64),
        (1_000_000, 1, 1000, 1_000_000, 1),
        (50_000_000, 256, 1, 1_000_000, 3),
        (60_000, 1, 60_000, 1_000_000, 5),
        (100_000, 50, 2000, 1000, 20),
        (5000, 100, 1, 5000, 400),
    ],
)
def test_extreme_sizes_are_answered(sampling, case):
    n, m, s, rounds, g = case
    found = sampling(*case)
    assert found.probability.sum() == pytest.approx(1.0, abs=1e-12)
    # E[k²] is that of a hypergeometric draw of contributions: check the mean through two-point probabilities.
    some = float(-np.expm1(np.log1p(-g / (n - np.arange(s, dtype=float))).sum())) if s + g <= n else 1.0
    none_of_two = np.exp(np.log1p(-g / (n - np.arange(2 * s, dtype=float))).sum()) if 2 * s + g <= n else 0.0
    both = 2 * some - 1 + none_of_two if m > 1 else 0.0
    assert found.mean == pytest.approx(rounds * (m * some + m * (m - 1) * both), rel=1e-6)


def test_no_rounds_no_participation():
    assert as_dict(shuffling(10, 1, 2, 0)) == {0: 1.0}
    assert subsampling(10, 1, 2, 0).log_moment_at(3.0) == 0.0


def test_quantiles_and_tails():
    found = shuffling(24, 3, 2, 4, 4)
    assert found.quantiles(0.0) == 2 and found.quantiles(1.0) == 10
    assert list(found.quantiles([0.1, 0.5])) == [3, 6]
    assert found.upper_tail(8) == pytest.approx(0.004517221909 + 0.054206662902)
    assert found.lower_tail(3) == pytest.approx(0.005081874647)


def test_rounding_error_goes_to_the_private_side():
    # The computed distribution dominates the exact one: Pr[c² > v] is nowhere smaller.
    for case in ((200, 3, 4, 16, 9), (150, 1, 10, 15, 12)):
        exact = exact_epoch(*case)
        found = shuffling(*case)
        for v in exact:
            assert found.upper_tail(v) >= float(sum(p for u, p in exact.items() if u > v)) - 1e-17


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((5, 2, 3, 1), "num_examples must be >= contributions"),
        ((10, 2, 3, -1), "rounds must be"),
        ((10, 2, 3, 1, 11), "group_size must be"),
        ((10, 2, 3, 1, 0), "group_size must be"),
        ((10, 0, 3, 1), "contributions must be"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    for sampling in (shuffling, subsampling):
        with pytest.raises(ValueError, match=message):
            sampling(*arguments)
