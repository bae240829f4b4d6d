"""Finds the history rows of an item, or of all items, for the commands that read them."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import click

from streamfold.app import App
from streamfold.cli.rows import items_near
from streamfold.derivations.audit.history import moment
from streamfold.derivations.audit.kind import audit_routes, item_values, plain_row, typed_values
from streamfold.engines import Engine
from streamfold.errors import SettingsError, parts_text
from streamfold.keys.key import Key
from streamfold.keys.key_part import KeyValue
from streamfold.records.change import ItemKey, item_name
from streamfold.records.values import decode
from streamfold.routes.route import Route
from streamfold.writes.guarded import RowKey

HistoryRow = dict[str, Any]


class Audited(NamedTuple):
    """An item whose changes an audit records: its name, its key (None where its name does not tell), the source that
    it is of, and where its rows lie.
    """

    item: str
    key: ItemKey | None
    source: Key
    target: Key
    partition: KeyValue


def audited(app: App, partition: str, sort: str | None, handler: str | None) -> Audited:
    """The item with this key. Raises ``SettingsError`` where no audit, or more than one, records it."""
    audits = audits_of(app, handler)
    found = [
        (route, source, values)
        for route in audits
        for source in route.sources
        if (values := typed_values(source, partition, sort)) is not None and source.match_values(*values) is not None
    ]
    name = parts_text((partition, sort))
    if not found:
        sources = ", ".join(dict.fromkeys(source.template for route in audits for source in route.sources))
        raise SettingsError(f"No audit records the item {name}: expected PARTITION and SORT of {sources}.")
    if len(routes := dict.fromkeys(route.name for route, _, _ in found)) > 1:
        raise SettingsError(f"Several audits record the item {name}: say which, --handler {' or '.join(routes)}.")
    route, source, values = found[0]
    target = _target(route, source)
    item = item_name((source.table.name, *values))
    fields = {**(source.match_values(*values) or {}), "item": item}
    return Audited(item, (source.table.name, *values), source, target, target.partition.compose(fields))


def audits_of(app: App, handler: str | None) -> list[Route]:
    """The audits of an application, or the one of this name. Raises ``SettingsError`` where there is none."""
    audits = audit_routes(app)
    if not audits:
        raise SettingsError(f"Application {app.name!r} has no audit: declare one, router.audit(ORDER).")
    chosen = [route for route in audits if handler in (None, route.name)]
    if not chosen:
        names = ", ".join(route.name for route in audits)
        raise SettingsError(f"--handler {handler!r} is no audit of {app.name!r}: expected {names}.")
    return chosen


def item_of_row(app: App, row: RowKey) -> ItemKey | None:
    """The item whose change a history row tells of; None for another row, and for one whose key does not name it."""
    for route in audit_routes(app):
        for target in (key for key in route.into if key.table.name == row[0]):
            item = (target.match_values(*row[1:]) or {}).get("item")
            if item is not None and (key := _key_of(str(item), route.sources)[0]) is not None:
                return key
    return None


def rows_of(store: Engine, found: Audited) -> list[HistoryRow]:
    """The history rows of one item as they are stored, in plain values, oldest change first."""
    rows = (decode({"M": item}) for item in store.items(found.target.table, found.partition))
    return [row for item, row in _sorted(found.target, rows) if item == found.item]


def all_rows(store: Engine, app: App, handler: str | None) -> Iterator[tuple[Audited, list[HistoryRow]]]:
    """The history rows of every item that has some, each likewise.

    The rows of one partition come together, from DynamoDB too (Developer Guide, HowItWorks.Partitions).
    """
    sources: dict[Key, list[Key]] = {}
    for route in audits_of(app, handler):
        for source in route.sources:
            sources.setdefault(_target(route, source), []).append(source)
    for target, its in sources.items():
        table = target.table
        rows = (decode({"M": item}) for item in items_near(app, store, target))
        for value, partition in groupby(rows, key=lambda row: row[table.partition]):
            for item, group in groupby(_sorted(target, partition), key=lambda pair: pair[0]):
                key, source = _key_of(item, its)
                yield Audited(item, key, source, target, value), [row for _, row in group]


def key_attributes(found: Audited) -> dict[str, KeyValue]:
    """The key attributes of an item whose key is known."""
    return found.source.attributes(*found.key[1:]) if found.key else {}


def readable(target: Key, row: HistoryRow) -> HistoryRow:
    """A row with its item and version, wherever its key holds them."""
    return plain_row(target, row) or row


def time_option(option: str, text: str | None) -> Any:
    """The time that an option gives. Raises ``SettingsError`` for what is none, or has no time zone."""
    try:
        return None if text is None else moment(text)
    except ValueError:
        raise SettingsError(
            f"{option} {text!r} is no time with a time zone: expected for example 2026-03-01T10:00:00Z."
        ) from None


def handler_option(command: Any) -> Any:
    """The option ``--handler``."""
    return click.option(
        "--handler", metavar="NAME", help="The audit whose rows are read, where several record an item."
    )(command)


def _key_of(item: str, sources: Sequence[Key]) -> tuple[ItemKey | None, Key]:
    """The key of an item with this name, and the source that it is of; a name that is a digest tells none."""
    for source in sources:
        if (values := item_values(source, item)) is not None:
            return (source.table.name, *values), source
    return None, sources[0]


def _sorted(target: Key, rows: Any) -> list[tuple[str, HistoryRow]]:
    """The rows of one partition that are of the target, with their items, sorted by item and version."""
    named = [(row, plain_row(target, row)) for row in rows]
    keyed = [((str(full["item"]), str(full["version"])), row) for row, full in named if full is not None]
    return [(item, row) for (item, _), row in sorted(keyed, key=lambda pair: pair[0])]


def _target(route: Route, source: Key) -> Key:
    """Where the rows of a source's items lie. Raises ``SettingsError`` where an item has no partition of them."""
    target = next((key for key in route.into if key.table.name == source.table.name), route.into[0])
    if any(field.name == "version" for field in target.partition.fields):
        raise SettingsError(
            f"Audit {route.name!r} ({route.declared_at}) writes {target!r}: the rows of one item lie in as many "
            "partitions, and cannot be read together. Give a target with {version:rest} in its sort key."
        )
    return target
