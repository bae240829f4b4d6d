"""Additions that wait in deltas (``ledger.deltas``), as those see them who compare, correct and explain rows.

Nothing is moved here: ``commit.buckets`` does that.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import NamedTuple

from streamfold.batch.manifest import read_manifest
from streamfold.commit.buckets import FOUND_MAX, Texts, read_deltas
from streamfold.engines.protocol import Engine, Entries
from streamfold.errors import EngineError, plain
from streamfold.keys.table import is_in_state
from streamfold.ledger.contribution import LedgerItem
from streamfold.ledger.deltas import STRIPES, bucket_of, delta_key, names_in, stripe_partition
from streamfold.records.values import WIDE, Number
from streamfold.writes.guarded import RowKey

PENDING, REFUSED, UNREAD, GONE = "pending", "refused", "unread", "gone"
"""A delta of an item that waits; whose row takes it no more; that is damaged; whose additions are in the rows."""


class PendingAdditions(NamedTuple):
    """What waits to be added to one row."""

    deltas: int
    contributors: int  # that the row will count more, or fewer
    amounts: Mapping[str, Number]
    refused: tuple[str, ...] = ()  # why the row takes some of it no more


class PendingRows(NamedTuple):
    """Rows of which something is pending."""

    rows: AbstractSet[RowKey]
    unread: Mapping[str, str]  # what to do about deltas that cannot be read, whose rows are not known


class DeltaOfItem(NamedTuple):
    """A delta that a ledger item names as one of its last step."""

    handler: str
    name: str
    status: str  # of what the item adds by it
    why: str | None = None  # the row takes it no more, or what to do about one that cannot be read


def deltas_in(application: str, engine: Engine, bucket: int) -> Iterator[Texts]:
    """All deltas of a bucket, some at a time, however many: one that is there from the first read to the last is among
    them.

    An emptier reads a part of each stripe, and the rest later. A correction must miss none.
    """
    for stripe in range(STRIPES):
        wanted = Entries(stripe_partition(application, bucket, stripe), FOUND_MAX)
        while found := engine.read_entries(wanted):
            yield dict(found)
            if len(found) < FOUND_MAX:
                break
            wanted = wanted._replace(after=found[-1][0])


def pending_rows(application: str, engine: Engine, buckets: Iterable[int]) -> PendingRows:
    """The rows of some buckets of which something is pending."""
    rows, unread = set[RowKey](), dict[str, str]()
    for bucket in buckets:
        for texts in deltas_in(application, engine, bucket):
            deltas, damaged = read_deltas(application, texts)
            rows.update(addition.key for delta in deltas.values() for addition in delta.additions)
            unread |= damaged
    return PendingRows(rows, unread)


def pending_of(application: str, engine: Engine, row: RowKey) -> PendingAdditions | None:
    """What is pending of a row; None if nothing is."""
    deltas, contributors, amounts, refused = 0, 0, dict[str, Number](), dict[str, None]()
    for delta in (
        each
        for texts in deltas_in(application, engine, bucket_of(row))
        for each in read_deltas(application, texts)[0].values()
    ):
        own = [each for each in delta.additions if each.key == row]
        deltas += bool(own)
        for each in own:
            contributors += each.contributors
            for name, amount in each.amounts.items():
                amounts[name] = WIDE.add(amounts.get(name, 0), amount)
        if own and delta.refused is not None:
            refused[plain(delta.refused.reason)] = None
    return PendingAdditions(deltas, contributors, amounts, tuple(refused)) if deltas else None


def deltas_of(application: str, engine: Engine, found: LedgerItem) -> list[DeltaOfItem]:
    """The deltas that a ledger item names, by handler."""
    named = [
        (handler, name, rows)
        for handler, each in found.contributions.items()
        for name, rows in names_in(each.deltas or "").items()
    ]
    keys = {delta_key(application, name): name for _, name, _ in named}
    stored = engine.read_state(keys, consistent=True) if keys else {}
    deltas, unread = read_deltas(application, {keys[key]: str(item.get("s", "")) for key, item in stored.items()})

    def status(name: str, rows: frozenset[str]) -> tuple[str, str | None]:
        if name in unread:
            return UNREAD, unread[name]
        if (delta := deltas.get(name)) is None:
            return GONE, None
        if delta.refused is None:
            return PENDING, None
        # What other rows of the delta take no more is not of this item.
        return (REFUSED, plain(delta.refused.reason)) if rows & delta.rows else (GONE, None)

    return [DeltaOfItem(handler, name, *status(name, rows)) for handler, name, rows in named]


class PendingLook:
    """Whether something of a row waits in a delta, as one look into the buckets shows: each bucket is read once."""

    def __init__(self, application: str, engine: Engine) -> None:
        self.application = application
        self.engine = engine
        self.found: dict[int, PendingRows] | None = None  # by bucket; None: no process puts deltas

    def may_be(self) -> bool:
        # Read each time: a long command may have begun before the first process noted that it puts deltas.
        return read_manifest(self.application, self.engine).deltas is not None

    def look_anew(self, *, buckets: bool) -> None:
        """Forgets what was read. ``buckets``: these are read again; otherwise no row has anything that waits."""
        self.found = {} if buckets else None

    def before_scan(self, rows: Iterable[RowKey]) -> set[RowKey]:
        """The rows of which something is pending before the second scan.

        What the first scan saw of an item may be taken back together with its delta. Then this look sees the delta, or
        the second scan sees that the ledger item is another one.
        """
        self.look_anew(buckets=True)
        found = set[RowKey]()
        for row in rows:
            with suppress(EngineError):  # a damaged delta: the look after the scan says so
                if self.has(row):
                    found.add(row)
        return found

    def has(self, row: RowKey) -> bool:
        """Whether something of a row waited when its bucket was read. Raises ``EngineError`` if nobody knows."""
        if self.found is None or is_in_state(row):
            return False
        bucket = bucket_of(row)
        if bucket not in self.found:
            self.found[bucket] = pending_rows(self.application, self.engine, [bucket])
        for why in self.found[bucket].unread.values():  # it may be of this row
            raise EngineError(why)
        return row in self.found[bucket].rows
