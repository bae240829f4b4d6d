"""A store whose calls fail in every way that calls of a real store can fail. Each failure is chosen at the call.

Calls in flight together are made without threads. Their order, and the order of their responses, is chosen too.

Every deviation from an undisturbed run is a choice: drawn from a seed, given by a script, or enumerated. The points of
choice of a run have numbers, in the order in which the run comes to them. The choices by number are a ``Script``. A run
with the same script comes to the same points and takes the same way, so a failing run can be repeated, shortened and
written down.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, TypeVar, cast

from streamfold.engines.memory import MemoryEngine
from streamfold.engines.protocol import (
    Counter,
    Entries,
    Finished,
    Inserted,
    OwnRecord,
    Page,
    ScanCursor,
    ScanPage,
    Segment,
    StoredItem,
)
from streamfold.errors import EngineUnavailable, joined_key
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import Table
from streamfold.proofs.invariants import InvariantBroken
from streamfold.records.change import ItemKey
from streamfold.runtime import CallSlots, Flight, Joined, SlotCall, made
from streamfold.testing.mapping import Died
from streamfold.writes.guarded import (
    CONFLICT,
    VALIDATION,
    GuardedWrite,
    PutPostRow,
    PutRow,
    PutState,
    Reason,
    Refused,
    RowKey,
    StateKey,
)

Script = Mapping[int, str]
"""The chosen option by the number of its point; no deviation at all other points."""


class TakenChoice(NamedTuple):
    """A deviation that was chosen: the number of its point, the kind of the point, and the option."""

    number: int
    point: str
    option: str


class Choices:
    """Chooses nothing, ever, and numbers the points."""

    def __init__(self) -> None:
        self.number = 0
        self.taken: list[TakenChoice] = []

    def choose(self, point: str, options: Sequence[str]) -> str | None:
        """One of the options, or None for the undisturbed way."""
        self.number += 1
        option = self._choice(point, options)
        if option is not None:
            self.taken.append(TakenChoice(self.number, point, option))
        return option

    @property
    def script(self) -> dict[int, str]:
        """The choices so far."""
        return {taken.number: taken.option for taken in self.taken}

    def _choice(self, point: str, options: Sequence[str]) -> str | None:  # noqa: ARG002 - subclasses decide by them
        return None


class Drawn(Choices):
    """Chooses at random, at ``rate`` of the points; with ``only``, options of these names only.

    ``offered`` names the options that there were to choose from.
    """

    def __init__(self, random: Random, rate: float, only: Collection[str] | None = None) -> None:
        super().__init__()
        self.random = random
        self.rate = rate
        self.only = only
        self.offered: set[str] = set()
        self._points: set[tuple[str, int]] = set()

    def _choice(self, point: str, options: Sequence[str]) -> str | None:
        if (point, len(options)) not in self._points:
            self._points.add((point, len(options)))
            names = {option.partition(" ")[0] for option in options}
            self.offered |= names if self.only is None else names & set(self.only)
        if self.random.random() >= self.rate:
            return None
        only = self.only
        allowed = options if only is None else [option for option in options if option.partition(" ")[0] in only]
        return self.random.choice(allowed) if allowed else None


class Scripted(Choices):
    """Chooses the options of a script. A point that does not offer the option of its number takes no deviation."""

    def __init__(self, script: Script) -> None:
        super().__init__()
        self._script = script

    def _choice(self, point: str, options: Sequence[str]) -> str | None:  # noqa: ARG002 - the number decides
        option = self._script.get(self.number)
        return option if option in options else None


Some = TypeVar("Some")
RUNS_MAX = 2000
"""Runs that are spent on shortening one failure: without a bound, a long script would hold a test for hours."""


class Budget:
    """The number of runs that may still be tried."""

    def __init__(self, runs: int = RUNS_MAX) -> None:
        self.runs = runs

    def spend(self) -> bool:
        self.runs -= 1
        return self.runs >= 0


def shortened(
    fails: Callable[[Sequence[Some], Script], bool], units: Sequence[Some], script: Script, budget: Budget
) -> tuple[Sequence[Some], Script]:
    """The fewest units and deviations found that still fail. Leaves some out in turns until nothing more can go."""
    kept, chosen = list(units), dict(script)

    def only(numbers: Sequence[int]) -> dict[int, str]:
        return {number: script[number] for number in numbers}

    before = None
    while before != (len(kept), len(chosen)):  # fewer units may make choices superfluous, and the other way round
        before = (len(kept), len(chosen))
        chosen = only(_fewest(list(chosen), lambda numbers: fails(kept, only(numbers)), budget))  # noqa: B023 - called at once
        kept = _fewest(kept, lambda some: fails(some, chosen), budget)  # noqa: B023 - likewise
    return kept, chosen


def _fewest(things: list[Some], fails: Callable[[list[Some]], bool], budget: Budget) -> list[Some]:
    """Leaves out halves, then quarters, and so on to single things."""
    size = max(1, len(things) // 2)
    while things:
        start = 0
        while start < len(things):
            fewer = things[:start] + things[start + size :]
            if not budget.spend():
                return things
            if fails(fewer):
                things = fewer
            else:
                start += size
        if size == 1:
            return things
        size = max(1, size // 2)
    return things


WRITE_FAULTS = ("unavailable", "answer-lost", "dies-before", "dies-after", "lands-late", "dies-and-lands-late")
"""The faults of any write: not done, done without a response, the process dies before or after it, or done late by a
call that seemed to fail, while the caller goes on or after it died."""
FAULTS: Mapping[str, tuple[str, ...]] = {
    "transact": ("refused", "conflict", "throttled", "applied-twice", *WRITE_FAULTS),
    "insert_rows": ("half-applied", "applied-twice", *WRITE_FAULTS),
    "insert_state": ("half-applied", "applied-twice", *WRITE_FAULTS),
    "put_post_rows": ("half-applied", "applied-twice", *WRITE_FAULTS),
    "remove_empty": ("half-applied", "applied-twice", *WRITE_FAULTS),
    "clear_pending": ("applied-twice", *WRITE_FAULTS),
    "count_up": ("half-applied", "applied-twice", *WRITE_FAULTS),
    "swap_state": ("applied-twice", *WRITE_FAULTS),
    "archive": ("applied-twice", *WRITE_FAULTS),
    "write_outside": ("half-applied", "applied-twice", *WRITE_FAULTS),
    "read_state": ("stale-read", "unavailable", "dies-before", "dies-after"),
    "read_together": ("unavailable", "dies-before", "dies-after"),
    "read_rows": ("unavailable", "dies-before", "dies-after"),
    "read_entries": ("unavailable", "dies-before", "dies-after"),
    "read_source": ("unavailable", "dies-before"),
    "read_sources": ("unavailable", "dies-before"),
    "page": ("unavailable", "dies-before"),
    "scan": ("unavailable", "dies-before"),
    "pending": ("dies-before",),
    "advance": ("dies-before", "dies-after"),
}
"""The faults of each call of an engine."""
DESCRIBED = {
    "archive": "write of an archive's content",
    "write_outside": "request to another service",
    "page": "read of children",
    "swap_state": "write of the manifest",
    "pending": "read of the stream of derived rows",
}
"""Names of calls in the log, without keys."""
KEYED = {
    "insert_rows": "insertion of",
    "insert_state": "insertion of",
    "put_post_rows": "write of rows",
    "remove_empty": "removal of empty rows",
    "count_up": "count of",
    "read_state": "read of",
    "read_consistently": "read of",
    "read_together": "read of",
    "read_rows": "read of",
    "read_sources": "read of source items",
}
"""Names of calls in the log, with their keys."""
LANDING = ("lands-at-the-next-call", "lands-after-many-calls", "lands-at-the-end")
LANDING_CALLS = {None: 3, "lands-at-the-next-call": 1, "lands-after-many-calls": 25, "lands-at-the-end": None}
"""Calls before a late write lands: during the retry, after it, after a repair."""


class Late(NamedTuple):
    """A call that seemed to fail and lands at the call of this number; None: at the end."""

    name: str
    arguments: tuple[Any, ...]
    at: int | None


class FaultyEngine:
    """Passes calls on to an engine, or fails them by ``choices``.

    ``meanwhile`` is called before every call, for the actions of other processes. ``checked`` is called after every
    call that was made. ``log`` gets a line for each fault.
    """

    def __init__(
        self,
        engine: MemoryEngine,
        choices: Choices,
        meanwhile: Callable[[], None],
        checked: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        self.engine = engine
        self.choices = choices
        self.meanwhile = meanwhile
        self.checked = checked
        self.log = log
        self.committed: Callable[[Sequence[GuardedWrite]], None] = lambda _: None  # takes transactions that were taken
        self.calls = 0
        self.late: list[Late] = []
        self.is_local = engine.is_local
        self.own_stream = self
        self.by_prefix, self.durable, self.separate = engine.by_prefix, engine.durable, engine.separate
        self.before: dict[StateKey, dict[str, Any] | None] = {}
        self.skew_seconds = 0  # of the clock of the process that calls

    @property
    def clock_seconds(self) -> float:
        """The time of the process that calls, epoch seconds; 0: there was no record."""
        seconds = self.engine.clock_seconds
        return seconds and seconds + self.skew_seconds

    def transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        return cast("Refused | None", self._call("transact", writes, expires_at))

    def insert_rows(self, rows: Sequence[PutRow]) -> Inserted:
        return cast("Inserted", self._call("insert_rows", rows))

    def insert_state(self, items: Sequence[PutState]) -> list[StateKey]:
        return cast("list[StateKey]", self._call("insert_state", items))

    def put_post_rows(self, posts: Sequence[PutPostRow]) -> list[RowKey]:
        return cast("list[RowKey]", self._call("put_post_rows", posts))

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        return cast("list[RowKey]", self._call("remove_empty", rows))

    def clear_pending(self, finished: Finished) -> None:
        self._call("clear_pending", finished)

    def count_up(self, counters: Sequence[Counter], start: int, expires_at: int) -> dict[StateKey, dict[str, Any]]:
        return cast("dict[StateKey, dict[str, Any]]", self._call("count_up", counters, start, expires_at))

    def archive(self, name: str, content: bytes) -> None:
        self._call("archive", name, content)

    def write_outside(self, written: Sequence[Any], name: str, call: str) -> list[Any]:
        return cast("list[Any]", self._call("write_outside", written, name, call))

    def read_state(self, keys: Iterable[StateKey], *, consistent: bool = False) -> dict[StateKey, dict[str, Any]]:
        name = "read_state" if not consistent else "read_consistently"
        return cast("dict[StateKey, dict[str, Any]]", self._call(name, list(keys)))

    def read_together(self, keys: Iterable[StateKey]) -> dict[StateKey, dict[str, Any]]:
        return cast("dict[StateKey, dict[str, Any]]", self._call("read_together", list(keys)))

    def swap_state(self, key: StateKey, attributes: Mapping[str, Any], revision: int) -> bool:
        return cast("bool", self._call("swap_state", key, attributes, revision))

    def read_rows(self, keys: Iterable[RowKey], *, consistent: bool = True) -> dict[RowKey, dict[str, Any]]:
        del consistent  # these dictionaries have nothing older to read
        return cast("dict[RowKey, dict[str, Any]]", self._call("read_rows", list(keys)))

    def read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        if wanted.partition.startswith(("delta#", "wake#")) and not (found := self.engine.read_entries(wanted)):
            # No choice at the stripes of a bucket that are empty: of ten times as many choices most would be at these.
            return found
        return cast("list[tuple[str, str]]", self._call("read_entries", wanted))

    def read_source(self, item: ItemKey) -> StoredItem | None:
        return cast("StoredItem | None", self._call("read_source", item))

    def read_sources(self, items: Iterable[ItemKey]) -> dict[ItemKey, StoredItem]:
        return cast("dict[ItemKey, StoredItem]", self._call("read_sources", list(items)))

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
        return cast("Page", self._call("page", table, partition, begins, after, limit, descending))

    def scan(self, table: Table, segment: Segment, after: ScanCursor | None, limit: int) -> ScanPage:
        return cast("ScanPage", self._call("scan", table, segment, after, limit))

    def pending(self, limit: int, group: str | None = None) -> list[OwnRecord]:
        return cast("list[OwnRecord]", self._call("pending", limit, group))

    def advance(self, sequence: int, done: Collection[int], group: str | None = None) -> None:
        self._call("advance", sequence, done, group)

    def retry(self, group: str | None = None) -> None:
        self.engine.retry(group)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def land_all(self) -> None:
        """Makes all late calls now."""
        while self.late:
            self._land(self.late.pop(0))

    def _call(self, name: str, *arguments: Any) -> Any:
        self.calls += 1
        self._land_late_ones()
        self.meanwhile()
        kind = "read_state" if name == "read_consistently" else name
        options = [fault for fault in FAULTS[kind] if fault != "stale-read" or name == "read_state"]
        fault = self.choices.choose(kind, options)
        if fault is None:
            return self._carry_out(name, *arguments)
        self.log(f"  {_described(name, arguments)}: {fault}")
        return getattr(self, "_" + fault.replace("-", "_"))(name, *arguments)

    def _carry_out(self, name: str, *arguments: Any) -> Any:
        if name in ("transact", "swap_state", "count_up"):
            self._remember(arguments)
        if name == "page":
            answer: Any = self.engine.page(*arguments[:-1], descending=arguments[-1])
        else:
            answer = getattr(self.engine, "read_state" if name == "read_consistently" else name)(*arguments)
        self.checked()
        if name == "transact" and answer is None:
            self.committed(arguments[0])
        return answer

    def _remember(self, arguments: tuple[Any, ...]) -> None:
        """Keeps the state items from before this write, for stale reads."""
        positions = [arguments[0]] if isinstance(arguments[0], StateKey) else [write.key for write in arguments[0]]
        for key in positions:
            if isinstance(key, StateKey):
                self.before[key] = self.engine.state.get(key)

    def _land_late_ones(self) -> None:
        for late in [late for late in self.late if late.at is not None and late.at <= self.calls]:
            self.late.remove(late)
            self._land(late)

    def _land(self, late: Late) -> None:
        self.log(f"  {_described(late.name, late.arguments)}, believed dead, lands")
        self._carry_out(late.name, *late.arguments)

    def _refused(self, name: str, writes: Sequence[GuardedWrite], expires_at: int) -> Refused:  # noqa: ARG002
        return Refused((*(None,) * (len(writes) - 1), Reason(VALIDATION, None, "a fault")))

    def _conflict(self, name: str, writes: Sequence[GuardedWrite], expires_at: int) -> Refused:  # noqa: ARG002
        return Refused((Reason(CONFLICT[0]), *(None,) * (len(writes) - 1)))

    def _throttled(self, name: str, writes: Sequence[GuardedWrite], expires_at: int) -> Refused:  # noqa: ARG002
        return Refused((Reason(CONFLICT[1]), *(None,) * (len(writes) - 1)))

    def _half_applied(self, name: str, rows: Sequence[Any], *rest: Any) -> Any:
        done, others = rows[: len(rows) // 2], rows[len(rows) // 2 :]
        if name == "insert_rows":
            inserted = self._carry_out(name, done)
            return Inserted([*inserted.missing, *(row.key for row in others)], inserted.known, inserted.refused)
        answer = self._carry_out(name, done, *rest) if done else ()
        if name in ("insert_state", "put_post_rows"):
            return [*answer, *(row.key for row in others)]
        if name == "count_up":
            return dict(answer)
        raise EngineUnavailable("a fault")

    def _applied_twice(self, name: str, *arguments: Any) -> Any:
        self._carry_out(name, *arguments)
        return self._carry_out(name, *arguments)

    def _stale_read(self, name: str, keys: Sequence[StateKey]) -> dict[StateKey, dict[str, Any]]:
        found = self._carry_out(name, keys)
        stale = {key: self.before.get(key, found.get(key)) for key in keys}
        return {key: dict(item) for key, item in stale.items() if item is not None}

    def _unavailable(self, name: str, *arguments: Any) -> None:  # noqa: ARG002
        raise EngineUnavailable("a fault")

    def _answer_lost(self, name: str, *arguments: Any) -> None:
        self._carry_out(name, *arguments)
        raise EngineUnavailable("a fault")

    def _dies_before(self, name: str, *arguments: Any) -> None:  # noqa: ARG002
        raise Died

    def _dies_after(self, name: str, *arguments: Any) -> None:
        self._carry_out(name, *arguments)
        raise Died

    def _lands_late(self, name: str, *arguments: Any) -> None:
        self._send_late(name, arguments)
        raise EngineUnavailable("a fault")

    def _dies_and_lands_late(self, name: str, *arguments: Any) -> None:
        self._send_late(name, arguments)
        raise Died

    def _send_late(self, name: str, arguments: tuple[Any, ...]) -> None:
        calls = LANDING_CALLS[self.choices.choose("landing", LANDING)]
        self.late.append(Late(name, arguments, None if calls is None else self.calls + calls))


def _described(name: str, arguments: tuple[Any, ...]) -> str:
    """A call in one line, with its keys and without the written values."""
    first = arguments[0]
    if name == "transact":
        positions = ", ".join(_key_text(write.key) for write in first)
        return f"transaction of {len(first)} writes ({positions})"
    if name == "clear_pending":
        return f"note that the pending work of {', '.join(map(_key_text, first))} is finished"
    if name == "read_entries":
        return f"read of entries {first.partition}"
    if name == "scan":
        return f"scan of {first.name}, segment {arguments[1].number} of {arguments[1].of}"
    if name == "read_source":
        return f"read of source item {_key_text(first)}"
    if name in KEYED:
        return f"{KEYED[name]} {', '.join(_key_text(getattr(each, 'key', each)) for each in first)}"
    return DESCRIBED.get(name, "note of the position in the stream of derived rows")


def _key_text(key: RowKey | StateKey) -> str:
    return joined_key(key if isinstance(key, StateKey) else key[1:])


SLOTS = 3
"""Calls in flight together: enough for a third one between two that share something."""
OTHERWISE = ("last-first", "all-before-an-answer", "all-before-an-answer-backwards")
"""Orders of calls in flight, other than one by one, each followed by its response."""


class Begun(NamedTuple):
    """A call that was begun, and the items that it touches."""

    tag: Any
    call: SlotCall
    touched: frozenset[object]


class ChosenSlots(CallSlots):
    """Call slots of a proof. ``broken`` is called if two calls that touch one item are in flight together."""

    def __init__(self, choices: Callable[[], Choices], broken: Callable[[InvariantBroken], None]) -> None:
        self.count = SLOTS
        self.choices = choices
        self.broken = broken

    def flight(self) -> Flight:
        return _ChosenFlight(self)


class _ChosenFlight(Flight):
    def __init__(self, slots: ChosenSlots) -> None:
        super().__init__()
        self._slots = slots
        self._waiting: list[Begun] = []
        self._ended: list[tuple[Joined, frozenset[object]]] = []

    def begin(self, tag: Any, call: SlotCall, positions: Iterable[object]) -> None:
        touched = frozenset(part for position in positions for part in _touched(position))
        others = [begun.touched for begun in self._waiting] + [ended for _, ended in self._ended]
        if twice := [position for each in others for position in each & touched]:
            self._slots.broken(InvariantBroken(f"Two calls in flight share {twice[0]}."))
        self._waiting.append(Begun(tag, call, touched))

    def join(self) -> Joined:
        how = self._slots.choices().choose("in-flight", OTHERWISE) if len(self._waiting) > 1 else None
        if how == "last-first":
            self._waiting.reverse()
        elif how is not None:
            if how.endswith("backwards"):
                self._waiting.reverse()
            while self._waiting:
                self._make()
        if not self._ended:
            self._make()
        joined, _ = self._ended.pop(0)
        return joined

    def _make(self) -> None:
        begun = self._waiting.pop(0)
        self._ended.append((made(begun.tag, begun.call), begun.touched))


def _touched(position: object) -> tuple[object, ...]:
    """The key itself; for a claim also its item and handler, whose changes must be sequential."""
    if isinstance(position, StateKey) and position.pk.startswith("claim#"):
        return position, (position.pk, position.sk.rpartition("#")[0])
    return (position,)
