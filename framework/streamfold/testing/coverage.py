"""Which handlers a proof does not prove, so that none is left out unsaid."""

from collections.abc import Collection

from streamfold.app import App
from streamfold.key import Key
from streamfold.route import Route


def item_keys(app: App) -> list[Key]:
    """The keys of all items that handlers read or write: sources, children of cascades, bearers of attributes."""
    keys: dict[Key, None] = {}
    for route in app.routes:
        keys.update(dict.fromkeys((*route.sources, *route.children)))
        if route.kind == "attributes":
            keys[route.writes[0]] = None
    return list(keys)


def unproved(app: App, keys: Collection[Key]) -> tuple[str, ...]:
    """The handlers that histories of items of these keys do not prove, each with the reason."""
    found = ((route.name, _why_not(app, route, keys)) for route in app.routes)
    return tuple(f"{name} ({why})" for name, why in found if why)


def _why_not(app: App, route: Route, keys: Collection[Key]) -> str:
    if route.external:
        return "external handlers are not called"
    derived = [target for other in app.routes for target in other.into]
    if not _any_overlaps(route.sources, [*keys, *derived]):
        return "none of its items are in the histories"
    if route.kind == "cascade" and not _any_overlaps(route.children, keys):
        return "no children are in the histories"
    if route.kind == "attributes" and not _any_overlaps(route.writes, keys):
        return f"no items of {route.writes[0]!r} are in the histories"
    return ""


def _any_overlaps(some: Collection[Key], others: Collection[Key]) -> bool:
    return any(one.overlaps(other) for one in some for other in others)
