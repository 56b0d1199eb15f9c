"""TimeDistributed over a layer with a rule: the steps of a sequence are more examples of its contribution."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from tfdpbc.gradients.onepass.recording import Call
from tfdpbc.gradients.onepass.registry import LayerRule, register, rule_of
from tfdpbc.gradients.onepass.terms import Term


class TimeDistributedRule(LayerRule):
    """The layer's rule, given all steps of all rows at once, as it treats each on its own.

    What the layer's own settings say against it is found where the engine looks at the layer itself.
    """

    def reasons(self, layer: Any) -> list[str]:
        inner, found = layer.layer, []
        if not inner.trainable_variables:
            return []  # computed by Keras, step by step; the engine looks at the inner layer itself
        if rule_of(inner) is None or type(inner) is type(layer):
            found.append(f"wraps {type(inner).__name__}, which has no rule that computes several steps at once")
        elif inner._call_has_mask_arg:
            found.append(f"wraps {type(inner).__name__}, which may be masked at some steps")
        return found

    def variables(self, layer: Any) -> list[Any]:
        rule = rule_of(layer.layer)
        return list(layer.layer.trainable_variables) if rule is None else rule.variables(layer.layer)

    def call(
        self, layer: Any, tap: Callable[[Any], Any], inputs: Any, training: bool | None = None, mask: Any = None
    ) -> Any:
        inner = layer.layer
        options = {"training": training} if inner._call_has_training_arg else {}
        outputs = rule_of(inner).call(inner, tap, _steps(inputs), **options)
        return tf.reshape(outputs, [*inputs.shape[:2], *outputs.shape[1:]])

    def terms(self, layer: Any, call: Call) -> Iterable[tuple[Any, Term]]:
        steps = call.inputs.shape[1]
        inner = dataclasses.replace(call, args=(_steps(call.inputs),), kwargs={}, s=call.s * steps)
        return rule_of(layer.layer).terms(layer.layer, inner)


def _steps(t: Any) -> Any:
    """``[n, steps, ...]`` as ``[n steps, ...]``."""
    return tf.reshape(t, [-1, *t.shape[2:]])


register(keras.layers.TimeDistributed, TimeDistributedRule())
