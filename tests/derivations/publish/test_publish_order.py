"""Proofs compare the order in which changes of an item are first published: what they find, and what they let pass."""

from random import Random

import pytest

from streamfold import App, Key, Router
from streamfold.derivations.expected import ItemVersion
from streamfold.derivations.outside_calls import ItemQueues
from streamfold.derivations.publish.kind import Publish
from streamfold.proofs.check import difference_of
from streamfold.proofs.driver import Driver
from streamfold.proofs.faults import Drawn
from streamfold.proofs.handlers import FaultyHandlers
from streamfold.proofs.histories import changes_of
from streamfold.proofs.oracle import OrderWrong, check_order
from streamfold.proofs.recorded import Recording
from streamfold.testing import Diverged, Write, check

ORDER = Key("ORDER#{order_id}", "METADATA")
ITEMS = {ORDER: [{"order_id": str(n), "status": ["new", "paid"][n % 2], "turn": n} for n in range(1, 5)]}
"""Four items: with two messages in a request, several requests are in flight together."""
ONE_ITEM = [Write(ORDER, {"order_id": "1"}, {"status": "paid", "turn": turn}) for turn in range(6)]
RUNS = 20


def make_app():
    router = Router()
    router.publish(ORDER, to="sqs:orders.fifo", type="order.{event}", name="plain")
    router.publish(ORDER, to="sns:orders", type="order.{event}", name="claimed", once=True, redact=["turn"])

    @router.publish(ORDER, to="eventbridge:shop", type="order.paid", changed=["turn"], on_error="park")
    def paid(change):
        return {"turn": change.new["turn"]} if change.new and change.new["status"] == "paid" else None

    return App("shop", routers=[router])


def hold(histories, seed=0, source="stream", **options):
    return check(make_app(), ITEMS, histories=histories, seed=seed, source=source, processes=0, **options)


@pytest.fixture
def goes_on(monkeypatch):
    """A publisher that sends the later messages of an item although an earlier one failed."""
    monkeypatch.setattr(ItemQueues, "hold", lambda self, subject: (self.release(subject), [])[1])


@pytest.mark.parametrize("source", ["stream", "kinesis"])
def test_messages_of_an_item_first_appear_in_order(source):
    proof = hold(12, source=source)
    assert proof.unproved == ()
    assert {"last-first", "all-before-an-answer"} <= proof.offered


@pytest.mark.ci
@pytest.mark.parametrize("source", ["stream", "kinesis"])
def test_messages_of_an_item_first_appear_in_order_in_hundreds_of_histories(source):
    hold(500, seed=1, source=source)


@pytest.mark.nightly
@pytest.mark.parametrize("source", ["stream", "kinesis"])
def test_messages_of_an_item_first_appear_in_order_in_thousands_of_histories(source):
    hold(5000, seed=2, source=source)


def test_check_finds_a_publisher_that_goes_on_behind_a_failure(goes_on):
    with pytest.raises(Diverged, match="OrderWrong") as diverged:
        hold(100)
    assert "though it was neither given up nor parked" in diverged.value.problem


def test_chaos_finds_a_publisher_that_goes_on_behind_a_failure(goes_on):
    (changes,) = changes_of(make_app(), ONE_ITEM)
    recording = Recording(make_app(), changes)
    assert recording.clean_problem() is None
    problems = [run for run in map(recording.run, range(RUNS)) if run.problem is not None]
    assert problems
    assert all(run.problem.startswith("OrderWrong") for run in problems)


def test_chaos_holds_with_the_publisher_as_it_is():
    (changes,) = changes_of(make_app(), ONE_ITEM)
    recording = Recording(make_app(), changes)
    assert recording.clean_problem() is None
    assert [recording.run(seed).problem for seed in range(RUNS)] == [None] * RUNS


@pytest.mark.parametrize("overtaken", [{}, {"other": {ItemVersion(("main", "ORDER#1", "METADATA"), "1")}}])
def test_a_later_change_that_appears_first_is_reported_with_both_versions(monkeypatch, overtaken):
    item = "main", "ORDER#1", "METADATA"
    monkeypatch.setattr(Publish, "first_appearances", lambda *_: [ItemVersion(item, "2"), ItemVersion(item, "1")])
    with pytest.raises(OrderWrong, match=r"'plain', item .*version 1 first appeared behind 2"):
        check_order(make_app(), None, overtaken)


def test_changes_of_different_items_have_no_order(monkeypatch):
    items = [ItemVersion(("main", f"ORDER#{number}", "METADATA"), str(9 - number)) for number in range(9)]
    monkeypatch.setattr(Publish, "first_appearances", lambda *_: items)
    check_order(make_app(), None, {})


def problem_of(seed, only, source):
    """What is wrong with a run over one item, in which half of all points of choice deviate."""
    app = make_app()
    driver = Driver(
        FaultyHandlers(app), changes_of(app, ONE_ITEM, source=source), Drawn(Random(seed), 0.5, only), actions=25
    )
    return difference_of(driver)


def only_with_leave(monkeypatch, *only, source="stream"):
    """Asserts that runs hold, and that some would not if no change might be overtaken."""
    assert [problem_of(seed, only, source) for seed in range(RUNS)] == [None] * RUNS
    monkeypatch.setattr(Driver, "overtaken_changes", lambda _: {})
    problems = [*filter(None, (problem_of(seed, only, source) for seed in range(RUNS)))]
    assert problems
    assert all(problem.startswith("OrderWrong") for problem in problems)


def test_changes_that_are_given_up_may_be_overtaken(monkeypatch):
    only_with_leave(monkeypatch, "skipped", "redriven-early", "redriven-shuffled", "redriven-twice", "replayed")


def test_changes_that_are_parked_may_be_overtaken_for_their_handler(monkeypatch):
    only_with_leave(monkeypatch, "switched-off", "batches-of-1", "batches-of-2")


def test_records_that_arrive_behind_later_ones_may_be_overtaken(monkeypatch):
    only_with_leave(
        monkeypatch, "arrives-late", "arrives-last", "arrives-twice", "batches-of-1", "batches-of-2", source="kinesis"
    )


@pytest.mark.parametrize("fault", ["shuffled", "each-record-twice", "rewound", "checkpoint-lost", "overlap"])
def test_a_batch_that_is_delivered_badly_is_overtaken_by_none(monkeypatch, fault):
    monkeypatch.setattr(Driver, "overtaken_changes", lambda _: {})
    only = fault, "batches-of-2", "batches-of-7"
    assert [problem_of(seed, only, "stream") for seed in range(RUNS)] == [None] * RUNS
