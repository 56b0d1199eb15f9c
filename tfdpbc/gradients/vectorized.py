"""The `vectorized` engine: `tf.vectorized_map` over contributions. Any layer, any algorithm A.

It materialises its k contributions, so memory grows with k times the number of weights. With k = 1 nothing is mapped and
a contribution costs what a plain training step costs: that is how batch clipping runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tfdpbc import native
from tfdpbc.algorithms import Algorithm, AlgorithmSequence
from tfdpbc.gradients.accumulate import accumulate
from tfdpbc.gradients.function import Evaluation, Examples, ModelFunction, with_step


@dataclasses.dataclass(frozen=True)
class MaterializedContributions:
    """Contributions held as one tensor ``[k, *shape]`` for each variable."""

    gradients: list[Any]
    evaluation: Evaluation
    block_of_variable: tuple[int, ...]
    num_blocks: int

    def block_norms(self) -> tf.Tensor:
        squares: list[Any] = [[] for _ in range(self.num_blocks)]
        for gradient, block in zip(self.gradients, self.block_of_variable, strict=True):
            squares[block].append(native.row_squares(gradient))
        return tf.sqrt(tf.stack([tf.add_n(s) for s in squares], axis=1))

    def materialized(self) -> list[tf.Tensor]:
        return list(self.gradients)

    def weighted_sum(self, weights: tf.Tensor) -> list[tf.Tensor]:
        if weights.shape[0] == 1:
            pairs = zip(self.gradients, self.block_of_variable, strict=True)
            return [tf.math.multiply_no_nan(gradient[0], weights[0, block]) for gradient, block in pairs]
        finite = tf.reduce_all(tf.math.is_finite(self.block_norms()))
        return tf.cond(finite, lambda: self._sum(weights, False), lambda: self._sum(weights, True))

    def _sum(self, weights: tf.Tensor, take_out: bool) -> list[tf.Tensor]:
        total = []
        for gradient, block in zip(self.gradients, self.block_of_variable, strict=True):
            k, shape = gradient.shape[0], gradient.shape[1:]
            flat, weight = tf.reshape(gradient, [k, -1]), weights[:, block : block + 1]
            if take_out:  # 0 * NaN is NaN: contributions without weight are taken out, not multiplied
                flat = tf.where(weight > 0, flat, tf.zeros_like(flat))
            summed = tf.matmul(weight, flat, transpose_a=True)
            total.append(tf.reshape(summed, shape))
        return total


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hides vectorized_map's remarks on operations that it loops over: the speed of this engine is documented."""

    def keep(record: logging.LogRecord) -> bool:
        return "uses a while_loop" not in str(record.msg) and "Using a while_loop" not in str(record.msg)

    logger = tf.get_logger()
    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


def _leaves(contribution: list[Any], evaluation: Evaluation) -> tuple[Any, ...]:
    """What an algorithm gives, as a nest of tensors."""
    contribution = [tf.cast(a, tf.float32) for a in contribution]
    return contribution, evaluation.losses, evaluation.penalty, evaluation.outputs, evaluation.state


class VectorizedEngine:
    """Per-contribution gradients through `tf.vectorized_map`.

    Args:
      function: the model as a pure function.
      algorithm: A, or an `AlgorithmSequence` of them.
      examples: s, the planned number of examples in a contribution.
      block_of_variable: the clipping's block of each trainable variable.
      num_blocks: L.
      contributions_per_pass: k; changes memory and speed, never the result.
      examples_per_pass: with k = 1, how many examples of the contribution are computed at once; their gradients add up,
        so the algorithm must be a `BatchGradient` and the model must treat rows on their own (see `auto`). None: all.
    """

    name = "vectorized"
    seeds_by_row = True

    def __init__(
        self,
        function: ModelFunction,
        algorithm: Algorithm | AlgorithmSequence,
        examples: float,
        block_of_variable: list[int],
        num_blocks: int,
        contributions_per_pass: int,
        examples_per_pass: int | None = None,
    ):
        self.function, self.algorithm, self.examples = function, algorithm, examples
        self.block_of_variable, self.num_blocks = tuple(block_of_variable), num_blocks
        self.contributions_per_pass, self.examples_per_pass = contributions_per_pass, examples_per_pass

    def _one(self, algorithm: Algorithm, leaves: list[Any], structure: Any, weights: list[Any]) -> tuple[Any, ...]:
        batch = Examples(*tf.nest.pack_sequence_as(structure, leaves))
        return _leaves(*algorithm(self.function, weights, batch, self.examples))

    def _in_parts(self, one: Any, leaves: list[Any]) -> tuple[Any, ...]:
        """One contribution, computed some examples at a time. The leaves are those of `Examples`, mask before seeds."""
        *rows, mask, seeds = leaves
        s, part = mask.shape[0], self.examples_per_pass
        if part is None or part >= s:
            return one(leaves)
        passes = -(-s // part)
        # Padding repeats the first example, masked, so that it is as well-behaved as the contribution itself.
        position = tf.range(passes * part)
        filled = tf.where(position < s, position, 0)
        there = tf.gather(mask, filled) & (position < s)

        def some(i: Any) -> tuple[Any, Any]:
            chosen = filled[i * part : (i + 1) * part]
            chosen.set_shape([part])
            taken = [tf.gather(leaf, chosen) for leaf in rows]
            now = tf.reshape(there, [passes, part])[i]
            gradient, losses, penalty, outputs, state = one([*taken, now, with_step(seeds, i)])
            return (gradient, penalty, state), (losses, outputs)

        (gradient, penalty, state), rows_out = accumulate(some, passes)
        losses, outputs = tf.nest.map_structure(lambda t: t[:s], rows_out)
        return gradient, losses, penalty, outputs, state

    def contributions(self, batch: Examples, round_in_epoch: Any = 0) -> MaterializedContributions:
        if isinstance(self.algorithm, AlgorithmSequence):
            # Outside of the map: all contributions of a round run the same algorithm.
            branches = [functools.partial(self._compute, one, batch) for one in self.algorithm.algorithms]
            index = tf.convert_to_tensor(self.algorithm.index(round_in_epoch))
            result = tf.switch_case(index, branches)
        else:
            result = self._compute(self.algorithm, batch)
        gradients, *evaluation = result
        return MaterializedContributions(gradients, Evaluation(*evaluation), self.block_of_variable, self.num_blocks)

    def _compute(self, algorithm: Algorithm, batch: Examples) -> tuple[Any, ...]:
        # vectorized_map takes no None, so the batch travels as its flat leaves.
        structure = (batch.x, batch.y, batch.sample_weight, batch.mask, batch.seeds)
        leaves_of_all = tf.nest.flatten(structure)
        present = [leaf for leaf in leaves_of_all if leaf is not None]
        weights = self.function.weights()

        def one(leaves: Any) -> Any:
            left = iter(leaves)
            filled = [None if leaf is None else next(left) for leaf in leaves_of_all]
            return self._one(algorithm, filled, structure, weights)

        if self.contributions_per_pass == 1:
            return tf.nest.map_structure(lambda t: t[None], self._in_parts(one, [leaf[0] for leaf in present]))
        with _quiet():
            if hasattr(algorithm, "together"):
                return _leaves(*algorithm.together(self.function, weights, batch, self.examples))
            return tf.vectorized_map(one, present)
