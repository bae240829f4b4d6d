"""Whether rows are what handlers make of their items now, by command or on a schedule. Nothing is written."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from streamfold.batch.manifest import RETIRED, read_manifest
from streamfold.batch.process import check_application
from streamfold.errors import NotStarted, SettingsError
from streamfold.lifecycle.page import Difference, ItemFailed, PageReport, Pages
from streamfold.lifecycle.sources import ItemKeys, pages, reconcilable
from streamfold.records.change import ItemKey
from streamfold.routes.route import Route
from streamfold.runtime import Runtime

READS_MAX = 3
"""Times that a suspicion is looked at again before its item counts as moving."""

SUSPECTED_MAX = 500
"""Suspicions that wait together before they are looked at again."""

SAMPLE_ITEMS = 2_000
SAMPLE_ITEMS_MAX = 1_000_000
TOLERANCE_SECONDS = 60
TOLERANCE_SECONDS_MAX = 250
"""Three waits have to fit into the 900 seconds of an invocation (Lambda Developer Guide, Quotas)."""
SPARE_SECONDS = 30
"""What is left of the time when no further page is begun, beside the waits for the tolerance."""


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
            self.pages.runtime.wait(self.tolerance_seconds)
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


class AskedSample(NamedTuple):
    """What the event of a schedule asks for."""

    items: int = SAMPLE_ITEMS
    tolerance_seconds: int = TOLERANCE_SECONDS

    @classmethod
    def of(cls, event: Any) -> "AskedSample":
        """The ``sample`` and ``tolerance`` of an event; all else is left alone. Raises ``SettingsError``."""
        given = event if isinstance(event, Mapping) else {}
        return cls(
            _whole("sample", given.get("sample", SAMPLE_ITEMS), 1, SAMPLE_ITEMS_MAX),
            _whole("tolerance", given.get("tolerance", TOLERANCE_SECONDS), 0, TOLERANCE_SECONDS_MAX),
        )


class SampleReport(NamedTuple):
    """What a scheduled comparison found, without keys or contents of items."""

    counts: Mapping[str, int]  # verified, different, moving, verify_failed, undecided
    different: Mapping[str, int]  # parts, by handler
    failed: Mapping[str, int]  # items on which a handler raises, by handler


def verify_sample(runtime: Runtime, asked: AskedSample, random: Random) -> SampleReport:
    """Compares a sample of the items with what the state holds of them, as far as the invocation's time goes.

    Raises ``ManifestError`` where the code does not fit the state, and ``EngineError`` where it cannot be read.
    """
    check_application(runtime, write=False)
    routes = _routes(runtime)
    verifier = Verifier(Pages(runtime, {route.name for route in routes}, dry_run=True), asked.tolerance_seconds)
    undecided = False
    if routes:
        try:
            _look(verifier, ItemKeys(runtime.application, runtime.store, routes), asked, random)
            verifier.settle()
        except NotStarted:
            undecided = True
    return _report(verifier.found, undecided=undecided)


def _look(verifier: Verifier, keys: ItemKeys, asked: AskedSample, random: Random) -> None:
    """Looks at pages while there is time for them, and for what has to be read again."""
    needed = asked.tolerance_seconds * READS_MAX + SPARE_SECONDS
    for page in pages(keys.sample(asked.items, random)):
        if verifier.pages.runtime.seconds_left() < needed:
            return
        verifier.look(page)


def _routes(runtime: Runtime) -> list[Route]:
    """The handlers that a function has named, whose records are processed, and of which the ledger holds something."""
    app, settings = runtime.application, runtime.settings
    known = read_manifest(app.name, runtime.store).handlers
    return [
        route
        for route in reconcilable(app)
        if route.kind.contributes
        and settings.runs(route.name, route.group)
        and RETIRED not in known.get(route.name, {RETIRED: ""})
    ]


def _report(found: Verified, *, undecided: bool) -> SampleReport:
    counts = {
        "verified": found.items,
        "different": len(found.different),
        "moving": found.moving,
        "verify_failed": len(found.failed),
        "undecided": int(undecided),
    }
    different = Counter(each.handler for each in found.different)
    return SampleReport(counts, different, Counter(each.handler for each in found.failed))


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise SettingsError(f"The event's {name} does not fit: expected a whole number from {least} to {most}.")
    return value
