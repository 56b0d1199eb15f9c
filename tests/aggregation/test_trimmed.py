"""The margin, the trimmed set and the plan's rules, against brute force over all changes of small rounds."""

import contextlib
import dataclasses
import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import tfdpbc as dp
from tfdpbc import aggregation
from tfdpbc.accounting.ptr import ProposeTestRelease
from tfdpbc.errors import UnreachableTarget

C = 1.0
POISSON = dp.Poisson(0.02, 50, 64)
# Few different norms, so that ties and norms right at τ are common; exact in float32.
NORMS = st.sampled_from([0.0, 0.125, 0.25, 0.5, 1.0])


def trimmed(trim=2, release_norm=0.25, laplace_scale=1.0, threshold=1.0, **more):
    return dp.TrimmedSum(trim, release_norm, laplace_scale, threshold, **more)


def margin(kind, norms, padding=2):
    padded = [*norms, *[-1.0] * padding]
    return int(kind.margin(tf.constant(padded, tf.float32)))


def local_sensitivity(norms, trim):
    """By how much one more or one less can move TSUM_F at most, over all directions: the largest norm that can come in.

    Leaving out nothing but norms: with vectors of one direction the bound is met, so it is exact. Adding a contribution of
    any norm v <= C moves the sum by the smallest of v and the F-th largest norm; removing one by its norm or by that of the
    F-th largest's successor, which is not larger.
    """
    ordered = sorted(norms)
    largest_kept_after_adding = ordered[-trim] if 0 < trim <= len(ordered) else (C if trim == 0 else 0.0)
    kept = ordered[: len(ordered) - trim] if trim <= len(ordered) else []
    return max(largest_kept_after_adding, max(kept, default=0.0))


def brute_force_margin(norms, trim, release_norm):
    """The fewest additions and removals after which the local sensitivity exceeds τ, at most F, by trying them all."""
    level = {tuple(sorted(norms))}
    for changes in range(trim + 1):
        if any(local_sensitivity(some, trim) > release_norm for some in level):
            return changes
        grown = {tuple(sorted((*some, v))) for some in level for v in (0.0, 0.25, C)}
        shrunk = {some[:i] + some[i + 1 :] for some in level for i in range(len(some))}
        level = grown | shrunk
    return trim


@settings(max_examples=60, deadline=None)
@given(st.lists(NORMS, max_size=5), st.integers(0, 3), st.sampled_from([0.125, 0.25, 0.5]))
def test_the_margin_is_that_of_all_sequences_of_additions_and_removals(norms, trim, release_norm):
    assert margin(trimmed(trim, release_norm), norms) == brute_force_margin(norms, trim, release_norm)


@settings(max_examples=60, deadline=None)
@given(st.lists(NORMS, max_size=8), NORMS, st.integers(0, 5), st.randoms(use_true_random=False))
def test_neighbours_margins_differ_by_at_most_one_and_their_sums_by_tau(norms, new, trim, random):
    kind = trimmed(trim, 0.25)
    rng = np.random.default_rng(random.randrange(2**31))
    directions = rng.normal(size=(len(norms) + 1, 3))
    vectors = directions / np.linalg.norm(directions, axis=1, keepdims=True) * np.array([*norms, new])[:, None]
    place = random.randrange(len(norms) + 1)  # the new one comes in anywhere, the others keep their order
    order = [*range(place), len(norms), *range(place, len(norms))]
    sums, margins = [], []
    for chosen in (list(range(len(norms))), order):
        sizes = tf.constant([*np.array([*norms, new], np.float32)[chosen], -1.0, -1.0], tf.float32)
        left_out = kind.largest(sizes).numpy()[: len(chosen)]
        assert left_out.sum() == min(trim, len(chosen))
        sums.append(vectors[chosen][~left_out].sum(axis=0))
        margins.append(margin(kind, np.array([*norms, new])[chosen]))
    assert abs(margins[0] - margins[1]) <= 1
    apart = np.linalg.norm(sums[0] - sums[1])
    assert apart <= (0.25 if max(margins) > 0 else C) + 1e-12
    if len(norms) + 1 <= trim:
        assert (sums[0] == 0).all() and (sums[1] == 0).all()


def test_the_test_passes_with_the_stated_probability():
    """10,000 draws: within 5.5 standard errors, a false alarm in 2.6e7."""
    kind, count = trimmed(3, 0.25, 1.5, 2.0), 10_000
    norms = tf.constant([0.1, 0.2, 0.9], tf.float32)  # margin 2
    keys = tf.constant(np.random.default_rng(4).integers(-(2**62), 2**62, (count, 2)))

    @tf.function
    def draws():
        return tf.map_fn(lambda key: kind.decide(norms, key)[1], keys, fn_output_signature=tf.bool)

    passed = draws().numpy()
    want = ProposeTestRelease(3, 2.0, 1.5, 0.25, C, 1.0).pass_probability(2)
    assert np.mean(passed) == pytest.approx(want, abs=5.5 * math.sqrt(want * (1 - want) / count))


class TestPlan:
    def plan(self, noise=1.2, sampling=POISSON, clipping=None, epochs=2, **more):
        made = trimmed(12, 0.25, 2.0, 6.0, **more)
        return dp.PrivacyPlan(sampling, clipping or dp.FullGradientClipping(C), noise, epochs, made)

    def test_epsilon_is_the_better_accountants_and_named(self):
        plan = self.plan()
        release = ProposeTestRelease(12, 6.0, 2.0, 0.25, C, 1.2)
        for delta in (1e-5, 0.05):
            name, epsilon = release.accountant(delta, 0.02, 100)
            with pytest.warns() if delta == 0.05 else contextlib.nullcontext():
                assert plan.epsilon(delta) == pytest.approx(epsilon, rel=1e-12)
            stated = plan.guarantee(delta)
            assert (stated["method"], stated["epsilon"]) == (name, pytest.approx(epsilon, rel=1e-12))
        assert "outcome of every test" in stated["adversary"] and plan.adversary == stated["adversary"]
        assert "the outcome of every round's test" in stated["covers"]["covered"]

    def test_every_method_is_that_of_the_accounting(self):
        found = self.plan(fail_noise_multiplier=0.9).bounds(1e-5)
        want = ProposeTestRelease(12, 6.0, 2.0, 0.25, C, 1.2, 0.9).bounds(1e-5, 0.02, 100)
        assert {name: row["epsilon"] for name, row in found.items()} == pytest.approx(want, rel=1e-12)
        assert [name for name, row in found.items() if not row["certified"]] == ["lower_bound"]

    def test_noise_of_both_branches(self):
        plan = self.plan(fail_noise_multiplier=0.9)
        assert plan.noise_std(0, passed=True) == [pytest.approx(1.2 * 0.25)]
        assert plan.noise_std(0, passed=False) == [pytest.approx(0.9 * C)]
        assert self.plan().noise_std(0, passed=False) == [pytest.approx(1.2 * C)]
        with pytest.raises(TypeError, match="passed must be True or False"):
            plan.noise_std(0)

    def test_calibration(self):
        plan = self.plan(epochs=1).calibrate(2.0, 1e-5)
        assert 1.99 <= plan.epsilon(1e-5) <= 2.0
        with pytest.raises(
            UnreachableTarget, match="epsilon must be >=.*the largest noise multiplier 100.*cost of the test"
        ):
            self.plan(epochs=1).calibrate(1e-3, 1e-5)

    def test_groups_by_the_group_operator(self):
        plan = self.plan(epochs=1)
        one, two = plan.trade_off(), plan.trade_off(group_size=2)
        np.testing.assert_allclose(two.f(0.01), one.f(1 - one.f(0.01)), rtol=1e-3)
        assert list(plan.bounds(1e-5, group_size=2)) == ["pld"]

    def test_no_noise_and_no_rounds(self):
        assert self.plan(noise=0.0).epsilon(1e-5) == math.inf
        assert self.plan().epsilon(1e-5, rounds=0) == 0.0

    @pytest.mark.parametrize("kind", aggregation.by_name.values())
    def test_configuration(self, kind):
        arguments = {"trimmed": (3, 0.2, 1.0, 2.0, 0.7), "global-trimmed": (3,), "geometric-median": (5, 1e-4)}
        made = kind(*arguments.get(kind.name, ()))
        plan = dp.PrivacyPlan(POISSON, dp.FullGradientClipping(C), 0.0, 1, made)
        assert dp.PrivacyPlan.from_config(plan.to_config()) == plan
        assert plan.to_config()["aggregation"]["name"] == kind.name

    @pytest.mark.parametrize(
        "changed, message",
        [
            ({"sampling": dp.Shuffling(64, 8, 1)}, "sampling must be individual Poisson"),
            ({"sampling": dp.Poisson(0.1, 10, 6, 1)}, "sampling must be individual Poisson"),
            ({"sampling": dp.BallsInBins(10, 6)}, "sampling must be individual Poisson"),
            ({"clipping": dp.LayerwiseClipping(C, num_blocks=2)}, "clipping must be a FullGradientClipping"),
            ({"clipping": dp.AutomaticClipping(C)}, "clipping must be a FullGradientClipping"),
            ({"clipping": dp.FullGradientClipping(C, decay=0.9)}, "clipping must be of a constant norm"),
            ({"clipping": dp.FullGradientClipping(0.2)}, "release_norm must be at most the clipping's norm 0.2"),
        ],
    )
    def test_what_no_guarantee_is_known_for_is_refused(self, changed, message):
        with pytest.raises(ValueError, match=message):
            self.plan(**changed)

    def test_global_noise_has_the_guarantee_of_the_plain_sum(self):
        plans = [
            dp.PrivacyPlan(POISSON, dp.FullGradientClipping(C), 1.2, 2, kind)
            for kind in (dp.GlobalTrimmedSum(5), dp.Sum())
        ]
        assert plans[0].epsilon(1e-5) == plans[1].epsilon(1e-5)
        assert plans[0].noise_std(0) == plans[1].noise_std(0)

    @pytest.mark.parametrize("kind", [dp.CoordinateMedian(), dp.GeometricMedian()])
    def test_medians_have_no_guarantee_and_take_no_noise(self, kind):
        plan = dp.PrivacyPlan(dp.Shuffling(64, 8, 1), dp.FullGradientClipping(C), 0.0, 1, kind)
        stated = plan.guarantee(1e-5)
        assert stated["epsilon"] is None and "without noise" in stated["covers"]["not_covered"][0]
        with pytest.raises(ValueError, match="noise_multiplier must be 0 with"):
            dp.PrivacyPlan(dp.Shuffling(64, 8, 1), dp.FullGradientClipping(C), 1.0, 1, kind)


@pytest.mark.parametrize(
    "arguments",
    [
        (-1, 0.1, 1, 1),
        (2.5, 0.1, 1, 1),
        (2, 0.0, 1, 1),
        (2, 1e-22, 1, 1),  # float32 squares of such norms vanish: the margin would be counted wrongly
        (2, 0.1, 0, 1),
        (2, 0.1, 1e-310, 1),
        (2, 0.1, 1, math.nan),
        (2, 0.1, 1, 1e308),
        (2, 0.1, 1, 1, 0.0),
        (2, 0.1, 1, 1, 1e300),
    ],
    ids=str,
)
def test_impossible_arguments(arguments):
    with pytest.raises((ValueError, TypeError), match="must be"):
        dp.TrimmedSum(*arguments)


@pytest.mark.parametrize("config", [{"name": "sum", "trim": 3}, {"name": "trimmed", "trim": 3}, {"name": "mode"}, {}])
def test_fields_of_a_configuration_are_named(config):
    with pytest.raises(ValueError, match="must be"):
        dp.aggregation.from_config(config)


def test_a_suggestion_keeps_its_promise_and_passes_clean_rounds():
    sampling = dp.Poisson.individual(20_000, 500)
    kind = dp.TrimmedSum.suggest(4.0, 1e-5, sampling, C, 0.2, epochs=2, corrupted=0.05)
    plan = dp.PrivacyPlan(sampling, dp.FullGradientClipping(C), 1.0, 2, kind).calibrate(4.0, 1e-5)
    release = ProposeTestRelease(kind.trim, kind.threshold, kind.laplace_scale, 0.2, C, plan.noise_multiplier)
    assert release.pass_probability(kind.trim - 25 - 15) >= 0.99  # 25 corrupted, three deviations more
    plain = dataclasses.replace(plan, aggregation=dp.Sum()).calibrate(4.0, 1e-5)
    assert plan.noise_multiplier <= 1.1 * plain.noise_multiplier
    with pytest.raises(ValueError, match="expected_size >"):
        dp.TrimmedSum.suggest(0.5, 1e-5, dp.Poisson.individual(20_000, 50), C, 0.2, epochs=2)


def test_all_orders_of_equal_norms_trim_the_first():
    kind = trimmed(2)
    for norms in itertools.permutations([0.5, 0.5, 0.5, 1.0]):
        order = sorted(range(4), key=lambda i: (-norms[i], i))
        assert set(np.flatnonzero(kind.largest(tf.constant(norms, tf.float32)))) == set(order[:2])
