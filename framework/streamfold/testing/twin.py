"""An application over tables in process, for tests of single steps: each write is processed at once.

``change`` makes one change, for a test that calls a handler of changes as a plain function.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.commit.outcome import Failure
from streamfold.derivations.derivation import contributing, local_locations, messages_to, reads_items, searching
from streamfold.engines.memory import MemoryEngine
from streamfold.errors import ParkingError, shown
from streamfold.keys.key import Key
from streamfold.keys.table import KeyType, Table
from streamfold.read import rows as present
from streamfold.read.feeds import LIMIT, PULLS_MOST, EngineQueries, Feed, page, route_of
from streamfold.records.change import TIME_TO_LIVE, Change, Origin
from streamfold.records.envelope import Origins
from streamfold.records.sources import newest_sources
from streamfold.records.values import decode
from streamfold.routes.moments import GivenMoment, Now, microseconds_of
from streamfold.settings import Settings
from streamfold.testing.items import HandlerFails, TwinError
from streamfold.testing.stream import Clock, TwinRecord
from streamfold.testing.table import TableTwin


def check_application(app: object) -> None:
    """Raises ``TwinError`` for an object that is no application."""
    if not isinstance(app, App):
        what = f"{shown(app)} of type {type(app).__name__}"
        raise TwinError(f"{what} is no application: expected {_instead(app)}.")


def check_key(key: object, taker: str) -> None:
    """Raises ``TwinError`` for an object that is no key."""
    if not isinstance(key, Key):
        raise TwinError(
            f"{taker} was given {shown(key)} of type {type(key).__name__}: expected a key of the application, the Key "
            "itself and neither its name nor its text."
        )


def _instead(given: object) -> str:
    """The likely intended object: a module may have the application."""
    if isinstance(given, ModuleType):
        for name, value in vars(given).items():
            if isinstance(value, App):
                return f"its {name}, from {given.__name__} import {name}"
    return "App(..., routers=[...])"


def parking_conflicts(app: App) -> set[str]:
    """The handlers whose records are parked for a conflict."""
    own = (route for route in app.routes if route.kind.contributes)
    return {route.name for route in own if contributing(route).parks_conflicts(route)}


def reports_conflict(app: App, failure: Failure) -> bool:
    """Whether a record would be parked for a conflict of a unique index. A twin has no parking location.

    The rows of the index are right nevertheless.
    """
    return failure.handler in parking_conflicts(app) and isinstance(failure.error, ParkingError)


class Write(NamedTuple):
    """One write to the table: an item that is put, or removed (``item`` None), ``expired`` by its time to live."""

    key: Key
    fields: Mapping[str, Any]
    item: Mapping[str, Any] | None
    expired: bool = False

    def __str__(self) -> str:
        what = "expires" if self.expired else "delete" if self.item is None else "put"
        name = " / ".join(str(value) for value in self.key.key(**self.fields).values())
        return f"{what} {name}{'' if self.item is None else f' {dict(self.item)}'}"


def key_types(history: Iterable[Write], table: str) -> dict[str, KeyType]:
    """The types of those key attributes of a table that are not text."""
    keys = {write.key for write in history if write.key.table.name == table}
    parts = [each for key in keys for each in zip(key.table.attributes, key.parts, strict=True)]
    return {name: part.attribute_type for name, part in parts if part.attribute_type != "S"}


def carry_out(twin: TableTwin, write: Write) -> TwinRecord | None:
    """Makes one write to its table; returns its record, or None if it changed nothing."""
    key = write.key.key(**write.fields)
    if write.item is not None:
        return twin.put({**write.item, **key})
    record = twin.delete(key)
    if record is not None and write.expired:
        record["userIdentity"] = dict(TIME_TO_LIVE)
    return record


def changes_items(app: App) -> bool:
    """Whether an application has handlers that read or write its own items."""
    return any(reads_items(route) or route.kind.touches(route) for route in app.routes)


def change(
    key: Key,
    /,
    *,
    old: Mapping[str, Any] | None = None,
    new: Mapping[str, Any] | None = None,
    expired: bool = False,
    clock: Clock | None = None,
    **fields: Any,
) -> Change:
    """The change of an item from ``old`` attributes to ``new`` ones; None is no item. ``fields`` fill the key.

    ``expired``: time to live removed the item. ``clock`` says when, 2026-03-01T09:00:00Z if not given. Raises
    ``TwinError`` for what is no change, and ``WriteRefused`` for an item that DynamoDB would not take.
    """
    check_key(key, "change()")
    if old is None and new is None:
        raise TwinError("A change was given neither old= nor new=: expected the attributes before, after, or both.")
    if expired and new is not None:
        raise TwinError("A change with expired=True removes the item: leave new= out.")
    writes = [Write(key, fields, item) for item in (old, new) if item is not None]
    if new is None:
        writes.append(Write(key, fields, None, expired=expired))
    table = TableTwin(key.table, view="NEW_AND_OLD_IMAGES", clock=clock, key_types=key_types(writes, key.table.name))
    record = [carry_out(table, write) for write in writes][-1]
    if record is None:
        raise TwinError(f"A change of {key!r} has equal old= and new=: a stream has no record of such a change.")
    return Change(record, Origin(key.table, ""))


def now(moment: GivenMoment) -> Now:
    """The time, for a test that calls a handler of it: ``overdue(ticket, now=testing.now("2026-03-01T10:00:00Z"))``.

    Raises ``HandlerError`` for a value that is no moment.
    """
    microseconds = microseconds_of(moment)
    if microseconds is None:
        raise TwinError(f'now() was given {moment!r}: expected a moment, for example now("2026-03-01T10:00:00Z").')
    return Now(microseconds)


class Twin:
    """The tables of an application, their streams, and its handlers behind them.

    ``put``, ``delete`` and ``expire`` write to a table; the record of the write is processed before they return, with
    chains and cascades. ``rows`` and ``row`` read derived rows, ``feed`` a page of a feed, ``documents`` the documents
    of a search, ``published`` the messages to a destination. External handlers are not called, and archives are written
    only into folders.

        twin = Twin(app)
        twin.put(ORDER_ITEM, order_id="1", sku="a", price=2, quantity=3)
        assert twin.row(ORDER_TOTAL, order_id="1")["total"] == 6
    """

    def __init__(self, app: App, *, clock: Clock | None = None) -> None:
        check_application(app)
        self.app = app
        self.clock: Clock = clock or Clock()
        self.engine: MemoryEngine = MemoryEngine(app.tables.values(), app.chains)
        self._opened = local_locations(app, self.engine, Settings())
        self._keeps_sources = changes_items(app)
        kept = (key for route in app.routes for key in (*route.writes, *(route.sources if self._keeps_sources else ())))
        self._kept = list(dict.fromkeys(kept))
        self._origins = Origins(app.source_tables, Settings())
        if app.asks_time:
            self.clock.advanced.append(self._advanced)
        self.tables: dict[str, TableTwin] = {
            name: TableTwin(table, clock=self.clock, key_types=_types(app, table))
            for name, table in app.source_tables.items()
        }

    def put(self, key: Key, /, *, attributes: Mapping[str, Any] | None = None, **values: Any) -> None:
        """Puts an item: names of the key's template fill the key, all others are attributes.

        ``attributes`` is for attributes whose names collide with fields. Raises ``HandlerFails`` with the error of a
        handler that cannot process the change, and ``WriteRefused`` for an item that DynamoDB would refuse.
        """
        check_key(key, "twin.put()")
        fields = {name: value for name, value in values.items() if name in key.types}
        item = {name: value for name, value in values.items() if name not in key.types} | dict(attributes or {})
        self._write(Write(key, fields, item))

    def delete(self, key: Key, /, **fields: Any) -> None:
        """Deletes an item. Raises as ``put``."""
        check_key(key, "twin.delete()")
        self._write(Write(key, fields, None))

    def expire(self, key: Key, /, **fields: Any) -> None:
        """Removes an item as its time to live does. Raises as ``put``."""
        check_key(key, "twin.expire()")
        self._write(Write(key, fields, None, expired=True))

    def rows(self, key: Key) -> list[dict[str, Any]]:
        """The derived rows of a target, sorted by key: plain items, as a reader with boto3 sees them.

        Raises ``TwinError`` for a key of which no handler writes rows: the list would always be empty.
        """
        self._check_kept(key)
        items = (decode({"M": item}) for item in self.engine.items(self.app.tables[key.table.name]))
        return [row for row in present(items) if key.match(row) is not None]

    def row(self, key: Key, /, **fields: Any) -> dict[str, Any] | None:
        """One derived row, or None. Raises as ``rows``."""
        check_key(key, "twin.row()")
        wanted = key.key(**fields)
        return next((row for row in self.rows(key) if wanted.items() <= row.items()), None)

    def feed(
        self, timeline: Callable[..., Any], /, *, limit: int = LIMIT, cursor: str | None = None, **reader: Any
    ) -> Feed:
        """One page of a reader's feed at the time of the twin's clock, as ``streamfold.read.feed`` gives it.

        Raises as ``streamfold.read.feed``.
        """
        queries = EngineQueries(self.engine)
        return page(route_of(timeline), queries, reader, limit, cursor, PULLS_MOST, self.clock.now, time.time())

    def documents(self, index: str) -> dict[str, dict[str, Any]]:
        """The documents that a search of an index may find, by id: their fields without those of the framework.

        Raises ``SettingsError`` for an index that no search declares.
        """
        return searching(self.app.routes, index).read_rows(self.app.routes, index, self.engine)

    def published(self, destination: str) -> list[dict[str, Any]]:
        """The messages to a destination, ``shop`` or ``sns:shop``, in the order in which they were sent: the envelopes.

        Raises ``TwinError`` for a destination that no publisher declares.
        """
        found = messages_to(self.app.routes, destination, self._opened)
        if found is None:
            raise TwinError(f"No publisher of {self.app.name!r} goes to {destination!r}: expected the name in to=.")
        return found

    def _advanced(self) -> None:
        """Derives items again for which a moment has come. Raises as ``put``."""
        self.engine.advance_clock(self.clock.now)
        self._raise(self._processed([]))

    def _processed(self, records: list[TwinRecord]) -> list[Failure]:
        from streamfold.replay.local import process  # it brings the store of state files

        return process(self.app, records, self.engine, Settings(), opened=self._opened)

    def _raise(self, failures: Iterable[Failure]) -> None:
        if self._keeps_sources:
            self._take_over()  # before an error is raised: other handlers may have written
        for failure in failures:
            if not reports_conflict(self.app, failure):
                raise HandlerFails(str(failure)) from failure.error

    def _check_kept(self, key: Key) -> None:
        check_key(key, "twin.rows()")
        if not any(known.contains(key) or key.contains(known) for known in self._kept):
            raise TwinError(
                f"No handler of {self.app.name!r} writes rows of {key!r}: expected one of "
                f"{', '.join(map(repr, self._kept)) or 'none'}. Items that were put are in twin.tables."
            )

    def _write(self, write: Write) -> None:
        if (name := write.key.table.name) not in self.tables:
            known = ", ".join(map(repr, self.tables))
            raise TwinError(f"No handler of {self.app.name!r} reads table {name!r}: expected one of {known}.")
        self.clock.advance(1)
        record = carry_out(self.tables[name], write)
        if record is None:
            return
        change = self._origins.change(record)
        if self._keeps_sources or self.app.derived(change.item):  # an item at the key of a row refuses its handler
            self.engine.put_over_rows(newest_sources([change]))
        self._raise(self._processed([record]))

    def _take_over(self) -> None:
        """Copies the writes of handlers to items from the store to the tables; their records were processed there."""
        for name in self.engine.source_tables:
            table = self.tables[name]
            for item in table.items():
                key = {attribute: item[attribute] for attribute in table.table.attributes}
                stored = self.engine.read_source((name, *key.values(), *([] if table.table.sort else [None])))
                if stored is None:
                    table.delete(key)
                elif (now := decode({"M": stored})) != item:
                    table.put(now)


def _types(app: App, table: Table) -> dict[str, KeyType]:
    found = app.key_types(table)
    return {name: found[name] for name in table.attributes if found[name] != "S"}
