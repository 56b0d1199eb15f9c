"""The server's arithmetic and its memory: order, copies and restarts change nothing; nothing a client sends raises."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdpbc.errors import RunFolderError
from tfdpbc.federated import coordinator as module
from tfdpbc.federated.coordinator import Coordinator, Outcome
from tfdpbc.federated.messages import GlobalModel, Update, encode

INITIAL = [np.float32([[1, 2], [3, 4]]), np.float32([0.5])]


def update(client="a", number=1, base=0, value=1.0):
    return Update(client, number, base, (np.full((2, 2), value, np.float32), np.full(1, value, np.float32)))


def server(**settings):
    return Coordinator(INITIAL, **{"max_norm": 1e6} | settings)


def moved(coordinator):
    """How far the model moved, as `update`'s value; the same in all coordinates."""
    found = {float(x) for w, start in zip(coordinator.weights, INITIAL, strict=True) for x in np.ravel(w - start)}
    (value,) = found
    return value


# Dyadic steps, whose double precision sums are exact: equality below means equality.
STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 6), st.integers(-64, 64)), unique_by=lambda s: s[:2], max_size=12
)


def updates_of(steps):
    return [update(client, number, value=value / 8) for client, number, value in steps]


@given(STEPS, st.data())
def test_order_and_copies_do_not_matter(steps, data):
    sent = updates_of(steps)
    copies = data.draw(st.lists(st.sampled_from(sent), max_size=8)) if sent else []
    coordinator = server()
    outcomes = [coordinator.receive(one) for one in data.draw(st.permutations(sent + copies))]
    assert outcomes.count(Outcome.ACCEPTED) == len(sent) and outcomes.count(Outcome.DUPLICATE) == len(copies)
    assert moved(coordinator) == sum(value for _, _, value in steps) / 8
    assert coordinator.counts == {
        name: count for name, count in (("accepted", len(sent)), ("duplicate", len(copies))) if count
    }


@pytest.mark.parametrize("aggregator", ["sum", "trimmed"])
@given(steps=STEPS, data=st.data())
def test_resumed_in_the_middle_is_uninterrupted(tmp_path_factory, aggregator, steps, data):
    path = tmp_path_factory.mktemp("checkpoint") / "server.npz"
    sent = updates_of(steps)
    stop = data.draw(st.integers(0, len(sent)))

    def follow(coordinator, some):
        said = []
        for one in some:
            said.append(coordinator.receive(encode(one)))
            if coordinator.due():
                said.append(coordinator.broadcast().version)
        return said

    settings = {"share": 0.5, "aggregator": aggregator, "client_weights": {"a": 0.5}, "staleness": "polynomial"}
    whole, first = server(**settings), server(**settings)
    expected = follow(whole, sent)
    said = follow(first, sent[:stop])
    first.save(path)
    second = server(**settings).load(path)
    assert said + follow(second, sent[stop:]) == expected
    assert {second.receive(one) for one in sent} <= {Outcome.DUPLICATE}
    for mine, theirs in zip(second.weights + second.model.weights, whole.weights + whole.model.weights, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert (second.version, second.active, second.due()) == (whole.version, whole.active, whole.due())
    assert [second.acknowledged(c) for c in "abc"] == [whole.acknowledged(c) for c in "abc"]
    assert [second.missing(c) for c in "abc"] == [whole.missing(c) for c in "abc"]
    assert second.counts["accepted"] == whole.counts["accepted"] == len(sent)


FAULTS = [
    (b"\x80\x04K\x01.", Outcome.MALFORMED),  # a pickle
    (b"", Outcome.MALFORMED),
    (None, Outcome.MALFORMED),
    ("text", Outcome.MALFORMED),
    (encode(GlobalModel(0, tuple(INITIAL))), Outcome.MALFORMED),
    (update(value=np.nan), Outcome.NON_FINITE),
    (update(value=-np.inf), Outcome.NON_FINITE),
    (update(value=1e30), Outcome.TOO_LARGE),
    (update(number=-3), Outcome.NEGATIVE_ROUND),
    (Update("a", 1, 0, (np.zeros((2, 3), np.float32), np.zeros(1, np.float32))), Outcome.WRONG_SHAPE),
    (Update("a", 1, 0, ()), Outcome.WRONG_SHAPE),
    (Update("a", 1, 0, (np.zeros((2, 2)), np.zeros(1))), Outcome.WRONG_TYPE),
    (update(base=1), Outcome.FROM_THE_FUTURE),
    (update("mallory"), Outcome.UNKNOWN_CLIENT),
    (update("b"), Outcome.WRONG_SENDER),
]


@pytest.mark.parametrize("message, outcome", FAULTS)
@pytest.mark.parametrize("encoded", [False, True])
def test_faults_are_counted_and_change_nothing(message, outcome, encoded):
    coordinator = server(clients=["a", "b"], senders={"a": 7, "b": 8})
    sent = encode(message) if encoded and isinstance(message, Update) else message
    assert coordinator.receive(sent, sender=7) is outcome
    assert moved(coordinator) == 0 and coordinator.counts == {outcome.value: 1} and not coordinator.due()
    # The fault does not stand in the way of the correct update of the same round.
    assert coordinator.receive(update(), sender=7) is Outcome.ACCEPTED
    assert moved(coordinator) == 1 and coordinator.due()


def test_all_faults_one_after_the_other_leave_the_model_finite():
    coordinator = server(clients=["a", "b"])
    for message, _ in FAULTS:
        coordinator.receive(message)
    assert sum(coordinator.counts.values()) == len(FAULTS)
    assert all(np.isfinite(w).all() for w in coordinator.broadcast().weights)


def test_a_model_is_what_was_broadcast():
    coordinator = server()
    assert coordinator.model.version == 0
    coordinator.receive(update())
    np.testing.assert_array_equal(coordinator.model.weights[0], INITIAL[0])  # version 0 stays what it was
    np.testing.assert_array_equal(coordinator.weights[0], INITIAL[0] + 1)
    sent = coordinator.broadcast()
    assert sent.version == coordinator.model.version == 1
    np.testing.assert_array_equal(sent.weights[0], INITIAL[0] + 1)
    assert sent.weights[0].dtype == np.float32 and not sent.weights[0].flags.writeable


@pytest.mark.parametrize("share, needed", [(0.01, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.75, 3), (1.0, 4)])
def test_due_with_a_share_of_the_active_clients(share, needed):
    coordinator = server(share=share)
    for client in "abcd":
        coordinator.join(client)
    for i, client in enumerate("abcd", start=1):
        coordinator.receive(update(client, 1))
        coordinator.receive(update(client, 2))  # a second update of one client is no second client
        assert coordinator.due() == (i >= needed)
    coordinator.broadcast()
    assert not coordinator.due()


def test_nobody_waits_for_one_that_left():
    coordinator = server()
    for client in "abc":
        coordinator.join(client)
    coordinator.receive(update("a"))
    coordinator.leave("a")
    coordinator.receive(update("b"))
    assert not coordinator.due()  # c is there and has sent nothing
    coordinator.leave("c")
    assert coordinator.due() and coordinator.active == {"b"}
    coordinator.broadcast()
    coordinator.leave("b")
    assert not coordinator.due()  # nobody there, nothing new
    coordinator.receive(update("c", 9))
    assert coordinator.due() and coordinator.active == {"c"}  # it came back
    assert coordinator.receive(update("a")) is Outcome.DUPLICATE  # what is known of one that left stays known


def test_client_weights_and_staleness():
    coordinator = server(client_weights={"a": 0.25}, staleness="polynomial")
    coordinator.receive(update("a", 1))
    assert moved(coordinator) == 0.25
    for _ in range(3):
        coordinator.broadcast()
    coordinator.receive(update("b", 1, base=3))
    assert moved(coordinator) == 1.25
    coordinator.receive(update("b", 2, base=0))  # lag 3: (1+3)^(-1/2)
    assert moved(coordinator) == 1.75
    coordinator.receive(update("b", 3, base=-1))
    assert moved(coordinator) == 2.25
    halving = server(staleness=lambda lag: 0.5**lag)
    halving.broadcast()
    halving.receive(update())
    assert moved(halving) == 0.5


def test_late_updates_are_left_out_and_acknowledged():
    coordinator = server(max_lag=1)
    coordinator.broadcast()
    assert coordinator.receive(update(number=1, base=0)) is Outcome.ACCEPTED
    coordinator.broadcast()
    assert coordinator.receive(update(number=2, base=0)) is Outcome.LATE
    assert coordinator.receive(update(number=2, base=0)) is Outcome.DUPLICATE
    assert moved(coordinator) == 1 and coordinator.acknowledged("a") == 2


def test_acknowledged_and_missing():
    coordinator = server()
    assert coordinator.acknowledged("a") == 0 and coordinator.missing("a") == 0
    for number in (2, 5, 4):
        coordinator.receive(update(number=number))
    assert coordinator.acknowledged("a") == 5 and coordinator.missing("a") == 2
    coordinator.receive(update(number=6, value=np.nan))  # refused for good: nobody need send it again
    assert coordinator.acknowledged("a") == 6 and coordinator.missing("a") == 2


def test_trimmed_leaves_out_the_largest_clients():
    coordinator = server(aggregator="trimmed", trim=1)
    for client, values in {"a": [1, 1], "b": [4], "evil": [-9, 500]}.items():
        for number, value in enumerate(values, start=1):
            coordinator.receive(update(client, number, value=value))
    assert moved(coordinator) == 0  # nothing before the broadcast
    coordinator.broadcast()
    assert moved(coordinator) == 6
    coordinator.receive(update("a", 3))
    coordinator.broadcast()
    assert moved(coordinator) == 6  # one client, one trimmed
    untrimmed = server(aggregator="trimmed", trim=0)
    untrimmed.receive(update())
    untrimmed.broadcast()
    assert moved(untrimmed) == 1


def test_strangers_do_not_fill_the_table(monkeypatch):
    monkeypatch.setattr(module, "MAX_CLIENTS", 2)
    coordinator = server()
    outcomes = [coordinator.receive(update(f"n{i}")) for i in range(4)] + [coordinator.receive(update("n0", 2))]
    assert outcomes == [Outcome.ACCEPTED] * 2 + [Outcome.UNKNOWN_CLIENT] * 2 + [Outcome.ACCEPTED]
    assert set(coordinator.client_counts) == {"n0", "n1"}


@pytest.mark.parametrize(
    "settings",
    [
        {"max_norm": 0},
        {"max_norm": np.inf},
        {"max_norm": np.nan},
        {"share": 0},
        {"share": 1.1},
        {"max_lag": -1},
        {"trim": -1},
        {"aggregator": "mean"},
        {"staleness": "exponential"},
        {"client_weights": {"a": 0}},
        {"client_weights": {"a": np.nan}},
        {"clients": ["no name"]},
    ],
)
def test_settings_are_checked(settings):
    with pytest.raises(ValueError, match="must be"):
        server(**settings)
    with pytest.raises(ValueError, match="must be"):
        Coordinator([np.float32([np.nan])], max_norm=1.0)
    with pytest.raises(ValueError, match="must be"):
        Coordinator([], max_norm=1.0)


def test_damaged_and_foreign_checkpoints_change_nothing(tmp_path):
    path = tmp_path / "server.npz"
    coordinator = server()
    coordinator.receive(update())
    with pytest.raises(RunFolderError, match="no checkpoint"):
        coordinator.load(path)
    coordinator.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["server.npz"]
    whole = path.read_bytes()
    other = Coordinator([np.zeros(3)], max_norm=1.0)
    for damaged in (b"", whole[:100], whole[: len(whole) // 2], b"x" * 300):
        path.write_bytes(damaged)
        with pytest.raises(RunFolderError, match="damaged"):
            coordinator.load(path)
    path.write_bytes(whole)
    with pytest.raises(RunFolderError, match="another model"):
        other.load(path)
    assert other.version == 0 and moved(coordinator) == 1


def test_a_checkpoint_holding_a_pickle_is_refused(tmp_path):
    path = tmp_path / "server.npz"
    np.savez(path, state=np.array([{"format": 1}], dtype=object))
    with pytest.raises(RunFolderError, match="damaged"):
        server().load(path)


def test_log_has_a_line_for_everything_received(tmp_path):
    path = tmp_path / "log" / "updates.jsonl"
    coordinator = server(log=path, clients=["a"])
    for message in (update(), update(), update(number=2, value=np.nan), b"?", update("x")):
        coordinator.receive(message, sender=5)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["outcome"] for line in lines] == ["accepted", "duplicate", "non-finite", "malformed", "unknown-client"]
    assert lines[0]["client"] == "a" and lines[0]["round"] == 1 and lines[0]["base"] == 0 and lines[0]["version"] == 0
    assert all(line["sender"] == 5 and line["time"] > 1e9 for line in lines)
    assert lines[0]["digest"] == lines[1]["digest"] != lines[2]["digest"]


def test_updates_from_the_future_are_not_acknowledged():
    """This server lost its past: the client keeps its steps, and stops when its outbox is full, with budget left."""
    coordinator = server(clients=["a"])
    assert coordinator.receive(update(number=1)) is Outcome.ACCEPTED
    assert coordinator.receive(update(number=2, base=50)) is Outcome.FROM_THE_FUTURE
    assert coordinator.acknowledged("a") == 1
