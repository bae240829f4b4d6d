"""Source items in the stores of local replays and proofs: cascades remove them, and attributes are derived onto them.

On AWS each such write makes a record of the table's stream. These stores make the record themselves, in their own
stream. Its version lies between the item's last one and its next one, because the real stream's numbers are unknown.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from streamfold.engines import OWN_VERSION, Page, StoredItem
from streamfold.keys.table import Table
from streamfold.records.change import BY_OURSELVES
from streamfold.records.values import decode, encode, same
from streamfold.writes.guarded import CONDITION, AbsentSource, DeleteSource, Reason, SourceWrite, UpdateSource

NEW_IMAGES = "Only records with new images bring them."

UPDATE_DIGITS = 8
"""Digits of the number of updates since an item's last own change."""


def source_refusal(write: SourceWrite, found: StoredItem | None) -> Reason | None:
    """Why a write of a source item is refused, by the item that was found; None if it is not."""
    if isinstance(write, AbsentSource):
        return None if found is None else Reason(CONDITION)
    if found is not None and (_as_read(write, found) if isinstance(write, UpdateSource) else _is_image(write, found)):
        return None
    return Reason(CONDITION, None if found is None else decode({"M": found}))


def _is_image(write: DeleteSource, found: StoredItem) -> bool:
    return same({"M": found}, {"M": write.image})


def _as_read(write: UpdateSource, found: StoredItem) -> bool:
    read = encode(write.expected)["M"]
    return not any(name in found for name in write.absent) and all(same(found.get(name), read[name]) for name in read)


def carried_out(
    write: DeleteSource | UpdateSource, keys: StoredItem, found: StoredItem, stored_version: str
) -> tuple[dict[str, Any], StoredItem | None]:
    """The change for the own stream, with its version, and the source item after the write."""
    if isinstance(write, DeleteSource):
        return removal_of(write, keys, stored_version), None
    after = updated(write, found)
    return _update_of(write, keys, found, after, stored_version), after


def updated(write: UpdateSource, found: StoredItem) -> StoredItem:
    """The source item after an update of its attributes."""
    kept = {name: value for name, value in found.items() if name not in write.removed}
    return {**kept, **encode(write.values)["M"]}


def _update_of(
    write: UpdateSource, keys: StoredItem, before: StoredItem, after: StoredItem, stored_version: str
) -> dict[str, Any]:
    """The version sorts after those of earlier updates."""
    version, _, number = stored_version.partition(BY_OURSELVES)
    following = f"{version}{BY_OURSELVES}{int(number[:UPDATE_DIGITS] or 0) + 1:0{UPDATE_DIGITS}d}"
    change = {"table": write.key[0], "eventName": "MODIFY", "Keys": keys, "OldImage": before, "NewImage": after}
    return {**change, OWN_VERSION: following}


def removal_of(write: DeleteSource, keys: StoredItem, stored_version: str) -> dict[str, Any]:
    """The change for the own stream of a removal, with its version and time.

    The version sorts after the item's last change and the change that led to the removal, and before the next of both.
    """
    version = max(write.version, stored_version) + BY_OURSELVES
    change = {"table": write.key[0], "eventName": "REMOVE", "Keys": keys, "OldImage": write.image}
    return {**change, OWN_VERSION: version, "at": write.at}


def page_of(table: Table, found: Sequence[Mapping[str, Any]], limit: int) -> Page:
    """A page of the items that were found with a limit of one more."""
    more = len(found) > limit and table.sort is not None
    return Page(found[:limit], decode(found[limit - 1][str(table.sort)]) if more else None)
