"""Files that are whole at any time, and secrets that nobody else may read."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
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


def lock(path: Any, seconds: float = 0.0) -> Any:
    """A lock on a file, made if there is none: held until what is returned is closed, or the process ends.

    Args:
        seconds: How long to wait for whoever holds it.

    Raises:
        BlockingIOError: Somebody still does.
    """
    file = open(path, "ab")  # noqa: SIM115 (held as long as its owner lives)
    until = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() >= until:
                file.close()
                raise
            time.sleep(0.1)


def is_locked(path: Any) -> bool:
    """Whether somebody holds a lock on a file, which need not exist."""
    try:
        lock(path).close()
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False
