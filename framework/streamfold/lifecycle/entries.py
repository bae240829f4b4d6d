"""Whether the entries are there that ledger items name: a row that lacks some is wrong after its next change."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from streamfold.engines import Engine
from streamfold.ledger.contribution import RowPart, stored_rows
from streamfold.ledger.entries import partition, place, source_text
from streamfold.ledger.item import REFERENCE, LedgerItem
from streamfold.ledger.state_keys import source_of
from streamfold.records.change import ItemKey
from streamfold.routes.application import Application
from streamfold.writes.guarded import RowKey, StateKey


class NamedEntry(NamedTuple):
    """An entry that a ledger item names."""

    row: RowKey
    key: StateKey


def entry_keys(application: str, handler: str, item: ItemKey, row: RowKey, part: RowPart) -> Iterator[StateKey]:
    """The keys of the entries that an item has below a row."""
    for name, held in part.ordered.items():
        where = partition(application, handler, name, row, part.life)
        for order in held.entries:
            yield StateKey(where, place(order, source_text(item)))


def entries_of(app: Application, key: StateKey, ledger: LedgerItem) -> Iterator[NamedEntry]:
    """The entries that a ledger item names, but for those of contributions that are kept apart."""
    source = source_of(key)
    if source is None:
        return
    for name, stored in ledger.parts.items():
        rows = {} if stored.text.startswith(REFERENCE) else stored_rows(stored.text)
        for row, part in rows.items():
            for entry in entry_keys(app.name, name, source.item, row, part):
                yield NamedEntry(row, entry)


def rows_lacking_entries(app: Application, engine: Engine, ledgers: Sequence[StateKey]) -> set[RowKey]:
    """The rows below which entries of these ledger items are missing."""
    if not ledgers:
        return set()
    stored = engine.read_state(ledgers, consistent=True)
    named = [entry for key, item in stored.items() for entry in entries_of(app, key, LedgerItem.of(item))]
    there = engine.read_state({entry.key for entry in named}, consistent=True) if named else {}
    return {entry.row for entry in named if entry.key not in there}


def missing_entries(
    app: Application, engine: Engine, handler: str, item: ItemKey | None, row: RowKey, part: RowPart
) -> list[StateKey]:
    """The entries that an item has below a row by its ledger item, and that are not there."""
    keys = [] if item is None else list(entry_keys(app.name, handler, item, row, part))
    there = engine.read_state(keys, consistent=True) if keys else {}
    return [key for key in keys if key not in there]
