"""Time that passes in a proof: examples get moments near the times of a history, and items are visited at wakes.

Between two batches the schedule looks for wakes whose moment has come, as it does each minute; a run may leave that
out, do it twice, let hours pass before, or do it between two calls of an invocation. Clocks of two processes are up to
``SKEW_SECONDS`` apart from the time. At the end all faults end, and time goes on to ``AFTER_SECONDS`` behind the last
record: the rows must be those of the declarations at that time.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import product
from typing import Any

from streamfold.batch.wakes import StripeVisits, WakeVisits, late_wakes, listed
from streamfold.commit.outcome import Failure
from streamfold.keys.field import ANY_PATTERN
from streamfold.ledger.wakes import BEFORE_ALL_WAKES, STRIPES, partitions
from streamfold.proofs.histories import HOURS_BETWEEN, Shape
from streamfold.routes.application import Application
from streamfold.routes.moments import SECOND_MICROSECONDS, moment_text
from streamfold.runtime import Runtime

TIME = ("wakes-left-out", "wakes-twice", "hours-pass", "clock-behind", "clock-ahead")
"""Ways in which time passes behind a delivery, other than a look for wakes by a right clock."""
WAKES_MEANWHILE = "wakes-meanwhile"
SKEW_SECONDS: Mapping[str | None, int] = {"clock-behind": -300, "clock-ahead": 300}
"""DynamoDB refuses requests of clocks that are further away (General Reference, signing of requests)."""
HOUR = 3600
PASSING_HOURS = 9
"""Hours that pass in one step: a part of those between two groups of a history's writes."""
AFTER_SECONDS = HOURS_BETWEEN * HOUR
"""From the last record to the end of a run: longer than a wake is put off, because a handler raised."""
QUIET_SECONDS = 2 * HOUR
"""Before the end no clock goes beyond this time ahead of it: a wake that is put off comes by the end."""
MOMENT_HOURS = (-1, 0, 8, HOURS_BETWEEN, 2 * HOURS_BETWEEN + 1, 3 * HOURS_BETWEEN + 2, 30 * 24)
"""Moments of drawn items behind the begin of a history: past, between its writes, at a write, and behind its end."""
ITEMS_MAX = 6
"""Items of a shape that get other moments: a history has few writes."""
NEAR_SECONDS = 20 * 366 * 24 * HOUR
"""A number that is no further from the begin of a history may be a moment in seconds."""


def ways_of_time(app: Application) -> Sequence[str]:
    """The ways in which time passes for an application; none if no handler asks for it."""
    return TIME if app.asks_time else ()


def near_moments(app: Application, shapes: list[Shape]) -> list[Shape]:
    """The shapes with more items, if a handler asks for the time: each attribute that may be a moment lies near the
    times of a history, too.
    """
    if not app.asks_time:
        return shapes
    return [each._replace(items=[*each.items, *_with_moments(each)]) for each in shapes]


def _with_moments(shape: Shape) -> Iterator[Mapping[str, Any]]:
    known = list(shape.items)
    items = [item for _, item in shape.given] or list(shape.items)
    for hours, item in product(MOMENT_HOURS, items[:ITEMS_MAX]):
        for name, value in item.items():
            moment = moment_like(value, int(shape.start), hours * HOUR)
            if moment is not None and (found := {**item, name: moment}) not in known:
                known.append(found)
                yield found


def moment_like(value: Any, start_seconds: int, after_seconds: int) -> Any:
    """A moment in the form of a value, so long after the start; None for a value that is no moment."""
    seconds = start_seconds + after_seconds
    if isinstance(value, str) and re.fullmatch(ANY_PATTERN, value, re.ASCII):
        begin = len("2026-03-01T09:00:00")
        return moment_text(seconds * SECOND_MICROSECONDS)[:begin] + value[begin:]
    is_number = isinstance(value, int | Decimal) and not isinstance(value, bool)
    return type(value)(seconds) if is_number and abs(value - start_seconds) <= NEAR_SECONDS else None


def visit_late(runtime: Runtime, *, twice: bool = False) -> tuple[bool, Sequence[Failure]]:
    """Visits the items of all wakes whose moment has come, as the schedule does, and returns whether there were some.

    ``twice``: each stripe once more, by the wakes that were there before.
    """
    failures: list[Failure] = []
    found = False
    for late in late_wakes(runtime):
        places = [*partitions(runtime.application.name, late.route.name)]
        for stripe in late.stripes:
            found = True
            before = listed(runtime, late.route, places[stripe], BEFORE_ALL_WAKES, runtime.moment) if twice else []
            failures += StripeVisits(runtime, late.route, STRIPES[stripe]).run().failures
            failures += WakeVisits(runtime).visit(before).failures if before else ()
    return found, failures
