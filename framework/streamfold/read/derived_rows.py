"""Derived rows as their readers should see them.

Rows are plain items: read them with boto3, ``KEY.key`` and ``KEY.query``.

Tombstones, and rows that nothing contributes to any more, count as absent, but they stay in the table for a while.
``rows`` drops them after reading. ``filtered`` lets DynamoDB drop them inside a query or scan:

    table.query(**filtered(ORDER.query(order_id="1")))
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any

from streamfold.derivations.view.shards import SHARD
from streamfold.errors import plain, shown
from streamfold.keys.key import Key
from streamfold.keys.table import CONTRIBUTORS, EDGE, VERSION
from streamfold.read.combined import Combine, one, together
from streamfold.read.tables import PlainRow, TablePlace, read_keys
from streamfold.records.images import hidden
from streamfold.records.numbers import DIGITS_MAX
from streamfold.routes.aggregates import COUNT_SUFFIX, SUM_SUFFIX


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


def sharded(
    table: TablePlace,
    key: Key,
    shards: int,
    combine: Combine | None = None,
    /,
    **fields: Any,
) -> PlainRow | None:
    """A row that is spread over shards, as one item without its key; None where nothing contributes to it.

    ``table`` is boto3's ``Table``, or a client and the table's name; ``shards`` the greatest number that the view was
    ever declared with. Numbers are added up; ``Max``, ``Min``, ``Latest``, ``First``, ``Top``, ``Collect`` and plain
    attributes with ``wins=`` are those of all sources, in the order and with the ties of a row without shards.
    ``combine`` says by attribute what else to do with the shards' values, ``{"name": list}``.

    Raises ``TimeoutError`` when a throttled table does not answer, ``TypeError`` for an attribute that the shards do
    not tell and that ``combine`` does not name: ``Distinct`` cannot be added up; and ``HandlerError`` for a sum of more
    than 38 digits.
    """
    found = _shards(table, key, shards, fields)
    return together(found, key.table.attributes, combine or {}) or None


def top(table: TablePlace, key: Key, shards: int, name: str, /, **fields: Any) -> list[Any]:
    """The list of a ``Top``, as its row has it: ``top(table, LEADERS, 0, "leaders", game="chess")``; [] without one.

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


def _shards(table: TablePlace, key: Key, shards: int, fields: Mapping[str, Any]) -> list[PlainRow]:
    found = _present(table, key, [key.key(**fields, **{SHARD: shard}) for shard in range(shards)])
    # Writers add to rows that count contributors, and refuse an item of others under such a key: so it is no shard.
    return [row for row in found if CONTRIBUTORS in row and VERSION not in row]


def _present(table: TablePlace, key: Key, keys: Sequence[Mapping[str, Any]]) -> list[PlainRow]:
    """The rows of keys, but for those that are absent, with the framework's own attributes, in the order of keys."""
    names = key.table.attributes
    found = {tuple(row[name] for name in names): row for row in read_keys(table, keys) if row.get(CONTRIBUTORS) != 0}
    wanted = (tuple(each[name] for name in names) for each in keys)
    return [found[each] for each in wanted if each in found]
