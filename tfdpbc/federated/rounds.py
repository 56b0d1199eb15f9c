"""Sets of round numbers that mostly follow one another."""

from __future__ import annotations

import bisect
from collections.abc import Iterable

MAX_INTERVALS = 1024


class RoundSet:
    """Round numbers seen so far, kept as disjoint intervals: a client without gaps costs one, however many rounds it ran.

    A client that leaves more than `MAX_INTERVALS` gaps has its oldest gap closed (those rounds count as seen and are
    refused if they ever come), so that no client can fill the server's memory.

    Args:
        intervals: ``(first, last)`` pairs, as `intervals` gives them.

    Raises:
        ValueError: They overlap, touch or are out of order.
    """

    def __init__(self, intervals: Iterable[tuple[int, int]] = ()):
        pairs = [(int(first), int(last)) for first, last in intervals]
        ends = [bound for pair in pairs for bound in pair]
        if any(first > last for first, last in pairs) or any(
            right <= left + 1 for left, right in zip(ends[1::2], ends[2::2], strict=False)
        ):
            raise ValueError("intervals are disjoint, with a gap between them, and in order")
        self._first = [first for first, _ in pairs]
        self._last = [last for _, last in pairs]

    def add(self, number: int) -> bool:
        """Takes `number` in; whether it is new."""
        if number in self:
            return False
        i = bisect.bisect_right(self._first, number)  # it comes before interval i
        joins_left = i > 0 and self._last[i - 1] == number - 1
        joins_right = i < len(self._first) and self._first[i] == number + 1
        if joins_left and joins_right:
            self._last[i - 1] = self._last[i]
            del self._first[i], self._last[i]
        elif joins_left:
            self._last[i - 1] = number
        elif joins_right:
            self._first[i] = number
        else:
            self._first.insert(i, number)
            self._last.insert(i, number)
        if len(self._first) > MAX_INTERVALS:
            del self._first[1], self._last[0]
        return True

    def __contains__(self, number: int) -> bool:
        i = bisect.bisect_right(self._first, number)
        return i > 0 and number <= self._last[i - 1]

    @property
    def intervals(self) -> list[tuple[int, int]]:
        """The set as ``(first, last)`` pairs in order; JSON-able."""
        return list(zip(self._first, self._last, strict=True))

    @property
    def highest(self) -> int | None:
        """The largest number, None of the empty set."""
        return self._last[-1] if self._last else None

    def missing(self, first: int = 1) -> int:
        """How many numbers from `first` to the highest are not in the set: updates lost, or burned by a crash."""
        if not self._last:
            return 0
        held = sum(last - max(low, first) + 1 for low, last in self.intervals if last >= first)
        return max(0, self._last[-1] - first + 1 - held)
