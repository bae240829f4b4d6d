"""The first row of an item whose history begins in the middle of its life: how the item was when it became known.

Its version sorts before those of all changes. So an item has one such row at most, whoever writes it.
"""

from streamfold.derivations.audit.options import plain_row
from streamfold.derivations.audit.puts import audit_row
from streamfold.engines import Engine, StoredItem
from streamfold.keys.key import Key
from streamfold.keys.table import Table
from streamfold.records.change import Change, Origin
from streamfold.records.values import decode
from streamfold.records.version import UNLABELLED, Version
from streamfold.routes.route import Fields, Route
from streamfold.writes.guarded import PutRow

OPENING = "OPENING"
"""The event of such a row."""
FIRST = Version.of(0, UNLABELLED, 0).text


def opening_row(route: Route, table: Table, image: StoredItem, fields: Fields, at: float, key: bytes | None) -> PutRow:
    """The first row of an item that was read at a time, in epoch seconds. ``key``: signs it.

    Raises ``HandlerError`` and ``KeyValueError`` as the row of a change does.
    """
    prefix, _, sequence = FIRST.rpartition("/")
    body = {
        "ApproximateCreationDateTime": int(at),
        "Keys": {name: image[name] for name in table.attributes},
        "NewImage": image,
        "SequenceNumber": sequence,
        "StreamViewType": "NEW_AND_OLD_IMAGES",
    }
    change = Change({"eventID": "0", "eventName": "INSERT", "dynamodb": body}, Origin(table, prefix + "/"))
    change = change.without_derived()
    _ = change.old, change.new  # they are kept, and may be asked for under any event
    change.event = OPENING  # type: ignore[assignment]  # no event of a stream
    return audit_row(route, change, fields, key)


def has_history(engine: Engine, target: Key, row: PutRow, item: str) -> bool:
    """Whether an item has a row in its history already."""
    found = (plain_row(target, decode({"M": each})) for each in engine.items(target.table, row.key[1]))
    return any(full is not None and str(full["item"]) == item for full in found)


def opening_target(route: Route, row: PutRow) -> Key | None:
    """The target of a row, if the rows of an item lie together there; None if they do not."""
    target = next(target for target in route.into if target.table.name == row.key[0])
    return None if any(field.name == "version" for field in target.partition.fields) else target
