"""Histories in which time passes, drawn by a seed: writes, batches, visits, kills, clocks and versions of the code.

Clocks of processes are five minutes apart. A batch comes again from an earlier record, a process ends at any call of
the store, nobody looks for hours, or for as long as the history goes, handlers raise meanwhile, and old and new code
take turns. At the end rows must be those of the declarations, and each timer was called once.

``MomentHistory`` has dictionaries, and checks the invariants after each transaction; ``OnTable`` has DynamoDB Local.
"""

from datetime import timedelta
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Any, NamedTuple

from streamfold import Count, Key, Max, Row
from streamfold.batch.process import process_changes
from streamfold.derivations.search.indexes import OPENED
from streamfold.derivations.search.local import LocalIndex
from streamfold.engines import DynamoEngine, MemoryEngine
from streamfold.failures.repair import Repair
from streamfold.lifecycle.page import Pages
from streamfold.proofs.invariants import Invariants
from streamfold.proofs.moments import visit_late
from streamfold.proofs.oracle import at_moment, expected_all, outside_rows, stored_rows
from streamfold.records.values import encode
from streamfold.routes.moments import Now, moment_text
from streamfold.runtime import MICROSECONDS, Runtime
from streamfold.settings import Settings
from tests.helpers.records import change, item
from tests.helpers.tables import make_table
from tests.helpers.timer_walks import moment_of, timers
from tests.helpers.woken import (
    START,
    TICKET,
    Checking,
    active,
    at,
    best,
    counted,
    documents,
    expiring,
    leaders,
    made,
    overdue,
)

WRITES, TICKETS, STEPS = 14, 3, 30
STEP_SECONDS, SKEW_SECONDS, REST_SECONDS = 200, 300, 6 * 3600
CALLS_BEFORE_DEATH = 12
END_SECONDS, ROUND_SECONDS, ROUNDS_MAX = 24 * 3600, 3600, 12
BROKEN: set[str] = set()
"""Teams on which handlers raise."""
CALLS: list[tuple[str, str]] = []
"""The items and moments for which an external handler was called."""


def later(router):
    """``counted`` with another moment."""

    @router.view(TICKET, into=Key("TEAM#{team}", "COUNTED"))
    def counted(ticket, now: Now):
        if ticket["status"] == "open" and now.passed(ticket["due_at"], after=timedelta(seconds=90)):
            yield Row(team=ticket["team"], tickets=Count())


def raising(router, **options):
    """A handler that raises at a moment, while a team is broken."""

    @router.view(TICKET, into=Key("RAISED#{team}", "TOTAL"), **options)
    def raising(ticket, now: Now):
        if now.passed(ticket["due_at"]):
            if ticket["team"] in BROKEN:
                raise ZeroDivisionError
            yield Row(team=ticket["team"], tickets=Count(), latest=Max(ticket["due_at"]))


def parked(router):
    raising(router, on_error="park")


def external(router):
    """A handler that is called outside of the store."""

    @router.on(TICKET, at=moment_of, external=True)
    def call(timer, ticket_id):
        if timer.item["team"] in BROKEN:
            raise ZeroDivisionError
        CALLS.append((ticket_id, timer.at.strftime("%H:%M:%S")))


class Case(NamedTuple):
    """An application, and the versions of its code: the last one remains."""

    versions: tuple[tuple[Any, ...], ...]
    is_timed: bool = False

    @cache  # noqa: B019 - few cases, and each is kept
    def apps(self):
        return [made(*handlers) for handlers in self.versions]


CASES = {
    **{each.__name__: Case(((each,),)) for each in (counted, overdue, active, best, leaders, documents, expiring)},
    "raising": Case(((raising,),)),
    "parked": Case(((parked,),)),
    "another moment": Case(((counted,), (later,))),
    "another handler": Case(((counted,), (counted, active))),
    "timers": Case(((timers,),), is_timed=True),
    "external": Case(((external,),), is_timed=True),
}
ON_TABLE = ["counted", "overdue", "active", "best", "leaders", "timers", "external"]


class Killed(BaseException):
    """The process ends here."""


class Mortal:
    """A store whose process may end after a number of calls."""

    def __init__(self, engine, calls):
        self.engine, self.calls = engine, calls

    def __getattr__(self, name):
        found = getattr(self.engine, name)
        if not callable(found):
            return found

        def call(*given, **more):
            if self.calls is not None:
                self.calls -= 1
                if self.calls < 0:
                    raise Killed
            return found(*given, **more)

        return call


class Parking:
    """Keeps what is parked, as the items that were visited or changed."""

    def __init__(self):
        self.items = {}

    def park(self, document):
        record = document.record
        keys = (record.get("visited") or record["dynamodb"])["Keys"]
        self.items[document.handler, keys["PK"]["S"]] = None


class MomentHistory:
    """One history of a case, by its seed."""

    def __init__(self, case, seed):
        BROKEN.clear()
        CALLS.clear()
        self.case, self.random, self.now = CASES[case], Random(seed), START
        self.apps = self.case.apps()
        self.app = self.apps[-1]
        self.engine = self.made_engine()
        self.opened = {OPENED: LocalIndex(self.store)} if case == "documents" else {}
        self.parking = Parking()
        self.items, self.log, self.position, self.deaths = {}, [], 0, 0
        self.asleep = self.random.random() < 0.2  # nobody looks until the end

    def made_engine(self):
        engine = MemoryEngine(self.app)
        engine.source_tables.update(self.app.source_tables)
        self.store = engine
        return Checking(engine, Invariants(self.app, engine))

    def put_source(self, made_change, new):
        self.store.put_sources(
            [(made_change.item, None if new is None else encode(new)["M"], made_change.version_text)]
        )

    def content(self):
        """The rows, and the state's items."""
        return self.store.rows.items(), [key for key in self.store.state if key.pk.startswith("wake#")]

    def runtime(self, *, calls=None, skew=0, app=None):
        now = self.now + skew
        settings = Settings(older_code=len(self.apps) > 1)
        more = {"parking": self.parking, "opened": self.opened, "outside": True}
        store = self.engine if calls is None else Mortal(self.engine, calls)
        return Runtime(app or self.app, store, settings, clock=lambda: now, pause=lambda _: None, **more)

    def write(self):
        pk, seconds = f"TICKET#{self.random.randrange(TICKETS)}", self.now - START
        new = item(
            pk,
            "META",
            status=self.random.choice(("open", "open", "closed")),
            team=self.random.choice("ab"),
            due_at=at(seconds + self.random.randint(-STEP_SECONDS, 3 * STEP_SECONDS)),
            until=at(seconds + self.random.randint(STEP_SECONDS, 5 * STEP_SECONDS)),
        )
        old = self.items.get(pk)
        if old and self.random.random() < 0.2:
            new = None
        elif old and self.random.random() < 0.2:  # back to a moment that it had
            had = [each.new["due_at"] for each in self.log if each.new and each.item[1] == pk]
            new["due_at"] = self.random.choice(had)
        self.log.append(change(old, new, len(self.log) + 1))
        self.items[pk] = new
        self.put_source(self.log[-1], new)

    def step(self):
        """A write, a batch that may be delivered again, a look for wakes, or time."""
        what = self.random.choice(("write", "deliver", "look", "pass"))
        calls = self.random.randrange(CALLS_BEFORE_DEATH) if self.random.random() < 0.4 else None
        skew = self.random.choice((0, 0, -SKEW_SECONDS, SKEW_SECONDS))
        runtime = self.runtime(calls=calls, skew=skew, app=self.random.choice(self.apps))
        try:
            if what == "write" and len(self.log) < WRITES:
                self.write()
            elif what == "deliver":
                end = min(len(self.log), self.position + self.random.randint(1, 5))
                begin = self.random.randint(max(0, self.position - 2), self.position)
                process_changes(runtime, self.log[begin:end])
                self.position = end
            elif what == "look" and not self.asleep:
                visit_late(runtime, twice=self.random.random() < 0.3)
            else:
                self.now += self.random.randrange(STEP_SECONDS if self.random.random() < 0.95 else REST_SECONDS)
                if self.random.random() < 0.3:
                    BROKEN.symmetric_difference_update(self.random.choice("ab"))
        except Killed:
            self.deaths += 1

    def run(self):
        """Plays it to its end, long behind its last moment."""
        for _ in range(STEPS):
            self.step()
        BROKEN.clear()
        assert process_changes(self.runtime(), self.log).failures == []
        for handler, pk in self.parking.items:
            (repaired,) = Repair(self.runtime()).item(("main", pk, "META"), handlers=[handler])
            assert repaired.error is None
        if len(self.apps) > 1:  # as a rebuild does where a function changed, or is new
            pages = Pages(self.runtime(), {route.name for route in self.app.routes}, always=True)
            assert pages.reconcile([("main", pk, "META") for pk in self.items]).failed == []
        self.now += END_SECONDS
        for _ in range(ROUNDS_MAX):
            found, failures = visit_late(self.runtime())
            if not found:
                assert failures == []
                break
            self.now += ROUND_SECONDS  # a call that a dead process had begun counts as running for a while

    def difference(self):
        """What is wrong at the end; None if nothing is."""
        rows, wakes = self.content()
        if wakes := [key for key in wakes if not key.sk.startswith("head")]:
            return f"wakes stay: {wakes}"
        if self.case.is_timed:
            return self._timers_differ(rows)
        with at_moment(self.now * MICROSECONDS):
            expected = expected_all(self.app, self.log)
        found = stored_rows(self.app, rows)
        if self.opened:
            found |= outside_rows(self.app, SimpleNamespace(store=self.store))
        return None if found == expected else f"Rows {found}, expected {expected}"

    def _timers_differ(self, rows):
        """Each moment that an item had is called once at most, and the one that it has now once. An external handler
        may be called again where its process died.
        """
        rows = {key[1:]: row for key, row in rows}
        called = [
            (pk.partition("#")[2], sk[3:], int(row["times"]["N"])) for (pk, sk), row in rows.items() if pk[0] == "C"
        ] or [(*each, 1) for each in CALLS]
        again = sum(times for *_, times in called) - len({each[:2] for each in called})
        if again > (self.deaths if CALLS else 0):
            return f"Called again {again} times: {called}"
        found = {each[:2] for each in called}
        had = {(each.item[1][7:], each.new["due_at"][11:19]) for each in self.log if each.new and moment_of(each.new)}
        end = moment_text(self.now * MICROSECONDS)
        has = {
            (pk[7:], new["due_at"][11:19])
            for pk, new in self.items.items()
            if new and moment_of(new) and new["due_at"] <= end
        }
        if not has <= found <= had:
            return f"Called {sorted(found)}, expected {sorted(has)} and none but {sorted(had)}"
        return None


class OnTable(MomentHistory):
    """A history in tables of its own."""

    def __init__(self, dynamodb, case, seed):
        self.client, self.table, self.state = dynamodb, f"moments-{seed}", f"moments-{seed}-state"
        make_table(dynamodb, self.table, dict.fromkeys(("PK", "SK"), "S"))
        make_table(dynamodb, self.state, dict.fromkeys(("pk", "sk"), "S"))
        super().__init__(case, seed)

    def made_engine(self):
        tables = {name: (table, self.table) for name, table in self.app.tables.items()}
        return DynamoEngine(self.client, tables, self.state, pause=lambda _: None)

    def put_source(self, made_change, new):
        if new is None:
            _, pk, sk = made_change.item
            self.client.delete_item(TableName=self.table, Key={"PK": {"S": pk}, "SK": {"S": sk}})
        else:
            self.client.put_item(TableName=self.table, Item=encode(new)["M"])

    def content(self):
        rows = self.client.scan(TableName=self.table, ConsistentRead=True)["Items"]
        state = self.client.scan(TableName=self.state, ConsistentRead=True)["Items"]
        wakes = [SimpleNamespace(sk=each["sk"]["S"]) for each in state if each["pk"]["S"].startswith("wake#")]
        return [(("main", each["PK"]["S"], each["SK"]["S"]), each) for each in rows], wakes


def broken(case, seeds):
    """The first of these histories that is wrong, with why; None if all are right."""
    for seed in seeds:
        history = MomentHistory(case, seed)
        history.run()
        if wrong := history.difference():
            return f"{case} {seed}: {wrong}"
    return None
