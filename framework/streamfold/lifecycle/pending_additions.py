"""Additions that wait in deltas (``ledger.deltas``), as those see them who compare, correct and explain rows.

Nothing is moved here: ``commit.buckets`` does that.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from streamfold.commit.buckets import FOUND_MAX
from streamfold.engines import Engine, Entries
from streamfold.errors import plain
from streamfold.ledger.contribution import LedgerItem
from streamfold.ledger.deltas import STRIPES, Delta, bucket_of, delta_key, names_in, stripe_partition
from streamfold.records.values import WIDE, Number
from streamfold.writes.guarded import RowKey, StateKey

PENDING, REFUSED, GONE = "pending", "refused", "gone"
"""A delta of an item that waits; whose row takes it no more; whose additions are in the rows."""


class PendingAdditions(NamedTuple):
    """What waits to be added to one row."""

    deltas: int
    contributors: int  # that the row will count more, or fewer
    amounts: Mapping[str, Number]
    refused: tuple[str, ...] = ()  # why the row takes some of it no more


class DeltaOfItem(NamedTuple):
    """A delta that a ledger item names as one of its last step."""

    handler: str
    name: str
    status: str  # of what the item adds by it
    why: str | None = None  # the row takes it no more


def deltas_in(application: str, engine: Engine, bucket: int) -> Iterator[Delta]:
    """All deltas of a bucket, however many: one that is there from the first read to the last is among them.

    An emptier reads a part of each stripe and comes again. Who takes a row for complete must miss none.
    """
    for stripe in range(STRIPES):
        wanted = Entries(stripe_partition(application, bucket, stripe), FOUND_MAX)
        while found := engine.read_entries(wanted):
            yield from (Delta.of(text, StateKey(wanted.partition, name)) for name, text in found)
            if len(found) < FOUND_MAX:
                break
            wanted = wanted._replace(after=found[-1][0])


def pending_rows(application: str, engine: Engine, buckets: Iterable[int]) -> set[RowKey]:
    """The rows of some buckets of which something is pending."""
    return {
        addition.key
        for bucket in buckets
        for delta in deltas_in(application, engine, bucket)
        for addition in delta.additions
    }


def pending_of(application: str, engine: Engine, row: RowKey) -> PendingAdditions | None:
    """What is pending of a row; None if nothing is."""
    deltas, contributors, amounts, refused = 0, 0, dict[str, Number](), dict[str, None]()
    for delta in deltas_in(application, engine, bucket_of(row)):
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
    """The deltas that a ledger item names, by handler. Raises ``EngineError`` for one that is damaged."""
    named = [
        (handler, name, rows)
        for handler, each in found.contributions.items()
        for name, rows in names_in(each.deltas or "").items()
    ]
    keys = {name: delta_key(application, name) for _, name, _ in named}
    stored = engine.read_state(keys.values(), consistent=True) if keys else {}
    return [
        DeltaOfItem(handler, name, *_status(keys[name], stored.get(keys[name]), rows)) for handler, name, rows in named
    ]


def _status(key: StateKey, stored: Mapping[str, object] | None, rows: frozenset[str]) -> tuple[str, str | None]:
    if stored is None:
        return GONE, None
    delta = Delta.of(str(stored.get("s")), key)
    if delta.refused is None:
        return PENDING, None
    # What other rows of the delta take no more is not of this item.
    return (REFUSED, plain(delta.refused.reason)) if rows & delta.rows else (GONE, None)
