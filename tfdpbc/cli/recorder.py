"""Writes the run folder while a run goes on: after each epoch it is complete enough to be resumed, and true."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from tfdpbc.cli import answers
from tfdpbc.reporting.run_folder import RunFolder


class Recorder(keras.callbacks.Callback):
    """Records each epoch in the run folder, which appears with the first one: what fails before leaves nothing behind.

    Args:
      path: where the folder shall be.
      config: the contents of its `config.json`.
      delta: of the guarantee.
      folder: the folder itself, if the run goes on.
    """

    def __init__(self, path: Path, config: Mapping[str, Any], delta: float, folder: RunFolder | None = None):
        super().__init__()
        self.path, self.config, self.delta, self.folder = path, config, delta, folder
        self._rows: list[dict[str, float]] | None = None

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        if self.folder is None:
            self.folder = RunFolder.create(self.path, self.config)
            self._rows = []
        elif self._rows is None:
            # Rows after the checkpoint belong to rounds that are run anew.
            self._rows = [row for row in self.folder.read_history() if row["epoch"] <= epoch]
        self._rows.append({"epoch": epoch + 1, **{name: float(value) for name, value in (logs or {}).items()}})
        spent = self.model.spent
        # The guarantee first: an interruption between the files may leave it too modest, never too good.
        self.folder.write_guarantee(spent.guarantee(self.delta))
        self.folder.write_trade_off(answers.sampled(spent.trade_off()))
        self.model.save_checkpoint(self.folder.checkpoint)
        self.folder.write_history(self._rows)
