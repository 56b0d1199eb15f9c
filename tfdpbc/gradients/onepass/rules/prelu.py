"""PReLU: z = max(x, 0) + α min(x, 0), so α's gradient is min(x, 0) d, summed over the axes that share α."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdpbc.gradients.onepass.recording import Call
from tfdpbc.gradients.onepass.registry import LayerRule, register
from tfdpbc.gradients.onepass.terms import Term, total


class PReLURule(LayerRule):
    def terms(self, layer: Any, call: Call) -> Iterable[tuple[Any, Term]]:
        x, d = (tf.cast(t, tf.float32) for t in (call.inputs, call.gradient))
        yield layer.alpha, total(call.split(tf.minimum(x, 0.0) * d), layer.alpha.shape)


register(keras.layers.PReLU, PReLURule())
