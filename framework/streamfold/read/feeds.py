"""A reader's feed: pushed rows merged with the posts of authors who are pulled, newest first, page by page.

A page takes two rounds of queries: the feed and the authors who are pulled, then the posts of each of these. Another
round follows where too many rows were dropped: rows that are not shown or too old, and pushed rows of a pulled author.
"""

import json
import logging
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple, Protocol

from streamfold.derivations.derivation import passes_over
from streamfold.derivations.feed.options import (
    FEED_ATTRIBUTE,
    check_post,
    options_of,
    position_prefix,
    post_seconds,
    shown_seconds,
    sort_position_from,
)
from streamfold.derivations.feed.posts import POSTS, check_room, row_values
from streamfold.derivations.feed.spreading import EDGE, KEEP, UNTIL, pull_partition
from streamfold.engines.protocol import Engine
from streamfold.errors import HandlerError, StreamfoldError, public, reason, shown
from streamfold.keys.table import CONTRIBUTORS, PARTNER_VERSION, Table
from streamfold.read.derived_rows import PlainRow, ReadTable, coded, plain_item
from streamfold.records.images import Image, hidden
from streamfold.records.values import ITEM_BYTES_MAX, decode, encode, item_bytes
from streamfold.routes.route import Fields, Route

QUERIES_AT_ONCE = 8
"""Queries that are under way at a time; boto3 keeps ten connections (botocore.config, max_pool_connections)."""

log = logging.getLogger("streamfold")
REFILLS_MAX = 1000
PULL_PAGES_MAX = 20
"""Rounds of queries of one page."""
HIGHEST, LOWEST = "\U0010ffff", "\0"
DAMAGED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, StreamfoldError)
"""Errors of reading a row that another writer has changed: nested too deep, or a number that is no time."""

LIMIT = 25
LIMIT_MAX = 1000
PULLS_MOST = 50
"""Pulled authors that are read for one page."""
CURSOR_FORMAT = 1
LAST_SECOND = 253_402_300_799
"""Of the year 9999: no text has a later time."""


class Query(NamedTuple):
    """Some items of a partition, the greatest sort keys first."""

    table: Table
    partition: str
    after: str = ""  # only sort keys that are not less than this; "": all
    before: str = ""  # only sort keys less than this; "": all
    most: int = 1000


class Queries(Protocol):
    """Where the items of a feed are read."""

    def rows(self, asked: Query) -> list[PlainRow]:
        """The items that were asked for, as plain values."""
        ...

    def at_once(self, calls: Sequence[Callable[[], None]]) -> None:
        """Makes calls that do not depend on each other."""
        ...


class BotoQueries:
    """Queries through boto3; ``places`` by the logical name of the table."""

    def __init__(self, tables: dict[str, ReadTable]) -> None:
        self.tables = tables

    def rows(self, asked: Query) -> list[PlainRow]:
        table = self.tables[asked.table.name]
        is_client = isinstance(table, tuple)
        client, name = table if isinstance(table, tuple) else (table.meta.client, table.name)
        values = {":partition": asked.partition, ":after": asked.after, ":before": asked.before}
        condition, used = "#partition = :partition", [":partition"]
        if asked.after and asked.before:
            condition, used = f"{condition} AND #sort BETWEEN :after AND :before", [*values]
        elif asked.after or asked.before:
            condition += " AND #sort >= :after" if asked.after else " AND #sort < :before"
            used.append(":after" if asked.after else ":before")
        given = {name: values[name] for name in used}
        names = {"#partition": asked.table.partition, **({"#sort": asked.table.sort} if len(used) > 1 else {})}
        found: list[PlainRow] = []
        start: dict[str, Any] = {}
        while True:  # a page ends at 1 MB, wherever the limit is (API Reference, Query)
            answer = client.query(
                TableName=name,
                KeyConditionExpression=condition,
                ExpressionAttributeNames=names,
                ExpressionAttributeValues=coded(given, encode) if is_client else given,
                ScanIndexForward=False,
                Limit=asked.most - len(found) + (1 if asked.before else 0),
                **start,
            )
            items = (coded(item, decode) for item in answer["Items"]) if is_client else answer["Items"]
            found += [item for item in items if item[str(asked.table.sort)] != asked.before]
            if len(found) >= asked.most or "LastEvaluatedKey" not in answer:
                return found[: asked.most]
            start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    def at_once(self, calls: Sequence[Callable[[], None]]) -> None:
        if len(calls) < 2:
            for call in calls:
                call()
            return
        with ThreadPoolExecutor(min(len(calls), QUERIES_AT_ONCE)) as pool:
            for done in [pool.submit(call) for call in calls]:
                done.result()


class EngineQueries:
    """Queries of a store that holds the tables of a local replay, or of a test."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def rows(self, asked: Query) -> list[PlainRow]:
        sort = str(asked.table.sort)
        found = (decode({"M": dict(item)}) for item in self.engine.items(asked.table, asked.partition))
        wanted = [
            item for item in found if item[sort] >= asked.after and (not asked.before or item[sort] < asked.before)
        ]
        return sorted(wanted, key=lambda item: str(item[sort]), reverse=True)[: asked.most]

    def at_once(self, calls: Iterable[Callable[[], None]]) -> None:
        for call in calls:
            call()


class Begin(NamedTuple):
    """Where a page begins."""

    before: str  # the sort key of the last row that was shown; "" before the first page
    now: float


class _LeftOut(NamedTuple):
    """An item that a page leaves out, because its row cannot be made."""

    position: str  # the sort key that its row would have; "" if unknown
    why: str  # for a log: without item content


class _Page(NamedTuple):
    """Some rows of one source."""

    rows: list[tuple[str, PlainRow]]  # with their sort keys in the feed; only shown rows
    through: str  # every row behind this position of the feed was read
    ended: bool


@dataclass(slots=True)
class _Stream:
    """Rows of one source, newest first, read page by page."""

    ask: Callable[[int], _Page]
    through: str = ""
    rows: list[tuple[str, PlainRow]] = field(default_factory=list)
    ended: bool = False

    def read(self, limit: int) -> None:
        """Reads the next page."""
        page = self.ask(limit)
        self.rows += page.rows
        self.through, self.ended = page.through or self.through, page.ended


class Merging:
    """Merges the rows of a feed with those of pulled authors."""

    def __init__(
        self, route: Route, queries: Queries, partition: str, begin: Begin, pulls_most: int, clock: float = 0.0
    ) -> None:
        self.route = route
        self.clock: float = max(begin.now, clock)  # a post further in the future was parked when it was written
        self.options = options_of(route)
        self.queries = queries
        self.partition = partition
        self.begin = begin
        self.oldest: float = begin.now - self.options.keep_seconds
        self.pulls: dict[str, PlainRow] = {}
        self.pulls_most = pulls_most
        self.partial: bool = False
        self.bad: list[_LeftOut] = []

    def rows(self, limit: int) -> tuple[list[tuple[str, PlainRow]], bool]:
        """The next rows with their sort keys, and whether there are more."""
        pushed = _Stream(_Pushed(self).page)
        self.queries.at_once([lambda: pushed.read(limit + 1), self._whom])
        pushed.rows = [(position, row) for position, row in pushed.rows if not self.is_pulled(row)]
        pulled = [_Stream(source.page) for source in self._pulled()]
        self.queries.at_once([partial(stream.read, limit + 1) for stream in pulled])
        streams = [pushed, *pulled]
        for _ in range(REFILLS_MAX):
            ready = _ready(streams)
            waiting = [stream for stream in streams if not stream.ended]
            if len(ready) > limit or not waiting:
                return ready[:limit], len(ready) > limit
            max(waiting, key=_through).read(limit + 1)
        raise TimeoutError(f"{REFILLS_MAX} rounds of queries found no {limit} rows of feed {self.route.name!r}.")

    def left_out(self, last: str) -> int:
        """The number of items omitted by the page that ends at a position ("": at the end of the feed); logs why."""
        why = Counter(each.why for each in self.bad if not each.position or each.position > last)
        for text, count in why.items():
            log.warning("Handler %r: a page leaves out %d posts of pulled authors: %s", self.route.name, count, text)
        return why.total()

    def leave_out(self, position: str, error: Exception) -> None:
        """Notes an item whose row cannot be made, unless it belongs to an earlier page."""
        if position and self.begin.before and position >= self.begin.before:
            return
        self.bad.append(_LeftOut(position, public(f"{type(error).__name__}: {reason(error)}")))

    def _pulled(self) -> "list[_Pulled]":
        """The authors whose posts are read; an author with a damaged edge is omitted."""
        found = []
        for author, pull in self.pulls.items():
            try:
                found.append(_Pulled(self, author, pull))
            except DAMAGED as error:
                self.leave_out("", error)
        return found

    def _whom(self) -> None:
        """Reads whom the reader is to pull."""
        if self.options.pull_above is None:
            return
        sort, asked = str(self.table.sort), self.pulls_most + 1
        query = Query(self.table, pull_partition(self.route.name, self.partition), most=asked)
        found: dict[str, PlainRow] = {}
        for _ in range(PULL_PAGES_MAX):
            page = self.queries.rows(query)
            # A reader who no longer follows an author keeps a row about it, for a while.
            found |= {row[sort]: row for row in page if row.get(CONTRIBUTORS) != 0}
            if len(page) < asked or len(found) >= asked:
                break
            query = query._replace(before=page[-1][sort])
        else:
            self.partial = True
        self.partial = self.partial or len(found) > self.pulls_most
        self.pulls = dict([*found.items()][: self.pulls_most])

    @property
    def table(self) -> Table:
        return self.route.into[0].table

    @property
    def first(self) -> str:
        """The first position of the feed that is young enough."""
        return sort_position_from(self.route.into[0], self.options.order, self.oldest)

    def is_pulled(self, row: PlainRow) -> bool:
        """Whether a pushed row is among the pulled posts, which are shown instead."""
        if not self.pulls:
            return False
        (into,), post = self.route.into, self.route.sources[0]
        fields = into.match(row)
        assert fields is not None
        partition, position = post.compose(fields)
        pull = self.pulls.get(str(partition))
        return pull is not None and (UNTIL not in pull or str(position) <= str(pull[UNTIL]))

    def is_young(self, fields: Fields, noted: object) -> bool:
        """Whether a post is young enough to be shown; ``noted``: for how many seconds, as was written then."""
        seconds = shown_seconds(self.route, noted if isinstance(noted, int) else None)
        return post_seconds(self.route, fields) >= self.begin.now - seconds


@dataclass(slots=True)
class _Pushed:
    """The rows of the feed itself."""

    merging: Merging
    before: str = field(init=False)

    def __post_init__(self) -> None:
        self.before = self.merging.begin.before

    def page(self, limit: int) -> _Page:
        of, sort = self.merging, str(self.merging.table.sort)
        found = of.queries.rows(Query(of.table, of.partition, of.first, self.before, limit))
        rows = [(row[sort], without_own(row)) for row in found if self._is_shown(row)]
        self.before = found[-1][sort] if found else self.before
        return _Page(rows, self.before if found else "", len(found) < limit)

    def _is_shown(self, row: PlainRow) -> bool:
        fields = self.merging.route.into[0].match(row)
        if fields is None or row.get(CONTRIBUTORS) == 0 or PARTNER_VERSION not in row or self.merging.is_pulled(row):
            return False
        return self.merging.is_young(fields, self._noted(row, fields))

    def _noted(self, row: PlainRow, fields: Fields) -> int | None:
        """For how many seconds the row is shown, by the expiry that was written into it."""
        route = self.merging.route
        expires = row.get(str(route.into[0].table.ttl))
        if not isinstance(expires, int | Decimal) or isinstance(expires, bool) or not Decimal(expires).is_finite():
            return None
        return int(expires) - int(post_seconds(route, fields))


@dataclass(slots=True)
class _Pulled:
    """The posts of one author, as the rows that they would be."""

    merging: Merging
    author: str
    pull: PlainRow
    end: str = field(init=False)  # the position of a post behind which the next page begins
    edge: Image = field(init=False)
    edge_fields: Fields = field(init=False)
    keep_seconds: int = field(init=False)

    def __post_init__(self) -> None:
        options, post = self.merging.options, self.merging.route.sources[0]
        self.edge = Image(json.loads(self.pull[EDGE]))
        fields = options.audience.match(self.edge)
        if fields is None:
            raise HandlerError("A reader's list of followed authors is damaged.")
        self.edge_fields = fields
        noted = self.pull.get(KEEP)
        self.keep_seconds = shown_seconds(self.merging.route, None if noted is None else max(0, int(noted)))
        self.end = position_prefix(post, options.order) + HIGHEST
        if self.merging.begin.before:
            fields = self.merging.route.into[0].match_values(self.merging.partition, self.merging.begin.before)
            assert fields is not None
            time_text = str(options.order.write(fields[options.order.name]))
            self.end = position_prefix(post, options.order) + time_text + HIGHEST  # of any author
        if UNTIL in self.pull:
            self.end = min(self.end, self.pull[UNTIL] + LOWEST)

    def page(self, limit: int) -> _Page:
        of, post = self.merging, self.merging.route.sources[0]
        first = sort_position_from(post, of.options.order, of.begin.now - self.keep_seconds)
        if self.end <= first:  # the last post to pull is too old: no range is asked for that ends before it begins
            return _Page([], "", ended=True)
        found = of.queries.rows(Query(post.table, self.author, first, self.end, limit))
        rows, through = [], ""
        for item in found:
            self.end = item[str(post.table.sort)]
            fields = post.match(item)
            if fields is None or item.get(CONTRIBUTORS) == 0:
                continue
            position, row = self._row(item, {**self.edge_fields, **fields})
            through = position or through
            if row is not None and not (of.begin.before and position >= of.begin.before):
                rows.append((position, row))
        return _Page(rows, through, len(found) < limit)

    def _row(self, item: PlainRow, fields: Fields) -> tuple[str, PlainRow | None]:
        """The sort key of a post's row, and the row as it would be pushed; None where it is not shown.

        A row that cannot be made is omitted, for any error of the handler: one post must not break a reader's feed.
        """
        of, (into,) = self.merging, self.merging.route.into
        text = ""
        try:
            partition, position = into.compose(fields)
            text = str(position)
            if passes_over(of.route, item) or not of.is_young(fields, self.keep_seconds):
                return text, None
            check_post(of.route, fields, of.clock)
            post = encode(plain_item(item))["M"]
            check_room(of.route, POSTS, post)
            values = row_values(of.route, Image(post), self.edge, fields)
            if values is None:
                return text, None
            expires = int(post_seconds(of.route, fields)) + self.keep_seconds
            row = encode({**into.attributes(partition, position), **values, str(into.table.ttl): expires})
            if (size := item_bytes(row["M"])) > ITEM_BYTES_MAX:
                raise HandlerError(f"The row has {size} bytes: an item takes {ITEM_BYTES_MAX} at most.")
        except Exception as error:  # noqa: BLE001 - a handler may raise anything
            of.leave_out(text, error)
            return text, None
        return text, decode(row)


def _ready(streams: Sequence[_Stream]) -> list[tuple[str, PlainRow]]:
    """The rows that nothing can come before any more, in order."""
    least = max((_through(stream) for stream in streams if not stream.ended), default="")
    found = [each for stream in streams for each in stream.rows if each[0] >= least]
    return sorted(found, key=lambda each: each[0], reverse=True)


def _through(stream: _Stream) -> str:
    return stream.through or HIGHEST


def without_own(row: PlainRow) -> PlainRow:
    return {name: value for name, value in row.items() if not hidden(name)}


class Feed(NamedTuple):
    """One page of a reader's feed."""

    rows: list[PlainRow]  # newest first, with their keys
    cursor: str | None  # where the next page begins; None: there is no more
    partial: bool = False  # the reader follows more pulled authors than were read
    left_out: int = 0  # pulled posts of this page's time whose rows cannot be made; the log has the errors


def feed(
    table: ReadTable,
    timeline: Callable[..., Any],
    /,
    *,
    limit: int = LIMIT,
    cursor: str | None = None,
    pulls_most: int = PULLS_MOST,
    now: float | None = None,
    posts: ReadTable | None = None,
    **reader: Any,
) -> Feed:
    """One page of a reader's feed, newest first: ``feed(table, timeline, reader_id="ada")``.

    ``table`` is boto3's ``Table`` that holds the feed, or a client and the table's name; ``posts`` is the table of the
    posts, if it is another. ``timeline`` is the handler, the rest are the fields of the feed's partition. ``cursor`` is
    the cursor of the page before. A later post is seen on the first page only: no page shows a post twice, and none
    omits a post that exists all the while. ``now`` is the time from which age is counted, by default the clock's; the
    cursor keeps it. A post of a pulled author that would not be pushed, because its time is more than a day ahead or
    because the handler raises on it, is omitted, counted in ``left_out`` and logged.

    Raises ``ValueError`` for a cursor of another feed or reader, or one that is damaged, and for a limit that does not
    fit, and ``TypeError`` for a function that is no handler of a feed.
    """
    route = route_of(timeline)
    queries = BotoQueries({route.into[0].table.name: table, route.sources[0].table.name: posts or table})
    clock = time.time()
    return page(route, queries, dict(reader), limit, cursor, pulls_most, clock if now is None else now, clock)


def route_of(timeline: Callable[..., Any]) -> Route:
    """The route of a feed's handler."""
    found = getattr(timeline, FEED_ATTRIBUTE, None)
    if not isinstance(found, Route):
        raise TypeError(f"{timeline!r} is no handler of a feed: expected a function that @router.feed declares.")
    return replace(found, targets=tuple(found.kind.target(found, key, sole_writer=True) for key in found.into))


def page(
    route: Route,
    queries: Queries,
    reader: Mapping[str, Any],
    limit: int,
    cursor: str | None,
    pulls_most: int,
    now: float,
    clock: float = 0.0,
) -> Feed:
    """One page of a feed, from any kind of store.

    ``clock`` is the present if ``now`` is a time of the past: writers refuse posts too far in its future.
    """
    if not 1 <= limit <= LIMIT_MAX:
        raise ValueError(f"limit={limit!r}: expected 1 to {LIMIT_MAX}.")
    (into,) = route.into
    partition = str(into.partition.compose(reader))
    begin = Begin("", now) if cursor is None else _read(cursor, route, partition)
    merging = Merging(route, queries, partition, begin, pulls_most, clock)
    rows, more = merging.rows(limit)
    last = rows[-1][0] if more and rows else ""
    following = _text(route, partition, Begin(last, begin.now)) if last else None
    return Feed([row for _, row in rows], following, merging.partial, merging.left_out(last))


def newest_seconds(route: Route, queries: Queries, reader: Mapping[str, Any], clock: float) -> float:
    """The time of a reader's newest post, in epoch seconds; for an empty feed that of the clock."""
    newest = page(route, queries, reader, 1, None, PULLS_MOST, 0.0, clock).rows
    fields = route.into[0].match(newest[0]) if newest else None
    return clock if fields is None else post_seconds(route, fields)


def _text(route: Route, partition: str, cursor: Begin) -> str:
    content = [CURSOR_FORMAT, route.name, partition, cursor.before, cursor.now]
    return urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def _read(text: str, route: Route, partition: str) -> Begin:
    """The cursor of a text. Raises ``ValueError`` for one that is none, or of another feed or reader."""
    try:
        form, name, reader, before, now = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        if form != CURSOR_FORMAT or not isinstance(before, str) or not 0 <= float(now) <= LAST_SECOND:
            raise ValueError
        found = Begin(before, float(now))
    except (TypeError, ValueError, RecursionError, OverflowError):
        raise _damaged(text) from None
    if (name, reader) != (route.name, partition):
        raise ValueError(
            f"The cursor is one of feed {name!r} of reader {reader!r}: expected one of feed {route.name!r} of reader "
            f"{partition!r}."
        )
    if route.into[0].match_values(partition, found.before) is None:
        raise _damaged(text)
    return found


def _damaged(text: str) -> ValueError:
    return ValueError(f"cursor={shown(text)} is damaged: expected the cursor of an earlier page.")
