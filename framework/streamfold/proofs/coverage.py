"""The coverage of a proof: the handlers that it does not prove, and the items that it is drawn from.

Handlers must be able to process the given items. Of the drawn items, those on which a handler raises are left out and
counted.
"""

from collections.abc import Collection, Iterable, Mapping
from decimal import localcontext
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.derivations.derivation import Planning, Work, derivation, derived
from streamfold.engines.memory import MemoryEngine
from streamfold.errors import shortened
from streamfold.keys.key import Key
from streamfold.ledger.schema import Schema
from streamfold.proofs.handlers import failure_message, is_called, with_functions
from streamfold.proofs.histories import HOURS_BETWEEN, Shape, changes_of
from streamfold.records.change import Change
from streamfold.records.values import EXACT
from streamfold.routes.route import SOURCE, Route
from streamfold.runtime import MICROSECONDS, Runtime
from streamfold.settings import Settings
from streamfold.testing.items import HandlerFails
from streamfold.testing.twin import Write

HISTORY_SECONDS = 5 * HOURS_BETWEEN * 3600
"""At the end of a history of usual length more moments have come, and a handler may raise only then."""
EVENTS = {
    "MODIFY": "no item is changed in the histories",
    "REMOVE": "no item is removed in the histories",
}
"""The message if no change of this event occurs."""


def unproved(app: App, keys: Collection[Key], yielded: Collection[str] | None = None) -> tuple[str, ...]:
    """The handlers that histories of items of these keys do not prove, each with the reason.

    ``yielded`` names the handlers that yielded something; None before any call.
    """
    found = ((route.name, _why_not(app, route, keys) or _why_idle(route, yielded)) for route in app.routes)
    return tuple(f"{name} ({why})" for name, why in found if why)


def by_reason(unproved: Iterable[str]) -> list[str]:
    """The handlers of ``unproved`` by reason, a line for each reason."""
    names: dict[str, list[str]] = {}
    for each in unproved:
        name, _, why = each.removesuffix(")").partition(" (")
        names.setdefault(why, []).append(name)
    return [f"{', '.join(own)} ({'each: ' if len(own) > 1 else ''}{why})" for why, own in names.items()]


def missing(events: Collection[str]) -> tuple[str, ...]:
    """A message for each event that these events lack."""
    return tuple(what for event, what in EVENTS.items() if event not in events)


def not_injected(offered: Collection[str], injected: Collection[str]) -> tuple[str, ...]:
    remaining = sorted(set(offered) - set(injected))
    return (f"faults that were never injected: {', '.join(remaining)}",) if remaining else ()


def _why_idle(route: Route, yielded: Collection[str] | None) -> str:
    idle = yielded is not None and is_called(route) and route.name not in yielded
    return "it yields nothing for the items of the histories" if idle else ""


def _why_not(app: App, route: Route, keys: Collection[Key]) -> str:
    if not route.kind.subscriptions(route):
        return "it is called at moments of items (at=): which these are depends on when a history looks"
    if derivation(route).outside:
        return "external handlers are not called"
    derived = [target for other in app.routes for target in other.into]
    if not _any_overlaps(route.sources, [*keys, *derived]):
        return "none of its items are in the histories"
    for each in route.lookups:
        if not _any_overlaps([each.key], [*keys, *derived]):
            return f"no items of {each.key!r}, which it looks up, are in the histories"
    for part in route.parts:
        if not _any_overlaps([part.key], [*keys, *derived]):
            return f"no items of {part.key!r}, which it gathers, are in the histories"
    touched = route.kind.touches(route)
    if touched and not _any_overlaps(touched, keys):
        return f"no items of {', '.join(map(repr, touched))} are in the histories"
    return ""


def _any_overlaps(some: Collection[Key], others: Collection[Key]) -> bool:
    return any(one.overlaps(other) for one in some for other in others)


class TakenExample(NamedTuple):
    """The shapes without items on which a handler raises, and a line for each key with items that were left out."""

    shapes: list[Shape]
    left_out: tuple[str, ...]


def taken(app: App, shapes: Iterable[Shape]) -> TakenExample:
    """The shapes without the items on which a handler raises.

    Raises ``HandlerFails`` for a given item on which a handler raises, or if no item of a key remains. Handlers are
    called and their rows are checked as in production, but without a store.
    """
    twin = with_functions(app, lambda route: route.function)  # type: ignore[arg-type,return-value]  # of called handlers
    found = [_taken(twin, shape) for shape in shapes]
    return TakenExample([shape for shape, _ in found], tuple(line for _, line in found if line))


def _taken(app: App, shape: Shape) -> tuple[Shape, str]:
    for fields, item in shape.given:
        if why := _refusal(app, shape, fields, item):
            raise HandlerFails(
                f"An item that was given cannot be processed: {why}\nThe item: {_shown(item)}\n"
                "In production its record would fail at every delivery. Correct the handler, or yield nothing for such "
                "an item. To test that a handler refuses an item, write: with pytest.raises(HandlerFails): "
                "Twin(app).put(...)."
            )
    given = [item for _, item in shape.given]
    drawn = [item for item in shape.items if item not in given]
    refused = [(item, why) for item in drawn if (why := _refusal(app, shape, shape.fields[0], item))]
    if not refused:
        return shape, ""
    (first, why), *_ = refused
    if len(refused) == len(shape.items):
        raise HandlerFails(f"None of the items that were drawn can be processed: {why}\nThe item: {_shown(first)}")
    remaining = [item for item in shape.items if all(item != other for other, _ in refused)]
    line = (
        f"{len(refused)} of {len(drawn)} items of {shape.key!r} that were drawn, on which a handler raises; one of "
        f"them is {_shown(first)}: {why}"
    )
    return shape._replace(items=remaining), line


def _refusal(app: App, shape: Shape, fields: Mapping[str, Any], item: Mapping[str, Any]) -> str:
    """The error of a handler when an item is put and removed; empty if none raises."""
    schema = Schema()  # a new one: values of another item may have other types
    history = [Write(shape.key, fields, item), Write(shape.key, fields, None)]
    with localcontext(EXACT):
        changes = changes_of(app, history, start=shape.start)[0]
        sources = ((change, *source) for change in changes for source in app.sources(change.item))
        for change, route, found in sources:
            try:
                if is_called(route):
                    _derive(app, route, change, found, schema)
            except Exception as error:  # noqa: BLE001 - any error of a handler is reported
                return failure_message(route, change.name, error)
    return ""


def _derive(app: App, route: Route, change: Change, fields: Mapping[str, Any], schema: Schema) -> None:
    contributes = route.kind.contributes
    if route.lookups or (route.parts and contributes) or (route.planned_from_ledger and not contributes):
        return  # the contribution depends on other items too
    if contributes:
        for seconds in (0.0, HISTORY_SECONDS) if route.planned_from_ledger else (0.0,):  # it asks for the time
            for image in (change.old, change.new):
                derived(route, image, fields, schema, round((change.at_seconds + seconds) * MICROSECONDS)).checked()
    else:
        work = Work(route, change.item, SOURCE, fields, [change])
        runtime = Runtime(app, MemoryEngine(app), Settings(), clock=lambda: change.at_seconds)
        derivation(route).plan([work], Planning(runtime, _raise, lambda *_: None, lambda *_: None))


def _raise(change: Change, route: Route, error: Exception) -> bool:
    del change, route
    raise error


def _shown(item: Mapping[str, Any]) -> str:
    return shortened(repr(dict(item)))
