r"""The pairs of distributions that one Propose-Test-Release can show an adversary: profiles and moments.

A pair has two branches i (pass, fail), public to the adversary. Without the example the output is p_i N(0, 1) on branch
i, with it p'_i N(r_i, 1), in units of the branch's noise; sampled at rate q, it is M = (1−q)·without + q·with against
B = without. "Forward" is (M ‖ B), what removing an example may show; "reverse" is (B ‖ M).

A hockey-stick or Rényi divergence of such a pair is jointly convex in (p_i, p'_i). For margins that stay on one side of
the threshold, Laplace noise puts (p, p') of margins (Δ, Δ ± 1), or (1−p, 1−p'), on one ray, and the other branch with
it on one line: so of all margins on that side the first and the last are the worst, and a dozen pairs stand for all.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import special

from tfdpbc.accounting._gaussian import ULP, gaussian_delta, reflect
from tfdpbc.accounting.renyi import moment_slack, sampled_log_moment

_ALIVE = 70.0  # parts of an integrand below e^−70 of its peak are left out
_COARSE = 0.25
_MAX_NODES = 1 << 18


@dataclasses.dataclass(frozen=True, eq=False)
class Pairs:
    """n pairs; every array has shape [n, 2], the branches being pass and fail.

    Attributes:
      margins: (Δ, Δ') of each.
      log_base: log p_i.
      log_ratio: c_i = log(p'_i / p_i).
      shift: r_i > 0.
    """

    margins: np.ndarray
    log_base: np.ndarray
    log_ratio: np.ndarray
    shift: np.ndarray

    @property
    def log_other(self) -> np.ndarray:
        """log p'_i."""
        return self.log_base + self.log_ratio


def log_laplace_above(x: np.ndarray) -> np.ndarray:
    """log Pr[Lap(0, 1) > x]."""
    return np.where(x >= 0, -np.log(2.0) - x, np.log1p(-0.5 * np.exp(np.minimum(x, 0.0))))


def all_margins(trim: int) -> np.ndarray:
    """Every (Δ, Δ') with |Δ − Δ'| <= 1 in 0..trim, shape [n, 2]."""
    every = np.arange(trim + 1)
    up = np.stack([every[:-1], every[1:]], axis=1)
    return np.concatenate([np.stack([every, every], axis=1), up, up[:, ::-1]])


def worst_margins(trim: int, threshold: float) -> np.ndarray:
    """Those among them that attain the maximum of every divergence (see above), shape [n <= 15, 2]."""
    same = {0, min(1, trim), trim}
    near = float(np.clip(threshold, -2, trim + 2))
    steps = {0, trim - 1, int(np.floor(near)) - 1, int(np.floor(near)), int(np.ceil(near))}
    low = sorted(step for step in steps if 0 <= step < trim)
    return np.array([(d, d) for d in sorted(same)] + [(d, d + 1) for d in low] + [(d + 1, d) for d in low])


def make(margins: np.ndarray, threshold: float, laplace_scale: float, shifts: tuple[float, float, float]) -> Pairs:
    """The pairs of these `margins`; `shifts` are r on pass, on pass with both margins 0, and on fail."""
    margins = np.asarray(margins).reshape(-1, 2)
    x = (threshold - margins) / laplace_scale  # pass where the noise exceeds x
    step = (margins[:, 1] - margins[:, 0]) / laplace_scale
    log_pass, log_fail = log_laplace_above(x), log_laplace_above(-x)
    below, above = np.all(x >= 0, axis=1), np.all(x <= 0, axis=1)
    ratio = np.stack(
        [
            np.where(below, step, log_pass[:, 1] - log_pass[:, 0]),
            np.where(above, -step, log_fail[:, 1] - log_fail[:, 0]),
        ],
        axis=1,
    )
    usual, wrong, fail = shifts
    shift = np.stack([np.where(margins.any(axis=1), usual, wrong), np.full(len(margins), fail)], axis=1)
    return Pairs(margins, np.stack([log_pass[:, 0], log_fail[:, 0]], axis=1), ratio, shift)


def log_reach(epsilon: np.ndarray, rate: float, slack: float = 0.0) -> np.ndarray:
    """log(e^ε − (1−q)) for real ε: q times the likelihood ratio at which the loss is ε; −inf where there is none.

    The difference has an absolute error of at most 2 ulp of q + e^ε − 1 where ε >= 0, of q where ε < 0; `slack`, times
    q, is added to it.
    """
    epsilon = np.asarray(epsilon, np.float64)
    if rate == 1.0:
        return epsilon
    less = np.minimum(epsilon, 1.0)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        # Below −0.7 it is positive for q > 1/2 only, and 1 − q is exact then.
        value = np.where(less < -0.7, np.exp(less) - (1 - rate), np.expm1(less) + rate) + slack * rate
        large = epsilon + np.log1p(-(1 - rate) * np.exp(-np.maximum(epsilon, 1.0)))
        return np.where(epsilon > 1, large, np.where(value > 0, np.log(np.maximum(value, 1e-320)), -np.inf))


def profiles(pairs: Pairs, epsilon: np.ndarray, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """(forward, reverse) δ(ε) of every pair for ε >= 0, rounded up; shapes [n, k].

    With u = e^ε − (1−q) and G the Gaussian profile, forward is Σ_i q p'_i δ_{G_{r_i}}(log(u p_i/(q p'_i))); with
    v = e^{−ε} − (1−q), reverse is e^ε v Σ_i p_i δ_{G_{r_i}}(log(q p'_i/(v p_i))), 0 where v <= 0.
    """
    ratio, r = pairs.log_ratio[:, :, None], pairs.shift[:, :, None]
    log_q = np.log(rate)
    log_u, log_v = log_reach(epsilon, rate), log_reach(-epsilon, rate, 4 * ULP)
    alive = log_v > -np.inf
    finite_v = np.where(alive, log_v, 0.0)
    rounding = 4 * ULP * (np.abs(ratio) + abs(log_q) + 2)
    with np.errstate(invalid="ignore", over="ignore"):
        at = log_u - log_q - ratio - rounding - 4 * ULP * np.abs(log_u)
        forward = gaussian_delta(at, r) * np.exp(pairs.log_other[:, :, None] + log_q)
        at = log_q + ratio - finite_v - rounding - 4 * ULP * np.abs(finite_v)
        terms = gaussian_delta(at, r) * np.exp(pairs.log_base[:, :, None])
        # e^ε v <= 1: the sum is taken first, ε being at most −log(1−q) here, or v = e^{−ε}.
        reverse = np.where(alive, terms.sum(axis=1) * np.exp(np.where(alive, epsilon + log_v, 0.0)), 0.0)
    up = 1 + 64 * ULP * (1 + np.abs(pairs.log_base).max(axis=1)[:, None])
    return np.minimum(forward.sum(axis=1) * up, 1.0), np.minimum(reverse * up, 1.0)


def largest_profile(pairs: Pairs, epsilon: np.ndarray, rate: float) -> np.ndarray:
    """The largest δ(ε) of any pair in either direction, for real ε, shape [k]; symmetric, as directions swap."""
    size = np.abs(epsilon)
    result = reflect(epsilon, np.maximum(*profiles(pairs, size, rate)).max(axis=0))
    return np.minimum(np.where(result > 0, result * (1 + 4 * ULP), 0.0), 1.0)


def log_moments(pairs: Pairs, order: np.ndarray) -> np.ndarray:
    """log E_without[(with/without)^order] at rate 1, for each pair and order, rounded up; shapes [k] → [n, k].

    Orders > 1 are the forward direction, order 1 − α is the reverse one of α.
    As E = 1 at α = 1 and Σ p_i = 1, E − 1 = Σ p_i (e^{α c_i + α(α−1) r_i²/2} − 1), which is taken where that is small.
    """
    ratio, base, r = (x[:, :, None] for x in (pairs.log_ratio, pairs.log_base, pairs.shift))
    with np.errstate(over="ignore", invalid="ignore"):
        exponent = order * ratio + order * (order - 1) / 2 * r * r
        size = np.abs(order * ratio) + order * (order - 1) / 2 * r * r + np.abs(base)
        large = special.logsumexp(base + exponent, axis=1) + 4 * ULP * size.max(axis=1)
        terms = np.exp(base) * np.expm1(np.minimum(exponent, 1.0))
        near = terms.sum(axis=1) + 8 * ULP * (np.abs(terms) * (2 + np.abs(base))).sum(axis=1)
        small = np.log1p(np.maximum(near, 0.0)) * (1 + 4 * ULP)
    return np.where((exponent < 1).all(axis=1), small, np.maximum(large, 0.0))


def sampled_moments(pairs: Pairs, order: int, rate: float) -> np.ndarray:
    """log E_B[(M/B)^α] of each pair for an integer α >= 2, rounded up; shape [n]."""
    moment = sampled_log_moment(log_moments(pairs, np.arange(2.0, order + 1)), rate, order)
    return moment + moment_slack(moment, order)


def quadrature_moment(pairs: Pairs, pair: int, power: float, rate: float) -> float:
    """log E_B[(M/B)^power] of one pair, for power > 1 (forward, α = power) or < 0 (reverse, α = 1 − power).

    Integrates S = (1+y)^power − 1 − power·y >= 0, y = M/B − 1, whose last term has mean 0, so that a tiny moment keeps
    its digits, by the trapezoidal rule. In the strip |Im x| < a, a r <= π/2, |S| grows by at most (√2)^{|power|} e^{a²/2},
    so a spacing h <= min(1/4, 1/(4r), 1/(r√|power|)) leaves a relative error below 1e-15; the parts left out and
    rounding stay below 1e-9 of E − 1, which is added. Infinite where more than 2^18 nodes would be needed.
    """
    total = 0.0
    for branch in range(2):
        p = float(np.exp(pairs.log_base[pair, branch]))
        if p == 0:
            continue
        r, c = float(pairs.shift[pair, branch]), float(pairs.log_ratio[pair, branch])
        if power < 0:  # S <= (1−q)^power on the left, and grows like y on the right
            limit = np.inf if rate == 1 else np.sqrt(2 * (80 + power * np.log1p(-rate)))
            low, high = -min(14 - power * r, limit), r + 14
        else:
            low, high = -14.0, max(power, 2.0) * r + 14
        value = _trapezoid(r, c, power, rate, low, high)
        if value is None:
            return np.inf
        total = np.logaddexp(total, value + np.log(p)) if total else value + np.log(p)
    error = 1e-9 + 1e-14 / min(abs(power), abs(power - 1)) + 1e-13 * abs(power)
    return float(np.logaddexp(0.0, total + np.log1p(error) if total else -np.inf) * (1 + 4 * ULP))


def _trapezoid(r: float, c: float, power: float, rate: float, low: float, high: float) -> float | None:
    """log ∫ φ(x) S(x) dx over one branch; None if it would take too many nodes."""
    if (high - low) / _COARSE > _MAX_NODES:
        return None
    first, last = int(np.floor(low / _COARSE)), int(np.ceil(high / _COARSE))
    cells = np.arange(first, last + 1)
    height = _log_integrand(cells * _COARSE, r, c, power, rate)
    alive = height > height.max() - _ALIVE
    # The peak of a concave exponent lies next to the highest coarse node; near-flat neighbours are kept as well.
    alive = alive[:-1] | alive[1:]
    alive[:-1] |= alive[1:].copy()
    alive[1:] |= alive[:-1].copy()
    per_cell = int(np.ceil(_COARSE / min(_COARSE, 0.25 / r, 1 / (r * np.sqrt(abs(power))))))
    where = cells[:-1][alive]
    if where.size * per_cell > _MAX_NODES:
        return None
    spacing = _COARSE / per_cell
    nodes = (where[:, None] * _COARSE + spacing * np.arange(per_cell)).ravel()
    logs = _log_integrand(nodes, r, c, power, rate)
    return float(logs.max() + np.log(np.exp(logs - logs.max()).sum() * spacing))


def _log_integrand(x: np.ndarray, r: float, c: float, power: float, rate: float) -> np.ndarray:
    """log of φ(x)·((1+y)^power − 1 − power·y), y = q (e^{c + r x − r²/2} − 1)."""
    exponent = c + r * x - r * r / 2
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        y = rate * np.expm1(np.minimum(exponent, 700.0))
        loss = np.where(exponent > 0, np.logaddexp(np.log1p(-rate), np.log(rate) + exponent), np.log1p(y))
        loss = np.where(np.abs(y) < 0.1, np.log1p(y), loss)
        if rate == 1.0:
            loss = exponent
        a = power * loss
        # Σ_{k>=2} binomial(power, k) y^k where its terms fall quickly.
        series = np.ones_like(x)
        for k in range(12, 2, -1):
            series = 1 + series * y * (power - k + 1) / k
        tiny = np.abs(y) * max(abs(power), 1.0) < 0.05
        small = np.log(power * (power - 1) / 2) + 2 * np.log(np.abs(y)) + np.log(np.where(tiny, series, 1.0))
        middle = np.log(np.maximum(np.expm1(np.minimum(a, 2.0)) - power * np.expm1(np.minimum(loss, 2.0)), 0.0))
        top = np.maximum(np.maximum(a, loss), 0.0)
        rest = np.exp(a - top) - power * np.exp(loss - top) + (power - 1) * np.exp(-top)
        large = top + np.log(np.maximum(rest, 0.0))
        value = np.where(tiny, small, np.where((np.abs(a) < 1) & (loss < 1), middle, large))
    return value - x * x / 2 - 0.5 * np.log(2 * np.pi)
