"""Reading through boto3: a resource's table with plain values, or a client with DynamoDB attribute values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from streamfold.records.values import decode, encode
from streamfold.run import TRIES_MAX, Deadline

BotoTable = Any
"""boto3's ``Table``, whose classes exist only at run time."""
TablePlace = BotoTable | tuple[Any, str]
"""Where rows lie: boto3's ``Table``, or a client and the table's name."""
PlainRow = dict[str, Any]
"""A row in plain values."""


def queried(table: TablePlace, query: Mapping[str, Any]) -> Iterator[PlainRow]:
    """The items of a query, all pages. A client takes and gives DynamoDB attribute values, a ``Table`` plain ones."""
    if not isinstance(table, tuple):
        for page in table.meta.client.get_paginator("query").paginate(TableName=table.name, **query):
            yield from page["Items"]
        return
    client, name = table
    values = coded(query["ExpressionAttributeValues"], encode)
    pages = client.get_paginator("query").paginate(TableName=name, **{**query, "ExpressionAttributeValues": values})
    for page in pages:
        yield from (coded(item, decode) for item in page["Items"])


def read_keys(table: TablePlace, keys: Sequence[Mapping[str, Any]]) -> Iterator[PlainRow]:
    """The items of keys, in any order."""
    is_client = isinstance(table, tuple)
    client, name = table if isinstance(table, tuple) else (table.meta.client, table.name)
    wanted: Any = {name: {"Keys": [coded(key, encode) for key in keys] if is_client else list(keys)}}
    found: list[PlainRow] = []
    for _ in Deadline().tries():
        answer = client.batch_get_item(RequestItems=wanted)
        found.extend(answer["Responses"].get(name, ()))
        wanted = answer.get("UnprocessedKeys")
        if not wanted:
            return (coded(item, decode) for item in found) if is_client else iter(found)
    raise TimeoutError(f"Table {name!r} left keys unread {TRIES_MAX} times in a row: it is throttled.")


def plain_item(item: Mapping[str, Any]) -> PlainRow:
    """An item whose bytes are ``bytes``: boto3's ``Table`` gives them as ``Binary``, which no row can hold."""
    return {name: _plain(value) for name, value in item.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return plain_item(value)
    if isinstance(value, list | set):
        return type(value)(_plain(member) for member in value)
    return value.value if type(value).__name__ == "Binary" else value


def coded(item: Mapping[str, Any], code: Callable[[Any], Any]) -> PlainRow:
    """An item with each value in another form."""
    return {name: code(value) for name, value in item.items()}
