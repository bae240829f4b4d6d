"""What a record costs on DynamoDB, counted at the engine: requests, and the capacity units that would be billed.

``pytest tests/proofs/test_costs.py -s`` prints the figures.
"""

import re
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from streamfold import App, Change, Count, Key, Max, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.engines import EmbeddedEngine
from streamfold.keys.table import MAIN
from streamfold.ledger.state_keys import ledger_key
from streamfold.records.change import Origin
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import LedgerWrite
from tests.helpers.counting import KeepingEngine
from tests.helpers.expenses import EXPENSE, GROUP, group_total
from tests.helpers.known import Known
from tests.helpers.source import Source

BATCH = 100
MEASURED = 1000
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
SCORE = Key("SCORE#{name}", "METADATA")
AGGREGATES = Path(__file__).parents[2] / "docs/aggregates.md"


def group_totals():
    router = Router()
    router.view(EXPENSE, into=GROUP)(group_total)
    return App("shop", routers=[router])


def five_views():
    router = Router()

    @router.view(ORDER_ITEM, into=Key("ORDER#{order_id}", "TOTAL"))
    def order_total(item):
        yield Row(total=Sum(item["price"] * item["quantity"]), lines=Count())

    @router.view(ORDER_ITEM, into=Key("SALES#{day}", "SKU#{sku}"))
    def daily_sales(item):
        yield Row(day=item["at"][:10], units=Sum(item["quantity"]))

    @router.view(ORDER_ITEM, into=Key("CUSTOMER#{customer_id}", "TOTAL"))
    def customer_total(item):
        yield Row(customer_id=item["customer_id"], spent=Sum(item["price"] * item["quantity"]), lines=Count())

    @router.view(ORDER_ITEM, into=Key("STOCK#{sku}", "RESERVED"))
    def stock_reserved(item):
        yield Row(units=Sum(item["quantity"]))

    @router.view(ORDER_ITEM, into=Key("REGION#{region}", "MONTH#{month}"))
    def monthly_revenue(item):
        amount = Sum(item["price"] * item["quantity"])
        yield Row(region=item["region"], month=item["at"][:7], revenue=amount, orders=Count())

    return App("shop", routers=[router])


def best_of(aggregate):
    router = Router()

    @router.view(SCORE, into=Key("ALL", "TOTAL"))
    def best(score):
        return Row(n=Count(), best=aggregate(score["x"]))

    return App("shop", routers=[router])


class Load:
    """Items over groups, amended at random: 10 % of the changes move an item to another group, 5 % remove it."""

    def __init__(self, items, groups, **more):
        self.random = Random(20260301)
        self.source = Source(**more)
        self.names = [f"EXPENSE#{number:06d}" for number in range(items)]
        self.groups = [f"{number:02d}" for number in range(groups)]

    def first(self):
        return [self._put(name, self.random.choice(self.groups)) for name in self.names]

    def changes(self, count):
        return [self._change(self.random.choice(self.names)) for _ in range(count)]

    def _change(self, name):
        item = self.source.items.get((name, "METADATA"))
        chance = self.random.random()
        if item is None:
            return self._put(name, self.random.choice(self.groups))
        if chance < 0.05:
            return self.source.remove(name)
        if chance < 0.15:
            return self._put(name, self.random.choice([group for group in self.groups if group != item["group"]]))
        return self._put(name, item["group"])

    def _put(self, name, group):
        return self.source.put(name, group=group, amount=self.random.randint(1, 10_000))


@pytest.fixture
def app():
    return group_totals()


@pytest.fixture
def engine(app):
    with closing(KeepingEngine(EmbeddedEngine(app.tables.values()))) as engine:
        yield engine


KNOWN = Known()
"""What a process that goes on from batch to batch knows of its engines."""


def process(app, engine, records):
    for start in range(0, len(records), BATCH):
        run = Runtime(app, engine, Settings(), known=KNOWN.of(engine, app))
        assert process_event(run, records[start : start + BATCH]).failures == []


def rows(engine):
    return list(engine.items(MAIN))


@pytest.mark.parametrize(
    ("items", "groups", "requests_max", "units_max", "refused"),
    [pytest.param(500, 20, 0.04, 2.3, 0, id="spread"), pytest.param(20, 5, 0.03, 0.6, 1, id="hot")],
)
def test_record_of_a_view_costs_no_more_than_this(app, engine, items, groups, requests_max, units_max, refused):
    load = Load(items, groups)
    process(app, engine, load.first())
    engine.calls.clear()

    process(app, engine, load.changes(MEASURED))

    requests, units = engine.requests / MEASURED, engine.write_units / MEASURED
    print(f"\n{items} items over {groups} groups: {requests:.3f} requests and {units:.2f} write units a record")
    assert requests <= requests_max + 1 / BATCH  # the manifest, once a batch
    assert units <= units_max
    assert [(call.requests, call.read_units) for call in engine.named("read_state")] == [(1, 1)] * (MEASURED // BATCH)
    assert engine.read_units == MEASURED // BATCH
    assert len(engine.refused) == refused  # by a row that would have been empty


@pytest.mark.parametrize(("items", "groups"), [(500, 20), (20, 5)])
def test_batch_that_comes_again_changes_nothing_and_is_read_after_one_refused_transaction(app, engine, items, groups):
    load = Load(items, groups)
    process(app, engine, load.first())
    batch = load.changes(BATCH)
    process(app, engine, batch)
    before, state_before = rows(engine), list(engine.state_items())
    engine.calls.clear()

    process(app, engine, batch)

    requests, units, reads = engine.requests / BATCH, engine.write_units / BATCH, engine.read_units / BATCH
    print(f"\nthe same batch again: {requests:.3f} requests, {units:.2f} write and {reads:.2f} read units a record")
    assert (rows(engine), list(engine.state_items())) == (before, state_before)
    assert len(engine.named("transact")) == len(engine.refused) == 1
    assert len(engine.named("read_state")) <= 2


def test_batch_with_new_images_only_costs_one_read_beside_the_manifest(app, engine):
    load = Load(100, 5, view="NEW_IMAGE")
    process(app, engine, load.first())
    engine.calls.clear()

    process(app, engine, load.changes(BATCH))

    assert [call.requests for call in engine.named("read_state")] == [1, 1]
    assert engine.refused == []


@pytest.mark.parametrize("app", [five_views()], ids=["five views"])
def test_five_small_views_of_an_item_cost_one_ledger_action_within_a_kilobyte(app, engine):
    source = Source()
    item = {"price": 1999, "quantity": 3, "at": "2026-03-01T10:15:00Z"}
    record = source.put(
        "ORDER#20260301-000123", "ITEM#sku-48213", **item, customer_id="customer-00417", region="eu-central"
    )

    process(app, engine, [record])

    ledger_writes = [write for write in engine.writes if isinstance(write, LedgerWrite)]
    size = engine.state_bytes(ledger_key("shop", "main", change_of(record).item))
    print(f"\na state item of five views: {size} bytes")
    assert len(ledger_writes) == 1
    assert [part.handler for part in ledger_writes[0].contributions] == [route.name for route in app.routes]
    assert size <= 1024


SUMS, LARGEST = best_of(Sum), best_of(Max)
CHANGES = {
    "a smaller value is put": lambda source: [source.put("SCORE#small", x=1)],
    "a larger value is put": lambda source: [source.put("SCORE#large", x=1000)],
    "a smaller value is amended": lambda source: [source.put("SCORE#small", x=2)],
    "the largest is removed": lambda source: [source.remove("SCORE#large")],
    "a smaller one is removed": lambda source: [source.remove("SCORE#small")],
    "100 smaller values are put, in one batch": lambda source: [source.put(f"SCORE#{n}", x=n) for n in range(100)],
}


@pytest.mark.parametrize("app", [SUMS, LARGEST], ids=["Sum", "Max"])
def test_aggregates_cost_what_the_documents_say(app, engine):
    source, found = Source(), {}
    process(app, engine, [source.put(f"SCORE#first-{number}", x=500 + number) for number in range(20)])
    for name, change in CHANGES.items():
        engine.calls.clear()
        process(app, engine, change(source))
        found[name] = (engine.write_units, int(engine.read_units) - 1, engine.requests - 1)  # without the manifest
    assert found == documented(app)


def documented(app):
    """Write units, read units and requests in the table of docs/aggregates.md; a sum is said to read nothing."""
    rows = re.findall(
        r"^\| (.+) \| (\d+), (\d+) \| (\d+), (\d+), (\d+) \|$", AGGREGATES.read_text("utf-8"), re.MULTILINE
    )
    numbers = {name: tuple(map(int, cells)) for name, *cells in rows}
    if app is SUMS:
        return {name: (units, 0, requests) for name, (units, requests, *_) in numbers.items()}
    return {name: cells[2:] for name, cells in numbers.items()}


def change_of(record):
    return Change(record, Origin(MAIN, ""))
