"""Whether a handler is a function of its input: called again, and at another time, it has to give the same."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.records.change import Change
from streamfold.routes.effects import each_effect
from streamfold.routes.route import Route
from streamfold.testing.clocks import Clocks
from streamfold.testing.handlers import is_called
from streamfold.testing.remembered import Remembered
from streamfold.testing.sets import with_sets_reversed

SETS = "it goes by the order of a set, which every process has another of"
AGAIN = "called twice it gives two things: it reads a clock, draws at random, or remembers other calls"
AFTER_OTHERS = "it remembers other calls: after those of other items it gives another thing"
MEMORY = "it remembers other calls: a new process gives another thing"
CLOCK = "it reads a clock: a year later it gives another thing"


class NotDeterministic(AssertionError):  # noqa: N818 - what it says
    """A handler gave two things for one input: it reads a clock, draws at random, or remembers something."""


class Call(NamedTuple):
    """One call of a handler: called, it gives what the handler yields, None where that raises."""

    route: Route
    subject: Any
    fields: dict[str, Any]
    change: Change

    def __call__(self, subject: Any = None) -> list[Any] | None:
        """What is yielded of this subject, or of one that is equal to it."""
        return _given(self.route, self.subject if subject is None else subject, self.fields)


def calls_on(app: App, changes: Iterable[Change]) -> list[Call]:
    """The calls of all handlers on these changes: of each image, or of the change. External ones are not called."""
    return [
        Call(route, subject, route.asked(fields), change)
        for change in changes
        for route, fields in app.sources(change.item)
        if is_called(route) and route.items_given == 1
        for subject in ([image for image in (change.old, change.new) if image] if route.kind.gets_items else [change])
    ]


def check_deterministic(app: App, changes: Iterable[Change], remembered: Remembered) -> set[str]:
    """Calls every handler on these changes, again, more than a year later, and after all others.

    ``remembered`` is what the handlers could reach before any of them was called. Returns the names of the handlers
    that yielded something. Raises ``NotDeterministic``.
    """
    calls = calls_on(app, changes)
    clocks = Clocks()
    firsts = [_checked(call, remembered, clocks) for call in calls]
    for call, first in reversed(list(zip(calls, firsts, strict=True))):
        if first is not None and call() != first:
            raise NotDeterministic(message(call.route, call.change, AFTER_OTHERS))
    return {call.route.name for call, first in zip(calls, firsts, strict=True) if first}


def _checked(call: Call, remembered: Remembered, clocks: Clocks) -> list[Any] | None:
    """What a call gives, the same whenever it is made; None where it raises."""
    first = call()
    if first is None:
        return None
    if call() != first:
        raise NotDeterministic(message(call.route, call.change, AGAIN))
    if not _alike(call(with_sets_reversed(call.subject)), first):
        raise NotDeterministic(message(call.route, call.change, SETS if call() == first else AGAIN))
    with remembered.forgotten() as forgot:
        if forgot and call() != first:
            raise NotDeterministic(message(call.route, call.change, MEMORY))
    assert call.route.function is not None
    with clocks.later(call.route.function):
        later = call()
    if later != first:
        raise NotDeterministic(message(call.route, call.change, CLOCK if call() == first else AGAIN))
    return first


def _given(route: Route, subject: Any, fields: dict[str, Any]) -> list[Any] | None:
    """What a handler gives; None where it raises, which is no matter of time."""
    assert route.function is not None
    try:
        return list(each_effect(route.name, route.function(subject, **fields)))
    except Exception:  # noqa: BLE001 - said elsewhere, with the item
        return None


def _alike(given: list[Any] | None, first: Sequence[Any]) -> bool:
    """Whether the same is yielded in whatever order: a row for each member of a set may come in any."""
    left = list(first)
    for effect in given or ():
        if effect not in left:
            return False
        left.remove(effect)
    return given is not None and not left


def message(route: Route, change: Change, what: str) -> str:
    """What is said of a handler that is no function of its input."""
    return (
        f"Handler {route.name!r} ({route.declared_at}) is no function of its input: for item {change.name} {what}. "
        "A redelivery would then write something else than the first delivery. Take times from the item, or from "
        "change.at; take ids from the key; keep nothing between calls; sort what comes out of a set."
    )
