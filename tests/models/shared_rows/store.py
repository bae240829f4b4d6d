"""What the protocol of shared rows writes, and a store that carries it out as DynamoDB does.

Transactions are all or nothing, and become readable item by item: for a while, a single read may give the item as it
was before. A call of transactions that meets another one at an item is sent again by its caller.

A step's *effects* are what checks know and no process reads: each has to reach its row exactly once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple

Key = tuple[Any, ...]
Contribution = Mapping[str, int]
"""Amounts by row, each of one contributor."""

VIEW_ROWS, ON_ROW = ("a", "b", "c"), "on"
ROWS = (*VIEW_ROWS, ON_ROW)
BUCKETS, STRIPES = 2, 2
READABLE_AFTER = 8
"""Time in which all items of a transaction become readable, at most."""
ANOTHER, MARK = "another", "mark#"
"""The owner of a row that refuses every addition; and what the marks of menders and emptiers begin with."""
MANIFEST, CURSOR = ("manifest",), ("cursor",)


def bucket_of(row: str) -> int:
    return ROWS.index(row) % BUCKETS


class Effect(NamedTuple):
    """What one step does to one row, of its two halves."""

    source: Key  # the item; of an ``on`` handler: the change
    version: int
    step: int  # no two steps have one
    row: str
    enters: bool  # the step makes its item a contributor of the row; otherwise the row counts it already


class Half(NamedTuple):
    amount: int = 0
    contributors: int = 0

    def plus(self, other: "Half") -> "Half":
        return Half(self.amount + other.amount, self.contributors + other.contributors)

    def minus(self, other: "Half") -> "Half":
        return Half(self.amount - other.amount, self.contributors - other.contributors)


class Part(NamedTuple):
    """What a delta adds to one row. The halves stay apart, because a row that somebody removed takes only the first."""

    entering: Half = Half()  # of items that are new to the row
    counted: Half = Half()  # of items that the row counts: amendments and withdrawals
    contributors_min: int = 0  # contributors that the second half requires
    effects: frozenset[Effect] = frozenset()

    def plus(self, other: "Part") -> "Part":
        entering, counted = self.entering.plus(other.entering), self.counted.plus(other.counted)
        return Part(entering, counted, self.contributors_min + other.contributors_min, self.effects | other.effects)

    def without(self, other: "Part", effects: frozenset[Effect]) -> "Part":
        """Without what one item adds."""
        entering, counted = self.entering.minus(other.entering), self.counted.minus(other.counted)
        return Part(entering, counted, self.contributors_min - other.contributors_min, self.effects - effects)

    @property
    def both(self) -> Half:
        return self.entering.plus(self.counted)


Parts = dict[str, Part]


def add_parts(parts: Parts, others: Mapping[str, Part]) -> None:
    for row, part in others.items():
        parts[row] = parts.get(row, Part()).plus(part)


def difference(before: Contribution, after: Contribution, source: Key, version: int, step: int) -> Parts:
    """What the step of an item from one contribution to the next adds to rows."""
    parts: Parts = {}
    for row in sorted({*before, *after}):
        was, now = before.get(row), after.get(row)
        effects = frozenset({Effect(source, version, step, row, enters=was is None)})
        if was is None:
            parts[row] = Part(Half(after[row], 1), effects=effects)
        elif now is None:
            parts[row] = Part(Half(), Half(-was, -1), 1, effects)
        elif was != now:
            parts[row] = Part(Half(), Half(now - was, 0), 1, effects)
    return parts


class Row(NamedTuple):
    amount: int = 0
    contributors: int = 0
    owner: str = ""  # a mark, which every addition removes; or ``ANOTHER``


Pending = Mapping[Key, frozenset[str]]
"""Names of deltas, each with the rows for which it holds something of one item."""
NOTHING: Pending = MappingProxyType({})


class Delta(NamedTuple):
    """Additions of one transaction to rows of one bucket."""

    parts: Mapping[str, Part]
    refused: str = ""  # why its rows refuse it for good; all other rows have what it added to them


class Note(NamedTuple):
    """Rows that steps may have left empty, as today's ledger notes them."""

    step: int
    rows: frozenset[str]


class Before(NamedTuple):
    """What a step began with."""

    version: int
    contribution: Contribution


class Ledger(NamedTuple):
    """What one item contributes."""

    version: int
    contribution: Contribution
    pending: Pending = NOTHING  # the deltas of its last step, and what rows refused of earlier ones
    note: Note | None = None
    revision: int = 1
    steps: int = 0  # that were committed until then: what checks know
    before: "Before | None" = None  # what its last step began with, if that put deltas: to take it back


class Claim(NamedTuple):
    """That a change took effect through an ``on`` handler."""

    pending: Pending = NOTHING  # its deltas


class Manifest(NamedTuple):
    deltas: bool = False  # the pseudo target, which stops older code
    since: int = 0  # when it was added
    closed: bool = False  # nobody puts deltas any more, and nobody adds the pseudo target


Condition = Callable[[Any], bool]
Change = Callable[[Any], Any]


class Write(NamedTuple):
    key: Key
    condition: Condition
    change: Change  # from the item that is stored, or None, to the new one


@dataclass
class Transaction:
    writes: list[Write] = field(default_factory=list)
    committed: list[Effect] = field(default_factory=list)  # of steps that the ledger or a claim has from now on
    applied: list[Effect] = field(default_factory=list)  # that reach their rows
    dropped: list[Effect] = field(default_factory=list)  # that never will: their rows were removed by hand
    undone: list[Effect] = field(default_factory=list)  # that never will: their steps are taken back
    mended: str = ""  # a row that is the sum of the ledger from now on

    def write(self, key: Key, condition: Condition, change: Change) -> None:
        self.writes.append(Write(key, condition, change))


class Refused(Exception):  # noqa: N818 - an answer of the store
    """Conditions that failed, each with the item that was found."""

    def __init__(self, found: Mapping[Key, Any]) -> None:
        super().__init__(found)
        self.found = found


class Store:
    """Items by key, at a time."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = 0
        self.items: dict[Key, Any] = {}
        self.before: dict[Key, Any] = {}  # each item as it was before its last write
        self.readable_at: dict[Key, int] = {}
        self.slow = True  # whether transactions become readable item by item
        self.steps: dict[int, int] = {}  # when steps were committed, by their order
        self.open: set[Effect] = set()  # effects that have not reached their rows
        self.removed_by_hand: set[str] = set()  # rows, until they are mended
        self.wrong = ""
        self.changed = False

    def is_under_way(self, key: Key) -> bool:
        return self.readable_at.get(key, 0) > self.now

    def read(self, key: Key) -> Any:
        """A consistent read of one item, beside transactions."""
        return self.before.get(key) if self.is_under_way(key) else self.items.get(key)

    def read_behind(self, key: Key) -> Any:
        """An eventually consistent read."""
        return self.before.get(key) if self.random.random() < 0.5 else self.items.get(key)

    def read_together(self, keys: Iterable[Key]) -> dict[Key, Any]:
        """A transaction of reads. It is never carried out while another one is under way at an item."""
        return {key: self.items[key] for key in keys if key in self.items}

    def query(self, bucket: int, stripe: int, *, consistent: bool) -> dict[Key, Delta]:
        keys = {key for key in (*self.items, *self.before) if key[:3] == ("delta", bucket, stripe)}
        read = self.read if consistent else self.read_behind
        found = {key: read(key) for key in sorted(keys)}
        return {key: delta for key, delta in found.items() if delta is not None}

    def transact(self, transaction: Transaction) -> int:
        """Carries out a transaction, or raises ``Refused``. Returns when all of it is readable."""
        writes = transaction.writes
        refused = {key: self.items.get(key) for key, condition, _ in writes if not condition(self.items.get(key))}
        if refused:
            raise Refused(refused)
        assert len({key for key, _, _ in writes}) == len(writes), "two writes of one item"
        slow = self.slow and self.random.random() < 0.3
        answered = self.now
        for key, _, change in writes:
            self.before[key] = self.items.get(key)
            self._set(key, change(self.items.get(key)))
            self.readable_at[key] = self.now + (self.random.randrange(READABLE_AFTER + 1) if slow else 0)
            answered = max(answered, self.readable_at[key])
        self._account(transaction)
        written = {key for key, _, _ in writes}
        gone = {effect.row for effect in transaction.applied if effect.enters and ("row", effect.row) not in self.items}
        if any(("row", row) in written for row in gone):
            self.wrong = self.wrong or f"new contributors of {gone} go with their row"
        self.changed = True
        return answered

    def _set(self, key: Key, item: Any) -> None:
        if item is None:
            self.items.pop(key, None)
        else:
            self.items[key] = item

    def _account(self, transaction: Transaction) -> None:
        for effect in transaction.committed:
            self.steps.setdefault(effect.step, len(self.steps))
            self.open.add(effect)
        for effect in (*transaction.applied, *transaction.dropped):
            if effect not in self.open:
                self.wrong = self.wrong or f"{effect} reaches its row a second time, or without its step"
            self.open.discard(effect)
        for effect in transaction.undone:
            if effect not in self.open:
                self.wrong = self.wrong or f"{effect} is taken back, and has reached its row"
            self.open.discard(effect)
        self.removed_by_hand.discard(transaction.mended)
        for effect in transaction.dropped:
            if effect.enters or effect.row not in self.removed_by_hand:
                self.wrong = self.wrong or f"{effect} is lost"

    def remove_by_hand(self, row: str) -> None:
        """Somebody removes a row that others add to."""
        key = ("row", row)
        if key in self.items and not self.is_under_way(key):
            self.before[key] = self.items.pop(key)
            self.removed_by_hand.add(row)

    def take_by_hand(self, row: str) -> None:
        """From now on a row refuses every addition: somebody put it, or its sum is at its limit."""
        key = ("row", row)
        if not self.is_under_way(key):
            self.before[key] = self.items.get(key)
            self.items[key] = (self.items.get(key) or Row())._replace(owner=ANOTHER)

    def give_back_by_hand(self, row: str) -> None:
        key, found = ("row", row), self.items.get(("row", row))
        if found is not None and found.owner == ANOTHER and not self.is_under_way(key):
            self.before[key] = found
            self._set(key, found._replace(owner="") if found.contributors else None)

    def deltas(self) -> dict[Key, Delta]:
        return {key: item for key, item in self.items.items() if key[0] == "delta"}

    def sums(self, *, pending: bool) -> dict[str, Half]:
        """What rows hold, with what is pending or without."""
        sums = {row: Half() for row in ROWS}
        for key, item in self.items.items():
            if key[0] == "row":
                sums[key[1]] = sums[key[1]].plus(Half(item.amount, item.contributors))
        for delta in self.deltas().values() if pending else ():
            for row, part in delta.parts.items():
                sums[row] = sums[row].plus(part.both)
        return sums

    def held(self, claimed: Mapping[Key, int]) -> dict[str, Half]:
        """What rows should hold: the sum of all contributions, and of all changes that are claimed."""
        sums = {row: Half() for row in ROWS}
        for key, item in self.items.items():
            if key[0] == "ledger":
                for row, amount in item.contribution.items():
                    sums[row] = sums[row].plus(Half(amount, 1))
            elif key[0] == "claim":
                sums[ON_ROW] = sums[ON_ROW].plus(Half(claimed[key], 1))
        return sums


def equals(item: Any) -> Condition:
    return lambda found: found == item


def is_absent(found: Any) -> bool:
    return found is None


def becomes(item: Any) -> Change:
    return lambda _: item


def is_free(contributors_min: int) -> Condition:
    """A row that is nobody else's, and counts as many contributors as are required."""
    return lambda row: (row or Row()).owner != ANOTHER and (row or Row()).contributors >= contributors_min


def is_too_few(part: Part, *, unseen: bool = False) -> Condition:
    """A row that does not count what is to be taken back, because somebody removed it."""

    def condition(row: Row | None) -> bool:
        row = row or Row()
        return row.owner != ANOTHER and (unseen or row.contributors < part.contributors_min)

    return condition


def added(half: Half) -> Change:
    """Adds to a row; makes it. Every addition removes a mark."""
    return lambda row: Row((row or Row()).amount + half.amount, (row or Row()).contributors + half.contributors)


def entered(half: Half) -> Change:
    """Adds new contributors. A row that is there loses a mender's mark in any case: the ledger changes without it."""
    return lambda row: None if row is None and not half.contributors else added(half)(row)
