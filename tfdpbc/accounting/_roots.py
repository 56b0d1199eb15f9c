"""One-dimensional searches; the root finder says on which side of the root its answer lies.

A published privacy number has to err on the private side, so the caller needs a point that is *known* to satisfy its
inequality, not the nearest float. scipy.optimize returns either side (and costs a quarter of a second to import).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

_CLIP = 1e4  # log-differences beyond this carry no information for the interpolation; infinities would break it
_RELATIVE = 4 * np.finfo(np.float64).eps
_ULP = float(np.finfo(np.float64).eps)


def crossing(function: Callable[[float], float], low: float, high: float, *, absolute: float = 1e-300) -> float:
    """A point x in [low, high] with function(x) <= 0, next to where the decreasing `function` crosses zero.

    Chandrupatla's method: inverse quadratic interpolation guarded by bisection. `function(low) > 0 >= function(high)`
    must hold; the bracket shrinks until it is a few units in the last place wide.

    Source: T. R. Chandrupatla, "A new hybrid quadratic/bisection algorithm", Adv. Eng. Software 28 (1997).
    """

    def clipped(x: float) -> float:
        return float(min(max(function(x), -_CLIP), _CLIP))

    a, b = float(high), float(low)
    fa, fb = clipped(a), clipped(b)
    if fb <= 0:
        return b
    share = 0.5
    for _ in range(400):
        x = a + share * (b - a)
        fx = clipped(x)
        if (fx > 0) == (fa > 0):
            c, fc = a, fa
        else:
            c, fc, b, fb = b, fb, a, fa
        a, fa = x, fx
        width = abs(b - a)
        tolerance = _RELATIVE * max(abs(a), abs(b)) + absolute
        if width <= 2 * tolerance:
            break
        least = tolerance / width
        xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
        share = 0.5
        if phi**2 < xi and (1 - phi) ** 2 < 1 - xi:
            share = fa / (fb - fa) * fc / (fb - fc) + (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
        share = min(1 - least, max(least, share))
    return a if fa <= 0 else b


def log_excess(value: float, delta: float) -> float:
    """log(value/delta), positive exactly where value > delta: a difference of logarithms may round to the wrong side."""
    if value <= 0:
        return -np.inf
    ratio = float(np.log(value) - np.log(delta))
    return max(ratio, _ULP) if value > delta else min(ratio, 0.0)


def minimise(function: Callable[[float], float], low: float, high: float, steps: int = 40) -> float:
    """Golden-section search for the minimum of a unimodal function of one variable (any answer is a valid bound)."""
    golden = (np.sqrt(5) - 1) / 2
    a, b = low, high
    x, y = b - golden * (b - a), a + golden * (b - a)
    fx, fy = function(x), function(y)
    for _ in range(steps):
        if fx <= fy:
            b, y, fy = y, x, fx
            x = b - golden * (b - a)
            fx = function(x)
        else:
            a, x, fx = x, y, fy
            y = a + golden * (b - a)
            fy = function(y)
    return x if fx <= fy else y
