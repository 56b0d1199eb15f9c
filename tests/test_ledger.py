"""Ledger: what was released, over copies, forks, merges and files."""

import copy
import json
import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tfdpbc as dp
from tfdpbc.errors import BudgetExhausted, TfdpbcError
from tfdpbc.ledger import Entry, Ledger

DELTA = 1e-5
CLIP = dp.FullGradientClipping(1.0)
PLAN = dp.PrivacyPlan(dp.Shuffling(40, 2, 2), CLIP, 2.0, 5)  # 10 rounds an epoch
OTHER = dp.PrivacyPlan(dp.Subsampling(40, 2, 2), CLIP, 3.0, 5)
POISSON = dp.PrivacyPlan(dp.Poisson.individual(40, 4), CLIP, 2.0, 5)


def recorded(*counts, plan=PLAN):
    ledger = Ledger()
    for count in counts:
        ledger.record(plan, count)
    return ledger


def reread(ledger):
    return Ledger.from_config(json.loads(json.dumps(ledger.to_config())))


def test_pitfall_14_rounds_add_up():
    """pitfall 14: 5 + 5 resumed = 10, however often the ledger was written and read in between."""
    ledger = recorded(5)
    for _ in range(3):
        ledger = reread(ledger)
    ledger.record(PLAN, 5)
    assert ledger.position(PLAN) == 10
    assert ledger.epsilon(DELTA) == PLAN.epsilon(DELTA, rounds=10)
    assert ledger.spent(PLAN).rounds == 10 and ledger.spent(PLAN).repeated == ()


def test_pitfall_30_asking_and_copying_change_nothing():
    """pitfall 30: a second accountant call, a failed call, a copy: the ledger stays what was really released."""
    ledger = recorded(7)
    before = ledger.to_config()
    assert ledger.epsilon(DELTA) == ledger.epsilon(DELTA)
    for bad in (44, -1, 1.5, None):
        with pytest.raises((BudgetExhausted, ValueError, TypeError)):
            ledger.record(PLAN, bad)
    copy.deepcopy(ledger).record(PLAN, 5)
    pickle.loads(pickle.dumps(ledger)).record(PLAN, 5)
    reread(ledger).record(PLAN, 5)
    assert ledger.to_config() == before
    for twin in (copy.copy(ledger), copy.deepcopy(ledger), pickle.loads(pickle.dumps(ledger)), reread(ledger)):
        assert (ledger + twin).to_config() == before


def test_pitfall_29_the_budget_is_checked_before_the_release():
    """pitfall 29: a round the plan does not hold is refused and not counted."""
    ledger = recorded(49)
    with pytest.raises(BudgetExhausted, match="holds 50 rounds, of which 49 are released; got rounds=2"):
        ledger.record(PLAN, 2)
    assert ledger.position(PLAN) == 49


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), reread])
def test_two_continuations_of_one_state_are_two(twin):
    one = recorded(10)
    two = twin(one)
    one.record(PLAN, 10)
    two.record(PLAN, 20)
    both = one + two
    # Rounds 0-9 once, 10-29 by the second, and 10-19, which are one epoch, by the first as well.
    assert both.spent(PLAN).rounds == 30 and both.spent(PLAN).repeated == (10,)
    want = PLAN.trade_off(1, 30).compose(PLAN.trade_off(1, 10)).epsilon(DELTA)
    assert both.epsilon(DELTA) == want > PLAN.epsilon(DELTA, rounds=30)
    assert (two + one).epsilon(DELTA) == want


def test_draws_repeated_inside_an_epoch_count_as_the_epochs_they_are_of():
    one = recorded(3)
    two = reread(one)
    one.record(PLAN, 12)
    two.record(PLAN, 9)
    assert (one + two).spent(PLAN).repeated == (20,)  # rounds 3-11 touch two epochs
    assert (one + two).spent(PLAN).rounds == 15


def test_a_forked_process_goes_on_under_its_own_name():
    ledger = recorded(10)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        ledger.record(PLAN, 10)
        os.write(write, json.dumps(ledger.to_config()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        theirs = Ledger.from_config(json.loads(pipe.read()))
    os.waitpid(child, 0)
    ledger.record(PLAN, 10)
    assert (ledger + theirs).spent(PLAN).repeated == (10,)


def test_plans_compose():
    ledger = recorded(20) + recorded(30, plan=OTHER)
    assert ledger.plans == (PLAN, OTHER)
    want = PLAN.trade_off(1, 20).compose(OTHER.trade_off(1, 30)).epsilon(DELTA)
    assert ledger.epsilon(DELTA) == pytest.approx(want, rel=1e-12)
    assert ledger.epsilon(DELTA) > max(PLAN.epsilon(DELTA, rounds=20), OTHER.epsilon(DELTA, rounds=30))
    assert ledger.epsilon(DELTA, group_size=2) > ledger.epsilon(DELTA)


def test_relations_do_not_add_up():
    with pytest.raises(TfdpbcError, match="both neighbouring relations"):
        (recorded(1) + recorded(1, plan=POISSON)).trade_off()


def test_nothing_released_is_perfect_privacy():
    assert Ledger().epsilon(DELTA) == 0 and Ledger().trade_off().mu == 0
    assert recorded(0).entries == ()


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6)), max_size=8), st.integers(0, 8))
def test_merging_is_a_union(steps, cut):
    """Commutative, idempotent, associative; never fewer rounds than any of its parts."""
    ledgers = [recorded(2), recorded(1), reread(recorded(3))]
    for i, (which, count) in enumerate(steps):
        if i == cut:
            ledgers[0] = ledgers[0] + ledgers[1]
        ledgers[which].record(PLAN, count)
    a, b, c = ledgers

    def held(ledger):
        return {entry.run: entry for entry in ledger.entries}

    assert held(a + b) == held(b + a) and held(a + a) == held(a)
    assert held((a + b) + c) == held(a + (b + c))
    spent = (a + b + c).spent(PLAN)
    assert spent.rounds == max(x.position(PLAN) for x in ledgers)
    total = sum(entry.stop - entry.start for entry in (a + b + c).entries)
    assert spent.rounds + sum(spent.repeated) >= total


@pytest.mark.parametrize(
    "spoil, message",
    [
        (lambda c: c.pop("format"), "config must be a ledger of format 1"),
        (lambda c: c.update(format=2), "config must be a ledger of format 1"),
        (lambda c: c.update(more=1), "config must be a ledger of format 1"),
        (lambda c: c.update(entries={}), "entries must be a list"),
        (lambda c: c["entries"].append(3), "entries must be ledger entries"),
        (lambda c: c["entries"][0].pop("run"), "entries must be dicts with the keys"),
        (lambda c: c["entries"][0].update(run=""), "entries must be dicts with the keys"),
        (lambda c: c["entries"][0].update(stop=51), "stop must be"),
        (lambda c: c["entries"][0].update(start=8), "stop must be"),
        (lambda c: c["entries"][0].update(start=-1), "start must be"),
        (lambda c: c["entries"][0]["plan"]["sampling"].update(name="sorting"), "sampling name must be one of"),
        (lambda c: c["entries"].append({**c["entries"][0], "start": 1}), "entries must be one plan and start"),
    ],
)
def test_what_is_not_known_is_refused(spoil, message):
    config = recorded(7).to_config()
    spoil(config)
    with pytest.raises((ValueError, TypeError), match=f"^{message}"):
        Ledger.from_config(config)


def test_bad_arguments_are_named():
    with pytest.raises(TypeError, match="^other must be a Ledger"):
        recorded(1).merge({})
    with pytest.raises(TypeError, match="^entries must be"):
        Ledger((3,))
    assert Ledger((Entry("a", PLAN, 0, 3),)).position(PLAN) == 3
    with pytest.raises(TypeError, match="^plan must be a PrivacyPlan"):
        Ledger().record("x", 1)


@pytest.mark.parametrize(
    "entry",
    [
        ("", PLAN, 0, 3),
        ("a", "plan", 0, 3),
        ("a", PLAN, -5, 3),
        ("a", PLAN, 5, 3),
        ("a", PLAN, float("nan"), 3),
        ("a", PLAN, 0, 2.5),
        ("a", PLAN, 0, True),
        ("a", PLAN, 0, PLAN.rounds + 1),
    ],
)
def test_an_impossible_entry_cannot_be_made(entry):
    with pytest.raises((ValueError, TypeError), match="^(run|plan|start|stop) must be"):
        Entry(*entry)
