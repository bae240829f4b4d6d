"""The options that choose a store, and the store that they choose."""

import json
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from streamfold.app import App
from streamfold.batch.process import check_settings, undeclared_names
from streamfold.cli.application import application_option, load_application
from streamfold.cli.output import echo
from streamfold.cli.state_files import EMBEDDED_ACTIONS, open_embedded
from streamfold.engines import Engine
from streamfold.engines.memory import MemoryEngine
from streamfold.engines.threads import Threads
from streamfold.errors import SettingsError, plain
from streamfold.keys.table import MAIN
from streamfold.records.envelope import Origins
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.settings.loopback import is_loopback
from streamfold.writes.guarded import RowKey

if TYPE_CHECKING:
    from streamfold.engines.dynamodb import DynamoEngine

DEFAULT_STATE = ".streamfold/replay.db"
REPORTED = 1
"""Exit code of a command that ran, and found what somebody has to look at."""
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Store:
    """Which store a command works on."""

    engine: str
    state: str | None
    endpoint_url: str | None

    @property
    def on_loopback(self) -> bool:
        return is_loopback(self.endpoint_url)

    @property
    def on_aws(self) -> bool:
        return self.engine == "dynamodb" and not self.endpoint_url


def store_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options ``--engine``, ``--endpoint-url``, ``--table``: the command is given its ``store`` and ``tables``.

    The command has an option ``--state`` too.
    """

    @wraps(command)
    def with_store(*, engine: str, state: str | None, endpoint_url: str | None, **options: Any) -> Any:
        if state == "":  # an unset variable of a shell
            raise SettingsError("--state is empty: expected the name of a file.")
        return command(store=Store(engine, state, endpoint_url), **options)

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
        with_store = option(with_store)
    return with_store


def state_option(command: F) -> F:
    """The option ``--state`` of commands that read what a local replay left."""
    return click.option(
        "--state", default=DEFAULT_STATE, show_default=True, metavar="FILE", help="The state file of a local replay."
    )(command)


def state_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command over a state that is there: ``--app``, ``--state`` and ``store_options``."""
    return application_option(state_option(store_options(command)))


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
    check_names(app, settings)
    return app, settings


def check_tables(app: App, tables: tuple[str, ...]) -> None:
    """Refuses a ``--table`` for a logical name that the application does not have."""
    for pair in tables:
        name = pair.partition("=")[0] if "=" in pair or set(app.tables) != {MAIN.name} else MAIN.name
        if name not in app.tables:
            raise SettingsError(
                f"--table {pair!r}: the application has no table {name!r}, only {', '.join(app.tables)}."
            )


def check_names(app: App, settings: Settings) -> None:
    """Refuses settings by name that cannot be meant, and warns of those that name nothing of the application."""
    check_settings(app, settings)
    for text in undeclared_names(app, settings):
        warn(text)


def warn(text: str) -> None:
    """Prints a warning on standard error."""
    echo(f"Warning: {plain(text)}", err=True)


def make_runtime(app: App, engine: Engine, store: Store, settings: Settings, *, outside: bool | None = None) -> Runtime:
    """What a command works with. On DynamoDB it makes as many calls at once as a function; a local state one."""
    if store.engine == "embedded":
        return Runtime(app, engine, settings, outside=outside, warn=warn, actions=EMBEDDED_ACTIONS)
    return Runtime(app, engine, settings, outside=outside, warn=warn, slots=Threads(settings.lanes))


def open_memory(app: App, settings: Settings) -> MemoryEngine:
    """The store of a replay that keeps nothing, also no records for groups that it does not serve."""

    def served(row: RowKey) -> Collection[str]:
        return [group for group in app.chains(row) if settings.serves(group)]

    return MemoryEngine(app.tables.values(), served, actions_max=EMBEDDED_ACTIONS)


def open_store(app: App, settings: Settings, store: Store, *, must_exist: bool = True) -> Engine:
    """A store that is read: the state file of a local replay, which must exist unless said otherwise, or DynamoDB."""
    if store.engine == "embedded":
        return open_embedded(app, store.state or DEFAULT_STATE, must_exist=must_exist)
    if is_unnamed(app, settings):
        raise SettingsError("The application's keys name no table: give the real one, --table main=REAL.")
    return open_dynamodb(app, settings, store)


def is_unnamed(app: App, settings: Settings) -> bool:
    """Whether the settings do not name the one table of an application, whose keys do not name it either."""
    return MAIN.name in app.tables and not settings.real_name(MAIN.name)


def open_dynamodb(app: App, settings: Settings, store: Store, origins: Origins | None = None) -> "DynamoEngine":
    """The tables and the state on DynamoDB. ``origins`` knows the real names that records tell."""
    from streamfold.engines.dynamodb import DynamoEngine
    from streamfold.engines.dynamodb_client import make_client

    tables, regional = real_tables(app, settings, origins), partial(make_client, store.endpoint_url)
    return DynamoEngine(regional(), tables, state_table(app, settings), regional=regional)


def confirm_writes(engine: Engine, store: Store, *, yes: bool) -> None:
    """Prints which account and region are written to, and asks unless ``yes``. Not for local ones."""
    if store.on_aws:
        from streamfold.cli.dynamodb import confirm_aws

        confirm_aws(engine, yes=yes)


def real_tables(app: App, settings: Settings, origins: Origins | None = None) -> dict[str, tuple[Any, str]]:
    """The tables with their real names: set, seen in the records, or the logical name itself."""
    seen: dict[str, str] = origins.real_names() if origins else {}
    return {name: (table, settings.real_name(name) or seen.get(name, name)) for name, table in app.tables.items()}


def state_table(app: App, settings: Settings) -> str:
    return settings.state_table or f"{app.name}-state"


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
