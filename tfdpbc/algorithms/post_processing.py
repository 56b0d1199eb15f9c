"""The post-processing B of clipped contributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfdpbc import _validate
from tfdpbc.algorithms.sequence import AlgorithmSequence
from tfdpbc.gradients.function import Evaluation, Examples, ModelFunction, no_side_effects


class PostProcessed:
    r"""Clips each contribution to C' and hands it to a function B: the round adds up :math:`B([a_h]_{C'})`.

    Paper A (Section 3, remarks) asks that ‖B(x)‖ <= C for ‖x‖ <= C', where C is the norm of the plan's clipping. It is not
    left to trust: what B returns is a contribution like any other and the plan clips it to C, which is the identity for a
    B that keeps its promise. To use it, give the plan's clipping C (by which the noise is scaled) and this object C'.

    Args:
      algorithm: A, what is clipped first.
      function: B, from a list of float32 tensors shaped like the trainable weights to such a list. It is made of
        TensorFlow operations, and sees nothing but the clipped contribution; where that was not finite, zeros.
      norm: C' > 0, in units of the contribution's Euclidean norm.

    Formal guarantee: none of B is needed. [B([a]_{C'})]_C has norm at most C and depends on the weights and the
    contribution's examples only, so that the plan's guarantee holds for every B.
    """

    def __init__(self, algorithm: Any, function: Callable[[list[Any]], list[Any]], norm: float):
        if isinstance(algorithm, AlgorithmSequence):
            _validate.fail(
                "algorithm", "a single algorithm (a sequence may hold post-processed ones)", algorithm, TypeError
            )
        if isinstance(algorithm, type) or not callable(algorithm):
            _validate.fail("algorithm", "an algorithm such as BatchGradient()", algorithm, TypeError)
        if not callable(function):
            _validate.fail("function", "a function of a contribution (a list of tensors)", function, TypeError)
        self._algorithm, self._function = algorithm, function
        self._norm = _validate.number("norm", norm, above=0.0, at_most=1e15)

    algorithm = property(lambda self: self._algorithm, doc="A.")
    function = property(lambda self: self._function, doc="B.")
    norm = property(lambda self: self._norm, doc="C'.")

    def __call__(
        self, function: ModelFunction, weights: list[Any], batch: Examples, examples: float
    ) -> tuple[list[Any], Evaluation]:
        contribution, evaluation = self.algorithm(function, weights, batch, examples)
        contribution = [tf.cast(a, tf.float32) for a in contribution]
        norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(a)) for a in contribution]))
        scale = 1.0 / tf.maximum(1.0, norm / self.norm)
        # where, not a product: 0 * NaN is NaN.
        clipped = [tf.where(tf.math.is_finite(norm), scale * a, tf.zeros_like(a)) for a in contribution]
        with no_side_effects("function"):
            result = self.function(clipped)
        result = [tf.cast(tf.convert_to_tensor(b), tf.float32) for b in result]
        if [b.shape for b in result] != [a.shape for a in contribution]:
            expected = "one that returns a list of tensors shaped like the trainable weights"
            _validate.fail("function", expected, [b.shape.as_list() for b in result])
        return result, evaluation

    def examples_at_once(self, examples: int) -> int:
        """As A."""
        return getattr(self.algorithm, "examples_at_once", int)(examples)

    def __repr__(self) -> str:
        return f"PostProcessed({self.algorithm!r}, {self.function!r}, norm={self.norm:g})"
