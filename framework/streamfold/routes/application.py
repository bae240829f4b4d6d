"""The declarations of an application, checked as a whole. Processes, tests and threads may share the value."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cached_property
from typing import Any

from streamfold.errors import DeclarationError
from streamfold.keys.key import Key
from streamfold.keys.real_names import check_variables
from streamfold.keys.table import MAIN, RESERVED_PREFIX, Table, is_name, merged
from streamfold.records.change import ItemKey
from streamfold.routes.checks import chained, checked_routes
from streamfold.routes.dispatch import Dispatch, DispatchEntry, Listener, entries_of, targets_of
from streamfold.routes.route import SOURCE, Fields, Route
from streamfold.routes.tenants import apart


class Application:
    """The routes of an application with their targets, and the ways from a key to them.

    ``retired`` names handlers that were given up, ``tenant`` the field that separates tenants.
    Raises ``DeclarationError`` when the declarations do not fit together.
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
        self.routes = tuple(route.kind.bound(route, name) for route in (apart(checked, tenant) if tenant else checked))
        self.retired = _retired(retired)
        if clash := sorted(self.retired & {route.name for route in self.routes}):
            raise DeclarationError(f"Handler {clash[0]!r} is retired and declared: a retired name is not used again.")
        heard = [each.key for route in self.routes for each in route.kind.listens(route)]
        self.tables = _tables([*heard, *(key for route in self.routes for key in route.writes)])
        check_variables(self.tables)
        self.source_tables = {name: self.tables.get(name, table) for name, table in _tables(heard).items()}
        self.dispatch = self._dispatch(lambda name: entries_of(self.routes, name))
        self._known = self._dispatch(
            self._entries([key for route in self.routes for key in (*route.sources, *route.into)])
        )
        self._targets = self._dispatch(lambda name: targets_of(self.routes, name))

    def found(self, item: ItemKey) -> list[tuple[DispatchEntry, dict[str, Any]]]:
        """The templates that an item's key matches, each with its listeners and the values of its fields.

        Items of the framework's own, such as those that tell a reader whom to pull, are of no template.
        """
        table, partition, sort = item
        if isinstance(partition, str) and partition.startswith(RESERVED_PREFIX):
            return []
        dispatch = self.dispatch.get(table)
        return dispatch.find(partition, sort) if dispatch else []

    def listeners(self, item: ItemKey, *, called: bool = True) -> list[tuple[Listener, Fields]]:
        """The listeners of an item, each once for every role of the item, with the fields of its key.

        ``called`` selects listeners whose handlers are called, or the others. A derived row has only listeners that may
        read derived rows.
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

    def known(self, table: str) -> Dispatch:
        """All keys of a table, sources and targets, to find keys that a value misses by one field."""
        return self._known[table]

    def derived(self, row: ItemKey) -> bool:
        """Whether a key is one of a declared target."""
        return row[0] in self._targets and bool(self._targets[row[0]].find(*row[1:]))

    def watchers(self, row: ItemKey) -> list[Route]:
        """The routes that are to know when somebody else removes a row, each once."""
        dispatch = self._targets.get(row[0])
        found = dispatch.find(*row[1:]) if dispatch else ()
        return list(dict.fromkeys(each.route for entry, _ in found for each in entry.listeners))

    def watching_group(self, route: Route, table: str) -> str:
        """The group whose functions notice that somebody else removed a row of a route, in one of its tables.

        It is the route's own, unless only other groups read the table: the function of the first of these has the
        table's stream then, and the route's own has not.
        """
        readers = self._readers.get(table, ())
        return route.group if not readers or route.group in readers else readers[0]

    def watched(self, group: str | None = None) -> list[Key]:
        """The targets whose REMOVE records a function of a group wants, beside the changes that its handlers read.

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
            for each in route.kind.listens(route):
                found.setdefault(each.key.table.name, set()).add(route.group)
        return {name: sorted(groups) for name, groups in found.items()}

    def chains(self, row: ItemKey) -> Collection[str]:
        """The groups whose routes read a row's changes, sorted: for these the stream of a local engine keeps them."""
        found = self.found(row)
        return sorted({each.route.group for entry, _ in found for each in entry.listeners}) if found else ()

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
