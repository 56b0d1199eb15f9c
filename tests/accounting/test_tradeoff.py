"""Gaussian trade-off functions against 40-digit arithmetic, and the laws every trade-off function obeys."""

import mpmath as mp
import numpy as np
import pytest

from tfdpbc.accounting import Gaussian, GaussianMixture, Grouped, LossTradeOff, pld, subsampling
from tfdpbc.accounting._envelope import Envelope
from tfdpbc.accounting._renyi_tail import RenyiTable, RenyiTail

MUS = (1e-6, 1e-3, 0.05, 0.5, 1.0, 3.0, 12.0, 150.0)


def exact_delta(mu, epsilon):
    with mp.workdps(60):
        mu, epsilon = mp.mpf(mu), mp.mpf(epsilon)
        return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


def some_mixture(group_size=2, noise_multiplier=1.0):
    return GaussianMixture.of(subsampling(100, 2, 5, 8, group_size), noise_multiplier)


def test_reference_values():
    assert Gaussian(1.0).epsilon(1e-5) == pytest.approx(4.377178095681, rel=1e-12)
    assert Gaussian(0.5).epsilon(1e-5) == pytest.approx(1.993091404415, rel=1e-12)
    assert Gaussian(1.0).delta(1.0) == pytest.approx(0.126936737506644, rel=1e-13)
    assert Gaussian(1.0).delta(30.0) == pytest.approx(4.709326e-193, rel=1e-6)
    assert Gaussian(np.sqrt(80) / 2).epsilon(1e-5) == pytest.approx(28.373473803257, rel=1e-12)


@pytest.mark.parametrize("mu", MUS)
def test_delta_is_exact_and_rounded_up(mu):
    for z in (-6.0, -1.0, 0.0, 0.5, 3.0, 10.0, 30.0):
        epsilon = max(0.0, mu * (z + mu / 2))
        truth = exact_delta(mu, epsilon)
        found = Gaussian(mu).delta(epsilon)
        assert found >= truth
        assert float((found - truth) / truth) < 1e-10


@pytest.mark.parametrize("mu", MUS)
def test_negative_epsilon_obeys_symmetry(mu):
    epsilon = np.array([0.01, 1.0, 5.0])
    expected = [float(exact_delta(mu, -value)) for value in epsilon]
    np.testing.assert_allclose(Gaussian(mu).delta(-epsilon), expected, rtol=1e-11)


@pytest.mark.parametrize("mu", MUS)
def test_f_is_exact_and_rounded_down(mu):
    for alpha in (1e-300, 1e-12, 0.01, 0.5, 0.9, 1 - 1e-9):
        with mp.workdps(60):
            # Φ⁻¹ by a root search, so that nothing of scipy is trusted.
            quantile = mp.findroot(lambda x, a=alpha: mp.log(mp.ncdf(-x)) - mp.log(mp.mpf(a)), _start(alpha))
            truth = mp.ncdf(quantile - mp.mpf(mu))
        found = Gaussian(mu).f(alpha)
        assert found <= truth
        if truth > 1e-300:
            assert float((truth - found) / truth) < 1e-10


def _start(alpha):
    from scipy import special

    return mp.mpf(float(-special.ndtri(alpha)))


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("delta", [1e-300, 1e-20, 1e-5, 0.1])
def test_epsilon_inverts_delta_from_above(mu, delta):
    found = Gaussian(mu).epsilon(delta)
    assert found >= 0
    assert exact_delta(mu, found) <= delta
    if found > 0:
        assert exact_delta(mu, found * (1 - 1e-9)) > delta


def test_pitfall_27_large_mu_does_not_overflow():
    # ε is about μ²/2 + 4.26 μ, far beyond log(largest float) = 709.
    for mu in (50.0, 1e3, 1e6):
        found = Gaussian(mu).epsilon(1e-5)
        assert np.isfinite(found)
        assert found == pytest.approx(mu**2 / 2 + 4.264890793922 * mu, rel=1e-3)


def test_ends():
    assert Gaussian(0).epsilon(1e-5) == 0 and Gaussian(0).f(0.3) == 0.7 and Gaussian(0).delta(0.0) == 0
    assert Gaussian(0).renyi(5) == 0
    none = Gaussian(np.inf)
    assert none.epsilon(1e-5) == np.inf and none.f(0.0) == 0 and none.delta(700.0) == 1 and none.renyi(2) == np.inf
    assert list(Gaussian(1.0).f([0.0, 1.0])) == [1.0, 0.0]
    assert Gaussian(1.0).delta(np.inf) == 0 and Gaussian(1.0).delta(-np.inf) == 1
    assert Gaussian(1e-3).epsilon(0.5) == 0


def test_shapes_scalars_in_floats_out():
    g = Gaussian(1.0)
    for method, value in ((g.f, 0.1), (g, 0.1), (g.delta, 1.0), (g.epsilon, 1e-5), (g.renyi, 2.0)):
        assert isinstance(method(value), float)
        grid = method(np.full((2, 3), value))
        assert grid.shape == (2, 3) and np.all(grid == method(value))


@pytest.mark.parametrize(
    "call",
    [
        lambda g: g.f(-0.1),
        lambda g: g.f([0.5, np.nan]),
        lambda g: g.epsilon(0),
        lambda g: g.epsilon(1.0),
        lambda g: g.delta(np.nan),
        lambda g: g.renyi(1.0),  # pitfall 25: order 1 is an error
        lambda g: g.renyi(0.5),
        lambda g: g.group(0),
    ],
)
def test_bad_arguments_are_refused(call):
    with pytest.raises(ValueError, match="must be"):
        call(Gaussian(1.0))


@pytest.mark.parametrize("mu", [-1.0, float("nan")])
def test_bad_mu_is_refused(mu):
    with pytest.raises(ValueError, match="mu must be"):
        Gaussian(mu)


def test_composition_and_groups_of_gaussians():
    assert Gaussian(3.0).compose(Gaussian(4.0)) == Gaussian(5.0)
    assert Gaussian(0.5).group(4) == Gaussian(2.0)
    assert Gaussian(0.0).compose(some_mixture()).isclose(some_mixture())


@pytest.mark.parametrize("size", [2, 3, 8])
def test_the_general_group_rule_is_tight_for_gaussians_and_never_below(size):
    general, truth = Grouped(Gaussian(0.7), size), Gaussian(0.7 * size)
    assert truth.epsilon(1e-5) <= general.epsilon(1e-5) * (1 + 1e-14)
    assert general.epsilon(1e-5) == pytest.approx(truth.epsilon(1e-5), rel=1e-6)
    np.testing.assert_allclose(general.renyi([1.5, 7.0]), truth.renyi([1.5, 7.0]), rtol=1e-12)
    alpha = np.array([1e-4, 0.1, 0.6])
    assert np.all(general.f(alpha) <= truth.f(alpha) + 1e-15)
    np.testing.assert_allclose(general.f(alpha), truth.f(alpha), rtol=1e-9, atol=1e-14)


def test_groups_of_what_can_be_told_apart_for_sure():
    """Outputs that give one member away have probability d under P alone: d(1 + e) for two, by f once more at d."""
    d, e = 0.01, np.exp(1.0)
    one = LossTradeOff([pld.LossDistribution(1.0, -1, np.array([1, 0, e]) * (1 - d) / (1 + e), d)])
    two = one.group(2)
    assert one.delta(np.inf) == pytest.approx(d, rel=1e-12)
    for epsilon in (np.inf, 50.0):
        assert d * (1 + e) <= two.delta(epsilon) * (1 + 1e-12)
    assert two.delta(np.inf) == pytest.approx(d * (1 + e), rel=1e-3)
    assert two.f(0.0) == pytest.approx(1 - d * (1 + e), rel=1e-4)
    assert two.epsilon(2 * d) == np.inf
    assert Gaussian(1.0).group(3).delta(np.inf) == Grouped(some_mixture(1), 2).delta(np.inf) == 0


def test_the_group_rule_for_a_mixture_bounds_the_exact_group():
    # Two examples under subsampling: the exact group of two is a better bound than the rule applied to single examples.
    rule, exact = some_mixture(1).group(2), some_mixture(2)
    alpha = np.linspace(0.01, 0.99, 15)
    assert np.all(rule.f(alpha) <= exact.f(alpha) + 1e-12)
    assert rule.epsilon(1e-5) >= exact.epsilon(1e-5)
    assert rule.renyi(3.0) >= exact.renyi(3.0)


@pytest.mark.parametrize("trade_off", [Gaussian(0.8), some_mixture(), some_mixture(1, 0.3).group(2)], ids=repr)
def test_laws_of_trade_off_functions(trade_off):
    alpha = np.linspace(0, 1, 41)
    f = trade_off.f(alpha)
    assert np.all(f <= 1 - alpha) and np.all(np.diff(f) <= 0)
    assert np.all(np.diff(f, 2) >= -1e-10), "f must be convex"
    epsilon = np.linspace(-3, 6, 19)
    delta = trade_off.delta(epsilon)
    assert np.all(np.diff(delta) <= 0)
    # δ(ε) = sup_α 1 − f(α) − e^ε α: every line of the profile lies below f, and the curve is their envelope.
    lines = 1 - delta[:, None] - np.exp(epsilon)[:, None] * alpha
    assert np.all(lines <= f + 1e-9)


def test_renyi_grows_with_the_order_and_bounds_the_profile():
    orders = np.array([1.1, 2.0, 8.0, 40.0])
    for trade_off in (Gaussian(1.0), some_mixture(), some_mixture(1).group(3)):
        values = trade_off.renyi(orders)
        assert np.all(np.diff(values) > 0)
        # The classical conversion from RDP never promises more than the profile does.
        classical = np.min(values + np.log(1e5) / (orders - 1))
        assert trade_off.epsilon(1e-5) <= classical


def test_a_table_of_a_profile_bounds_it_from_the_private_side():
    truth = Gaussian(1.3)
    table = Envelope.of(truth.delta, 12.0, 400)
    epsilon = np.linspace(-14, 14, 1001)
    found, exact = table.delta(epsilon), truth.delta(epsilon)
    assert np.all(found >= exact * (1 - 1e-14))
    inside = np.abs(epsilon) < 11
    np.testing.assert_allclose(found[inside], exact[inside], rtol=0.02)
    beyond = table.delta(np.array([13.0, np.inf]))
    assert np.all(beyond >= table.delta_at[-1]) and beyond == pytest.approx(table.delta_at[-1], rel=1e-12)
    assert table.delta(np.array([-np.inf])) == 1
    alpha = np.concatenate([[0.0], np.logspace(-12, -0.01, 200), 1 - np.logspace(-12, -0.01, 200), [1.0]])
    lower = table.f(alpha)
    assert np.all(lower <= truth.f(alpha)) and lower[-1] == 0
    np.testing.assert_allclose(lower, truth.f(alpha), atol=1e-4)
    # The best of all its lines, as the search finds it, is the best there is.
    lines = np.maximum(
        1 - table.delta_at - np.exp(table.epsilon) * alpha[:, None],
        np.exp(-table.epsilon) * (1 - table.delta_at - alpha[:, None]),
    ).max(axis=1)
    np.testing.assert_allclose(lower, np.clip(lines, 0, None), atol=1e-13)


def test_a_table_holds_no_matter_what_noise_is_in_it():
    rng = np.random.default_rng(3)
    truth, epsilon = Gaussian(0.8), np.linspace(0, 5, 60)
    table = Envelope(epsilon, truth.delta(epsilon) * (1 + 0.3 * rng.random(60)))
    between, alpha = np.linspace(-5, 5, 501), np.linspace(0, 1, 301)
    assert np.all(table.delta(between) >= truth.delta(between) * (1 - 1e-14))
    assert np.all(table.f(alpha) <= truth.f(alpha))


def test_pitfall_27_a_table_of_huge_epsilon():
    truth = Gaussian(100.0)  # ε about 5400, e^ε is no float
    table = Envelope.of(truth.delta, truth.epsilon(1e-300), 1500)
    found = table.delta(np.array([4000.0, 5400.0]))
    assert np.all(found >= truth.delta([4000.0, 5400.0]))
    assert found[1] <= truth.delta(5400.0 - 15.0), "ε is at most one step of the table off"
    assert np.all(table.f(np.array([0.0, 1e-300, 0.5])) <= truth.f([0.0, 1e-300, 0.5]))


def test_renyi_conversion_of_a_gaussian():
    for mu in (1e-3, 0.5, 30.0):
        tail = RenyiTail(lambda order, mu=mu: order * mu**2 / 2, 1e-9)
        for delta in (1e-300, 1e-50, 1e-12):
            orders = 1 + np.geomspace(1e-3, 1e6, 100_000)
            best = np.min(orders * mu**2 / 2 + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1))
            found = tail.epsilon(delta)
            assert best * (1 - 1e-9) <= found <= best * 1.002
            assert Gaussian(mu).epsilon(delta) <= found
            assert 0.99 * delta < tail.delta(np.array([found]))[0] <= delta
    assert tail.delta(np.array([np.inf, 0.0])).tolist() == [0.0, 1.0]
    nothing = RenyiTail(lambda order: np.inf, 1e-9)
    assert nothing.epsilon(1e-12) == np.inf and nothing.delta(np.array([3.0])) == 1


def test_renyi_table_is_above_its_curve():
    table = RenyiTable(lambda order: order * 0.5)
    for order in (1 + 1e-5, 1.3, 2.0, 777.7):
        assert order * 0.5 <= table(order) <= order * 0.5 * 1.008
    assert RenyiTable(lambda order: order if order < 9 else np.inf)(8.9) == np.inf


def test_what_clipping_adds_to_a_lattice_of_a_profile_is_not_taken_from_its_tail():
    law = pld.from_profile(Gaussian(1.0).delta, 1e-4, 9.0)
    for epsilon in (0.0, 1.0, 4.0, 8.0):
        assert law.delta(np.array([epsilon]))[0] >= Gaussian(1.0).delta(epsilon) * (1 - 1e-12)
    assert law.weights.sum() + law.infinity == pytest.approx(1.0, abs=1e-12)
