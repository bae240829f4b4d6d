"""What a process works with, made once at each way in and passed on.

Application, settings, store, deadline, clock, and the process's knowledge of the state. A test replaces any of them.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from streamfold.engines.call_slots import CallSlots
from streamfold.engines.deadline import Deadline, Timed, no_end
from streamfold.ledger.lives import KnownLives
from streamfold.ledger.schema import Schema, SchemaByHandler
from streamfold.settings.limits import ACTIONS_MAX, SECONDS_A_DAY

if TYPE_CHECKING:
    from streamfold.engines import Engine
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

    def actions(self, most: int) -> int:
        """Writes of one transaction, where a store or a setting allows ``most``."""
        return min(most, self._most) if most <= ACTIONS_MAX else most

    def met(self, actions: int) -> None:
        """Notes that a transaction of ``actions`` writes met another process."""
        self.conflicts += 1
        self._calm = False
        self._most = min(self._most, max(actions // 2, ACTIONS_MIN))

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

    def learn_expiring(self) -> None:
        """Adds the targets whose rows expire according to the handlers of this process."""
        for targets in self.schema.expiring.values():
            self.lives.targets |= targets


QueuedSegment = tuple[str, int]
"""A fan-out and the number of one of its segments, enqueued to be worked on."""
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
    absent: "dict[ItemKey, None] | None" = None  # takes looked-up items that do not exist; None: nobody asks
    slots: CallSlots = field(default_factory=CallSlots)  # how many calls of the store are made side by side
    pace: SendingPace = field(default_factory=SendingPace)  # of transactions; shared by the runs of a process
    engine: "Engine" = field(init=False)  # the store; it begins no call after the deadline
    retention_seconds: int = field(init=False)

    def __post_init__(self) -> None:
        self.stop_seconds = self.settings.stop_seconds
        self.retention_seconds = self.settings.retention_days * SECONDS_A_DAY
        # Without a deadline there is nothing to ask: that would be three more calls for each call of the store.
        self.engine = (
            self.store if self.seconds_left is no_end else Timed(self.store, self.seconds_left, self.stop_seconds)
        )

    @property
    def chunk_actions(self) -> int:
        """The most writes that are planned for one transaction now."""
        return self.pace.actions(self.actions or self.settings.chunk_actions)

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
