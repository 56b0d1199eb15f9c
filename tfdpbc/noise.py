"""Gaussian noise of a given standard deviation; nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def gaussian(shapes: Sequence[Sequence[int]], stddevs: Sequence[Any], key: Any) -> list[Any]:
    """Independent float32 noise for each shape, from a counter-based generator (Philox) on the device.

    All numbers are slices of one draw: its positions are independent, so variables never share a number.

    Args:
      shapes: one fully known shape per tensor.
      stddevs: one standard deviation (float or scalar tensor) per tensor; 0 gives exact zeros.
      key: int64 ``[2]``, fresh for each round; the same key gives the same noise.

    Returns:
      One float32 tensor per shape.
    """
    sizes = [tf.TensorShape(shape).num_elements() for shape in shapes]
    flat = tf.random.stateless_normal([sum(sizes)], seed=key, dtype=tf.float32, alg="philox")
    parts = tf.split(flat, sizes) if len(sizes) > 1 else [flat]
    return [
        tf.reshape(part, shape) * tf.cast(stddev, tf.float32)
        for part, shape, stddev in zip(parts, shapes, stddevs, strict=True)
    ]
