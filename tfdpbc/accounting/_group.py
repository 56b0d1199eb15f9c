"""Groups of examples for any trade-off function f: bounds on 1 − (1 − f)^{∘size}, all of them tight for Gaussians.

With F = 1 − f, each (ε_i, δ(ε_i)) gives a line above F, and a chain of `size` such lines with Σ ε_i = ε bounds

    δ_group(ε) <= Σ_i δ(ε_i) exp(Σ_{j>i} ε_j),

whatever the ε_i are. The best chain is that of the tangents at α, F(α), F(F(α)), ..., for the α at which their slopes
multiply to e^ε: F∘...∘F is concave, and that is its own tangent. For G_μ they are an arithmetic progression of step μ².

Source: Dong, Roth, Su (2019), Theorem 2.14; Mironov (2017), Proposition 11, for Rényi divergences.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tfdpbc.accounting._envelope import Envelope
from tfdpbc.accounting._gaussian import ULP

_STARTS = 2000  # α at which tangents are taken: a third of a nat apart; chains between them are interpolated
_BLOCK = 1 << 18  # elements of a table held at a time


def f(one: Callable[[np.ndarray], np.ndarray], alpha: np.ndarray, size: int) -> np.ndarray:
    """1 − (1 − f)^{∘size} at each α, rounded down."""
    for _ in range(size - 1):
        alpha = np.nextafter(1 - one(alpha), 2.0).clip(0, 1)
    return one(alpha)


def gaussian_chain(epsilon: np.ndarray, mu: float, size: int) -> np.ndarray:
    """The ε_i of the best chain for G_μ, for each finite ε: shape [n, size]."""
    return epsilon[:, None] / size + mu * mu * ((size - 1) / 2 - np.arange(size))


class Chains:
    """The best chains of a table."""

    def __init__(self, table: Envelope, size: int):
        alpha = np.geomspace(1e-300, 0.5, _STARTS)
        chains = np.empty((_STARTS, size))
        for i in range(size):
            alpha, chains[:, i] = table.advance(np.minimum(alpha, 1.0))
        order = np.argsort(chains.sum(axis=1), kind="stable")
        self._chains, self._totals = chains[order], chains.sum(axis=1)[order]

    def __call__(self, epsilon: np.ndarray) -> np.ndarray:
        """ε_i with Σ ε_i = ε for each finite ε: shape [n, size]."""
        i = np.clip(np.searchsorted(self._totals, epsilon, side="right") - 1, 0, _STARTS - 2)
        low, high = self._totals[i], self._totals[i + 1]
        share = np.clip((epsilon - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)[:, None]
        chain = (1 - share) * self._chains[i] + share * self._chains[i + 1]
        chain[:, 0] += epsilon - chain.sum(axis=1)
        return chain


def delta(one: Callable[[np.ndarray], np.ndarray], chain_of, epsilon: np.ndarray, size: int) -> np.ndarray:
    """The bound on δ_group at each finite `epsilon` >= 0; `one` is δ of one member, `chain_of` its :class:`Chains`."""
    block = max(1, _BLOCK // size)
    blocks = [epsilon[start : start + block] for start in range(0, epsilon.size, block)]
    return np.concatenate([np.zeros(0), *(_delta(one, chain_of, part, size) for part in blocks)])


def _delta(one, chain_of, epsilon, size):
    parts = chain_of(epsilon)
    later = np.cumsum(parts[:, ::-1], axis=1)[:, ::-1] - parts
    with np.errstate(divide="ignore"):
        terms = np.log(one(parts.ravel())).reshape(parts.shape) + later
    # What rounding may have made of the sums, of ε itself too.
    slack = ULP * size * (8 + 4 * np.abs(parts).sum(axis=1))
    return np.exp(np.minimum(np.logaddexp.reduce(terms, axis=1) + slack, 0.0))


def renyi(one: Callable[[float], float], order: float, size: int) -> float:
    """A bound on the group's Rényi divergence: once per member, the exponent p the one that is best for Gaussians."""
    total = 0.0
    for left in range(size - 1, 0, -1):
        p = 1 + left * (order - 1) / order
        total += (order - 1 / p) / (order - 1) * one(p * order)
        order = p / (p - 1) * (order - 1 / p)
    return total + one(order)
