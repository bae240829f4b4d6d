"""How a shard is read: its records are filtered, spread over lanes by item, and batched lane by lane."""

import json
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple
from zlib import crc32

from streamfold.testing.filters import Filters
from streamfold.testing.forms import created_at, filtered_form, lane_key, number_text, sequence_number
from streamfold.testing.mapping_settings import MappingSettings
from streamfold.testing.stream import RETENTION_SECONDS, Shard, TwinRecord

POLLED = "PolledEventCount"
FILTERED_OUT = "FilteredOutEventCount"
EVENT_BYTES_MAX = 6 * 1024 * 1024
"""Size of a batch as JSON: what an invocation takes (Developer Guide, with-ddb)."""
ENVELOPE_BYTES = len('{"Records":[]}')


class Polled(NamedTuple):
    """A record on its way to the function: its sequence number, when it was created, and its JSON text."""

    record: TwinRecord
    sequence: int
    created: float
    text: str


@dataclass(slots=True)
class LaneBatch:
    """Records that are delivered together, until they succeed, are split or are given up.

    ``attempts`` counts invocations; only a batch with the same records has the same ``request_id``.
    """

    records: Sequence[Polled]
    request_id: str
    attempts: int = 0
    wait_seconds: float = 0.0
    due: float = 0.0

    @property
    def sequences(self) -> list[str]:
        return [number_text(polled.record) for polled in self.records]

    @property
    def event(self) -> str:
        """The event as JSON text, which an invocation gets parsed: what a function changes in it stays its own."""
        return '{"Records":[' + ",".join(polled.text for polled in self.records) + "]}"


@dataclass(slots=True, eq=False)
class StreamLane:
    """The records of some items of a shard, of which one batch at a time is in flight.

    ``batches`` is a stack: its last is the next, its others are what splitting left for later.
    """

    shard_id: str
    number: int
    waiting: deque[Polled] = field(default_factory=deque)
    waiting_bytes: int = 0
    waiting_since: float = 0.0
    batches: list[LaneBatch] = field(default_factory=list)
    turn: int = 0

    def add(self, polled: Polled, now: float) -> None:
        if not self.waiting:
            self.waiting_since = now
        self.waiting.append(polled)
        self.waiting_bytes += size_bytes(polled.text)

    def due(self, settings: MappingSettings) -> float | None:
        """When the next batch may go: at once if full, by records or bytes, else when its window ends."""
        if self.batches:
            return self.batches[-1].due
        if not self.waiting:
            return None
        full = len(self.waiting) >= settings.batch_size or self.waiting_bytes >= EVENT_BYTES_MAX
        return self.waiting_since + (0 if full else settings.window_seconds)

    def batch(self, size: int, now: float, new_id: Callable[[], str]) -> LaneBatch:
        """The batch in flight, or a new one of at most ``size`` records and Lambda's size of an event."""
        if not self.batches:
            records = [self.waiting.popleft() for _ in range(self._fitting(size))]
            self.waiting_bytes -= sum(size_bytes(polled.text) for polled in records)
            self.waiting_since = now
            self.batches.append(LaneBatch(records, new_id()))
        return self.batches[-1]

    def _fitting(self, size: int) -> int:
        """How many of the waiting records fit one event; one always goes, or its lane would stand for ever."""
        room = EVENT_BYTES_MAX - ENVELOPE_BYTES
        for count, polled in enumerate(islice(self.waiting, size)):
            room -= size_bytes(polled.text) + 1
            if room < 0:
                return max(1, count)
        return min(size, len(self.waiting))

    def unfinished(self) -> int | None:
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

    def __init__(self, shard: Shard, lanes: int) -> None:
        self.shard = shard
        self.position = -1
        self.lanes = [StreamLane(shard.id, number) for number in range(lanes)]

    def skip(self) -> None:
        """Leaves out what the shard holds by now: LATEST."""
        if self.shard.records:
            self.position = sequence_number(self.shard.records[-1])

    def poll(self, filters: Filters, now: float, metrics: Counter[str]) -> int:
        """Hands new records to the lanes, and returns how many were too old to be read.

        A record that no filter lets through is passed over unseen (Developer Guide, invocation-eventfiltering).
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
            elif filters(filtered_form(record)):
                self._lane(record).add(Polled(record, self.position, created, TEXT(record)), now)
            else:
                metrics[FILTERED_OUT] += 1
        return expired

    def checkpoint(self) -> int:
        """The sequence number up to which everything is through."""
        unfinished = [number for lane in self.lanes if (number := lane.unfinished()) is not None]
        return min(unfinished) - 1 if unfinished else self.position

    def go_back(self, position: int) -> None:
        """Forgets what was polled behind a position, or behind the checkpoint where that is lower."""
        self.position = min(position, self.checkpoint())
        for lane in self.lanes:
            lane.clear()

    @property
    def drained(self) -> bool:
        """Whether the shard is closed and all of it is through: then its children are read."""
        return self.shard.closed and self.at_end and not self.busy

    @property
    def at_end(self) -> bool:
        """Whether all of the shard was polled."""
        records = self.shard.records
        return not records or sequence_number(records[-1]) <= self.position

    @property
    def busy(self) -> bool:
        """Whether some of what was polled is not through."""
        return any(lane.batches or lane.waiting for lane in self.lanes)

    def _lane(self, record: TwinRecord) -> StreamLane:
        """An item's records share a lane."""
        if len(self.lanes) == 1:
            return self.lanes[0]
        return self.lanes[crc32(lane_key(record).encode()) % len(self.lanes)]


def size_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


TEXT: Callable[[TwinRecord], str] = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
