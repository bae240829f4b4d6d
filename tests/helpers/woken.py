"""Applications whose handlers ask for the time, of each kind and question; ``Desk`` plays changes, time and sweeps."""

from datetime import timedelta

from streamfold import App, Collect, Count, Document, Key, Latest, Lookup, Max, Router, Row, Sum, Table
from streamfold.batch.process import process_changes
from streamfold.batch.wakes import StripeVisits, asking
from streamfold.engines import MemoryEngine
from streamfold.engines.capacity import CountingEngine
from streamfold.ledger.wakes import STRIPES
from streamfold.proofs.invariants import Invariants
from streamfold.records.values import encode
from streamfold.routes.moments import Now, moment_text
from streamfold.runtime import MICROSECONDS, Runtime
from streamfold.settings import Settings
from tests.helpers.records import change, item

TICKET, SHIFT = Key("TICKET#{ticket_id}", "META"), Key("SHIFT#{shift_id}", "META")
OVERDUE = Key("TEAM#{team}", "OVERDUE")
START = 1_772_355_600
"""2026-03-01T09:00:00Z."""


def at(seconds):
    """The text of a moment, seconds after the begin."""
    return moment_text((START + seconds) * MICROSECONDS)


def overdue(router):
    """One moment, rows that are added to."""

    @router.view(TICKET, into=OVERDUE)
    def overdue(ticket, now: Now):
        if ticket["status"] == "open" and now.passed(ticket["due_at"]):
            yield Row(team=ticket["team"], tickets=Count(), oldest=Max(ticket["due_at"]))


def counted(router):
    """The same without entries: nothing has to be finished behind a visit."""

    @router.view(TICKET, into=Key("TEAM#{team}", "COUNTED"))
    def counted(ticket, now: Now):
        if ticket["status"] == "open" and now.passed(ticket["due_at"]):
            yield Row(team=ticket["team"], tickets=Count())


def active(router):
    """A begin and an end, a row of each item."""

    @router.index(TICKET, into=Key("ACTIVE#{ticket_id}", "TICKET"))
    def active(ticket, now: Now):
        if now.between(ticket["due_at"], ticket.get("until")):
            yield Row(team=ticket["team"])


def tiers(router):
    """Several steps, and a moment that each report moves."""

    @router.attributes(TICKET)
    def tiers(ticket, now: Now):
        latest = now.latest([ticket["due_at"], *([ticket["until"]] if "until" in ticket else [])])
        return Row(tier=latest or "-", silent=now.passed(ticket["due_at"], after=timedelta(seconds=25)))


def best(router):
    """A row that several items claim, from a moment on."""

    @router.index(TICKET, into=Key("BEST#{team}", "TICKET"), unique=True, by="due_at")
    def best(ticket, ticket_id, now: Now):
        if now.passed(ticket["due_at"]):
            yield Row(team=ticket["team"], ticket=ticket_id)


def leaders(router):
    """Ordered values and sums, spread over shards."""

    @router.view(TICKET, into=Key("LEADERS#{team}", "S#{shard:02d}"), shards=3)
    def leaders(ticket, now: Now):
        if now.passed(ticket["due_at"]):
            yield Row(team=ticket["team"], units=Sum(2))


def on_shift(router):
    """The moment is a referent's."""

    @router.view(TICKET, into=Key("SHIFT#{of}", "TICKETS"), lookup={"shift": Lookup(SHIFT, optional=True)})
    def on_shift(ticket, shift, now: Now):
        begun = shift is not None and now.passed(shift["begins_at"])
        yield Row(of="begun" if begun else "-", latest=Latest(ticket["team"], by=ticket["due_at"]), tickets=Count())


def chain(router):
    """A row that appears at a moment, and a handler of such rows that waits again."""
    shown = Key("SHOWN#{ticket_id}", "TICKET")

    @router.index(TICKET, into=shown)
    def shown_from(ticket, now: Now):
        if now.passed(ticket["due_at"]):
            yield Row(team=ticket["team"], due_at=ticket["due_at"])

    @router.view(shown, into=Key("LATE#{team}", "TICKETS"))
    def late(row, now: Now):
        if now.passed(row["due_at"], after=timedelta(seconds=20)):
            yield Row(team=row["team"], tickets=Count(), which=Collect(row["due_at"]))


def documents(router):
    """Documents of a search, which change at a moment."""

    @router.search(TICKET, to="tickets", fields={"state": "keyword"})
    def documents(ticket, now: Now):
        return Document(state="late" if now.passed(ticket["due_at"]) else "early")


def expiring(router):
    """A row that expires, whose time to live begins at a moment."""
    table = Table("expiring", ttl="expires")

    @router.view(TICKET, into=Key("LATE#{team}", "TICKETS", table=table))
    def expiring(ticket, now: Now):
        if now.passed(ticket["due_at"]):
            yield Row(team=ticket["team"], tickets=Count(), expires=Max(EXPIRES))


EXPIRES = 1_900_000_000
"""Behind the end of each history."""
EACH = [overdue, counted, active, tiers, best, leaders, on_shift, chain]
"""Each makes an application of its own."""


def made(*handlers, name="desk", **options):
    router = Router()
    for handler in handlers:
        handler(router, **options)
    return App(name, routers=[router])


class Checking(CountingEngine):
    """Checks the invariants after each transaction."""

    def __init__(self, engine, invariants):
        super().__init__(engine)
        self.invariants = invariants

    def transact(self, writes, expires_at):
        refused = super().transact(writes, expires_at)
        self.invariants.check()
        return refused


class Desk:
    """A table and its changes, the function that derives from them, and a clock that only a test moves."""

    def __init__(self, app, **runtime):
        self.app, self.more = app, runtime
        self.engine = MemoryEngine(app)
        self.engine.source_tables.update(app.source_tables)
        self.store = Checking(self.engine, Invariants(app, self.engine))
        self.items, self.log, self.sequence, self.now = {}, [], 0, START

    def runtime(self, **more):
        given = {"pause": lambda _: None, "clock": lambda: self.now} | self.more | more
        return Runtime(self.app, given.pop("store", self.store), Settings(), **given)

    def write(self, pk, sk="META", **attributes):
        """The change of an item, which is in the table by then; without attributes it is removed."""
        new = item(pk, sk, **attributes) if attributes else None
        old, self.items[pk, sk] = self.items.get((pk, sk)), new
        self.sequence += 1
        made_change = change(old, new, self.sequence)
        raw = None if new is None else encode(new)["M"]
        self.engine.put_sources([(("main", pk, sk), raw, made_change.version_text)])
        self.log.append(made_change)
        return made_change

    def ticket(self, number, due_at, **attributes):
        """A ticket that is due so many seconds after the begin."""
        given = {"status": "open", "team": "a"} | attributes
        return self.process(self.write(f"TICKET#{number}", due_at=at(due_at), **given))

    def process(self, *changes, **more):
        return process_changes(self.runtime(**more), changes).failures

    def sweep(self, **more):
        """Visits at all wakes that are due; returns the failures."""
        runtime = self.runtime(**more)
        return [
            failure
            for route in asking(runtime)
            for stripe in STRIPES
            for failure in StripeVisits(runtime, route, stripe).run().failures
        ]

    def rows(self, begin):
        """The attributes of rows whose partition key begins so, by that key."""
        return {
            key[1]: {name: value for name, value in row.items() if not name.startswith("_sf") and name not in "PKSK"}
            for key, row in self.engine.read_rows(
                [key for key in self.engine.rows if str(key[1]).startswith(begin)]
            ).items()
            if row.get("_sf_n") != 0
        }

    def wakes(self):
        """The moments of wakes, in seconds after the begin, by handler."""
        found = {}
        for key in sorted(self.engine.state):
            if key.pk.startswith("wake#") and not key.sk.startswith("head"):
                found.setdefault(key.pk.split("#")[2], []).append(key.sk.partition("#")[0])
        return found
