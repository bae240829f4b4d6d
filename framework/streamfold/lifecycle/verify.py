"""Whether what handlers made of items is what they make of them now. Nothing that moves is called different."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.page_report import Difference, ItemFailed, PageReport
from streamfold.records.change import ItemKey

READS_MAX = 3
"""Times that a suspicion is looked at again before its item counts as moving."""

SUSPECTED_MAX = 500
"""Suspicions that wait together before they are looked at again."""


@dataclass(slots=True)
class Verified:
    """What a run of ``verify`` found."""

    items: int = 0
    equal: int = 0
    different: list[Difference] = field(default_factory=list)
    pending: list[Difference] = field(default_factory=list)  # parts that agree, and whose rows are not finished
    moving: int = 0  # parts that changed whenever they were looked at
    failed: list[ItemFailed] = field(default_factory=list)  # items on which a handler raises

    def add(self, report: PageReport) -> None:
        """Adds the counts of a page."""
        self.items += report.items
        self.equal += report.equal
        self.failed += report.failed


class Verifier:
    """Compares pages of items. A difference is a suspicion: its item is read again after ``tolerance_seconds``.

    If ledger and source are what they were and still do not agree, the part is *different*. If one of them moved, the
    item is read again, ``READS_MAX`` times; then it is *moving*, which is nobody's fault.
    """

    def __init__(self, pages: Pages, tolerance_seconds: float) -> None:
        self.pages = pages
        self.tolerance_seconds = tolerance_seconds
        self.found = Verified()
        self._suspected: list[Difference] = []

    def page(self, items: Iterable[ItemKey]) -> None:
        """Compares these items."""
        self.look(items)
        self.settle()

    def look(self, items: Iterable[ItemKey]) -> None:
        """Compares these items. What is suspected waits for ``settle``, so that many pages pause once."""
        report = self.pages.reconcile(items)
        self.found.add(report)
        self._suspected += report.differing + report.pending
        if len(self._suspected) >= SUSPECTED_MAX:
            self.settle()

    def settle(self) -> None:
        """Reads again what is suspected, until it is equal, different or moving."""
        suspected, self._suspected = self._suspected, []
        for _ in range(READS_MAX):
            if not suspected:
                return
            self.pages.run.wait(self.tolerance_seconds)
            suspected = self._again(suspected)
        self.found.moving += len(suspected)

    def _again(self, suspected: Sequence[Difference]) -> list[Difference]:
        """Reads suspected parts again; returns those that moved and do not agree yet."""
        report = self.pages.reconcile(dict.fromkeys(each.item for each in suspected))
        known = {(each.item, each.handler) for each in suspected}
        before = set(suspected)
        again = [each for each in report.differing + report.pending if (each.item, each.handler) in known]
        failed = [each for each in report.failed if (each.item, each.handler) in known]
        still = [each for each in again if each in before]
        self.found.different += [each for each in still if not each.agrees]
        self.found.pending += [each for each in still if each.agrees]
        self.found.failed += failed
        self.found.equal += len(suspected) - len(again) - len(failed)
        return [each for each in again if each not in before]
