"""A canary with a new handler, under load and rolled back, in the order that docs/changing-code.md gives."""

from random import Random

import pytest

from streamfold import App, Count, Key, Router, Row, Sum
from streamfold.batch.manifest import read_manifest
from streamfold.batch.process import process_event
from streamfold.batch.report import response_of
from streamfold.engines import MemoryEngine
from streamfold.errors import ManifestError
from streamfold.records.values import decode
from streamfold.runtime import Knowledge, Runtime
from streamfold.settings import Settings
from streamfold.testing import MappingSettings, MappingTwin, TableTwin

LINE = Key("ORDER#{order_id}", "LINE#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
ORDERS, LINES = 4, 3
ROUNDS = 12
VERSIONS = {"old": ["total"], "new": ["total", "lines"]}
PATIENCE = 40
"""Invocations in a step of a mapping whose batches may fail for ever."""


def line(number):
    return LINE.key(order_id=str(number // LINES), sku=str(number % LINES))


def version(*names):
    """A version of the code: each handler adds up another attribute of the same rows."""
    router = Router()
    makes = {
        "total": lambda line: Row(total=Sum(line["price"])),
        "lines": lambda line: Row(lines=Count()),
    }
    for name in names:

        def rows(line, made=makes[name]):
            yield made(line)

        router.view(LINE, into=TOTAL, name=name)(rows)
    return App("shop", routers=[router])


class Alias:
    """An alias of a function: it runs the new version for a share of the invocations."""

    def __init__(self, engine, seed, **settings):
        self.engine, self.random, self.share, self.errors = engine, Random(seed), 0.0, []
        self.runs = {name: (version(*names), Knowledge()) for name, names in VERSIONS.items()}
        self.settings = Settings(**settings)

    def __call__(self, event, context):
        app, known = self.runs["new" if self.random.random() < self.share else "old"]
        try:
            return response_of(process_event(Runtime(app, self.engine, self.settings, known), event).failures)
        except ManifestError as error:
            self.errors.append(str(error))
            raise


class Canary:
    """A table under load, its mapping, and the alias behind it."""

    def __init__(self, seed, **settings):
        self.random = Random(seed)
        self.table = TableTwin(shards=2)
        self.engine = MemoryEngine(version("total").tables.values())
        self.alias = Alias(self.engine, seed, **settings)
        self.mapping = MappingTwin(
            self.table.stream,
            self.alias,
            MappingSettings(batch_size=5, report_item_failures=True, bisect=True),
            random=Random(seed),
        )

    def play(self, share):
        """Writes go on while a share of the invocations runs the new version."""
        self.alias.share = share
        for _ in range(ROUNDS):
            key = line(self.random.randrange(ORDERS * LINES))
            if self.random.random() < 0.2:
                self.table.delete(key)
            else:
                self.table.put({**key, "price": self.random.randrange(1, 100)})
            self.mapping.run(PATIENCE)

    def write_all_again(self):
        for number in range(ORDERS * LINES):
            key = line(number)
            before = self.table.get(key)
            self.table.put({**(before or key), "price": 1000})
            if before is None:
                self.table.delete(key)
            else:
                self.table.put(before)
        self.mapping.run()

    def shown(self, name):
        """The rows that a handler has something in, as numbers: a row without a contributor may be left with zeros."""
        rows = {row: decode({"M": item}).get(name) for row, item in self.engine.rows.items()}
        return {row: value for row, value in rows.items() if value}

    def straight(self, name):
        """What one version shows that runs alone over the same items."""
        items: dict = {}
        for item in self.table.items():
            row = "main", item["PK"], "TOTAL"
            items[row] = items.get(row, 0) + (item["price"] if name == "total" else 1)
        return items


@pytest.fixture(params=range(4))
def seed(request):
    return request.param


def rolled_back(seed, **settings):
    canary = Canary(seed, **settings)
    for share in (0.0, 0.3, 0.0):
        canary.play(share)
    return canary


def test_with_the_switch_a_canary_is_rolled_back_without_a_stop(seed):
    canary = rolled_back(seed, older_code=True)
    assert canary.alias.errors == []
    assert canary.mapping.caught_up
    assert canary.shown("total") == canary.straight("total")


def test_with_the_switch_the_new_handler_is_partial_and_named_and_right_when_all_was_written_again(seed):
    canary = rolled_back(seed, older_code=True)
    manifest = read_manifest("shop", canary.engine)
    assert {name for name in manifest.handlers if manifest.partial_since(name)} == {"lines"}
    canary.alias.share = 1.0
    canary.write_all_again()
    for name in ("total", "lines"):
        assert canary.shown(name) == canary.straight(name)


def test_without_the_switch_the_old_version_stops_with_the_remedy_and_no_row_is_wrong(seed):
    canary = rolled_back(seed)
    assert not canary.mapping.caught_up
    assert all("Handler 'lines'" in error and "STREAMFOLD_OLDER_CODE=on" in error for error in canary.alias.errors)
    assert canary.alias.errors
    canary.alias.settings = Settings(older_code=True)
    canary.mapping.run()
    assert canary.mapping.caught_up
    assert canary.shown("total") == canary.straight("total")
    assert read_manifest("shop", canary.engine).partial_since("lines")
