"""``streamfold show``: derived rows, source items or state items, as their readers see them."""

from collections.abc import Iterator
from itertools import islice

import click

from streamfold.app import App
from streamfold.cli.application import application_option, load_application
from streamfold.cli.engines import DEFAULT_STATE, make_settings, open_embedded, real_tables, state_table, store_options
from streamfold.cli.rows import derived_items, key_values, present, print_items, sort_key
from streamfold.engines import Engine, StoredItem
from streamfold.errors import SettingsError
from streamfold.settings import Settings
from streamfold.table import MAIN, Table
from streamfold.values import to_json

LIMIT_ON_TERMINAL = 50
SORTED_ITEMS_MAX = 200_000
"""Items of a store that does not sort that are sorted in memory; name a partition above that."""
STATE_TABLE = Table("state", partition="pk", sort="sk")


@click.command("show", short_help="Show derived rows, source items or state items.")
@click.argument("partition", required=False)
@click.argument("sort", required=False)
@application_option
@click.option("--state", default=DEFAULT_STATE, show_default=True, metavar="FILE", help="The state file of a local replay.")
@store_options
@click.option("--source", is_flag=True, help="Source items instead of derived rows.")
@click.option("--state-items", is_flag=True, help="Items of the state table: ledger, claims, manifest.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help=f"At most N items (on a terminal {LIMIT_ON_TERMINAL} if not given).")
@click.option("--raw", is_flag=True, help="With the framework's own attributes, and rows that readers do not see.")
@click.option("--json", "json_output", is_flag=True, help="One line an item, in DynamoDB JSON.")
def command(
    partition: str | None,
    sort: str | None,
    application: str,
    state: str,
    engine: str,
    endpoint_url: str | None,
    tables: tuple[str, ...],
    source: bool,
    state_items: bool,
    limit: int | None,
    raw: bool,
    json_output: bool,
) -> None:
    """Show derived rows, sorted by key: all of them, those of one PARTITION, or those whose sort key begins with SORT.

    \b
    Examples:
      streamfold show ORDER#1042
      streamfold show SALES#2026-03-01 SKU# --json
      streamfold show --engine dynamodb --endpoint-url http://127.0.0.1:8000 --table main=shop
    """
    app = load_application(application)
    table, settings = _chosen(app, tables)
    store = _open(app, settings, engine, state, endpoint_url)
    items: Iterator[StoredItem] = store.state_items() if state_items else store.items(table, partition)
    shown = STATE_TABLE if state_items else table
    found = _matching(items, shown, partition, sort)
    if not state_items:
        found = derived_items(app, table, found, derived=not source)
    rows = present(found, raw=raw or state_items)
    if engine == "dynamodb":
        rows = iter(sorted(islice(rows, SORTED_ITEMS_MAX), key=lambda item: sort_key(shown, item)))
    _print(rows, shown, limit, json_output)


def _chosen(app: App, tables: tuple[str, ...]) -> tuple[Table, Settings]:
    """The table to show, and the settings with real names: ``--table NAME``, ``--table NAME=REAL``, or the only one."""
    named = [pair.partition("=")[0] for pair in tables if "=" in pair or pair in app.tables]
    settings = make_settings(tuple(pair for pair in tables if "=" in pair or pair not in app.tables))
    if unknown := [name for name in settings.tables if name not in app.tables and settings.origins.get("tables") == "--table"]:
        raise SettingsError(f"--table {unknown[0]!r}: the application has no such table, only {', '.join(app.tables)}.")
    if len(app.tables) > 1 and not named:
        raise SettingsError(f"The application has several tables: choose one with --table {' or --table '.join(app.tables)}.")
    return app.tables[named[-1] if named else next(iter(app.tables))], settings


def _open(app: App, settings: Settings, engine: str, state: str, endpoint_url: str | None) -> Engine:
    if engine == "embedded":
        return open_embedded(app, state, must_exist=True)
    from streamfold.engines.dynamodb import DynamoEngine, make_client

    if MAIN.name in app.tables and not settings.real_name(MAIN.name):
        raise SettingsError("The application's keys name no table: give the real one, --table main=REAL.")
    return DynamoEngine(make_client(endpoint_url), real_tables(app, settings), state_table(app, settings))


def _matching(items: Iterator[StoredItem], table: Table, partition: str | None, sort: str | None) -> Iterator[StoredItem]:
    for item in items:
        found_partition, found_sort = key_values(table, item)
        if partition in (None, str(found_partition)) and (sort is None or str(found_sort).startswith(sort)):
            yield item


def _print(rows: Iterator[StoredItem], table: Table, limit: int | None, json_output: bool) -> None:
    if json_output:
        for item in islice(rows, limit):
            click.echo(to_json(item))
        return
    most = limit or LIMIT_ON_TERMINAL
    shown = list(islice(rows, most))
    if not shown:
        click.echo("No rows.", err=True)
        return
    print_items(table, shown)
    if limit is None and next(rows, None) is not None:
        click.echo(f"... and more: the first {most} are shown; --limit N or --json shows others.", err=True)
