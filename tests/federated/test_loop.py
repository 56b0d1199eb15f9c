"""The server's loop over a transport that loses, repeats, delays and kills, without a network."""

import json
import random

import numpy as np
import pytest

from tfdpbc.errors import RunFolderError
from tfdpbc.federated import log, loop
from tfdpbc.federated.coordinator import Coordinator
from tfdpbc.federated.loop import Loop, Reply, Settings
from tfdpbc.federated.messages import GlobalModel, Update, decode, encode

START = np.zeros(2, np.float32)


class Client:
    """An honest trainer, as the loop sees it: sends what is not acknowledged, oldest first; a step each time it is asked."""

    def __init__(self, name, rounds, steps=1):
        self.name, self.rounds, self.steps = name, rounds, steps
        self.round, self.outbox, self.version, self.models = 0, {}, -1, []

    def answer(self, header, payload):
        if payload:
            model = decode(payload)
            if model.version > self.version:
                self.version = model.version
                self.models.append(model)
        assert set(header) == {"op", "wait", "max", "acknowledged", "linger"}
        for number in [n for n in self.outbox if n <= header["acknowledged"]]:
            del self.outbox[number]
        for _ in range(self.steps if self.version >= 0 else 0):
            if self.round < self.rounds:
                self.round += 1
                values = np.float32([self.round, ord(self.name[0]) % 7 + self.round / 64])
                self.outbox[self.round] = encode(Update(self.name, self.round, self.version, (values,)))
        parts = tuple(self.outbox[n] for n in sorted(self.outbox)[: header["max"]])
        done = self.round == self.rounds and not self.outbox
        return {"client": self.name, "round": self.round, "version": self.version, "finished": done}, parts

    @property
    def total(self):
        return sum(range(1, self.rounds + 1))


class Network:
    """Nodes 1.. with a client each. `chance` of a reply to be lost, repeated or late, from a seed."""

    def __init__(self, *clients, chance=0.0, seed=0):
        self.at = dict(enumerate(clients, start=1))
        self.chance, self.rng = chance, random.Random(seed)
        self.queue, self.ticket, self.time = [], 0, 0.0

    def nodes(self):
        return list(self.at)

    def send(self, node, header, payload):
        self.ticket += 1
        if node not in self.at:
            return None
        reply = Reply(self.ticket, node, *self.at[node].answer(json.loads(json.dumps(header)), payload))
        fate = self.rng.random()
        if fate < self.chance:
            reply = Reply(self.ticket, node)  # the node's answer got lost on its way
        copies = 2 if fate > 1 - self.chance else 1
        self.queue += [(self.time + 5 * self.rng.random() * self.chance, reply)] * copies
        return self.ticket

    def replies(self, tickets):
        due = [reply for at, reply in self.queue if at <= self.time]
        self.queue = [(at, reply) for at, reply in self.queue if at > self.time]
        self.rng.shuffle(due) if self.chance else None
        return due

    def sleep(self, seconds):
        self.time += seconds


def looped(network, folder, settings=None, **given):
    coordinator = Coordinator([START], max_norm=1e6, log=folder / loop.LOG, **given)
    return Loop(coordinator, network, folder, settings or Settings(), clock=lambda: network.time, sleep=network.sleep)


def test_all_finish_and_everything_is_added_once(tmp_path):
    clients = Client("a", 5), Client("b", 8, steps=3)
    network = Network(*clients)
    running = looped(network, tmp_path, Settings(clients=("a", "b")))
    assert running.run() == "finished"
    assert running.coordinator.model.weights[0][0] == sum(c.total for c in clients)
    assert running.coordinator.counts["accepted"] == 13 and not any(c.outbox for c in clients)
    assert json.loads((tmp_path / loop.RESULT).read_text())["reason"] == "finished"
    versions = [m.version for m in clients[1].models]
    assert versions == sorted(set(versions)) and versions[0] == 0 and len(versions) > 1
    log.check(tmp_path / loop.LOG, {"a": 5, "b": 8})


@pytest.mark.parametrize("seed", range(8))
def test_losses_copies_and_delays_change_nothing(tmp_path, seed):
    clients = [Client(name, 12, steps) for name, steps in (("a", 1), ("b", 2), ("c", 5))]
    running = looped(Network(*clients, chance=0.3, seed=seed), tmp_path, Settings(clients=("a", "b", "c")), share=0.5)
    assert running.run() == "finished"
    assert running.coordinator.model.weights[0][0] == sum(c.total for c in clients)
    assert running.coordinator.counts["accepted"] == 36 and running.coordinator.counts["duplicate"] > 0
    assert running.lost > 0
    log.check(tmp_path / loop.LOG, {c.name: c.round for c in clients})


@pytest.mark.parametrize("turns", [0, 1, 3, 7, 20])
def test_a_killed_server_goes_on(tmp_path, turns):
    """Killed between any two turns, without a last checkpoint: the clients still hold what was not on its disk."""
    clients = Client("a", 10), Client("b", 10)
    network = Network(*clients, chance=0.2)
    settings = Settings(clients=("a", "b"), save_seconds=0.3)
    first = looped(network, tmp_path, settings, share=0.5)
    for _ in range(turns):
        first.turn()
        network.sleep(0.05)
    network.queue.clear()  # what was under way is lost with it
    second = looped(network, tmp_path, settings, share=0.5)
    assert second.run() == "finished"
    assert second.coordinator.model.weights[0][0] == sum(c.total for c in clients)
    for client in clients:  # no version number ever stood for two models
        assert len({m.version for m in client.models}) == len(client.models)
    log.check(tmp_path / loop.LOG, {"a": 10, "b": 10})


def test_a_dead_node_stops_nobody_and_may_come_back(tmp_path):
    clients = Client("a", 6), Client("b", 6)
    network = Network(*clients)
    running = looped(network, tmp_path, Settings(clients=("a", "b")))
    for _ in range(5):
        running.turn()
        network.sleep(0.25)
    del network.at[2]
    version = running.coordinator.version
    for _ in range(20):
        running.turn()
        network.sleep(0.25)
    assert running.coordinator.version > version and running.finished == {"a"}
    clients[1].version = -1  # restarted: it lost its model, not its rounds
    network.at[77] = clients[1]  # under another node id
    assert running.run() == "finished"
    assert running.coordinator.model.weights[0][0] == sum(c.total for c in clients)


class Leaving(Network):
    """Whoever has nothing more to send leaves with its reply, which comes later; gives what it is asked for alone, as Flower."""

    def send(self, node, header, payload):
        ticket = super().send(node, header, payload)
        if self.queue and self.queue[-1][1].header["finished"]:
            at, reply = self.queue.pop()
            self.queue.append((self.time + 2.0, reply))
            del self.at[node]
        return ticket

    def replies(self, tickets):
        return [reply for reply in super().replies(tickets) if reply.ticket in tickets]


def test_the_last_reply_of_one_that_has_left_is_heard(tmp_path):
    network = Leaving(Client("a", 3), Client("b", 5))
    running = looped(network, tmp_path, Settings(clients=("a", "b"), max_seconds=60))
    assert running.run() == "finished" and not network.at and running.lost == 0


def test_a_request_that_is_never_answered_is_given_up(tmp_path):
    client = Client("a", 3)
    network = Network(client)
    running = looped(network, tmp_path, Settings(clients=("a",), lost_seconds=10))
    taken = network.replies
    network.replies = lambda tickets: []
    running.turn()
    network.queue.clear()
    network.replies = taken
    assert running.run() == "finished" and running.lost == 1
    assert running.coordinator.model.weights[0][0] == client.total


class Liar(Client):
    """Sends what no trainer sends."""

    def answer(self, header, payload):
        honest, _ = super().answer(header, payload)
        shapes = [np.full(2, np.nan, np.float32), np.zeros(3, np.float32), np.full(2, 1e30, np.float32), np.zeros(2)]
        parts = [encode(Update("evil", n + 1, 0, (value,))) for n, value in enumerate(shapes)]
        # A round of another's name, a future base, rubbish.
        parts += [encode(Update("a", 3, 0, (START + 99,))), encode(Update("evil", 9, 2**40, (START,))), b"?", None]
        return honest | {"client": self.rng_name()}, tuple(parts)

    def rng_name(self):
        return ["a", "../x", None, 7, "evil"][self.round % 5]


def test_one_that_lies_changes_nothing(tmp_path):
    clients = Client("a", 8), Liar("evil", 40)
    running = looped(
        Network(*clients),
        tmp_path,
        Settings(clients=("a",)),
        clients=["a", "evil"],
        senders={"a": 1, "evil": 2},
        share=0.5,
    )
    assert running.run() == "finished"
    assert running.coordinator.model.weights[0][0] == clients[0].total
    counts = running.coordinator.counts
    for outcome in (
        "non-finite",
        "wrong-shape",
        "too-large",
        "wrong-type",
        "wrong-sender",
        "from-the-future",
        "malformed",
    ):
        assert counts[outcome] > 0, outcome
    assert counts["accepted"] == 8 and not clients[0].outbox
    log.check(tmp_path / loop.LOG, {"a": 8, "evil": 40})


@pytest.mark.parametrize("settings, reason", [({"max_updates": 3}, "updates"), ({"max_seconds": 2.0}, "time")])
def test_other_ends(tmp_path, settings, reason):
    running = looped(Network(Client("a", 10**6)), tmp_path, Settings(**settings))
    assert running.run() == reason
    assert running.coordinator.counts["accepted"] >= 3
    assert not running.coordinator.fresh  # the last updates are in the last model


def test_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "LOCK_SECONDS", 0.0)
    with pytest.raises(RunFolderError, match="no server's folder"):
        loop.open_folder(tmp_path, Network())
    with pytest.raises(ValueError, match="share"):
        loop.prepare(tmp_path, GlobalModel(0, (START,)), {"max_norm": 1.0, "share": 2.0}, {})
    loop.prepare(tmp_path, GlobalModel(0, (START,)), {"max_norm": 1e3, "senders": {"a": 2**63}}, {"clients": ["a"]})
    opened = loop.open_folder(tmp_path, Network())
    assert opened.settings.clients == ("a",) and opened.coordinator.may_send("a", 2**63)
    assert not opened.coordinator.may_send("a", 1)
    with pytest.raises(RunFolderError, match="another server"):
        loop.open_folder(tmp_path, Network())
    np.testing.assert_array_equal(loop.read_initial(tmp_path).weights[0], START)
    assert loop.last_model(tmp_path).version == 0
