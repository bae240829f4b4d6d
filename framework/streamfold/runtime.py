"""What a process works with, made once at each way in and passed on.

Application, settings, store, call slots, deadline, clock, and the process's knowledge of the state. A test may replace
any of them.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import setcontext
from math import inf
from os import urandom
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from streamfold.engines.deadline import Deadline, Timed, no_end
from streamfold.ledger.deltas import ID_BYTES
from streamfold.ledger.lives import KnownLives
from streamfold.ledger.schema import Schema, SchemaByHandler
from streamfold.ledger.state_keys import row_name
from streamfold.records.values import EXACT
from streamfold.settings.limits import ACTIONS_MAX, LANES_MAX, READ_LANES_MAX, SECONDS_A_DAY
from streamfold.writes.guarded import RowKey, StateKey

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from streamfold.engines.protocol import Engine, OwnStream
    from streamfold.parking import Parking
    from streamfold.records.change import ItemKey
    from streamfold.records.envelope import Seen
    from streamfold.routes.application import Application
    from streamfold.settings import Settings

WARNINGS_MAX = 1000
"""Different near misses that a process remembers to warn about each once. The bound keeps its memory from growing with
every bad key.
"""
ACTIONS_MIN = 12
"""Conflicts make transactions no smaller than this number of writes: below it the guards cost more than the conflicts.
"""
ACTIONS_GROWN = 12
"""Transactions grow by this number of writes with each batch without a conflict."""
SlotCall = Callable[[], Any]

GIVE_WAY_SECONDS = 0.001
"""A thread gets its request on its way, which takes 0.7 ms, where it would wait 5 ms for Python's lock otherwise
(``sys.getswitchinterval``)."""


class Joined(NamedTuple):
    """The result of a call."""

    tag: Any  # the tag given to ``begin``
    answer: Any = None
    error: BaseException | None = None


class Flight:
    """Calls that were begun and not joined. This class makes each call when its result is joined, in their order."""

    def __init__(self) -> None:
        self._begun: deque[tuple[Any, SlotCall]] = deque()

    def begin(self, tag: Any, call: SlotCall, keys: Iterable[object]) -> None:
        """Begins a call. The caller ensures that no two calls in flight write one of the ``keys``."""
        del keys
        self._begun.append((tag, call))

    def give_way(self) -> None:
        """Lets the begun calls be sent before this thread continues with work of its own."""

    def join(self) -> Joined:
        """The result of a call; waits until one has ended."""
        return made(*self._begun.popleft())

    def answer(self) -> Any:
        """The return value of a call; raises its error."""
        joined = self.join()
        if joined.error is not None:
            raise joined.error
        return joined.answer


def made(tag: Any, call: SlotCall) -> Joined:
    """Makes a call."""
    try:
        return Joined(tag, call())
    except Exception as error:  # noqa: BLE001 - the caller that joins decides what it means
        return Joined(tag, error=error)


class CallSlots:
    """How many calls of the store are made side by side. By default one: only one thread may use a store."""

    count: int = 1

    @property
    def reads(self) -> int:
        """How many calls that read state items are made side by side."""
        return self.count

    def flight(self) -> Flight:
        """Makes calls side by side in threads, and hands their results to the thread that joins them."""
        return Flight()


class Threads(CallSlots):
    """CallSlots that are threads. They are started when they are first needed, and kept for the next batch."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None

    @property
    def reads(self) -> int:
        return self.count * READ_LANES_MAX // LANES_MAX

    def flight(self) -> Flight:
        return _ThreadFlight(self) if self.count > 1 else Flight()

    def submit(self, call: SlotCall) -> None:
        """Makes a call in one of the threads."""
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # a store of this machine starts without it

            # Numbers are exact in a thread of their own too.
            self._pool = ThreadPoolExecutor(self.reads, "streamfold", lambda: setcontext(EXACT.copy()))
        self._pool.submit(call)

    def close(self) -> None:
        """Waits for the calls in flight, and ends the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


class _ThreadFlight(Flight):
    def __init__(self, threads: Threads) -> None:
        super().__init__()
        self._threads = threads
        self._ended: SimpleQueue[Joined] = SimpleQueue()

    def begin(self, tag: Any, call: SlotCall, keys: Iterable[object]) -> None:
        del keys
        self._threads.submit(lambda: self._ended.put(_made_surely(tag, call)))

    def give_way(self) -> None:
        time.sleep(GIVE_WAY_SECONDS)

    def join(self) -> Joined:
        return self._ended.get()


def _made_surely(tag: Any, call: SlotCall) -> Joined:
    """Makes a call. Every exception becomes a result: otherwise the joining thread would wait for ever."""
    try:
        return made(tag, call)
    except BaseException as error:  # noqa: BLE001 - raised by the thread that joins it
        return Joined(tag, error=error)


class SendingPace:
    """How large the transactions of a process may be, adjusted from batch to batch.

    Transactions start at the largest size. A conflict with another process halves the size, because a smaller
    transaction locks fewer items; each batch without a conflict lets it grow again.
    """

    def __init__(self) -> None:
        self.unsure: bool = True  # whether the next batch is new (batch.already_applied)
        self.conflicts: int = 0  # transactions that met another process since ``take_counts``
        self._most = ACTIONS_MAX
        self.emptying: dict[str, int] = {}  # steps since a handler left a row empty (commit.emptying)
        self._calm = True
        self.sharing: Sharing = Sharing()
        self.parts_read: int = 0  # items that were read as parts since ``take_parts_read``

    def actions(self, most: int) -> int:
        """Writes of one transaction, where a store or a setting allows ``most``."""
        return min(most, self._most) if most <= ACTIONS_MAX else most

    def met(self, actions: int) -> None:
        """Notes that a transaction of ``actions`` writes met another process."""
        self.conflicts += 1
        self._calm = False
        self._most = min(self._most, max(actions // 2, ACTIONS_MIN))

    def met_at_rows(self) -> None:
        """Notes that a transaction met another process at rows, to which it adds by deltas from now on.

        It need not be smaller then: it meets nobody at these rows again.
        """
        self.conflicts += 1

    def began(self) -> None:
        """Notes the start of a batch. If no end follows, the next batch may be the same one, redelivered."""
        self.unsure = True

    def ended(self, *, again: bool) -> None:
        """Notes the end of a batch, and whether some of its records are retried."""
        self.unsure = again
        if self._calm:
            self._most = min(self._most + ACTIONS_GROWN, ACTIONS_MAX)
        self._calm = True

    def take_counts(self) -> tuple[int, int]:
        """The writes of a transaction now, and the number of conflicts since the last call."""
        conflicts, self.conflicts = self.conflicts, 0
        return self._most, conflicts

    def take_parts_read(self) -> int:
        """The number of items that were read as parts since the last call."""
        read, self.parts_read = self.parts_read, 0
        return read


ROWS_SHARED_MAX = 10_000
"""Rows that a process knows to be shared. Without a bound its memory would grow with every row that ever met."""
SHARED_SECONDS = 60.0
"""Time after which a row that no two processes met at is added to directly again."""
HEADS_SECONDS, HEADS_SECONDS_MET = 3.0, 1.0
"""Time after which a process that met others reads again which rows others have met at; the shorter one while its last
batch met others."""
SHARE_MET_MAX = 0.4
"""Share of a batch's transactions that met others, from which the next batch puts all of its additions into deltas."""
FIRST_WAIT_SECONDS, FIRST_WAIT_SECONDS_MAX, FIRST_WAIT_RECORDS = 0.2, 0.8, 20
"""The first wait for deltas: as long as so many records take to come. Deltas of single additions are dear."""
GONE_MAX = 10_000
"""Ledger items whose deltas a process knows to be gone."""
DELTAS_AFTER_SECONDS = 900.0
"""Deltas are put 15 minutes after the manifest says so: older code may be under way until then (Lambda quotas,
function timeout)."""
CLOCKS_APART_SECONDS = 600.0
"""How far the clocks of two processes may be apart, at the most: a person's machine may be minutes behind AWS."""


CLOCK_AHEAD_SECONDS = 5.0
"""How far a process may be ahead of the store, whose answers have the time in whole seconds."""
MICROSECONDS = 1_000_000
"""In a second."""


def new_token() -> str:
    """A token that no delta had: the first digit is the stripe."""
    return urandom(ID_BYTES + 1).hex()[1:]


class Sharing:
    """Which rows are shared, as a process learns it: additions to these go through deltas (``ledger.deltas``).

    | row    | event                                           | next   | the failure that this prevents             |
    | ------ | ----------------------------------------------- | ------ | ------------------------------------------ |
    | own    | a transaction meets another one at the row      | shared | transactions of one row go one at a time   |
    | own    | the head of its bucket names it                 | shared | each process meets others at each row      |
    | own    | the batch before met others in many             | shared | hundreds of processes that start together  |
    |        | transactions                                    |        | meet at every row first                    |
    | shared | nobody met at it for ``SHARED_SECONDS``         | own    | a row pays for deltas for good             |
    """

    def __init__(self) -> None:
        self.all = False  # all additions of this batch go through deltas
        self.forced: Callable[[RowKey], bool] | None = None  # decides instead, in proofs
        self.token: Callable[[], str] = new_token  # names deltas; a proof needs the same names in each run
        self.wait_seconds = FIRST_WAIT_SECONDS
        self.heads_at = -inf  # when the heads of buckets were read
        self.unvisited: set[int] = set()  # buckets that this new process has to look into
        self.put = self.merged = 0  # deltas, since ``take_counts``
        self.waited_seconds = 0.0
        self._rows: dict[str, float] = {}  # when somebody met at a row, by its name
        self._met: dict[str, float] = {}  # when this process did
        self._sent = self._met_others = 0  # transactions of this batch
        self._met_lately = False  # the batch before met others
        self._turn = 0
        self._began = -inf

    def __bool__(self) -> bool:
        return self.forced is not None or self.all or bool(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def began(self, records: int, now: float) -> None:
        """Notes the start of a batch."""
        if self._sent:
            self.all = self._met_others >= SHARE_MET_MAX * self._sent
            self._met_lately = self._met_others > 0
        self._sent = self._met_others = 0
        seconds, self._began = now - self._began, now
        self.wait_seconds = min(
            max(FIRST_WAIT_RECORDS * seconds / max(records, 1), FIRST_WAIT_SECONDS), FIRST_WAIT_SECONDS_MAX
        )
        for known in (self._rows, self._met):
            for row in [row for row, at in known.items() if at < now - SHARED_SECONDS]:
                del known[row]

    def sends(self) -> None:
        """Notes that a transaction is sent for the first time."""
        self._sent += 1

    def met(self, rows: Iterable[RowKey], now: float, *, first: bool) -> None:
        """Notes that a transaction met another one at these rows. ``first``: for the first time."""
        names = dict.fromkeys(map(row_name, rows), now)
        self._met_others += first and bool(names)
        self._met |= names
        self.learn(names)

    def learn(self, rows: Mapping[str, float]) -> None:
        """Notes that somebody met others at rows at these times."""
        for row, at in rows.items():
            self._rows[row] = max(at, self._rows.pop(row, at))  # the latest last
        while len(self._rows) > ROWS_SHARED_MAX:
            del self._rows[next(iter(self._rows))]

    def wants_heads(self, now: float) -> bool:
        """Whether it is time to read which rows others have met at."""
        seconds = HEADS_SECONDS_MET if self._met_lately else HEADS_SECONDS
        return bool(self._rows) and now >= self.heads_at + seconds

    def next_buckets(self, buckets: Collection[int], most: int) -> list[int]:
        """Some of these buckets, others at each call: nobody's deltas wait behind those of the first buckets."""
        ordered = sorted(buckets)
        first = self._turn % len(ordered) if ordered else 0
        self._turn += most
        return [*ordered[first:], *ordered[:first]][:most]

    def is_shared(self, row: RowKey) -> bool:
        if self.forced is not None:
            return self.forced(row)
        return self.all or (bool(self._rows) and row_name(row) in self._rows)

    def has_met(self, rows: Iterable[RowKey]) -> list[str]:
        """The names of those rows at which this process itself met others."""
        return [name for name in map(row_name, rows) if name in self._met] if self._met else []

    def take_counts(self) -> tuple[int, int, float]:
        """Deltas put and merged, and the seconds waited for deltas, since the last call."""
        counts = self.put, self.merged, self.waited_seconds
        self.put = self.merged = 0
        self.waited_seconds = 0.0
        return counts


class Shared(NamedTuple):
    """How one batch sends additions to shared rows."""

    sharing: Sharing
    known: "Knowledge"
    may_put: bool  # deltas; otherwise steps only require that those of others are gone
    takes_all: bool = False  # all additions, because a transaction met others a second time
    direct: bool = False  # none, because rows refuse some of these

    @property
    def takes_any(self) -> bool:
        return self.may_put and not self.direct and (self.takes_all or bool(self.sharing))

    def takes(self, row: RowKey) -> bool:
        """Whether an addition to a row goes through a delta."""
        return self.may_put and not self.direct and (self.takes_all or self.sharing.is_shared(row))

    def met(self, rows: Iterable[RowKey]) -> list[str]:
        return self.sharing.has_met(rows)

    def gone(self, key: StateKey, handler: str) -> str:
        """The names of deltas that a ledger item may have of its last step, because the process saw them gone."""
        return self.known.gone.get((key, handler), "")


class DeltasMark(NamedTuple):
    """The mark of deltas in the manifest. While it is there, code that does not know deltas is refused."""

    since: float  # epoch seconds
    closed: float | None = None  # since when nobody puts any more: the way back to older code

    @property
    def opens_at(self) -> float:
        """From when on a batch or page that begins may put deltas, unless the mark is closed."""
        return self.since + DELTAS_AFTER_SECONDS

    def may_put(self, now: float) -> bool:
        return self.closed is None and now >= self.opens_at

    @property
    def quiet_at(self) -> float:
        """From when on nobody puts deltas under this mark; it is closed.

        A batch that read the open mark may go on for 15 minutes. If the mark was closed long before any batch might
        put, there is none to wait for: otherwise code that opens it again at each conflict would keep older code out.
        """
        assert self.closed is not None, "only a closed mark gets quiet"
        nobody_put = self.closed < self.opens_at - CLOCKS_APART_SECONDS
        return self.closed if nobody_put else self.closed + DELTAS_AFTER_SECONDS


class StoredSchema:
    """The state item with the schema of a target."""

    def __init__(self, schema: SchemaByHandler | None = None, revision: int = 0) -> None:
        self.schema: SchemaByHandler = {} if schema is None else schema  # by handler and attribute
        self.revision = revision  # of the item as read; the guard of the next write


class Knowledge:
    """What a process knows about one application's state."""

    def __init__(self) -> None:
        self.schema: Schema = Schema()  # of all attributes, from the state and from this process
        self.targets: dict[str, StoredSchema] = {}  # as stored, by target
        self.lives: KnownLives = KnownLives()  # of rows that expire
        self.noted = 0  # number of known attributes when the schema was last stored
        self.expiring: dict[str, set[str]] = {}  # of these, targets that the manifest names, by handler
        self.sources: dict[str, Seen] = {}  # source tables that records have come from
        self.tables: frozenset[str] = frozenset()  # those of the manifest: of which any process had a record
        self.revision: int | None = None  # of the manifest; None: not read yet
        self.deltas: DeltasMark | None = None  # of the manifest; None: nobody ever put one
        self.may_put = False  # deltas, as the manifest said when this batch began
        self.gone: dict[tuple[StateKey, str], str] = {}  # names of deltas that are gone, by ledger item and handler

    @property
    def schema_grew(self) -> bool:
        return len(self.schema) != self.noted

    def note_may_put(self, now: float) -> None:
        """Notes whether deltas may be put until the present batch or page ends."""
        self.may_put = self.deltas is not None and self.deltas.may_put(now)

    def note_gone(self, key: StateKey, handler: str, names: str) -> None:
        """Notes that the deltas that a ledger item names are gone."""
        self.gone.pop((key, handler), None)
        self.gone[key, handler] = names
        if len(self.gone) > GONE_MAX:
            del self.gone[next(iter(self.gone))]

    def learn_expiring(self) -> None:
        """Adds the targets whose rows expire according to the handlers of this process."""
        for targets in self.schema.expiring.values():
            self.lives.targets |= targets


QueuedSegment = tuple[str, int]
"""A fan-out and the number of one of its segments, enqueued to be worked on."""
VISITS = "wake/"
"""Begins the name of visits at wakes in place of a fan-out's; behind it comes the handler, whose name has no ``/``."""
VISITS_MAX = 10
"""Visits that a batch queues: SQS takes so many messages in one request (SQS API reference, SendMessageBatch). The
schedule queues the others within a minute.
"""
Enqueue = Callable[[Iterable[QueuedSegment]], None]
"""Enqueues segments. A lost, repeated or late message does no harm: the state keeps the progress of a segment."""


@dataclass(slots=True, eq=False, repr=False)
class Runtime(Deadline):
    """What one run over records works with.

    ``seconds_left`` is given to the constructor or to ``until``: a later assignment would not bound ``engine``.
    """

    application: "Application"
    store: "Engine"  # without the deadline: for notes of finished work
    settings: "Settings"
    known: Knowledge = field(default_factory=Knowledge)  # of the application's state in this store
    clock: Callable[[], float] = time.time
    warn: Callable[[str], None] = lambda _: None  # takes messages about odd things that are no errors
    warned: set[object] = field(default_factory=set)  # subjects that were warned about, each once
    context: Any = None  # Lambda's context
    actions: int | None = None  # replaces the setting ``chunk_actions``, for a store without DynamoDB's limit
    parking: "Parking | None" = None  # takes records that no retry can help
    handlers: frozenset[str] | None = None  # run only these, for a redrive; nothing is parked, the records are already
    late: bool = False  # records may come after newer ones of their items, as redriven ones do
    outside: bool | None = None  # effects outside of the store: all (True), only in local folders (None), or none
    opened: dict[str, Any] = field(default_factory=dict)  # locations outside of the store, by their names in settings
    fans_out: bool = True  # somebody works on the fan-outs that are opened
    source_items: bool = True  # the store holds the application's own items, which handlers may remove
    postponed: list[Any] | None = None  # takes the work that kinds finish at the end of a replay; None: at once
    send_messages: Enqueue | None = None  # queues segments of fan-outs for another process; None: in ``queued``, here
    queued: list[QueuedSegment] = field(default_factory=list)  # segments that wait for this process
    visits: dict[QueuedSegment, None] = field(default_factory=dict)  # at moments, which a stream's function queues
    absent: "dict[ItemKey, None] | None" = None  # takes looked-up items that do not exist; None: nobody asks
    own_stream: "OwnStream | None" = None  # of the store, where its records get the times of those that led to them
    slots: CallSlots = field(default_factory=CallSlots)  # how many calls of the store are made side by side
    pace: SendingPace = field(default_factory=SendingPace)  # of transactions; shared by the runs of a process
    engine: "Engine" = field(init=False)  # the store; it begins no call after the deadline
    retention_seconds: int = field(init=False)

    def __post_init__(self) -> None:
        self.stop_seconds = self.settings.stop_seconds
        self.retention_seconds = self.settings.retention_days * SECONDS_A_DAY
        # Without a deadline there is nothing to ask: that would be three more calls for each call of the store.
        self.engine = self.store
        if self.seconds_left is not no_end:
            deadline = Deadline(seconds_left=self.seconds_left, stop_seconds=self.stop_seconds)
            self.engine = cast("Engine", Timed(self.store, deadline))

    @property
    def item_clock(self) -> float:
        """The present time of the items: on a local state that of its newest record, so that old files are not old."""
        return (self.own_stream.clock_seconds if self.own_stream is not None else 0.0) or self.clock()

    @property
    def moment(self) -> int:
        """The time for handlers that ask for it, epoch microseconds.

        On a state with records of its own it is the time of the newest one. Elsewhere it is that of this machine, but
        not later than the store's by ``CLOCK_AHEAD_SECONDS``: a clock that is a year ahead would make a year's rows.
        """
        stream, separate = self.store.own_stream, self.store.separate
        seconds = (stream.clock_seconds if stream is not None else 0.0) or self.clock()
        if separate is not None:
            seconds = min(seconds, separate.latest_seconds() + CLOCK_AHEAD_SECONDS)
        return round(seconds * MICROSECONDS)

    @property
    def folds_times(self) -> bool:
        """Whether rows get the times of their records: other handlers read their changes."""
        return self.own_stream is not None and bool(self.application.chained)

    @property
    def rows_expire(self) -> bool:
        """Whether a row may expire; otherwise nothing is asked about lives (``ledger.lives``)."""
        lives = self.known.lives
        return bool(lives.targets or lives.rows) or self.application.rows_expire

    @property
    def emptying_handlers(self) -> Container[str]:
        """The handlers whose steps note the rows that they may leave empty (``commit.emptying``)."""
        if (self.actions or 0) > ACTIONS_MAX:  # a large transaction
            return frozenset(route.name for route in self.application.routes)
        return self.pace.emptying

    @property
    def chunk_actions(self) -> int:
        """The most writes that are planned for one transaction now."""
        return self.pace.actions(self.actions or self.settings.chunk_actions)

    @property
    def shared(self) -> Shared | None:
        """How additions to shared rows are sent; None: no process of this application puts deltas."""
        known, sharing = self.known, self.pace.sharing
        if known.deltas is None and sharing.forced is None:
            return None
        return Shared(sharing, known, known.may_put or sharing.forced is not None)

    @property
    def expires_at(self) -> int:
        """The time to live of state items that are written now, in epoch seconds."""
        return int(self.clock()) + self.retention_seconds

    def until(self, seconds_left: Callable[[], float]) -> "Runtime":
        """The same with another deadline."""
        return replace(self, seconds_left=seconds_left)

    def on(self, store: "Engine", **changes: Any) -> "Runtime":
        """The same with another store, and without knowledge of its state."""
        return replace(self, store=store, known=Knowledge(), **changes)

    def enqueue(self, fan_out: str, lanes: Iterable[int]) -> None:
        """Has segments of a fan-out worked on, in this process or elsewhere."""
        queued = [(fan_out, number) for number in lanes]
        if self.send_messages is None:
            self.queued += queued
        else:
            self.send_messages(queued)

    def warn_once(self, subject: object, text: str) -> None:
        if subject not in self.warned and len(self.warned) < WARNINGS_MAX:
            self.warned.add(subject)
            self.warn(text)
