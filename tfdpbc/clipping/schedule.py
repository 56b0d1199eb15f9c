"""Norm schedules: the clip norm as a public function of the round."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfdpbc import _validate

SMALLEST, LARGEST = 1e-12, 1e15
"""Every clip norm lies between these: squares of far smaller norms vanish in float32, those of far larger ones overflow."""


class NormSchedule:
    r"""The clip norm of each round, :math:`C_r = C \cdot decay^{k}` or :math:`f(k) \cdot decay^{k}`.

    k is the epoch (`every="epoch"`) or the round (`"round"`) of r, counted from 0. The values are public and the noise
    follows them, so a schedule costs no privacy (paper A, Section 3: the clipping constant may be adapted at the start of
    each round).

    Args:
      norm: C > 0, a `keras.optimizers.schedules.LearningRateSchedule`, or a function registered with
        `keras.saving.register_keras_serializable` from k (float32 scalar tensor) to a scalar, made of TensorFlow or
        `keras.ops` operations. A value that is not finite and positive is replaced by the nearest norm that is allowed.
      decay: factor in (0, 1] per epoch or round.
      every: `"epoch"` or `"round"`.
    """

    def __init__(self, name: str, norm: Any, decay: float, every: str):
        if isinstance(norm, dict):
            norm = keras.saving.deserialize_keras_object(norm)
        self.norm: float | Callable[[Any], Any] = (
            norm if callable(norm) else _validate.number(name, norm, above=0.0, at_most=LARGEST)
        )
        if callable(norm):
            _registered(name, norm)
        self.decay = _validate.number("decay", decay, above=0.0, at_most=1.0)
        self.every = _validate.choice("decay_every", every, ("epoch", "round"))

    @property
    def config(self) -> Any:
        """`norm` as JSON."""
        return keras.saving.serialize_keras_object(self.norm) if callable(self.norm) else self.norm

    def __call__(self, round_index: Any, rounds_per_epoch: int) -> Any:
        """C_r: a float for a Python integer `round_index`, a float32 scalar for an integer tensor."""
        step = round_index // rounds_per_epoch if self.every == "epoch" else round_index
        if not tf.is_tensor(step):
            if not callable(self.norm):
                return self.norm * self.decay**step
            with tf.init_scope():  # a number, also while a graph is being built
                value = float(self.norm(tf.constant(step, tf.float32)))
            return _allowed(value) * self.decay**step
        step = tf.cast(step, tf.float32)
        norm = self.norm
        if callable(norm):
            norm = tf.reshape(tf.cast(norm(step), tf.float32), [])
            # A comparison with NaN is false.
            norm = tf.where(norm >= SMALLEST, tf.minimum(norm, LARGEST), SMALLEST)
        return norm * tf.pow(tf.constant(self.decay, tf.float32), step)


def _allowed(value: float) -> float:
    return SMALLEST if math.isnan(value) else min(max(value, SMALLEST), LARGEST)


def _registered(name: str, function: Any) -> None:
    """A plan is saved as JSON: a function that cannot be found again by its name has no place in it."""
    if isinstance(function, keras.optimizers.schedules.LearningRateSchedule):
        return
    known = getattr(function, "__name__", None)
    found = keras.saving.get_registered_object(keras.saving.get_registered_name(function)) if known else None
    if found is not function:
        _validate.fail(
            name,
            "a number > 0, a Keras learning-rate schedule or a function registered with "
            "keras.saving.register_keras_serializable",
            function,
        )
