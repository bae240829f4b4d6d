"""Histories of items that were there before their audit: each gets a first row, unless it has one.

The item is read first, then its history. So the row shows what no row of a change tells: the item as it was known, with
changes at most whose own rows are still under way.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import ClassVar

from streamfold.derivations.audit.opening import has_history, opening_row, opening_target
from streamfold.engines import Engine, Inserted, StoredItem
from streamfold.engines.timed import Timed
from streamfold.errors import EngineError, SettingsError, is_fatal, told
from streamfold.lifecycle.page_report import ItemFailed, PageReport
from streamfold.records.change import ItemKey
from streamfold.records.item_names import item_name
from streamfold.routes.application import Application
from streamfold.routes.route import Fields, Route
from streamfold.run import Run
from streamfold.writes.guarded import PutRow, RowKey


@dataclass(slots=True)
class OpeningPages:
    """Writes the first rows of pages of items, for some audits."""

    sweep: ClassVar[None] = None  # what is gone has no first row
    app: Application
    engine: Engine
    run: Run
    routes: Collection[Route]
    timed: Timed = field(init=False)

    def __post_init__(self) -> None:
        self.timed = Timed(self.engine, self.run)

    def reconcile(self, items: Iterable[ItemKey]) -> PageReport:
        """Writes the rows that these items lack. Raises what the store raises."""
        report, rows = PageReport(), dict[RowKey, tuple[ItemKey, Route, PutRow]]()
        sources = self.timed.read_sources(dict.fromkeys(items))
        for item, image in sources.items():
            own = [(route, fields) for route, fields in self.app.sources(item) if route in self.routes]
            report.items += bool(own)
            for route, fields in own:
                row = self._row(item, image, route, fields, report)
                if row is not None:
                    rows[row.key] = item, route, row
        inserted = self.timed.insert_rows([row for _, _, row in rows.values()]) if rows else Inserted([], [])
        unwritten, refused = set(inserted.missing), inserted.refused
        report.written = report.rows = len(rows) - len(unwritten)
        report.failed += [
            ItemFailed(item, route.name, _unwritten(refused.get(key)))
            for key, (item, route, _) in rows.items()
            if key in unwritten
        ]
        return report

    def _row(self, item: ItemKey, image: StoredItem, route: Route, fields: Fields, report: PageReport) -> PutRow | None:
        """The row that an item lacks; None if it has a history, or no row can be made of it."""
        table = self.app.tables[item[0]]
        try:
            row = opening_row(route, table, image, fields, self.run.clock(), self.run.settings.audit_key)
        except Exception as error:
            if is_fatal(error):
                raise
            report.failed.append(ItemFailed(item, route.name, error))
            return None
        target = opening_target(route, row)
        if target is None:
            raise SettingsError(
                f"Audit {route.name!r} keeps the rows of one item in many partitions: whether an item has a history "
                "cannot be told. Expected a target with {version:rest} in its sort key."
            )
        if has_history(self.timed, target, row, item_name(item)):
            report.equal += 1
            return None
        return row


def _unwritten(why: str | None) -> EngineError:
    because = "." if why is None else f": {told(why)}"
    return EngineError(f"The first row of its history could not be written{because}")
