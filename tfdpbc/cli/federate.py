"""`tfdpbc federate`: many clients and a server, on one machine or on several."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import click

from tfdpbc.cli.base import SETTINGS, Command
from tfdpbc.cli.quiet import load_tensorflow
from tfdpbc.federated.demo import Demo
from tfdpbc.federated.splits import KINDS

FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.group(context_settings=SETTINGS)
def federate() -> None:
    """Asynchronous private training of many clients, on Flower (pip install 'tfdpbc[federated]')."""


@federate.command(cls=Command)
@click.option("--clients", type=int, default=Demo.clients, help="How many clients.")
@click.option("--examples", type=int, default=Demo.examples, help="Examples of glyphs per client.")
@click.option("--epochs", type=int, default=Demo.epochs, help="Epochs of each client's plan.")
@click.option("--batch-size", type=int, default=Demo.batch_size, help="Examples of a client's round, expected.")
@click.option("--epsilon", type=float, default=Demo.epsilon, help="Each client's promise.")
@click.option("--split", type=click.Choice(KINDS), default=Demo.split, help="How the data set is dealt out.")
@click.option("--insecure", is_flag=True, help="Without TLS and keys, on loopback.")
@click.option("--compare/--no-compare", default=True, help="Train each client alone as well, to compare with.")
@click.option("--max-seconds", type=float, default=Demo.max_seconds, help="Training ends after that, finished or not.")
@click.option("--out", type=FOLDER, help="Keep everything in this new folder (keys, ledgers, logs).")
def demo(out: Path | None, compare: bool, insecure: bool, **given: Any) -> None:
    """A federation on this machine: super-link, nodes and trainers in processes of their own, over TLS."""
    import tempfile

    from tfdpbc.federated import demo as running

    _end_on_sigterm()
    chosen = running.Demo(secure=not insecure, **given)
    with tempfile.TemporaryDirectory(prefix="tfdpbc-") as place:
        folder = out or Path(place) / "demo"
        told = running.run(chosen, folder, lambda line: click.echo(line, err=True))
        found = running.accuracies(chosen, folder) if compare else {"global": running.global_accuracy(folder)}
    click.echo(running.describe(chosen, told, found))


@federate.command(cls=Command)
@click.option(
    "--folder", type=FOLDER, required=True, help="The server's: certificates, checkpoint, log. Resumed if there."
)
@click.option("--initial", type=FILE, help="The initial model, a .keras file as the clients have it (first start).")
@click.option(
    "--private-statistics",
    "statistics",
    is_flag=True,
    help="The clients' plans release batch normalisation's statistics: they belong to the model.",
)
@click.option(
    "--keys", "public_keys", type=FOLDER, help="CLIENT.pub of each client that may take part (made by `federate key`)."
)
@click.option("--client", "names", multiple=True, help="With --insecure: the name of a client; once for each.")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--name", "hosts", multiple=True, help="Names or addresses by which clients reach it (certificate).")
@click.option("--port", type=int, default=9092, help="Port to listen on.")
@click.option("--share", type=float, default=1.0, help="Broadcast once this share of the clients sent something new.")
@click.option("--max-norm", type=float, default=1e4, help="Longer updates are refused.")
@click.option("--max-lag", type=int, help="Updates older than so many broadcasts are not added.")
@click.option("--staleness", type=click.Choice(["constant", "polynomial"]), default="constant", help="Factor by lag.")
@click.option("--aggregator", type=click.Choice(["sum", "trimmed"]), default="sum", help="Trimmed: robust, see docs.")
@click.option("--trim", type=int, default=1, help="How many clients' sums are left out.")
@click.option("--max-seconds", type=float, help="End after that.")
@click.option("--insecure", is_flag=True, help="Without TLS and keys; loopback only.")
def server(folder: Path, **given: Any) -> None:
    """Run the server until every client has finished its plan."""
    _end_on_sigterm()
    load_tensorflow()
    from tfdpbc.federated import hosting

    reason = hosting.serve(folder, tell=lambda line: click.echo(line, err=True), **given)
    click.echo(json.dumps(reason, indent=2))


@federate.command(cls=Command)
@click.option("--config", type=FILE, required=True, help="The trainer's configuration (docs/federated.md).")
@click.option("--server", "address", required=True, help="HOST:PORT of the server.")
@click.option("--ca", type=FILE, help="The server's ca.pem.")
@click.option("--key", type=FILE, help="This client's private key, CLIENT.key.")
@click.option("--insecure", is_flag=True, help="Without TLS and keys; loopback only.")
def client(config: Path, address: str, ca: Path | None, key: Path | None, insecure: bool) -> None:
    """Train on this machine's data until the plan is used up and the server has it all; restarted, it goes on."""
    _end_on_sigterm()
    load_tensorflow()
    from tfdpbc.federated import hosting

    status = hosting.join(config, address, ca, key, insecure, lambda line: click.echo(line, err=True))
    click.echo(json.dumps(status, indent=2))


@federate.command(cls=Command)
@click.argument("client")
@click.option("--folder", type=FOLDER, default=Path("."), help="Where CLIENT.key and CLIENT.pub are written.")
def key(client: str, folder: Path) -> None:
    """Make a client's key pair; CLIENT.pub goes to the server, CLIENT.key stays."""
    from tfdpbc.federated import keys

    for path in keys.make_node_key(folder, client):
        click.echo(path)


def _end_on_sigterm() -> None:
    """So that `with` blocks end what they started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
