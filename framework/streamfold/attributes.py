"""Attributes that are derived onto items of the application itself: what is declared, and what there is to write.

Their truth is a row of the state table for each handler and item, fed through the ledger as any row is. ``upkeep``
copies it onto the item, when that exists and shows something else. Whose write it was that set an attribute last does
not matter: it is right when its value is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from streamfold.change import ItemKey
from streamfold.errors import DeclarationError, HandlerError
from streamfold.route import Route
from streamfold.table import CONTRIBUTORS, DERIVED
from streamfold.truth import Truth
from streamfold.values import encode, hidden, same
from streamfold.writes import UpdateSource

MARK = "@"
"""Begins a derived attribute's name in its truth: the state table's own attributes have other names."""

Item = Mapping[str, Any]


def bound(routes: Iterable[Route], application: str) -> tuple[Route, ...]:
    """The routes, those that derive attributes with the place of their truth."""
    return tuple(
        route if route.kind != "attributes" else replace(route, truth=Truth(application, route.name, route.writes[0]))
        for route in routes
    )


def check_bearers(routes: Sequence[Route]) -> None:
    """Raises ``DeclarationError`` for attributes of what is no item of the application's own."""
    for route in routes:
        if route.kind != "attributes":
            continue
        who = f"attributes {route.name!r} ({route.declared_at})"
        if route.of is None and len(route.sources) > 1:
            raise DeclarationError(
                f"{who} has several sources and no of=: attributes of the source item itself take one source. Declare "
                "them for each, or say of which item they are, of=ORDER."
            )
        for writer in routes:
            for target in writer.into:
                if target.overlaps(route.writes[0]):
                    raise DeclarationError(
                        f"{who} derives onto {route.writes[0]!r}, whose items are rows of {writer.name!r} "
                        f"({writer.declared_at}): let that handler yield the attributes, or a view of its own."
                    )


def marked(values: Mapping[str, Any]) -> dict[str, Any]:
    """A handler's attributes by their names in the truth."""
    return {MARK + name: value for name, value in values.items()}


def update_of(item: ItemKey, stored: Item | None, truths: Sequence[Item | None]) -> UpdateSource | None:
    """What brings an item's derived attributes up to date; None where it has them, or is not there.

    Raises ``HandlerError`` where two handlers derive one attribute.
    """
    if stored is None:
        return None
    wanted = _wanted(item, truths)
    if wanted:
        wanted[DERIVED] = set(wanted)
    gone = {DERIVED, *stored.get(DERIVED, ())}
    removed = tuple(sorted(name for name in gone if name in stored and name not in wanted))
    values = {name: value for name, value in wanted.items() if name not in stored or not _equal(value, stored[name])}
    if not values and not removed:
        return None
    touched = (*values, *removed)
    expected = {name: stored[name] for name in touched if name in stored}
    return UpdateSource(item, expected, tuple(name for name in touched if name not in stored), values, removed)


def _wanted(item: ItemKey, truths: Sequence[Item | None]) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    for truth in truths:
        for name, value in truth.items() if truth and truth.get(CONTRIBUTORS) != 0 else ():
            if not name.startswith(MARK) or hidden(name):
                continue
            if name[1:] in wanted:
                raise HandlerError(f"Two handlers derive {name[1:]!r} onto item {item[1:]}: give one of them another.")
            wanted[name[1:]] = value
    return wanted


def _equal(one: Any, other: Any) -> bool:
    return same(encode(one), encode(other))
