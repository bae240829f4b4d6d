"""Derived rows as their readers should see them.

Rows are plain items: read them with boto3, ``KEY.key`` and ``KEY.query``.

A row that nothing contributes to any more, and a tombstone, are absent; they stay for a moment or until their time to
live. ``rows`` drops them after reading; ``filtered`` lets DynamoDB do it inside a query or scan:

    table.query(**filtered(ORDER.query(order_id="1")))
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from streamfold.change import item_name
from streamfold.table import CONTRIBUTORS, MAIN, Table
from streamfold.values import hidden


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


def audit_item(key: Mapping[str, Any], table: Table = MAIN) -> str:
    """The field ``item`` of an audit row: ``AUDIT.query(item=audit_item(ORDER.key(order_id="1")))`` reads a history."""
    return item_name((table.name, key[table.partition], key[table.sort] if table.sort else None))
