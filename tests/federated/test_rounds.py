"""Sets of round numbers, against Python's own sets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdpbc.federated import rounds
from tfdpbc.federated.rounds import RoundSet


@given(st.lists(st.integers(0, 30)))
def test_as_a_set(numbers):
    ours, theirs = RoundSet(), set()
    for number in numbers:
        assert ours.add(number) == (number not in theirs)
        theirs.add(number)
        assert {n for n in range(-1, 32) if n in ours} == theirs
    assert ours.highest == max(theirs, default=None)
    assert ours.missing() == len(set(range(1, max(theirs, default=0))) - theirs)
    assert {n for first, last in ours.intervals for n in range(first, last + 1)} == theirs
    assert len(ours.intervals) == sum(n - 1 not in theirs for n in theirs)  # as few intervals as can be
    assert RoundSet(ours.intervals).intervals == ours.intervals


def test_many_gaps_cost_no_memory(monkeypatch):
    monkeypatch.setattr(rounds, "MAX_INTERVALS", 3)
    ours = RoundSet()
    for number in (1, 3, 5, 7, 9):
        assert ours.add(number)
    assert ours.intervals == [(1, 5), (7, 7), (9, 9)]  # the oldest gaps count as seen
    assert not ours.add(2) and ours.add(8)


@pytest.mark.parametrize("intervals", [[(3, 2)], [(1, 2), (2, 3)], [(1, 2), (3, 4)], [(5, 6), (1, 2)]])
def test_damaged_intervals(intervals):
    with pytest.raises(ValueError, match="disjoint"):
        RoundSet(intervals)
