"""One change made by hand, for a test that calls a handler of changes as the plain function that it is."""

from collections.abc import Mapping
from typing import Any

from streamfold.keys.key import Key
from streamfold.records.change import Change, Origin
from streamfold.testing.clock import Clock
from streamfold.testing.errors import TwinError
from streamfold.testing.histories import Write, carry_out, key_types
from streamfold.testing.names import check_key
from streamfold.testing.table import TableTwin


def change(
    key: Key,
    /,
    *,
    old: Mapping[str, Any] | None = None,
    new: Mapping[str, Any] | None = None,
    expired: bool = False,
    clock: Clock | None = None,
    **fields: Any,
) -> Change:
    """The change of an item from ``old`` attributes to ``new`` ones; None is no item. ``fields`` fill the key.

    ``expired``: time to live removed the item. ``clock`` says when, 2026-03-01T09:00:00Z if not given. Raises
    ``TwinError`` for what is no change, and ``WriteRefused`` for an item that DynamoDB would not take.
    """
    check_key(key, "change()")
    if old is None and new is None:
        raise TwinError("A change was given neither old= nor new=: expected the attributes before, after, or both.")
    if expired and new is not None:
        raise TwinError("A change with expired=True removes the item: leave new= out.")
    writes = [Write(key, fields, item) for item in (old, new) if item is not None]
    if new is None:
        writes.append(Write(key, fields, None, expired=expired))
    table = TableTwin(key.table, view="NEW_AND_OLD_IMAGES", clock=clock, key_types=key_types(writes, key.table.name))
    record = [carry_out(table, write) for write in writes][-1]
    if record is None:
        raise TwinError(f"A change of {key!r} has equal old= and new=: DynamoDB tells of no such change.")
    return Change(record, Origin(key.table, ""))
