"""The chunks of a plan that wait to be sent, and those in flight: which may go beside which."""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import NamedTuple

from streamfold.commit.plan import Chunk

LOOKED_AT_MAX = 100
"""Chunks that wait and are looked at for one that shares nothing with those in flight."""
NOWHERE: frozenset[object] = frozenset()


class Attempt(NamedTuple):
    """A chunk that waits to be sent, or is in flight."""

    chunk: Chunk
    rounds: int = 0  # times that it was planned again
    conflicts: int = 0  # times that it was sent and met a conflict
    throttled: bool = False  # the last of these was a throttled table


class Places(NamedTuple):
    """What a chunk shares with no other in flight."""

    items: frozenset[object]  # that it writes
    orders: frozenset[object]  # items with a handler that sees the changes of each in their order

    @classmethod
    def of(cls, chunk: Chunk) -> "Places":
        orders = frozenset((unit.item, unit.routes[0].name) for unit in chunk.units if not unit.steps)
        return cls(frozenset(write.key for write in chunk.writes), orders)

    def are_free(self, flying: AbstractSet[object], earlier: AbstractSet[object]) -> bool:
        """Whether nothing in flight has one of these places, and nothing that waits has an earlier change."""
        return flying.isdisjoint(self.items) and flying.isdisjoint(self.orders) and earlier.isdisjoint(self.orders)


def most_shared_first(chunks: Sequence[Chunk]) -> Sequence[Chunk]:
    """Chunks in the order in which most are in flight together: those that hold up most others come first.

    Chunks with changes that are told in their order come after the others, as they stand.
    """
    times = Counter([write.key for chunk in chunks for write in chunk.writes])

    def in_the_way(chunk: Chunk) -> tuple[bool, int]:
        if not all(unit.steps for unit in chunk.units):
            return True, 0
        return False, -sum([times[write.key] - 1 for write in chunk.writes])

    return sorted(chunks, key=in_the_way)


class Attempts:
    """Those that wait, in the order of their changes, and those in flight."""

    def __init__(self) -> None:
        self.waiting: deque[Attempt] = deque()
        self.flying: dict[int, Attempt] = {}  # in flight, by a number
        self._taken: dict[int, Places] = {}  # the places of these
        self._known: dict[int, tuple[Chunk, Places]] = {}  # the places of chunks, by their identity
        self._number = 0

    def __bool__(self) -> bool:
        return bool(self.waiting or self.flying)

    def add(self, chunks: Iterable[Chunk]) -> None:
        """Chunks that come after all that wait."""
        self.waiting.extend(map(Attempt, chunks))

    def add_first(self, attempts: Sequence[Attempt]) -> None:
        """Attempts that come before all that wait, in their order."""
        self.waiting.extendleft(reversed(attempts))

    def next_free(self) -> Attempt | None:
        """Takes the first that shares nothing with those in flight, and is the first of its items' changes."""
        if not self.flying:
            return self.waiting.popleft() if self.waiting else None
        flying = NOWHERE.union(*(part for places in self._taken.values() for part in places))
        earlier: set[object] = set()
        for index, attempt in enumerate(islice(self.waiting, LOOKED_AT_MAX)):
            places = self._places(attempt.chunk)
            if places.are_free(flying, earlier):
                del self.waiting[index]
                return attempt
            earlier |= places.orders
        return None

    def begin(self, attempt: Attempt, *, beside: bool) -> int:
        """Takes the number of an attempt that goes into flight. ``beside``: others may go at the same time."""
        self._number += 1
        self.flying[self._number] = attempt
        if beside:
            self._taken[self._number] = self._places(attempt.chunk)
        return self._number

    def end(self, number: int) -> Attempt:
        """The attempt of this number, which is in flight no more."""
        self._taken.pop(number, None)
        return self.flying.pop(number)

    def taken_back(self) -> list[Attempt]:
        """All that wait; none does then."""
        waiting = list(self.waiting)
        self.waiting.clear()
        return waiting

    def _places(self, chunk: Chunk) -> Places:
        known = self._known.get(id(chunk))
        if known is None or known[0] is not chunk:
            known = self._known[id(chunk)] = (chunk, Places.of(chunk))
        return known[1]
