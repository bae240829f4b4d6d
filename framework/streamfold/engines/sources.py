"""Source items in the stores of local replays and proofs, where a cascade finds and removes them.

On AWS the removal of a child is a record of its table's stream. These stores make that record themselves, in their own
stream; its version lies between the item's last and its next one, because the numbers of a real stream are not theirs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from streamfold.change import BY_CASCADE
from streamfold.engines import OWN_VERSION, Page, StoredItem
from streamfold.table import Table
from streamfold.values import decode, same
from streamfold.writes import CONDITION, AbsentSource, DeleteSource, Reason, SourceWrite


def source_refusal(write: SourceWrite, found: StoredItem | None) -> Reason | None:
    """Why a write of a source item is refused over what was found."""
    if isinstance(write, AbsentSource):
        return None if found is None else Reason(CONDITION)
    if found is not None and same({"M": found}, {"M": write.image}):
        return None
    return Reason(CONDITION, None if found is None else decode({"M": found}))


def removal_of(write: DeleteSource, keys: StoredItem, stored_version: str) -> dict[str, Any]:
    """What the own stream keeps of a removal, its version and time among it.

    It follows the item's last change and the one that led to it, and is older than the next record of either.
    """
    version = max(write.version, stored_version) + BY_CASCADE
    change = {"table": write.key[0], "eventName": "REMOVE", "Keys": keys, "OldImage": write.image}
    return {**change, OWN_VERSION: version, "at": write.at}


def page_of(table: Table, found: Sequence[Mapping[str, Any]], limit: int) -> Page:
    """A page of what was found with room for one item more than that."""
    more = len(found) > limit and table.sort is not None
    return Page(found[:limit], decode(found[limit - 1][str(table.sort)]) if more else None)
