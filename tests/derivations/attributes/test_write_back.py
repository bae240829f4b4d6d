"""Attributes that are derived onto items of the application: there, right, and nobody else's business."""

from collections import defaultdict
from contextlib import suppress
from random import Random

import pytest

from streamfold import Add, App, Count, Key, Max, Router, Row, Sum
from streamfold.batch.process import process_event
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.errors import DeclarationError, EngineUnavailable
from streamfold.failures.repair import Repair
from streamfold.keys.table import DERIVED, STATE
from streamfold.lifecycle.other_rows import OtherRows
from streamfold.records.images import derived_names
from streamfold.records.values import decode, encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import HandlerFails, Twin, check
from streamfold.writes.guarded import CONDITION, AddRow, Reason, Refused, UpdateSource
from tests.helpers.records import item, record
from tests.helpers.source import Source

ORDER = Key("ORDER#{order_id}", "METADATA")
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
OTHER = Key("OTHER#{order_id}", "ITEM#{sku}")
BIG = Key("BIG#{band}", "COUNT")


def declare():
    router = Router()
    router.audit(ORDER)

    @router.attributes(ORDER_ITEM, of=ORDER)
    def order_total(item):
        yield Row(total=Sum(item["price"]), lines=Count(), highest=Max(item["price"]))

    @router.attributes(ORDER)
    def open_orders(order):
        if order["status"] == "open":
            yield Row(GSI1PK="OPEN", GSI1SK=order["at"])

    @router.view(ORDER, into=BIG)
    def bands(order):
        yield Row(band="big" if order.get("total", 0) > 10 else "small", orders=Count())

    return router


@pytest.fixture
def app():
    return App("shop", routers=[declare()])


@pytest.fixture
def twin(app):
    return Twin(app)


def order(twin, **more):
    twin.put(ORDER, order_id="1", status="open", at="2026-03-01", **more)


def line(twin, sku, price):
    twin.put(ORDER_ITEM, order_id="1", sku=sku, price=price)


def the_order(twin):
    return twin.row(ORDER, order_id="1")


class TestParent:
    def test_total_stands_on_the_order_itself(self, twin):
        order(twin)
        line(twin, "a", 5)
        line(twin, "b", 7)
        assert (the_order(twin)["total"], the_order(twin)["lines"], the_order(twin)["highest"]) == (12, 2, 7)

    def test_amended_and_removed_items_leave_no_trace(self, twin):
        order(twin)
        line(twin, "a", 5)
        line(twin, "b", 7)
        line(twin, "a", 6)
        twin.delete(ORDER_ITEM, order_id="1", sku="b")
        assert (the_order(twin)["total"], the_order(twin)["lines"], the_order(twin)["highest"]) == (6, 1, 6)

    def test_order_without_items_has_no_derived_attributes(self, twin):
        order(twin)
        line(twin, "a", 5)
        twin.delete(ORDER_ITEM, order_id="1", sku="a")
        assert the_order(twin).keys() == {"PK", "SK", "status", "at", "GSI1PK", "GSI1SK"}

    def test_nothing_is_made_where_the_order_is_absent(self, twin):
        line(twin, "a", 5)
        assert the_order(twin) is None

    def test_order_that_appears_later_gets_its_total(self, twin):
        line(twin, "a", 5)
        order(twin)
        assert the_order(twin)["total"] == 5

    def test_order_that_is_put_without_its_total_or_with_an_old_one_gets_the_right_one(self, twin):
        order(twin)
        line(twin, "a", 5)
        order(twin, note="again")
        assert the_order(twin)["total"] == 5
        order(twin, total=99, note="read and written back")
        assert (the_order(twin)["total"], the_order(twin)["note"]) == (5, "read and written back")

    def test_attributes_of_the_writer_stay_as_they_are(self, twin):
        order(twin, discount=3, tags={"x"})
        line(twin, "a", 5)
        assert (the_order(twin)["discount"], the_order(twin)["tags"]) == (3, {"x"})


class TestSource:
    def test_sparse_attributes_come_and_go(self, twin):
        order(twin)
        assert (the_order(twin)["GSI1PK"], the_order(twin)["GSI1SK"]) == ("OPEN", "2026-03-01")
        twin.put(ORDER, order_id="1", status="paid", at="2026-03-01")
        assert "GSI1PK" not in the_order(twin)

    def test_views_see_derived_attributes(self, twin):
        order(twin)
        line(twin, "a", 5)
        assert [row["band"] for row in map(BIG.match, twin.rows(BIG))] == ["small"]
        line(twin, "a", 50)
        assert [row["band"] for row in map(BIG.match, twin.rows(BIG))] == ["big"]

    def test_histories_leave_them_out(self, twin):
        order(twin)
        line(twin, "a", 5)
        order(twin, note="x")
        history = [row for row in twin.engine.items(twin.app.tables["main"]) if row["PK"]["S"].startswith("AUDIT#")]
        assert [sorted(decode(row["changes"])) for row in history] == [["at", "status"], ["note"]]


@pytest.mark.parametrize(
    ("sources", "options", "message"),
    [
        ([ORDER_ITEM, OTHER], {}, "has several sources and no of="),
        ([ORDER_ITEM], {"of": BIG}, "whose items are rows of 'bands'"),
        ([ORDER_ITEM], {"of": "ORDER"}, "expected the Key of the items that get them"),
        ([BIG], {"of": ORDER}, "would read rows derived from its own rows"),
    ],
)
def test_attributes_that_cannot_be_are_refused(sources, options, message):
    router = declare()

    def derived(item):
        yield Row(n=Count())

    def build():
        router.attributes(*sources, **options)(derived)
        App("shop", routers=[router])

    with pytest.raises(DeclarationError) as caught:
        build()
    assert message in str(caught.value)


def test_two_handlers_of_one_attribute_fail_with_both_said(app):
    router = declare()

    @router.attributes(ORDER_ITEM, of=ORDER)
    def again(item):
        yield Row(total=Count())

    source, shop = Source(), App("shop", routers=[router])
    engine = MemoryEngine(shop.tables.values())
    engine.put_sources([(("main", "ORDER#1", "METADATA"), encode({"PK": "ORDER#1", "SK": "METADATA"})["M"], "1")])
    report = process_event(Runtime(shop, engine, Settings()), [source.put("ORDER#1", "ITEM#a", price=1)])
    said = str(report.failures[0].error)
    assert "Two handlers derive 'total' onto item" in said
    assert all(name in said for name in ("'shop/order_total'", "'shop/again'"))
    assert decode(engine.read_source(("main", "ORDER#1", "METADATA"))["total"]) == 1


def test_attributes_do_not_follow_from_themselves():
    router = Router()

    @router.attributes(ORDER)
    def counted(item):
        yield Row(n=min(item.get("n", 0) + 1, 3))

    twin = Twin(App("shop", routers=[router]))
    order(twin)
    order(twin, note="again")
    assert the_order(twin)["n"] == 1


def test_a_change_of_derived_attributes_is_parked_for_a_view_that_is_switched_off(app):
    bare = item("ORDER#1", status="paid", at="2026-03-01")
    derived = encode({"total": 12, "_sf_a": {"shop/order_total": {"total"}}})["M"]
    parking, engine = Taking(), MemoryEngine(app.tables.values())
    run = Runtime(app, engine, Settings(handlers_off=("bands",)), parking=parking)
    assert process_event(run, [record(bare, {**bare, **derived})]).failures == []
    assert [parked.handler for parked in parking.parked] == ["bands"]


def test_an_item_that_is_put_anew_keeps_what_a_handler_that_is_switched_off_derived():
    router = Router()

    @router.attributes(ORDER_ITEM, of=ORDER)
    def order_total(item):
        yield Row(total=Sum(item["price"]))

    app = App("shop", routers=[router])
    source, engine = Source(), MemoryEngine(app.tables.values())
    bare = source.put("ORDER#1", status="paid", at="2026-03-01")
    line = source.put("ORDER#1", "ITEM#a", price=12)
    engine.put_sources([(("main", "ORDER#1", "METADATA"), bare["dynamodb"]["NewImage"], "1")])
    assert process_event(Runtime(app, engine, Settings()), [bare, line]).failures == []
    again = source.put("ORDER#1", status="paid", at="2026-03-02")
    engine.put_sources([(("main", "ORDER#1", "METADATA"), again["dynamodb"]["NewImage"], "9")])
    process_event(Runtime(app, engine, Settings(handlers_off=("order_total",))), [again])
    assert decode(engine.read_source(("main", "ORDER#1", "METADATA"))["total"]) == 12


class Taking:
    """A parking place that keeps what it takes."""

    def __init__(self):
        self.parked = []

    def park(self, parked):
        self.parked.append(parked)


@pytest.mark.slow
def test_an_on_handler_beside_attributes_is_proved():
    router, changes = declare(), Key("CHANGES#{order_id}", "COUNT")

    @router.on(ORDER, into=changes)
    def count_changes(change):
        yield Add(changes, n=1, totals=int("total" in change.new))

    app = App("shop", routers=[router])
    check(app, {ORDER: {"status": "open", "at": "2026-03-01"}, ORDER_ITEM: {"price": 5}}, histories=30)


def test_a_dry_repair_writes_nothing_onto_the_item_that_has_lost_its_attributes(app, twin):
    order(twin)
    line(twin, "a", 5)
    own, sold = ("main", "ORDER#1", "METADATA"), ("main", "ORDER#1", "ITEM#a")
    bare = {**ORDER.key(order_id="1"), "status": "open", "at": "2026-03-01"}
    twin.engine.put_sources([(own, encode(bare)["M"], "99")])
    twin.engine.source_tables.add("main")
    run = Runtime(app, twin.engine, Settings())
    Repair(run, dry_run=True).item(sold, handlers=["order_total"])
    assert "total" not in the_order(twin)
    Repair(run).item(sold, handlers=["order_total"])
    assert the_order(twin)["total"] == 5


class Disturbed(MemoryEngine):
    """A store in which something else happens just before attributes are written onto an item."""

    meanwhile = None

    def transact(self, writes, expires_at):
        if isinstance(writes[0], UpdateSource) and self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            happens()
        return super().transact(writes, expires_at)


@pytest.fixture
def disturbed(app):
    twin = Twin(app)
    twin.engine = Disturbed(app.tables.values(), app.chains)
    order(twin)
    return twin


def test_an_item_that_a_writer_changes_meanwhile_is_read_again(disturbed):
    engine = disturbed.engine
    stolen = {**ORDER.key(order_id="1"), "status": "open", "at": "2026-03-01", "note": "new"}
    engine.meanwhile = lambda: engine.put_sources([(("main", "ORDER#1", "METADATA"), encode(stolen)["M"], "99")])
    line(disturbed, "a", 5)
    assert (the_order(disturbed)["total"], the_order(disturbed)["note"]) == (5, "new")


def test_an_attribute_that_a_writer_puts_meanwhile_stays_as_it_is(disturbed):
    engine = disturbed.engine
    own = {**ORDER.key(order_id="1"), "status": "open", "at": "2026-03-01", "total": 99}
    engine.meanwhile = lambda: engine.put_sources([(("main", "ORDER#1", "METADATA"), encode(own)["M"], "99")])
    with pytest.raises(HandlerFails, match="'total' of its writer's, which 'shop/order_total' derives"):
        line(disturbed, "a", 5)
    assert the_order(disturbed)["total"] == 99


def test_stored_attributes_that_change_meanwhile_are_copied_too(disturbed):
    def move():
        stored = next(key for key in disturbed.engine.rows if key[0] == STATE.name and key[2].startswith("order_total"))
        disturbed.engine.transact([AddRow(stored, {"@total": 7, "@lines": 1}, 1)], 0)

    disturbed.engine.meanwhile = move
    line(disturbed, "a", 5)
    assert (the_order(disturbed)["total"], the_order(disturbed)["lines"]) == (12, 2)


class Table:
    """A store whose source items are a table with a stream: what is derived onto them comes back as a record."""

    def __init__(self, app, random):
        self.engine = MemoryEngine(app.tables.values(), app.chains)
        self.random = random
        self.source = Source()
        self.records = []
        self.reads = defaultdict(list)

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def put(self, partition, sort, **attributes):
        self._note(self.source.put(partition, sort, **attributes), (partition, sort))

    def put_back(self, partition, sort, read, **attributes):
        """A writer that read the item earlier, and writes all of it."""
        own = {name: value for name, value in read.items() if name not in ("PK", "SK")}
        self.put(partition, sort, **(own | attributes))

    def remove(self, partition, sort):
        if (partition, sort) in self.source.items:
            self._note(self.source.remove(partition, sort), (partition, sort))

    def item(self, partition, sort):
        return dict(self.source.items.get((partition, sort)) or {})

    def transact(self, writes, expires_at):
        fault = self.random.random()
        if fault < 0.04:
            raise EngineUnavailable("lost before")
        if isinstance(writes[0], UpdateSource):
            refused = self._update(writes[0])
        else:
            refused = self.engine.transact(writes, expires_at)
        if fault > 0.96:
            raise EngineUnavailable("lost after")
        return refused

    def read_rows(self, keys, **how):
        found = self.engine.read_rows(keys)
        items = {key: self.item(*key[1:]) for key in keys if key[1:] in self.source.items}
        return {**found, **items}

    def _update(self, write):
        stored = self.item(*write.key[1:])
        known = {name: stored.get(name) for name in write.expected}
        if not stored or known != write.expected or any(name in stored for name in write.absent):
            return Refused((Reason(CONDITION),))
        left = {name: value for name, value in stored.items() if name not in write.removed}
        self.put_back(*write.key[1:], left | dict(write.values))
        return None

    def _note(self, record, key):
        if record["dynamodb"].get("OldImage") != record["dynamodb"].get("NewImage"):
            self.records.append((key[0], record))


def act(table, random):
    """One write of the application, which may be of what it read long ago, or read and spoiled."""
    number = random.choice("12")
    what = random.random()
    if read := table.item(f"ORDER#{number}", "METADATA"):
        table.reads[f"ORDER#{number}"] += [read, {**read, "total": 99} if "total" in read else read]
    if what < 0.5:
        table.put(f"ORDER#{number}", f"ITEM#{random.choice('abc')}", price=random.randint(0, 9))
    elif what < 0.65:
        table.remove(f"ORDER#{number}", f"ITEM#{random.choice('abc')}")
    elif what < 0.75:
        table.remove(f"ORDER#{number}", "METADATA")
    elif what < 0.85 and (read := random.choice(table.reads[f"ORDER#{number}"] or [None])):
        table.put_back(f"ORDER#{number}", "METADATA", read, at="2026-03-02")
    else:
        table.put(f"ORDER#{number}", "METADATA", status=random.choice(["open", "paid"]), at="2026-03-01")


def deliver(app, table, random):
    """Some batch of the records that were not processed; those that fail, and what follows them, come again."""
    batch = table.records[: random.randint(1, 5)]
    report = process_event(Runtime(app, table, Settings(), pause=lambda _: None), [record for _, record in batch])
    failed = {failure.sequence for failure in report.failures}
    again = [place for place, (_, record) in enumerate(batch) if record["dynamodb"]["SequenceNumber"] in failed]
    if random.random() < 0.9:  # else the checkpoint is lost, and everything comes again
        del table.records[: min(again, default=len(batch))]


def expected(table):
    lines = defaultdict(list)
    for partition, sort in table.source.items:
        if sort.startswith("ITEM#"):
            lines[partition].append(table.item(partition, sort)["price"])
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_whatever_fails_and_whoever_writes_the_items_show_what_is_right_in_the_end(app, seed):
    check_history(app, seed)


@pytest.mark.nightly
def test_many_more_histories_show_what_is_right_in_the_end(app):
    for seed in range(40, 4000):
        check_history(app, seed)


def check_history(app, seed):
    random = Random(seed)
    table = Table(app, random)
    for _ in range(30):
        act(table, random)
        if random.random() < 0.5 and table.records:
            deliver(app, table, random)
    for _ in range(2000):
        if not table.records:
            break
        deliver(app, table, random)
    assert table.records == []
    for (partition, sort), prices in ((key, expected(table)[key[0]]) for key in table.source.items):
        if sort == "METADATA":
            found = table.item(partition, sort)
            derived = {"total": sum(prices), "lines": len(prices), "highest": max(prices)} if prices else {}
            if found["status"] == "open":
                derived |= {"GSI1PK": "OPEN", "GSI1SK": found["at"]}
            names = ("total", "lines", "highest", "GSI1PK", "GSI1SK")
            assert {name: found[name] for name in names if name in found} == derived
            assert derived_names(encode(found)["M"]) - {DERIVED} == set(derived)


def test_what_a_writer_puts_back_without_saying_that_it_was_derived_is_known_to_be(twin):
    order(twin)
    line(twin, "a", 5)
    read = the_order(twin)
    twin.put(ORDER, order_id="1", status="paid", at="2026-03-01", GSI1PK=read["GSI1PK"], GSI1SK=read["GSI1SK"])
    assert the_order(twin).keys() == {"PK", "SK", "status", "at", "total", "lines", "highest"}


def test_attributes_of_a_writer_stay_whatever_is_derived_onto_other_items(twin):
    order(twin)
    line(twin, "a", 5)
    for note in "xy":
        twin.put(ORDER, order_id="2", status="paid", at="1", GSI1PK="PAID", total=100, note=note)
    stored = twin.row(ORDER, order_id="2")
    assert (stored["GSI1PK"], stored["total"]) == ("PAID", 100)


@pytest.mark.parametrize("own", [{"total": 0}, {"total": 5}, {"lines": "two"}])
def test_an_attribute_that_a_writer_put_into_a_new_item_is_refused_and_stays(twin, own):
    with suppress(HandlerFails):
        order(twin, **own)
    with pytest.raises(HandlerFails, match=f"'{next(iter(own))}' of its writer's"):
        line(twin, "a", 5)
    found = the_order(twin)
    assert own.items() <= found.items()
    assert found["highest"] == 5  # what no writer put is derived


def test_once_a_writer_removes_its_attribute_it_is_derived(twin):
    order(twin, total=0)
    with pytest.raises(HandlerFails):
        line(twin, "a", 5)
    order(twin)
    assert the_order(twin)["total"] == 5


def test_an_attribute_of_the_item_itself_that_its_writer_put_is_refused_and_stays(twin):
    with pytest.raises(HandlerFails, match="'GSI1SK' of its writer's, which 'shop/open_orders' derives"):
        order(twin, GSI1SK="mine")
    assert the_order(twin)["GSI1SK"] == "mine"


def test_attributes_of_a_writer_stay_where_a_handler_that_yields_them_is_refused():
    router = Router()

    @router.attributes(ORDER_ITEM, of=ORDER)
    def refused(item):
        yield Row(status=item["price"], total=Sum(item["price"]))

    twin = Twin(App("shop", routers=[router]))
    order(twin)
    with pytest.raises(HandlerFails, match="plain attribute 'status'"):
        line(twin, "a", 5)
    order(twin, note="again")
    assert the_order(twin)["status"] == "open"


def test_a_total_that_comes_and_goes_unmarked_is_no_change_of_the_writer():
    router, changes = declare(), Key("CHANGES#{order_id}", "COUNT")

    @router.on(ORDER, into=changes)
    def count_changes(change):
        yield Add(changes, n=1)

    twin = Twin(App("shop", routers=[router]))
    order(twin)
    line(twin, "a", 5)
    order(twin, total=5)
    assert twin.row(changes, order_id="1")["n"] == 1


@pytest.mark.parametrize("batch_records", [1, 2, 100])
def test_what_happens_to_an_item_is_what_its_writer_does(batch_records):
    router, external = declare(), []
    changes = Key("CHANGES#{order_id}", "COUNT")

    @router.on(ORDER, into=changes)
    def count_changes(change):
        yield Add(changes, n=1, seen=len(change.new))

    @router.on(ORDER, events=["MODIFY"], external=True)
    def mail(change):
        external.append(change.changed)

    app, source = App("shop", routers=[router]), Source()
    engine = EmbeddedEngine(app.tables.values(), wanted=app.chains)
    records = [source.put("ORDER#1", "METADATA", status="open", at="1")]
    engine.put_sources([(("main", "ORDER#1", "METADATA"), records[0]["dynamodb"]["NewImage"], "1")])
    records += [source.put("ORDER#1", f"ITEM#{sku}", price=1) for sku in "abcd"]
    for start in range(0, len(records), batch_records):
        assert app.process({"Records": records[start : start + batch_records]}, engine=engine, external=True) == []
    key = ("main", "CHANGES#1", "COUNT")
    assert engine.read_rows([key])[key]["n"] == 1
    assert external == []


def test_attributes_may_follow_from_derived_rows():
    router = Router()

    @router.view(ORDER_ITEM, into=Key("ORDER#{order_id}", "LINES"))
    def lines(item):
        return Row(lines=Count())

    @router.attributes(Key("ORDER#{order_id}", "LINES"), of=ORDER)
    def lines_of_order(row):
        return Row(lines=Sum(row.get("lines", 0)))

    twin = Twin(App("shop", routers=[router]))
    order(twin)
    twin.put(ORDER_ITEM, order_id="1", sku="a")
    twin.put(ORDER_ITEM, order_id="1", sku="b")
    assert [each["lines"] for each in twin.rows(ORDER)] == [2]


def test_a_comparison_names_an_attribute_that_a_writer_put_and_a_repair_leaves_it(twin):
    order(twin, total=99)
    with pytest.raises(HandlerFails):
        line(twin, "a", 5)
    run = Runtime(twin.app, twin.engine, Settings(), pause=lambda _: None)
    route = next(route for route in twin.app.routes if route.name == "order_total")
    rows = OtherRows(run, live=False)
    found = rows.verify([route])
    (different,) = found.different
    assert (different.shown, different.expected) == ({"total": 99}, {"total": 5})
    (left,) = rows.correct(route, found).remaining
    assert "of its writer's" in left.why
    assert the_order(twin)["total"] == 99
