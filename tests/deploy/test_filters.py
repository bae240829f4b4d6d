"""Filters of events: no record that a handler wants is dropped, over drawn applications; few others pass."""

import json
from contextlib import closing
from itertools import combinations
from random import Random

import pytest

from handlers import app as shop
from streamfold import App, Count, Key, Router, Row
from streamfold.batch.order import is_of_counted_row
from streamfold.batch.process import process_event
from streamfold.deploy.filters import PATTERNS_MAX, filter_of
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing.mapping_settings import PATTERN_CHARACTERS_MAX, Filters
from tests.helpers.everything import whole
from tests.helpers.histories import ITEMS, batches, random_writes, records_of
from tests.helpers.records import change, item
from tests.helpers.records import record as stream_record
from tests.helpers.template import ROOT

WORDS = ("A", "AB", "ORDER", "ORDERS", "Ü", "X_", "")
APPLICATIONS = 60
RECORDS = 40
SHOP_RECORDS = 200


def component(random, number):
    """A drawn template: a beginning or none, a field or none."""
    word = random.choice(WORDS)
    if random.random() < 0.25:
        return word + "#" if word else "META"
    return (
        f"{word}#{{f{number}}}" if word else f"{{f{number}}}" if random.random() < 0.3 else f"T{number}#{{f{number}}}"
    )


def drawn(random):
    """An application of drawn keys, and the keys."""
    while True:
        router, keys = Router(), []
        try:
            for number in range(random.randrange(1, 6)):
                key = Key(component(random, number), component(random, number + 10))
                into = Key(f"OUT{number}#{{day}}", "TOTAL")

                def handler(item):
                    return Row(day="d", n=Count())

                router.view(key, into=into, name=f"h{number}")(handler)
                keys.append(key)
            return App("drawn", routers=[router]), keys
        except Exception:  # noqa: BLE001 - templates that do not fit together are drawn again
            continue


def record(names, values, event="MODIFY", old=None, new=None, *, kinesis=False):
    keys = {name: {"S": value} for name, value in zip(names, values, strict=True)}
    made = {"eventName": event, "dynamodb": {"Keys": keys}}
    made["dynamodb"] |= {name: image for name, image in (("OldImage", old), ("NewImage", new)) if image is not None}
    return {"data": made} if kinesis else made


def wanted_and_passed(seeds, *, kinesis):
    """How many records of drawn applications a handler wants; each has to pass by the filter."""
    wanted = 0
    for seed in seeds:
        random = Random(seed)
        app, keys = drawn(random)
        passes = Filters(filter_of(app, None, "main", kinesis=kinesis).patterns)
        for _ in range(RECORDS):
            key = random.choice(keys)
            values = list(key.key(**{name: random.choice("abZ9") for name in key.fields}).values())
            if random.random() < 0.5:
                values[random.randrange(2)] = random.choice(WORDS) + "#" + random.choice("ab")
            if any(entry.listeners for entry, _ in app.found(("main", *values))):
                wanted += 1
                for event in ("INSERT", "MODIFY", "REMOVE"):
                    assert passes(record(("PK", "SK"), values, event, kinesis=kinesis)), (seed, values)
    return wanted


@pytest.mark.parametrize("kinesis", [False, True])
def test_no_record_that_a_handler_wants_is_dropped(kinesis):
    assert wanted_and_passed(range(APPLICATIONS), kinesis=kinesis) > APPLICATIONS * RECORDS / 4


@pytest.mark.parametrize(
    "applications", [pytest.param(500, marks=pytest.mark.ci), pytest.param(5000, marks=pytest.mark.nightly)]
)
def test_no_record_of_many_that_a_handler_wants_is_dropped(applications):
    found = sum(wanted_and_passed(range(applications), kinesis=kinesis) for kinesis in (False, True))
    assert found > 20 * applications  # 10,000, and 100,000 each night


def test_records_of_the_shop_that_nobody_wants_are_not_delivered(tmp_path):
    """The stream of the shop's table has its orders, and the rows that are made of them."""
    rows = []

    def noted(row):
        rows.append(row)
        return shop.chains(row)

    records = [json.loads(line) for line in (ROOT / "events/shop.jsonl").read_text("utf-8").splitlines()[:SHOP_RECORDS]]
    engine = EmbeddedEngine(shop.tables.values(), path=str(tmp_path / "shop.db"), wanted=noted)
    with closing(engine):
        shop.process(records, engine=engine, settings=Settings(state_table="state"))
    sources = [tuple(each["dynamodb"]["Keys"][name]["S"] for name in ("PK", "SK")) for each in records]
    stream = [*sources, *(row[1:] for row in rows if row[0] == "main")]
    passes = Filters(filter_of(shop, "main", "main").patterns)
    wanted = [key for key in stream if any(each.route.group == "main" for each, _ in shop.listeners(("main", *key)))]
    delivered = [key for key in stream if passes(record(("PK", "SK"), key))]
    assert len(wanted) < 0.5 * len(stream)
    assert len(wanted) <= len(delivered) <= 1.03 * len(wanted)


def test_the_filter_of_the_examples_is_short_and_keeps_out_what_handlers_write():
    found = filter_of(shop, "main", "main")
    passes = Filters(found.patterns)
    assert found.widened_by == ()
    assert len(found.patterns) <= 2
    assert max(map(len, found.patterns)) < PATTERN_CHARACTERS_MAX / 2
    assert passes(record(("PK", "SK"), ("ORDER#1", "METADATA")))
    assert not passes(record(("PK", "SK"), ("STATUS#paid", "2026#1")))


def test_a_removed_row_that_counted_items_passes_and_no_other_change_of_it():
    router = Router()

    @router.view(Key("ORDER#{order_id}", "META"), into=Key("DAY#{day}", "TOTAL"))
    def daily(order):
        return Row(day=order["day"], orders=Count())

    passes = Filters(filter_of(App("a", routers=[router]), None, "main").patterns)
    row, counted, empty = ("DAY#1", "TOTAL"), {"_sf_n": {"N": "2"}}, {"_sf_n": {"N": "0"}}
    assert passes(record(("PK", "SK"), row, "REMOVE", old=counted))
    assert not passes(record(("PK", "SK"), row, "REMOVE", old=empty))
    assert not passes(record(("PK", "SK"), row, "MODIFY", old=counted, new=counted))
    assert not passes(record(("PK", "SK"), row, "INSERT", new=counted))


MARKS = {"_sf_o": "ORDER#1", "_sf_v": "00/a/1", "_sf_l": "a life", "total": 5}


@pytest.mark.parametrize("kinesis", [False, True])
@pytest.mark.parametrize("count", [None, 0, 1, 12])
@pytest.mark.parametrize("marks", [each for size in range(5) for each in combinations(MARKS, size)], ids="+".join)
def test_a_removed_row_passes_if_and_only_if_the_function_counts_it(marks, count, kinesis):
    router = Router()
    router.view(Key("ORDER#{order_id}", "META"), into=Key("DAY#{day}", "TOTAL"), name="daily")(lambda order: Row())
    passes = Filters(filter_of(App("a", routers=[router]), None, "main", kinesis=kinesis).patterns)
    counted = {} if count is None else {"_sf_n": count}
    removed = {"old": item("DAY#1", "TOTAL", **counted, **{name: MARKS[name] for name in marks}), "new": None}
    delivered = stream_record(**removed)
    assert passes({"data": delivered} if kinesis else delivered) == is_of_counted_row(change(**removed))


def test_no_row_that_the_framework_itself_removes_is_delivered_unless_a_handler_reads_it():
    """Items of every kind come, change and go, and with them each of their rows."""
    engine = MemoryEngine(whole.tables.values(), lambda row: ["all"])
    runtime = Runtime(whole, engine, Settings(), pause=lambda _: None)
    history = [*random_writes(Random(1), 300), *((key, None) for key in ITEMS)]
    for batch in batches(records_of(history), (), rest=3):
        process_event(runtime, batch)
    stream = [each.record for each in engine.pending(100_000, "all") if ":table/main/" in each.record["eventSourceARN"]]
    removed = [each for each in stream if each["eventName"] == "REMOVE"]
    keys = [tuple(each["dynamodb"]["Keys"][name]["S"] for name in ("PK", "SK")) for each in removed]
    unread = [each for each, key in zip(removed, keys, strict=True) if not whole.listeners(("main", *key))]
    assert sum("_sf_o" in each["dynamodb"]["OldImage"] for each in unread) > 10
    passes = Filters(filter_of(whole, None, "main").patterns)
    assert [each for each in unread if passes(each)] == []


def test_a_change_that_looks_like_a_write_back_is_delivered():
    """A writer puts an order whole; another puts back what it read before that, with the mark of then. No test of the
    framework's attributes tells this change from a write-back, and a view has to follow it.
    """
    router = Router()
    router.attributes(Key("ORDER#{order_id}", "META"), name="open_orders")(lambda order: Row(GSI1PK="OPEN"))
    passes = Filters(filter_of(App("a", routers=[router]), None, "main").patterns)
    derived = {"GSI1PK": "OPEN", "_sf_a": {"a/open_orders": {"GSI1PK"}}}
    put = item("ORDER#1", "META", status="paid")
    assert passes(stream_record(put, {**put, **derived}))
    assert passes(stream_record(put, {**put, "status": "open", **derived}))


def test_without_old_images_no_removed_row_passes_and_the_filter_says_so():
    found = filter_of(shop, "main", "main", old_images=False)
    assert found.counts_removals is False
    assert all("OldImage" not in pattern for pattern in found.patterns)


def test_a_key_that_begins_with_a_field_leaves_the_table_without_a_filter_and_is_named():
    router = Router()
    router.audit(Key("{tenant}", "{thing}"), name="everything")
    found = filter_of(App("a", routers=[router]), None, "main")
    assert (found.patterns, found.widened_by, found.criteria) == ((), ("everything",), None)


def application(keys):
    router = Router()
    for number, key in enumerate(keys):
        router.audit(key, name=f"h{number}")
    return App("many", routers=[router])


@pytest.mark.parametrize("kinesis", [False, True])
def test_records_of_parts_pass_to_the_function_that_has_their_roots(kinesis):
    order, line = Key("ORDER#{order_id}", "META"), Key("ORDER#{order_id}", "LINE#{sku}")
    router, others = Router(), Router()
    router.index(order, into=Key("ROW#{order_id}", "ROW"), parts=[line], name="rows", group="rows")(
        lambda order, parts: Row(lines=len(parts(line)))
    )
    others.audit(Key("USER#{user_id}", "META"), name="users")
    app = App("shop", routers=[router, others])
    for group, delivered in (("rows", True), ("main", False)):
        passes = Filters(filter_of(app, group, "main", kinesis=kinesis).patterns)
        for sort, wanted in (("META", delivered), ("LINE#tea", delivered), ("NOTE#1", False)):
            assert passes(record(("PK", "SK"), ("ORDER#1", sort), kinesis=kinesis)) is wanted, (group, sort)


def test_many_beginnings_lose_their_sort_keys_first():
    keys = [Key(f"P{number:03}#{{a}}", f"S{number:03}#{{b}}") for number in range(80)]
    found = filter_of(application(keys), None, "main")
    assert len(found.patterns) == 1
    assert '"SK"' not in found.patterns[0]
    assert all(Filters(found.patterns)(record(("PK", "SK"), (f"P{n:03}#1", "any"))) for n in range(80))


def test_more_beginnings_are_merged_and_each_pattern_fits():
    keys = [Key(f"P{number:04}#{{a}}", "META") for number in range(220)]
    found = filter_of(application(keys), None, "main")
    assert 1 <= len(found.patterns) <= PATTERNS_MAX
    assert max(map(len, found.patterns)) <= PATTERN_CHARACTERS_MAX
    assert all(Filters(found.patterns)(record(("PK", "SK"), (f"P{n:04}#1", "META"))) for n in range(220))


def test_a_pattern_is_json_in_which_one_beginning_stands_alone():
    found = filter_of(application([Key("ORDER#{order_id}", "META")]), None, "main")
    keys = {"PK": {"S": [{"prefix": "ORDER#"}]}, "SK": {"S": ["META"]}}
    assert json.loads(found.patterns[0]) == {"dynamodb": {"Keys": keys}}
