"""The accounting figures of paper C: what rounds of Propose-Test-Release cost by each analysis. Nothing is trained.

The text of the paper that we have lost the figures' parameters: they are the reference ones of accounting.md section 6 here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tfdpbc.accounting.ptr import ProposeTestRelease

RATE = 0.02
ROUNDS = (1, 3, 10, 30, 100, 300, 1000)
NOISES = (10.0, 40.0)
ORDERS = np.unique(np.geomspace(2, 256, 40).round()).astype(int)
METHODS = {
    "advanced_composition": "direct analysis, advanced composition",
    "black_box": "Rényi, black box",
    "rdp": "Rényi, white box",
    "lower_bound": "lower bound on any black box",
    "pld": "loss distribution",
}


def release(noise: float) -> ProposeTestRelease:
    """F = 20, t = 6, b = 2, τ/C = 0.1, σ = σ_f = `noise`."""
    return ProposeTestRelease(20, 6.0, 2.0, 0.1, 1.0, noise)


def divergences(one: ProposeTestRelease, rate: float, orders: np.ndarray) -> dict[str, np.ndarray]:
    """Label → Rényi divergence of one Poisson-sampled release at each order; shape [n]."""
    return {
        "plain (test and worst branch), unsampled": one.plain_renyi(orders.astype(float)),
        "black-box upper bound": np.array([one.black_box_upper(int(order), rate) for order in orders]),
        "white-box": one.renyi(orders.astype(float), rate),
        "black-box lower bound": np.array([one.black_box_lower(int(order), rate) for order in orders]),
    }


def table(delta: float, rounds: tuple[int, ...] = ROUNDS) -> list[dict[str, Any]]:
    """A row for each σ and number of rounds: ε at `delta` by each analysis.

    Keys: `noise_multiplier`, `rate`, `rounds`, and those of `METHODS`. All but `lower_bound` are certified.
    """
    rows = []
    for noise in NOISES:
        one = release(noise)
        for count in rounds:
            found = one.bounds(delta, RATE, count)
            rows.append({"noise_multiplier": noise, "rate": RATE, "rounds": count, **found})
    return rows
