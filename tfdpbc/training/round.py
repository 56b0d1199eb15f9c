"""One round of Algorithm 1 as TensorFlow operations: draw, compute, clip, aggregate, noise, apply.

This is the only place where an update is released; Keras `fit`, the command line and clients all run it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfdpbc import noise
from tfdpbc.clipping.base import Released
from tfdpbc.gradients.accumulate import accumulate
from tfdpbc.gradients.engine import Engine
from tfdpbc.gradients.function import Examples, ModelFunction
from tfdpbc.plan import PrivacyPlan
from tfdpbc.statistics import StatisticsBlock
from tfdpbc.training import whole_round
from tfdpbc.training.augment import Augmenter

_MEASUREMENT = (0x5DEECE66D1F3A9B7, 0x2545F4914F6CDD1D)
"""Makes the key of a measurement's noise from that of the update's."""
_TEST = (0x1D8E4E27C47D124F, 0x3C79AC492BA7B653)
"""As much for the noise of a test."""


class Release(NamedTuple):
    """What a round gives back.

    Attributes:
      update: the noisy sum divided by the planned number of contributions, one tensor for each trainable variable.
      losses, outputs: of every row given, padding included; for metrics, not covered by the guarantee.
      state: new values of the data-written state: noisy and covered, as `update` is, if the round has a statistics block;
        else their mean over contributions, not covered.
      clip_state: the clipping's state after the round: a function of noisy releases, so covered.
    """

    update: list[Any]
    losses: Any
    outputs: Any
    state: list[Any]
    clip_state: dict[str, Any]


class MicroBatches(NamedTuple):
    """The contributions of a round, a physical micro-batch at a time.

    Attributes:
      passes, live: how many there are, and how many of them to run (None: all).
      batch: ``i -> Examples`` of the i-th.
      rows: ``(positions [n], there [n]) -> Examples`` of any contributions, by their place in the round; those that are not
        `there` are masked.
    """

    passes: int
    live: Any
    batch: Callable[[Any], Examples]
    rows: Callable[[Any, Any], Examples]


class Round:
    """The round function of one model under one plan.

    Args:
      plan: the public configuration.
      function: the model as a pure function.
      engine: the gradient engine, built for the plan's blocks.
      block_of_variable: the clipping's block of each trainable variable.
      statistics: batch normalisation's block, where the function's state variables are released as one; else they are
        written raw.
      augmenter: changes the examples of each contribution, or None.
      interrupt: the interrupt routine of Algorithm 1, or None: called in the graph with ``(i, passes)`` before the i-th
        micro-batch reads the weights, which it may replace by newer ones. Nothing in them may depend on this round.

    An interrupt in the middle of a round leaves the sensitivity as it is where the place of a contribution does not depend
    on other examples: with fixed sizes, neighbouring data sets then differ in the same contributions, each bounded by C
    whatever weights it was computed at. Under add/remove one example more moves others to other micro-batches, hence
    perhaps to other weights, and they would all count; a trimmed sum computes some contributions again, which ones
    depends on all. There, `interrupt` is called once, before the round: ``(0, 1)``.
    """

    def __init__(
        self,
        plan: PrivacyPlan,
        function: ModelFunction,
        engine: Engine,
        block_of_variable: list[int],
        statistics: StatisticsBlock | None = None,
        augmenter: Augmenter | None = None,
        interrupt: Callable[[Any, int], None] | None = None,
    ):
        self.plan, self.function, self.engine, self.block_of_variable = plan, function, engine, block_of_variable
        self.statistics, self.augmenter, self.interrupt = statistics, augmenter, interrupt
        self.interruptible = not (plan.sampling.masked or plan.aggregation.whole_round)

    def release(
        self,
        pool: Any,
        indices: Any,
        mask: Any,
        round_index: Any,
        noise_key: Any,
        layer_key: Any,
        clip_state: dict[str, Any],
    ) -> Release:
        """Computes and noises one update. Everything data-dependent in it is behind the clipping.

        Where several replicas run this (`tf.distribute`), each with its share of the contributions, their clipped sums are
        added up before the noise, and all of them draw the same noise: one update, noised once.

        Args:
          pool: ``(x, y, sample_weight)``, nests with leading axis n.
          indices, mask: ``[m, s]`` (a replica: its rows of it), positions in the pool and which of them are examples.
          round_index: scalar integer tensor, counted from 0 over the whole plan.
          noise_key: int64 ``[2]``, fresh for every round.
          layer_key: int64 ``[2]``, seeds the model's random layers.
          clip_state: the clipping's state and how many tests failed so far; empty where there is neither.
        """
        if self.interrupt is not None and not self.interruptible:
            self.interrupt(tf.constant(0), 1)
        clipping = self.plan.clipping
        adapted = {"state": clip_state} if clipping.adaptive else {}
        bounds = clipping.bounds(round_index, self.plan.rounds_per_epoch, **adapted)
        replica = tf.distribute.get_replica_context()
        several = replica is not None and replica.num_replicas_in_sync > 1
        if several:
            index = tf.cast(replica.replica_id_in_sync_group, tf.int64)
            layer_key = tf.random.experimental.stateless_fold_in(layer_key, index)
        place = round_index % self.plan.rounds_per_epoch
        passed = None
        if self.plan.aggregation.whole_round:
            test_key = tf.bitwise.bitwise_xor(noise_key, tf.constant(_TEST, tf.int64))
            aggregate = whole_round.aggregate(self, pool, indices, mask, bounds, layer_key, place, test_key)
            total, losses, outputs, state, passed = aggregate
            measured = []
        else:
            aggregate = self._aggregate(pool, indices, mask, bounds, layer_key, place, adapted)
            total, measured, losses, outputs, state = aggregate
        if several:
            total, measured, state = replica.all_reduce(tf.distribute.ReduceOp.SUM, (total, measured, state))
        stddev = self.plan.update_noise_multiplier * self.plan.sensitivities(bounds)
        if passed is not None:
            # Whether the test was passed is public, so the noise may follow it.
            on_pass, on_fail = self.plan.aggregation.noise_stds(self.plan.noise_multiplier, bounds[0])
            stddev = tf.where(passed, on_pass, on_fail)[None]
            failed = tf.cast(~passed, tf.int64)
            clip_state = {whole_round.FAILURES: clip_state[whole_round.FAILURES] + failed}
        if self.plan.noise_multiplier > 0:
            each = tf.unstack(stddev)
            stddevs = [each[block] for block in self.block_of_variable]
            if self.statistics is not None:
                total, stddevs = [*total, *state], [*stddevs, self.plan.statistics_noise_std]
            update = noise.add_gaussian(total, stddevs, noise_key, self.plan.divisor)
            if self.statistics is not None:
                *update, state[0] = update
        else:
            divisor = self.plan.divisor
            update = total if divisor == 1 else [t / divisor for t in total]
            if self.statistics is not None:
                state = [state[0] / divisor]
        if self.statistics is not None:
            state = self.statistics.moved(state[0])
        if clipping.adaptive:
            clip_state = self._adapt(clip_state, round_index, bounds, stddev, update, measured, noise_key)
        return Release(update, losses, outputs, state, clip_state)

    def _adapt(
        self, state: dict[str, Any], round_index: Any, bounds: Any, stddev: Any, update: Any, measured: Any, key: Any
    ) -> dict[str, Any]:
        """The clipping's state after a round that released `update`; `measured` is noised here."""
        std, divisor = self.plan.measurement_std(), self.plan.divisor
        squares = self._by_block([tf.reduce_sum(tf.square(t)) for t in update]) * float(divisor) ** 2
        if measured:
            # Another key: the measurement's noise shares no number with the update's.
            key = tf.bitwise.bitwise_xor(key, tf.constant(_MEASUREMENT, tf.int64))
            seen = noise.add_gaussian(measured, [std], key, divisor)[0] + 0.5
        else:
            seen = tf.zeros([0])
        rounds, dimensions = self.plan.rounds_per_epoch, tf.constant(self.block_dimensions())
        released = Released(round_index, rounds, bounds, squares, stddev, dimensions, seen, std / divisor, divisor)
        return self.plan.clipping.update(state, released)

    def block_dimensions(self) -> list[float]:
        """How many numbers each block has."""
        sizes = [0.0] * (1 + max(self.block_of_variable))
        for variable, block in zip(self.function.trainable, self.block_of_variable, strict=True):
            sizes[block] += math.prod(variable.shape)
        return sizes

    def _by_block(self, values: list[Any]) -> Any:
        """Sums over the variables of each block, ``[L]``."""
        blocks = range(1 + max(self.block_of_variable))
        paired = list(zip(values, self.block_of_variable, strict=True))
        return tf.stack([tf.add_n([v for v, block in paired if block == j]) for j in blocks])

    def mean_norms(self, pool: Any, indices: Any, layer_key: Any) -> Any:
        """Mean norms ``[L]`` of the blocks of some contributions; those with a non-finite norm are left out.

        Nothing here is noised: it is for public data.

        Args:
          indices: ``[contributions, s]``, positions in the pool.
        """
        mask = tf.ones(indices.shape, tf.bool)

        def one(contributions: Any, valid: Any) -> tuple[Any, Any]:
            norms = contributions.block_norms()
            usable = valid & tf.reduce_all(tf.math.is_finite(norms), axis=1)
            kept = tf.where(usable[:, None], norms, tf.zeros_like(norms))
            return (tf.reduce_sum(kept, axis=0), tf.reduce_sum(tf.cast(usable, tf.float32))), ()

        (total, count), _ = self._passes(pool, indices, mask, layer_key, 0, one)
        return total / count  # NaN where nothing is known, which `with_estimates` passes over

    def _aggregate(
        self, pool: Any, indices: Any, mask: Any, bounds: Any, layer_key: Any, place: Any, adapted: dict[str, Any]
    ) -> tuple[Any, ...]:
        """The clipped sum over all contributions, and the sum of what the clipping measures (nothing: an empty list)."""
        clipping = self.plan.clipping

        def one(contributions: Any, valid: Any) -> tuple[Any, Any]:
            norms, evaluation = contributions.block_norms(), contributions.evaluation
            weights = clipping(norms, bounds, **adapted)
            if self.statistics is not None:
                vectors = self.statistics.vectors(evaluation.state)
                weights = self.statistics.weights(weights, norms, vectors)
            weights = self.plan.aggregation.weights(weights, valid)
            measured = []
            if clipping.measured():
                values = clipping.measure(norms, bounds, **adapted)
                # Clipped again: the plan's sensitivity is that of the unit cube, whatever a clipping gives.
                centred = tf.clip_by_value(tf.where(values >= 0, values, 0.0), 0.0, 1.0) - 0.5
                measured = [tf.reduce_sum(tf.where(valid[:, None], centred, 0.0), axis=0)]
            if self.statistics is not None:
                state, weights = [self.statistics.weighted_sum(vectors, weights[:, -1])], weights[:, :-1]
            else:
                share = tf.cast(valid, tf.float32) / self.plan.sampling.shape[0]
                state = [tf.tensordot(share, tf.cast(t, tf.float32), 1) for t in evaluation.state]
            if self.augmenter:
                evaluation = self.augmenter.once(evaluation)
            return (contributions.weighted_sum(weights), measured, state), (evaluation.losses, evaluation.outputs)

        interrupt = self.interrupt if self.interruptible else None
        found = self._passes(pool, indices, mask, layer_key, place, one, interrupt)
        (total, measured, state), (losses, outputs) = found
        return total, measured, losses, outputs, state

    def _passes(
        self,
        pool: Any,
        indices: Any,
        mask: Any,
        layer_key: Any,
        place: Any,
        of: Callable[..., Any],
        interrupt: Callable[[Any, int], None] | None = None,
    ) -> tuple[Any, Any]:
        """Sums and rows of ``of(contributions, valid)``, a physical micro-batch of k contributions at a time."""
        m, at = indices.shape[0], self.micro_batches(pool, indices, mask, layer_key)

        def one(i: Any) -> tuple[Any, Any]:
            if interrupt is not None:
                interrupt(i, at.passes)
            batch = at.batch(i)
            return of(self.engine.contributions(batch, place), tf.reduce_any(batch.mask, axis=1))

        sums, rows = accumulate(one, at.passes, at.live)
        return sums, tf.nest.map_structure(lambda t: t[:m], rows)

    def micro_batches(self, pool: Any, indices: Any, mask: Any, layer_key: Any) -> MicroBatches:
        """The contributions of a round, cut into passes."""
        (m, s), k = indices.shape, self.engine.contributions_per_pass
        passes = -(-m // k)
        seeds = tf.random.stateless_uniform(
            [passes * k, self.function.num_generators, 2], layer_key, minval=None, maxval=None, dtype=tf.int64
        )
        changes = self.augmenter and self.augmenter.seeds(layer_key, passes * k, s)
        # The last micro-batch is padded to k contributions that do not exist.
        padding = [[0, passes * k - m], [0, 0]]
        indices, mask, seeds = (
            tf.reshape(t, [passes, k, *t.shape[1:]]) for t in (tf.pad(indices, padding), tf.pad(mask, padding), seeds)
        )

        def batch(indices: Any, mask: Any, seeds: Any, changes: Any) -> Examples:
            x, y, sample_weight = tf.nest.map_structure(lambda t: None if t is None else tf.gather(t, indices), pool)
            made = Examples(x, y, sample_weight, mask, seeds)
            return made if changes is None else self.augmenter.rows(made, changes)

        def one(i: Any) -> Examples:
            return batch(indices[i], mask[i], seeds[i], changes[i * k : (i + 1) * k] if self.augmenter else None)

        def rows(positions: Any, there: Any) -> Examples:
            flat = [tf.gather(tf.reshape(t, [passes * k, *t.shape[2:]]), positions) for t in (indices, mask, seeds)]
            flat[1] &= there[:, None]
            return batch(*flat, tf.gather(changes, positions) if self.augmenter else None)

        return MicroBatches(passes, self._live(mask, passes), one, rows)

    def _live(self, mask: Any, passes: int) -> Any:
        """How many micro-batches hold an example: padding comes last, so a Poisson round may stop early.

        Its time follows its size, its result does not.
        """
        # Whoever times a federated client's rounds must not learn how many examples they had.
        if not self.plan.sampling.masked or self.interrupt is not None:
            return None
        occupied = tf.reduce_any(mask, axis=[1, 2])
        return tf.reduce_max(tf.where(occupied, tf.range(1, passes + 1), 0))
