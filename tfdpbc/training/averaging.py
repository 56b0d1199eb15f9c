"""An exponential average of the weights over the rounds: a post-processing of the noisy updates, which costs no privacy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdpbc import _validate


class Averages:
    r"""Averages of trainable weights with a warm-up.

    .. math:: \bar w_{t+1} = d_t \bar w_t + (1 - d_t) w_{t+1}, \quad d_t = \min(d, \frac{1 + t}{10 + t}), \quad
       \bar w_0 = w_0

    with t = 0, 1, ... the rounds (De et al. 2022, "Unlocking High-Accuracy Differentially Private Image Classification
    through Scale"): early weights, which are far from the last ones, fade quickly. Keras's own `use_ema` has no
    warm-up and puts the average in the place of the weights.

    Args:
      decay: d in (0, 1).

    Attributes:
      count: t, a variable.
      variables: one for each weight, float32 or the weight's wider type; without noise of their own.
    """

    def __init__(self, decay: float):
        self.decay = _validate.probability("averaging", decay)
        self.count = keras.Variable(0, dtype="int64", trainable=False, name="averaged_rounds")
        self.weights: list[Any] = []
        self.variables: list[Any] = []
        self.swapped = False

    def cover(self, weights: Sequence[Any]) -> None:
        """Takes `weights` as those to be averaged; an average that exists goes on, and starts anew before round 0."""
        known = {id(weight): average for weight, average in zip(self.weights, self.variables, strict=True)}
        self.weights = list(weights)
        self.variables = [known[id(w)] if id(w) in known else _like(w) for w in self.weights]
        if int(self.count.numpy()) == 0:
            for weight, average in zip(self.weights, self.variables, strict=True):
                average.assign(weight.numpy())

    def update(self, strategy: Any = None) -> None:
        """Takes in the weights as they are after a round.

        Args:
          strategy: the `tf.distribute` strategy they live in; to be called outside of its replicas.
        """
        t = tf.cast(self.count.value, tf.float32)
        decay = tf.minimum(tf.constant(self.decay, tf.float32), (1.0 + t) / (10.0 + t))
        strategy = strategy or tf.distribute.get_strategy()
        for weight, average in zip(self.weights, self.variables, strict=True):
            # On each device from its own copies, which are equal.
            strategy.extended.update(average.value, _move, args=(weight.value, decay))
        strategy.extended.update(self.count.value, lambda count: count.assign_add(1))

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The weights are their averages inside the `with` block; afterwards they are what they were."""
        if self.swapped:
            raise RuntimeError("the averaged weights are in place already")
        before = [np.array(weight.numpy()) for weight in self.weights]
        self.swapped = True
        try:
            for weight, average in zip(self.weights, self.variables, strict=True):
                weight.assign(average.numpy())
            yield
        finally:
            for weight, value in zip(self.weights, before, strict=True):
                weight.assign(value)
            self.swapped = False

    def state(self) -> list[tuple[str, Any]]:
        """Names and variables of all that a checkpoint must hold."""
        return [("average_count", self.count), *((f"average{i}", v) for i, v in enumerate(self.variables))]

    def restore(self, stored: Mapping[str, Any]) -> None:
        """Takes over what `state` named; without it the averages begin anew at the weights there are then."""
        names = dict(self.state())
        if {name for name in stored.keys() if name.startswith("average")} == set(names):  # noqa: SIM118
            for name, variable in names.items():
                variable.assign(np.asarray(stored[name]))
        else:
            self.count.assign(0)
            self.cover(self.weights)


def _like(weight: Any) -> Any:
    dtype = "float64" if keras.backend.standardize_dtype(weight.dtype) == "float64" else "float32"
    return keras.Variable(weight.numpy(), dtype=dtype, trainable=False, name="average")


def _move(average: Any, weight: Any, decay: Any) -> None:
    decay = tf.cast(decay, average.dtype)
    average.assign(decay * average + (1 - decay) * tf.cast(weight, average.dtype))
