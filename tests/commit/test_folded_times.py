"""A derived change has the greatest time of the records that were folded into it, whatever else is in its batch."""

import pytest

from streamfold import App, Count, Item, Key, Lookup, Max, Put, Router, Row, Sum, Table
from streamfold.batch.process import process_changes
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.records.envelope import Origins
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import item, record

MAIN = Table("main", ttl="expires")
COPIES = Table("copies")
ORDER = Key("ORDER#{order_id}", "METADATA", MAIN)
USER = Key("USER#{user_id}", "METADATA", MAIN)
FOLLOW = Key("USER#{reader_id}", "FOLLOWS#{user_id}", MAIN)
POST = Key("USER#{user_id}", "POST#{at:datetime.seconds}", MAIN)
MARCH, APRIL, MAY = 1_772_323_200.0, 1_775_001_600.0, 1_777_593_600.0
TARGETS = {
    "view": Key("DAY#{day}", "TOTAL", MAIN),
    "ordered": Key("DAY#{day}", "BEST", MAIN),
    "index": Key("STATUS#{status}", "ORDER#{order_id}", MAIN),
    "lookup": Key("NAMED#{order_id}", "ROW", MAIN),
    "on": Key("SEEN#{order_id}", "ROW", MAIN),
    "copy": Key("ORDER#{order_id}", "METADATA", COPIES),
    "audit": Key("AUDIT#{item:rest}", "{version:rest}", MAIN),
    "feed": Key("HOME#{reader_id}", "{at:datetime.seconds}#{user_id}", MAIN),
}


def counted(row):
    return Row(rows=Count())


def application():
    router = Router()
    router.copy(ORDER, to=COPIES)
    router.audit(ORDER, into=TARGETS["audit"])

    @router.view(ORDER, into=TARGETS["view"])
    def totals(order):
        return Row(day=order["day"], total=Sum(order["total"]))

    @router.view(ORDER, into=TARGETS["ordered"])
    def best(order):
        return Row(day=order["day"], best=Max(order["total"]))

    @router.index(ORDER, into=TARGETS["index"])
    def by_status(order):
        return Row(status=order["status"])

    @router.view(ORDER, into=TARGETS["lookup"], lookup={"user": Lookup(USER, reads=["name"])})
    def named(order: Item, user: Item):
        return Row(name=user["name"])

    @router.on(ORDER, into=TARGETS["on"])
    def seen(change):
        return Put(status=change.new["status"])

    @router.attributes(POST, lookup={"author": Lookup(USER, reads=["name"])})
    def author(post: Item, author: Item):
        return Row(author=author["name"])

    @router.feed(POST, audience=FOLLOW, into=TARGETS["feed"], keep_days=30)
    def timeline(post, follow):
        return Row(text=post["text"])

    for name, target in TARGETS.items():
        router.view(target, into=Key("COUNTED", name, MAIN), name=f"counts_{name}")(counted)
    return App("times", routers=[router])


@pytest.fixture(params=[MemoryEngine, EmbeddedEngine], ids=["memory", "file"])
def batch(request):
    """Processes records as one batch; returns the times of the changes of rows that they led to, by kind."""
    app = application()
    engine = request.param(app)

    def processed(*records):
        runtime = Runtime(app, engine, Settings(), own_stream=engine, warn=lambda _: None)
        changes = list(map(Origins(app.source_tables, Settings()).change, records))
        engine.put_sources(newest_sources(changes))
        assert process_changes(runtime, changes).failures == []
        found = {}
        for own in engine.pending(1000):
            body = own.record["dynamodb"]
            keys = {name: value["S"] for name, value in body["Keys"].items()}
            kind = next((name for name, target in TARGETS.items() if target.match(keys) is not None), "attributes")
            found.setdefault(kind, []).append((keys["PK"], body["ApproximateCreationDateTime"]))
        return found

    def end():
        sequences = [own.sequence for own in engine.pending(1000)]
        engine.advance(sequences[-1], sequences)
        engine.item_times.clear()

    processed.engine, processed.end = engine, end
    yield processed
    engine.close()


def order(number, sequence, at, before=None, **values):
    known = {"day": "monday", "status": "open", "total": 5, "user_id": "ada", **values}
    return record(before, item(f"ORDER#{number}", **known), sequence, at=at)


def user(name, sequence, at):
    return record(None, item("USER#ada", name=name), sequence, at=at)


def test_row_of_one_item_has_the_time_of_its_own_record(batch):
    found = batch(order("1", 1, MARCH, day="monday"), order("2", 2, MAY, day="tuesday", status="paid"))

    assert found["view"] == [("DAY#monday", MARCH), ("DAY#tuesday", MAY)]
    assert found["index"] == [("STATUS#open", MARCH), ("STATUS#paid", MAY)]
    assert found["on"] == [("SEEN#1", MARCH), ("SEEN#2", MAY)]
    assert found["copy"] == [("ORDER#1", MARCH), ("ORDER#2", MAY)]
    assert found["audit"] == [("AUDIT#ORDER#1|METADATA", MARCH), ("AUDIT#ORDER#2|METADATA", MAY)]


def test_row_of_several_items_has_the_greatest_time_of_their_records(batch):
    found = batch(order("1", 1, APRIL), order("2", 2, MARCH), order("3", 3, MAY, day="tuesday"))

    assert found["view"] == [("DAY#monday", APRIL), ("DAY#tuesday", MAY)]
    assert set(found["ordered"]) == {("DAY#monday", APRIL), ("DAY#tuesday", MAY)}


def test_row_that_an_item_leaves_has_the_time_of_the_record_that_moved_it(batch):
    batch(order("1", 1, MARCH), order("2", 2, MARCH))
    before = item("ORDER#1", day="monday", status="open", total=5, user_id="ada")
    batch.end()

    found = batch(order("1", 3, APRIL, before, day="friday"), order("3", 4, MAY, day="sunday"))

    assert found["view"] == [("DAY#friday", APRIL), ("DAY#monday", APRIL), ("DAY#sunday", MAY)]


def test_row_that_looks_up_an_item_of_the_batch_has_the_greater_time_of_both(batch):
    found = batch(user("Ada", 1, APRIL), order("1", 2, MARCH), order("2", 3, MAY, user_id="bob", day="tuesday"))

    assert found["lookup"] == [("NAMED#1", APRIL)]
    assert found["view"] == [("DAY#monday", MARCH), ("DAY#tuesday", MAY)]


def test_row_that_is_visited_for_its_referent_has_the_time_of_the_referents_record(batch):
    batch(order("1", 1, MARCH))
    batch.end()

    found = batch(order("2", 2, MAY, user_id="bob"), user("Ada", 3, APRIL))

    assert found["lookup"] == [("NAMED#1", APRIL)]


def test_attribute_and_feed_have_the_times_of_their_post_author_and_reader(batch):
    post = record(None, item("USER#ada", "POST#2026-03-01T00:00:00Z", text="hello"), 1, at=MARCH)
    follow = record(None, item("USER#bob", "FOLLOWS#ada", since="now"), 2, at=MARCH + 60)

    found = batch(post, follow, user("Ada", 3, APRIL - 86_400 * 10), order("9", 4, MAY, user_id="cy"))

    assert found["feed"] == [("HOME#bob", MARCH + 60)]
    assert found["attributes"] == [("USER#ada", APRIL - 86_400 * 10)]


def test_clock_of_a_state_is_the_greatest_time_of_its_records_and_never_goes_back(batch):
    batch(order("1", 1, MAY))
    batch(order("2", 2, MARCH))

    assert batch.engine.clock_seconds == MAY


def test_times_of_one_batch_do_not_reach_the_rows_of_the_next(batch):
    engine = batch.engine
    engine.item_times.note(("main", "ORDER#1", "METADATA"), MAY)
    engine.item_times.fold(MAY, [("main", "DAY#monday", "TOTAL")])
    engine.item_times.clear()

    assert batch(order("1", 1, MARCH))["view"] == [("DAY#monday", MARCH)]
