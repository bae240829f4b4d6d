"""``streamfold show --feed``: one page of a reader's feed, as ``streamfold.read.feed`` gives it."""

import time
from contextlib import closing
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.cli.engines import Store, as_json, open_store, real_tables
from streamfold.cli.output import echo
from streamfold.cli.rows import print_items
from streamfold.derivations.feed.kind import feed_routes, post_seconds
from streamfold.engines import Engine
from streamfold.errors import KeyValueError, SettingsError
from streamfold.keys.key import Key
from streamfold.read.feeds import LIMIT, PULLS_MOST, BotoQueries, EngineQueries, Feed, Queries, page
from streamfold.records.encoded import to_sorted_json
from streamfold.records.values import encode
from streamfold.routes.application import unknown_handler
from streamfold.routes.route import Fields, Route
from streamfold.settings import Settings


class FeedPage(NamedTuple):
    """Which page of which feed is shown, and how."""

    name: str
    reader: str | None  # the partition of the feed as it was typed, or NAME=VALUE of its fields
    limit: int | None
    cursor: str | None
    json_output: bool


def show_feed(app: App, settings: Settings, store: Store, wanted: FeedPage) -> None:
    """Prints one page of a feed. Raises ``SettingsError`` for a name, a reader or a cursor that fits none."""
    route = _route(app, wanted.name)
    reader = _reader(route.into[0], wanted.reader)
    with closing(open_store(app, settings, store)) as engine:
        queries = _queries(app, settings, engine, store)
        now = _now(route, queries, reader, store)
        try:
            found = page(route, queries, reader, wanted.limit or LIMIT, wanted.cursor, PULLS_MOST, now, time.time())
        except ValueError as error:
            raise SettingsError(f"--feed {wanted.name}: {error}") from None
    _print(route.into[0], found, json_output=wanted.json_output)


def _route(app: App, name: str) -> Route:
    feeds = {route.name: route for route in feed_routes(app)}
    if name not in feeds:
        if feeds:
            raise unknown_handler("--feed", name, sorted(feeds))
        raise SettingsError(f"--feed {name!r}: the application has no feed; router.feed declares one.")
    return feeds[name]


def _reader(into: Key, text: str | None) -> Fields:
    """The fields of a reader: of FEED#ada, or of reader_id=ada."""
    fields = into.partition.match(text) if text is not None else None
    if fields is None and text is not None and "=" in text:
        try:
            given = dict(pair.split("=", 1) for pair in text.split(","))
            fields = into.partition.match(into.partition.compose(given))
        except (KeyError, KeyValueError, TypeError, ValueError):
            fields = None
    if fields is None:
        names = ",".join(f"{field.name}=VALUE" for field in into.partition.fields)
        lacking = "needs a PARTITION, the key of a reader" if text is None else f"knows no reader {text!r}"
        raise SettingsError(f"--feed {lacking}: expected {into.partition.text} filled in, or {names}.")
    return fields


def _queries(app: App, settings: Settings, engine: Engine, store: Store) -> Queries:
    if store.engine == "embedded":
        return EngineQueries(engine)
    client: Any = engine.client  # type: ignore[attr-defined]  # the only other engine
    return BotoQueries({name: (client, real) for name, (_, real) in real_tables(app, settings).items()})


def _now(route: Route, queries: Queries, reader: Fields, store: Store) -> float:
    """The time from which age is counted: on a local state that of the newest post that is shown.

    So a replay of last year shows its feeds.
    """
    if store.engine != "embedded":
        return time.time()
    newest = page(route, queries, reader, 1, None, PULLS_MOST, 0.0, time.time()).rows
    fields = route.into[0].match(newest[0]) if newest else None
    return time.time() if fields is None else post_seconds(route, fields)


def _print(into: Key, found: Feed, *, json_output: bool) -> None:
    rows = [encode(row)["M"] for row in found.rows]
    if json_output:
        lines = f"[{','.join(map(to_sorted_json, rows))}]"
        more = {"cursor": found.cursor, "partial": found.partial, "left_out": found.left_out}
        echo(f'{{"rows":{lines},{as_json(more)[1:]}')
        return
    if rows:
        print_items(into.table, rows)
    else:
        echo("No rows.", err=True)
    if found.partial:
        echo(f"The reader follows more than {PULLS_MOST} pulled authors: others are left out.", err=True)
    if found.left_out:
        echo(f"{found.left_out:,} posts of pulled authors are left out: their rows cannot be made.", err=True)
    if found.cursor is not None:
        echo(f"... and more: --cursor {found.cursor}", err=True)
