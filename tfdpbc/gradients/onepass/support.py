"""Can this engine compute this model? The reasons why not, each naming a layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from tfdpbc.algorithms import Algorithm, BatchGradient
from tfdpbc.gradients.onepass import operations, registry, rowwise
from tfdpbc.gradients.onepass import rules as _built_in  # noqa: F401 (registers the rules)
from tfdpbc.gradients.onepass.recording import LOCK, Recorder, recording


def unsupported(model: keras.Model, algorithm: Algorithm) -> list[str]:
    """Why the engine cannot compute `model` under `algorithm`; empty if it can.

    Any loss is computed: one that is not known to treat rows on their own is mapped over contributions.
    """
    reasons = []
    if type(algorithm) is not BatchGradient:
        reasons.append(f"onepass computes the algorithm BatchGradient only, not {type(algorithm).__name__}")
    trainable = {id(v): v for v in model.trainable_variables}
    with LOCK:  # the hooks that another thread's recording puts on the layers look like calls of their own
        for layer, recorded in _walk(model, set(trainable)):
            reasons += _reasons(layer, recorded)
            for v in registry.rule_of(layer).variables(layer) if recorded else ():
                trainable.pop(id(v), None)
    if not reasons:
        reasons += [f"variable {v.path!r} belongs to no layer" for v in trainable.values()]
        if model.losses:
            reasons.append("the model adds penalties (add_loss) to its loss")
    return reasons or _stray_uses(model)


def stray(variables: list[Any], gradients: list[Any]) -> list[str]:
    """Weights are stopped inside recorded calls: a gradient that still reaches one came another way."""
    return [
        f"weight {v.path!r} is also used outside the calls of its layer"
        for v, gradient in zip(variables, gradients, strict=True)
        if gradient is not None
    ]


def inputs_of(model: keras.Model) -> Any:
    """The model's inputs as a nest of Keras tensors, None where it does not say."""
    # A Sequential model that was never called knows no input, but what it is made of does.
    return getattr(getattr(model, "_functional", None) or model, "input", None)


def sized(inputs: Any) -> Any:
    """`inputs` if all their sizes but the number of rows are known, else None."""
    known = inputs is not None and all(None not in t.shape[1:] for t in tf.nest.flatten(inputs))
    return inputs if known else None


class _Blind:
    """In the place of the tape that watches taps: only what strays is differentiated then, in a fraction of the time."""

    def watch(self, tensor: Any) -> None:
        pass


def _stray_uses(model: keras.Model) -> list[str]:
    """Traces the model once, on two rows of unknown values, for weights that are used outside their layers."""
    inputs = sized(inputs_of(model))
    if inputs is None:
        return []  # sizes are not known before there is data; the engine looks again at each pass it traces
    variables, found = list(model.trainable_variables), []

    def trace() -> None:
        x = tf.nest.map_structure(lambda t: tf.zeros([2, *t.shape[1:]], t.dtype), inputs)
        weights = [tf.zeros(v.shape, v.dtype) for v in variables]
        others = [tf.zeros(v.shape, v.dtype) for v in model.non_trainable_variables]
        by_id = {id(v): w for v, w in zip(variables, weights, strict=True)}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            with recording(Recorder(recorded_layers(model), _Blind(), by_id, 2, 1)):
                outputs, _, penalties = model.stateless_call(weights, others, x, training=True, return_losses=True)
            objective = tf.add_n([tf.reduce_sum(tf.cast(t, tf.float32)) for t in tf.nest.flatten(outputs)])
        found.extend(stray(variables, tape.gradient(objective, weights)))
        if penalties:
            found.append("the model adds penalties (add_loss) to its loss")

    # A function's graph, not a plain one: a model's graph may hold constants, which only the former can take in.
    tf.function(trace, autograph=False).get_concrete_function()
    return found


def recorded_layers(model: keras.Model) -> list[tuple[Any, registry.LayerRule]]:
    """The layers that hold trainable weights, each with its rule."""
    trainable = {id(v) for v in model.trainable_variables}
    return [(layer, registry.rule_of(layer)) for layer, recorded in _walk(model, trainable) if recorded]


def _walk(model: keras.Model, trainable: set[int]) -> Iterator[tuple[Any, bool]]:
    """Each layer of the model once, and whether its rule computes it; sublayers that a rule owns are left out."""
    seen: set[int] = set()
    waiting: list[Any] = [model]
    while waiting:
        layer = waiting.pop()
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        rule = registry.rule_of(layer)
        recorded = rule is not None and any(id(v) in trainable for v in rule.variables(layer))
        yield layer, recorded
        if not (rule is not None and rule.owns_sublayers(layer)):
            waiting += layer._flatten_layers(include_self=False, recursive=False)


def _reasons(layer: Any, recorded: bool) -> list[str]:
    name = f"layer {layer.name!r} ({type(layer).__name__})"
    rule = registry.rule_of(layer)
    if operations.is_graph(layer) and not rowwise.is_rowwise_layer(layer):
        found = [f"in model {layer.name!r}, {reason}" for reason in operations.reasons(layer)]
    elif rule is not None:
        found = [f"{name} {reason}" for reason in rule.reasons(layer)]  # of frozen layers too: they may mix rows
    elif type(layer) is keras.layers.BatchNormalization and not layer.trainable:
        found = []  # normalises with its moving statistics
    elif any(v.trainable for v in layer._trainable_variables):
        found = [f"{name} has trainable weights and no rule"]
    elif operations.overridden(layer) and not rowwise.is_rowwise_layer(layer):
        found = [f"{name} overrides {', '.join(operations.overridden(layer))} of a functional model"]
    elif not rowwise.is_rowwise_layer(layer):
        found = [f"{name} is not known to treat rows on their own"]
    else:
        found = []
    if getattr(layer, "activity_regularizer", None) is not None:
        found.append(f"{name} has an activity regularizer")
    weights = rule.variables(layer) if recorded else layer._trainable_variables
    if any(getattr(v, "regularizer", None) is not None for v in weights):
        found.append(f"{name} has a weight regularizer")
    if getattr(layer, "quantization_mode", None) is not None:
        found.append(f"{name} is quantized")
    if getattr(layer, "_remat_mode", None) is not None:
        found.append(f"{name} recomputes its activations (remat)")
    if "call" in vars(layer):
        found.append(f"{name} has a call of its own")
    activation = getattr(layer, "activation", None)
    if not rowwise.is_rowwise_function(activation):
        found.append(f"{name} has the activation {activation!r}, not known to treat rows on their own")
    return list(dict.fromkeys(found))
