"""Guarded writes on items that a store of this machine finds and keeps itself: what dictionaries and SQLite share."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

from streamfold.engines import Counter, Finished, Inserted, Wanted
from streamfold.engines.applied import (
    ROW_WRITES,
    STATE_WRITES,
    Attributes,
    counted_up,
    is_empty,
    item_too_large,
    refused_as_a_whole,
    without_left,
)
from streamfold.engines.conditions import revision_holds
from streamfold.engines.keys import key_too_long
from streamfold.engines.scans import PlaceKey
from streamfold.engines.sources import source_refusal, updated
from streamfold.errors import HandlerError
from streamfold.keys.table import Table
from streamfold.writes.guarded import (
    VALIDATION,
    AbsentSource,
    Claim,
    CounterWrite,
    DeleteRow,
    DeleteSource,
    DeleteState,
    GuardedWrite,
    LedgerWrite,
    PutMirror,
    PutPair,
    PutRow,
    Reason,
    Refused,
    RowKey,
    StateKey,
    SwapState,
    UpdateSource,
)

OF_SOURCES = frozenset((AbsentSource, DeleteSource, UpdateSource))
LOOKING = frozenset((LedgerWrite, Claim, SwapState, CounterWrite, PutMirror, DeleteState))
"""Writes of state items that depend on the stored one. A type is looked up faster than ``isinstance`` tells it."""
FoundItems = dict[PlaceKey, dict[str, Any] | None]
"""Items by key, None for one that is not there: rows as attribute values, state items as plain values."""


class GuardedItems(ABC):
    """The writes of the engine protocol. Each looks at the items first, and changes nothing if it is refused.

    A store says how it finds items (``_row``, ``_state``, ``_any``) and how it keeps them (``_apply``,
    ``_write_source``, ``_work``). Items that it gave out are never changed in place.
    """

    tables: Mapping[str, Table]
    wanted: Wanted | None
    actions_max: int

    def transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        refused = refused_as_a_whole(writes, self.actions_max)
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
            refused = {row.key: reason.message for row in new if (reason := self._try(row, 0, done)) is not None}
            self._apply(done)
        return Inserted([*refused], known, refused)

    def put_pairs(self, pairs: Sequence[PutPair]) -> list[RowKey]:
        with self._work():
            self._look_ahead(pairs)
            return [pair.key for pair in pairs if not self._put_pair(pair)]

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        with self._work():
            removed = [key for key in dict.fromkeys(rows) if is_empty(self._row(key))]
            self._apply(dict.fromkeys(removed))
        return removed

    def forget(self, finished: Finished) -> None:
        with self._work():
            for key, texts in finished.items():
                if (item := without_left(texts, self._state(key))) is not None:
                    self._apply({key: item})

    def count_up(self, counters: Sequence[Counter], start: int, expires_at: int) -> dict[StateKey, dict[str, Any]]:
        wanted = {counter.key: counter for counter in counters}
        with self._work():
            counted = {key: counted_up(each, self._state(key), start, expires_at) for key, each in wanted.items()}
            for key, item in counted.items():
                self._apply({key: item})
        return {key: dict(item) for key, item in counted.items()}

    def swap_state(self, key: StateKey, attributes: Mapping[str, Any], revision: int) -> bool:
        with self._work():
            fits = revision_holds(revision, self._state(key))
            if fits:
                self._apply({key: {**attributes, "r": revision + 1}})
        return fits

    # What a store says of its items.

    @abstractmethod
    def _work(self) -> AbstractContextManager[None]:
        """Surrounds the reads and writes of one call, which are done as a whole."""

    @abstractmethod
    def _row(self, key: RowKey) -> Attributes | None:
        """The row of a key, as attribute values."""

    @abstractmethod
    def _state(self, key: StateKey) -> dict[str, Any] | None:
        """The state item of a key, as plain values."""

    @abstractmethod
    def _any(self, key: RowKey) -> Mapping[str, Any] | None:
        """The source item of a key, or its row."""

    def _is_there(self, key: RowKey) -> bool:
        return self._any(key) is not None

    def _expect(self, keys: Collection[PlaceKey]) -> None:  # noqa: B027 - a dictionary needs no hint
        """Tells which items are asked for next, so that they can be read together."""

    def _look_ahead(self, writes: Sequence[GuardedWrite]) -> None:  # noqa: B027 - a dictionary needs no hint
        """Tells which writes come next, so that the items that they depend on can be read together."""

    @abstractmethod
    def _apply(self, done: FoundItems) -> None:
        """Keeps items (None: removes them), and a record of each row that changed and is wanted."""

    @abstractmethod
    def _write_source(self, write: DeleteSource | UpdateSource) -> None:
        """Changes a source item, for which ``source_refusal`` gave no reason against it."""

    # What a write makes of them.

    def _transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        done: FoundItems = {}
        self._look_ahead(writes)
        reasons = [self._try(write, expires_at, done) for write in writes]
        if any(reasons):
            return Refused(tuple(reasons))
        self._apply(done)
        for write in writes:
            if type(write) is DeleteSource or type(write) is UpdateSource:
                self._write_source(write)
        return None

    def _put_pair(self, pair: PutPair) -> bool:
        done: FoundItems = {}
        fits = self._try(pair, 0, done) is None
        self._apply(done)
        return fits

    def _try(self, write: Any, expires_at: int, done: FoundItems) -> Reason | None:
        """Adds the item after a write to ``done``, or returns why the write is refused."""
        if type(write) in OF_SOURCES:
            found = self._any(write.key)
            refused = source_refusal(write, found)
            if refused is None and found is not None and isinstance(write, UpdateSource):
                source = updated(write, found)
                return self._no_index_key(write, source, found) or item_too_large(write.key, source)
            return refused
        try:
            after = self._after(write, expires_at)
        except HandlerError as error:
            return Reason(VALIDATION, None, str(error))
        if isinstance(after, Reason):
            return after
        key = write.key
        if after is not None:
            counted = type(write) is PutRow and write.size_checked
            if why := key_too_long(key) or (None if counted else item_too_large(key, after)):
                return why
            if self._with_indexes and (why := self._no_index_key(write, after)):
                return why
        done[key] = after
        return None

    def _after(self, write: Any, expires_at: int) -> dict[str, Any] | Reason | None:
        state_after = STATE_WRITES.get(type(write))
        if state_after is not None:
            found = self._state(write.key) if type(write) in LOOKING else None
            return state_after(write, found, expires_at)
        before = None if _is_whole(write) else self._row(write.key)
        return ROW_WRITES[type(write)](write, before, self.tables[write.key[0]], expires_at)

    @cached_property
    def _with_indexes(self) -> Mapping[str, Table]:
        """The tables that declare secondary indexes."""
        return {name: table for name, table in self.tables.items() if table.index_keys}

    def _no_index_key(
        self, write: Any, after: Mapping[str, Any], before: Mapping[str, Any] | None = None
    ) -> Reason | None:
        """Refuses what is no key of a secondary index, as DynamoDB does; an attribute that stays is not looked at."""
        if type(write) in STATE_WRITES or (table := self._with_indexes.get(write.key[0])) is None:
            return None
        if before is None and not _is_whole(write):
            before = self._row(write.key)
        changed = [name for name in table.index_keys if before is None or before.get(name) != after.get(name)]
        fault = table.index_key_fault(after, changed)
        return Reason(VALIDATION, None, fault) if fault else None

    def _depends(self, write: Any) -> bool:
        """Whether a write, or its stream record, depends on the stored item."""
        if type(write) in STATE_WRITES:
            return type(write) in LOOKING
        return not _is_whole(write) or bool(self._readers(write.key))

    def _readers(self, key: RowKey) -> Collection[str]:
        """The groups for which the own stream keeps the changes of a row."""
        return self.wanted(key) if self.wanted is not None else ()


def _is_whole(write: GuardedWrite) -> bool:
    """Whether a row is put or deleted whatever is stored."""
    return (type(write) is PutRow or type(write) is DeleteRow) and write.owner is None
