"""The trainer process: ``python -m tfdpbc.federated.trainer CONFIG.json`` runs one client until it is told to stop.

The file is a JSON object:

    client              the client's name
    directory           folder of ledger, outbox, socket and key (0700)
    data                {"dataset": name for data.load, "data_dir", "examples", "clients", "index", "split", "split_seed",
                        "classes_per_client"}: the part number `index` of a split of a data set among `clients`; or
                        {"npz": path, "classes": n} with arrays x (already scaled) and y
    model               {"name": for models.build, "normalization", "seed"}, or {"keras": path of a .keras file}
    plan                PrivacyPlan.to_config()
    optimizer           {"learning_rate", "momentum"} of SGD
    physical_batch_size, engine       of PrivateModel (default: chosen)
    max_outbox, wait_for_model, checkpoint_seconds, delta     of `Trainer`

Noise and sampling come from the operating system; no seed can be given.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np

from tfdpbc import _validate, data, models
from tfdpbc.compatibility import batch_normalizations
from tfdpbc.errors import FederatedError, MalformedMessage, TfdpbcError
from tfdpbc.federated.local import Trainer, released_variables
from tfdpbc.federated.messages import GlobalModel, decode
from tfdpbc.federated.processes import end_with_parent
from tfdpbc.federated.socket import Server
from tfdpbc.federated.splits import split
from tfdpbc.keras_model import PrivateModel
from tfdpbc.plan import PrivacyPlan

__all__ = ["Serving", "Trainer", "from_config", "main", "released_variables"]

_REQUIRED = ("client", "directory", "data", "model", "plan", "optimizer")
_TRAINER = ("max_outbox", "wait_for_model", "checkpoint_seconds", "delta")
_KEYS = {*_REQUIRED, *_TRAINER, "physical_batch_size", "engine"}
_DATA = {
    "dataset",
    "data_dir",
    "examples",
    "clients",
    "index",
    "split",
    "split_seed",
    "classes_per_client",
    "npz",
    "classes",
}


class Serving:
    """A trainer behind its socket: answers "exchange", "status" and "stop" (see `socket.ask`).

    Args:
      trainer: whose `run` somebody else calls.
      directory: of the socket.
      tell: is called with a line for each refused request.
    """

    def __init__(self, trainer: Trainer, directory: Any, tell: Any = lambda line: None):
        self.trainer, self.stopped = trainer, threading.Event()
        self._server = Server(directory, self._answer, tell=tell)

    def close(self) -> None:
        """Answers no more."""
        self._server.close()

    def _answer(self, header: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], list[bytes]]:
        op = header.get("op")
        if op == "exchange":
            if set(header) - {"op", "wait", "max", "acknowledged"}:
                raise MalformedMessage("exchange has the fields wait, max and acknowledged")
            if payload:
                model = decode(payload)
                if not isinstance(model, GlobalModel):
                    raise MalformedMessage("what a trainer takes in is a global model")
                self.trainer.receive(model)
            updates = self.trainer.exchange(
                header.get("wait", 0.0), header.get("max", 64), header.get("acknowledged", 0)
            )
            return {"count": len(updates), **self.trainer.facts()}, updates
        if op == "status":
            return self.trainer.status(), []
        if op == "stop":
            self.trainer.stop()
            self.stopped.set()
            return self.trainer.facts(), []
        raise MalformedMessage("op is exchange, status or stop")


def from_config(config: dict[str, Any]) -> Trainer:
    """The trainer that a configuration describes.

    Raises:
      FederatedError: fields that are missing or unknown.
      TfdpbcError, ValueError, TypeError: from what they are handed to.
    """
    unknown = set(config) - _KEYS
    missing = set(_REQUIRED) - set(config)
    if unknown or missing:
        raise FederatedError(f"the configuration lacks {sorted(missing)} and has unknown fields {sorted(unknown)}")
    for name in ("data", "model", "plan", "optimizer"):
        _validate.instance(name, config[name], dict, "a JSON object")
    if (size := config.get("physical_batch_size")) is not None:
        _validate.integer("physical_batch_size", size, at_least=1)  # before a round is spent on it
    x, y, classes = _load(config["data"])
    net = _build(config["model"], x.shape[1:], classes)
    plan = PrivacyPlan.from_config(config["plan"])
    statistics = None
    if batch_normalizations(net):
        statistics = "private" if plan.statistics else "batch"
    model = PrivateModel(
        net,
        plan,
        engine=config.get("engine", "auto"),
        statistics=statistics,
        physical_batch_size=size,
    )
    model.compile(
        optimizer=keras.optimizers.SGD(**config["optimizer"]),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    options = {name: config[name] for name in _TRAINER if name in config}
    return Trainer(model, x, y, client=config["client"], folder=config["directory"], **options)


def _load(config: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, int]:
    unknown = set(config) - _DATA
    if unknown or ("npz" in config) == ("dataset" in config):
        raise FederatedError(f"data must name an npz file or a dataset, not both; unknown fields {sorted(unknown)}")
    if "npz" in config:
        with np.load(config["npz"], allow_pickle=False) as file:
            x, y = file["x"].astype(np.float32), file["y"].astype(np.int32)
        return x, y, _validate.integer("classes", config.get("classes"), at_least=2)  # never what is seen of them
    found = data.load(config["dataset"], data_dir=config.get("data_dir"), split="train", limit=config.get("examples"))
    clients = config.get("clients", 1)
    parts = split(
        config.get("split", "iid"), found.y, clients, config.get("split_seed", 0), config.get("classes_per_client", 2)
    )
    mine = parts[_validate.integer("index", config.get("index", 0), at_least=0, at_most=clients - 1)]
    return found.scaled()[mine], found.y[mine], found.num_classes


def _build(config: dict[str, Any], shape: tuple[int, ...], classes: int) -> keras.Model:
    if "keras" in config:
        if not str(config["keras"]).endswith(".keras"):  # other formats may run code of whoever made the file
            raise FederatedError(f"the model must be a .keras file; got {config['keras']}")
        return keras.saving.load_model(config["keras"], compile=False, safe_mode=True)
    if "name" not in config:
        raise FederatedError("model must have a name, or keras: the path of a .keras file")
    options = {name: value for name, value in config.items() if name != "name"}
    return models.build(config["name"], shape, classes, **options)


def main(arguments: list[str] | None = None) -> int:
    """Runs the client of a configuration file until "stop", SIGTERM or SIGINT; 1 if it could not."""
    end_with_parent()
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 1:
        sys.stderr.write("usage: python -m tfdpbc.federated.trainer CONFIG.json\n")
        return 2
    try:
        config = json.loads(Path(given[0]).read_text(encoding="utf-8"))
        os.umask(0o077)
        trainer = from_config(_validate.instance("config", config, dict, "a JSON object"))
    except (OSError, TfdpbcError, ValueError, TypeError, KeyError) as error:
        sys.stderr.write(f"the client cannot start: {error}\n")
        return 1
    return _serve(trainer, config["directory"])


def _serve(trainer: Trainer, directory: str) -> int:
    def tell(line: str) -> None:
        sys.stderr.write(f"{trainer.client}: {line}\n")
        sys.stderr.flush()

    try:
        serving = Serving(trainer, directory, tell)
    except (TfdpbcError, OSError) as error:
        tell(str(error))
        trainer.close()
        return 1

    def end(*_: Any) -> None:
        # Not in the signal's own frame, which may hold the very lock that `stop` needs.
        serving.stopped.set()
        threading.Thread(target=trainer.stop, daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    tell(f"ready, {trainer.round} of {trainer.model.plan.rounds} rounds spent")
    try:
        trainer.run()
        tell(
            f"round {trainer.round} of {trainer.model.plan.rounds}: " + ("finished" if trainer.finished else "stopped")
        )
        serving.stopped.wait()  # what is in the outbox is still asked for
        return 0
    except Exception as error:
        tell(f"failed: {error!r}")
        return 1
    finally:
        serving.close()
        trainer.close()


if __name__ == "__main__":
    sys.exit(main())
