"""The options that choose a store, and the store that they choose."""

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from streamfold.app import App
from streamfold.cli.application import load_application
from streamfold.engines import Engine
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.engines.memory import MemoryEngine
from streamfold.engines.state_file import APPLICATION_ID
from streamfold.engines.threads import Threads
from streamfold.errors import SettingsError
from streamfold.keys.table import MAIN
from streamfold.records.envelope import Origins
from streamfold.run import Lanes
from streamfold.settings import Settings, undeclared_tables

DEFAULT_STATE = ".streamfold/replay.db"
EMBEDDED_ACTIONS = 2000
"""Writes in one transaction of a local replay: its stores know no limit, and a row touched often is written once."""
LOOPBACK = ("localhost", "::1")
STATE_SUFFIXES = ("", "-wal", "-shm")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Store:
    """Which store a command works on."""

    engine: str
    state: str | None
    endpoint_url: str | None

    @property
    def on_loopback(self) -> bool:
        host = urlsplit(self.endpoint_url or "").hostname or ""
        return host in LOOPBACK or host.startswith("127.")


def store_options(command: F) -> F:
    """The options ``--engine``, ``--endpoint-url``, ``--table``."""
    for option in (
        click.option(
            "--table",
            "tables",
            multiple=True,
            metavar="NAME=REAL",
            help="The real name of a table; REAL alone names the table main. May be repeated.",
        ),
        click.option(
            "--endpoint-url",
            metavar="URL",
            help="The endpoint of DynamoDB, for example of DynamoDB Local. Default: AWS.",
        ),
        click.option(
            "--engine",
            type=click.Choice(["embedded", "dynamodb"]),
            default="embedded",
            show_default=True,
            help="The store: a local one (embedded), or DynamoDB.",
        ),
    ):
        command = option(command)
    return command


def state_option(command: F) -> F:
    """The option ``--state`` of commands that read what a local replay left."""
    return click.option(
        "--state", default=DEFAULT_STATE, show_default=True, metavar="FILE", help="The state file of a local replay."
    )(command)


def make_settings(tables: tuple[str, ...]) -> Settings:
    """The settings of the environment, with ``--table`` on top."""
    settings = Settings.from_environment(os.environ)
    given: dict[str, str] = {}
    for pair in tables:
        name, equals, real = pair.partition("=")
        if not equals:
            name, real = MAIN.name, pair
        if not name or not real:
            raise SettingsError(f"--table {pair!r}: expected NAME=REAL, for example --table shop=orders-prod.")
        given[name] = real
    return settings._replace(
        tables={**settings.tables, **given},
        origins={**settings.origins, **({"tables": "--table"} if given else {})},
    )


def application_and_settings(place: str, tables: tuple[str, ...]) -> tuple[App, Settings]:
    """What a command works with: ``--app`` imported, and the settings with a ``--table`` that the application has."""
    app = load_application(place)
    settings = make_settings(tables)
    check_tables(app, tables)
    warn_of_tables(app, settings)
    return app, settings


def check_tables(app: App, tables: tuple[str, ...]) -> None:
    """Refuses a ``--table`` for a logical name that the application does not have."""
    for pair in tables:
        name = pair.partition("=")[0] if "=" in pair or set(app.tables) != {MAIN.name} else MAIN.name
        if name not in app.tables:
            raise SettingsError(
                f"--table {pair!r}: the application has no table {name!r}, only {', '.join(app.tables)}."
            )


def warn_of_tables(app: App, settings: Settings) -> None:
    """Says on standard error which settings name a table that the application does not have."""
    for text in undeclared_tables(settings, app.tables):
        click.echo(f"Warning: {text}", err=True)


def open_memory(app: App) -> MemoryEngine:
    """The store of a replay that keeps nothing."""
    return MemoryEngine(app.tables.values(), app.chains, actions_max=EMBEDDED_ACTIONS)


def open_embedded(app: App, path: str, *, must_exist: bool = False) -> EmbeddedEngine:
    """The embedded engine over a state file."""
    if must_exist and not (Path(path).is_file() and Path(path).stat().st_size):
        raise SettingsError(
            f"There is no state in {path}: make one with streamfold replay FILES --state {path}, or name yours "
            "with --state."
        )
    _make_folder(Path(path).parent)
    return EmbeddedEngine(app.tables.values(), path, app.chains, actions_max=EMBEDDED_ACTIONS)


def open_store(app: App, settings: Settings, store: Store, *, must_exist: bool = True) -> Engine:
    """A store that is read: the state file of a local replay, which must exist unless said otherwise, or DynamoDB."""
    if store.engine == "embedded":
        return open_embedded(app, store.state or DEFAULT_STATE, must_exist=must_exist)
    from streamfold.engines.dynamodb import DynamoEngine
    from streamfold.engines.dynamodb_client import make_client

    if MAIN.name in app.tables and not settings.real_name(MAIN.name):
        raise SettingsError("The application's keys name no table: give the real one, --table main=REAL.")
    tables, regional = real_tables(app, settings), partial(make_client, store.endpoint_url)
    return DynamoEngine(regional(), tables, state_table(app, settings), regional=regional)


def lanes_of(store: Store, settings: Settings) -> Lanes:
    """How many calls a command makes side by side: on DynamoDB as many as a function; a local state has one thread."""
    return Threads(settings.lanes) if store.engine == "dynamodb" else Lanes()


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


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"Folder {folder} of the state file cannot be made: {error.strerror}.") from None


def remove_state(path: str) -> None:
    """Removes a state file for ``--fresh``; refuses one that streamfold did not make, or that another process uses."""
    file = Path(path)
    if not file.is_file():
        return
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


def real_tables(app: App, settings: Settings, origins: Origins | None = None) -> dict[str, tuple[Any, str]]:
    """The tables with their real names: set, seen in the records, or the logical name itself."""
    seen: dict[str, str] = origins.real_names() if origins else {}
    return {name: (table, settings.real_name(name) or seen.get(name, name)) for name, table in app.tables.items()}


def state_table(app: App, settings: Settings) -> str:
    return settings.state_table or f"{app.name}-state"


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
