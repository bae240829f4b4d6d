"""``verify`` as a scheduled function: a sample of the items, within the time of one invocation. Nothing is written."""

from collections import Counter
from collections.abc import Mapping
from random import Random
from typing import Any, NamedTuple

from streamfold.batch.manifest import RETIRED, read_manifest
from streamfold.batch.process import check_application
from streamfold.engines import Engine
from streamfold.errors import NotStarted, SettingsError
from streamfold.lifecycle.checks import reconcilable
from streamfold.lifecycle.keys import ItemKeys, pages
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.verify import READS_MAX, Verified, Verifier
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.run import Run

SAMPLE_ITEMS = 2_000
SAMPLE_ITEMS_MAX = 1_000_000
TOLERANCE_SECONDS = 60
TOLERANCE_SECONDS_MAX = 250
"""Three waits have to fit into the 900 seconds of an invocation (Lambda Developer Guide, Quotas)."""
SPARE_SECONDS = 30
"""What is left of the time when no further page is begun, beside the waits for the tolerance."""


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


def verify_sample(app: Application, engine: Engine, run: Run, asked: AskedSample, random: Random) -> SampleReport:
    """Compares a sample of the items with what the state holds of them, as far as the invocation's time goes.

    Raises ``ManifestError`` where the code does not fit the state, and ``EngineError`` where it cannot be read.
    """
    check_application(app, engine, run, write=False)
    routes = _routes(app, engine, run)
    verifier = Verifier(
        Pages(app, engine, run, {route.name for route in routes}, dry_run=True), asked.tolerance_seconds
    )
    undecided = False
    if routes:
        try:
            _look(verifier, ItemKeys(app, engine, routes), asked, random)
            verifier.settle()
        except NotStarted:
            undecided = True
    return _report(verifier.found, undecided=undecided)


def _look(verifier: Verifier, keys: ItemKeys, asked: AskedSample, random: Random) -> None:
    """Looks at pages while there is time for them, and for what has to be read again."""
    needed = asked.tolerance_seconds * READS_MAX + SPARE_SECONDS
    for page in pages(keys.sample(asked.items, random)):
        if verifier.pages.run.seconds_left() < needed:
            return
        verifier.look(page)


def _routes(app: Application, engine: Engine, run: Run) -> list[Route]:
    """The handlers that a function has named, whose records are processed, and of which the ledger holds something."""
    known, settings = read_manifest(app.name, engine).handlers, run.settings
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
