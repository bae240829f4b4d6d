"""Call slots: how many calls of the store are made side by side, and what comes of each."""

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
    """What came of a call that was begun."""

    tag: Any  # what the call was begun with
    answer: Any = None
    error: BaseException | None = None


class Flight:
    """Calls that were begun and not joined. This one makes each call when its answer is asked for, in their order."""

    def __init__(self) -> None:
        self._begun: deque[tuple[Any, SlotCall]] = deque()

    def begin(self, tag: Any, call: SlotCall, places: Iterable[object]) -> None:
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
        """Takes calls to be made side by side, and hands back what came of them to the thread that asks."""
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
