"""Estimates of the blocks' norms, and what is measured for them."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

import tfdpbc as dp
from tfdpbc.clipping.base import Released
from tfdpbc.clipping.estimates import unbiased_square

DIMENSIONS = np.array([2.0, 50.0, 4000.0], np.float32)


def released(state, kind, norms, sigma, rounds_per_epoch=10, round_index=9, divisor=1, seed=0):
    """A round whose clipped sum has blocks of the given norms."""
    bounds = kind.bounds(round_index, rounds_per_epoch, state)
    rng = np.random.default_rng([seed, round_index])
    stds = 2 * sigma * np.asarray(bounds)
    squares = []
    for d, std, norm in zip(DIMENSIONS.astype(int), stds, norms, strict=True):
        noisy = std * rng.normal(size=d)
        noisy[0] += norm
        squares.append((noisy**2).sum())
    return Released(
        tf.constant(round_index),
        rounds_per_epoch,
        bounds,
        tf.constant(squares, tf.float32),
        tf.constant(stds, tf.float32),
        tf.constant(DIMENSIONS),
        tf.zeros([0]),
        0.0,
        divisor,
    )


def test_the_released_square_is_unbiased():
    """Mean of 4000 draws; its standard error is known exactly, and 6 of them are exceeded with probability 2e-9 a block.

    Var ‖u + sZ‖² = 2 d s⁴ + 4 s² ‖u‖² (non-central χ²).
    """
    kind = dp.LayerwiseClipping(1.0, num_blocks=3)
    state = kind.initial_state(DIMENSIONS)
    norms, sigma, n = np.array([0.9, 0.4, 0.2]), 0.7, 4000
    rounds = [released(state, kind, norms, sigma, seed=i) for i in range(n)]
    values = np.array([unbiased_square(r.squares, r.stds, r.dimensions) for r in rounds], np.float64)
    s = 2 * sigma
    error = np.sqrt((2 * DIMENSIONS * s**4 + 4 * s**2 * norms**2) / n)
    assert (np.abs(values.mean(0) - norms**2) < 6 * error).all()
    # The test would see the bias of the plain square, d s².
    assert (DIMENSIONS * s**2 > 12 * error).all()


def test_released_shares_are_found_where_noise_is_low():
    """Scaled clipping sees true shares: after a refresh the bounds follow them; before it they stay."""
    kind = dp.ScaledClipping(1.0, num_blocks=3, estimates=dp.ReleasedNorms(smoothing=1.0))
    state = kind.initial_state(DIMENSIONS)
    norms = np.array([0.8, 0.04, 0.2])
    for r in range(10):
        np.testing.assert_array_equal(state["estimates"], [1, 1, 1])
        state = kind.update(state, released(state, kind, norms, 1e-4, round_index=r))
    np.testing.assert_allclose(state["estimates"], norms / 0.8, rtol=1e-2)
    assert float(state["count"]) == 0 and np.all(state["sum"] == 0)


def test_blocks_that_drown_keep_their_share():
    """Block 2 (4000 numbers, σ = 1) is not seen; the two others shrink by a factor each, it goes with their mean."""
    kind = dp.LayerwiseClipping(1.0, num_blocks=3, estimates=dp.ReleasedNorms(smoothing=1.0))
    state = kind.initial_state(DIMENSIONS)
    # Nothing was released but noise in block 2, exactly as much as expected.
    one = released(state, kind, [0.5, 0.5, 0.0], 1e-5)
    exact = tf.stack([one.squares[0], one.squares[1], one.dimensions[2] * tf.square(one.stds[2])])
    after = kind.update(state, one._replace(squares=exact, round_index=tf.constant(9)))
    np.testing.assert_allclose(after["estimates"], [1, 1, 1], rtol=1e-3)
    drowned = kind.update(state, released(state, kind, [0.0, 0.0, 0.0], 1.0, seed=3))
    assert np.isfinite(drowned["estimates"]).all() and (np.asarray(drowned["estimates"]) > 0).all()


@pytest.mark.parametrize("name", ["fixed", "public", "released"])
def test_no_estimate_leaves_its_range_whatever_was_released(name):
    """NaN, infinities, zeros: bounds stay positive and finite, so the next round is noised as it must be."""
    kind = dp.GroupedClipping(1.0, num_groups=2, num_blocks=3, estimates=name)
    for bad in (np.nan, np.inf, -np.inf, 0.0, 1e38):
        state = kind.initial_state(DIMENSIONS)
        state = kind.with_estimates(state, tf.constant([bad, 1.0, bad], tf.float32))
        for r in range(20):
            one = released(state, kind, [0.1, 0.2, 0.3], 0.1, round_index=r)
            state = kind.update(state, one._replace(squares=tf.constant([bad, bad, 1.0], tf.float32)))
            bounds = np.asarray(kind.bounds(r, 10, state))
            assert (bounds >= 1e-3 * (1 - 1e-6)).all() and (bounds <= 1 + 1e-6).all()


def test_smoothing_is_a_geometric_mean():
    kind = dp.LayerwiseClipping(1.0, num_blocks=2, estimates=dp.PublicNorms(prior=(1.0, 4.0), smoothing=0.5))
    state = kind.with_estimates(kind.initial_state([1, 1]), tf.constant([100.0, float("nan")]))
    np.testing.assert_allclose(state["estimates"], [10, 4], rtol=1e-5)


def test_priors():
    assert dp.FixedNorms().start([4, 9]).tolist() == [1, 1]
    assert dp.FixedNorms(prior="sqrt-dimension").start([4, 9]).tolist() == [2, 3]
    assert dp.FixedNorms(prior=(0.5, 2)).start([4, 9]).tolist() == [0.5, 2]
    kind = dp.LayerwiseClipping(0.6, num_blocks=2, estimates=dp.FixedNorms(prior=(1, 3)))
    np.testing.assert_allclose(kind.bounds(0, 7, kind.initial_state([1, 1])), [0.2, 0.6], rtol=1e-6)


class TestPrivateNorms:
    def test_measured_numbers_are_the_formula(self):
        kind = dp.LayerwiseClipping(
            1.0, num_blocks=2, estimates=dp.PrivateNorms(noise_multiplier=9.0, prior=(1.0, 2.0))
        )
        state = kind.initial_state([1, 1])
        norms = np.array([[1.0, 4.0], [0.0, 100.0], [np.nan, np.inf]], np.float32)
        np.testing.assert_allclose(kind.measure(norms, None, state), [[0.25, 0.5], [0, 1], [0, 1]])

    @pytest.mark.parametrize("seen, want", [([0.25, 0.125], [1, 0.5]), ([1.0, 0.0], [4, 1]), ([0.26, 1e-6], [1.04, 1])])
    def test_refresh(self, seen, want):
        """e_j = κ e_j v_j, where v_j is above its noise; else e_j stays."""
        estimates = dp.PrivateNorms(noise_multiplier=9.0, smoothing=1.0, every=1)
        kind = dp.LayerwiseClipping(1.0, num_blocks=2, estimates=estimates)
        one = Released(tf.constant(0), 10, None, None, None, None, tf.constant(seen), 1e-3, 4)
        np.testing.assert_allclose(kind.update(kind.initial_state([1, 1]), one)["estimates"], want, rtol=1e-5)


@pytest.mark.parametrize(
    "sampling",
    [
        dp.Shuffling(24, 6, 1),
        dp.Shuffling(24, 1, 6),
        dp.Poisson(0.25, 4, 6),
        dp.Poisson(0.25, 4, 6, 2),
        dp.BallsInBins(4, 6),
    ],
    ids=repr,
)
@pytest.mark.parametrize("count", [1, 3])
def test_pitfall_8_sensitivity_of_the_measurement_by_brute_force(sampling, count):
    """Over all corners of the cube: under add/remove of single examples a contribution appears (its centred numbers against
    nothing); otherwise it may also turn into any other. The noise is z_m times exactly the largest of these steps."""
    if count == 1:
        clipping, z = dp.QuantileClipping(1.0, count_noise=4.0), None
    else:
        clipping, z = dp.LayerwiseClipping(1.0, count, dp.PrivateNorms(noise_multiplier=4.0)), 4.0
    plan = dp.PrivacyPlan(sampling, clipping, 0.5, 2)
    corners = [np.array(c) - 0.5 for c in itertools.product([0, 1], repeat=count)]
    steps = [np.linalg.norm(c) for c in corners]
    if sampling.neighbouring == "replace" or not sampling.is_individual:
        steps += [np.linalg.norm(a - b) for a, b in itertools.product(corners, repeat=2)]
    assert plan.measurement_std() == pytest.approx(4.0 if z is None else z * max(steps))
    assert plan.measurement_noise_multiplier == pytest.approx(4.0 / max(steps) if z is None else z)


def test_pitfall_8_the_noise_of_counts_is_charged_as_in_andrew_et_al():
    """z_Δ = (z⁻² − (2σ_b)⁻²)^(−1/2) under individual Poisson; with (σ_b)⁻² where a bit can be replaced."""
    z, sigma_b = 1.3, 2.0
    clipping = dp.QuantileClipping(1.0, count_noise=sigma_b)
    poisson = dp.PrivacyPlan(dp.Poisson(0.25, 4, 6), clipping, z, 2)
    assert poisson.update_noise_multiplier == pytest.approx((z**-2 - (2 * sigma_b) ** -2) ** -0.5, rel=1e-12)
    shuffled = dp.PrivacyPlan(dp.Shuffling(24, 6, 1), clipping, z, 2)
    assert shuffled.update_noise_multiplier == pytest.approx((z**-2 - sigma_b**-2) ** -0.5, rel=1e-12)
    assert poisson.noise_std(0, [0.5]) == [pytest.approx(0.5 * poisson.update_noise_multiplier)]
    assert dp.PrivacyPlan(dp.Shuffling(24, 6, 1), clipping, 0.0, 2).update_noise_multiplier == 0


@pytest.mark.parametrize(
    "clipping, sampling, most",
    [
        (dp.QuantileClipping(1.0, count_noise=0.7), dp.Poisson(0.25, 4, 6), 1.4),
        (dp.QuantileClipping(1.0, count_noise=0.7), dp.Shuffling(24, 6, 1), 0.7),
        (dp.LayerwiseClipping(1.0, 4, dp.PrivateNorms(noise_multiplier=0.7)), dp.Shuffling(24, 6, 1), 1.4),
        (
            dp.GroupedClipping(1.0, 4, num_blocks=9, estimates=dp.PrivateNorms(noise_multiplier=0.7)),
            dp.Poisson(0.25, 4, 6),
            1.4,
        ),
        (dp.ScaledClipping(1.0, 4, dp.PrivateNorms(noise_multiplier=0.7)), dp.Poisson(0.25, 4, 6), 0.7),
    ],
)
def test_pitfall_8_too_little_noise_on_what_is_measured_is_refused(clipping, sampling, most):
    """σ_b <= z/2 and its likes: nothing would be left for the update."""
    dp.PrivacyPlan(sampling, clipping, most * 0.999, 2)
    for noise in (most, most * 2):
        with pytest.raises(ValueError, match="clipping must be with noise of a standard deviation > .*; got clipping="):
            dp.PrivacyPlan(sampling, clipping, noise, 2)


@pytest.mark.parametrize("blocks", [1, 5])
def test_update_and_measurement_together_are_what_the_plan_states(blocks):
    """Both are one Gaussian mechanism: blocks / σ_Δ² + 1 / z_m² = blocks / σ²."""
    clipping = dp.LayerwiseClipping(1.0, blocks, dp.PrivateNorms(noise_multiplier=3.0))
    plan = dp.PrivacyPlan(dp.Shuffling(24, 1, 6), clipping, 1.2, 2)
    whole = blocks / plan.update_noise_multiplier**2 + 1 / plan.measurement_noise_multiplier**2
    assert math.sqrt(2 * whole) == pytest.approx(plan.trade_off().mu, rel=1e-12)  # E = 2 epochs, each of one hit


def test_adaptive_norms_are_named_where_noise_is_asked_for():
    with pytest.raises(ValueError, match="bounds must be given where the clip norms adapt"):
        dp.PrivacyPlan(dp.Shuffling(24, 1, 6), dp.QuantileClipping(1.0, 9.0), 1.0, 2).noise_std(0)
