"""A federation on one machine: a super-link, and a trainer and a node for each client, in processes of their own."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tfdpbc import _validate
from tfdpbc.errors import FederatedError
from tfdpbc.federated import deploy, keys, log, loop
from tfdpbc.federated.messages import GlobalModel
from tfdpbc.federated.processes import Processes, free_port
from tfdpbc.federated.socket import ask

HOST = "127.0.0.1"
MAX_NORM = 1e4


@dataclasses.dataclass(frozen=True)
class Demo:
    """What a demonstration runs.

    Attributes:
      clients: how many, n.
      examples: of glyphs, per client.
      epochs, batch_size, epsilon, delta, norm: every client's plan (Poisson sampling, individual clipping, calibrated).
      learning_rate: of the clients' SGD. The server gives each client the weight 1/n.
      split: "iid" or "label": each client has classes of its own, so none learns the others' alone.
      ahead: updates a client may have unconfirmed; it bounds how far one of these fast clients gets ahead of the network.
      secure: TLS and registered node keys.
      max_seconds: of training; then it ends, finished or not.
    """

    clients: int = 3
    examples: int = 4000
    epochs: int = 6
    batch_size: int = 1000
    epsilon: float = 3.0
    delta: float = 1e-5
    norm: float = 0.5
    learning_rate: float = 0.5
    split: str = "label"
    ahead: int = 4
    secure: bool = True
    max_seconds: float = 100.0

    def __post_init__(self):
        _validate.integer("clients", self.clients, at_least=1, at_most=64)

    @property
    def names(self) -> list[str]:
        return [f"client-{i + 1}" for i in range(self.clients)]


def plan_of(demo: Demo) -> Any:
    """The plan that each client follows with its own data."""
    from tfdpbc.clipping import FullGradientClipping
    from tfdpbc.plan import PrivacyPlan
    from tfdpbc.sampling import Poisson

    sampling = Poisson.individual(num_examples=demo.examples, batch_size=demo.batch_size)
    plan = PrivacyPlan(sampling, FullGradientClipping(demo.norm), 1.0, demo.epochs)
    return plan.calibrate(epsilon=demo.epsilon, delta=demo.delta)


def trainer_config(demo: Demo, plan: Any, i: int, folder: Path) -> dict[str, Any]:
    """The i-th client's configuration (see `trainer`)."""
    share = {"clients": demo.clients, "index": i, "split": demo.split}
    return {
        "client": demo.names[i],
        "directory": str(folder),
        "data": {"dataset": "glyphs", "examples": demo.clients * demo.examples, **share},
        "model": {"name": "mlp"},
        "plan": plan.to_config(),
        "optimizer": {"learning_rate": demo.learning_rate},
        "max_outbox": demo.ahead,
        "delta": demo.delta,
    }


def run(demo: Demo, folder: Any, tell: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Runs the federation and ends every process it started.

    Args:
      folder: a new folder for everything: keys, clients' folders (ledgers), the server's folder, the processes' output.
      tell: is called with lines of progress.

    Returns:
      ``{"result": the server's, "clients": {name: status}, "seconds"}``; the global model is in ``folder/server``.

    Raises:
      FederatedError: something did not start, or the server's log contradicts a ledger.
    """
    deploy.require_flower()
    root = Path(folder).resolve()
    if root.exists() and any(root.iterdir()):
        raise FederatedError(f"{root} is not empty")
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o700)
    begun = time.monotonic()
    plan = plan_of(demo)
    address = deploy.Address(HOST, free_port(), root / "certificates" if demo.secure else None)
    with Processes(root / "logs", deploy.environment(root / "flower")) as processes:
        for i, name in enumerate(demo.names):
            config = root / f"{name}.json"
            config.write_text(json.dumps(trainer_config(demo, plan, i, root / name)))
            deploy.start_trainer(processes, name, config)
        senders = _start_network(demo, root, address, processes)
        tell(f"super-link on {address.text}" + (", TLS, keys registered" if demo.secure else ", in the clear"))
        loop.prepare(root / "server", _initial(demo), *_server_settings(demo, senders))
        deploy.start_run(processes, root / "app", root / "server")
        tell(f"{demo.clients} clients, each {plan.rounds} rounds")
        done = root / "server" / loop.RESULT
        processes.wait_for("the server ended", done.exists, demo.max_seconds + deploy.START_SECONDS)
        status = {name: ask(root / name, {"op": "status"})[0] for name in demo.names}
    log.check(root / "server" / loop.LOG, {name: one["round"] for name, one in status.items()})
    result = json.loads(done.read_text())
    return {"result": result, "clients": status, "seconds": time.monotonic() - begun}


def _start_network(demo: Demo, root: Path, address: deploy.Address, processes: Processes) -> dict[str, int] | None:
    private: dict[str, Any] = {}
    deploy.configure(root / "flower", address)
    if demo.secure:
        keys.make_certificates(root / "certificates", [HOST])
    deploy.start_server(processes, address, root / "flower.db")
    senders = None
    if demo.secure:
        pairs = {name: keys.make_node_key(root / "keys", name) for name in demo.names}
        private = {name: pair[0] for name, pair in pairs.items()}
        public = {name: pair[1] for name, pair in pairs.items()}
        senders = deploy.register_all(processes, public, root / "nodes.json")
    for name in demo.names:
        deploy.start_node(processes, name, address, root / name, private.get(name))
    return senders


def _server_settings(demo: Demo, senders: dict[str, int] | None) -> tuple[dict[str, Any], dict[str, Any]]:
    weights = dict.fromkeys(demo.names, 1.0 / demo.clients)
    coordinator = {"max_norm": MAX_NORM, "share": 0.5, "client_weights": weights, "clients": demo.names}
    return coordinator | {"senders": senders}, {"clients": demo.names, "max_seconds": demo.max_seconds}


def model_of() -> Any:
    """The network that all clients train."""
    from tfdpbc import models

    return models.build("mlp", (28, 28, 1), 10)


def _initial(demo: Demo) -> GlobalModel:
    return GlobalModel(0, tuple(np.asarray(v, np.float32) for v in model_of().trainable_variables))


def global_accuracy(folder: Any) -> float:
    """Test accuracy of the global model of a federation's folder."""
    return _accuracy(loop.last_model(Path(folder) / "server").weights)


def accuracies(demo: Demo, folder: Any) -> dict[str, float]:
    """Test accuracy of the global model, and of what each client comes to alone, by the same plan and from the same start.

    The trainings alone spend each client's plan once more, in ledgers of their own (``alone``): nobody could do so with data
    that need protection, and keep the promise of one plan.

    Returns:
      ``{"global": …, "client-1": …, …}``.
    """
    from tfdpbc.federated.trainer import from_config

    root, plan = Path(folder), plan_of(demo)
    initial, found = loop.read_initial(root / "server"), {"global": global_accuracy(folder)}
    for i, name in enumerate(demo.names):
        config = trainer_config(demo, plan, i, root / "alone" / name) | {"max_outbox": plan.rounds + 1}
        trainer = from_config(config)
        try:
            trainer.receive(initial)
            trainer.run()
            found[name] = _accuracy([np.array(v) for v in trainer.variables])
        finally:
            trainer.close()
    return found


def _accuracy(weights: Any) -> float:
    import keras

    from tfdpbc import data

    test, net = data.load("glyphs", split="test"), model_of()
    for variable, value in zip(net.trainable_variables, weights, strict=True):
        variable.assign(value)
    scores = keras.ops.convert_to_numpy(net.predict(test.scaled(), batch_size=1000, verbose=0))
    return float(np.mean(scores.argmax(axis=1) == test.y))


def describe(demo: Demo, told: dict[str, Any], found: dict[str, float]) -> str:
    """What came out, in words."""
    result = told["result"]
    counts = ", ".join(f"{count} {name}" for name, count in result["counts"].items())
    lines = [f"Global model: accuracy {found['global']:.4f} ({counts}; {result['version']} broadcasts)"]
    for name, status in told["clients"].items():
        alone = f"; alone {found[name]:.4f}" if name in found else ""
        spent = f"{status['round']} of {status['rounds']} rounds"
        promise = "infinite" if status["epsilon"] is None else f"{math.ceil(status['epsilon'] * 1e4) / 1e4:.4f}"
        lines.append(
            f"  {name}: ({promise}, {status['delta']:g})-DP after {spent}, {status['neighbouring']} neighbours{alone}"
        )
    if len(found) > 1:
        lines.append(
            "Alone: the same plan once more on the client's data, to compare with; those models are in no guarantee above."
        )
    lines.append(f"The server's log agrees with every ledger. Ended: {result['reason']}, {told['seconds']:.0f} s.")
    return "\n".join(lines)
