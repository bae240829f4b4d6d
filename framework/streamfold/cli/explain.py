"""``streamfold explain``: why a derived row is as it is, and what handlers make of an item."""

import sys
from typing import Any

import click

from streamfold.app import App
from streamfold.cli.engines import REPORTED, Store, state_options
from streamfold.cli.explained import item_report, print_item, print_row, row_report
from streamfold.cli.histories import item_of_row
from streamfold.cli.items import command_key, read_keys, tell_absent, typed_item, typed_keys
from streamfold.cli.opened import OpenedState, opened_state
from streamfold.cli.output import echo
from streamfold.cli.provenance import (
    bearer,
    bearer_report,
    document,
    document_report,
    feed_row,
    feed_row_report,
    print_bearer,
    print_document,
    print_feed_row,
)
from streamfold.cli.rows import typed_key
from streamfold.cli.search_servers import search_url_option, with_search
from streamfold.cli.show_documents import Place, opened_sink
from streamfold.derivations.search.indexes import find_index
from streamfold.errors import SettingsError, parts_text
from streamfold.lifecycle.explain import Explaining, explain_item
from streamfold.lifecycle.row_sources import explain_row, row_routes
from streamfold.records.encoded import to_json
from streamfold.writes.guarded import RowKey


@click.command("explain", short_help="Show what a derived row is made of, or what handlers make of an item.")
@click.argument("partition", callback=typed_key)
@click.argument("sort", required=False, callback=typed_key)
@state_options
@click.option("--item", "of_item", is_flag=True, help="The key is that of an item which handlers read.")
@click.option("--index", metavar="INDEX", help="PARTITION is the id of a document of this search index.")
@search_url_option("With --index, the OpenSearch server. Default with --engine dynamodb: STREAMFOLD_SEARCH.")
@click.option("--scan", is_flag=True, help="On DynamoDB, read all of the state for the items of a row, if needed.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object, values in DynamoDB JSON.")
def command(
    partition: str,
    sort: str | None,
    application: str,
    store: Store,
    tables: tuple[str, ...],
    of_item: bool,
    index: str | None,
    search_url: str | None,
    scan: bool,
    json_output: bool,
) -> None:
    """Show why the derived row with the key PARTITION and SORT is as it is: handler, item, version and amounts of each
    contribution, their sum, and the row.

    Of an item with derived attributes, show each handler with the items that the attributes are made of. Of a row of a
    feed, show its post and its edge, with the versions that the row was made of. With --index, show of the document
    with the id PARTITION the item and the parts that it is made of, and the number of the run that wrote it.

    With --item, show of an item what each handler makes of it now, what the state holds of it, and whether they agree.

    Where a handler owns the row, the row's key tells the item. Below Max, Top and the like, and below unique rows,
    entries tell the items. All other items are found by reading the whole state: a local one is always read, one on
    DynamoDB only with --scan, which costs a scan of the state table.

    The version is that of the change that led to the contribution. Versions of Kinesis tell its time.

    \b
    Exit codes:
      0  the row is what its items contribute; the state agrees with the item
      1  it is not, or not all items were found without --scan, or a handler raises
      2  the command did not run: an option, the application or the store is wrong

    \b
    Examples:
      streamfold explain SALES#2026-03-01 SKU#a
      streamfold explain --item ORDER#1042 METADATA --json
      streamfold explain 'PRODUCT#1|META' --index products
      streamfold explain SALES#2026-03-01 SKU#a --scan --engine dynamodb --table main=shop
    """
    if of_item and scan:
        raise SettingsError("--scan looks for the items of a row, and --item names one: give one of them.")
    if (index is None) and search_url is not None:
        raise SettingsError("--search-url belongs to --index.")
    if index is not None and (of_item or scan or sort is not None):
        raise SettingsError("--index names a document by its id: leave out SORT, --item and --scan.")
    with opened_state(application, tables, store) as opened:
        by = opened.explaining
        if index is not None:
            place = Place(store, search_url, tables)
            sys.exit(_explain_document(opened, index, partition, place, json_output=json_output))
        if of_item:
            sys.exit(_explain_item(by, partition, sort, json_output=json_output))
        code = _explain_other(opened, by, partition, sort, scan=scan, json_output=json_output)
        if code is not None:
            sys.exit(code)
        row = _row(opened, by, partition, sort)
        sys.exit(_explain_row(by, row, scan=scan or opened.local is not None, json_output=json_output))


def _explain_item(by: Explaining, partition: str, sort: str | None, *, json_output: bool) -> int:
    item = typed_item(by.app, by.app.routes, partition, sort)
    found = explain_item(by, item)
    if json_output:
        echo(to_json(item_report(by, item, found)))
    else:
        print_item(by, item, found)
    tell_absent(by.engine, item)
    return REPORTED if any(each.agrees is False or each.error is not None for each in found) else 0


def _explain_document(opened: OpenedState, index: str, name: str, place: Place, *, json_output: bool) -> int:
    settings = with_search(opened.runtime.settings, place.search_url)
    found_index = find_index(opened.app.routes, index, settings)
    with opened_sink(opened.app, settings, place) as sink:
        sink.check(found_index.alias)
        found = document(opened.app, opened.engine, sink, found_index, name, settings)
    if json_output:
        echo(to_json(document_report(opened.app, found)))
    else:
        print_document(found)
    return REPORTED if found.differences or found.error is not None or not found.made_of else 0


def _explain_other(
    opened: OpenedState, by: Explaining, partition: str, sort: str | None, *, scan: bool, json_output: bool
) -> int | None:
    """Explains a row of a feed, or an item with derived attributes; None for another key."""
    if (row := feed_row(opened.app, opened.engine, partition, sort)) is not None:
        if json_output:
            echo(to_json(feed_row_report(opened.app, row)))
        else:
            print_feed_row(row)
        return 0 if row.agrees else REPORTED
    if (item := bearer(by, partition, sort, scan=scan or opened.local is not None)) is not None:
        if json_output:
            echo(to_json(bearer_report(by, item)))
        else:
            print_bearer(by, item)
        return 0 if all(each.agrees for each in item.attributes) else REPORTED
    return None


def _explain_row(by: Explaining, row: RowKey, *, scan: bool, json_output: bool) -> int:
    found = explain_row(by, row, scan=scan)
    if json_output:
        report: dict[str, Any] = row_report(by, found)
        echo(to_json(report))
    else:
        print_row(by, found)
    return 0 if found.agrees else REPORTED


def _row(opened: OpenedState, by: Explaining, partition: str, sort: str | None) -> RowKey:
    """The key of the row. Raises ``SettingsError`` for a key of no row that contributions lead to."""
    app, name = opened.app, parts_text((partition, sort))
    found = typed_keys([key for route in app.routes for key in route.into], partition, sort)
    explainable = [row for row in found if row_routes(by, row)]
    if len(explainable) == 1:
        return explainable[0]
    if explainable:
        tables = " and ".join(row[0] for row in explainable)
        raise SettingsError(f"Tables {tables} may have a row {name}: explain one of its items, --item.")
    if found:
        writers = [route for route in app.routes if found[0] in typed_keys(route.into, partition, sort)]
        kinds = ", ".join(f"{route.name!r} of kind {route.kind}" for route in writers)
        what = f"The row {name} is written by handler {kinds}: the state keeps no contributions to it."
        raise SettingsError(what + _next(app, found[0]))
    if typed_keys(read_keys(app.routes), partition, sort):
        raise SettingsError(f"{name} is the key of an item, and of no derived row: explain it with --item.")
    templates = ", ".join(dict.fromkeys(key.template for route in app.routes for key in route.into))
    raise SettingsError(f"No handler writes a row {name}: expected PARTITION and SORT of {templates}.")


def _next(app: App, row: RowKey) -> str:
    """What shows more of a row that no contributions lead to: of a history row, the history of its item."""
    item = item_of_row(app, row)
    return f" Next: streamfold history {command_key(item)} shows all changes of its item." if item else ""
