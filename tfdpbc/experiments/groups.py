"""Group privacy of paper A: what g examples together give away, exactly, by its bound, and by the general rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from scipy.optimize import brentq

from tfdpbc.accounting import Gaussian, GaussianMixture
from tfdpbc.accounting.participation import asymptotic_mu
from tfdpbc.clipping import FullGradientClipping
from tfdpbc.plan import PrivacyPlan
from tfdpbc.sampling import Shuffling, Subsampling

GROUPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SIGMA, BATCH = 2.0, 64
# Name → sampling, m, s: batch clipping, DP-SGD, and half-way.
CASES = {
    "shuffling, batch": (Shuffling, 1, BATCH),
    "shuffling, mixed": (Shuffling, 8, BATCH // 8),
    "shuffling, individual": (Shuffling, BATCH, 1),
    "subsampling, batch": (Subsampling, 1, BATCH),
    "subsampling, individual": (Subsampling, BATCH, 1),
}


def table(
    delta: float, epochs: int = 50, examples: int = 60_000, group_sizes: Sequence[int] = GROUPS
) -> list[dict[str, Any]]:
    """A row for each case and g.

    Keys: `case`, `group_size`, `epsilon` (certified) and `adversary`; `mu` of the Gaussian that has this ε at `delta`;
    `mean_c_squared` = E[c²] of the exact mixture, `mu_mixture` = μ of the Gaussian that has the mixture's ε; `mu_bound` =
    √(gE)/σ and whether it is `proven` (Table 1: for shuffled batches; elsewhere what large N tends to); `mu_linear` = g√E/σ
    of general group privacy.

    Raises:
      ValueError: too few examples for a round, or for a group.
    """
    rows = []
    for case, (sampling, m, s) in CASES.items():
        plan = PrivacyPlan(sampling(examples, m, s), FullGradientClipping(1.0), SIGMA, epochs)
        for g in group_sizes:
            stated, hits = plan.guarantee(delta, group_size=g), plan.participation(g)
            mixture = GaussianMixture.of(hits, SIGMA).epsilon(delta)
            rows.append(
                {
                    "case": case,
                    "group_size": g,
                    "epsilon": stated["epsilon"],
                    "adversary": stated["adversary"],
                    "mu": equivalent_mu(stated["epsilon"], delta),
                    "mean_c_squared": hits.mean,
                    "mu_mixture": equivalent_mu(float(mixture), delta),
                    "mu_bound": asymptotic_mu(epochs, SIGMA, g),
                    "proven": sampling is Shuffling and m == 1,
                    "mu_linear": g * math.sqrt(epochs) / SIGMA,
                }
            )
    return rows


def equivalent_mu(epsilon: float, delta: float) -> float:
    """μ of the Gaussian trade-off function whose ε at `delta` is `epsilon`."""
    if epsilon <= 0:
        return 0.0
    high = 1.0
    while Gaussian(high).epsilon(delta) < epsilon:
        high *= 2
    return float(brentq(lambda mu: Gaussian(mu).epsilon(delta) - epsilon, 1e-9, high, xtol=1e-12))
