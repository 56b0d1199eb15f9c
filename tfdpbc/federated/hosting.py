"""A server or a client on a machine of its own (`tfdpbc federate server`, `tfdpbc federate client`)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tfdpbc.errors import FederatedError
from tfdpbc.federated import deploy, files, keys, loop, store
from tfdpbc.federated.messages import GlobalModel, is_client_name
from tfdpbc.federated.processes import NODE, Processes
from tfdpbc.federated.socket import ask

STATUS_SECONDS, APP_SECONDS = 2.0, 120.0
REFUSED_SECONDS = 150.0
"""How long a node that ends is started again: a super-link refuses a node that it counts as online, and it does so for up to
20 s after that node was killed (`node.connect`); and it refuses keys while a server that starts is still registering them."""


def serve(
    folder: Any,
    *,
    initial: Path | None,
    public_keys: Path | None,
    names: tuple[str, ...],
    host: str,
    hosts: tuple[str, ...],
    port: int,
    max_seconds: float | None,
    insecure: bool,
    statistics: bool,
    tell: Callable[[str], None],
    **coordinator: Any,
) -> dict[str, Any]:
    """Runs a server, from the beginning or from its folder's checkpoint, until its loop ends; the loop's result.

    Args:
      folder: see `loop.prepare`; ``certificates/ca.pem`` in it is what clients need.
      initial: a .keras file, for the first start.
      public_keys: folder of the clients' public keys, ``CLIENT.pub``.
      names: the clients, where there are no keys.
      host, port: to listen on.
      hosts: names in the certificate, beside `host`.
      statistics: the clients' plans release batch normalisation's moving statistics, which then belong to the model.
      coordinator: settings of `Coordinator`.

    Raises:
      FederatedError: something is missing or did not start.
    """
    deploy.require_flower()
    folder = Path(folder).resolve()
    public, clients = _who_may(public_keys, names, insecure)
    address = deploy.Address(host, port, None if insecure else folder / "certificates")
    first = _first_model(folder, initial, statistics)
    loop.check(first, coordinator | {"clients": clients}, ends := {"clients": clients, "max_seconds": max_seconds})
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _alone(folder / "serving", f"another server runs in {folder}"):
        _certificates(address, host, hosts)
        for stale in (loop.RESULT, loop.FAILED):
            (folder / stale).unlink(missing_ok=True)
        with Processes(folder / "logs", deploy.environment(folder / "flower")) as processes:
            deploy.configure(folder / "flower", address)
            deploy.start_server(processes, address, folder / "flower.db")
            senders = deploy.register_all(processes, public, folder / "nodes.json") if public else None
            loop.prepare(folder, first, coordinator | {"clients": clients, "senders": senders}, ends)
            deploy.start_run(processes, folder / "app", folder)
            tell(f"listening on {address.text}, waiting for {', '.join(clients)}")
            return _result(folder, processes)


def _result(folder: Path, processes: Processes) -> dict[str, Any]:
    """What the server's loop leaves, once it has ended."""
    alive = time.monotonic()
    while not (folder / loop.RESULT).exists():
        for name, status in processes.ended().items():
            raise FederatedError(f"{name} ended with status {status}; see {folder / 'logs'}")
        if (folder / loop.FAILED).exists():
            raise FederatedError(f"the server's app failed: {(folder / loop.FAILED).read_text()}")
        if files.is_locked(folder / loop.LOCK):
            alive = time.monotonic()
        elif time.monotonic() - alive > APP_SECONDS:
            raise FederatedError(f"the server's app does not run; see {folder / 'logs'}")
        time.sleep(0.5)
    return json.loads((folder / loop.RESULT).read_text())


def _who_may(public_keys: Path | None, names: tuple[str, ...], insecure: bool) -> tuple[dict[str, Path], list[str]]:
    """The clients' public keys, where there are some, and their names."""
    if insecure and public_keys is not None:
        raise FederatedError("--keys and --insecure exclude each other; without keys, name each client by --client")
    if names and not insecure:
        raise FederatedError("--client is for --insecure only: with keys, the clients are those of --keys")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise FederatedError(f"--client: {', '.join(twice)} more than once")
    public = {} if insecure else _public_keys(public_keys)
    clients = sorted(public or names)
    if not clients:
        raise FederatedError(
            "no client may take part: " + ("--client is missing" if insecure else f"no CLIENT.pub in {public_keys}")
        )
    return public, clients


def _first_model(folder: Path, initial: Path | None, statistics: bool) -> GlobalModel:
    """The model that the federation began with, or begins with now."""
    if not (folder / loop.INITIAL).exists():
        return read_keras(initial, statistics)
    first = loop.read_initial(folder)
    if initial is not None:
        given = read_keras(initial, statistics).weights
        if len(given) != len(first.weights) or not all(map(np.array_equal, given, first.weights)):
            raise FederatedError(f"--initial: {initial} is not the model that {folder} began with")
    return first


def join(
    config: Any,
    address: str,
    ca: Path | None,
    key: Path | None,
    insecure: bool,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Runs a trainer and its node until the plan is used up and the server has every update; the last status.

    Raises:
      FederatedError: something is missing, did not start or ended.
    """
    deploy.require_flower()
    name, directory = _who(config)
    there = _address(address, ca, key, insecure)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    _alone(directory / store.LOCK, f"another process trains in {directory}").close()
    with Processes(directory / "logs", deploy.environment(directory / "flower")) as processes:
        deploy.start_trainer(processes, name, config)
        processes.wait_for("the trainer is ready", lambda: _status(directory) is not None, deploy.START_SECONDS)
        deploy.start_node(processes, name, there, directory, key)
        said, told, began, well = -1, set(), time.monotonic(), time.monotonic()
        while True:
            ended = processes.ended()
            over = ended.get(f"{NODE}{name}") == 0  # the server was told
            if f"{NODE}{name}" not in ended and time.monotonic() - began > REFUSED_SECONDS / 2:
                well = time.monotonic()  # it was let in
            elif not over and f"{NODE}{name}" in ended and time.monotonic() - well < REFUSED_SECONDS:
                log = directory / "logs" / f"{NODE}{name}.log"
                tell(f"the server does not take this client yet; trying again (its words: {log})")
                time.sleep(STATUS_SECONDS)
                processes.end(f"{NODE}{name}")
                deploy.start_node(processes, name, there, directory, key)
                began = time.monotonic()
            for missed, status in processes.missed().items():
                raise FederatedError(f"{missed} ended with status {status}; see {directory / 'logs'}")
            for line in processes.output(f"trainer-{name}").splitlines():
                if line.startswith(f"{name}: ") and line not in told:
                    told.add(line)
                    tell(line)
            now = _status(directory)
            if now is not None and now["round"] != said:
                said = now["round"]
                tell(f"round {said} of {now['rounds']}, ε = {now['epsilon']} at δ = {now['delta']}")
            if over and now is not None and now["finished"]:
                return now
            time.sleep(STATUS_SECONDS)


def _address(text: str, ca: Path | None, key: Path | None, insecure: bool) -> deploy.Address:
    """Where the server is and how to speak to it, once certificate and key have been looked at."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise FederatedError(f"--server must be HOST:PORT; got {text}")
    if insecure:
        if ca is not None or key is not None:
            raise FederatedError("--insecure excludes --ca and --key")
        return deploy.Address(host.strip("[]"), int(port), None)
    if ca is None or key is None:
        raise FederatedError("--ca (the server's ca.pem) or --key (this client's private key) is missing")
    if ca.name != keys.CA:
        raise FederatedError(f"--ca: the certificate's file must be called {keys.CA}; got {ca}")
    keys.check_certificate(ca)
    keys.read_private(key)
    return deploy.Address(host.strip("[]"), int(port), ca.resolve().parent)


def _alone(path: Path, otherwise: str) -> Any:
    """A lock; a former holder that was killed may take a moment to go."""
    try:
        return files.lock(path, seconds=deploy.FREE_SECONDS)
    except BlockingIOError:
        raise FederatedError(otherwise) from None


def _who(config: Any) -> tuple[str, Path]:
    """Name and folder of a client, from its trainer's configuration."""
    try:
        given = json.loads(Path(config).read_text(encoding="utf-8"))
        name, directory = given["client"], Path(given["directory"]).resolve()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FederatedError(f"{config} is no client's configuration: {error!r}") from error
    if not is_client_name(name):
        raise FederatedError(f"{config}: client must be 1 to 64 letters, digits and ._-; got {name!r}")
    return name, directory


def _status(directory: Path) -> dict[str, Any] | None:
    try:
        return ask(directory, {"op": "status"}, timeout=30.0)[0]
    except FederatedError:
        return None


def _public_keys(folder: Path | None) -> dict[str, Path]:
    if folder is None:
        raise FederatedError("--keys is missing: the folder of the clients' public keys")
    found = {path.stem: path for path in sorted(Path(folder).glob("*.pub"))}
    if wrong := [name for name in found if not is_client_name(name)]:
        raise FederatedError(f"{folder}: a key's file is CLIENT.pub, with 1 to 64 letters, digits and ._-; got {wrong}")
    seen: dict[Any, str] = {}
    for name, path in found.items():
        other = seen.setdefault(keys.read_public(path).public_numbers(), name)
        if other != name:
            raise FederatedError(
                f"--keys: {other}.pub and {name}.pub in {folder} are one key; each client needs its own"
            )
    return found


def _certificates(address: deploy.Address, host: str, hosts: tuple[str, ...]) -> None:
    if address.certificates is None:
        return
    named = [h for h in dict.fromkeys([address.here, host, *hosts]) if h not in ("0.0.0.0", "::")]
    if not address.file(keys.PRIVATE).exists():
        keys.make_certificates(address.certificates, named)  # `here`: the server's own programs must find it as well
    keys.check_certificate(address.file(keys.CERTIFICATE), named)


def read_keras(path: Path | None, statistics: bool = False) -> GlobalModel:
    """The initial model, in the order of `local.released_variables`."""
    if path is None:
        raise FederatedError("--initial is missing: the model to begin with")
    if path.suffix != ".keras":  # other formats may run code of whoever made the file
        raise FederatedError(f"--initial must be a .keras file; got {path}")
    import keras

    from tfdpbc.compatibility import data_written_state

    net = keras.saving.load_model(path, compile=False)
    released = [*net.trainable_variables, *(moving := data_written_state(net, "private" if statistics else None))]
    if statistics and not moving:
        raise FederatedError(f"--private-statistics: {path} has no batch normalisation")
    return GlobalModel(0, tuple(np.asarray(v, np.float32) for v in released))
