"""Keras callbacks that know the plan."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import keras

from tfdpbc import _validate


class PrivacyMeter(keras.callbacks.Callback):
    """Adds `epsilon`, the ε of the rounds released, to the logs: progress bar, History, CSV.

    Within an epoch it is that of the epoch's end already, so that a bar that is watched, or a run that is cut short, never
    shows too little; a round or an epoch that is left out afterwards lowers it again.

    Args:
      delta: δ in (0, 1) at which ε is stated.
    """

    def __init__(self, delta: float):
        super().__init__()
        self.delta = _validate.probability("delta", delta)
        self._measured: tuple[int, float] | None = None

    def _epsilon(self, whole_epochs: bool) -> float:
        spent, per_epoch = self.model.spent, self.model.plan.rounds_per_epoch
        rounds = -(-spent.rounds // per_epoch) * per_epoch if whole_epochs else spent.rounds
        if self._measured is None or self._measured[0] != rounds:
            with warnings.catch_warnings():
                if self._measured is not None:  # a doubtful δ is warned of once
                    warnings.simplefilter("ignore")
                self._measured = rounds, dataclasses.replace(spent, rounds=rounds).epsilon(self.delta)
        return self._measured[1]

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["epsilon"] = self._epsilon(whole_epochs=True)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if logs is not None:
            logs["epsilon"] = self._epsilon(whole_epochs=False)
