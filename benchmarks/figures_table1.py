"""Draws Table 1 of paper A against the exact values: `python benchmarks/figures_table1.py [FILE]`."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from tfdpbc.accounting import Gaussian, GaussianMixture, shuffling, subsampling
from tfdpbc.accounting.participation import asymptotic_mu, shuffled_batch_mu

EXAMPLES, EPOCHS, NOISE, DELTA = 1024, 10, 2.0, 1e-5
GROUPS = (1, 2, 4, 8, 16, 32, 64)
ROWS = (  # name, distribution, m, s
    ("shuffling, m = 1, s = 16", shuffling, 1, 16),
    ("shuffling, m = 16, s = 1", shuffling, 16, 1),
    ("subsampling, m = 1, s = 16", subsampling, 1, 16),
)


def exact(distribution, m: int, s: int, group: int) -> float:
    """ε of the mixture at DELTA."""
    rounds = EPOCHS * (EXAMPLES // (m * s))
    return GaussianMixture.of(distribution(EXAMPLES, m, s, rounds, group), NOISE).epsilon(DELTA)


def table(distribution, m: int, s: int, group: int) -> float:
    """ε at DELTA of the Gaussian that Table 1 gives."""
    if distribution is shuffling and m == 1:
        per_epoch = EXAMPLES // s
        mu = shuffled_batch_mu(EXAMPLES, EPOCHS * per_epoch, per_epoch, NOISE, group)
    else:
        mu = asymptotic_mu(EPOCHS, NOISE, group)
    return Gaussian(mu).epsilon(DELTA)


def main(path: Path) -> None:
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    for axes, (name, distribution, m, s) in zip(figure.subplots(1, len(ROWS)), ROWS, strict=True):
        axes.loglog(GROUPS, [exact(distribution, m, s, g) for g in GROUPS], label="exact")
        axes.loglog(GROUPS, [table(distribution, m, s, g) for g in GROUPS], "--", label="Table 1")
        linear = Gaussian(np.sqrt(EPOCHS) / NOISE)
        axes.loglog(GROUPS, [linear.group(g).epsilon(DELTA) for g in GROUPS], ":", label="linear group rule")
        axes.set(title=name, xlabel="group size g", ylabel=f"ε at δ = {DELTA:g}")
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(f"N = {EXAMPLES}, E = {EPOCHS}, σ = {NOISE:g}")
    figure.savefig(path, dpi=90)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/table1.png"))
