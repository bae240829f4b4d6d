"""Calls of a store side by side, each in a thread: for a store whose client may be used by several, as boto3's may."""

from collections.abc import Iterable
from decimal import setcontext
from queue import SimpleQueue
from time import sleep
from typing import TYPE_CHECKING, Any

from streamfold.engines.call_slots import CallSlots, Flight, Joined, SlotCall, made
from streamfold.limits import LANES_MAX, READ_LANES_MAX
from streamfold.records.values import EXACT

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

GIVE_WAY_SECONDS = 0.001
"""A thread gets its request on its way, which takes 0.7 ms, where it would wait 5 ms for Python's lock otherwise
(``sys.getswitchinterval``)."""


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
        """Waits for what is being called, and ends the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


class _ThreadFlight(Flight):
    def __init__(self, threads: Threads) -> None:
        super().__init__()
        self._threads = threads
        self._ended: SimpleQueue[Joined] = SimpleQueue()

    def begin(self, tag: Any, call: SlotCall, places: Iterable[object]) -> None:
        del places
        self._threads.submit(lambda: self._ended.put(_made_surely(tag, call)))

    def give_way(self) -> None:
        sleep(GIVE_WAY_SECONDS)

    def join(self) -> Joined:
        return self._ended.get()


def _made_surely(tag: Any, call: SlotCall) -> Joined:
    """Makes a call. Whatever it raises is told: the thread that joins it would wait for ever."""
    try:
        return made(tag, call)
    except BaseException as error:  # noqa: BLE001 - raised by the thread that joins it
        return Joined(tag, error=error)
