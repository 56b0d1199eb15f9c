"""Calibration keeps the promise, hardly undershoots it, and says what is reachable when nothing keeps it."""

import numpy as np
import pytest

from tfdpbc.accounting import (
    Gaussian,
    GaussianMixture,
    fixed_size,
    most_rounds,
    poisson,
    shuffling,
    smallest_noise,
    subsampling,
)
from tfdpbc.errors import UnreachableTarget

TARGETS = (0.01, 0.1, 1.0, 8.0, 50.0, 500.0)


def mixtures():
    for sampling, case in (
        (shuffling, (1024, 1, 16, 640, 1)),
        (shuffling, (1000, 7, 5, 300, 6)),
        (subsampling, (1024, 16, 4, 160, 8)),
        (subsampling, (60_000, 1, 600, 1000, 1)),
        (subsampling, (1_000_000, 64, 16, 97_600, 64)),
    ):
        yield pytest.param(sampling(*case), id=f"{sampling.__name__}{case}")


@pytest.mark.parametrize("participation", list(mixtures()))
@pytest.mark.parametrize("target", TARGETS)
def test_pitfall_24_mixtures(participation, target):
    def epsilon_of(noise_multiplier):
        return GaussianMixture.of(participation, noise_multiplier).epsilon(1e-5)

    noise = smallest_noise(epsilon_of, target)
    assert 0.99 * target <= epsilon_of(noise) <= target


@pytest.mark.parametrize(
    "case, target",
    [
        *((case, target) for case in ((0.01, 1000, 1), (0.5, 10, 1), (0.002, 5000, 8)) for target in TARGETS),
        ((1e-4, 1_000_000, 1), 0.01),
        ((1e-4, 1_000_000, 1), 500.0),
    ],
)
def test_pitfall_24_poisson(case, target):
    rate, rounds, group_size = case

    def epsilon_of(noise_multiplier):
        return poisson(rate, noise_multiplier, rounds, group_size).epsilon(1e-5)

    noise = smallest_noise(epsilon_of, target)
    assert 0.99 * target <= epsilon_of(noise) <= target


@pytest.mark.parametrize(
    "case, target",
    [
        *((case, target) for case in ((0.01, 1000), (0.5, 10), (0.002, 5000)) for target in TARGETS),
        ((1e-4, 1_000_000), 0.01),
        ((1e-4, 1_000_000), 500.0),
    ],
)
def test_pitfall_24_fixed_size(case, target):
    def epsilon_of(noise_multiplier):
        return fixed_size(case[0], noise_multiplier, case[1]).epsilon(1e-5)

    noise = smallest_noise(epsilon_of, target)
    assert 0.99 * target <= epsilon_of(noise) <= target


@pytest.mark.parametrize("size, target", [(2, 0.05), (8, 3.0), (8, 100.0)])
def test_pitfall_24_groups_by_the_general_rule(size, target):
    def epsilon_of(noise_multiplier):
        return fixed_size(0.01, noise_multiplier, 300).group(size).epsilon(1e-6)

    noise = smallest_noise(epsilon_of, target)
    assert 0.99 * target <= epsilon_of(noise) <= target


def test_few_evaluations():
    calls = []

    def epsilon_of(noise_multiplier):
        calls.append(noise_multiplier)
        return Gaussian(30 / noise_multiplier).epsilon(1e-5)

    for target in TARGETS:
        calls.clear()
        smallest_noise(epsilon_of, target)
        assert len(calls) <= 25


def test_the_answer_is_one_that_was_evaluated():
    seen = {}

    def noisy(noise_multiplier):  # an accountant that is monotone only up to its own rounding
        value = 10 / noise_multiplier * (1 + 1e-3 * np.sin(1e6 * noise_multiplier))
        seen[noise_multiplier] = value
        return value

    noise = smallest_noise(noisy, 1.0)
    assert seen[noise] <= 1.0


def test_jumps_and_infinities():
    def steps(noise_multiplier):
        return np.inf if noise_multiplier < 3 else 0.0

    assert smallest_noise(steps, 1.0) == pytest.approx(3.0, rel=1e-9)
    assert steps(smallest_noise(steps, 1.0)) == 0.0


def test_a_promise_that_costs_nothing():
    # Hit with probability 1e-7 < δ: any noise will do, and the least of the range is taken.
    rare = subsampling(10_000_000, 1, 1, 1, 1)
    assert smallest_noise(lambda s: GaussianMixture.of(rare, s).epsilon(1e-5), 1.0) == 1e-3


def test_unreachable_targets_say_what_is_reachable():
    with pytest.raises(UnreachableTarget, match=r"epsilon must be >= 2, .*got epsilon=1"):
        smallest_noise(lambda s: 2.0 + 1 / s, 1.0)


@pytest.mark.parametrize("epsilon", [0, 0.0, -1.0, float("nan"), float("inf")])
def test_pitfall_28_epsilon_zero_is_refused(epsilon):
    with pytest.raises(ValueError, match="epsilon must be a finite number > 0"):
        smallest_noise(lambda s: 1 / s, epsilon)


def test_most_rounds():
    def epsilon_of(rounds):
        return Gaussian(np.sqrt(rounds) / 20).epsilon(1e-5)

    best = most_rounds(epsilon_of, 3.0)
    assert epsilon_of(best) <= 3.0 < epsilon_of(best + 1)
    assert most_rounds(epsilon_of, 3.0, at_most=10) == 10
    with pytest.raises(UnreachableTarget, match="the cost of the first round"):
        most_rounds(lambda n: 5.0 * n, 3.0)
