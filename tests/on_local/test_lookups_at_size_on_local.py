"""A referent with many referrers on DynamoDB Local: one fan-out, kills, further changes, and traffic beside it."""

import time
from collections import Counter
from random import Random
from threading import Event, Thread

import pytest

from streamfold.batch.fan_outs import enqueue_open, run_fan_outs
from streamfold.batch.process import process_changes
from streamfold.engines import DynamoEngine
from streamfold.keys.table import MAIN
from streamfold.lifecycle.page import Pages
from streamfold.records.values import decode, encode
from streamfold.runtime import Runtime, Threads
from streamfold.settings import Settings
from tests.helpers.looked_up import made, sales_by_fan_outs
from tests.helpers.records import change, item
from tests.helpers.tables import make_table

TABLE, STATE = "lookups-at-size", "lookups-at-size-state"
SIZES = [200, pytest.param(100_000, marks=pytest.mark.nightly)]
AT_ONCE, PAGE = 500, 100
KILLS, CHANGES = 20, 10
LIVE_BATCH, LIVE_SECONDS = 10, 0.1
CALLS_BETWEEN_KILLS = 25
LARGE = 10_000
"""A fan-out of fewer has too few pages for a figure."""


class Killed(BaseException):
    """The process ends here."""


class Watched:
    """A store that counts what is written, and that may end its process after a number of calls.

    A unit a KB begun, twice that in a transaction: all items here are smaller than 1 KB. DynamoDB Local tells no units.
    """

    def __init__(self, engine):
        self.engine, self.counts, self.calls_left = engine, Counter(), None

    def __getattr__(self, name):
        found = getattr(self.engine, name)
        if not callable(found):
            return found

        def call(*given, **more):
            self._count_down()
            answer = found(*given, **more)
            self.counts["calls"] += 1
            if name == "transact":
                self.counts["sent"] += 1
                self.counts["refused"] += answer is not None
                self.counts["units"] += len(given[0]) * min(len(given[0]), 2)
            elif name in ("insert_state", "remove_empty", "clear_pending"):
                self.counts["units"] += len(given[0])
            return answer

        return call

    def taken(self):
        """The counts since the last time."""
        taken, self.counts = self.counts, Counter()
        return taken

    def _count_down(self):
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise Killed


class Shop:
    """Lines that all refer to one product, in two tables."""

    def __init__(self, client, lines):
        for name, keys in ((TABLE, ("PK", "SK")), (STATE, ("pk", "sk"))):
            make_table(client, name, dict.fromkeys(keys, "S"))
        self.client, self.lines, self.app = client, lines, made(sales_by_fan_outs)
        self.store = Watched(DynamoEngine(client, {"main": (MAIN, TABLE)}, STATE, pause=lambda _: None))
        self.sequence, self.items = 0, {}

    def runtime(self, store=None):
        slots = Threads(Settings().lanes)
        return Runtime(self.app, store or self.store, Settings(), pause=lambda _: None, slots=slots, outside=True)

    def write(self, *items):
        """The changes of items, which are in the table by then."""
        changes = []
        for start in range(0, len(items), 25):
            puts = [{"PutRequest": {"Item": encode(each)["M"]}} for each in items[start : start + 25]]
            assert not self.client.batch_write_item(RequestItems={TABLE: puts})["UnprocessedItems"]
        for each in items:
            self.sequence += 1
            key = each["PK"], each["SK"]
            changes.append(change(self.items.get(key), each, self.sequence))
            self.items[key] = each
        return changes

    def line(self, number, quantity=1):
        return item(f"ORDER#{number:06}", "ITEM#a", product_id="p", quantity=quantity)

    def product(self, category):
        return item("PRODUCT#p", "META", category=category, price=2)

    def fill(self):
        for start in range(0, self.lines, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, self.lines))
            self.process(self.write(*map(self.line, numbers)))

    def process(self, changes, store=None):
        assert process_changes(self.runtime(store), changes).failures == []

    def fan_out(self):
        """Works on the open fan-outs, as the schedule would have it."""
        runtime = self.runtime()
        enqueue_open(runtime)
        assert run_fan_outs(runtime).failures == []

    def is_open(self):
        return bool(enqueue_open(self.runtime(self.store.engine)))

    def rows(self):
        """Lines and total of each category."""
        pages = self.client.get_paginator("scan").paginate(
            TableName=TABLE, FilterExpression="begins_with(PK, :c)", **_CATEGORIES
        )
        rows = [decode({"M": row}) for page in pages for row in page["Items"]]
        return {row["PK"].removeprefix("CATEGORY#"): (row["lines"], row["total"]) for row in rows}


_CATEGORIES = {"ExpressionAttributeValues": {":c": {"S": "CATEGORY#"}}}


@pytest.fixture
def shop(dynamodb, lines):
    shop = Shop(dynamodb, lines)
    shop.process(shop.write(shop.product("a")))
    shop.fill()
    assert shop.rows() == {"a": (lines, 2 * lines)}
    return shop


@pytest.mark.parametrize("lines", SIZES)
def test_a_change_reaches_all_referrers_though_its_workers_are_killed(shop, lines):
    shop.store.taken()
    began = time.monotonic()
    shop.process(shop.write(shop.product("b")))
    shop.fan_out()
    seconds, undisturbed = time.monotonic() - began, shop.store.taken()
    assert shop.rows() == {"b": (lines, 2 * lines)}

    shop.process(shop.write(shop.product("c")))
    random, kills = Random(lines), 0
    between = max(CALLS_BETWEEN_KILLS, undisturbed["calls"] // (KILLS + 1))
    while kills < KILLS and shop.is_open():
        shop.store.calls_left = random.randrange(between // 2, between + 1)
        try:
            shop.fan_out()
        except Killed:
            kills += 1
    shop.store.calls_left = None
    shop.fan_out()
    killed = shop.store.taken()
    assert shop.rows() == {"c": (lines, 2 * lines)}
    print(
        f"{lines:,} referrers in {seconds:.0f} s, {undisturbed['units'] / lines:.2f} write units each; with {kills} "
        f"kills {killed['units'] / undisturbed['units']:.3f} times the write units"
    )
    assert kills
    assert lines < LARGE or killed["units"] <= 1.1 * undisturbed["units"]


@pytest.mark.parametrize("lines", SIZES)
def test_further_changes_within_a_fan_out_take_a_second_round_at_most(shop, lines, monkeypatch):
    visited, pages = Counter(), 0
    later = [f"b{number}" for number in range(1, CHANGES)]
    shop.process(shop.write(shop.product("b0")))
    read = shop.store.engine.read_entries
    between = max(1, lines // 1_000 // CHANGES)

    def counted(wanted):
        nonlocal pages
        found = read(wanted)
        if wanted.partition.startswith("refs#") and wanted.most > 2:
            visited["items"] += len(found)
            pages += 1
            if later and pages % between == 0:
                shop.process(shop.write(shop.product(later.pop(0))), shop.store.engine)
        return found

    monkeypatch.setattr(shop.store.engine, "read_entries", counted)
    while shop.is_open():
        shop.fan_out()
    for category in later:  # a fan-out of one page is over before all have come
        shop.process(shop.write(shop.product(category)))
    later.clear()
    while shop.is_open():
        shop.fan_out()
    print(f"{CHANGES} changes within a fan-out to {lines:,}: {visited['items'] / lines:.2f} rounds")
    assert shop.rows() == {f"b{CHANGES - 1}": (lines, 2 * lines)}
    assert lines < LARGE or visited["items"] <= 2 * lines


@pytest.mark.parametrize("lines", SIZES)
def test_traffic_on_the_items_that_a_fan_out_visits_meets_it_seldom(shop, lines):
    over, failed = Event(), []
    beside = Watched(shop.store.engine)
    quantities = dict.fromkeys(range(lines), 1)

    def live():
        random = Random(1)
        try:
            while not over.is_set():
                some = random.sample(range(lines), LIVE_BATCH)
                quantities.update({number: quantities[number] + 1 for number in some})
                shop.process(shop.write(*(shop.line(number, quantities[number]) for number in some)), beside)
                over.wait(LIVE_SECONDS)
        except BaseException as error:
            failed.append(error)
            raise

    shop.process(shop.write(shop.product("b")))
    traffic = Thread(target=live)
    traffic.start()
    try:
        while shop.is_open():
            shop.fan_out()
    finally:
        over.set()
        traffic.join()
    counts = shop.store.counts + beside.counts
    print(
        f"{lines:,} referrers beside {beside.counts['sent']} batches: {counts['refused']} of {counts['sent']} refused"
    )
    assert failed == []
    assert shop.rows() == {"b": (lines, 2 * sum(quantities.values()))}


@pytest.mark.parametrize("lines", SIZES)
def test_a_backfill_beside_the_stream_leaves_the_declared_rows_and_the_second_writes_none(dynamodb, lines):
    shop = Shop(dynamodb, lines)
    shop.write(shop.product("a"), *map(shop.line, range(lines)))  # their records are gone
    live = lines // PAGE
    for begin in range(0, lines, PAGE):
        if begin // PAGE % 10 == 1:  # a record of an item that a page comes to later
            shop.process(shop.write(shop.line(lines - 1 - begin // PAGE % live, 3)), shop.store.engine)
        keys = [("main", f"ORDER#{number:06}", "ITEM#a") for number in range(begin, min(begin + PAGE, lines))]
        Pages(shop.runtime(), {"sales"}).reconcile(keys)
    spent = shop.store.taken()
    total = 2 * sum(each["quantity"] for each in shop.items.values() if "quantity" in each)
    assert shop.rows() == {"a": (lines, total)}

    again = [
        Pages(shop.runtime(), {"sales"}).reconcile(
            [("main", f"ORDER#{number:06}", "ITEM#a") for number in range(begin, min(begin + PAGE, lines))]
        )
        for begin in range(0, lines, PAGE)
    ]
    print(
        f"backfill of {lines:,}: {spent['units'] / lines:.2f} write units an item, then {shop.store.taken()['units']}"
    )
    assert sum(report.rows for report in again) == 0
    assert sum(report.written for report in again) == 0
    assert spent["units"] <= 3.1 * lines
