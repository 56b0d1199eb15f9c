"""Chooses the engine and its physical micro-batch for a model, and says why."""

from __future__ import annotations

import math
from typing import Any

import keras

from tfdpbc import _validate
from tfdpbc.algorithms import Algorithm
from tfdpbc.errors import IncompatibleModel
from tfdpbc.gradients.function import ModelFunction
from tfdpbc.gradients.vectorized import VectorizedEngine

ENGINES = ("auto", "vectorized")

MATERIALIZED_BYTES = 2**28
"""Contributions held at once may take this much memory (their backward pass takes a few times as much)."""
MOST_EXAMPLES = 256
"""Examples computed at once unless the user says otherwise: on a CPU more are no faster."""
EFFICIENT_EXAMPLES = 8
"""From this many examples on, contributions one by one are faster than mapped (convolutions loop inside a map)."""

# On TensorFlow builds with oneDNN a matmul that broadcasts over ranks, which these layers use, kills the process inside
# tf.vectorized_map. One contribution at a time is not mapped.
_ABORTING = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention, keras.layers.EinsumDense)


def contributions_per_pass(model: keras.Model, sampling: Any, physical_batch_size: int | None) -> tuple[int, str]:
    """k, the contributions computed at once, and the reason for it.

    Args:
      model: the built model.
      sampling: the plan's sampling.
      physical_batch_size: the user's limit on the examples computed at once, or None.
    """
    contributions, examples = sampling.shape
    # A Poisson round fills a random part of its arrays: small passes keep the last, half empty one cheap.
    planned, passes = sampling.divisor, 8 if sampling.masked else 1
    if contributions == 1:
        return 1, "one contribution a round"
    unmapped = [
        layer for layer in model._flatten_layers(include_self=False, recursive=True) if isinstance(layer, _ABORTING)
    ]
    if unmapped:
        layer = unmapped[0]
        return 1, f"layer {layer.name!r} ({type(layer).__name__}) is not safe inside tf.vectorized_map"
    if physical_batch_size is not None:
        limit = _validate.integer("physical_batch_size", physical_batch_size, at_least=1)
        if limit < examples:
            raise IncompatibleModel(
                f"physical_batch_size must hold one contribution ({examples} examples), which is computed as a whole; "
                f"got physical_batch_size={limit}"
            )
        return min(contributions, limit // examples), f"physical_batch_size={limit}"
    if examples >= EFFICIENT_EXAMPLES:
        return 1, f"{examples} examples in a contribution keep the processor busy"
    weights = sum(math.prod(v.shape) for v in model.trainable_variables)
    by_memory = MATERIALIZED_BYTES // (4 * weights)
    k = max(1, min(contributions, by_memory, MOST_EXAMPLES // examples, -(-planned // passes)))
    return k, f"{weights} weights, {4 * weights * k / 2**20:.0f} MiB of contributions at once"


def build_engine(
    name: str,
    function: ModelFunction,
    algorithm: Algorithm,
    sampling: Any,
    block_of_variable: list[int],
    num_blocks: int,
    physical_batch_size: int | None,
) -> tuple[VectorizedEngine, str]:
    """The engine `name` for a model under a sampling, and the reason for its choices."""
    _validate.choice("engine", name, ENGINES)
    k, reason = contributions_per_pass(function.model, sampling, physical_batch_size)
    engine = VectorizedEngine(function, algorithm, sampling.examples_divisor, block_of_variable, num_blocks, k)
    return engine, f"{engine.name}, {k} of {sampling.shape[0]} contributions at once: {reason}"
