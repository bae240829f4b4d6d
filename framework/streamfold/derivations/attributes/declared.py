"""Attributes that are derived onto items of the application itself, as they are declared.

Their truth is a row of the state table for each handler and item, fed through the ledger as any row is. ``upkeep``
copies it onto the item, when that exists and shows something else. Whose write it was that set an attribute last does
not matter: it is right when its value is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from streamfold.derivations.attributes.stored import MARK, Truth
from streamfold.errors import DeclarationError
from streamfold.routes.route import Route


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
