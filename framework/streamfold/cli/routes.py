"""``streamfold routes``: the key chart, and which templates a key matches."""

import os
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import takewhile
from typing import Any

import click

from streamfold.app import App
from streamfold.batch.manifest import PARTIAL, RETIRED, Manifest, read_manifest
from streamfold.cli.application import application_option, load_application
from streamfold.cli.engines import Store, application_and_settings, as_json, open_store, store_options
from streamfold.cli.key_chart import described, place_of, print_chart
from streamfold.cli.output import echo
from streamfold.cli.rows import typed_key
from streamfold.errors import SettingsError, printable
from streamfold.keys.key import Key
from streamfold.keys.table import Table
from streamfold.records.values import decode_number
from streamfold.routes.route import SOURCE, Route

NEAREST_MAX = 3
TEMPLATES_SHOWN_MAX = 12
READERS: dict[str, Callable[[str], Any]] = {"S": str, "N": decode_number, "B": b64decode}
"""From the text of a key on the command line to its value, by the type of the key attribute."""


@click.command("routes", short_help="Show which handler reads and writes which keys, and which templates fit a key.")
@application_option
@click.option(
    "--key",
    "partition",
    callback=typed_key,
    metavar="PARTITION [SORT]",
    help="Which templates this key matches, or which field of the nearest does not.",
)
@click.argument("sort", required=False, metavar="", callback=typed_key)
@click.option(
    "--state",
    metavar="FILE",
    help="The state file of a local replay. With it, or with --engine dynamodb, partial handlers are shown.",
)
@store_options
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object a line.")
def command(
    application: str,
    partition: str | None,
    sort: str | None,
    store: Store,
    tables: tuple[str, ...],
    json_output: bool,
) -> None:
    """Show each handler: its sources, parts of documents or edges of a feed, group, kind, targets, guard, the policy
    for a failing record, and where it is declared. A column is left out if all handlers have its default.

    With a state, the command also shows which handlers are partial, and since when. A partial handler may have missed
    items: it was added to a state that others had written, or older code without it ran (STREAMFOLD_OLDER_CODE).
    """
    app = load_application(application)
    if partition is not None:
        _explain(app, partition, sort, json_output=json_output)
        return
    if sort is not None:
        raise click.UsageError(f"{sort!r} stands alone: a key to explain is given with --key PARTITION [SORT].")
    manifest = _manifest(application, tables, store)
    more = {"tenant": app.tenant} if app.tenant else {}
    rows = [described(route) | _partial(manifest, route) | more for route in app.routes]
    if json_output:
        for row in rows:
            echo(as_json(row))
        return
    if not rows:
        echo(f"Application {app.name!r} has no handler: name modules that declare some, App(..., routers=[...]).")
    print_chart(rows)
    new = [route.name for route in app.routes if manifest is not None and route.name not in manifest.handlers]
    lacking = _lacking_handlers(manifest, app)
    if new and manifest is not None and manifest.handlers:
        echo(
            f"\nNew to this state: {', '.join(new)}. Items that were there before count from their next change on, "
            "unless they are backfilled (docs/backfill.md)."
        )
    if lacking:
        echo(f"\nHandlers of the state that this application does not have: {'; '.join(lacking)}.")
    elif manifest is not None and not any(row["partial_since"] for row in rows) and not (new and manifest.handlers):
        whole = f"The state does not know application {app.name!r}; is --state or STREAMFOLD_STATE_TABLE another's?"
        echo(f"\n{'No handler is partial.' if manifest.handlers else whole}")
    if app.tenant:
        echo(f"\nTenants are kept apart by {{{app.tenant}}}, which every source and target has.")


def _manifest(application: str, tables: tuple[str, ...], store: Store) -> Manifest | None:
    """The manifest of the state that was asked for; None where none was."""
    if store.engine == "embedded" and store.state is None:
        return None
    app, settings = application_and_settings(application, tables)
    with closing(open_store(app, settings, store)) as engine:
        return read_manifest(app.name, engine)


def _partial(manifest: Manifest | None, route: Route) -> dict[str, Any]:
    return {"partial_since": manifest.partial_since(route.name)} if manifest is not None else {}


def _lacking_handlers(manifest: Manifest | None, app: App) -> list[str]:
    """What to say of the handlers that a state knows and the application lacks, as older code does."""
    declared = {*app.retired, *(route.name for route in app.routes)}
    handlers = manifest.handlers.items() if manifest is not None else ()
    return [
        f"{name}, partial since {entry[PARTIAL]}" if PARTIAL in entry else name
        for name, entry in handlers
        if name not in declared and RETIRED not in entry
    ]


def _explain(app: App, partition: str, sort: str | None, *, json_output: bool) -> None:
    tables = [table for table in app.tables.values() if (table.sort is None) == (sort is None)]
    if not tables:
        table = next(iter(app.tables.values()))
        lacking = f"has a sort key, {table.sort}; give it behind" if table.sort else "has a partition key only; give"
        raise SettingsError(
            f"--key {partition!r}: table {table.name} {lacking}: --key PARTITION{' SORT' * bool(table.sort)}."
        )
    found = [line for table in tables for line in _explained(app, table, (partition, sort))]
    taken = any("handlers" in value for value, _ in found)
    if not found:
        nearest, text = _nearest(_sources(app), (partition, sort))
        found = [({"nearest": nearest}, text)]
    for value, text in found:
        echo(as_json(value) if json_output else text)
    if not taken and not json_output:
        echo("No handler reads this key.")


def _sources(app: App) -> list[Key]:
    return list(dict.fromkeys(key for route in app.routes for key in route.sources))


def _nearest(keys: list[Key], texts: tuple[str, str | None]) -> tuple[list[str], str]:
    """The templates that a key begins like; where it begins like none, those that there are.

    A sort key that is missing, or one too many, is said where no template of the same form is as near.
    """
    fitting = [key for key in keys if (key.sort is None) == (texts[1] is None)]
    likeness = {key: _common(key, texts) for key in keys}
    most = max(likeness.values(), default=(0, 0))
    like = [key for key in keys if likeness[key] == most] if most > (0, 0) else []
    near = [key for key in like if key in fitting] or like
    if near:
        places = list(map(place_of, near[:NEAREST_MAX]))
        return places, f"It begins most like {', '.join(places)}{'' if near[0] in fitting else _lacking(near)}."
    places = [place_of(key) for key in fitting]
    shown = ", ".join(places[:TEMPLATES_SHOWN_MAX]) + (", ..." if len(places) > TEMPLATES_SHOWN_MAX else "")
    return [], f"It begins like none of the templates {shown}."


def _lacking(near: list[Key]) -> str:
    have = "have" if len(near) > 1 else "has"
    if near[0].sort is None:
        return f", which {have} no sort key: give its partition alone, --key PARTITION"
    return f", which {have} a sort key: give it behind, --key PARTITION SORT"


def _common(key: Key, texts: tuple[str, str | None]) -> tuple[int, int]:
    """How many characters of a partition key, and behind an equal beginning of a sort key, a template shares."""
    pairs = zip(key.parts, texts, strict=False)
    lengths = [_shared(part.text.partition("{")[0], text or "") for part, text in pairs]
    return lengths[0], sum(lengths[1:]) if lengths[0] else 0


def _shared(one: str, other: str) -> int:
    """The length of the beginning that two texts share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _explained(app: App, table: Table, texts: tuple[str, str | None]) -> Iterator[tuple[dict[str, Any], str]]:
    """What a key means to a table, as JSON and as text."""
    values = _typed(app, table, texts)
    if values is None:
        return
    matches = app.dispatch[table.name].find(*values)
    for entry, fields in matches:
        names, place = [each.route.name for each in entry.listeners if each.role == SOURCE], place_of(entry.key)
        names += [each.route.name for each in entry.listeners if each.called and each.role != SOURCE]
        plain = {name: value if isinstance(value, str | int) else str(value) for name, value in fields.items()}
        shown = " ".join(f"{name}={printable(str(value))}" for name, value in plain.items())
        yield {"template": place, "fields": plain, "handlers": names}, f"{place}  {shown}  -> {', '.join(names)}"
    if app.derived((table.name, *values)):
        yield {"derived": True, "table": table.name}, f"This is the key of a derived row of table {table.name!r}."
    for miss in app.known(table.name).near_misses(*values) if not matches else ():
        place, field = place_of(miss.template), miss.template.types[miss.field]
        takes = f", {{{miss.field}:{miss.takes}}} takes it" if miss.takes else ""
        why = f"{miss.value!r} cannot be the value of {field}{takes} ({os.path.relpath(miss.template.declared_at)})"
        yield {"near": place, "field": miss.field, "value": miss.value}, f"{place} would match, but {why}."


def _typed(app: App, table: Table, texts: tuple[str, str | None]) -> tuple[Any, Any] | None:
    """A typed key, converted to the types of the table's key attributes; None if it does not fit them."""
    key = next(key for route in app.routes for key in (*route.sources, *route.into) if key.table.name == table.name)
    try:
        typed = [READERS[part.attribute_type](text or "") for part, text in zip(key.parts, texts, strict=False)]
    except (ArithmeticError, ValueError):
        return None
    return typed[0], typed[1] if table.sort else None
