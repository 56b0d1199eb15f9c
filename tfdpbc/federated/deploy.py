"""Starts Flower's programs for a server and for a client: with TLS and registered node keys, or without on loopback only."""

from __future__ import annotations

import dataclasses
import importlib.util
import ipaddress
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import tfdpbc.federated
from tfdpbc.errors import FederatedError
from tfdpbc.federated import files, keys
from tfdpbc.federated.processes import NODE, Processes, listens

START_SECONDS, FREE_SECONDS = 90.0, 5.0
_PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "tfdpbc-federation"
version = "1.0.0"
description = "Asynchronous private training"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "tfdpbc"

[tool.flwr.app.components]
serverapp = "tfdpbc_federation.server:app"
clientapp = "tfdpbc_federation.client:app"

[tool.flwr.app.config]
folder = {folder}
"""


@dataclasses.dataclass(frozen=True)
class Address:
    """Where the server listens and how one speaks to it.

    Attributes:
      host, port: the super-link's.
      certificates: folder with `ca.pem` (on the server `server.pem` and `server.key` as well); None speaks in the clear.
    """

    host: str
    port: int
    certificates: Path | None

    def __post_init__(self):
        if self.certificates is None and not is_loopback(self.host):
            raise FederatedError(f"without TLS (--insecure) the server must listen on loopback, not on {self.host}")

    @property
    def text(self) -> str:
        return _joined(self.host, self.port)

    @property
    def here(self) -> str:
        """The host by which the server's own machine reaches it."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)

    def file(self, name: str) -> Path:
        return Path(self.certificates or ".").resolve() / name


def is_loopback(host: str) -> bool:
    """Whether an address leads nowhere but to this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def require_flower() -> None:
    """Raises FederatedError, with what to install, where Flower is missing. Does not import it."""
    if importlib.util.find_spec("flwr") is None:
        raise FederatedError("Flower is missing: pip install 'tfdpbc[federated]'")


def environment(home: Any) -> dict[str, str]:
    """For Flower's programs: nothing is sent home, looked up or installed; its own folder is `home`."""
    package = Path(tfdpbc.federated.__file__).resolve().parents[2]
    path = [str(package), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Nobody but this machine may say for whom it speaks (`link.is_local`).
        "FORWARDED_ALLOW_IPS": "127.0.0.1",
        "FLWR_HOME": str(Path(home).resolve()),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def program(name: str) -> Path:
    """A program of Flower's, as installed beside this interpreter.

    Raises:
      FederatedError: it is not there.
    """
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise FederatedError(f"{path} is missing: pip install 'tfdpbc[federated]'")
    return path


def start_server(processes: Processes, address: Address, database: Any) -> None:
    """Starts the super-link (process "superlink") and waits until it listens; `database` keeps what it knows of nodes.

    Raises:
      FederatedError: somebody else listens there, or it does not start.
    """
    until = time.monotonic() + FREE_SECONDS  # a former one that was killed
    while listens(address.here, address.port):
        if time.monotonic() > until:
            raise FederatedError(f"port must be free; another process listens on {address.text}")
        time.sleep(0.2)
    security: list[Any] = ["--insecure"]
    if address.certificates is not None:
        security = ["--ssl-ca-certfile", address.file(keys.CA), "--ssl-certfile", address.file(keys.CERTIFICATE)]
        security += ["--ssl-keyfile", address.file(keys.PRIVATE), "--enable-supernode-auth"]
    command = [sys.executable, "-m", "tfdpbc.federated.link", "--host", address.host, "--port", address.port, *security]
    command += ["--database", Path(database).resolve()]
    processes.start("superlink", command)
    processes.wait_for("the super-link listens", lambda: listens(address.here, address.port), START_SECONDS)


def configure(home: Any, address: Address) -> None:
    """Tells Flower's command line (in `home`) where the super-link is."""
    lines = ["[superlink.tfdpbc]", f"address = {json.dumps(_joined(address.here, address.port))}"]
    if address.certificates is None:
        lines.append("insecure = true")
    else:
        lines.append(f"root-certificates = {json.dumps(str(address.file(keys.CA)))}")
    home = Path(home)
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text("\n".join(lines) + "\n")


def register_all(processes: Processes, public_keys: dict[str, Path], memory: Any) -> dict[str, int]:
    """Registers the keys that `memory`, a JSON file, does not know yet; all clients' node ids."""
    path = Path(memory)
    known = json.loads(path.read_text()) if path.exists() else {}
    for client, key in public_keys.items():
        if client not in known:
            known[client] = register(processes, key)
            text = json.dumps(known, indent=2).encode()
            files.write_atomically(path, lambda file, text=text: file.write(text))
    return {client: known[client] for client in public_keys}


def register(processes: Processes, public_key: Any) -> int:
    """Lets the holder of a key in; the id of its node from now on."""
    command = [program("flwr"), "supernode", "register", Path(public_key).resolve(), "tfdpbc", "--format", "json"]
    said = processes.run("register", command)
    try:
        return int(json.loads(said[said.index("{") : said.rindex("}") + 1])["node-id"])
    except (ValueError, KeyError, TypeError) as error:
        raise FederatedError(f"Flower did not register {public_key}: {' '.join(said.split())[-300:]}") from error


def start_run(processes: Processes, app: Any, folder: Any) -> None:
    """Hands the server app to the super-link, which runs it; `app` is where its project is written."""
    app = Path(app)
    package = app / "tfdpbc_federation"
    package.mkdir(parents=True, exist_ok=True)
    (app / "pyproject.toml").write_text(_PROJECT.format(folder=json.dumps(str(Path(folder).resolve()))))
    (package / "__init__.py").write_text("")
    for half in ("server", "client"):
        # Flower looks for an assignment in the text.
        text = f"from tfdpbc.federated import flower_{half}\n\napp = flower_{half}.app\n"
        (package / f"{half}.py").write_text(text)
    processes.run("run", [program("flwr"), "run", app.resolve(), "tfdpbc"])


def start_node(processes: Processes, name: str, address: Address, directory: Any, key: Any = None) -> None:
    """Starts the node of a client (process "node-NAME"), which talks to the trainer in `directory`.

    Args:
      key: its private key; without one the server must be started without TLS.
    """
    command = [sys.executable, "-m", "tfdpbc.federated.node", "--server", address.text]
    command += ["--trainer", Path(directory).resolve()]
    if address.certificates is not None:
        command += ["--ca", address.file(keys.CA), "--key", Path(key).resolve()]
    processes.start(f"{NODE}{name}", command)


def start_trainer(processes: Processes, name: str, config: Any) -> None:
    """Starts the trainer of a configuration file (process "trainer-NAME")."""
    processes.start(f"trainer-{name}", [sys.executable, "-m", "tfdpbc.federated.trainer", Path(config).resolve()])
