"""``streamfold routes`` shows the key chart, ``graph`` draws it, and ``settings`` shows the settings."""

import os
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any

from streamfold.app import App
from streamfold.batch.manifest import PARTIAL, RETIRED, Manifest
from streamfold.cli import shell
from streamfold.cli.output import Grid, Note, Printed, Report, is_too_wide, warn
from streamfold.cli.session import Session
from streamfold.errors import RecordError, SettingsError, manual, plain, printable
from streamfold.keys.key import Key, template_text
from streamfold.keys.table import Table
from streamfold.pages.graph import described, drawn, graph_of, mermaid
from streamfold.pages.page import page, write_page
from streamfold.records.envelope import Origins
from streamfold.records.values import decode_number
from streamfold.replay.files import BadLine, RecordedFiles
from streamfold.replay.mismatches import ItemsAtRows, RecordedItemsAtRows
from streamfold.routes.route import GROUP, RETRY, SOURCE
from streamfold.settings import Settings

NEAREST_MAX = 3
TEMPLATES_SHOWN_MAX = 12
READERS: dict[str, Callable[[str], Any]] = {"S": str, "N": decode_number, "B": b64decode}
"""Readers of a key on the command line, by the type of the key attribute."""
COLUMNS = (
    *("sources", "parts", "reads", "lookups", "handler", "group", "kind", "targets", "guard", "calls", "on_error"),
    *("partial_since", "declared_at"),
)
DEFAULTS = {
    "parts": None,
    "reads": None,
    "lookups": None,
    "calls": None,
    "group": GROUP,
    "on_error": str(RETRY),
    "partial_since": None,
}
"""A column is not printed if every handler has this value: a terminal is narrow."""
WORDS = {
    "reads": "reads ",
    "group": "group ",
    "guard": "guard ",
    "calls": "calls ",
    "on_error": "on error ",
    "partial_since": "partial since ",
}
"""Labels of values that are not clear by themselves."""
ChartRow = Mapping[str, Any]
"""The values of a handler, by column."""
Meaning = tuple[dict[str, Any], str]
"""The meaning of a key, as JSON and as text."""
HTML = shell.file("--html", "Write one self-contained page to this file, which any browser opens without a network.")


@shell.command("settings", "Show the settings, with their origin.", shell.json_flag("Print one JSON object a line."))
def settings(_: Session) -> Report:
    """Show all settings of the environment: STREAMFOLD_* variables, with value, origin and meaning.

    \b
    Examples:
      streamfold settings
      STREAMFOLD_GROUP=search streamfold settings --json
    """
    rows, names = Settings.from_environment(os.environ).described(), ("name", "value", "origin", "meaning")
    return Report([Grid(("setting", *names[1:]), rows)], [dict(zip(names, row, strict=True)) for row in rows])


@shell.command(
    "routes",
    "Show which handler reads and writes which keys, and which templates match a key.",
    shell.APPLICATION,
    shell.key_option("Show the templates that this key matches, or the field of the nearest one that does not match."),
    shell.value(
        "--state",
        "FILE",
        "The state file of a local replay. With it, or with --engine dynamodb, partial handlers are shown.",
    ),
    shell.STORE,
    shell.file(
        "--recording",
        "A recording, as replay takes it: warn of its items at keys of targets that no handler put.",
    ),
    shell.json_flag("Print one JSON object a line."),
)
def routes(opened: Session) -> Report:
    """Show each handler: its sources, parts or edges of a feed, which of its parts a change of one reads, group, kind,
    targets, guard, the policy for a failing record, and the file and line of its declaration. A column is left out if
    all handlers have its default.

    With a state, the command also shows which handlers are partial, and since when. A partial handler may have missed
    items: it was added to a state that others had written, or older code without it ran (STREAMFOLD_OLDER_CODE).

    With a recording, the command warns of targets whose keys the application's own code writes. An item there has no
    mark of a row, and no handler changes it.

    \b
    Examples:
      streamfold routes
      streamfold routes --recording events/shop.jsonl
      streamfold routes --key ORDER#1042 METADATA
      streamfold routes --state shop.db --json
    """
    app, given = opened.app, opened.given
    if given.partition is not None:
        found = _explained(app, given.partition, given.sort)
        taken = any("handlers" in value for value, _ in found)
        texts = [text for _, text in found]
        return Report(texts if taken else [*texts, "No handler reads this key."], [value for value, _ in found])
    has_state = not opened.store.is_local or opened.store.state is not None
    manifest = opened.manifest if has_state else None
    more = {"tenant": app.tenant} if app.tenant else {}
    rows = [
        described(app, route)
        | ({} if manifest is None else {"partial_since": manifest.partial_since(route.name)})
        | more
        for route in app.routes
    ]
    at_rows = _at_rows(opened) if given.recording is not None else ()
    notes = [Note(f"Warning: {printable(plain(each.text))}") for each in at_rows]
    objects = [{"target": each.target.stored_name, "items_at_rows": each.records} for each in at_rows]
    return Report([*_chart_lines(app, rows, manifest), *notes], [*rows, *objects])


def _at_rows(opened: Session) -> Sequence[ItemsAtRows]:
    """The items of a recording at the keys of rows that no handler put. A line that is no record is left out."""
    app = opened.app
    origins, found = Origins(app.source_tables, opened.settings, warn, app.tables), RecordedItemsAtRows(app)
    for entry in RecordedFiles([str(opened.given.recording)]):
        if isinstance(entry, BadLine):
            continue
        with suppress(RecordError):
            change = origins.change(entry[1])
            if app.derived(change.item):
                found.see(change)
    return found.found()


@shell.command(
    "graph",
    "Draw which handlers read and write which keys.",
    shell.APPLICATION,
    HTML,
    shell.json_flag("Print the nodes, edges and groups as one JSON object."),
)
def graph(opened: Session) -> Report:
    """Draw the application: its handlers, the items that they read and look up, the rows, search indexes and other
    locations that they write, and the chains of handlers that read rows of others.

    Without --html, the graph is printed as Mermaid, which forges and editors draw in Markdown. The page of --html shows
    what each handler reads, writes, guards and costs, and where it is declared. It needs no network.

    \b
    Examples:
      streamfold graph > graph.mmd
      streamfold graph --html graph.html
      streamfold graph --app tenants:app --json
    """
    found, file = graph_of(opened.app), opened.given.html
    if file is None:
        return Report([mermaid(found)], found.as_json())
    write_page(file, page(f"Application {found.application}", drawn(found)))
    return Report([f"The graph is in {file}: open it in a browser."], {"file": str(file)})


def _chart_lines(app: App, rows: Sequence[ChartRow], manifest: Manifest | None) -> Iterator[Printed]:
    if not rows:
        yield f"Application {app.name!r} has no handler: name modules that declare some, App(..., routers=[...])."
    names = [name for name in COLUMNS if any(row.get(name) != DEFAULTS.get(name) for row in rows)]
    cells = [[_cell(row.get(name)) for name in names] for row in rows]
    headings = [name.replace("_", " ") for name in names]
    if is_too_wide(headings, cells):
        yield from (line for row in rows for line in _handler_lines(names, row))
    else:
        yield Grid(headings, cells)
    for row in rows:
        if makers := row.get("looks_up_rows_of_its_items"):
            yield Note(
                f"Warning: {row['handler']} looks up rows of {' and '.join(makers)}, which are made of the same items: "
                "each change of one item visits all items of its row. Where rows are of many items, read the row when "
                "you show the item instead."
            )
    if manifest is not None:
        yield from _state_lines(app, manifest)
    if app.tenant:
        yield f"\nTenants are kept apart by {{{app.tenant}}}, which every source and target has."


def _cell(value: Any) -> str:
    return "\n".join(value) if isinstance(value, list) else "" if value is None else str(value)


def _handler_lines(names: Sequence[str], row: ChartRow) -> Iterator[str]:
    """A handler in a few lines: its properties, its sources, and its targets behind arrows."""
    printed = [name for name in names if name not in ("sources", "parts", "handler", "targets", "lookups")]
    words = ", ".join(f"{WORDS.get(name, '')}{row[name]}" for name in printed if row.get(name))
    yield f"{row['handler']}  ({words})"
    yield from (f"    {source}" for source in (*row["sources"], *row.get("parts", ())))
    yield from (f"    -> {target}" for target in row["targets"])
    yield from (f"    looks up {lookup}" for lookup in row.get("lookups", ()))


def _state_lines(app: App, manifest: Manifest) -> Iterator[str]:
    """The handlers that only the application or only the state has, or that no handler is partial."""
    known = manifest.handlers
    new = [route.name for route in app.routes if route.name not in known]
    if new and known:
        yield (
            f"\nNew to this state: {', '.join(new)}. Older items count from their next change on, unless they are "
            f"backfilled ({manual('backfill')})."
        )
    declared = {*app.retired, *(route.name for route in app.routes)}
    lacking = [
        f"{name}, partial since {entry[PARTIAL]}" if PARTIAL in entry else name
        for name, entry in known.items()
        if name not in declared and RETIRED not in entry
    ]
    if lacking:
        yield f"\nHandlers of the state that this application does not have: {'; '.join(lacking)}."
    elif not known:
        yield f"\nThe state does not know application {app.name!r}; is --state or STREAMFOLD_STATE_TABLE another's?"
    elif not new and not any(manifest.partial_since(route.name) for route in app.routes):
        yield "\nNo handler is partial."


def _explained(app: App, partition: str, sort: str | None) -> list[Meaning]:
    """The meanings of a key in all tables whose keys have as many attributes."""
    tables = [table for table in app.tables.values() if (table.sort is None) == (sort is None)]
    if not tables:
        table = next(iter(app.tables.values()))
        lacking = f"has a sort key, {table.sort}; add it" if table.sort else "has a partition key only; give"
        raise SettingsError(
            f"--key {partition!r}: table {table.name} {lacking}: --key PARTITION{' SORT' * bool(table.sort)}."
        )
    found = [line for table in tables for line in _meanings(app, table, (partition, sort))]
    subscribed = (each.key for route in app.routes for each in route.kind.subscriptions(route))
    return found or [_nearest(list(dict.fromkeys(subscribed)), (partition, sort))]


def _meanings(app: App, table: Table, texts: tuple[str, str | None]) -> Iterator[Meaning]:
    types = app.key_types(table)
    try:
        typed = [READERS[types[name]](text or "") for name, text in zip(table.attributes, texts, strict=False)]
    except (ArithmeticError, ValueError):
        return  # the text is no value of the type of a key attribute
    values = typed[0], typed[1] if table.sort else None
    matches = app.dispatch[table.name].find(*values)
    for entry, fields in matches:
        names = [each.route.name for each in entry.listeners if each.role == SOURCE]
        names += [each.route.name for each in entry.listeners if each.called and each.role != SOURCE]
        template = template_text(entry.key)
        plain = {name: value if isinstance(value, str | int) else str(value) for name, value in fields.items()}
        shown = " ".join(f"{name}={printable(str(value))}" for name, value in plain.items())
        found = {"template": template, "fields": plain, "handlers": names}
        yield found, f"{template}  {shown}  -> {', '.join(names)}"
    if app.derived((table.name, *values)):
        yield {"derived": True, "table": table.name}, f"This is the key of a derived row of table {table.name!r}."
    for miss in app.known(table.name).near_misses(*values) if not matches else ():
        template, field = template_text(miss.template), miss.template.types[miss.field]
        takes = f", {{{miss.field}:{miss.takes}}} takes it" if miss.takes else ""
        why = f"{miss.value!r} cannot be the value of {field}{takes} ({os.path.relpath(miss.template.declared_at)})"
        yield {"near": template, "field": miss.field, "value": miss.value}, f"{template} would match, but {why}."


def _nearest(keys: list[Key], texts: tuple[str, str | None]) -> Meaning:
    """The templates that share the longest beginning with a key; all templates if none shares any.

    A missing or extra sort key is reported if no template with as many key attributes is as near.
    """
    fitting = [key for key in keys if (key.sort is None) == (texts[1] is None)]
    likeness = {key: _common(key, texts) for key in keys}
    most = max(likeness.values(), default=(0, 0))
    like = [key for key in keys if likeness[key] == most] if most > (0, 0) else []
    near = [key for key in like if key in fitting] or like
    if not near:
        templates = list(map(template_text, fitting))
        shown = ", ".join(templates[:TEMPLATES_SHOWN_MAX]) + ", ..." * (len(templates) > TEMPLATES_SHOWN_MAX)
        return {"nearest": []}, f"It begins like none of the templates {shown}."
    lacking, have = "", "have" if len(near) > 1 else "has"
    if near[0] not in fitting and near[0].sort is None:
        lacking = f", which {have} no sort key: give the partition only, --key PARTITION"
    elif near[0] not in fitting:
        lacking = f", which {have} a sort key: add it, --key PARTITION SORT"
    templates = list(map(template_text, near[:NEAREST_MAX]))
    return {"nearest": templates}, f"It begins most like {', '.join(templates)}{lacking}."


def _common(key: Key, texts: tuple[str, str | None]) -> tuple[int, int]:
    """The number of leading characters that a template shares with a partition key, and with a sort key."""
    begins = ((part.text.partition("{")[0], text or "") for part, text in zip(key.parts, texts, strict=False))
    lengths = [sum(1 for _ in takewhile(lambda both: both[0] == both[1], zip(*each, strict=False))) for each in begins]
    return lengths[0], sum(lengths[1:]) if lengths[0] else 0
