"""``streamfold routes``: the key chart, and what a key would be taken for."""

import os
from typing import Any

import click

from streamfold.app import App
from streamfold.cli.application import application_option, load_application
from streamfold.cli.engines import as_json
from streamfold.cli.grids import print_grid
from streamfold.key import Key
from streamfold.route import Route


@click.command("routes", short_help="Show which handler reads and writes what, and what a key is taken for.")
@application_option
@click.option(
    "--key",
    "key",
    nargs=2,
    metavar="PARTITION SORT",
    help="Which templates this key matches, or which field of the nearest does not.",
)
@click.option("--partition", metavar="PARTITION", help="As --key, for a table with a partition key only.")
@click.option("--json", "json_output", is_flag=True, help="One JSON object a line.")
def command(application: str, key: tuple[str, str] | None, partition: str | None, json_output: bool) -> None:
    """Show the routes: source, handler, group, kind, target, guard, and where each is declared."""
    app = load_application(application)
    if key or partition:
        _explain(app, key or (partition or "", None), json_output)
        return
    rows = [_described(route) for route in app.routes]
    if json_output:
        for row in rows:
            click.echo(as_json(row))
        return
    names = ("sources", "handler", "group", "kind", "targets", "guard", "declared_at")
    print_grid([name.replace("_", " ") for name in names], ([_cell(row[name]) for name in names] for row in rows))


def _described(route: Route) -> dict[str, Any]:
    return {
        "sources": [_place(key) for key in route.sources],
        "handler": route.name,
        "group": route.group,
        "kind": "external" if route.external else route.kind,
        "targets": [_place(key) for key in route.into],
        "guard": route.guard,
        "declared_at": os.path.relpath(route.declared_at),
    }


def _cell(value: Any) -> str:
    return "\n".join(value) if isinstance(value, list) else str(value)


def _place(key: Key) -> str:
    return key.template if key.table.name == "main" else f"{key.table.name}: {key.template}"


def _explain(app: App, key: tuple[str, str | None], json_output: bool) -> None:
    found = 0
    for table, dispatch in app.dispatch.items():
        values: tuple[Any, Any] = key if app.tables[table].sort else (key[0], None)
        for entry, fields in dispatch.find(*values):
            found += 1
            names = [route.name for route in entry.routes]
            _say(
                json_output,
                {"template": _place(entry.key), "fields": fields, "handlers": names},
                f"{_place(entry.key)}  {fields}  -> {', '.join(names)}",
            )
        if app.derived((table, *values)):
            _say(
                json_output, {"derived": True, "table": table}, f"This is the key of a derived row of table {table!r}."
            )
        for miss in app.known(table).near_misses(*values) if not found else ():
            field = miss.template.types[miss.field]
            _say(
                json_output,
                {"near": _place(miss.template), "field": miss.field, "value": miss.value},
                f"{_place(miss.template)} would match, but {miss.value!r} cannot be the value of {field} "
                f"({miss.template.declared_at}).",
            )
    if not found and not json_output:
        click.echo("No route takes this key.")


def _say(json_output: bool, value: dict[str, Any], text: str) -> None:
    click.echo(
        as_json({name: str(part) if name == "fields" else part for name, part in value.items()})
        if json_output
        else text
    )
