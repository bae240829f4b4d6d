"""Children of removed items: page by page, behind a guard, and not a child too many."""

from contextlib import closing
from random import Random

import pytest

from streamfold import Add, App, Count, Key, Router, Row
from streamfold.batch.fan_outs import run_chains
from streamfold.batch.process import plan_changes, process_event
from streamfold.batch.report import merge
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.errors import Contended, EngineUnavailable, HandlerError, NotStarted
from streamfold.ledger.state_keys import event_key
from streamfold.proofs.faults import Choices, Drawn, FaultyEngine
from streamfold.records.change import BY_OURSELVES
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import Died
from streamfold.writes.guarded import CONDITION, CONFLICT, VALIDATION, AbsentSource, DeleteSource, Reason, Refused
from tests.helpers.records import change, item, record

ORDER = Key("ORDER#{order_id}", "METADATA")
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
NOTE = Key("ORDER#{order_id}", "NOTE#{n:06d}")
NOTE_LINE = Key("ORDER#{order_id}", "LINE#{n:06d}#{line}")
CLOCK = 1_800_000_000.0
PARENT = ("main", "ORDER#1", "METADATA")


def make_app(*, nested=False):
    router = Router()
    router.cascade(ORDER, children=[ORDER_ITEM, NOTE], name="cascade")
    if nested:
        router.cascade(NOTE, children=[NOTE_LINE], name="lines")

    @router.view(ORDER_ITEM, into=Key("ALL", "ITEMS"))
    def items(item):
        yield Row(items=Count())

    @router.on(ORDER_ITEM, events=["REMOVE"], into=Key("GONE#{order_id}", "ITEMS"))
    def gone(change):
        yield Add(gone=1)

    return App("shop", routers=[router])


@pytest.fixture
def app():
    return make_app()


class Store(EmbeddedEngine):
    """Answers the pages of a cascade with what it was given first, and notes their sizes."""

    def __init__(self, app, answers=()):
        super().__init__(app.tables.values(), wanted=app.chains)
        self.answers = list(answers)
        self.pages = []
        self.meanwhile = lambda: None

    def transact(self, writes, expires_at):
        if isinstance(writes[0], AbsentSource):
            self.pages.append(len(writes) - 2)
            self.meanwhile()
            if self.answers:
                answer = self.answers.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return Refused((*(None,) * (len(writes) - 1), Reason(answer, None, "no")))
        return super().transact(writes, expires_at)

    def put(self, *items, version="v1"):
        self.put_sources([(("main", each["PK"], each["SK"]), encode(each)["M"], version) for each in items])

    def drop(self, partition, sort, version="v2"):
        self.put_sources([(("main", partition, sort), None, version)])

    def left(self, partition="ORDER#1"):
        return [each["SK"]["S"] for each in self.items(self.tables["main"], partition)]


@pytest.fixture
def engine(app):
    with closing(Store(app)) as engine:
        yield engine


def play(app, engine, *records, actions=10, **more):
    """Processes records in a world like that, and what comes of them in one that has time."""
    settings = Settings(chunk_actions=actions)
    run = Runtime(app, engine, settings, clock=lambda: CLOCK, pause=lambda _: None, **more)
    report = process_event(run, list(records))
    engine.retry()
    after = Runtime(app, engine, settings, clock=lambda: CLOCK, source_items=run.source_items, queued=run.queued)
    merge(report, run_chains(after, engine))
    return report


def items_of(count, partition="ORDER#1"):
    return [item(partition, f"ITEM#{number:05d}", price=number) for number in range(count)]


def removal(sequence=5, **more):
    return record(item("ORDER#1", **more), None, sequence)


def test_a_removed_items_children_go_and_nothing_else_does(app, engine):
    engine.put(*items_of(3), item("ORDER#1", "NOTE#000001"), item("ORDER#1", "NOTES"), item("ORDER#1", "TOTAL"))
    engine.put(*items_of(2, "ORDER#10"))
    report = play(app, engine, removal())
    assert (report.failures, report.tallies["cascade"].removed) == ([], 4)
    assert engine.left() == ["NOTES", "TOTAL"]
    assert len(engine.left("ORDER#10")) == 2


def test_children_of_an_expired_item_go_too(app, engine):
    engine.put(*items_of(3))
    expired = {**removal(), "userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"}}
    assert not play(app, engine, expired).failures
    assert engine.left() == []


def test_a_changed_item_keeps_its_children(app, engine):
    engine.put(*items_of(3))
    play(app, engine, record(item("ORDER#1", a=1), item("ORDER#1", a=2), 5))
    assert len(engine.left()) == 3


def test_children_go_in_pages_that_one_transaction_takes(app, engine):
    engine.put(*items_of(20))
    report = play(app, engine, removal())
    assert engine.pages == [8, 8, 4, 0]
    assert report.tallies["cascade"].removed == 20


def test_large_children_make_smaller_pages(app, engine):
    engine.put(*({**each, "text": "x" * 390_000} for each in items_of(12)))
    assert not play(app, engine, removal(), actions=100).failures
    assert engine.pages == [5, 5, 2, 0]


def test_what_time_does_not_suffice_for_goes_on_when_the_record_comes_again(app, engine):
    engine.put(*items_of(20))
    (failure,) = play(app, engine, removal(), seconds_left=lambda: 100.0 - 99.0 * (len(engine.pages) > 1)).failures
    assert (failure.sequence, type(failure.error)) == ("5", NotStarted)
    assert (engine.pages, len(engine.left())) == ([8, 8], 4)
    assert not play(app, engine, removal()).failures
    assert (engine.pages, engine.left()) == ([8, 8, 4, 0], [])


def test_a_throttled_table_loses_no_children_of_further_items(app, engine):
    engine.put(*items_of(3), *items_of(3, "ORDER#2"))
    engine.answers = [CONFLICT[1]] * 4
    report = play(app, engine, removal(), record(item("ORDER#2"), None, 6))
    assert (len(report.failures), len(engine.pages), len(engine.left("ORDER#2"))) == (2, 4, 3)
    assert not play(app, engine, removal(), record(item("ORDER#2"), None, 6)).failures
    assert engine.left() + engine.left("ORDER#2") == []


def test_a_record_that_comes_again_removes_nothing_that_was_written_since(app, engine):
    engine.put(*items_of(3))
    play(app, engine, removal())
    engine.put(*items_of(3), version="v3")
    report = play(app, engine, removal())
    assert (report.failures, len(engine.left())) == ([], 3)


def test_children_of_an_item_that_exists_again_are_kept_and_counted(app, engine):
    engine.put(item("ORDER#1"), *items_of(3))
    report = play(app, engine, removal())
    assert (report.failures, report.counts["kept"]) == ([], {"cascade": 1})
    assert len(engine.left()) == 4


def test_the_rest_is_kept_when_the_item_comes_back_between_two_pages(app, engine):
    engine.put(*items_of(20))

    def come_back():
        if len(engine.pages) == 2:
            engine.put(item("ORDER#1"), version="v9")

    engine.meanwhile = come_back
    report = play(app, engine, removal())
    assert (report.counts["kept"], report.tallies["cascade"].removed) == ({"cascade": 1}, 8)
    engine.drop("ORDER#1", "METADATA", version="v99")
    assert not play(app, engine, removal()).failures  # that removal was decided; the next has its own record
    assert len(engine.left()) == 12


def test_a_child_that_changed_since_it_was_read_is_read_again(app, engine):
    engine.put(*items_of(3))

    def change_one():
        if len(engine.pages) == 1:
            engine.put(item("ORDER#1", "ITEM#00001", price=100), version="v3")

    engine.meanwhile = change_one
    report = play(app, engine, removal())
    assert (engine.pages, report.tallies["cascade"].removed) == ([3, 3, 0], 3)
    records = [each.record for each in engine.pending(10)]
    assert not records  # the chains took them
    assert engine.left() == []


def test_a_child_that_is_gone_since_it_was_read_is_no_trouble(app, engine):
    engine.put(*items_of(3))

    def drop_one():
        if len(engine.pages) == 1:
            engine.drop("ORDER#1", "ITEM#00001", version="v3")

    engine.meanwhile = drop_one
    report = play(app, engine, removal())
    assert (report.failures, report.tallies["cascade"].removed) == ([], 2)


def test_a_page_that_lands_late_is_refused(app, engine):
    engine.put(*items_of(20))
    sent, carry_out = [], engine._transact

    def noting(writes, expires_at):
        sent.extend([writes] if isinstance(writes[0], AbsentSource) else [])
        return carry_out(writes, expires_at)

    engine._transact = noting
    play(app, engine, removal())
    engine.put(*items_of(20), version="v9")
    assert all(engine.transact(writes, 0) is not None for writes in tuple(sent))
    assert len(engine.left()) == 20


def test_two_invocations_share_a_cascade(app, engine):
    engine.put(*items_of(40))
    inside = []

    def overlap():
        if len(engine.pages) == 2 and not inside:
            inside.append(True)
            inside.append(play(app, engine, removal()))

    engine.meanwhile = overlap
    report = play(app, engine, removal())
    assert not report.failures
    assert not inside[1].failures
    assert engine.left() == []


@pytest.mark.parametrize(
    ("answers", "error", "text"),
    [
        ([CONDITION] * 9, Contended, "Refused 8 times in a row, because others change the children."),
        ([VALIDATION], HandlerError, "The store refused the write with ValidationError: no"),
    ],
    ids=["refused", "refused for good"],
)
def test_a_cascade_that_fails_is_reported_and_leaves_the_others_alone(app, answers, error, text):
    with closing(Store(app, answers)) as engine:
        engine.put(*items_of(3), *items_of(3, "ORDER#2"))
        report = play(app, engine, removal(), record(item("ORDER#2"), None, 6))
        (failure,) = report.failures
        assert (failure.sequence, type(failure.error)) == ("5", error)
        assert text in str(failure)
        assert (len(engine.left()), engine.left("ORDER#2")) == (3, [])


def test_a_table_that_does_not_answer_loses_no_children_of_further_items(app):
    with closing(Store(app, [EngineUnavailable("no answer")])) as engine:
        engine.put(*items_of(3), *items_of(3, "ORDER#2"))
        report = play(app, engine, removal(), record(item("ORDER#2"), None, 6))
        assert [str(failure.error) for failure in report.failures] == ["no answer"] * 2
        assert len(engine.left()) == len(engine.left("ORDER#2")) == 3
        assert not play(app, engine, removal(), record(item("ORDER#2"), None, 6)).failures


def test_removed_children_drive_the_handlers_that_read_them_once(app, engine):
    children = items_of(3)
    for number, each in enumerate(children, 1):
        play(app, engine, record(None, each, number))
    engine.put(*children)
    play(app, engine, removal())
    play(app, engine, removal())
    rows = {row["PK"]["S"]: row for row in engine.items(app.tables["main"]) if row["PK"]["S"] in ("ALL", "GONE#1")}
    assert rows["GONE#1"]["gone"] == {"N": "3"}
    assert "ALL" not in rows


def test_a_removed_child_that_is_written_again_counts_again(app, engine):
    (child,) = items_of(1)
    play(app, engine, record(None, child, 4))
    engine.put(child, version=change(None, child, 4).version_text)
    play(app, engine, removal(5))
    play(app, engine, record(None, child, 6))
    (row,) = engine.items(app.tables["main"], "ALL")
    assert row["items"] == {"N": "1"}


def test_a_removal_by_cascade_is_newer_than_what_it_follows_and_older_than_what_comes_next(app, engine):
    (child,) = items_of(1)
    engine.put(child, version=change(None, child, 4).version_text)
    with_parent = change(item("ORDER#1"), None, 5)
    engine.transact(
        [DeleteSource(("main", "ORDER#1", child["SK"]), encode(child)["M"], with_parent.version_text, 7)], 0
    )
    (own,) = engine.pending(10)
    assert own.record["version"] == with_parent.version_text + BY_OURSELVES
    assert own.record["dynamodb"]["ApproximateCreationDateTime"] == 7
    assert with_parent.version_text < own.record["version"] < change(None, child, 6).version_text


def test_children_of_children_go_through_the_stream():
    app = make_app(nested=True)
    with closing(Store(app)) as engine:
        engine.put(item("ORDER#1", "NOTE#000001"), item("ORDER#1", "LINE#000001#a"), item("ORDER#1", "LINE#000002#a"))
        assert not play(app, engine, removal()).failures
        assert engine.left() == ["LINE#000002#a"]


def test_a_removal_that_a_later_one_of_its_batch_stood_for_removes_nothing_when_it_comes_again_alone(app, engine):
    engine.put(*items_of(3))
    again = record(None, item("ORDER#1"), 6)
    play(app, engine, removal(5), again, removal(7))
    assert engine.left() == []
    engine.put(*items_of(2), version="v9")
    assert not play(app, engine, removal(5)).failures
    assert len(engine.left()) == 2


def test_the_place_is_kept_in_the_state_and_expires(app, engine):
    engine.put(*items_of(3))
    play(app, engine, removal())
    place = event_key("cascade", "shop", "cascade", PARENT, change(item("ORDER#1"), None, 5).version_text)
    assert engine.read_state([place])[place] == {"done": True, "r": 2, "ttl": int(CLOCK) + 30 * 24 * 60 * 60}


def test_children_are_left_alone_where_the_world_says_so(app, engine):
    engine.put(*items_of(3))
    assert play(app, engine, removal(), source_items=False).counts["not_cascaded"] == {"cascade": 1}
    assert len(engine.left()) == 3


def test_a_plan_names_the_items_whose_children_go(app, engine):
    plan, _ = plan_changes(Runtime(app, engine, Settings()), [change(item("ORDER#1"), None, 5)])
    assert list(map(str, plan.deferred)) == ["remove the children of ORDER#1 / METADATA"]


@pytest.mark.ci
def test_ten_thousand_children_interrupted_twenty_times_all_go_once_and_no_other_item_does(app):
    random, removed = Random(20260301), 0
    with closing(Store(app)) as engine:
        engine.put(*items_of(10_000), *items_of(5, "ORDER#2"))
        for _ in range(20):
            left = iter([60.0] * random.randint(1, 8))
            report = play(app, engine, removal(), actions=100, seconds_left=lambda left=left: next(left, 0.0))
            assert len(report.failures) >= 1
            removed += report.tallies["cascade"].removed if "cascade" in report.tallies else 0
        report = play(app, engine, removal(), actions=100)
        assert not report.failures
        assert removed + report.tallies["cascade"].removed == 10_000
        assert max(engine.pages) == 98
        assert (engine.left(), len(engine.left("ORDER#2"))) == ([], 5)
        (gone,) = engine.items(app.tables["main"], "GONE#1")
        assert gone["gone"] == {"N": "10000"}


class Late(Drawn):
    """Chooses at random, and among the places where a late call may land with the same chance."""

    def _choice(self, point, options):
        return self.random.choice(options) if point == "landing" else super()._choice(point, options)


class Faulty:
    """One history: a cascade whose store fails in every way, and a parent that may come back at any moment."""

    def __init__(self, app, seed):
        self.app, self.random = app, Random(seed)
        self.store = MemoryEngine(app.tables.values(), app.chains)
        self.engine = FaultyEngine(self.store, Late(self.random, 0.3), self.meanwhile, self.check, lambda _: None)
        self.put([*items_of(30), *items_of(3, "ORDER#2")], "v1")
        self.left, self.at = self.count(), None
        self.comes_back_at = self.random.choice([None] * 30 + [*range(30)])

    def put(self, items, version):
        self.store.put_sources([(("main", each["PK"], each["SK"]), encode(each)["M"], version) for each in items])

    def count(self):
        page = self.store.page(self.app.tables["main"], "ORDER#1", "ITEM#", None, 100)
        return len(page.items)

    def meanwhile(self):
        if self.at is None and self.engine.calls == self.comes_back_at:
            self.put([item("ORDER#1")], "v5")
            self.at = self.count()

    def check(self):
        left = self.count()
        assert left == self.left or self.at is None, "a child went while its parent was there"
        self.left = left

    def deliver(self):
        run = Runtime(self.app, self.engine, Settings(chunk_actions=9), clock=lambda: CLOCK, pause=lambda _: None)
        try:
            failures = process_event(run, [removal()]).failures
            self.engine.retry()
            return failures + run_chains(run, self.engine).failures
        except (Died, EngineUnavailable):
            return [None]

    def run(self):
        for _ in range(20):
            self.deliver()
        self.engine.choices = Choices()
        assert not self.deliver()
        assert self.count() == (self.at or 0)
        if self.at is None:  # nothing that still lands, and no delivery, takes what was written since
            self.put(items_of(30), "v7")
            self.left = 30
        self.engine.land_all()
        assert not self.deliver()
        assert self.count() == (30 if self.at is None else self.at)
        assert len(self.store.page(self.app.tables["main"], "ORDER#2", "ITEM#", None, 100).items) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", [pytest.param(first, marks=[pytest.mark.ci] * (first > 20)) for first in range(0, 100, 10)]
)
def test_no_child_goes_while_its_parent_is_there_and_all_go_once_under_faults(app, first):
    for seed in range(first, first + 10):
        history = Faulty(app, seed)
        history.run()
        (gone,) = history.store.items(app.tables["main"], "GONE#1") if history.at != 30 else ({"gone": {"N": "0"}},)
        assert int(gone["gone"]["N"]) == 30 - (history.at or 0)
