"""What processing needs from its surroundings, passed in so that tests can replace it; and the one way to wait.

After the deadline nothing is begun. Pauses between tries end before it.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from streamfold.errors import NotStarted
from streamfold.run.pace import Emptying, SendingPace
from streamfold.settings import Settings
from streamfold.settings.limits import SECONDS_A_DAY

WARNINGS_MAX = 1000
"""Different near misses that are remembered, so that each is warned about once."""
TRIES_MAX = 8
"""Tries if others change the same items, or a table is busy; then the records come again."""
PAUSE_SECONDS_MAX = 0.05
"""The longest first pause, doubled each time: 6.35 seconds in all."""
THROTTLE_FACTOR = 4
"""How much longer the pauses are for a throttled table than for a conflict."""
PAUSE_SECONDS_LONGEST = 10
"""The longest pause of all, however many there were before."""
TIME_OVER = "The invocation's time is nearly over; the record comes again."


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class Deadline:
    """How long work may go on. By default there is no end."""

    seconds_left: Callable[[], float] = lambda: float("inf")  # until the invocation ends
    stop_seconds: float = 0  # the time that the last call may take; with less time left, nothing is begun
    pause: Callable[[float], None] = time.sleep

    def enough_time(self) -> bool:
        """Whether something new may be begun."""
        return self.seconds_left() > self.stop_seconds

    def begin(self) -> None:
        """Raises ``NotStarted`` if nothing new may be begun."""
        if not self.enough_time():
            raise NotStarted(TIME_OVER)

    def wait(self, seconds: float) -> None:
        """Pauses. Raises ``NotStarted`` at once if nothing new could be begun after the pause."""
        if self.seconds_left() - seconds <= self.stop_seconds:
            raise NotStarted(TIME_OVER)
        self.pause(seconds)

    def back_off(self, number: int, *, throttled: bool = False) -> None:
        """Pauses after ``number`` earlier pauses. Raises ``NotStarted`` as ``wait`` does.

        The pause is random between 0 and its longest (full jitter), so that processes which were refused together do
        not come back together.
        """
        longest = PAUSE_SECONDS_MAX * (1 << number) * (THROTTLE_FACTOR if throttled else 1)
        self.wait(random.random() * min(longest, PAUSE_SECONDS_LONGEST))  # noqa: S311 - jitter

    def tries(self, tries_max: int = TRIES_MAX) -> Iterator[int]:
        """Counts tries from 0, with a pause before each but the first. Raises ``NotStarted`` as ``wait`` does."""
        for number in range(tries_max):
            if number:
                self.back_off(number - 1)
            yield number


def time_left(context: Any) -> Callable[[], float]:
    """Tells how many seconds an invocation has left; without a Lambda context it has no end."""
    return lambda: float("inf") if context is None else context.get_remaining_time_in_millis() / 1000


LaneCall = Callable[[], Any]


class Joined(NamedTuple):
    """What came of a call that was begun."""

    tag: Any  # what the call was begun with
    answer: Any = None
    error: BaseException | None = None


class Flight:
    """Calls that were begun and not joined. This one makes each call when its answer is asked for, in their order."""

    def __init__(self) -> None:
        self._begun: deque[tuple[Any, LaneCall]] = deque()

    def begin(self, tag: Any, call: LaneCall, places: Iterable[object]) -> None:
        """Begins a call. No two calls in flight may write one of the ``places``: the caller sees to that."""
        del places
        self._begun.append((tag, call))

    def give_way(self) -> None:
        """Lets what was begun get on its way, before this thread goes on with work of its own."""

    def join(self) -> Joined:
        """What came of a call; waits until there is one that has ended."""
        return made(*self._begun.popleft())

    def answer(self) -> Any:
        """The answer of a call; raises its error."""
        joined = self.join()
        if joined.error is not None:
            raise joined.error
        return joined.answer


def made(tag: Any, call: LaneCall) -> Joined:
    """Makes a call."""
    try:
        return Joined(tag, call())
    except Exception as error:  # noqa: BLE001 - whoever joins the call decides what it means
        return Joined(tag, error=error)


class Lanes:
    """How many calls of the store are made side by side. By default one: a store may be of one thread alone."""

    count: int = 1

    @property
    def reads(self) -> int:
        """How many calls that read state items are made side by side."""
        return self.count

    def flight(self) -> Flight:
        """Takes calls to be made side by side, and hands back what came of them to the thread that asks."""
        return Flight()


class ParkingPlace(Protocol):
    """Takes records that are given up."""

    def park(self, parked: Any, /) -> None:
        """Puts a record aside. Raises ``ParkingError`` unless it is safe there."""
        ...


Rung = tuple[str, int]
"""A fan-out that is rung for, and the number of a lane."""
Bell = Callable[[Iterable[Rung]], None]
"""Rings for lanes: a lost, a second or a late ring costs nothing."""
Learned = WeakKeyDictionary[Any, Any]
"""What is known of states, by engine and application (``batch.knowledge``)."""


@dataclass(slots=True, eq=False, repr=False)
class Run(Deadline):
    """One run over records: settings, clock, deadline, and what was learnt of the state."""

    settings: Settings
    clock: Callable[[], float] = time.time
    warn: Callable[[str], None] = lambda _: None  # takes messages about what is odd but not wrong
    warned: set[object] = field(default_factory=set)  # subjects that were warned about, each once
    learned: Learned = field(default_factory=WeakKeyDictionary)  # shared by the runs of a process
    context: Any = None  # Lambda's context
    actions: int | None = None  # replaces the setting ``chunk_actions``, for a store without DynamoDB's limit
    parking: ParkingPlace | None = None  # takes records that are given up
    handlers: frozenset[str] | None = None  # run only these, for a redrive; nothing is parked, the records are already
    late: bool = False  # records may come after newer ones of their items, as redriven ones do
    outside: bool | None = None  # effects outside of the store: all (True), only in local folders (None), or none
    opened: dict[str, Any] = field(default_factory=dict)  # places outside of the store, by their names in settings
    fans_out: bool = True  # somebody works on the fan-outs that are opened
    source_items: bool = True  # the store holds the application's own items, which handlers may remove
    postponed: list[Any] | None = None  # takes the work that kinds finish at the end of a replay; None: at once
    bell: Bell | None = None  # rings for lanes of fan-outs where they are worked on; None: in this process, ``rung``
    rung: list[Rung] = field(default_factory=list)  # lanes that wait for this process
    lanes: Lanes = field(default_factory=Lanes)  # how many calls of the store are made side by side
    pace: SendingPace = field(default_factory=SendingPace)  # of transactions; shared by the runs of a process

    def __post_init__(self) -> None:
        self.stop_seconds = self.settings.stop_seconds

    @property
    def chunk_actions(self) -> int:
        """The most writes that are planned for one transaction now."""
        return self.pace.actions(self.actions or self.settings.chunk_actions)

    @property
    def emptying(self) -> Emptying | None:
        """The handlers whose steps note rows; None: all, as a large transaction would always leave a row empty."""
        return None if self.actions else self.pace.emptying

    @property
    def expires_at(self) -> int:
        """The time to live of state items that are written now, in epoch seconds."""
        return int(self.clock()) + self.settings.retention_days * SECONDS_A_DAY

    def ring(self, fan_out: str, lanes: Iterable[int]) -> None:
        """Has lanes of a fan-out worked on, in this process or elsewhere."""
        rung = [(fan_out, number) for number in lanes]
        if self.bell is None:
            self.rung += rung
        else:
            self.bell(rung)

    def warn_once(self, subject: object, text: str) -> None:
        if subject not in self.warned and len(self.warned) < WARNINGS_MAX:
            self.warned.add(subject)
            self.warn(text)
