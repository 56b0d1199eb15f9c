"""Contributions that outlive their pass: what their weighted sum needs is kept, and summed when the weights are known.

An engine computes norms and the sum of a pass together, and everything in between is gone after it. Where weights depend on
the norms of a whole round, the sum is put off instead: tracing it tells which tensors of the pass it reads, and these few are
all that must be kept (for `onepass` the inputs of layers and the gradients of their outputs).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class HeldSum:
    """A function that was traced inside another one, and the tensors of the other that it reads.

    Args:
      function: of tensors; called while another function is traced.
      specs: of its arguments.

    Attributes:
      tensors: what it reads of the outer function, to be returned from there and given to `__call__` elsewhere.
    """

    def __init__(self, function: Callable[..., Any], *specs: tf.TensorSpec):
        traced = tf.function(function, autograph=False).get_concrete_function(*specs)
        self._graph, self._specs = traced.graph, specs
        self.tensors = list(traced.captured_inputs)

    def usable(self) -> bool:
        """Whether all that it reads are tensors of known shape."""
        return all(t.dtype not in (tf.resource, tf.variant) and t.shape.is_fully_defined() for t in self.tensors)

    def bytes(self) -> int:
        """Of `tensors`."""
        return sum(math.prod(t.shape) * t.dtype.size for t in self.tensors)

    def __call__(self, arguments: Sequence[Any], tensors: Sequence[Any]) -> Any:
        """The function of `arguments`, with `tensors` in the place of the attribute's."""
        given = dict(zip((t.name for t in self._graph.inputs), [*arguments, *tensors], strict=True))
        outputs = self._graph.structured_outputs
        flat = tf.nest.flatten(outputs)
        found = tf.graph_util.import_graph_def(
            self._graph.as_graph_def(), input_map=given, return_elements=[t.name for t in flat], name="held"
        )
        for t, known in zip(found, flat, strict=True):
            t.set_shape(known.shape)
        return tf.nest.pack_sequence_as(outputs, found)
