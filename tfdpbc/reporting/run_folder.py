"""The run folder: what a training leaves behind, each file written whole or not at all.

::

    config.json     how the run was asked for; `tfdpbc train --resume` reads it
    history.csv     one line per epoch: epoch, the metrics, epsilon so far
    guarantee.json  the guarantee for the rounds released so far
    trade_off.csv   its trade-off curve: alpha, f
    checkpoints/    the state a resumed run starts from
    model/          the SavedModel, its guarantee inside
    report.html     the same for reading, with plots
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdpbc import _validate
from tfdpbc.errors import RunFolderError

FORMAT = 1


class RunFolder:
    """The files of one run, by name. Opening one reads its `config.json` and thereby checks that it is a run folder.

    Args:
      path: an existing run folder; `RunFolder.create` makes one.

    Attributes:
      path: the folder.
      config: the contents of `config.json`.

    Raises:
      RunFolderError: the folder or its `config.json` is missing or damaged.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        if not self.path.is_dir():
            raise RunFolderError(f"run folder {str(self.path)!r} does not exist")
        self.config = self._read_json("config.json")
        if self.config.get("format") != FORMAT:
            raise RunFolderError(
                f"{self.path / 'config.json'} must be of format {FORMAT}; got format={self.config.get('format')!r}"
            )

    @classmethod
    def create(cls, path: str | os.PathLike, config: Mapping[str, Any]) -> RunFolder:
        """Makes the folder with its `config.json` in one step, so that no folder without one is ever seen."""
        path = Path(path)
        check_free(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        try:
            write_text(fresh / "config.json", to_json({"format": FORMAT, **config}))
            (fresh / "checkpoints").mkdir()
            fresh.chmod(0o777 & ~_umask())  # mkdtemp made it private
            fresh.rename(path)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        return cls(path)

    @property
    def checkpoint(self) -> Path:
        """The state after the last whole epoch."""
        return self.path / "checkpoints" / "latest.npz"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def read_guarantee(self) -> dict[str, Any]:
        return self._read_json("guarantee.json")

    def write_guarantee(self, guarantee: Mapping[str, Any]) -> None:
        write_text(self.path / "guarantee.json", to_json(guarantee))

    def read_history(self) -> list[dict[str, float]]:
        """One dict per epoch, in order; empty cells are left out."""
        return self._read_table("history.csv")

    def write_history(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Writes `history.csv`; the columns are `epoch` and then those of the rows in the order they first appear."""
        columns = list(dict.fromkeys(["epoch", *(column for row in rows for column in row)]))
        self._write_table("history.csv", columns, rows)

    def read_trade_off(self) -> list[tuple[float, float]]:
        """The pairs (alpha, f(alpha)) of the guarantee's trade-off curve."""
        rows = self._read_table("trade_off.csv")
        if any(set(row) != {"alpha", "f"} for row in rows):
            raise RunFolderError(f"{self.path / 'trade_off.csv'} is damaged: its columns must be alpha and f")
        return [(row["alpha"], row["f"]) for row in rows]

    def write_trade_off(self, curve: Sequence[tuple[float, float]]) -> None:
        self._write_table("trade_off.csv", ["alpha", "f"], [{"alpha": a, "f": f} for a, f in curve])

    def _read_text(self, name: str) -> str:
        path = self.path / name
        try:
            return path.read_text(encoding="utf-8")
        except FileNotFoundError:
            raise RunFolderError(f"{self.path} is not a complete run folder: it has no {name}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise RunFolderError(f"{path} cannot be read: {error}") from error

    def _read_json(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads(self._read_text(name))
        except json.JSONDecodeError as error:
            raise RunFolderError(f"{self.path / name} is damaged: not JSON ({error})") from None
        if not isinstance(content, dict):
            raise RunFolderError(f"{self.path / name} is damaged: it must hold one JSON object")
        return content

    def _read_table(self, name: str) -> list[dict[str, float]]:
        rows = csv.DictReader(io.StringIO(self._read_text(name)), restkey="surplus")
        try:
            return [{column: float(cell) for column, cell in row.items() if cell not in (None, "")} for row in rows]
        except (TypeError, ValueError, csv.Error):
            raise RunFolderError(f"{self.path / name} is damaged: its cells must be numbers") from None

    def _write_table(self, name: str, columns: Sequence[str], rows: Sequence[Mapping[str, float]]) -> None:
        text = io.StringIO()
        table = csv.DictWriter(text, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        write_text(self.path / name, text.getvalue())


def check_free(path: str | os.PathLike) -> None:
    """Checks, before any work is done, that a run folder can be made at `path`.

    Raises:
      RunFolderError: something stands there already (an empty folder may), or the place cannot be written to.
    """
    path = Path(path)
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise RunFolderError(f"{path} exists already: choose another folder, or go on with --resume {path}")
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise RunFolderError(f"run folder {path} cannot be made: {parent} is not a folder that can be written to")


def to_json(content: Mapping[str, Any]) -> str:
    """Strict JSON: JSON knows no infinity, so an infinite or undefined number becomes null."""
    return json.dumps(_finite(content), indent=2, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if hasattr(value, "tolist"):  # numpy arrays and scalars
        return _finite(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    _validate.instance("text", text, str, "a string")
    descriptor, fresh = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(fresh, 0o666 & ~_umask())  # mkstemp made it private
        os.replace(fresh, path)
    except BaseException:
        Path(fresh).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
