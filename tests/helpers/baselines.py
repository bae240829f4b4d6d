"""What people write without this framework, delivered by the same driver under the same faults, to see it diverge.

``Plain`` adds the difference of a record's images to the rows. ``Idempotent`` does so inside the protocol of
Powertools' idempotency utility: INPROGRESS is written under a condition, then the function runs, then COMPLETED is
written without one, or the note deleted where the function raised (Powertools, utilities/idempotency/base.py). It is
given the best of circumstances: notes never expire, and one in progress counts as abandoned once its invocation ended.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from streamfold import App, Change, Count, Failure, Key, Router, Row, Sum
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.ledger.difference import difference
from streamfold.ledger.state_keys import claim_key
from streamfold.proofs.check import ACTIONS, RATES, SHARDS, difference_of
from streamfold.proofs.driver import Driver
from streamfold.proofs.faults import Drawn
from streamfold.proofs.handlers import FaultyHandlers
from streamfold.proofs.histories import changes_of, drawn, shape
from streamfold.proofs.oracle import expected_rows
from streamfold.routes.route import Fields, Route
from streamfold.testing import Died
from streamfold.writes.guarded import AddRow, DeleteState, PutState
from tests.helpers.contributions import contribution

CHANGES = 16
ORDER = Key("ORDER#{order_id}", "DATA")
CUSTOMER = Key("CUSTOMER#{customer}", "TOTAL")
ORDERS = [{"customer": "a", "amount": 5}, {"customer": "b", "amount": 7}]
COMPLETED = "COMPLETED"


def customer_app() -> App:
    """Orders that move between customers, who have a count and a sum."""
    router = Router()

    @router.view(ORDER, into=CUSTOMER)
    def customer_total(order):
        yield Row(customer=order["customer"], orders=Count(), spent=Sum(order["amount"]))

    return App("baselines", routers=[router])


class Refusal(Exception):  # noqa: N818 - an outcome
    """The store refused a write, or another invocation has the record in progress."""


class Plain(Driver):
    """A function that adds what a record changed, record by record, and reports the records that failed."""

    def _attempt(self, batch: Sequence[Change], calls: int | None = None) -> list[Failure] | None:
        self.deliveries += 1
        number, failures = self.deliveries, []
        try:
            for change in batch:
                for route, fields in self.app.sources(change.item):
                    try:
                        self._handle(number, route, fields, change)
                    except Exception as error:  # noqa: BLE001 - it fails this record, as a batch processor has it
                        failures.append(Failure(change.sequence, change.name, route.name, error))
        except Died:
            return None
        finally:
            self._ended(number)
        return failures

    def _handle(self, number: int, route: Route, fields: Fields, change: Change) -> None:
        before = contribution(route, change.old, fields)
        rows = difference(self.app.name, route, change.item, before, contribution(route, change.new, fields))
        writes = [row for row in rows if not (isinstance(row, AddRow) and row.changes_nothing)]
        if writes and self.engine.transact(writes, 0) is not None:
            raise Refusal

    def _ended(self, number: int) -> None:
        """DeliveredChange at the end of an invocation."""

    def _repair(self, change: Change, version: str = BEFORE_ALL) -> None:
        """There is none: a record that was given up is only replayed."""


class Idempotent(Plain):
    """The same inside the idempotency protocol, keyed by the record."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._ended_invocations: set[int] = set()

    def _handle(self, number: int, route: Route, fields: Fields, change: Change) -> None:
        key = claim_key("baselines", route.name, change.item, change.version_text)
        note = self.engine.read_state([key]).get(key)
        if note is not None and note["s"] == COMPLETED:
            return
        if note is not None and note["s"] not in self._ended_invocations:
            raise Refusal
        if note is None and not self.engine.swap_state(key, {"s": number}, 0):
            raise Refusal
        try:
            super()._handle(number, route, fields, change)
        except Exception:
            self.engine.transact([DeleteState(key)], 0)
            raise
        self.engine.transact([PutState(key, COMPLETED)], 0)

    def _ended(self, number: int) -> None:
        self._ended_invocations.add(number)


class Figures(NamedTuple):
    """How many of so many histories ended with other rows than declared."""

    name: str
    histories: int
    diverged: int

    @property
    def share(self) -> float:
        return self.diverged / self.histories


DRIVERS: dict[str, type[Driver]] = {
    "plain `ADD` updates": Plain,
    "`ADD` inside Powertools-like idempotency": Idempotent,
    "streamfold": Driver,
}


FEW_FAULTS = frozenset({"answer-lost", "dies-after", "rewound"})
"""What happens to every deployment in time: an answer that does not come, a timeout, a batch that comes again."""


def measured(name: str, histories: int, seed: int = 0, only: frozenset[str] | None = None) -> Figures:
    """Runs histories drawn from a seed, the same ones for every name."""
    app, shapes, random = customer_app(), [shape(ORDER, ORDERS)], Random(seed)
    handlers, diverged = FaultyHandlers(app), 0
    for _ in range(histories):
        writes = drawn(random, shapes, CHANGES)
        shards = changes_of(app, writes, random.choice(SHARDS))
        expected = expected_rows(app, [change for shard in shards for change in shard])
        actions, rate = random.choice(ACTIONS), random.choice(RATES)
        choices = Drawn(Random(random.random()), rate, only)
        diverged += difference_of(DRIVERS[name](handlers, shards, choices, actions), expected) is not None
    return Figures(name, histories, diverged)
