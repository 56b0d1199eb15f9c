"""What a client keeps on its disk: the ledger, the updates that nobody confirmed yet, the last global model.

    lock            held by the one process that may train here
    ledger.json     rounds spent; on the disk before their noise is drawn
    outbox/N.update encoded updates, until the server has them
    global.model    the newest global model
    state.npz       weights, optimizer and clipping (`training.checkpoint`), now and then

Whatever is written is written whole or not at all (a temporary file, renamed). No randomness is kept.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tfdpbc.errors import FederatedError, MalformedMessage, RunFolderError
from tfdpbc.federated import files
from tfdpbc.federated.messages import GlobalModel, decode, encode
from tfdpbc.ledger import Ledger

LOCK = "lock"
_SUFFIX = ".update"


class ClientFolder:
    """The folder of one client, locked for this process until `close`.

    Args:
      folder: made private (0700).

    Raises:
      FederatedError: another process trains here.
      RunFolderError: the ledger is missing where there was one, or damaged. A new one would forget what was spent.
    """

    def __init__(self, folder: str | os.PathLike):
        self.folder = Path(folder)
        self._outbox = self.folder / "outbox"
        self._outbox.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        try:
            self._lock = files.lock(self.folder / LOCK)
        except BlockingIOError as error:
            raise FederatedError(f"another process trains in {self.folder}") from error
        try:
            self.ledger = self._read_ledger()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Gives the folder free."""
        self._lock.close()

    @property
    def state(self) -> Path:
        """Where the checkpoint belongs."""
        return self.folder / "state.npz"

    def _read_ledger(self) -> Ledger:
        path = self.folder / "ledger.json"
        try:
            return Ledger.from_config(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            if self.rounds() or self.state.exists():
                raise RunFolderError(
                    f"{path} is missing, but {self.folder} was trained in: what was spent is not known"
                ) from None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunFolderError(f"{path} is damaged: what was spent is not known ({error})") from error
        return Ledger()

    def write_ledger(self, ledger: Ledger) -> None:
        """Returns when the ledger is on the disk."""
        self._write(self.folder / "ledger.json", json.dumps(ledger.to_config()).encode())

    # The outbox.

    def rounds(self) -> list[int]:
        """The rounds of the updates in the outbox, in order."""
        return sorted(int(path.stem) for path in self._outbox.glob(f"*{_SUFFIX}"))

    def put(self, number: int, update: bytes) -> None:
        """Keeps the encoded update of a round."""
        self._write(self._path(number), update)

    def get(self, number: int) -> bytes:
        """The encoded update of a round."""
        return self._path(number).read_bytes()

    def discard(self, number: int) -> None:
        """Forgets an update that the server has."""
        self._path(number).unlink(missing_ok=True)

    def _path(self, number: int) -> Path:
        return self._outbox / f"{number:012d}{_SUFFIX}"

    # The global model.

    def keep_model(self, model: GlobalModel) -> None:
        """Keeps the newest global model, to start from after a restart."""
        self._write(self.folder / "global.model", encode(model), sync=False)

    def last_model(self) -> GlobalModel | None:
        """The model that was kept; None if there is none that can be read (the server has a newer one)."""
        try:
            model = decode((self.folder / "global.model").read_bytes())
        except (OSError, MalformedMessage):
            return None
        return model if isinstance(model, GlobalModel) else None

    def _write(self, path: Path, content: bytes, sync: bool = True) -> None:
        files.write_atomically(path, lambda file: file.write(content), sync)


class Memory:
    """As `ClientFolder`, without a disk: for simulations, whose clients end with their process."""

    def __init__(self) -> None:
        self.ledger, self.state, self._updates = Ledger(), None, {}

    def close(self) -> None:
        """Nothing to do."""

    def write_ledger(self, ledger: Ledger) -> None:
        """Nothing to do."""

    def keep_model(self, model: GlobalModel) -> None:
        """Nothing to do."""

    def last_model(self) -> Any:
        """None."""
        return None

    def rounds(self) -> list[int]:
        return sorted(self._updates)

    def put(self, number: int, update: bytes) -> None:
        self._updates[number] = update

    def get(self, number: int) -> bytes:
        return self._updates[number]

    def discard(self, number: int) -> None:
        self._updates.pop(number, None)
