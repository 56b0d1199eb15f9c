"""Tiny plans, one for every sampling and aggregation that the library states a guarantee for."""

from __future__ import annotations

from typing import Any

EXAMPLES = 24
NOISE = 0.8
"""σ of all plans. Smaller claims need more runs to be told from half the noise: 500 suffice here."""


def all_plans() -> dict[str, Any]:
    """name → `PrivacyPlan`, of three or four rounds; with shares q of an example in a round such that both matter, rounds
    with the canary and rounds without.

    The two trimmed sums differ in how often a clean round passes: nearly always, and every other time.
    """
    from tfdpbc.aggregation import GlobalTrimmedSum, TrimmedSum
    from tfdpbc.clipping import FullGradientClipping
    from tfdpbc.plan import PrivacyPlan
    from tfdpbc.sampling import BallsInBins, Poisson, Shuffling, Subsampling

    def plan(sampling: Any, epochs: int = 1, **aggregation: Any) -> Any:
        return PrivacyPlan(sampling, FullGradientClipping(1.0), NOISE, epochs, **aggregation)

    individual, most = Poisson(0.5, 4, EXAMPLES // 2), EXAMPLES * 3 // 4
    return {
        "poisson individual": plan(individual),
        "poisson batch": plan(Poisson(0.5, 4, 16, 1)),
        "poisson mixed": plan(Poisson(0.5, 4, 32, 2)),
        "balls-in-bins individual": plan(BallsInBins(2, EXAMPLES // 2), 2),
        "shuffling individual": plan(Shuffling(EXAMPLES, 12, 1), 2),
        "shuffling batch": plan(Shuffling(EXAMPLES, 1, 12), 2),
        "shuffling mixed": plan(Shuffling(EXAMPLES, 3, 4), 2),
        "subsampling individual": plan(Subsampling(EXAMPLES, most, 1), 3),
        "subsampling batch": plan(Subsampling(EXAMPLES, 1, most), 3),
        "subsampling mixed": plan(Subsampling(EXAMPLES, 3, most // 3), 3),
        "poisson individual, global-trimmed": plan(individual, aggregation=GlobalTrimmedSum(3)),
        "poisson individual, trimmed": plan(individual, aggregation=TrimmedSum(4, 0.5, 1.0, 2.0)),
        "poisson individual, trimmed, hard test": plan(individual, aggregation=TrimmedSum(4, 0.5, 1.0, 4.0)),
    }
