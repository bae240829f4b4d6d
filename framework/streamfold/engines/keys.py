"""Keys as stores take them, and their order in scans.

Stores of their own machine have segments as DynamoDB has them: each is a range of the hashes of partition keys.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import chain, islice
from typing import Any
from zlib import crc32

from streamfold.engines.protocol import ScanCursor, Segment
from streamfold.keys.key import PARTITION_BYTES_MAX, SORT_BYTES_MAX
from streamfold.keys.key_part import LETTER_BYTES_MAX
from streamfold.keys.table import STATE, Table
from streamfold.records.values import COMPACT, decode, encode, sortable
from streamfold.writes.guarded import VALIDATION, Reason, RowKey, StateKey

SHORT_LETTERS = SORT_BYTES_MAX // LETTER_BYTES_MAX
"""Letters that each component of a key may have."""

HASH_BITS = 32
BUCKET_BITS = 24
"""Bits of a hash that do not choose its bucket: there are 256 buckets."""

ItemOrRowKey = RowKey | StateKey
Rank = tuple[int, str, str]
"""The position of a key among all: the hash of its partition key, then both components as sortable text."""


def stored_key(row: RowKey) -> RowKey:
    """The key under which a store keeps a row: its own, unless it is a row of the state table with a key that is too
    long.

    The ledger knows such a row by its own key, ``attributes#APPLICATION#...`` and ``HANDLER#...``: it contains the
    item's key.
    """
    if row[0] != STATE.name:
        return row
    partition, sort = str(row[1]), str(row[2])
    what, application, _ = partition.split("#", 2)
    handler = sort.partition("#")[0]
    # Neither can be the key of another row: a table's name would follow the one, "#" the other's handler.
    short_partition = _short(partition, f"{what}#{application}#sha256:", PARTITION_BYTES_MAX)
    return row[0], short_partition, _short(sort, f"{handler}:sha256:", SORT_BYTES_MAX)


def _short(text: str, prefix: str, bytes_max: int) -> str:
    return text if len(text.encode()) <= bytes_max else prefix + sha256(text.encode()).hexdigest()


def key_attributes(table: Table, key: RowKey) -> dict[str, Any]:
    """The key of a row as attributes, encoded."""
    _, partition, sort = stored_key(key)
    if type(partition) is str and type(sort) is str and partition.isascii() and sort.isascii() and table.sort:
        return {table.partition: {"S": partition}, table.sort: {"S": sort}}  # as nearly always
    own = {table.partition: encode(partition)}
    if table.sort is not None:
        own[table.sort] = encode(sort)
    return own


def key_too_long(key: RowKey | StateKey) -> Reason | None:
    """Refuses a key if DynamoDB would refuse a component for its length."""
    partition, sort = key[-2], key[-1]
    if type(partition) is str and type(sort) is str and len(partition) <= SHORT_LETTERS >= len(sort):
        return None  # as nearly always
    if not isinstance(key, StateKey):
        partition, sort = stored_key(key)[1:]
    return _too_long(partition, PARTITION_BYTES_MAX) or _too_long(sort, SORT_BYTES_MAX)


def _too_long(value: object, bytes_max: int) -> Reason | None:
    if not isinstance(value, (str, bytes)) or len(value) * LETTER_BYTES_MAX <= bytes_max:
        return None
    size_bytes = len(value.encode() if isinstance(value, str) else value)
    if size_bytes <= bytes_max:
        return None
    return Reason(VALIDATION, None, f"a component of the key has {size_bytes} bytes, {bytes_max} at most")


def start_of(cursor: ScanCursor | None) -> dict[str, Any]:
    """The argument with which DynamoDB's scan continues at a cursor."""
    if cursor is None:
        return {}
    return {"ExclusiveStartKey": {name: encode(decode(value)) for name, value in json.loads(cursor).items()}}


def cursor_text(last: Mapping[str, Any] | None) -> ScanCursor | None:
    """The cursor behind the last key that DynamoDB's scan has seen; None at the end."""
    return COMPACT.encode(last) if last else None


def cursor_after(key: ItemOrRowKey) -> ScanCursor:
    """The cursor behind a key in a store of this machine."""
    return COMPACT.encode([sortable(key[-2]), sortable(key[-1])])


def start_after(cursor: ScanCursor | None) -> StateKey:
    """Both components, as sortable text, of the key behind which a scan continues in a store of this machine."""
    return StateKey("", "") if cursor is None else StateKey(*json.loads(cursor))


def hash_of(partition: str) -> int:
    """The hash of a partition key's sortable text."""
    return crc32(partition.encode())


def hashes(segment: Segment) -> tuple[int, int]:
    """The smallest hash of a segment, and the smallest one behind it."""
    first, end = (-((-number << HASH_BITS) // segment.of) for number in (segment.number, segment.number + 1))
    return first, end


def rank(key: ItemOrRowKey) -> Rank:
    partition = sortable(key[-2])
    return hash_of(partition), partition, sortable(key[-1])


class KeyOrder:
    """The keys of a store in dictionaries in the order of scans: of a table from when it is first read in order.

    rows, state: the store reports its writes of these (``add``). A change of their size by another writer is noticed.
    sources: its keys are never removed, so that new keys are its last.
    """

    def __init__(self, rows: Mapping[RowKey, Any], state: Mapping[StateKey, Any], sources: dict[RowKey, Any]) -> None:
        self.rows: Mapping[RowKey, Any] = rows
        self.state: Mapping[StateKey, Any] = state
        self.sources: dict[RowKey, Any] = sources
        self._tables: dict[str, list[list[ItemOrRowKey]]] = {}
        self._sizes = len(rows), len(state)
        self._sources_seen = len(sources)

    def is_of(self, rows: Mapping[RowKey, Any], state: Mapping[StateKey, Any], sources: Mapping[RowKey, Any]) -> bool:
        """Whether the dictionaries are the same objects, and every change of their size was reported."""
        same = rows is self.rows and state is self.state and sources is self.sources
        return same and (len(rows), len(state)) == self._sizes

    def add(self, written: Iterable[ItemOrRowKey]) -> None:
        """Adds the keys of rows and state items that the store has written; removed keys may remain."""
        for key in written:
            self._add(key)
        self._sizes = len(self.rows), len(self.state)

    def _add(self, key: ItemOrRowKey) -> None:
        """Enters a key, if there is an order of its table and the key is not in it."""
        buckets = self._tables.get(_table_of(key))
        if buckets is None:
            return
        own = rank(key)
        bucket = buckets[own[0] >> BUCKET_BITS]
        at = bisect_left(bucket, own, key=rank)
        if at == len(bucket) or rank(bucket[at]) != own:
            bucket.insert(at, key)

    def walk(self, table: str, segment: Segment, after: ScanCursor | None) -> Iterator[ItemOrRowKey]:
        """The keys of a segment behind a cursor; keys of removed items may be among them."""
        self._add_sources()
        first, end = hashes(segment)
        begin: Rank = (first, "", "") if after is None else rank(start_after(after))
        for bucket in self._of(table)[begin[0] >> BUCKET_BITS : (end - 1 >> BUCKET_BITS) + 1]:
            for at in range(bisect_right(bucket, begin, key=rank), bisect_left(bucket, (end, "", ""), key=rank)):
                yield bucket[at]

    def partition(self, table: str, partition: str, first: str) -> Iterator[ItemOrRowKey]:
        """The keys of a partition from a sort position on, both as sortable text; with removed ones as in ``walk``."""
        self._add_sources()
        begin: Rank = (hash_of(partition), partition, first)
        bucket = self._of(table)[begin[0] >> BUCKET_BITS]
        for at in range(bisect_left(bucket, begin, key=rank), len(bucket)):
            if sortable(bucket[at][-2]) != partition:
                return
            yield bucket[at]

    def _of(self, table: str) -> list[list[ItemOrRowKey]]:
        if table not in self._tables:
            self._tables[table] = self._made(table)
        return self._tables[table]

    def _add_sources(self) -> None:
        for key in list(islice(reversed(self.sources), len(self.sources) - self._sources_seen)):
            self._add(key)
        self._sources_seen = len(self.sources)

    def _made(self, table: str) -> list[list[ItemOrRowKey]]:
        """Sorts the keys of a table. The lists hold keys that the store holds anyway."""
        buckets: list[list[ItemOrRowKey]] = [[] for _ in range(1 << HASH_BITS - BUCKET_BITS)]
        for key in self._keys(table):
            buckets[hash_of(sortable(key[-2])) >> BUCKET_BITS].append(key)
        for bucket in buckets:
            bucket.sort(key=rank)
        return buckets

    def _keys(self, table: str) -> Iterator[ItemOrRowKey]:
        rows: Iterable[ItemOrRowKey] = (key for key in self.rows if key[0] == table)
        sources = (key for key in self.sources if key[0] == table and key not in self.rows)
        return chain(rows, sources, self.state if table == STATE.name else ())


def _table_of(key: ItemOrRowKey) -> str:
    return STATE.name if isinstance(key, StateKey) else key[0]
