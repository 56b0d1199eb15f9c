"""Downloads that end: asked only when the network answers, run in a process of their own, stopped when they stall."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

from tfdpbc.errors import DataError

HOST = "storage.googleapis.com"  # where TFDS keeps its own files, and the mirrors of MNIST and others
CONNECT_SECONDS = 3.0
STALL_SECONDS = 120.0
_POLL_SECONDS = 0.5

# A program of its own: TFDS's downloader has no time limit and its threads would keep our process from ending.
_PROGRAM = """
import sys
import tensorflow_datasets as tfds
tfds.disable_progress_bar()
tfds.builder(sys.argv[1], data_dir=sys.argv[2]).download_and_prepare()
"""


def network_allows() -> bool:
    """Whether a connection to TFDS's host (or to the proxy in between) comes about within `CONNECT_SECONDS`."""
    proxy = urllib.request.getproxies().get("https")
    address = (HOST, 443)
    if proxy:
        parts = urllib.parse.urlsplit(proxy if "//" in proxy else "//" + proxy)
        address = (parts.hostname or HOST, parts.port or 443)
    reached = threading.Event()

    def connect() -> None:
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=CONNECT_SECONDS):
            reached.set()

    # In a thread, because looking up a name has no time limit of its own.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    return reached.is_set()


def download(name: str, data_dir: Path) -> None:
    """Downloads and prepares a TFDS data set into `data_dir`.

    Raises:
      DataError: it failed, or nothing in `data_dir` changed for `STALL_SECONDS`.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{name} cannot be downloaded: the data folder {data_dir} cannot be made ({error})") from error
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", _PROGRAM, name, str(data_dir)]
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        )
        try:
            status = _wait(child, data_dir)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
    if status is None:
        raise DataError(f"the download of {name} stalled: nothing arrived for {STALL_SECONDS:g} s; try again later")
    if status != 0:
        # The message of the exception may go on over further lines; its first one says most.
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)] or lines or ["no message"]
        raise DataError(f"the download of {name} failed: {errors[-1][:300]}")


def _wait(child: subprocess.Popen[bytes], data_dir: Path) -> int | None:
    """The exit status, or None once nothing has moved for too long."""
    size, since = -1, time.monotonic()
    while (status := child.poll()) is None:
        now = _size(data_dir)
        if now != size:
            size, since = now, time.monotonic()
        elif time.monotonic() - since > STALL_SECONDS:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_SECONDS)
    return status


def _size(folder: Path) -> int:
    """Bytes below `folder`; files may come and go meanwhile."""
    total = 0
    for root, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(root, file)).st_size
    return total
