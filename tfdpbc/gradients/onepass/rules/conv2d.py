"""Conv2D, the layer where individual clipping spends its time.

Three ways, chosen by cost; none of them builds the patches of a convolution (im2col) where it can be avoided:

- *gradient*: the gradient of each contribution, a matrix product for each row of the kernel. Their weighted sum is the
  weight gradient, so nothing is computed twice.
- *native*: the same by the operation in C++ (`native`), where it was built, for the CPU.
- *Gram*: the squared norm from the pixels' Gram matrices; patches overlap, so the patches' Gram matrix is a sum of
  shifted pixel Gram matrices. The weighted sum is then TensorFlow's own filter gradient.

A convolution with stride s is first written as one of stride 1 on blocks of s x s pixels (space to depth). Dilated,
grouped and unequally strided convolutions go through `conv.grouped`.
"""

from __future__ import annotations

import functools
from typing import Any

import keras
import tensorflow as tf

from tfdpbc import native
from tfdpbc.gradients.onepass.recording import Call
from tfdpbc.gradients.onepass.registry import register
from tfdpbc.gradients.onepass.rules.conv import ConvRule, grouped
from tfdpbc.gradients.onepass.rules.patches import margins, padded
from tfdpbc.gradients.onepass.terms import Materialized, Term, of_grams, rows, scaled, size, squared_norms

NATIVE_SHARE = 0.2
"""The C++ operation runs at about five times the speed of batched matrix products on a CPU: Gram matrices must take less
than this share of its operations to be faster."""
KEPT_FROM = 96
"""With fewer positions than this in a contribution, computing the sum anew is cheaper than writing and reading gradients."""


class Conv2DRule(ConvRule):
    def kernel_term(self, layer: Any, call: Call, x: Any, d: Any) -> Term:
        operations, geometry = native.operations(), Geometry(layer, x, d)
        one_run = layer.groups == 1 and set(layer.dilation_rate) == {1}
        even_strides = len(set(layer.strides)) == 1
        may_gram = call.s == 1 and even_strides
        if one_run and operations is not None and not (may_gram and geometry.gram_is_cheaper(NATIVE_SHARE)):
            return Native(operations.tfdpbc_conv_gradients, layer, call, x, d)
        if not (one_run and even_strides):
            return grouped(layer, call, x, d, layer.groups)
        if may_gram and geometry.gram_is_cheaper():
            return PixelGram(geometry, x, d)
        return gradients(geometry, call, x, d)


class Geometry:
    """Sizes of one call: input ``[n, height, width, c]``, gradient ``[n, rows, columns, q]``, T = rows x columns.

    In blocks of stride x stride pixels the kernel covers ``blocks`` of them; ``even`` says that it does so exactly.
    """

    def __init__(self, layer: Any, x: Any, d: Any):
        self.kernel, self.stride, self.padding = tuple(layer.kernel_size), layer.strides[0], layer.padding
        self.c, (self.rows, self.columns, self.q) = x.shape[-1], d.shape[1:]
        self.positions = self.rows * self.columns
        self.blocks = tuple(-(-k // self.stride) for k in self.kernel)
        self.even = all(k % self.stride == 0 for k in self.kernel)
        self.height, self.width = self.rows + self.blocks[0] - 1, self.columns + self.blocks[1] - 1
        self.weights = self.kernel[0] * self.kernel[1] * self.c

    def gram_is_cheaper(self, share: float = 1.0) -> bool:
        """Whether the Gram matrices take less than a share of the operations that the gradients of all contributions do."""
        return self.gram_operations() < share * 2 * self.positions * self.weights * self.q

    def gram_operations(self) -> float:
        """Floating-point operations of one example's Gram matrices."""
        t, pixels = self.positions, self.height * self.width
        if self.kernel == (1, 1):
            return 2 * t**2 * (self.c + self.q) + 3 * t**2
        if self.even:
            depth = self.c * self.stride**2
            return 2 * pixels**2 * depth + 2 * t**2 * self.q + 3 * t**2 * self.blocks[0] * self.blocks[1]
        return 2 * t**2 * (self.weights + self.q)

    def blocked(self, x: Any) -> Any:
        """x as blocks: ``[n, height, width, stride, stride, c]`` in blocks, zeros where the kernel sees padding."""
        s = self.stride
        x = padded(x, self.padding, (self.rows, self.columns), self.kernel, (s, s), (1, 1))
        x = x[:, : self.height * s, : self.width * s]
        x = tf.pad(x, [[0, 0], [0, self.height * s - x.shape[1]], [0, self.width * s - x.shape[2]], [0, 0]])
        x = tf.reshape(x, [x.shape[0], self.height, s, self.width, s, self.c])
        return tf.transpose(x, [0, 1, 3, 2, 4, 5])

    def channels_first(self, x: Any) -> Any:
        """x as blocks with their pixels first: ``[n, stride, stride, c, height, width]``."""
        return tf.transpose(self.blocked(x), [0, 3, 4, 5, 1, 2])

    def patches(self, x: Any) -> Any:
        """``[n, kernel rows x kernel columns x c, T]``: patches laid out for the product with the gradient."""
        s, n = self.stride, x.shape[0]
        if self.kernel == (1, 1):
            x = x[:, ::s, ::s]
            return tf.transpose(tf.reshape(x, [n, self.positions, self.c]), [0, 2, 1])
        x = self.channels_first(x)
        slices = [
            x[:, i % s, j % s, :, i // s : i // s + self.rows, j // s : j // s + self.columns]
            for i in range(self.kernel[0])
            for j in range(self.kernel[1])
        ]
        return tf.reshape(tf.stack(slices, 1), [n, self.weights, self.positions])


def gradients(geometry: Geometry, call: Call, x: Any, d: Any) -> Materialized:
    """The kernel's gradient of each contribution, in pieces: one for each row of blocks of the kernel."""
    g = geometry
    d = tf.reshape(d, [call.k, -1, g.q])

    def product(a: Any) -> Any:
        if call.s > 1:  # the examples of a contribution are more positions
            a = tf.transpose(call.split(a), [0, 2, 1, 3])
        return tf.matmul(tf.reshape(a, [call.k, -1, d.shape[1]]), d)

    if not g.even or g.kernel[0] == 1:
        return Materialized.of(product(g.patches(x)), (*g.kernel, g.c, g.q))
    n, s, (down, across) = x.shape[0], g.stride, g.blocks
    depth = g.c * s * s
    x = tf.reshape(g.channels_first(x), [n, depth, g.height, g.width])
    shifted = tf.stack([x[..., j : j + g.columns] for j in range(across)], 1)
    pieces = [
        product(tf.reshape(shifted[:, :, :, i : i + g.rows], [n, across * depth, g.positions])) for i in range(down)
    ]

    def assemble(pieces: list[Any]) -> Any:
        m = pieces[0].shape[0]
        kernel = tf.reshape(tf.stack(pieces, 1), [m, down, across, s, s, g.c, g.q])
        return tf.reshape(tf.transpose(kernel, [0, 1, 3, 2, 4, 5, 6]), [m, *g.kernel, g.c, g.q])

    return Materialized(pieces, assemble)


class Native:
    """The kernel's gradients by the C++ operation: kept for the weighted sum, or only their norms where that is cheaper."""

    def __init__(self, operation: Any, layer: Any, call: Call, x: Any, d: Any):
        self.layer, self.call, self.x = layer, call, tf.cast(x, tf.float32)
        self.d = tf.cast(d, tf.float32)
        self.shape = (*layer.kernel_size, x.shape[-1], d.shape[-1])
        rows, columns = d.shape[1:3]
        self.keep = call.s * rows * columns > KEPT_FROM or len(set(layer.strides)) > 1
        self.form = "gradients (C++)" if self.keep else "gradients not kept (C++)"
        around = margins(x, layer.padding, (rows, columns), layer.kernel_size, layer.strides, (1, 1))
        self.computed = functools.partial(
            operation,
            x=self.x,
            d=self.d,
            kernel=list(layer.kernel_size),
            strides=list(layer.strides),
            offset=[before for before, _ in around],
            examples=call.s,
        )
        squares, bias, gradient = self.computed(keep=self.keep)
        self.squares, self.bias = tf.ensure_shape(squares, [call.k]), tf.ensure_shape(bias, [call.k, d.shape[-1]])
        self.gradient = tf.ensure_shape(gradient, [call.k, size(self.shape)]) if self.keep else None

    def weighted_sum(self, weights: Any, keep: Any = None) -> Any:
        if self.gradient is not None:
            return tf.reshape(tf.matmul(weights[None], rows(self.gradient, keep)), self.shape)
        if self.call.s > 1:
            weights, keep = (None if t is None else tf.repeat(t, self.call.s) for t in (weights, keep))
        return filter_gradient(self.x, self.d, weights, keep, self.shape, self.layer.strides[0], self.layer.padding)

    def materialized(self) -> Any:
        gradient = self.computed(keep=True)[2] if self.gradient is None else self.gradient
        return tf.reshape(gradient, [self.call.k, *self.shape])


class PixelGram:
    """The kernel's gradients through Gram matrices, one example in each contribution."""

    form = "pixel Gram matrices"

    def __init__(self, geometry: Geometry, x: Any, d: Any):
        self.geometry, self.x, self.d = geometry, x, d
        flat = tf.reshape(d, [d.shape[0], geometry.positions, geometry.q])
        self.squares = of_grams(
            self._patch_gram(),
            tf.matmul(flat, flat, transpose_b=True),
            size(geometry.kernel) * geometry.c,
            geometry.q,
            lambda: squared_norms(self.materialized()),
        )

    def _patch_gram(self) -> Any:
        """Inner products of the patches of each two positions, ``[n, T, T]``."""
        g, n, x = self.geometry, self.x.shape[0], self.x
        if g.kernel == (1, 1):
            x = tf.reshape(x[:, :: g.stride, :: g.stride], [n, g.positions, g.c])
            return tf.matmul(x, x, transpose_b=True)
        if not g.even:
            a = g.patches(x)
            return tf.matmul(a, a, transpose_a=True)
        x = tf.reshape(g.blocked(x), [n, g.height * g.width, -1])
        gram = tf.reshape(tf.matmul(x, x, transpose_b=True), [n, g.height, g.width, g.height, g.width])
        gram = tf.add_n([gram[:, i : i + g.rows, :, i : i + g.rows] for i in range(g.blocks[0])])
        gram = tf.add_n([gram[:, :, j : j + g.columns, :, j : j + g.columns] for j in range(g.blocks[1])])
        return tf.reshape(gram, [n, g.positions, g.positions])

    def weighted_sum(self, weights: Any, keep: Any = None) -> Any:
        g = self.geometry
        return filter_gradient(self.x, self.d, weights, keep, (*g.kernel, g.c, g.q), g.stride, g.padding)

    def materialized(self) -> Any:
        g = self.geometry
        d = tf.reshape(self.d, [-1, g.positions, g.q])
        return tf.reshape(tf.matmul(g.patches(self.x), d), [-1, *g.kernel, g.c, g.q])


def filter_gradient(x: Any, d: Any, weights: Any, keep: Any, shape: tuple[int, ...], stride: int, padding: str) -> Any:
    """The kernel's gradient summed over rows with `weights` (one a row), by TensorFlow's own operation."""
    if stride > min(shape[:2]):
        # oneDNN's operation writes beyond its memory where the kernel leaves out the last pixels: it gets none of those.
        read = [(n - 1) * stride + k for n, k in zip(d.shape[1:3], shape[:2], strict=True)]
        x = x[:, : read[0], : read[1]]
    return tf.raw_ops.Conv2DBackpropFilter(
        input=rows(x, keep),
        filter_sizes=list(shape),
        out_backprop=scaled(d, weights, keep),
        strides=[1, stride, stride, 1],
        padding=padding.upper(),
    )


register(keras.layers.Conv2D, Conv2DRule())
