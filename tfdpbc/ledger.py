"""Ledger: the rounds that were really released, over processes, copies and restarts."""

from __future__ import annotations

import dataclasses
import os
import secrets
from typing import Any

from tfdpbc import _validate
from tfdpbc.errors import BudgetExhausted, TfdpbcError
from tfdpbc.plan import PrivacyPlan, Spent

FORMAT = 1
_ENTRY = {"run", "plan", "start", "stop"}


@dataclasses.dataclass(frozen=True)
class Entry:
    """Rounds that one process released, one after the other.

    Attributes:
      run: a random name; the same rounds carry it wherever the entry is copied to.
      plan: the plan they followed.
      start, stop: they are the rounds start..stop−1 of the plan.
    """

    run: str
    plan: PrivacyPlan
    start: int
    stop: int

    def __post_init__(self):
        if not (isinstance(self.run, str) and self.run):
            _validate.fail("run", "a name", self.run, TypeError)
        _validate.instance("plan", self.plan, PrivacyPlan, "a PrivacyPlan")
        _validate.integer("start", self.start, at_least=0)
        _validate.integer("stop", self.stop, at_least=self.start, at_most=self.plan.rounds)


class Ledger:
    """Counts rounds before they are released, and says what all of them gave away together.

    Ledgers add up: `merge` joins what was released on the same data, whether by one training or by several, and counts
    an entry that both hold once. Copies, pickles, forks and what `from_config` reads go on under a run name of their
    own, so that two continuations of one state are seen as two. Nothing ever lowers a count.

    Formal guarantee: if every round was recorded before its release, and a shuffled or balls-in-bins epoch was never
    continued with draws other than it began with, then everything released is f-DP for f = ``trade_off()`` (adaptive
    composition; rounds that were drawn a second time compose as trainings of their own).
    """

    def __init__(self, entries: tuple[Entry, ...] = ()):
        self._entries: dict[str, Entry] = {}
        self._open: dict[PrivacyPlan, tuple[int, str]] = {}  # plan → (process, run name) this object may extend
        for entry in entries:
            _validate.instance("entries", entry, Entry, "ledger entries")
            self._add(entry)

    # Recording.

    def record(self, plan: PrivacyPlan, rounds: int) -> None:
        """Counts the next `rounds` rounds of `plan` as released. Call it before they are.

        Raises:
          BudgetExhausted: the plan does not hold that many more rounds; nothing was counted.
        """
        _validate.instance("plan", plan, PrivacyPlan, "a PrivacyPlan")
        rounds = _validate.integer("rounds", rounds, at_least=0)
        start = self.position(plan)
        if start + rounds > plan.rounds:
            raise BudgetExhausted(
                f"the plan holds {plan.rounds} rounds, of which {start} are released; got rounds={rounds}"
            )
        if not rounds:
            return
        process, run = self._open.get(plan, (0, ""))
        mine = self._entries.get(run)
        if process != os.getpid() or mine is None or mine.stop != start:
            mine = Entry(secrets.token_hex(8), plan, start, start)
            self._open[plan] = (os.getpid(), mine.run)
        self._entries[mine.run] = dataclasses.replace(mine, stop=start + rounds)

    def position(self, plan: PrivacyPlan) -> int:
        """How far the plan has come: the round that is next, counted from 0."""
        return max((entry.stop for entry in self._entries.values() if entry.plan == plan), default=0)

    def merge(self, other: Ledger) -> Ledger:
        """A new ledger of what either holds; entries of both are counted once, at their longer.

        Raises:
          ValueError: the two disagree about an entry, so one of them was tampered with or damaged.
        """
        _validate.instance("other", other, Ledger, "a Ledger")
        merged = Ledger(self.entries)
        for entry in other.entries:
            merged._add(entry)
        return merged

    __add__ = merge

    def absorb(self, other: Ledger) -> None:
        """As `merge`, in place; this object goes on extending its own entries."""
        self._entries = self.merge(other)._entries

    def _add(self, entry: Entry) -> None:
        known = self._entries.get(entry.run)
        if known and (known.plan, known.start) != (entry.plan, entry.start):
            _validate.fail("entries", f"one plan and start for the run {entry.run}", entry)
        if not known or known.stop < entry.stop:
            self._entries[entry.run] = entry

    # What it says.

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in the order of their making."""
        return tuple(self._entries.values())

    @property
    def plans(self) -> tuple[PrivacyPlan, ...]:
        """The plans that rounds were released under."""
        return tuple(dict.fromkeys(entry.plan for entry in self.entries))

    def spent(self, plan: PrivacyPlan) -> Spent:
        """What the rounds of one plan gave away; stretches drawn more than once are counted as often."""
        reached, repeated = 0, []
        ordered = sorted((e for e in self.entries if e.plan == plan), key=lambda e: (e.start, -e.stop))
        for entry in ordered:
            again = min(entry.stop, reached)
            if entry.start < again:
                # Draws anew of rounds inside an epoch: the whole epochs they belong to, of which these are a part.
                per_epoch = plan.rounds_per_epoch
                repeated.append((-(-again // per_epoch) - entry.start // per_epoch) * per_epoch)
            reached = max(reached, entry.stop)
        return Spent(plan, reached, repeated=tuple(repeated))

    def trade_off(self, group_size: int = 1) -> Any:
        """The `TradeOff` of all rounds of all plans.

        Raises:
          TfdpbcError: plans of different neighbouring relations; their guarantees do not add up.
        """
        relations = {plan.neighbouring for plan in self.plans}
        if len(relations) > 1:
            raise TfdpbcError("the ledger holds plans of both neighbouring relations (replace, add-remove)")
        from tfdpbc.accounting import Gaussian

        total = Gaussian(0.0)
        for plan in self.plans:
            total = total.compose(self.spent(plan).trade_off(group_size))
        return total

    def epsilon(self, delta: float, group_size: int = 1) -> float:
        """ε of all rounds of all plans at `delta`."""
        return float(self.trade_off(group_size).epsilon(_validate.probability("delta", delta)))

    # Copies and JSON: whoever holds one is another continuation.

    def __getstate__(self) -> dict[str, Any]:
        return {"_entries": dict(self._entries), "_open": {}}

    def to_config(self) -> dict[str, Any]:
        """JSON-able; `from_config` is its inverse."""
        entries = [{**dataclasses.asdict(entry), "plan": entry.plan.to_config()} for entry in self.entries]
        return {"format": FORMAT, "entries": entries}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Ledger:
        """Reads what `to_config` wrote.

        Raises:
          ValueError, TypeError: a field is missing, unknown or impossible; nothing unknown is ever taken as nothing spent.
        """
        _validate.instance("config", config, dict, "a ledger's configuration (a dict)")
        if set(config) != {"format", "entries"} or config["format"] != FORMAT:
            _validate.fail("config", f"a ledger of format {FORMAT}", {key: config[key] for key in sorted(config)})
        _validate.instance("entries", config["entries"], list, "a list of ledger entries")
        return cls(tuple(_entry(one) for one in config["entries"]))

    def __repr__(self) -> str:
        return f"Ledger({list(self.entries)!r})"


def _entry(config: Any) -> Entry:
    _validate.instance("entries", config, dict, "ledger entries (dicts)")
    if set(config) != _ENTRY or not isinstance(config["run"], str) or not config["run"]:
        _validate.fail("entries", f"dicts with the keys {sorted(_ENTRY)} and a run name", config)
    plan = PrivacyPlan.from_config(config["plan"])
    start = _validate.integer("start", config["start"], at_least=0)
    stop = _validate.integer("stop", config["stop"], at_least=start, at_most=plan.rounds)
    return Entry(config["run"], plan, start, stop)
