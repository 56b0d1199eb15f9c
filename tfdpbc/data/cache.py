"""A cache of generated arrays in the user's cache folder. It only saves time: whatever is wrong with it, work goes on.

The folder is ``$TFDPBC_CACHE``, else ``$XDG_CACHE_HOME/tfdpbc``, else ``~/.cache/tfdpbc``. Only public data belong
there.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

Arrays = dict[str, np.ndarray]


def folder() -> Path:
    """The cache folder; it need not exist."""
    if own := os.environ.get("TFDPBC_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    return (Path(base) if os.path.isabs(base) else Path(os.path.expanduser("~"), ".cache")) / "tfdpbc"


def fetch(name: str, version: int, make: Callable[[], Arrays], good: Callable[[Arrays], bool]) -> Arrays:
    """Reads the arrays `name`, or makes and stores them.

    Args:
      name: file name without its ending.
      version: stored inside; a file of another version is replaced.
      make: makes the arrays.
      good: whether arrays that were read have the right shapes and types.
    """
    path = folder() / f"{name}.npz"
    arrays = _read(path, version)
    with contextlib.suppress(KeyError):
        if arrays is not None and good(arrays):
            return arrays
    arrays = make()
    with contextlib.suppress(OSError):  # read-only or full disk: the next run makes them again
        _write(path, version, arrays)
    return arrays


def _read(path: Path, version: int) -> Arrays | None:
    """The arrays of a whole file of this version, else None. The checksums of the zip format find damage."""
    try:
        # Opened here, because numpy leaves the file open when the archive is damaged.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
        return arrays if int(arrays.pop("version")) == version else None
    except Exception:  # a damaged archive raises half a dozen kinds of error, all with one consequence
        return None


def _write(path: Path, version: int, arrays: Arrays) -> None:
    """Writes beside and renames, so that a reader sees a whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, version=version, **arrays)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
