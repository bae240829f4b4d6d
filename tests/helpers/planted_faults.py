"""Eight kinds of faults, planted in a state while a writer goes on."""

from random import Random
from unittest.mock import patch

from streamfold import App, Count, Key, Max, Router, Row, Sum
from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.ledger.contribution import partition
from streamfold.ledger.state_keys import ledger_key
from streamfold.lifecycle.explain import Explaining, explain_item
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.row_repair import RowCorrection
from streamfold.lifecycle.row_sources import explain_row
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.lifecycle.sources import ItemKeys, pages
from streamfold.lifecycle.verify import Verifier
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import DeleteState
from tests.helpers.records import change, item

ITEM = Key("ITEM#{item_id}", "METADATA")
GROUPS = 5
ITEMS_AT_ONCE = 500
KINDS = ("row changed", "row deleted", "extra row", "ledger deleted", "record lost", "partial", "old code", "no claim")


def application(*, partial=False, factor=1):
    """A view with a sum and a maximum, an index, names of which each is one item's, and a handler that comes later."""
    router = Router()

    @router.view(ITEM, into=Key("GROUP#{group}", "TOTAL"))
    def total(item):
        return Row(group=item["group"], total=Sum(factor * item["amount"]), most=Max(item["amount"]), items=Count())

    @router.index(ITEM, into=Key("OWN#{item_id}", "OWN"))
    def own(item):
        return Row(amount=item["amount"]) if "name" in item else None

    @router.index(ITEM, into=Key("NAME#{name}", "NAME"), unique=True, by="amount")
    def name(item):
        return Row(name=item["name"], amount=item["amount"]) if "name" in item else None

    if not partial:

        @router.view(ITEM, into=Key("LATE#{group}", "TOTAL"), group="late")
        def late(item):
            return Row(group=item["group"], items=Count())

    return App("shop", routers=[router])


APP, PARTIAL, OLD = application(), application(partial=True), application(factor=2)
HANDLERS = frozenset(route.name for route in APP.routes)


def key(number):
    return ("main", f"ITEM#{number}", "METADATA")


class Shop:
    """A state of so many items. A writer changes some behind them while others look.

    each: faults of each kind. a_row: so many items share a group; the first of them has a name and a row of its own,
    and may be the one with a fault.
    """

    def __init__(self, items, each, seed, a_row=1):
        self.random, self.each, self.items, self.a_row = Random(seed), each, items, a_row
        self.engine = MemoryEngine(APP.tables.values(), APP.chains)
        self.engine.source_tables.add("main")
        self.images, self.sequence, self.writes, self.late = {}, 0, 0, None
        self.run = Runtime(APP, self.engine, Settings(), pause=lambda _: self.write())
        self.numbers = iter(self.random.sample(range(0, items, a_row), 8 * each))
        for first in range(0, items, ITEMS_AT_ONCE):
            self.begin(range(first, min(first + ITEMS_AT_ONCE, items)))
        self.faults = {kind: [self.plant(kind, next(self.numbers)) for _ in range(each)] for kind in KINDS}

    def begin(self, numbers):
        """Items come, and their records at once."""
        changes = []
        for number in numbers:
            self.images[number] = self.image(number)
            self.sequence += 1
            self.engine.put_sources([(key(number), encode(self.images[number])["M"], f"{self.sequence:09}")])
            changes.append(change(None, self.images[number], self.sequence))
        assert process_changes(Runtime(APP, self.engine, Settings()), changes).failures == []

    def image(self, number):
        # What is planted in rows of groups has a group to itself, so that each fault is told apart.
        self.sequence += 1
        first = number - number % self.a_row
        named = {"name": f"n{number}"} if number == first else {}
        return item(*key(number)[1:], group=f"g{first}", amount=self.sequence, **named)

    def change(self, number, app=APP, image=..., *, recorded=True):
        """An item is put, and its record is processed, unless it is lost."""
        before = self.images.get(number)
        after = self.image(number) if image is ... else image
        self.sequence += 1
        self.images[number] = after
        self.engine.put_sources([(key(number), after and encode(after)["M"], f"{self.sequence:09}")])
        if recorded:
            settings = Settings(older_code=True)
            done = process_changes(Runtime(app, self.engine, settings), [change(before, after, self.sequence)])
            assert done.failures == []

    def write(self):
        """The writer: an item comes, changes or goes, in groups of its own. Its record comes with the next call."""
        if self.late is not None:
            assert process_changes(Runtime(APP, self.engine, Settings()), [self.late]).failures == []
        self.writes += 1
        number = self.items + self.writes % GROUPS
        before = self.images.get(number)
        gone = before is not None and self.writes % 3 == 0
        self.change(number, image=None if gone else ..., recorded=False)
        self.late = change(before, self.images[number], self.sequence)

    def plant(self, kind, number):
        """Plants a fault; returns the row that is wrong, or the item."""
        rows, state = self.engine.rows, self.engine.state
        group, own = ("main", f"GROUP#g{number}", "TOTAL"), ("main", f"OWN#{number}", "OWN")
        name = ("main", f"NAME#n{number}", "NAME")
        match kind:
            case "row changed":
                row = self.random.choice([group, own])
                changed = {"total": {"N": "7"}, "odd": {"S": "x"}} if row == group else {"amount": {"N": "7"}}
                rows[row] = rows[row] | changed
            case "row deleted":
                row = self.random.choice([group, own, name])
                del rows[row]
            case "extra row":
                row = self.random.choice([("main", f"GROUP#x{number}", "TOTAL"), ("main", f"OWN#x{number}", "OWN")])
                rows[row] = encode(item(row[1], row[2], total=3, amount=3, word="x", _sf_n=1))["M"]
            case "ledger deleted":
                row = key(number)
                del state[ledger_key("shop", "main", row)]
            case "record lost":
                row = key(number)
                self.change(number, recorded=False)
            case "partial":
                row = key(number)
                self.engine.state.pop(ledger_key("shop", "late", row))
                del rows["main", f"LATE#g{number}", "TOTAL"]
            case "old code":
                row = key(number)
                self.change(number, OLD)
            case "no claim":
                row = name
                where = partition("shop", "name", "", name)
                (claim,) = [each for each in state if each.pk == where]
                self.engine.transact([DeleteState(claim)], 0)
        return row

    @staticmethod
    def number(key):
        """The number of an item, or of the item that a row is of."""
        return key[1].partition("#")[2].lstrip("gnx")

    def planted(self, *kinds):
        return {row for kind in kinds for row in self.faults[kind]}

    def different_items(self):
        verifier = Verifier(Pages(self.run, HANDLERS, dry_run=True), 60)
        for page in pages(ItemKeys(APP, self.engine, APP.routes, 64).all(), 50):
            verifier.look(page)
            self.write()
        verifier.recheck()
        assert verifier.found.failed == []
        return {each.item for each in verifier.found.different}

    def different_rows(self):
        verifier = RowsVerifier(self.run, APP.routes, live=True)
        read = verifier.engine.read_sources

        def read_while_others_write(items):
            self.write()
            return read(items)

        with patch.object(verifier.engine, "read_sources", read_while_others_write):
            return {each.row for each in verifier.verify().different}

    def explaining(self):
        return Explaining(APP, self.engine, self.run.known.schema)

    def check(self):
        """Finds, explains and mends."""
        of_items = self.planted("ledger deleted", "record lost", "partial", "old code")
        of_rows = self.planted("row changed", "row deleted", "extra row", "no claim")
        assert self.different_items() == of_items
        for each in of_items:
            assert any(part.agrees is False for part in explain_item(self.explaining(), each)), each
        different = self.different_rows()
        assert of_rows <= different
        assert {self.number(row) for row in different} <= {self.number(each) for each in (*of_rows, *of_items)}
        for each in of_rows:
            assert not explain_row(self.explaining(), each, scan=True).agrees, each
        self.mend(of_items)
        assert (self.different_items(), self.different_rows()) == (set(), set())

    def mend(self, of_items):
        """Items first, and then the rows that still differ: those of which the ledger knew no more."""
        led = Pages(self.run, HANDLERS, always=True).reconcile(of_items)
        assert led.failed == []
        left = self.different_rows()
        twice = {self.number(item) for item in self.planted("ledger deleted")}  # a repair adds once more to their rows
        expected = self.planted("row changed", "row deleted", "extra row", "no claim")
        assert {row for row in left if self.number(row) not in twice} == expected
        mended = RowCorrection(self.run).correct(left)
        assert (mended.remaining, set(mended.corrected)) == ([], left)
