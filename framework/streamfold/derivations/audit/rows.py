"""What a history row holds: the attributes of the change, and as much of the item as fits."""

import hmac
import re
from base64 import b64encode
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any

from streamfold.derivations.audit.kind import Recorded
from streamfold.errors import HandlerError, shown
from streamfold.keys.key_part import LETTER_BYTES_MAX
from streamfold.keys.table import Table
from streamfold.records.change import Change
from streamfold.records.encoded import CANONICAL, ITEM_BYTES_MAX, item_bytes
from streamfold.records.images import Image, hidden, without_derived
from streamfold.records.values import AttributeValue, RawImage, StoredMap, encode
from streamfold.settings.limits import SECONDS_A_DAY

IMAGE, ROW = "image", "row"
"""The kind of content is part of its digest: the digest of an image never passes for that of a row."""

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
"""Attempts to make a row fit: the largest value that is written out, whether unchanged attributes are written, and the
largest row. A row smaller than one large value holds none, so most rows fit at the first attempt."""
HEAD_BYTES_MAX, ENTRY_BYTES_MAX = 4096, 64
"""More than the attributes of a row that describe its change, but for the version; and more than what a row adds to a
value and its name."""
PLAIN_NUMBER = re.compile(r"(?!-0$)-?(0|[1-9][0-9]{0,29})(\.[0-9]{0,7}[1-9])?", re.ASCII)
"""Numbers that DynamoDB holds, in the spelling in which they are stored, told by their looks."""
VALUE_LEVEL = 3
"""How deep a value lies in its row, where it was at level 1 in the item: below the map of changes and its entry."""
ACTOR_BYTES_MAX = 1024
"""An actor is a name; a larger value is left out, and the row says so."""

Sides = tuple[tuple[str, RawImage], ...]
"""The names under which a row says what an attribute was, each with the image that tells it."""
ChangedAttribute = dict[str, Any]
"""What a row says of one attribute: values by side, ``redacted`` sides, digest and size of ``large`` ones."""


def image_digest(key: bytes, table: str, image: Image) -> str | None:
    """The digest of a whole image, attributes that are redacted or not recorded included; None for an absent one.

    Attributes of the framework and of replication, and those that were derived onto the item, are no part of it.
    """
    return _digest(key, IMAGE, table, encode(dict(Image(without_derived(image.raw))))["M"]) if image else None


def row_digest(key: bytes, row: Mapping[str, Any]) -> str:
    """The digest of a history row: its key and all of its attributes, the digests of the images included."""
    own = {name: value for name, value in row.items() if not hidden(name)}
    own["digests"] = {side: value for side, value in row["digests"].items() if side != ROW}
    return _digest(key, ROW, "", encode(own)["M"])


def same_digest(one: object, other: str) -> bool:
    """Whether two digests are equal, compared in constant time."""
    return isinstance(one, str) and one.isascii() and hmac.compare_digest(one, other)


def _digest(key: bytes, kind: str, table: str, encoded: Mapping[str, Any]) -> str:
    text = CANONICAL.encode([kind, table, encoded])
    return b64encode(hmac.digest(key, text.encode(), "sha256")).decode().rstrip("=")


def own_change(change: Change) -> Change | None:
    """A change without derived attributes; None if only these are known to have changed."""
    return change.unless_same(change.without_derived())


def expiry(recorded: Recorded, change: Change, table: Table) -> dict[str, int]:
    """The time-to-live attribute of the row of a change; empty if rows are kept for good, or the change has no time."""
    if recorded.keep_days is None or table.ttl is None or not change.has_at:
        return {}
    return {table.ttl: int(change.at.timestamp()) + recorded.keep_days * SECONDS_A_DAY}


def _version(recorded: Recorded, change: Change) -> str:
    """The version of the change. It reveals nothing of attributes that are not recorded."""
    if recorded.fields is None and not recorded.redact:
        return change.identity_text
    keys = change.table.attributes
    return change.identity_among(lambda name: name in keys or recorded.shows(name))


def time_of(change: Change) -> dict[str, datetime]:
    """The attribute with the time of a change; none for a record without a time, which no clock may replace.

    The same record has to make the same row whenever it comes.
    """
    return {"at": change.at} if change.has_at else {}


def row_head(recorded: Recorded, change: Change) -> dict[str, Any]:
    """The attributes of a row that describe the change itself."""
    head: dict[str, Any] = {"event": change.event, **time_of(change), "version": _version(recorded, change)}
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


def fitting(recorded: Recorded, change: Change, head: dict[str, Any]) -> dict[str, Any]:
    """The row with as much of the item as fits; ``left_out`` names what did not fit."""
    changed = wanted(recorded, change, change.changed)
    unchanged = None
    if recorded.unchanged and change.event == "MODIFY":
        unchanged = wanted(recorded, change, set(change.new).difference(changed))
    stored = stored_values(recorded, change, head, changed, unchanged)
    if stored is not None:  # as nearly always
        return head | stored
    missing = left_out = head.pop("left_out", [])
    for value_bytes_max, whole, bytes_max in ATTEMPTS:
        missing = left_out if whole or unchanged is None else [*left_out, "unchanged"]
        row = {**head, "left_out": missing} if missing else dict(head)
        row |= _values(recorded, change, changed, unchanged if whole else None, value_bytes_max)
        if row_bytes(row) <= bytes_max:
            return row
    return {**head, "left_out": [*missing, "changes"], "changes": {}}


def wanted(recorded: Recorded, change: Change, names: Iterable[str]) -> list[str]:
    """The attributes to record: those asked for, without the item's key, which is part of the row's."""
    keys, fields = change.table.attributes, recorded.fields
    return sorted([name for name in names if name not in keys and (fields is None or name in fields)])


def _values(
    recorded: Recorded,
    change: Change,
    changed: Collection[str],
    unchanged: Collection[str] | None,
    value_bytes_max: int | None,
) -> dict[str, dict[str, ChangedAttribute]]:
    """The names of changed and of unchanged attributes."""
    found: dict[str, dict[str, Any]] = {name: {} for name in changed}
    for side, image in (("old", change.old), ("new", change.new)):
        for name in changed:
            if name in image.raw:
                found[name][side] = image[name]
    parts = {"changes": found}
    if unchanged is not None:
        parts["unchanged"] = {name: {"value": change.new[name]} for name in unchanged}
    return {
        part: {name: _entry(recorded, name, values, value_bytes_max) for name, values in by_name.items()}
        for part, by_name in parts.items()
    }


def _entry(recorded: Recorded, name: str, values: Mapping[str, Any], value_bytes_max: int | None) -> ChangedAttribute:
    """The entry of an attribute; without a limit, with all its values."""
    if name in recorded.redact:
        return {"redacted": list(values)}
    if value_bytes_max is None:
        return dict(values)
    large = {side: value for side, value in values.items() if not fits(value, value_bytes_max)}
    entry: ChangedAttribute = {side: value for side, value in values.items() if side not in large}
    if large:
        entry["large"] = _fingerprints(name, large)
    return entry


def _fingerprints(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {side: fingerprint(value) for side, value in values.items()}
    except HandlerError as error:  # what DynamoDB never holds, in a record that it did not write
        raise HandlerError(f"Attribute {shown(name)}: {error.marked}") from None


def fits(value: Any, bytes_max: int, level: int = VALUE_LEVEL) -> bool:
    """Whether a value is small enough, and not nested deeper than a row can hold it."""
    try:
        return item_bytes({"": encode(value, level)}) <= bytes_max
    except HandlerError:
        return False


def fingerprint(value: Any) -> dict[str, Any]:
    """Digest and size of a value, so that its owner can recognise it."""
    encoded = encode(value)
    text = b64encode(sha256(CANONICAL.encode(encoded).encode()).digest()).decode().rstrip("=")
    return {"sha256": text, "bytes": item_bytes({"": encoded})}


def stored_values(
    recorded: Recorded,
    change: Change,
    head: Mapping[str, Any],
    changed: Collection[str],
    unchanged: Collection[str] | None,
) -> dict[str, StoredMap] | None:
    """What ``_values`` gives, of plain and small values as they came. None where only it tells whether all fit.

    Values are neither decoded nor encoded again: for ten attributes that saves 490,000 of 820,000 instructions a row
    (``test_a_row_of_plain_values_is_stored_as_one_that_is_looked_at_closely``).
    """
    if recorded.fields is not None or "left_out" in head:
        return None
    parts: list[tuple[str, Collection[str], Sides]] = [
        ("changes", changed, (("old", change.old.raw), ("new", change.new.raw)))
    ]
    if unchanged is not None:
        parts.append(("unchanged", unchanged, (("value", change.new.raw),)))
    size = HEAD_BYTES_MAX + len(head["version"]) * LETTER_BYTES_MAX
    found: dict[str, StoredMap] = {}
    try:
        for part, names, images in parts:
            entries: dict[str, AttributeValue] = {}
            for name in names:
                if not name:
                    return None
                values: dict[str, AttributeValue] = {}
                for side, image in images:
                    if name in image:
                        values[side] = value = image[name]
                        text = value.get("S") if len(value) == 1 else None
                        size += len(text) if text is not None and text.isascii() else _plain_bytes(value)
                size += (len(name) * LETTER_BYTES_MAX + ENTRY_BYTES_MAX) * len(values)
                entries[name] = {"M": _redacted(values) if name in recorded.redact else values}
            found[part] = StoredMap(entries)
    except (AttributeError, TypeError, ValueError):  # no attribute value: who reads it says so
        return None
    return found if size <= VALUE_BYTES_MAX else None


def _redacted(values: RawImage) -> RawImage:
    return {"redacted": {"L": [{"S": side} for side in values]}}


def _plain_bytes(value: AttributeValue) -> int:
    """The size of a plain value, which is stored as it came; more than a row may have for another value."""
    ((tag, content),) = value.items()
    if tag == "S":
        return len(content) if content.isascii() else ITEM_BYTES_MAX
    if tag == "N":
        return len(content) if PLAIN_NUMBER.fullmatch(content) else ITEM_BYTES_MAX
    if content is True or (tag == "BOOL" and content is False):
        return 1 if tag in ("BOOL", "NULL") else ITEM_BYTES_MAX
    if tag == "M" and "" not in content and not any("M" in member for member in content.values()):
        names = sum(map(len, content)) * LETTER_BYTES_MAX
        return names + sum([ENTRY_BYTES_MAX + _plain_bytes(member) for member in content.values()])
    return ITEM_BYTES_MAX


def row_bytes(row: Mapping[str, Any]) -> int:
    """The size of a row; more than any limit where values are nested too deep for it."""
    try:
        return item_bytes(encode(row)["M"])
    except HandlerError:
        return ITEM_BYTES_MAX + 1
