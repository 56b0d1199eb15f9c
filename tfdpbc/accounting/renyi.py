r"""Rényi differential privacy: curves of mechanisms, conversion to (ε, δ), and black-box amplification by sampling.

A *curve* is a function of the order α > 1 (scalar or array) that bounds the Rényi divergence D_α(M(d) ‖ M(d')) of all
neighbours d, d', in nats. Laplace and Gaussian curves are closed forms in numpy; the distributions themselves, as
`tensorflow_probability` writes them, are integrated in the tests only, since importing it takes seconds.

Sources: Mironov, "Rényi differential privacy" (2017); Balle, Barthe, Gaboardi, Hsu, Sato (2020) for the conversion;
Zhu, Wang, "Poisson subsampled Rényi differential privacy" (2019); seed paper C; accounting.md section 4.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from scipy import special

from tfdpbc import _validate
from tfdpbc.accounting._gaussian import ULP

Curve = Callable[[np.ndarray], np.ndarray]

ORDERS = tuple(
    float(order)
    for order in np.unique(
        np.concatenate(
            [1 + np.geomspace(2.0**-26, 1, 157), np.arange(1, 64, 0.25)[1:], np.geomspace(64, 8192, 57).round()]
        )
    )
)
"""Orders that a conversion tries unless told otherwise: 1 + 2^−26 to 8192, all integers up to 64 among them."""


def laplace(order, scale: float):
    """The Rényi divergence of Lap(0, scale) from Lap(1, scale): a unit-sensitivity query with Laplace noise.

    Args:
      order: α > 1, a scalar or an array; inf gives 1/scale, the pure-DP ε. (Paper C's e^{1/b̃} for that is an erratum.)
      scale: b̃ = b / sensitivity > 0.

    Returns:
      log(α/(2α−1) e^{(α−1)/b̃} + (α−1)/(2α−1) e^{−α/b̃})/(α−1), rounded up, of the shape of `order`.
    """
    order = _orders(order)
    inverse = 1 / _validate.number("scale", scale, above=0)
    finite = np.where(np.isfinite(order), order, 2.0)
    less = finite - 1
    large = less * inverse
    # Of e^{(α−1)/b̃}: 1 + (α−1)/(2α−1)·(e^{−(2α−1)/b̃} − 1), in [1/2, 1]; exact for large exponents.
    factored = large + np.log1p(less / (2 * finite - 1) * np.expm1(-(2 * finite - 1) * inverse))
    # Small (α−1)/b̃ = x: (α (e^x − 1) + (α−1) (e^{−y} − 1))/(2α−1), y = α/b̃; the linear terms, equal up to sign, are
    # taken out: nothing cancels.
    x, y = np.minimum(large, 0.1), finite * inverse
    fall = np.where(y < 0.1, _exp_less_line(-np.minimum(y, 0.1)), np.expm1(-y) + y)
    near = np.log1p((finite * _exp_less_line(x) + less * fall) / (2 * finite - 1)) / less
    value = np.where(large < 0.1, near, (factored + 4 * ULP * (1 + large)) / less)
    value = np.where(np.isfinite(order), value, inverse)
    return _shaped(np.minimum(value * (1 + 32 * ULP), inverse * (1 + ULP)))


def gaussian(order, noise_multiplier: float):
    """α/(2σ̃²): N(0, σ̃²) from N(1, σ̃²), rounded up; `order` a scalar or an array, σ̃ = σ / sensitivity > 0."""
    order = _orders(order)
    noise_multiplier = _validate.number("noise_multiplier", noise_multiplier, above=0)
    with np.errstate(over="ignore"):
        return _shaped(order / 2 / noise_multiplier / noise_multiplier * (1 + 4 * ULP))


def compose(*curves: Curve) -> Curve:
    """The curve of mechanisms run one after the other on the same data (adaptively or not): their sum."""
    for curve in curves:
        if not callable(curve):
            _validate.fail("curves", "functions of the order", curve, TypeError)
    return lambda order: _shaped(
        sum((np.asarray(curve(order), np.float64) for curve in curves), np.zeros(np.shape(order)))
    )


def to_epsilon(curve: Curve | Sequence[float], delta: float, orders: Sequence[float] = ORDERS) -> float:
    """The ε that a Rényi curve implies at `delta`: min over α of RDP(α) + log(1 − 1/α) − (log δ + log α)/(α−1), >= 0.

    Args:
      curve: a function of one order, or its values at `orders`, shape [n].
      delta: δ in (0, 1).
      orders: shape [n], each > 1 (order 1 is refused). An order at which the curve is inf or NaN is dropped.

    Returns:
      ε >= 0, rounded up; inf if no order is left. Warns if the minimum sits at an end of `orders`, so that others may give less.

    Guarantee: a mechanism with that curve is (ε, δ)-DP. Source: Balle et al. (2020), Theorem 21.
    """
    return best_order(curve, delta, orders)[1]


def best_order(curve: Curve | Sequence[float], delta: float, orders: Sequence[float] = ORDERS) -> tuple[float, float]:
    """(α, ε): as :func:`to_epsilon`, with the order that gives it (NaN if there is none)."""
    delta = _validate.probability("delta", delta)
    orders = np.atleast_1d(_orders(orders, "orders"))
    if not np.all(np.isfinite(orders)) or orders.ndim != 1 or orders.size == 0:
        _validate.fail("orders", "a non-empty vector of finite numbers > 1", orders)
    if callable(curve):
        values = np.array([float(curve(order)) for order in orders])
    else:
        values = np.asarray(curve, np.float64)
        if values.shape != orders.shape:
            _validate.fail("curve", f"a function or {orders.size} values, one per order", values.shape)
    epsilon = converted(orders, values, delta)
    keep = np.isfinite(epsilon)
    if not keep.any():
        return float("nan"), float("inf")
    orders, epsilon = orders[keep], epsilon[keep]
    best = int(np.argmin(epsilon))
    if epsilon[best] > 0 and orders.size > 1 and orders[best] in (orders.min(), orders.max()):
        warnings.warn(
            f"the best order {orders[best]:g} is at the end of the orders tried: others may give a smaller epsilon",
            stacklevel=3,
        )
    return float(orders[best]), float(max(epsilon[best], 0.0))


def converted(orders: np.ndarray, values: np.ndarray, delta: float) -> np.ndarray:
    """ε of each order by itself, rounded up, possibly below 0; inf or NaN where the value is; shape [n]."""
    less = orders - 1
    with np.errstate(invalid="ignore"):
        log_terms = np.log(delta) + np.log(orders)
        epsilon = values + np.log(less / orders) - log_terms / less
        slack = 4 * ULP * (np.abs(values) + np.abs(np.log(less / orders)) + (1 + np.abs(log_terms)) / less)
        return epsilon + slack


def subsampled_upper(curve: Curve, rate: float, order: int) -> float:
    """Black-box bound on the Rényi divergence, of integer `order`, of any mechanism under Poisson sampling at `rate`.

    [(1−q)^{α−1}(αq−q+1) + C(α,2) q²(1−q)^{α−2} e^{ε(2)} + 3 Σ_{l>=3} C(α,l)(1−q)^{α−l} q^l e^{(l−1)ε(l)}], log and
    divided by α − 1, or the unsampled curve(α) if that is less (sampling costs nothing); rounded up. Holds in both
    directions. Source: Zhu, Wang (2019), Theorem 6; accounting.md section 4.
    """
    upper = _black_box(curve, rate, order, np.log(3.0))
    return min(upper, float(curve(np.array([float(order)]))[0]))


def subsampled_lower(curve: Curve, rate: float, order: int) -> float:
    """The same without the factor 3, rounded down: no black-box bound can be less.

    It is attained by a mechanism one pair of whose neighbours has the divergence curve(l) for every l = 2..order. A
    given mechanism whose worst pair depends on the order may lie below it: apply this to the curve of each pair then.
    """
    return _black_box(curve, rate, order, 0.0)


def _black_box(curve: Curve, rate: float, order: int, log_factor: float) -> float:
    rate = _validate.probability("rate", rate, one=True)
    order = _validate.integer("order", order, at_least=2)
    powers = np.arange(2, order + 1, dtype=np.float64)
    values = np.asarray(curve(powers), np.float64)
    if np.any(np.isnan(values)) or np.any(values < 0):
        _validate.fail("curve", "a function with values >= 0", values.min())
    factor = np.where(powers > 2, log_factor, 0.0)
    moment = sampled_log_moment(factor + (powers - 1) * values, rate, order)
    if log_factor:
        return float((moment + moment_slack(moment, order)) / (order - 1))
    return float(max(moment - moment_slack(moment, order), 0.0) / (order - 1))


def sampled_log_moment(log_moments: np.ndarray, rate: float, order: int) -> np.ndarray:
    """log Σ_l C(α,l)(1−q)^{α−l} q^l M_l with M_0 = M_1 = 1 and log M_l >= 0 given for l = 2..α; shape [..., α−1].

    As Σ_l of the same weights is 1, it is log(1 + Σ_{l>=2} weight·(M_l − 1)): positive terms, relatively accurate.
    """
    l = np.arange(2, order + 1, dtype=np.float64)  # noqa: E741
    with np.errstate(divide="ignore", invalid="ignore"):
        small = np.log(np.expm1(np.minimum(log_moments, 1.0)))
        log_less = np.where(log_moments > 1, log_moments + np.log(-np.expm1(-log_moments)), small)
        weight = log_binomial(order)[2:] + l * np.log(rate) + special.xlog1py(order - l, -rate)
        return np.logaddexp(0.0, special.logsumexp(weight + log_less, axis=-1))


def log_binomial(order: int) -> np.ndarray:
    """log C(α, l), l = 0..α, by gammaln: an error of a few ulp of its largest term, which `moment_slack` covers."""
    l = np.arange(order + 1, dtype=np.float64)  # noqa: E741
    return special.gammaln(order + 1) - special.gammaln(l + 1) - special.gammaln(order - l + 1)


def moment_slack(log_moment, order: float):
    """A bound on the rounding of `sampled_log_moment`: relative to E − 1, exponents being exact to 32 ulp of their size."""
    size = np.abs(log_moment) + order * (np.log(order) + 40)
    error = 32 * ULP * size  # relative, of E − 1
    return error * np.minimum(-np.expm1(-log_moment), 1.0) + 2 * ULP * np.abs(log_moment)


def _exp_less_line(x: np.ndarray) -> np.ndarray:
    """e^x − 1 − x for |x| <= 0.1, to full relative accuracy."""
    total = np.ones_like(x)
    for n in range(13, 2, -1):
        total = 1 + total * x / n
    return x * x / 2 * total


def _orders(order, name: str = "order") -> np.ndarray:
    try:
        values = np.asarray(order, np.float64)
    except (TypeError, ValueError):
        _validate.fail(name, "numbers > 1", order, TypeError)
    if isinstance(order, bool) or np.any(np.isnan(values)) or not np.all(values > 1):
        _validate.fail(name, "numbers > 1", order)
    return values


def _shaped(value):
    value = np.asarray(value)
    return float(value) if value.ndim == 0 else value
