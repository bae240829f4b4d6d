"""Derived rows, for their readers.

Rows are plain items: read them with boto3, ``KEY.key`` and ``KEY.query``.

Tombstones, and rows that nothing contributes to any more, count as absent, but they stay in the table for a while.
``rows`` drops them after reading. ``filtered`` lets DynamoDB drop them inside a query or scan:

    table.query(**filtered(ORDER.query(order_id="1")))
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Context, Decimal
from typing import Any

from streamfold.engines.deadline import TRIES_MAX, Deadline
from streamfold.errors import HandlerError, plain, shown
from streamfold.keys.key import Key
from streamfold.keys.table import CONTRIBUTORS, EDGE, PLACES, PLAIN_NAMES, VERSION, is_writers
from streamfold.ledger.contribution import PLAIN_ENTRY, in_order, order_of
from streamfold.records.images import hidden
from streamfold.records.values import DIGITS_MAX, WIDE, decode, encode, number_text
from streamfold.routes.aggregates import Ordering, ShardValue, ordering_of, shown_of
from streamfold.routes.route import SHARD
from streamfold.routes.shipped_aggregates import COUNT_SUFFIX, SUM_SUFFIX, WINS

BotoTable = Any
"""boto3's ``Table``, whose classes exist only at run time."""
ReadTable = BotoTable | tuple[Any, str]
"""The table of the rows: boto3's ``Table``, or a client and the table's name."""
PlainRow = dict[str, Any]
"""A row in plain values."""

ShardRow = Mapping[str, Any]
Combine = Mapping[str, Callable[[Sequence[Any]], Any]]


def queried(table: ReadTable, query: Mapping[str, Any]) -> Iterator[PlainRow]:
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


def read_keys(table: ReadTable, keys: Sequence[Mapping[str, Any]]) -> Iterator[PlainRow]:
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
    return {name: code(value) for name, value in item.items()}


def together(shards: Sequence[ShardRow], keys: Iterable[str], combine: Combine) -> dict[str, Any]:
    """All attributes of a row except its key, merged from its shards. ``combine``: functions that merge an attribute.

    Raises ``TypeError`` for an attribute that cannot be merged without such a function.
    """
    plain = _winner(shards)
    names = dict.fromkeys(name for row in shards for name in row if not hidden(name) and name not in keys)
    return {
        name: combine[name]([row[name] for row in shards if name in row]) if name in combine else one(shards, name)
        for name in names
        if name in combine or name in plain or not _is_won(shards, name)
    }


def one(shards: Sequence[ShardRow], name: str) -> Any:
    """One attribute of a row, merged from its shards. Raises ``TypeError`` if it cannot be merged."""
    if _is_won(shards, name):
        return _winner(shards)[name]
    having = [row for row in shards if name in row]
    texts = [str(row.get(EDGE + name, "")).partition(" ")[0] for row in having]
    if not any(texts):
        return _total(name, [row[name] for row in having])
    if len({text.partition(":")[0] for text in texts}) > 1:
        different = ", ".join(sorted({text or "a number" for text in texts}))
        raise TypeError(
            f"Attribute {name!r} is made differently in its shards ({different}), because the view has changed: "
            f"give the function that combines them, combine={{{name!r}: list}}, until the older items have changed too."
        )
    return _ordered(name, having, [_ordering(name, text) for text in texts])


def _ordering(name: str, text: str) -> Ordering:
    try:
        found = ordering_of(text)
    except HandlerError:
        found = None
    if found is None or not found.form.aggregate.in_shards:
        raise TypeError(
            f"Attribute {name!r} is made in the form {text.partition(':')[0]!r}, of which this code does not know how "
            f"shards are put together: say how, combine={{{name!r}: list}}, or import the class of the aggregate."
        )
    return found


def _ordered(name: str, shards: Sequence[ShardRow], orderings: Sequence[Ordering]) -> Any:
    """The value from the entries of all shards, in the order of a row without shards."""
    form = orderings[0].form
    placed = [
        entry
        for row in shards
        for entry in form.aggregate.kept(ShardValue(form, name, row[name], _edge(row, name), row.get(PLACES + name)))
    ]
    placed = in_order(form, placed)
    if form.once:
        placed = list({order_of(position): (position, value) for position, value in placed}.values())
    # A shard without changes since the view asked for more still keeps fewer: only the common number is exact.
    most = min((ordering.most for ordering in orderings if ordering.most), default=0)
    return shown_of(form, [value for _, value in placed[: most or None]])


def _edge(row: ShardRow, name: str) -> str:
    return str(row[EDGE + name]).partition(" ")[2]


def _is_won(shards: Sequence[ShardRow], name: str) -> bool:
    # With ``Row(wins=...)`` one source has all plain attributes.
    return any(name in row.get(PLAIN_NAMES, ()) for row in shards)


def _winner(shards: Sequence[ShardRow]) -> dict[str, Any]:
    """The plain attributes of the source that wins."""
    having = [row for row in shards if EDGE + PLAIN_ENTRY in row]
    if not having:
        return {}
    row = in_order(WINS.form, [(_edge(row, PLAIN_ENTRY), row) for row in having])[0][1]
    return {name: row[name] for name in row[PLAIN_NAMES]}


def _total(name: str, values: Sequence[Any]) -> Decimal:
    if not all(isinstance(value, Decimal | int) and not isinstance(value, bool) for value in values):
        raise TypeError(
            f"Attribute {name!r} is no number: give the function that combines its shards, combine={{{name!r}: max}}."
        )
    total = Decimal(0)
    for value in values:
        total = WIDE.add(total, value)  # of some of the shards it may need more digits than of all
    return Decimal(number_text(total))


def rows(items: Iterable[Mapping[str, Any]], *, marked: bool = False) -> Iterator[dict[str, Any]]:
    """The items that are present, without the framework's own attributes.

    ``items`` are plain items as boto3's resource gives them. ``marked``: only rows with the mark that separates them
    from items of the application's own code under the same keys; the rows of a history have none.
    """
    for item in items:
        if item.get(CONTRIBUTORS) != 0 and not (marked and is_writers(item)):
            yield {name: value for name, value in item.items() if not hidden(name)}


def filtered(query: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of ``table.query`` or ``table.scan`` with the filter that drops absent rows added.

    It adds ``FilterExpression="attribute_not_exists(#present) OR #present <> :absent"`` with ``#present`` for ``_sf_n``
    and ``:absent`` for 0, in addition to an existing filter.
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
    """The average that ``Row(name=Average(...))`` keeps, rounded to 38 digits; None on a row without sources.

    ``row`` is a plain item: ``average(row, "score")`` divides its ``score_sum`` by its ``score_count``.
    """
    count = Decimal(row.get(name + COUNT_SUFFIX, 0))
    return Context(prec=DIGITS_MAX).divide(Decimal(row[name + SUM_SUFFIX]), count) if count else None


def has_more(row: Mapping[str, Any], name: str) -> bool:
    """Whether a ``Collect`` of a row leaves values out, because there are more than its ``most``.

    ``row`` is a plain item as it was read, with the framework's own attributes. Raises ``TypeError`` for one without.
    """
    if name in row and EDGE + name not in row:
        raise TypeError(
            f"Attribute {name!r} does not show whether it is complete: expected a Collect of an item as read."
        )
    return bool(str(row.get(EDGE + name, "")).partition(" ")[2])


def sharded(
    table: ReadTable,
    key: Key,
    shards: int,
    combine: Combine | None = None,
    /,
    **fields: Any,
) -> PlainRow | None:
    """A row that is spread over shards, as one item without its key; None if no item contributes to it.

    ``table`` is boto3's ``Table``, or a client and the table's name; ``shards`` is the greatest number that the view
    was ever declared with. Numbers are added up; ``Max``, ``Min``, ``Latest``, ``First``, ``Top``, ``Collect``, plain
    attributes with ``wins=``, and aggregates of your own whose modules are imported, are those of all sources, in the
    order and with the ties of a row without shards. ``combine`` gives functions by attribute that combine the shards'
    values in another way, ``{"name": list}``.

    Raises ``TimeoutError`` when a throttled table does not answer, ``TypeError`` for an attribute that cannot be
    combined and that ``combine`` does not name: ``Distinct`` cannot be added up; and ``HandlerError`` for a sum of more
    than 38 digits.
    """
    found = _shards(table, key, shards, fields)
    return together(found, key.table.attributes, combine or {}) or None


def top(table: ReadTable, key: Key, shards: int, name: str, /, **fields: Any) -> list[Any]:
    """The list of a ``Top``, as its row has it: ``top(table, LEADERS, 0, "leaders", game="chess")``; [] without one.

    ``table`` and ``shards`` are those of ``sharded``; a row without shards has 0. The lists of all shards are one list,
    as long as that of each, in the same order and with the same ties.
    """
    found = _counted(_present(table, key, [key.key(**fields)])) if not shards else _shards(table, key, shards, fields)
    having = [row for row in found if name in row]
    if not having:
        return []
    listed = one(having, name) if shards else having[0][name]
    if not isinstance(listed, list):
        raise TypeError(f"Attribute {name!r} is {plain(shown(listed))}: expected the list of a Top.")
    return listed


def _shards(table: ReadTable, key: Key, shards: int, fields: Mapping[str, Any]) -> list[PlainRow]:
    return _counted(_present(table, key, [key.key(**fields, **{SHARD: shard}) for shard in range(shards)]))


def _counted(found: Iterable[PlainRow]) -> list[PlainRow]:
    # A row without contributors under such a key is another writer's item, which handlers refuse.
    return [row for row in found if CONTRIBUTORS in row and VERSION not in row]


def _present(table: ReadTable, key: Key, keys: Sequence[Mapping[str, Any]]) -> list[PlainRow]:
    """The present rows of keys, with the framework's own attributes, in the order of keys."""
    names = key.table.attributes
    found = {tuple(row[name] for name in names): row for row in read_keys(table, keys) if row.get(CONTRIBUTORS) != 0}
    wanted = (tuple(each[name] for name in names) for each in keys)
    return [found[each] for each in wanted if each in found]
