"""``streamfold repair``: rows are derived again from some items."""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from streamfold.app import App
from streamfold.cli.engines import REPORTED, Store, confirm_writes, state_options
from streamfold.cli.items import FORMS, item_of, items_in, lines_of, tell_absent, typed_item
from streamfold.cli.opened import OpenedState, chosen_routes, export_of, opened_state
from streamfold.cli.repaired import (
    GivenItems,
    RepairedItems,
    check_failed_file,
    failed_keys,
    print_repaired,
    repaired_items,
)
from streamfold.cli.rows import typed_key
from streamfold.cli.shared_options import FilePath
from streamfold.errors import SettingsError
from streamfold.lifecycle.sources import source_tables
from streamfold.records.change import ItemKey
from streamfold.routes.route import Route


class ChosenItems(NamedTuple):
    """What the command line said of the items."""

    partition: str | None
    sort: str | None
    keys: Path | None
    report: Path | None
    export: str | None


@click.command("repair", short_help="Derive rows again from some items as they are now.")
@click.option(
    "--key", "partition", callback=typed_key, metavar="PARTITION [SORT]", help="The item with this key, as it is typed."
)
@click.argument("sort", required=False, metavar="", callback=typed_key)
@click.option("--keys", type=FilePath(), metavar="FILE", help=f"The items of a file. {FORMS}")
@click.option(
    "--from-verify",
    "report",
    type=FilePath(),
    metavar="REPORT",
    help="The items that differ or failed in what verify --json printed.",
)
@click.option(
    "--export",
    metavar="MANIFEST",
    help="The items of an export, for example an incremental one: its manifest-files.json, a file or s3://.",
)
@state_options
@click.option(
    "--handler", "handlers", multiple=True, metavar="NAME", help="Only for this handler. May be repeated. Default: all."
)
@click.option(
    "--failed",
    type=FilePath(),
    metavar="FILE",
    help="Write the keys of items that failed to this file, which --keys takes.",
)
@click.option("--dry-run", is_flag=True, help="Print what differs, and write nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before writing to AWS.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
def command(
    partition: str | None,
    sort: str | None,
    keys: Path | None,
    report: Path | None,
    export: str | None,
    application: str,
    store: Store,
    tables: tuple[str, ...],
    handlers: tuple[str, ...],
    failed: Path | None,
    dry_run: bool,
    yes: bool,
    json_output: bool,
) -> None:
    """Derive rows again from some items as they are now. The result replaces what the state holds of the items.

    The ledger item is read first, then the source item. A write is refused if the ledger item has changed since, so the
    live stream may go on. What an item contributed is taken back if the item is gone. Each item is written even if
    nothing differs, so that no write that was planned earlier takes effect later. Doing it twice changes nothing.

    \b
    Exit codes:
      0  all items were derived again
      1  some items failed: a handler raised, or others changed the item all the time
      2  the command stopped early: an option, the application, the store or a source table is wrong

    \b
    Examples:
      streamfold repair --key ORDER#1042 METADATA
      streamfold repair --keys failed.jsonl --handler daily_sales --dry-run
      streamfold repair --export s3://exports/AWSDynamoDB/ID/manifest-files.json --engine dynamodb --table main=shop
      streamfold repair --from-verify report.json --engine dynamodb --table main=shop --failed left.jsonl
    """
    chosen = ChosenItems(partition, sort, keys, report, export)
    _check_options(chosen, failed)
    with opened_state(application, tables, store) as opened:
        routes = chosen_routes(opened, handlers)
        items = _items(opened, routes, chosen)
        if not dry_run:
            confirm_writes(opened.engine, opened.store, yes=yes)
        found = repaired_items(opened, routes, items, dry_run=dry_run, shown=not json_output)
        _check_read(found, routes)
        with failed_keys(opened.app, failed) as keep:
            keep(found.report.failed)
        print_repaired(opened.app, found, json_output=json_output)
        if chosen.partition is not None:
            tell_absent(opened.engine, typed_item(opened.app, routes, chosen.partition, chosen.sort))
    sys.exit(REPORTED if found.report.failed or found.chains else 0)


def _check_options(chosen: ChosenItems, failed: Path | None) -> None:
    if chosen.sort is not None and chosen.partition is None:
        raise click.UsageError(f"{chosen.sort!r} stands alone: a key is given with --key PARTITION [SORT].")
    if sum(given is not None for given in (chosen.partition, chosen.keys, chosen.report, chosen.export)) != 1:
        raise SettingsError(
            "Say which items: either --key PARTITION [SORT], --keys FILE, --from-verify REPORT or --export MANIFEST."
        )
    check_failed_file(failed)


def _items(opened: OpenedState, routes: Sequence[Route], chosen: ChosenItems) -> GivenItems:
    app = opened.app
    if chosen.partition is not None:
        return GivenItems.each_once([typed_item(app, routes, chosen.partition, chosen.sort)])
    if chosen.export is not None:
        export = export_of(opened, source_tables(routes), chosen.export)
        return GivenItems((line.key for line in export.lines()), export.items)
    return GivenItems.each_once(
        items_in(app, chosen.keys) if chosen.keys is not None else _reported(app, chosen.report or Path())
    )


def _reported(app: App, file: Path) -> Iterator[ItemKey]:
    """The items of a report of verify. Raises ``SettingsError`` for another file, or another application's report."""
    text = "\n".join(lines_of(file, "--from-verify"))
    try:
        report = json.loads(text)
        of, entries = report["application"], [*report["different"], *report["failed"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SettingsError(f"{file} is no report of verify: expected what streamfold verify --json printed.") from None
    if of != app.name:
        raise SettingsError(f"{file} is a report of application {of!r}: expected one of {app.name!r}.")
    for number, entry in enumerate(entries, 1):
        yield item_of(
            app, {name: entry[name] for name in ("table", "key") if name in entry}, f"{file}, entry {number},"
        )


def _check_read(found: RepairedItems, routes: Sequence[Route]) -> None:
    if found.given and not found.report.items:
        names = ", ".join(route.name for route in routes)
        raise SettingsError(f"None of the {found.given:,} items is read by {names or 'a handler'}: nothing was done.")
