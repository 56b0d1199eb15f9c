"""Files that are whole at any time, and secrets that nobody else may read."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_atomically(path: Any, write: Callable[[Any], Any], sync: bool = True) -> None:
    """Writes a file (0600) by `write(file)` (binary) and puts it in place once it is on the disk; sync=False: written."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if not sync:
        return
    directory = os.open(path.parent, os.O_RDONLY)  # the new name must be on the disk as well
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def write_secret(path: Any, data: bytes) -> None:
    """Writes a new file that only its owner may read.

    Raises:
        FileExistsError: There is one; a key is never replaced by accident.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
