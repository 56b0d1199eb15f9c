"""What the one-pass engine would compute for a model, layer by layer: traced in a scratch graph, never run."""

from __future__ import annotations

import copy
import dataclasses
import math
import re
from typing import Any

import tensorflow as tf

from tfdpbc.gradients.function import Examples, ModelFunction
from tfdpbc.gradients.onepass.engine import NORM_SCOPE, SUM_SCOPE, OnePassEngine

_CONTRIBUTIONS = 13  # an odd number, so that a tensor's rows show in its shape
_VIEWS = {"Reshape", "Identity", "StopGradient", "ExpandDims", "Squeeze", "Const", "Placeholder"}


@dataclasses.dataclass(frozen=True)
class LayerCost:
    """What norms and weighted sum of one layer's gradients take, for one contribution.

    Attributes:
      layer, kind, rule: names of the layer, of its class and of its rule's class.
      norms: how the norms of its largest variable are found (`Term.form`).
      megaflops: 10^6 floating-point operations, those of matrix products counted twice a product, others once a number.
      kibibytes: of the tensors made on the way.
    """

    layer: str
    kind: str
    rule: str
    norms: str
    megaflops: float
    kibibytes: float


@dataclasses.dataclass(frozen=True)
class Cost:
    """`layers` in the model's order, and `bytes` of all tensors of one contribution: a bound on its memory from above,
    since not all of them are held at once."""

    layers: list[LayerCost]
    bytes: int


def trace(engine: OnePassEngine, inputs: Any, examples: int) -> Cost:
    """The cost of one contribution of `examples` examples.

    Args:
      engine: of the model.
      inputs: nest of the model's inputs, each with `shape` (without unknown sizes but the first) and `dtype`.
    """
    k, rows = _CONTRIBUTIONS, {_CONTRIBUTIONS, _CONTRIBUTIONS * examples}
    probe = copy.copy(engine)
    probe.function = ModelFunction(engine.function.model, _Summed())
    found = []

    def one_pass() -> None:
        x = tf.nest.map_structure(lambda t: tf.zeros([k, examples, *t.shape[1:]], t.dtype), inputs)
        seeds = tf.zeros([k, probe.function.num_generators, 2], tf.int64)
        found.append(probe.contributions(Examples(x, None, None, tf.ones([k, examples], tf.bool), seeds)))
        found[0].block_norms()
        # Not `weighted_sum`: what it does where a gradient is not finite is no cost of the usual pass.
        found[0]._sum(tf.ones([k, engine.num_blocks]), None)

    graph = tf.function(one_pass, autograph=False).get_concrete_function().graph
    (contributions,) = found
    made = [op for op in graph.get_operations() if op.type not in _VIEWS]
    layers = [_layer(layer, rule, i, contributions, made, k) for i, (layer, rule) in enumerate(probe.rules)][::-1]
    held = sum(_bytes(t) for op in made for t in op.outputs if rows & set(t.shape.as_list() if t.shape.rank else ()))
    return Cost(layers, -(-held // k))


class _Summed:
    """In the place of a loss: it needs no labels and every output takes part."""

    loss = None

    def __call__(self, y: Any, outputs: Any, sample_weight: Any) -> tf.Tensor:
        parts = [tf.reshape(tf.cast(t, tf.float32), [t.shape[0], -1]) for t in tf.nest.flatten(outputs)]
        return tf.add_n([tf.reduce_sum(t, 1) for t in parts])


def _layer(layer: Any, rule: Any, place: int, contributions: Any, made: list[Any], k: int) -> LayerCost:
    own = {id(v) for v in rule.variables(layer)}
    terms = [(i, v, t) for i, (v, t) in enumerate(zip(contributions.variables, contributions.terms, strict=True))]
    terms = [(i, v, t) for i, v, t in terms if id(v) in own and t is not None]
    scopes = [f"{NORM_SCOPE}{place}", *(f"{SUM_SCOPE}{i}" for i, _, _ in terms)]
    inside = re.compile(rf"(^|/)({'|'.join(scopes)})(_\d+)?/")
    operations = [op for op in made if inside.search(op.name)]
    largest = max(terms, key=lambda term: math.prod(term[1].shape), default=None)
    return LayerCost(
        layer.name,
        type(layer).__name__,
        type(rule).__name__,
        "not used" if largest is None else largest[2].form,
        sum(map(_flops, operations)) / k / 1e6,
        sum(_bytes(t) for op in operations for t in op.outputs) / k / 2**10,
    )


def _numbers(t: Any) -> int:
    return math.prod(t.shape) if t.shape.is_fully_defined() else 0


def _bytes(t: Any) -> int:
    return _numbers(t) * t.dtype.size if t.dtype not in (tf.variant, tf.resource) else 0


def _flops(operation: Any) -> float:
    result = _numbers(operation.outputs[0]) if operation.outputs else 0
    if operation.type.startswith(("MatMul", "BatchMatMul")):
        a = operation.inputs[0].shape
        attribute = "transpose_a" if operation.type == "MatMul" else "adj_x"
        return 2.0 * result * a[-2 if operation.get_attr(attribute) else -1]
    if operation.type == "Conv2DBackpropFilter":
        height, width, depth, _ = operation.outputs[0].shape
        return 2.0 * _numbers(operation.inputs[2]) * height * width * depth
    return float(result)
