"""The history row of a change: a function of the change alone, under a key that contains it."""

from collections.abc import Iterable
from typing import Any

from streamfold.change import Change, item_name
from streamfold.route import Fields, Route
from streamfold.values import ITEM_BYTES_MAX, encode, item_bytes
from streamfold.writes import PutRow, RowWrite

AUDIT_BYTES_MAX = ITEM_BYTES_MAX - 4096
"""A history row holds both values of a change, which may be larger than an item: it then names the attributes only."""


def audit_rows(route: Route, change: Change, fields: Fields) -> list[RowWrite]:
    """The history row of one change: a function of the change alone."""
    values = {**fields, "item": item_name(change.item), "version": change.version_text}
    changed = sorted(change.changed.difference(change.table.attributes))
    row = {
        "event": change.event,
        "at": change.at,
        "item": values["item"],
        "version": change.version_text,
        "changes": {name: _difference(name, change, route.redact) for name in changed},
    }
    if change.expired:
        row["expired"] = True
    target = route.target(None) or next(
        target for target in route.targets if target.key.table.name == change.table.name
    )
    own = {name: value for name, value in row.items() if name not in target.key.table.attributes}
    if item_bytes(encode(own)["M"]) > AUDIT_BYTES_MAX:
        own["changes"] = {name: {"too_large": True} for name in changed}
    return [PutRow((target.key.table.name, *target.key.compose(values)), own, None)]


def _difference(name: str, change: Change, redact: Iterable[str]) -> dict[str, Any]:
    if name in redact:
        return {"redacted": True}
    sides = (("old", change.old), ("new", change.new))
    return {side: image[name] for side, image in sides if name in image}
