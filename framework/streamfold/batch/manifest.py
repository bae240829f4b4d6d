"""What a state knows of its application: each batch is held against it, by one read of its revision.

A handler stands in the manifest before anything of it is written, so that warm code that does not know it ends with its
next batch. Where that shall go on (``STREAMFOLD_OLDER_CODE``), the handlers that it lacks are *partial* from then on.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.batch.known_forms import KnownState, kinds_keys, learned, place_of
from streamfold.batch.manifest_rules import ManifestEntry, check_handlers, check_retired, is_lacking, table_entry
from streamfold.engines import Engine
from streamfold.errors import ManifestError, damaged
from streamfold.ledger.item import manifest_key
from streamfold.records.envelope import Seen
from streamfold.routes.route import Route
from streamfold.run import Run

if TYPE_CHECKING:
    from streamfold.app import App

ROUNDS_MAX = 8
APPLICATIONS_KEPT = 4
PARTIAL, RETIRED = "partial", "retired"
"""Since when a handler may have missed items, and since when it is retired."""


class Manifest(NamedTuple):
    """The manifest as read: handlers and tables by name, as of a revision."""

    handlers: Mapping[str, ManifestEntry] = MappingProxyType({})
    tables: Mapping[str, ManifestEntry] = MappingProxyType({})
    revision: int = 0

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> "Manifest":
        """The manifest of a state item. Raises ``EngineError`` for one that is damaged."""
        try:
            handlers, tables = (json.loads(item.get(name, "{}")) for name in ("handlers", "tables"))
            return cls(handlers, tables, int(item.get("r", 0)))
        except (TypeError, ValueError):
            raise damaged("The state's manifest") from None

    def partial_since(self, handler: str) -> str | None:
        """Since when a handler may have missed items, None where it has seen all of them."""
        entry = self.handlers.get(handler, {})
        found: str | None = entry.get(PARTIAL) or entry.get(RETIRED)
        return found


def read_manifest(application: str, engine: Engine) -> Manifest:
    """The manifest of an application in a state; an empty one where there is none."""
    key = manifest_key(application)
    return Manifest.of(engine.read_state([key], consistent=True).get(key, {}))


def check_manifest(
    app: "App",
    engine: Engine,
    world: Run,
    known: KnownState | None,
    sources: Mapping[str, Seen] = MappingProxyType({}),
    *,
    write: bool = True,
) -> KnownState:
    """Compares the application with the state, unless ``known`` is of the same revision, and adds what is new to it.

    ``sources`` are the tables as far as records were seen. Raises ``ManifestError`` when a handler of the manifest is
    gone or has another kind, group, source or target, and when a table is another or comes through another source and
    the epoch is not higher.
    """
    key = manifest_key(app.name)
    keys = [key] if known else [key, *kinds_keys(app)]
    for _ in range(ROUNDS_MAX):
        read = engine.read_state(keys, consistent=True)
        before = Manifest.of(read.get(key, {}))
        if known and known.revision == before.revision and sources.items() <= known.sources.items():
            return known
        after = _after(app, world, before, sources)
        found = known or learned(read, app, _gone(app, before))
        check_retired(before.handlers, _entries(app.routes), _gone(app, before), found.targets)
        if after != before and write:
            attributes = {name: json.dumps(getattr(after, name), sort_keys=True) for name in ("handlers", "tables")}
            if not engine.swap_state(key, attributes, before.revision):
                continue
            _tell(app, world, before, after)
        found.revision = before.revision + (after != before and write)
        found.sources |= sources
        return found
    raise ManifestError(
        f"The manifest of {app.name!r} could not be written in {ROUNDS_MAX} tries: others write it at the same time."
    )


def _after(app: "App", world: Run, before: Manifest, sources: Mapping[str, Seen]) -> Manifest:
    """The manifest as this application and its records make it. Raises ``ManifestError``."""
    current, now = _entries(app.routes), _time(world)
    older = world.settings.older_code
    check_handlers(before.handlers, current, app.retired, older=older)
    lacking = is_lacking(before.handlers, current, app.retired)
    handlers = {name: dict(entry) for name, entry in before.handlers.items()}
    for name, entry in current.items():
        marks = {mark: handlers[name][mark] for mark in (PARTIAL, RETIRED) if mark in handlers.get(name, {})}
        if name not in handlers:
            handlers[name] = {**entry, PARTIAL: now} if before.handlers else entry
        elif not lacking:
            handlers[name] = entry | marks
    for name in app.retired & handlers.keys():
        handlers[name].setdefault(RETIRED, now)
    for name in lacking:
        handlers[name].setdefault(PARTIAL, now)
    tables = {name: table_entry(name, before.tables.get(name), seen, world.settings) for name, seen in sources.items()}
    return Manifest(handlers, {**before.tables, **tables}, before.revision)


def _gone(app: "App", found: Manifest) -> frozenset[str]:
    """The handlers that are retired, now or before, and that the application does not have."""
    retired = app.retired | {name for name, entry in found.handlers.items() if RETIRED in entry}
    return frozenset(retired - {route.name for route in app.routes})


def _tell(app: "App", world: Run, before: Manifest, after: Manifest) -> None:
    """Warns of handlers that are partial from now on."""
    declared = {route.name for route in app.routes}
    for name, entry in after.handlers.items():
        if PARTIAL in entry and PARTIAL not in before.handlers.get(name, {}):
            why = (
                "it is new to a state that others have written, and items that were there before count from their next "
                "change on"
                if name in declared and name not in before.handlers
                else "code without it, or without a source of it, runs (STREAMFOLD_OLDER_CODE)"
            )
            world.warn(f"Handler {name!r} is partial since {entry[PARTIAL]}: {why}.")


def _time(world: Run) -> str:
    return datetime.fromtimestamp(world.clock(), UTC).isoformat(timespec="seconds")


@lru_cache(maxsize=APPLICATIONS_KEPT)
def _entries(routes: tuple[Route, ...]) -> Mapping[str, ManifestEntry]:
    """What an application says of itself; a proof asks for it at the start of every invocation that follows a death."""
    return {route.name: _entry(route) for route in routes}


def _entry(route: Route) -> ManifestEntry:
    entry: ManifestEntry = {
        "kind": "external" if route.external else "unique index" if route.unique else route.kind,
        "group": route.group,
        "sources": [place_of(key) for key in route.sources],
        "targets": [place_of(key) for key in route.writes],
        "contested": [place_of(target.key) for target in route.targets if target.contested],
        "owned": [place_of(target.key) for target in route.targets if target.owned],
    }
    if (unique := route.unique) is not None:
        entry |= {"by": unique.by, "smallest": unique.smallest, "ties": unique.ties}
    return entry
