"""Rényi curves against 30-digit integrals and the densities of tensorflow_probability; bounds against brute force."""

import math
import subprocess
import sys
import warnings

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdpbc.accounting import renyi


def laplace_exactly(order, scale):
    with mp.workdps(40):
        a, b = mp.mpf(order), mp.mpf(scale)
        moment = a / (2 * a - 1) * mp.exp((a - 1) / b) + (a - 1) / (2 * a - 1) * mp.exp(-a / b)
        return float(mp.log(moment) / (a - 1))


def test_reference_values():
    found = renyi.laplace(np.array([2.0, 8.0, 32.0]), 1.5)
    np.testing.assert_allclose(found, [0.326678053678, 0.576871104485, 0.644815091712], rtol=1e-9)
    assert renyi.to_epsilon(lambda a: a / 2, 1e-5, range(2, 257)) == pytest.approx(4.752728336819, rel=1e-9)


def test_laplace_keeps_its_digits_at_every_size():
    for scale in (1e-3, 0.05, 1.5, 30.0, 1e4, 1e7):
        for order in (1 + 1e-6, 1.01, 1.5, 2, 8, 300, 1e5):
            truth = laplace_exactly(order, scale)
            found = renyi.laplace(order, scale)
            assert truth <= found <= truth * (1 + 1e-9), (scale, order)
    assert renyi.laplace(np.inf, 4.0) == pytest.approx(0.25, rel=1e-12)
    assert renyi.laplace(1e9, 4.0) <= renyi.laplace(np.inf, 4.0)


@pytest.mark.parametrize("order", [1.5, 2.0, 7.3])
def test_curves_are_the_divergences_of_the_densities_of_tensorflow_probability(order):
    tfp = pytest.importorskip("tensorflow_probability.substrates.numpy")
    x = np.linspace(-60, 60, 1_200_001)  # kinks at 0 and 1 are on the grid: second-order exact
    for kind, found in (("Laplace", renyi.laplace(order, 1.3)), ("Normal", renyi.gaussian(order, 1.3))):
        density = getattr(tfp.distributions, kind)
        first, second = (density(np.float64(m), np.float64(1.3)).log_prob(x) for m in (0.0, 1.0))
        for p, q in ((first, second), (second, first)):
            moment = np.trapezoid(np.exp(order * p + (1 - order) * q), x)
            assert found == pytest.approx(math.log(moment) / (order - 1), rel=1e-7)


def test_gaussian_and_composition():
    orders = np.array([[1.5, 2.0], [32.0, np.inf]])
    found = renyi.compose(lambda a: renyi.gaussian(a, 2.0), lambda a: renyi.gaussian(a, 0.5))(orders)
    assert found.shape == (2, 2)
    np.testing.assert_allclose(found, orders * (1 / 8 + 2), rtol=1e-14)
    assert np.all(found >= orders * (1 / 8 + 2))
    assert renyi.compose()(2.0) == 0.0
    with pytest.raises(TypeError, match="curves must be"):
        renyi.compose(3.0)


@pytest.mark.parametrize("bad", [1, 1.0, 0.5, -2, np.nan, [2, 1], True])
def test_pitfall_25_order_one_is_an_error(bad):
    for function in (lambda o: renyi.laplace(o, 1.0), lambda o: renyi.gaussian(o, 1.0)):
        with pytest.raises(ValueError, match="order must be numbers > 1"):
            function(bad)
    with pytest.raises(ValueError, match="orders must be"):
        renyi.to_epsilon(lambda a: a, 1e-5, np.atleast_1d(bad) if bad is not True else True)


def test_pitfall_25_orders_that_diverge_are_dropped_and_ends_warn():
    values = [np.inf, 3.0, np.nan, 9.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alone = renyi.to_epsilon([3.0], 1e-5, [16])
    with pytest.warns(UserWarning, match="best order 16 .*end of the orders"):
        assert renyi.to_epsilon(values, 1e-5, [4, 16, 17, 256]) == alone
    assert renyi.to_epsilon([np.inf, np.nan], 1e-5, [2, 3]) == np.inf
    with pytest.warns(UserWarning, match="end of the orders"):
        renyi.to_epsilon(lambda a: a / 2, 1e-5, [2, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        renyi.to_epsilon(lambda a: a / 2, 1e-5)


def test_pitfall_23_epsilon_is_never_negative_and_falls_with_delta():
    assert renyi.to_epsilon(lambda a: 1e-9 * a, 0.1) == 0.0
    found = [renyi.to_epsilon(lambda a: a / 2, delta) for delta in (1e-9, 1e-5, 1e-2, 0.4)]
    assert found == sorted(found, reverse=True)


@settings(max_examples=60, deadline=None)
@given(st.floats(0.05, 30), st.floats(1e-12, 0.4))
def test_converted_epsilon_is_never_below_the_exact_one_of_the_gaussian(sigma, delta):
    from tfdpbc.accounting import Gaussian

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = renyi.to_epsilon(lambda a: renyi.gaussian(a, sigma), delta)
    assert found >= Gaussian(1 / sigma).epsilon(delta)


def test_to_epsilon_checks_what_it_gets():
    for delta in (0.0, 1.0, np.nan, -1e-5):
        with pytest.raises(ValueError, match="delta must be"):
            renyi.to_epsilon(lambda a: a, delta)
    with pytest.raises(ValueError, match="curve must be"):
        renyi.to_epsilon([1.0, 2.0], 1e-5, [2, 3, 4])
    with pytest.raises(ValueError, match="orders must be"):
        renyi.to_epsilon([], 1e-5, [])
    with pytest.raises(ValueError, match="scale must be"):
        renyi.laplace(2, 0.0)


def brute_black_box(curve, q, order, factor):
    with mp.workdps(60):
        q = mp.mpf(q)
        total = (1 - q) ** (order - 1) * (order * q - q + 1)
        for k in range(2, order + 1):
            weight = mp.binomial(order, k) * (1 - q) ** (order - k) * q**k
            total += (factor if k > 2 else 1) * weight * mp.exp((k - 1) * mp.mpf(curve(k)))
        return mp.log(total) / (order - 1)


@pytest.mark.parametrize("rate", [1e-6, 0.02, 0.5, 0.99])
@pytest.mark.parametrize("order", [2, 3, 17, 200])
@pytest.mark.parametrize("slope", [1e-5, 0.3, 60.0])
def test_black_box_bounds_are_the_sums_rounded_outward(rate, order, slope):
    upper = renyi.subsampled_upper(lambda a: slope * np.asarray(a), rate, order)
    lower = renyi.subsampled_lower(lambda a: slope * np.asarray(a), rate, order)
    most = min(float(brute_black_box(lambda k: slope * k, rate, order, 3)), slope * order)
    least = float(brute_black_box(lambda k: slope * k, rate, order, 1))
    assert most * (1 - 1e-15) <= upper <= most * (1 + 1e-8) + 1e-18
    assert least * (1 - 1e-8) - 1e-18 <= lower <= least * (1 + 1e-15)


def test_black_box_lower_bound_is_the_sampled_gaussian():
    # Its single pair has the divergence α/(2σ²) at every order, so the sum without the 3 is exact: by quadrature.
    from scipy import integrate

    q, sigma, order = 0.05, 1.2, 6

    def integrand(x):
        ratio = 1 - q + q * math.exp((2 * x - 1) / (2 * sigma**2))
        return math.exp(-x * x / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi)) * ratio**order

    truth = math.log(integrate.quad(integrand, -30, 40, epsabs=0, epsrel=1e-12, limit=400)[0]) / (order - 1)
    assert renyi.subsampled_lower(lambda a: renyi.gaussian(a, sigma), q, order) == pytest.approx(truth, rel=1e-9)
    assert truth < renyi.subsampled_upper(lambda a: renyi.gaussian(a, sigma), q, order)


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-6, 1.0), st.integers(2, 300), st.floats(0.2, 50))
def test_sampling_never_costs_and_bounds_are_ordered(rate, order, sigma):
    def curve(a):
        return renyi.gaussian(a, sigma)

    lower, upper = renyi.subsampled_lower(curve, rate, order), renyi.subsampled_upper(curve, rate, order)
    assert 0 <= lower <= upper <= curve(order)
    if rate == 1.0:
        assert lower == pytest.approx(curve(order), rel=1e-8)


def test_black_box_arguments():
    for order in (1, 2.5, True):
        with pytest.raises((ValueError, TypeError), match="order must be an integer >= 2"):
            renyi.subsampled_upper(lambda a: a, 0.1, order)
    with pytest.raises(ValueError, match="rate must be"):
        renyi.subsampled_lower(lambda a: a, 0.0, 3)
    with pytest.raises(ValueError, match="curve must be"):
        renyi.subsampled_lower(lambda a: -a, 0.1, 3)


def test_importing_it_loads_nothing_heavy():
    code = "import sys, tfdpbc.accounting.renyi, tfdpbc.accounting.ptr; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    heavy = {"tensorflow", "tensorflow_probability", "dp_accounting", "matplotlib", "scipy.optimize", "scipy.integrate"}
    assert not heavy & set(modules)
