"""The conditions of guarded writes, for engines that compare stored items themselves."""

from collections.abc import Mapping
from typing import Any

from streamfold.keys.table import CONTRIBUTORS, LIFE, OWNER, PARTNER_VERSION, STAMP, VERSION
from streamfold.records.values import WIDE, Number, decode_number, encode, same
from streamfold.writes.guarded import AddRow, CorrectRow, GuardedPut, LedgerWrite, PutPair, RecomputedRow


def ledger_holds(write: LedgerWrite, item: Mapping[str, Any] | None) -> bool:
    """The condition of a ledger write, as the DynamoDB engine expresses it."""
    if write.revision is not None:
        return revision_holds(write.revision, item)
    stored = item or {}
    if write.live_expected is not None and stored.get("live", 0) != write.live_expected:
        return False
    for part in write.parts:
        if part.handler + ".u" in stored:
            return False
        version = stored.get(part.handler + ".v")
        if version is None:
            if part.expected:
                return False
        elif (
            version >= part.version or stored[part.handler + ".s"] != part.expected or part.handler + ".fence" in stored
        ):
            return False
    return True


def takes(write: AddRow, row: Mapping[str, Any] | None) -> bool:
    """The condition of an addition."""
    if write.unversioned and row is not None and VERSION in row:
        return False
    if write.born:
        return row is None
    if write.life is not None and (row or {}).get(LIFE) != ({"S": write.life} if write.life else None):
        return False
    least = write.contributors_required
    if least is None:
        return True
    return row is not None and CONTRIBUTORS in row and decode_number(row[CONTRIBUTORS]["N"]) >= least


def recomputes(write: RecomputedRow, row: Mapping[str, Any] | None) -> bool:
    """The condition of a recomputed row."""
    return row is not None and row.get(STAMP) == {"S": write.stamp}


def corrects(write: CorrectRow, row: Mapping[str, Any] | None) -> bool:
    """The condition of a corrected row: what was read of it is as it was."""
    stored = row or {}
    kept = all(same(stored.get(name), encode(value)) for name, value in write.expected.items())
    return kept and not any(name in stored for name in write.absent)


def recomputed(write: RecomputedRow, row: Mapping[str, Any]) -> dict[str, Any]:
    """The row after it is recomputed, as DynamoDB attribute values."""
    left = {name: value for name, value in row.items() if name not in write.removed}
    return {**left, **encode(write.values)["M"]}


def revision_holds(revision: int, item: Mapping[str, Any] | None) -> bool:
    return bool(item is not None and item.get("r") == revision) if revision else item is None


def row_is_older(row: Mapping[str, Any], write: GuardedPut) -> bool:
    if write.owner and row.get(OWNER, {"S": write.owner}) != {"S": write.owner}:
        return False
    return row[VERSION]["S"] < write.version if VERSION in row else CONTRIBUTORS not in row


def pair_is_newer(write: PutPair, row: Mapping[str, Any] | None) -> bool:
    """The condition of a row that was made of two items: neither of the stored versions is newer."""
    if row is None:
        return not write.replaces
    first, second = (row.get(name, {}).get("S") for name in (VERSION, PARTNER_VERSION))
    return first is not None and second is not None and first <= write.versions[0] and second <= write.versions[1]


def plus(one: Number, other: Number) -> Number:
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    return WIDE.add(one, other)
