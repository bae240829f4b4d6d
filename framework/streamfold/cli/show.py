"""``streamfold show`` prints derived rows, source items, state items, documents or a page of a feed."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import groupby, islice
from typing import Any

from streamfold.app import App
from streamfold.cli import shell
from streamfold.cli.explain import other_things
from streamfold.cli.items import (
    Expiry,
    derived_items,
    item_grid,
    items_near,
    key_values,
    keyed_items,
    present,
    sort_key,
)
from streamfold.cli.output import LIMIT_ON_TERMINAL, Note, Printed, Report, some_lines
from streamfold.cli.session import Session
from streamfold.derivations.derivation import derivation
from streamfold.engines.protocol import Engine, StoredItem
from streamfold.errors import KeyValueError, SettingsError
from streamfold.keys.key import Key
from streamfold.keys.table import Table
from streamfold.ledger.schema import Schema
from streamfold.lifecycle.explain import Explaining
from streamfold.read.feeds import LIMIT, PULLS_MOST, BotoQueries, EngineQueries, Feed, newest_seconds, page
from streamfold.records.values import encode, to_json, to_sorted_json
from streamfold.routes.application import unknown_handler
from streamfold.routes.route import Fields

SORTED_ITEMS_MAX = 200_000
"""Items that are sorted in memory if the store does not sort. Without a bound, a large table would exhaust memory."""
LIMIT_MAX = 1_000_000_000
"""The most of ``--limit``: a number above 2^63 - 1 is an error in SQLite and in ``islice``."""
STATE_TABLE = Table("state", partition="pk", sort="sk")


@shell.command(
    "show",
    "Show derived rows, documents, source items or state items.",
    shell.key(),
    shell.STATE_OPTIONS,
    shell.flag("--source", "Source items instead of derived rows."),
    shell.flag("--state-items", "Items of the state table: ledger, claims, manifest."),
    shell.number(
        "--limit", f"At most N items of each table (on a terminal {LIMIT_ON_TERMINAL} if not given).", 1, LIMIT_MAX
    ),
    shell.value("--handler", "NAME", "Rows that this handler writes; with --source, items that it reads."),
    shell.value("--index", "INDEX", "Documents of this search index, in the local state or on a server."),
    shell.value("--feed", "NAME", "One page of this feed, for the reader with the key PARTITION."),
    shell.value(
        "--cursor", "TEXT", "With --feed, the beginning of the page: the cursor at the end of the page before."
    ),
    shell.flag("--hidden", "With --index, also documents whose items are gone."),
    shell.search_url("With --index, the OpenSearch server. Default with --engine dynamodb: STREAMFOLD_SEARCH."),
    shell.flag("--raw", "Also the framework's own attributes, and rows that readers do not see."),
    shell.belongs("--cursor", "--feed"),
    shell.refuses(
        "--feed",
        *("SORT", "--index", "--source", "--state-items", "--handler", "--hidden", "--search-url", "--raw"),
        why="--feed shows a feed: leave out SORT, and options of rows and documents.",
    ),
    shell.refuses(
        "--index",
        *("PARTITION", "--source", "--state-items", "--handler"),
        why="--index shows documents: leave out PARTITION, --source, --state-items and --handler.",
    ),
    shell.belongs("--hidden", "--index", why="--hidden and --search-url belong to --index."),
    shell.belongs("--search-url", "--index", why="--hidden and --search-url belong to --index."),
    shell.refuses(
        "--state-items",
        *("--source", "--handler"),
        why="{other} and --state-items show different items: give one of them.",
    ),
    shell.json_flag("Print one item a line, in DynamoDB JSON; documents in JSON."),
)
def show(opened: Session) -> Report:
    """Show derived rows, sorted by key: all rows, the rows of one PARTITION, or those whose sort key begins with SORT.

    With --index, show the documents of a search index instead. With --feed, show a page of a reader's feed, newest
    first: pushed rows merged with the posts of pulled authors.

    A local state has the time of its newest record: rows that have expired by then are left out, and the age of posts
    counts from then.

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
    if opened.given.feed is not None:
        return _feed_report(opened)
    if opened.given.index is None:
        return _items_report(opened)
    from streamfold.cli.documents import documents_report

    return documents_report(opened)


def _items_report(opened: Session) -> Report:
    """Rows of some tables, or items of the state."""
    app, given = opened.app, opened.given
    keys = None if given.handler is None else _keys(app, given.handler, source=given.source)
    named = [name for name in given.tables if name in app.tables]  # --table NAME shows a table, NAME=REAL names it
    given.put(tables=tuple(each for each in given.tables if each not in app.tables))
    tables = [app.tables[name] for name in named or app.tables]
    tables = [table for table in tables if keys is None or any(key.table.name == table.name for key in keys)]
    tables = [STATE_TABLE] if given.state_items else tables
    expiry = Expiry(app, opened.engine)

    def lines() -> Iterator[Printed]:
        for number, table in enumerate(tables):
            if len(tables) > 1:
                yield f"{chr(10) if number else ''}table {table.name}"
            yield from some_lines(_rows(opened, table, keys, expiry), given.limit, partial(item_grid, table), "rows")
        if given.partition is not None and not (given.state_items or given.raw):
            by = Explaining(app, opened.engine, Schema())
            yield from map(Note, other_things(by, given.partition, given.sort, scan=opened.store.is_local))
        if expiry.left_out:
            yield Note(f"Rows that have expired {expiry} are left out: --raw shows them.")

    rows = (item for table in tables for item in islice(_rows(opened, table, keys, expiry), given.limit))
    found = map(to_sorted_json, rows)
    return Report(lines(), found)


def _keys(app: App, handler: str, *, source: bool) -> tuple[Key, ...]:
    """The keys that a handler reads or writes. Raises ``SettingsError`` for an unknown handler."""
    for route in app.routes:
        if route.name == handler:
            if not (source or route.writes):
                raise SettingsError(
                    f"Handler {handler!r} is of kind {route.kind} and writes no rows. Documents are shown with --index."
                )
            read = (each.key for each in route.kind.subscriptions(route) if each.called)
            return tuple(dict.fromkeys(read)) if source else route.writes
    raise unknown_handler("--handler", handler, sorted(route.name for route in app.routes))


def _rows(opened: Session, table: Table, keys: Sequence[Key] | None, expiry: Expiry) -> Iterator[StoredItem]:
    """The selected items of a table, sorted."""
    given = opened.given
    items = opened.engine.state_items() if given.state_items else _wanted(opened, table, keys)
    found = _matching(items, table, given.partition, given.sort)
    rows = found if given.state_items else present(found, raw=given.raw)
    if not (given.state_items or given.source or given.raw):
        rows = expiry.remaining(table, rows)
    if opened.store.is_local:
        return rows
    return iter(sorted(islice(rows, SORTED_ITEMS_MAX), key=partial(sort_key, table)))


def _wanted(opened: Session, table: Table, keys: Sequence[Key] | None) -> Iterator[StoredItem]:
    """The selected items of a table, and perhaps others of its partition."""
    app, store, source = opened.app, opened.engine, opened.given.source
    # A store can seek by the typed partition only if the key attribute is text.
    sought = opened.given.partition if app.key_types(table)[table.partition] == "S" else None
    if keys is not None:
        return _of_keys(store, app, table, sought, keys)
    if source and store.durable is not None:
        return store.durable.source_items(table, sought)
    if not source and sought is None and store.by_prefix is not None:
        return derived_items(app, table, store.by_prefix.items_from(table, "", derived=True))
    return derived_items(app, table, store.items(table, sought), derived=not source)


def _of_keys(store: Engine, app: App, table: Table, partition: str | None, keys: Sequence[Key]) -> Iterator[StoredItem]:
    """The items of some keys, sorted and each once. The store seeks them if it can."""
    if partition is not None or store.by_prefix is None:
        return keyed_items(keys, table, store.items(table, partition))
    own, by_key = [key for key in keys if key.table.name == table.name], partial(sort_key, table)
    found = merge(*(keyed_items([key], table, items_near(app, store, key)) for key in own), key=by_key)
    return (next(same) for _, same in groupby(found, by_key))


def _matching(
    items: Iterator[StoredItem], table: Table, partition: str | None, sort: str | None
) -> Iterator[StoredItem]:
    for item in items:
        found_partition, found_sort = key_values(table, item)
        if partition in (None, str(found_partition)) and (sort is None or str(found_sort).startswith(sort)):
            yield item


def _feed_report(opened: Session) -> Report:
    """One page of a reader's feed, as ``streamfold.read.feed`` gives it.

    Raises ``SettingsError`` for an unknown feed, a text that is no reader, or a cursor of another feed.
    """
    app, given = opened.app, opened.given
    feeds = {route.name: route for route in app.routes if derivation(route).joins_items}
    if not feeds:
        raise SettingsError(f"--feed {given.feed!r}: the application has no feed; router.feed declares one.")
    if given.feed not in feeds:
        raise unknown_handler("--feed", given.feed, sorted(feeds))
    route = feeds[given.feed]
    reader = _reader(route.into[0], given.partition)
    queries: BotoQueries | EngineQueries = EngineQueries(opened.engine)
    if not opened.store.is_local:
        engine: Any = opened.engine  # of DynamoDB, the only other one
        queries = BotoQueries(
            {name: (engine.client_of(name), real) for name, (_, real) in engine.requests.tables.items()}
        )
    now = time.time()
    if (stream := opened.engine.own_stream) is not None:
        # With the real time, a replay of last year's records without times would show empty feeds.
        now = stream.clock_seconds or newest_seconds(route, queries, reader, now)
    try:
        found = page(route, queries, reader, given.limit or LIMIT, given.cursor, PULLS_MOST, now, time.time())
    except ValueError as error:
        raise SettingsError(f"--feed {given.feed}: {error}") from None
    rows = [encode(row)["M"] for row in found.rows]
    more = to_json({"cursor": found.cursor, "partial": found.partial, "left_out": found.left_out})
    found_json = f'{{"rows":[{",".join(map(to_sorted_json, rows))}],{more[1:]}'
    return Report(_feed_lines(route.into[0].table, rows, found), found_json)


def _reader(into: Key, text: str | None) -> Fields:
    """The fields of a reader: of FEED#ada, or of reader_id=ada."""
    fields = into.partition.match(text) if text is not None else None
    if fields is None and text is not None and "=" in text:
        try:
            given = dict(each.split("=", 1) for each in text.split(","))
            fields = into.partition.match(into.partition.compose(given))
        except (KeyError, KeyValueError, TypeError, ValueError):
            fields = None
    if fields is None:
        names = ",".join(f"{field.name}=VALUE" for field in into.partition.fields)
        lacking = "needs a PARTITION, the key of a reader" if text is None else f"knows no reader {text!r}"
        raise SettingsError(f"--feed {lacking}: expected {into.partition.text} filled in, or {names}.")
    return fields


def _feed_lines(table: Table, rows: Sequence[StoredItem], found: Feed) -> Iterator[Printed]:
    yield item_grid(table, rows) if rows else Note("No rows.")
    if found.partial:
        yield Note(f"The reader follows more than {PULLS_MOST} pulled authors: others are left out.")
    if found.left_out:
        yield Note(f"{found.left_out:,} posts of pulled authors are left out: their rows cannot be made.")
    if found.cursor is not None:
        yield Note(f"... and more: --cursor {found.cursor}")
