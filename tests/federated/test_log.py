"""What the server's log says about the clients' ledgers."""

import numpy as np
import pytest

from tfdpbc.errors import FederatedError
from tfdpbc.federated import log
from tfdpbc.federated.coordinator import Coordinator
from tfdpbc.federated.messages import Update


@pytest.fixture
def received(tmp_path):
    """received((client, round, value), ...) → the path of the log of a server that got those."""

    def received(*sent, **settings):
        coordinator = Coordinator([np.zeros(2)], max_norm=1e3, log=tmp_path / "log.jsonl", **settings)
        for client, number, value in sent:
            coordinator.receive(Update(client, number, 0, (np.full(2, value, np.float32),)))
        return tmp_path / "log.jsonl"

    return received


def test_honest_clients_with_copies_gaps_and_a_crash(received):
    path = received(("a", 1, 1.0), ("a", 3, 3.0), ("a", 1, 1.0), ("b", 1, 4.0))
    received(("a", 3, 3.0))  # the server was resumed from an older checkpoint and got it again
    assert len(log.read(path)) == 5
    log.check(path, {"a": 4, "b": 1})


@pytest.mark.parametrize(
    "sent, spent, words",
    [
        ([("a", 1, 1.0), ("a", 2, 2.0)], {"a": 1}, "a sent round 2, its ledger counts 1"),
        ([("a", 1, 1.0)], {}, "a sent round 1, its ledger counts 0"),
        ([("a", 0, 1.0)], {"a": 3}, "a sent round 0"),
        ([("a", 1, 1.0), ("a", 1, 2.0)], {"a": 2}, "two different updates for round 1"),
        ([("a", 1, 1.0), ("a", 2, 1.0)], {"a": 2}, "one update as rounds 1 and 2"),
    ],
)
def test_contradictions_are_found(received, sent, spent, words):
    path = received(*sent)
    (sentence,) = log.contradictions(log.read(path), spent)
    assert words in sentence
    with pytest.raises(FederatedError, match=words):
        log.check(path, spent)


def test_what_strangers_sent_says_nothing_about_clients(received):
    path = received(("a", 1, 1.0), ("x", 9, 1.0), clients=["a"])
    log.check(path, {"a": 1})


def test_half_a_line_of_a_killed_server(received):
    path = received(("a", 1, 1.0))
    with path.open("ab") as file:
        file.write(b'{"time":1.0,"out')
    received(("a", 2, 2.0))
    assert [line["round"] for line in log.read(path)] == [1, 2]
