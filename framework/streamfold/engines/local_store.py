"""Guarded writes on items that a store of this machine finds and keeps itself, for dictionaries and SQLite.

Source items are kept beside rows, in the stores of local replays and proofs: cascades remove them, and attributes are
derived onto them. On AWS each such write makes a record of the table's stream. These stores make the record themselves,
in their own stream. Its version sorts between the item's last one and its next one, because the real stream's numbers
are unknown.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any, Self

from streamfold.engines.keys import ItemOrRowKey, key_attributes, key_too_long
from streamfold.engines.local_writes import NO_ITEM, LocalWrite, local_write
from streamfold.engines.own_stream import DerivedStream, OwnRecords, change_of
from streamfold.engines.protocol import (
    OWN_VERSION,
    Counter,
    Declared,
    Finished,
    Inserted,
    ItemTimes,
    OwnRecord,
    Page,
    SeparateTables,
    StoredItem,
    Wanted,
)
from streamfold.errors import HandlerError
from streamfold.keys.key_part import LETTER_BYTES_MAX
from streamfold.keys.table import STATE, Table
from streamfold.records.change import BY_OURSELVES, ItemKey
from streamfold.records.values import ITEM_BYTES_MAX, decode, encode, item_bytes
from streamfold.settings.limits import ACTIONS_MAX, BYTES_MAX
from streamfold.writes.guarded import (
    CONDITION,
    VALIDATION,
    AbsentSource,
    ClearNotes,
    CountUp,
    DeleteSource,
    GuardedWrite,
    PutPostRow,
    PutRow,
    PutState,
    Reason,
    Refused,
    RemoveEmpty,
    RowKey,
    StateKey,
    SwapState,
    UpdateSource,
    too_large,
)

OF_SOURCES = frozenset((AbsentSource, DeleteSource, UpdateSource))
FoundItems = dict[ItemOrRowKey, dict[str, Any] | None]
"""Items by key, None for one that is not there: rows as attribute values, state items as plain values."""
NEW_IMAGES = "Only records with new images have them."
UPDATE_DIGITS = 8
"""Digits of the number of updates since an item's last own change."""


class GuardedItems(ABC):
    """The writes of the engine protocol. Each looks at the items first, and changes nothing if it is refused.

    A store defines how it finds items (``_row``, ``_state``, ``_any``) and how it keeps them (``_apply``,
    ``_write_source``, ``_work``). Returned items are never changed in place.
    """

    is_local = True
    _stream: OwnRecords | DerivedStream | None = None  # none until there is a record, or one of a file

    def __init__(self, tables: Declared | Iterable[Table], wanted: Wanted | None, actions_max: int) -> None:
        given, by_default = (tables, None) if isinstance(tables, Iterable) else (tables.tables.values(), tables.chains)
        self.tables: Mapping[str, Table] = {table.name: table for table in (*given, STATE)}
        self.wanted: Wanted | None = wanted or by_default  # by default the rows that a handler reads
        self.actions_max: int = actions_max
        self.item_times: ItemTimes = ItemTimes()

    @property
    def own_stream(self) -> Self:
        return self

    @property
    def by_prefix(self) -> Self:
        return self

    @property
    def separate(self) -> SeparateTables | None:
        return None

    def transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        refused = refused_together(writes, self.actions_max)
        if refused is not None:
            return refused
        with self._work():
            return self._transact(writes, expires_at)

    def insert_rows(self, rows: Sequence[PutRow]) -> Inserted:
        done: FoundItems = {}
        with self._work():
            self._expect([row.key for row in rows])
            known = [key for key in dict.fromkeys(row.key for row in rows) if self._is_there(key)]
            there = set(known)
            new = (row for row in rows if row.key not in done and row.key not in there)
            tried = ((row, self._try(row, self._local(row), 0, done)) for row in new)
            refused = {row.key: reason.message for row, reason in tried if reason is not None}
            self._apply(done)
        return Inserted([*refused], known, refused)

    def insert_state(self, items: Sequence[PutState]) -> list[StateKey]:
        with self._work():
            self._expect([item.key for item in items])
            new = [item for item in items if self._state(item.key) is None]
            done: FoundItems = {}
            refused = [item.key for item in new if self._try(item, self._local(item), 0, done) is not None]
            self._apply(done)
        return refused

    def put_post_rows(self, posts: Sequence[PutPostRow]) -> list[RowKey]:
        refused = []
        with self._work():
            local = [self._local(post) for post in posts]
            self._look_ahead(posts, local)
            for post, how in zip(posts, local, strict=True):
                done: FoundItems = {}
                if self._try(post, how, 0, done) is not None:
                    refused.append(post.key)
                self._apply(done)
        return refused

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        with self._work():
            writes = [RemoveEmpty(key) for key in dict.fromkeys(rows)]
            removed = [write.key for write in writes if self._after(write, self._local(write), 0) is None]
            self._apply(dict.fromkeys(removed))
        return removed

    def clear_pending(self, finished: Finished) -> None:
        with self._work():
            for key, texts in finished.items():
                self._write_single(ClearNotes.of(key, texts))

    def count_up(self, counters: Sequence[Counter], start: int, expires_at: int) -> dict[StateKey, dict[str, Any]]:
        counted: dict[StateKey, dict[str, Any]] = {}
        with self._work():
            for key, counter in {counter.key: counter for counter in counters}.items():
                write = CountUp(key, start, counter.expires, there=self._state(key) is not None)
                counted[key] = dict(self._write_single(write, expires_at) or {})
        return counted

    def swap_state(self, key: StateKey, attributes: Mapping[str, Any], revision: int) -> bool:
        with self._work():
            return self._write_single(SwapState(key, attributes, revision, expires=False)) is not None

    def read_sources(self, items: Iterable[ItemKey]) -> dict[ItemKey, StoredItem]:
        return {item: source for item in items if (source := self.read_source(item)) is not None}

    # Items of a store.

    @abstractmethod
    def read_source(self, item: ItemKey) -> StoredItem | None: ...

    @abstractmethod
    def _work(self) -> AbstractContextManager[None]:
        """Surrounds the reads and writes of one call, which take effect together."""

    @abstractmethod
    def _row(self, key: RowKey) -> Mapping[str, Any] | None:
        """The row of a key, or the source item, as attribute values."""

    @abstractmethod
    def _state(self, key: StateKey) -> dict[str, Any] | None:
        """The state item of a key, as plain values."""

    @abstractmethod
    def _any(self, key: RowKey) -> Mapping[str, Any] | None:
        """The source item of a key, or its row."""

    def _is_there(self, key: RowKey) -> bool:
        return self._any(key) is not None

    def _expect(self, keys: Collection[ItemOrRowKey]) -> None:  # noqa: B027 - a dictionary needs no hint
        """Announces which items are read next, so that they can be read together."""

    def _look_ahead(self, writes: Sequence[GuardedWrite], local: Sequence[LocalWrite]) -> None:  # noqa: B027 - likewise
        """Announces which writes come next, so that the items that they depend on can be read together."""

    @abstractmethod
    def _apply(self, done: FoundItems) -> None:
        """Keeps items (None: removes them), and a record of each row that changed and is wanted."""

    @abstractmethod
    def _write_source(self, write: DeleteSource | UpdateSource) -> None:
        """Changes a source item after its guard has passed."""

    # Records of the own stream.

    def _record(
        self, key: RowKey, before: StoredItem | None, after: StoredItem | None, readers: Collection[str]
    ) -> None:
        """Adds a change of a row to the own stream."""
        keys = key_attributes(self.tables[key[0]], key)
        change = change_of(key[0], keys, before, after, self.item_times.of_row(key))
        if change is not None:
            self._add_record(change, readers)

    def _record_source(
        self, write: DeleteSource | UpdateSource, found: StoredItem, stored_version: str
    ) -> tuple[StoredItem | None, str]:
        """Adds the change of a source item to the own stream; returns the item after the write, and its version."""
        change, after = carried_out(write, self.tables[write.key[0]], found, stored_version)
        change["at"] = change.get("at") or self.item_times.of_row(write.key)
        self._add_record(change, self._readers(write.key))
        return after, change[OWN_VERSION]

    def _add_record(self, change: dict[str, Any], readers: Collection[str]) -> None:
        if self._stream is None:
            self._stream = OwnRecords()
        self._stream.add(change, readers)

    def pending(self, limit: int, group: str | None = None) -> list[OwnRecord]:
        return [] if self._stream is None else self._stream.pending(limit, group)

    def advance(self, sequence: int, done: Collection[int], group: str | None = None) -> None:
        if self._stream is not None:
            with self._work():
                self._stream.advance(sequence, done, group)

    def retry(self, group: str | None = None) -> None:
        if self._stream is not None:
            with self._work():
                self._stream.retry(group)

    # Changes of a write.

    def _transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        done: FoundItems = {}
        local = [self._local(write) for write in writes]
        self._look_ahead(writes, local)
        reasons = [self._try(write, how, expires_at, done) for write, how in zip(writes, local, strict=True)]
        if any(reasons):
            return Refused(tuple(reasons))
        self._apply(done)
        for write in writes:
            if type(write) is DeleteSource or type(write) is UpdateSource:
                self._write_source(write)
        return None

    def _local(self, write: Any) -> LocalWrite:
        key = write.key
        return local_write(write, STATE if type(key) is StateKey else self.tables[key[0]])

    def _write_single(self, write: Any, expires_at: int = 0) -> dict[str, Any] | None:
        """Makes a write that has a call of its own, and returns the item then; None if the write is refused."""
        after = self._after(write, self._local(write), expires_at)
        if isinstance(after, Reason):
            return None
        self._apply({write.key: after})
        return after

    def _try(self, write: Any, local: LocalWrite, expires_at: int, done: FoundItems) -> Reason | None:
        """Adds the item after a write to ``done``, or returns why the write is refused."""
        try:
            after = self._after(write, local, expires_at)
        except HandlerError as error:
            return Reason(VALIDATION, None, str(error))
        if isinstance(after, Reason):
            return after
        key = write.key
        if after is not None:
            counted = type(write) is PutRow and write.size_checked
            if why := key_too_long(key) or (None if counted else item_too_large(key, after)):
                return why
            if self._with_indexes and type(key) is not StateKey:
                found = self._any if type(write) in OF_SOURCES else self._row
                if why := self._no_index_key(write, after, found(key) if local.looks else None):
                    return why
        if type(write) not in OF_SOURCES:
            done[key] = after
        return None

    def _after(self, write: Any, local: LocalWrite, expires_at: int) -> dict[str, Any] | Reason | None:
        """The item after a write, None if that removes it; or why the write is refused.

        Raises ``HandlerError`` for values that cannot be stored.
        """
        key = write.key
        found: Mapping[str, Any] | None = None
        if type(key) is StateKey:
            table = STATE
            if local.looks:
                found = self._state(key)
        else:
            table = self.tables[key[0]]
            if local.looks:
                found = self._any(key) if type(write) in OF_SOURCES else self._row(key)
        if local.looks and not local.holds(write, found or NO_ITEM):
            return _refused(write, found if local.returns_item else None)
        after: dict[str, Any] | None = local.after(write, found or NO_ITEM, table, expires_at)
        return after

    @cached_property
    def _with_indexes(self) -> Mapping[str, Table]:
        return {name: table for name, table in self.tables.items() if table.index_keys}

    def _no_index_key(self, write: Any, after: Mapping[str, Any], before: Mapping[str, Any] | None) -> Reason | None:
        """Refuses a value that cannot be a key of a secondary index, as DynamoDB does; unchanged attributes are not
        checked.
        """
        if (table := self._with_indexes.get(write.key[0])) is None:
            return None
        changed = [name for name in table.index_keys if before is None or before.get(name) != after.get(name)]
        fault = table.index_key_fault(after, changed)
        return Reason(VALIDATION, None, fault) if fault else None

    def _depends(self, write: Any, local: LocalWrite) -> bool:
        # A guard compares the stored item, and a stream record has its old image: other writes need no read.
        return local.looks or (type(write.key) is not StateKey and bool(self._readers(write.key)))

    def _readers(self, key: RowKey) -> Collection[str]:
        return self.wanted(key) if self.wanted is not None else ()


def _refused(write: Any, found: Mapping[str, Any] | None) -> Reason:
    """The refusal of a write whose guard does not hold, with the item that was found."""
    if not found:
        return Reason(CONDITION)
    return Reason(CONDITION, {**write.key._asdict(), **found} if type(write.key) is StateKey else decode({"M": found}))


def refused_together(writes: Sequence[GuardedWrite], actions_max: int) -> Refused | None:
    """Refuses a transaction with too many writes, with two writes of one item, or over 4 MB.

    A store that allows more writes than DynamoDB has no limit of bytes either.
    """
    if len(writes) > actions_max or len({write.key for write in writes}) < len(writes):
        why = f"a transaction takes {actions_max} writes at most, and one of each item: found {len(writes)}"
    elif actions_max == ACTIONS_MAX and too_large(writes):
        why = f"a transaction takes {BYTES_MAX} bytes at most"
    else:
        return None
    return Refused((Reason(VALIDATION, None, why),) * len(writes))


def item_too_large(key: RowKey | StateKey, item: Mapping[str, Any]) -> Reason | None:
    """Refuses an item over DynamoDB's size."""
    if letters(item) * LETTER_BYTES_MAX <= ITEM_BYTES_MAX:
        return None
    size = item_bytes(encode(item)["M"] if isinstance(key, StateKey) else item)
    if size <= ITEM_BYTES_MAX:
        return None
    return Reason(VALIDATION, None, f"the item has {size} bytes, {ITEM_BYTES_MAX} at most")


def letters(item: Mapping[str, Any]) -> int:
    """About the length of an item's text, never less than ``item_too_large`` needs; quick for texts and numbers."""
    total = 0
    for name, value in item.items():
        content = value.get("S") or value.get("N") if type(value) is dict else value
        total += len(name) + (len(content) if type(content) is str else _letters_of_other(value))
    return total


def _letters_of_other(value: Any) -> int:
    if type(value) is dict:
        if "M" in value:
            return letters(value["M"])
        texts: list[Any] = [member.get("S") for member in value["L"]] if "L" in value else [None]
        if None not in texts:  # as ``Collect`` makes it
            return len(texts) + sum(map(len, texts))
    return len(repr(value))


def carried_out(
    write: DeleteSource | UpdateSource, table: Table, found: StoredItem, stored_version: str
) -> tuple[dict[str, Any], StoredItem | None]:
    """The change for the own stream, with its version, and the source item after the write."""
    keys = key_attributes(table, write.key)
    if isinstance(write, DeleteSource):
        return _removal_of(write, keys, stored_version), None
    after = local_write(write, table).after(write, found, table, 0)
    return _update_of(write, keys, found, after, stored_version), after


def _update_of(
    write: UpdateSource, keys: StoredItem, before: StoredItem, after: StoredItem, stored_version: str
) -> dict[str, Any]:
    """The version sorts after those of earlier updates."""
    version, _, number = stored_version.partition(BY_OURSELVES)
    following = f"{version}{BY_OURSELVES}{int(number[:UPDATE_DIGITS] or 0) + 1:0{UPDATE_DIGITS}d}"
    change = {"table": write.key[0], "eventName": "MODIFY", "Keys": keys, "OldImage": before, "NewImage": after}
    return {**change, OWN_VERSION: following}


def _removal_of(write: DeleteSource, keys: StoredItem, stored_version: str) -> dict[str, Any]:
    """The change for the own stream of a removal, with its version and time.

    The version sorts after the item's last change and the change that caused the removal, and before the next of both.
    """
    version = max(write.version, stored_version) + BY_OURSELVES
    change = {"table": write.key[0], "eventName": "REMOVE", "Keys": keys, "OldImage": write.image}
    return {**change, OWN_VERSION: version, "at": write.at}


def page_of(table: Table, found: Sequence[Mapping[str, Any]], limit: int) -> Page:
    """A page of the items that were found with a limit of one more."""
    more = len(found) > limit and table.sort is not None
    return Page(found[:limit], decode(found[limit - 1][str(table.sort)]) if more else None)
