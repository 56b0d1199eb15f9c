"""Worst cases: two neighbouring data sets for a plan, and what an adversary who knows them expects of a round.

All gradients are the examples themselves (`runs`), vectors of two coordinates. The canary's lies on the first, the others'
on the second, unless the others have to be there for the worst case. So the first coordinate of a round's noisy sum, and
the outcome of its test, hold all that tells the two data sets apart.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tfdpbc import _validate

HUGE = 1e6
"""A canary's length before clipping, in clipping norms: the mean of its group points where it does."""
JUST_BELOW = 0.99


@dataclasses.dataclass(frozen=True)
class State:
    """How a round comes out: its sum along the canary, and how often its test passes.

    Attributes:
      on_pass, on_fail: mean of the sum's first coordinate after either outcome (`on_pass` where there is no test).
      passes: probability of passing; 1 where there is no test.
    """

    on_pass: float
    on_fail: float = 0.0
    passes: float = 1.0


@dataclasses.dataclass(frozen=True)
class World:
    """Two neighbouring data sets and the rounds that they make.

    Attributes:
      name: what the case tries.
      first, second: float32 ``[N, 2]``, the gradients of all examples; the canary is the last one of `first` (and of
        `second`, where it is replaced).
      hit_first, hit_second: a round that the canary joins, on either data set.
      missed: a round that it does not join (on both).
      joins: probability that the canary joins a given round.
    """

    name: str
    first: np.ndarray
    second: np.ndarray
    hit_first: State
    hit_second: State
    missed: State
    joins: float


def worlds(plan: Any) -> list[World]:
    """The worst cases that are known for a plan.

    Raises:
      ValueError: no worst case is known for its clipping, or nothing is claimed for its aggregation.
    """
    if plan.aggregation.void():
        _validate.fail(
            "aggregation", "one with a guarantee: nothing is claimed that could be refuted", plan.aggregation
        )
    norm = getattr(plan.clipping, "norm", None)
    if plan.clipping.to_config()["name"] != "full" or not isinstance(norm, int | float) or plan.clipping.decay != 1:
        _validate.fail(
            "clipping", "a FullGradientClipping of a constant norm: its worst cases are known", plan.clipping
        )
    if plan.statistics is not None:
        _validate.fail("statistics", "None: no worst case is known with them", plan.statistics)
    if plan.noise_multiplier == 0:
        _validate.fail("noise_multiplier", "> 0: without noise nothing is claimed", 0.0)
    if plan.aggregation.tested:
        return _tested(plan, float(norm))
    if plan.neighbouring == "replace":
        return [_replaced(plan, float(norm))]
    if not plan.sampling.is_individual:
        return [_turned(plan, float(norm))]
    if plan.aggregation.whole_round:
        return [_added("canary just not trimmed", plan, 10 * norm, JUST_BELOW * norm, State(JUST_BELOW * norm))]
    return [_added("canary added", plan, 10 * norm, HUGE * norm, State(float(norm)))]


def _joins(sampling: Any) -> float:
    if sampling.name == "poisson":
        return sampling.rate
    if sampling.name == "balls-in-bins":
        return 1 / sampling.rounds_per_epoch
    return math.prod(sampling.shape) / sampling.num_examples


def _rows(count: int, first: float = 0.0, second: float = 0.0) -> np.ndarray:
    return np.tile(np.array([[first, second]], np.float32), (count, 1))


def _others(plan: Any) -> int:
    return max(1, round(plan.sampling.planned_examples))


def _added(
    name: str,
    plan: Any,
    others: float,
    canary: float,
    hit: State,
    missed: State | None = None,
) -> World:
    """One example more, of norm `canary` before clipping; the others have norm `others`."""
    missed = State(0.0) if missed is None else missed
    second = _rows(_others(plan), second=others)
    first = np.concatenate([second, _rows(1, canary)])
    return World(name, first, second, hit, missed, missed, _joins(plan.sampling))


def _turned(plan: Any, norm: float) -> World:
    """Poisson groups: all others point one way, and the canary turns its group around."""
    second = _rows(_others(plan), -10 * norm)
    first = np.concatenate([second, _rows(1, HUGE * norm)])
    rest = -norm * plan.sampling.contributions
    missed = State(rest)  # an empty group (it would add nothing) is not expected: that costs power only
    return World("canary turns its group", first, second, State(rest + 2 * norm), missed, missed, _joins(plan.sampling))


def _replaced(plan: Any, norm: float) -> World:
    """One example is replaced by its opposite."""
    others = _rows(plan.sampling.num_examples - 1, second=10 * norm)
    first, second = (np.concatenate([others, _rows(1, sign * HUGE * norm)]) for sign in (1, -1))
    return World("canary turned", first, second, State(norm), State(-norm), State(0.0), _joins(plan.sampling))


def _tested(plan: Any, norm: float) -> list[World]:
    """Propose-Test-Release: the release after a right pass, the test itself, and a wrong pass."""
    kind = plan.aggregation
    trim, tau = kind.trim, kind.release_norm

    def state(shift_on_pass: float, shift_on_fail: float, margin: int) -> State:
        beyond = (kind.threshold - margin) / kind.laplace_scale
        passes = 0.5 * math.exp(-beyond) if beyond > 0 else 1 - 0.5 * math.exp(beyond)
        return State(shift_on_pass, shift_on_fail, passes)

    canary = JUST_BELOW * tau
    found = [
        # The others are a little larger, so that they are trimmed and the canary is not.
        _added("right pass", plan, 0.999 * tau, canary, state(canary, canary, trim), state(0, 0, trim))
    ]
    if tau < JUST_BELOW**2 * norm:
        # The canary is the largest, so it is trimmed on pass and the margin is one less.
        on_pass = 0.0 if trim else norm
        hit = state(on_pass, norm, max(0, trim - 1))
        found.append(_added("test", plan, 0.5 * tau, HUGE * norm, hit, state(0, 0, trim)))
        # The others leave no margin; on pass the canary counts for nearly C against the noise of tau.
        canary = JUST_BELOW * norm
        found.append(_added("wrong pass", plan, 10 * norm, canary, state(canary, canary, 0), state(0, 0, 0)))
    return found
