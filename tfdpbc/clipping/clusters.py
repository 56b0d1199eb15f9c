"""Groups of similar size: one-dimensional k-means, solved exactly."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def by_order_of_magnitude(values: Any, groups: int) -> Any:
    """The group (0 the smallest) of each of some positive numbers, int32 ``[n]``; each group is an interval of them.

    The sum over groups of the squared distances of log(value) from the group's mean is least (k-means in one dimension,
    by dynamic programming over the sorted values: n² `groups` operations of vectors). No group is empty. Static shapes.

    Args:
      values: float32 ``[n]``, positive and finite.
      groups: 1 <= groups <= n.
    """
    n = values.shape[0]
    order = tf.argsort(values, stable=True)
    logs = tf.gather(tf.math.log(values), order)
    logs -= tf.reduce_mean(logs)
    zero = tf.zeros([1])
    first, second = (tf.concat([zero, tf.cumsum(t)], 0) for t in (logs, tf.square(logs)))
    # cost[i, j]: that of a group of the sorted values i..j-1; infinite where there is none.
    start, stop = tf.range(n + 1)[:, None], tf.range(n + 1)[None]
    size = tf.cast(stop - start, tf.float32)
    mean_square = tf.square(first[None] - first[:, None]) / tf.maximum(size, 1.0)
    cost = tf.where(stop > start, second[None] - second[:, None] - mean_square, float("inf"))
    best, cuts = cost[0], []
    for _ in range(groups - 1):
        total = best[:, None] + cost
        cuts.append(tf.argmin(total, 0, output_type=tf.int32))
        best = tf.reduce_min(total, 0)
    group, end = tf.zeros([n], tf.int32), tf.constant(n)
    position = tf.range(n)
    for cut in reversed(cuts):
        end = cut[end]
        group += tf.cast(position >= end, tf.int32)  # every later group lies beyond each earlier cut
    return tf.scatter_nd(order[:, None], group, [n])
