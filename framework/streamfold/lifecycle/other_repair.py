"""Corrects rows that are made of two items, and attributes on items, after a comparison found that they differ.

The items behind a row of a feed are reconciled first, so that the stored copies agree with the table. A row that still
differs is newer than both items: its post or its edge was lost without a record, as by a restore. It is removed as it
was read, and both items are reconciled once more: if both exist by then, the row is written again.
"""

from collections.abc import Iterable, Sequence

from streamfold.commit.transactions import writers_own
from streamfold.derivations.attributes.write_back import DerivedItem, stored_on, write_back
from streamfold.derivations.derivation import derivation
from streamfold.derivations.feed.kind import options_of
from streamfold.errors import EngineError, HandlerError
from streamfold.keys.table import is_writers
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.lifecycle.other_rows import OtherRows
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.row_repair import BUSY, RemainingRow, RowsCorrected
from streamfold.lifecycle.rows import RowDifference, VerifiedRows
from streamfold.records.change import ItemKey
from streamfold.routes.route import Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import DeleteSource, RowKey

OF_CHANGES = "It follows from changes, not from its item: the next change of the item adds a row to the history."


class OtherCorrection:
    """Corrects rows that are no sums, of some handlers, and compares them again."""

    def __init__(self, runtime: Runtime, *, live: bool, tolerance_seconds: float = 0) -> None:
        self.runtime = runtime
        self.engine = runtime.engine
        self.live = live
        self.tolerance_seconds = tolerance_seconds

    def correct(self, route: Route, found: VerifiedRows) -> RowsCorrected:
        """Corrects the differing rows of one handler. Raises the errors of reads."""
        rows = [each.row for each in found.different]
        if not rows:
            return RowsCorrected([], [])
        if derivation(route).joins_items:
            return self._feed(route, found.different)
        if route.kind.contributes:
            return self._attributes(rows)
        return RowsCorrected([], [RemainingRow(row, OF_CHANGES) for row in rows])

    def _attributes(self, items: Sequence[ItemKey]) -> RowsCorrected:
        """Writes the stored attributes onto their items again, also where no item contributes to them any more."""
        app = self.runtime.application
        failed = write_back(self.runtime, {item: DerivedItem(stored_on(app, item), retire=True) for item in items})
        remaining = [RemainingRow(item, str(error)) for item, error in failed.items()]
        return RowsCorrected([item for item in items if item not in failed], remaining)

    def _feed(self, route: Route, different: Sequence[RowDifference]) -> RowsCorrected:
        """Reconciles the items behind the rows, removes rows that are newer than these, and compares again."""
        sides = {each.row: self._sides(route, each.row) for each in different}
        self._reconcile(route, sides.values())
        remaining: dict[RowKey, str] = {}
        newer = [row for row in self._differing(route) if row in sides]
        for row in newer:
            try:
                self._remove(row)
            except (EngineError, HandlerError) as error:
                remaining[row] = str(error)
        self._reconcile(route, [sides[row] for row in newer])
        for row in self._differing(route) if newer else ():
            remaining.setdefault(row, BUSY)
        corrected = [row for row in sides if row not in remaining]
        return RowsCorrected(corrected, [RemainingRow(row, why) for row, why in remaining.items() if row in sides])

    def _sides(self, route: Route, row: RowKey) -> tuple[ItemKey, ItemKey]:
        """The post and the edge that the key of a row names."""
        fields = route.into[0].match_values(*row[1:]) or {}
        post, edge = ((key.table.name, *key.compose(fields)) for key in (route.sources[0], options_of(route).audience))
        return post, edge

    def _reconcile(self, route: Route, sides: Iterable[tuple[ItemKey, ItemKey]]) -> None:
        items = dict.fromkeys(item for both in sides for item in both)
        if items:
            Pages(self.runtime, [route.name], sources_only=False).reconcile(items)

    def _differing(self, route: Route) -> dict[RowKey, RowDifference]:
        again = OtherRows(self.runtime, live=self.live, tolerance_seconds=self.tolerance_seconds).verify([route])
        return {each.row: each for each in again.different}

    def _remove(self, row: RowKey) -> None:
        """Removes a row as it is now. If both items exist by then, the reconciliation behind it makes the row again."""
        stored = self.engine.read_source(row)
        if stored is None:
            return
        if is_writers(stored):
            raise EngineError(writers_own(row))
        if self.engine.transact([DeleteSource(row, stored, BEFORE_ALL)], self.runtime.expires_at) is not None:
            raise EngineError(BUSY)
