"""What an audit has to lead to: a row for every change, without digests of images, which need a key."""

from datetime import timedelta
from typing import Any

from streamfold.derivations.audit.options import recorded_of
from streamfold.derivations.audit.rows import (
    ACTOR_BYTES_MAX,
    AUDIT_BYTES_MAX,
    VALUE_BYTES_MAX,
    expiry,
    fits,
    fitting,
    row_bytes,
    row_head,
)
from streamfold.derivations.expected import Expected, History, Values
from streamfold.keys.table import DERIVED
from streamfold.records.alike import alike
from streamfold.records.change import Change
from streamfold.records.images import Image, without_derived
from streamfold.records.item_names import item_name
from streamfold.routes.route import Fields, Route


def expected(route: Route, history: History) -> Expected:
    """The rows of all changes; a history does not tell of attributes that were derived onto the item."""
    found = Expected()
    for change, fields in history.changes_of(route):
        if not is_ours(change):
            _audit(route, change, fields, found.rows)
    return found


def _audit(route: Route, change: Change, fields: Fields, rows: dict[Any, Values]) -> None:
    old, new, recorded = (
        Image(without_derived(change.old.raw)),
        Image(without_derived(change.new.raw)),
        recorded_of(route),
    )
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
        part = row["changes"] if changed else kept
        part[name] = {"redacted": list(sides)} if name in recorded.redact else sides
    if change.event == "MODIFY" and recorded.unchanged:
        row["unchanged"] = kept
    if change.expired:
        row["expired"] = True
    target = next(key for key in route.into if len(route.into) == 1 or key.table.name == change.item[0])
    row |= _declared(route, change, target.table.ttl)
    if not _fits(row):
        row = _cut(route, change) | {"item": row["item"]} | expiry(recorded, change, target.table)
    own = {name: value for name, value in row.items() if name not in target.table.attributes}
    rows[(target.table.name, *target.compose({**fields, **named}))] = own


def _fits(row: Values) -> bool:
    """Whether a row may hold all that it is to tell."""
    entries = [*row["changes"].values(), *row.get("unchanged", {}).values()]
    small = all(fits(value, VALUE_BYTES_MAX) for entry in entries for value in entry.values())
    return small and fits(row.get("actor"), ACTOR_BYTES_MAX) and row_bytes(row) <= AUDIT_BYTES_MAX


def _cut(route: Route, change: Change) -> Values:
    """The row of a change that does not fit. Which values are digests then, only the code that writes it says."""
    own, recorded = change.without_derived(), recorded_of(route)
    return fitting(recorded, own, row_head(recorded, own))


def is_ours(change: Change) -> bool:
    """Whether nothing but attributes that were derived onto the item changed."""
    if change.event != "MODIFY" or not (change.has_old and change.has_new):
        return False
    images = [change.old.raw, change.new.raw]
    one, other = (dict(Image(without_derived(image))) for image in images)
    return alike(one, other) and any(DERIVED in image for image in images)


def _declared(route: Route, change: Change, ttl: str | None) -> Values:
    """What a row of an audit also holds where the declaration asks for it."""
    recorded = recorded_of(route)
    found: Values = {}
    if recorded.fields is not None:
        found["fields"] = sorted(recorded.fields)
    if recorded.actor is not None and recorded.actor in change.new:
        found["actor"] = change.new[recorded.actor]
    if recorded.keep_days is not None and ttl is not None and change.has_at:
        found[ttl] = int((change.at + timedelta(days=recorded.keep_days)).timestamp())
    return found
