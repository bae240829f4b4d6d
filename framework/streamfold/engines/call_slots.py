"""Call slots: how many calls of the store are made side by side, and what comes of each."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

SlotCall = Callable[[], Any]


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
    """How many calls of the store are made side by side. By default one: a store may be of one thread alone."""

    count: int = 1

    @property
    def reads(self) -> int:
        """How many calls that read state items are made side by side."""
        return self.count

    def flight(self) -> Flight:
        """Takes calls to be made side by side, and hands back what came of them to the thread that asks."""
        return Flight()
