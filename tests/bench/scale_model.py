"""A model of DynamoDB and of Lambda's lanes in simulated time, for plans of the real planner.

What is modelled: a partition takes 1,000 write units a second and splits when it was refused for a while, as long as it
holds more than one partition key; a transaction takes 20 ms and is refused while another holds one of its items; a lane
takes the next batch when the last one is done. Reads are counted. What is not: burst capacity, failures of processes.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

UNITS_A_SECOND = 1000
"""Write units of a partition (Developer Guide, bp-partition-key-design)."""
TRANSACTION_SECONDS = 0.020
CONFLICT_SECONDS = 0.008
"""Until a refusal is answered."""
PARTITIONS = 4
"""Of a new table with on-demand capacity: 4,000 write units a second (Developer Guide, on-demand capacity mode)."""
SPLIT_REFUSALS = 200
SPLIT_SECONDS = 5.0
"""A partition splits when it refused so often, and at most once in that time. DynamoDB tells no figures, and may take
minutes."""
PAUSE_SECONDS_MAX, THROTTLE_FACTOR, PAUSE_SECONDS_LONGEST = 0.05, 4, 10.0
"""The pauses of ``streamfold.engines.deadline``."""
LANES = 8
"""Chunks of a batch in flight at once."""
START_SECONDS = 0.005
"""Of an invocation, before its first record."""
CPU_SECONDS = 0.0002
"""Of a record, in a function of one processor."""
READ_UNITS_A_BATCH = 1
"""Of the manifest, which is read beside the routing of the records: 4 KB, about 20 handlers."""
POLL_SECONDS = 0.05
"""Between two looks of a lane that found no records."""


class Transaction(NamedTuple):
    """A transaction: the items that it writes, each as its item collection, a slash and the rest of its key."""

    keys: tuple[str, ...]
    units: int  # of all its items
    records: int = 0  # whose additions its rows show once it is taken


class Arrivals(NamedTuple):
    """What comes to a lane: so many records a second, evenly; and how long it gathers for a batch of its size."""

    records_a_second: float
    batch_records: int
    window_seconds: float = 0.0

    def gathers_for(self, there: int, oldest_seconds: float) -> float:
        """How long the lane still waits before it takes a batch that is not full."""
        return 0.0 if there >= self.batch_records else max(0.0, self.window_seconds - oldest_seconds)

    def until(self, seconds: float) -> int:
        return int(seconds * self.records_a_second)

    def at(self, number: int) -> float:
        return number / self.records_a_second


@dataclass(slots=True)
class Partition:
    """A range of hashes, with the units that are left."""

    first: int
    end: int
    left: float = UNITS_A_SECOND
    filled_at: float = 0.0
    refused: int = 0
    made_at: float = 0.0
    last_key: str = ""
    several: bool = False  # whether more than one item was refused

    def fill(self, now: float) -> float:
        """The units that are left now."""
        self.left = min(UNITS_A_SECOND, self.left + (now - self.filled_at) * UNITS_A_SECOND)
        self.filled_at = now
        return self.left


class Tables:
    """All items of the application's tables, by the hash of their partition keys.

    An item collection never lies in two partitions. DynamoDB may split one by its sort keys, and tells nobody when.
    """

    def __init__(self, partitions: int = PARTITIONS) -> None:
        step = -(-(1 << 32) // partitions)
        self.partitions = [Partition(number * step, (number + 1) * step) for number in range(partitions)]
        self.busy: set[str] = set()

    def refuses(self, chunk: Transaction, now: float) -> bool:
        """Whether a partition has no units left for the chunk. If not, the units are taken."""
        share = chunk.units / len(chunk.keys)
        wanted: dict[int, tuple[Partition, str, float]] = {}
        for key in chunk.keys:
            partition = self.partition(key)
            before = wanted.get(partition.first)
            wanted[partition.first] = partition, key, share + (before[2] if before else 0.0)
        for partition, key, units in wanted.values():
            if partition.fill(now) < units:
                self._refused(partition, key, now)
                return True
        for partition, _, units in wanted.values():
            partition.left -= units
        return False

    def partition(self, key: str) -> Partition:
        place = crc32(key.partition("/")[0].encode())
        low, high = 0, len(self.partitions) - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.partitions[middle].first <= place else (low, middle - 1)
        return self.partitions[low]

    def _refused(self, partition: Partition, key: str, now: float) -> None:
        partition.refused += 1
        partition.several |= bool(partition.last_key) and partition.last_key != key
        partition.last_key = key
        due = partition.refused >= SPLIT_REFUSALS and now - partition.made_at >= SPLIT_SECONDS
        if due and partition.several and partition.end - partition.first > 1:
            middle = (partition.first + partition.end) // 2
            halves = [Partition(first, end, 0, now, made_at=now) for first, end in self._halves(partition, middle)]
            at = self.partitions.index(partition)
            self.partitions[at : at + 1] = halves

    def _halves(self, partition: Partition, middle: int) -> list[tuple[int, int]]:
        return [(partition.first, middle), (middle, partition.end)]


class Shown(NamedTuple):
    """Additions that a row shows from now on."""

    at: float
    age_seconds: float  # of the oldest record of their batch
    records: int


@dataclass(slots=True)
class Seen:
    """What a simulation showed."""

    records: int = 0
    batches: int = 0
    sent: int = 0
    conflicts: int = 0
    throttled: int = 0
    units: int = 0
    read_units: int = 0
    busy_seconds: float = 0.0  # of all lanes: what Lambda bills
    ages: list[float] = field(default_factory=list)  # of each batch's oldest record when the batch was done
    acknowledged: list[tuple[float, int]] = field(default_factory=list)  # when, and how many records
    shown: list["Shown"] = field(default_factory=list)

    def age(self, share: float) -> float:
        return sorted(self.ages)[min(len(self.ages) - 1, int(share * len(self.ages)))] if self.ages else 0.0

    def records_since(self, start: float) -> int:
        return sum(records for at, records in self.acknowledged if at >= start)

    def shown_since(self, start: float) -> int:
        """The records whose additions rows have shown since then."""
        return sum(each.records for each in self.shown if each.at >= start)

    def shown_after(self, share: float, start: float = 0.0) -> float:
        """The age that this share of the additions had at most when the rows showed them."""
        found = sorted((each.age_seconds, each.records) for each in self.shown if each.at >= start)
        wanted = share * sum(records for _, records in found)
        for age_seconds, records in found:
            wanted -= records
            if wanted <= 0:
                return age_seconds
        return 0.0


class Lane:
    """One lane of the event source mapping: batch after batch, the chunks of each in flight as far as they may be."""

    def __init__(self, world: "World", number: int) -> None:
        self.world, self.number = world, number
        self.taken = 0
        self.waiting: list[tuple[Transaction, int]] = []  # with how often each was sent
        self.flying: set[str] = set()
        self.in_flight = self.pausing = 0
        self.began = self.oldest = 0.0
        self.size = 0

    def poll(self) -> None:
        """Takes the next batch, or waits for records."""
        world = self.world
        there = world.arrivals.until(world.now) - self.taken
        if there < 1:
            world.later(POLL_SECONDS, self.poll)
            return
        gathers = world.arrivals.gathers_for(there, world.now - world.arrivals.at(self.taken + 1))
        if gathers > 1e-9:
            world.later(gathers, self.poll)
            return
        self.size, chunks = world.batch(there, self.number)
        self.began, self.oldest = world.now, world.arrivals.at(self.taken + 1)
        self.taken += self.size
        self.waiting = [(chunk, 0) for chunk in chunks]
        world.later(START_SECONDS + self.size * CPU_SECONDS, self.send)

    def send(self) -> None:
        """Sends what may be in flight: no two chunks that share an item."""
        left = []
        for chunk, tries in self.waiting:
            if self.in_flight >= LANES or not self.flying.isdisjoint(chunk.keys):
                left.append((chunk, tries))
                continue
            self.in_flight += 1
            self.flying.update(chunk.keys)
            self._begin(chunk, tries)
        self.waiting = left
        if not (left or self.in_flight or self.pausing):
            self._done()

    def _begin(self, chunk: Transaction, tries: int) -> None:
        world = self.world
        world.seen.sent += 1
        if world.tables.refuses(chunk, world.now):
            world.seen.throttled += 1
            world.later(CONFLICT_SECONDS, lambda: self._refused(chunk, tries, THROTTLE_FACTOR))
            return
        world.seen.units += chunk.units
        if not world.tables.busy.isdisjoint(chunk.keys):
            world.seen.conflicts += 1
            world.later(CONFLICT_SECONDS, lambda: self._refused(chunk, tries, 1))
            return
        world.tables.busy.update(chunk.keys)
        world.later(TRANSACTION_SECONDS, lambda: self._taken(chunk))

    def _taken(self, chunk: Transaction) -> None:
        self.world.tables.busy.difference_update(chunk.keys)
        self.world.seen.shown.append(Shown(self.world.now, self.world.now - self.oldest, chunk.records))
        self._landed(chunk)
        self.send()

    def _refused(self, chunk: Transaction, tries: int, factor: int) -> None:
        self._landed(chunk)
        longest = min(PAUSE_SECONDS_MAX * (1 << min(tries, 12)) * factor, PAUSE_SECONDS_LONGEST)
        self.pausing += 1
        self.world.later(self.world.random.random() * longest, lambda: self._again(chunk, tries + 1))
        self.send()

    def _again(self, chunk: Transaction, tries: int) -> None:
        self.pausing -= 1
        self.waiting.insert(0, (chunk, tries))
        self.send()

    def _landed(self, chunk: Transaction) -> None:
        self.in_flight -= 1
        self.flying.difference_update(chunk.keys)

    def _done(self) -> None:
        seen = self.world.seen
        seen.records += self.size
        seen.batches += 1
        seen.read_units += READ_UNITS_A_BATCH
        seen.acknowledged.append((self.world.now, self.size))
        seen.busy_seconds += self.world.now - self.began
        seen.ages.append(self.world.now - self.oldest)
        self.poll()


Batches = Callable[[int, int], tuple[int, Sequence[Transaction]]]
"""The next batch of a lane, of so many records that wait, and the lane's number: its size and its transactions."""


class World:
    """Simulated time, and all that happens in it. The same seed gives the same run."""

    def __init__(
        self, lanes: int, arrivals: Arrivals, batch: Batches, partitions: int = PARTITIONS, seed: int = 1
    ) -> None:
        self.now = 0.0
        self.seen = Seen()
        self.tables = Tables(partitions)
        self.random = Random(seed)
        self.arrivals, self.batch = arrivals, batch
        self._events: list[tuple[float, int, Callable[[], Any]]] = []
        self._count = 0
        for number in range(lanes):
            self.later(self.random.random() * max(POLL_SECONDS, arrivals.window_seconds), Lane(self, number).poll)

    def later(self, seconds: float, what: Callable[[], Any]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, what))

    def run(self, seconds: float) -> Seen:
        """Lets so much time pass."""
        while self._events and self._events[0][0] <= seconds:
            self.now, _, what = heapq.heappop(self._events)
            what()
        return self.seen
