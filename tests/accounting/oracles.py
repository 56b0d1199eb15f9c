"""Plain computations of accounting's quantities by other ways than the library's: the oracles of its tests.

Nothing here is imported from the library. Values are exact up to float64 rounding and quadrature (about 1e-9 relative),
not certified: a test that asks "never below" leaves that much room.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize, special

ROOM = 1e-7  # relative accuracy that is claimed for these oracles


# --- how often a group is hit -----------------------------------------------------------------------------------------


def contributions_hit(m: int, s: int, g: int) -> np.ndarray:
    """Pr[k of m contributions hold one of j differing examples that lie in the round], by placing one after the other.

    Shape [g + 1, min(m, g) + 1], indexed by j and k; rows j > m·s are 0.
    """
    table = np.zeros((g + 1, min(m, g) + 1))
    table[0, 0] = 1.0
    for j in range(min(g, m * s)):
        for k in range(min(j, m) + 1):
            fresh = (m - k) * s / (m * s - j)
            table[j + 1, k] += table[j, k] * (1 - fresh)
            if k < table.shape[1] - 1:
                table[j + 1, k + 1] += table[j, k] * fresh
    return table


def hypergeometric(n: int, g: int, draws: int) -> np.ndarray:
    """Pr[j of g marked ones are among `draws` of n], j = 0..g."""
    j = np.arange(g + 1)
    found = np.zeros(g + 1)
    ok = (j <= draws) & (g - j <= n - draws)
    log = special.gammaln

    def log_choose(a, b):
        return log(a + 1) - log(b + 1) - log(a - b + 1)

    found[ok] = np.exp(log_choose(g, j[ok]) + log_choose(n - g, draws - j[ok]) - log_choose(n, draws))
    return found / found.sum()


def epoch(n: int, m: int, s: int, rounds: int, g: int) -> np.ndarray:
    """Pr[Σk² = v] over the first rounds of a shuffled epoch, round by round: shape [largest + 1]."""
    hit = contributions_hit(m, s, g)
    state = np.zeros((g + 1, g * g + 1))  # differing examples not yet seen, Σk²
    state[g, 0] = 1.0
    for b in range(rounds):
        left = n - b * m * s
        new = np.zeros_like(state)
        for unseen in range(g + 1):
            if not state[unseen].any():
                continue
            for j, weight in enumerate(hypergeometric(left, unseen, m * s)):
                for k, part in enumerate(hit[j]):
                    if weight * part > 0:
                        shift = k * k
                        new[unseen - j, shift:] += weight * part * state[unseen, : state.shape[1] - shift]
        state = new
    return state.sum(axis=0)


def c_squared(kind: str, n: int, m: int, s: int, rounds: int, g: int) -> np.ndarray:
    """Pr[c² = v], v = 0, 1, ..., after `rounds` rounds of "shuffling" or "subsampling"."""
    if kind == "shuffling":
        per_epoch = n // (m * s)
        total = epoch(n, m, s, rounds % per_epoch, g)
        return np.convolve(total, _power(epoch(n, m, s, per_epoch, g), rounds // per_epoch))
    counts = hypergeometric(n, g, m * s) @ contributions_hit(m, s, g)
    one = np.zeros((counts.size - 1) ** 2 + 1)
    one[np.arange(counts.size) ** 2] = counts
    return _power(one, rounds)


def _power(law: np.ndarray, count: int) -> np.ndarray:
    total = np.ones(1)
    while count:
        if count & 1:
            total = np.convolve(total, law)
        count >>= 1
        law = np.convolve(law, law) if count else law
    return total


# --- profiles ---------------------------------------------------------------------------------------------------------


def gaussian_delta(epsilon, mu) -> np.ndarray:
    """δ of G_μ, from its formula, in logs."""
    first = special.log_ndtr(mu / 2 - epsilon / mu)
    second = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    return np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))


def mixture_delta(weights: np.ndarray, sigma: float, epsilon):
    """Σ_v weights[v] δ_{G_{√v/σ}}(ε), ε >= 0; one or a vector."""
    v = np.flatnonzero(weights)
    v = v[v > 0]
    return gaussian_delta(np.asarray(epsilon)[..., None], np.sqrt(v) / sigma) @ weights[v]


class Loss:
    """The loss of P = Σ_k w_k N(k/σ, 1) against Q = N(0, 1) at quadrature nodes (Gauss-Legendre on short intervals).

    `kind`: "remove" (P against Q), "add" (Q against P), or "symmetric" (outcomes with L > 0, their mirror images, and
    the rest at loss 0: C_p of fixed-size subsampling).
    """

    def __init__(self, weights: np.ndarray, sigma: float, kind: str):
        k = np.flatnonzero(np.asarray(weights) > 0)
        shift = k / sigma
        low, high = -39.0, shift[-1] + 39.0
        if kind == "symmetric":
            low = shift[-1] / 2
        x, w = special.roots_legendre(10)
        edges = np.linspace(low, high, int((high - low) * max(1.5, np.diff(shift, prepend=0.0).max())) + 2)
        half = np.diff(edges)[:, None] / 2
        nodes = (edges[:-1, None] + half * (1 + x)).ravel()
        terms = np.log(np.asarray(weights)[k]) + shift * (nodes[:, None] - shift / 2)
        loss = special.logsumexp(terms, axis=1)
        q = (half * w).ravel() * np.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi)
        p = (half * w).ravel() * np.exp(loss - nodes**2 / 2) / math.sqrt(2 * math.pi)
        if kind == "remove":
            self.loss, self.weight = loss, p
        elif kind == "add":
            self.loss, self.weight = -loss, q
        else:
            rest = 1 - p.sum() - q.sum()
            self.loss, self.weight = np.concatenate([loss, -loss, [0.0]]), np.concatenate([p, q, [rest]])
        keep = self.weight > 1e-300
        self.loss, self.weight = self.loss[keep], self.weight[keep]

    def log_moment(self, t: float) -> float:
        """log E_P[e^{tL}]."""
        return float(special.logsumexp(t * self.loss, b=self.weight))

    def delta(self, epsilon, rounds: int):
        """δ(ε) of the rounds, for one ε or several near each other (then less exactly in the tail, about 1e-10 of the largest).

        NaN if the inversion does not settle: few hits, so that the law is not smooth.

        E[(1 − e^{ε−L})₊] = (1/2πi) ∫ e^{−zε} M(z)^T / (z (z+1)) dz over Re z = c > 0, at the saddle point c, by the
        trapezoid rule, whose error falls exponentially with its step.
        """

        middle = float(np.mean(epsilon))

        def height(log_c: float) -> float:
            c = math.exp(log_c)
            return rounds * self.log_moment(c) - c * middle - math.log(c) - math.log1p(c)

        found = optimize.minimize_scalar(height, bounds=(-12, 12), method="bounded", options={"xatol": 1e-3})
        c, peak = math.exp(found.x), found.fun
        tilted = self.weight * np.exp(c * self.loss - self.log_moment(c))
        matter = tilted > 1e-19 * tilted.max()
        tilted, losses = tilted[matter], self.loss[matter]
        mean = tilted @ losses
        width = 1 / math.sqrt(rounds * (tilted @ (losses - mean) ** 2) + 1 / c**2 + 1 / (1 + c) ** 2)
        step, total = width / (6 if np.ndim(epsilon) == 0 else 12), 0.0
        apart = np.asarray(epsilon) - middle
        blocks = min(40, 1 + 4_000_000 // (128 * losses.size))

        def ratio(u: np.ndarray) -> np.ndarray:
            return np.exp(1j * np.multiply.outer(u, losses - mean)) @ tilted

        if np.abs(ratio(step * 128 * blocks * np.linspace(0.9, 1.0, 8))).max() ** rounds > 1e-12:
            return math.nan
        for start in range(0, 128 * blocks, 128):
            u = step * np.arange(start, start + 128)
            shape = np.exp(rounds * np.log(ratio(u)) + 1j * u * (rounds * mean - middle))
            z = c + 1j * u
            terms = shape * c * (1 + c) / (z * (z + 1))
            terms[0] /= 2 if start == 0 else 1
            total = total + (np.exp(-np.multiply.outer(apart, z)) @ terms).real
            if np.abs(shape[-8:]).max() < 1e-13:
                break
        return math.exp(peak) * total * step / math.pi


def binomial(g: int, q: float) -> np.ndarray:
    """Pr[k of g], shape [g + 1]."""
    return np.array([math.comb(g, k) * q**k * (1 - q) ** (g - k) for k in range(g + 1)])


def epsilon_of(delta_of, delta: float, high: float) -> float:
    """The root of the decreasing δ(ε) = `delta` in [0, high]; 0 if δ(0) <= delta; NaN where δ(ε) is."""
    if not delta_of(0.0) > delta:
        return 0.0 if delta_of(0.0) <= delta else math.nan
    with np.errstate(divide="ignore"):
        return optimize.brentq(lambda e: np.log(max(delta_of(e), 1e-320)) - math.log(delta), 0.0, high, xtol=1e-10)
