"""Calls of a store side by side: what may be in flight together, and what comes of it, told in one thread.

No two calls in flight touch one item, so that a batch never conflicts with itself. Nothing but the store is used by
two threads: what a call brings is joined to the rest by the thread that began it.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from streamfold.errors import EngineError, HandlerError
from streamfold.run import Flight, Lanes

Tag = TypeVar("Tag")
T = TypeVar("T")


def in_lanes(
    lanes: Lanes,
    calls: Iterable[tuple[Tag, Callable[[], T]]],
    stops: Callable[[BaseException], bool] = lambda _: False,
    at: Callable[[Tag], Hashable] = lambda tag: tag,
    count: int | None = None,
) -> Iterator[tuple[Tag, T | EngineError | HandlerError]]:
    """What comes of each call, as it ends: its answer, or the error of the store or of a handler.

    calls: are asked for one by one, as lanes get free.
    stops: once an error stops them, no further call is begun; nothing is told of calls that were not begun.
    at: the place that a call touches; a call waits for another one of the same place.
    count: how many calls are made side by side; as many as there are lanes if not given.

    Other errors are raised when all that was begun has ended.
    """
    flight, flying, flying_max = lanes.flight(), set[Hashable](), count or lanes.count
    given = iter(calls)
    waiting: tuple[Tag, Callable[[], T]] | None = None
    stopped: BaseException | None = None
    unexpected: BaseException | None = None
    while True:
        while stopped is None and len(flying) < flying_max:
            waiting = waiting or next(given, None)
            if waiting is None or (place := at(waiting[0])) in flying:
                break
            flying.add(place)
            flight.begin(*waiting, place if isinstance(place, Several) else (place,))
            waiting = None
        if not flying:
            break
        tag, answer, error = flight.join()
        flying.discard(at(tag))
        if error is not None and not isinstance(error, EngineError | HandlerError):
            unexpected = unexpected or error
        elif unexpected is None:
            try:
                yield tag, answer if error is None else error
            except GeneratorExit:
                join_all(flight, len(flying))
                raise
        if unexpected or (error is not None and stops(error)):
            stopped = error
    if unexpected:
        raise unexpected


def join_all(flight: Flight, count: int) -> None:
    """Waits for calls whose answers nobody wants any more."""
    for _ in range(count):
        flight.join()


class Several(tuple[object, ...]):
    """Places that one call touches."""

    __slots__ = ()


def slices(lanes: Lanes, keys: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Keys as calls take them: all in one call, or what one request takes where calls are made side by side."""
    step = size if lanes.count > 1 else max(len(keys), 1)
    return (keys[start : start + step] for start in range(0, len(keys), step))
