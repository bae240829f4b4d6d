"""What the embedded engine reads: state items, rows, entries, and the items of source tables."""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from streamfold.engines import Entries, StoredItem
from streamfold.engines.embedded_pages import HIGHEST, StatePages
from streamfold.engines.kept_entries import kept_max
from streamfold.engines.kept_items import UNKNOWN, KeptItem, KeptItems, KeptStates
from streamfold.engines.local_store import NEW_IMAGES
from streamfold.engines.scans import PlaceKey
from streamfold.engines.state_file import StateFile
from streamfold.errors import EngineError
from streamfold.records.change import ItemKey
from streamfold.records.values import decode, sortable
from streamfold.writes.guarded import ENTRIES, RowKey, StateKey

ROW = "SELECT item FROM items WHERE tbl = ? AND pk = ? AND sk = ?"
STATE_ITEM = "SELECT item FROM state WHERE pk = ? AND sk = ?"
ENTRY = "SELECT text FROM entries WHERE pk = ? AND sk = ?"
SEVERAL = 64
"""Items that one statement reads. It is prepared for this number: what is left of a read is read one by one."""
ROWS = (
    f"SELECT i.tbl, i.pk, i.sk, i.item FROM (VALUES {', '.join(['(?, ?, ?)'] * SEVERAL)}) AS v CROSS JOIN items AS i "  # noqa: S608
    "ON i.tbl = v.column1 AND i.pk = v.column2 AND i.sk = v.column3"
)
STATE_ITEMS = (
    f"SELECT s.pk, s.sk, s.item FROM (VALUES {', '.join(['(?, ?)'] * SEVERAL)}) AS v CROSS JOIN state AS s "  # noqa: S608
    "ON s.pk = v.column1 AND s.sk = v.column2"
)
SEVERAL_ENTRIES = STATE_ITEMS.replace("s.item", "s.text").replace("JOIN state", "JOIN entries")
"""A cross join: it looks the values up by the index, and does not search the table for them."""

T = TypeVar("T")
NO_ITEM: tuple[KeptItem, int] = (None, 0)
PlaceText = tuple[str, ...]
"""A place in the file: the columns of its key."""


class StateReads(StatePages):
    """The reads of the engine protocol, from a state file.

    In a batch, each item is read once. What the batch has changed is written before rows are read in order; entries are
    read with what has changed.
    """

    def __init__(self, file: StateFile) -> None:
        self._file = file
        self._in_batch = False
        self._rows: KeptItems[RowKey] = KeptItems()
        self._states = KeptStates()

    def read_state(
        self,
        keys: Iterable[StateKey],
        *,
        consistent: bool = False,  # noqa: ARG002 - it always is
    ) -> dict[StateKey, dict[str, Any]]:
        wanted = list(keys)
        self._expect(wanted)
        found = ((key, self._state(key)) for key in wanted)
        return {key: dict(item) for key, item in found if item is not None}

    def read_rows(self, keys: Iterable[RowKey], *, consistent: bool = True) -> dict[RowKey, dict[str, Any]]:
        del consistent  # what is written can be read at once
        wanted = list(keys)
        self._expect(wanted)
        found = ((key, self._row(key)) for key in wanted)
        return {key: decode({"M": row}) for key, row in found if row is not None}

    def read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        if not self._in_batch:
            return self._read_entries(wanted)
        entries, partition = self._states.entries, wanted.partition
        if not entries.knows(partition):
            most = kept_max(wanted.most)
            entries.take(partition, self._with_changed(Entries(partition, most + 1)), most)
        kept = entries.read(wanted)
        return self._with_changed(wanted) if kept is None else kept

    def _with_changed(self, wanted: Entries) -> list[tuple[str, str]]:
        """The entries of the file, as the batch has changed them since."""
        changed = self._states.changed_in(wanted.partition)
        if not changed:
            return self._read_entries(wanted)
        found = dict(self._read_entries(wanted._replace(most=wanted.most + len(changed))))
        for key in changed:
            item = self._states.changed[key]
            if item is None:
                found.pop(key.sk, None)
            elif wanted.after < key.sk < (wanted.before or HIGHEST):
                found[key.sk] = item.get("s", "")
        return sorted(found.items(), reverse=wanted.descending)[: wanted.most]

    def _read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        order = "DESC" if wanted.descending else "ASC"
        of_entries = wanted.partition.startswith(ENTRIES)
        table = "sk, text FROM entries" if of_entries else "sk, item FROM state"
        query = f"SELECT {table} WHERE pk = ? AND sk > ? AND sk < ? ORDER BY sk {order} LIMIT ?"
        found = self._file.all(query, (wanted.partition, wanted.after, wanted.before or HIGHEST, wanted.most))
        if of_entries:
            return found
        items = self._file.items([text for _, text in found])
        return [(place, item.get("s", "")) for (place, _), item in zip(found, items, strict=True)]

    def read_source(self, item: ItemKey) -> StoredItem | None:
        row = self._row(item)
        if row is None and not self._keeps_sources(item[0]):
            raise EngineError(
                f"The state holds no source items of table {item[0]!r}, so it cannot be told whether an item is gone. "
                "Replay the records instead, which keeps them beside its rows: streamfold replay FILES --state FILE. "
                f"{NEW_IMAGES}"
            )
        return row

    def read_sources(self, items: Iterable[ItemKey]) -> dict[ItemKey, StoredItem]:
        return {item: source for item in items if (source := self.read_source(item)) is not None}

    def _keeps_sources(self, table: str) -> bool:
        """Whether a source image of the table was ever put; only those have a version."""
        query = "SELECT 1 FROM items WHERE tbl = ? AND version IS NOT NULL LIMIT 1"
        return self._file.one(query, (table,)) is not None

    def _row(self, key: RowKey) -> KeptItem:
        if not self._in_batch:
            return self._read_row(key)[0]
        item = self._rows.get(key)
        if item is UNKNOWN:
            item, letters = self._read_row(key)
            self._rows.keep(key, item, letters)
        return item

    def _state(self, key: StateKey) -> KeptItem:
        if not self._in_batch:
            return self._read_state(key)[0]
        item = self._states.get(key)
        if item is UNKNOWN:
            item, letters = self._read_state(key)
            self._states.keep(key, item, letters)
        return item

    def _read_row(self, key: RowKey) -> tuple[KeptItem, int]:
        found = self._file.one(ROW, place_of(key))
        return self._item(found[0] if found else None)

    def _read_state(self, key: StateKey) -> tuple[KeptItem, int]:
        if key.pk.startswith(ENTRIES):
            found = self._file.one(ENTRY, key)
            return ({"s": found[0]}, len(found[0])) if found else NO_ITEM
        found = self._file.one(STATE_ITEM, key)
        return self._item(found[0] if found else None)

    def _expect(self, keys: Collection[PlaceKey]) -> None:
        """Reads items together that are asked for next, as far as they are not known; the last few, one by one."""
        if not self._in_batch:
            return
        rows, entries, states = list[RowKey](), list[StateKey](), list[StateKey]()
        for key in dict.fromkeys(keys):
            if not isinstance(key, StateKey):
                if self._rows.get(key) is UNKNOWN:
                    rows.append(key)
            elif self._states.get(key) is UNKNOWN:
                (entries if key.pk.startswith(ENTRIES) else states).append(key)
        for group in _several(rows):
            places = [place_of(key) for key in group]
            read = self._file.all(ROWS, list(chain.from_iterable(places)))
            found = _items_of(self._file, [((table, pk, sk), text) for table, pk, sk, text in read])
            for row, place in zip(group, places, strict=True):
                self._rows.keep(row, *found.get(place, NO_ITEM))
        for some in _several(states):
            read = self._file.all(STATE_ITEMS, list(chain.from_iterable(some)))
            self._keep_states(some, _items_of(self._file, [((pk, sk), text) for pk, sk, text in read]))
        for some in _several(entries):
            read = self._file.all(SEVERAL_ENTRIES, list(chain.from_iterable(some)))
            self._keep_states(some, {(pk, sk): ({"s": text}, len(text)) for pk, sk, text in read})

    def _keep_states(self, keys: Sequence[StateKey], found: Mapping[PlaceText, tuple[KeptItem, int]]) -> None:
        for key in keys:
            self._states.keep(key, *found.get(key, NO_ITEM))

    def _item(self, text: str | None) -> tuple[KeptItem, int]:
        """The item of a stored text, and the length of the text."""
        return (self._file.item(text), len(text)) if text else (None, 0)

    def _write_changed(self) -> None:
        if self._rows.changed:
            self._write_rows()
        if self._states.changed:
            self._write_states()

    def _forget_all(self) -> None:
        self._rows.clear()
        self._states.clear()

    @abstractmethod
    def _write_rows(self) -> None:
        """Writes the rows that the batch has changed."""

    @abstractmethod
    def _write_states(self) -> None:
        """Writes the state items that the batch has changed."""


def place_of(key: RowKey) -> tuple[str, str, str]:
    """The place of a row or a source item in the file."""
    return key[0], sortable(key[1]), sortable(key[2])


def _items_of(file: StateFile, read: Iterable[tuple[PlaceText, str | None]]) -> dict[PlaceText, tuple[KeptItem, int]]:
    """The items of stored texts, and the lengths of these; none for a place without a text."""
    texts = {place: text for place, text in read if text}
    items = file.items([*texts.values()])
    return {place: (item, len(text)) for (place, text), item in zip(texts.items(), items, strict=True)}


def _several(keys: Sequence[T]) -> Iterator[Sequence[T]]:
    """Groups of ``SEVERAL`` keys; those that make no whole group are left out."""
    return (keys[end - SEVERAL : end] for end in range(SEVERAL, len(keys) + 1, SEVERAL))
