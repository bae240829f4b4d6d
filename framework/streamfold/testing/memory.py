"""A store in plain dictionaries behind the engine protocol: what proofs run on, hundreds of histories a second.

It passes the contract test of the other engines (``tests/test_engines.py``). ``touched`` collects the keys that were
written, so that invariants can be looked at after every call without reading everything.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from streamfold.change import ItemKey
from streamfold.engines import Entries, OwnRecord, StoredItem
from streamfold.engines.conditions import ledger_holds, plus, revision_holds, row_is_older, settled, settles
from streamfold.errors import HandlerError
from streamfold.limits import ACTIONS_MAX, BYTES_MAX
from streamfold.sizes import too_large
from streamfold.sortable import sortable
from streamfold.table import CONTRIBUTORS, OWNER, STAMP, VERSION, Table
from streamfold.values import ITEM_BYTES_MAX, decode, decode_number, encode, item_bytes, number_text, same
from streamfold.writes import (
    CONDITION,
    VALIDATION,
    AddRow,
    Claim,
    DeleteRow,
    DeleteState,
    GuardedPut,
    LedgerWrite,
    PutRow,
    PutState,
    Reason,
    Refused,
    RowKey,
    SettleRow,
    StateKey,
    Write,
)

STREAM_LABEL = "memory"
LETTER_BYTES_MAX = 4
ABSENT = Reason(CONDITION)

Row = dict[str, Any]
Found = dict[Any, dict[str, Any] | None]


class MemoryEngine:
    """Dictionaries of rows (as DynamoDB attribute values) and of state items (as plain values).

    ``wanted`` says which rows' changes the own stream keeps, ``sources`` are the application's own items. Stored values
    are never changed in place.
    """

    def __init__(self, tables: Iterable[Table], wanted: Callable[[RowKey], bool] | None = None) -> None:
        self.tables = {table.name: table for table in tables}
        self.wanted = wanted
        self.rows: dict[RowKey, Row] = {}
        self.sources: dict[ItemKey, StoredItem | None] = {}
        self.state: dict[StateKey, dict[str, Any]] = {}
        self.touched: set[RowKey | StateKey] = set()
        self._stream: list[OwnRecord] = []
        self._position = 0
        self._sequence = 0

    def close(self) -> None:
        """Nothing is held open."""

    def transact(self, writes: Sequence[Write], expires_at: int) -> Refused | None:
        if len(writes) > ACTIONS_MAX or len({write.key for write in writes}) < len(writes):
            why = f"a transaction takes {ACTIONS_MAX} writes at most, and one of each item: found {len(writes)}"
            return Refused((Reason(VALIDATION, None, why),) * len(writes))
        if too_large(writes):
            return Refused((Reason(VALIDATION, None, f"a transaction takes {BYTES_MAX} bytes at most"),) * len(writes))
        done: Found = {}
        reasons = tuple(self._try(write, expires_at, done) for write in writes)
        if any(reasons):
            return Refused(reasons)
        self._apply(done)
        return None

    def put_rows(self, rows: Sequence[PutRow]) -> list[RowKey]:
        return [row.key for row in rows if self.transact([row], 0)]

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        empty = {"N": "0"}
        removed = [key for key in dict.fromkeys(rows) if self.rows.get(key, {}).get(CONTRIBUTORS) == empty]
        self._apply(dict.fromkeys(removed))
        return removed

    def read_state(
        self,
        keys: Iterable[StateKey],
        *,
        consistent: bool = False,  # noqa: ARG002 - it always is
    ) -> dict[StateKey, dict[str, Any]]:
        return {key: dict(self.state[key]) for key in keys if key in self.state}

    def read_rows(self, keys: Iterable[RowKey]) -> dict[RowKey, dict[str, Any]]:
        return {key: decode({"M": self.rows[key]}) for key in keys if key in self.rows}

    def read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        places = sorted(key for key in self.state if key.pk == wanted.partition and key.sk > wanted.after)
        first = places[::-1] if wanted.descending else places
        return [(key.sk, self.state[key]["s"]) for key in first[: wanted.most]]

    def swap_state(self, key: StateKey, attributes: Mapping[str, Any], revision: int) -> bool:
        fits = revision_holds(revision, self.state.get(key))
        if fits:
            self._apply({key: {**attributes, "r": revision + 1}})
        return fits

    def read_source(self, item: ItemKey) -> StoredItem | None:
        return self.sources.get(item) or self.rows.get(item)

    def items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        keys = (key for key in self.rows if key[0] == table.name and partition in (None, key[1]))
        return (self.rows[key] for key in sorted(keys, key=lambda key: (sortable(key[1]), sortable(key[2]))))

    def state_items(self) -> Iterator[StoredItem]:
        return (encode({**key._asdict(), **item})["M"] for key, item in sorted(self.state.items()))

    # The stream of derived rows, which chains read.

    def pending(self, limit: int) -> list[OwnRecord]:
        """The first records of the own stream that nobody has processed."""
        left = [record for record in self._stream if record.sequence > self._position]
        return left[:limit]

    def advance(self, sequence: int, done: Collection[int]) -> None:
        """Notes the place up to which the own stream was read, and drops what is done; the rest is for ``retry``."""
        self._stream = [record for record in self._stream if record.sequence not in done]
        self._position = sequence

    def retry(self) -> None:
        """Makes the records of the own stream that failed pending again."""
        if self._stream:
            self._position = min(self._position, self._stream[0].sequence - 1)

    def _apply(self, done: Found) -> None:
        for key, after in done.items():
            self.touched.add(key)
            if isinstance(key, StateKey):
                self._replace(self.state, key, after)
            else:
                if self.wanted is not None and self.wanted(key):
                    self._emit(key, self.rows.get(key), after)
                self._replace(self.rows, key, after)

    @staticmethod
    def _replace(store: dict[Any, Any], key: Any, after: Any) -> None:
        if after is None:
            store.pop(key, None)
        else:
            store[key] = after

    def _try(self, write: Write, expires_at: int, done: Found) -> Reason | None:
        """Notes what a write leaves in ``done``, or says why it is refused."""
        try:
            after = self._after(write, expires_at)
        except HandlerError as error:
            return Reason(VALIDATION, None, str(error))
        if isinstance(after, Reason):
            return after
        if after is not None and (why := _item_too_large(write, after)):
            return why
        done[write.key] = after
        return None

    def _after(self, write: Write, expires_at: int) -> dict[str, Any] | Reason | None:
        match write:
            case LedgerWrite():
                return self._ledger(write, expires_at)
            case AddRow():
                return self._add(write)
            case PutRow() | DeleteRow():
                return self._put_or_delete(write)
            case GuardedPut():
                return self._guarded_put(write, expires_at)
            case SettleRow():
                return self._settle(write)
            case Claim():
                item = self.state.get(write.key)
                return {"ttl": expires_at} if item is None else Reason(CONDITION, {**write.key._asdict(), **item})
            case PutState():
                return {"s": write.contribution}
            case DeleteState():
                return None

    def _ledger(self, write: LedgerWrite, expires_at: int) -> dict[str, Any] | Reason:
        before = self.state.get(write.key)
        if not ledger_holds(write, before):
            return ABSENT if before is None else Reason(CONDITION, {**write.key._asdict(), **before})
        item = dict(before or {})
        for part in write.parts:
            item[part.handler + ".v"] = part.version
            item[part.handler + ".s"] = part.contribution
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

    def _add(self, write: AddRow) -> Row | Reason:
        before = self.rows.get(write.key)
        if write.unversioned and before is not None and VERSION in before:
            return Reason(CONDITION, decode({"M": before}))
        row = dict(before or self._key_attributes(write.key))
        amounts = {**write.amounts, CONTRIBUTORS: write.contributors} if write.contributors else write.amounts
        for name, amount in amounts.items():
            stored = row.get(name, {"N": "0"})
            if "N" not in stored:
                return Reason(VALIDATION, None, f"attribute {name} of row {write.key[1:]} is not a number")
            number_text(amount)
            row[name] = {"N": number_text(plus(decode_number(stored["N"]), amount))}
        if write.stamp:
            row[STAMP] = {"S": write.stamp}
        return row

    def _settle(self, write: SettleRow) -> Row | Reason:
        before = self.rows.get(write.key)
        if before is None or not settles(write, before):
            return Reason(CONDITION, before and decode({"M": before}))
        return settled(write, before)

    def _put_or_delete(self, write: PutRow | DeleteRow) -> Row | Reason | None:
        before = self.rows.get(write.key)
        if write.owner and before is not None and before.get(OWNER) != {"S": write.owner}:
            return Reason(CONDITION, decode({"M": before}))
        if isinstance(write, DeleteRow):
            return None
        return {**self._key_attributes(write.key), **encode(write.attributes)["M"]}

    def _guarded_put(self, write: GuardedPut, expires_at: int) -> Row | Reason:
        before = self.rows.get(write.key)
        if before is not None and not row_is_older(before, write):
            return Reason(CONDITION, decode({"M": before}))
        row = self._key_attributes(write.key) | {VERSION: {"S": write.version}}
        if write.owner:
            row[OWNER] = {"S": write.owner}
        if write.attributes is not None:
            row.update(encode(write.attributes)["M"])
            return row
        row[CONTRIBUTORS] = {"N": "0"}
        if ttl := self.tables[write.key[0]].ttl:
            row[ttl] = {"N": str(expires_at)}
        return row

    def _key_attributes(self, key: RowKey) -> Row:
        return {name: encode(value) for name, value in zip(self.tables[key[0]].attributes, key[1:], strict=False)}

    def _emit(self, key: RowKey, before: Row | None, after: Row | None) -> None:
        """Adds the stream record of a write, unless it changed nothing."""
        if before == after or (before and after and same({"M": before}, {"M": after})):
            return
        self._sequence += 1
        images = {name: image for name, image in (("OldImage", before), ("NewImage", after)) if image is not None}
        body = {"Keys": self._key_attributes(key), "SequenceNumber": str(self._sequence), **images}
        record = {
            "eventID": f"{STREAM_LABEL}-{self._sequence}",
            "eventName": "REMOVE" if after is None else "MODIFY" if before else "INSERT",
            "eventSource": "aws:dynamodb",
            "eventSourceARN": f"arn:aws:dynamodb:local:000000000000:table/{key[0]}/stream/{STREAM_LABEL}",
            "dynamodb": body | {"StreamViewType": "NEW_AND_OLD_IMAGES", "ApproximateCreationDateTime": 0},
        }
        self._stream.append(OwnRecord(self._sequence, record))


def _item_too_large(write: Write, after: Mapping[str, Any]) -> Reason | None:
    if len(repr(after)) * LETTER_BYTES_MAX <= ITEM_BYTES_MAX:
        return None
    raw = encode(after)["M"] if isinstance(write.key, StateKey) else after
    if (size := item_bytes(raw)) <= ITEM_BYTES_MAX:
        return None
    return Reason(VALIDATION, None, f"the item has {size} bytes, {ITEM_BYTES_MAX} at most")
