"""Histories in which a state is lost, mistyped or restored, a table copied or replicated, an application renamed.

Whatever happens, a batch is refused before it changes a row, or each row is the fold of the items that there are.
"""

from collections import Counter
from itertools import count
from random import Random

from streamfold import App, Count, Key, Max, Router, Row, Sum
from streamfold.batch.process import check_application, process_event
from streamfold.engines import MemoryEngine
from streamfold.engines.protocol import NamedTable
from streamfold.errors import ManifestError, NotOwned, SettingsError
from streamfold.keys.table import MAIN, STATE, is_marker
from streamfold.lifecycle.adoption import Adoption, Renaming
from streamfold.lifecycle.page import Pages
from streamfold.records.values import decode, encode
from streamfold.runtime import Knowledge, Runtime
from streamfold.settings import Settings
from tests.helpers.records import record
from tests.helpers.separate import Died, SeparateStore

ORDER, TOTALS, OWN = Key("ORDER#{order_id}", "METADATA"), Key("TOTALS", "{city}"), Key("OWN#{order_id}", "ROW")
INCIDENTS = ("lost", "mistyped", "table restored", "state restored", "both restored", "renamed", "region")
ORDERS, CITIES, STEPS = 8, 3, 12


def application(name):
    router = Router()

    @router.view(ORDER, into=TOTALS)
    def totals(order):
        yield Row(city=order["city"], orders=Count(), total=Sum(order["total"]), largest=Max(order["total"]))

    @router.index(ORDER, into=OWN)
    def owned(order):
        yield Row(total=order["total"])

    return App(name, routers=[router])


def fold(items):
    """The right rows of items, in the plainest way."""
    rows = {}
    for partition, item in items.items():
        row = rows.setdefault(("TOTALS", item["city"]), {"orders": 0, "total": 0, "largest": 0})
        row["orders"] += 1
        row["total"] += item["total"]
        row["largest"] = max(row["largest"], item["total"])
        rows["OWN#" + partition.removeprefix("ORDER#"), "ROW"] = {"total": item["total"]}
    return rows


class MemoryTables:
    """Tables and states as dictionaries."""

    names = count(1)

    def __init__(self):
        self.versions = count(10**9)

    def named(self, begins):
        number = next(self.names)
        return NamedTable(f"{begins}-{number}", f"id-{number}")

    def table(self):
        return {"named": self.named("orders"), "rows": {}, "sources": {}}

    def state(self):
        return {"named": self.named("state"), "state": {}, "positions": {}}

    def copy_table(self, table):
        return {"named": self.named("orders"), "rows": dict(table["rows"]), "sources": dict(table["sources"])}

    def copy_state(self, state):
        positions = {pk: list(found) for pk, found in state["positions"].items()}
        return {"named": self.named("state"), "state": dict(state["state"]), "positions": positions}

    def engine(self, app, table, state):
        store = SeparateStore(app, named={"main": table["named"], STATE.name: state["named"]})
        store.rows, store._sources = table["rows"], table["sources"]
        store.state, store._positions = state["state"], state["positions"]
        store.source_tables.add("main")
        return store

    def put(self, table, partition, item):
        key = ("main", partition, "METADATA")
        image = None if item is None else encode(item)["M"]
        store = MemoryEngine([MAIN])
        store._sources = table["sources"]
        store.put_sources([(key, image, str(next(self.versions)))])

    def rows(self, table):
        return {key[1:]: decode({"M": row}) for key, row in table["rows"].items() if not is_marker(key[1])}

    def put_row(self, table, key, row):
        if row is None:
            table["rows"].pop(("main", *key), None)
        else:
            table["rows"]["main", *key] = encode(row)["M"]

    def remove_marker(self, table):
        for key in [key for key in table["rows"] if is_marker(key[1])]:
            del table["rows"][key]


class History:
    """One history out of a seed."""

    def __init__(self, seed, tables):
        self.random, self.tables = Random(seed), tables
        self.name, self.epoch, self.sequence = "shop", 0, count(10**20, 7)
        self.apps = {name: application(name) for name in ("shop", "store")}
        self.table, self.state = tables.table(), tables.state()
        self.items, self.known, self.label = {}, Knowledge(), count()
        self.stream, self.stream_of = [], self._stream()
        self.seen = Counter()

    def play(self):
        for _ in range(self.random.randint(1, STEPS)):
            self.step()
        self.incident(self.random.choice(INCIDENTS))
        for _ in range(self.random.randint(1, STEPS)):
            self.step()
        self.check()

    def step(self):
        """Writes some items, and delivers their records."""
        for _ in range(self.random.randint(1, 3)):
            self.write()
        assert self.deliver(self.stream) == []
        if self.random.random() < 0.5:
            self.known = Knowledge()  # a new process

    def write(self):
        partition = f"ORDER#{self.random.randrange(ORDERS)}"
        old = self.items.get(partition)
        item = {"city": f"c{self.random.randrange(CITIES)}", "total": self.random.randrange(1, 9)}
        new = None if old is not None and self.random.random() < 0.3 else item
        self.put(self.table, partition, new)
        keys = {"PK": partition, "SK": "METADATA"}
        images = [image and {**keys, **image} for image in (old, new)]
        name, label = self.table["named"].name, self.stream_of
        self.stream.append(record(*images, next(self.sequence), table=name, label=label))

    def put(self, table, partition, item):
        if item is None:
            self.items.pop(partition, None)
        else:
            self.items[partition] = item
        self.tables.put(table, partition, item and {"PK": partition, "SK": "METADATA", **item})

    def deliver(self, records):
        """Delivers records, and returns the failures; delivered records leave the stream."""
        failures = process_event(self.process(), records).failures if records else []
        if not failures:
            self.stream = []
        return failures

    def process(self, **more):
        app = self.apps[self.name]
        engine = self.tables.engine(app, self.table, self.state)
        settings = Settings(tables={"main": self.table["named"].name}, epoch=self.epoch)
        return Runtime(app, engine, settings, self.known, pause=lambda _: None, **more)

    def _stream(self):
        return f"2026-03-01T09:00:{next(self.label):02d}.000"

    # What happens

    def incident(self, what):
        self.seen[what] += 1
        self.known = Knowledge()
        getattr(self, "_" + what.replace(" ", "_"))()

    def _lost(self):
        self.state = self.tables.state()
        self.refused()
        self.go_on()

    def _mistyped(self):
        right, self.state = self.state, self.tables.state()
        self.refused()
        self.state, self.known = right, Knowledge()
        assert self.deliver(self.stream) == []

    def _renamed(self):
        self.name = "store"
        self.refused()
        self.until_done(lambda: Renaming(self.process(), "shop"))

    def _state_restored(self):
        before = self.tables.copy_state(self.state)
        self.step()
        self.state, self.known = before, Knowledge()
        self.refused()
        self.state, self.known = self.tables.state(), Knowledge()
        self.go_on()

    def _table_restored(self):
        before, items = self.tables.copy_table(self.table), dict(self.items)
        self.step()
        self.table, self.items, self.stream_of = before, items, self._stream()
        self.known = Knowledge()
        self.refused()
        self.state, self.known = self.tables.state(), Knowledge()
        self.refused()
        self.go_on()

    def _both_restored(self):
        before, items = (self.tables.copy_table(self.table), self.tables.copy_state(self.state)), dict(self.items)
        self.step()
        (self.table, self.state), self.items, self.stream_of = before, items, self._stream()
        self.known = Knowledge()
        self.refused()
        self.epoch, self.known = self.epoch + 1, Knowledge()

    def _region(self):
        """Items and rows come along up to some moment, each for itself, and the state does not."""
        items, rows = dict(self.items), self.tables.rows(self.table)
        for _ in range(self.random.randint(0, 3)):
            self.step()
        west = self.tables.copy_table(self.table)
        for partition in sorted({*items, *self.items}):
            if self.random.random() < 0.4:
                self.put(west, partition, items.get(partition))
        for key in sorted({*rows, *self.tables.rows(self.table)}):
            if not key[0].startswith("ORDER#") and self.random.random() < 0.4:
                self.tables.put_row(west, key, rows.get(key))
        self.table, self.state, self.stream_of = west, self.tables.state(), self._stream()
        self.known = Knowledge()
        self.refused()
        self.go_on()

    # Ways on

    def refused(self):
        """A new process is refused, and changes no row."""
        if not self.stream:
            self.write()
        before = self.tables.rows(self.table)
        try:
            process_event(self.process(), self.stream)
        except (NotOwned, ManifestError):
            pass
        else:
            assert not before, "a batch was taken beside rows of another state"
        assert self.tables.rows(self.table) == before
        self.known = Knowledge()

    def go_on(self):
        if self.random.random() < 0.5:
            self.until_done(lambda: Adoption(self.process()))
        else:
            self.anew()

    def until_done(self, made):
        """Runs a command, which may be killed, until it has ended."""
        deaths = self.random.choice((0, 0, 1, 2))
        for _ in range(deaths + 1):
            self.known = Knowledge()
            try:
                command = made()
            except SettingsError:  # nothing is left to do
                check_application(self.process())
                break
            store = command.runtime.store
            if deaths and isinstance(store, SeparateStore):
                deaths -= 1
                store.dies_at = len(store.calls) + self.random.randrange(60)
            try:
                assert command.go().marked
                break
            except Died:
                continue
        else:
            self.until_done(made)
        self.known = Knowledge()

    def anew(self):
        """Removes the rows and the marker, and fills them in again."""
        for key in self.tables.rows(self.table):
            if not key[0].startswith("ORDER#"):
                self.tables.put_row(self.table, key, None)
        self.tables.remove_marker(self.table)
        check_application(self.process())
        keys = [("main", partition, "METADATA") for partition in self.items]
        Pages(self.process(), ["totals", "owned"]).reconcile(keys)

    def check(self):
        shown = {
            key: {name: value for name, value in row.items() if name[:4] != "_sf_" and name not in ("PK", "SK")}
            for key, row in self.tables.rows(self.table).items()
            if not key[0].startswith("ORDER#") and row.get("_sf_n") != 0
        }
        for key, row in shown.items():
            if key[0] == "TOTALS":
                row.pop("city", None)
        assert shown == fold(self.items), (shown, fold(self.items))
