"""Derived rows as their readers should see them.

Rows are plain items: read them with boto3, ``KEY.key`` and ``KEY.query``.

A row that nothing contributes to any more, and a tombstone, are absent; they stay for a moment or until their time to
live. ``rows`` drops them after reading; ``filtered`` lets DynamoDB do it inside a query or scan:

    table.query(**filtered(ORDER.query(order_id="1")))
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

from streamfold.aggregates import COUNT_SUFFIX, SUM_SUFFIX
from streamfold.change import item_name
from streamfold.key import Key
from streamfold.past import Past, item_as_of
from streamfold.recorded import default_target, told
from streamfold.shards import SHARD
from streamfold.table import CONTRIBUTORS, MAIN, Table
from streamfold.values import DIGITS_MAX, EXACT, decode, encode, hidden

if TYPE_CHECKING:
    from streamfold.archive import ArchivedItem

BotoTable = Any
"""boto3's ``Table``, whose classes exist only at run time."""
Place = BotoTable | tuple[Any, str]
"""Where rows lie: boto3's ``Table``, or a client and the table's name."""
Row = dict[str, Any]
"""A row in plain values."""
READS_MAX = 8
"""Requests for one row's shards: a throttled table answers some of them at a time."""


def rows(items: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """The items that are present, without the framework's own attributes.

    ``items`` are plain items as boto3's resource gives them.
    """
    for item in items:
        if item.get(CONTRIBUTORS) != 0:
            yield {name: value for name, value in item.items() if not hidden(name)}


def filtered(query: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of ``table.query`` or ``table.scan`` with the filter that drops absent rows added.

    It adds ``FilterExpression="attribute_not_exists(#present) OR #present <> :absent"`` with ``#present`` for ``_sf_n``
    and ``:absent`` for 0, beside a filter that is there already.
    """
    present = "(attribute_not_exists(#present) OR #present <> :absent)"
    own = query.get("FilterExpression")
    if own is not None and not isinstance(own, str):
        raise TypeError(f"FilterExpression={own!r}: expected text, because a condition of boto3 cannot be joined.")
    return {
        **query,
        "FilterExpression": f"({own}) AND {present}" if own else present,
        "ExpressionAttributeNames": {**query.get("ExpressionAttributeNames", {}), "#present": CONTRIBUTORS},
        "ExpressionAttributeValues": {**query.get("ExpressionAttributeValues", {}), ":absent": 0},
    }


def average(row: Mapping[str, Any], name: str) -> Decimal | None:
    """The average that ``Row(name=Average(...))`` keeps, rounded to 38 digits; None on a row that no source stands in.

    ``row`` is a plain item: ``average(row, "score")`` divides its ``score_sum`` by its ``score_count``.
    """
    count = Decimal(row.get(name + COUNT_SUFFIX, 0))
    return Context(prec=DIGITS_MAX).divide(Decimal(row[name + SUM_SUFFIX]), count) if count else None


def audit_item(key: Mapping[str, Any], table: Table = MAIN) -> str:
    """The field ``item`` of an audit row: ``AUDIT.query(item=audit_item(ORDER.key(order_id="1")))`` reads a history."""
    return item_name((table.name, key[table.partition], key[table.sort] if table.sort else None))


def history(
    table: BotoTable | tuple[Any, str], source: Key, into: Key | None = None, /, **fields: Any
) -> Iterator[Row]:
    """The history rows of one item, oldest change first, as plain items: ``history(table, ORDER, order_id="1")``.

    ``table`` is boto3's ``Table`` that holds the rows, or a client and the table's name, ``(client, "shop")``; ``into``
    the audit's target if it has one of its own. docs/audit.md says what a row holds.
    """
    target = into or default_target(source.table)
    item = item_name((source.table.name, *source.compose(fields)))
    known = {**fields, "item": item}
    query = target.query(**{field.name: known[field.name] for field in target.partition.fields if field.name in known})
    found = (told(target, row) for row in _queried(table, query))
    return (row for row in found if row is not None and row["item"] == item)


def as_of(table: Place, source: Key, time: datetime, into: Key | None = None, /, **fields: Any) -> Past:
    """One item as it was at a time, as far as its history tells: ``as_of(table, ORDER, time, order_id="1").item``.

    ``table`` and ``into`` are those of ``history``. Raises ``ValueError`` for a time without a time zone.
    """
    return item_as_of(history(table, source, into, **fields), time, source.key(**fields))


def _queried(table: Place, query: Mapping[str, Any]) -> Iterator[Row]:
    """The items of a query, all pages. A client takes and gives DynamoDB attribute values, a ``Table`` plain ones."""
    if not isinstance(table, tuple):
        for page in table.meta.client.get_paginator("query").paginate(TableName=table.name, **query):
            yield from page["Items"]
        return
    client, name = table
    values = {name: encode(value) for name, value in query["ExpressionAttributeValues"].items()}
    pages = client.get_paginator("query").paginate(TableName=name, **{**query, "ExpressionAttributeValues": values})
    for page in pages:
        yield from ({name: decode(value) for name, value in item.items()} for item in page["Items"])


def sharded(
    table: BotoTable,
    key: Key,
    shards: int,
    combine: Mapping[str, Callable[[Sequence[Any]], Any]] | None = None,
    /,
    **fields: Any,
) -> dict[str, Any] | None:
    """A row that is spread over shards, as one item without its key; None where nothing contributes to it.

    ``table`` is boto3's ``Table``; ``shards`` the greatest number that the view was ever declared with. Numbers are
    added up; ``combine`` says by attribute what else to do with the shards' values, ``{"highest": max}``.

    Raises ``TimeoutError`` when a throttled table does not answer, ``TypeError`` for an attribute that is no number and
    has no function in ``combine``.
    """
    keys = [key.key(**fields, **{SHARD: shard}) for shard in range(shards)]
    found: dict[str, list[Any]] = {}
    for row in rows(_batch(table, keys)):
        for name, value in row.items():
            if name not in key.table.attributes:
                found.setdefault(name, []).append(value)
    return {name: _combined(name, values, combine or {}) for name, values in found.items()} or None


def _batch(table: BotoTable, keys: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    wanted: Any = {table.name: {"Keys": list(keys)}}
    for _ in range(READS_MAX):
        answer = table.meta.client.batch_get_item(RequestItems=wanted)
        yield from answer["Responses"].get(table.name, ())
        wanted = answer.get("UnprocessedKeys")
        if not wanted:
            return
    raise TimeoutError(f"Table {table.name!r} left keys unread {READS_MAX} times in a row: it is throttled.")


def _combined(name: str, values: Sequence[Any], combine: Mapping[str, Callable[[Sequence[Any]], Any]]) -> Any:
    if name in combine:
        return combine[name](values)
    if not all(isinstance(value, Decimal) for value in values):
        raise TypeError(f"Attribute {name!r} is no number: say how its shards are combined, combine={{{name!r}: max}}.")
    total = Decimal(0)
    for value in values:
        total = EXACT.add(total, value)
    return total


def archived(
    place: str,
    handler: str = "archive",
    *,
    first: date | None = None,
    last: date | None = None,
    client: Any = None,
) -> Iterator["ArchivedItem"]:
    """The removed items that ``router.archive`` has kept, each once, day by day.

    ``place`` is what ``to=`` or the setting says, ``handler`` the name of the declaration, ``first`` and ``last`` the
    days (UTC, both included), ``client`` boto3's client for S3. One day's versions are remembered at a time.
    """
    from streamfold.archive import read_archive
    from streamfold.archive_places import open_place
    from streamfold.parking import make_client

    return read_archive(open_place(place, (lambda _: client) if client else make_client), handler, first, last)
