"""Pictures of trade-off functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import special

from tfdpbc import _validate
from tfdpbc.accounting._gaussian import gaussian_f


def plot(
    f: Callable[[np.ndarray], np.ndarray], axes: Any, label: str, gaussians: Sequence[float], points: int, **line: Any
) -> Any:
    """Draws α against f(α), and G_μ for each μ in `gaussians`, for reference; see TradeOff.plot."""
    mus = [_validate.number("gaussians", mu, at_least=0) for mu in gaussians]
    points = _validate.integer("points", points, at_least=2)
    if axes is None:
        from matplotlib import pyplot  # a second to import

        axes = pyplot.figure(figsize=(5, 5)).add_subplot()
    # Even in α and, by the mirror image, in f: dense where either error is small.
    small = np.concatenate([[0.0], np.logspace(-6, -2, points // 4)])
    alpha = np.unique(np.concatenate([small, np.linspace(0.01, 0.99, points), 1 - small]))
    axes.plot(alpha, 1 - alpha, color="0.8", linewidth=1, label="perfect privacy")
    for mu in mus:
        axes.plot(alpha, gaussian_f(alpha, mu), color="0.6", linewidth=1, linestyle="--")
        left = float(special.ndtr(-mu / 2)) / 2  # half the α with G_μ(α) = α
        height = float(gaussian_f(np.array([left]), mu)[0])
        axes.annotate(f"$G_{{{mu:g}}}$", (left, height), color="0.4", fontsize="small")
    axes.plot(alpha, f(alpha), label=label, **line)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="type I error α", ylabel="least type II error f(α)", aspect="equal")
    axes.legend(loc="upper right", fontsize="small")
    return axes
