"""Aggregations of a whole logical round: whether a contribution counts depends on the norms of all the others.

The norms are known after the last micro-batch only. A trimmed sum must not hold what it leaves out for a moment either
(taking it off again would leave its rounding errors behind), so contributions that may still be trimmed are put off:

- Each pass adds up what is not among the F largest norms seen so far, in one forward and one backward pass as ever.
- What once was among them is known by its place. After the last pass the test is made, and those that do count are computed
  again, F or so at a time: for norms in random order about F log(passes) contributions besides the F, out of m.

Where a contribution cannot be computed again elsewhere (the `onepass` engine draws dropout for a whole pass) there are two
loops over the same passes, norms first, at twice the cost. A round of one pass is computed once, of course.

What is computed again is clipped to the norm that it was judged by, so rounding cannot make it count for more.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfdpbc.errors import IncompatibleModel
from tfdpbc.gradients.accumulate import accumulate, fold

FAILURES = "test_failures"
"""The name of the state that counts the rounds whose test failed: public, for the outcomes are."""
LEAST_ROWS = 16
"""Contributions that are computed again at once, at least: fewer would leave the processor idle."""


def aggregate(
    round_: Any, pool: Any, indices: Any, mask: Any, bounds: Any, layer_key: Any, place: Any, test_key: Any
) -> tuple[Any, ...]:
    """``(total, losses, outputs, state, passed)`` of a round; arguments as for `Round.release`.

    `total` is this replica's share of the sum, `passed` the outcome of the test (None where there is none), the same on
    every replica.
    """
    if hasattr(round_.plan.aggregation, "combine"):
        return _combined(round_, pool, indices, mask, bounds, layer_key, place)
    return _Trimmed(round_, bounds, place, indices.shape[0], tf.reduce_any(mask, axis=1), test_key).run(
        round_.micro_batches(pool, indices, mask, layer_key)
    )


class _Trimmed:
    def __init__(self, round_: Any, bounds: Any, place: Any, m: int, valid: Any, test_key: Any):
        self.round, self.engine, self.plan = round_, round_.engine, round_.plan
        self.bound, self.place, self.m, self.valid, self.test_key = bounds, place, m, valid, test_key
        self.trim = min(self.plan.aggregation.trim, m)

    def run(self, at: Any) -> tuple[Any, ...]:
        if at.passes == 1:
            return self._at_once(at)
        again = self.engine.seeds_by_row or not self.engine.function.num_generators
        return self._put_off(at) if again else self._twice(at)

    def _seen(self, batch: Any) -> tuple[Any, ...]:
        """Of some contributions: themselves, which exist, clipping weights, clipped norms, state, (losses, outputs)."""
        contributions = self.engine.contributions(batch, self.place)
        valid, norms = tf.reduce_any(batch.mask, axis=1), contributions.block_norms()
        weights = self.plan.clipping(norms, self.bound)
        sizes = tf.where(weights[:, 0] > 0, tf.minimum(norms[:, 0], self.bound[0]), 0.0)
        evaluation = contributions.evaluation
        return contributions, valid, weights, tf.where(valid, sizes, -1.0), evaluation

    def _shown(self, valid: Any, evaluation: Any) -> tuple[Any, Any]:
        """What is not released: the state's mean, and the rows of losses and outputs."""
        share = tf.cast(valid, tf.float32) / self.plan.sampling.shape[0]
        state = [tf.tensordot(share, tf.cast(t, tf.float32), 1) for t in evaluation.state]
        if self.round.augmenter:
            evaluation = self.round.augmenter.once(evaluation)
        return state, (evaluation.losses, evaluation.outputs)

    def _decide(self, sizes: Any) -> tuple[Any, Any]:
        """Which of this replica's contributions are left out, and the outcome of the test; `sizes` are its own ``[m]``."""
        replica = tf.distribute.get_replica_context()
        if replica is None or replica.num_replicas_in_sync == 1:
            return self.plan.aggregation.decide(sizes, self.test_key)
        # Contributions were dealt out in turn; each replica adds its own to zeros.
        count, index = replica.num_replicas_in_sync, replica.replica_id_in_sync_group
        column = tf.range(count) == index
        spread = tf.where(column[None, :], sizes[:, None], 0.0)
        everyone = replica.all_reduce(tf.distribute.ReduceOp.SUM, spread)
        left_out, passed = self.plan.aggregation.decide(tf.reshape(everyone, [self.m * count]), self.test_key)
        return tf.reduce_any(tf.reshape(left_out, [self.m, count]) & column[None, :], axis=1), passed

    def _at_once(self, at: Any) -> tuple[Any, ...]:
        contributions, valid, weights, sizes, evaluation = self._seen(at.batch(0))
        left_out, passed = self._decide(sizes[: self.m])
        counts = valid & ~tf.pad(left_out, [[0, valid.shape[0] - self.m]])
        total = contributions.weighted_sum(tf.where(counts[:, None], weights, 0.0))
        state, rows = self._shown(valid, evaluation)
        return total, *tf.nest.map_structure(lambda t: t[: self.m], rows), state, passed

    def _put_off(self, at: Any) -> tuple[Any, ...]:
        def one(i: Any, largest: Any) -> tuple[Any, Any, Any]:
            contributions, valid, weights, sizes, evaluation = self._seen(at.batch(i))
            larger, largest = self._larger(sizes, largest)
            total = contributions.weighted_sum(tf.where((valid & ~larger)[:, None], weights, 0.0))
            state, rows = self._shown(valid, evaluation)
            return (total, state), (*rows, sizes, larger), largest

        sums, rows, _ = fold(one, tf.fill([self.trim], -1.0), at.passes, at.live)
        losses, outputs, sizes, larger = tf.nest.map_structure(lambda t: t[: self.m], rows)
        left_out, passed = self._decide(tf.where(self.valid, sizes, -1.0))
        total = [a + b for a, b in zip(sums[0], self._added(at, sizes, larger & ~left_out), strict=True)]
        return total, losses, outputs, sums[1], passed

    def _larger(self, sizes: Any, largest: Any) -> tuple[Any, Any]:
        """Which of a pass's contributions enter the F largest norms so far, and these norms then."""
        if self.trim == 0:
            return tf.zeros(sizes.shape, tf.bool), largest
        # Of equal norms the first one stays, as in `GlobalTrimmedSum.largest`.
        largest, positions = tf.math.top_k(tf.concat([largest, sizes], 0), self.trim)
        entered = tf.scatter_nd(positions[:, None], tf.ones_like(positions), [self.trim + sizes.shape[0]])
        return entered[self.trim :] > 0, largest

    def _added(self, at: Any, sizes: Any, missing: Any) -> list[Any]:
        """The sum over the contributions that are still `missing`, bool ``[m]``."""
        k = self.engine.contributions_per_pass
        k = 1 if k == 1 else min(k, max(LEAST_ROWS, self.trim))
        passes, count = -(-self.m // k), tf.reduce_sum(tf.cast(missing, tf.int32))
        # The missing ones first, in their order.
        order = tf.argsort(tf.cast(~missing, tf.int32), stable=True)
        order = tf.pad(order, [[0, passes * k - self.m]])

        def one(i: Any) -> tuple[Any, Any]:
            places = tf.range(k) + i * k
            positions, there = tf.gather(order, places), places < count
            contributions, valid, weights, _, _ = self._seen(at.rows(positions, there))
            weights = _bounded(weights, contributions.block_norms(), tf.gather(sizes, positions))
            return contributions.weighted_sum(tf.where((valid & there)[:, None], weights, 0.0)), ()

        return accumulate(one, passes, -(-count // k))[0]

    def _twice(self, at: Any) -> tuple[Any, ...]:
        def first(i: Any) -> tuple[Any, Any]:
            _, valid, _, sizes, evaluation = self._seen(at.batch(i))
            state, rows = self._shown(valid, evaluation)
            return state, (*rows, sizes)

        state, rows = accumulate(first, at.passes, at.live)
        losses, outputs, sizes = tf.nest.map_structure(lambda t: t[: self.m], rows)
        left_out, passed = self._decide(tf.where(self.valid, sizes, -1.0))
        counts = tf.reshape(tf.pad(self.valid & ~left_out, [[0, rows[2].shape[0] - self.m]]), [at.passes, -1])
        judged = tf.reshape(rows[2], [at.passes, -1])

        def second(i: Any) -> tuple[Any, Any]:
            contributions, _, weights, _, _ = self._seen(at.batch(i))
            weights = _bounded(weights, contributions.block_norms(), judged[i])
            return contributions.weighted_sum(tf.where(counts[i][:, None], weights, 0.0)), ()

        return accumulate(second, at.passes, at.live)[0], losses, outputs, state, passed


def _bounded(weights: Any, norms: Any, sizes: Any) -> Any:
    """Weights ``[k, 1]`` that leave a contribution at most the norm `sizes` ``[k]`` that it was judged by."""
    allowed = tf.math.divide_no_nan(sizes[:, None], norms)
    return tf.where(weights > 0, tf.minimum(weights, allowed), 0.0)


def _combined(
    round_: Any, pool: Any, indices: Any, mask: Any, bounds: Any, layer_key: Any, place: Any
) -> tuple[Any, ...]:
    """As `aggregate`, for what needs every contribution itself: m times the memory of the weights."""
    replica = tf.distribute.get_replica_context()
    aggregation = round_.plan.aggregation
    if replica is not None and replica.num_replicas_in_sync > 1:
        raise IncompatibleModel(f"{type(aggregation).__name__} needs all contributions of a round on one device")

    def one(contributions: Any, valid: Any) -> tuple[Any, Any]:
        weights = aggregation.weights(round_.plan.clipping(contributions.block_norms(), bounds), valid)
        vectors = [
            tf.math.multiply_no_nan(t, tf.reshape(weights[:, block], [-1] + [1] * (t.shape.rank - 1)))
            for t, block in zip(contributions.materialized(), round_.block_of_variable, strict=True)
        ]
        evaluation = contributions.evaluation
        share = tf.cast(valid, tf.float32) / round_.plan.sampling.shape[0]
        state = [tf.tensordot(share, tf.cast(t, tf.float32), 1) for t in evaluation.state]
        if round_.augmenter:
            evaluation = round_.augmenter.once(evaluation)
        return state, (evaluation.losses, evaluation.outputs, vectors)

    state, (losses, outputs, vectors) = round_._passes(pool, indices, mask, layer_key, place, one)
    middle = aggregation.combine(vectors, tf.reduce_any(mask, axis=1))
    # The round divides by the planned number, as it does with a sum.
    return [t * float(round_.plan.divisor) for t in middle], losses, outputs, state, None
