"""What comes after the commit: no stage is begun when the time is over, and none keeps another from its work."""

from unittest.mock import patch

import pytest

from streamfold import App, Count, Key, Max, Router, Row, Table
from streamfold.batch.process import process_event
from streamfold.derivations.archive.locations import Folder
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineError, EngineUnavailable, NotStarted, TableThrottled
from streamfold.failures.repair import Repair
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import CONFLICT, AbsentSource, GuardedPut, Reason, RecomputedRow, Refused, UpdateSource
from tests.helpers.model import stored
from tests.helpers.records import item, record
from tests.helpers.source import Source

ORDER = Key("ORDER#{order_id}", "METADATA")
LINE = Key("ORDER#{order_id}", "LINE#{line}")
CITY = Key("CITY#{city}", "ORDERS")
LARGEST = Key("LARGEST#{city}", "ORDER")
NUMBER = Key("NUMBER#{number}", "ORDER")


def application(called):
    """Handlers of every kind that does something after the commit."""
    router = Router()
    router.audit(ORDER)
    router.copy(ORDER, to=Table("copies"), name="copy")
    router.cascade(ORDER, children=[LINE], name="cascade")
    router.archive(ORDER, to="s3://kept/archive", name="archive")

    @router.view(ORDER, into=CITY)
    def counted(order):
        yield Row(city=order["city"], orders=Count())

    @router.view(ORDER, into=LARGEST)
    def largest(order):
        yield Row(city=order["city"], largest=Max(order["total"]))

    @router.index(ORDER, into=NUMBER, unique=True)
    def by_number(order):
        yield Row(number=order["number"], city=order["city"])

    @router.attributes(ORDER)
    def derived(order):
        yield Row(GSI1PK=order["city"])

    @router.on(ORDER, external=True)
    def mail(change):
        called.append(change.item)

    return App("shop", routers=[router])


class Shop:
    """A batch in which one order is put and one goes; ``stop`` is told the stage before every call."""

    def __init__(self, tmp_path):
        self.called = []
        self.app = application(self.called)
        self.engine = MemoryEngine(self.app.tables.values(), self.app.chains)
        self.source = Source()
        self.place = Folder(str(tmp_path / "kept"))
        self.left = 100.0
        self.calls = []
        self.stop = lambda stage: None
        self.deliver(*self.put(1, "a"))
        self.batch = [*self.put(2, "b"), self.source.remove("ORDER#1")]
        self.drop("ORDER#1", "METADATA")
        self.keep(item("ORDER#1", "LINE#1"))

    def put(self, number, city):
        attributes = {"city": city, "total": number, "number": str(number)}
        self.keep(item(f"ORDER#{number}", **attributes))
        return [self.source.put(f"ORDER#{number}", **attributes)]

    def keep(self, there):
        self.engine.put_sources([(("main", there["PK"], there["SK"]), encode(there)["M"], "v1")])

    def drop(self, *key):
        self.engine.put_sources([(("main", *key), None, "v2")])

    def deliver(self, *records):
        run = Runtime(self.app, self, Settings(), outside=True, pause=self.pause, seconds_left=lambda: self.left)
        run.opened = {"s3://kept/archive": self}
        self.report = process_event(run, list(records))
        return {failure.handler: failure.error for failure in self.report.failures}

    def pause(self, seconds):
        self.left -= seconds

    def write(self, name, content):
        self.meet("archive")
        self.place.write(name, content)

    def transact(self, writes, expires_at):
        self.meet(stage_of(writes[0]))
        return self.engine.transact(writes, expires_at)

    def meet(self, stage):
        self.calls.append(stage)
        self.stop(stage)

    def __getattr__(self, name):
        method = getattr(self.engine, name)
        if name not in STAGE_CALLS:
            return method

        def call(*arguments, **how):
            self.meet(name)
            return method(*arguments, **how)

        return call


STAGE_CALLS = ("remove_empty", "clear_pending", "insert_rows", "read_entries", "page")


def stage_of(write):
    kinds = {RecomputedRow: "recompute", UpdateSource: "derive", AbsentSource: "cascade"}
    if isinstance(write, GuardedPut) and write.key[0] == "copies":
        return "copy"
    return kinds.get(type(write), "commit")


@pytest.fixture
def shop(tmp_path):
    return Shop(tmp_path)


LEDGER = {"counted", "largest", "by_number", "derived"}
AFTER = {
    "remove_empty": LEDGER,
    "read_entries": LEDGER,
    "recompute": LEDGER,
    "derive": {"derived"},
    "copy": {"copy"},
    "archive": {"archive"},
    "page": {"cascade"},
    "cascade": {"cascade"},
}
"""What the stages after the commit call, in their order, and the handlers whose records depend on it."""


def test_every_stage_is_reached_and_done(shop):
    assert shop.deliver(*shop.batch) == {}
    assert set(AFTER) <= set(shop.calls)
    assert len(shop.called) == 3
    assert ("main", "CITY#a", "ORDERS") not in stored(shop.app, shop.engine)


@pytest.mark.parametrize("stage", AFTER)
def test_no_call_is_begun_after_the_time_is_over_and_what_was_not_done_comes_again(shop, stage):
    shop.calls.clear()

    def over(now):
        if now == stage:
            shop.left = 1.0

    shop.stop = over
    failed = shop.deliver(*shop.batch)
    assert shop.calls[-1] == stage  # the call in which the time went over was the last
    assert {type(error) for error in failed.values()} <= {NotStarted}
    later = list(AFTER)[list(AFTER).index(stage) + 1 :]
    assert all(AFTER[each] & failed.keys() for each in later)

    shop.left, shop.stop = 100.0, lambda stage: None
    assert shop.deliver(*shop.batch) == {}
    whole = Shop(shop.place.path)
    whole.deliver(*whole.batch)
    assert stored(shop.app, shop.engine) == stored(whole.app, whole.engine)
    assert shop.engine.read_source(("main", "ORDER#1", "LINE#1")) is None


@pytest.mark.parametrize("stage", AFTER)
def test_what_is_forbidden_to_one_stage_fails_its_handlers_and_keeps_no_other_from_its_work(shop, stage):
    def forbidden(now):
        if now == stage:
            raise EngineError("AccessDeniedException: not for you")

    shop.stop = forbidden
    failed = shop.deliver(*shop.batch)
    assert failed.keys() <= AFTER[stage]
    assert failed
    assert all("not for you" in str(error) for error in failed.values())
    shop.stop = lambda stage: None
    assert shop.deliver(*shop.batch) == {}


class Forbidden(MemoryEngine):
    """Refuses for good whatever touches the rows of one table."""

    table = "forbidden"

    def transact(self, writes, expires_at):
        return super().transact(self._checked(writes, [write.key for write in writes]), expires_at)

    def insert_rows(self, rows):
        return super().insert_rows(self._checked(rows, [row.key for row in rows]))

    def remove_empty(self, rows):
        return super().remove_empty(self._checked(rows, rows))

    def read_rows(self, keys, **how):
        keys = list(keys)
        return super().read_rows(self._checked(keys, keys))

    def _checked(self, given, keys):
        if any(key[0] == self.table for key in keys):
            raise EngineError("AccessDeniedException: not for you")
        return given


def of_two_tables():
    """The same handlers with rows in two tables."""
    router = Router()
    for name in ("allowed", "forbidden"):
        table = Table(name)

        @router.view(ORDER, into=Key("CITY#{city}", "ORDERS", table=table), name=f"{name}_counted")
        def counted(order):
            yield Row(city=order["city"], orders=Count())

        @router.view(ORDER, into=Key("LARGEST#{city}", "ORDERS", table=table), name=f"{name}_largest")
        def largest(order):
            yield Row(city=order["city"], largest=Max(order["total"]))

        router.audit(ORDER, into=Key("AUDIT#{item:rest}", "{version:rest}", table=table), name=f"{name}_audit")
    return App("shop", routers=[router])


@pytest.mark.parametrize("first", [0, 3])
def test_a_table_that_is_forbidden_keeps_no_other_table_from_its_rows(first):
    app, source = of_two_tables(), Source()
    engine, whole = Forbidden(app.tables.values()), MemoryEngine(app.tables.values())
    records = [source.put(f"ORDER#{number}", city="a", total=number) for number in range(3)]
    records += [source.put("ORDER#1", city="b", total=5), source.remove("ORDER#2")]
    engine.table = ""
    assert process_event(Runtime(app, engine, Settings()), records[:first]).failures == []
    engine.table = "forbidden"
    failures = process_event(Runtime(app, engine, Settings()), records[first:]).failures
    assert {failure.handler for failure in failures} == {
        f"forbidden_{name}" for name in ("counted", "largest", "audit")
    }

    process_event(Runtime(app, whole, Settings()), records)
    wanted = stored(app, whole)
    assert of_table(stored(app, engine), "allowed") == of_table(wanted, "allowed")
    engine.table = ""
    assert process_event(Runtime(app, engine, Settings()), records[first:]).failures == []
    assert stored(app, engine) == wanted


def of_table(rows, table):
    return {key: row for key, row in rows.items() if key[0] == table}


def test_what_is_forbidden_to_the_whole_batch_stops_the_invocation(shop):
    def forbidden(now):
        raise EngineError("AccessDeniedException: not for you")

    shop.stop = forbidden
    with pytest.raises(EngineError, match="not for you"):
        shop.deliver(*shop.batch)


def test_an_external_call_that_the_state_table_does_not_allow_is_reported(shop):
    swap = shop.engine.swap_state

    def forbidden(key, *rest):
        if key.pk.startswith("external#"):
            raise EngineError("AccessDeniedException: not for you")
        return swap(key, *rest)

    shop.engine.swap_state = forbidden
    assert shop.deliver(*shop.batch).keys() == {"mail"}


class Busy(MemoryEngine):
    """Answers every recomputing, and every copy, with a code."""

    code = CONFLICT[0]
    sent = 0
    read = 0

    def transact(self, writes, expires_at):
        if stage_of(writes[0]) in ("recompute", "copy", "derive"):
            self.sent += 1
            return Refused((Reason(self.code),))
        return super().transact(writes, expires_at)

    def read_entries(self, wanted):
        self.read += 1
        return super().read_entries(wanted)


class Clock:
    """Time that pauses take, and nothing else."""

    def __init__(self, left):
        self.left = left
        self.slept = []

    def pause(self, seconds):
        self.slept.append(seconds)
        self.left -= seconds

    def run(self, app, engine, **settings):
        return Runtime(app, engine, Settings(**settings), pause=self.pause, seconds_left=lambda: self.left)


def one(declare):
    router = Router()
    declare(router)
    return App("shop", routers=[router])


def ordered(router):
    @router.view(ORDER, into=LARGEST)
    def largest(order, order_id):
        yield Row(city=order_id, largest=Max(order["total"]))


def copied(router):
    router.copy(ORDER, to=Table("copies"), name="copy")


def bearing(router):
    @router.attributes(ORDER)
    def derived(order):
        yield Row(GSI1PK=order["total"])


def orders(count):
    return [record(None, item(f"ORDER#{number}", total=number), number + 1) for number in range(count)]


def play(app, engine, clock, records):
    engine.put_sources(
        [
            (("main", f"ORDER#{number}", "METADATA"), each["dynamodb"]["NewImage"], "v1")
            for number, each in enumerate(records)
        ]
    )
    return process_event(clock.run(app, engine), records)


def test_rows_that_others_keep_changing_are_recomputed_while_there_is_time_and_not_longer():
    app, clock = one(ordered), Clock(left=Settings().stop_seconds + 3.0)  # less than the pauses take in all
    engine = Busy(app.tables.values())
    with patch("random.random", return_value=0.5):
        report = play(app, engine, clock, orders(20))
    assert {type(failure.error) for failure in report.failures} == {NotStarted}
    assert len(report.failures) == 20
    assert clock.left > Settings().stop_seconds


@pytest.mark.parametrize(("declare", "sent_max"), [(ordered, 8), (bearing, 8), (copied, 4)])
def test_a_throttled_table_is_asked_once_a_round_and_not_once_a_row(declare, sent_max):
    app, clock = one(declare), Clock(left=900.0)
    engine = Busy(app.tables.values())
    engine.code = CONFLICT[1]
    report = play(app, engine, clock, orders(20))
    assert len(report.failures) == 20
    assert engine.sent <= sent_max
    assert all(isinstance(failure.error, EngineUnavailable) for failure in report.failures)


def test_a_copy_in_contention_leaves_the_others_of_its_table_to_be_tried():
    app, clock = one(copied), Clock(left=900.0)
    engine = Busy(app.tables.values())
    report = play(app, engine, clock, orders(3))
    assert (len(report.failures), engine.sent) == (3, 12)
    assert not any(isinstance(failure.error, TableThrottled) for failure in report.failures)


def test_a_repair_begins_nothing_when_its_time_is_over():
    app, clock = one(ordered), Clock(left=1.0)
    engine = Busy(app.tables.values())
    (repaired,) = Repair(clock.run(app, engine)).item(("main", "ORDER#1", "METADATA"))
    assert isinstance(repaired.error, NotStarted)


def test_a_pause_never_outlasts_the_time():
    clock, app = Clock(left=7.0), one(ordered)
    run = clock.run(app, Busy(app.tables.values()), stop_seconds=5)
    run.wait(1.5)
    with pytest.raises(NotStarted):
        run.wait(0.5)
    assert clock.slept == [1.5]


def test_rows_that_only_recomputing_changed_are_counted():
    clock, records = Clock(left=900.0), [record(None, item(f"ORDER#{n}", city="a", total=n), n) for n in (1, 2)]
    app = one(lambda router: of_city(router, Max))
    engine = MemoryEngine(app.tables.values())
    with patch.object(engine, "read_rows", side_effect=EngineUnavailable("busy")):
        process_event(clock.run(app, engine), records)
    again = process_event(clock.run(app, engine), records)
    assert stored(app, engine)["main", "LARGEST#a", "ORDER"] == {"total": 2}
    assert (again.tallies["edge"].written, again.known) == (1, 2)


def of_city(router, kind):
    @router.view(ORDER, into=LARGEST)
    def edge(order):
        yield Row(city=order["city"], total=kind(order["total"]))


def test_a_record_that_failed_is_not_told_as_one_that_the_state_holds():
    clock = Clock(left=900.0)
    app = one(ordered)
    engine = Busy(app.tables.values())
    process_event(clock.run(app, engine), orders(2))
    again = process_event(clock.run(app, engine), orders(2))
    assert (len(again.failures), again.known) == (2, 0)
