"""The local socket between a trainer and its courier: bytes only, authenticated, one request a connection.

The trainer's directory (0700) holds `trainer.sock` (0600) and `trainer.key` (0600): 32 bytes from the operating system, new
with each start, by which both sides prove who they are (the HMAC challenges of `multiprocessing.connection`). What is said
is one message each way: a JSON object, a line feed and perhaps bytes. Nothing is ever unpickled. Loads neither TensorFlow
nor Keras, so that a courier starts at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import struct
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Any

from tfdpbc.errors import FederatedError, MalformedMessage
from tfdpbc.federated import files
from tfdpbc.federated.messages import MAX_BYTES

SOCKET, KEY = "trainer.sock", "trainer.key"
MAX_HEADER = 1 << 16
MAX_REPLY = 2 * MAX_BYTES
LONGEST_PATH = 107
"""What the address of a unix socket holds."""
PATIENCE = 10.0
"""Seconds in which a connection must have said who it is and what it wants."""
_LENGTH = struct.Struct(">Q")

Answer = Callable[[dict[str, Any], bytes], tuple[dict[str, Any], Sequence[bytes]]]


def pack(header: dict[str, Any], parts: Sequence[bytes] = ()) -> bytes:
    """A reply: the header, a line feed, and each part behind its length (8 bytes, big endian)."""
    return json.dumps(header).encode() + b"\n" + body_of(parts)


def split(message: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a message, and what follows it.

    Raises:
      MalformedMessage: the message does not begin with a JSON object and a line feed.
    """
    end = message.find(b"\n", 0, MAX_HEADER)
    try:
        header = json.loads(message[:end].decode("utf-8")) if end >= 0 else None
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise MalformedMessage("a message begins with a JSON object in a line of its own")
    return header, message[end + 1 :]


def body_of(parts: Sequence[bytes]) -> bytes:
    """The inverse of `parts_of`."""
    return b"".join(piece for part in parts for piece in (_LENGTH.pack(len(part)), part))


def parts_of(body: bytes) -> list[bytes]:
    """The parts of a reply.

    Raises:
      MalformedMessage: they are not as long as they say.
    """
    parts, at = [], 0
    while at < len(body):
        if at + _LENGTH.size > len(body):
            raise MalformedMessage("a reply ends inside a length")
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if length > len(body) - at:
            raise MalformedMessage("a reply ends inside a part")
        parts.append(body[at : at + length])
        at += length
    return parts


def ask(
    directory: str | os.PathLike, header: dict[str, Any], payload: bytes = b"", timeout: float = 60.0
) -> tuple[dict[str, Any], list[bytes]]:
    """Sends one request to the trainer of `directory` and waits for its reply.

    Args:
      directory: the trainer's own.
      header: `{"op": "exchange", "wait": seconds, "max": K, "acknowledged": round}`, `{"op": "status"}` or `{"op": "stop"}`.
      payload: an encoded `GlobalModel` for "exchange", or nothing.
      timeout: seconds to wait for the reply, on top of the header's "wait".

    Returns:
      The reply's header and its parts: encoded updates, oldest first.

    Raises:
      FederatedError: there is no trainer, it refuses the key or the request, or does not answer in time.
      MalformedMessage: the reply makes no sense.
    """
    folder = Path(directory)
    try:
        with Client(str(folder / SOCKET), "AF_UNIX", authkey=(folder / KEY).read_bytes()) as connection:
            connection.send_bytes(json.dumps(header).encode() + b"\n" + payload)
            if not connection.poll(float(header.get("wait", 0.0)) + timeout):
                raise FederatedError(f"the trainer of {folder} does not answer")
            reply, body = split(connection.recv_bytes(MAX_REPLY))
    except (OSError, EOFError, AuthenticationError) as error:
        raise FederatedError(f"no trainer answers in {folder}: {error!r}") from error
    if "error" in reply:
        raise FederatedError(f"the trainer of {folder} refuses: {reply['error']}")
    return reply, parts_of(body)


class Server:
    """Answers requests in threads of its own until `close`. The directory must be nobody else's (see `ClientFolder`).

    Args:
      directory: made private (0700); a socket that a killed process left behind is replaced.
      answer: `(header, payload) -> (header, parts)`; what it raises is told to the asker by the kind of error, and to
        `tell`.
      max_bytes: the longest request; a longer one ends the connection unread.
      tell: is called with a line for each request that was refused.

    Raises:
      FederatedError: the path is too long for a socket.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        answer: Answer,
        max_bytes: int = MAX_BYTES + MAX_HEADER,
        tell: Callable[[str], None] = lambda line: None,
    ):
        self._folder, self._answer, self._max_bytes, self._tell = Path(directory), answer, max_bytes, tell
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o700)  # before anything is in it that others could reach
        path = self._folder / SOCKET
        if len(os.fsencode(path)) > LONGEST_PATH:
            raise FederatedError(f"the path of a socket has at most {LONGEST_PATH} bytes; got {path}")
        self._key = secrets.token_bytes(32)
        fresh = self._folder / f"{KEY}.new"
        fresh.unlink(missing_ok=True)
        files.write_secret(fresh, self._key)
        os.replace(fresh, self._folder / KEY)
        path.unlink(missing_ok=True)
        self._listener = Listener(str(path), "AF_UNIX", backlog=16)
        path.chmod(0o600)
        self._closed = False
        self._requests: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept, name="tfdpbc-socket", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops listening; requests that are being answered have some seconds to end: the process may end after this."""
        if self._closed:
            return
        self._closed = True
        # A blocked accept is woken by a connection only.
        with contextlib.suppress(OSError, EOFError, AuthenticationError):
            Client(str(self._folder / SOCKET), "AF_UNIX").close()
        self._thread.join(PATIENCE)
        self._listener.close()
        until = time.monotonic() + PATIENCE
        for request in self._requests:
            if request is not threading.current_thread():
                request.join(max(0.0, until - time.monotonic()))

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection = self._listener.accept()
            except OSError:
                continue
            if self._closed:
                connection.close()
                return
            # The handshake is in the thread, too: who connects and says nothing must not keep others waiting.
            request = threading.Thread(target=self._serve, args=(connection,), name="tfdpbc-request", daemon=True)
            self._requests = [one for one in self._requests if one.is_alive()] + [request]
            request.start()

    def _serve(self, connection: Connection) -> None:
        with connection:
            try:
                late = threading.Timer(PATIENCE, _hang_up, args=(connection,))
                late.daemon = True
                late.start()
                try:
                    deliver_challenge(connection, self._key)
                    answer_challenge(connection, self._key)
                    message = connection.recv_bytes(self._max_bytes)
                finally:
                    late.cancel()
            except (OSError, EOFError, AuthenticationError, ValueError, AssertionError) as error:
                self._tell(f"connection refused: {type(error).__name__}")
                return
            try:
                reply = pack(*self._answer(*split(message)))
            except MalformedMessage as error:
                self._tell(f"malformed request: {error}")
                reply = pack({"error": str(error)})
            except Exception as error:
                # Nothing of the training may leave in the text of an error.
                self._tell(f"request failed: {error!r}")
                reply = pack({"error": type(error).__name__})
            with contextlib.suppress(OSError):
                connection.send_bytes(reply)


def _hang_up(connection: Connection) -> None:
    """Ends the blocking read of another thread (closing the descriptor alone does not)."""
    import socket as sockets

    with contextlib.suppress(OSError), sockets.socket(fileno=os.dup(connection.fileno())) as raw:
        raw.shutdown(sockets.SHUT_RDWR)
