"""Lanes of Lambda on the model of DynamoDB: batches, and additions that wait as deltas (docs/decisions/0080-deltas.md).

A lane takes the next batch when the last one is done. A chunk that meets another transaction at a row sends that row's
additions as deltas, and one that meets others twice sends all of its additions so. A batch that put deltas ends when
they are in their rows; whoever waits first empties a bucket for all.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

from streamfold.commit.buckets import (
    AT_ONCE_MAX,
    JITTER,
    LEASE_SECONDS,
    LOOK_SECONDS_MAX,
    REST_SECONDS,
    SHARED_FRESH_SECONDS,
    SHARED_ROWS_MAX,
)
from streamfold.ledger.deltas import BUCKETS, STRIPES
from streamfold.runtime import (
    FIRST_WAIT_RECORDS,
    FIRST_WAIT_SECONDS,
    FIRST_WAIT_SECONDS_MAX,
    GONE_MAX,
    HEADS_SECONDS,
    HEADS_SECONDS_MET,
    SHARE_MET_MAX,
    SHARED_SECONDS,
)
from streamfold.settings.limits import ACTIONS_MAX
from tests.bench.scale_model import (
    CONDITION,
    PARTITIONS,
    READ_BYTES,
    THROTTLED,
    TRANSACTION_SECONDS,
    WRITE_BYTES,
    Addition,
    Delta,
    Done,
    Seen,
    Transaction,
    Work,
    World,
    add_to,
    place_of,
)

LANES = 8
"""Calls of a batch in flight at once."""
START_SECONDS = 0.005
"""Of an invocation, before its first record."""
CPU_SECONDS = 0.0002
"""Of a record, in a function of one processor."""
READ_UNITS_A_BATCH = 1
"""Of the manifest, which is read beside the routing of the records: 4 KB, some 15 handlers."""
MANIFEST = "manifest"
"""Its key. It is one item, so all batches share the read units of its partition."""
POLL_SECONDS = 0.05
"""Between two looks of a lane that found no records."""
PROCESSES_A_LANE = 2
"""Of which an invocation takes any that is free, where it does not always take the same."""
MERGE_TRIES_MAX, MERGE_PAUSES_MAX = 8, 2
"""Times that a merge is sent, and how often its pause is doubled: a bucket stands still meanwhile."""
QUERIES_AT_ONCE = 8
"""Stripes of a bucket that are read side by side."""
ITEMS_READ_AHEAD = 500
"""A process that found a ledger item with deltas reads those of amended items first, until so many had none."""
LEASE_BYTES, HEAD_ROW_BYTES = 100, 20
"""Of a lease, and of each row that a head names."""


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


@dataclass(slots=True, eq=False)
class LedgerItem:
    """What the ledger has of an item."""

    customer: int = 0
    delta: Delta | None = None  # that holds what its last step adds


class Step(NamedTuple):
    """The step of a ledger item that may have had one before."""

    item: LedgerItem
    row: str
    amends: bool = False  # planned from what the last step left
    removes: bool = False  # of these, one that takes a contributor from the row


class Shared(Protocol):
    """How a batch sends additions to shared rows."""

    def takes(self, row: str) -> bool:
        """Whether an addition to a row goes through a delta."""
        ...

    def met(self, rows: Iterable[str]) -> frozenset[str]:
        """Those of these rows at which the process itself met others."""
        ...


class Batch(Protocol):
    """The records of a batch."""

    @property
    def size(self) -> int: ...

    def packed(self, shared: Shared, again: Transaction | None = None) -> Sequence[Transaction]:
        """The transactions of all its records, or of those of one transaction that was refused."""
        ...

    def steps(self, transaction: Transaction) -> Sequence[Step]: ...


Planner = Callable[[int, int], Batch]
"""The next batch of a lane, of so many records that wait, and the lane's number."""


class Sharing:
    """Which rows are shared, as a process learns it."""

    def __init__(self) -> None:
        self.all = self.met_lately = False
        self.wait_seconds = FIRST_WAIT_SECONDS
        self.heads_at = float("-inf")
        self.rows: dict[str, float] = {}  # when somebody met at a row
        self.own: dict[str, float] = {}  # when this process did
        self._sent = self._met = 0  # chunks of this batch
        self._began = float("-inf")

    def began(self, records: int, now: float) -> None:
        if self._sent:
            self.all = self._met >= SHARE_MET_MAX * self._sent
        self.met_lately = self._met > 0
        self._sent = self._met = 0
        seconds, self._began = now - self._began, now
        self.wait_seconds = min(max(FIRST_WAIT_RECORDS * seconds / records, FIRST_WAIT_SECONDS), FIRST_WAIT_SECONDS_MAX)
        for known in (self.rows, self.own):
            for row in [row for row, at in known.items() if at < now - SHARED_SECONDS]:
                del known[row]

    def sends(self) -> None:
        self._sent += 1

    def meets(self, row: str, now: float, *, first: bool) -> None:
        self._met += first
        self.rows[row] = self.own[row] = now

    def learn(self, rows: Mapping[str, float]) -> None:
        for row, at in rows.items():
            self.rows[row] = max(at, self.rows.get(row, at))

    def wants_heads(self, now: float) -> bool:
        seconds = HEADS_SECONDS_MET if self.met_lately else HEADS_SECONDS
        return bool(self.rows) and now >= self.heads_at + seconds

    def takes(self, row: str) -> bool:
        return self.all or row in self.rows


@dataclass(slots=True, eq=False)
class Process:
    """What a process of the function has learnt."""

    sharing: Sharing = field(default_factory=Sharing)
    settled: dict[LedgerItem, Delta] = field(default_factory=dict)  # whose deltas it saw to be gone
    reads_ahead: int = 0  # ledger items that are read before their steps

    def knows_gone(self, item: LedgerItem) -> bool:
        return item.delta is None or self.settled.get(item) is item.delta

    def settle(self, item: LedgerItem) -> None:
        if item.delta is not None:
            self.settled.pop(item, None)
            self.settled[item] = item.delta
            if len(self.settled) > GONE_MAX:
                del self.settled[next(iter(self.settled))]


@dataclass(slots=True, eq=False)
class Bucket:
    """What lies in a bucket, and its head."""

    number: int
    lying: dict[Delta, None] = field(default_factory=dict)
    revision: int = 0
    until: float = 0.0  # of the lease
    rests_until: float = 0.0
    shared: dict[str, float] = field(default_factory=dict)  # rows, and when somebody met at each last

    @property
    def lease(self) -> str:
        """An item of its own: whoever waits reads it, and it is written twice a round."""
        return f"lease#{self.number}"

    @property
    def head(self) -> str:
        return f"head#{self.number}"

    @property
    def head_bytes(self) -> int:
        return HEAD_ROW_BYTES * len(self.shared)

    def is_free(self, now: float) -> bool:
        return now >= self.rests_until and now >= self.until

    def note(self, found: Iterable[Delta], now: float) -> bool:
        """Notes the rows at which somebody met others, and those of which two deltas were found.

        Returns whether the head has to be written.
        """
        times = Counter(row for delta in found for row in delta.rows)
        met = {row for row, count in times.items() if count > 1}.union(*(delta.met for delta in found))
        if all(row in self.shared and now < self.shared[row] + SHARED_FRESH_SECONDS for row in met):
            return False
        for row in sorted(met):
            self.shared.pop(row, None)
            self.shared[row] = now
        latest = [*self.shared.items()][-SHARED_ROWS_MAX:]
        self.shared = {row: at for row, at in latest if at >= now - SHARED_SECONDS}
        return True


class Function:
    """The lanes of a function, its processes, and the buckets of its application."""

    def __init__(
        self,
        lanes: int,
        arrivals: Arrivals,
        planner: Planner,
        partitions: int = PARTITIONS,
        seed: int = 1,
        *,
        puts_deltas: bool = True,
        any_process: bool = False,
    ) -> None:
        self.world = World(partitions, seed)
        self.arrivals, self.planner, self.puts_deltas = arrivals, planner, puts_deltas
        self.buckets = [Bucket(number) for number in range(BUCKETS)]
        count = lanes * PROCESSES_A_LANE if any_process else lanes
        self.processes = [Process() for _ in range(count)]
        self.free = [*self.processes] if any_process else None
        for number in range(lanes):
            first = self.world.random.random() * max(POLL_SECONDS, arrivals.window_seconds)
            self.world.later(first, self.world.spawn, self.lane(number))

    def run(self, seconds: float, *marks: float) -> Seen:
        return self.world.run(seconds, *marks)

    def lane(self, number: int) -> Work:
        """Batch after batch."""
        world, seen, arrivals, taken = self.world, self.world.seen, self.arrivals, 0
        while True:
            there = arrivals.until(world.now) - taken
            if there < 1:
                yield POLL_SECONDS
                continue
            oldest = arrivals.at(taken + 1)
            gathers = arrivals.gathers_for(there, world.now - oldest)
            if gathers > 1e-9:
                yield gathers
                continue
            batch, began = self.planner(there, number), world.now
            taken += batch.size
            process = self.processes[number] if self.free is None else self._taken()
            yield from Invocation(self, process, batch, oldest).run()
            if self.free is not None:
                self.free.append(process)
            seen.records += batch.size
            seen.batches += 1
            seen.read_units += READ_UNITS_A_BATCH
            seen.busy_seconds += world.now - began
            seen.done.append(Done(world.now, batch.size, world.now - oldest))

    def _taken(self) -> Process:
        assert self.free is not None
        return self.free.pop(self.world.random.randrange(len(self.free)))


class Invocation:
    """One batch: it is planned and sent, and waits for its deltas."""

    def __init__(self, function: Function, process: Process, batch: Batch, oldest: float) -> None:
        self.function, self.world, self.process = function, function.world, process
        self.batch, self.oldest = batch, oldest
        self.put: dict[Delta, None] = {}
        self.items: list[LedgerItem] = []  # that its steps wrote
        self.lowered = 0  # contributors that were taken away directly

    def run(self) -> Work:
        world, sharing = self.world, self.process.sharing
        sharing.began(self.batch.size, world.now)
        yield START_SECONDS + self.batch.size * CPU_SECONDS
        yield from world.admit(MANIFEST, READ_UNITS_A_BATCH)
        if self.function.puts_deltas and sharing.wants_heads(world.now):
            yield from self.learn()
        chunks = self.batch.packed(self)
        if self.process.reads_ahead:
            yield from self.read_items(chunks, ahead=True)
        for _ in chunks:
            sharing.sends()
        yield Sending(self, chunks).start
        if self.lowered:
            # A step that takes a contributor from a row notes the row, removes it if it is empty, and clears the note.
            yield from world.write("lowered", 0, "rows that may be empty")
            yield from world.write("notes", 0, "rows that may be empty")
            world.seen.pay({"rows that may be empty": 2 * self.lowered})
        if self.put:
            yield from self.settle()

    def takes(self, row: str) -> bool:
        return self.function.puts_deltas and self.process.sharing.takes(row)

    def met(self, rows: Iterable[str]) -> frozenset[str]:
        return frozenset(row for row in rows if row in self.process.sharing.own)

    def learn(self) -> Work:
        """Reads which rows others have met at."""
        world, sharing, buckets = self.world, self.process.sharing, self.function.buckets
        sharing.heads_at = world.now
        found = [dict(bucket.shared) for bucket in buckets]
        units: Counter[str] = Counter()
        for bucket in buckets:
            units[bucket.head] += read_units(bucket.head_bytes) / 2
        yield from world.read(units)
        for rows in found:
            sharing.learn({row: at for row, at in rows.items() if at >= world.now - SHARED_SECONDS})

    def read_items(self, chunks: Iterable[Transaction], *, ahead: bool = False) -> Work:
        """Reads ledger items that steps amend, and asks whether the deltas that they name are gone."""
        world, process = self.world, self.process
        items = [step.item for chunk in chunks for step in self.batch.steps(chunk) if step.amends]
        if not items:
            return
        yield from world.read_anywhere(len(items), 0.5 if ahead else 1.0)
        unknown = [item for item in items if not process.knows_gone(item)]
        yield from self.ask(unknown)
        for item in items:
            process.reads_ahead = ITEMS_READ_AHEAD if item.delta is not None else max(process.reads_ahead - 1, 0)

    def ask(self, items: Collection[LedgerItem]) -> Work:
        """Asks for deltas that other calls put: together, so that none is missed whose transaction is under way."""
        names = {item.delta for item in items if item.delta is not None}
        if names:
            assert not any(name in self.function.buckets[name.bucket].lying for name in names), "its batch had ended"
            units: Counter[str] = Counter()
            for name in names:
                units[name.collection] += 2
            yield from self.world.read(units)
            yield TRANSACTION_SECONDS
        for item in items:
            self.process.settle(item)

    def landed(self, chunk: Transaction) -> None:
        """Notes what a transaction did that was taken."""
        world = self.world
        world.show(self.oldest, chunk.records())
        for row, addition in chunk.rows.items():
            world.contributors[row] += addition.contributors
        if chunk.deltas:
            world.seen.deltas += len(chunk.deltas)
            for delta in chunk.deltas:
                delta.oldest = self.oldest
                self.function.buckets[delta.bucket].lying[delta] = None
                self.put[delta] = None
        by_row = {row: delta for delta in chunk.deltas for row in delta.rows}
        for step in self.batch.steps(chunk):
            self.lowered += step.removes and step.row not in by_row
            step.item.delta = by_row.get(step.row)
            self.items.append(step.item)

    def settle(self) -> Work:
        """Waits until all deltas that it put are in their rows, and empties their buckets if nobody else does."""
        world, function, random = self.world, self.function, self.world.random
        yield jittered(self.process.sharing.wait_seconds, random)
        pending, looks = [*self.put], 0
        while pending:
            units: Counter[str] = Counter()
            for delta in pending:
                units[delta.collection] += read_units(delta.size_bytes)
            yield from world.read(units)
            pending = [delta for delta in pending if delta in function.buckets[delta.bucket].lying]
            if not pending:
                break
            numbers = sorted({delta.bucket for delta in pending})
            random.shuffle(numbers)
            emptied: list[int] = []
            works = [empty(function, function.buckets[number], pending, emptied) for number in numbers[:AT_ONCE_MAX]]
            yield world.side_by_side(works, AT_ONCE_MAX)
            if emptied:
                looks = 0
            else:
                yield jittered(min(REST_SECONDS * (1 << min(looks, 9)), LOOK_SECONDS_MAX), random)
                looks += 1
        for item in self.items:
            self.process.settle(item)


class All(NamedTuple):
    """Sends all additions as deltas."""

    invocation: Invocation

    def takes(self, row: str) -> bool:
        return True

    def met(self, rows: Iterable[str]) -> frozenset[str]:
        return self.invocation.met(rows)


class Sending:
    """The chunks of a batch, of which those are in flight together that share no row."""

    def __init__(self, invocation: Invocation, chunks: Sequence[Transaction]) -> None:
        self.invocation, self.world = invocation, invocation.world
        self.waiting = [(chunk, 0, 0) for chunk in chunks]  # with how often each was sent, and met others
        self.flying: set[str] = set()
        self.in_flight = self.pausing = 0
        self.read_rest = False
        self.resume: Callable[[], None] = lambda: None

    def start(self, resume: Callable[[], None]) -> None:
        self.resume = resume
        self.send()

    def send(self) -> None:
        """Sends what may be in flight: no two chunks that share an item."""
        left = []
        for chunk, tries, met in self.waiting:
            if self.in_flight >= LANES or not self.flying.isdisjoint(chunk.rows):
                left.append((chunk, tries, met))
                continue
            self.in_flight += 1
            self.flying.update(chunk.rows)
            self.world.spawn(self.sent(chunk, tries, met))
        self.waiting = left
        if not (left or self.in_flight or self.pausing):
            self.resume()

    def sent(self, chunk: Transaction, tries: int, met: int) -> Work:
        """One chunk, sent once."""
        world, invocation, process = self.world, self.invocation, self.invocation.process
        amended = [step.item for step in invocation.batch.steps(chunk) if step.amends]

        def allowed() -> bool:
            return all(process.knows_gone(item) for item in amended)

        refused = yield from world.transact(chunk.wants(world.random), chunk.rows, chunk.paid(), allowed)
        self.in_flight -= 1
        self.flying.difference_update(chunk.rows)
        if refused is None:
            invocation.landed(chunk)
        elif refused == CONDITION:
            self.pausing += 1
            yield from self._read(chunk)
            self.pausing -= 1
            self.waiting.insert(0, (chunk, tries, met))
        else:
            world.spawn(self._again(chunk, tries, met, refused))
        self.send()

    def _read(self, chunk: Transaction) -> Work:
        """The refusal has the items of a chunk. Those of the rest are read, so that they are not refused in turn."""
        invocation, process = self.invocation, self.invocation.process
        items = [step.item for step in invocation.batch.steps(chunk) if step.amends]
        process.reads_ahead = ITEMS_READ_AHEAD
        yield from invocation.ask([item for item in items if not process.knows_gone(item)])
        if not self.read_rest:
            self.read_rest = True
            yield from invocation.read_items([each for each, *_ in self.waiting])

    def _again(self, chunk: Transaction, tries: int, met: int, refused: str | list[str]) -> Work:
        self.pausing += 1
        invocation, throttled = self.invocation, refused == THROTTLED
        chunks: Sequence[Transaction] = [chunk]
        if not throttled and invocation.function.puts_deltas:
            # DynamoDB names at least one of the items that were held.
            invocation.process.sharing.meets(self.world.random.choice(refused), self.world.now, first=met == 0)
            chunks = invocation.batch.packed(invocation if met == 0 else All(invocation), chunk)
        yield self.world.pause(tries, throttled=throttled)
        self.pausing -= 1
        self.waiting[:0] = [(each, tries + 1, met + (not throttled)) for each in chunks]
        self.send()


def empty(function: Function, bucket: Bucket, known: Iterable[Delta], emptied: list[int]) -> Work:
    """Empties a bucket, unless another process has its lease or is quicker. ``known``: deltas that are there."""
    world = function.world
    yield from world.read({bucket.lease: 0.5})
    revision = bucket.revision
    if not bucket.is_free(world.now):
        return
    yield from world.write(bucket.lease, write_units(LEASE_BYTES), "leases")
    if bucket.revision != revision:
        return
    held = bucket.revision = revision + 1
    bucket.until, bucket.rests_until = world.now + LEASE_SECONDS, 0.0
    emptied.append(bucket.number)
    found = [*bucket.lying]
    sizes: Counter[str] = Counter({f"delta#{bucket.number}#{stripe}": 0 for stripe in range(STRIPES)})
    for delta in found:
        sizes[delta.collection] += delta.size_bytes
    yield from world.read({key: read_units(size) / 2 for key, size in sizes.items()}, STRIPES // QUERIES_AT_ONCE)
    there = {*found}
    found += [delta for delta in known if delta in bucket.lying and delta not in there]
    for some in together(found):
        if world.now > bucket.until - LEASE_SECONDS / 2:
            # Two who empty one bucket meet at every delta.
            yield from world.write(bucket.lease, write_units(LEASE_BYTES), "leases")
            if bucket.revision != held:
                return
            held = bucket.revision = held + 1
            bucket.until = world.now + LEASE_SECONDS
        yield from move(world, bucket, some)
    yield from world.write(bucket.lease, write_units(LEASE_BYTES), "leases")
    if bucket.revision == held:
        bucket.revision += 1
        bucket.until, bucket.rests_until = 0.0, world.now + REST_SECONDS
    if bucket.note(found, world.now):
        yield from world.write(bucket.head, write_units(bucket.head_bytes), "heads")


def jittered(seconds: float, random: Random) -> float:
    return seconds * (1 + JITTER * (2 * random.random() - 1))


def together(deltas: Sequence[Delta]) -> list[list[Delta]]:
    """Deltas in groups, each for one transaction with the rows that they add to."""
    groups: list[list[Delta]] = []
    rows: set[str] = set()
    for delta in sorted(deltas, key=lambda each: each.stripe):
        if not groups or len(groups[-1]) + 1 + len(rows | delta.rows.keys()) > ACTIONS_MAX:
            groups.append([])
            rows = set()
        groups[-1].append(delta)
        rows |= delta.rows.keys()
    return groups


def move(world: World, bucket: Bucket, deltas: Sequence[Delta]) -> Work:
    """One transaction: deltas are deleted, and their rows are added to once."""
    rows: dict[str, Addition] = {}
    for delta in deltas:
        for row, addition in delta.rows.items():
            add_to(rows, row, addition)
    yield from mark_empty(world, rows)
    wants = [(place_of(row), 2.0) for row in rows]
    wants += [(place_of(delta.collection), float(delta.units)) for delta in deltas]
    taken = sum(delta.units for delta in deltas)
    paid = {"rows from buckets": 2 * len(rows), "deltas taken": taken}
    keys = [*rows, *deltas]
    for tries in range(MERGE_TRIES_MAX):
        refused = yield from world.transact(wants, keys, paid, lambda: all(each in bucket.lying for each in deltas))
        if refused is None:
            break
        if refused == CONDITION:
            return  # others have moved some of these
        yield world.pause(min(tries, MERGE_PAUSES_MAX), throttled=refused == THROTTLED)
    else:
        return
    world.seen.merges += 1
    world.seen.rows_merged += len(rows)
    for delta in deltas:
        del bucket.lying[delta]
        world.show(delta.oldest, sum(addition.records for addition in delta.rows.values()))
    for row, addition in rows.items():
        world.contributors[row] += addition.contributors


def mark_empty(world: World, rows: Mapping[str, Addition]) -> Work:
    """Reads rows that contributors leave, and marks those that would count none, so that the merge may delete them."""
    leaving = [row for row, addition in rows.items() if addition.contributors < 0]
    if leaving:
        yield from world.read(Counter({row.partition("/")[0]: 1 for row in leaving}))
        for row in leaving:
            if world.contributors[row] + rows[row].contributors <= 0:
                yield from world.write(row, 1, "rows that may be empty")


def read_units(size_bytes: int) -> int:
    """Of a consistent read."""
    return max(1, -(-size_bytes // READ_BYTES))


def write_units(size_bytes: int) -> int:
    return max(1, -(-size_bytes // WRITE_BYTES))
