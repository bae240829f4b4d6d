"""Any engine under the package's faults and invariants, which look into a store as the one in memory shows itself.

Source items lie beside the engine: repairs read them, and what a store of an application's own holds is not the point.
"""

from streamfold.engines import MemoryEngine
from streamfold.keys.table import STATE
from streamfold.proofs.check import ACTIONS, RATES
from streamfold.proofs.driver import Driver
from streamfold.proofs.faults import Drawn
from streamfold.proofs.handlers import FaultyHandlers
from streamfold.proofs.recorded import Recording
from streamfold.records.change import item_key
from streamfold.records.envelope import Origins
from streamfold.settings import Settings
from tests.helpers.model import decoded, keyed


def driven(app, engine, records, random):
    """Delivers records as badly as Lambda may while calls of the engine fail, and sets all right: the rows at the end.

    What is delivered, what fails and where is drawn; the invariants are looked at after every call.
    """
    origins = Origins(app.source_tables, Settings(), others=app.tables)
    shards = Recording(app, map(origins.change, records)).shards
    choices = Drawn(random, random.choice(RATES), None)
    driver = Driver(FaultyHandlers(app), shards, choices, random.choice(ACTIONS), store=Watched(app, engine))
    return decoded(driver.run())


class Watched:
    """An engine that keeps the keys that were written in ``touched``, and shows its items by key."""

    def __init__(self, app, engine):
        self.engine = engine
        self.tables = app.tables
        self.touched = set()
        self.source_tables = set()
        self.sources = {}
        self.versions = {}
        self.rows = Rows(app, engine)
        self.state = State(engine)

    def transact(self, writes, expires_at):
        self.touched |= {write.key for write in writes}
        return self.engine.transact(writes, expires_at)

    def insert_rows(self, rows):
        self.touched |= {row.key for row in rows}
        return self.engine.insert_rows(rows)

    def remove_empty(self, rows):
        self.touched |= set(rows)
        return self.engine.remove_empty(rows)

    def clear_pending(self, finished):
        self.touched |= set(finished)
        return self.engine.clear_pending(finished)

    def count_up(self, counters, start, expires_at):
        self.touched |= {counter.key for counter in counters}
        return self.engine.count_up(counters, start, expires_at)

    def swap_state(self, key, attributes, revision):
        self.touched.add(key)
        return self.engine.swap_state(key, attributes, revision)

    def put_sources(self, images):
        """Keeps source images (None: removed) where nothing newer is kept."""
        for key, image, version in images:
            if self.versions.get(key, "") < version:
                self.versions[key], self.sources[key] = version, image

    def read_source(self, item):
        return self.sources.get(item) or self.rows.get(item)

    def read_sources(self, items):
        return {item: source for item in items if (source := self.read_source(item)) is not None}

    def scan(self, table, part, after, limit):
        if table.name == STATE.name:
            return self.engine.scan(table, part, after, limit)
        shown, image = MemoryEngine([table]), {"there": {"BOOL": True}}
        rows = [item_key({name: row[name] for name in table.attributes}, table) for row in self.engine.items(table)]
        there = [key for key, source in self.sources.items() if source is not None]
        shown.put_sources((key, image, "1") for key in (*rows, *there))
        return shown.scan(table, part, after, limit)

    def __getattr__(self, name):
        return getattr(self.engine, name)


class Rows:
    """The rows of an engine by key, as they are stored now."""

    def __init__(self, app, engine):
        self.tables = app.tables
        self.engine = engine

    def get(self, key):
        table = self.tables[key[0]]
        return dict(keyed(table, self.engine.items(table, key[1]))).get(key)

    def items(self):
        return [pair for table in self.tables.values() for pair in keyed(table, self.engine.items(table))]


class State:
    """The state items of an engine by key; one that did not change since it was last looked at is the same object."""

    def __init__(self, engine):
        self.engine = engine
        self.seen = {}

    def get(self, key):
        now = self.engine.read_state([key], consistent=True).get(key)
        if self.seen.get(key) != now:
            self.seen[key] = now
        return self.seen.get(key)

    def __getitem__(self, key):
        return self.get(key)

    def __contains__(self, key):
        return self.get(key) is not None
