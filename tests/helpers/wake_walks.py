"""Walks over scripts of a few changes and of time that passes: store calls are put into any order by a scheduler.

It is the scheduler of ``lookup_walks``. Besides, it lets time pass between calls, gives each worker a clock that is off
by up to ``SKEW_SECONDS``, and begins visits at the wakes that a worker sees as late, several beside each other. At the
end time passes all moments: the rows of each time on the way are to be those of the declarations at it.
"""

from contextlib import suppress
from functools import cache
from random import Random
from types import SimpleNamespace
from unittest.mock import patch

from streamfold import Count, Key, Max, Row, Sum
from streamfold.batch.fan_outs import run_chains
from streamfold.batch.wakes import BEFORE_ALL_WAKES, WakeVisits, asking, listed
from streamfold.commit.buckets import empty_buckets
from streamfold.commit.transactions import filled
from streamfold.derivations.search.indexes import OPENED
from streamfold.errors import Contended
from streamfold.ledger.contribution import LedgerItem
from streamfold.ledger.deltas import BUCKETS
from streamfold.ledger.wakes import Waits, partitions
from streamfold.proofs.oracle import at_moment, expected_all, outside_rows, stored_rows
from streamfold.records.images import Image
from streamfold.routes.moments import Now
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.lookup_walks import Script, Walk, Worker
from tests.helpers.woken import (
    START,
    TICKET,
    Checking,
    active,
    at,
    best,
    chain,
    counted,
    documents,
    expiring,
    leaders,
    made,
    on_shift,
    overdue,
    tiers,
)

SKEW_SECONDS = 40
GRID_SECONDS = 20
CALM_STEPS, CALM_STEP_SECONDS = 23, 20
LEASE_STEPS = 4
"""Until then a bucket may be leased by a worker that died."""
WAKE_WEIGHT, TIME_WEIGHT = 3, 3


def two(router):
    """Two handlers of one ledger item."""
    overdue(router)
    active(router)


def large(router):
    """Rows that do not fit one transaction, from a moment on."""

    @router.view(TICKET, into=Key("LARGE#{row}", "TOTAL"))
    def large(ticket, now: Now):
        when = "late" if now.passed(ticket["due_at"]) else "early"
        for number in range(70):
            yield Row(row=f"{ticket['team']}{when}{number}", tickets=Count(), units=Sum(1))


def raising(router):
    """A handler that raises while an item says so; rows of two moments."""

    @router.view(TICKET, into=Key("RAISED#{team}", "TOTAL"))
    def raising(ticket, now: Now):
        if now.passed(ticket["due_at"]):
            if BROKEN and ticket["team"] in BROKEN:
                raise ZeroDivisionError
            yield Row(team=ticket["team"], tickets=Count(), latest=Max(ticket["due_at"]))


BROKEN: set[str] = set()
"""Teams on which a handler raises."""


def ticket(due_at, team="x", until=40, **more):
    return {"status": "open", "team": team, "due_at": at(due_at), "until": at(due_at + until), **more}


SCRIPTS = {
    "one moment": ([], [("T0", ticket(20)), 30]),
    "moves there and back": ([], [("T0", ticket(20)), ("T0", ticket(90)), ("T0", ticket(20)), 30]),
    "earlier": ([], [("T0", ticket(80)), ("T0", ticket(20)), 30]),
    "another team": ([], [("T0", ticket(20)), 30, ("T0", ticket(20, "y"))]),
    "goes and comes back": ([], [("T0", ticket(20)), ("T0", None), ("T0", ticket(20)), 30]),
    "slow clock": ([], [("T0", ticket(10)), ("T0", ticket(10, note=1)), 20, ("T0", ticket(10, note=2))]),
    "closes while it is visited": ([("T0", ticket(10))], [20, ("T0", ticket(10, status="closed")), ("T0", None)]),
    "begin and end": ([("T0", ticket(10, until=10))], [15, ("T0", ticket(10, until=30)), 10]),
    "two items of a row": ([("T0", ticket(10))], [("T1", ticket(20)), 25, ("T0", ticket(30, "y")), ("T1", None)]),
    "long rest": ([("T0", ticket(10))], [200, ("T0", ticket(250)), 100]),
}
MADE = {
    "overdue": overdue,
    "counted": counted,
    "active": active,
    "tiers": tiers,
    "best": best,
    "leaders": leaders,
    "chain": chain,
    "two": two,
    "large": large,
    "raising": raising,
    "on shift": on_shift,
    "documents": documents,
    "expiring": expiring,
}
ITEMS = {
    "on shift": ({"S0": {"begins_at": at(20)}}, [("S0", {"begins_at": at(60)}), 20, ("S0", {"begins_at": at(30)})])
}
KEYS = {"T": "TICKET", "S": "SHIFT"}


@cache
def application_of(name):
    return made(MADE[name], name="walks")


class TimedWalk(Walk):
    """A walk in which time passes and wakes are visited, by clocks that are off. ``deltas``: rows are sent them."""

    def __init__(self, script, seed, faults=2, *, deltas=False):
        self.now, self.time, self.deltas = START, Random(seed), deltas
        super().__init__(script, seed, faults)

    def code(self, store):
        """The application of a worker, or of one that has its own store, and its settings."""
        return self.app, Settings()

    def runtime(self, store=None):
        skew = (
            0
            if store is not None
            else self.time.choice((0, 0, -SKEW_SECONDS, SKEW_SECONDS, self.time.randint(-SKEW_SECONDS, SKEW_SECONDS)))
        )
        app, settings = self.code(store)
        made_runtime = Runtime(
            app,
            store or self.store,
            settings,
            pause=lambda _: None,
            clock=lambda: self.now + skew,
            opened={OPENED: self.index},
        )
        if self.deltas:
            made_runtime.pace.sharing.forced = lambda _: True
        return made_runtime

    def wakes(self, runtime):
        return [
            each
            for route in asking(runtime)
            for partition in partitions(self.app.name, route.name)
            for each in listed(
                Runtime(self.app, self.engine, Settings()), route, partition, BEFORE_ALL_WAKES, runtime.moment
            )
        ]

    def looks(self):
        """Whether somebody looks for wakes between two calls."""
        return True

    def visit(self, runtime, wakes):
        return lambda: WakeVisits(runtime).visit(wakes).failures and ()

    def moves(self):
        found = list(super().moves())
        busy = len([each for each in self.workers if each.what == "wake"]) == 2 or len(self.workers) >= 3
        if not busy and self.looks():
            runtime = self.runtime()
            if wakes := self.wakes(runtime):
                found.append(("wake", (runtime, wakes)))
        return found

    def weight(self, what, worker=None, *rest):
        return WAKE_WEIGHT if what == "wake" else super().weight(what, worker, *rest)

    def make(self, move):
        if move[0] == "wake":
            runtime, wakes = move[1]
            self.moves_made.append(f"wake: {[each.of[0][1] for each in wakes]} at {runtime.moment}")
            worker = Worker("wake", "wakes", (), self.visit(runtime, wakes))
            worker.primary = False
            self.begin(worker)
        elif move[0] == "change" and isinstance(self.todo[0], int):
            self.now += self.todo.pop(0)
            self.moves_made.append(f"time passes: {self.now - START}")
        else:
            super().make(move)

    def checking(self):
        """A store that no scheduler stops."""
        return Checking(self.engine, self.invariants)

    def follow_chains(self, runtime):
        """Delivers the changes of rows to the handlers that read rows."""
        run_chains(runtime, self.engine)

    def settle(self):
        """Does what the schedule does: moves deltas, and visits at wakes. Returns its runtime, None if wakes stay."""
        runtime = self.runtime(self.checking())
        for _ in range(9):
            self.follow_chains(runtime)
            if self.deltas:  # as the schedule does where a process died
                for bucket in range(BUCKETS):
                    empty_buckets(runtime, [bucket], {}, always=True)
            if not (wakes := self.wakes(runtime)):
                return runtime
            with suppress(Contended):  # a bucket is leased by a worker that died
                WakeVisits(runtime).visit(wakes)
        return None

    def since(self):
        """The greatest moment that had come for an item."""
        items = [
            filled(self.engine, key, LedgerItem.of(each), {route.name for route in self.app.routes})
            for key, each in self.engine.state.items()
            if key.pk.startswith("ledger#")
        ]
        counters = [Waits.of(str(each["refs"])).since for each in self.engine.state.values() if "refs" in each]
        ledger = [each.since(name) for each in items for name in each.contributions]
        return max((each or 0 for each in (*ledger, *counters)), default=0)


class WakeWalk(TimedWalk):
    """One random walk over a script of changes and seconds that pass."""

    def __init__(self, handler, script, seed, faults=2, *, deltas=False):
        before, todo = SCRIPTS[script]
        items, more = ITEMS.get(handler, ({}, []))
        self.handler, self.flips = handler, 2
        BROKEN.clear()
        with patch("tests.helpers.lookup_walks.application_of", lambda made, _: application_of(made)):
            known = {**items, **{name: dict(content) for name, content in before}}
            if handler == "on shift":
                known = {
                    name: content | ({"shift_id": "S0"} if name[0] == "T" else {}) for name, content in known.items()
                }
                todo = [
                    (each[0], each[1] and each[1] | {"shift_id": "S0"}) if isinstance(each, tuple) else each
                    for each in todo
                ]
            super().__init__(Script(handler, known, [*todo, *more]), seed, faults, deltas=deltas)

    @staticmethod
    def place(name):
        return "main", f"{KEYS[name[0]]}#{name}", "META"

    def make(self, move):
        if move[0] == "change" and not isinstance(self.todo[0], int) and self.handler == "raising" and self.flips:
            self.flips -= 1
            BROKEN.symmetric_difference_update({self.random.choice("xy")})
        elif move[0] == "take" and not self.todo and self.handler == "raising":
            BROKEN.clear()
            super().make(move)
        else:
            super().make(move)

    def difference(self):
        """What is wrong at some time from now on, once records are delivered and no wake is late."""
        BROKEN.clear()
        for call in self.late:
            self.carry_out(*call)
        self.late = []
        step = CALM_STEP_SECONDS if self.handler != "raising" else CALM_STEP_SECONDS * 10
        for number in range(1, CALM_STEPS + 1):
            late = self.handler == "raising" or (self.deltas and number <= LEASE_STEPS)
            if problem := self.settled(compares=not late or number == CALM_STEPS):
                return f"{problem} at {self.now - START}"
            self.now += step
        return None

    def settled(self, *, compares):
        if (runtime := self.settle()) is None:
            return "wakes stay"
        if not compares or self.since() > runtime.moment:  # an item was derived by a clock that is ahead
            return None
        return self.attributes_differ() if self.handler == "tiers" else self.rows_differ(runtime.moment)

    def rows_differ(self, moment):
        with at_moment(moment):
            expected = expected_all(self.app, [each for own in self.log.values() for each in own])
        found = stored_rows(self.app, self.engine.rows.items())
        found |= outside_rows(self.app, SimpleNamespace(store=self.engine))
        keys = [key[1:] for key in {**found, **expected} if found.get(key) != expected.get(key)]
        return f"Rows differ: {keys[:3]}: {[found.get(('main', *key)) for key in keys[:3]]}" if keys else None

    def attributes_differ(self):
        """What items show, beside a model of these lines."""
        now = at(self.now - START)
        for name, item in self.items.items():
            if item is None:
                continue
            come = [each for each in (item["due_at"], item["until"]) if each <= now]
            expected = {"tier": come[-1] if come else "-", "silent": item["due_at"] <= at(self.now - START - 25)}
            shown = Image(self.engine.read_source(self.place(name)))
            if {attribute: shown.get(attribute) for attribute in expected} != expected:
                return f"Attributes of {name} differ: {dict(shown)}, expected {expected}"
        return None


def walked(handler, script, walks, seed=0, faults=2, *, deltas=False):
    """The first of so many walks that is wrong, with why and its moves; None if all are right."""
    for number in range(1, walks + 1):
        walk = WakeWalk(handler, script, seed * 1_000_003 + number, faults, deltas=deltas)
        problem = walk.run()
        if problem:
            return number, problem, walk.moves_made
    return None
