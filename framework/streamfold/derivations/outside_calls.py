"""Calls outside of the store, side by side: of one item one after the other, within the deadline and a rate.

A run takes subjects in the order of their records. Each subject belongs to an item. Of one item one subject is called
at a time, and a later subject only after the earlier one succeeded. Subjects of different items do not wait for each
other: up to ``at_once`` calls are in flight. Nothing is begun after the deadline; begun calls are waited for, because
no thread may outlive its batch.

The thread that runs them decides about failures. Calls get a copy of its context each: no call sees the context
variables, or the rounding of numbers, that another call has set.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import replace
from decimal import setcontext
from heapq import heapify, heappop, heappush
from threading import RLock
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from streamfold.engines.deadline import TIME_OVER
from streamfold.errors import DeclarationError, NotStarted
from streamfold.records.values import EXACT
from streamfold.runtime import Threads

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from streamfold.engines.protocol import Engine
    from streamfold.runtime import Flight, Runtime

AT_ONCE_MAX = 32
"""Calls in flight of one handler: DynamoDB's client keeps a connection for the note of each, and these are as many as
an invocation makes of the store at most (``settings.limits``)."""
PER_SECOND_MIN, PER_SECOND_MAX = 0.01, 10_000
"""A call in 100 seconds is the slowest rate that a function's 15 minutes allow to wait for more than once."""

Subject = TypeVar("Subject")


class CallLimits(NamedTuple):
    """How many calls of a handler one process makes."""

    at_once: int = 1  # at the same time
    per_second: float | None = None  # begun in a second; None: no limit

    def __str__(self) -> str:
        at_once = f"{self.at_once} at once" if self.at_once > 1 else ""
        per_second = "" if self.per_second is None else f"{self.per_second:g} a second"
        return ", ".join(filter(None, (at_once, per_second)))


def checked_limits(at_once: Any, per_second: Any, at: str) -> CallLimits:
    """The limits of the declaration ``at`` a line of code. Raises ``DeclarationError`` for limits that cannot be."""
    if isinstance(at_once, bool) or not isinstance(at_once, int) or not 1 <= at_once <= AT_ONCE_MAX:
        raise DeclarationError(
            f"The handler at {at} has at_once={at_once!r}: expected a whole number of calls from 1 to {AT_ONCE_MAX}, "
            "at_once=8."
        )
    is_number = isinstance(per_second, int | float) and not isinstance(per_second, bool)
    if per_second is not None and not (is_number and PER_SECOND_MIN <= per_second <= PER_SECOND_MAX):
        raise DeclarationError(
            f"The handler at {at} has per_second={per_second!r}: expected a number of calls from {PER_SECOND_MIN} to "
            f"{PER_SECOND_MAX:,}, per_second=50, or None for no limit."
        )
    return CallLimits(at_once, per_second)


class CallRate:
    """The rate at which a process begins calls: a bucket of one token, so that calls of a burst are spread evenly.

    A larger bucket would begin twice the rate in the second after a pause, which a service with a limit refuses.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval_seconds = 1 / per_second
        self.clock = clock
        self._next = clock()

    def seconds_short(self) -> float:
        """The wait until the next call may begin."""
        return max(self._next - self.clock(), 0.0)

    def take(self) -> None:
        """Notes that a call begins."""
        self._next = max(self._next, self.clock()) + self.interval_seconds


def process_rate(runtime: Runtime, handler: str, limits: CallLimits) -> CallRate | None:
    """The rate of a handler in this process, which all its batches share; None without a limit."""
    if limits.per_second is None:
        return None
    name = f"rate of calls of {handler}"
    if name not in runtime.opened:
        runtime.opened[name] = CallRate(limits.per_second)
    return cast("CallRate", runtime.opened[name])


class OneAtATime:
    """A store of this machine, used by one thread at a time: the others wait for the lock."""

    def __init__(self, engine: Engine, lock: AbstractContextManager[Any]) -> None:
        self.engine = engine
        self.lock = lock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.engine, name)
        if not callable(found):
            return found

        def locked(*arguments: Any, **options: Any) -> Any:
            with self.lock:
                return found(*arguments, **options)

        return locked


class OutsideCalls(Generic[Subject]):
    """Makes the calls of one handler in a batch.

    ``item`` names a subject's item. ``fails`` takes a subject that failed, and whether it was held: not called, because
    an earlier subject of its item failed. It returns whether the item's later subjects are held. ``most`` subjects, of
    different items, share a call if ``accepts`` takes the next one beside the others.
    """

    def __init__(
        self,
        runtime: Runtime,
        item: Callable[[Subject], Hashable],
        fails: Callable[[Subject, Exception | None], bool],
        limits: CallLimits = CallLimits(),  # noqa: B008 - a value
        *,
        rate: CallRate | None = None,
        flight: Flight | None = None,
        most: int = 1,
        accepts: Callable[[Sequence[Subject], Subject], bool] = lambda *_: True,
    ) -> None:
        self.runtime = runtime
        self.item = item
        self.fails = fails
        self.limits = limits
        self.rate = rate
        self.flight = flight
        self.most = most
        self.accepts = accepts
        self.calling = runtime  # what calls use: their store is safe in threads
        self.lock: AbstractContextManager[Any] = nullcontext()
        if limits.at_once > 1 and runtime.store.is_local:
            self.lock = RLock()
            self.calling = replace(runtime, store=cast("Engine", OneAtATime(runtime.store, self.lock)))

    def run(self, subjects: Iterable[Subject], call: Callable[[Sequence[Subject]], Any]) -> None:
        """Calls all subjects, and gives those that failed, were held or were not begun to ``fails``.

        ``call`` returns the error of each of its subjects, None for a success (or, for a flight that takes coroutines,
        a coroutine that returns these); an error that it raises fails them all. What is no
        ``Exception``, such as ``KeyboardInterrupt``, is raised after the begun calls have ended.
        """
        queues = ItemQueues(subjects, self.item)
        threads = Threads(self.limits.at_once)
        flight = self.flight or threads.flight()
        try:
            self._run(queues, flight, call)
        finally:
            threads.close()
        self._report_rest(queues)

    def _run(self, queues: ItemQueues[Subject], flight: Flight, call: Callable[[Sequence[Subject]], Any]) -> None:
        in_flight, begins = 0, True
        raised: BaseException | None = None
        while True:
            while begins and queues.has_next and in_flight < self.limits.at_once:
                if begins := self._may_begin():
                    together = queues.take(self.most, self.accepts)
                    flight.begin(together, in_own_context(call, together), [self.item(each) for each in together])
                    in_flight += 1
            if not in_flight:
                break
            joined = flight.join()
            in_flight -= 1
            if joined.error is not None and not isinstance(joined.error, Exception):
                raised, begins = joined.error, False
                continue
            errors = joined.answer if joined.error is None else [joined.error] * len(joined.tag)
            for subject, error in zip(joined.tag, errors, strict=True):
                self._ended(queues, subject, error)
        if raised is not None:
            raise raised

    def _may_begin(self) -> bool:
        """Whether there is time for another call, after the wait for its turn."""
        try:
            if self.rate is not None and (seconds := self.rate.seconds_short()):
                self.runtime.wait(seconds)
            self.runtime.begin()
        except NotStarted:
            return False
        if self.rate is not None:
            self.rate.take()
        return True

    def _ended(self, queues: ItemQueues[Subject], subject: Subject, error: Exception | None) -> None:
        with self.lock:
            if error is None or not self.fails(subject, error):
                queues.release(subject)
                return
            for later in queues.hold(subject):
                self.fails(later, None)

    def _report_rest(self, queues: ItemQueues[Subject]) -> None:
        """Reports the subjects that were not begun: the first of each item was not done, the later ones wait for it."""
        while queues.has_next:
            (subject,) = queues.take(1)
            self._ended(queues, subject, NotStarted(TIME_OVER))


def in_own_context(call: Callable[[Any], Any], together: Any) -> Callable[[], Any]:
    """The call in a copy of this thread's context variables, with numbers that it may round as it likes."""
    context = copy_context()

    def called() -> Any:
        setcontext(EXACT.copy())  # a copied context refers to the same object, which threads would share
        return call(together)

    return lambda: context.run(called)


class ItemQueues(Generic[Subject]):
    """Subjects that wait, item by item. The next one is the oldest whose item has none in flight."""

    def __init__(self, subjects: Iterable[Subject], item: Callable[[Subject], Hashable]) -> None:
        self._item = item
        self._waiting: dict[Hashable, deque[tuple[int, Subject]]] = {}
        for number, subject in enumerate(subjects):
            self._waiting.setdefault(item(subject), deque()).append((number, subject))
        self._ready = [(queue[0][0], key) for key, queue in self._waiting.items()]
        heapify(self._ready)  # numbers differ, so that keys are not compared

    @property
    def has_next(self) -> bool:
        return bool(self._ready)

    def take(self, most: int, accepts: Callable[[Sequence[Subject], Subject], bool] = lambda *_: True) -> list[Subject]:
        """The next subjects, of different items, which are in flight from now on: at least one, at most ``most``."""
        taken: list[Subject] = []
        while self._ready and len(taken) < most:
            _, key = self._ready[0]
            subject = self._waiting[key][0][1]
            if taken and not accepts(taken, subject):
                break
            heappop(self._ready)
            self._waiting[key].popleft()
            taken.append(subject)
        return taken

    def release(self, subject: Subject) -> None:
        """Notes the end of a subject: the next one of its item may be called."""
        key = self._item(subject)
        if queue := self._waiting[key]:
            heappush(self._ready, (queue[0][0], key))

    def hold(self, subject: Subject) -> list[Subject]:
        """Takes the later subjects of an item out, because this one failed."""
        queue = self._waiting[self._item(subject)]
        later = [each for _, each in queue]
        queue.clear()
        return later
