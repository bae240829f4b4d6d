"""A reader's feed: pushed rows merged with the posts of authors who are pulled, newest first, page by page.

A page takes two rounds of queries: the feed and the authors who are pulled, then the posts of each of these. Another
round follows where too many rows were dropped: those that are not shown, those that are too old, and pushed rows of an
author who is pulled.
"""

import json
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from streamfold.derivations.feed.options import FEED_ATTRIBUTE
from streamfold.errors import shown
from streamfold.read.merging import Begin, Merging
from streamfold.read.queries import BotoQueries, Queries
from streamfold.read.tables import PlainRow, TablePlace
from streamfold.routes.route import Route

LIMIT = 25
LIMIT_MAX = 1000
PULLS_MOST = 50
"""Pulled authors that are read for one page."""
CURSOR_FORM = 1
LAST_SECOND = 253_402_300_799
"""Of the year 9999: no text has a later time."""


class Feed(NamedTuple):
    """One page of a reader's feed."""

    rows: list[PlainRow]  # newest first, with their keys
    cursor: str | None  # where the next page begins; None: there is no more
    partial: bool = False  # the reader follows more pulled authors than were read
    left_out: int = 0  # pulled posts between the first and the last row whose rows cannot be made; the log says why


def feed(
    table: TablePlace,
    timeline: Callable[..., Any],
    /,
    *,
    limit: int = LIMIT,
    cursor: str | None = None,
    pulls_most: int = PULLS_MOST,
    now: float | None = None,
    posts: TablePlace | None = None,
    **reader: Any,
) -> Feed:
    """One page of a reader's feed, newest first: ``feed(table, timeline, reader_id="ada")``.

    ``table`` is boto3's ``Table`` that holds the feed, or a client and the table's name; ``posts`` that of the posts,
    if it is another. ``timeline`` is the handler, the rest are the fields of the feed's partition. ``cursor`` is that
    of the page before. A post that comes later is seen on the first page only: no page shows it twice, and none leaves
    out a post that is there all the while. ``now`` is the time from which age is counted, by default the clock's; the
    cursor keeps it. A post of a pulled author that would not be pushed, because its time lies more than a day ahead or
    because the handler raises on it, is left out, counted in ``left_out`` and logged.

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
    return replace(found, targets=tuple(found.kind.target(found, key, alone=True) for key in found.into))


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
    """One page of a feed, whatever is queried.

    ``clock`` is the present if ``now`` is a time of the past: writers judge by it which posts lie too far ahead.
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


def _text(route: Route, partition: str, cursor: Begin) -> str:
    content = [CURSOR_FORM, route.name, partition, cursor.before, cursor.now]
    return urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def _read(text: str, route: Route, partition: str) -> Begin:
    """The cursor of a text. Raises ``ValueError`` for one that is none, or of another feed or reader."""
    try:
        form, name, reader, before, now = json.loads(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        if form != CURSOR_FORM or not isinstance(before, str) or not 0 <= float(now) <= LAST_SECOND:
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
