"""What travels between clients and server, as bytes: without pickle, without TensorFlow, without Flower.

A message is ``MAGIC``, one format byte, the length of the header (4 bytes, little endian), the header (JSON, padded with
spaces) and the arrays one after the other, little endian, in C order. The header states kind, numbers and the arrays'
types and shapes, from which the length of the whole follows exactly: nothing is read that was not announced, nothing is
allocated that did not arrive, and nothing is ever executed.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfdpbc.errors import MalformedMessage

MAGIC = b"TFDPBC"
FORMAT = 1
MAX_BYTES = 1 << 30
"""No message is longer than this (1 GiB, some 268 million weights)."""
MAX_HEADER = 1 << 20
MAX_ARRAYS = 1 << 14
MAX_RANK = 8
MAX_INTEGER = 1 << 53
CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", flags=re.ASCII)

_PREFIX = struct.Struct("<6sBI")
_ALIGNMENT = 16
# float64 is readable so that `check_update` can say what is wrong with it; an honest client sends float32.
_TYPES = {"<f4": np.dtype("<f4"), "<f8": np.dtype("<f8")}
_FIELDS = {"update": ("client", "round", "base_version"), "model": ("version",)}


@dataclass(frozen=True, eq=False)
class Update:
    """All that ever leaves a client: one round's noisy step Ū/m with the round's number and the model it came from.

    Args:
        client: The client's own name (letters, digits, ``._-``, at most 64); it outlives the node ids of Flower.
        round: The client's own count of rounds, from 1 (what its ledger counts).
        base_version: Version of the global model the client last took over before the round ended; -1 before the first.
        weights: What is to be added to the released variables, in `PrivateModel`'s order, float32.
    """

    client: str
    round: int
    base_version: int
    weights: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class GlobalModel:
    """A broadcast of the server: the released variables' values, in `PrivateModel`'s order, float32.

    Args:
        version: Counts the broadcasts, from 0 (the initial model).
        weights: The values.
    """

    version: int
    weights: tuple[np.ndarray, ...]


def is_client_name(name: Any) -> bool:
    """Whether `name` may name a client."""
    return isinstance(name, str) and CLIENT_NAME.fullmatch(name) is not None


def encode(message: Update | GlobalModel) -> bytes:
    """The message as bytes.

    Raises:
        MalformedMessage: If `decode` would refuse it.
    """
    if isinstance(message, Update):
        header = {
            "kind": "update",
            "client": message.client,
            "round": message.round,
            "base_version": message.base_version,
        }
    elif isinstance(message, GlobalModel):
        header = {"kind": "model", "version": message.version}
    else:
        raise MalformedMessage(f"a message is an Update or a GlobalModel; got {type(message).__name__}")
    arrays = [np.asarray(array) for array in message.weights]
    header = {key: int(value) if isinstance(value, np.integer) else value for key, value in header.items()}
    header["arrays"] = [[array.dtype.newbyteorder("<").str, list(array.shape)] for array in arrays]
    size = _check_header(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(_PREFIX.size + len(text)) % _ALIGNMENT)
    _check_sizes(len(text), _PREFIX.size + len(text) + size)
    body = [array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes() for array in arrays]
    return b"".join([_PREFIX.pack(MAGIC, FORMAT, len(text)), text, *body])


def decode(data: bytes) -> Update | GlobalModel:
    """The message in `data`; its arrays are read-only views of it.

    The values are what was sent: finite or not, of any size, a round of any sign (`check_update` judges those).

    Raises:
        MalformedMessage: If `data` is anything but one whole message of this format.
    """
    if not isinstance(data, bytes):
        raise MalformedMessage(f"a message is bytes; got {type(data).__name__}")
    if len(data) > MAX_BYTES or len(data) < _PREFIX.size:
        raise MalformedMessage(f"a message has {_PREFIX.size} to {MAX_BYTES} bytes; got {len(data)}")
    magic, version, length = _PREFIX.unpack_from(data)
    if magic != MAGIC or version != FORMAT:
        raise MalformedMessage(f"not a message of format {FORMAT}")
    offset = _PREFIX.size + length
    _check_sizes(length, offset)
    if offset > len(data):
        raise MalformedMessage("the message ends inside its header")
    header = _read_json(data[_PREFIX.size : offset])
    if offset + _check_header(header) != len(data):
        raise MalformedMessage("the message is not as long as its header says")
    arrays = []
    for kind, shape in header["arrays"]:
        count = math.prod(shape)
        arrays.append(np.frombuffer(data, _TYPES[kind], count, offset).reshape(shape))
        offset += count * _TYPES[kind].itemsize
    fields = {name: header[name] for name in _FIELDS[header["kind"]]}
    return (Update if header["kind"] == "update" else GlobalModel)(**fields, weights=tuple(arrays))


def check_update(update: Update, shapes: Sequence[Sequence[int]], max_norm: float) -> str | None:
    """Why the server must not add this update, or None.

    Args:
        update: A decoded update.
        shapes: The shapes of the global model's arrays.
        max_norm: Largest acceptable Euclidean norm of the whole step.

    Returns:
        None, "negative-round", "wrong-shape", "wrong-type", "non-finite" or "too-large".
    """
    if update.round < 0 or update.base_version < -1:
        return "negative-round"
    if [tuple(array.shape) for array in update.weights] != [tuple(shape) for shape in shapes]:
        return "wrong-shape"
    if any(array.dtype != np.float32 for array in update.weights):
        return "wrong-type"
    squares = 0.0
    for array in update.weights:
        # In double precision: the square of 1e30 is no float32, and an overflow must not look like an infinity sent.
        flat = array.astype(np.float64).ravel()
        squares += float(np.dot(flat, flat))
    if not math.isfinite(squares):
        return "non-finite"
    return None if math.sqrt(squares) <= max_norm else "too-large"


def _read_json(text: bytes) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        return json.loads(text.decode("utf-8"), parse_constant=refuse)
    except (ValueError, RecursionError) as error:  # JSON and UTF-8 errors, numbers of too many digits, deep nesting
        raise MalformedMessage("the message's header is no JSON") from error


def _check_sizes(header: int, whole: int) -> None:
    if header > MAX_HEADER or whole > MAX_BYTES:
        raise MalformedMessage(f"a header has at most {MAX_HEADER} bytes and a message {MAX_BYTES}")


def _check_header(header: Any) -> int:
    """Bytes of the arrays that the header announces."""
    kind = header.get("kind") if isinstance(header, dict) else None
    if not isinstance(kind, str) or kind not in _FIELDS or set(header) != {"kind", "arrays", *_FIELDS[kind]}:
        raise MalformedMessage("the header's fields are not those of an update or a model")
    if kind == "update" and not is_client_name(header["client"]):
        raise MalformedMessage("a client's name has 1 to 64 letters, digits and ._- and begins with a letter or digit")
    numbers = [header[name] for name in _FIELDS[kind] if name != "client"]
    if any(type(number) is not int or abs(number) > MAX_INTEGER for number in numbers):
        raise MalformedMessage("rounds and versions are integers")
    if kind == "model" and header["version"] < 0:
        raise MalformedMessage("a model's version is not negative")
    arrays = header["arrays"]
    if not isinstance(arrays, list) or len(arrays) > MAX_ARRAYS:
        raise MalformedMessage(f"a message holds a list of at most {MAX_ARRAYS} arrays")
    return sum(map(_bytes_of, arrays))


def _bytes_of(array: Any) -> int:
    """Bytes of one announced array ``[type, shape]``."""
    if not isinstance(array, list) or len(array) != 2 or not isinstance(array[0], str) or array[0] not in _TYPES:
        raise MalformedMessage(f"an array is announced as [type, shape], its type one of {sorted(_TYPES)}")
    shape = array[1]
    if not isinstance(shape, list) or len(shape) > MAX_RANK:
        raise MalformedMessage(f"a shape is a list of at most {MAX_RANK} sizes")
    if any(type(size) is not int or not 0 <= size <= MAX_BYTES for size in shape):
        raise MalformedMessage("a shape's sizes are integers, none negative")
    size = math.prod(shape) * _TYPES[array[0]].itemsize
    if size > MAX_BYTES:
        raise MalformedMessage(f"a message has at most {MAX_BYTES} bytes")
    return size
