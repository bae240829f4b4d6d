"""Finds rows of an item's history that were altered, and rows that are missing.

A row's own digest covers the whole row, its key included. The digests of the images form a chain: the item before a
change is the item after the previous change. No digest covers the previous row, because each row must be a function of
its change alone: otherwise a record that is delivered again days later would make an honest history look forged.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from streamfold.derivations.audit.digests import ROW, image_digest, row_digest, same_digest
from streamfold.derivations.audit.opening import OPENING
from streamfold.records.images import Image
from streamfold.records.item_names import typed

Problem = Literal["forged", "unsigned", "gap", "behind"]
MEANINGS: Mapping[Problem, str] = {
    "forged": "is not as it was written, or not written with this key",
    "unsigned": "carries no digests: written without a key, or stripped of them",
    "gap": "does not begin with the item as the row before left it: a change between them has no row",
    "behind": "is the last, and does not leave the item as it is now: a later change has no row, or none yet",
}
AT_THE_END = "rows that are missing at the end of a history"
NOT_FOUND = (
    AT_THE_END,
    "rows that are missing at its beginning, or behind one that has expired or that opens a history",
    "rows that are missing where the item came back to what it was before them",
)
"""What no walk along the rows can find; a comparison with the item as it is now finds what is missing ``AT_THE_END``.
"""


class Finding(NamedTuple):
    """One thing that is wrong with the history of an item, at one of its rows."""

    item: str
    version: str
    problem: Problem

    def __str__(self) -> str:
        return f"{typed(self.item)}  {self.version}  {self.problem}: the row {MEANINGS[self.problem]}"


def findings(
    item: str,
    rows: Sequence[Mapping[str, Any]],
    key: bytes,
    expired: Callable[[Mapping[str, Any]], bool] = lambda _: False,
) -> Iterator[Finding]:
    """What is wrong with the history of one item: its rows, whole, in plain values, sorted by version.

    A missing row is reported at the row after it, unless the row before it has ``expired``: DynamoDB removes expired
    rows in any order (Developer Guide, howitworks-ttl). ``NOT_FOUND`` says what is not found.
    """
    before: Mapping[str, Any] | None = None
    for row in rows:
        version, digests = str(row.get("version")), row.get("digests")
        if not isinstance(digests, Mapping):
            yield Finding(item, version, "unsigned")
            before = None
            continue
        if not same_digest(digests.get(ROW), row_digest(key, row)):
            yield Finding(item, version, "forged")
        if before is not None and before.get("new") != digests.get("old"):
            yield Finding(item, version, "gap")
        # A first row shows the item as it was read: changes whose rows come next may be in it.
        before = None if expired(row) or row.get("event") == OPENING else digests


def behind(item: str, rows: Sequence[Mapping[str, Any]], key: bytes, table: str, image: Image) -> Finding | None:
    """What is wrong with the last of these rows, beside the item as it is now; ``table`` is the item's, logical."""
    last = rows[-1] if rows else {}
    digests = last.get("digests")
    if not isinstance(digests, Mapping) or digests.get("new") == image_digest(key, table, image):
        return None
    return Finding(item, str(last.get("version")), "behind")
