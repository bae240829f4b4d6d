"""The application, the settings and the store of a command. Each is opened when the command first uses it."""

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
from streamfold.derivations.derivation import searches
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.engines.memory import MemoryEngine
from streamfold.engines.protocol import Engine, KeptState
from streamfold.engines.state_file import APPLICATION_ID
from streamfold.errors import SettingsError, StreamfoldError
from streamfold.keys.table import MAIN, Table
from streamfold.lifecycle.backfill import Metered
from streamfold.lifecycle.explain import Explaining
from streamfold.lifecycle.exports import Export, open_export
from streamfold.lifecycle.sources import LOCAL_SEGMENTS, SEGMENTS, ItemKeys, check_named, wanted_routes
from streamfold.records.envelope import Origins
from streamfold.routes.route import Route
from streamfold.runtime import Runtime, Threads
from streamfold.settings import Settings
from streamfold.settings.readers import READERS, is_loopback, read_path
from streamfold.writes.guarded import RowKey

if TYPE_CHECKING:
    from streamfold.engines.dynamodb import DynamoEngine

PROGRAM = "streamfold"
DEFAULT_APPLICATION = "handlers:app"
DEFAULT_STATE = ".streamfold/replay.db"
EMBEDDED, DYNAMODB = "embedded", "dynamodb"
EMBEDDED_ACTIONS = 2000
"""Writes in one transaction of a local replay. Local stores have no limit, and a row of many items is written once."""
STATE_SUFFIXES = ("", "-wal", "-shm")


class GivenOptions:
    """The options and arguments of a command, by name."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def put(self, **values: Any) -> None:
        """Changes options, for example to a default that depends on others."""
        self.__dict__.update(values)

    def get(self, name: str) -> Any:
        """An option that not every command has; None if the command lacks it."""
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
    """One call of a command: its options, application, settings and store.

    ``checks``: checks the application against the manifest of its state. The manifest is read and never written: a
    command that named a handler there would end the functions whose code does not have the handler.
    ``outside``: external handlers are called, and documents leave this machine; None: by the settings.
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
        self.locations: dict[str, Any] = {}  # opened outside of the store, by name in settings; ``Runtime.opened``

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
        """The application with its settings and its store. A local state must exist, unless the command creates it."""
        engine = self.close_later(open_store(self.app, self.settings, self.store, must_exist=self.must_exist))
        runtime = self.runtime_on(engine)
        if self.checks:
            check_application(runtime, write=False)
        return runtime

    def runtime_on(self, engine: Engine) -> Runtime:
        """The runtime on a store that the command opened itself.

        On DynamoDB a command makes as many calls at once as a function; a local state has one thread.
        """
        given: dict[str, Any] = {"actions": EMBEDDED_ACTIONS, "own_stream": engine.own_stream}
        if not self.store.is_local:
            given = {"slots": Threads(self.settings.lanes)}
        outside = True if self.given.get("external") else self.outside
        return Runtime(self.app, engine, self.settings, warn=warn, outside=outside, opened=self.locations, **given)

    @property
    def engine(self) -> Engine:
        return self.runtime.store

    def close_later(self, engine: Any) -> Any:
        return self.stack.enter_context(closing(engine))

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest as it was before the command."""
        return read_manifest(self.app.name, self.engine)

    @property
    def local(self) -> KeptState | None:
        """The engine of a local state, to which no stream delivers; None for DynamoDB."""
        return self.engine.durable

    @property
    def explaining(self) -> Explaining:
        """The application, store and schema for explanations of items and rows."""
        return Explaining(self.app, self.engine, self.runtime.known.schema)

    def keys(self, routes: Sequence[Route]) -> ItemKeys:
        """The keys of the items that these handlers read."""
        return ItemKeys(self.app, self.engine, routes, LOCAL_SEGMENTS if self.local else SEGMENTS)

    def confirm_writes(self) -> None:
        """Prints the account and region of the writes, and asks unless ``--yes``. Local stores need no confirmation."""
        if self.store.on_aws:
            from streamfold.cli.dynamodb import written_to

            confirm(f"This writes to AWS, {written_to(self.engine)}.", yes=self.given.yes, to=" to write to AWS")

    def confirm_documents(self) -> None:
        """Prints the server that documents are written to, unless it is on a loopback, and asks unless ``--yes``."""
        if self.settings.search and searches(self.app.routes) and not is_loopback(self.settings.search):
            confirm(f"This writes documents to {self.settings.search}.", yes=self.given.yes)


def confirm(text: str, *, yes: bool, to: str = " to go on") -> None:
    """Prints the text, and asks unless ``yes``. Raises ``SettingsError`` if no person can answer.

    A command in a pipe would otherwise wait for ever, or write without a confirmation.
    """
    note(text)
    if yes:
        return
    if not can_ask():
        raise SettingsError(f"Nobody can be asked for confirmation here: give --yes{to}.")
    click.confirm("Go on?", abort=True, err=True)


def program() -> str:
    """The name by which this command can be called here, or its path if the name would not find it."""
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
    """Imports ``module:name`` from the current folder.

    Raises ``SettingsError``, with the line of the user's code, if the import fails.
    """
    option, module_name, name = named_application(named)
    import_from_here()
    module = _import(option, named, module_name)
    app = getattr(module, name, None)
    if not isinstance(app, App):
        raise SettingsError(f"{option} {named!r} is no application: {_instead(module, name, app)}")
    return app


def import_from_here() -> None:
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)


def default_application() -> str:
    """The application that ``pyproject.toml`` of the current folder names for its tests, or else ``handlers:app``."""
    import tomllib  # only where nobody names one

    try:
        written = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))
        named = written["tool"]["pytest"]["ini_options"]["streamfold_app"]
    except (OSError, ValueError, KeyError, TypeError):  # none, or no such file: another tool says what is wrong with it
        return DEFAULT_APPLICATION
    return named if isinstance(named, str) and named else DEFAULT_APPLICATION


def named_application(named: str) -> tuple[str, str, str]:
    """The option that named an application, its module and its name there. Raises ``SettingsError`` for other texts."""
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
    return option, module_name, name


def _module_of(file: Path, name: str) -> str:
    """The name of a file's module in the current folder, or in the folder from which it can be imported."""
    if file.name == "__init__":
        file = file.parent
    folder = Path.cwd()
    if file.resolve().is_relative_to(folder):
        return f"a module, such as {'.'.join(file.resolve().relative_to(folder).parts)}:{name}"
    return f"a module, such as {file.name}:{name} in the folder {file.parent}"


def _instead(module: ModuleType, name: str, found: object) -> str:
    """The object of this name in a module, and the expected application."""
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
                f"{option} {named!r}: there is no module {error.name!r} in {Path.cwd()}. Change to the folder that "
                "holds it, or name another with --app. streamfold new DIR makes an application."
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
    """The state file of a local replay, or DynamoDB. Raises ``SettingsError`` for a missing file if ``must_exist``."""
    if store.is_local:
        return open_embedded(app, store.state or DEFAULT_STATE, must_exist=must_exist)
    if is_unnamed(app, settings):
        raise SettingsError("The application's keys name no table: give the real one, --table main=REAL.")
    return open_dynamodb(app, settings, store)


def open_memory(app: App, settings: Settings) -> MemoryEngine:
    """The store of a replay that keeps nothing. It keeps no records for groups that the settings do not serve."""

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
    """The embedded engine over a copy of a state file, for dry runs."""
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
    """Whether a state file exists and is not empty."""
    file = _file(path)
    return file.is_file() and file.stat().st_size > 0


def _file(path: str) -> Path:
    """The path of a state file, which may not exist yet. Raises ``SettingsError`` for a folder."""
    file = read_path("State file", path)
    if file.is_dir():
        raise SettingsError(f"State file {path} is a folder: expected a file, for example {file / 'replay.db'}.")
    return file


def remove_state(path: str) -> None:
    """Removes a state file for ``--fresh``. Raises ``SettingsError`` for a file of another program or one in use."""
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
            # Without this, a process that has the file open would go on writing to a file that is removed. To leave the
            # mode WAL, SQLite needs the file exclusively, so that even an idle process is noticed (SQLite,
            # "Write-Ahead Logging", Use of WAL Without Shared-Memory and Persistence of WAL mode).
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
    """Whether neither the keys of an application nor the settings name its one table."""
    return MAIN.name in app.tables and not settings.real_name(MAIN.name)


def open_dynamodb(app: App, settings: Settings, store: Store, origins: Origins | None = None) -> "DynamoEngine":
    """The tables and the state on DynamoDB. ``origins`` knows the real names of tables from records."""
    from streamfold.engines.dynamodb import DynamoEngine
    from streamfold.engines.dynamodb_client import make_client

    regional = partial(make_client, store.endpoint_url)
    state = settings.state_table or f"{app.name}-state"
    if store.on_loopback:  # an emulator has no accounts
        return DynamoEngine(regional(), real_tables(app, settings, origins), state, regional=regional)
    client, tables = regional(None, settings.role), real_tables(app, settings, origins)
    return DynamoEngine(client, tables, state, regional=regional, role_of=settings.role_of)


def real_tables(app: App, settings: Settings, origins: Origins | None = None) -> Mapping[str, tuple[Any, str]]:
    """The tables with their real names: from the settings, from the records, or the logical name itself."""
    seen: dict[str, str] = origins.real_names() if origins else {}
    return {name: (table, settings.real_name(name) or seen.get(name, name)) for name, table in app.tables.items()}


def metered(engine: Engine) -> Metered:
    """A function that gives the read and write units consumed since its last call; 0 for a local state."""
    if engine.is_local:
        return lambda: (0, 0)
    from streamfold.engines.dynamodb_client import Meter

    meter = Meter(engine.client)  # type: ignore[attr-defined]  # the only other engine
    return lambda: meter.take()[:2]


def chosen_routes(opened: Session, names: Sequence[str], *, offline: bool = False) -> list[Route]:
    """The named handlers; without names, all handlers whose rows follow from items and whose records are processed.

    ``offline``: no stream delivers to the handlers, so no function needs to have named them.

    Raises ``SettingsError`` for a handler that is unknown, retired, switched off, or named by no function.
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
    """The reason why a handler is left out if none is named; "" if it is not left out."""
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
    """The export of the one table of these handlers. Raises ``SettingsError`` unless there is exactly one."""
    if len(tables) != 1:
        names = ", ".join(table.name for table in tables) or "none"
        raise SettingsError(f"--export holds one table, and the handlers read {names}: name the handlers of one table.")
    return open_export(manifest, tables[0], settings.real_name(tables[0].name))
