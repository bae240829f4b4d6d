"""Call slots: how many calls of the store are made side by side, and their results."""

from collections import deque
from collections.abc import Callable, Iterable
from decimal import setcontext
from queue import SimpleQueue
from time import sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.records.values import EXACT
from streamfold.settings.limits import LANES_MAX, READ_LANES_MAX

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

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
    except Exception as error:  # noqa: BLE001 - whoever joins the call decides what it means
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
        sleep(GIVE_WAY_SECONDS)

    def join(self) -> Joined:
        return self._ended.get()


def _made_surely(tag: Any, call: SlotCall) -> Joined:
    """Makes a call. Every exception becomes a result: otherwise the joining thread would wait for ever."""
    try:
        return made(tag, call)
    except BaseException as error:  # noqa: BLE001 - raised by the thread that joins it
        return Joined(tag, error=error)
