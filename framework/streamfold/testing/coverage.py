"""Which handlers a proof does not prove, so that none is left out silently."""

from collections.abc import Collection, Iterable

from streamfold.app import App
from streamfold.derivations.derivation import derivation
from streamfold.keys.key import Key
from streamfold.routes.route import Route
from streamfold.testing.handlers import is_called

EVENTS = {
    "MODIFY": "no item is changed in the histories",
    "REMOVE": "no item is removed in the histories",
}
"""What is said of changes that there are none of, by event."""


def item_keys(app: App) -> list[Key]:
    """The keys of all items that handlers read or write: sources, children of cascades, bearers of attributes."""
    keys: dict[Key, None] = {}
    for route in app.routes:
        heard = (each.key for each in route.kind.listens(route))
        keys.update(dict.fromkeys((*heard, *route.kind.touches(route))))
    return list(keys)


def unproved(app: App, keys: Collection[Key], yielded: Collection[str] | None = None) -> tuple[str, ...]:
    """The handlers that histories of items of these keys do not prove, each with the reason.

    ``yielded`` names the handlers that yielded something; None where none was called yet.
    """
    found = ((route.name, _why_not(app, route, keys) or _idle(route, yielded)) for route in app.routes)
    return tuple(f"{name} ({why})" for name, why in found if why)


def by_reason(unproved: Iterable[str]) -> list[str]:
    """What ``unproved`` gives, with the names of all handlers that have the same reason in one line."""
    names: dict[str, list[str]] = {}
    for each in unproved:
        name, _, why = each.removesuffix(")").partition(" (")
        names.setdefault(why, []).append(name)
    return [f"{', '.join(own)} ({'each: ' if len(own) > 1 else ''}{why})" for why, own in names.items()]


def missing(events: Collection[str]) -> tuple[str, ...]:
    """What never happens to an item in histories of changes with these events."""
    return tuple(what for event, what in EVENTS.items() if event not in events)


def not_injected(offered: Collection[str], injected: Collection[str]) -> tuple[str, ...]:
    """The faults that a run could have met and never did, in one line."""
    left = sorted(set(offered) - set(injected))
    return (f"faults that were never injected: {', '.join(left)}",) if left else ()


def _idle(route: Route, yielded: Collection[str] | None) -> str:
    idle = yielded is not None and is_called(route) and route.name not in yielded
    return "it yields nothing for the items of the histories" if idle else ""


def _why_not(app: App, route: Route, keys: Collection[Key]) -> str:
    if derivation(route).outside:
        return "external handlers are not called"
    derived = [target for other in app.routes for target in other.into]
    if not _any_overlaps(route.sources, [*keys, *derived]):
        return "none of its items are in the histories"
    touched = route.kind.touches(route)
    if touched and not _any_overlaps(touched, keys):
        return f"no items of {', '.join(map(repr, touched))} are in the histories"
    return ""


def _any_overlaps(some: Collection[Key], others: Collection[Key]) -> bool:
    return any(one.overlaps(other) for one in some for other in others)
