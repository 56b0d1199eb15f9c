r"""From the scores of an attack to what they certify: statistics alone, no model and no plan.

An attack gives each run a score, high where it believes in the first of two neighbouring data sets. A threshold makes it a
test with type I error α (second data set, score above) and type II error β (first data set, score not above). If the
mechanism is f-DP then β >= f(α) for every test, so with certified upper bounds α⁺, β⁺ a claim is refuted where β⁺ < f(α⁺).
In terms of one (ε, δ): :math:`ε ≥ \log((1 - β^+ - δ)/α^+)`, and the same with the errors exchanged.

The threshold is chosen on some of the runs and judged on the others, with the bounds of Clopper and Pearson (1934), which
hold for every number of runs. Sources: Jagielski et al. (2020); Nasr et al., "Tight Auditing of Differentially Private
Machine Learning" (2023).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tfdpbc import _validate

CHOOSING = 0.2
"""The share of the runs on which thresholds are chosen; the others judge them."""
CANDIDATES = 200


@dataclasses.dataclass(frozen=True)
class Errors:
    """Upper bounds on the two errors of one test that hold together.

    Attributes:
      alpha: on type I (false alarm), beta: on type II (miss).
    """

    alpha: float
    beta: float

    def epsilon(self, delta: float) -> float:
        """The least ε >= 0 that a mechanism with such a test can keep at `delta`, whatever the mechanism."""
        ratios = [(1 - b - delta, a) for a, b in ((self.alpha, self.beta), (self.beta, self.alpha))]
        return max(0.0, *(math.log(hit / false) if hit > 0 else 0.0 for hit, false in ratios))

    @property
    def mu(self) -> float:
        """The least μ >= 0 for which G_μ allows such a test."""
        from scipy import stats

        return max(0.0, float(stats.norm.isf(self.alpha) - stats.norm.ppf(self.beta)))

    def refutes(self, curve: Any) -> bool:
        """Whether no mechanism that keeps the trade-off function `curve` has such a test."""
        return self.beta < float(curve(self.alpha))


@dataclasses.dataclass(frozen=True)
class Evidence:
    """What the scores of an attack certify.

    Attributes:
      claim: errors at the threshold that was chosen to refute the claimed trade-off function.
      plain: errors at the threshold that was chosen for the largest ε at δ. All four bounds hold together with the stated
        confidence.
    """

    claim: Errors
    plain: Errors


def upper(count: Any, runs: int, failure: float) -> Any:
    """Clopper-Pearson: below the true probability with probability at most `failure`, for `count` successes in `runs`."""
    from scipy import stats

    count = np.asarray(count, float)
    return np.where(count >= runs, 1.0, stats.beta.isf(failure, count + 1, np.maximum(runs - count, 1e-9)))


def weigh(first: Any, second: Any, curve: Any, delta: float, confidence: float) -> Evidence:
    """Turns scores into evidence against `curve`.

    Args:
      first, second: scores of the runs on either data set, in the order of the runs (which are independent).
      curve: the claimed `TradeOff`.
      delta: δ in (0, 1), for the statement that knows no curve.
      confidence: probability, in (0, 1), with which all that is certified is true.
    """
    _validate.probability("delta", delta)
    failure = (1 - _validate.probability("confidence", confidence)) / 4
    chosen, judged = zip(*(_split(np.asarray(scores, float)) for scores in (first, second)), strict=True)
    sizes = [len(scores) for scores in judged]

    def against_claim(alpha: Any, beta: Any) -> Any:
        from scipy import stats

        return stats.norm.ppf(np.clip(curve(alpha), 1e-15, 1)) - stats.norm.ppf(beta)

    def plain(alpha: Any, beta: Any) -> Any:
        return np.array([Errors(a, b).epsilon(delta) for a, b in zip(alpha, beta, strict=True)])

    found = []
    for worth in (against_claim, plain):
        threshold = _threshold(*chosen, sizes, worth, failure)
        found.append(
            Errors(
                float(upper(np.sum(judged[1] > threshold), sizes[1], failure)),
                float(upper(np.sum(judged[0] <= threshold), sizes[0], failure)),
            )
        )
    return Evidence(*found)


def _split(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if scores.ndim != 1 or len(scores) < 10 or np.isnan(scores).any():
        _validate.fail("scores", "at least 10 numbers for each data set, none of them NaN", scores)
    size = math.ceil(CHOOSING * len(scores))
    return scores[:size], scores[size:]


def _threshold(
    first: np.ndarray, second: np.ndarray, sizes: list[int], worth: Callable[[Any, Any], Any], failure: float
) -> float:
    """The threshold whose bounds would be worth most if the judging runs had the error rates of these."""
    candidates = np.unique(np.concatenate([first, second]))
    if len(candidates) > CANDIDATES:
        candidates = np.unique(np.quantile(candidates, np.linspace(0, 1, CANDIDATES), method="nearest"))
    # Half a count more: that no choosing run was wrong does not mean that no judging one will be.
    alpha = [(np.sum(second > c) + 0.5) / (len(second) + 1) for c in candidates]
    beta = [(np.sum(first <= c) + 0.5) / (len(first) + 1) for c in candidates]
    expected = [upper(np.array(rate) * n, n, failure) for rate, n in zip((alpha, beta), sizes[::-1], strict=True)]
    return float(candidates[int(np.argmax(worth(*expected)))])
