"""Flower's simulation engine (Ray) in place of a super-link and nodes: the same server loop, courier and trainers.

For studies in which time shall not depend on this machine there is `simulation`, with a virtual network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tfdpbc import _validate
from tfdpbc.federated.flower_missing import explain
from tfdpbc.federated.flower_server import GridLink
from tfdpbc.federated.loop import open_folder

with explain():
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.simulation import run_simulation


def run(folder: Any, trainers: Sequence[Any], tell: Callable[[str], None] = lambda line: None) -> str:
    """Runs a prepared server with simulated nodes until it ends; the reason why it ended.

    Args:
      folder: the server's, as `loop.prepare` leaves it. Client names are not bound to keys here, so its settings have no senders.
      trainers: folder of each client's running trainer (`socket.Server`); their guarantees are what they are elsewhere.
      tell: is called with lines of progress.
    """
    directories, reason = [str(one) for one in trainers], []
    _validate.integer("number of trainers", len(directories), at_least=1)
    server, client = ServerApp(), ClientApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        reason.append(open_folder(folder, GridLink(grid), tell).run())

    @client.query()
    def exchange(message: Message, context: Context) -> Message:
        from tfdpbc.federated import flower_client  # in a worker of Ray

        trainer = directories[int(context.node_config["partition-id"])]
        return flower_client.exchange(message, dataclasses.replace(context, node_config={"trainer": trainer}))

    run_simulation(
        server, client, num_supernodes=len(directories), backend_config={"client_resources": {"num_cpus": 1}}
    )
    return reason[0]
