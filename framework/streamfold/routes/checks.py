"""Errors that the templates of an application show before anything runs, reported with both declarations."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

from streamfold.errors import DeclarationError, HandlerError, SettingsError, manual
from streamfold.keys.key import Key
from streamfold.keys.table import STATE, merged
from streamfold.records.change import HAS_NEW, HAS_OLD, Change
from streamfold.routes.roots import check_gathering
from streamfold.routes.route import Needs, Route, by_kind
from streamfold.settings.readers import account_of_role

if TYPE_CHECKING:
    from streamfold.keys.table import Table

BOTH = "NEW_AND_OLD_IMAGES"
CARRIED: dict[Needs, tuple[tuple[str, ...], str]] = {
    "new": (HAS_NEW, "needs the new image"),
    "old": (HAS_OLD, "keeps the old image"),
    "both": ((BOTH,), "compares both images"),
}
"""The view types that carry the needed images, and a phrase about them for messages."""
RoleOf = Callable[[str], str | None]
"""The role by which a table is used, by its logical name; None: with the credentials of the process."""


def checked_routes(routes: Sequence[Route]) -> tuple[Route, ...]:
    """The routes with their targets resolved. Raises ``DeclarationError`` for routes that cannot work together."""
    _check_names(routes)
    _check_tables(routes)
    _check_regions(routes)
    for route in routes:
        route.check_referents(routes)
        check_gathering(route, routes)
    for kind, own in by_kind(routes):
        kind.check(own, routes)
    _check_sources(routes)
    _check_writers(routes)
    writers = Counter(key for route in routes for key in set(route.into))
    bound = tuple(_with_targets(route, writers) for route in routes)
    for kind, own in by_kind(bound):
        kind.check_targets(own)
    for route in bound:
        _check_view_type(route)
    _check_graph(bound)
    return bound


def chained(routes: Sequence[Route]) -> list[tuple[Route, Key, Route]]:
    """Where a route's target is the source of another: (writer, target, reader)."""
    subscribed = [
        (each.key, reader)
        for reader in routes
        if reader.kind.reads_derived
        for each in reader.kind.subscriptions(reader)
        if each.called
    ]
    return [
        (writer, target, reader)
        for writer in routes
        for target in writer.into
        for reader in dict.fromkeys([reader for key, reader in subscribed if key.overlaps(target)])
    ]


def _with_targets(route: Route, writers: Counter[Key]) -> Route:
    def is_sole_writer(key: Key) -> bool:
        return writers[key] == (1 if key in route.into else 0)

    return replace(
        route, targets=tuple(route.kind.target(route, key, sole_writer=is_sole_writer(key)) for key in route.writes)
    )


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
    for table in (key.table for route in routes for key in keys_of(route)):
        known = tables.get(table.name, table)
        if (both := merged(known, table)) is None:
            raise DeclarationError(
                f"Table {table.name!r} is declared twice, differently: {known} and {table}. Declare it once, and give "
                "this Table to all of its keys."
            )
        tables[table.name] = both
    for key in (key for route in routes for key in keys_of(route)):
        for name, component in zip(key.table.attributes, key.parts, strict=True):
            required = tables[key.table.name].index_keys.get(name)
            if required is not None and required.type != component.attribute_type:
                raise DeclarationError(
                    f"Table {key.table.name!r} has the key {name!r} of type {required.type!r} in index "
                    f"{required.name!r}, and {key!r} of type {component.attribute_type!r}: an attribute that is a "
                    "key has one type in its table."
                )


def _check_regions(routes: Sequence[Route]) -> None:
    """A transaction is of one region and account (Developer Guide, transaction-apis), and so is a stream's function."""
    for route in routes:
        read = (each.key for each in route.kind.subscriptions(route))
        for key in (*read, *(() if route.kind.elsewhere else route.writes)):
            if key.table.region is not None:
                raise DeclarationError(
                    f"{route.kind} {route.name!r} ({route.declared_at}) has {key!r}, whose table is in region "
                    f"{key.table.region!r}: only router.copy(..., to=...) goes to another region, because one "
                    "transaction stays in one region. Leave region= out if it is the application's own."
                )


def keys_of(route: Route) -> tuple[Key, ...]:
    """All keys that a route names, each once: of sources, targets, referents, and parts of documents."""
    subscribed = (each.key for each in route.kind.subscriptions(route))
    named = (*route.reads, *route.into, *route.writes, *route.kind.touches(route), *subscribed)
    return tuple(dict.fromkeys(named))


def _check_sources(routes: Sequence[Route]) -> None:
    keys = list(dict.fromkeys(key for route in routes for key in (*route.sources, *route.referents)))
    for one, other in combinations(keys, 2):
        if one.overlaps(other) and not one.contains(other) and not other.contains(one):
            raise DeclarationError(
                f"Sources {one!r} ({one.declared_at}) and {other!r} ({other.declared_at}) overlap: some keys are of "
                "both templates, but neither contains the other. Give one of them a literal that the other does "
                "not match."
            )


def _check_writers(routes: Sequence[Route]) -> None:
    written = [(route, key) for route in routes for key in route.into]
    for (one, key), (other, other_key) in combinations(written, 2):
        if not key.overlaps(other_key):
            continue
        is_one_key = key == other_key and one is not other
        if not (is_one_key and one.kind is other.kind and one.kind.may_share(one, other)):
            which = "" if key == other_key else f" (as {other_key!r})"
            raise DeclarationError(
                f"Target {key!r} is written by {one.name!r} ({one.declared_at}) and by {other.name!r} "
                f"({other.declared_at}){which}: a target has one writing handler, but for kinds whose handlers "
                "may share one, such as views with aggregates. Give one of them another target."
            )


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
    needs = route.kind.needs(route)
    if needs == "keys" or view in CARRIED[needs][0]:
        return None
    views, what = CARRIED[needs]
    return f"{what}, which view type {view} does not carry. Switch the stream to {' or '.join(views)}."


def check_view(route: Route, change: Change) -> None:
    """Raises ``HandlerError`` for a change of a stream whose records do not carry what a route needs."""
    if change.view not in (None, BOTH) and (why := lacking(route, change.view)):
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
                f"{route.kind} {route.name!r} ({route.declared_at}) would read rows derived from its own rows: "
                f"{', '.join(map(repr, route.writes))} leads back to {', '.join(map(repr, route.sources))}. "
                "Narrow its source or give it a target outside of it."
            )


def _seen_on_items(routes: Sequence[Route]) -> list[tuple[Route, Route]]:
    """Pairs of routes: the first updates or removes items that the second reads."""
    return [
        (writer, reader)
        for writer in routes
        for key in writer.kind.touches(writer)
        for reader in routes
        if reader.kind.sees_derived_attributes
        if any(read.overlaps(key) for read in reader.reads)
    ]


def _check_replayed(routes: Sequence[Route], writer: Route, target: Key) -> None:
    for reader in routes:
        if reader.kind.reads_derived:
            continue
        for source in reader.sources:
            if target.contains(source):
                raise DeclarationError(
                    f"{reader.kind} {reader.name!r} ({reader.declared_at}) reads {source!r}, which are rows derived by "
                    f"{writer.name!r} ({writer.declared_at}): how many states a derived row passes depends on "
                    f"batching. A handler of kind {reader.kind} may not read derived rows: declare it for the items "
                    f"that they are made of, {', '.join(map(repr, writer.sources))}."
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


def check_accounts(routes: Iterable[Route], role_of: RoleOf) -> None:
    """Raises ``SettingsError`` where rows are written by another role than the state is.

    A transaction takes no tables of two accounts (API Reference, TransactWriteItems). Only copies may be elsewhere:
    they are written outside of transactions.
    """
    of_state = role_of(STATE.name)
    for route in routes:
        written = () if route.kind.elsewhere else route.writes
        for key in (*written, *route.kind.touches(route)):
            if (role := role_of(key.table.name)) != of_state:
                raise SettingsError(
                    f"{route.kind} {route.name!r} ({route.declared_at}) writes to table {key.table.name!r} "
                    f"{by_role(role)}, and the state is used {by_role(of_state)}: a transaction of DynamoDB takes "
                    "the tables of one account, by one role. Set STREAMFOLD_ROLE for state and rows together; only "
                    f"router.copy writes to a table of a further account ({manual('accounts')})."
                )


def by_role(role: str | None) -> str:
    """How a message says by which role a table is used."""
    return "with the function's own role" if role is None else f"by {role} of account {account_of_role(role)}"
