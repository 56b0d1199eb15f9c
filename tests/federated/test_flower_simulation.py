"""The server, couriers and (stand-in) trainers on Flower's simulation engine."""

import numpy as np
import pytest

from tfdpbc.federated import log, loop
from tfdpbc.federated.messages import GlobalModel

from .test_flower import StandIn
from .test_loop import START


@pytest.mark.slow
def test_all_steps_arrive_through_ray(tmp_path):
    pytest.importorskip("flwr")
    pytest.importorskip("ray")
    from tfdpbc.federated import flower_simulation

    names = ["a", "b", "c"]
    stand_ins = {name: StandIn(tmp_path / name, name, 6, 0.2) for name in names}
    folder = tmp_path / "server"
    settings = {"max_norm": 1e3, "clients": names}
    loop.prepare(folder, GlobalModel(0, (START,)), settings, {"clients": names, "max_seconds": 120})
    try:
        reason = flower_simulation.run(folder, [tmp_path / name for name in names])
    finally:
        for stand_in in stand_ins.values():
            stand_in.server.close()
    clients = {name: stand_in.client for name, stand_in in stand_ins.items()}
    assert reason == "finished" and [client.round for client in clients.values()] == [6, 6, 6]
    log.check(folder / loop.LOG, {name: client.round for name, client in clients.items()})
    total = sum(client.total for client in clients.values())
    np.testing.assert_array_equal(loop.last_model(folder).weights[0][0], total)
