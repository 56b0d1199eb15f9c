"""Shorthands for tests that train."""

from __future__ import annotations

import keras
import numpy as np

import tfdpbc as dp
from tests import oracles

N = 24
SAMPLINGS = {
    "shuffling-individual": dp.Shuffling(N, 6, 1),
    "shuffling-batch": dp.Shuffling(N, 1, 6),
    "shuffling-mixed": dp.Shuffling(N, 3, 2),
    "subsampling-individual": dp.Subsampling(N, 6, 1),
    "subsampling-batch": dp.Subsampling(N, 1, 6),
    "subsampling-mixed": dp.Subsampling(N, 3, 2),
    "poisson-individual": dp.Poisson(0.25, 4, 6),
    "poisson-batch": dp.Poisson(0.25, 4, 6, 1),
    "poisson-mixed": dp.Poisson(0.25, 4, 6, 3),
}


def private(
    sampling, model=None, *, norm=1.0, noise=0.0, epochs=3, seed=1, optimizer=None, loss=oracles.LOSS, **options
) -> dp.PrivateModel:
    """A compiled private model; `clipping`, `steps_per_execution` and the arguments of PrivateModel are options."""
    clipping = options.pop("clipping", None) or dp.FullGradientClipping(norm)
    execution = {
        name: options.pop(name) for name in ("steps_per_execution", "jit_compile", "run_eagerly") if name in options
    }
    metrics = options.pop("metrics", None)
    plan = dp.PrivacyPlan(sampling, clipping, noise, epochs)
    wrapped = dp.PrivateModel(model or oracles.dense_net(), plan, seed=seed, **options)
    wrapped.compile(optimizer or keras.optimizers.SGD(1.0), loss, metrics=metrics, **execution)
    return wrapped


def weights(model) -> list[np.ndarray]:
    """Copies of the trainable weights."""
    return [np.array(v.numpy()) for v in model.trainable_variables]


def one_round(model, x, y, indices, mask=None, round_index=0, **options):
    """Releases and applies one round with given draws."""
    from tfdpbc.data.sources import as_source
    from tfdpbc.training.loop import Draw

    model._prepare(as_source(x, y, options.get("sample_weight")))
    indices = np.asarray(indices, np.int32)
    mask = np.ones(indices.shape, bool) if mask is None else np.asarray(mask)
    rounds = model._rounds
    rows, indices = rounds.feed.rows(indices[None])
    return rounds.run(Draw(rows, indices, mask[None]), round_index, model.streams)
