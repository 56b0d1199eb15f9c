"""Keras callbacks that know the plan."""

from __future__ import annotations

import time
import warnings
from typing import Any

import keras

from tfdpbc import _validate


class PrivacyMeter(keras.callbacks.Callback):
    """Adds `epsilon`, the ε of the rounds released so far, to the logs: progress bar, History, CSV.

    Args:
      delta: δ in (0, 1) at which ε is stated.
      seconds: least time between two updates within an epoch, since an exact ε can take a while to compute. At the end
        of each epoch ε is always that of the rounds released.
    """

    def __init__(self, delta: float, seconds: float = 5.0):
        super().__init__()
        self.delta = _validate.probability("delta", delta)
        self.seconds = _validate.number("seconds", seconds, at_least=0.0)
        self._epsilon: float | None = None
        self._due = 0.0

    def _measure(self) -> float:
        began = time.monotonic()
        with warnings.catch_warnings():
            if self._epsilon is not None:  # a doubtful δ is warned of once
                warnings.simplefilter("ignore")
            self._epsilon = self.model.spent.epsilon(self.delta)
        now = time.monotonic()
        # Costly accounting may take a tenth of the time, not more.
        self._due = now + max(self.seconds, 10 * (now - began))
        return self._epsilon

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is None:
            return
        if self._epsilon is None or time.monotonic() >= self._due:
            self._measure()
        logs["epsilon"] = self._epsilon

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["epsilon"] = self._measure()
