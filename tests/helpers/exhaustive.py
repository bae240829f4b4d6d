"""Every small history under every small set of faults: enumerated, not drawn.

A run without deviations shows its points of choice. Each point after the last deviation, with each of its options,
gives a run with one deviation more, up to three. A stride takes every n-th of them in this order, which never changes;
a stride of 1 takes all.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from streamfold import Add, App, Count, Delete, Key, Put, Router, Row, Sum, Table
from streamfold.proofs.check import difference_of
from streamfold.proofs.driver import Driver
from streamfold.proofs.faults import Choices
from streamfold.proofs.handlers import FaultyHandlers
from streamfold.proofs.histories import changes_of
from streamfold.proofs.oracle import expected_rows
from streamfold.testing import Scenario, Write

CHANGES_MAX = 4
DEVIATIONS_MAX = 3
ACTIONS = 25
TABLE = Table("exhaustive", ttl="expires")
ITEM = Key("ITEM#{item_id}", "DATA", table=TABLE)
GROUP = Key("GROUP#{group}", "TOTAL", table=TABLE)
SUMS = Key("SUMS#{group}", "TOTAL", table=Table("sums"))
OWN = Key("OWN#{item_id}", "CARD", table=TABLE)
STARTED = Key("STARTED#{group}", "TOTAL", table=TABLE)
IMAGES = ({"group": "x", "amount": 5}, {"group": "y", "amount": 7})
DEVIATIONS = {
    *("conflict", "refused", "applied-twice", "unavailable", "answer-lost", "dies-before", "dies-after"),
    *("lands-late", "dies-and-lands-late", "lands-after-many-calls", "lands-at-the-end", "half-applied", "stale-read"),
    *("overlap", "repair", "rewound", "skipped", "each-record-twice"),
    *("replayed", "late-writes-land-last", "all-delivered-again"),
}
"""What may go wrong. Handlers do not raise here: the searches at random let them."""
DELTAS = "deltas"
BATCHINGS = (None, "batches-of-1")
"""Each history is delivered in one batch and record by record."""


def ledger_app():
    router = Router()

    @router.view(ITEM, into=GROUP)
    def group_total(item):
        yield Row(group=item["group"], items=Count(), total=Sum(item["amount"]))

    return App("exhaustive", routers=[router])


def row_guard_app():
    router = Router()

    @router.on(ITEM, into=OWN)
    def card(change):
        if change.event == "REMOVE":
            yield Delete()
        else:
            yield Put(group=change.new["group"], amount=change.new["amount"])

    return App("exhaustive", routers=[router])


def keyed_put_app():
    router = Router()
    router.audit(ITEM, name="audit")
    return App("exhaustive", routers=[router])


def claim_app():
    router = Router()

    @router.on(ITEM, into=STARTED)
    def started(change):
        image = change.new or change.old
        yield Add(group=image["group"], changes=1, amount=image["amount"])

    return App("exhaustive", routers=[router])


def deltas_app():
    """As the ledger's, with rows in a table of which no row expires: additions to others never wait."""
    router = Router()

    @router.view(ITEM, into=SUMS)
    def sums(item):
        yield Row(group=item["group"], items=Count(), total=Sum(item["amount"]))

    return App("exhaustive", routers=[router])


GUARDS = {
    "ledger": ledger_app,
    "row guard": row_guard_app,
    "keyed put": keyed_put_app,
    "claim": claim_app,
    DELTAS: deltas_app,
}


class Strides(NamedTuple):
    """Which runs with one, two and three deviations are taken: every n-th."""

    one: int = 1
    two: int = 1
    three: int = 1


class Enumerated(Choices):
    """Follows a script, and notes which deviations were open after its last one."""

    def __init__(self, script: Mapping[int, str], batching: str | None) -> None:
        super().__init__()
        self._script = script
        self._batching = batching
        self._last = max(script, default=0)
        self.open: list[tuple[int, str]] = []

    def _choice(self, point: str, options: Sequence[str]) -> str | None:
        if point == "batch":
            return self._batching
        if self.number > self._last:
            self.open += [(self.number, option) for option in options if option in DEVIATIONS]
        return self._script.get(self.number)


def histories() -> Iterator[tuple[Write, ...]]:
    """All histories of two items, up to their names: the first write is to the first item, with the first image.

    Writes that change nothing are left out, because they leave no record.
    """
    writes = [Write(ITEM, {"item_id": name}, image) for name in ("1", "2") for image in (*IMAGES, None)]
    for count in range(1, CHANGES_MAX + 1):
        for rest in product(writes, repeat=count - 1):
            history = (writes[0], *rest)
            if _all_change_something(history):
                yield history


def _all_change_something(history: Sequence[Write]) -> bool:
    items: dict[str, object] = {}
    for write in history:
        name = write.fields["item_id"]
        if items.get(name) == write.item:
            return False
        items[name] = write.item
    return True


class Run(NamedTuple):
    """One run: its history, what deviated in it, and what was wrong at the end (None: nothing)."""

    scenario: Scenario
    batching: str | None
    problem: str | None


def runs(app: App, strides: Strides, *, deltas: bool = False) -> Iterator[Run]:
    """Every n-th run of every history. deltas: additions go through deltas, others in each history."""
    handlers, counts = FaultyHandlers(app), [0] * DEVIATIONS_MAX
    for history_number, (history, batching) in enumerate(product(histories(), BATCHINGS), 1):
        if batching and len(history) == 1:
            continue  # the one batch is that record
        waiting: list[dict[int, str]] = [{}]
        expected = expected_rows(app, changes_of(app, history)[0])
        while waiting:
            script = waiting.pop()
            choices = Enumerated(script, batching)
            forced = history_number if deltas else 0
            driver = Driver(handlers, changes_of(app, history), choices, ACTIONS, deltas=forced)
            scenario = Scenario(history, 1, ACTIONS, script, deltas=forced)
            yield Run(scenario, batching, difference_of(driver, expected))
            depth = len(script)
            for number, option in choices.open if depth < DEVIATIONS_MAX else ():
                if counts[depth] % strides[depth] == 0:
                    waiting.append({**script, number: option})
                counts[depth] += 1
