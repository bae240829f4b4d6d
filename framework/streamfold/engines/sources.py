"""Source items in the stores of local replays and proofs, where a cascade finds and removes them, and attributes are
derived onto them.

On AWS such a write is a record of the table's stream. These stores make that record themselves, in their own stream;
its version lies between the item's last and its next one, because the numbers of a real stream are not theirs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from streamfold.engines import OWN_VERSION, Page, StoredItem
from streamfold.keys.table import Table
from streamfold.records.change import BY_OURSELVES
from streamfold.records.values import decode, encode, same
from streamfold.writes.guarded import CONDITION, AbsentSource, DeleteSource, Reason, SourceWrite, UpdateSource

UPDATE_DIGITS = 8
"""Digits of the number of updates since an item's last own change."""


def source_refusal(write: SourceWrite, found: StoredItem | None) -> Reason | None:
    """Why a write of a source item is refused over what was found."""
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
    """What the own stream keeps of a write, its version among it, and the source item after it."""
    if isinstance(write, DeleteSource):
        return removal_of(write, keys, stored_version), None
    after = {name: value for name, value in found.items() if name not in write.removed} | encode(write.values)["M"]
    return _update_of(write, keys, found, after, stored_version), after


def _update_of(
    write: UpdateSource, keys: StoredItem, before: StoredItem, after: StoredItem, stored_version: str
) -> dict[str, Any]:
    """The version is behind those of earlier updates."""
    version, _, number = stored_version.partition(BY_OURSELVES)
    following = f"{version}{BY_OURSELVES}{int(number[:UPDATE_DIGITS] or 0) + 1:0{UPDATE_DIGITS}d}"
    change = {"table": write.key[0], "eventName": "MODIFY", "Keys": keys, "OldImage": before, "NewImage": after}
    return {**change, OWN_VERSION: following}


def removal_of(write: DeleteSource, keys: StoredItem, stored_version: str) -> dict[str, Any]:
    """What the own stream keeps of a removal, its version and time among it.

    It follows the item's last change and the one that led to it, and is older than the next record of either.
    """
    version = max(write.version, stored_version) + BY_OURSELVES
    change = {"table": write.key[0], "eventName": "REMOVE", "Keys": keys, "OldImage": write.image}
    return {**change, OWN_VERSION: version, "at": write.at}


def page_of(table: Table, found: Sequence[Mapping[str, Any]], limit: int) -> Page:
    """A page of what was found with room for one item more than that."""
    more = len(found) > limit and table.sort is not None
    return Page(found[:limit], decode(found[limit - 1][str(table.sort)]) if more else None)
