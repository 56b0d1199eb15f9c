"""Planning backwards: the smallest noise, or the most rounds, that keep a promise.

The accountant is passed in as a function, so this works for every sampling and needs to know none. Whatever is returned
has been evaluated and found to keep the promise: rounding and interpolation can only cost utility, never privacy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tfdpbc import _validate
from tfdpbc.errors import UnreachableTarget

_STEPS = 200


def smallest_noise(
    epsilon_of: Callable[[float], float],
    epsilon: float,
    *,
    tolerance: float = 1e-3,
    lowest: float = 1e-3,
    highest: float = 1e8,
    start: float = 1.0,
) -> float:
    """The smallest noise multiplier σ with epsilon_of(σ) <= epsilon, up to `tolerance` in ε.

    Args:
      epsilon_of: σ ↦ ε at the δ wanted; non-increasing, may be inf.
      epsilon: the promise, > 0 and finite.
      tolerance: the answer has (1 − tolerance)·epsilon <= epsilon_of(σ) <= epsilon, unless ε jumps over that range.
      lowest, highest: the range searched. A promise that `lowest` keeps already gives `lowest`.
      start: where the search begins.

    Raises:
      UnreachableTarget: even `highest` does not keep the promise; the message says which ε it reaches.
    """
    epsilon = _validate.number("epsilon", epsilon, above=0)
    tolerance = _validate.number("tolerance", tolerance, above=0, below=1)
    lowest = _validate.number("lowest", lowest, above=0)
    highest = _validate.number("highest", highest, above=lowest)
    start = _validate.number("start", start, at_least=lowest, at_most=highest)

    good, bad = _bracket(epsilon_of, epsilon, lowest, highest, start)
    width = bad[0] / good[0] if bad else 1.0
    for step in range(_STEPS):
        if bad is None or good[1] >= (1 - tolerance) * epsilon or good[0] <= bad[0] * (1 + 1e-12):
            break
        share = _share(good, bad, (1 - tolerance / 2) * epsilon)
        if step % 3 == 2:  # interpolation that creeps towards one end is helped out by a bisection
            share, width = (0.5 if bad[0] / good[0] < width**0.25 else share), bad[0] / good[0]
        noise = float(good[0] * (bad[0] / good[0]) ** share)
        value = epsilon_of(noise)
        if value <= epsilon:
            good = (noise, value)
        else:
            bad = (noise, value)
    return good[0]


def most_rounds(epsilon_of: Callable[[int], float], epsilon: float, at_most: int = 10**9) -> int:
    """The largest n in 0..at_most with epsilon_of(n) <= epsilon, for a non-decreasing function of the number of rounds.

    Raises:
      UnreachableTarget: not even one round (one unit of whatever n counts) keeps the promise.
    """
    epsilon = _validate.number("epsilon", epsilon, above=0)
    at_most = _validate.integer("at_most", at_most, at_least=1)
    first = epsilon_of(1)
    if not first <= epsilon:
        raise UnreachableTarget(f"epsilon must be >= {first:g}, the cost of the first round; got epsilon={epsilon:g}")
    good, bad = 1, 2
    while bad <= at_most and epsilon_of(bad) <= epsilon:
        good, bad = bad, bad * 2
    bad = min(bad, at_most + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        if epsilon_of(middle) <= epsilon:
            good = middle
        else:
            bad = middle
    return good


def _bracket(epsilon_of, epsilon, lowest, highest, start):
    """((σ, ε) that keeps the promise, (σ, ε) that breaks it or None if nothing in the range does)."""
    noise, value = start, epsilon_of(start)
    if value <= epsilon:
        while True:
            good = (noise, value)
            if noise <= lowest:
                return good, None
            factor = np.clip(np.sqrt(epsilon / value), 2, 16) if value > 0 else 4
            noise = float(max(lowest, noise / factor))
            value = epsilon_of(noise)
            if not value <= epsilon:
                return good, (noise, value)
    while True:
        bad = (noise, value)
        if noise >= highest:
            raise UnreachableTarget(
                f"epsilon must be >= {value:g}, which is what the largest noise multiplier {highest:g} reaches; "
                f"got epsilon={epsilon:g}"
            )
        factor = np.clip(np.sqrt(value / epsilon), 2, 64) if np.isfinite(value) else 16
        noise = float(min(highest, noise * factor))
        value = epsilon_of(noise)
        if value <= epsilon:
            return (noise, value), bad


def _share(good, bad, aim: float) -> float:
    """How far from `good` to `bad`, in log σ, ε reaches `aim` if it is a power of σ; kept off the ends."""
    if good[1] <= 0 or not np.isfinite(bad[1]):
        return 0.5
    share = (np.log(aim) - np.log(good[1])) / (np.log(bad[1]) - np.log(good[1]))
    return float(np.clip(share, 0.02, 0.98))
