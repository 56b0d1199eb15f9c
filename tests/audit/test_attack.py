"""The audit through real trainings: the claims hold, half the noise is found, the worst cases are what they say.

Everything is seeded; false-alarm rates are those of a fresh seed.
"""

import dataclasses

import numpy as np
import pytest
from scipy import stats

import tfdpbc as dp
from tests.audit.ideal import ideal
from tfdpbc.audit import attack, evidence
from tfdpbc.audit.plans import all_plans
from tfdpbc.audit.runs import Trainings, scaled
from tfdpbc.audit.worlds import worlds

PLANS = all_plans()
HARD = "poisson individual, trimmed, hard test"
RARE = 1e-8  # false alarms of each statistical assertion
GAUSSIAN = dp.PrivacyPlan(dp.Shuffling(24, 1, 12), dp.FullGradientClipping(1.0), 0.7, 2)


def some(*fast):
    """All plans, those that are not named `fast` as slow tests."""
    return [pytest.param(n, id=n, marks=[] if n in fast else [pytest.mark.slow]) for n in PLANS]


def test_every_sampling_and_aggregation_has_a_plan():
    covered = {(plan.sampling.name, plan.aggregation.name) for plan in PLANS.values()}
    private = [
        kind for kind in dp.aggregation.by_name.values() if kind is dp.Sum or issubclass(kind, dp.GlobalTrimmedSum)
    ]
    assert covered == {(name, "sum") for name in dp.sampling.by_name} | {("poisson", kind.name) for kind in private}


@pytest.mark.parametrize("name", some(HARD, "poisson mixed", "subsampling mixed"))
def test_rounds_come_out_as_the_worst_case_says(name):
    """All but without noise, so each sum is seen; margins keep their own noise. A group of poisson mixed is empty with
    probability e^-8, and fewer than four examples join a trimmed round with probability 1.4e-4: not with this seed."""
    plan = dataclasses.replace(PLANS[name], noise_multiplier=1e-6)
    trainings = Trainings(plan)
    for world in worlds(plan):
        for gradients, hit in ((world.first, world.hit_first), (world.second, world.hit_second)):
            trainings.load(gradients)
            seen = [trainings.run(seed) for seed in range(8)]
            sums, passed, hits = (np.array(each) for each in zip(*seen, strict=True))
            if len(world.first) > len(world.second) and gradients is world.second:
                hits[:] = False  # the last example is an ordinary one
            expected = [
                np.where(hits, getattr(hit, side), getattr(world.missed, side)) for side in ("on_pass", "on_fail")
            ]
            np.testing.assert_allclose(sums, np.where(passed, *expected), atol=2e-4)
            if plan.sampling.epoch_is_joint:
                assert (hits.sum(axis=1) <= plan.epochs).all()


@pytest.mark.parametrize("name", some("balls-in-bins individual"))
def test_scores_have_the_law_of_the_ideal_mechanism(name):
    plan, rng, runs = PLANS[name], np.random.default_rng(5), 40 if name == "balls-in-bins individual" else 300
    trainings = Trainings(plan)
    for world in worlds(plan):
        found = []
        for first in (True, False):
            trainings.load(world.first if first else world.second)
            real = [attack.log_ratio(plan, world, trainings.run(seed)) for seed in range(runs)]
            oracle = [attack.log_ratio(plan, world, seen) for seen in ideal(plan, world, first, 2000, rng)]
            assert stats.ks_2samp(real, oracle).pvalue > RARE
            found.append(real)
        assert not evidence.weigh(*found, plan.trade_off(), 1e-5, 1 - RARE).claim.refutes(plan.trade_off())


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_no_claim_is_refuted_by_500_runs(name):
    for finding in attack.audit(PLANS[name], runs=500, confidence=1 - RARE, seed=11):
        assert not finding.violated, finding
        assert finding.same_kind <= finding.claimed


def margin(errors, curve):
    """By how many normal deviations the certified errors lie below the claimed curve."""
    return float(stats.norm.ppf(curve(errors.alpha)) - stats.norm.ppf(errors.beta))


def test_half_the_noise_is_found_and_the_plan_is_not():
    runs, curve, rng = 300, GAUSSIAN.trade_off(), np.random.default_rng(7)
    half = scaled(GAUSSIAN, 0.5)
    (world,) = worlds(half)
    margins = []
    for _ in range(40):
        scores = [
            [attack.log_ratio(half, world, seen) for seen in ideal(half, world, first, runs, rng)] for first in (1, 0)
        ]
        margins.append(margin(evidence.weigh(*scores, curve, 1e-5, 0.99).claim, curve))
    # Power: the margin is more than five deviations above 0, a failure in 3e-7 if margins are about normal.
    assert np.mean(margins) > 5 * np.std(margins), (np.mean(margins), np.std(margins))
    (found,) = attack.audit(GAUSSIAN, runs, confidence=0.99, noise_scale=0.5, seed=1)
    assert found.violated and found.same_kind > 1.2 * found.claimed
    (honest,) = attack.audit(GAUSSIAN, runs, confidence=1 - RARE, seed=2)
    assert not honest.violated and honest.same_kind <= honest.claimed == GAUSSIAN.epsilon(1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_half_the_noise_is_found_under_every_plan(name):
    findings = attack.audit(PLANS[name], runs=1000, confidence=0.99, noise_scale=0.5, seed=12)
    assert any(f.violated and f.same_kind > f.claimed for f in findings), findings


@pytest.mark.slow
def test_a_sensitivity_that_is_half_too_small_is_found(monkeypatch):
    """The mistake in the library itself: replacing an example is noised as if it were added."""
    claimed = GAUSSIAN.trade_off()
    monkeypatch.setattr(dp.Shuffling, "sensitivity_factor", 1.0)
    (found,) = attack.audit(GAUSSIAN, 300, seed=3)
    assert found.violated and found.errors.refutes(claimed)


@pytest.mark.parametrize(
    "changed, match",
    [
        ({"clipping": dp.ScaledClipping(1.0)}, "clipping must be"),
        ({"noise_multiplier": 0.0}, "noise_multiplier must be > 0"),
        ({"aggregation": dp.CoordinateMedian(), "noise_multiplier": 0.0}, "aggregation must be one with a guarantee"),
    ],
)
def test_plans_without_a_known_worst_case_are_refused(changed, match):
    plan = dataclasses.replace(PLANS["poisson individual"], **changed)
    with pytest.raises(ValueError, match=match):
        attack.audit(plan)


def test_a_seed_reproduces_and_none_does_not():
    trainings = Trainings(PLANS["shuffling batch"])
    trainings.load(worlds(trainings.plan)[0].first)
    first, again, other, fresh = (trainings.run(seed).sums for seed in (1, 1, 2, None))
    assert np.array_equal(first, again) and not np.array_equal(first, other) and not np.array_equal(first, fresh)
