"""An engine whose marked contributions are adversarial vectors: experiments with robust aggregations only.

Examples with a negative sample weight are marked (`data.corruption`); they must be contributions of their own. Their vectors
are replaced before they are clipped, and their losses and outputs stay. Not part of any guarantee: under "gradient-negated"
and "gradient-little" a corrupted contribution is made of the honest ones of its pass, so one example moves many.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tfdpbc import _validate
from tfdpbc.data.corruption import GRADIENT_ATTACKS
from tfdpbc.gradients.engine import Contributions, Engine
from tfdpbc.gradients.function import Examples


class CorruptedEngine:
    """Another engine's contributions, the marked ones replaced.

    Args:
      engine: computes the honest ones.
      kind: "gradient-random" (one random direction of norm `scale`, the same for all and in all rounds),
        "gradient-negated" (−`scale` times the mean of the honest contributions of the pass), or "gradient-little" (their
        mean less `deviations` standard deviations in each coordinate; "a little is enough", Baruch et al. 2019).
      scale: of the vector; a large one shows what clipping and trimming do.
      deviations: z of "gradient-little".
      seed: of the random direction.
    """

    def __init__(self, engine: Engine, kind: str, scale: float = 1e3, deviations: float = 1.5, seed: int = 0):
        self.engine, self.kind = engine, _validate.choice("kind", kind, GRADIENT_ATTACKS)
        self.scale = _validate.number("scale", scale, above=0)
        self.deviations, self.seed = _validate.number("deviations", deviations), seed

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def contributions(self, batch: Examples, round_in_epoch: Any = 0) -> Contributions:
        if batch.sample_weight is None or batch.mask.shape[1] != 1:
            _validate.fail(
                "sample_weight", "a number for each example, contributions of one example", batch.sample_weight
            )
        marked = tf.reduce_any((batch.sample_weight < 0) & batch.mask, axis=1)
        honest = tf.reduce_any(batch.mask, axis=1) & ~marked
        batch = dataclasses.replace(batch, sample_weight=tf.abs(batch.sample_weight))
        inner = self.engine.contributions(batch, round_in_epoch)
        return _Corrupted(inner, marked, self._vector(inner, honest), self.engine)

    def _vector(self, inner: Contributions, honest: Any) -> list[Any]:
        variables = self.engine.function.trainable
        if self.kind == "gradient-random":
            rng = np.random.default_rng(self.seed)
            parts = [rng.normal(size=v.shape) for v in variables]
            size = np.sqrt(sum((p**2).sum() for p in parts))
            return [tf.constant(p * (self.scale / size), tf.float32) for p in parts]
        finite = honest & tf.reduce_all(tf.math.is_finite(inner.block_norms()), axis=1)
        share = tf.cast(finite, tf.float32) / tf.maximum(1.0, tf.reduce_sum(tf.cast(finite, tf.float32)))
        mean = inner.weighted_sum(tf.tile(share[:, None], [1, self.engine.num_blocks]))
        if self.kind == "gradient-negated":
            return [-self.scale * t for t in mean]
        found = []
        for t, middle in zip(inner.materialized(), mean, strict=True):
            weights = tf.reshape(share, [-1] + [1] * (t.shape.rank - 1))
            spread = tf.reduce_sum(tf.math.multiply_no_nan(tf.square(t - middle), weights), axis=0)
            found.append(middle - self.deviations * tf.sqrt(spread))
        return found


class _Corrupted:
    def __init__(self, inner: Contributions, marked: Any, vector: list[Any], engine: Any):
        self.inner, self.marked, self.vector, self.engine = inner, marked, vector, engine
        self.evaluation = inner.evaluation

    def block_norms(self) -> Any:
        squares: list[Any] = [[tf.constant(0.0)] for _ in range(self.engine.num_blocks)]
        for t, block in zip(self.vector, self.engine.block_of_variable, strict=True):
            squares[block].append(tf.reduce_sum(tf.square(t)))
        theirs = tf.sqrt(tf.stack([tf.add_n(s) for s in squares]))
        return tf.where(self.marked[:, None], theirs[None, :], self.inner.block_norms())

    def weighted_sum(self, weights: Any) -> list[Any]:
        honest = self.inner.weighted_sum(tf.where(self.marked[:, None], 0.0, weights))
        theirs = tf.reduce_sum(tf.where(self.marked[:, None], weights, 0.0), axis=0)
        blocks = self.engine.block_of_variable
        return [h + theirs[b] * v for h, v, b in zip(honest, self.vector, blocks, strict=True)]

    def materialized(self) -> list[Any]:
        return [
            tf.where(tf.reshape(self.marked, [-1] + [1] * (t.shape.rank - 1)), v[None], t)
            for t, v in zip(self.inner.materialized(), self.vector, strict=True)
        ]
