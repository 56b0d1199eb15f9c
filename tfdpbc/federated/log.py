"""The server's log of every update it received, and what it proves afterwards about the clients' ledgers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfdpbc.errors import FederatedError


class UpdateLog:
    """Appends one JSON line per received update to a file; each line is handed to the operating system at once.

    Args:
        path: The file; a resumed server goes on in it.
    """

    def __init__(self, path: Any):
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        if self._file.tell() and not _ends_a_line(path):
            self._file.write(b"\n")  # a killed server may have left half a line

    def write(self, **fields: Any) -> None:
        """One line."""
        self._file.write(json.dumps(fields, separators=(",", ":")).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def digest(weights: Iterable[np.ndarray]) -> str:
    """A fingerprint of an update's values: with fresh noise no two rounds share one."""
    state = hashlib.blake2b(digest_size=16)
    for array in weights:
        state.update(np.ascontiguousarray(array).tobytes())
    return state.hexdigest()


def read(path: Any) -> list[dict[str, Any]]:
    """The lines of a log; one that a killed server left unfinished is passed over."""
    lines = []
    for line in Path(path).read_bytes().splitlines():
        try:
            fields = json.loads(line)
        except ValueError:
            continue
        if isinstance(fields, dict):
            lines.append(fields)
    return lines


def contradictions(lines: Iterable[Mapping[str, Any]], rounds_spent: Mapping[str, int]) -> list[str]:
    """What in the log cannot be if each client spent exactly what its ledger says.

    Three things are looked for: a round the ledger does not count, two different updates of one round (the noise was
    drawn twice for one recorded round), and one update under two round numbers (noise was replayed).

    Args:
        lines: What `read` gave.
        rounds_spent: Rounds in each client's ledger. A client that is not in it is one that spent nothing.

    Returns:
        A sentence each; empty if the ledgers cover all that arrived.
    """
    found: dict[tuple[str, int], str] = {}
    values: dict[tuple[str, str], int] = {}
    wrong = []
    for line in lines:
        if "round" not in line or line["outcome"] in ("unknown-client", "wrong-sender"):
            continue  # malformed, or sent under a name that is not the sender's
        client, number, mark = line["client"], line["round"], line["digest"]
        if not 1 <= number <= rounds_spent.get(client, 0):
            wrong.append(f"{client} sent round {number}, its ledger counts {rounds_spent.get(client, 0)}")
        if found.setdefault((client, number), mark) != mark:
            wrong.append(f"{client} sent two different updates for round {number}")
        if values.setdefault((client, mark), number) != number:
            wrong.append(f"{client} sent one update as rounds {values[client, mark]} and {number}")
    return list(dict.fromkeys(wrong))


def check(path: Any, rounds_spent: Mapping[str, int]) -> None:
    """As `contradictions`, for a log file.

    Raises:
        FederatedError: There are some.
    """
    wrong = contradictions(read(path), rounds_spent)
    if wrong:
        raise FederatedError(f"the server's log {path} contradicts the ledgers: " + "; ".join(wrong[:5]))


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
