"""Derived rows as their readers should see them.

Rows are plain items: read them with boto3, ``KEY.key`` and ``KEY.query``.

A row that nothing contributes to any more, and a tombstone, are absent; they stay for a moment or until their time to
live. ``rows`` drops them after reading; ``filtered`` lets DynamoDB do it inside a query or scan:

    table.query(**filtered(ORDER.query(order_id="1")))
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

from streamfold.aggregates import COUNT_SUFFIX, SUM_SUFFIX
from streamfold.change import item_name
from streamfold.errors import plain, shown
from streamfold.key import Key, KeyValue
from streamfold.past import Past, item_as_of
from streamfold.recorded import default_target, item_values, told
from streamfold.shards import SHARD
from streamfold.spread import Combine, one, together
from streamfold.table import CONTRIBUTORS, EDGE, MAIN, Table
from streamfold.tries import TRIES_MAX, until_done
from streamfold.values import DIGITS_MAX, decode, encode, hidden

if TYPE_CHECKING:
    from streamfold.archive import ArchivedItem

BotoTable = Any
"""boto3's ``Table``, whose classes exist only at run time."""
Place = BotoTable | tuple[Any, str]
"""Where rows lie: boto3's ``Table``, or a client and the table's name."""
Row = dict[str, Any]
"""A row in plain values."""


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


def has_more(row: Mapping[str, Any], name: str) -> bool:
    """Whether a ``Collect`` of a row leaves values out, because there are more than its ``most``.

    ``row`` is a plain item as it was read, with the framework's own attributes. Raises ``TypeError`` for one without.
    """
    if name in row and EDGE + name not in row:
        raise TypeError(f"Attribute {name!r} does not say whether it is whole: expected a Collect of an item as read.")
    return bool(str(row.get(EDGE + name, "")).partition(" ")[2])


def audit_item(key: Mapping[str, Any], table: Table = MAIN) -> str:
    """The field ``item`` of an audit row: ``AUDIT.query(item=audit_item(ORDER.key(order_id="1")))`` reads a history."""
    return item_name((table.name, key[table.partition], key[table.sort] if table.sort else None))


def item_key(item: str, source: Key) -> dict[str, KeyValue] | None:
    """The key of the item that an audit row is of: ``table.get_item(Key=item_key(row["item"], ORDER))``.

    The inverse of ``audit_item``; ``source.match`` gives the key's fields. None where the item is not of the source,
    and where its key is so long that the row names it by a digest.
    """
    values = item_values(source, item)
    return None if values is None else source.attributes(*values)


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
    values = _coded(query["ExpressionAttributeValues"], encode)
    pages = client.get_paginator("query").paginate(TableName=name, **{**query, "ExpressionAttributeValues": values})
    for page in pages:
        yield from (_coded(item, decode) for item in page["Items"])


def sharded(
    table: Place,
    key: Key,
    shards: int,
    combine: Combine | None = None,
    /,
    **fields: Any,
) -> Row | None:
    """A row that is spread over shards, as one item without its key; None where nothing contributes to it.

    ``table`` is boto3's ``Table``, or a client and the table's name; ``shards`` the greatest number that the view was
    ever declared with. Numbers are added up; ``Max``, ``Min``, ``Latest``, ``First``, ``Top``, ``Collect`` and plain
    attributes with ``wins=`` are those of all sources, in the order and with the ties of a row without shards.
    ``combine`` says by attribute what else to do with the shards' values, ``{"name": list}``.

    Raises ``TimeoutError`` when a throttled table does not answer, ``TypeError`` for an attribute that the shards do
    not tell and that ``combine`` does not name: ``Distinct`` cannot be added up.
    """
    found = _shards(table, key, shards, fields)
    return together(found, key.table.attributes, combine or {}) or None


def top(table: Place, key: Key, name: str, shards: int = 0, /, **fields: Any) -> list[Any]:
    """The list of a ``Top``, greatest first: ``top(table, LEADERS, "leaders", game="chess")``; [] where there is none.

    ``table`` and ``shards`` are those of ``sharded``; a row without shards has 0. The lists of all shards are one list,
    as long as that of each, in the same order and with the same ties.
    """
    found = _shards(table, key, shards, fields) if shards else _present(table, key, [key.key(**fields)])
    having = [row for row in found if name in row]
    if not having:
        return []
    listed = one(having, name) if shards else having[0][name]
    if not isinstance(listed, list):
        raise TypeError(f"Attribute {name!r} is {plain(shown(listed))}: expected the list of a Top.")
    return listed


def _shards(table: Place, key: Key, shards: int, fields: Mapping[str, Any]) -> list[Row]:
    return _present(table, key, [key.key(**fields, **{SHARD: shard}) for shard in range(shards)])


def _present(table: Place, key: Key, keys: Sequence[Mapping[str, Any]]) -> list[Row]:
    """The rows of keys, but for those that are absent, with the framework's own attributes, in the order of keys."""
    names = key.table.attributes
    found = {tuple(row[name] for name in names): row for row in _batch(table, keys) if row.get(CONTRIBUTORS) != 0}
    wanted = (tuple(each[name] for name in names) for each in keys)
    return [found[each] for each in wanted if each in found]


def _batch(table: Place, keys: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    """The items of keys, in any order."""
    is_client = isinstance(table, tuple)
    client, name = table if isinstance(table, tuple) else (table.meta.client, table.name)
    wanted: Any = {name: {"Keys": [_coded(key, encode) for key in keys] if is_client else list(keys)}}
    found: list[Row] = []

    def attempt(wanted: Any) -> Any:
        answer = client.batch_get_item(RequestItems=wanted)
        found.extend(answer["Responses"].get(name, ()))
        return answer.get("UnprocessedKeys")

    if until_done(wanted, attempt, time.sleep):
        raise TimeoutError(f"Table {name!r} left keys unread {TRIES_MAX} times in a row: it is throttled.")
    return (_coded(item, decode) for item in found) if is_client else iter(found)


def _coded(item: Mapping[str, Any], code: Callable[[Any], Any]) -> Row:
    return {name: code(value) for name, value in item.items()}


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
