"""What the application writes while a run goes on: in its order, each item's records to its shard."""

from collections import deque
from copy import copy

import pytest

from streamfold import App, Count, Key, Router, Row
from streamfold.proofs.driver import Driver
from streamfold.proofs.faults import Choices, Scripted
from streamfold.proofs.handlers import FaultyHandlers
from streamfold.proofs.store import ProofStore, Writer, Writers
from streamfold.testing.twin import changes_items
from streamfold.writes.guarded import UpdateSource
from tests.helpers.records import change, item

ORDER = Key("ORDER#{order_id}", "METADATA")
KEY = ("main", "ORDER#1", "METADATA")
FIRST, SECOND, THIRD = (item("ORDER#1", price=price) for price in (1, 2, 3))


def app_with(kind):
    router = Router()

    @getattr(router, kind)(ORDER, **({} if kind == "attributes" else {"into": Key("ALL", "ORDERS")}))
    def orders(order):
        yield Row(orders=Count())

    return App("shop", routers=[router])


def writers_of(*changes, choices=None):
    store = ProofStore(app_with("attributes").tables.values())
    return Writers(store, [Writer("shard 1", [], deque(changes))], choices or Choices(), lambda _: None, 0)


@pytest.fixture
def three():
    return [change(None, FIRST, 1), change(FIRST, SECOND, 2), change(SECOND, THIRD, 3)]


def derive(writers, lines):
    now = writers.store.source(KEY)
    expected = {"lines": int(now["lines"]["N"])} if "lines" in now else {}
    values = {"lines": lines, "_sf_a": {"shop/orders": {"lines"}}}
    update = UpdateSource(KEY, expected, () if expected else ("lines",), values)
    assert writers.store.transact([update], 0) is None


@pytest.mark.parametrize(("kind", "changes"), [("attributes", True), ("view", False)])
def test_only_some_handlers_write_to_items(kind, changes):
    assert changes_items(app_with(kind)) == changes


def test_writes_wait_until_they_are_carried_out(three):
    writers = writers_of(*three)
    (lane,) = writers.waiting
    writers.write(lane, 2)
    assert (lane.changes, len(lane.waiting), lane.done) == (three[:2], 1, False)
    writers.write(lane, 9)
    assert (lane.rest(), lane.done, writers.waiting) == (three, True, [])


def test_change_that_a_recording_has_twice_is_written_once(three):
    writers = writers_of(*three, three[0])
    (lane,) = writers.shards
    writers.write(lane, 9)
    assert lane.changes == three


def test_records_of_what_handlers_write_go_to_the_lane_of_the_item(three):
    writers = writers_of(*three)
    (lane,) = writers.shards
    writers.write(lane, 1)
    derive(writers, 1)
    assert [each.event for each in lane.changes] == ["INSERT", "MODIFY"]


@pytest.mark.parametrize(("how", "lines"), [(None, None), ("put-back", 8), ("put-back-old", 7)])
def test_application_may_put_what_was_derived_earlier(three, how, lines):
    writers = writers_of(*three, choices=Scripted({1: how} if how else {}))
    (lane,) = writers.shards
    writers.write(lane, 1)
    derive(writers, 7)
    derive(writers, 8)
    writers.write(lane, 1)
    newest = lane.changes[-1].new
    assert (newest["price"], newest.get("lines")) == (2, lines)


def test_a_removal_that_kinesis_holds_twice_ends_once_neither_copy_fails():
    first = change(FIRST, None, 1)
    second = copy(first)
    second.sequence = "2"
    driver = Driver(FaultyHandlers(app_with("attributes")), [[first]], Choices(), 25)
    for failed in ({first.sequence}, {second.sequence}):
        driver._note_ended([first, second], failed, 1)
    assert driver._over == {}
    driver._note_ended([first, second], set(), 2)
    assert driver._over == {first.version_text: 2}
