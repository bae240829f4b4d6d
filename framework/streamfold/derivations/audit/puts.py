"""The history rows of a batch. The row of each change is a function of the change alone, with the change in its key."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from streamfold.commit.plan import KeyedPut
from streamfold.derivations.audit.options import plain_row, recorded_of
from streamfold.derivations.audit.rows import (
    ACTOR_BYTES_MAX,
    AUDIT_BYTES_MAX,
    ROW,
    VALUE_BYTES_MAX,
    expiry,
    fitting,
    image_digest,
    is_recordable,
    own_change,
    row_bytes,
    row_digest,
    row_head,
)
from streamfold.derivations.derivation import Planning, Work
from streamfold.derivations.expected import Expected, History, Values
from streamfold.derivations.secrets import secret_key
from streamfold.engines.protocol import StoredItem
from streamfold.errors import SettingsError
from streamfold.keys.key import Key
from streamfold.keys.table import DERIVED, Table
from streamfold.records.change import UNLABELLED, Change, ItemKey, Origin, Version, item_name
from streamfold.records.images import Image, without_derived
from streamfold.records.values import alike, decode
from streamfold.routes.checks import check_view
from streamfold.routes.route import Fields, Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import PutRow

OPENING = "OPENING"
"""The event of an item's first row."""
FIRST = Version.of(0, UNLABELLED, 0).text


def planned(works: Sequence[Work], planning: Planning) -> list[KeyedPut]:
    """A row for each change that is not of derived attributes alone; an error fails the record of its change."""
    puts: list[KeyedPut] = []
    for work in works:
        for change in work.changes:
            try:
                puts += _put(work, change, secret_key(planning.runtime.settings.audit_key))
            except Exception as error:  # noqa: BLE001 - fails this record only
                planning.fails(change, work.route, error)
    return puts


def _put(work: Work, change: Change, key: bytes | None) -> list[KeyedPut]:
    check_view(work.route, change)
    own = own_change(change)
    return [] if own is None else [KeyedPut(work.route, change, audit_row(work.route, own, work.fields, key))]


def audit_row(route: Route, change: Change, fields: Fields, key: bytes | None = None) -> PutRow:
    """The history row of one change: a function of the change alone. With a ``key``, it has keyed digests."""
    head = {"item": item_name(change.item), **row_head(recorded_of(route), change)}
    values = {**fields, "item": head["item"], "version": head["version"]}
    target = _target(route, change)
    table = target.table
    row = fitting(recorded_of(route), change, head) | expiry(recorded_of(route), change, table)
    keys = table.attributes
    own = {name: value for name, value in row.items() if name not in keys}
    row_key = target.compose(values)
    if key is not None:
        own["digests"] = _digests(key, change, target, row_key, own)
    return PutRow((table.name, *row_key), own, size_checked=True)


def _target(route: Route, change: Change) -> Key:
    target = route.target(None) or next(
        target for target in route.targets if target.key.table.name == change.table.name
    )
    return target.key


def _digests(key: bytes, change: Change, target: Key, row_key: Any, own: Mapping[str, Any]) -> dict[str, str]:
    images = (("old", change.old), ("new", change.new))
    found = {side: image_digest(key, change.table.name, image) for side, image in images}
    digests = {side: digest for side, digest in found.items() if digest is not None}
    digests[ROW] = row_digest(key, {**target.attributes(*row_key), **own, "digests": digests})
    return digests


def initial_row(route: Route, table: Table, image: StoredItem, fields: Fields, at: float, key: bytes | None) -> PutRow:
    """The first row of an item that was read at a time, in epoch seconds. ``key``: signs the row.

    Raises ``HandlerError`` and ``KeyValueError`` as for the row of a change.
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
    _ = change.old, change.new  # the images are kept, and read under any event
    change.event = OPENING  # type: ignore[assignment]  # no event of a stream
    return audit_row(route, change, fields, key)


def missing_initial_row(
    route: Route, item: ItemKey, image: StoredItem, fields: Fields, runtime: Runtime
) -> PutRow | None:
    """The first row of an item's history; None if it has one. Raises ``SettingsError`` if that cannot be read."""
    table = runtime.application.tables[item[0]]
    row = initial_row(route, table, image, fields, runtime.clock(), secret_key(runtime.settings.audit_key))
    target = next(target for target in route.into if target.table.name == row.key[0])
    if any(field.name == "version" for field in target.partition.fields):
        raise SettingsError(
            f"Audit {route.name!r} keeps the rows of one item in many partitions: it is unknown whether an "
            "item has a history. Expected a target with {version:rest} in its sort key."
        )
    stored = runtime.engine.items(target.table, row.key[1])
    history = (plain_row(target, decode({"M": each})) for each in stored)
    has_history = any(each is not None and str(each["item"]) == item_name(item) for each in history)
    return None if has_history else row


def expected(route: Route, history: History) -> Expected:
    """The rows of all changes, without attributes that were derived onto the item."""
    found = Expected()
    for change, fields in history.changes_of(route):
        if not is_ours(change):
            _audit(route, change, fields, found.rows)
    return found


def _audit(route: Route, change: Change, fields: Fields, rows: dict[Any, Values]) -> None:
    old, new, recorded = _own(change.old), _own(change.new), recorded_of(route)
    shown = [name for name in {*old, *new} if name in change.keys or recorded.shows(name)]
    hides = recorded.fields is not None or bool(recorded.redact)
    version = change.identity_among(lambda name: name in shown) if hides else change.identity_text
    named = {"item": item_name(change.item), "version": version}
    row: Values = {**named, "event": change.event, **({"at": change.at} if change.has_at else {}), "changes": {}}
    kept: Values = {}
    for name in {*old, *new} - {*change.keys}:
        if recorded.fields is not None and name not in recorded.fields:
            continue
        changed = (name in old) != (name in new) or not alike(old.get(name), new.get(name))
        images = {"old": old, "new": new} if changed else {"value": new}
        sides = {side: image[name] for side, image in images.items() if name in image}
        entries = row["changes"] if changed else kept
        entries[name] = {"redacted": list(sides)} if name in recorded.redact else sides
    if change.event == "MODIFY" and recorded.unchanged:
        row["unchanged"] = kept
    if change.expired:
        row["expired"] = True
    target = next(key for key in route.into if len(route.into) == 1 or key.table.name == change.item[0])
    row |= _declared(route, change, target.table.ttl)
    if not _is_small(row):
        row = _cut(route, change) | {"item": row["item"]} | expiry(recorded, change, target.table)
    own = {name: value for name, value in row.items() if name not in target.table.attributes}
    rows[(target.table.name, *target.compose({**fields, **named}))] = own


def _own(image: Image) -> Image:
    own = without_derived(image.raw)
    # Without derived attributes the image itself is returned: its values are read already.
    return image if own is image.raw else Image(own)


def _is_small(row: Values) -> bool:
    # Both limits belong to the rows that the code writes.
    entries = [*row["changes"].values(), *row.get("unchanged", {}).values()]
    small = all(is_recordable(value, VALUE_BYTES_MAX) for entry in entries for value in entry.values())
    return small and is_recordable(row.get("actor"), ACTOR_BYTES_MAX) and row_bytes(row) <= AUDIT_BYTES_MAX


def _cut(route: Route, change: Change) -> Values:
    # Only the code that writes a large row decides which values become digests: an oracle of it would repeat that code.
    own, recorded = change.without_derived(), recorded_of(route)
    return fitting(recorded, own, row_head(recorded, own))


def is_ours(change: Change) -> bool:
    """Whether only derived attributes of the item changed."""
    if change.event != "MODIFY" or not (change.has_old and change.has_new):
        return False
    if DERIVED not in change.old.raw and DERIVED not in change.new.raw:
        return False
    return alike(dict(_own(change.old)), dict(_own(change.new)))


def _declared(route: Route, change: Change, ttl: str | None) -> Values:
    """The attributes of a row that the declaration asks for."""
    recorded = recorded_of(route)
    found: Values = {}
    if recorded.fields is not None:
        found["fields"] = sorted(recorded.fields)
    if recorded.actor is not None and recorded.actor in change.new:
        found["actor"] = change.new[recorded.actor]
    if recorded.keep_days is not None and ttl is not None and change.has_at:
        found[ttl] = int((change.at + timedelta(days=recorded.keep_days)).timestamp())
    return found
