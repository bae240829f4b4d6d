"""The embedded engine: SQLite from the standard library, in memory or in a file that survives a kill of the process.

It plays the application's tables, their streams (of derived rows only) and the state table. Rows, state and the stream
records that come of them are written in one SQLite transaction, so chains run in a local replay as they do on AWS.
"""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import DecimalException
from pathlib import Path
from typing import Any, NamedTuple

from streamfold.change import ItemKey
from streamfold.effects import Number
from streamfold.engines import StoredItem
from streamfold.engines.sortable import sortable
from streamfold.errors import EngineError, SettingsError
from streamfold.table import CONTRIBUTORS, OWNER, VERSION, Table
from streamfold.values import EXACT, ITEM_BYTES_MAX, decode_number, encode, item_bytes, number_text, same, to_json
from streamfold.writes import (
    CONDITION,
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
    StateKey,
    Write,
)

APPLICATION_ID = 0x5F_01D_5F0
"""Marks a SQLite file as a streamfold state."""
SCHEMA = """
CREATE TABLE items (tbl TEXT, pk TEXT, sk TEXT, item TEXT, version TEXT, PRIMARY KEY (tbl, pk, sk)) WITHOUT ROWID;
CREATE TABLE state (pk TEXT, sk TEXT, item TEXT, PRIMARY KEY (pk, sk)) WITHOUT ROWID;
CREATE TABLE stream (sequence INTEGER PRIMARY KEY AUTOINCREMENT, record TEXT);
CREATE TABLE cursor (sequence INTEGER);
INSERT INTO cursor VALUES (0);
"""
LOCK_SECONDS_MAX = 10
STREAM_LABEL = "embedded"
VALIDATION = "ValidationError"
HIGHEST = "\U0010ffff"

Row = dict[str, Any]


class Record(NamedTuple):
    """A record of the engine's own stream, with its place in it."""

    sequence: int
    record: dict[str, Any]


class EmbeddedEngine:
    """SQLite behind the engine protocol. ``wanted`` says which rows' changes the own stream keeps (those that a route reads)."""

    def __init__(self, tables: Iterable[Table], path: str | Path | None = None, wanted: Callable[[RowKey], bool] | None = None) -> None:
        self.tables = {table.name: table for table in tables}
        self.wanted = wanted
        self.path = path
        self._connection = _connect(path)

    def close(self) -> None:
        self._connection.close()

    def transact(self, writes: Sequence[Write], expires_at: int) -> Refused | None:
        execute = self._connection.execute
        self._begin()
        try:
            reasons = tuple(self._write(write, expires_at) for write in writes)
            if any(reasons):
                execute("ROLLBACK")
                return Refused(reasons)
            execute("COMMIT")
            return None
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise

    def put_rows(self, rows: Sequence[PutRow]) -> list[RowKey]:
        refused = self.transact(rows, 0)
        if refused is None:
            return []
        return [row.key for row, reason in zip(rows, refused.reasons, strict=True) if reason or self.transact([row], 0)]

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        removed = []
        self._begin()
        for key in rows:
            row = self._row(key)
            if row is not None and row.get(CONTRIBUTORS) == {"N": "0"}:
                self._store(key, row, None)
                removed.append(key)
        self._connection.execute("COMMIT")
        return removed

    def read_state(self, keys: Iterable[StateKey]) -> dict[StateKey, dict[str, Any]]:
        found = ((key, self._state(key)) for key in keys)
        return {key: item for key, item in found if item is not None}

    def swap_state(self, key: StateKey, attributes: Mapping[str, Any], revision: int) -> bool:
        self._begin()
        item = self._state(key)
        fits = bool((item or {}).get("r", 0) == revision)
        if fits:
            self._put_state(key, {**attributes, "r": revision + 1})
        self._connection.execute("COMMIT")
        return fits

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
        self._begin()
        self._connection.executemany(
            "INSERT INTO items VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET item = excluded.item, "
            "version = excluded.version WHERE version < excluded.version",
            ((key[0], sortable(key[1]), sortable(key[2]), to_json(raw) if raw else None, version) for key, raw, version in images),
        )
        self._connection.execute("COMMIT")

    def pending(self, limit: int) -> list[Record]:
        """The first records of the own stream that nobody has processed."""
        rows = self._connection.execute(
            "SELECT sequence, record FROM stream WHERE sequence > (SELECT sequence FROM cursor) ORDER BY sequence LIMIT ?", (limit,)
        )
        return [Record(sequence, _lambda_form(sequence, text)) for sequence, text in rows]

    def advance(self, sequence: int) -> None:
        """Stores that the own stream is processed up to here."""
        self._begin()
        self._connection.execute("UPDATE cursor SET sequence = ?", (sequence,))
        self._connection.execute("DELETE FROM stream WHERE sequence <= ?", (sequence,))
        self._connection.execute("COMMIT")

    def _begin(self) -> None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise EngineError(f"State file {self.path} cannot be written ({error}): does another process use it?") from None

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
            case Claim():
                if (item := self._state(write.key)) is not None:
                    return Reason(CONDITION, item)
                self._put_state(write.key, {"ttl": expires_at})
            case PutState():
                self._put_state(write.key, {"s": write.contribution})
            case DeleteState():
                self._connection.execute("DELETE FROM state WHERE pk = ? AND sk = ?", write.key)
        return None

    def _ledger(self, write: LedgerWrite, expires_at: int) -> Reason | None:
        item = self._state(write.key)
        if not _holds(write, item):
            return Reason(CONDITION, item)
        item = item or {}
        for part in write.parts:
            item[part.handler + ".v"] = part.version
            item[part.handler + ".s"] = part.contribution
            item.pop(part.handler + ".fence", None)
        item["r"] = item.get("r", 0) + 1
        item["live"] = item.get("live", 0) + write.live
        if write.expires:
            item["ttl"] = expires_at
        else:
            item.pop("ttl", None)
        self._put_state(write.key, item)
        return None

    def _add(self, write: AddRow) -> Reason | None:
        before = self._row(write.key)
        row = dict(before) if before else self._key_attributes(write.key)
        amounts = {**write.amounts, CONTRIBUTORS: write.contributors} if write.contributors else write.amounts
        for name, amount in amounts.items():
            stored = row.get(name, {"N": "0"})
            if "N" not in stored:
                return Reason(VALIDATION, None, f"attribute {name} of row {write.key[1:]} is not a number")
            try:
                row[name] = {"N": number_text(_plus(decode_number(stored["N"]), amount))}
            except DecimalException:
                return Reason(VALIDATION, None, f"attribute {name} of row {write.key[1:]} would need more than 38 digits")
        return self._store(write.key, before, row)

    def _put_or_delete(self, write: PutRow | DeleteRow) -> Reason | None:
        before = self._row(write.key) if write.owner or self._is_wanted(write.key) else None
        if write.owner and before is not None and before.get(OWNER) != {"S": write.owner}:
            return Reason(CONDITION, _found(before))
        attributes = encode(write.attributes)["M"] if isinstance(write, PutRow) else None
        return self._store(write.key, before, None if attributes is None else {**self._key_attributes(write.key), **attributes})

    def _guarded_put(self, write: GuardedPut, expires_at: int) -> Reason | None:
        before = self._row(write.key)
        if before is not None and not _older(before, write):
            return Reason(CONDITION, _found(before))
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
            if len(text) > ITEM_BYTES_MAX and (size := item_bytes(after)) > ITEM_BYTES_MAX:
                return Reason(VALIDATION, None, f"row {key[1:]} has {size} bytes, {ITEM_BYTES_MAX} at most")
            self._connection.execute("INSERT OR REPLACE INTO items VALUES (?, ?, ?, ?, NULL)", (*place, text))
        if self._is_wanted(key):
            self._emit(key, before, after)
        return None

    def _emit(self, key: RowKey, before: Row | None, after: Row | None) -> None:
        """Adds the stream record of a write, unless it changed nothing."""
        if before == after or (before and after and same({"M": before}, {"M": after})):
            return
        event = "REMOVE" if after is None else "MODIFY" if before else "INSERT"
        images = {name: image for name, image in (("OldImage", before), ("NewImage", after)) if image is not None}
        record = {"table": key[0], "eventName": event, "Keys": self._key_attributes(key), **images}
        self._connection.execute("INSERT INTO stream (record) VALUES (?)", (to_json(record),))

    def _state(self, key: StateKey) -> dict[str, Any] | None:
        found = self._connection.execute("SELECT item FROM state WHERE pk = ? AND sk = ?", key).fetchone()
        return json.loads(found[0]) if found else None

    def _put_state(self, key: StateKey, item: Mapping[str, Any]) -> None:
        text = json.dumps(item, separators=(",", ":"), ensure_ascii=False)
        self._connection.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", (*key, text))


def _connect(path: str | Path | None) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path or ":memory:", timeout=LOCK_SECONDS_MAX, isolation_level=None)
        if path:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        (identity,) = connection.execute("PRAGMA application_id").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if identity != APPLICATION_ID and tables:
            raise SettingsError(f"State file {path} is a SQLite file of another program. Name another with --state.")
        if not tables:
            connection.executescript(f"BEGIN; PRAGMA application_id = {APPLICATION_ID}; {SCHEMA} COMMIT;")
        return connection
    except sqlite3.Error as error:
        raise SettingsError(f"State file {path} cannot be opened ({error}). Name another with --state, or start anew with --fresh.") from None


def _holds(write: LedgerWrite, item: Mapping[str, Any] | None) -> bool:
    """The condition of a ledger write, as the DynamoDB engine expresses it."""
    if write.revision is not None:
        return bool((item or {}).get("r", 0) == write.revision)
    stored = item or {}
    if write.live_expected is not None and stored.get("live", 0) != write.live_expected:
        return False
    for part in write.parts:
        version = stored.get(part.handler + ".v")
        if version is None:
            if part.expected:
                return False
        elif version >= part.version or stored[part.handler + ".s"] != part.expected or part.handler + ".fence" in stored:
            return False
    return True


def _older(row: Row, write: GuardedPut) -> bool:
    if write.owner and row.get(OWNER, {"S": write.owner}) != {"S": write.owner}:
        return False
    return VERSION not in row or row[VERSION]["S"] < write.version


def _plus(one: Number, other: Number) -> Number:
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    return EXACT.add(one, other)


def _found(row: Row) -> dict[str, str]:
    return {name: row[name]["S"] for name in (VERSION, OWNER) if name in row}


def _lambda_form(sequence: int, text: str) -> dict[str, Any]:
    record = json.loads(text)
    table = record.pop("table")
    event = record.pop("eventName")
    body = {**record, "SequenceNumber": str(sequence), "StreamViewType": "NEW_AND_OLD_IMAGES", "ApproximateCreationDateTime": 0}
    return {
        "eventID": f"{STREAM_LABEL}-{sequence}",
        "eventName": event,
        "eventSource": "aws:dynamodb",
        "eventSourceARN": f"arn:aws:dynamodb:local:000000000000:table/{table}/stream/{STREAM_LABEL}",
        "dynamodb": body,
    }
