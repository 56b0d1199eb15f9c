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
    sums, rows, _ = fold(lambda i, _: (*one(i), ()), (), passes, live)
    return sums, rows


def fold(
    one: Callable[[Any, Any], tuple[Any, Any, Any]], carry: Any, passes: int, live: Any = None
) -> tuple[Any, Any, Any]:
    """As `accumulate`, with something that each pass hands on: ``one(i, carry) -> (sums, rows, carry)``.

    Args:
      carry: a nest of tensors of fully known shape, for the first pass.

    Returns:
      The sums, the rows, and what the last pass handed on.
    """
    if passes == 1:
        return one(0, carry)
    given = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), carry)
    traced = tf.function(one).get_concrete_function(tf.TensorSpec([], tf.int32), given)  # traced once, shapes known
    sums_spec, rows_spec, _ = traced.structured_outputs
    sums = tf.nest.map_structure(lambda t: tf.zeros(t.shape, t.dtype), sums_spec)
    arrays = tf.nest.map_structure(lambda t: tf.TensorArray(t.dtype, passes, element_shape=t.shape), rows_spec)

    def body(i: Any, sums: Any, arrays: Any, carry: Any) -> tuple[Any, Any, Any, Any]:
        more, rows, carry = traced(i, carry)
        sums = tf.nest.map_structure(tf.add, sums, more)
        arrays = tf.nest.map_structure(lambda array, t: array.write(i, t), arrays, rows)
        return i + 1, sums, arrays, carry

    live, start = tf.constant(passes) if live is None else live, (tf.constant(0), sums, arrays, carry)
    _, sums, arrays, carry = tf.while_loop(lambda i, *_: i < live, body, start, parallel_iterations=1)
    rows = tf.nest.map_structure(lambda array: tf.reshape(array.stack(), [-1, *array.element_shape[1:]]), arrays)
    return sums, rows, carry
