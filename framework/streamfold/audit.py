"""The history row of a change: a function of the change alone, under a key that contains it."""

from base64 import b64encode
from collections.abc import Collection, Mapping
from hashlib import sha256
from typing import Any

from streamfold.change import Change, item_name
from streamfold.digests import ROW, image_digest, row_digest
from streamfold.errors import HandlerError
from streamfold.key import Key
from streamfold.recorded import Recorded
from streamfold.route import Fields, Route
from streamfold.values import CANONICAL, ITEM_BYTES_MAX, encode, item_bytes
from streamfold.writes import PutRow

AUDIT_BYTES_MAX = ITEM_BYTES_MAX - 4096
"""What a row may hold beside its key (3,072 bytes and two names), its digests and its time to live."""
VALUE_BYTES_MAX = 32 * 1024
"""A larger value is recorded as its digest and size: a row holds two of each changed attribute, and an item is 400 KB
at most (Developer Guide, ServiceQuotas)."""
ATTEMPTS = (
    (None, True, VALUE_BYTES_MAX),
    (VALUE_BYTES_MAX, True, AUDIT_BYTES_MAX),
    (VALUE_BYTES_MAX, False, AUDIT_BYTES_MAX),
    (4096, False, AUDIT_BYTES_MAX),
    (256, False, AUDIT_BYTES_MAX),
)
"""What is tried, until a row fits: the largest value that is written out, whether unchanged attributes are too, and the
size of the row. A row smaller than one large value has none, so the first is all that most rows take."""
VALUE_LEVEL = 3
"""How deep a value lies in its row, where it was at level 1 in the item: below the map of changes and its entry."""
ACTOR_BYTES_MAX = 1024
"""An actor is a name; a larger value is left out, and the row says so."""
SECONDS_A_DAY = 24 * 60 * 60

Entry = dict[str, Any]
"""What a row says of one attribute: values by side, ``redacted`` sides, digest and size of ``large`` ones."""


def audit_row(route: Route, change: Change, fields: Fields, key: bytes | None = None) -> PutRow:
    """The history row of one change: a function of the change alone. With a ``key``, it carries keyed digests."""
    values = {**fields, "item": item_name(change.item), "version": _version(route.recorded, change)}
    target = _target(route, change)
    table = target.table
    row = _fitting(route.recorded, change, _head(route.recorded, change, values))
    if route.recorded.keep_days is not None and table.ttl is not None:
        row[table.ttl] = int(change.at.timestamp()) + route.recorded.keep_days * SECONDS_A_DAY
    own = {name: value for name, value in row.items() if name not in table.attributes}
    place = target.compose(values)
    if key is not None:
        own["digests"] = _digests(key, change, target, place, own)
    return PutRow((table.name, *place), own)


def _version(recorded: Recorded, change: Change) -> str:
    """What tells the change from others of its item; nothing that is not recorded can be learnt from it."""
    if recorded.fields is None and not recorded.redact:
        return change.identity_text
    keys = change.table.attributes
    return change.identity_among(lambda name: name in keys or recorded.shows(name))


def _target(route: Route, change: Change) -> Key:
    target = route.target(None) or next(
        target for target in route.targets if target.key.table.name == change.table.name
    )
    return target.key


def _head(recorded: Recorded, change: Change, values: Fields) -> dict[str, Any]:
    """What a row says beside the attributes of the item."""
    head = {"event": change.event, "at": change.at, "item": values["item"], "version": values["version"]}
    if change.expired:
        head["expired"] = True
    if recorded.fields is not None:
        head["fields"] = sorted(recorded.fields)
    if recorded.actor is not None and recorded.actor in change.new:
        actor = change.new[recorded.actor]
        if item_bytes({"": encode(actor)}) <= ACTOR_BYTES_MAX:
            head["actor"] = actor
        else:
            head["left_out"] = ["actor"]
    return head


def _fitting(recorded: Recorded, change: Change, head: dict[str, Any]) -> dict[str, Any]:
    """The row with as much of the item as fits; ``left_out`` says what does not."""
    changed = _wanted(recorded, change, change.changed)
    unchanged = None
    if recorded.unchanged and change.event == "MODIFY":
        unchanged = _wanted(recorded, change, set(change.new).difference(changed))
    left_out: list[str] = head.pop("left_out", [])
    missing = left_out
    for value_bytes_max, whole, bytes_max in ATTEMPTS:
        missing = left_out if whole or unchanged is None else [*left_out, "unchanged"]
        row = {**head, "left_out": missing} if missing else dict(head)
        row |= _values(recorded, change, changed, unchanged if whole else None, value_bytes_max)
        if _bytes(row) <= bytes_max:
            return row
    return {**head, "left_out": [*missing, "changes"], "changes": {}}


def _wanted(recorded: Recorded, change: Change, names: Collection[str]) -> list[str]:
    """The attributes to record: those asked for, without the item's key, which is part of the row's."""
    keys = change.table.attributes
    return sorted(name for name in names if name not in keys and (recorded.fields is None or name in recorded.fields))


def _values(
    recorded: Recorded,
    change: Change,
    changed: Collection[str],
    unchanged: Collection[str] | None,
    value_bytes_max: int | None,
) -> dict[str, dict[str, Entry]]:
    """The attributes that a change changed, and those that it left alone."""
    sides = (("old", change.old), ("new", change.new))
    found = {name: {side: image[name] for side, image in sides if name in image} for name in changed}
    same = {name: {"value": change.new[name]} for name in unchanged or ()}
    parts = {"changes": found} if unchanged is None else {"changes": found, "unchanged": same}
    return {
        part: {name: _entry(recorded, name, values, value_bytes_max) for name, values in by_name.items()}
        for part, by_name in parts.items()
    }


def _entry(recorded: Recorded, name: str, values: Mapping[str, Any], value_bytes_max: int | None) -> Entry:
    """What a row says of an attribute; without a limit all values as they are."""
    if name in recorded.redact:
        return {"redacted": list(values)}
    if value_bytes_max is None:
        return dict(values)
    large = {side: value for side, value in values.items() if not _fits(value, value_bytes_max)}
    entry: Entry = {side: value for side, value in values.items() if side not in large}
    if large:
        entry["large"] = {side: _fingerprint(value) for side, value in large.items()}
    return entry


def _fits(value: Any, bytes_max: int) -> bool:
    """Whether a value is small enough, and not nested deeper than a row can hold it."""
    try:
        return item_bytes({"": encode(value, VALUE_LEVEL)}) <= bytes_max
    except HandlerError:
        return False


def _fingerprint(value: Any) -> dict[str, Any]:
    """Digest and size of a value: who has the value can tell that it is the one."""
    encoded = encode(value)
    text = b64encode(sha256(CANONICAL.encode(encoded).encode()).digest()).decode().rstrip("=")
    return {"sha256": text, "bytes": item_bytes({"": encoded})}


def _bytes(row: Mapping[str, Any]) -> int:
    """The size of a row; more than any limit where values are nested too deep for it."""
    try:
        return item_bytes(encode(row)["M"])
    except HandlerError:
        return ITEM_BYTES_MAX + 1


def _digests(key: bytes, change: Change, target: Key, place: Any, own: Mapping[str, Any]) -> dict[str, str]:
    images = (("old", change.old), ("new", change.new))
    found = {side: image_digest(key, change.table.name, image) for side, image in images}
    digests = {side: digest for side, digest in found.items() if digest is not None}
    digests[ROW] = row_digest(key, {**target.attributes(*place), **own, "digests": digests})
    return digests
