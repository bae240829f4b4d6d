"""``streamfold verify --export``: a state at the moment of its exports."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.cli.application import load_application
from streamfold.cli.engines import REPORTED, as_json, check_names, check_tables, make_settings, warn
from streamfold.cli.on_spark import AppPlace, verified_on_spark
from streamfold.cli.output import echo
from streamfold.cli.verified_items import print_verified, verified_report
from streamfold.cli.verified_rows import print_rows, rows_report
from streamfold.cli.work_lines import FailedElsewhere
from streamfold.derivations.derivation import derivation
from streamfold.errors import SettingsError
from streamfold.keys.table import MAIN, STATE
from streamfold.lifecycle.exports import Export, open_export
from streamfold.lifecycle.other_rows import VerifiedExports, check_exports, exported_routes, verify_exports
from streamfold.lifecycle.page import ItemFailed
from streamfold.lifecycle.sources import wanted_routes
from streamfold.lifecycle.verify import Verified
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.settings import Settings

STATE_NAME = "state"
"""What the state table is called in ``--export``."""
SPARK = "spark"
RUNNERS = ("here", SPARK)


class GivenExports(NamedTuple):
    """What the command line said of exports."""

    application: str
    tables: tuple[str, ...]
    places: tuple[str, ...]
    spark: bool
    master: str | None


def compare_exports(given: GivenExports, handlers: Sequence[str], *, json_output: bool) -> int:
    """Compares exports, prints what differs, and returns the exit code. No store is opened."""
    app, settings = load_application(given.application), make_settings(given.tables)
    check_tables(app, given.tables)
    check_names(app, settings)
    routes, left_out = _chosen(app, handlers, spark=given.spark)
    exports = _opened(app, settings, given.places)
    if given.spark:
        found = _on_spark(given, app, routes, exports)
    else:
        found = verify_exports(app, settings, routes, exports, warn)
    if json_output:
        echo(as_json(_report(app, [route.name for route in routes], found, left_out)))
    else:
        _print(found, left_out)
    items = found.items
    return REPORTED if found.rows.different or found.rows.failed or (items and (items.different or items.failed)) else 0


def _chosen(app: App, names: Sequence[str], *, spark: bool) -> tuple[list[Route], dict[str, str]]:
    """The routes that are compared, and why the others are not, by name.

    Raises ``SettingsError`` for one that is named and cannot be compared.
    """
    wanted = wanted_routes(app, dict.fromkeys(names))
    routes = [route for route in exported_routes(wanted) if route.kind.contributes or not spark]
    left_out = {route.name: _why_not(route) for route in (wanted if names else app.routes) if route not in routes}
    for name, why in left_out.items() if names else ():
        raise SettingsError(f"Handler {name!r} cannot be compared by exports: {why}.")
    return routes, left_out


def _why_not(route: Route) -> str:
    """Why exports do not tell whether a handler's work is right."""
    if not derivation(route).reconciles:
        return f"it is of kind {route.kind}, and follows from changes, which no export holds"
    if derivation(route).joins_items:
        return "--runner spark adds up rows, and those of a feed are no sums: leave --runner out"
    return f"it is of kind {route.kind}, and what it made is not accounted for in the state"


def _on_spark(given: GivenExports, app: App, routes: Sequence[Route], exports: Mapping[str, Export]) -> VerifiedExports:
    """The rows, compared by a cluster. Raises ``SettingsError`` for an export of the state."""
    if STATE.name in exports:
        raise SettingsError("--runner spark compares rows: leave the export of the state out, or --runner.")
    time = check_exports(app, routes, exports)
    manifests = {name: export.place for name, export in exports.items()}
    place = AppPlace.here(given.application, given.tables)
    rows, failed = verified_on_spark(place, app, routes, manifests, given.master)
    rows.failed += [ItemFailed(each.item, each.handler, FailedElsewhere(each.error)) for each in failed]
    return VerifiedExports(time, rows, None)


def _opened(app: Application, settings: Settings, places: Sequence[str]) -> Mapping[str, Export]:
    """The exports by the names of their tables, of which the only one may be left out."""
    exports: dict[str, Export] = {}
    for place in places:
        name, equals, rest = place.partition("=")
        if not equals or "/" in name:
            name, rest = next(iter(app.tables)) if len(app.tables) == 1 else MAIN.name, place
        if name == STATE_NAME and name not in app.tables:
            exports[STATE.name] = open_export(rest, STATE, settings.state_table)
        elif name in app.tables:
            exports[name] = open_export(rest, app.tables[name], settings.real_name(name))
        else:
            raise SettingsError(
                f"--export {place!r}: the application has no table {name!r}; expected MANIFEST or NAME=MANIFEST, NAME "
                f"one of {', '.join(app.tables)} or {STATE_NAME}."
            )
    return exports


def _print(found: VerifiedExports, left_out: Mapping[str, str]) -> None:
    print_rows(found.rows)
    if found.items is not None:
        print_verified(found.items)
    for name, why in left_out.items():
        echo(f"Not compared: handler {name!r}: {why}.")
    echo(f"The exports are of {found.time or 'an unknown time'}: what the stream had not brought by then differs.")


def _report(
    app: Application, handlers: Sequence[str], found: VerifiedExports, left_out: Mapping[str, str]
) -> dict[str, Any]:
    items = verified_report(app, handlers, found.items or Verified())
    not_compared = [{"handler": name, "why": why} for name, why in left_out.items()]
    rows = rows_report(app, handlers, found.rows)
    return {**items, "time": found.time, "rows": rows, "not_compared": not_compared}
