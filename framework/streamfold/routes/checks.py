"""What the templates of an application can show to be wrong, said with both declarations before anything runs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

from streamfold.derivations.attributes.declared import check_bearers
from streamfold.derivations.audit.options import refused_target
from streamfold.derivations.cascade.declared import check_cascades
from streamfold.errors import DeclarationError, HandlerError
from streamfold.keys.field import Unreadable
from streamfold.keys.key import Key
from streamfold.records.change import HAS_NEW, HAS_OLD, Change
from streamfold.routes.route import Kinds, Route, Target

if TYPE_CHECKING:
    from streamfold.keys.table import Table

AUDIT_FIELDS = ("item", "version")
"""What fills the key of an audit row, beside the fields of the source's key."""


def checked_routes(routes: Sequence[Route]) -> tuple[Route, ...]:
    """The routes with their targets resolved. Raises ``DeclarationError`` for what cannot work together."""
    _check_names(routes)
    _check_tables(routes)
    _check_regions(routes)
    check_cascades(routes)
    check_bearers(routes)
    _check_sources(routes)
    _check_writers(routes)
    shown: dict[Key, Kinds] = {}
    bound = tuple(
        replace(route, targets=tuple(_target(route, key, routes, shown) for key in route.writes)) for route in routes
    )
    _check_histories(bound)
    for route in bound:
        _check_ownership(route)
        _check_view_type(route)
    _check_graph(bound)
    return bound


def chained(routes: Sequence[Route]) -> list[tuple[Route, Key, Route]]:
    """Where a route's target is another ledger route's source: (writer, target, reader)."""
    return [
        (writer, target, reader)
        for writer in routes
        for target in writer.into
        for reader in routes
        if reader.ledger and any(source.overlaps(target) for source in reader.sources)
    ]


def _check_names(routes: Sequence[Route]) -> None:
    seen: dict[str, Route] = {}
    for route in routes:
        if route.name in seen:
            raise DeclarationError(
                f"Two handlers are named {route.name!r}: {seen[route.name].declared_at} and {route.declared_at}. "
                'A name is a handler\'s identity in the ledger: give one of them another, name="...".'
            )
        seen[route.name] = route


def _check_tables(routes: Sequence[Route]) -> None:
    tables: dict[str, Table] = {}
    for table in (key.table for route in routes for key in (*route.sources, *route.writes, *route.children)):
        known = tables.setdefault(table.name, table)
        if known != table:
            raise DeclarationError(f"Table {table.name!r} is declared twice, differently: {known} and {table}.")


def _check_regions(routes: Sequence[Route]) -> None:
    """A transaction is of one region and account (Developer Guide, transaction-apis), and so is a stream's function."""
    for route in routes:
        for key in (*route.sources, *(() if route.kind == "copy" else route.writes)):
            if key.table.region is not None:
                raise DeclarationError(
                    f"{route.kind} {route.name!r} ({route.declared_at}) has {key!r}, whose table is in region "
                    f"{key.table.region!r}: only router.copy(..., to=...) goes to another region, because what is read "
                    "and written together is in one. Leave region= out if it is the application's own."
                )


def _check_sources(routes: Sequence[Route]) -> None:
    keys = list(dict.fromkeys(key for route in routes for key in route.sources))
    for one, other in combinations(keys, 2):
        if one.overlaps(other) and not one.contains(other) and not other.contains(one):
            raise DeclarationError(
                f"Sources {one!r} ({one.declared_at}) and {other!r} ({other.declared_at}) overlap: some keys are of "
                "both templates, but neither holds the other. Give one of them a literal that tells them apart."
            )


def _check_writers(routes: Sequence[Route]) -> None:
    written = [(route, key) for route in routes for key in route.into]
    for (one, key), (other, other_key) in combinations(written, 2):
        if key.overlaps(other_key) and not _may_share(one, key, other, other_key):
            which = "" if key == other_key else f" (as {other_key!r})"
            raise DeclarationError(
                f"Target {key!r} is written by {one.name!r} ({one.declared_at}) and by {other.name!r} "
                f"({other.declared_at}){which}: a target has one writing handler. Only views with aggregates share "
                "one, and audits of different items. Give one of them another target."
            )


def _may_share(one: Route, key: Key, other: Route, other_key: Key) -> bool:
    if key != other_key or one is other:
        return False
    if one.kind == other.kind == "audit":
        return not any(mine.overlaps(theirs) for mine in one.sources for theirs in other.sources)
    return one.kind == other.kind == "view"


def _target(route: Route, key: Key, routes: Sequence[Route], shown: dict[Key, Kinds]) -> Target:
    audit, copy = route.kind == "audit", route.kind == "copy"
    owned = copy or (audit and "item" in key.types) or all(owns(key, source) for source in route.sources)
    owned = owned and route.unique is None  # its rows are their claimants', be it one that the template names
    alone = not any(other is not route and key in other.into for other in routes)
    several = len(route.sources) > 1
    contested = owned and alone and several and not (audit or copy)
    return Target(key, owned, alone, contested, shown=shown.setdefault(key, {}))


def owns(target: Key, source: Key) -> bool:
    """Whether the target's template holds every field of the source's key."""
    return all(
        name in target.types and target.types[name].python_type is field.python_type
        for name, field in source.types.items()
    )


def _missing(target: Key, sources: Iterable[Key]) -> Iterator[str]:
    for source in sources:
        yield from (name for name in source.fields if name not in target.types)


def _check_ownership(route: Route) -> None:
    for target in route.targets:
        if route.kind == "index" and not (target.owned or route.unique):
            missing = ", ".join(dict.fromkeys(_missing(target.key, route.sources))) or "a field of the same type"
            raise DeclarationError(
                f"Index {route.name!r} ({route.declared_at}) writes {target.key!r}, which it does not own: each index "
                f"item has one source, so the template must hold every field of the source's key. Missing: {missing}. "
                "A row that several items may claim, of which one wins, is declared with unique=True."
            )
        if route.kind == "audit":
            _check_audit(route, target)


def _check_audit(route: Route, target: Target) -> None:
    who, key = f"Audit {route.name!r} ({route.declared_at})", target.key
    if not (target.owned and "version" in key.types and _takes_audit_texts(key)):
        raise DeclarationError(
            f"{who} writes {key!r}: expected a template with {{version:rest}} and either {{item:rest}} or every field "
            "of the source's key, so that each change has a row of its own."
        )
    keys = {name for source in route.sources for name in source.table.attributes}
    if redacted := sorted(route.recorded.redact & keys):
        raise DeclarationError(
            f"{who} has redact={redacted!r}: key attributes never stand among the changes, but an item's key is part "
            "of its rows' keys, in clear. Leave them out, and keep what is to be redacted out of keys."
        )
    filled = set.intersection(*(set(source.types) for source in route.sources))
    if unknown := sorted(key.types.keys() - filled - set(AUDIT_FIELDS)):
        raise DeclarationError(f"{who}: nothing fills {', '.join(unknown)} of {key!r}.")
    if why := refused_target(route.recorded, key):
        raise DeclarationError(f"{who} {why}")


def _check_histories(routes: Sequence[Route]) -> None:
    """Refuses one target for the histories of two tables in which an item could have the same key."""
    audits = [
        (route, source, _history(route, source))
        for route in routes
        if route.kind == "audit"
        for source in route.sources
    ]
    for (one, source, key), (other, other_source, other_key) in combinations(audits, 2):
        if source.table.name != other_source.table.name and key == other_key and _mix(key, source, other_source):
            raise DeclarationError(
                f"Audit {one.name!r} ({one.declared_at}) of {source!r} and audit {other.name!r} ({other.declared_at}) "
                f"of {other_source!r} write one target, {key!r}: items of two tables with the same key would share one "
                "history. Give each table a target of its own, for example "
                'Key("AUDIT#MUSIC#{item:rest}", "{version:rest}").'
            )


def _history(route: Route, source: Key) -> Key:
    """The target that the history of a source's items goes to: the only one, or the one in their table."""
    return next((key for key in route.into if key.table.name == source.table.name), route.into[0])


def _mix(target: Key, one: Key, other: Key) -> bool:
    """Whether two sources could make one partition of a target: by their keys where it names the item."""
    return one.alike(other) if "item" in target.types else True


def _takes_audit_texts(key: Key) -> bool:
    """Whether the fields for item and version take any name of an item and any version."""
    like = {"item": f"ORDER{key.table.delimiter}1|METADATA", "version": "00/2026-03-01T10:00:00.000/0000"}
    try:
        return all(key.types[name].write(text) for name, text in like.items() if name in key.types)
    except Unreadable:
        return False


def _check_view_type(route: Route) -> None:
    for source in route.sources:
        view = source.table.view
        if view is not None and (why := lacking(route, view)):
            raise DeclarationError(
                f"{route.kind} {route.name!r} ({route.declared_at}) {why} "
                f"Table {source.table.name!r} is declared with it."
            )


def lacking(route: Route, view: str) -> str | None:
    """Why a route cannot work on a stream of this view type, or None where it can."""
    if (route.ledger or route.kind == "copy") and view not in HAS_NEW:
        return (
            f"needs the new image, which view type {view} does not carry. "
            "Switch the stream to NEW_AND_OLD_IMAGES or NEW_IMAGE."
        )
    if route.kind == "archive" and view not in HAS_OLD:
        return (
            f"keeps the old image, which view type {view} does not carry. Switch the stream to NEW_AND_OLD_IMAGES or "
            "OLD_IMAGE."
        )
    if (route.kind == "audit" or route.changed) and view != "NEW_AND_OLD_IMAGES":
        return f"compares both images, which view type {view} does not carry. Switch the stream to NEW_AND_OLD_IMAGES."
    return None


def check_view(route: Route, change: Change) -> None:
    """Raises ``HandlerError`` for a change of a stream whose records do not carry what a route needs."""
    if change.view not in (None, "NEW_AND_OLD_IMAGES") and (why := lacking(route, change.view)):
        raise HandlerError(f"{route.kind} {route.name!r} {why}")


def _check_graph(routes: Sequence[Route]) -> None:
    for writer in routes:
        for target in writer.into:
            _check_replayed(routes, writer, target)
    following: dict[str, set[str]] = {}
    for writer, reader in [*((one, other) for one, _, other in chained(routes)), *_seen_on_items(routes)]:
        following.setdefault(writer.name, set()).add(reader.name)
    for route in routes:
        if route.name in _reached(following, route.name):
            raise DeclarationError(
                f"{route.kind} {route.name!r} ({route.declared_at}) would read what comes of its own rows: "
                f"{', '.join(map(repr, route.writes))} leads back to {', '.join(map(repr, route.sources))}. "
                "Narrow its source or give it a target outside of it."
            )


def _seen_on_items(routes: Sequence[Route]) -> list[tuple[Route, Route]]:
    """Where attributes of a route are read by another, on the items that bear them. Attributes never see attributes."""
    return [
        (writer, reader)
        for writer in routes
        for reader in routes
        if writer.kind == "attributes" and reader.ledger and reader.kind != "attributes"
        if any(source.overlaps(writer.writes[0]) for source in reader.sources)
    ]


def _check_replayed(routes: Sequence[Route], writer: Route, target: Key) -> None:
    for reader in routes:
        for source in reader.sources if not reader.ledger else ():
            if target.contains(source):
                raise DeclarationError(
                    f"{reader.kind} {reader.name!r} ({reader.declared_at}) reads {source!r}, which are rows derived by "
                    f"{writer.name!r} ({writer.declared_at}): how many states a derived row passes depends on "
                    "batching. Only a view or an index may read derived rows."
                )


def _reached(following: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        for name in following.get(waiting.pop(), ()):
            if name not in reached:
                reached.add(name)
                waiting.append(name)
    return reached
