"""What the calls of a store would cost on DynamoDB: requests, capacity units and dollars.

Units (Developer Guide, read-write-operations and transaction-apis): a write is a unit for each KB begun, of the larger
of the item before and after; twice that in a transaction; a conditional write that is refused costs as if it were made,
and so, it is assumed, does every action of a cancelled transaction. A strongly consistent read is a unit for each 4 KB
begun, an eventually consistent one half of it, and a read of nothing is one of the smallest.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.engines.protocol import (
    Counter,
    Entries,
    Finished,
    Inserted,
    Page,
    ScanCursor,
    ScanPage,
    Segment,
    StoredItem,
)
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import STATE, Table, is_in_state
from streamfold.records.change import ItemKey
from streamfold.records.values import encode, item_bytes
from streamfold.settings.limits import ACTIONS_MAX, KEYS_MAX, STATEMENTS_MAX
from streamfold.writes.guarded import GuardedWrite, PutPostRow, PutRow, PutState, Refused, RowKey, StateKey

if TYPE_CHECKING:
    from streamfold.engines.protocol import (
        Engine,
        OwnStream,
    )

WRITE_BYTES, READ_BYTES = 1024, 4096
"""Bytes of a write unit, and of a strongly consistent read unit (Developer Guide, read-write-operations)."""
PRICE_WRITE, PRICE_READ = 0.625, 0.125
"""Dollars for a million units on demand in PRICE_REGION since PRICE_DATE (DynamoDB pricing, on-demand capacity,
standard table class; AWS database blog, 14 November 2024). No other module has a price of DynamoDB."""
READ, WRITE = "Read", "Write"
PRICE_REGION, PRICE_DATE = "us-east-1", "2024-11-01"


def dollars(
    write_units: float, read_units: float, price_write: float = PRICE_WRITE, price_read: float = PRICE_READ
) -> float:
    return write_units / 1e6 * price_write + read_units / 1e6 * price_read


class CountedCall(NamedTuple):
    """One call of an engine's method, which may be several requests."""

    name: str
    requests: int
    actions: int
    write_units: int = 0
    read_units: float = 0
    refused: bool = False
    once: bool = False  # for the code, not for records


class CountingEngine:
    """Carries out on a local engine what it is asked for, and counts each call as the store of AWS would bill it.

    ``chained``: the changes of its derived rows reach the handlers that read them, as through a stream.
    ``once``: whether a state item is written when the code changes, and not for records.
    """

    is_local = False
    by_prefix = durable = separate = None

    def __init__(
        self, engine: Any, *, chained: bool = False, once: Callable[[StateKey], bool] = lambda _: False
    ) -> None:
        self.engine: Engine = engine
        self.once = once
        self.own_stream: OwnStream | None = engine if chained else None
        self.calls: list[CountedCall] = []
        self.table_units = defaultdict[tuple[str, str], float](
            float
        )  # by the table, STATE's of the state, and READ or WRITE

    @property
    def requests(self) -> int:
        return sum(call.requests for call in self.calls)

    @property
    def write_units(self) -> int:
        return sum(call.write_units for call in self.calls)

    @property
    def read_units(self) -> float:
        return sum(call.read_units for call in self.calls)

    @property
    def refused(self) -> list[CountedCall]:
        return [call for call in self.calls if call.refused]

    def named(self, name: str) -> list[CountedCall]:
        return [call for call in self.calls if call.name == name]

    def transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        before = [self._bytes(write.key) for write in writes]
        refused = self.engine.transact(writes, expires_at)
        sizes = [max(size, self._bytes_written(write)) for write, size in zip(writes, before, strict=True)]
        units = sum(map(write_units, sizes)) * (2 if len(writes) > 1 else 1)
        for write, size in zip(writes, sizes, strict=True):
            self._add(WRITE, write.key, write_units(size) * (2 if len(writes) > 1 else 1))
        self.calls.append(CountedCall("transact", 1, len(writes), units, refused=refused is not None))
        return refused

    def insert_rows(self, rows: Sequence[PutRow]) -> Inserted:
        before = self._sizes(row.key for row in rows)
        inserted = self.engine.insert_rows(rows)
        self._count_statements("insert_rows", before)
        return inserted

    def insert_state(self, items: Sequence[PutState]) -> list[StateKey]:
        before = self._sizes(item.key for item in items)
        missing = self.engine.insert_state(items)
        self._count_statements("insert_state", before)
        return missing

    def put_post_rows(self, posts: Sequence[PutPostRow]) -> list[RowKey]:
        before = self._sizes(post.key for post in posts)
        missing = self.engine.put_post_rows(posts)
        tried_twice = sum(post.fresh is (size > 0) for post, (_, size) in zip(posts, before, strict=True))
        self._count_statements("put_post_rows", before, ceil(tried_twice / STATEMENTS_MAX), tried_twice)
        return missing

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        before = self._sizes(rows)
        removed = self.engine.remove_empty(rows)
        self._count_statements("remove_empty", before)
        return removed

    def clear_pending(self, finished: Finished) -> None:
        before = self._sizes(finished)
        self.engine.clear_pending(finished)
        self._count_statements("clear_pending", before)

    def count_up(self, counters: Sequence[Counter], start: int, expires_at: int) -> dict[StateKey, dict[str, Any]]:
        before = self._sizes(dict.fromkeys(counter.key for counter in counters))
        sizes = dict(before)
        counted = self.engine.count_up(counters, start, expires_at)
        again = sum(counter.new == (sizes[counter.key] > 0) for counter in counters)
        self._count_statements("count_up", before, again, again)
        return counted

    def read_state(self, keys: Iterable[StateKey], *, consistent: bool = False) -> dict[StateKey, dict[str, Any]]:
        keys = list(dict.fromkeys(keys))
        found = self.engine.read_state(keys, consistent=consistent)
        self._count_reads("read_state", {key: self._bytes(key) for key in keys}, consistent=consistent)
        return found

    def read_together(self, keys: Iterable[StateKey]) -> dict[StateKey, dict[str, Any]]:
        keys = list(dict.fromkeys(keys))
        found = self.engine.read_together(keys)
        # Two units for each 4 KB of an item (Developer Guide, transaction-apis).
        units = sum(2 * _read_units(self._bytes(key)) for key in keys)
        self.table_units[STATE.name, READ] += units
        self.calls.append(CountedCall("read_together", ceil(len(keys) / ACTIONS_MAX), len(keys), read_units=units))
        return found

    def read_rows(self, keys: Iterable[RowKey], *, consistent: bool = True) -> dict[RowKey, dict[str, Any]]:
        keys = list(keys)
        found = self.engine.read_rows(keys, consistent=consistent)
        sizes = {key: item_bytes(encode(found[key])["M"]) if key in found else 0 for key in keys}
        self._count_reads("read_rows", sizes, consistent=consistent)
        return found

    def read_source(self, item: ItemKey) -> StoredItem | None:
        found = self.engine.read_source(item)
        self._count_reads("read_source", {item: item_bytes(found or {})})
        return found

    def read_sources(self, items: Iterable[ItemKey]) -> dict[ItemKey, StoredItem]:
        items = list(items)
        found = self.engine.read_sources(items)
        self._count_reads("read_sources", {item: item_bytes(found.get(item, {})) for item in items})
        return found

    def read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        found = self.engine.read_entries(wanted)
        size = sum(self._bytes(StateKey(wanted.partition, position)) for position, _ in found)
        units = _read_units(size) / (1 if wanted.consistent else 2)
        self.table_units[STATE.name, READ] += units
        self.calls.append(CountedCall("read_entries", 1, len(found), read_units=units))
        return found

    def swap_state(self, key: StateKey, attributes: Mapping[str, Any], revision: int) -> bool:
        before = self._bytes(key)
        swapped = self.engine.swap_state(key, attributes, revision)
        units = write_units(max(before, self._bytes(key)))
        self._add(WRITE, key, units)
        self.calls.append(CountedCall("swap_state", 1, 1, units, refused=not swapped, once=self.once(key)))
        return swapped

    def page(
        self,
        table: Table,
        partition: KeyValue,
        begins: str,
        after: KeyValue | None,
        limit: int,
        *,
        descending: bool = False,
    ) -> Page:
        page = self.engine.page(table, partition, begins, after, limit, descending=descending)
        units = _read_units(sum(map(item_bytes, page.items)))
        self.table_units[table.name, READ] += units
        self.calls.append(CountedCall("page", 1, len(page.items), read_units=units))
        return page

    def scan(self, table: Table, segment: Segment, after: ScanCursor | None, limit: int) -> ScanPage:
        page = self.engine.scan(table, segment, after, limit)
        units = _read_units(sum(map(self._scanned, page.keys)))
        self.table_units[table.name, READ] += units
        self.calls.append(CountedCall("scan", 1, len(page.keys), read_units=units))
        return page

    def items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        return self.engine.items(table, partition)

    def state_items(self) -> Iterator[StoredItem]:
        return self.engine.state_items()

    def close(self) -> None:
        self.engine.close()

    def state_bytes(self, key: StateKey) -> int:
        return self._bytes(key)

    def _count_statements(
        self, name: str, before: Sequence[tuple[RowKey | StateKey, int]], requests: int = 0, again: int = 0
    ) -> None:
        """Counts statements of one write each, whose items had these sizes, and the tries after them."""
        requests += ceil(len(before) / STATEMENTS_MAX)
        sizes = [(key, write_units(max(size, self._bytes(key)))) for key, size in before]
        for number, (key, units) in enumerate(sizes):
            self._add(WRITE, key, units + (again if not number else 0))
        self.calls.append(CountedCall(name, requests, len(before), again + sum(units for _, units in sizes)))

    def _count_reads(self, name: str, sizes: Mapping[Any, int], *, consistent: bool = True) -> None:
        shares = {key: _read_units(size) / (1 if consistent else 2) for key, size in sizes.items()}
        for key, units in shares.items():
            self._add(READ, key, units)
        self.calls.append(CountedCall(name, ceil(len(sizes) / KEYS_MAX), len(sizes), read_units=sum(shares.values())))

    def _add(self, way: str, key: Any, units: float) -> None:
        self.table_units[STATE.name if isinstance(key, StateKey) else key[0], way] += units

    def _bytes_written(self, write: GuardedWrite) -> int:
        # Of a refused write, what it would have put, as far as the write itself has it.
        own = item_bytes(encode(write.attributes)["M"]) if isinstance(write, PutRow) else 0
        return max(own, self._bytes(write.key))

    def _sizes(self, keys: Iterable[RowKey | StateKey]) -> list[tuple[RowKey | StateKey, int]]:
        return [(key, self._bytes(key)) for key in keys]

    def _bytes(self, key: RowKey | StateKey) -> int:
        if isinstance(key, StateKey):
            item = self.engine.read_state([key]).get(key)
            return 0 if item is None else item_bytes(encode({**key._asdict(), **item})["M"])
        row = self.engine.read_rows([key]).get(key)
        return 0 if row is None else item_bytes(encode(row)["M"])

    def _scanned(self, key: ItemKey) -> int:
        return (self._bytes(StateKey(str(key[1]), str(key[2]))) if is_in_state(key) else 0) or self._bytes(key)


def _read_units(size: int) -> int:
    return max(1, ceil(size / READ_BYTES))


def write_units(size: int) -> int:
    return max(1, ceil(size / WRITE_BYTES))
