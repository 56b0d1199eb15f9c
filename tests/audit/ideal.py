"""The mechanism of a `World` in a few lines of numpy: the oracle of what real trainings show."""

from __future__ import annotations

import numpy as np

from tfdpbc.audit.runs import Seen


def ideal(plan, world, first: bool, runs: int, rng) -> list[Seen]:
    """`runs` trainings on the first or the second data set, without sampling, clipping or TensorFlow."""
    per_epoch = plan.rounds_per_epoch
    if plan.sampling.epoch_is_joint:
        law = np.append(np.full(per_epoch, world.joins), max(0.0, 1 - world.joins * per_epoch))
        chosen = rng.choice(per_epoch + 1, size=(runs, plan.epochs), p=law / law.sum())
        hits = (chosen[:, :, None] == np.arange(per_epoch)).reshape(runs, plan.rounds)
    else:
        hits = rng.random((runs, plan.rounds)) < world.joins
    hit, missed = world.hit_first if first else world.hit_second, world.missed
    passed = rng.random(hits.shape) < np.where(hits, hit.passes, missed.passes)
    on_pass, on_fail = (np.where(hits, getattr(hit, k), getattr(missed, k)) for k in ("on_pass", "on_fail"))
    if plan.aggregation.tested:
        std = np.where(passed, plan.noise_std(0, passed=True)[0], plan.noise_std(0, passed=False)[0])
    else:
        std = plan.noise_std(0)[0]
    sums = np.where(passed, on_pass, on_fail) + std * rng.normal(size=hits.shape)
    return [Seen(*each) for each in zip(sums, passed, hits, strict=True)]
