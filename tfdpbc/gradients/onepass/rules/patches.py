"""Input patches of convolutions, as slices (TensorFlow's extract_patches is an order of magnitude slower on a CPU)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def padded(
    x: Any, padding: str, out: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> Any:
    """``[n, *spatial, c]`` with the zeros around it that ``padding`` ("same", "valid" or "causal") stands for."""
    around = margins(x, padding, out, kernel, strides, dilation)
    return tf.pad(x, [[0, 0], *around, [0, 0]]) if any(map(any, around)) else x


def margins(
    x: Any, padding: str, out: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]
) -> list[list[int]]:
    """How many zeros stand [before, after] x along each spatial axis."""
    if padding == "valid":
        return [[0, 0] for _ in out]
    if padding == "causal":
        return [[r * (k - 1), 0] for k, r in zip(kernel, dilation, strict=True)]
    around = []
    for size, o, k, s, r in zip(x.shape[1:-1], out, kernel, strides, dilation, strict=True):
        missing = max((o - 1) * s + r * (k - 1) + 1 - size, 0)
        around.append([missing // 2, missing - missing // 2])
    return around


def patches(x: Any, out: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilation: Sequence[int]) -> Any:
    """The inputs that meet each kernel position: ``[n, *out, K, c]`` with K = prod(kernel), of a padded ``x``."""
    slices = []
    for offset in itertools.product(*(range(k) for k in kernel)):
        window = tuple(
            slice(i * r, i * r + (o - 1) * s + 1, s) for i, r, o, s in zip(offset, dilation, out, strides, strict=True)
        )
        slices.append(x[(slice(None), *window)])
    return tf.stack(slices, -2) if len(slices) > 1 else slices[0][..., None, :]


def channels_last(t: Any, data_format: str) -> Any:
    """``[n, c, *spatial]`` as ``[n, *spatial, c]`` where `data_format` says so; float32."""
    t = tf.cast(t, tf.float32)
    if data_format == "channels_last":
        return t
    return tf.transpose(t, [0, *range(2, t.shape.rank), 1])
