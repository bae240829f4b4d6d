"""Histories in which writers put items at the keys of rows: before a row is there, over it, and after it has gone."""

from random import Random

from streamfold import App, Router
from streamfold.batch.fan_outs import run_chains
from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.keys.table import STATE, is_writers
from streamfold.lifecycle.other_rows import OtherRows
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.retire import Retirement
from streamfold.lifecycle.row_repair import RowCorrection, reconcile_rows
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.records.envelope import Origins
from streamfold.records.values import encode
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import StateKey
from tests.helpers import everything, histories


def _routers():
    kept = Router()
    kept.routes = [route for route in everything.items.routes if route.kind.name != "archive"]
    return [everything.router, everything.claims, kept]


APP = App("everything", routers=_routers())
"""All kinds that put rows into tables, but for feeds."""
CONTRIBUTING = [route.name for route in APP.routes if route.kind.contributes]


def engine_of(app=APP):
    return MemoryEngine(app.tables.values(), app.chains)


class WritersHistory:
    """One history: records, items that writers put, and repairs beside them."""

    def __init__(self, seed, writes=16):
        self.random = Random(seed)
        self.records = histories.records_of(histories.random_writes(self.random, writes))
        self.keys = self._keys_of_rows()
        self.begin()

    def begin(self):
        self.engine = engine_of()
        self.run_ = Runtime(APP, self.engine, Settings(), pause=lambda _: None)
        self.own, self.numbers = {}, 0  # the items that writers put, and how many they were
        self.failed, self.seen = [], []
        self.origins = Origins(APP.source_tables, Settings(), lambda _: None)

    def _keys_of_rows(self):
        """The keys of all rows that the records lead to."""
        self.begin()
        self.engine.touched = set()
        for record in self.records:
            self.deliver(record)
        sources = {change.item for change in self.seen}
        rows = (key for key in self.engine.touched if not isinstance(key, StateKey) and key[0] != STATE.name)
        return sorted({*rows} - sources, key=str)

    def deliver(self, *records, late=False):
        """Delivers records as one batch, with those that follow from them; keeps the ones that fail."""
        changes = [self.origins.change(record) for record in records]
        self.engine.put_over_rows(newest_sources(changes))
        self.run_.late = late
        report = process_changes(self.run_, changes)
        self.run_.late = False
        failing = {failure.sequence for failure in report.failures}
        self.failed += [record for record, change in zip(records, changes, strict=True) if change.sequence in failing]
        self.seen += changes
        run_chains(self.run_, self.engine)
        self.check()

    def put(self, key):
        """A writer puts an item without a mark, over whatever is there."""
        self.numbers += 1
        table = APP.tables[key[0]]
        attributes = dict(zip(table.attributes, key[1:], strict=False))
        own = dict.fromkeys(self.random.sample(NAMES, 3), self.numbers)
        self.own[key] = encode({**attributes, **own})["M"]
        self.engine._apply({key: self.own[key]})

    def remove(self, key):
        self.own.pop(key)
        self.engine._apply({key: None})

    def step(self):
        """Something that writers or operators do between two batches."""
        chosen = self.random.choice(("put", "put", "put", "remove", "again", "correct", "rebuild", "verify", "repair"))
        some = self.random.sample(self.keys, min(4, len(self.keys)))
        if chosen == "put" and some:
            self.put(some[0])
        elif chosen == "remove" and self.own:
            self.remove(self.random.choice(sorted(self.own, key=str)))
        elif chosen == "again" and self.failed:
            self.deliver(self.failed.pop(0), late=self.random.random() < 0.5)
        elif chosen == "correct":
            RowCorrection(self.run_).correct([*some, *self.own])
        elif chosen == "rebuild":
            handler = self.random.choice(CONTRIBUTING)
            Pages(self.run_, {handler}, always=True).reconcile({change.item for change in self.seen})
            reconcile_rows(self.run_, {handler})
        elif chosen == "repair":
            Pages(self.run_, CONTRIBUTING, always=True).reconcile({change.item for change in self.seen})
        elif chosen == "verify":
            RowsVerifier(self.run_, APP.routes, live=False).verify()
            OtherRows(self.run_, live=False).verify(APP.routes)
        self.check()

    def check(self):
        """No item without a mark is changed but by its writer."""
        for key, item in self.own.items():
            assert self.engine.rows.get(key) == item, (key, item, self.engine.rows.get(key))

    def run(self):
        waiting = list(self.records)
        while waiting:
            count = self.random.choice((1, 1, 2, 5))
            self.deliver(*waiting[:count])
            del waiting[:count]
            for _ in range(self.random.choice((0, 1, 2))):
                self.step()
        if self.random.random() < 0.3:
            self.retire()
        else:
            self.end()

    def retire(self):
        list(Retirement(self.run_, self.random.choice(CONTRIBUTING), remove=True).go())
        self.check()

    def end(self):
        """Once writers have removed their items, records and repairs make all rows what they are without them."""
        for key in [*self.own]:
            self.remove(key)
        for record in [*self.failed]:
            self.deliver(record)
        Pages(self.run_, CONTRIBUTING, always=True).reconcile({change.item for change in self.seen})
        run_chains(self.run_, self.engine)
        RowCorrection(self.run_).correct(self.keys)
        run_chains(self.run_, self.engine)
        RowCorrection(self.run_).correct(self.keys)
        run_chains(self.run_, self.engine)
        found = RowsVerifier(self.run_, APP.routes, live=False).verify()
        assert found.different == [], found.different
        assert not any(
            is_writers(row) for key, row in self.engine.rows.items() if key in self.keys and key[0] != "main"
        )


NAMES = ("total", "lines", "units", "name", "status", "customer", "orders", "greatest", "top", "state", "legs")
