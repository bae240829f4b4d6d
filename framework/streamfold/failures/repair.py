"""Repair of one source item: derives its rows again from the item as it is now.

Each handler is repaired by a visit of its own (``batch.visits``), so that an error of one does not stop the others.
Kinds without a ledger repair by themselves.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import localcontext
from typing import TYPE_CHECKING, NamedTuple

from streamfold.batch.process import check_application
from streamfold.batch.steps import images
from streamfold.batch.visits import VisitedItem, Visits, VisitTimes
from streamfold.commit.outcome import explained
from streamfold.commit.pending import NamedRows, PendingWork, clear_pending
from streamfold.derivations.derivation import Finishing, Work, contributing, derivation, derived
from streamfold.errors import ItemFault, Unprocessable
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.records.change import Change, ItemKey
from streamfold.records.values import EXACT
from streamfold.routes.application import Listener
from streamfold.routes.route import REFERENT, SOURCE, Route
from streamfold.runtime import Runtime

if TYPE_CHECKING:
    from streamfold.commit.outcome import Tallies
    from streamfold.ledger.step import Tally


class Repaired(NamedTuple):
    """The result of a repair for one item and handler."""

    item: ItemKey
    handler: str
    written: int = 0  # rows
    removed: int = 0  # rows
    known: bool = False  # the ledger already held the requested version, or a newer one
    error: Exception | None = None  # why nothing was repaired
    conflicts: tuple[Unprocessable, ...] = ()  # unique rows that another item claims too; a repair parks nothing
    handed_on: bool = False  # a fan-out continues with the rows


def reconciled_by_item(route: Route) -> bool:
    """Whether a late record reconciles the item with its present source, instead of being replayed."""
    return derivation(route).reconciles and not derivation(route).redriven_by_record


@dataclass(slots=True)
class Repair:
    """Repairs items of one application. With ``dry_run`` it only reports the changes.

    emptied: items count as absent, so that all their contributions are taken back.
    """

    runtime: Runtime
    dry_run: bool = False
    checked: bool = False  # the caller has checked the application against the state already
    emptied: bool = False

    def item(
        self,
        item: ItemKey,
        *,
        version: str = BEFORE_ALL,
        handlers: Collection[str] | None = None,
        changes: Sequence[Change] = (),
    ) -> list[Repaired]:
        """Repairs an item for handlers (None: all whose late records are not replayed).

        version: of the record that is redriven; the ledger's version is at least this one afterwards.
        changes: redriven records. Rows that their images name, and that a crash left empty, are removed.

        Raises ``EngineError`` if the source item cannot be read; nothing is then retracted.
        """
        found = []
        for each, fields in self.runtime.application.listeners(item):
            route = each.route
            if reconciled_by_item(route) and (handlers is None or route.name in handlers):
                with localcontext(EXACT):
                    found.append(self._repaired(each, Work(route, item, each.role, fields, changes), version))
        return found

    def _repaired(self, listener: Listener, work: Work, version: str) -> Repaired:
        """The result for one handler, with the error that prevented it."""
        with ItemFault() as fault:  # an error that is not the item's own ends the repair
            if work.role == REFERENT:
                return self._by_referrers(work, version)
            if not work.route.kind.contributes:
                return self._by_kind(work)
            visited, fields = listener.visited(work.item, work.fields)
            if visited == work.item:
                return self._by_visit(work, version)
            # Of a part: its version and its images say nothing of its root.
            return self._by_visit(Work(work.route, visited, SOURCE, fields, ()), BEFORE_ALL)
        assert fault.error is not None
        return Repaired(work.item, work.route.name, error=explained(work.route, fault.error))

    def _by_kind(self, work: Work) -> Repaired:
        """Repairs the item by a kind without a ledger. A dry run counts one write."""
        if self.dry_run:
            return Repaired(work.item, work.route.name, written=1)
        self._check()
        outcome = derivation(work.route).reconcile(work, self._finishing(PendingWork()))
        wrong = next((failed.error for failed in outcome.failed), None)
        tally = outcome.tally(work.route.name)
        return Repaired(
            work.item, work.route.name, tally.written, tally.removed, error=wrong, handed_on=tally.handed_on > 0
        )

    def _by_referrers(self, work: Work, version: str) -> Repaired:
        """Visits the items that refer to this one, whatever has changed in it. A dry run counts a write for each."""
        from streamfold.batch.referrers import listed, visit_all_referrers  # few applications have them

        item, route = work.item, work.route
        if self.dry_run:
            return Repaired(item, route.name, written=len(listed(self.runtime, route, item, route.inline)))
        self._check()
        outcome = visit_all_referrers(work, version, self._finishing(PendingWork()))
        wrong = next((failed.error for failed in outcome.failed), None)
        tally = outcome.tally(route.name)
        return Repaired(item, route.name, tally.written, tally.removed, error=wrong, handed_on=tally.handed_on > 0)

    def _by_visit(self, work: Work, version: str) -> Repaired:
        """Repairs a handler's contribution in the ledger item, and its rows."""
        route, item, _, fields, *_ = work
        if not self.dry_run:
            self._check()
        visits = Visits(
            runtime=self.runtime,
            bounds={item[0]: version},
            named={route.name: self._named(work)},
            emptied=self.emptied,
            dry_run=self.dry_run,
            renews=True,
            moments=None if work.changes else self._present_time(route),
        )
        (visit,) = visits.read([VisitedItem(item, route.group, [(route, fields)])])
        for failed in visit.failed:
            raise failed.error
        unit = visits.unit(visit, visit.steps)
        tally: Tally | Tallies = unit.tallies[0]
        if not self.dry_run:
            visits.desk.note(visit)
            outcome = visits.commit([unit])
            for failed in outcome.failed:
                raise failed.error
            tally = outcome.tally(route.name)
        visit = visits.visited[visit.key]
        (after,) = visit.rows
        conflicts = contributing(route).reconciled(route, item, after, self._finishing(visits.pending_work))
        clear_pending(self.runtime, visits.pending_work)
        stored = visit.found.contributions.get(route.name)
        known = stored is not None and stored.version >= version != BEFORE_ALL
        return Repaired(item, route.name, tally.written, tally.removed, known, conflicts=tuple(conflicts))

    @staticmethod
    def _present_time(route: Route) -> VisitTimes | None:
        """A repair without a record takes an item's time back, where a clock was ahead; nothing else does."""
        if not route.asks_time:
            return None
        from streamfold.batch.wakes import PresentTime  # few handlers ask for the time

        return PresentTime()

    def _named(self, work: Work) -> NamedRows:
        """The rows that the images of records name: an interrupted attempt may have left them empty or incomplete."""
        named, route = NamedRows(), work.route
        at = self.runtime.moment if route.asks_time else None
        for image in images(work.changes):
            # An image on which the handler raises contributed nothing.
            rows = derived(route, image, work.fields, self.runtime.known.schema, at).rows
            named.add(self.runtime.application.name, route, work.item, rows)
        return named

    def _check(self) -> None:
        if not self.checked:
            check_application(self.runtime)

    def _finishing(self, pending_work: PendingWork) -> Finishing:
        # A repair parks nothing: failures are returned to the caller.
        return Finishing(self.runtime, lambda failed: failed, pending_work)
