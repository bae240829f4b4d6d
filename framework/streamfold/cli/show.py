"""``streamfold show``: derived rows, source items or state items, as their readers see them."""

from collections.abc import Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import groupby, islice

import click

from streamfold.app import App
from streamfold.cli.application import load_application
from streamfold.cli.engines import (
    Store,
    application_and_settings,
    check_names,
    check_tables,
    make_settings,
    open_store,
    state_options,
)
from streamfold.cli.output import echo
from streamfold.cli.provenance import other_things
from streamfold.cli.rows import (
    LIMIT_MAX,
    LIMIT_ON_TERMINAL,
    derived_items,
    items_near,
    key_values,
    keyed_items,
    present,
    print_items,
    print_some,
    sort_key,
    typed_key,
)
from streamfold.cli.search_servers import search_url_option
from streamfold.cli.show_documents import Place, ShownAs, show_documents
from streamfold.cli.show_feed import FeedPage, show_feed
from streamfold.engines import Engine, Seekable, StoredItem
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.errors import SettingsError
from streamfold.keys.key import Key
from streamfold.keys.table import Table
from streamfold.ledger.forms import Forms
from streamfold.lifecycle.explain import Explaining
from streamfold.records.encoded import to_sorted_json
from streamfold.routes.application import unknown_handler
from streamfold.settings import Settings

SORTED_ITEMS_MAX = 200_000
"""Items of a store that does not sort that are sorted in memory; name a partition above that."""
STATE_TABLE = Table("state", partition="pk", sort="sk")


@click.command("show", short_help="Show derived rows, documents, source items or state items.")
@click.argument("partition", required=False, callback=typed_key)
@click.argument("sort", required=False, callback=typed_key)
@state_options
@click.option("--source", is_flag=True, help="Source items instead of derived rows.")
@click.option("--state-items", is_flag=True, help="Items of the state table: ledger, claims, manifest.")
@click.option(
    "--limit",
    type=click.IntRange(min=1, max=LIMIT_MAX),
    metavar="N",
    help=f"At most N items of each table (on a terminal {LIMIT_ON_TERMINAL} if not given).",
)
@click.option("--handler", metavar="NAME", help="Rows that this handler writes; with --source items that it reads.")
@click.option("--index", metavar="INDEX", help="Documents of this search index, of the local state or of a server.")
@click.option("--feed", metavar="NAME", help="One page of this feed, of the reader whose key PARTITION is.")
@click.option("--cursor", metavar="TEXT", help="With --feed, where the page begins: what the page before ended with.")
@click.option("--hidden", is_flag=True, help="With --index, also documents whose items are gone.")
@search_url_option("With --index, the OpenSearch server. Default with --engine dynamodb: STREAMFOLD_SEARCH.")
@click.option("--raw", is_flag=True, help="With the framework's own attributes, and rows that readers do not see.")
@click.option("--json", "json_output", is_flag=True, help="Print one item a line, in DynamoDB JSON; documents in JSON.")
def command(
    partition: str | None,
    sort: str | None,
    application: str,
    store: Store,
    tables: tuple[str, ...],
    source: bool,
    state_items: bool,
    limit: int | None,
    handler: str | None,
    index: str | None,
    feed: str | None,
    cursor: str | None,
    hidden: bool,
    search_url: str | None,
    raw: bool,
    json_output: bool,
) -> None:
    """Show derived rows, sorted by key: all of them, those of one PARTITION, or those whose sort key begins with SORT.

    With --index, show documents instead: those that a search of the index may find. With --feed, show a page of a
    reader's feed, newest first: pushed rows merged with the posts of pulled authors. On a local state, age is counted
    from the newest post.

    \b
    Examples:
      streamfold show ORDER#1042
      streamfold show SALES#2026-03-01 SKU# --json
      streamfold show --handler order_total --limit 20
      streamfold show --engine dynamodb --endpoint-url http://127.0.0.1:8000 --table main=shop
      streamfold show HOME#ada --feed timeline --limit 10
      streamfold show reader_id=ada --feed timeline --engine dynamodb --table main=social
      streamfold show --index products --state shop.db
      streamfold show --index products --search-url http://127.0.0.1:9200 --hidden --json
    """
    if feed is not None or cursor is not None:
        others = any((sort, index, source, state_items, handler, hidden, search_url, raw))
        page = FeedPage(_feed_of(feed, others=others), partition, limit, cursor, json_output)
        show_feed(*application_and_settings(application, tables), store, page)
        return
    if index is not None:
        _check_index(others=any((partition, source, state_items, handler)))
        place = Place(store, search_url, tables)
        show_documents(load_application(application), index, place, ShownAs(limit, hidden, raw, json_output))
        return
    _check_rows(documents=bool(hidden or search_url), other=_other(source, handler) if state_items else "")
    app = load_application(application)
    keys = None if handler is None else _keys(app, handler, source=source)
    chosen, settings = _chosen(app, tables)
    chosen = [table for table in chosen if keys is None or any(key.table.name == table.name for key in keys)]
    opened = open_store(app, settings, store)
    for number, table in enumerate([STATE_TABLE] if state_items else chosen):
        if state_items:
            rows = _matching(opened.state_items(), table, partition, sort)
        else:
            wanted = _wanted(opened, app, (table, partition), keys, source=source)
            rows = present(_matching(wanted, table, partition, sort), raw=raw)
        if store.engine == "dynamodb":
            rows = iter(sorted(islice(rows, SORTED_ITEMS_MAX), key=lambda item: sort_key(table, item)))
        if len(chosen) > 1 and not state_items and not json_output:
            echo(f"{chr(10) if number else ''}table {table.name}")
        _print(rows, table, limit, json_output)
    if partition is not None and not (state_items or json_output or raw):
        by = Explaining(app, opened, Forms())
        for line in other_things(by, partition, sort, scan=store.engine == "embedded"):
            echo(line, err=True)


def _feed_of(feed: str | None, *, others: bool) -> str:
    """The name of a feed, without options that belong to something else."""
    if feed is None:
        raise SettingsError("--cursor belongs to --feed.")
    if others:
        raise SettingsError("--feed shows a feed: leave out SORT, and options of rows and documents.")
    return feed


def _check_index(*, others: bool) -> None:
    if others:
        raise SettingsError("--index shows documents: leave out PARTITION, --source, --state-items and --handler.")


def _other(source: bool, handler: str | None) -> str:
    return "--source" if source else "--handler" if handler else ""


def _check_rows(*, documents: bool, other: str) -> None:
    if documents:
        raise SettingsError("--hidden and --search-url belong to --index.")
    if other:
        raise SettingsError(f"{other} and --state-items show different items: give one of them.")


def _chosen(app: App, tables: tuple[str, ...]) -> tuple[list[Table], Settings]:
    """The tables to show, all if none is named, and the settings with the real names of ``--table NAME=REAL``."""
    named = [pair for pair in tables if pair in app.tables]
    given = tuple(pair for pair in tables if pair not in app.tables)
    settings = make_settings(given)
    check_tables(app, given)
    check_names(app, settings)
    return [app.tables[name] for name in named or app.tables], settings


def _keys(app: App, handler: str, *, source: bool) -> tuple[Key, ...]:
    """The keys that a handler reads or writes. Raises ``SettingsError`` for an unknown handler."""
    for route in app.routes:
        if route.name == handler:
            if not (source or route.writes):
                raise SettingsError(
                    f"Handler {handler!r} is of kind {route.kind} and writes no rows. Documents are shown with --index."
                )
            return route.sources if source else route.writes
    raise unknown_handler("--handler", handler, sorted(route.name for route in app.routes))


def _wanted(
    store: Engine, app: App, place: tuple[Table, str | None], keys: Sequence[Key] | None, *, source: bool
) -> Iterator[StoredItem]:
    """The items of a table that are asked for, and perhaps others of its partition."""
    table, partition = place
    sought = partition if _is_text(app, table) else None
    if keys is not None:
        return _of_keys(store, app, (table, sought), keys)
    if source and isinstance(store, EmbeddedEngine):
        return store.source_items(table, sought)
    if not source and sought is None and isinstance(store, Seekable):
        return derived_items(app, table, store.items_from(table, "", derived=True))
    return derived_items(app, table, store.items(table, sought), derived=not source)


def _of_keys(store: Engine, app: App, place: tuple[Table, str | None], keys: Sequence[Key]) -> Iterator[StoredItem]:
    """The items of some keys, sorted and each once; sought where the store can."""
    table, partition = place
    if partition is not None or not isinstance(store, Seekable):
        return keyed_items(keys, table, store.items(table, partition))
    own, place_of = [key for key in keys if key.table.name == table.name], partial(sort_key, table)
    found = merge(*(keyed_items([key], table, items_near(app, store, key)) for key in own), key=place_of)
    return (next(same) for _, same in groupby(found, place_of))


def _is_text(app: App, table: Table) -> bool:
    """Whether the table's partition key is text, which a store can seek by as it was typed."""
    keys = [key for route in app.routes for key in (*route.sources, *route.into) if key.table.name == table.name]
    return all(key.partition.attribute_type == "S" for key in keys)


def _matching(
    items: Iterator[StoredItem], table: Table, partition: str | None, sort: str | None
) -> Iterator[StoredItem]:
    for item in items:
        found_partition, found_sort = key_values(table, item)
        if partition in (None, str(found_partition)) and (sort is None or str(found_sort).startswith(sort)):
            yield item


def _print(rows: Iterator[StoredItem], table: Table, limit: int | None, json_output: bool) -> None:
    if json_output:
        for item in islice(rows, limit):
            echo(to_sorted_json(item))
        return
    print_some(rows, limit, partial(print_items, table), "No rows.")
