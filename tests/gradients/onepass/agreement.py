"""Compares the one-pass engine with a loop over contributions: each variable's norms, and the weighted sum."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import tensorflow as tf

from tests import oracles
from tfdpbc import native
from tfdpbc.algorithms import BatchGradient
from tfdpbc.gradients.function import Examples, ModelFunction
from tfdpbc.gradients.losses import PerExampleLoss
from tfdpbc.gradients.onepass import OnePassEngine

TOLERANCE = 1e-5
"""Relative to the norm of the whole gradient: a bias before a normalisation has gradient zero, and rounding noise."""


def classifier(shape, *layers, classes: int = 3, dtype: str = "float32") -> keras.Model:
    """Layers, then logits, with reproducible weights that are nowhere 0 (a zero offset would hide a wrong gradient)."""
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input(shape, dtype=dtype), *layers, keras.layers.Flatten(), keras.layers.Dense(3)])
    return perturbed(model)


def perturbed(model: keras.Model) -> keras.Model:
    rng = np.random.default_rng(6)
    for v in model.trainable_variables:
        v.assign(v + 0.2 * rng.normal(size=v.shape).astype(v.dtype))
    return model


def gather(x, indices):
    return tf.nest.map_structure(lambda t: t[indices], x)


def onepass(model, x, y, groups, weights, loss=oracles.LOSS, blocks=None):
    """(norms [k, L], weighted sum, evaluation) by the engine, eagerly; a block for each variable by default."""
    function = ModelFunction(model, PerExampleLoss(loss, output_names=getattr(model, "output_names", None)))
    indices = np.asarray(groups)
    k, s = indices.shape
    blocks = list(range(len(model.trainable_variables))) if blocks is None else blocks
    engine = OnePassEngine(function, BatchGradient(), float(s), blocks, max(blocks) + 1, k)
    x, y = tf.nest.map_structure(lambda t: tf.constant(t[indices]), (x, y))
    seeds = np.zeros((k, function.num_generators, 2), np.int64)
    contributions = engine.contributions(Examples(x, y, None, tf.ones([k, s], tf.bool), tf.constant(seeds)))
    norms = contributions.block_norms()
    weights = np.broadcast_to(np.asarray(weights, np.float32)[:, None], norms.shape)
    return (
        norms.numpy(),
        [t.numpy() for t in contributions.weighted_sum(tf.constant(weights))],
        contributions.evaluation,
    )


def check(model, x, y=None, groups=None, loss=oracles.LOSS, tolerance=TOLERANCE):
    """Fails unless the engine's norms and sums are those of a loop over `groups` (by default single examples)."""
    count = len(tf.nest.flatten(x)[0])
    y = np.arange(count) % 3 if y is None else y
    groups = [[i] for i in range(count)] if groups is None else groups
    weights = np.linspace(0.3, 1.5, len(groups))
    each = [oracles.example_gradient(model, gather(x, np.array(g)), gather(y, np.array(g)), loss) for g in groups]
    for way in ways(model):
        with way():
            compare(model, onepass(model, x, y, groups, weights, loss), each, weights, tolerance)


def ways(model):
    """With and without the operation in C++, where it was built and there is a layer that may take it."""
    convolutions = any(isinstance(layer, keras.layers.Conv2D) for layer in model._flatten_layers())
    return [native.off, contextlib.nullcontext] if convolutions and native.operations() else [contextlib.nullcontext]


def compare(model, found, each, weights, tolerance=TOLERANCE):
    """Fails unless norms and sums that were `found` are those of `each` contribution's gradient."""
    norms, total, evaluation = found
    for h, gradient in enumerate(each):
        scale = np.linalg.norm(oracles.flat(gradient))
        want = [np.linalg.norm(np.float64(g)) for g in gradient]
        np.testing.assert_allclose(norms[h], want, rtol=tolerance, atol=tolerance * scale)
    for j, variable in enumerate(model.trainable_variables):
        want = sum(w * np.float64(g[j]) for w, g in zip(weights, each, strict=True))
        scale = sum(w * np.linalg.norm(oracles.flat(g)) for w, g in zip(weights, each, strict=True))
        assert total[j].shape == variable.shape
        np.testing.assert_allclose(total[j], want, rtol=0, atol=tolerance * scale, err_msg=variable.path)
    assert evaluation.losses.shape[0] == len(each)
