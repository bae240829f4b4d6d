"""Whether handlers can process the items that histories are drawn from: the given ones have to be, drawn ones are left
out, and counted.
"""

from collections.abc import Iterable, Mapping
from decimal import localcontext
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.derivations.derivation import Planning, Work, derivation, derived
from streamfold.engines.memory import MemoryEngine
from streamfold.errors import shortened
from streamfold.ledger.forms import Forms
from streamfold.records.change import Change
from streamfold.records.values import EXACT
from streamfold.routes.route import SOURCE, Route
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing.errors import HandlerFails
from streamfold.testing.handlers import is_called, told, with_functions
from streamfold.testing.histories import Shape, Write, changes_of

Attributes = Mapping[str, Any]


class TakenExample(NamedTuple):
    """The shapes without items on which a handler raises, and a line for each key of which some were left out."""

    shapes: list[Shape]
    left_out: tuple[str, ...]


def taken(app: App, shapes: Iterable[Shape]) -> TakenExample:
    """What is left of the shapes. Raises ``HandlerFails`` for an item that was given, or where none is left of a key.

    Handlers are called, and what they yield is looked at, as in production, but without a store.
    """
    twin = with_functions(app, _own_function)
    found = [_taken(twin, shape) for shape in shapes]
    return TakenExample([shape for shape, _ in found], tuple(line for _, line in found if line))


def _own_function(route: Route) -> Any:
    return route.function


def _taken(app: App, shape: Shape) -> tuple[Shape, str]:
    for fields, item in shape.given:
        if why := _refusal(app, shape, fields, item):
            raise HandlerFails(
                f"An item that was given cannot be processed: {why}\nThe item: {_shown(item)}\n"
                "In production its record would fail at every delivery. Mend the handler, or yield nothing for such an "
                "item. That a handler refuses an item is a test of its own: with pytest.raises(HandlerFails): "
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
    left = [item for item in shape.items if all(item != other for other, _ in refused)]
    line = (
        f"{len(refused)} of {len(drawn)} items of {shape.key!r} that were drawn, on which a handler raises; one of "
        f"them is {_shown(first)}: {why}"
    )
    return shape._replace(items=left), line


def _refusal(app: App, shape: Shape, fields: Attributes, item: Attributes) -> str:
    """Why an item cannot be processed when it is put and removed; empty where it can."""
    forms = Forms()  # one item says nothing of the types of another's values
    history = [Write(shape.key, fields, item), Write(shape.key, fields, None)]
    with localcontext(EXACT):
        for change in changes_of(app, history)[0]:
            for route, found in app.sources(change.item):
                try:
                    if is_called(route):
                        _derive(app, route, change, found, forms)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is said
                    return told(route, change.name, error)
    return ""


def _derive(app: App, route: Route, change: Change, fields: Attributes, forms: Forms) -> None:
    if route.kind.contributes:
        for image in (change.old, change.new):
            derived(route, image, fields, forms).checked()
    else:
        work = Work(route, change.item, SOURCE, fields, [change])
        runtime = Runtime(app, MemoryEngine(app), Settings())
        derivation(route).plan([work], Planning(runtime, _raise, lambda *_: None, lambda *_: None))


def _raise(change: Change, route: Route, error: Exception) -> bool:
    del change, route
    raise error


def _shown(item: Attributes) -> str:
    return shortened(repr(dict(item)))
