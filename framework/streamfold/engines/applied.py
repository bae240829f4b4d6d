"""The item after a guarded write, or why the write is refused: for engines that compare stored items themselves.

Rows are DynamoDB attribute values, state items plain values. The items that were found are never changed in place.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streamfold.engines import Counter
from streamfold.engines.conditions import (
    corrects,
    ledger_holds,
    pair_is_newer,
    plus,
    recomputed,
    recomputes,
    revision_holds,
    row_is_older,
    takes,
)
from streamfold.engines.keys import key_attributes
from streamfold.keys.key_part import LETTER_BYTES_MAX
from streamfold.keys.table import CONTRIBUTORS, LIFE, OWNER, PARTNER_VERSION, STAMP, VERSION, Table
from streamfold.records.encoded import ITEM_BYTES_MAX, item_bytes
from streamfold.records.values import Number, decode, decode_number, encode, number_text
from streamfold.settings.limits import ACTIONS_MAX, BYTES_MAX
from streamfold.writes.guarded import (
    CONDITION,
    VALIDATION,
    AddRow,
    Claim,
    CorrectRow,
    CounterWrite,
    DeleteRow,
    DeleteState,
    GuardedPut,
    GuardedWrite,
    LedgerWrite,
    PutMirror,
    PutPair,
    PutRow,
    PutState,
    Reason,
    RecomputedRow,
    Refused,
    RowKey,
    StateKey,
    SwapState,
)
from streamfold.writes.sizes import too_large

ABSENT = Reason(CONDITION)
NOTHING = {"N": "0"}

Attributes = dict[str, Any]
StateItem = dict[str, Any]


def refused_as_a_whole(writes: Sequence[GuardedWrite], actions_max: int) -> Refused | None:
    """Refuses a transaction with too many writes, with two writes of one item, or over 4 MB.

    A store that allows more writes than DynamoDB has no limit of bytes either.
    """
    if len(writes) > actions_max or len({write.key for write in writes}) < len(writes):
        why = f"a transaction takes {actions_max} writes at most, and one of each item: found {len(writes)}"
    elif actions_max == ACTIONS_MAX and too_large(writes):
        why = f"a transaction takes {BYTES_MAX} bytes at most"
    else:
        return None
    return Refused((Reason(VALIDATION, None, why),) * len(writes))


def item_too_large(key: RowKey | StateKey, item: Mapping[str, Any]) -> Reason | None:
    """Refuses an item over DynamoDB's size."""
    if letters(item) * LETTER_BYTES_MAX <= ITEM_BYTES_MAX:
        return None
    size = item_bytes(encode(item)["M"] if isinstance(key, StateKey) else item)
    if size <= ITEM_BYTES_MAX:
        return None
    return Reason(VALIDATION, None, f"the item has {size} bytes, {ITEM_BYTES_MAX} at most")


def letters(item: Mapping[str, Any]) -> int:
    """About the length of an item's text, never less than ``item_too_large`` needs; quick for texts and numbers."""
    total = 0
    for name, value in item.items():
        content = value.get("S") or value.get("N") if type(value) is dict else value
        total += len(name) + (len(content) if type(content) is str else _letters_of_other(value))
    return total


def _letters_of_other(value: Any) -> int:
    if type(value) is dict:
        if "M" in value:
            return letters(value["M"])
        texts: list[Any] = [member.get("S") for member in value["L"]] if "L" in value else [None]
        if None not in texts:  # as ``Collect`` makes it
            return len(texts) + sum(map(len, texts))
    return len(repr(value))


def counted_up(counter: Counter, before: StateItem | None, start: int, expires_at: int) -> StateItem:
    """The state item of a counter with the next number."""
    item = dict(before or {})
    item["n"] = item.get("n", start) + 1
    if counter.expires or before is None:
        item["ttl"] = expires_at
    return item


def without_left(texts: Mapping[str, str], before: StateItem | None) -> StateItem | None:
    """A ledger item without these texts of what was left behind, by handler; None if it holds other texts."""
    names = {handler + ".u": text for handler, text in texts.items()}
    if before is None or any(before.get(name) != text for name, text in names.items()):
        return None
    return {name: value for name, value in before.items() if name not in names}


def is_empty(row: Attributes | None) -> bool:
    """Whether a row is there with a count of 0 contributors."""
    return row is not None and row.get(CONTRIBUTORS) == NOTHING


def _found(key: StateKey, item: StateItem) -> Reason:
    return Reason(CONDITION, {**key._asdict(), **item})


def _claim(write: Claim, before: StateItem | None, expires_at: int) -> StateItem | Reason:
    if before is not None:
        return _found(write.key, before)
    return {"s": write.rows, "ttl": expires_at} if write.rows else {"ttl": expires_at}


def _put_state(write: PutState, *_: object) -> StateItem:
    return {"s": write.text}


def _swap_state(write: SwapState, before: StateItem | None, expires_at: int) -> StateItem | Reason:
    if not revision_holds(write.revision, before):
        return ABSENT if before is None else _found(write.key, before)
    return {**write.attributes, "r": write.revision + 1, "ttl": expires_at}


def _delete_state(write: DeleteState, before: StateItem | None, _: int) -> Reason | None:
    if write.expected is not None and (before is None or before.get("s") != write.expected):
        return ABSENT if before is None else _found(write.key, before)
    return None


def _ledger(write: LedgerWrite, before: StateItem | None, expires_at: int) -> StateItem | Reason:
    if not ledger_holds(write, before):
        return ABSENT if before is None else _found(write.key, before)
    item = dict(before) if before else {}
    for part in write.parts:
        item[part.handler + ".v"] = part.version
        item[part.handler + ".s"] = part.contribution
        if part.left is not None:
            item[part.handler + ".u"] = part.left
        item.pop(part.handler + ".fence", None)
        if write.fence:
            item[part.handler + ".fence"] = True
    item["r"] = item.get("r", 0) + 1
    if write.live:
        item["live"] = item.get("live", 0) + write.live
    if write.expires:
        item["ttl"] = expires_at
    else:
        item.pop("ttl", None)
    return item


def _counter(write: CounterWrite, before: StateItem | None, expires_at: int) -> StateItem | Reason:
    if before is None or before.get("n") != write.number:
        return ABSENT if before is None else _found(write.key, before)
    item = before | {"n": write.number if write.raised is None else write.raised}
    if ids := (write.added | set(item.pop("ids", ()))) - write.removed:
        item["ids"] = sorted(ids)  # a list, because the state file has no sets
    if write.expires:
        item["ttl"] = expires_at
    elif write.expires is False:
        item.pop("ttl", None)
    return item


def _mirror(write: PutMirror, before: StateItem | None, _: int) -> StateItem | Reason:
    if before is not None and before["v"] > write.version:
        return _found(write.key, before)
    item = {"s": write.text, "v": write.version}
    return item if write.expires is None else item | {"ttl": write.expires}


def _add(write: AddRow, before: Attributes | None, table: Table, _: int) -> Attributes | Reason:
    if not takes(write, before):
        return Reason(CONDITION, before and decode({"M": before}))
    row = dict(before) if before else key_attributes(table, write.key)
    if not write.unversioned:
        row.pop(OWNER, None)
    amounts = {**write.amounts, CONTRIBUTORS: write.contributors} if write.contributors else write.amounts
    if amounts and (refused := _added(row, amounts, write.key)) is not None:
        return refused
    if write.born:
        row[LIFE] = {"S": write.life}
    if write.stamp:
        row[STAMP] = {"S": write.stamp}
    if write.values or write.removed:
        row = {name: value for name, value in row.items() if name not in write.removed} | encode(write.values)["M"]
    return row


def _added(row: Attributes, amounts: Mapping[str, Number], key: RowKey) -> Reason | None:
    """Adds amounts to a row in place; says why if one of its attributes takes none."""
    for name, amount in amounts.items():
        text = number_text(amount)  # a number that no request could carry is refused, whatever the sum
        if (stored := row.get(name)) is not None:
            if "N" not in stored:
                return Reason(VALIDATION, None, f"attribute {name} of row {key[1:]} is not a number")
            text = number_text(plus(decode_number(stored["N"]), amount))
        row[name] = {"N": text}
    return None


def _correct(write: CorrectRow, before: Attributes | None, table: Table, _: int) -> Attributes | Reason:
    if not corrects(write, before):
        return Reason(CONDITION, before and decode({"M": before}))
    row = dict(before) if before else key_attributes(table, write.key)
    if (refused := _added(row, write.amounts, write.key)) is not None:
        return refused
    return {**{name: value for name, value in row.items() if name not in write.removed}, **encode(write.values)["M"]}


def _recompute(write: RecomputedRow, before: Attributes | None, *_: object) -> Attributes | Reason:
    if before is None or not recomputes(write, before):
        return Reason(CONDITION, before and decode({"M": before}))
    return recomputed(write, before)


def _put(write: PutRow, before: Attributes | None, table: Table, _: int) -> Attributes | Reason:
    refused = _of_another(write, before)
    return {**key_attributes(table, write.key), **encode(write.attributes)["M"]} if refused is None else refused


def _delete(write: DeleteRow, before: Attributes | None, *_: object) -> Reason | None:
    return _of_another(write, before)


def _of_another(write: PutRow | DeleteRow, before: Attributes | None) -> Reason | None:
    """Refuses a row that was put by another owner, and an amendment of a row that is not there."""
    if before is None and isinstance(write, PutRow) and write.amends:
        return ABSENT
    if write.owner and before is not None and before.get(OWNER) != {"S": write.owner}:
        return Reason(CONDITION, decode({"M": before}))
    return None


def _guarded_put(write: GuardedPut, before: Attributes | None, table: Table, expires_at: int) -> Attributes | Reason:
    if before is not None and not row_is_older(before, write):
        return Reason(CONDITION, decode({"M": before}))
    row = key_attributes(table, write.key) | {VERSION: {"S": write.version}}
    if write.owner:
        row[OWNER] = {"S": write.owner}
    if write.attributes is not None:
        row.update(encode(write.attributes)["M"])
        return row
    row[CONTRIBUTORS] = NOTHING
    if table.ttl:
        row[table.ttl] = {"N": str(expires_at)}
    return row


def _pair(write: PutPair, before: Attributes | None, table: Table, _: int) -> Attributes | Reason:
    if not pair_is_newer(write, before):
        return Reason(CONDITION, before and decode({"M": before}))
    return {**key_attributes(table, write.key), **encode(pair_attributes(write, table))["M"]}


def pair_attributes(write: PutPair, table: Table) -> dict[str, Any]:
    """The attributes of a row that was made of two items, without its key."""
    first, second = write.versions
    own: dict[str, Any] = {VERSION: first, PARTNER_VERSION: second, CONTRIBUTORS: int(write.attributes is not None)}
    if table.ttl:
        own[table.ttl] = write.expires
    return {**(write.attributes or {}), **own}


STATE_WRITES: Mapping[type, Callable[[Any, StateItem | None, int], StateItem | Reason | None]] = {
    LedgerWrite: _ledger,
    Claim: _claim,
    PutState: _put_state,
    SwapState: _swap_state,
    CounterWrite: _counter,
    PutMirror: _mirror,
    DeleteState: _delete_state,
}
"""What makes the state item after each kind of write; None if the write removes it."""
ROW_WRITES: Mapping[type, Callable[[Any, Attributes | None, Table, int], Attributes | Reason | None]] = {
    AddRow: _add,
    GuardedPut: _guarded_put,
    RecomputedRow: _recompute,
    CorrectRow: _correct,
    PutPair: _pair,
    PutRow: _put,
    DeleteRow: _delete,
}
"""What makes the row after each kind of write; None if the write removes it.

Raises ``HandlerError`` for values that cannot be stored.
"""
