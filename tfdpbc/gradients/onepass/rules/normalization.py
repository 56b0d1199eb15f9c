"""Scale and offset after a normalisation over each row: Group-, Layer- and RMSNormalization.

z = x̂ γ + β with x̂ the normalised input: γ's gradient is the sum over positions of x̂ d, β's that of d. Both have few
numbers, so they are materialised.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdpbc.gradients.onepass.recording import Call
from tfdpbc.gradients.onepass.registry import LayerRule, register
from tfdpbc.gradients.onepass.terms import Materialized, Term, summed_to


class GroupNormalizationRule(LayerRule):
    def reasons(self, layer: Any) -> list[str]:
        return ["normalises over the rows (axis 0)"] if layer.axis == 0 else []

    def terms(self, layer: Any, call: Call) -> Iterable[tuple[Any, Term]]:
        x, d = (_channels_last(tf.cast(t, tf.float32), layer.axis) for t in (call.inputs, call.gradient))
        n, channels = call.k * call.s, x.shape[-1]
        x, d = (tf.reshape(t, [n, -1, channels]) for t in (x, d))
        if layer.scale:
            # Positions first, then the channels of a group: reductions over an inner axis of few channels are slow.
            centred = x - self._by_group(layer, tf.reduce_mean(x, 1))[:, None]
            variance = self._by_group(layer, tf.reduce_mean(tf.square(centred), 1))
            gamma = tf.math.rsqrt(variance + layer.epsilon) * tf.reduce_sum(centred * d, 1)
            yield layer.gamma, _over_examples(gamma, call)
        if layer.center:
            yield layer.beta, _over_examples(tf.reduce_sum(d, 1), call)

    @staticmethod
    def _by_group(layer: Any, t: Any) -> Any:
        """The mean over each group's channels, at each of them: ``[n, channels]``."""
        size = t.shape[1] // layer.groups
        return tf.repeat(tf.reduce_mean(tf.reshape(t, [-1, layer.groups, size]), 2), size, 1)


def _over_examples(gradient: Any, call: Call) -> Materialized:
    """``[n, channels]`` summed over the examples of each contribution."""
    channels = gradient.shape[-1]
    if call.s > 1:
        gradient = tf.reduce_sum(call.split(gradient), 1)
    return Materialized.of(gradient, [channels])


def _channels_last(t: Any, axis: int) -> Any:
    axis %= t.shape.rank
    return t if axis == t.shape.rank - 1 else tf.transpose(t, [i for i in range(t.shape.rank) if i != axis] + [axis])


class _LastAxesRule(LayerRule):
    """Normalisations over some axes of each row, whose weights span these axes."""

    def reasons(self, layer: Any) -> list[str]:
        axes = layer.axis if isinstance(layer.axis, (list, tuple)) else [layer.axis]
        rank = len(layer._build_shapes_dict["input_shape"]) if getattr(layer, "_build_shapes_dict", None) else None
        if any(a == 0 or (rank is not None and a % rank == 0) for a in axes):
            return ["normalises over the rows (axis 0)"]
        if getattr(layer, "rms_scaling", False):
            return ["uses the deprecated rms_scaling"]
        return []

    def weights(self, layer: Any) -> tuple[Any, Any]:
        """(scale, offset), None where the layer has none."""
        raise NotImplementedError

    def normalized(self, layer: Any, x: Any, axes: list[int]) -> Any:
        raise NotImplementedError

    def terms(self, layer: Any, call: Call) -> Iterable[tuple[Any, Term]]:
        x, d = (tf.cast(t, tf.float32) for t in (call.inputs, call.gradient))
        axes = sorted(a % x.shape.rank for a in layer.axis)
        spread = [n if i in axes else 1 for i, n in enumerate(x.shape)][1:]
        scale, offset = self.weights(layer)
        if scale is not None:
            product = call.split(self.normalized(layer, x, axes) * d)
            yield scale, Materialized.of(summed_to(product, spread), scale.shape)
        if offset is not None:
            yield offset, Materialized.of(summed_to(call.split(d), spread), offset.shape)


class LayerNormalizationRule(_LastAxesRule):
    def weights(self, layer: Any) -> tuple[Any, Any]:
        return layer.gamma if layer.scale else None, layer.beta if layer.center else None

    def normalized(self, layer: Any, x: Any, axes: list[int]) -> Any:
        mean, variance = tf.nn.moments(x, axes, keepdims=True)
        return (x - mean) * tf.math.rsqrt(variance + layer.epsilon)


class RMSNormalizationRule(_LastAxesRule):
    def weights(self, layer: Any) -> tuple[Any, Any]:
        return layer.scale, None

    def normalized(self, layer: Any, x: Any, axes: list[int]) -> Any:
        return x * tf.math.rsqrt(tf.reduce_mean(tf.square(x), axes, keepdims=True) + layer.epsilon)


register(keras.layers.GroupNormalization, GroupNormalizationRule())
register(keras.layers.LayerNormalization, LayerNormalizationRule())
if hasattr(keras.layers, "RMSNormalization"):  # Keras >= 3.9
    register(keras.layers.RMSNormalization, RMSNormalizationRule())
