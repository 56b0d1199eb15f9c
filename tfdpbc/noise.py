r"""Gaussian noise of a given standard deviation, added to a sum, and one Laplace number; nothing else.

Two uniform numbers of 32 bits each, from the counter-based generator Philox 4x32-10 on the device, make two Gaussian ones
(Box and Muller, 1958): :math:`z = \sqrt{-2 \ln u}\, (\sin 2\pi v, \cos 2\pi v)`, up to 6.8 standard deviations. Each tensor
has counters of its own, so no number is ever used twice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdpbc import native


def add_gaussian(sums: Sequence[Any], stddevs: Sequence[Any], key: Any, divisor: float = 1.0) -> list[Any]:
    """``(sum + stddev * z) / divisor`` for each tensor, with independent standard normal z.

    Args:
      sums: float32 tensors of fully known shapes.
      stddevs: one standard deviation (float or scalar tensor) per tensor; 0 adds exact zeros.
      key: int64 ``[2]``, fresh for each round; the same key gives the same noise.
      divisor: a public number.

    Returns:
      One float32 tensor per sum.
    """
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=key)
    factor = tf.constant(1.0 / divisor, tf.float32)
    stddevs = [tf.cast(stddev, tf.float32) for stddev in stddevs]
    # A counter makes four words of 32 bits, two pairs of numbers.
    counters = [-(-t.shape.num_elements() // 4) for t in sums]
    operations = native.operations()
    if operations is not None:
        offsets = [0, *itertools.accumulate(counters)][:-1]
        each = zip(sums, stddevs, offsets, strict=True)
        return [operations.tfdpbc_add_gaussian(t, key, counter, std, factor, offset=at) for t, std, at in each]
    sines, cosines = (tf.split(z, [2 * n for n in counters]) for z in _pairs(sum(counters), key, counter))
    noised = []
    for t, std, sine, cosine in zip(sums, stddevs, sines, cosines, strict=True):
        size = t.shape.num_elements()
        z = tf.concat([sine[: -(-size // 2)], cosine[: size // 2]], 0)
        noised.append((t + std * tf.reshape(z, t.shape)) * factor)
    return noised


def laplace(scale: float, key: Any) -> Any:
    r"""One Laplace number of density :math:`e^{-|z|/b} / (2b)`, a float64 scalar.

    One word of 64 bits of Philox: the lowest bit is the sign, the highest 53 make the size, :math:`-b \\ln u`. So sizes come
    from a grid of probabilities of 2^-53: they end at 37.4 b, and a probability of a comparison with a threshold is right to
    2^-53. The number itself must not be released (its digits tell more than its value, Mironov 2012); the outcome of a
    comparison may be.

    Args:
      scale: b > 0.
      key: int64 ``[2]``, fresh for each draw.
    """
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=key)
    word = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[], key=key, counter=counter, alg=tf.random.Algorithm.PHILOX.value, dtype=tf.uint64
    )
    one, eleven = (tf.constant(n, tf.uint64) for n in (1, 11))
    u = tf.cast(tf.bitwise.right_shift(word, eleven), tf.float64) * 2.0**-53 + 2.0**-54  # never log(0)
    sign = 1.0 - 2.0 * tf.cast(tf.bitwise.bitwise_and(word, one), tf.float64)
    return -scale * sign * tf.math.log(u)


def _pairs(counters: int, key: Any, counter: Any) -> tuple[Any, Any]:
    """Two times ``[2 * counters]`` standard normal numbers."""
    shape, philox = [2 * counters], tf.random.Algorithm.PHILOX.value
    words = tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=shape, key=key, counter=counter, alg=philox, dtype=tf.uint64
    )
    low, half = (tf.constant(n, tf.uint64) for n in (2**32 - 1, 32))
    halves = tf.bitwise.bitwise_and(words, low), tf.bitwise.right_shift(words, half)
    first, second = (tf.cast(t, tf.float32) for t in halves)
    radius = tf.sqrt(-2.0 * tf.math.log(first * 2.0**-32 + 2.0**-33))  # never log(0)
    angle = (2 * math.pi) * (second * 2.0**-32)
    return radius * tf.sin(angle), radius * tf.cos(angle)
