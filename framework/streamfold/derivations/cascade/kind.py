"""The kind ``cascade``."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from streamfold.derivations.derivation import CountedWord, Derivation, Planned
from streamfold.errors import DeclarationError
from streamfold.keys.key import Key, check_in_partition, child_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from streamfold.commit.outcome import Outcome
    from streamfold.commit.plan import Deferred
    from streamfold.derivations.calls import Permissions
    from streamfold.derivations.derivation import Finishing, Planning, SegmentWork, Work
    from streamfold.derivations.expected import Expected, History
    from streamfold.jobs.job import Job
    from streamfold.records.change import Change, ItemKey
    from streamfold.routes.route import Fields, Route
KEPT = "kept"
"""Counts parents that exist again."""

NOT_CASCADED = "not_cascaded"


def children_of(route: Route) -> tuple[Key, ...]:
    """The keys of the items that are removed with their parent."""
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
                "cannot be its parents, or their parents. Narrow children= with a literal that only the children have."
            )


def _check_derived(route: Route, routes: Sequence[Route]) -> None:
    for child, writer in product(children_of(route), routes):
        if any(child.overlaps(target) for target in writer.into):
            raise DeclarationError(
                f"{_who(route)} has the child {child!r}, which takes rows derived by {writer.name!r} "
                f"({writer.declared_at}): these are removed with their sources. Narrow the template."
            )


def _paths(cascades: Sequence[Route], route: Route, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The paths from a cascade's children through further cascades back to its parents, by name."""
    for other in cascades:
        if not any(child.overlaps(parent) for child, parent in product(children_of(route), other.sources)):
            continue
        if other.name == path[0]:
            yield (*path, other.name)
        elif other.name not in path:
            yield from _paths(cascades, other, (*path, other.name))


def _who(route: Route) -> str:
    return f"Cascade {route.name!r} ({route.declared_at})"


class Cascade(Derivation):
    """Removes children with their parent."""

    name = "cascade"
    write_units = "4, and 2 per child"
    finishes_last = True
    fans_out = True
    reads_items = True
    says: ClassVar[Mapping[str, CountedWord]] = {
        KEPT: CountedWord(
            "Cascade {name}: {count} of the removed items exist again and keep their children.",
            log="children were kept, because their parents exist again",
            stale="The parent exists again: its children are kept.",
        ),
        NOT_CASCADED: CountedWord(
            "Cascade {name} was not carried out for {count} removed items: the replay did not put source items into "
            "this store; it does with --put-sources, on a loopback endpoint."
        ),
    }

    def touches(self, route: Route) -> tuple[Key, ...]:
        return children_of(route)

    def guard(self, route: Route) -> str:
        return "parent absent, child as read"

    def takes(self, route: Route, change: Change) -> bool:
        return change.event == "REMOVE"

    def check(self, own: Sequence[Route], routes: Sequence[Route]) -> None:
        check_cascades(own, routes)

    def plan(self, works: Sequence[Work], planning: Planning) -> Planned:
        from streamfold.derivations.cascade.children import Removed

        taken = [(work, tuple(change for change in work.changes if work.route.takes(change))) for work in works]
        return Planned(deferred=[Removed(work.route, changes, work.fields) for work, changes in taken if changes])

    def finish(self, deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
        """Removes the children of removed items, if the store holds the application's own items."""
        from streamfold.commit.outcome import Outcome
        from streamfold.derivations.cascade.children import Children, Removed

        parents: dict[tuple[str, object], Removed] = {}
        outcome = Outcome()
        for each in deferred:
            assert isinstance(each, Removed)
            if not finishing.runtime.source_items:
                outcome.count(NOT_CASCADED, each.route.name)
                continue
            parent = each.route.name, each.newest.item
            known = parents.get(parent)
            parents[parent] = each._replace(changes=(*known.changes, *each.changes)) if known else each
        return Children(finishing, outcome, KEPT).remove(parents.values()) if parents else outcome

    def process_calls(self, route: Route) -> Permissions:
        from streamfold.derivations.calls import NO_CALLS, STATE, dynamodb, tables_of

        parents = (dynamodb(place, "ConditionCheckItem") for place in tables_of(route.sources))
        children = (dynamodb(place, "Query", "DeleteItem") for place in tables_of(children_of(route)))
        return dynamodb(STATE, "BatchGetItem", "PutItem") | NO_CALLS.union(*parents, *children)

    def expected(self, route: Route, history: History) -> Expected:
        from streamfold.derivations.expected import Expected

        return Expected()

    def segment_work(self, route: Route, job: Job, finishing: Finishing) -> SegmentWork:
        from streamfold.derivations.cascade.children import CascadeSegments

        return CascadeSegments(route, job, finishing, KEPT)

    def takes_along(self, route: Route, fields: Fields, item: ItemKey) -> bool:
        own = (key for key in children_of(route) if key.table.name == item[0])
        return any(child_fields(key, fields, *item[1:]) is not None for key in own)


CASCADE = Cascade()
