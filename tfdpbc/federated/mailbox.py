"""The interrupt routine of Algorithm 1: a newer global model replaces the weights before the next micro-batch."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import tensorflow as tf

from tfdpbc.federated.messages import GlobalModel


class Mailbox:
    """Global models that arrived and were not taken over yet.

    Args:
      variables: the released variables, float32; replaced as a whole.
      version: of the weights that they hold now, -1 for none of the server's.

    Attributes:
      version: of the model taken over last.
      weights: the values that the variables held then, or since `hold`.
    """

    def __init__(self, variables: list[Any], version: int = -1):
        self.variables, self.version = variables, version
        self.weights = [np.array(v.numpy()) for v in variables]
        self.newest = version
        self._waiting: list[tuple[float, GlobalModel]] = []
        self._reached, self._lock = 0.0, threading.Lock()

    def put(self, model: GlobalModel, at: float = 0.0) -> bool:
        """Takes a model in, from any thread; whether it is newer than all before it (an older one is dropped).

        Args:
          at: not before this share of the next round's micro-batches is done (simulated time).
        """
        with self._lock:
            if model.version <= self.newest:
                return False
            self.newest = model.version
            self._waiting.append((at, model))
            return True

    def hold(self, weights: list[np.ndarray]) -> None:
        """The variables hold these values now, by a round's own step."""
        self.weights = weights

    def replace(self) -> None:
        """Takes over what has come, between rounds."""
        self._reached = 0.0
        if self._due():
            for variable, value in zip(self.variables, self._take(), strict=True):
                variable.assign(value)

    def round_over(self) -> None:
        """What was to come later in the round is due with the next one."""
        with self._lock:
            self._waiting = [(0.0, model) for _, model in self._waiting]

    def interrupt(self, i: Any, passes: int) -> None:
        """In the graph of a round, before its i-th micro-batch (`training.round.Round`)."""

        def due(i: np.ndarray) -> np.ndarray:
            self._reached = int(i) / passes
            return np.array(self._due())

        def replaced() -> Any:
            values = tf.numpy_function(self._take, [], [tf.float32] * len(self.variables))
            for variable, value in zip(self.variables, values, strict=True):
                variable.assign(tf.ensure_shape(value, variable.shape))
            return tf.constant(True)

        tf.cond(tf.numpy_function(due, [i], tf.bool), replaced, lambda: tf.constant(False))

    def _due(self) -> bool:
        with self._lock:
            return any(at <= self._reached for at, _ in self._waiting)

    def _take(self) -> list[np.ndarray]:
        with self._lock:
            model = max((model for at, model in self._waiting if at <= self._reached), key=lambda one: one.version)
            self._waiting = [(at, one) for at, one in self._waiting if one.version > model.version]
            self.version, self.weights = model.version, [np.asarray(w, np.float32) for w in model.weights]
            return self.weights
