"""The SQLite file of the embedded engine, or a database in memory: opened, recognised, and given its tables.

It also keeps the progress of unfinished replays, in the same transactions as their writes.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

from streamfold.errors import EngineError, SettingsError
from streamfold.settings.readers import make_private

if TYPE_CHECKING:
    from collections.abc import Callable

CURSOR = 0
"""The number of the text with the cursor of a replay; the texts behind it are records to be retried."""

APPLICATION_ID = 0x5F_01D_5F0
"""Marks a SQLite file as a streamfold state."""
FORMAT = 2
"""Of the tables of a state. One of another format would have no times, by which expiry is judged."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS
    items (tbl TEXT, pk TEXT, sk TEXT, item TEXT, version TEXT, at INTEGER, before TEXT, exported INTEGER,
    PRIMARY KEY (tbl, pk, sk));
CREATE TABLE IF NOT EXISTS loaded (tbl TEXT PRIMARY KEY, at INTEGER);
CREATE TABLE IF NOT EXISTS state (pk TEXT, sk TEXT, item TEXT, PRIMARY KEY (pk, sk));
CREATE TABLE IF NOT EXISTS entries (pk TEXT, sk TEXT, text TEXT NOT NULL, PRIMARY KEY (pk, sk)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS stream (grp TEXT, sequence INTEGER, record TEXT, PRIMARY KEY (grp, sequence));
CREATE TABLE IF NOT EXISTS progress (replay TEXT, number INTEGER, text TEXT, PRIMARY KEY (replay, number));
CREATE TABLE IF NOT EXISTS cursor (grp TEXT PRIMARY KEY, sequence INTEGER);
CREATE TABLE IF NOT EXISTS numbered (last INTEGER);
INSERT INTO numbered SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM numbered);
CREATE TABLE IF NOT EXISTS clock (at REAL);
INSERT INTO clock SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM clock);
"""
"""If several processes open a new file at once, one makes the tables, and the others wait and find them.

Entries are small and are read in order, so they are stored in the order of their keys (docs/decisions/0063).
"""
PAGE_BYTES = 4096
"""A page is written whole. With smaller ones, of 2 KB, a large state writes a sixth less and takes 2 % more CPU
(docs/decisions/0063)."""
CACHE_KIB = 32_000
"""Pages in memory. A batch whose pages do not fit writes some of them twice."""
LOG_BYTES_MAX = 256 * 1024 * 1024
"""Size of the write-ahead log at which its pages go to the file. In a long log a page that changes often is written to
the file once. The folder of the state needs the room."""
LOCK_SECONDS_MAX = 10
SWITCHES_MAX = 200
SWITCH_PAUSE_SECONDS = 0.05
UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
"""Errors of reading. SQLite's message about a damaged file may not even be text."""
DAMAGED = "it is damaged. replay --fresh starts anew, or name another with --state"
WHY = {
    sqlite3.SQLITE_BUSY: "does another process use it?",
    sqlite3.SQLITE_FULL: "make room on its disk; what was committed is kept, and the same command goes on from there.",
    sqlite3.SQLITE_READONLY: "may it be written, and its folder?",
    sqlite3.SQLITE_IOERR: "is its disk well?",
    sqlite3.SQLITE_CANTOPEN: "is its folder there, and may it be written?",
}
"""The meaning of codes for a file that was a state when it was opened; any other code means that it is damaged."""


class ReplayProgress:
    """The texts that are kept for replays, by their names."""

    def __init__(self, file: "StateFile") -> None:
        self._file = file

    def cursor(self, replay: str) -> str | None:
        """How far a replay came; None for one that has ended or never began."""
        found = self._file.one("SELECT text FROM progress WHERE replay = ? AND number = ?", (replay, CURSOR))
        return str(found[0]) if found else None

    def put_cursor(self, replay: str, text: str) -> None:
        self._file.execute("INSERT OR REPLACE INTO progress VALUES (?, ?, ?)", (replay, CURSOR, text))

    def records(self, replay: str) -> list[str]:
        """The records to be retried when the replay continues."""
        query = "SELECT text FROM progress WHERE replay = ? AND number > ? ORDER BY number"
        return [text for (text,) in self._file.rows(query, (replay, CURSOR))]

    def add_records(self, replay: str, texts: Iterable[str]) -> None:
        (last,) = self._file.one("SELECT coalesce(max(number), ?) FROM progress WHERE replay = ?", (CURSOR, replay))
        rows = [(replay, number, text) for number, text in enumerate(texts, last + 1)]
        self._file.put_all("INSERT INTO progress VALUES (?, ?, ?)", rows)

    def drop_first(self, replay: str, count: int) -> None:
        """Drops the first kept records."""
        some = "SELECT number FROM progress WHERE replay = ? AND number > ? ORDER BY number LIMIT ?"
        query = f"DELETE FROM progress WHERE replay = ? AND number IN ({some})"  # noqa: S608 - constants
        self._file.execute(query, (replay, replay, CURSOR, count))

    def end(self, replay: str) -> None:
        """Drops a replay: the next one of its name starts from the beginning."""
        self._file.execute("DELETE FROM progress WHERE replay = ?", (replay,))


class StateFile:
    """An open state. Raises ``EngineError`` where it cannot be read or written, ``SettingsError`` for another file."""

    def __init__(self, path: str | Path | None) -> None:
        self.path = path
        connection = connect(path)
        self.execute: Callable[..., sqlite3.Cursor] = connection.execute
        self.executemany: Callable[..., sqlite3.Cursor] = connection.executemany
        self.create_function: Callable[..., None] = connection.create_function
        self.close: Callable[[], None] = connection.close
        self._connection = connection
        self._version = 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits the work inside, unless it raises or rolls back itself."""
        try:
            self.execute("BEGIN IMMEDIATE")
            yield
            if self._connection.in_transaction:
                self.execute("COMMIT")
        except UNREADABLE as error:
            raise trouble(self.path, "written", error) from None
        finally:
            if self._connection.in_transaction:
                with suppress(sqlite3.Error):  # a rollback in a damaged file may fail, too
                    self.execute("ROLLBACK")

    def changed_by_others(self) -> bool:
        """Whether another connection has committed since this was asked (SQLite, "PRAGMA data_version")."""
        version = self.execute("PRAGMA data_version").fetchone()[0]
        before, self._version = self._version, version
        return bool(version != before)

    def put_all(self, statement: str, values: Sequence[tuple[Any, ...]]) -> int:
        """Executes a statement for each, in the order of their keys: neighbours in the file one after another.

        Returns how many rows of the file that changed.
        """
        return self.executemany(statement, sorted(values)).rowcount if values else 0

    def rows(self, query: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Iterator[Any]:
        try:
            # A bare cursor is closed with the generator, perhaps too late.
            yield from chain(self.execute(query, values))
        except UNREADABLE as error:
            raise trouble(self.path, "read", error) from None

    def all(self, query: str, values: Sequence[Any]) -> list[Any]:
        """All rows of a query that finds few, at once."""
        try:
            found: list[Any] = self.execute(query, values).fetchall()
            return found
        except UNREADABLE as error:
            raise trouble(self.path, "read", error) from None

    def one(self, query: str, values: Sequence[Any]) -> Any:
        """The first row, or None."""
        try:
            return self.execute(query, values).fetchone()
        except UNREADABLE as error:
            raise trouble(self.path, "read", error) from None

    def items(self, texts: Sequence[Any]) -> list[dict[str, Any]]:
        """The items of stored texts, which are parsed together. Raises ``EngineError`` if the file was damaged."""
        try:
            items = json.loads(f"[{','.join(texts)}]")
        except (TypeError, ValueError, RecursionError):
            items = []
        if len(items) == len(texts) and all(type(item) is dict for item in items):
            return list(items)
        return [self.item(text) for text in texts]  # which raises the error

    def item(self, text: Any) -> dict[str, Any]:
        """The item of a stored text. Raises ``EngineError`` if the file was damaged."""
        try:
            item = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            item = None
        if type(item) is dict:
            return item
        raise EngineError(f"State file {self.path} holds a text that is no item: {DAMAGED}.")


def connect(path: str | Path | None) -> sqlite3.Connection:
    """Opens a state, new or known. Raises ``SettingsError`` for a file that is no state."""
    try:
        _make_private(path)
        # An engine is of one thread; a remaining connection is closed in the thread that collects garbage.
        connection = sqlite3.connect(
            path or ":memory:", timeout=LOCK_SECONDS_MAX, isolation_level=None, check_same_thread=False
        )
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection
    except UNREADABLE as error:
        why = "it is no state, or is damaged."
        if is_busy(error):
            why = "another process keeps it locked."
        elif _code(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            why = "is it a folder, or may you not write it, or its folder?"
        raise SettingsError(f"State file {path} cannot be opened ({error}): {why} Name another with --state.") from None


def _make_private(path: str | Path | None) -> None:
    """Makes a new file before SQLite does, which would let everybody read it. Its log gets the mode of the file."""
    if path:
        with suppress(OSError, ValueError):  # SQLite raises the reason
            make_private(Path(path))


def trouble(path: str | Path | None, what: str, error: Exception) -> EngineError:
    """Why an open state cannot be read or written."""
    return EngineError(f"State file {path} cannot be {what} ({error}): {WHY.get(_code(error), f'{DAMAGED}.')}")


def is_busy(error: Exception) -> bool:
    """Whether another process holds the file."""
    return _code(error) == sqlite3.SQLITE_BUSY


def _code(error: Exception) -> int:
    # The last byte of an extended code (SQLite, rescode, 2).
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _prepare(connection: sqlite3.Connection, path: str | Path | None) -> None:
    """Makes the tables if there are none. Raises ``SettingsError`` for the file of another program."""
    marks = (
        "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master) "
        "FROM pragma_application_id, pragma_user_version"
    )
    identity, known_format, tables = connection.execute(marks).fetchone()
    if identity != APPLICATION_ID and tables:
        raise SettingsError(f"State file {path} is a SQLite file of another program. Name another with --state.")
    if known_format != FORMAT and tables:
        raise SettingsError(
            f"State file {path} has format {known_format}, of another commit of streamfold: expected format {FORMAT}. "
            "Make it anew of the same records, streamfold replay FILES --fresh, or name another with --state."
        )
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # of a new file; a known one keeps its own
    if path:
        _write_ahead(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_BYTES_MAX // PAGE_BYTES}")
    if not tables:
        marked = f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT};"
        connection.executescript(f"BEGIN IMMEDIATE; {marked} {SCHEMA} COMMIT;")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switches a file to its write-ahead log.

    If another process does so at the same time, SQLite gives up at once, without waiting ``LOCK_SECONDS_MAX`` (SQLite,
    "Register A Callback To Handle SQLITE_BUSY Errors": it would be a deadlock).
    """
    for remaining in reversed(range(SWITCHES_MAX)):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if not is_busy(error) or not remaining:
                raise
            sleep(SWITCH_PAUSE_SECONDS)
