"""The embedded engine: SQLite from the standard library, in memory or in a file that survives a kill of the process.

It plays the application's tables, their streams (of derived rows only) and the state table. Rows, state and the stream
records that come of them are written in one SQLite transaction, so chains run in a local replay as they do on AWS.
"""

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import finalize

from streamfold.change import ItemKey
from streamfold.engines import Entries, OwnRecord, StoredItem
from streamfold.engines.conditions import ledger_holds, plus, revision_holds, row_is_older, settled, settles
from streamfold.engines.derived_stream import DerivedStream
from streamfold.engines.state_file import connect
from streamfold.errors import EngineError, HandlerError
from streamfold.limits import ACTIONS_MAX, BYTES_MAX
from streamfold.sizes import too_large
from streamfold.sortable import sortable
from streamfold.table import CONTRIBUTORS, OWNER, STAMP, VERSION, Table
from streamfold.values import (
    ITEM_BYTES_MAX,
    decode,
    decode_number,
    encode,
    item_bytes,
    number_text,
    to_json,
)
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

LETTER_BYTES_MAX = 4
HIGHEST = "\U0010ffff"

Row = dict[str, Any]


class EmbeddedEngine:
    """SQLite behind the engine protocol.

    ``wanted`` says which rows' changes the own stream keeps (those that a route reads). ``actions_max`` is DynamoDB's
    limit of writes in a transaction, and brings its limit of 4 MB; a local replay that need not rehearse them may have
    larger ones.
    """

    def __init__(
        self,
        tables: Iterable[Table],
        path: str | Path | None = None,
        wanted: Callable[[RowKey], bool] | None = None,
        *,
        actions_max: int = ACTIONS_MAX,
    ) -> None:
        self.tables = {table.name: table for table in tables}
        self.wanted = wanted
        self.path = path
        self.actions_max = actions_max
        self._connection = connect(path)
        self._stream = DerivedStream(self._connection)
        finalize(self, self._connection.close)  # Python 3.13 warns of a connection that nobody closed

    def close(self) -> None:
        self._connection.close()

    def transact(self, writes: Sequence[Write], expires_at: int) -> Refused | None:
        if len(writes) > self.actions_max or len({write.key for write in writes}) < len(writes):
            why = f"a transaction takes {self.actions_max} writes at most, and one of each item: found {len(writes)}"
            return Refused((Reason(VALIDATION, None, why),) * len(writes))
        if self.actions_max == ACTIONS_MAX and too_large(writes):
            why = f"a transaction takes {BYTES_MAX} bytes at most"
            return Refused((Reason(VALIDATION, None, why),) * len(writes))
        return self._transact(writes, expires_at)

    def put_rows(self, rows: Sequence[PutRow]) -> list[RowKey]:
        refused = self._transact(rows, 0)
        if refused is None:
            return []
        return [
            row.key for row, reason in zip(rows, refused.reasons, strict=True) if reason or self._transact([row], 0)
        ]

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        removed = []
        with self._transaction():
            for key in rows:
                row = self._row(key)
                if row is not None and row.get(CONTRIBUTORS) == {"N": "0"}:
                    self._store(key, row, None)
                    removed.append(key)
        return removed

    def read_state(
        self,
        keys: Iterable[StateKey],
        *,
        consistent: bool = False,  # noqa: ARG002 - it always is
    ) -> dict[StateKey, dict[str, Any]]:
        found = ((key, self._state(key)) for key in keys)
        return {key: item for key, item in found if item is not None}

    def read_rows(self, keys: Iterable[RowKey]) -> dict[RowKey, dict[str, Any]]:
        found = ((key, self._row(key)) for key in keys)
        return {key: decode({"M": row}) for key, row in found if row is not None}

    def read_entries(self, wanted: Entries) -> list[tuple[str, str]]:
        order = "DESC" if wanted.descending else "ASC"
        query = f"SELECT sk, item FROM state WHERE pk = ? AND sk > ? ORDER BY sk {order} LIMIT ?"  # noqa: S608 - constants
        rows = self._connection.execute(query, (wanted.partition, wanted.after, wanted.most))
        return [(place, json.loads(text)["s"]) for place, text in rows]

    def swap_state(self, key: StateKey, attributes: Mapping[str, Any], revision: int) -> bool:
        with self._transaction():
            fits = revision_holds(revision, self._state(key))
            if fits:
                self._put_state(key, {**attributes, "r": revision + 1})
        return fits

    def read_source(self, item: ItemKey) -> StoredItem | None:
        row = self._row(item)
        if row is None and not self._keeps_sources(item[0]):
            raise EngineError(
                f"The state holds no source items of table {item[0]!r}, so it cannot be told whether an item is gone. "
                "A replay keeps them beside its rows: streamfold replay FILES --state FILE."
            )
        return row

    def items(self, table: Table, partition: Any = None) -> Iterator[StoredItem]:
        where, values = ("AND pk = ?", (sortable(partition),)) if partition is not None else ("", ())
        query = f"SELECT item FROM items WHERE tbl = ? {where} AND item IS NOT NULL ORDER BY pk, sk"  # noqa: S608 - constants
        return (json.loads(text) for (text,) in self._connection.execute(query, (table.name, *values)))

    def items_from(self, table: Table, prefix: str) -> Iterator[StoredItem]:
        """The items of a table whose partition key begins with this text."""
        query = "SELECT item FROM items WHERE tbl = ? AND pk >= ? AND pk < ? AND item IS NOT NULL ORDER BY pk, sk"
        values = (table.name, prefix, prefix + HIGHEST)
        return (json.loads(text) for (text,) in self._connection.execute(query, values))

    def state_items(self) -> Iterator[StoredItem]:
        rows = self._connection.execute("SELECT pk, sk, item FROM state ORDER BY pk, sk")
        return (encode({"pk": pk, "sk": sk, **json.loads(text)})["M"] for pk, sk, text in rows)

    # What the store of a local replay does beyond the protocol: source images, and the stream of derived rows.

    def put_sources(self, images: Iterable[tuple[ItemKey, Mapping[str, Any] | None, str]]) -> None:
        """Puts source images (None: removed) where nothing newer is stored. They make no stream records."""
        with self._transaction():
            self._connection.executemany(
                "INSERT INTO items VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET item = excluded.item, "
                "version = excluded.version WHERE version < excluded.version",
                (
                    (key[0], sortable(key[1]), sortable(key[2]), to_json(raw) if raw else None, version)
                    for key, raw, version in images
                ),
            )

    def pending(self, limit: int) -> list[OwnRecord]:
        return self._stream.pending(limit)

    def advance(self, sequence: int, done: Collection[int]) -> None:
        with self._transaction():
            self._stream.advance(sequence, done)

    def retry(self) -> None:
        with self._transaction():
            self._stream.retry()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commits what is done inside, unless that raises or rolls back itself."""
        execute = self._connection.execute
        try:
            execute("BEGIN IMMEDIATE")
            yield
            if self._connection.in_transaction:
                execute("COMMIT")
        except sqlite3.Error as error:
            raise EngineError(
                f"State file {self.path} cannot be written ({error}): does another process use it?"
            ) from None
        finally:
            if self._connection.in_transaction:
                execute("ROLLBACK")

    def _transact(self, writes: Sequence[Write], expires_at: int) -> Refused | None:
        with self._transaction():
            reasons = tuple(self._try(write, expires_at) for write in writes)
            if any(reasons):
                self._connection.execute("ROLLBACK")
                return Refused(reasons)
        return None

    def _try(self, write: Write, expires_at: int) -> Reason | None:
        try:
            return self._write(write, expires_at)
        except HandlerError as error:
            return Reason(VALIDATION, None, str(error))

    def _write(self, write: Write, expires_at: int) -> Reason | None:
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
                if (item := self._state(write.key)) is not None:
                    return Reason(CONDITION, {**write.key._asdict(), **item})
                return self._put_state(write.key, {"ttl": expires_at})
            case PutState():
                return self._put_state(write.key, {"s": write.contribution})
            case DeleteState():
                self._connection.execute("DELETE FROM state WHERE pk = ? AND sk = ?", write.key)
        return None

    def _ledger(self, write: LedgerWrite, expires_at: int) -> Reason | None:
        item = self._state(write.key)
        if not ledger_holds(write, item):
            return Reason(CONDITION, item and {**write.key._asdict(), **item})
        item = item or {}
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
        return self._put_state(write.key, item)

    def _add(self, write: AddRow) -> Reason | None:
        before = self._row(write.key)
        if write.unversioned and before is not None and VERSION in before:
            return Reason(CONDITION, decode({"M": before}))
        row = dict(before) if before else self._key_attributes(write.key)
        amounts = {**write.amounts, CONTRIBUTORS: write.contributors} if write.contributors else write.amounts
        for name, amount in amounts.items():
            stored = row.get(name, {"N": "0"})
            if "N" not in stored:
                return Reason(VALIDATION, None, f"attribute {name} of row {write.key[1:]} is not a number")
            number_text(amount)  # a number that no request could carry is refused, whatever the sum
            row[name] = {"N": number_text(plus(decode_number(stored["N"]), amount))}
        if write.stamp:
            row[STAMP] = {"S": write.stamp}
        return self._store(write.key, before, row)

    def _settle(self, write: SettleRow) -> Reason | None:
        before = self._row(write.key)
        if before is None or not settles(write, before):
            return Reason(CONDITION, before and decode({"M": before}))
        return self._store(write.key, before, settled(write, before))

    def _put_or_delete(self, write: PutRow | DeleteRow) -> Reason | None:
        before = self._row(write.key) if write.owner or self._is_wanted(write.key) else None
        if write.owner and before is not None and before.get(OWNER) != {"S": write.owner}:
            return Reason(CONDITION, decode({"M": before}))
        attributes = encode(write.attributes)["M"] if isinstance(write, PutRow) else None
        return self._store(
            write.key, before, None if attributes is None else {**self._key_attributes(write.key), **attributes}
        )

    def _guarded_put(self, write: GuardedPut, expires_at: int) -> Reason | None:
        before = self._row(write.key)
        if before is not None and not row_is_older(before, write):
            return Reason(CONDITION, decode({"M": before}))
        row = self._key_attributes(write.key) | {VERSION: {"S": write.version}}
        if write.owner:
            row[OWNER] = {"S": write.owner}
        if write.attributes is not None:
            row |= encode(write.attributes)["M"]
        else:
            row[CONTRIBUTORS] = {"N": "0"}
            if ttl := self.tables[write.key[0]].ttl:
                row[ttl] = {"N": str(expires_at)}
        return self._store(write.key, before, row)

    def _key_attributes(self, key: RowKey) -> Row:
        table = self.tables[key[0]]
        return {name: encode(value) for name, value in zip(table.attributes, key[1:], strict=False)}

    def _is_wanted(self, key: RowKey) -> bool:
        return self.wanted is not None and self.wanted(key)

    def _keeps_sources(self, table: str) -> bool:
        """Whether a source image of the table was ever put; only those have a version."""
        query = "SELECT 1 FROM items WHERE tbl = ? AND version IS NOT NULL LIMIT 1"
        return self._connection.execute(query, (table,)).fetchone() is not None

    def _row(self, key: RowKey) -> Row | None:
        found = self._connection.execute(
            "SELECT item FROM items WHERE tbl = ? AND pk = ? AND sk = ?", (key[0], sortable(key[1]), sortable(key[2]))
        ).fetchone()
        return json.loads(found[0]) if found and found[0] else None

    def _store(self, key: RowKey, before: Row | None, after: Row | None) -> Reason | None:
        place = (key[0], sortable(key[1]), sortable(key[2]))
        if after is None:
            self._connection.execute("DELETE FROM items WHERE tbl = ? AND pk = ? AND sk = ?", place)
        else:
            text = to_json(after)
            if (why := _too_large(text, after)) is not None:
                return why
            self._connection.execute("INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?, NULL)", (*place, text))
        if self._is_wanted(key):
            self._stream.add(key[0], self._key_attributes(key), before, after)
        return None

    def _state(self, key: StateKey) -> dict[str, Any] | None:
        found = self._connection.execute("SELECT item FROM state WHERE pk = ? AND sk = ?", key).fetchone()
        return json.loads(found[0]) if found else None

    def _put_state(self, key: StateKey, item: Mapping[str, Any]) -> Reason | None:
        text = to_json(item)
        if (why := _too_large(text, item)) is not None:
            return why
        self._connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", (*key, text))
        return None


def _too_large(text: str, item: Mapping[str, Any]) -> Reason | None:
    """Refuses an item over DynamoDB's size; its text is longer in all but the bytes of its letters."""
    if len(text) * LETTER_BYTES_MAX <= ITEM_BYTES_MAX or (size := item_bytes(encode(item)["M"])) <= ITEM_BYTES_MAX:
        return None
    return Reason(VALIDATION, None, f"the item has {size} bytes, {ITEM_BYTES_MAX} at most")
