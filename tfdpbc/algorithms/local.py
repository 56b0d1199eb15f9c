"""Local optimisation as the inner algorithm A: an optimizer walks through the examples of one contribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdpbc import _validate
from tfdpbc.algorithms import rules
from tfdpbc.gradients.function import Evaluation, Examples, ModelFunction, no_side_effects, with_step


class LocalOptimizer:
    r"""Starts at w, goes through the contribution's examples by a rule, and returns how far it came.

    .. math:: a = (w_{start} - w_{end}) / \eta, \qquad w_{t+1} = w_t - \eta \cdot direction_t

    The state of the rule is fresh for each contribution. With `SGD` and minibatches of 1,
    :math:`a = \sum_i \nabla f(w_i; \xi_i)` along the SGD recursion (paper A, eq. 2). With one pass and one minibatch it is
    `BatchGradient`.

    Minibatches are consecutive slices of the examples in the order in which they were sampled, the same in each pass. A
    minibatch's gradient is its summed gradient divided by its planned size (`minibatch_size`, or s if that is smaller),
    plus that of the model's penalties. Where s is fixed and no multiple of `minibatch_size`, the last minibatch of a pass
    is smaller and divided by its own size. In Poisson groups padding changes nothing: a minibatch without an example makes
    no step (nor counts as one), a partly filled one is divided by the planned size.

    Random layers draw anew in each step. Moving statistics, where a plan keeps them, are carried from step to step. The
    losses and outputs that a round reports (for metrics) are those of each example's visit in the first pass.

    Args:
      rule: one of `rules`, its name, or a user's `Rule`.
      learning_rate: η > 0, or a function of the step (int32, from 0 in each contribution; a Keras schedule is one). Then
        each step is taken with its own rate, and a is in units of the first one.
      passes: how often the examples are gone through, >= 1.
      minibatch_size: examples per step, >= 1; None takes the whole contribution.

    Formal guarantee: a depends on w and on the contribution's examples only, which is all that the analysis of Algorithm 1
    asks of A; whatever its size, it is clipped before anything is released.
    """

    config_name = "local"

    def __init__(
        self,
        rule: Any,
        learning_rate: float | Callable[[Any], Any],
        passes: int = 1,
        minibatch_size: int | None = 1,
    ):
        self._rule = rules.get(rule)
        self._schedule = learning_rate if callable(learning_rate) else None
        first = float(learning_rate(0)) if callable(learning_rate) else learning_rate
        self._rate = _validate.number("learning_rate", first, above=0.0)
        self._passes = _validate.integer("passes", passes, at_least=1)
        if minibatch_size is not None:
            minibatch_size = _validate.integer("minibatch_size", minibatch_size, at_least=1)
        self._minibatch_size = minibatch_size

    # Read-only: rounds already released were computed by them.
    rule = property(lambda self: self._rule, doc="The rule.")
    learning_rate = property(lambda self: self._schedule or self._rate, doc="η, or its schedule.")
    passes = property(lambda self: self._passes, doc="How often the examples are gone through.")
    minibatch_size = property(lambda self: self._minibatch_size, doc="Examples per step, None: all.")

    def examples_at_once(self, examples: int) -> int:
        """How many of a contribution's examples are computed at once."""
        return min(self.minibatch_size or examples, examples)

    def to_config(self) -> dict[str, Any]:
        """JSON-able description (see `algorithms.from_config`).

        Raises:
          NotImplementedError: a user's rule or a schedule.
        """
        if self._schedule is not None:
            raise NotImplementedError(f"a schedule cannot be serialised; got learning_rate={self._schedule!r}")
        return {
            "name": self.config_name,
            "rule": rules.to_config(self.rule),
            "learning_rate": self._rate,
            "passes": self.passes,
            "minibatch_size": self.minibatch_size,
        }

    def __repr__(self) -> str:
        return (
            f"LocalOptimizer({self.rule!r}, learning_rate={self.learning_rate!r}, passes={self.passes}, "
            f"minibatch_size={self.minibatch_size})"
        )

    def __call__(
        self, function: ModelFunction, weights: list[Any], batch: Examples, examples: float
    ) -> tuple[list[Any], Evaluation]:
        return _Walk(self, function, weights, batch, examples, None).run()

    def together(
        self, function: ModelFunction, weights: list[Any], batch: Examples, examples: float
    ) -> tuple[list[Any], Evaluation]:
        """The same for k contributions at once (all leaves ``[k, s, ...]``), and much faster than mapping the call:
        here each step is mapped over the contributions, instead of all steps."""
        return _Walk(self, function, weights, batch, examples, batch.mask.shape[0]).run()


class _Walk:
    """The steps of one contribution (`together` None), or of k that step together (all that it holds then has axis k).

    What is carried from step to step: steps `made`, the `rule`'s state, `moved` (Σ directions, in float32 at least, so
    that a small η costs no digits), the `model`'s data-written state.
    """

    def __init__(
        self,
        local: LocalOptimizer,
        function: ModelFunction,
        weights: list[Any],
        batch: Examples,
        examples: float,
        together: int | None,
    ):
        self.local, self.function, self.weights, self.seeds = local, function, weights, batch.seeds
        self.together, self.axis = together, 0 if together is None else 1
        rows, size = batch.mask.shape[-1], local.minibatch_size
        self.size = rows if size is None else min(size, rows)
        self.whole, self.left = divmod(rows, self.size)
        # Divisors are public: never the number of examples that are there.
        self.fixed = rows == examples and size is not None
        self.divisor = float(examples) if size is None else min(float(size), float(examples))
        self.structure = (batch.x, batch.y, batch.sample_weight, batch.mask)
        self.leaves = [leaf for leaf in tf.nest.flatten(self.structure) if leaf is not None]
        self.start = [tf.cast(w, tf.float32) if w.dtype.size < 4 else w for w in weights]
        # A function is traced once, however many loops call it.
        self.step = tf.function(self._step if together is None else self._steps)

    def run(self) -> tuple[list[Any], Evaluation]:
        """The contribution and the evaluations of the first pass."""
        carry, (losses, outputs, penalty) = self._pass(self._first(), tf.constant(0), self._arrays())
        if self.local.passes > 1:
            each = self.whole + (self.left > 0)
            _, carry = tf.while_loop(
                lambda p, _: p < self.local.passes,
                lambda p, carry: (p + 1, self._pass(carry, p * each)[0]),
                (tf.constant(1), carry),
                parallel_iterations=1,
            )
        return carry["moved"], Evaluation(losses, penalty, outputs, carry["model"])

    def _first(self) -> dict[str, Any]:
        with no_side_effects("rule"):
            state = tf.nest.map_structure(tf.convert_to_tensor, self.local.rule.init(list(self.start)))
        moved = [tf.zeros(w.shape, w.dtype) for w in self.start]
        carry = {"made": tf.constant(0), "rule": state, "moved": moved, "model": self.function.state()}
        if self.together is None:
            return carry
        return tf.nest.map_structure(lambda t: tf.repeat(t[None], self.together, axis=0), carry)

    def _minibatch(self, i: Any) -> list[Any]:
        """The leaves of the whole minibatch i."""
        cut = self.whole * self.size
        taken = []
        for leaf in self.leaves:
            leaf = leaf[:cut] if self.together is None else leaf[:, :cut]
            shape = leaf.shape.as_list()
            shape[self.axis : self.axis + 1] = [self.whole, self.size]
            taken.append(tf.gather(tf.reshape(leaf, shape), i, axis=self.axis))
        return taken

    def _arrays(self) -> list[Any]:
        """Where the rows of the first pass are kept, a minibatch each."""
        if self.whole == 1:
            return []
        specs = tf.nest.map_structure(
            lambda t: tf.TensorSpec(t.shape, t.dtype), (self._first(), self._minibatch(0), tf.constant(0))
        )
        _, kept = self.step.get_concrete_function(*specs).structured_outputs
        return [tf.TensorArray(t.dtype, self.whole, element_shape=t.shape) for t in tf.nest.flatten(kept)]

    def _pass(self, carry: Any, position: Any, arrays: Any = ()) -> tuple[Any, Any]:
        """Once through the examples, the steps counted from `position`; what the arrays keep, where there are any."""
        if self.whole == 1:
            carry, kept = self.step(carry, self._minibatch(0), position)
        else:
            carry, kept = self._loop(carry, position, arrays)
        if self.left:
            cut = self.whole * self.size
            rest = [leaf[cut:] if self.together is None else leaf[:, cut:] for leaf in self.leaves]
            carry, last = self.step(carry, rest, position + self.whole)
            if kept is not None:
                rows = tf.nest.map_structure(lambda a, b: tf.concat([a, b], self.axis), kept[:2], last[:2])
                kept = (*rows, kept[2])
        return carry, kept

    def _loop(self, carry: Any, position: Any, arrays: Any) -> tuple[Any, Any]:
        structure = None

        def body(i: Any, carry: Any, arrays: Any) -> tuple[Any, Any, Any]:
            nonlocal structure
            carry, structure = self.step(carry, self._minibatch(i), position + i)
            flat = tf.nest.flatten(structure)
            arrays = [array.write(i, t) for array, t in zip(arrays, flat, strict=True)] if arrays else arrays
            return i + 1, carry, arrays

        _, carry, arrays = tf.while_loop(
            lambda i, *_: i < self.whole, body, (tf.constant(0), carry, list(arrays)), parallel_iterations=1
        )
        if not arrays:
            return carry, None
        losses, outputs, penalty = tf.nest.pack_sequence_as(structure, [array.stack() for array in arrays])
        return carry, (*tf.nest.map_structure(self._in_a_row, (losses, outputs)), penalty[0])

    def _in_a_row(self, stacked: Any) -> Any:
        """``[whole, size, ...]`` to ``[whole size, ...]``, behind the axis k where there is one."""
        rows = self.whole * self.size
        if self.together is None:
            return tf.reshape(stacked, [rows, *stacked.shape[2:]])
        swapped = tf.transpose(stacked, [1, 0, *range(2, stacked.shape.rank)])
        return tf.reshape(swapped, [self.together, rows, *stacked.shape[3:]])

    def _steps(self, carry: Any, leaves: Any, position: Any) -> tuple[Any, Any]:
        """One step of each of the k contributions."""
        new, kept = tf.vectorized_map(lambda one: self._step(*one[:2], position, one[2]), (carry, leaves, self.seeds))
        tf.nest.map_structure(lambda after, before: after.set_shape(before.shape), new, carry)
        return new, kept

    def _step(self, carry: Any, leaves: Any, position: Any, seeds: Any = None) -> tuple[Any, Any]:
        """One minibatch: the new carry, and ``(losses, outputs, penalty)``."""
        left = iter(leaves)
        filled = [None if leaf is None else next(left) for leaf in tf.nest.flatten(self.structure)]
        x, y, sample_weight, mask = tf.nest.pack_sequence_as(self.structure, filled)
        batch = Examples(x, y, sample_weight, mask, with_step(self.seeds if seeds is None else seeds, position))
        divisor = float(mask.shape[0]) if self.fixed else self.divisor
        weights = [
            tf.cast(start - self.local._rate * moved, w.dtype)
            for start, moved, w in zip(self.start, carry["moved"], self.weights, strict=True)
        ]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            evaluation = self.function.evaluate(weights, batch, carry["model"])
            objective = tf.reduce_sum(evaluation.losses) / divisor + evaluation.penalty
        gradient = tape.gradient(objective, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradient = [tf.cast(tf.convert_to_tensor(g), w.dtype) for g, w in zip(gradient, self.start, strict=True)]
        state, direction = self._update(carry["rule"], gradient, carry["made"])
        new = {
            "made": carry["made"] + 1,
            "rule": state,
            "moved": [moved + d for moved, d in zip(carry["moved"], direction, strict=True)],
            "model": evaluation.state,
        }
        there = tf.reduce_any(mask)
        new = tf.nest.map_structure(lambda after, before: tf.where(there, after, before), new, carry)
        return new, (evaluation.losses, evaluation.outputs, evaluation.penalty)

    def _update(self, state: Any, gradient: list[Any], made: Any) -> tuple[Any, list[Any]]:
        """The rule's new state and its direction in units of the first learning rate, both checked."""
        with no_side_effects("rule"):
            new, direction = self.local.rule.update(state, gradient, made)
        described = [(tuple(t.shape), t.dtype.name) for t in tf.nest.flatten(state)]
        try:
            tf.nest.assert_same_structure(state, new)
        except (TypeError, ValueError):
            _validate.fail("rule", "one whose update returns a state structured like that of init", self.local.rule)
        new = tf.nest.map_structure(tf.convert_to_tensor, new)
        if [(tuple(t.shape), t.dtype.name) for t in tf.nest.flatten(new)] != described:
            expected = f"one whose update keeps the shapes and dtypes of the state ({described})"
            _validate.fail("rule", expected, self.local.rule)
        direction = [tf.convert_to_tensor(d) for d in direction]
        if [d.shape for d in direction] != [g.shape for g in gradient]:
            _validate.fail("rule", "one whose update returns a direction shaped like the gradient", self.local.rule)
        schedule = self.local._schedule
        if schedule is not None:
            share = keras.ops.cast(schedule(made), "float32") / self.local._rate
            direction = [tf.cast(share, d.dtype) * d for d in direction]
        return new, [tf.cast(d, g.dtype) for d, g in zip(direction, gradient, strict=True)]
