"""An engine that begins no call when the invocation's time is nearly over; what is left comes again."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from streamfold.engines import (
    Counter,
    Engine,
    Entries,
    Finished,
    Inserted,
    Page,
    ScanPage,
    ScanPlace,
    Segment,
    StoredItem,
)
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import Table
from streamfold.records.change import ItemKey
from streamfold.run import Deadline
from streamfold.writes.guarded import GuardedWrite, PutPair, PutRow, Refused, RowKey, StateKey


class Timed:
    """An engine whose calls raise ``NotStarted`` if there is no time for them.

    ``NotStarted`` is an ``EngineUnavailable``, which every stage after the commit handles anyway. So no stage can
    forget to ask the deadline, and none loses what the stages before it did.
    """

    def __init__(self, engine: Engine, deadline: Deadline) -> None:
        self.engine = engine
        self.begin = deadline.begin

    def transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        self.begin()
        return self.engine.transact(writes, expires_at)

    def insert_rows(self, rows: Sequence[PutRow]) -> Inserted:
        self.begin()
        return self.engine.insert_rows(rows)

    def put_pairs(self, pairs: Sequence[PutPair]) -> list[RowKey]:
        self.begin()
        return self.engine.put_pairs(pairs)

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        self.begin()
        return self.engine.remove_empty(rows)

    def forget(self, finished: Finished) -> None:
        self.begin()
        self.engine.forget(finished)

    def count_up(self, counters: Sequence[Counter], start: int, expires_at: int) -> dict[StateKey, dict[str, Any]]:
        self.begin()
        return self.engine.count_up(counters, start, expires_at)

    def read_state(self, keys: Iterable[StateKey], *, consistent: bool = False) -> dict[StateKey, dict[str, Any]]:
        self.begin()
        return self.engine.read_state(keys, consistent=consistent)

    def read_rows(self, keys: Iterable[RowKey], *, consistent: bool = True) -> dict[RowKey, dict[str, Any]]:
        self.begin()
        return self.engine.read_rows(keys) if consistent else self.engine.read_rows(keys, consistent=False)

    def read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        self.begin()
        return self.engine.read_entries(wanted)

    def swap_state(self, key: StateKey, attributes: Mapping[str, Any], revision: int) -> bool:
        self.begin()
        return self.engine.swap_state(key, attributes, revision)

    def read_source(self, item: ItemKey) -> StoredItem | None:
        self.begin()
        return self.engine.read_source(item)

    def read_sources(self, items: Iterable[ItemKey]) -> dict[ItemKey, StoredItem]:
        self.begin()
        return self.engine.read_sources(items)

    def page(self, table: Table, partition: KeyValue, begins: str, after: KeyValue | None, limit: int) -> Page:
        self.begin()
        return self.engine.page(table, partition, begins, after, limit)

    def items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        self.begin()
        return self.engine.items(table, partition)

    def scan(self, table: Table, part: Segment, after: ScanPlace | None, limit: int) -> ScanPage:
        self.begin()
        return self.engine.scan(table, part, after, limit)

    def state_items(self) -> Iterator[StoredItem]:
        self.begin()
        return self.engine.state_items()

    def close(self) -> None:
        self.engine.close()
