"""Embedding: a contribution's gradient has one row for each different index, the sum of d over the index's positions.

ReversibleEmbedding also projects hidden states back to logits, by default with the same table (tied weights).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdpbc.gradients.onepass.recording import Call
from tfdpbc.gradients.onepass.registry import LayerRule, register
from tfdpbc.gradients.onepass.rules.dense import matrix
from tfdpbc.gradients.onepass.rules.lora import adapters
from tfdpbc.gradients.onepass.terms import MEMORY_COST, Outer, Term, scaled, trusted


class Lookup:
    """Gradients of a table of which each position reads one row.

    Args:
      indices: int ``[k, T]`` in ``[0, size)``.
      d: float32 ``[k, T, q]``.
      table: shape of the table, ``(size, q)``.
    """

    form = "look-ups"

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
        """Squared norms in T log T."""
        return tf.reduce_sum(tf.square(self.distinct()[1]), [1, 2])

    def distinct(self) -> tuple[Any, Any]:
        """Each contribution's different indices ``[k, T]``, -1 where there are fewer, and the sums of their d
        ``[k, T, q]``: sorted, equal indices are neighbours."""
        k, positions, q = self.d.shape
        order = tf.argsort(self.indices, axis=1)
        indices, d = (tf.gather(t, order, axis=1, batch_dims=1) for t in (self.indices, self.d))
        is_new = tf.cast(indices[:, 1:] != indices[:, :-1], tf.int32)
        group = tf.pad(tf.cumsum(is_new, axis=1), [[0, 0], [1, 0]]) + positions * tf.range(k)[:, None]
        group = tf.reshape(group, [-1])
        summed = tf.math.unsorted_segment_sum(tf.reshape(d, [-1, q]), group, k * positions)
        which = tf.math.unsorted_segment_max(tf.reshape(indices, [-1]), group, k * positions)
        return tf.reshape(tf.maximum(which, -1), [k, positions]), tf.reshape(summed, [k, positions, q])

    def weighted_sum(self, weights: Any, keep: Any = None) -> Any:
        d = tf.reshape(scaled(self.d, weights, keep), [-1, self.table[1]])
        return tf.math.unsorted_segment_sum(d, tf.reshape(self.indices, [-1]), self.table[0])

    def materialized(self) -> Any:
        k, (size, q) = self.d.shape[0], self.table
        group = self.indices + size * tf.range(k, dtype=self.indices.dtype)[:, None]
        summed = tf.math.unsorted_segment_sum(tf.reshape(self.d, [-1, q]), tf.reshape(group, [-1]), k * size)
        return tf.reshape(summed, [k, size, q])

    def merge(self, others: Sequence[Term]) -> Term | None:
        return _merged([self, *others])


class Projection(Outer):
    """Gradients of a table ``[size, q]`` whose transpose projects: d, ``[k, T, size]``, ⊗ inputs, ``[k, T, q]``."""

    def __init__(self, d: Any, inputs: Any):
        super().__init__(d, inputs, matrix)

    def merge(self, others: Sequence[Term]) -> Term | None:
        return _merged([self, *others])


class Tied:
    """Gradients of a table that is both read and projected with, the table's gradients never made.

    The rows that a contribution reads are made, both uses added up; all other rows are the projection's alone. The two
    parts have no row in common, so their squared norms add up, with no cross term that could cancel.
    """

    def __init__(self, lookup: Lookup, projection: Projection):
        self.lookup, self.projection = lookup, projection
        d, inputs = projection.a, projection.d
        k, _, size = d.shape
        which, summed = lookup.distinct()
        columns = tf.gather(d, tf.maximum(which, 0), axis=2, batch_dims=1)
        read = summed + tf.matmul(columns, inputs, transpose_a=True)
        places = tf.stack(
            [tf.broadcast_to(tf.range(k, dtype=lookup.indices.dtype)[:, None], which.shape), lookup.indices], 2
        )
        elsewhere = tf.tensor_scatter_nd_update(tf.ones([k, size]), places, tf.zeros(which.shape))
        others = Projection(d * elsewhere[:, None], inputs)
        self.form = f"rows read, {others.form} for the others"
        used = tf.cast(which >= 0, tf.float32)
        self.squares = tf.reduce_sum(tf.reduce_sum(tf.square(read), 2) * used, 1) + others.squares

    def weighted_sum(self, weights: Any, keep: Any = None) -> Any:
        return self.lookup.weighted_sum(weights, keep) + self.projection.weighted_sum(weights, keep)

    def materialized(self) -> Any:
        return self.lookup.materialized() + self.projection.materialized()


def _merged(terms: Sequence[Term]) -> Term | None:
    """Several uses of one table as one; None where making its gradients is cheaper, or a use is of another kind."""
    lookups = [t for t in terms if isinstance(t, Lookup)]
    projections = [t for t in terms if isinstance(t, Projection)]
    if len(lookups) + len(projections) < len(terms):
        return None
    if lookups:
        indices, d = (tf.concat([getattr(t, name) for t in lookups], 1) for name in ("indices", "d"))
        lookup = Lookup(indices, d, lookups[0].table)
        if not projections:
            return lookup
    projection = Projection(*(tf.concat([getattr(t, name) for t in projections], 1) for name in ("a", "d")))
    if not lookups:
        return projection
    return None if projection.gradient is not None else Tied(lookup, projection)


class EmbeddingRule(LayerRule):
    def terms(self, layer: Any, call: Call) -> Iterable[tuple[Any, Term]]:
        indices = call.inputs if call.inputs.dtype in (tf.int32, tf.int64) else tf.cast(call.inputs, tf.int32)
        indices = tf.reshape(tf.where(indices < 0, indices + layer.input_dim, indices), [call.k, -1])
        return self.reads(layer, call, indices, call.positions(call.gradient))

    def reads(self, layer: Any, call: Call, indices: Any, d: Any) -> Iterable[tuple[Any, Term]]:
        """The gradients of reading rows: indices ``[k, T]``, d ``[k, T, q]``."""
        if lora := adapters(layer, call, "embeddings"):
            # E + c A B: A is read as E is, B sees the read rows of A.
            variables, (left, right) = lora
            yield variables[0], Lookup(indices, tf.linalg.matmul(d, right, transpose_b=True), left.shape)
            yield variables[1], Outer(tf.gather(left, indices), d, matrix)
        else:
            yield layer.embeddings, Lookup(indices, d, (layer.input_dim, layer.output_dim))


class ReversibleEmbeddingRule(EmbeddingRule):
    """z = x Eᵀ in reverse: the table's gradient is the sum over positions of d ⊗ x."""

    def call(self, layer: Any, tap: Callable[[Any], Any], inputs: Any, reverse: bool = False) -> Any:
        if not reverse:
            return tap(type(layer).call(layer, inputs))
        kernel = keras.ops.transpose(layer.embeddings) if layer.tie_weights else layer.reverse_embeddings
        if layer.reverse_dtype is not None:
            inputs, kernel = (keras.ops.cast(t, layer.reverse_dtype) for t in (inputs, kernel))
        logits, cap = tap(keras.ops.matmul(inputs, kernel)), layer.logit_soft_cap
        return logits if cap is None else keras.ops.multiply(keras.ops.tanh(keras.ops.divide(logits, cap)), cap)

    def terms(self, layer: Any, call: Call) -> Iterable[tuple[Any, Term]]:
        reverse = call.args[1] if len(call.args) > 1 else call.kwargs.get("reverse", False)
        x, d = (tf.zeros([call.k, 0, n]) for n in (layer.output_dim, layer.input_dim))
        if not reverse:
            yield from super().terms(layer, call)
        else:
            x, d = call.positions(call.inputs), call.positions(call.gradient)
            if not layer.tie_weights:  # no row is read
                yield from self.reads(layer, call, tf.zeros([call.k, 0], tf.int32), x[:, :0])
        if not layer.tie_weights:
            yield layer.reverse_embeddings, Outer(x, d, matrix)
        elif reverse and (lora := adapters(layer, call, "embeddings")):
            variables, (left, right) = lora
            yield variables[0], Projection(d, tf.linalg.matmul(x, right, transpose_b=True))
            yield variables[1], Outer(tf.tensordot(d, left, 1), x, matrix)
        elif reverse:
            yield layer.embeddings, Projection(d, x)


register(keras.layers.Embedding, EmbeddingRule())
if hasattr(keras.layers, "ReversibleEmbedding"):  # Keras >= 3.12
    register(keras.layers.ReversibleEmbedding, ReversibleEmbeddingRule())
