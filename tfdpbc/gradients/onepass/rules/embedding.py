"""Embedding: a contribution's gradient has one row for each different index, the sum of d over the index's positions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdpbc.gradients.onepass.recording import Call
from tfdpbc.gradients.onepass.registry import LayerRule, register
from tfdpbc.gradients.onepass.terms import MEMORY_COST, Outer, Term, scaled, trusted


class Lookup:
    """Gradients of a table of which each position reads one row.

    Args:
      indices: int ``[k, T]`` in ``[0, size)``.
      d: float32 ``[k, T, q]``.
      table: shape of the table, ``(size, q)``.
    """

    def __init__(self, indices: Any, d: Any, table: tuple[int, int]):
        self.indices, self.d, self.table = indices, d, table
        positions, q = d.shape[1:]
        if positions * (2 * q + MEMORY_COST) <= 20 * MEMORY_COST * q:
            same = tf.cast(indices[:, :, None] == indices[:, None, :], tf.float32)
            gram = same * tf.matmul(d, d, transpose_b=True)
            self.squares = trusted(tf.reduce_sum(gram, [1, 2]), tf.reduce_sum(tf.abs(gram), [1, 2]), self._by_sorting)
        else:
            self.squares = self._by_sorting()

    def _by_sorting(self) -> Any:
        """Squared norms in T log T: equal indices become neighbours, whose d are added up."""
        k, positions, q = self.d.shape
        order = tf.argsort(self.indices, axis=1)
        indices, d = (tf.gather(t, order, axis=1, batch_dims=1) for t in (self.indices, self.d))
        is_new = tf.cast(indices[:, 1:] != indices[:, :-1], tf.int32)
        group = tf.pad(tf.cumsum(is_new, axis=1), [[0, 0], [1, 0]]) + positions * tf.range(k)[:, None]
        summed = tf.math.unsorted_segment_sum(tf.reshape(d, [-1, q]), tf.reshape(group, [-1]), k * positions)
        return tf.reduce_sum(tf.square(tf.reshape(summed, [k, -1])), 1)

    def weighted_sum(self, weights: Any, keep: Any = None) -> Any:
        d = tf.reshape(scaled(self.d, weights, keep), [-1, self.table[1]])
        return tf.math.unsorted_segment_sum(d, tf.reshape(self.indices, [-1]), self.table[0])

    def materialized(self) -> Any:
        k, (size, q) = self.d.shape[0], self.table
        group = self.indices + size * tf.range(k, dtype=self.indices.dtype)[:, None]
        summed = tf.math.unsorted_segment_sum(tf.reshape(self.d, [-1, q]), tf.reshape(group, [-1]), k * size)
        return tf.reshape(summed, [k, size, q])

    def merge(self, others: list[Term]) -> Term | None:
        if not all(isinstance(t, Lookup) for t in others):
            return None
        terms = [self, *others]
        return Lookup(tf.concat([t.indices for t in terms], 1), tf.concat([t.d for t in terms], 1), self.table)


class EmbeddingRule(LayerRule):
    def terms(self, layer: Any, call: Call) -> Iterable[tuple[Any, Term]]:
        indices = call.inputs if call.inputs.dtype in (tf.int32, tf.int64) else tf.cast(call.inputs, tf.int32)
        size = layer.input_dim
        indices = tf.reshape(tf.where(indices < 0, indices + size, indices), [call.k, -1])
        d = call.positions(call.gradient)
        if getattr(layer, "lora_enabled", False):
            # E + c A B: A is read as E is, B sees the read rows of A.
            left, right = (call.value_of(v) for v in (layer.lora_embeddings_a, layer.lora_embeddings_b))
            c = layer.lora_alpha / layer.lora_rank
            yield layer.lora_embeddings_a, Lookup(indices, c * tf.linalg.matmul(d, right, transpose_b=True), left.shape)
            yield layer.lora_embeddings_b, Outer(c * tf.gather(left, indices), d, lambda g: g)
        else:
            yield layer.embeddings, Lookup(indices, d, (size, layer.output_dim))


register(keras.layers.Embedding, EmbeddingRule())
