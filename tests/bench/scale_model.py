"""A model of DynamoDB in simulated time: partitions, transactions, reads, and what was paid for.

What is modelled: a partition takes 1,000 write and 3,000 read units a second, and splits when it was refused for a
while, as long as it holds more than one partition key; a transaction takes 20 ms and is refused while another holds one
of its items; refusals are paid for. What is not: burst capacity, failures of processes. ``scale_lanes`` has the lanes.
"""

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from random import Random
from typing import Any, NamedTuple

UNITS_A_SECOND, READ_UNITS_A_SECOND = 1000, 3000
"""Of a partition (Developer Guide, bp-partition-key-design)."""
WRITE_BYTES, READ_BYTES = 1024, 4096
TRANSACTION_SECONDS = 0.020
CONFLICT_SECONDS = 0.008
"""Until a refusal is answered."""
READ_SECONDS, WRITE_SECONDS = 0.008, 0.005
"""Of a request that reads, and of a write outside of transactions."""
PARTITIONS = 4
"""Of a new table with on-demand capacity: 4,000 write units a second (Developer Guide, on-demand capacity mode)."""
SPLIT_REFUSALS = 200
SPLIT_SECONDS = 5.0
"""A partition splits when it refused so often, and at most once in that time. DynamoDB tells no figures, and may take
minutes."""
PAUSE_SECONDS_MAX, THROTTLE_FACTOR, PAUSE_SECONDS_LONGEST = 0.05, 4, 10.0
"""The pauses of ``streamfold.engines.deadline``."""
PLACES = 1 << 32
"""Hashes of partition keys."""

Work = Generator[Any, Any, Any]
"""What a process does: it yields seconds that pass, or a ``Wait``."""
Wait = Callable[[Callable[[], None]], None]
"""Takes what is called once the wait is over."""
Wants = Sequence[tuple[int, float]]
"""Places, each with the units that are wanted there."""
THROTTLED, CONDITION = "throttled", "condition"
"""Why a transaction is refused, beside the items that another one holds."""


@cache
def place_of(key: str) -> int:
    """The hash of a key's partition key: what is before the slash. It spreads keys evenly that differ in a letter."""
    return int.from_bytes(blake2b(key.partition("/")[0].encode(), digest_size=4).digest())


class Addition(NamedTuple):
    """What is added to a row."""

    records: int = 1  # that the row shows then
    contributors: int = 1

    def __add__(self, other: "Addition") -> "Addition":  # type: ignore[override]
        return Addition(self.records + other.records, self.contributors + other.contributors)


def add_to(rows: dict[str, Addition], row: str, addition: Addition) -> None:
    before = rows.get(row)
    rows[row] = addition if before is None else before + addition


@dataclass(slots=True, eq=False)
class Delta:
    """Additions that wait in a bucket."""

    bucket: int
    stripe: int
    rows: dict[str, Addition]
    size_bytes: int
    met: frozenset[str] = frozenset()  # rows at which its process met others
    oldest: float = 0.0  # when the oldest record of its batch came

    @property
    def collection(self) -> str:
        return f"delta#{self.bucket}#{self.stripe}"

    @property
    def units(self) -> int:
        """Of its put or its removal, in a transaction."""
        return 2 * -(-self.size_bytes // WRITE_BYTES)


class Transaction(NamedTuple):
    """A transaction of ledger items, rows and deltas, as the planner packed it."""

    rows: Mapping[str, Addition] = {}  # that it adds to directly, each as its item collection, a slash and the rest
    own: int = 0  # items that no other transaction writes: ledger items, and rows of single items
    own_records: int = 0  # records whose rows are of their own
    deltas: tuple[Delta, ...] = ()  # that it puts
    units: tuple[Any, ...] = ()  # of the planner

    def wants(self, random: Random) -> list[tuple[int, float]]:
        """Own items lie anywhere."""
        draw = random.getrandbits
        wants = [(draw(32), 2.0) for _ in range(self.own)]
        wants += [(place_of(row), 2.0) for row in self.rows]
        wants += [(place_of(delta.collection), float(delta.units)) for delta in self.deltas]
        return wants

    def paid(self) -> dict[str, int]:
        """Write units, by what they are for."""
        put = sum(delta.units for delta in self.deltas)
        return {"ledger and own rows": 2 * self.own, "rows directly": 2 * len(self.rows), "deltas put": put}

    def records(self) -> int:
        """The records that rows show once it is taken."""
        return self.own_records + sum(addition.records for addition in self.rows.values())


@dataclass(slots=True)
class Partition:
    """A range of hashes, with the units that are left."""

    first: int
    end: int
    left: float = UNITS_A_SECOND
    left_of_reads: float = READ_UNITS_A_SECOND
    filled_at: float = 0.0
    refused: int = 0
    made_at: float = 0.0
    last_place: int | None = None
    several: bool = False  # whether more than one item collection was refused

    def fill(self, now: float) -> None:
        """Adds the units that came back until now."""
        passed, self.filled_at = now - self.filled_at, now
        self.left = min(UNITS_A_SECOND, self.left + passed * UNITS_A_SECOND)
        self.left_of_reads = min(READ_UNITS_A_SECOND, self.left_of_reads + passed * READ_UNITS_A_SECOND)


class Tables:
    """All items of the application's tables, by the hash of their partition keys.

    An item collection never lies in two partitions. DynamoDB may split one by its sort keys, and tells nobody when.
    """

    def __init__(self, partitions: int = PARTITIONS) -> None:
        step = -(-PLACES // partitions)
        self.partitions = [Partition(number * step, (number + 1) * step) for number in range(partitions)]
        self._starts = [partition.first for partition in self.partitions]
        self.busy: set[object] = set()

    def refuses(self, wants: Wants, now: float, *, reads: bool = False) -> bool:
        """Whether a partition has not the units that are wanted of it. If all have, the units are taken."""
        units_at: dict[int, float] = {}
        last: dict[int, int] = {}
        starts = self._starts
        for place, units in wants:
            at = bisect_right(starts, place) - 1
            units_at[at] = units_at.get(at, 0.0) + units
            last[at] = place
        for at, units in units_at.items():
            partition = self.partitions[at]
            partition.fill(now)
            if (partition.left_of_reads if reads else partition.left) < units:
                self._refused(partition, last[at], now)
                return True
        for at, units in units_at.items():
            if reads:
                self.partitions[at].left_of_reads -= units
            else:
                self.partitions[at].left -= units
        return False

    def partition(self, key: str) -> Partition:
        return self.partitions[bisect_right(self._starts, place_of(key)) - 1]

    def _refused(self, partition: Partition, place: int, now: float) -> None:
        partition.refused += 1
        partition.several |= partition.last_place is not None and partition.last_place != place
        partition.last_place = place
        due = partition.refused >= SPLIT_REFUSALS and now - partition.made_at >= SPLIT_SECONDS
        if due and partition.several and partition.end - partition.first > 1:
            middle = (partition.first + partition.end) // 2
            ranges = ((partition.first, middle), (middle, partition.end))
            at = self.partitions.index(partition)
            self.partitions[at : at + 1] = [Partition(*each, 0, 0, now, made_at=now) for each in ranges]
            self._starts = [each.first for each in self.partitions]


class Shown(NamedTuple):
    """Additions that a row shows from now on."""

    at: float
    age_seconds: float  # of the oldest record of their batch
    records: int


class Done(NamedTuple):
    """A batch that was acknowledged."""

    at: float
    records: int
    age_seconds: float  # of its oldest record


class Bill(NamedTuple):
    """What was acknowledged and is to be paid for until some time."""

    records: int = 0
    units: float = 0
    read_units: float = 0
    busy_seconds: float = 0.0  # of all lanes: what Lambda bills
    batches: int = 0

    def since(self, before: "Bill") -> "Bill":
        return Bill(*(one - other for one, other in zip(self, before, strict=True)))


@dataclass(slots=True)
class Seen:
    """What a simulation showed."""

    records: int = 0
    batches: int = 0
    sent: int = 0
    conflicts: int = 0
    throttled: int = 0
    units: float = 0
    read_units: float = 0
    busy_seconds: float = 0.0
    before: dict[float, Bill] = field(default_factory=dict)  # by the time until which it is
    done: list[Done] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    paid: Counter[str] = field(default_factory=Counter)  # write units, by what they are for
    deltas: int = 0  # that were put
    merges: int = 0
    rows_merged: int = 0  # additions to rows by these

    def age(self, share: float) -> float:
        ages = sorted(each.age_seconds for each in self.done)
        return ages[min(len(ages) - 1, int(share * len(ages)))] if ages else 0.0

    def records_since(self, start: float) -> int:
        return sum(each.records for each in self.done if each.at >= start)

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

    def bill(self) -> Bill:
        return Bill(self.records, self.units, self.read_units, self.busy_seconds, self.batches)

    def pay(self, parts: Mapping[str, float]) -> None:
        self.units += sum(parts.values())
        self.paid.update(parts)  # type: ignore[arg-type]


class World:
    """Simulated time, and all that happens in it. The same seed gives the same run."""

    def __init__(self, partitions: int = PARTITIONS, seed: int = 1) -> None:
        self.now = 0.0
        self.seen = Seen()
        self.tables = Tables(partitions)
        self.random = Random(seed)
        self.contributors: Counter[str] = Counter()  # of rows
        self._events: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._count = 0

    def later(self, seconds: float, what: Callable[..., Any], *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, what, arguments))

    def run(self, seconds: float, *marks: float) -> Seen:
        """Lets so much time pass. ``marks``: times at which the bill is noted."""
        events = self._events
        for mark in marks:
            self.later(mark - self.now, lambda mark=mark: self.seen.before.update({mark: self.seen.bill()}))
        while events and events[0][0] <= seconds:
            self.now, _, what, arguments = heapq.heappop(events)
            what(*arguments)
        return self.seen

    def spawn(self, work: Work, then: Callable[[Any], None] = lambda _: None) -> None:
        """Does some work beside all else. ``then`` takes what it returns."""
        self._go_on(work, then)

    def _go_on(self, work: Work, then: Callable[[Any], None]) -> None:
        try:
            wait = next(work)
        except StopIteration as stop:
            then(stop.value)
            return
        if callable(wait):
            wait(lambda: self._go_on(work, then))
        else:
            self.later(wait, self._go_on, work, then)

    def side_by_side(self, works: Iterable[Work], most: int) -> Wait:
        """Ends when all of these have ended."""
        waiting = list(works)

        def start(resume: Callable[[], None]) -> None:
            left, running = len(waiting), 0

            def ended(_: Any) -> None:
                nonlocal left, running
                left, running = left - 1, running - 1
                if not left:
                    resume()
                go()

            def go() -> None:
                nonlocal running
                while waiting and running < most:
                    running += 1
                    self.spawn(waiting.pop(0), ended)

            go() if waiting else resume()

        return start

    def transact(
        self,
        wants: Wants,
        keys: Collection[object],
        paid: Mapping[str, int],
        allowed: Callable[[], bool] = lambda: True,
    ) -> Work:
        """Sends a transaction. Returns None if it was taken, ``THROTTLED``, ``CONDITION``, or the items that were held.

        keys: of items that others may write at the same time. allowed: whether its conditions hold.
        """
        seen, busy = self.seen, self.tables.busy
        seen.sent += 1
        if self.tables.refuses(wants, self.now):
            seen.throttled += 1
            yield CONFLICT_SECONDS
            return THROTTLED
        met = [key for key in keys if key in busy]
        if met or not allowed():
            seen.conflicts += bool(met)
            seen.pay({"refused": sum(paid.values())})
            yield CONFLICT_SECONDS
            return met or CONDITION
        seen.pay(paid)
        busy.update(keys)
        yield TRANSACTION_SECONDS
        busy.difference_update(keys)
        return None

    def write(self, key: str, units: float, why: str) -> Work:
        """One item, outside of transactions."""
        self.seen.sent += 1
        while self.tables.refuses([(place_of(key), units)], self.now):
            self.seen.throttled += 1
            yield PAUSE_SECONDS_MAX * THROTTLE_FACTOR * self.random.random()
        self.seen.pay({why: units})
        yield WRITE_SECONDS

    def read(self, units: Mapping[str, float], requests: int = 1) -> Work:
        """Items of these collections. ``requests``: one after the other."""
        return self._read([(place_of(key), each) for key, each in units.items()], requests)

    def read_anywhere(self, items: int, units: float) -> Work:
        """Items that nobody else reads."""
        return self._read([(self.random.getrandbits(32), units) for _ in range(items)], 1)

    def admit(self, key: str, units: float) -> Work:
        """An item that is read beside work that takes longer: this waits only if its partition refuses the units."""
        while self.tables.refuses([(place_of(key), units)], self.now, reads=True):
            self.seen.throttled += 1
            yield PAUSE_SECONDS_MAX * THROTTLE_FACTOR * self.random.random()

    def _read(self, wants: Wants, requests: int) -> Work:
        while self.tables.refuses(wants, self.now, reads=True):
            self.seen.throttled += 1
            yield PAUSE_SECONDS_MAX * THROTTLE_FACTOR * self.random.random()
        self.seen.read_units += sum(each for _, each in wants)
        yield READ_SECONDS * requests

    def pause(self, tries: int, *, throttled: bool = False) -> float:
        """Full jitter, as ``streamfold.engines.deadline`` has it."""
        longest = PAUSE_SECONDS_MAX * (1 << min(tries, 12)) * (THROTTLE_FACTOR if throttled else 1)
        return self.random.random() * min(longest, PAUSE_SECONDS_LONGEST)

    def show(self, oldest: float, records: int) -> None:
        if records:
            self.seen.shown.append(Shown(self.now, self.now - oldest, records))
