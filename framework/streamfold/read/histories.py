"""The history of an item, from its audit rows, and the items in archives."""

from collections.abc import Iterator, Mapping
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from streamfold.derivations.audit.history import ItemAsOf, is_of_history, item_as_of
from streamfold.derivations.audit.options import default_target, item_values, plain_row
from streamfold.keys.key import Key
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import MAIN, Table
from streamfold.read.derived_rows import PlainRow, ReadTable, queried
from streamfold.records.change import item_name

if TYPE_CHECKING:
    from streamfold.derivations.archive.archives import ArchivedItem


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


def history(table: ReadTable, source: Key, into: Key | None = None, /, **fields: Any) -> Iterator[PlainRow]:
    """The history rows of one item, oldest change first, as plain items: ``history(table, ORDER, order_id="1")``.

    ``table`` is boto3's ``Table`` that holds the rows, or a client and the table's name, ``(client, "shop")``; ``into``
    is the audit's target if it has one of its own. ``streamfold docs audit`` describes the rows.
    """
    target = into or default_target(source.table)
    item = item_name((source.table.name, *source.compose(fields)))
    known = {**fields, "item": item}
    query = target.query(**{field.name: known[field.name] for field in target.partition.fields if field.name in known})
    found = (plain_row(target, row) for row in queried(table, query))
    return (row for row in found if row is not None and row.get("item") == item and is_of_history(row))


def as_of(table: ReadTable, source: Key, time: datetime, into: Key | None = None, /, **fields: Any) -> ItemAsOf:
    """One item as it was at a time, as far as its history shows: ``as_of(table, ORDER, time, order_id="1").item``.

    ``table`` and ``into`` are those of ``history``. Raises ``ValueError`` for a time without a time zone.
    """
    return item_as_of(history(table, source, into, **fields), time, source.key(**fields))


def archived(
    place: str,
    handler: str,
    *,
    first: date | None = None,
    last: date | None = None,
    client: Any = None,
) -> Iterator["ArchivedItem"]:
    """The removed items that ``router.archive`` has kept, each once, day by day.

    ``place`` is the location in ``to=`` or the setting, ``handler`` the name of the declaration
    (``archive_session_metadata``, if it has none), ``first`` and ``last`` the days (UTC, both included), ``client``
    boto3's client for S3. One day's versions are remembered at a time.
    """
    from streamfold.derivations.archive.archives import read_archive
    from streamfold.derivations.archive.locations import open_location
    from streamfold.parking import make_client

    return read_archive(open_location(place, (lambda _: client) if client else make_client), handler, first, last)
