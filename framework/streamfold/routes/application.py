"""The declarations of an application, checked as a whole, and the routes of a key. Threads may share it."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, Self

from streamfold.errors import DeclarationError, HandlerError, SettingsError, shown
from streamfold.keys.key import Key, NearMiss
from streamfold.keys.key_part import KeyComponent, KeyValue
from streamfold.keys.table import MAIN, KeyType, Table, check_variables, is_name, is_writers, merged
from streamfold.records.change import Change, ItemKey
from streamfold.records.values import RawImage
from streamfold.routes.checks import chained, checked_routes, keys_of
from streamfold.routes.parts import PART
from streamfold.routes.roots import root_of
from streamfold.routes.route import REFERENT, SOURCE, Fields, Route, Target, may_expire


def unknown_handler(message: str, name: str, known: Iterable[str]) -> SettingsError:
    """The error for a handler's name that a setting or an option gives, with the names that are near it."""
    from difflib import get_close_matches  # only needed where a name is wrong

    names = list(known)
    near = get_close_matches(name, names)
    expected = " or ".join(near) if near else f"one of {', '.join(names)}"
    return SettingsError(f"{message} names {name!r}, which is no handler of the application: expected {expected}.")


def apart(routes: Sequence[Route], tenant: str) -> tuple[Route, ...]:
    """The routes with targets that take rows of their source's tenant only.

    Raises ``DeclarationError`` for a source or target without the field, and where it is of different kinds.
    """
    places = [(route, what, key) for route in routes for what, key in _keys(route)]
    for route, what, key in places:
        if tenant not in key.types:
            raise DeclarationError(_missing(route, what, key, tenant))
    for route in routes:
        route.check_tenant_of_referents(tenant)
    for route, _, key in places:
        _, _, first = places[0]
        if key.types[tenant].spec != first.types[tenant].spec:
            raise DeclarationError(
                f"The tenant's field is {first.types[tenant]} in {first!r} ({first.declared_at}) and "
                f"{key.types[tenant]} in {key!r} ({key.declared_at}), which {route.name!r} ({route.declared_at}) "
                "names: values of different kinds do not compare. Write it the same way everywhere."
            )
    return tuple(
        replace(route, targets=tuple(target._replace(tenant=tenant) for target in route.targets)) for route in routes
    )


def check_tenant(target: Target, effect: Any, fields: Fields) -> None:
    """Raises ``HandlerError`` for a row that would be another tenant's than its source."""
    tenant = target.tenant
    if tenant is None or tenant not in effect.values:
        return
    field = target.key.types[tenant]
    given, own = effect.values[tenant], fields[tenant]
    if field.write(given) != field.write(own):
        raise HandlerError(
            f"{shown(effect)} gives {tenant}={shown(given)}, but its source is of tenant {shown(own)}: a row belongs "
            f"to the tenant of its source. Leave {tenant} out; it comes from the source's key."
        )


def _keys(route: Route) -> Iterator[tuple[str, Key]]:
    yield from (("reads", key) for key in route.sources)
    yield from (("writes", key) for key in route.writes)
    yield from (("looks up", key) for key in route.referents)


def _missing(route: Route, what: str, key: Key, tenant: str) -> str:
    why = "rows of all tenants would meet there" if what == "writes" else "the tenant of its items would be unknown"
    remedy = route.kind.tenant_remedy(route, tenant) if what == "writes" else f"Put {{{tenant}}} into the template."
    return (
        f"The application has tenant={tenant!r}, and {route.kind} {route.name!r} ({route.declared_at}) {what} {key!r} "
        f"({key.declared_at}), which has no field {{{tenant}}}: {why}. {remedy}"
    )


class Listener(NamedTuple):
    """A route that changes of an item reach, and the role of the item for the route."""

    route: Route
    role: str
    called: bool

    @property
    def is_run_over(self) -> bool:
        """Whether a run over all items derives items again in this role.

        A referent is passed over: each item that refers to it is read by itself. So is a part, unless its root may be
        absent.
        """
        if self.role == PART and self.route.kind.contributes:
            return self.route.optional
        return self.role != REFERENT

    def visited(self, item: ItemKey, fields: Fields) -> tuple[ItemKey, Fields]:
        """The root in place of a part, and else the item itself; each with the fields of its key."""
        return root_of(self.route, fields) if self.role == PART else (item, fields)


class DispatchEntry(NamedTuple):
    """A key with the routes that its changes reach, in the order of their declaration."""

    key: Key
    listeners: tuple[Listener, ...] = ()


FoundEntries = list[tuple[DispatchEntry, dict[str, Any]]]
Segments = tuple[str | None, str | None]


class Dispatch:
    """From key values to entries, by the first segment of partition and sort key: fifty keys cost as much as one."""

    def __init__(self, entries: Iterable[DispatchEntry], delimiter: str) -> None:
        self.delimiter = delimiter
        self.entries: dict[Segments, list[DispatchEntry]] = {}
        for entry in entries:
            self.entries.setdefault(self._segments(entry.key), []).append(entry)
        firsts = dict.fromkeys([None, *(first for first, _ in self.entries)])
        self._fitting = {first: self._of_partition(first) for first in firsts}

    def find(self, partition: KeyValue, sort: KeyValue | None) -> FoundEntries:
        """The entries whose key matches, each with the values of its fields."""
        found = []
        for entry in self.candidates(partition, sort):
            values = entry.key.match_values(partition, sort)
            if values is not None:
                found.append((entry, values))
        return found

    def candidates(self, partition: KeyValue, sort: KeyValue | None) -> list[DispatchEntry]:
        """The entries whose first segments fit."""
        delimiter = self.delimiter
        first = second = None
        if isinstance(partition, str):
            first = partition[: partition.find(delimiter) + 1] or partition
        if isinstance(sort, str):
            second = sort[: sort.find(delimiter) + 1] or sort
        fitting = self._fitting.get(first) or self._fitting[None]
        return fitting.get(second) or fitting[None]

    def _of_partition(self, first: str | None) -> dict[str | None, list[DispatchEntry]]:
        """The entries for a first segment of partition keys, by first segment of sort keys; None: any other segment."""
        partitions = dict.fromkeys((first, None))
        known = dict.fromkeys([None, *(second for own, second in self.entries if own in partitions)])
        return {
            second: [
                entry
                for partition in partitions
                for sort in dict.fromkeys((second, None))
                for entry in self.entries.get((partition, sort), ())
            ]
            for second in known
        }

    def near_misses(self, partition: KeyValue, sort: KeyValue | None) -> list[NearMiss]:
        """The templates that this key misses by one field, unless a narrower template matches it."""
        candidates = [entry.key for entry in self.candidates(partition, sort)]
        matched = [key for key in candidates if key.match_values(partition, sort) is not None]
        misses = [key.near_miss(partition, sort) for key in candidates if key not in matched]
        return [miss for miss in misses if miss and all(key.contains(miss.template) for key in matched)]

    def is_sole_writer(self, key: Key) -> bool:
        """Whether no other key fits the first segments of this key's items, which can then be no near miss of one."""
        own = self._segments(key)
        fit = [
            entry.key
            for segments, entries in self.entries.items()
            if all(mine == theirs or None in (mine, theirs) for mine, theirs in zip(own, segments, strict=True))
            for entry in entries
        ]  # None is any segment
        return fit == [key]

    def _segments(self, key: Key) -> Segments:
        return self._template_segment(key.partition), None if key.sort is None else self._template_segment(key.sort)

    def _template_segment(self, part: KeyComponent) -> str | None:
        text = part.pieces[0]
        if not isinstance(text, str):
            return None
        end = text.find(self.delimiter)
        if end >= 0:
            return text[: end + 1]
        return text if len(part.pieces) == 1 else None


ROW = "row"
"""The role of a row for a route that adds to it."""


def targets_of(routes: Sequence[Route], table_name: str) -> list[DispatchEntry]:
    """The keys of one table that routes write, each with the routes that watch its rows."""
    watchers: dict[Key, list[Listener]] = {}
    for route in routes:
        watched = route.kind.watches(route)
        for key in route.into:
            if key.table.name == table_name:
                watchers.setdefault(key, []).extend([Listener(route, ROW, False)] if key in watched else [])
    return [DispatchEntry(key, tuple(found)) for key, found in watchers.items()]


def entries_of(routes: Sequence[Route], table_name: str) -> list[DispatchEntry]:
    """The keys of one table whose changes reach routes."""
    listeners: dict[Key, list[Listener]] = {}
    for called in (True, False):  # keys of sources come first
        for route in routes:
            for each in route.kind.subscriptions(route):
                if each.called is called and each.key.table.name == table_name:
                    listeners.setdefault(each.key, []).append(Listener(route, each.role, each.called))
    return [DispatchEntry(key, tuple(found)) for key, found in listeners.items()]


def _reading_rows(routes: Sequence[Route]) -> Iterator[Route]:
    """The routes, with those marked that read rows and nothing else."""
    targets = [key for route in routes for key in route.into if route.kind.marks_rows]
    for route in routes:
        own = [each.key for each in route.kind.subscriptions(route) if each.role == SOURCE]
        reads = route.kind.reads_derived and all(any(t.contains(key) for t in targets) for key in own)
        yield replace(route, reads_rows=True) if reads and own else route


class Application:
    """The routes of an application with their targets, and the ways from a key to them.

    ``retired`` names handlers that were removed, ``tenant`` the field that separates tenants. Raises
    ``DeclarationError`` when the declarations do not fit together.
    """

    def __init__(
        self, name: str, routes: Sequence[Route], retired: Collection[str] = (), tenant: str | None = None
    ) -> None:
        if not is_name(name):
            raise DeclarationError(
                f"Application name {name!r} cannot be used: expected a letter, then letters, digits, '_', '-' or "
                "'.', 64 at most."
            )
        self.name = name
        self.tenant = tenant
        checked = checked_routes(routes)
        self.routes: tuple[Route, ...] = tuple(
            route.kind.bound(route, name) for route in (apart(checked, tenant) if tenant else checked)
        )
        self.routes = tuple(_reading_rows(self.routes))
        self.retired: frozenset[str] = _retired(retired)
        if clash := sorted(self.retired & {route.name for route in self.routes}):
            raise DeclarationError(f"Handler {clash[0]!r} is retired and declared: a retired name is not used again.")
        subscribed = [each.key for route in self.routes for each in route.kind.subscriptions(route)]
        self.tables: dict[str, Table] = _tables([*subscribed, *(key for route in self.routes for key in route.writes)])
        check_variables(self.tables)
        self.source_tables: dict[str, Table] = {
            name: self.tables.get(name, table) for name, table in _tables(subscribed).items()
        }
        self._known = self._dispatch(self._entries(self.keys))
        self.index_routes()

    def with_functions(self, wrapped: Callable[[Route], Callable[..., Any] | None]) -> Self:
        """The same application with other functions for its handlers."""
        twin = copy(self)
        for name in [name for name in vars(twin) if isinstance(getattr(type(self), name, None), cached_property)]:
            del vars(twin)[name]  # it may hold the routes of before
        twin.routes = tuple(replace(route, function=wrapped(route)) for route in self.routes)
        twin.index_routes()
        return twin

    def index_routes(self) -> None:
        """Makes the ways from a key to the routes that read it or write there."""
        self.dispatch: dict[str, Dispatch] = self._dispatch(lambda name: entries_of(self.routes, name))
        self._targets = self._dispatch(lambda name: targets_of(self.routes, name))

    def found(self, item: ItemKey) -> list[tuple[DispatchEntry, dict[str, Any]]]:
        """The templates that an item's key matches, each with its subscriptions and the values of its fields."""
        table, partition, sort = item
        dispatch = self.dispatch.get(table)
        return dispatch.find(partition, sort) if dispatch else []

    def listeners(self, item: ItemKey, *, called: bool = True) -> list[tuple[Listener, Fields]]:
        """The subscriptions of an item, one for every role of the item, with the fields of its key.

        ``called`` selects subscriptions whose handlers are called, or the others. A derived row has only subscriptions
        of routes that may read derived rows.
        """
        found: dict[tuple[str, str], tuple[Listener, Fields]] = {}
        for entry, fields in self.found(item):
            for each in entry.listeners:
                if each.called is called:
                    found.setdefault((each.route.name, each.role), (each, fields))
        if not all(each.route.kind.reads_derived for each, _ in found.values()) and self.derived(item):
            return [(each, fields) for each, fields in found.values() if each.route.kind.reads_derived]
        return list(found.values())

    def sources(self, item: ItemKey) -> list[tuple[Route, Fields]]:
        """The routes that are declared for an item, each once, with the fields of its key."""
        return [(each.route, fields) for each, fields in self.listeners(item) if each.role == SOURCE]

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """All keys that handlers name, each once."""
        return tuple(dict.fromkeys(key for route in self.routes for key in keys_of(route)))

    def key_types(self, table: Table) -> dict[str, KeyType]:
        """The types of the key attributes of a table and of its indexes: text, unless a key shows another type."""
        types: dict[str, KeyType] = {name: required.type for name, required in table.index_keys.items()}
        for key in self.keys:
            if key.table.name == table.name:
                both = zip(table.attributes, key.parts, strict=False)
                types |= {name: component.attribute_type for name, component in both}
        return {name: types.get(name, "S") for name in dict.fromkeys([*table.attributes, *types])}

    def known(self, table: str) -> Dispatch:
        """All keys of a table, to find keys that a value misses by one field."""
        return self._known[table]

    def derived(self, row: ItemKey) -> bool:
        """Whether a key is one of a declared target."""
        return row[0] in self._targets and bool(self._targets[row[0]].find(*row[1:]))

    def is_writers(self, item: ItemKey, image: RawImage) -> bool:
        """Whether an item at the key of a target is one of the application's own, and no row: it has no mark of a row.

        The rows of a history have none, so an item at their keys is always taken for one of them.
        """
        return bool(image) and is_writers(image) and not self._unmarked(item)

    def is_of_writer(self, change: Change) -> bool:
        """Whether a change of an item at the key of a target is of one of the application's own, as far as it shows."""
        image = change.old if change.event == "REMOVE" else change.new
        return (change.has_old if change.event == "REMOVE" else change.has_new) and self.is_writers(
            change.item, image.raw
        )

    def _unmarked(self, item: ItemKey) -> bool:
        return any(not route.kind.marks_rows and key.takes(item) for route in self.routes for key in route.into)

    def watchers(self, row: ItemKey) -> list[Route]:
        """The routes that are to know when somebody else removes a row, each once."""
        dispatch = self._targets.get(row[0])
        found = dispatch.find(*row[1:]) if dispatch else ()
        return list(dict.fromkeys(each.route for entry, _ in found for each in entry.listeners))

    def watching_group(self, route: Route, table: str) -> str:
        """The group whose functions notice that another writer removed a row of a route, in one of its tables.

        It is the route's own group, unless only other groups read the table: then the first of these, because its
        function has the table's stream.
        """
        readers = self._readers.get(table, ())
        return route.group if not readers or route.group in readers else readers[0]

    def watched(self, group: str | None = None) -> list[Key]:
        """The targets whose REMOVE records a function of a group needs, besides the changes that its handlers read.

        A filter of events has to let these through where the old image has ``_sf_n`` and no ``_sf_o``, ``_sf_v`` or
        ``_sf_l``. ``group``: None for a function of all groups.
        """
        keys = [(route, key) for route in self.routes for key in route.kind.watches(route)]
        return list(
            dict.fromkeys(key for route, key in keys if group in (None, self.watching_group(route, key.table.name)))
        )

    @cached_property
    def watched_tables(self) -> dict[str, Table]:
        """The tables of watched rows, by name: a stream of one may be given to a function though it has no sources."""
        return {key.table.name: self.tables[key.table.name] for key in self.watched()}

    @cached_property
    def _readers(self) -> dict[str, list[str]]:
        """The groups that read each table, sorted."""
        found: dict[str, set[str]] = {}
        for route in self.routes:
            for each in route.kind.subscriptions(route):
                found.setdefault(each.key.table.name, set()).add(route.group)
        return {name: sorted(groups) for name, groups in found.items()}

    def chains(self, row: ItemKey) -> Collection[str]:
        """The groups whose routes read a row's changes, sorted: for these the stream of a local engine keeps them."""
        found = self.found(row)
        return sorted({each.route.group for entry, _ in found for each in entry.listeners}) if found else ()

    @cached_property
    def rows_expire(self) -> bool:
        """Whether a row of some handler may have a time to live."""
        return any(map(may_expire, self.routes))

    @cached_property
    def asks_time(self) -> bool:
        """Whether a handler asks for the time."""
        return any(route.asks_time for route in self.routes)

    @cached_property
    def calls_once(self) -> bool:
        """Whether a handler is called once at moments of items."""
        return any(route.kind.calls_once(route) for route in self.routes)

    @cached_property
    def plans_from_ledger(self) -> bool:
        return any(route.planned_from_ledger for route in self.routes)

    @cached_property
    def gathers(self) -> bool:
        """Whether a handler with a ledger gathers parts."""
        return any(route.parts and route.kind.contributes for route in self.routes)

    @cached_property
    def chained(self) -> frozenset[str]:
        """The names of the handlers that read derived rows."""
        return frozenset(reader.name for _, _, reader in chained(self.routes))

    def _dispatch(self, entries: Callable[[str], list[DispatchEntry]]) -> dict[str, Dispatch]:
        return {name: Dispatch(entries(name), table.delimiter) for name, table in self.tables.items()}

    @staticmethod
    def _entries(keys: Iterable[Key]) -> Callable[[str], list[DispatchEntry]]:
        all_keys = list(dict.fromkeys(keys))
        return lambda name: [DispatchEntry(key) for key in all_keys if key.table.name == name]


def _tables(keys: Iterable[Key]) -> dict[str, Table]:
    tables: dict[str, Table] = {}
    for key in keys:
        known = tables.get(key.table.name, key.table)
        tables[key.table.name] = merged(known, key.table) or known
    return tables or {MAIN.name: MAIN}


def _retired(names: Any) -> frozenset[str]:
    if isinstance(names, str):
        raise DeclarationError(f'The application has retired={names!r}: expected a list of names, ["{names}"].')
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise DeclarationError(f"The application has retired={names!r}: expected names of handlers, as text.")
    return frozenset(names)
