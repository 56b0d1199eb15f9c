"""What has been trained so far: one JSON line for each finished training, in a file that only grows."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfdpbc.errors import RunFolderError
from tfdpbc.reporting.run_folder import to_json


class Results:
    """The finished trainings of a folder. Several processes may add to it at once.

    Args:
      folder: is made with the first result.

    Raises:
      RunFolderError: there is something else in the folder's place.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise RunFolderError(f"out must be a folder; got {self.folder}, which is none")

    @property
    def path(self) -> Path:
        return self.folder / "results.jsonl"

    def rows(self) -> list[dict[str, Any]]:
        """All results. A line that an interruption tore is warned of and left out: its training is run anew."""
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        except (OSError, UnicodeDecodeError) as error:
            raise RunFolderError(f"{self.path} cannot be read: {error}") from error
        found = []
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                row = json.loads(line) if line else None
            except json.JSONDecodeError:
                row = {}
            if row is None:
                continue
            if not isinstance(row, dict) or not {"run", "history"} <= set(row) or not row["history"]:
                warnings.warn(f"{self.path}: line {number} is no result and is left out", stacklevel=2)
                continue
            found.append(row)
        return found

    def find(self, run: Mapping[str, Any]) -> dict[str, Any] | None:
        """The result of a training, or None. `run` says all that it depends on."""
        run = json.loads(to_json(run))
        return next((row for row in self.rows() if row["run"] == run), None)

    def add(self, run: Mapping[str, Any], history: list[dict[str, float]], **facts: Any) -> None:
        """Writes a finished training."""
        line = json.dumps(json.loads(to_json({"run": run, "history": history, **facts})))
        self.folder.mkdir(parents=True, exist_ok=True)
        # One write at the end of the file: whole lines, also where two processes write. A torn line gets its end first.
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
            os.write(descriptor, (("\n" if torn else "") + line + "\n").encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
