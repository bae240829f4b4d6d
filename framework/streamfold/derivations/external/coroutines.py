"""Calls of external handlers that are coroutines, all in the one event loop of the process.

Powertools' idempotency utility takes no coroutines, so the guard is here. It writes the same notes under the same keys:
a handler that becomes ``async`` later is not called again for the changes that it was called for.
"""

from __future__ import annotations

import asyncio
import atexit
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from decimal import setcontext
from math import isinf
from queue import SimpleQueue
from threading import Lock, Thread
from time import time
from typing import TYPE_CHECKING, Any

from streamfold.derivations.external.notes import (
    COMPLETED,
    MILLISECONDS,
    CallNote,
    may_run,
    note_key,
    remaining_milliseconds,
)
from streamfold.derivations.outside_calls import AT_ONCE_MAX
from streamfold.derivations.yielded import stopped
from streamfold.errors import EngineError, EngineUnavailable, HandlerError, is_of_table
from streamfold.records.values import EXACT
from streamfold.runtime import Flight, Joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from streamfold.derivations.external.options import Call
    from streamfold.records.change import Change
    from streamfold.routes.route import Route
    from streamfold.runtime import Runtime

TRIES_MAX = 3
"""Reads of a note that changes between a read and a write, as Powertools has them (MAX_RETRIES and the first)."""
END_SECONDS = 2.0
"""A call is cancelled this time before the end of the invocation, or half of STREAMFOLD_STOP_SECONDS if that is less:
the note that it failed and the response take that long."""


class Coroutines:
    """Calls a handler that is a coroutine function, once for each change unless a note of a call is lost."""

    def __init__(self, runtime: Runtime, route: Route) -> None:
        self.runtime = runtime
        self.route = route
        self.away: EngineError | None = None

    async def call(self, together: Sequence[Call]) -> list[Exception | None] | BaseException:
        """Calls the handler for changes that it was not called for; returns the error of handler or guard of each."""
        setcontext(EXACT.copy())  # every task has a context of its own, and all would share the object
        try:
            return [await self._guarded(call) for call in together]
        except (KeyboardInterrupt, SystemExit) as error:
            return error  # raised in a task, they end the loop, and nobody joins the other calls

    async def _guarded(self, call: Call) -> Exception | None:
        if self.away is not None:
            return self.away
        (change,) = call.changes
        note = CallNote(self.runtime, note_key(self.runtime, self.route, change))
        try:
            # In a thread: the loop must not stand still while the store answers.
            if not await asyncio.to_thread(begins, note, self.runtime):
                return None
            error = await self._called(change, self.route.asked(call.fields))
            if error is None:
                await asyncio.to_thread(note.succeeded, self.runtime.expires_at)
            else:
                await asyncio.to_thread(note.failed)
        except EngineError as trouble:
            if is_of_table(trouble):  # wrong for good: later calls fail at once
                self.away = trouble
            return trouble
        return error

    async def _called(self, change: Change, arguments: dict[str, Any]) -> Exception | None:
        """The error of the handler. A call that the end of the invocation would cut off is cancelled before."""
        assert self.route.function is not None
        limit = asyncio.timeout(self._seconds())
        try:
            async with limit:
                await self.route.function(change, **arguments)
        except TimeoutError as error:
            if not limit.expired():  # one of the handler's own
                return error
            return HandlerError(
                f"Handler {self.route.name!r} did not return in the time of the invocation and was cancelled: give its "
                "client a shorter timeout, or the function a longer one."
            )
        except Exception as error:  # noqa: BLE001 - any error of user code fails its record only
            return error
        except BaseException as error:  # noqa: BLE001 - would end the loop with all other calls
            return stopped(self.route, error)
        return None

    def _seconds(self) -> float | None:
        seconds = self.runtime.seconds_left()
        return None if isinf(seconds) else seconds - min(END_SECONDS, self.runtime.stop_seconds / 2)


def begins(note: CallNote, runtime: Runtime) -> bool:
    """Notes that a call begins; False if it was made before.

    Raises ``EngineUnavailable`` if another process makes it now, and ``NotStarted`` after the deadline.
    """
    for _ in range(TRIES_MAX):
        until = int(time() * MILLISECONDS) + remaining_milliseconds(runtime)
        if note.begin(runtime.expires_at, until):
            return True
        stored = note.read()
        if stored is None or may_run(stored):  # it expired meanwhile
            continue
        if stored["status"] == COMPLETED:
            return False
        raise EngineUnavailable(
            "Another process makes this call now: it is already in progress. The record is retried."
        )
    raise EngineUnavailable(f"The note of this call changed at each of {TRIES_MAX} tries. The record is retried.")


class LoopFlight(Flight):
    """Calls that are coroutines of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._ended: SimpleQueue[Joined] = SimpleQueue()

    def begin(self, tag: Any, call: Callable[[], Any], keys: Iterable[object]) -> None:
        del keys
        future: Future[Any] = asyncio.run_coroutine_threadsafe(call(), self._loop)
        future.add_done_callback(lambda ended: self._ended.put(_joined(tag, ended)))

    def join(self) -> Joined:
        return self._ended.get()


def _joined(tag: Any, ended: Future[Any]) -> Joined:
    if ended.cancelled():
        return Joined(tag, error=HandlerError("The call was cancelled by other code of its event loop."))
    error = ended.exception()
    result = None if error else ended.result()
    return Joined(tag, error=result) if isinstance(result, BaseException) else Joined(tag, result, error)


class ProcessLoop:
    """The event loop of this process. A thread runs it while calls are made, and it stops between batches.

    It is one for all batches, so that clients and sessions that a handler keeps stay usable. It is in a thread of its
    own, because the caller may run in an event loop already.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None

    @contextmanager
    def running(self) -> Iterator[asyncio.AbstractEventLoop]:
        """The loop, which runs until the last of its users leaves."""
        with self._lock:
            loop = self._loop = self._loop or _new_loop()
            self._users += 1
            if self._users == 1:
                self._thread = Thread(target=_run, args=(loop,), name="streamfold-loop", daemon=True)
                self._thread.start()
        try:
            yield loop
        finally:
            with self._lock:
                self._users -= 1
                if not self._users and self._thread is not None:
                    loop.call_soon_threadsafe(loop.stop)
                    self._thread.join()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Runs a loop until it is stopped, also past a task of a handler's own that would end the program."""
    while True:
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit):  # nobody would join the calls of this batch
            continue
        return


def _new_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(AT_ONCE_MAX, "streamfold-notes"))
    atexit.register(loop.close)
    return loop


PROCESS_LOOP = ProcessLoop()
