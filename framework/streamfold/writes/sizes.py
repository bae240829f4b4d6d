"""How large writes are: estimated where many are packed into a transaction, measured where one may be too large."""

from collections.abc import Mapping, Sequence
from typing import Any

from streamfold.records.encoded import ITEM_BYTES_MAX, item_bytes
from streamfold.records.values import encode
from streamfold.settings.limits import BYTES_MAX
from streamfold.writes.guarded import (
    AddRow,
    CounterWrite,
    DeleteSource,
    GuardedPut,
    GuardedWrite,
    LedgerWrite,
    PutMirror,
    PutPair,
    PutRow,
    PutState,
)

BYTES_PLANNED_MAX = BYTES_MAX // 2
"""Sizes are estimated from text lengths, so chunks are cut well below the limit."""
ACTION_BYTES = 512
"""Assumed size of a write that holds amounts, versions and names only."""
SURELY_FIT = BYTES_MAX // ITEM_BYTES_MAX - 2
"""Rows that fit one transaction whatever they hold, beside a ledger item and an item for its contribution."""
ROWS_BYTES_MAX = BYTES_MAX - 2 * ITEM_BYTES_MAX
"""Size of the rows of one page, beside those two."""


def estimated_bytes(write: GuardedWrite) -> int:
    """About the size of a write, from the lengths of its texts: quick, and more rather than less."""
    if type(write) is AddRow:
        return ACTION_BYTES + (len(repr(write.values)) * 2 if write.values else 0)
    if type(write) is LedgerWrite:
        letters, expected = 0, write.revision is None  # only then what is expected is sent
        for part in write.parts:
            letters += len(part.contribution) + len(part.expected) * expected
        return ACTION_BYTES + letters * 2
    if type(write) is PutState:
        return len(write.text) * 2
    if type(write) is PutMirror:
        return ACTION_BYTES + len(write.text) * 2
    if type(write) is CounterWrite:
        return ACTION_BYTES + sum(map(len, write.added | write.removed)) * 2
    if isinstance(write, (PutRow, GuardedPut, PutPair)) and write.attributes:
        return ACTION_BYTES + len(repr(write.attributes)) * 2
    if type(write) is DeleteSource:
        return ACTION_BYTES + item_bytes(write.image)
    return ACTION_BYTES


def measured_bytes(write: GuardedWrite) -> int:
    """The size of what a write stores, as DynamoDB counts an item; little more than that for what is small.

    Raises ``HandlerError`` for values that could not be stored.
    """
    if isinstance(write, DeleteSource):
        return ACTION_BYTES + item_bytes(write.image)
    return ACTION_BYTES + item_bytes(encode(_stored(write))["M"])


def _stored(write: GuardedWrite) -> Mapping[str, Any]:
    if isinstance(write, LedgerWrite):
        return {part.handler: [part.contribution, part.expected, part.version] for part in write.parts}
    if isinstance(write, PutState):
        return {"s": write.text}
    if isinstance(write, PutMirror):
        return {"s": write.text}
    if isinstance(write, CounterWrite):
        return {"ids": [*write.added, *write.removed]}
    if isinstance(write, AddRow):
        return write.values
    return (write.attributes or {}) if isinstance(write, (PutRow, GuardedPut, PutPair)) else {}


def too_large(writes: Sequence[GuardedWrite]) -> bool:
    """Whether writes are together larger than one transaction may be (API Reference, TransactWriteItems)."""
    if len(writes) <= SURELY_FIT or sum(map(estimated_bytes, writes)) <= BYTES_PLANNED_MAX:
        return False
    return sum(map(measured_bytes, writes)) > BYTES_MAX


def fitting(rows: Sequence[GuardedWrite], rows_max: int) -> int:
    """How many of the first rows one transaction takes beside a ledger item and its contribution; one at least."""
    count, size, taken = 0, 0, 0
    for row in rows[:rows_max]:
        size += measured_bytes(row) if len(rows) > SURELY_FIT else 0
        taken += actions_of(row)
        if count and (size > ROWS_BYTES_MAX or taken > rows_max):
            break
        count += 1
    return count


def actions_of(row: GuardedWrite) -> int:
    """The writes that a row takes, with those of its entries."""
    return 1 + (sum(len(each.places) for each in row.changed_entries) if isinstance(row, AddRow) else 0)
