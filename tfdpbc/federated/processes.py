"""Processes that end with whoever started them, each by its own id."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfdpbc.errors import FederatedError

POLITE_SECONDS = 8.0
NODE = "node-"
"""What the names of nodes' processes begin with."""
_GREETING = re.compile(r"WARNING: All log messages before absl|[IWE]\d{4} ")
"""Lines that TensorFlow writes while it is loaded, whatever its log level: they say nothing about a failure."""
PARENT = "TFDPBC_PARENT"
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Called first by the programs that `Processes` starts: they are killed when the process dies that started them, by
    ``kill -9`` as well. Started by hand they are on their own; so they are where the kernel is not Linux."""
    parent = os.environ.get(PARENT, "")
    if not parent or not sys.platform.startswith("linux"):
        return
    # Whatever they keep is whole at any time, so nothing is lost with them.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("the process that started this one is gone")


class Processes:
    """Starts processes, each in a session of its own; ends them, the last one first, when the `with` block ends.

    Args:
      folder: for their output, ``NAME.log``.
      environment: theirs.
    """

    def __init__(self, folder: Any, environment: Mapping[str, str]):
        self._folder, self._environment = Path(folder), dict(environment)
        self._running: dict[str, subprocess.Popen] = {}

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self._running.values():
            _signal(process, signal.SIGTERM)  # all at once: they take seconds to say good-bye
        for name in reversed(list(self._running)):
            self.end(name)

    def start(self, name: str, command: Sequence[Any]) -> subprocess.Popen:
        """Starts a process; a former one of that name must have ended."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment | {PARENT: str(os.getpid())},
                start_new_session=True,  # Ctrl-C reaches us only, and what the process starts ends with its session
            )
        return self._running[name]

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """Ends a process and what it started, by the id of its session: politely at first."""
        process = self._running.pop(name, None)
        if process is None:
            return
        for signum, patience in ((number, POLITE_SECONDS), (signal.SIGKILL, POLITE_SECONDS)):
            _signal(process, signum)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
                if not _group_lives(process.pid):
                    return

    def ended(self) -> dict[str, int]:
        """Exit statuses of the processes that ended by themselves."""
        found = {name: process.poll() for name, process in self._running.items()}
        return {name: status for name, status in found.items() if status is not None}

    def missed(self) -> dict[str, int]:
        """As `ended`, without those that have done what they were started for: nodes whose client has finished."""
        return {name: status for name, status in self.ended().items() if status or not name.startswith(NODE)}

    def output(self, name: str) -> str:
        """What a process said so far."""
        path = self._folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def run(self, name: str, command: Sequence[Any], seconds: float = 60.0) -> str:
        """Runs a command to its end; its output.

        Raises:
          FederatedError: it failed or took too long.
        """
        before = len(self.output(name))
        process = self.start(name, command)
        try:
            status: int | str = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = f"no end after {seconds:g} s"
        self.end(name)
        said = self.output(name)[before:]
        if status != 0:
            raise FederatedError(f"{name} failed ({status}): {' '.join(said.split())[-500:]}")
        return said

    def wait_for(self, what: str, there: Callable[[], bool], seconds: float) -> None:
        """Waits until `there()`.

        Raises:
          FederatedError: in vain, or a process ended meanwhile.
        """
        until = time.monotonic() + seconds
        while not there():
            for name, status in self.missed().items():
                said = [line for line in self.output(name).splitlines() if not _GREETING.match(line)]
                last = " ".join(" ".join(said).split())[-500:]
                raise FederatedError(f"{name} ended with status {status} before {what}: {last}")
            if time.monotonic() > until:
                raise FederatedError(f"waited {seconds:g} s for {what}, in vain")
            time.sleep(0.2)


def _signal(process: subprocess.Popen, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _group_lives(leader: int) -> bool:
    """Whether a process of the session is left (its children may outlive the leader by a moment)."""
    for _ in range(20):
        try:
            os.killpg(leader, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.1)
    return True


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on right now."""
    with socket.socket() as one:
        one.bind((host, 0))
        return one.getsockname()[1]


def listens(host: str, port: int) -> bool:
    """Whether somebody does."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1.0):
        return True
    return False
