"""An engine that counts: requests, actions, and the capacity units that DynamoDB would bill for them.

Prices (Developer Guide, read-write-operations and transaction-apis): a write is a unit per KB begun, the larger of the
item before and after counting; twice that in a transaction; a conditional write that is refused costs as if it were
made, and so, it is assumed, does every action of a cancelled transaction. An eventually consistent read is half a unit
per 4 KB begun, and a read of nothing is one of the smallest.
"""

from math import ceil
from typing import NamedTuple

from streamfold.keys.table import is_in_state
from streamfold.records.encoded import item_bytes
from streamfold.records.values import encode
from streamfold.writes.guarded import PutRow, StateKey

WRITE_BYTES, READ_BYTES = 1024, 4096
BATCH_READS, BATCH_WRITES = 100, 25


class Call(NamedTuple):
    """One call of an engine's method, which may be several requests."""

    name: str
    requests: int
    actions: int
    write_units: int = 0
    read_units: float = 0
    refused: bool = False


class CountingEngine:
    """Carries out on another engine what it is asked for, and remembers each call, as the store of AWS would."""

    is_local = False
    own_stream = by_prefix = durable = None

    def __init__(self, engine):
        self.engine = engine
        self.calls = []
        self.writes = []

    @property
    def requests(self):
        return sum(call.requests for call in self.calls)

    @property
    def write_units(self):
        return sum(call.write_units for call in self.calls)

    @property
    def read_units(self):
        return sum(call.read_units for call in self.calls)

    @property
    def refused(self):
        return [call for call in self.calls if call.refused]

    def named(self, name):
        return [call for call in self.calls if call.name == name]

    def transact(self, writes, expires_at):
        before = [self._bytes(write.key) for write in writes]
        refused = self.engine.transact(writes, expires_at)
        units = sum(
            _write_units(max(size, self._bytes_written(write))) for write, size in zip(writes, before, strict=True)
        )
        if len(writes) > 1:
            units *= 2
        self.writes += writes
        self.calls.append(Call("transact", 1, len(writes), units, refused=refused is not None))
        return refused

    def insert_rows(self, rows):
        before = [self._bytes(row.key) for row in rows]
        failed = self.engine.insert_rows(rows)
        units = sum(_write_units(max(size, self._bytes(row.key))) for row, size in zip(rows, before, strict=True))
        self.calls.append(Call("insert_rows", ceil(len(rows) / BATCH_WRITES), len(rows), units))
        return failed

    def put_post_rows(self, pairs):
        before = [self._bytes(pair.key) for pair in pairs]
        left = self.engine.put_post_rows(pairs)
        sizes = zip(pairs, before, strict=True)
        units = sum(_write_units(max(size, self._bytes(pair.key))) for pair, size in sizes)
        wrong = sum(pair.fresh is (size > 0) for pair, size in zip(pairs, before, strict=True))
        requests = ceil(len(pairs) / BATCH_WRITES) + ceil(wrong / BATCH_WRITES)
        self.calls.append(Call("put_post_rows", requests, len(pairs), units + wrong))
        return left

    def remove_empty(self, rows):
        units = sum(_write_units(self._bytes(key)) for key in rows)
        removed = self.engine.remove_empty(rows)
        self.calls.append(Call("remove_empty", ceil(len(rows) / BATCH_WRITES), len(rows), units))
        return removed

    def forget(self, finished):
        units = sum(_write_units(self._bytes(key)) for key in finished)
        self.engine.forget(finished)
        self.calls.append(Call("forget", ceil(len(finished) / BATCH_WRITES), len(finished), units))

    def count_up(self, counters, start, expires_at):
        before = {counter.key: self._bytes(counter.key) for counter in counters}
        counted = self.engine.count_up(counters, start, expires_at)
        units = sum(_write_units(max(size, self._bytes(key))) for key, size in before.items())
        again = [counter for counter in counters if counter.new == (before[counter.key] > 0)]
        requests = ceil(len(before) / BATCH_WRITES) + len(again)
        self.calls.append(Call("count_up", requests, len(before), units + len(again)))
        return counted

    def read_state(self, keys, **how):
        keys = list(dict.fromkeys(keys))
        found = self.engine.read_state(keys, **how)
        units = sum(ceil(max(1, self._bytes(key)) / READ_BYTES) for key in keys) / (1 if how.get("consistent") else 2)
        self.calls.append(Call("read_state", ceil(len(keys) / BATCH_READS), len(keys), read_units=units))
        return found

    def read_rows(self, keys, **how):
        keys = list(keys)
        found = self.engine.read_rows(keys, **how)
        units = sum(_read_units(self._bytes(key)) for key in keys) / (1 if how.get("consistent", True) else 2)
        self.calls.append(Call("read_rows", ceil(len(keys) / BATCH_READS), len(keys), read_units=units))
        return found

    def read_sources(self, items):
        items = list(items)
        found = self.engine.read_sources(items)
        units = sum(_read_units(item_bytes(found.get(item, {}))) for item in items)
        self.calls.append(Call("read_sources", ceil(len(items) / BATCH_READS), len(items), read_units=units))
        return found

    def read_entries(self, wanted):
        found = self.engine.read_entries(wanted)
        size = sum(self._bytes(StateKey(wanted.partition, place)) for place, _ in found)
        self.calls.append(Call("read_entries", 1, len(found), read_units=_read_units(size)))
        return found

    def swap_state(self, key, attributes, revision):
        before = self._bytes(key)
        swapped = self.engine.swap_state(key, attributes, revision)
        self.calls.append(Call("swap_state", 1, 1, _write_units(max(before, self._bytes(key))), refused=not swapped))
        return swapped

    def scan(self, table, part, after, limit):
        page = self.engine.scan(table, part, after, limit)
        self.calls.append(Call("scan", 1, len(page.keys), read_units=_read_units(sum(map(self._scanned, page.keys)))))
        return page

    def items(self, table, partition=None):
        return self.engine.items(table, partition)

    def state_items(self):
        return self.engine.state_items()

    def close(self):
        self.engine.close()

    def state_bytes(self, key):
        """The size of a state item."""
        return self._bytes(key)

    def _bytes_written(self, write):
        """The size after a write; of one that was refused, what it would have put as far as that is told by itself."""
        own = item_bytes(encode(write.attributes)["M"]) if isinstance(write, PutRow) else 0
        return max(own, self._bytes(write.key))

    def _bytes(self, key):
        if isinstance(key, StateKey):
            item = self.engine.read_state([key]).get(key)
            return 0 if item is None else item_bytes(encode({**key._asdict(), **item})["M"])
        return self._row_bytes(key)

    def _scanned(self, key):
        size = self._bytes(StateKey(*key[1:])) if is_in_state(key) else 0
        return size or sum(item_bytes(encode(row)["M"]) for row in self.engine.read_rows([key]).values())

    def _row_bytes(self, key):
        table, partition, sort = key
        declared = self.engine.tables[table]
        for item in self.engine.items(declared, partition):
            if declared.sort is None or item[declared.sort] == encode(sort):
                return item_bytes(item)
        return 0


def _read_units(size):
    """What a strongly consistent read costs."""
    return max(1, ceil(size / READ_BYTES))


def _write_units(size):
    return max(1, ceil(size / WRITE_BYTES))
