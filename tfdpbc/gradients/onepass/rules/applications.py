"""Layers that only the models of keras.applications have.

ConvNeXt's StochasticDepth is left out: it draws from Keras's global generator, so its masks are none of the round's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from tfdpbc.gradients.onepass.recording import Call
from tfdpbc.gradients.onepass.registry import LayerRule, register
from tfdpbc.gradients.onepass.rowwise import rowwise
from tfdpbc.gradients.onepass.terms import Term, total


class LayerScaleRule(LayerRule):
    """ConvNeXt's z = x γ: γ's gradient is the sum over positions of x d."""

    def terms(self, layer: Any, call: Call) -> Iterable[tuple[Any, Term]]:
        x, d = (tf.cast(t, tf.float32) for t in (call.inputs, call.gradient))
        yield layer.gamma, total(call.split(x * d), layer.gamma.shape)


try:  # their classes are not part of Keras's public names
    from keras.src.applications.convnext import LayerScale
    from keras.src.applications.inception_resnet_v2 import CustomScaleLayer
except ImportError:
    pass
else:
    register(LayerScale, LayerScaleRule())
    rowwise(CustomScaleLayer)  # x + c y
