"""The training loop below Keras: draws the rounds of an epoch and runs them as one TensorFlow function."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdpbc import native
from tfdpbc.errors import TfdpbcError
from tfdpbc.random import Streams
from tfdpbc.training.averaging import Averages
from tfdpbc.training.feed import Feed, ahead
from tfdpbc.training.round import Release, Round
from tfdpbc.training.whole_round import FAILURES


class Draw(NamedTuple):
    """Some consecutive rounds: `rows` as of `Feed.rows`, `indices` and `mask` ``[rounds, m, s]``."""

    rows: list[np.ndarray]
    indices: np.ndarray
    mask: np.ndarray


def draws(feed: Feed, sampling: Any, streams: Streams, epoch: int, start: int, chunk: int) -> Iterator[Draw]:
    """The rounds of `epoch` from its round `start`, at most `chunk` at a time, prepared one chunk ahead."""
    generator = streams.generator("sampling", epoch)
    batches = sampling.batches(generator, num_examples=len(feed), start=start, rounds_per_chunk=chunk)
    return ahead(Draw(*feed.rows(batch.indices), batch.mask) for batch in batches)


class Rounds:
    """Runs consecutive rounds of Algorithm 1 and applies their updates to the model.

    Args:
      round_function: the round.
      feed: where the rows come from.
      optimizer: a built Keras optimizer; it sees noisy updates only.
      state_variables: variables that take `Release.state` (empty unless they are released, as a noisy block or unprotected).
      observe: called in the graph with ``(y, outputs, sample_weight, mask)`` of each round (mask None where all rows are
        examples), rows on the first axis, to update metrics.
      results: called after it, outside of replicas; returns the metrics' results as a dict of scalars.
      rounds_per_call: how many rounds `run` gets at most (steps_per_execution).
      jit_compile: compile the release with XLA.
      eagerly: run without a graph, to step through with a debugger.
      strategy: a `tf.distribute` strategy, in whose scope model, optimizer and metrics were made, or None.
      averages: the averages of the weights that each round moves on, or None.
      clip_state: the variables of the clipping's state, by name.

    Attributes:
      mean_loss: mean over the rows seen since its last reset (private data: not covered by the guarantee).
      traces: how often the step was traced: once, whatever the number of rounds and epochs.
    """

    def __init__(
        self,
        round_function: Round,
        feed: Feed,
        optimizer: Any,
        state_variables: list[Any],
        observe: Callable[..., Any],
        results: Callable[[], dict[str, Any]],
        rounds_per_call: int = 1,
        jit_compile: bool = False,
        eagerly: bool = False,
        strategy: Any = None,
        averages: Averages | None = None,
        clip_state: dict[str, Any] | None = None,
    ):
        self.averages, self.clip_state = averages, clip_state or {}
        self.round, self.feed, self.optimizer = round_function, feed, optimizer
        self.state_variables, self.observe, self.results, self.eagerly = state_variables, observe, results, eagerly
        self.strategy, self.replicas = strategy, 1 if strategy is None else strategy.num_replicas_in_sync
        self.rounds_per_call = rounds_per_call
        release = round_function.release
        self._release = (
            tf.function(_without_native(release), jit_compile=True, autograph=False) if jit_compile else release
        )
        self._compiled: dict[Any, Any] = {}
        self._mean_norms: tuple[Any, Any] = (None, None)  # the feed's variables and the function compiled for them
        self.mean_loss = keras.metrics.Mean("loss")
        self.traces = 0

    def run(self, draw: Draw, first: int, streams: Streams) -> dict[str, Any]:
        """Releases and applies the drawn rounds, the first of which is round number `first` of the plan.

        Returns:
          Loss and metrics of the rows seen since their last reset.
        """
        count, m, s = draw.indices.shape
        keys = [np.stack([streams.key(name, first + i) for i in range(count)]) for name in ("noise", "layers")]
        step = self._apply_rounds if self.eagerly else self._step(m, s, draw.indices.dtype)
        rows = [tf.convert_to_tensor(leaf) for leaf in draw.rows]
        drawn = map(tf.constant, (draw.indices, draw.mask))
        try:
            logs = step(rows, *drawn, tf.constant(first, tf.int64), *map(tf.constant, keys))
        except Exception as error:
            # While tracing, AutoGraph puts errors of its own in place of ours, which stay behind them as their context.
            if (ours := _own(error)) is not None:
                raise ours from None
            raise
        return {name: _plain(np.asarray(value)) for name, value in logs.items()}

    def _step(self, m: int, s: int, dtype: Any) -> Any:
        """The compiled step. One trace serves any number of rounds and of rows: their dimension stays open."""
        key = (m, s, str(dtype))
        if key not in self._compiled:
            n = 1 if self.rounds_per_call == 1 else None
            rows = [] if self.feed.resident is not None else self.feed.specs
            specs = [[n, m, s], [n, m, s], [], [n, 2], [n, 2]]
            dtypes = [dtype, tf.bool, tf.int64, tf.int64, tf.int64]
            signature = [rows, *(tf.TensorSpec(*spec) for spec in zip(specs, dtypes, strict=True))]
            self._compiled[key] = tf.function(self._apply_rounds, input_signature=signature, autograph=False)
        return self._compiled[key]

    def _apply_rounds(
        self, rows: list[Any], indices: Any, mask: Any, first: Any, noise_keys: Any, layer_keys: Any
    ) -> dict[str, Any]:
        self.traces += 1
        pool = self.feed.pack(self.feed.resident or rows)

        def one(i: Any) -> dict[str, Any]:
            number = first + tf.cast(i, tf.int64)
            given = indices[i], mask[i], number, noise_keys[i], layer_keys[i]
            if self.replicas == 1:
                clip_state = self._one(pool, *given)
            else:
                found = self.strategy.run(lambda: self._one(pool, *self._share(*given[:2]), *given[2:]))
                # Made of what all replicas share, so that any of them may bring it to all.
                clip_state = {n: self.strategy.experimental_local_results(t)[0] for n, t in found.items()}
            for name, value in clip_state.items():
                self.clip_state[name].assign(value)
            if self.averages is not None:
                self.averages.update(self.strategy)
            logs = {**self.results(), "loss": self.mean_loss.result()}
            if FAILURES in self.clip_state:  # their share of the plan's rounds so far
                failures = tf.cast(self.clip_state[FAILURES].value, tf.float32)
                logs[FAILURES] = failures / tf.cast(number + 1, tf.float32)
            return logs

        def more(i: Any, _: Any) -> tuple[Any, Any]:
            return i + 1, one(i)

        logs = one(0)
        if indices.shape[0] != 1:
            # The first round stands before the loop, so that the loop knows which results there are.
            rounds = tf.shape(indices)[0]
            _, logs = tf.while_loop(lambda i, _: i < rounds, more, (tf.constant(1), logs), parallel_iterations=1)
        return logs

    def _one(self, pool: Any, indices: Any, mask: Any, number: Any, noise_key: Any, layer_key: Any) -> dict[str, Any]:
        clip_state = {name: tf.convert_to_tensor(v.value) for name, v in self.clip_state.items()}
        release = self._release(pool, indices, mask, number, noise_key, layer_key, clip_state)
        self._apply(release)
        self._observe(pool, release, indices, mask)
        return release.clip_state

    def mean_norms(self, indices: np.ndarray, feed: Feed, layer_key: np.ndarray) -> np.ndarray:
        """Mean block norms ``[L]`` of contributions of public data; see `Round.mean_norms`."""
        rows, indices = feed.rows(indices)

        def measure(rows: list[Any], indices: Any, layer_key: Any) -> Any:
            return self.round.mean_norms(feed.pack(feed.resident or rows), indices, layer_key)

        known, compiled = self._mean_norms
        if compiled is None or known is not feed.resident:
            rows_specs = [] if feed.resident is not None else feed.specs
            signature = [rows_specs, tf.TensorSpec(indices.shape, tf.int32), tf.TensorSpec([2], tf.int64)]
            compiled = measure if self.eagerly else tf.function(measure, input_signature=signature, autograph=False)
            self._mean_norms = feed.resident, compiled
        given = [tf.convert_to_tensor(leaf) for leaf in rows]
        return np.asarray(compiled(given, tf.constant(indices, tf.int32), tf.constant(layer_key)))

    def _share(self, indices: Any, mask: Any) -> tuple[Any, Any]:
        """The contributions of this replica, ``[m / replicas, s]``; the last ones may not exist.

        Dealt out in turn: a Poisson round fills the front of its arrays.
        """
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        most = -(-indices.shape[0] // self.replicas)
        padding = [[0, most * self.replicas - indices.shape[0]], [0, 0]]
        return tuple(
            tf.reshape(tf.pad(t, padding), [most, self.replicas, t.shape[1]])[:, replica] for t in (indices, mask)
        )

    def _apply(self, release: Release) -> None:
        trainable = self.round.function.trainable
        update = [tf.cast(u, v.dtype) for u, v in zip(release.update, trainable, strict=True)]
        if self.replicas > 1:
            # Keras adds up what the replicas bring. They hold the same update: the first one brings it.
            first = tf.distribute.get_replica_context().replica_id_in_sync_group == 0
            update = [tf.where(first, u, tf.zeros_like(u)) for u in update]
        self.optimizer.apply(update, trainable)
        for variable, value in zip(self.state_variables, release.state, strict=True):
            variable.assign(tf.cast(value, variable.dtype))

    def _observe(self, pool: Any, release: Release, indices: Any, mask: Any) -> None:
        flat = tf.reshape(indices, [-1])
        _, y, sample_weight = tf.nest.map_structure(lambda t: None if t is None else tf.gather(t, flat), pool)
        outputs = tf.nest.map_structure(lambda t: tf.reshape(t, [-1, *t.shape[2:]]), release.outputs)
        self.mean_loss.update_state(release.losses, sample_weight=tf.cast(mask, tf.float32))
        padded = self.round.plan.sampling.masked or self.replicas > 1
        self.observe(y, outputs, sample_weight, tf.reshape(mask, [-1]) if padded else None)


def _without_native(release: Callable[..., Release]) -> Callable[..., Release]:
    def run(*args: Any) -> Release:
        with native.off():
            return release(*args)

    return run


def _own(error: BaseException | None) -> TfdpbcError | None:
    """The error of this library that led to `error`, or None."""
    while error is not None and not isinstance(error, TfdpbcError):
        error = error.__cause__ or error.__context__
    return error


def _plain(value: np.ndarray) -> Any:
    """A float; a metric of several values stays an array."""
    return float(value) if value.ndim == 0 else value
