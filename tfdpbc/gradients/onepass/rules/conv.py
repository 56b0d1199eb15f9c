"""Convolutions of any rank, stride, padding, dilation and number of groups; transposed, depthwise and separable ones.

LoRA adapters included, where Keras has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdpbc.gradients.onepass.recording import Call
from tfdpbc.gradients.onepass.registry import LayerRule, register
from tfdpbc.gradients.onepass.rules.lora import adapters
from tfdpbc.gradients.onepass.rules.patches import channels_last, padded, patches
from tfdpbc.gradients.onepass.terms import Materialized, Outer, Term, size, total


class ConvRule(LayerRule):
    """The kernel's gradient is the sum over output positions of (input patch) ⊗ d."""

    def terms(self, layer: Any, call: Call) -> Iterable[tuple[Any, Term]]:
        x, d = (channels_last(t, layer.data_format) for t in (call.inputs, call.gradient))
        term = None
        if lora := adapters(layer, call):
            variables, values = lora
            yield from zip(variables, adapter_terms(layer, call, x, d, *values), strict=True)
        else:
            term = self.kernel_term(layer, call, x, d)
            yield layer.kernel, term
        if layer.use_bias:
            # Some ways to the kernel's norm pass by the bias's gradient.
            bias = getattr(term, "bias", None)
            found = total(call.split(d), layer.bias.shape) if bias is None else Materialized.of(bias, layer.bias.shape)
            yield layer.bias, found

    def kernel_term(self, layer: Any, call: Call, x: Any, d: Any) -> Term:
        return grouped(layer, call, x, d, layer.groups)


class DepthwiseRule(ConvRule):
    """A convolution with as many groups as channels, whose kernel is stored by channel."""

    def kernel_term(self, layer: Any, call: Call, x: Any, d: Any) -> Term:
        return by_channel(layer, layer.kernel, call, x, d)


class TransposedRule(ConvRule):
    """The reverse of a convolution from output to input: the input patches are those of d, and what met them is x."""

    def kernel_term(self, layer: Any, call: Call, x: Any, d: Any) -> Term:
        return grouped(layer, call, d, x, 1)


class SeparableRule(ConvRule):
    """A depthwise and then a 1 x 1 convolution; what passes between them is computed in the open and tapped."""

    def call(self, layer: Any, tap: Any, inputs: Any) -> Any:
        between = tap(
            keras.ops.depthwise_conv(
                inputs,
                layer.depthwise_kernel,
                strides=layer.strides,
                padding=layer.padding,
                dilation_rate=layer.dilation_rate,
                data_format=layer.data_format,
            )
        )
        z = keras.ops.conv(between, layer.pointwise_kernel, data_format=layer.data_format)
        if layer.use_bias:
            spread = [1] * layer.rank
            first = layer.data_format == "channels_first"
            z += keras.ops.reshape(layer.bias, (1, layer.filters, *spread) if first else (1, *spread, layer.filters))
        z = tap(z)
        return z if layer.activation is None else layer.activation(z)

    def terms(self, layer: Any, call: Call) -> Iterable[tuple[Any, Term]]:
        x, between, d_between, d = (
            channels_last(t, layer.data_format) for t in (call.inputs, call.taps[0], *call.gradients)
        )
        yield layer.depthwise_kernel, by_channel(layer, layer.depthwise_kernel, call, x, d_between)
        shape = tuple(layer.pointwise_kernel.shape)
        yield (
            layer.pointwise_kernel,
            Outer(call.positions(between), call.positions(d), lambda g: tf.reshape(g, [-1, *shape])),
        )
        if layer.use_bias:
            yield layer.bias, total(call.split(d), layer.bias.shape)


def _patches(layer: Any, x: Any, d: Any) -> Any:
    """``[n, *out, K, c]``."""
    out = d.shape[1:-1]
    x = padded(x, layer.padding, out, layer.kernel_size, layer.strides, layer.dilation_rate)
    return patches(x, out, layer.kernel_size, layer.strides, layer.dilation_rate)


def _in_groups(call: Call, a: Any, d: Any, groups: int) -> tuple[Any, Any]:
    """Patches ``[n, *out, K, G c]`` as ``[k, G, T, K c]``, gradients ``[n, *out, G q]`` as ``[k, G, T, q]``."""
    count, c, q = a.shape[-2], a.shape[-1] // groups, d.shape[-1] // groups
    a = tf.transpose(tf.reshape(a, [call.k, -1, count, groups, c]), [0, 3, 1, 2, 4])
    d = tf.transpose(tf.reshape(d, [call.k, -1, groups, q]), [0, 2, 1, 3])
    return tf.reshape(a, [call.k, groups, -1, count * c]), d


def grouped(layer: Any, call: Call, x: Any, d: Any, groups: int) -> Term:
    """The kernel's gradient of a convolution whose channels fall into `groups`; x and d channels last."""
    count, c, q = size(layer.kernel_size), x.shape[-1] // groups, d.shape[-1] // groups
    shape = (*layer.kernel_size, c, groups * q)
    a = _patches(layer, x, d)
    if groups == 1:
        a = tf.reshape(a, [call.k, -1, count * c])
        return Outer(a, call.positions(d), lambda g: tf.reshape(g, [-1, *shape]))
    a, d = _in_groups(call, a, d, groups)

    def assemble(g: Any) -> Any:
        g = tf.reshape(g, [-1, groups, count, c, q])
        return tf.reshape(tf.transpose(g, [0, 2, 3, 1, 4]), [-1, *shape])

    return Outer(a, d, assemble)


def adapter_terms(layer: Any, call: Call, x: Any, d: Any, left: Any, right: Any) -> tuple[Term, Term]:
    """The gradients of A ``[*kernel_size, c, r]`` and B ``[r, filters]`` of an adapter c A B; left, right: c A, c B.

    All groups of channels share A, each has columns of B of its own.
    """
    groups, rank = layer.groups, left.shape[-1]
    a, d = _in_groups(call, _patches(layer, x, d), d, groups)
    hidden = tf.tensordot(a, tf.reshape(left, [-1, rank]), 1)
    back = tf.einsum("kgtq,rgq->kgtr", d, tf.reshape(right, [rank, groups, -1]))
    a, back = (tf.reshape(t, [call.k, -1, t.shape[-1]]) for t in (a, back))
    return (
        Outer(a, back, lambda g: tf.reshape(g, [-1, *left.shape])),
        Outer(hidden, d, lambda g: tf.reshape(tf.transpose(g, [0, 2, 1, 3]), [-1, *right.shape])),
    )


def by_channel(layer: Any, kernel: Any, call: Call, x: Any, d: Any) -> Term:
    """The gradient of a depthwise kernel ``[*kernel_size, c, multiplier]``; x and d channels last."""
    count, c, multiplier = size(layer.kernel_size), x.shape[-1], kernel.shape[-1]
    a = tf.reshape(_patches(layer, x, d), [call.k, -1, count, c])
    d = tf.reshape(d, [call.k, -1, c, multiplier])

    def assemble(g: Any) -> Any:
        return tf.reshape(tf.transpose(g, [0, 2, 1, 3]), [-1, *kernel.shape])

    return Outer(tf.transpose(a, [0, 3, 1, 2]), tf.transpose(d, [0, 2, 1, 3]), assemble)


for _layers, _rule in (
    ((keras.layers.Conv1D, keras.layers.Conv3D), ConvRule()),
    ((keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose, keras.layers.Conv3DTranspose), TransposedRule()),
    ((keras.layers.DepthwiseConv1D, keras.layers.DepthwiseConv2D), DepthwiseRule()),
    ((keras.layers.SeparableConv1D, keras.layers.SeparableConv2D), SeparableRule()),
):
    for _layer in _layers:
        register(_layer, _rule)
