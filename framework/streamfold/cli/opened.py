"""What commands that derive items again work with: the store, the application checked against it, a run."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import NamedTuple

from streamfold.app import App
from streamfold.batch.fan_outs import run_chains
from streamfold.batch.manifest import RETIRED, Manifest, read_manifest
from streamfold.batch.process import check_application
from streamfold.cli.engines import Store, application_and_settings, make_runtime, open_store
from streamfold.cli.fan_outs import FAILED_SHOWN, follow_fan_outs
from streamfold.cli.output import echo
from streamfold.commit.outcome import Failure
from streamfold.engines import ChainEngine, Engine
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.errors import SettingsError, printable
from streamfold.keys.table import Table
from streamfold.lifecycle.explain import Explaining
from streamfold.lifecycle.exports import Export, open_export
from streamfold.lifecycle.sources import LOCAL_SEGMENTS, SEGMENTS, ItemKeys, check_named, wanted_routes
from streamfold.routes.route import Route
from streamfold.runtime import Runtime


class OpenedState(NamedTuple):
    """An application over a state that a function, or a local replay, has made."""

    app: App
    engine: Engine
    runtime: Runtime
    store: Store
    manifest: Manifest

    @property
    def local(self) -> ChainEngine | None:
        """The engine of a local state, to which no stream delivers; None for DynamoDB."""
        return self.engine if isinstance(self.engine, EmbeddedEngine) else None

    @property
    def explaining(self) -> Explaining:
        """What explanations of its items and rows are made with."""
        return Explaining(self.app, self.engine, self.runtime.known.forms)

    def keys(self, routes: Sequence[Route]) -> ItemKeys:
        """The keys of the items that lead to these handlers."""
        return ItemKeys(self.app, self.engine, routes, LOCAL_SEGMENTS if self.local else SEGMENTS)


@contextmanager
def opened_state(
    application: str, tables: tuple[str, ...], store: Store, *, must_exist: bool = True
) -> Iterator[OpenedState]:
    """Opens a state, and checks the application against it. The manifest is read, never written.

    ``must_exist``: a local state that is not there is refused, not made.

    Code that does not know a handler of the manifest ends with its next batch: only functions name handlers.
    """
    app, settings = application_and_settings(application, tables)
    with closing(open_store(app, settings, store, must_exist=must_exist)) as engine:
        runtime = make_runtime(app, engine, store, settings)
        check_application(runtime, write=False)
        yield OpenedState(app, engine, runtime, store, read_manifest(app.name, engine))


def chosen_routes(opened: OpenedState, names: Sequence[str], *, offline: bool = False) -> list[Route]:
    """The handlers that are named; without names, all whose truth is in their items and whose records are processed.

    ``offline``: no stream delivers to the handlers, so that they need not be named by a function.

    Raises ``SettingsError`` for one that is unknown, retired, switched off, or was named by no function.
    """
    routes = wanted_routes(opened.app, dict.fromkeys(names))
    offline = offline or opened.local is not None
    if names:
        check_named(opened.manifest, routes, offline=offline)
        for route in routes:
            if why := _not_run(opened, route):
                raise SettingsError(f"Handler {route.name!r} {why}: its rows are not kept up to date.")
        return routes
    found = {route.name: _not_run(opened, route) or _not_known(opened, route, offline=offline) for route in routes}
    unwanted = {name: why for name, why in found.items() if why}
    for name, why in unwanted.items():
        _say(f"Handler {name!r} {why}: it is left out.")
    return [route for route in routes if route.name not in unwanted]


def left_out(opened: OpenedState, route: Route) -> str:
    """Why a handler is left out where none is named; "" for one that is not."""
    return _not_run(opened, route) or _not_known(opened, route, offline=opened.local is not None)


def export_of(opened: OpenedState, tables: Sequence[Table], place: str) -> Export:
    """The export of the one table whose items are led. Raises ``SettingsError`` where there are several tables."""
    table = only_table(tables)
    return open_export(place, table, opened.runtime.settings.real_name(table.name))


def only_table(tables: Sequence[Table]) -> Table:
    """The one table of an export. Raises ``SettingsError`` where the handlers read several, or none."""
    if len(tables) != 1:
        names = ", ".join(table.name for table in tables) or "none"
        raise SettingsError(f"--export is of one table, and the handlers read {names}: name the handlers of one table.")
    return tables[0]


def followed_chains(opened: OpenedState) -> Sequence[Failure]:
    """Lets fan-outs follow, and the handlers of a local state that read derived rows; returns what failed.

    On AWS a stream delivers derived rows, and with STREAMFOLD_JOBS a queue rings for fan-outs.
    """
    if opened.local is None:
        failures = follow_fan_outs(opened.runtime).failures
    else:
        opened.local.retry(opened.runtime.settings.group)
        failures = run_chains(opened.runtime, opened.local).failures
    for failure in failures[:FAILED_SHOWN]:
        _say(f"Failed: chains: {printable(str(failure))}")
    if (hidden := len(failures) - FAILED_SHOWN) > 0:
        _say(f"... and {hidden:,} more.")
    return failures


def _not_run(opened: OpenedState, route: Route) -> str:
    settings = opened.runtime.settings
    if route.name in settings.handlers_off:
        return "is switched off (STREAMFOLD_HANDLERS_OFF)"
    if not settings.serves(route.group):
        return f"is of group {route.group!r}, and STREAMFOLD_GROUP is {settings.group!r}"
    return ""


def _not_known(opened: OpenedState, route: Route, *, offline: bool) -> str:
    entry = opened.manifest.handlers.get(route.name)
    if entry is None and not offline:
        return "was not named by any function yet"
    return "is retired in this state" if entry is not None and RETIRED in entry else ""


def _say(text: str) -> None:
    echo(text, err=True)
