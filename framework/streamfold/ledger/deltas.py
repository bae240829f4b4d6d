"""Deltas: additions to shared rows, which wait in state items of their own until somebody adds them to the rows.

A transaction that would meet others at a row puts what it adds into a *delta* instead, which no other process writes.
Deltas lie in *buckets*, by a hash of their rows; a bucket is as many item collections, its *stripes*, as it takes for
no partition key to get more than 1,000 write units a second. A ledger item names the deltas of its last step, each with
the rows that its item adds to. ``commit.buckets`` waits for deltas, and moves them into their rows;
docs/decisions/0080-deltas.md has the reason of each guard.

What the step that put deltas has changed is stored beside their names until it is in the rows. If a row refuses what an
item adds by a delta, the item's step is taken back: the ledger item contributes what it did before, and its share
leaves the delta, in one transaction. The record is then processed as if there were no deltas (``commit.taking_back``,
docs/decisions/0088-refused-additions-are-taken-back.md).
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from decimal import DecimalException
from functools import lru_cache
from json.encoder import encode_basestring as quoted
from typing import Any, NamedTuple
from zlib import crc32

from streamfold.errors import EngineError, HandlerError, RecordError, damaged
from streamfold.ledger.contribution import (
    LETTERS_KEPT,
    NOTHING,
    Contribution,
    RowContribution,
    stored_key_text,
    stored_rows,
    stored_text,
    untagged,
)
from streamfold.ledger.difference import differs
from streamfold.ledger.state_keys import ROW_NAME_LETTERS, ROWS_KEPT_MAX, names_of_rows, row_name
from streamfold.records.change import BY_OURSELVES
from streamfold.records.values import decode, minus, number_text
from streamfold.writes.guarded import AddRow, RowKey, StateKey

DELTAS = "delta#"
"""How the partition keys of deltas begin."""
BUCKETS = 16
STRIPES = 16
"""Item collections of a bucket: one partition key takes 1,000 write units a second (Developer Guide,
bp-partition-key-design)."""
ROWS_MAX = 99
"""Rows of a delta: one transaction deletes the delta and adds to each of them."""
ADDITION_LETTERS_MAX = 450
"""Letters of one addition: two for each row of a delta, of four bytes a letter, fit the 400 KB of an item."""
ADDITION_BYTES_MAX = 4 * ADDITION_LETTERS_MAX
ID_BYTES = 8
"""Random bytes of a name: 64 bits, so that no two deltas have one, also in a year of a thousand processes."""
NAME_LETTERS = 2 + 2 * ID_BYTES
HEX_DIGITS = frozenset("0123456789abcdef")
NUMBER = re.compile("[0-9]+$")
BEFORE_DIGITS, AFTER_ALL = "/", "~"
"""Letters that sort before and after those of versions."""

DeltaNames = Mapping[str, frozenset[str]]
"""Deltas by their names, each with the names of the rows that an item adds to by it."""


@lru_cache(ROWS_KEPT_MAX)
def bucket_of(row: RowKey) -> int:
    """The bucket of a row. It follows from the row alone, so that a correction of the row knows where to look."""
    return crc32(row_name(row).encode()) % BUCKETS


def new_name(bucket: int, token: str) -> str:
    """The name of a delta: its bucket, and a random token, of which the first digit is the stripe."""
    return f"{bucket:x}{token}"


def bucket_in(name: str) -> int:
    return int(name[0], 16)


def delta_key(application: str, name: str) -> StateKey:
    return StateKey(stripe_partition(application, bucket_in(name), int(name[1], 16)), name)


def is_delta(key: StateKey) -> bool:
    return key.pk.startswith(DELTAS)


def stripe_partition(application: str, bucket: int, stripe: int) -> str:
    return f"{DELTAS}{application}#{bucket:x}#{stripe:x}"


def head_key(application: str, bucket: int) -> StateKey:
    """The key of the item that has who empties a bucket.

    Each has a partition of its own: all processes that wait for a bucket read it again and again.
    """
    return StateKey(f"bucket#{application}#{bucket:x}", "head")


def shared_key(application: str, bucket: int) -> StateKey:
    """The key of the item that has which rows of a bucket are shared."""
    return StateKey(f"bucket#{application}#{bucket:x}", "shared")


def names_text(names: DeltaNames) -> str:
    """The names of deltas as a ledger item or a claim has them."""
    return " ".join(name + "".join(sorted(rows)) for name, rows in sorted(names.items()))


@lru_cache(ROWS_KEPT_MAX)
def names_in(text: str) -> DeltaNames:
    """The deltas that a ledger item or a claim names. Raises ``EngineError`` for a text that is damaged."""
    found = {}
    for each in text.split():
        rows = each[NAME_LETTERS:]
        if len(each) < NAME_LETTERS or not {*each[:NAME_LETTERS]} <= HEX_DIGITS or len(rows) % ROW_NAME_LETTERS:
            raise damaged("What a ledger item or a claim names")
        found[each[:NAME_LETTERS]] = names_of_rows(rows)
    return found


def may_wait(write: object) -> bool:
    """Whether an addition may go through a delta: it has amounts and contributors alone.

    Entries, plain attributes and rows that expire stay in the transaction of their ledger item. So do additions without
    amounts: the code of their handlers names no aggregate that is added up, so their function has no permissions for
    deltas (``Derivation.delta_keys``).
    """
    return (
        type(write) is AddRow
        and bool(write.amounts)
        and not (write.stamp or write.changed_entries or write.values or write.removed or write.born)
        and write.life is None
        and write.contributors_below is None
        and len(_addition_text(write)) <= ADDITION_LETTERS_MAX
    )


class RowRefusal(NamedTuple):
    """Why a row takes no addition of a delta, and when that was tried last."""

    reason: str
    tried: int  # epoch seconds
    fatal: bool = False  # the row's table is missing or forbidden: no record is parked for that

    @property
    def error(self) -> EngineError | HandlerError:
        return EngineError(self.reason) if self.fatal else HandlerError(self.reason)


class Delta(NamedTuple):
    """Additions of one transaction to rows of one bucket.

    Of each row it has at most two: of items that are new to the row, and of those that the row must count already,
    which have ``contributors_min``. If somebody removed the row, the first one is kept and the second one is dropped.
    """

    additions: tuple[AddRow, ...]
    handlers: tuple[str, ...] = ()  # whose additions they are, for messages and counts
    met: tuple[str, ...] = ()  # names of the rows at which the process met others
    refused: RowRefusal | None = None  # the rest of a delta, which a row refuses

    @property
    def rows(self) -> frozenset[str]:
        """The names of its rows."""
        return frozenset(row_name(each.key) for each in self.additions)

    def text(self) -> str:
        """The text of the state item. Equal deltas have equal texts."""
        refused = ""
        if self.refused:
            fatal = ",true" if self.refused.fatal else ""
            refused = f',"refused":[{quoted(self.refused.reason)},{self.refused.tried}{fatal}]'
        met = f',"met":[{",".join(map(quoted, self.met))}]' if self.met else ""
        handlers = f',"by":[{",".join(map(quoted, self.handlers))}]'
        return f'{{"add":[{",".join(map(_addition_text, self.additions))}]{handlers}{met}{refused}}}'

    @classmethod
    def of(cls, text: str, key: StateKey | None = None) -> "Delta":
        """The delta of a stored text. Raises ``EngineError`` for one that is damaged; with its key, says what to do."""
        try:
            stored = json.loads(text)
            refused = RowRefusal(*stored["refused"]) if "refused" in stored else None
            met = tuple(stored.get("met", ()))
            return cls(tuple(map(_addition, stored["add"])), tuple(stored["by"]), met, refused)
        except (AttributeError, KeyError, RecordError, TypeError, ValueError, DecimalException):
            raise damaged_delta(key) if key else damaged("A delta") from None


def damaged_delta(key: StateKey) -> EngineError:
    return EngineError(
        f"A delta cannot be read, so what it adds is in no row: {key.pk} / {key.sk} in the state table. Remove it, "
        "then run streamfold verify --rows --repair, which corrects its rows."
    )


def _addition_text(write: AddRow) -> str:
    amounts = ",".join([f'{quoted(name)}:"{number_text(amount)}"' for name, amount in write.amounts.items()])
    minimum = "null" if write.contributors_min is None else str(write.contributors_min)
    unversioned = ",true" if write.unversioned else ""
    return f"[{stored_key_text(write.key)},{{{amounts}}},{write.contributors},{minimum}{unversioned}]"


def _addition(stored: list[Any]) -> AddRow:
    table, partition, sort, amounts, contributors, minimum, *unversioned = stored
    return AddRow(
        (table, untagged(partition), untagged(sort)),
        {name: decode({"N": text}) for name, text in amounts.items()},
        contributors,
        bool(unversioned),
        contributors_min=minimum,
    )


def _checked(merged: AddRow) -> AddRow:
    # A sum of ints is exact, whatever its digits.
    for amount in merged.amounts.values():
        number_text(amount)
    return merged


class Additions:
    """The additions of some units or deltas to rows, each with its two halves."""

    def __init__(self, additions: Iterable[AddRow] = ()) -> None:
        self.halves: dict[tuple[RowKey, bool], AddRow] = {}
        self.rows: dict[RowKey, None] = {}
        for each in additions:
            self.add(each)

    def __len__(self) -> int:
        return len(self.rows)

    def copy(self) -> "Additions":
        made = Additions()
        made.halves, made.rows = self.halves.copy(), self.rows.copy()
        return made

    def add(self, write: AddRow) -> None:
        """Adds an addition. Raises ``decimal.Inexact`` or ``HandlerError`` if a sum would need more than 38 digits."""
        half = write.key, write.contributors_min is None
        # Whether the row may be empty afterwards is decided when it is added to, by all that is added then.
        plain = write._replace(requires_contributor=False) if write.requires_contributor else write
        self.halves[half] = _checked(self.halves[half].merged(plain)) if half in self.halves else plain
        self.rows[write.key] = None

    def take(self, write: AddRow) -> None:
        """Takes an addition out again. Raises ``HandlerError`` if it is not among these, or the rest is no number."""
        half = write.key, write.contributors_min is None
        if (present := self.halves.get(half)) is None:
            raise HandlerError("A delta does not hold what an item adds by it.")
        amounts = dict(present.amounts)
        for name, amount in write.amounts.items():
            amounts[name] = minus(amounts.get(name, 0), amount)
        minimum = None if present.contributors_min is None else present.contributors_min - (write.contributors_min or 0)
        rest = present._replace(
            amounts=amounts, contributors=present.contributors - write.contributors, contributors_min=minimum
        )
        if rest.contributors or minimum or any(amounts.values()):
            self.halves[half] = _checked(rest)
            return
        del self.halves[half]
        if (write.key, not half[1]) not in self.halves:
            del self.rows[write.key]

    def entering(self, row: RowKey) -> AddRow | None:
        """What items add that are new to a row."""
        return self.halves.get((row, True))

    def counted(self, row: RowKey) -> AddRow | None:
        """What changes contributions that a row must count already."""
        return self.halves.get((row, False))

    def both(self, row: RowKey) -> AddRow:
        """All that is added to a row, as one write: it refuses to leave the row without a contributor."""
        entering, counted = self.entering(row), self.counted(row)
        joined = _checked(entering.merged(counted)) if entering and counted else entering or counted
        assert joined is not None, "only rows that are added to are asked for"
        return joined._replace(requires_contributor=True) if joined.contributors < 0 else joined

    def delta(self, handlers: Iterable[str], met: Iterable[str]) -> Delta:
        """The delta of these additions."""
        return Delta(self.in_order, tuple(sorted(handlers)), tuple(sorted(met)))

    @property
    def in_order(self) -> tuple[AddRow, ...]:
        return tuple([self.halves[half] for half in sorted(self.halves, key=str)])


def before_text(version: str, before: Contribution, after: Contribution) -> str | None:
    """What a step changes, as a ledger item keeps it: the version before, the names of rows that the item is new to,
    and what it contributed to others. None if that is too long to keep.

    Rows with plain attributes, and those whose entries change, are left out: the ledger does not hold their values.
    """
    changed = [row for row in {**before, **after} if _is_reversible(before.get(row), after.get(row))]
    entered = "".join(sorted(row_name(row) for row in changed if row not in before))
    text = f"{version} {entered} {stored_text({row: before[row] for row in changed if row in before})}"
    return text if len(text) <= LETTERS_KEPT else None


def _is_reversible(was: RowContribution | None, now: RowContribution | None) -> bool:
    if was is not None and now is not None and not differs(was, now):
        return False
    there = [each for each in (was, now) if each is not None]
    if any(each.digest or each.plain is not None or each.names or each.life for each in there):
        return False
    return (was.ordered if was else NOTHING) == (now.ordered if now else NOTHING)


def version_before(text: str) -> str:
    return text.partition(" ")[0]


def contribution_before(text: str, now: Contribution, only: Collection[str] | None = None) -> Contribution:
    """The contribution before a step. ``only``: the names of the rows that go back; None: all that can.

    Raises ``EngineError`` for a text that is damaged.
    """
    entered, _, stored = text.partition(" ")[2].partition(" ")
    new = names_of_rows(entered)
    back = new if only is None else new.intersection(only)
    rows = {row: each for row, each in now.items() if row_name(row) not in back}
    rows.update((row, each) for row, each in stored_rows(stored).items() if only is None or row_name(row) in only)
    return rows


def just_before(version: str) -> str:
    """A version after all that are older than this one: with it, the change of this version is not done.

    Of a step that did not read its ledger item, it is in place of the version there, which is not known.
    """
    number = NUMBER.search(version)
    if number is None or not int(number[0]):
        return f"{version[:-1]}{BEFORE_DIGITS}{AFTER_ALL}"
    rest = AFTER_ALL if BY_OURSELVES in version else BY_OURSELVES + AFTER_ALL
    return f"{version[: number.start()]}{int(number[0]) - 1:0{len(number[0])}d}{rest}"
