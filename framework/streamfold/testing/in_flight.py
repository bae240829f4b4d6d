"""Calls in flight together, without threads: which call is made first, and which answer comes first, is chosen."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from streamfold.engines.call_slots import CallSlots, Flight, Joined, SlotCall, made
from streamfold.testing.choices import Choices
from streamfold.testing.invariants import InvariantBroken
from streamfold.writes.guarded import StateKey

LANES = 3
"""Calls in flight together: enough for a third one between two that share something."""
OTHERWISE = ("last-first", "all-before-an-answer", "all-before-an-answer-backwards")
"""How calls in flight are made but one by one in their order, each followed by its answer."""


class Begun(NamedTuple):
    """A call that was begun, and what it touches."""

    tag: Any
    call: SlotCall
    places: frozenset[object]


class ChosenLanes(CallSlots):
    """Call slots of a proof. ``broken`` is told when two calls that touch one item are in flight together."""

    def __init__(self, choices: Callable[[], Choices], broken: Callable[[InvariantBroken], None]) -> None:
        self.count = LANES
        self.choices = choices
        self.broken = broken

    def flight(self) -> Flight:
        return _ChosenFlight(self)


class _ChosenFlight(Flight):
    def __init__(self, lanes: ChosenLanes) -> None:
        super().__init__()
        self._lanes = lanes
        self._waiting: list[Begun] = []
        self._ended: list[tuple[Joined, frozenset[object]]] = []

    def begin(self, tag: Any, call: SlotCall, places: Iterable[object]) -> None:
        touched = frozenset(part for place in places for part in _touched(place))
        others = [begun.places for begun in self._waiting] + [ended for _, ended in self._ended]
        if twice := [place for each in others for place in each & touched]:
            self._lanes.broken(InvariantBroken(f"Two calls in flight share {twice[0]}."))
        self._waiting.append(Begun(tag, call, touched))

    def join(self) -> Joined:
        how = self._lanes.choices().choose("in-flight", OTHERWISE) if len(self._waiting) > 1 else None
        if how == "last-first":
            self._waiting.reverse()
        elif how is not None:
            if how.endswith("backwards"):
                self._waiting.reverse()
            while self._waiting:
                self._make()
        if not self._ended:
            self._make()
        joined, _ = self._ended.pop(0)
        return joined

    def _make(self) -> None:
        begun = self._waiting.pop(0)
        self._ended.append((made(begun.tag, begun.call), begun.places))


def _touched(place: object) -> tuple[object, ...]:
    """A place; of a claim too the item and the handler, whose changes go one after another."""
    if isinstance(place, StateKey) and place.pk.startswith("claim#"):
        return place, (place.pk, place.sk.rpartition("#")[0])
    return (place,)
