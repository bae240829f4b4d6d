"""Rows that somebody else removed, by hand or with another tool: noticed by their records, and by steps."""

from unittest.mock import patch

import pytest

from streamfold import Add, App, Count, Key, Max, Put, Router, Row, Sum, Table
from streamfold.batch.process import process_event
from streamfold.engines import MemoryEngine
from streamfold.keys.table import CONTRIBUTORS, LIFE, OWNER, VERSION
from streamfold.routes.route import ROWS_LOST
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import KinesisTwin
from streamfold.writes.guarded import AddRow
from tests.helpers.records import item, record
from tests.helpers.source import Source

PLAY = Key("PLAY#{i}", "X")
DAY = Key("DAY#{day}", "STATS")
OWN = Key("OWN#{i}", "ROW")
ROW = ("main", "DAY#1", "STATS")
COUNTED = {"plays": 2, CONTRIBUTORS: 2}


def days(play):
    yield Row(day=play["day"], plays=Count(), best=Max(play["score"]))


def application(*, into=DAY, more=()):
    router = Router()
    router.view(PLAY, into=into)(days)
    for add in more:
        add(router)
    return App("shop", routers=[router])


class Shop:
    """An application, its store, and the table that its records come of."""

    def __init__(self, app=None):
        self.app = app or application()
        self.store = MemoryEngine(self.app.tables.values())
        self.source = Source()

    def play(self, number, score, day="1"):
        return self.source.put(f"PLAY#{number}", "X", day=day, score=score, i=str(number))

    def process(self, *records, **settings):
        return process_event(Runtime(self.app, self.store, Settings(**settings), pause=lambda _: None), list(records))

    def lost(self, *records, **settings):
        """How often each handler's rows are noticed to be removed."""
        report = self.process(*records, **settings)
        assert report.failures == []
        return dict(report.counts.get(ROWS_LOST, {}))


def removal(attributes=COUNTED, **more):
    """The record of a row's removal."""
    return record(item("DAY#1", "STATS", **attributes), None, 10**20, **more)


def in_group(name, group, source=PLAY, into=DAY):
    """Adds a view of a group to a router."""
    return lambda router: router.view(source, into=into, name=name, group=group)(lambda play: [Row(day="1", n=Sum(1))])


def test_the_record_of_a_row_that_counted_items_is_noticed_for_each_handler_that_adds_to_it():
    shop = Shop(application(more=[in_group("others", "main")]))
    report = shop.process(removal())
    assert report.counts[ROWS_LOST] == {"days": 1, "others": 1}
    assert not report.unrouted


@pytest.mark.parametrize(
    "attributes",
    [
        {**COUNTED, CONTRIBUTORS: 0},
        {**COUNTED, OWNER: "shop/days"},
        {**COUNTED, VERSION: "00/a/1"},
        {**COUNTED, LIFE: "a life"},
        {"plays": 2},
        {**COUNTED, CONTRIBUTORS: "2"},
    ],
    ids=["that is empty", "put whole", "of a guarded put", "that expires", "of others", "with another count"],
)
def test_the_record_of_a_row_says_nothing(attributes):
    assert Shop().lost(removal(attributes)) == {}


def test_no_other_change_of_a_row_is_noticed():
    shop, row = Shop(), item("DAY#1", "STATS", **COUNTED)
    assert shop.lost(record(None, row, 1), record(row, {**row, "plays": 3}, 2)) == {}


def test_a_row_of_no_target_is_not_noticed():
    assert Shop().lost(record(item("WEEK#1", "STATS", **COUNTED), None)) == {}


@pytest.mark.parametrize(("view", "noticed"), [("OLD_IMAGE", 1), ("NEW_IMAGE", 0), ("KEYS_ONLY", 0)])
def test_a_record_without_the_old_image_says_nothing_of_the_row(view, noticed):
    assert Shop().lost(removal(view=view)) == ({"days": 1} if noticed else {})


def test_a_record_that_comes_twice_in_a_batch_counts_once():
    assert Shop().lost(removal(), removal()) == {"days": 1}


def test_rows_are_counted_one_by_one():
    other = record(item("DAY#2", "STATS", **COUNTED), None, 10**20 + 1)
    assert Shop().lost(removal(), other) == {"days": 2}


def test_the_record_of_kinesis_is_noticed():
    assert Shop().lost(KinesisTwin().append(removal())) == {"days": 1}


def test_a_handler_that_is_switched_off_is_named_all_the_same():
    assert Shop().lost(removal(), handlers_off=frozenset(["days"])) == {"days": 1}


def test_a_handler_that_reads_the_row_is_called_too():
    week = Key("WEEK", "STATS")
    shop = Shop(
        application(more=[lambda router: router.view(DAY, into=week, name="weeks")(lambda day: [Row(d=Count())])])
    )
    row = item("DAY#1", "STATS", **COUNTED)
    shop.process(record(None, row, 1))
    assert shop.lost(removal()) == {"days": 1}
    assert ("main", "WEEK", "STATS") not in shop.store.rows


def test_additions_of_an_on_handler_are_noticed_and_its_puts_are_not():
    def on(router):
        @router.on(PLAY, into=[Key("SUM#{day}", "ROW"), OWN], name="on")
        def both(change):
            yield Add(Key("SUM#{day}", "ROW"), day="1", n=1)
            yield Put(OWN, n=1)

    shop = Shop(application(more=[on]))
    shop.process(shop.play(1, 10))
    rows = {key[1]: shop.store.rows[key] for key in [("main", "SUM#1", "ROW"), ("main", "OWN#1", "ROW")]}
    records = [record(item("SUM#1", "ROW"), None, 10**20), record(item("OWN#1", "ROW"), None, 10**20 + 1)]
    for each, image in zip(records, rows.values(), strict=True):
        each["dynamodb"]["OldImage"] = image
    assert shop.lost(*records) == {"on": 1}


def test_each_group_notices_the_rows_of_its_own_handlers():
    shop = Shop(application(more=[in_group("others", "b")]))
    assert [shop.lost(removal(), group=group) for group in ("main", "b")] == [{"days": 1}, {"others": 1}]
    assert shop.lost(removal()) == {"days": 1, "others": 1}


def test_a_row_of_a_table_that_only_another_group_reads_is_noticed_there():
    table = Table("rows")
    day, week = Key("DAY#{day}", "STATS", table=table), Key("WEEK", "STATS")
    shop = Shop(application(into=day, more=[in_group("weeks", "b", source=day, into=week)]))
    gone = removal(table="rows")
    assert shop.lost(gone, group="b") == {"days": 1}
    assert shop.app.watching_group(shop.app.routes[0], "rows") == "b"


def test_a_stream_of_a_table_that_holds_rows_alone_may_be_given_to_a_function():
    day = Key("DAY#{day}", "STATS", table=Table("rows"))
    shop = Shop(application(into=day))
    assert shop.lost(removal(table="rows")) == {"days": 1}


def test_a_filter_of_events_is_told_which_rows_are_watched():
    day = Key("DAY#{day}", "STATS", table=Table("rows"))
    more = [in_group("others", "b", into=Key("OTHER", "ROW")), lambda router: router.audit(PLAY)]
    app = application(into=day, more=more)
    assert [key.partition.text for key in app.watched()] == ["DAY#{day}", "OTHER"]
    assert [key.partition.text for key in app.watched("main")] == ["DAY#{day}"]
    assert [key.partition.text for key in app.watched("b")] == ["OTHER"]


def test_what_the_framework_itself_removes_is_not_noticed():
    shop, removed = Shop(), []
    remove_empty = MemoryEngine.remove_empty

    def kept(engine, rows):
        removed.extend(dict(engine.rows[row]) for row in rows)
        return remove_empty(engine, rows)

    with patch.object(MemoryEngine, "remove_empty", kept):
        assert shop.lost(shop.play(1, 10)) == {}
        assert shop.lost(shop.source.remove("PLAY#1", "X")) == {}
    (image,) = removed
    gone = removal()
    gone["dynamodb"]["OldImage"] = image
    assert shop.lost(gone) == {}
    assert ROW not in shop.store.rows


@pytest.mark.parametrize("moves", [False, True], ids=["amends", "takes back"])
def test_a_step_that_finds_no_row_is_noticed(moves):
    shop = Shop()
    shop.process(shop.play(1, 10), shop.play(2, 20))
    del shop.store.rows[ROW]
    assert shop.lost(shop.play(1, 30, "2" if moves else "1")) == {"days": 1}


def test_steps_of_a_batch_notice_a_row_once_for_each_handler():
    shop = Shop(application(more=[in_group("others", "main")]))
    shop.process(shop.play(1, 10), shop.play(2, 20))
    del shop.store.rows[ROW]
    assert shop.lost(shop.play(1, 30), shop.play(2, 40)) == {"days": 1, "others": 1}


def test_a_step_that_finds_a_row_of_fewer_items_is_noticed():
    shop = Shop()
    shop.process(shop.play(1, 10), shop.play(2, 20))
    del shop.store.rows[ROW]
    shop.process(shop.play(3, 5))
    assert shop.lost(shop.play(1, 30), shop.play(2, 40)) == {"days": 1}


def test_a_step_over_a_row_that_is_there_is_not_noticed():
    shop = Shop()
    shop.process(shop.play(1, 10), shop.play(2, 20))
    assert shop.lost(shop.play(1, 30), shop.source.remove("PLAY#2", "X")) == {}


def test_a_redelivery_is_not_noticed():
    shop = Shop()
    records = [shop.play(1, 10), shop.play(1, 20), shop.source.remove("PLAY#1", "X")]
    for some in (records[:2], records, records[1:2], records):
        assert shop.lost(*some) == {}


def test_watching_rows_costs_no_call():
    shop, calls = Shop(), []
    for some in ([shop.play(1, 10)], [shop.source.remove("PLAY#1", "X"), removal()]):
        with patch.object(MemoryEngine, "transact", autospec=True, side_effect=MemoryEngine.transact) as transact:
            shop.process(*some)
            calls.append([type(write) for call in transact.call_args_list for write in call.args[1]].count(AddRow))
    assert calls == [1, 1]
