"""The items of a state, whole: what a run over all of the state looks at."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from streamfold.engines import Engine, OwnStream, StoredItem
from streamfold.writes.guarded import StateKey

T = TypeVar("T")


def state_key(stored: StoredItem) -> StateKey:
    """The key of a state item."""
    return StateKey(stored["pk"]["S"], stored["sk"]["S"])


def found_in_state(engine: Engine, wanted: Callable[[StoredItem], T | None]) -> Iterator[T]:
    """What ``wanted`` makes of each state item, but for None.

    A local store is read to its end before the first is given: it is not written while it is read.
    """
    found = (made for stored in engine.state_items() if (made := wanted(stored)) is not None)
    return iter(list(found)) if isinstance(engine, OwnStream) else found
