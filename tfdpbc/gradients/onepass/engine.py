"""The `onepass` engine: per-contribution norms and weighted sums from one forward and one backward pass.

All rows of all contributions run through the model as one batch. The backward pass gives the gradient of every layer's
pre-activation output, and no weight gradients; layer rules turn these and the layers' inputs into squared norms, and,
once the norms have become weights, into one weighted sum for each variable. The model must treat rows independently,
which `unsupported` checks before anything is computed.
"""

from __future__ import annotations

import copy
from typing import Any

import tensorflow as tf

from tfdpbc.algorithms import Algorithm
from tfdpbc.errors import IncompatibleModel
from tfdpbc.gradients.function import Evaluation, Examples, ModelFunction
from tfdpbc.gradients.onepass import registry, support
from tfdpbc.gradients.onepass.mapped_loss import MappedLoss
from tfdpbc.gradients.onepass.recording import Recorder, recording
from tfdpbc.gradients.onepass.terms import Term, merged

NORM_SCOPE, SUM_SCOPE = "onepass_norms_", "onepass_sum_"
"""Name scopes, in profiles and in `cost`: of a layer's norms (by its place in `rules`), of a variable's sum (by its own)."""


class OnePassContributions:
    """Contributions held as one `Term` for each variable (None where nothing uses the variable)."""

    def __init__(
        self,
        terms: list[Term | None],
        variables: list[Any],
        evaluation: Evaluation,
        block_of_variable: tuple[int, ...],
        num_blocks: int,
    ):
        self.terms, self.variables, self.evaluation = terms, variables, evaluation
        self.block_of_variable, self.num_blocks = block_of_variable, num_blocks

    def block_norms(self) -> tf.Tensor:
        k = self.evaluation.losses.shape[0]
        squares: list[list[Any]] = [[] for _ in range(self.num_blocks)]
        for term, block in zip(self.terms, self.block_of_variable, strict=True):
            if term is not None:
                squares[block].append(term.squares)
        return tf.sqrt(tf.stack([tf.add_n(s) if s else tf.zeros([k]) for s in squares], axis=1))

    def materialized(self) -> list[tf.Tensor]:
        k = self.evaluation.losses.shape[0]
        pairs = zip(self.terms, self.variables, strict=True)
        return [
            tf.zeros([k, *v.shape]) if t is None else tf.reshape(tf.cast(t.materialized(), tf.float32), [k, *v.shape])
            for t, v in pairs
        ]

    def weighted_sum(self, weights: Any) -> list[tf.Tensor]:
        norms = self.block_norms()
        finite = tf.reduce_all(tf.math.is_finite(norms))
        # What is not finite is taken out before it is multiplied; where all is finite that would only cost time.
        keep = tf.math.is_finite(norms) & (weights != 0)
        return tf.cond(finite, lambda: self._sum(weights, None), lambda: self._sum(weights, keep))

    def _sum(self, weights: Any, keep: Any) -> list[tf.Tensor]:
        total = []
        # Taken apart once: a slice for each variable is four operations to trace, and models may have hundreds.
        weights = tf.unstack(weights, axis=1)
        keep = [None] * self.num_blocks if keep is None else tf.unstack(keep, axis=1)
        for i, (term, variable, block) in enumerate(
            zip(self.terms, self.variables, self.block_of_variable, strict=True)
        ):
            if term is None:
                total.append(registry.zeros(variable))
                continue
            with tf.name_scope(f"{SUM_SCOPE}{i}"):
                total.append(term.weighted_sum(weights[block], keep[block]))
        return total


class OnePassEngine:
    """Per-contribution gradients of `BatchGradient` from one backward pass.

    Args:
      function: the model as a pure function.
      algorithm: A; only `BatchGradient`.
      examples: s, the planned number of examples in a contribution.
      block_of_variable: the clipping's block of each trainable variable.
      num_blocks: L.
      contributions_per_pass: k; changes memory and speed, never the result.
      checked: the caller asked `unsupported`, which traces the model, and it named no reason.

    Raises:
      IncompatibleModel: if `unsupported` names reasons.
    """

    name = "onepass"
    seeds_by_row = False

    def __init__(
        self,
        function: ModelFunction,
        algorithm: Algorithm,
        examples: float,
        block_of_variable: list[int],
        num_blocks: int,
        contributions_per_pass: int,
        checked: bool = False,
    ):
        reasons = [] if checked else support.unsupported(function.model, algorithm)
        if reasons:
            raise IncompatibleModel(f"engine 'onepass' cannot compute this model: {'; '.join(reasons)}")
        self.function, self.examples = function, examples
        self.block_of_variable, self.num_blocks = tuple(block_of_variable), num_blocks
        self.contributions_per_pass = contributions_per_pass
        self.rules = support.recorded_layers(function.model)

    def contributions(self, batch: Examples, round_in_epoch: Any = 0) -> OnePassContributions:
        k, s = batch.mask.shape
        flat = tf.nest.map_structure(
            lambda t: None if t is None else tf.reshape(t, [k * s, *t.shape[2:]]),
            (batch.x, batch.y, batch.sample_weight, batch.mask),
        )
        # One seed serves the whole pass: random layers draw for every row.
        rows = Examples(*flat, batch.seeds[0])
        function = copy.copy(self.function)
        function.loss = MappedLoss.where_needed(function.loss, k)
        # A tensor of its own for each variable: a value that two variables shared would be seen as one.
        weights = [tf.identity(w) for w in function.weights()]
        by_id = {id(v): w for v, w in zip(function.trainable, weights, strict=True)}
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            recorder = Recorder(self.rules, tape, by_id, k, s)
            with recording(recorder):
                evaluation = function.evaluate(weights, rows)
            objective = tf.reduce_sum(evaluation.losses) / self.examples
        taps = [call.taps for _, _, call in recorder.calls]
        gradients, outside = tape.gradient(objective, (taps, weights))
        stray = support.stray(function.trainable, outside)
        if stray:
            raise IncompatibleModel(f"engine 'onepass' cannot compute this model: {'; '.join(stray)}")
        for (_, _, call), found in zip(recorder.calls, gradients, strict=True):
            call.gradients = found
        return OnePassContributions(
            self._terms(recorder),
            function.trainable,
            _split(evaluation, k, s),
            self.block_of_variable,
            self.num_blocks,
        )

    def _terms(self, recorder: Recorder) -> list[Term | None]:
        """The per-contribution gradient of each trainable variable, summed over its uses."""
        uses: dict[int, list[Term]] = {id(v): [] for v in self.function.trainable}
        place = {id(layer): i for i, (layer, _) in enumerate(self.rules)}
        for layer, rule, call in recorder.calls:
            if all(gradient is None for gradient in call.gradients):
                continue  # the loss does not use this call
            call.gradients = [
                tf.zeros_like(tap) if gradient is None else gradient
                for tap, gradient in zip(call.taps, call.gradients, strict=True)
            ]
            given = dict.fromkeys(id(v) for v in rule.variables(layer) if id(v) in uses)
            with tf.name_scope(f"{NORM_SCOPE}{place[id(layer)]}"):
                for variable, term in rule.terms(layer, call):
                    if id(variable) in uses:
                        uses[id(variable)].append(term)
                        given.pop(id(variable), None)
            if given:
                missing = [v.path for v in rule.variables(layer) if id(v) in given]
                raise IncompatibleModel(f"the rule of layer {layer.name!r} gives no gradient for {missing}")
        return [merged(uses[id(v)], tuple(v.shape)) if uses[id(v)] else None for v in self.function.trainable]


def _split(evaluation: Evaluation, k: int, s: int) -> Evaluation:
    """The evaluation of k s rows as that of k contributions."""

    def split(t: Any) -> Any:
        return tf.reshape(t, [k, s, *t.shape[1:]])

    return Evaluation(
        split(evaluation.losses),
        tf.broadcast_to(evaluation.penalty, [k]),
        tf.nest.map_structure(split, evaluation.outputs),
        [tf.broadcast_to(t, [k, *t.shape]) for t in evaluation.state],
    )
