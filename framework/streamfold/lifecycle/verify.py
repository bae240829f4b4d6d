"""Verifies that rows are what handlers make of their items now, by command or on a schedule. Writes nothing."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import eq
from random import Random
from typing import Any, NamedTuple, TypeVar

from streamfold.batch.manifest import RETIRED, Manifest, read_manifest
from streamfold.batch.process import check_application
from streamfold.commit.pending import ItemAndHandler
from streamfold.commit.transactions import filled
from streamfold.derivations.expected import ItemFailed
from streamfold.engines.protocol import StoredItem
from streamfold.errors import NotStarted, SettingsError
from streamfold.ledger.contribution import LedgerItem, backlink_key, referrer
from streamfold.ledger.state_keys import BACKLINKS, ledger_key
from streamfold.lifecycle.explain import found_in_state, state_key
from streamfold.lifecycle.page import Difference, PageReport, Pages
from streamfold.lifecycle.sources import ItemKeys, pages, reconcilable
from streamfold.records.change import ItemKey
from streamfold.routes.route import Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import StateKey

LOOKS_MAX = 3
"""Times that a difference is read again before it counts as moving."""
PARTIAL_HANDLERS = "partial_handlers"
SAMPLE_METRICS = ("verified", "different", "moving", "verify_failed", "undecided", PARTIAL_HANDLERS)
"""The counts of a sample."""

SUSPECTED_MAX = 500
"""Suspected differences that wait together before they are read again."""

SAMPLE_ITEMS = 2_000
SAMPLE_ITEMS_MAX = 1_000_000
TOLERANCE_SECONDS = 60
TOLERANCE_SECONDS_MAX = 250
"""Three waits have to fit into the 900 seconds of an invocation (Lambda Developer Guide, Quotas)."""
SPARE_SECONDS = 30
"""No further page is begun with less time than this, in addition to the waits for the tolerance."""

Where = TypeVar("Where", bound=Hashable)
Found = TypeVar("Found")


def stable(
    runtime: Runtime,
    found: Mapping[Where, Found],
    look_again: Callable[[Mapping[Where, Found]], Mapping[Where, Found]],
    *,
    looks_max: int = LOOKS_MAX,
    tolerance_seconds: float = 0,
    is_same: Callable[[Found, Found], bool] = eq,
) -> tuple[list[Found], Mapping[Where, Found]]:
    """Looks again at differences, until none changes; returns those that were the same at two looks, and those that
    changed at each of ``looks_max``.

    One look proves nothing beside a live stream: a write between two reads looks like a difference to the first look.
    A difference that ``look_again`` does not find is none. Raises ``NotStarted`` if the time is over after a pause.
    """
    same: dict[Where, Found] = {}
    for _ in range(looks_max):
        if not found:
            break
        runtime.wait(tolerance_seconds)
        now = {where: each for where, each in look_again(found).items() if where not in same}
        same |= {where: each for where, each in now.items() if where in found and is_same(found[where], each)}
        found = {where: each for where, each in now.items() if where not in same}
    return [*same.values()], found


@dataclass(slots=True)
class Verified:
    """The result of ``verify``."""

    items: int = 0
    equal: int = 0
    different: list[Difference] = field(default_factory=list)
    pending: list[Difference] = field(default_factory=list)  # equal contributions with rows that are not finished
    moving: int = 0  # contributions that changed at every look
    failed: list[ItemFailed] = field(default_factory=list)  # items on which a handler raises
    idle_backlinks: int | None = None  # None: they were not counted
    ahead: int = 0  # contributions of a time that is still to come

    def add(self, report: PageReport) -> None:
        """Adds the counts of a page."""
        self.items += report.items
        self.equal += report.equal
        self.failed += report.failed


class Verifier:
    """Compares pages of items. A difference is only suspected: its item is read again after ``tolerance_seconds``.

    If ledger and source are unchanged and still do not agree, the contribution is *different*. If one of them changed
    at each of ``LOOKS_MAX`` looks, it is *moving*, which is no fault.
    """

    def __init__(self, pages: Pages, tolerance_seconds: float) -> None:
        self.pages = pages
        self.tolerance_seconds = tolerance_seconds
        self.found = Verified()
        self._suspected: dict[ItemAndHandler, Difference] = {}

    def page(self, items: Iterable[ItemKey]) -> None:
        """Compares these items."""
        self.look(items)
        self.recheck()

    def look(self, items: Iterable[ItemKey]) -> None:
        """Compares these items. Suspected differences wait for ``recheck``, so that many pages pause once."""
        report = self.pages.reconcile(items)
        self.found.add(report)
        self._suspected |= _suspected(report)
        if len(self._suspected) >= SUSPECTED_MAX:
            self.recheck()

    def recheck(self) -> None:
        """Reads suspected contributions again, until each is equal, different or moving."""
        suspected, self._suspected = self._suspected, {}
        same, moving = stable(self.pages.runtime, suspected, self._again, tolerance_seconds=self.tolerance_seconds)
        self.found.different += [each for each in same if not each.agrees]
        self.found.pending += [each for each in same if each.agrees]
        self.found.moving += len(moving)
        self.found.ahead = len(self.pages.ahead)

    def _again(self, suspected: Mapping[ItemAndHandler, Difference]) -> Mapping[ItemAndHandler, Difference]:
        """Reads suspected contributions again; returns those that do not agree."""
        report = self.pages.reconcile(dict.fromkeys(each.item for each in suspected.values()))
        again = {where: each for where, each in _suspected(report).items() if where in suspected}
        failed = [each for each in report.failed if (each.item, each.handler) in suspected]
        self.found.failed += failed
        self.found.equal += len(suspected) - len(again) - len(failed)
        return again


def _suspected(report: PageReport) -> dict[ItemAndHandler, Difference]:
    return {(each.item, each.handler): each for each in report.differing + report.pending}


def idle_backlinks(runtime: Runtime, routes: Iterable[Route]) -> int | None:
    """The number of backlinks whose referrer does not refer; None for handlers without lookups. Reads the whole state.

    They do no harm: the next change of the referent visits the item once more, and drops the backlink.
    """
    app, engine = runtime.application, runtime.engine
    by_name = {route.name: route for route in routes if route.lookups}
    if not by_name:
        return None

    def backlink(stored: StoredItem) -> tuple[StateKey, Route, ItemKey] | None:
        key = state_key(stored)
        what, application, handler, *_ = (*key.pk.split("#", 3), "", "")
        if what != BACKLINKS or application != app.name or handler not in by_name:
            return None
        return key, by_name[handler], referrer(stored["s"]["S"])

    idle = 0
    for page in pages(found_in_state(engine, backlink)):
        keys = [ledger_key(app.name, route.group, item) for _, route, item in page]
        stored = engine.read_state(keys, consistent=True)
        for (key, route, item), ledger in zip(page, keys, strict=True):
            held = filled(engine, ledger, LedgerItem.of(stored.get(ledger)), {route.name})
            references = held.references(route.name)
            idle += all(key != backlink_key(app.name, route.name, each, item) for each in references)
    return idle


class AskedSample(NamedTuple):
    """The sample that a schedule's event asks for."""

    items: int = SAMPLE_ITEMS
    tolerance_seconds: int = TOLERANCE_SECONDS

    @classmethod
    def of(cls, event: Any) -> "AskedSample":
        """The ``sample`` and ``tolerance`` of an event; other keys are ignored. Raises ``SettingsError``."""
        given = event if isinstance(event, Mapping) else {}
        return cls(
            _whole("sample", given.get("sample", SAMPLE_ITEMS), 1, SAMPLE_ITEMS_MAX),
            _whole("tolerance", given.get("tolerance", TOLERANCE_SECONDS), 0, TOLERANCE_SECONDS_MAX),
        )


class SampleReport(NamedTuple):
    """The result of a scheduled comparison, without keys or contents of items."""

    counts: Mapping[str, int]  # of SAMPLE_METRICS
    different: Mapping[str, int]  # contributions, by handler
    failed: Mapping[str, int]  # items on which a handler raises, by handler
    partial: Mapping[str, str]  # handlers that may have missed items, and since when


def verify_sample(runtime: Runtime, asked: AskedSample, random: Random) -> SampleReport:
    """Compares a sample of the items with the state, as far as the invocation's time goes.

    Raises ``ManifestError`` if the code does not match the state, and ``EngineError`` if the state cannot be read.
    """
    check_application(runtime, write=False)
    manifest = read_manifest(runtime.application.name, runtime.store)
    routes = _routes(runtime, manifest)
    verifier = Verifier(Pages(runtime, {route.name for route in routes}, dry_run=True), asked.tolerance_seconds)
    undecided = False
    if routes:
        try:
            _look(verifier, ItemKeys(runtime.application, runtime.store, routes), asked, random)
            verifier.recheck()
        except NotStarted:
            undecided = True
    return _report(verifier.found, manifest.partial, undecided=undecided)


def _look(verifier: Verifier, keys: ItemKeys, asked: AskedSample, random: Random) -> None:
    """Compares pages while there is time for them, and for a second look at their differences."""
    needed = asked.tolerance_seconds * LOOKS_MAX + SPARE_SECONDS
    for page in pages(keys.sample(asked.items, random)):
        if verifier.pages.runtime.seconds_left() < needed:
            return
        verifier.look(page)


def _routes(runtime: Runtime, manifest: Manifest) -> list[Route]:
    """The handlers with a ledger that a function has named, and whose records are processed."""
    app, settings = runtime.application, runtime.settings
    return [
        route
        for route in reconcilable(app)
        if route.kind.contributes
        and settings.runs(route.name, route.group)
        and RETIRED not in manifest.handlers.get(route.name, {RETIRED: ""})
    ]


def _report(found: Verified, partial: Mapping[str, str], *, undecided: bool) -> SampleReport:
    numbers = found.items, len(found.different), found.moving, len(found.failed), int(undecided), len(partial)
    counts = dict(zip(SAMPLE_METRICS, numbers, strict=True))
    different = Counter(each.handler for each in found.different)
    return SampleReport(counts, different, Counter(each.handler for each in found.failed), partial)


def _whole(name: str, value: Any, minimum: int, maximum: int) -> int:
    if type(value) is not int or not minimum <= value <= maximum:
        raise SettingsError(f"The event's {name} is wrong: expected a whole number from {minimum} to {maximum}.")
    return value
