"""A loop over physical micro-batches that adds up what is additive and keeps what belongs to rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def accumulate(one: Callable[[Any], tuple[Any, Any]], passes: int, live: Any = None) -> tuple[Any, Any]:
    """Runs ``one(i)`` for i = 0..passes-1 in a TensorFlow loop.

    Args:
      one: ``i -> (sums, rows)``, nests of tensors of fully known shape; `rows` have a leading axis of rows.
      passes: how many there are; one is run without a loop.
      live: scalar int32 tensor, how many of them to run; the rows of the others are zeros. All by default.

    Returns:
      The sums over the passes, and the rows of all passes one after the other.
    """
    if passes == 1:
        return one(0)
    traced = tf.function(one).get_concrete_function(tf.TensorSpec([], tf.int32))  # traced once, shapes known
    sums_spec, rows_spec = traced.structured_outputs
    sums = tf.nest.map_structure(lambda t: tf.zeros(t.shape, t.dtype), sums_spec)
    arrays = tf.nest.map_structure(lambda t: tf.TensorArray(t.dtype, passes, element_shape=t.shape), rows_spec)

    def body(i: Any, sums: Any, arrays: Any) -> tuple[Any, Any, Any]:
        more, rows = traced(i)
        sums = tf.nest.map_structure(tf.add, sums, more)
        arrays = tf.nest.map_structure(lambda array, t: array.write(i, t), arrays, rows)
        return i + 1, sums, arrays

    live = tf.constant(passes) if live is None else live
    _, sums, arrays = tf.while_loop(lambda i, *_: i < live, body, (tf.constant(0), sums, arrays), parallel_iterations=1)
    rows = tf.nest.map_structure(lambda array: tf.reshape(array.stack(), [-1, *array.element_shape[1:]]), arrays)
    return sums, rows
