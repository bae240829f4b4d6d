"""Verifies and corrects rows that are no sums, which their kinds compare themselves; and verifies exports."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from streamfold.batch.manifest import read_manifest
from streamfold.batch.process import check_application
from streamfold.derivations.derivation import derivation
from streamfold.derivations.expected import (
    Comparison,
    OwnRows,
    RemainingRow,
    RowDifference,
    RowsCorrected,
    VerifiedRows,
)
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.errors import SettingsError
from streamfold.keys.table import STATE, Table
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.lifecycle.exports import Export
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.rows import ACTIONS, FOLDS_MAX, RowsVerifier, verified_routes
from streamfold.lifecycle.sources import LOCAL_SEGMENTS, ItemKeys, pages, scanned, source_tables
from streamfold.lifecycle.verify import Verified, Verifier, idle_backlinks, stable
from streamfold.records.change import ItemKey
from streamfold.records.values import decode
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import RowKey, StateKey

FULL = "FULL_EXPORT"
LOADED_ITEMS = 2_000
"""Items that are stored in one transaction."""


def is_compared(route: Route) -> bool:
    return derivation(route).verified(route) is not None


def comparing(runtime: Runtime, moment: float, *, has_state: bool = True, partial: Collection[str] = ()) -> Comparison:
    """The means with which a kind compares the rows of a store, at a moment in epoch seconds."""

    def keys(table: Table, wanted: Callable[[ItemKey], bool]) -> Iterator[list[ItemKey]]:
        return pages(filter(wanted, scanned(runtime.engine, table)))

    return Comparison(runtime, moment, keys, has_state, partial)


class OtherRows:
    """Compares and corrects rows that are no sums. ``live``: others write meanwhile, so differences are read again."""

    def __init__(self, runtime: Runtime, *, live: bool, tolerance_seconds: float = 0) -> None:
        self.runtime = runtime
        self.live = live
        self.tolerance_seconds = tolerance_seconds
        manifest = read_manifest(runtime.application.name, runtime.engine)
        routes = runtime.application.routes
        self.partial = {route.name for route in routes if manifest.partial_since(route.name) is not None}

    def verify(self, routes: Iterable[Route]) -> VerifiedRows:
        """Compares the rows of some handlers, again while differing rows change."""
        found = VerifiedRows()
        for rows in (derivation(route).verified(route) for route in routes):
            if rows is not None:
                found.add(self._stable(rows))
        return found

    def correct(self, route: Route, found: VerifiedRows) -> RowsCorrected:
        """Corrects the differing rows of one handler, and compares them again. Raises the errors of reads."""
        own, rows = derivation(route).verified(route), [each.row for each in found.different]
        if own is None or not rows:
            return RowsCorrected([], [])

        def reconcile(items: Iterable[ItemKey]) -> None:
            if wanted := dict.fromkeys(items):
                Pages(self.runtime, [route.name], sources_only=False).reconcile(wanted)

        def differing() -> list[RowKey]:
            return [each.row for each in self.verify([route]).different]

        remaining = own.correct(rows, self._comparing()._replace(reconcile=reconcile, differing=differing))
        wrong = [RemainingRow(row, why) for row, why in remaining.items() if row in rows]
        return RowsCorrected([row for row in rows if row not in remaining], wrong)

    def _comparing(self) -> Comparison:
        return comparing(self.runtime, self.runtime.item_clock, partial=self.partial)

    def _stable(self, rows: OwnRows) -> VerifiedRows:
        """The differences that were equal twice, and the number of rows that kept changing."""
        found = rows.compared(self._comparing())

        def again(_: Mapping[RowKey, RowDifference]) -> Mapping[RowKey, RowDifference]:
            nonlocal found
            found = rows.compared(self._comparing())
            return {each.row: each for each in found.different}

        if self.live:
            suspected = {each.row: each for each in found.different}
            same, moving = stable(
                self.runtime, suspected, again, looks_max=FOLDS_MAX, tolerance_seconds=self.tolerance_seconds
            )
            found.different, found.moving = same, len(moving)
        return found


@dataclass(frozen=True, slots=True)
class VerifiedExports:
    """The result of a comparison of exports."""

    time: str  # of the exports, as their summaries have it
    rows: VerifiedRows
    items: Verified | None  # None without an export of the state


def exported_routes(routes: Iterable[Route]) -> list[Route]:
    """The routes whose rows follow from exports alone: of handlers that contribute to rows, and of feeds."""
    return [route for route in routes if route.kind.contributes or derivation(route).joins_items]


def _joining(routes: Iterable[Route]) -> list[Route]:
    return [route for route in routes if derivation(route).joins_items]


def check_exports(app: Application, routes: Sequence[Route], exports: Mapping[str, Export]) -> str:
    """The time of the exports, by the names of their tables.

    Raises ``SettingsError`` for an export that is not full, for different times, and for a missing table.
    """
    for export in exports.values():
        if (found := export.summary.get("exportType", FULL)) != FULL:
            raise SettingsError(f"Export {export.location} is {found}: expected {FULL}, with all items of one moment.")
    times = {str(export.summary.get("exportTime", "")) for export in exports.values()}
    if len(times) > 1:
        raise SettingsError(f"The exports are of different times, {' and '.join(sorted(times))}: expected one moment.")
    folded = [*verified_routes(app, routes), *_joining(routes)]
    wanted = {table.name for table in source_tables(folded)}
    wanted |= {key.table.name for route in folded for key in route.into if key.table.name != STATE.name}
    wanted |= {each.key.table.name for route in folded for each in route.lookups}
    if missing := wanted - exports.keys():
        raise SettingsError(
            f"The handlers read, write or look up table {', '.join(sorted(missing))}, of which there is no export: "
            "give --export NAME=MANIFEST for each."
        )
    return times.pop()


@contextmanager
def loaded(app: Application, exports: Mapping[str, Export]) -> Iterator[EmbeddedEngine]:
    """A temporary state with the items of the exports."""
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "exports.db")
        with closing(EmbeddedEngine(app.tables.values(), path, actions_max=ACTIONS)) as engine:
            for name, export in exports.items():
                _load(engine, export, is_state=name == STATE.name)
            yield engine


def _load(engine: EmbeddedEngine, export: Export, *, is_state: bool) -> None:
    if is_state:
        for line in export.lines():
            attributes = {name: decode(value) for name, value in (line.image or {}).items()}
            key = StateKey(attributes.pop("pk"), attributes.pop("sk"))
            engine.swap_state(key, {name: value for name, value in attributes.items() if name != "r"}, 0)
        return
    lines = export.lines()
    while page := list(islice(lines, LOADED_ITEMS)):
        engine.put_sources((line.key, line.image, BEFORE_ALL) for line in page if line.image)


def verify_exports(
    app: Application,
    settings: Settings,
    routes: Sequence[Route],
    exports: Mapping[str, Export],
    warn: Callable[[str], None] = lambda _: None,
) -> VerifiedExports:
    """Compares rows with the sums of their sources, and with an export of the state each contribution with its source.

    Rows of feeds are compared with the rows that their posts and edges make, one by one.

    Raises ``SettingsError`` as ``check_exports``, and for unreadable exports, and ``ManifestError`` if the state is of
    other code.
    """
    time = check_exports(app, routes, exports)
    with loaded(app, exports) as engine:
        moment = datetime.fromisoformat(time).timestamp() if time else 0.0
        engine.advance_clock(moment)  # of the exports
        runtime = Runtime(app, engine, settings, warn=warn)
        if STATE.name in exports:
            check_application(runtime, write=False)  # learns the attributes that retired handlers left in rows
        rows = RowsVerifier(runtime, routes, live=False, has_state=STATE.name in exports).verify()
        for route in _joining(routes):
            own = derivation(route).verified(route)
            assert own is not None, "a kind that joins items compares its rows"
            rows.add(own.compared(comparing(runtime, moment or runtime.clock(), has_state=STATE.name in exports)))
        items, ahead = _verified(runtime, routes) if STATE.name in exports else (None, frozenset[RowKey]())
        # The fold is of the exports' time, and these rows are of a later one.
        rows.moving += sum(each.row in ahead for each in rows.different)
        rows.different = [each for each in rows.different if each.row not in ahead]
    return VerifiedExports(time, rows, items)


def _verified(runtime: Runtime, routes: Sequence[Route]) -> tuple[Verified, frozenset[RowKey]]:
    """The comparison of all items, and the rows of those that were derived at a later time."""
    known = [route for route in routes if route.kind.contributes]
    verifier = Verifier(Pages(runtime, {route.name for route in known}, dry_run=True), 0)
    for page in pages(ItemKeys(runtime.application, runtime.engine, known, LOCAL_SEGMENTS).all()):
        verifier.page(page)
    verifier.found.idle_backlinks = idle_backlinks(runtime, known)
    return verifier.found, frozenset().union(*verifier.pages.ahead.values())
