"""PrivacyPlan: noise and guarantee come from the same fields; words and JSON tell the truth."""

import dataclasses
import json
import math
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tfdpbc as dp
from tfdpbc import analyses, guarantee

DELTA = 1e-5
SAMPLINGS = [
    dp.Shuffling(1000, 10, 1),
    dp.Shuffling(1000, 1, 20),
    dp.Subsampling(1000, 4, 5),
    dp.Poisson.individual(1000, 20),
    dp.Poisson(0.02, 50, 20, 4),
    dp.BallsInBins(50, 20),
]
MAIN = {"shuffling": "mixture", "subsampling": "subsampled", "poisson": "pld", "balls-in-bins": "pld"}


def plan(sampling=SAMPLINGS[0], noise=2.0, epochs=3, **clip):
    return dp.PrivacyPlan(sampling, dp.FullGradientClipping(**(clip or {"norm": 1.0})), noise, epochs)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
class TestEverySampling:
    def test_rounds_divisor_and_noise(self, sampling):
        one = plan(sampling, noise=2.0, norm=0.5)
        factor = {"replace": 2.0, "add-remove": 1.0 if sampling.is_individual else 2.0}[one.neighbouring]
        assert one.noise_std(0) == [2.0 * factor * 0.5]
        assert one.rounds == 3 * sampling.rounds_per_epoch
        assert one.divisor == sampling.divisor

    def test_epsilon_grows_with_rounds_and_falls_with_noise(self, sampling):
        """pitfall 23: ε grows with rounds, 1/σ, 1/δ, g, and is never negative."""
        one = plan(sampling)
        spent = [one.epsilon(DELTA, rounds=r) for r in (0, 1, 25, one.rounds)]
        assert spent[0] == 0 and spent == sorted(spent)
        assert plan(sampling, 3.0).epsilon(DELTA) < one.epsilon(DELTA) < one.epsilon(1e-7)
        assert one.epsilon(DELTA) < one.epsilon(DELTA, group_size=3)
        assert one.epsilon(DELTA) == one.epsilon(DELTA)
        assert plan(sampling, 1e4).epsilon(DELTA, rounds=1) == 0

    def test_the_headline_is_the_certified_bound(self, sampling):
        one = plan(sampling)
        found = one.bounds(DELTA)
        stated = {"epsilon": one.epsilon(DELTA), "adversary": one.adversary, "certified": True, "kind": "upper"}
        assert found[MAIN[sampling.name]] == stated
        for bound in found.values():
            if bound["certified"]:
                assert bound["kind"] == "upper" and bound["epsilon"] >= one.epsilon(DELTA) * (1 - 1e-9)
            if bound["kind"] == "lower":
                assert not bound["certified"] and 0 <= bound["epsilon"] <= one.epsilon(DELTA)
        assert one.guarantee(DELTA)["epsilon"] == one.epsilon(DELTA)
        assert one.guarantee(DELTA)["adversary"] == one.adversary
        # Rényi orders are another way to the same guarantee: above it, not far above.
        assert one.epsilon(DELTA) <= found["rdp"]["epsilon"] <= 1.5 * one.epsilon(DELTA) + 0.3

    def test_no_noise_is_no_guarantee(self, sampling):
        """pitfall 5: σ = 0 is reported as ε = ∞, without a crash."""
        none = plan(sampling, noise=0.0)
        assert none.epsilon(DELTA) == math.inf
        stated = none.guarantee(DELTA)
        assert stated["epsilon"] is None and stated["covers"]["covered"] == []
        assert "No guarantee: no noise was added" in str(none)

    def test_round_trips_through_json(self, sampling):
        one = plan(sampling, norm=0.3, decay=0.9)
        again = dp.PrivacyPlan.from_config(json.loads(json.dumps(one.to_config())))
        assert again == one and hash(again) == hash(one)
        json.dumps(one.guarantee(DELTA), allow_nan=False)

    def test_calibration_keeps_the_promise(self, sampling):
        """pitfall 24: ε(σ) <= target and >= 0.99 target."""
        done = plan(sampling).calibrate(3.0, DELTA)
        assert 2.97 <= done.epsilon(DELTA) <= 3.0
        assert dataclasses.replace(done, noise_multiplier=2.0) == plan(sampling)

    def test_the_words_name_neighbouring_adversary_and_cover(self, sampling):
        """pitfalls 22, 28: the report names them, and says that training metrics are not covered."""
        text = plan(sampling).describe(DELTA)
        word = {"replace": "(replace)", "add-remove": "(add/remove)"}[sampling.neighbouring]
        for part in (word, "Adversary: sees every noisy update", "training loss and metrics", f"δ = {DELTA:g}"):
            assert part in text


def test_of_subsampling_the_better_analysis_is_stated_with_its_adversary():
    """accounting.md section 3: C_p through the group operator against the mixture of section 2, the better one named."""
    one = plan(dp.Subsampling(1000, 4, 5), noise=2.0)
    for group in (1, 3):
        found = one.bounds(DELTA, group_size=group)
        assert found["subsampled"]["epsilon"] < found["mixture"]["epsilon"]
        assert one.guarantee(DELTA, group)["adversary"] == found["subsampled"]["adversary"] == analyses.USUAL_ADVERSARY
    # A group that is nearly everybody: the linear rule loses to counting exactly.
    found = one.bounds(DELTA, group_size=900)
    assert found["mixture"]["epsilon"] < found["subsampled"]["epsilon"]
    stated = one.guarantee(DELTA, 900)
    assert stated["adversary"] == analyses.MIXTURE_ADVERSARY
    assert stated["epsilon"] == found["mixture"]["epsilon"] == one.epsilon(DELTA, 900)
    alpha = [0.0, 0.01, 0.3, 1.0]
    both = [curve.f(alpha) for curve, _ in analyses.curves(one._run(3, None)).values()]
    assert list(one.trade_off(3).f(alpha)) == list(map(max, *both))


@pytest.mark.parametrize(
    "sampling",
    [dp.Shuffling(6000, 60, 1), dp.Shuffling(6000, 1, 60), dp.Subsampling(6000, 60, 1), dp.Subsampling(6000, 6, 10)],
    ids=repr,
)
def test_groups_too_large_to_count_exactly_are_bounded(sampling):
    """From `EXACT_GROUP` on bounds take over: never below the exact count, and still growing with the group."""
    below, above = (
        analyses.headline(analyses.Run(sampling, 20.0, 300, g), DELTA)[0]
        for g in (analyses.EXACT_GROUP, analyses.EXACT_GROUP + 1)
    )
    participation = analyses.participation(sampling, 300, analyses.EXACT_GROUP + 1)
    exact = dp.GaussianMixture.of(participation, 20.0).epsilon(DELTA)
    usual = dp.accounting.fixed_size(0.01, 20.0, 300).group(analyses.EXACT_GROUP + 1).epsilon(DELTA)
    best = exact if sampling.name == "shuffling" else min(exact, usual)
    assert below < above and best <= above
    assert "rdp" not in analyses.methods(analyses.Run(sampling, 20.0, 300, analyses.EXACT_GROUP))


def test_the_lower_bound_of_shuffling_and_the_whole_epochs_of_balls_in_bins():
    """accounting.md: references of issue 3, items 5 and 6, through a plan."""
    balls = plan(dp.BallsInBins(100, 20), noise=1.0, epochs=1)
    assert 0.609 <= balls.bounds(DELTA)["lower_bound"]["epsilon"] <= balls.epsilon(DELTA) <= 0.636
    two = plan(dp.BallsInBins(100, 20), noise=1.0, epochs=2)
    assert two.epsilon(DELTA, rounds=1) == two.epsilon(DELTA, rounds=100) == balls.epsilon(DELTA)
    assert two.epsilon(DELTA, rounds=101) == two.epsilon(DELTA)
    shuffled = plan(dp.Shuffling(1000, 10, 1), noise=0.5, epochs=2).bounds(DELTA)
    assert 0 < shuffled["lower_bound"]["epsilon"] < shuffled["mixture"]["epsilon"]


def test_a_sampling_without_a_theorem_is_refused():
    class Sorting(dp.Shuffling):
        name = "sorting"

    with pytest.raises(ValueError, match="^sampling must be one of .*; got sampling='sorting'"):
        plan(Sorting(1000, 10, 1)).epsilon(DELTA)


def test_the_reference_guarantee_of_shuffled_batches():
    """accounting.md: shuffling with m = 1 is exactly G_{√E/σ}."""
    one = plan(dp.Shuffling(1000, 1, 20), noise=2.0, epochs=4)
    assert one.mu() == pytest.approx(1.0, rel=1e-12)
    assert one.epsilon(DELTA) == pytest.approx(4.377178095681, rel=1e-9)
    assert one.trade_off().f(0.5) == pytest.approx(dp.Gaussian(1.0).f(0.5), rel=1e-9)
    grouped = dp.PrivacyPlan(dp.Shuffling(1024, 1, 16), dp.FullGradientClipping(1.0), 2.0, 10)
    assert grouped.epsilon(DELTA, group_size=8) == pytest.approx(27.486603848539, rel=1e-9)


def test_pitfall_9_fixed_batches_are_never_accounted_as_poisson():
    poisson = plan(dp.Poisson(0.02, 50, 20), noise=1.0).epsilon(DELTA)
    shuffled, subsampled = (plan(kind(1000, 20, 1), noise=1.0) for kind in (dp.Shuffling, dp.Subsampling))
    assert shuffled.epsilon(DELTA) > 3 * poisson and "learns how many contributions" in shuffled.adversary
    assert subsampled.epsilon(DELTA) > 1.1 * poisson and "stays secret" in subsampled.adversary
    for one in (shuffled, subsampled):
        found = one.bounds(DELTA)
        assert found.keys().isdisjoint({"pld", "black_box"})
        assert all(bound["epsilon"] > poisson for bound in found.values() if bound["certified"])


def test_poisson_is_dp_accountings_subsampled_gaussian():
    """The oracle is dp-accounting's own accountant, with another discretisation."""
    from dp_accounting import dp_event
    from dp_accounting.pld import PLDAccountant

    one = plan(dp.Poisson(0.02, 50, 20), noise=1.1)
    accountant = PLDAccountant(value_discretization_interval=1e-4)
    event = dp_event.PoissonSampledDpEvent(0.02, dp_event.GaussianDpEvent(1.1))
    want = accountant.compose(event, one.rounds).get_epsilon(DELTA)
    assert want * (1 - 2e-3) <= one.epsilon(DELTA) <= want * (1 + 2e-3)


def test_pitfall_28_a_high_epsilon_and_a_large_delta_are_warned_of():
    weak = plan(noise=0.2)
    assert any("> 10" in w for w in weak.guarantee(DELTA)["warnings"])
    assert plan(noise=20.0).guarantee(DELTA)["warnings"] == []
    with pytest.warns(UserWarning, match="delta should be well below 1/N"):
        weak.epsilon(1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert any("not below 1/N" in w for w in plan().guarantee(1e-2)["warnings"])


def test_spent_is_the_guarantee_of_the_rounds_released():
    one = plan()
    assert one.spent(100).epsilon(DELTA) == one.epsilon(DELTA, rounds=100)
    assert one.spent(100).guarantee(DELTA)["rounds"] == 100
    void = one.spent(100, void="raw statistics were stored")
    assert void.epsilon(DELTA) == math.inf and void.trade_off().f(0.5) == 0
    assert void.guarantee(DELTA)["epsilon"] is None
    assert "No guarantee: raw statistics were stored" in str(void)


def test_guarantee_has_the_keys_of_the_contract():
    keys = "sampling neighbouring adversary noise_multiplier rounds delta epsilon mu group_size covers versions"
    stated = plan().guarantee(DELTA, group_size=2)
    assert set(keys.split()) <= set(stated)
    assert stated["group_size"] == 2 and stated["versions"]["tfdpbc"] == dp.__version__


@given(st.floats(1e-9, 1e9))
def test_published_epsilons_are_rounded_up(epsilon):
    assert epsilon <= float(guarantee.rounded_up(epsilon)) <= epsilon * 1.001 + 1e-12


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "2", True])
def test_bad_noise_multipliers_are_named(value):
    with pytest.raises((ValueError, TypeError), match="noise_multiplier must be .*; got noise_multiplier="):
        plan(noise=value)


@pytest.mark.parametrize(
    "call, name",
    [
        (lambda: plan().calibrate(0.0, DELTA), "epsilon"),
        (lambda: plan().calibrate(float("nan"), DELTA), "epsilon"),
        (lambda: plan().calibrate(1.0, 0.0), "delta"),
        (lambda: plan().epsilon(1.0), "delta"),
        (lambda: plan().epsilon(float("nan")), "delta"),
        (lambda: plan().epsilon(DELTA, group_size=0), "group_size"),
        (lambda: plan().epsilon(DELTA, group_size=1001), "group_size"),
        (lambda: plan(sampling=dp.Poisson(0.01, 100, 10)).epsilon(DELTA, group_size=10**8), "group_size"),
        (lambda: plan(sampling=dp.Poisson(0.01, 10**9, 10)), "epochs"),
        (lambda: plan(epochs=10**400), "epochs"),
        (lambda: plan(noise=10**400), "noise_multiplier"),
        (lambda: plan().epsilon(DELTA, rounds=10_000), "rounds"),
        (lambda: plan(epochs=0), "epochs"),
        (lambda: plan(sampling="poisson"), "sampling"),
        (lambda: dp.PrivacyPlan(SAMPLINGS[0], 1.0, 1.0, 1), "clipping"),
        (lambda: dp.PrivacyPlan.from_config({"sampling": {}}), "config"),
    ],
)
def test_bad_arguments_are_named(call, name):
    """pitfall 28: ε = 0 is refused, not read as "not set"."""
    with pytest.raises((ValueError, TypeError), match=f"^{name} must be .*; got {name}="):
        call()


def test_a_plan_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan().noise_multiplier = 0.0
