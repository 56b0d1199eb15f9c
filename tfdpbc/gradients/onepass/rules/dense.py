"""Dense, on vectors and on sequences of them; LoRA adapters included."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdpbc.gradients.onepass.recording import Call
from tfdpbc.gradients.onepass.registry import LayerRule, register
from tfdpbc.gradients.onepass.rules.lora import adapters
from tfdpbc.gradients.onepass.terms import Outer, Term, total


class DenseRule(LayerRule):
    """z = a K + b: the kernel's gradient is the sum over positions of a ⊗ d, the bias's that of d."""

    def terms(self, layer: Any, call: Call) -> Iterable[tuple[Any, Term]]:
        a, d = call.positions(call.inputs), call.positions(call.gradient)
        if lora := adapters(layer, call):
            # K + c A B: with G the gradient of the whole kernel, A's is c G B^T and B's c A^T G.
            variables, (left, right) = lora
            yield variables[0], Outer(a, tf.linalg.matmul(d, right, transpose_b=True), matrix)
            yield variables[1], Outer(tf.tensordot(a, left, 1), d, matrix)
        else:
            yield layer.kernel, Outer(a, d, matrix)
        if layer.use_bias:
            yield layer.bias, total(call.split(call.gradient), layer.bias.shape)


def matrix(gradient: Any) -> Any:
    """A kernel that is stored as ``[p, q]``."""
    return gradient


register(keras.layers.Dense, DenseRule())
