"""The courier: a Flower ClientApp that carries bytes between the server and the trainer's local socket.

Flower starts a process for each message, so nothing here loads TensorFlow. A courier keeps nothing and judges nothing: what
it hands on is what the trainer released.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np

from tfdpbc.errors import TfdpbcError
from tfdpbc.federated.flower_missing import explain
from tfdpbc.federated.socket import ask, body_of

with explain():
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp

LONGEST_LINGER = 10.0

app = ClientApp()


def packed(data: bytes) -> ArrayRecord:
    """Bytes as a record (Flower sends large ones in chunks)."""
    return ArrayRecord([np.frombuffer(data, np.uint8)])


def unpacked(record: ArrayRecord) -> bytes:
    """The inverse of `packed`; raises whatever Flower raises on a record that is not one."""
    (array,) = record.to_numpy_ndarrays()
    return array.astype(np.uint8, casting="no").tobytes()


def carry(directory: str, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Brings what the server sent, lingers, takes along what there is then.

    Raises:
      FederatedError, MalformedMessage: as `socket.ask`.
    """
    header = header | {"op": "exchange"}  # a server has no business with the others
    linger = min(max(float(header.pop("linger", 0.0)), 0.0), LONGEST_LINGER)
    if linger:
        ask(directory, header | {"wait": 0.0, "max": 1}, payload)
        time.sleep(linger)
        payload = b""
    return ask(directory, header, payload)


@app.query()
def exchange(message: Message, context: Context) -> Message:
    """One request to the trainer named in the node's configuration, and its reply."""
    content = message.content
    payload = unpacked(content["model"]) if "model" in content else b""
    reply = RecordDict()
    try:
        header, parts = carry(str(context.node_config["trainer"]), json.loads(content["request"]["header"]), payload)
    except TfdpbcError as error:
        header, parts = {"error": type(error).__name__}, []  # the trainer may be restarting; paths stay here
    reply["reply"] = ConfigRecord({"header": json.dumps(header)})
    if parts:
        reply["updates"] = packed(body_of(parts))  # in one piece: Flower makes several requests for each
    return Message(reply, reply_to=message)
