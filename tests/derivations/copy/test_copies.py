"""Copies of items in another table: their guard, their failures, and what is passed over."""

from contextlib import closing

import pytest

from streamfold import App, Key, Router, Table
from streamfold.batch.process import plan_changes, process_event
from streamfold.engines import EmbeddedEngine
from streamfold.errors import Contended, EngineError, EngineUnavailable, HandlerError, NotStarted
from streamfold.keys.table import CONTRIBUTORS, VERSION
from streamfold.records.values import decode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import check
from streamfold.writes.guarded import CONFLICT, VALIDATION, AddRow, Reason, Refused
from tests.helpers.records import change, item, record

ORDER = Key("ORDER#{order_id}", "METADATA")
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
COPIES = Table("copies", ttl="expires")
CLOCK = 1_800_000_000.0
COPY = ("copies", "ORDER#1", "METADATA")


def application(*sources, to=COPIES, **options):
    router = Router()
    router.copy(*(sources or (ORDER,)), to=to, **{"name": "copy"} | options)
    return App("shop", routers=[router])


@pytest.fixture
def app():
    return application()


@pytest.fixture
def engine(app):
    with closing(EmbeddedEngine(app.tables.values())) as engine:
        yield engine


def play(app, engine, *records, **more):
    run = Runtime(app, engine, Settings(), clock=lambda: CLOCK, pause=lambda _: None, **more)
    return process_event(run, list(records))


def copy_in(engine, key=COPY):
    """The copy as it is stored, None where there is none."""
    found = [{name: decode(value) for name, value in row.items()} for row in engine.items(COPIES, key[1])]
    return found[0] if found else None


def order(**attributes):
    return item("ORDER#1", **attributes)


def test_a_copy_has_the_items_key_and_attributes_and_its_version(app, engine):
    report = play(app, engine, record(None, order(total=5, tags={"a", "b"}, scan=b"\x00"), 7))
    assert copy_in(engine) == {
        **order(total=5, tags={"a", "b"}, scan=b"\x00"),
        VERSION: change(None, order(), 7).version_text,
    }
    assert (report.failures, report.tallies["copy"].written) == ([], 1)


def test_of_several_changes_of_an_item_only_the_newest_is_put(app, engine):
    plan, _ = plan_changes(
        Runtime(app, engine, Settings()), [change(None, order(total=1), 1), change(order(total=1), order(total=2), 2)]
    )
    (copy,) = plan.deferred
    assert (copy.row.attributes, len(copy.changes)) == ({"total": 2}, 2)


def test_an_older_change_never_overwrites_a_newer_one(app, engine):
    play(app, engine, record(None, order(total=2), 2))
    report = play(app, engine, record(None, order(total=1), 1))
    assert copy_in(engine)["total"] == 2
    assert (report.failures, report.tallies["copy"].unchanged) == ([], 1)


def test_a_removal_leaves_a_tombstone_that_expires_and_that_no_older_change_fills(app, engine):
    play(app, engine, record(order(total=1), None, 3))
    report = play(app, engine, record(None, order(total=1), 2))
    tombstone = copy_in(engine)
    assert (tombstone[CONTRIBUTORS], tombstone["expires"]) == (0, int(CLOCK) + 30 * 24 * 60 * 60)
    assert (report.failures, "total" in tombstone) == ([], False)


def test_an_item_that_is_a_copy_itself_is_not_copied(app, engine):
    replica = order(total=1, **{VERSION: "00/elsewhere/1"})
    play(app, engine, record(None, replica, 1), record(replica, None, 2))
    assert copy_in(engine) is None


def test_an_item_that_a_copy_was_written_over_is_kept_as_it_was_copied(app, engine):
    replica = order(total=2, **{VERSION: "00/elsewhere/1"})
    play(app, engine, record(None, order(total=1), 1), record(order(total=1), replica, 2))
    assert copy_in(engine)["total"] == 1


def test_replication_attributes_are_neither_copied_nor_a_reason_to_copy(app, engine):
    mark = {"aws:rep:updateregion": "us-east-1", "aws:rep:deleting": False}
    report = play(app, engine, record(None, order(total=1), 1), record(order(total=1), order(total=1, **mark), 2))
    first = change(None, order(), 1).version_text
    assert copy_in(engine) == {**order(total=1), VERSION: first}
    play(app, engine, record(order(total=1, **mark), order(total=2, **mark), 3))
    assert copy_in(engine)["total"] == 2
    assert not report.failures


def test_an_item_that_is_put_over_a_copy_as_it_is_counts_as_an_item_of_its_own(app, engine):
    replica = order(total=1, **{VERSION: "00/elsewhere/1"})
    play(app, engine, record(None, replica, 1), record(replica, order(total=1), 2))
    assert copy_in(engine)["total"] == 1


def test_an_image_that_cannot_be_read_fails_its_own_record_only(app, engine):
    bad = record(order(total=1), order(total=2), 2)
    bad["dynamodb"]["NewImage"]["total"] = {"N": "x"}
    report = play(app, engine, record(None, order(total=1), 1), bad)
    assert [failure.sequence for failure in report.failures] == ["2"]
    assert copy_in(engine)["total"] == 1


def test_a_record_without_the_new_image_is_reported(app, engine):
    report = play(app, engine, record(order(total=1), order(total=2), 2, view="OLD_IMAGE"))
    (failure,) = report.failures
    assert "needs the new image, which view type OLD_IMAGE does not carry" in str(failure)


def test_a_row_that_is_added_to_is_no_copy_s_place(app, engine):
    engine.transact([AddRow(COPY, {"total": 1}, 1)], 0)
    (failure,) = play(app, engine, record(None, order(total=2), 1)).failures
    assert isinstance(failure.error, HandlerError)
    assert "puts or deletes row ORDER#1 / METADATA, which was added to before" in str(failure)


class Refusing(EmbeddedEngine):
    """Answers the first transactions of copies with what it was given."""

    answers = ()

    def transact(self, writes, expires_at):
        if self.answers and writes[0].key[0] == "copies":
            answer, *self.answers = self.answers
            if isinstance(answer, Exception):
                raise answer
            return Refused((Reason(answer, None, "no"),))
        return super().transact(writes, expires_at)


@pytest.fixture
def refusing(app):
    with closing(Refusing(app.tables.values())) as engine:
        yield engine


def test_a_copy_is_tried_again_after_conflicts(app, refusing):
    refusing.answers = [CONFLICT[0], CONFLICT[1]]
    assert not play(app, refusing, record(None, order(total=1), 1)).failures
    assert copy_in(refusing)["total"] == 1


@pytest.mark.parametrize(
    ("answers", "error", "text"),
    [
        ([CONFLICT[0]] * 4, Contended, "4 conflicts in a row"),
        ([VALIDATION], HandlerError, "The store refused the write with ValidationError: no"),
    ],
    ids=["conflicts", "refused for good"],
)
def test_a_copy_that_fails_is_reported_and_leaves_the_others_alone(app, refusing, answers, error, text):
    refusing.answers = answers
    report = play(app, refusing, record(None, order(total=1), 1), record(None, item("ORDER#2", total=2), 2))
    (failure,) = report.failures
    assert (failure.sequence, type(failure.error)) == ("1", error)
    assert text in str(failure)
    assert copy_in(refusing, ("copies", "ORDER#2", "METADATA"))["total"] == 2


@pytest.mark.parametrize("error", [EngineUnavailable("no answer"), EngineError("no such region")])
def test_a_table_that_is_away_is_sent_no_more_copies_of_the_batch(app, refusing, error):
    refusing.answers = [error]
    batch = [record(None, order(total=1), 1), record(None, item("ORDER#2", total=2), 2)]
    failures = play(app, refusing, *batch).failures
    assert {type(failure.error) for failure in failures} == {EngineUnavailable}
    assert {str(failure.error) for failure in failures} == {f"Table 'copies' did not take the copy: {error}"}
    assert [failure.sequence for failure in failures] == ["1", "2"]
    assert copy_in(refusing, ("copies", "ORDER#2", "METADATA")) is None
    assert play(app, refusing, *batch).failures == []


def test_no_copy_is_begun_when_time_is_nearly_over(app, engine):
    (failure,) = play(app, engine, record(None, order(total=1), 1), seconds_left=lambda: 1.0).failures
    assert isinstance(failure.error, NotStarted)
    assert copy_in(engine) is None


@pytest.mark.slow
def test_copies_are_right_under_faults():
    proof = check(application(ORDER, ORDER_ITEM), {ORDER: {"total": 5}, ORDER_ITEM: {"price": 2}}, histories=150)
    assert proof.faults.total() > 100
