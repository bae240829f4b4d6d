"""Cascades as they are declared: children in their parent's partition, and none that leads back to a parent."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from streamfold.derivations.partition import check_in_partition
from streamfold.errors import DeclarationError
from streamfold.keys.key import Key
from streamfold.routes.route import Route

KEPT = "kept"
"""Counts parents that exist again."""


def children_of(route: Route) -> tuple[Key, ...]:
    """The keys of the items that go with their parent."""
    children: tuple[Key, ...] = route.options
    return children


def checked_children(children: Any, at: str) -> tuple[Key, ...]:
    """The keys of the children, each once. Raises ``DeclarationError`` for anything but keys."""
    if not isinstance(children, list | tuple) or not children or not all(isinstance(key, Key) for key in children):
        raise DeclarationError(
            f"cascade at {at} has children={children!r}: expected a list of Keys, children=[ORDER_ITEM]."
        )
    return tuple(dict.fromkeys(children))


def check_cascades(cascades: Sequence[Route], routes: Sequence[Route]) -> None:
    """Raises ``DeclarationError`` for a cascade that removes more than its parent's children."""
    for route in cascades:
        for parent, child in product(route.sources, children_of(route)):
            check_in_partition(_who(route), "the child", parent, child)
        _check_derived(route, routes)
    for route in cascades:
        for path in _paths(cascades, route, (route.name,)):
            raise DeclarationError(
                f"{_who(route)} would reach its own parent: {' leads to '.join(map(repr, path))}. An item's children "
                "cannot be its parents, or their parents. Narrow children= with a literal that tells them apart."
            )


def _check_derived(route: Route, routes: Sequence[Route]) -> None:
    for child, writer in product(children_of(route), routes):
        if any(child.overlaps(target) for target in writer.into):
            raise DeclarationError(
                f"{_who(route)} has the child {child!r}, which takes rows derived by {writer.name!r} "
                f"({writer.declared_at}): these go by themselves when their sources do. Narrow the template."
            )


def _paths(cascades: Sequence[Route], route: Route, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The ways from a cascade's children over further cascades back to its parents, by name."""
    for other in cascades:
        if not any(child.overlaps(parent) for child, parent in product(children_of(route), other.sources)):
            continue
        if other.name == path[0]:
            yield (*path, other.name)
        elif other.name not in path:
            yield from _paths(cascades, other, (*path, other.name))


def _who(route: Route) -> str:
    return f"Cascade {route.name!r} ({route.declared_at})"
