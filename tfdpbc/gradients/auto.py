"""Chooses the engine and its physical micro-batch for a model, and says why."""

from __future__ import annotations

import math
import os
from typing import Any

import keras
import tensorflow as tf

from tfdpbc import _validate
from tfdpbc.algorithms import Algorithm, BatchGradient
from tfdpbc.errors import IncompatibleModel
from tfdpbc.gradients import onepass
from tfdpbc.gradients.engine import Engine
from tfdpbc.gradients.function import ModelFunction
from tfdpbc.gradients.onepass import OnePassEngine, cost, support
from tfdpbc.gradients.onepass.mapped_loss import MappedLoss
from tfdpbc.gradients.vectorized import VectorizedEngine

ENGINES = ("auto", "onepass", "vectorized")

MEMORY_BUDGET = 2**31
"""Bytes that one pass may take unless the user says otherwise."""
MATERIALIZED_SHARE = 4
"""The gradients that the vectorized engine holds may take this part of the budget: its backward pass takes the rest."""
LOCAL_COPIES = 8
"""Copies of the weights that a contribution of another algorithm than `BatchGradient` may hold: its own weights, its
gradient, the way it came, the state of a rule, old and new."""
MOST_EXAMPLES = 256
"""Examples computed at once unless the user says otherwise: on a CPU more are no faster."""
EFFICIENT_EXAMPLES = 8
"""From this many examples on, contributions one by one are faster than mapped (convolutions loop inside a map)."""
VALUES_PER_OUTPUT = 64
"""Numbers held for each output of a plain layer, at the very most: 5 x 5 patches held twice, gradients, copies."""
VECTOR = 16
"""Channels that oneDNN computes at once: with whole vectors of them no fault was seen."""
POISSON_PASSES = 8
"""Passes for a planned Poisson round: it fills a random part of its arrays, so small passes keep the last one cheap."""

# On TensorFlow builds with oneDNN a matmul that broadcasts over ranks, which these layers use, kills the process inside
# tf.vectorized_map. One contribution at a time is not mapped.
# SpectralNormalization has a condition that the map cannot convert.
_ABORTING = (
    keras.layers.MultiHeadAttention,
    keras.layers.GroupQueryAttention,
    keras.layers.EinsumDense,
    keras.layers.SpectralNormalization,
)
# Layers for which `VALUES_PER_OUTPUT` holds, with kernels up to 5 x 5.
_PLAIN = (
    keras.layers.InputLayer,
    keras.layers.Dense,
    keras.layers.Conv2D,
    keras.layers.MaxPooling2D,
    keras.layers.AveragePooling2D,
    keras.layers.GlobalAveragePooling2D,
    keras.layers.Flatten,
    keras.layers.Reshape,
    keras.layers.Activation,
    keras.layers.ReLU,
    keras.layers.Dropout,
    keras.layers.GroupNormalization,
    keras.layers.LayerNormalization,
    keras.layers.BatchNormalization,
)


def build_engine(
    name: str,
    function: ModelFunction,
    algorithm: Algorithm,
    sampling: Any,
    block_of_variable: list[int],
    num_blocks: int,
    physical_batch_size: int | None = None,
    memory_budget: int | None = None,
    inputs: Any = None,
    replicas: int = 1,
    augmentations: int = 1,
) -> tuple[Engine, str]:
    """The engine for a model under a sampling, and the reason for its choices.

    Args:
      name: one of `ENGINES`. `"auto"` takes `onepass` where it computes the model and there are several contributions.
      physical_batch_size: the user's limit on the examples computed at once, or None.
      memory_budget: bytes that a pass may take; by default `MEMORY_BUDGET`. Only used without `physical_batch_size`.
      inputs: the model's inputs (anything with `shape` and `dtype`), where their sizes are known better than to the model.
      replicas: how many of them share the contributions of a round.
      augmentations: how often each example stands in its contribution.

    Raises:
      IncompatibleModel: the engine that was asked for cannot compute the model.
    """
    kind, why = _kind(_validate.choice("engine", name, ENGINES), function.model, algorithm, sampling)
    options, rows = {}, sampling.shape[1] * augmentations
    if kind is OnePassEngine:
        options = {"checked": name == "auto"}  # that it is supported is why it was chosen
    if physical_batch_size is not None and physical_batch_size < rows:
        kind, why = VectorizedEngine, "the parts of a contribution add up"
        options = {"examples_per_pass": physical_batch_size}
        _check_divisible(function, algorithm, rows, physical_batch_size)
    if kind is VectorizedEngine:
        _check_filters(function.model)
    divisor = sampling.examples_divisor * augmentations
    engine = kind(function, algorithm, divisor, block_of_variable, num_blocks, 1, **options)
    budget = memory_budget or MEMORY_BUDGET
    engine.contributions_per_pass, reason = contributions_per_pass(
        engine, sampling, physical_batch_size, budget, inputs, replicas, augmentations
    )
    return engine, (
        f"{engine.name} ({why}), {engine.contributions_per_pass} of {sampling.shape[0]} contributions at once ({reason})"
    )


def _kind(name: str, model: keras.Model, algorithm: Algorithm, sampling: Any) -> tuple[type, str]:
    if name != "auto":
        return {"onepass": OnePassEngine, "vectorized": VectorizedEngine}[name], "as asked"
    if sampling.shape[0] == 1:
        return VectorizedEngine, "one contribution a round needs no map"
    reasons = onepass.unsupported(model, algorithm)
    if reasons:
        return VectorizedEngine, "; ".join(reasons)
    return OnePassEngine, "every layer has a rule"


def contributions_per_pass(
    engine: Engine,
    sampling: Any,
    physical_batch_size: int | None = None,
    budget: int = MEMORY_BUDGET,
    inputs: Any = None,
    replicas: int = 1,
    augmentations: int = 1,
) -> tuple[int, str]:
    """k, the contributions that one replica computes at once, and the reason for it."""
    model, vectorized = engine.function.model, isinstance(engine, VectorizedEngine)
    contributions, examples = -(-sampling.shape[0] // replicas), sampling.shape[1] * augmentations
    if physical_batch_size is not None:
        limit = _validate.integer("physical_batch_size", physical_batch_size, at_least=1)
    if vectorized:
        examples = getattr(engine.algorithm, "examples_at_once", int)(examples)
    if contributions == 1:
        return 1, "there are no more"
    if vectorized and (layer := _aborting_layer(model)) is not None:
        return 1, f"layer {layer.name!r} ({type(layer).__name__}) is not safe inside tf.vectorized_map"
    if physical_batch_size is not None:
        return max(1, min(contributions, limit // examples)), f"physical_batch_size={limit}"
    most, why = MOST_EXAMPLES // examples, f"{MOST_EXAMPLES} examples keep the processor busy"
    if sampling.masked and -(-sampling.divisor // POISSON_PASSES) < most:
        most, why = -(-sampling.divisor // POISSON_PASSES), f"a {POISSON_PASSES}th of a planned round"
    if not vectorized:
        most = max(1, min(contributions, most))
        if _surely_fits(engine, most * examples, budget):
            return most, why
        each = _bytes_of_one(engine, inputs, examples)
        if each is not None and most * each > budget:
            how = "within" if each <= budget else "which is more than"  # there is no less than one
            reason = f"at most {each / 2**20:.3g} MiB each, {how} memory_budget = {budget / 2**20:.3g} MiB"
            # As many passes, none of them mostly padding.
            passes = -(-contributions // max(1, budget // each))
            return -(-contributions // passes), reason
        return most, why
    if examples >= EFFICIENT_EXAMPLES:
        return 1, f"{examples} examples keep the processor busy"
    weights = sum(math.prod(v.shape) for v in model.trainable_variables)
    copies, what = (
        (1, "gradients") if type(engine.algorithm) is BatchGradient else (LOCAL_COPIES, "weights and gradients")
    )
    k = max(1, min(contributions, most, budget // MATERIALIZED_SHARE // (4 * weights * copies)))
    return k, f"{4 * weights * copies * k / 2**20:.3g} MiB of {what}"


def _surely_fits(engine: OnePassEngine, examples: int, budget: int) -> bool:
    """Whether so many examples fit by a generous count, which spares small models the trace of their memory (seconds)."""
    model = engine.function.model
    layers = list(model._flatten_layers(include_self=False, recursive=True))
    try:  # a layer that is of another type, was never called, is shared or has several outputs is traced
        sizes = [math.prod(layer.output.shape[1:]) for layer in layers if _plain(layer)]
    except (AttributeError, TypeError, ValueError):
        return False
    weights = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    values = VALUES_PER_OUTPUT * sum(sizes) + weights
    return len(sizes) == len(layers) and 4 * values * examples <= budget


def _plain(layer: Any) -> bool:
    """Whether `VALUES_PER_OUTPUT` holds for the layer."""
    return type(layer) in _PLAIN and max(getattr(layer, "kernel_size", (1,))) <= 5


def _bytes_of_one(engine: OnePassEngine, inputs: Any, examples: int) -> int | None:
    """A bound on the memory of one contribution; None where the sizes of the inputs are not known."""
    inputs = support.sized(support.inputs_of(engine.function.model) if inputs is None else inputs)
    return None if inputs is None else cost.trace(engine, inputs, examples).bytes


def _check_filters(model: keras.Model) -> None:
    """Refuses what makes TensorFlow's gradient of a filter write beyond its memory, which may end the process.

    Seen with oneDNN where the stride is larger than the kernel and channels do not fill whole vectors. The `onepass` engine
    asks for such gradients in a way that is safe (`conv2d.filter_gradient`).
    """
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0" or tf.config.list_physical_devices("GPU"):
        return
    for layer in model._flatten_layers(include_self=False, recursive=True):
        if not isinstance(layer, (keras.layers.Conv1D, keras.layers.Conv2D)) or not (layer.built and layer.trainable):
            continue
        skips = any(stride > kernel for stride, kernel in zip(layer.strides, layer.kernel_size, strict=True))
        if skips and any(n % VECTOR for n in layer.kernel.shape[-2:]):
            raise IncompatibleModel(
                f"layer {layer.name!r} ({type(layer).__name__}) has strides {layer.strides} larger than its kernel "
                f"{layer.kernel_size}, and channels or filters that are no multiple of {VECTOR}: TensorFlow's gradient of "
                "such a filter may corrupt the memory of the process. Ways out: engine='onepass' with more than one "
                f"contribution a round, a multiple of {VECTOR} channels and filters, pooling before the layer in place of "
                "its strides, or the environment variable TF_ENABLE_ONEDNN_OPTS=0"
            )


def _check_divisible(function: ModelFunction, algorithm: Algorithm, examples: int, limit: int) -> None:
    """A contribution of several examples may be computed in parts only if it is a sum over its examples."""
    if type(algorithm) is BatchGradient:
        reasons = onepass.unsupported(function.model, algorithm)
        if not MappedLoss.knows(function.loss):
            reasons.append(
                "the loss is not known to treat examples on their own (see tfdpbc.gradients.onepass.rowwise)"
            )
    else:
        reasons = [f"{type(algorithm).__name__} is not known to be a sum over its examples, as BatchGradient is"]
    if reasons:
        raise IncompatibleModel(
            f"physical_batch_size must hold one contribution ({examples} examples), which cannot be computed in parts: "
            f"{'; '.join(reasons)}; got physical_batch_size={limit}"
        )


def _aborting_layer(model: keras.Model) -> Any:
    layers = model._flatten_layers(include_self=False, recursive=True)
    return next((layer for layer in layers if isinstance(layer, _ABORTING)), None)
