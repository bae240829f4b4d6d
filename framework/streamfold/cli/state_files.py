"""The state files of local replays: opened, copied, removed."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from streamfold.app import App
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.engines.state_file import APPLICATION_ID
from streamfold.errors import SettingsError
from streamfold.settings.readers import read_path

EMBEDDED_ACTIONS = 2000
"""Writes in one transaction of a local replay: its stores know no limit, and a row touched often is written once."""
STATE_SUFFIXES = ("", "-wal", "-shm")


def open_embedded(app: App, path: str, *, must_exist: bool = False) -> EmbeddedEngine:
    """The embedded engine over a state file."""
    file = _file(path)
    if must_exist and not has_state(path):
        raise SettingsError(
            f"There is no state in {path}: make one with streamfold replay FILES --state {path}, or name yours "
            "with --state."
        )
    _make_folder(file.parent)
    return EmbeddedEngine(app.tables.values(), path, app.chains, actions_max=EMBEDDED_ACTIONS)


def has_state(path: str) -> bool:
    """Whether a state file is there: an empty file holds none."""
    file = _file(path)
    return file.is_file() and file.stat().st_size > 0


def _file(path: str) -> Path:
    """Where a state file is, or is to be. Raises ``SettingsError`` for a folder."""
    file = read_path("State file", path)
    if file.is_dir():
        raise SettingsError(f"State file {path} is a folder: expected a file, for example {file / 'replay.db'}.")
    return file


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"Folder {folder} of the state file cannot be made: {error.strerror}.") from None


@contextmanager
def open_copy(app: App, path: str) -> Iterator[EmbeddedEngine]:
    """The embedded engine over a copy of a state file, in which anything may be tried."""
    with TemporaryDirectory() as folder:
        copied = str(Path(folder) / "state.db")
        with (
            closing(open_embedded(app, path, must_exist=True)),
            closing(sqlite3.connect(path)) as original,
            closing(sqlite3.connect(copied)) as copy,
        ):
            original.backup(copy)
        with closing(open_embedded(app, copied)) as engine:
            yield engine


def remove_state(path: str) -> None:
    """Removes a state file for ``--fresh``; refuses one that streamfold did not make, or that another process uses."""
    file = _file(path)
    if not file.is_file():
        return
    if not all(os.access(place, os.R_OK | os.W_OK) for place in (file, file.parent)):
        raise SettingsError(
            f"--fresh cannot remove {path}: you may not write it, or its folder. Name another file with --state."
        )
    if file.stat().st_size and not _is_state(file):
        raise SettingsError(
            f"--fresh would remove {path}, which is no streamfold state. Name another file with --state."
        )
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:
        try:
            # Leaving the mode WAL needs the file for oneself: whoever has it open, though idle, is in the way
            # (SQLite, "Write-Ahead Logging", Use of WAL Without Shared-Memory and Persistence of WAL mode).
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            raise SettingsError(
                f"--fresh would remove {path}, but another process has it open ({error}). Let that end first, or name "
                "another file with --state."
            ) from None
        for suffix in STATE_SUFFIXES:
            Path(path + suffix).unlink(missing_ok=True)


def _is_state(file: Path) -> bool:
    try:
        with closing(sqlite3.connect(file)) as connection:
            return bool(connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID)
    except sqlite3.Error:
        return False
