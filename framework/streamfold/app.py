"""The application: routers joined, checked as a whole, and ready to take records."""

import os
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from streamfold.derivations.attributes.declared import bound
from streamfold.errors import DeclarationError
from streamfold.keys.key import Key
from streamfold.keys.real_names import check_variables
from streamfold.keys.table import MAIN, Table, is_name
from streamfold.router import Router
from streamfold.routes.checks import chained, checked_routes
from streamfold.routes.route import Dispatch, DispatchEntry, entries_of
from streamfold.routes.tenants import apart
from streamfold.settings import Settings

if TYPE_CHECKING:
    from streamfold.batch.known_forms import KnownState
    from streamfold.batch.report import Failure
    from streamfold.engines import Engine
    from streamfold.writes.guarded import RowKey


class App:
    """An application: ``App("shop", routers=[shop, music])``.

    ``routers`` are ``Router``s, or modules that hold one named ``router``. ``name`` is part of every ledger key: it
    must stay. ``retired`` names handlers that were given up: the state may know them, the application need not
    have them. ``tenant`` names the field that separates tenants: every source and target must have it, and a row of
    another tenant than its source's is refused.
    Raises ``DeclarationError`` when the declarations do not fit together.
    """

    def __init__(
        self,
        name: str,
        routers: Sequence[Router | ModuleType],
        retired: Collection[str] = (),
        *,
        tenant: str | None = None,
    ) -> None:
        if not is_name(name):
            raise DeclarationError(
                f"Application name {name!r} cannot be used: expected a letter, then letters, digits, '_', '-' or "
                "'.', 64 at most."
            )
        self.name = name
        self.tenant = tenant
        routes = checked_routes([route for router in _routers(routers) for route in router.routes])
        self.routes = bound(routes if tenant is None else apart(routes, tenant), name)
        self.retired = _retired(retired)
        if clash := sorted(self.retired & {route.name for route in self.routes}):
            raise DeclarationError(f"Handler {clash[0]!r} is retired and declared: a retired name is not used again.")
        self.tables = _tables(key for route in self.routes for key in (*route.sources, *route.writes))
        check_variables(self.tables)
        bearing = (key for route in self.routes if route.kind == "attributes" for key in route.writes)
        self.source_tables = _tables([*(key for route in self.routes for key in route.sources), *bearing])
        self.dispatch = {
            name: Dispatch(entries_of(self.routes, name), table.delimiter) for name, table in self.tables.items()
        }
        self._known = {name: Dispatch(self._keys(name), table.delimiter) for name, table in self.tables.items()}
        self._targets = {
            name: Dispatch(self._target_keys(name), table.delimiter) for name, table in self.tables.items()
        }
        self.checked_engines: WeakKeyDictionary[Any, KnownState] = WeakKeyDictionary()
        self._warned: set[object] = set()

    def known(self, table: str) -> Dispatch:
        """All keys of a table, sources and targets, to tell which key a value misses by one field."""
        return self._known[table]

    def derived(self, row: "RowKey") -> bool:
        """Whether a key is one of a declared target."""
        return row[0] in self._targets and bool(self._targets[row[0]].find(*row[1:]))

    def chains(self, row: "RowKey") -> bool:
        """Whether a row's changes are read by a route: what the stream of the embedded engine keeps."""
        return row[0] in self.dispatch and bool(self.dispatch[row[0]].find(*row[1:]))

    @cached_property
    def chained(self) -> frozenset[str]:
        """The names of the handlers that read derived rows."""
        return frozenset(reader.name for _, _, reader in chained(self.routes))

    def process(
        self, event: Any, *, engine: "Engine", settings: Settings | None = None, external: bool = False
    ) -> "list[Failure]":
        """Processes an event in this process and returns the failures, none when all went well.

        ``event`` is a Lambda event, a list of records, or one record. External handlers are called, and the
        buckets of archives written, only with ``external=True``. Chains are run to their end where the engine keeps
        its own stream, as the embedded one does.
        A state in a file, ``EmbeddedEngine(app.tables.values(), path="shop.db", wanted=app.chains)``, keeps the source
        items too, as a replay does. Warnings go to the logger ``streamfold``; counts are logged by ``lambda_handler``
        alone.
        Raises ``RecordError`` for an unknown envelope, ``EngineError`` when the store is missing, ``ManifestError``
        when the application does not fit the state.
        """
        from streamfold.parking import open_parking
        from streamfold.replay.local import log, run
        from streamfold.run import Run

        settings = settings or Settings.from_environment(os.environ)
        world = Run(
            settings,
            external=external,
            archive=external or None,
            parking=open_parking(settings.park) if settings.park else None,
            warn=log.warning,
            warned=self._warned,
        )
        return run(self, event, engine, world).failures

    def lambda_handler(self, event: Any, context: Any) -> dict[str, list[dict[str, str]]]:
        """The AWS Lambda entry: processes a batch and returns the partial batch response.

        Every record that failed is listed by its sequence number. Raises for an event that is no batch of records, so
        that nothing is acknowledged unseen. With ``STREAMFOLD_ENGINE=embedded:FILE`` it works on a local state, without
        AWS.
        """
        if "STREAMFOLD_ENGINE" in os.environ:
            from streamfold.replay import local

            return local.handle(self, event)
        from streamfold.lambda_entry import handle

        return handle(self, event, context)

    def _keys(self, table: str) -> Iterable[DispatchEntry]:
        keys = (key for route in self.routes for key in (*route.sources, *route.into))
        return [DispatchEntry(key, ()) for key in dict.fromkeys(keys) if key.table.name == table]

    def _target_keys(self, table: str) -> Iterable[DispatchEntry]:
        return [
            DispatchEntry(key, ())
            for key in dict.fromkeys(key for route in self.routes for key in route.into)
            if key.table.name == table
        ]

    def __repr__(self) -> str:
        return f"App({self.name!r}, {len(self.routes)} handlers)"


def _tables(keys: Iterable[Key]) -> dict[str, Table]:
    return {key.table.name: key.table for key in keys} or {MAIN.name: MAIN}


def _routers(routers: Any) -> list[Router]:
    if not isinstance(routers, Iterable) or isinstance(routers, str):
        raise DeclarationError(
            f"The application has routers={routers!r}: expected a list of Routers, or of modules that have one named "
            "'router', routers=[...]."
        )
    return [_router(router) for router in routers]


def _router(router: object) -> Router:
    found = router if isinstance(router, Router) else getattr(router, "router", None)
    if not isinstance(found, Router):
        raise DeclarationError(
            f"routers= holds {router!r}: expected a Router, or a module that has one named 'router'."
        )
    return found


def _retired(names: Any) -> frozenset[str]:
    if isinstance(names, str):
        raise DeclarationError(f'The application has retired={names!r}: expected a list of names, ["{names}"].')
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise DeclarationError(f"The application has retired={names!r}: expected names of handlers, as text.")
    return frozenset(names)
