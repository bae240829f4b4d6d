"""``streamfold history`` shows the changes of one item. ``streamfold audit`` checks that no history was altered."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from itertools import dropwhile, groupby
from time import time as now
from typing import Any, NamedTuple

import click

from streamfold.app import App
from streamfold.cli import shell
from streamfold.cli.items import items_near, name_text, text
from streamfold.cli.output import Grid, Note, Printed, Report, counted
from streamfold.cli.session import Session
from streamfold.derivations.audit.history import (
    AT_THE_END,
    MEANINGS,
    NOT_FOUND,
    Finding,
    ItemAsOf,
    behind,
    findings,
    item_as_of,
    moment,
)
from streamfold.derivations.audit.options import item_values, plain_row
from streamfold.derivations.derivation import audits
from streamfold.derivations.secrets import secret_key
from streamfold.engines.protocol import Engine
from streamfold.errors import SettingsError, joined_key, printable
from streamfold.keys.field import datetime_text
from streamfold.keys.key import Key
from streamfold.keys.key_part import KeyValue
from streamfold.records.change import ItemKey, image_of, item_name, typed, typed_values
from streamfold.records.values import decode, encode, to_json
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.writes.guarded import RowKey

SIDES = ("old", "new")
FINDINGS_KEPT_MAX = 1000
HANDLER = shell.value("--handler", "NAME", "The audit whose rows are read, where several record an item.")
ChangeRow = dict[str, Any]


class Audited(NamedTuple):
    """An item whose changes an audit records: its name, its key (None if its name is a digest), its source, and the
    target and partition of its rows.
    """

    item: str
    key: ItemKey | None
    source: Key
    target: Key
    partition: KeyValue


@dataclass(slots=True)
class Checked:
    """The counts and findings of a check. ``findings`` are the first, ``problems`` counts all.

    ``not_found`` names the problems that this check cannot find.
    """

    not_found: tuple[str, ...]
    items: int = 0
    rows: int = 0
    findings: list[Finding] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)

    def walk(self, found: Audited, rows: list[ChangeRow], key: bytes) -> None:
        """Checks the history of one item."""
        self.items += 1
        self.rows += len(rows)
        time, ttl = now(), found.target.table.ttl

        def has_expired(row: Mapping[str, Any]) -> bool:
            expires = None if ttl is None else row.get(ttl)
            return isinstance(expires, int | Decimal) and expires <= time

        self.add(findings(found.item, rows, key, has_expired))

    def add(self, found: Iterable[Finding]) -> None:
        for finding in found:
            self.problems[finding.problem] += 1
            if len(self.findings) < FINDINGS_KEPT_MAX:
                self.findings.append(finding)


@shell.command(
    "history",
    "Show all changes of one item, or the item at a time.",
    shell.key(required=True),
    shell.STATE_OPTIONS,
    HANDLER,
    shell.value("--at", "TIME", "Show the item as it was at this time, after all changes of that second."),
    shell.number("--limit", "Show the last N changes only.", 1),
    shell.exclusive("--at", "--limit"),
    shell.json_flag("Print one change a line, in DynamoDB JSON; with --at, one object."),
)
def history(opened: Session) -> Report:
    """Show the recorded changes of the item with the key PARTITION and SORT, oldest first.

    \b
    Examples:
      streamfold history ORDER#1042 METADATA
      streamfold history ORDER#1042 METADATA --at 2026-03-01T10:00:00Z
      streamfold history ORDER#1042 METADATA --engine dynamodb --table main=shop --json
    """
    given = opened.given
    time = _time("--at", given.at)
    found = audited(opened.app, given.partition, given.sort, given.handler)
    rows = rows_of(opened.engine, found)
    name = joined_key((given.partition, given.sort))
    none = f"No rows: no change of {name} was recorded, or its rows have expired. Check the key."
    if time is not None:
        # A row has its item and version wherever its key holds them.
        readable = (plain_row(found.target, row) or row for row in rows)
        key_attributes = found.source.attributes(*found.key[1:]) if found.key else {}
        known = item_as_of(readable, time, key_attributes)
        if rows and known.exists is None and known.unknown_before is None:
            none = f"Unknown: no row of {name} has a time, because the records of its changes had none."
        return Report(_item_lines(known, none), _item_object(known))
    rows = rows[-given.limit :] if given.limit else rows
    return Report([_grid(rows)] if rows else [Note(none)], [encode(row)["M"] for row in rows])


def _grid(rows: list[ChangeRow]) -> Grid:
    cells = [
        [
            name_text(row.get("at", "")),
            name_text(row["event"]) + " (expired)" * bool(row.get("expired")),
            changes_text(row),
        ]
        for row in rows
    ]
    if not any("actor" in row for row in rows):
        return Grid(("at", "event", "changes"), cells)
    actors = (name_text(row.get("actor", "")) for row in rows)
    return Grid(
        ("at", "event", "actor", "changes"),
        [[at, event, actor, changes] for (at, event, changes), actor in zip(cells, actors, strict=True)],
    )


def changes_text(row: ChangeRow) -> str:
    """A line for each attribute that changed."""
    lines = [
        f"{name_text(name)}: {' -> '.join(_side(entry, side) for side in SIDES)}"
        for name, entry in sorted(row["changes"].items())
    ]
    return "\n".join(lines + ["(attributes did not fit the row)"] * ("changes" in row.get("left_out", ())))


def _side(entry: Mapping[str, Any], side: str) -> str:
    if side in entry:
        return text(entry[side])
    if side in entry.get("redacted", ()):
        return "(redacted)"
    return _large(entry["large"][side]) if side in entry.get("large", {}) else "nothing"


def _large(value: Mapping[str, Any]) -> str:
    return f"({value['bytes']:,} bytes, SHA-256 {value['sha256']})"


def _item_lines(known: ItemAsOf, none: str) -> Iterator[Printed]:
    """An item as it was. ``none``: the message if nothing is known of it."""
    since = known.unknown_before
    if known.exists is None:
        yield Note(f"Unknown before {name_text(since)}, the time of its first row." if since else none)
        return
    if known.item is None:
        yield f"It did not exist: removed at {name_text(known.at)}."
        return
    values = {name: text(value) for name, value in known.item.items()}
    values |= dict.fromkeys(known.redacted, "(redacted)")
    values |= {name: _large(value) for name, value in known.large.items()}
    yield Grid(("attribute", "value"), [(name_text(name), value) for name, value in values.items()])
    if known.fields is not None:
        yield Note(f"Of its attributes, only {', '.join(map(name_text, known.fields))} are recorded.")
    if not known.whole:
        yield Note(
            f"It may have had others: attributes that no change has touched since {name_text(since)} are unknown."
        )


def _item_object(known: ItemAsOf) -> str:
    item = None if known.item is None else encode(known.item)["M"]
    names = ("redacted", "large", "whole", "fields", "version", "at", "unknown_before")
    return to_json({"exists": known.exists, "item": item, **{name: getattr(known, name) for name in names}})


@click.group("audit", short_help="Check the histories of items.")
def audit() -> None:
    """Check the histories that audits keep. To show the rows themselves, use streamfold history.

    \b
    Examples:
      streamfold audit verify ORDER#1042 METADATA
      streamfold audit verify --all --json
    """


@shell.command(
    "verify",
    "Find rows that were forged, and rows that are missing.",
    shell.key(),
    shell.STATE_OPTIONS,
    HANDLER,
    shell.flag("--all", "The histories of all items.", "every"),
    shell.value("--since", "TIME", "Leave out older rows, for example rows from before the key was set."),
    shell.flag(
        "--source",
        "Also compare the last row with the item as it is now: finds rows missing at the end, and changes that the "
        "stream has not delivered yet.",
    ),
    shell.exactly_one("PARTITION", "--all", why="Say which histories: PARTITION and SORT of one item, or --all."),
    shell.json_flag(),
    group=audit,
)
def verify(opened: Session) -> Report:
    """Check the digests in the history of the item with the key PARTITION and SORT, or of all items.

    Set STREAMFOLD_AUDIT_KEY to the key that the rows were written with. The command finds rows that were edited, moved
    or made up, and rows that are missing between two others. It cannot find rows that are missing at the beginning of a
    history, at its end (--source finds these), or where the item returned to its state before them. The exit code is 1
    if something was found.

    \b
    Examples:
      streamfold audit verify ORDER#1042 METADATA
      streamfold audit verify --all --since 2026-03-01T00:00:00Z
      streamfold audit verify --all --engine dynamodb --table main=shop --json
    """
    given = opened.given
    since, key = _time("--since", given.since), secret_key(opened.settings.audit_key)
    first = "" if since is None else datetime_text(since)
    if key is None:
        raise SettingsError(
            "STREAMFOLD_AUDIT_KEY is not set: without the key that the rows were written with, nothing can be checked. "
            "Rows that are written without a key carry no digests."
        )
    checked = Checked(not_found=tuple(what for what in NOT_FOUND if not (given.source and what == AT_THE_END)))
    for found, every_row in _histories(opened):
        rows = list(dropwhile(lambda row: str(row.get("at", "")) < first, every_row))
        checked.walk(found, rows, key)
        if given.source and found.key is not None:
            image = image_of(opened.engine.read_source(found.key))
            checked.add(filter(None, [behind(found.item, rows, key, found.source.table.name, image)]))
    report = {
        "items": checked.items,
        "rows": checked.rows,
        "problems": checked.problems,
        "findings": [finding._asdict() | {"meaning": MEANINGS[finding.problem]} for finding in checked.findings],
        "not_found": checked.not_found,
    }
    return Report(_checked_lines(checked), report, bool(checked.problems))


def _histories(opened: Session) -> Iterable[tuple[Audited, list[ChangeRow]]]:
    given = opened.given
    if given.partition is None:
        return all_rows(opened.engine, opened.app, given.handler)
    found = audited(opened.app, given.partition, given.sort, given.handler)
    rows = rows_of(opened.engine, found)
    if not rows:
        raise SettingsError(f"Item {typed(found.item)} has no history: nothing was recorded, or all of it is gone.")
    return [(found, rows)]


def _checked_lines(checked: Checked) -> Iterator[str]:
    yield from (printable(str(finding)) for finding in checked.findings)
    if hidden := checked.problems.total() - len(checked.findings):
        yield f"... and {hidden:,} more."
    found = ", ".join(f"{count:,} {problem}" for problem, count in checked.problems.items()) or "nothing found"
    yield f"{counted(checked.items, 'item')}, {counted(checked.rows, 'row')}: {found}."
    if checked.rows and checked.problems["forged"] == checked.rows:
        yield "Every row is called forged: is STREAMFOLD_AUDIT_KEY the key that they were written with?"
    yield f"Not found in this way: {'; '.join(checked.not_found)}."


def _time(option: str, text: str | None) -> datetime | None:
    """The time of an option. Raises ``SettingsError`` for a text that is no time, or has no time zone."""
    try:
        return None if text is None else moment(text)
    except ValueError:
        raise SettingsError(
            f"{option} {text!r} is no time with a time zone: expected for example 2026-03-01T10:00:00Z."
        ) from None


def audited(app: App, partition: str, sort: str | None, handler: str | None) -> Audited:
    """The item with this key. Raises ``SettingsError`` if no audit, or more than one, records it."""
    audits = _audits_of(app, handler)
    found = [
        (route, source, values)
        for route in audits
        for source in route.sources
        if (values := typed_values(source, partition, sort)) is not None and source.match_values(*values) is not None
    ]
    name = joined_key((partition, sort))
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


def _audits_of(app: App, handler: str | None) -> list[Route]:
    """The audits of an application, or the one of this name. Raises ``SettingsError`` if there is none."""
    own = audits(app)
    if not own:
        raise SettingsError(f"Application {app.name!r} has no audit: declare one, router.audit(ORDER).")
    chosen = [route for route in own if handler in (None, route.name)]
    if not chosen:
        names = ", ".join(route.name for route in own)
        raise SettingsError(f"--handler {handler!r} is no audit of {app.name!r}: expected {names}.")
    return chosen


def item_of_row(app: Application, row: RowKey) -> ItemKey | None:
    """The item whose change a history row records; None for another row, and for one whose key does not name it."""
    for route in audits(app):
        for target in (key for key in route.into if key.table.name == row[0]):
            item = (target.match_values(*row[1:]) or {}).get("item")
            if item is not None and (key := _key_of(str(item), route.sources)[0]) is not None:
                return key
    return None


def rows_of(store: Engine, found: Audited) -> list[ChangeRow]:
    """The history rows of one item as they are stored, in plain values, oldest change first."""
    rows = (decode({"M": item}) for item in store.items(found.target.table, found.partition))
    return [row for item, row in _sorted(found.target, rows) if item == found.item]


def all_rows(store: Engine, app: App, handler: str | None) -> Iterator[tuple[Audited, list[ChangeRow]]]:
    """The history rows of every item that has some, each as of ``rows_of``.

    A store returns the rows of one partition together, DynamoDB too (Developer Guide, HowItWorks.Partitions).
    """
    sources: dict[Key, list[Key]] = {}
    for route in _audits_of(app, handler):
        for source in route.sources:
            sources.setdefault(_target(route, source), []).append(source)
    for target, its in sources.items():
        table = target.table
        rows = (decode({"M": item}) for item in items_near(app, store, target))
        for value, partition in groupby(rows, key=lambda row: row[table.partition]):
            for item, group in groupby(_sorted(target, partition), key=lambda each: each[0]):
                key, source = _key_of(item, its)
                yield Audited(item, key, source, target, value), [row for _, row in group]


def _key_of(item: str, sources: Sequence[Key]) -> tuple[ItemKey | None, Key]:
    """The key and the source of the item with this name; the key is None if the name is a digest."""
    for source in sources:
        if (values := item_values(source, item)) is not None:
            return (source.table.name, *values), source
    return None, sources[0]


def _sorted(target: Key, rows: Iterable[ChangeRow]) -> list[tuple[str, ChangeRow]]:
    """The rows of the target in one partition, with their items, sorted by item and version."""
    named = [(row, plain_row(target, row)) for row in rows]
    keyed = [((str(full["item"]), str(full["version"])), row) for row, full in named if full is not None]
    return [(item, row) for (item, _), row in sorted(keyed, key=lambda each: each[0])]


def _target(route: Route, source: Key) -> Key:
    """The target of the rows of a source. Raises ``SettingsError`` if the rows of an item do not share a partition."""
    target = next((key for key in route.into if key.table.name == source.table.name), route.into[0])
    if any(field.name == "version" for field in target.partition.fields):
        raise SettingsError(
            f"Audit {route.name!r} ({route.declared_at}) writes {target!r}: each row of an item is in another "
            "partition, so they cannot be read together. Give a target with {version:rest} in its sort key."
        )
    return target
