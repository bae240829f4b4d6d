"""Whether what handlers made of items is what they make of them now. Nothing that moves is called different."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from streamfold.lifecycle.page import Difference, ItemFailed, PageReport, Pages
from streamfold.records.change import ItemKey

READS_MAX = 3
"""Times that a suspicion is looked at again before its item counts as moving."""


@dataclass(slots=True)
class Verified:
    """What a run of ``verify`` found."""

    items: int = 0
    equal: int = 0
    different: list[Difference] = field(default_factory=list)
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

    def page(self, items: Iterable[ItemKey]) -> None:
        """Compares these items."""
        report = self.pages.reconcile(items)
        self.found.add(report)
        suspected = report.differing
        for _ in range(READS_MAX):
            if not suspected:
                return
            self.pages.run.wait(self.tolerance_seconds)
            again = self.pages.reconcile(dict.fromkeys(each.item for each in suspected)).differing
            still = [each for each in again if each in suspected]
            self.found.different += still
            known = {(each.item, each.handler) for each in suspected}
            moved = [each for each in again if each not in still and (each.item, each.handler) in known]
            self.found.equal += len(suspected) - len(still) - len(moved)
            suspected = moved
        self.found.moving += len(suspected)
