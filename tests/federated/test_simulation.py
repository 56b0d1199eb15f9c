"""The network in virtual time: a slow client and the others, loss and disorder, and real trainers in it."""

import collections

import numpy as np
import pytest

import tfdpbc as dp
from tests.federated import helpers
from tfdpbc.federated.coordinator import Coordinator
from tfdpbc.federated.local import released_variables
from tfdpbc.federated.messages import Update
from tfdpbc.federated.simulation import Participant, Simulation


class Stub:
    """Counts rounds; its step is 1."""

    def __init__(self, client, rounds=10**9):
        self.client, self.left, self.round, self.version, self.taken = client, rounds, 0, -1, []

    @property
    def exhausted(self):
        return self.left == 0

    def receive(self, model, at=0.0):
        newer = model.version > self.version
        if newer:
            self.version = model.version
            self.taken.append((self.round, at))
        return newer

    def step(self):
        self.round, self.left = self.round + 1, self.left - 1
        return Update(self.client, self.round, self.version, (np.ones(1, np.float32),))

    def exchange(self, **given):
        return []


def run(synchronous, slow=1.0, until=400.0, clients=5, rounds=10**9, **network):
    server = Coordinator([np.zeros(1)], max_norm=10.0, share=1.0 if synchronous else 0.4)
    seconds = [slow, *[1.0] * (clients - 1)]
    members = [Participant(Stub(f"c{i}", rounds), seconds=s, **network) for i, s in enumerate(seconds)]
    simulation = Simulation(server, members, synchronous)
    simulation.run(until)
    return simulation, server


def test_one_slow_client_slows_nobody_else_but_where_rounds_are_synchronous():
    rates = collections.defaultdict(list)
    for synchronous in (False, True):
        for slow in (1.0, 5.0):
            simulation, _ = run(synchronous, slow, delay=0.05)
            others = [len(ends) for name, ends in simulation.rounds.items() if name != "c0"]
            rates[synchronous].append(min(others) / simulation.time)
    even, slowed = rates[False]
    assert slowed > 0.9 * even
    even, slowed = rates[True]
    assert slowed < 0.25 * even  # everybody waits for the slow one


def test_models_are_taken_over_in_the_middle_of_rounds():
    simulation, _ = run(False, slow=5.0, delay=0.05, until=50.0)
    taken = simulation.participants["c0"].trainer.taken
    assert len({number for number, at in taken}) >= 8  # in every round of the slow client
    assert all(0 <= at < 1 for _, at in taken) and sum(at > 0 for _, at in taken) > len(taken) / 2


def test_loss_duplicates_and_disorder_neither_stop_nor_confuse():
    simulation, server = run(False, rounds=200, delay=0.1, jitter=3.0, loss=0.2, duplication=0.3, until=float("inf"))
    sent = 5 * 200
    assert all(len(ends) == 200 for ends in simulation.rounds.values())
    accepted = server.counts["accepted"]
    assert server.counts["duplicate"] > 0 and accepted < sent
    assert server.weights[0][0] == accepted  # each update that arrived counts once
    assert sum(server.missing(name) for name in simulation.rounds) <= sent - accepted
    again, same = run(False, rounds=200, delay=0.1, jitter=3.0, loss=0.2, duplication=0.3, until=float("inf"))
    assert again.rounds == simulation.rounds and same.counts == server.counts


def test_synchronous_rounds_end_and_refuse_loss():
    simulation, server = run(True, rounds=7, slow=3.0, delay=0.5, until=float("inf"))
    assert [len(ends) for ends in simulation.rounds.values()] == [7] * 5
    assert server.counts["accepted"] == 35 and server.version >= 7
    with pytest.raises(ValueError, match="loss"):
        run(True, loss=0.1)


def test_one_real_client_without_delay_equals_local_training():
    plan = helpers.plan(dp.Subsampling.individual(helpers.N, 12))
    alone = helpers.private(plan, seed=5, physical=4)
    start = [v.numpy() for v in released_variables(alone)]
    alone.fit(*helpers.examples(), verbose=0)
    client = helpers.trainer(helpers.private(plan, seed=5, physical=4))
    server = Coordinator(start, max_norm=1e6)
    seen = []
    simulation = Simulation(server, [Participant(client)], observe=lambda *now: seen.append(now), every=3)
    simulation.run()
    assert server.counts == {"accepted": plan.rounds} and client.exhausted
    assert seen[-1] == (plan.rounds * 1.0, plan.rounds) and client.ledger.position(plan) == plan.rounds
    # The server adds in double precision and rounds with each broadcast, which comes to the same bits.
    for mine, theirs in zip(server.weights, released_variables(alone), strict=True):
        np.testing.assert_array_equal(mine, theirs.numpy())
