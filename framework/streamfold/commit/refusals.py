"""Why a row refused a write: because the row is as new already, or because it will never take the write."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeGuard

from streamfold.errors import HandlerError, RowTaken, told
from streamfold.keys.table import CONTRIBUTORS, MARK, OWNER, VERSION
from streamfold.records.encoded import ITEM_BYTES_MAX, item_bytes
from streamfold.records.images import hidden
from streamfold.records.values import encode
from streamfold.routes.route import Route
from streamfold.writes.guarded import (
    CONDITION,
    AddRow,
    DeleteRow,
    GuardedPut,
    GuardedWrite,
    PutRow,
    Reason,
    Refused,
    RowKey,
    StateKey,
)

LARGEST_SHOWN = 3
"""Attributes of a row that is too large which a message names."""


def is_stale(write: GuardedWrite, reason: Reason) -> bool:
    """Whether a guarded put was refused only because the row, its own, is as new."""
    return isinstance(write, GuardedPut) and not _has_no_version(reason) and _own(write, reason)


def is_added_to(write: GuardedWrite, reason: Reason) -> TypeGuard[PutRow | DeleteRow]:
    """Whether a whole row was refused because others add to the row: it counts contributors and has no owner."""
    return isinstance(write, PutRow | DeleteRow) and counts_contributors(reason) and _owner(reason) is None


def _owner(reason: Reason) -> Any:
    """The owner of the row that refused a write. The mark of a row that is being corrected is none."""
    owner = (reason.item or {}).get(OWNER)
    return None if isinstance(owner, str) and owner.startswith(MARK) else owner


def would_be_empty(write: GuardedWrite, reason: Reason) -> bool:
    """Whether an addition was refused only because the row would count no contributor then."""
    if not (isinstance(write, AddRow) and write.stays and counts_contributors(reason)):
        return False
    found = reason.item or {}
    has_version = write.unversioned and VERSION in found
    counted = found[CONTRIBUTORS]
    enough = isinstance(counted, int | Decimal) and counted >= (write.least or 0)
    return reason.code == CONDITION and not has_version and enough


def only_empty(writes: Sequence[GuardedWrite], refused: Refused) -> bool:
    """Whether nothing but rows that would be empty refused a transaction."""
    return all(would_be_empty(write, reason) for write, reason in zip(writes, refused.reasons, strict=True) if reason)


def counts_contributors(reason: Reason) -> bool:
    """Whether the row that refused a write counts its contributors."""
    return reason.item is not None and CONTRIBUTORS in reason.item


def _own(write: GuardedPut, reason: Reason) -> bool:
    """Whether the version of the row refused a guarded put, and not another owner."""
    return write.owner is None or (reason.item is not None and reason.item.get(OWNER) in (None, write.owner))


def _has_no_version(reason: Reason) -> bool:
    """Whether handlers add to the row that refused: it counts contributors and has no version."""
    return reason.item is not None and CONTRIBUTORS in reason.item and VERSION not in reason.item


def not_its_row(route: Route, write: GuardedWrite, reason: Reason) -> HandlerError:
    """The error of a write that the row will never take."""
    if isinstance(write, AddRow):
        wants, was = "adds to", "put or deleted"
    elif isinstance(write, GuardedPut) and _has_no_version(reason):
        wants, was = "puts or deletes", "added to"
    else:
        return not_the_owner(write, reason)
    return HandlerError(
        f"Handler {route.name!r} {wants} row {told(_name(write.key))}, which was {was} before: a row is put or added "
        "to, never both. Give the additions a target of their own."
    )


def not_the_owner(write: GuardedWrite, reason: Reason) -> HandlerError:
    """The error of a row that another item has: ``RowTaken``, because that item may still give the row up."""
    owner = "another item" if reason.item is None else _owner(reason)
    kind = HandlerError if owner is None else RowTaken
    owner = owner or "the application itself"
    return kind(
        f"Row {told(_name(write.key))} belongs to {told(owner)}: a row with plain attributes has one handler and one "
        "source item. Put a field into its template that tells them apart."
    )


def not_shown(key: RowKey, after: Mapping[str, Any], reason: Reason) -> HandlerError:
    """The error of a row that cannot be recomputed: it would be ``after``, and is too large or refused by the store.

    What the handlers contributed is kept. Their policy decides about the records.
    """
    sizes = {name: item_bytes({name: encode(value)}) for name, value in after.items()}
    if (size := sum(sizes.values())) <= ITEM_BYTES_MAX:
        return HandlerError(
            f"The store refused what row {told(_name(key))} shows, {reason.code}: {told(reason.message)}"
        )
    named = sorted((name for name in sizes if not hidden(name)), key=lambda name: -sizes[name])[:LARGEST_SHOWN]
    largest = ", ".join(f"{name} has {sizes[name]}" for name in named)
    return HandlerError(
        f"Row {told(_name(key))} would have {size} bytes with what it shows, {ITEM_BYTES_MAX} at most: "
        f"{told(largest)}. Keep fewer or smaller values, Top(n, value=...), Collect(..., most=), or take more rows."
    )


def _name(key: RowKey | StateKey) -> str:
    return " / ".join(str(part) for part in key[1:] if part is not None)
