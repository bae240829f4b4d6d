"""The SQLite file of the embedded engine, or a database in memory: opened, recognised, and given its tables."""

import sqlite3
from pathlib import Path

from streamfold.errors import SettingsError

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


def connect(path: str | Path | None) -> sqlite3.Connection:
    """Opens a state, new or known. Raises ``SettingsError`` for a file that is none."""
    try:
        connection = sqlite3.connect(path or ":memory:", timeout=LOCK_SECONDS_MAX, isolation_level=None)
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
        return connection
    except sqlite3.Error as error:
        raise SettingsError(
            f"State file {path} cannot be opened ({error}): it is no state, or is damaged. Name another with --state."
        ) from None


def _prepare(connection: sqlite3.Connection, path: str | Path | None) -> None:
    """Makes the tables where there are none. Raises ``SettingsError`` for the file of another program."""
    if path:
        connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    (identity,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if identity != APPLICATION_ID and tables:
        raise SettingsError(f"State file {path} is a SQLite file of another program. Name another with --state.")
    if not tables:
        connection.executescript(f"BEGIN; PRAGMA application_id = {APPLICATION_ID}; {SCHEMA} COMMIT;")
