"""What a refused row says: whether the write is merely old, or one that the row will never take."""

from streamfold.errors import HandlerError
from streamfold.route import Route
from streamfold.table import CONTRIBUTORS, OWNER, VERSION
from streamfold.writes import AddRow, GuardedPut, Reason, Write


def is_stale(write: Write, reason: Reason) -> bool:
    """Whether a write was refused only because the row is as new: a row-guarded one, over a row of its own."""
    return isinstance(write, GuardedPut) and not _is_added_to(reason) and _own(write, reason)


def _own(write: GuardedPut, reason: Reason) -> bool:
    """Whether what refused a row-guarded write is known to be the row's version, not another owner."""
    return write.owner is None or (reason.item is not None and reason.item.get(OWNER) in (None, write.owner))


def _is_added_to(reason: Reason) -> bool:
    """Whether the row that refused counts additions, and bears no version of a put."""
    return reason.item is not None and CONTRIBUTORS in reason.item and VERSION not in reason.item


def not_its_row(route: Route, write: Write, reason: Reason) -> HandlerError:
    """Why a row will not take a handler's write, however often that is tried."""
    if isinstance(write, AddRow):
        wants, was = "adds to", "put or deleted"
    elif isinstance(write, GuardedPut) and _is_added_to(reason):
        wants, was = "puts or deletes", "added to"
    else:
        return not_the_owner(write, reason)
    return HandlerError(
        f"Handler {route.name!r} {wants} row {_row_name(write)}, which was {was} before: a row is put or added to, "
        "never both. Give the additions a target of their own."
    )


def not_the_owner(write: Write, reason: Reason) -> HandlerError:
    owner = "another item" if reason.item is None else reason.item.get(OWNER, "the application itself")
    return HandlerError(
        f"Row {_row_name(write)} belongs to {owner}: a row with plain attributes has one source item. Put a field into "
        "its template that tells the sources apart."
    )


def _row_name(write: Write) -> str:
    return " / ".join(str(part) for part in write.key[1:] if part is not None)
