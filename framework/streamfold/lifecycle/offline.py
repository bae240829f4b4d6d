"""A state at one moment, from exports of its tables: no read units, and nothing moves while it is compared.

The items of the exports are put into a temporary file, in which rows and parts are compared as in any local state.
What the stream had not delivered at that moment is different there, too: a difference of the last seconds before the
exports is lag.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from streamfold.batch.process import check_application
from streamfold.derivations.derivation import derivation
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.errors import SettingsError
from streamfold.keys.table import STATE
from streamfold.ledger.item import BEFORE_ALL
from streamfold.lifecycle.checks import source_tables
from streamfold.lifecycle.exports import Export
from streamfold.lifecycle.feed_rows import FeedRows
from streamfold.lifecycle.keys import LOCAL_SEGMENTS, ItemKeys, pages
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.rows import ACTIONS, RowsVerifier, VerifiedRows, verified_routes
from streamfold.lifecycle.verify import Verified, Verifier
from streamfold.records.values import decode
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.run import Run
from streamfold.writes.guarded import StateKey

FULL = "FULL_EXPORT"
LOADED_ITEMS = 2_000
"""Items that are put in one transaction."""


@dataclass(frozen=True, slots=True)
class VerifiedExports:
    """What a comparison of exports found."""

    time: str  # of the exports, as they tell it
    rows: VerifiedRows
    items: Verified | None  # None without an export of the state


def exported_routes(routes: Iterable[Route]) -> list[Route]:
    """Those of these routes that exports tell all of: what contributes to rows, and feeds."""
    return [route for route in routes if route.kind.contributes or derivation(route).joins_items]


def _joining(routes: Iterable[Route]) -> list[Route]:
    return [route for route in routes if derivation(route).joins_items]


def check_exports(app: Application, routes: Sequence[Route], exports: Mapping[str, Export]) -> str:
    """The time of the exports, by the names of their tables.

    Raises ``SettingsError`` for one that is not full, for different times, and where a table of the handlers lacks.
    """
    for export in exports.values():
        if (found := export.summary.get("exportType", FULL)) != FULL:
            raise SettingsError(f"Export {export.place} is {found}: expected {FULL}, with all items of one moment.")
    times = {str(export.summary.get("exportTime", "")) for export in exports.values()}
    if len(times) > 1:
        raise SettingsError(f"The exports are of different times, {' and '.join(sorted(times))}: expected one moment.")
    folded = [*verified_routes(app, routes), *_joining(routes)]
    wanted = {table.name for table in source_tables(folded)}
    wanted |= {key.table.name for route in folded for key in route.into if key.table.name != STATE.name}
    if missing := wanted - exports.keys():
        raise SettingsError(
            f"The handlers read or write table {', '.join(sorted(missing))}, of which there is no export: give "
            "--export NAME=MANIFEST for each."
        )
    return times.pop()


@contextmanager
def loaded(app: Application, exports: Mapping[str, Export]) -> Iterator[EmbeddedEngine]:
    """A temporary state with the items of exports, by the names of their tables."""
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
    app: Application, run: Run, routes: Sequence[Route], exports: Mapping[str, Export]
) -> VerifiedExports:
    """Compares rows with what their sources add up to, and with an export of the state each part with its source.

    Rows of feeds are compared with what their posts and edges make, one by one.

    Raises ``SettingsError`` as ``check_exports``, and for what is no export, and ``ManifestError``
    where the state is of other code.
    """
    time = check_exports(app, routes, exports)
    with loaded(app, exports) as engine:
        if STATE.name in exports:
            check_application(app, engine, run, write=False)  # which learns what retired handlers left in rows
        rows = RowsVerifier(app, engine, run, routes, live=False).verify()
        moment = datetime.fromisoformat(time).timestamp() if time else run.clock()
        for route in _joining(routes):
            by = FeedRows(app, engine, run, route, moment, keeps_mirrors=STATE.name in exports)
            rows.add(by.verify())
        items = _verified(app, engine, run, routes) if STATE.name in exports else None
    return VerifiedExports(time, rows, items)


def _verified(app: Application, engine: EmbeddedEngine, run: Run, routes: Sequence[Route]) -> Verified:
    known = [route for route in routes if route.kind.contributes]
    verifier = Verifier(Pages(app, engine, run, {route.name for route in known}, dry_run=True), 0)
    for page in pages(ItemKeys(app, engine, known, LOCAL_SEGMENTS).all()):
        verifier.page(page)
    return verifier.found
