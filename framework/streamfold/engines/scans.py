"""Where scans begin and go on, and the keys of a store in dictionaries in the order of scans.

Stores of their own machine have segments as DynamoDB has them: each is a range of the hashes of partition keys.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any
from zlib import crc32

from streamfold.engines import ScanPlace, Segment
from streamfold.keys.table import STATE
from streamfold.records.encoded import COMPACT
from streamfold.records.values import decode, encode, sortable
from streamfold.writes.guarded import RowKey, StateKey

HASH_BITS = 32
BUCKET_BITS = 24
"""Bits of a hash that do not choose its bucket: there are 256 buckets."""

PlaceKey = RowKey | StateKey
Rank = tuple[int, str, str]
"""The place of a key among all: the hash of its partition key, then both parts as sortable text."""


def start_of(place: ScanPlace | None) -> dict[str, Any]:
    """The argument with which DynamoDB's scan goes on at a place."""
    if place is None:
        return {}
    return {"ExclusiveStartKey": {name: encode(decode(value)) for name, value in json.loads(place).items()}}


def place_text(last: Mapping[str, Any] | None) -> ScanPlace | None:
    """The place behind the last key that DynamoDB's scan has seen; None at the end."""
    return COMPACT.encode(last) if last else None


def place_after(key: PlaceKey) -> ScanPlace:
    """The place behind a key in a store of this machine."""
    return COMPACT.encode([sortable(key[-2]), sortable(key[-1])])


def start_after(place: ScanPlace | None) -> StateKey:
    """Both parts, as sortable text, of the key behind which a scan goes on in a store of this machine."""
    return StateKey("", "") if place is None else StateKey(*json.loads(place))


def hash_of(partition: str) -> int:
    """The hash of a partition key's sortable text."""
    return crc32(partition.encode())


def hashes(part: Segment) -> tuple[int, int]:
    """The least hash of a segment, and the least one behind it."""
    first, end = (-((-number << HASH_BITS) // part.of) for number in (part.number, part.number + 1))
    return first, end


def rank(key: PlaceKey) -> Rank:
    partition = sortable(key[-2])
    return hash_of(partition), partition, sortable(key[-1])


class KeyOrder:
    """The keys of a store in dictionaries in the order of scans: of a table from when it is first read in order.

    rows, state: the store tells what it writes of these (``add``). Whoever else changes their size is noticed.
    sources: its keys are never removed, so that those which are new are its last.
    """

    def __init__(self, rows: Mapping[RowKey, Any], state: Mapping[StateKey, Any], sources: dict[RowKey, Any]) -> None:
        self.rows, self.state, self.sources = rows, state, sources
        self._tables: dict[str, list[list[PlaceKey]]] = {}
        self._sizes = len(rows), len(state)
        self._sources_seen = len(sources)

    def is_of(self, rows: Mapping[RowKey, Any], state: Mapping[StateKey, Any], sources: Mapping[RowKey, Any]) -> bool:
        """Whether nobody has changed the dictionaries, or put others in their place, without telling it."""
        same = rows is self.rows and state is self.state and sources is self.sources
        return same and (len(rows), len(state)) == self._sizes

    def add(self, written: Iterable[PlaceKey]) -> None:
        """Enters the keys of rows and state items that the store has written; those that it has removed may stay."""
        for key in written:
            self._add(key)
        self._sizes = len(self.rows), len(self.state)

    def _add(self, key: PlaceKey) -> None:
        """Enters a key, if there is an order of its table and the key is not in it."""
        buckets = self._tables.get(_table_of(key))
        if buckets is None:
            return
        own = rank(key)
        bucket = buckets[own[0] >> BUCKET_BITS]
        at = bisect_left(bucket, own, key=rank)
        if at == len(bucket) or rank(bucket[at]) != own:
            bucket.insert(at, key)

    def walk(self, table: str, part: Segment, after: ScanPlace | None) -> Iterator[PlaceKey]:
        """The keys of a segment behind a place; those of items that were removed may be among them."""
        self._add_sources()
        first, end = hashes(part)
        begin: Rank = (first, "", "") if after is None else rank(start_after(after))
        for bucket in self._of(table)[begin[0] >> BUCKET_BITS : (end - 1 >> BUCKET_BITS) + 1]:
            for at in range(bisect_right(bucket, begin, key=rank), bisect_left(bucket, (end, "", ""), key=rank)):
                yield bucket[at]

    def partition(self, table: str, partition: str, first: str) -> Iterator[PlaceKey]:
        """The keys of a partition from a sort position on, both as sortable text; with removed ones as in ``walk``."""
        self._add_sources()
        begin: Rank = (hash_of(partition), partition, first)
        bucket = self._of(table)[begin[0] >> BUCKET_BITS]
        for at in range(bisect_left(bucket, begin, key=rank), len(bucket)):
            if sortable(bucket[at][-2]) != partition:
                return
            yield bucket[at]

    def _of(self, table: str) -> list[list[PlaceKey]]:
        if table not in self._tables:
            self._tables[table] = self._made(table)
        return self._tables[table]

    def _add_sources(self) -> None:
        for key in list(islice(reversed(self.sources), len(self.sources) - self._sources_seen)):
            self._add(key)
        self._sources_seen = len(self.sources)

    def _made(self, table: str) -> list[list[PlaceKey]]:
        """Sorts the keys of a table. The lists hold keys that the store holds anyway."""
        buckets: list[list[PlaceKey]] = [[] for _ in range(1 << HASH_BITS - BUCKET_BITS)]
        for key in self._keys(table):
            buckets[hash_of(sortable(key[-2])) >> BUCKET_BITS].append(key)
        for bucket in buckets:
            bucket.sort(key=rank)
        return buckets

    def _keys(self, table: str) -> Iterator[PlaceKey]:
        rows: Iterable[PlaceKey] = (key for key in self.rows if key[0] == table)
        sources = (key for key in self.sources if key[0] == table and key not in self.rows)
        return chain(rows, sources, self.state if table == STATE.name else ())


def _table_of(key: PlaceKey) -> str:
    return STATE.name if isinstance(key, StateKey) else key[0]
