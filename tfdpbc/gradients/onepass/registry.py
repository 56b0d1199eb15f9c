"""Which rule computes the gradients of which layer type; users add their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

from tfdpbc import _validate
from tfdpbc.gradients.onepass.recording import Call
from tfdpbc.gradients.onepass.terms import Term


class LayerRule:
    """How per-contribution gradients of one layer type follow from its inputs and its pre-activation gradients.

    A rule is also a promise: the layer treats every row (index of its first axis) on its own.
    Subclasses give `terms`, and the others where the defaults do not fit.
    """

    def reasons(self, layer: Any) -> list[str]:
        """Why this particular layer cannot be computed by the rule; empty if it can."""
        return []

    def variables(self, layer: Any) -> list[Any]:
        """The variables whose gradients `terms` gives. A rule that names its sublayers' variables owns those layers."""
        return list(layer._trainable_variables)

    def owns_sublayers(self, layer: Any) -> bool:
        """Whether `call` computes the sublayers as well, so that they need no rule of their own."""
        return False

    def call(self, layer: Any, tap: Callable[[Any], Any], *args: Any, **kwargs: Any) -> Any:
        """Computes the layer, passing each tensor whose gradient `terms` needs through `tap`.

        By default the layer's own `call` without its activation, the activation applied after the tap. It may not change
        `layer` (another thread may be using it) and runs at the weights that the engine set.
        """
        activation = getattr(layer, "activation", None)
        if activation is None:
            return tap(type(layer).call(layer, *args, **kwargs))
        return activation(tap(type(layer).call(_linear(layer), *args, **kwargs)))

    def terms(self, layer: Any, call: Call) -> Iterable[tuple[Any, Term]]:
        """(variable, per-contribution gradients) for each of `variables`; those of frozen variables are dropped."""
        raise NotImplementedError


def _linear(layer: Any) -> Any:
    """A stand-in that shares all of the layer's state but its activation. The layer itself is not touched."""
    stand_in = object.__new__(type(layer))
    vars(stand_in).update(vars(layer))
    vars(stand_in).pop("call", None)  # the recording's own hook
    vars(stand_in)["activation"] = None
    return stand_in


class _FunctionRule(LayerRule):
    def __init__(self, function: Callable[[Any, Call], Iterable[tuple[Any, Term]]]):
        self.function = function

    def terms(self, layer: Any, call: Call) -> Iterable[tuple[Any, Term]]:
        return self.function(layer, call)


_RULES: dict[type, LayerRule] = {}


def register(layer_type: type, rule: LayerRule | Callable[[Any, Call], Iterable[tuple[Any, Term]]]) -> None:
    """Makes the one-pass engine compute layers of exactly `layer_type` (not of its subclasses) by `rule`.

    Args:
      layer_type: a subclass of `keras.layers.Layer`.
      rule: a `LayerRule`, or a function ``(layer, call) -> [(variable, term), ...]`` for a layer whose output before its
        `activation` (if it has that attribute) is what the gradients are computed from. See docs/layer_rules.md.
    """
    if not isinstance(layer_type, type):
        _validate.fail("layer_type", "a layer class", layer_type, TypeError)
    if not (isinstance(rule, LayerRule) or callable(rule)):
        _validate.fail("rule", "a LayerRule or a function (layer, call) -> [(variable, term), ...]", rule, TypeError)
    _RULES[layer_type] = rule if isinstance(rule, LayerRule) else _FunctionRule(rule)


def rule_of(layer: Any) -> LayerRule | None:
    """The rule for the layer's exact type, or None."""
    return _RULES.get(type(layer))


def registered() -> Iterator[type]:
    """The layer types that have a rule."""
    return iter(_RULES)


def zeros(variable: Any) -> tf.Tensor:
    """The gradient of a variable that nothing uses."""
    return tf.zeros(variable.shape, tf.float32)
