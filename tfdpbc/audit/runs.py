"""Tiny trainings through the library's real round, seen as the adversary of the guarantee sees them."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfdpbc.data.sources import as_source
from tfdpbc.keras_model import PrivateModel
from tfdpbc.plan import PrivacyPlan
from tfdpbc.random import Streams
from tfdpbc.training import loop
from tfdpbc.training.whole_round import FAILURES


class Seen(NamedTuple):
    """One training in the adversary's eyes.

    Attributes:
      sums: float64 ``[rounds]``, the first coordinate of each round's noisy sum (not divided).
      passed: bool ``[rounds]``, the outcomes of the tests; all True where there are none.
      hits: bool ``[rounds]``, whether the last example of the data joined the round. Only the stronger adversary of
        shuffling sees it.
    """

    sums: np.ndarray
    passed: np.ndarray
    hits: np.ndarray


def scaled(plan: PrivacyPlan, scale: float) -> PrivacyPlan:
    """The plan with all its noise `scale` times as large; for a test, that on the margin and that of a failed round too."""
    kind = plan.aggregation
    if kind.tested:
        fail = kind.fail_noise_multiplier
        kind = dataclasses.replace(
            kind,
            laplace_scale=kind.laplace_scale * scale,
            fail_noise_multiplier=None if fail is None else fail * scale,
        )
    return dataclasses.replace(plan, noise_multiplier=plan.noise_multiplier * scale, aggregation=kind)


class Recorder(keras.optimizers.Optimizer):
    """Gradient descent that keeps every noisy update, and how many tests had failed before it.

    Args:
      rounds: how many updates to keep.
      failures: the variable that counts failed tests, or None.
    """

    def __init__(self, rounds: int, failures: Any):
        super().__init__(learning_rate=1.0)
        self.rounds, self.failures = rounds, failures

    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        size = sum(int(np.prod(v.shape)) for v in variables)
        self.updates = tf.Variable(tf.zeros([self.rounds, size]), trainable=False)
        self.failed = tf.Variable(tf.zeros([self.rounds], tf.int64), trainable=False)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        place = tf.reshape(tf.cast(self.iterations.value, tf.int32), [1, 1])
        self.updates.assign(tf.tensor_scatter_nd_update(self.updates, place, tf.reshape(gradient, [1, -1])))
        if self.failures is not None:
            failed = tf.tensor_scatter_nd_update(self.failed, place, [tf.identity(self.failures.value)])
            self.failed.assign(failed)
        self.assign_sub(variable, learning_rate * gradient)


class Trainings:
    """Runs a plan again and again: one model, one compiled step, fresh randomness for each training.

    The model is one dense layer without bias and its loss is its output, so the gradient of an example is the example,
    whatever the weights are. Sampling, clipping, aggregation, test, noise and optimizer step are those of
    `PrivateModel.fit`, whose internals this uses: `fit` would count the rounds of all trainings as one. (The data is made
    up, so nothing here is released.)

    Args:
      plan: what is run.
    """

    def __init__(self, plan: PrivacyPlan):
        self.plan = plan
        net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
        self.model = PrivateModel(net, plan)
        self.failures = self.model._clip_state.get(FAILURES)
        self.recorder = Recorder(plan.rounds, self.failures)
        # The loss is the output: reduced by nobody, and without a label.
        self.model.compile(self.recorder, lambda y, output: output[..., 0], steps_per_execution=plan.rounds_per_epoch)
        self.start = [w.copy() for w in net.get_weights()]

    def load(self, gradients: np.ndarray) -> None:
        """Takes float32 ``[N, 2]`` as the data set of the trainings to come."""
        self.model._prepare(as_source(gradients, np.zeros([len(gradients), 1], np.float32), None))
        self.last = len(gradients) - 1

    def run(self, seed: int | None) -> Seen:
        """One training of all rounds of the plan; with a `seed` it is reproducible."""
        plan, rounds, streams = self.plan, self.model._rounds, Streams(seed)
        self.model.model.set_weights(self.start)
        self.recorder.iterations.assign(0)
        if self.failures is not None:
            self.failures.assign(0)
        hits = []
        for epoch in range(plan.epochs):
            first = epoch * plan.rounds_per_epoch
            for draw in loop.draws(rounds.feed, plan.sampling, streams, epoch, 0, plan.rounds_per_epoch):
                rounds.run(draw, first, streams)
                hits += list(((draw.indices == self.last) & draw.mask).any(axis=(1, 2)))
                first += len(draw.indices)
        sums = np.asarray(self.recorder.updates, np.float64)[:, 0] * plan.divisor
        passed = np.ones([plan.rounds], bool)
        if self.failures is not None:
            counts = np.append(np.asarray(self.recorder.failed), np.asarray(self.failures.value))
            passed = np.diff(counts) == 0
        return Seen(sums, passed, np.array(hits))
