"""The polling of shards by a mapping: records are filtered, distributed over pollers by item, and batched.

A record is one of a DynamoDB stream or of Kinesis. The first functions read values that both have.
"""

import json
from base64 import b64decode
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple
from zlib import crc32

from streamfold.records.envelope import is_kinesis, number_of
from streamfold.testing.items import TwinError
from streamfold.testing.mapping_settings import Filters, MappingSettings
from streamfold.testing.stream import CREATED, RETENTION_SECONDS, KinesisTwin, Shard, StreamTwin, TwinRecord


def number_text(record: TwinRecord) -> str:
    """The sequence number in the reports of failures."""
    return str(number_of(record))


def sequence_number(record: TwinRecord) -> int:
    return int(number_text(record))


def created_at(record: TwinRecord) -> float:
    """The time of a record's arrival in its stream, seconds since 1970. Its age is counted from then on."""
    if is_kinesis(record):
        return float(record["kinesis"]["approximateArrivalTimestamp"])
    return float(record["dynamodb"][CREATED])


def order_key(record: TwinRecord) -> str:
    """The key of records that keep their order: the item (Developer Guide, with-ddb), or in Kinesis the partition key
    (Developer Guide, services-kinesis-create), which DynamoDB makes of the item.
    """
    if is_kinesis(record):
        return str(record["kinesis"]["partitionKey"])
    return json.dumps(record["dynamodb"]["Keys"], sort_keys=True)


def filtered_pattern(record: TwinRecord) -> Mapping[str, Any]:
    """A record as filters see it: for Kinesis only its data (Developer Guide, with-kinesis-filtering)."""
    return {"data": json.loads(b64decode(record["kinesis"]["data"]))} if is_kinesis(record) else record


POLLED = "PolledEventCount"
FILTERED_OUT = "FilteredOutEventCount"
EVENT_BYTES_MAX = 6 * 1024 * 1024
"""The size of a batch as JSON that an invocation takes (Developer Guide, with-ddb)."""
ENVELOPE_BYTES = len('{"Records":[]}')


class Polled(NamedTuple):
    """A record on its way to the function: its sequence number, when it was created, and its JSON text."""

    record: TwinRecord
    sequence: int
    created: float
    text: str


@dataclass(slots=True)
class PolledBatch:
    """Records that are delivered together, until they succeed, are split or are given up.

    ``attempts`` counts invocations; only a batch with the same records has the same ``request_id``.
    """

    records: Sequence[Polled]
    request_id: str
    attempts: int = 0
    wait_seconds: float = 0.0
    ready_at: float = 0.0

    @property
    def sequences(self) -> list[str]:
        return [number_text(polled.record) for polled in self.records]

    @property
    def event(self) -> str:
        """The event as JSON text. Each invocation parses it, so that a function cannot change the event of a retry."""
        return '{"Records":[' + ",".join(polled.text for polled in self.records) + "]}"


@dataclass(slots=True, eq=False)
class PolledShard:
    """The records of some items of a shard, of which one batch at a time is in flight.

    ``batches`` is a stack: its last is the next one, the others remain from splitting.
    """

    shard_id: str
    number: int
    waiting: deque[Polled] = field(default_factory=deque)
    waiting_bytes: int = 0
    waiting_since: float = 0.0
    batches: list[PolledBatch] = field(default_factory=list)
    turn: int = 0

    def add(self, polled: Polled, now: float) -> None:
        if not self.waiting:
            self.waiting_since = now
        self.waiting.append(polled)
        self.waiting_bytes += size_bytes(polled.text)

    def ready_at(self, settings: MappingSettings) -> float | None:
        """When the next batch is ready: at once if full, by records or bytes, else when its window ends."""
        if self.batches:
            return self.batches[-1].ready_at
        if not self.waiting:
            return None
        full = len(self.waiting) >= settings.batch_size or self.waiting_bytes >= EVENT_BYTES_MAX
        return self.waiting_since + (0 if full else settings.window_seconds)

    def batch(self, size: int, now: float, new_id: Callable[[], str]) -> PolledBatch:
        """The batch in flight, or a new one of at most ``size`` records and Lambda's size of an event."""
        if not self.batches:
            records = [self.waiting.popleft() for _ in range(self._fitting(size))]
            self.waiting_bytes -= sum(size_bytes(polled.text) for polled in records)
            self.waiting_since = now
            self.batches.append(PolledBatch(records, new_id()))
        return self.batches[-1]

    def _fitting(self, size: int) -> int:
        """How many of the waiting records fit into one event; at least one, or its poller would wait for ever."""
        room = EVENT_BYTES_MAX - ENVELOPE_BYTES
        for count, polled in enumerate(islice(self.waiting, size)):
            room -= size_bytes(polled.text) + 1
            if room < 0:
                return max(1, count)
        return min(size, len(self.waiting))

    def remaining(self) -> int | None:
        """The lowest sequence number that is not through."""
        if self.batches:
            return min(polled.sequence for batch in self.batches for polled in batch.records)
        return self.waiting[0].sequence if self.waiting else None

    def clear(self) -> None:
        self.waiting.clear()
        self.batches.clear()
        self.waiting_bytes = 0


class Reader:
    """One shard as the mapping reads it: ``position`` is the number of the last record polled."""

    def __init__(self, shard: Shard, pollers: int) -> None:
        self.shard = shard
        self.position: int = -1
        self.pollers: list[PolledShard] = [PolledShard(shard.id, number) for number in range(pollers)]

    def skip(self) -> None:
        """Skips the present records of the shard: LATEST."""
        if self.shard.records:
            self.position = sequence_number(self.shard.records[-1])

    def poll(self, filters: Filters, now: float, metrics: Counter[str]) -> int:
        """Gives new records to the pollers, and returns how many were too old to be read.

        A record that matches no filter is skipped without a trace (Developer Guide, invocation-eventfiltering).
        """
        if self.at_end:
            return 0
        records, expired = self.shard.records, 0
        for record in islice(records, bisect_right(records, self.position, key=sequence_number), None):
            metrics[POLLED] += 1
            self.position = sequence_number(record)
            created = created_at(record)
            if now - created >= RETENTION_SECONDS:
                expired += 1
            elif filters(filtered_pattern(record)):
                self._poller_of(record).add(Polled(record, self.position, created, TEXT(record)), now)
            else:
                metrics[FILTERED_OUT] += 1
        return expired

    def checkpoint(self) -> int:
        """The sequence number up to which all records are through."""
        remaining = [number for poller in self.pollers if (number := poller.remaining()) is not None]
        return min(remaining) - 1 if remaining else self.position

    def go_back(self, position: int) -> None:
        """Goes back to a position, or to the checkpoint if it is lower, and drops the polled records behind it."""
        self.position = min(position, self.checkpoint())
        for poller in self.pollers:
            poller.clear()

    @property
    def drained(self) -> bool:
        """Whether the shard is closed and all of its records are through. Only then its children are read."""
        return self.shard.closed and self.at_end and not self.busy

    @property
    def at_end(self) -> bool:
        """Whether all records of the shard were polled."""
        records = self.shard.records
        return not records or sequence_number(records[-1]) <= self.position

    @property
    def busy(self) -> bool:
        """Whether some of the polled records are not through."""
        return any(poller.batches or poller.waiting for poller in self.pollers)

    def _poller_of(self, record: TwinRecord) -> PolledShard:
        # The records of an item share a poller, or they could overtake each other.
        if len(self.pollers) == 1:
            return self.pollers[0]
        return self.pollers[crc32(order_key(record).encode()) % len(self.pollers)]


def size_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


TEXT: Callable[[TwinRecord], str] = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


class Polling:
    """Readers of all shards of a stream, each with its own ``pollers``."""

    def __init__(self, stream: StreamTwin | KinesisTwin, pollers: int, filters: Filters) -> None:
        self.stream = stream
        self._pollers = pollers
        self._filters = filters
        self._readers: dict[str, Reader] = {}
        self.find_shards()

    def find_shards(self) -> None:
        """Adds readers for new shards of the stream."""
        for shard in self.stream.shards:
            if shard.id not in self._readers:
                self._readers[shard.id] = Reader(shard, self._pollers)

    def poll(self, now: float, metrics: Counter[str]) -> int:
        """Reads every shard that may be read; returns how many records had expired before."""
        self.find_shards()
        expired = 0
        for reader in self._readers.values():
            if self._readable(reader):  # checked here, because a parent that is read makes its children readable
                expired += reader.poll(self._filters, now, metrics)
        return expired

    @property
    def pollers(self) -> Iterator[PolledShard]:
        """The pollers of all shards."""
        return (poller for reader in self._readers.values() for poller in reader.pollers)

    @property
    def caught_up(self) -> bool:
        """Whether every record that the stream holds is through."""
        self.find_shards()
        return all(reader.at_end and not reader.busy for reader in self._readers.values())

    def skip(self) -> None:
        """Skips the present records of the stream."""
        for reader in self._readers.values():
            reader.skip()

    def rewind(self, shard_id: str | None, sequence: int) -> None:
        """Goes back to a sequence number in one shard, or in all. Raises ``TwinError`` for an unknown shard."""
        if shard_id is not None and shard_id not in self._readers:
            raise TwinError(f"Shard {shard_id!r} is not read: expected one of {', '.join(self._readers) or 'none'}.")
        for reader in self._readers.values():
            if shard_id in (None, reader.shard.id):
                reader.go_back(sequence)

    def go_back(self) -> None:
        """Goes back to the checkpoint of each shard. Records that a poller finished behind it are redelivered."""
        for reader in self._readers.values():
            reader.go_back(reader.checkpoint())

    def _readable(self, reader: Reader) -> bool:
        # A child is read after its parent, or an item's records could overtake each other. The parent is through, or
        # was trimmed (Developer Guide, Streams).
        parent = self._readers.get(reader.shard.parent or "")
        return parent is None or (self._readable(parent) and parent.drained)
