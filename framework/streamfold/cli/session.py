"""What a command works on: the application, its settings, and the store; each is opened here, when it is asked for."""

import importlib
import os
import shutil
import sqlite3
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from streamfold.app import App
from streamfold.batch.manifest import RETIRED, Manifest, read_manifest
from streamfold.batch.process import check_application, check_settings, undeclared_names
from streamfold.cli.output import can_ask, note, warn
from streamfold.derivations.search.indexes import searches_of
from streamfold.engines import ChainEngine, Engine
from streamfold.engines.call_slots import Threads
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.engines.memory import MemoryEngine
from streamfold.engines.state_file import APPLICATION_ID
from streamfold.errors import SettingsError, StreamfoldError
from streamfold.keys.table import MAIN, Table
from streamfold.lifecycle.backfill import Metered
from streamfold.lifecycle.explain import Explaining
from streamfold.lifecycle.exports import Export, open_export
from streamfold.lifecycle.sources import LOCAL_SEGMENTS, SEGMENTS, ItemKeys, check_named, wanted_routes
from streamfold.records.envelope import Origins
from streamfold.routes.route import Route
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.settings.loopback import is_loopback
from streamfold.settings.readers import READERS, read_path
from streamfold.writes.guarded import RowKey

if TYPE_CHECKING:
    from streamfold.derivations.search.opensearch import OpenSearchIndex
    from streamfold.engines.dynamodb import DynamoEngine

PROGRAM = "streamfold"
DEFAULT_APPLICATION = "handlers:app"
DEFAULT_STATE = ".streamfold/replay.db"
EMBEDDED, DYNAMODB = "embedded", "dynamodb"
EMBEDDED_ACTIONS = 2000
"""Writes in one transaction of a local replay: its stores know no limit, and a row touched often is written once."""
STATE_SUFFIXES = ("", "-wal", "-shm")


class GivenOptions:
    """The options and arguments of a command, by name."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def put(self, **values: Any) -> None:
        """Changes options: what they are where they were not given, for example."""
        self.__dict__.update(values)

    def get(self, name: str) -> Any:
        """An option that not every command has; None where it has not."""
        return self.__dict__.get(name)


@dataclass(frozen=True, slots=True)
class Store:
    """Which store a command works on."""

    engine: str
    state: str | None
    endpoint_url: str | None

    @property
    def is_local(self) -> bool:
        return self.engine == EMBEDDED

    @property
    def on_loopback(self) -> bool:
        return is_loopback(self.endpoint_url)

    @property
    def on_aws(self) -> bool:
        return self.engine == DYNAMODB and not self.endpoint_url


class Session:
    """One call of a command: its options, and what it works on.

    ``checks``: the application is checked against the manifest of its state, which is read and never written: code that
    does not know a handler of the manifest ends with its next batch, and only functions name handlers.
    ``outside``: external handlers are called, and documents leave this machine; None: as the settings say.
    """

    def __init__(
        self,
        given: GivenOptions,
        stack: ExitStack,
        *,
        checks: bool = False,
        outside: bool | None = None,
        exists: bool = True,
    ) -> None:
        self.given = given
        self.stack = stack
        self.checks = checks
        self.outside = outside
        self.must_exist = exists
        self.json_file: IO[str] | None = None  # where --json is printed
        self.places: dict[str, Any] = {}  # outside of the store, by their names in settings; ``Runtime.opened``

    @cached_property
    def app(self) -> App:
        return load_application(self.given.application)

    @cached_property
    def settings(self) -> Settings:
        """The settings of the environment, with ``--table`` and ``--search-url`` on top."""
        app, tables, url = self.app, self.given.get("tables") or (), self.given.get("search_url")
        settings = make_settings(tables)
        for pair in tables:
            name = pair.partition("=")[0] if "=" in pair or set(app.tables) != {MAIN.name} else MAIN.name
            if name not in app.tables:
                raise SettingsError(
                    f"--table {pair!r}: the application has no table {name!r}, only {', '.join(app.tables)}."
                )
        check_settings(app, settings)
        for text in undeclared_names(app, settings):
            warn(text)
        if url is None:
            return settings
        option = "--search-url"
        return settings._replace(search=READERS["search"](option, url), origins={**settings.origins, "search": option})

    @property
    def store(self) -> Store:
        store: Store = self.given.store
        return store

    @cached_property
    def runtime(self) -> Runtime:
        """The application with its settings and its store; a local one has to exist, unless the command makes it."""
        engine = self.close_later(open_store(self.app, self.settings, self.store, must_exist=self.must_exist))
        runtime = self.runtime_on(engine)
        if self.checks:
            check_application(runtime, write=False)
        return runtime

    def runtime_on(self, engine: Engine) -> Runtime:
        """The same on a store that the command opens by itself.

        On DynamoDB as many calls are made at once as by a function; a local state has one thread.
        """
        given: dict[str, Any] = {"actions": EMBEDDED_ACTIONS}
        if not self.store.is_local:
            given = {"slots": Threads(self.settings.lanes)}
        outside = True if self.given.get("external") else self.outside
        return Runtime(self.app, engine, self.settings, warn=warn, outside=outside, opened=self.places, **given)

    @property
    def engine(self) -> Engine:
        return self.runtime.store

    def close_later(self, engine: Any) -> Any:
        """An engine that is closed when the command ends."""
        return self.stack.enter_context(closing(engine))

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest as it was before the command."""
        return read_manifest(self.app.name, self.engine)

    @property
    def local(self) -> ChainEngine | None:
        """The engine of a local state, to which no stream delivers; None for DynamoDB."""
        return self.engine.durable

    @property
    def explaining(self) -> Explaining:
        """What explanations of items and rows are made with."""
        return Explaining(self.app, self.engine, self.runtime.known.schema)

    def keys(self, routes: Sequence[Route]) -> ItemKeys:
        """The keys of the items that lead to these handlers."""
        return ItemKeys(self.app, self.engine, routes, LOCAL_SEGMENTS if self.local else SEGMENTS)

    def confirm_writes(self) -> None:
        """Prints which account and region are written to, and asks unless ``--yes``. Not for local stores."""
        if self.store.on_aws:
            from streamfold.cli.dynamodb import written_to

            confirm(f"This writes to AWS, {written_to(self.engine)}.", yes=self.given.yes, to=" to write to AWS")

    def confirm_documents(self) -> None:
        """Says that documents are written to a server, if any are and it is no loopback, and asks unless ``--yes``."""
        if self.settings.search and searches_of(self.app.routes) and not is_loopback(self.settings.search):
            confirm(f"This writes documents to {self.settings.search}.", yes=self.given.yes)

    def documents_to_server(self) -> None:
        """Has documents written to the server of ``--search-url``."""
        from streamfold.derivations.search.indexes import OPENED

        if not searches_of(self.app.routes):
            raise SettingsError("--search-url is where documents go: the application has no search.")
        self.places[OPENED] = self.server()

    def server(self) -> "OpenSearchIndex":
        """The search server of the settings. Raises ``SettingsError`` where none is set."""
        from streamfold.derivations.search.opensearch import open_search

        if self.settings.search is None:
            raise SettingsError("No search server is named: expected --search-url https://HOST, or STREAMFOLD_SEARCH.")
        server: OpenSearchIndex = self.close_later(open_search(self.settings))
        return server


def confirm(text: str, *, yes: bool, to: str = " to go on") -> None:
    """Says what happens, and asks unless ``yes``. Raises ``SettingsError`` where nobody can be asked."""
    note(text)
    if yes:
        return
    if not can_ask():
        raise SettingsError(f"Nobody can be asked for confirmation here: give --yes{to}.")
    click.confirm("Go on?", abort=True, err=True)


def program() -> str:
    """How this command is called here: by its name, or by its path where the name alone would not find it."""
    called = sys.argv[0]
    if Path(called).name != PROGRAM or shutil.which(PROGRAM):
        return PROGRAM
    return os.path.relpath(called)


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
        tables={**settings.tables, **given}, origins={**settings.origins, **({"tables": "--table"} if given else {})}
    )


def load_application(named: str) -> App:
    """Imports ``module:name`` from the folder one stands in.

    Raises ``SettingsError``, with the user's own line, when that fails.
    """
    module_name, _, name = named.partition(":")
    context = click.get_current_context(silent=True)
    source = context and context.get_parameter_source("application")
    option = "STREAMFOLD_APP" if source is ParameterSource.ENVIRONMENT else "--app"
    if module_name.endswith(".py") or os.sep in module_name:
        file = Path(module_name.removesuffix(".py"))
        raise SettingsError(f"{option} {named!r} names a file: expected {_module_of(file, name or 'app')}.")
    if not module_name or not name:
        raise SettingsError(
            f"{option} {named!r} names no application: expected MODULE:NAME, for example {DEFAULT_APPLICATION}."
        )
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    module = _import(option, named, module_name)
    app = getattr(module, name, None)
    if not isinstance(app, App):
        raise SettingsError(f"{option} {named!r} is no application: {_instead(module, name, app)}")
    return app


def _module_of(file: Path, name: str) -> str:
    """The module of a file, as it is named where one stands, or where it would be found."""
    if file.name == "__init__":
        file = file.parent
    folder = Path.cwd()
    if file.resolve().is_relative_to(folder):
        return f"a module, such as {'.'.join(file.resolve().relative_to(folder).parts)}:{name}"
    return f"a module, such as {file.name}:{name} where you stand in {file.parent}"


def _instead(module: ModuleType, name: str, found: object) -> str:
    """What a module has in place of an application of this name, and what was expected."""
    has = f"the module has no {name!r}" if found is None else f"it is {type(found).__name__}"
    if apps := [other for other, value in vars(module).items() if isinstance(value, App)]:
        return f"{has}. Did you mean {module.__name__}:{apps[0]}?"
    return f'{has}. Expected {name} = App("...", routers=[...]) in {module.__file__ or module.__name__}.'


def _import(option: str, named: str, module_name: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except StreamfoldError as error:
        raise SettingsError(f"The application {named} is not declared well.\n{error}{_where(error)}") from error
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise SettingsError(
                f"{option} {named!r}: there is no module {error.name!r} in {Path.cwd()}. Stand in the folder that "
                "holds it, or name another with --app."
            ) from None
        raise SettingsError(f"{option} {named!r} does not import: {error}{_where(error)}") from error
    except (Exception, SystemExit) as error:
        what = error.msg if isinstance(error, SyntaxError) else error
        raise SettingsError(
            f"{option} {named!r} does not import: {type(error).__name__}: {what}{_where(error)}"
        ) from error


def _where(error: BaseException) -> str:
    """The last of the user's own lines that led to an error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"\n  at {error.filename}:{error.lineno}"
    frames = user_frames(error)
    return f"\n  at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of an error that are the user's own: neither streamfold's, the standard library's nor a package's."""
    foreign = (str(Path(__file__).parent.parent), str(Path(traceback.__file__).parent), "<frozen")
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(foreign) and "site-packages" not in frame.filename
    ]


def open_store(app: App, settings: Settings, store: Store, *, must_exist: bool = True) -> Engine:
    """A store that is read: the state file of a local replay, which must exist unless said otherwise, or DynamoDB."""
    if store.is_local:
        return open_embedded(app, store.state or DEFAULT_STATE, must_exist=must_exist)
    if is_unnamed(app, settings):
        raise SettingsError("The application's keys name no table: give the real one, --table main=REAL.")
    return open_dynamodb(app, settings, store)


def open_memory(app: App, settings: Settings) -> MemoryEngine:
    """The store of a replay that keeps nothing, also no records for groups that it does not serve."""

    def served(row: RowKey) -> Collection[str]:
        return [group for group in app.chains(row) if settings.serves(group)]

    return MemoryEngine(app.tables.values(), served, actions_max=EMBEDDED_ACTIONS)


def open_embedded(app: App, path: str, *, must_exist: bool = False) -> EmbeddedEngine:
    """The embedded engine over a state file."""
    folder = _file(path).parent
    if must_exist and not has_state(path):
        raise SettingsError(
            f"There is no state in {path}: make one with streamfold replay FILES --state {path}, or name yours "
            "with --state."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"Folder {folder} of the state file cannot be made: {error.strerror}.") from None
    return EmbeddedEngine(app.tables.values(), path, app.chains, actions_max=EMBEDDED_ACTIONS)


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


def remove_state(path: str) -> None:
    """Removes a state file for ``--fresh``; refuses one that streamfold did not make, or that another process uses."""
    file = _file(path)
    if not file.is_file():
        return
    if not all(os.access(each, os.R_OK | os.W_OK) for each in (file, file.parent)):
        raise SettingsError(
            f"--fresh cannot remove {path}: you may not write it, or its folder. Name another file with --state."
        )
    if file.stat().st_size and not _is_state(file):
        raise SettingsError(
            f"--fresh would remove {path}, which is no streamfold state. Name another file with --state."
        )
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:
        try:
            # Leaving the mode WAL needs the file for oneself: a process that has it open, though idle, is in the way
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


def is_unnamed(app: App, settings: Settings) -> bool:
    """Whether the settings do not name the one table of an application, whose keys do not name it either."""
    return MAIN.name in app.tables and not settings.real_name(MAIN.name)


def open_dynamodb(app: App, settings: Settings, store: Store, origins: Origins | None = None) -> "DynamoEngine":
    """The tables and the state on DynamoDB. ``origins`` knows the real names of tables from records."""
    from streamfold.engines.dynamodb import DynamoEngine
    from streamfold.engines.dynamodb_client import make_client

    regional = partial(make_client, store.endpoint_url)
    state = settings.state_table or f"{app.name}-state"
    return DynamoEngine(regional(), real_tables(app, settings, origins), state, regional=regional)


def real_tables(app: App, settings: Settings, origins: Origins | None = None) -> Mapping[str, tuple[Any, str]]:
    """The tables with their real names: set, seen in the records, or the logical name itself."""
    seen: dict[str, str] = origins.real_names() if origins else {}
    return {name: (table, settings.real_name(name) or seen.get(name, name)) for name, table in app.tables.items()}


def metered(engine: Engine) -> Metered:
    """The read and write units that DynamoDB has consumed since the last call; none of a local state."""
    if engine.is_local:
        return lambda: (0, 0)
    from streamfold.engines.dynamodb_client import Meter

    meter = Meter(engine.client)  # type: ignore[attr-defined]  # the only other engine
    return lambda: meter.take()[:2]


def chosen_routes(opened: Session, names: Sequence[str], *, offline: bool = False) -> list[Route]:
    """The handlers that are named; without names, all whose truth is in their items and whose records are processed.

    ``offline``: no stream delivers to the handlers, so that they need not be named by a function.

    Raises ``SettingsError`` for one that is unknown, retired, switched off, or was named by no function.
    """
    routes = wanted_routes(opened.app, dict.fromkeys(names))
    offline = offline or opened.local is not None
    if names:
        check_named(opened.manifest, routes, offline=offline)
        for route in routes:
            if why := _not_run(opened.settings, route):
                raise SettingsError(f"Handler {route.name!r} {why}: its rows are not kept up to date.")
        return routes
    found = {route.name: left_out(opened, route, offline=offline) for route in routes}
    for name, why in found.items():
        if why:
            note(f"Handler {name!r} {why}: it is left out.")
    return [route for route in routes if not found[route.name]]


def left_out(opened: Session, route: Route, *, offline: bool | None = None) -> str:
    """Why a handler is left out where none is named; "" for one that is not."""
    entry = opened.manifest.handlers.get(route.name)
    if why := _not_run(opened.settings, route):
        return why
    if entry is None and not (opened.local is not None if offline is None else offline):
        return "was not named by any function yet"
    return "is retired in this state" if entry is not None and RETIRED in entry else ""


def _not_run(settings: Settings, route: Route) -> str:
    if route.name in settings.handlers_off:
        return "is switched off (STREAMFOLD_HANDLERS_OFF)"
    if not settings.serves(route.group):
        return f"is of group {route.group!r}, and STREAMFOLD_GROUP is {settings.group!r}"
    return ""


def export_of(settings: Settings, tables: Sequence[Table], manifest: str) -> Export:
    """The export of the one table whose items are read. Raises ``SettingsError`` where there are several, or none."""
    if len(tables) != 1:
        names = ", ".join(table.name for table in tables) or "none"
        raise SettingsError(f"--export is of one table, and the handlers read {names}: name the handlers of one table.")
    return open_export(manifest, tables[0], settings.real_name(tables[0].name))
