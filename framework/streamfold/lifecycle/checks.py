"""What a run over all items may be asked for, and when it may begin."""

from collections.abc import Collection, Iterable
from datetime import datetime

from streamfold.batch.manifest import PARTIAL, RETIRED, SINCE, Manifest
from streamfold.derivations.audit.kind import audit_routes
from streamfold.derivations.derivation import derivation
from streamfold.errors import SettingsError
from streamfold.keys.table import Table
from streamfold.lifecycle.bounds import LATE_SECONDS, through_kinesis
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.routes.suggestions import unknown_handler
from streamfold.settings import Settings


def reconcilable(app: Application) -> list[Route]:
    """The routes whose truth is in their items."""
    return [route for route in app.routes if derivation(route).reconciles]


def wanted_routes(app: Application, names: Collection[str]) -> list[Route]:
    """The routes of these handlers; all that can be reconciled if none is named.

    Raises ``SettingsError`` for a handler that is unknown, retired, or whose truth is the changes.
    """
    if not names:
        return reconcilable(app)
    by_name = {route.name: route for route in app.routes}
    found = []
    for name in names:
        if name in app.retired:
            raise SettingsError(f"Handler {name!r} is retired: expected one that is declared.")
        if name not in by_name:
            raise unknown_handler("The command", name, sorted(by_name))
        route = by_name[name]
        if not derivation(route).reconciles:
            remedy = f" First rows: streamfold backfill {name} --opening." if route in audit_routes(app) else ""
            raise SettingsError(
                f"Handler {name!r} is of kind {route.kind}: its rows follow from the changes of items, and what was "
                f"changed before cannot be read from the items as they are. Expected a handler of another kind.{remedy}"
            )
        found.append(route)
    return found


def check_whole(found: Manifest, app: Application) -> None:
    """Raises ``SettingsError`` while a handler that follows from items is partial in a state.

    An old record that is replayed now could set an item back that a backfill is leading to its source.
    """
    for route in reconcilable(app):
        if (since := found.handlers.get(route.name, {}).get(PARTIAL)) is not None:
            raise SettingsError(
                f"Handler {route.name!r} is partial since {since}: older records of a replay may overwrite what a "
                "backfill wrote. Run streamfold backfill first, or replay with --force."
            )


def unfilled(found: Manifest, routes: Iterable[Route]) -> dict[str, str]:
    """Which of these handlers no backfill has filled, and why the items before them are not in their rows."""
    why: dict[str, str] = {}
    for route in routes:
        entry = found.handlers.get(route.name)
        if entry is None:
            why[route.name] = "is new to this state"
        elif PARTIAL in entry:
            why[route.name] = f"is partial since {entry[PARTIAL]}"
    return why


def source_tables(routes: Iterable[Route]) -> list[Table]:
    """The tables whose items these routes read, each once."""
    return list({key.table.name: key.table for route in routes for key in route.sources}.values())


def check_named(found: Manifest, routes: Iterable[Route], *, offline: bool) -> None:
    """Raises ``SettingsError`` for a handler that is retired in a state, or that no function has named there.

    A command does not write the manifest: code that does not know the handler would end with its next batch. Where
    nothing is delivered (``offline``), a handler need not be named.
    """
    for route in routes:
        entry = found.handlers.get(route.name)
        if entry is None and not offline:
            raise SettingsError(
                f"Handler {route.name!r} was not named by any function yet: deploy it first. Until then its records go "
                "to code that does not know it. Where no stream delivers, streamfold backfill --offline fills it at "
                "once."
            )
        if entry is not None and RETIRED in entry:
            raise SettingsError(f"Handler {route.name!r} is retired in this state: expected another name.")


def check_gate(found: Manifest, routes: Iterable[Route], settings: Settings, now: float, *, offline: bool) -> None:
    """Raises ``SettingsError`` where code that does not know a handler may still be running.

    An item is read once. A record of it that older code acknowledges after that would be lost to the handler: older
    code stops by itself at its next batch, and an invocation that goes on then ends within ``gate_seconds``. Through
    Kinesis, what older code has acknowledged may come again for ``LATE_SECONDS`` more. Where nothing is delivered
    meanwhile (``offline``), there is no gate.
    """
    routes = list(routes)
    gate = settings.gate_seconds + (LATE_SECONDS if through_kinesis(found, routes) else 0)
    for route in routes if not offline else ():
        entry = found.handlers.get(route.name, {})
        if SINCE not in entry:
            continue
        left = datetime.fromisoformat(entry[SINCE]).timestamp() + gate - now
        if left > 0:
            raise SettingsError(
                f"Handler {route.name!r} is known since {entry[SINCE]}: an invocation of older code may still "
                f"acknowledge records without it. Begin in {int(left) + 1} seconds (STREAMFOLD_GATE_SECONDS)."
            )
