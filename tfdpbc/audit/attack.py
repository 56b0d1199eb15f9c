r"""The adversary's best test: the likelihood ratio of all that is seen, and the audit made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from tfdpbc import _validate, analyses
from tfdpbc.audit import evidence
from tfdpbc.audit.worlds import State, World, worlds

SCALES = (1 / 16, 16.0)
"""Noise is searched for within these factors of the plan's own."""
LEAST_RUNS = 20


@dataclasses.dataclass(frozen=True)
class Finding:
    """What the audit of one worst case of one plan found.

    Attributes:
      world: the worst case.
      runs: trainings on each of the two data sets.
      delta: δ of both ε.
      claimed: ε that the plan states.
      certified: ε that the attack certifies, whatever the mechanism; runs and δ limit it, see `evidence.Errors.epsilon`.
      same_kind: ε of the plan with the largest noise that is not refuted: tighter, if the mechanism is the plan's but for
        its noise.
      errors: the certified errors of the test against the claim.
      allowed: least type II error that the claim allows at that type I error.
      violated: whether the claim is refuted, by its trade-off function or by `certified`.
    """

    world: str
    runs: int
    delta: float
    claimed: float
    certified: float
    same_kind: float
    errors: evidence.Errors
    allowed: float
    violated: bool


def log_ratio(plan: Any, world: World, seen: Any) -> float:
    """log of the likelihood of `seen` on the first data set over that on the second; `plan` with its true noise.

    What is hidden is averaged over: which rounds the canary joined. Where the guarantee is stated against an adversary who
    knows it (shuffling), so does this one.
    """
    first, second, missed = (_log_likelihood(plan, s, seen) for s in (world.hit_first, world.hit_second, world.missed))
    if plan.adversary == analyses.MIXTURE_ADVERSARY:
        return float(np.sum((first - second)[seen.hits]))
    joins = np.log(world.joins)
    with np.errstate(divide="ignore"):
        if not plan.sampling.epoch_is_joint:
            stays = np.log1p(-world.joins) + missed
            return float(np.sum(np.logaddexp(stays, joins + first) - np.logaddexp(stays, joins + second)))
        stays = np.log(max(0.0, 1 - world.joins * plan.rounds_per_epoch))
    per_epoch = [(hit - missed).reshape(-1, plan.rounds_per_epoch) + joins for hit in (first, second)]
    first, second = (np.logaddexp(stays, np.logaddexp.reduce(hit, axis=1)) for hit in per_epoch)
    return float(np.sum(first - second))


def _log_likelihood(plan: Any, state: State, seen: Any) -> np.ndarray:
    """Of each round, up to what all states share; ``[rounds]``."""
    if not plan.aggregation.tested:
        (std,) = plan.noise_std(0)
        return -0.5 * ((seen.sums - state.on_pass) / std) ** 2
    (on_pass,), (on_fail,) = (plan.noise_std(0, passed=passed) for passed in (True, False))
    with np.errstate(divide="ignore"):
        passed = np.log(state.passes) - 0.5 * ((seen.sums - state.on_pass) / on_pass) ** 2
        failed = np.log1p(-state.passes) - 0.5 * ((seen.sums - state.on_fail) / on_fail) ** 2
    return np.where(seen.passed, passed, failed)


def audit(
    plan: Any,
    runs: int = 500,
    delta: float = 1e-5,
    confidence: float = 0.99,
    noise_scale: float = 1.0,
    seed: int | None = None,
) -> list[Finding]:
    """Audits a plan on each of its worst cases, with `runs` trainings on each data set.

    Args:
      plan: with a claim, and a clipping whose worst cases are known (`worlds`).
      runs: at least 20.
      delta: δ at which ε is stated.
      confidence: probability with which everything certified is true, over all worst cases together.
      noise_scale: factor on all noise that is really drawn; 1 is the plan. Anything else is a test of the audit itself,
        whose adversary knows the factor.
      seed: makes it reproducible.

    Formal guarantee: if the plan keeps its claim, the probability that any finding is `violated` is at most
    1 - `confidence`.
    """
    from tfdpbc.audit.runs import Trainings, scaled

    runs = _validate.integer("runs", runs, at_least=LEAST_RUNS)
    scale = _validate.number("noise_scale", noise_scale, above=0)
    seed = None if seed is None else _validate.integer("seed", seed, at_least=0)
    failure = 1 - _validate.probability("confidence", confidence)
    cases, truth = worlds(plan), scaled(plan, scale)
    claim, claimed = plan.trade_off(), float(plan.guarantee(delta)["epsilon"])
    # One number for each training: data sets, cases and audits of other seeds share none.
    seeds = np.random.SeedSequence(seed).generate_state(2 * runs * len(cases), np.uint64)
    given = iter([None] * len(seeds) if seed is None else [int(s) for s in seeds])
    trainings, found = Trainings(truth), []
    for world, real in zip(cases, worlds(truth), strict=True):
        scores = []
        for gradients in (world.first, world.second):
            trainings.load(gradients)
            scores.append([log_ratio(truth, real, trainings.run(next(given))) for _ in range(runs)])
        proof = evidence.weigh(*scores, claim, delta, 1 - failure / len(cases))
        certified = proof.plain.epsilon(delta)
        found.append(
            Finding(
                world=world.name,
                runs=runs,
                delta=delta,
                claimed=claimed,
                certified=certified,
                same_kind=_same_kind(plan, proof.claim, delta, scaled),
                errors=proof.claim,
                allowed=float(claim(proof.claim.alpha)),
                violated=proof.claim.refutes(claim) or certified > claimed,
            )
        )
    return found


def audits(
    plans: Mapping[str, Any], confidence: float = 0.99, seed: int | None = None, **settings: Any
) -> Iterator[tuple[str, Finding]]:
    """Audits several plans one after the other: (name, finding), as they come.

    Args:
      plans: name → plan.
      confidence: probability with which everything certified is true, over all plans together.
      seed: makes all reproducible.
      settings: as of `audit`.
    """
    failure = 1 - _validate.probability("confidence", confidence)
    seed = None if seed is None else _validate.integer("seed", seed, at_least=0)
    share = failure / sum(len(worlds(plan)) for plan in plans.values())
    for i, (name, plan) in enumerate(plans.items()):
        # Plans that differ in little shall not share their luck.
        own = None if seed is None else int(np.random.SeedSequence([seed, i]).generate_state(1, np.uint64)[0])
        for finding in audit(plan, confidence=1 - share * len(worlds(plan)), seed=own, **settings):
            yield name, finding


def _same_kind(plan: Any, errors: evidence.Errors, delta: float, scaled: Callable[[Any, float], Any]) -> float:
    """ε of the plan with as much noise as is just refuted; rounded down."""
    low, high = np.log(SCALES)
    if not errors.refutes(scaled(plan, np.exp(high)).trade_off()):
        return 0.0
    while high - low > 0.01:
        middle = (low + high) / 2
        if errors.refutes(scaled(plan, np.exp(middle)).trade_off()):
            high = middle
        else:
            low = middle
    return float(scaled(plan, np.exp(high)).trade_off().epsilon(delta))
