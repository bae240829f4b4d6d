"""The schedule of each minute: which stripes it queues, what it measures, and what a message of it does."""

import json
import logging

import pytest

from streamfold.errors import EngineUnavailable
from streamfold.jobs.fan_outs import SegmentQueue
from streamfold.lambda_entry.function import Function
from streamfold.lambda_entry.queue import WAKE
from tests.helpers.doorbells import QUEUED, URL, Clock, Messages, queue_function
from tests.helpers.records import item, record
from tests.helpers.timer_walks import timers
from tests.helpers.woken import Desk, at, counted, made


@pytest.fixture
def desk():
    desk = Desk(made(counted))
    for number in range(3):
        desk.ticket(number, 60)
    return desk


def function_of(desk, queue, **settings):
    function = queue_function(desk.app, desk.engine, queue, **settings)
    runtime_of = function.runtime_of

    def timed(*arguments):
        runtime = runtime_of(*arguments)
        runtime.clock = lambda: desk.now
        return runtime

    function.runtime_of = timed
    return function


def test_the_schedule_queues_the_stripes_whose_moment_has_come(desk):
    queue = Messages()
    function = function_of(desk, queue)
    function(dict(WAKE), Clock())
    assert queue.waiting == []
    desk.now += 60
    function(dict(WAKE), Clock())
    stripes = {key.pk[-1] for key in desk.engine.state if key.pk.startswith("wake#")}
    assert {json.loads(each["body"])["lane"] for each in queue.waiting} == {int(each, 16) for each in stripes}


def test_a_message_has_the_items_of_its_stripe_derived_again(desk):
    queue = Messages()
    function = function_of(desk, queue)
    desk.now += 60
    function(dict(WAKE), Clock())
    assert function({"Records": queue.waiting}, Clock()) == {"batchItemFailures": []}
    assert (desk.wakes(), desk.rows("TEAM")) == ({}, {"TEAM#a": {"tickets": 3}})


def test_doubled_and_late_messages_change_nothing(desk):
    queue = Messages()
    function = function_of(desk, queue)
    desk.now += 60
    function(dict(WAKE), Clock())
    for _ in range(2):
        function({"Records": queue.waiting}, Clock())
    assert desk.rows("TEAM") == {"TEAM#a": {"tickets": 3}}


def test_a_stripe_that_another_process_visits_is_not_visited_beside_it(desk):
    queue = Messages()
    function = function_of(desk, queue)
    desk.now += 60
    function(dict(WAKE), Clock())
    for message in queue.waiting:
        number = json.loads(message["body"])["lane"]
        lease = {"until": str(desk.now + 100)}
        key = next(key for key in desk.engine.state if key.pk == f"wake#desk#counted#{number:x}")
        head = type(key)(key.pk.rpartition("#")[0], f"head#{number:x}")
        desk.engine.swap_state(head, lease, 0)
    function({"Records": queue.waiting}, Clock())
    assert desk.rows("TEAM") == {}
    desk.now += 200
    function({"Records": queue.waiting}, Clock())
    assert desk.rows("TEAM") == {"TEAM#a": {"tickets": 3}}


def test_the_schedule_measures_how_late_the_oldest_wake_is(desk, caplog):
    desk.now += 360
    with caplog.at_level(logging.INFO, "streamfold"):
        function_of(desk, Messages())(dict(WAKE), Clock())
    (line,) = [each for each in caplog.records if each.message == "wakes were read"]
    assert line.wake_oldest_seconds == 300


def test_the_age_is_a_metric_also_where_nothing_is_late(desk, capsys):
    function = function_of(desk, Messages(), observe="lines")
    capsys.readouterr()
    function(dict(WAKE), Clock())
    (line,) = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    assert line["wake_oldest_seconds"] == 0


def test_a_stripe_that_cannot_be_read_fails_its_message(desk, monkeypatch):
    queue = Messages()
    function = function_of(desk, queue)
    desk.now += 60
    function(dict(WAKE), Clock())

    def away(*_):
        raise EngineUnavailable("away")

    monkeypatch.setattr(desk.engine, "read_entries", away)
    response = function({"Records": queue.waiting}, Clock())
    assert len(response["batchItemFailures"]) == len(queue.waiting)
    assert desk.wakes() == {"counted": [at(60)] * 3}


def put(number, due_at):
    """The record of a ticket that comes."""
    return record(
        None, item(f"TICKET#{number}", "META", status="open", team="a", due_at=at(due_at)), number + 1, table="rows"
    )


def take(desk, queue, *records):
    """The function of the stream takes a batch."""
    function = Function(desk.app, QUEUED, client=object())
    function.engine, function.clock = desk.engine, lambda: desk.now
    function.segment_queue = SegmentQueue(desk.app.name, URL, function.warn, queue)
    assert function({"Records": [*records]}, Clock()) == {"batchItemFailures": []}


def test_a_timer_whose_moment_is_past_when_its_item_comes_is_called_without_the_schedule():
    desk, queue = Desk(made(timers)), Messages()
    desk.write("TICKET#1", status="open", team="a", due_at=at(-20))
    take(desk, queue, put(1, -20))
    assert {json.loads(each["body"])["fan_out"] for each in queue.waiting} == {"wake/called.timer", "wake/last.timer"}
    function_of(desk, queue)({"Records": queue.waiting}, Clock())
    assert (desk.wakes(), desk.rows("LAST")["LAST#1"]["moment"]) == ({}, "08:59:40")


def test_a_batch_sends_one_request_however_many_moments_are_past():
    desk, queue = Desk(made(timers)), Messages()
    take(desk, queue, *(put(number, -20) for number in range(40)))
    assert (queue.calls, queue.sent) == (1, 10)


@pytest.mark.parametrize(("handler", "due_at"), [(timers, 20), (counted, -20), (counted, 20)])
def test_a_batch_queues_no_visit_for_moments_to_come_and_for_handlers_that_ask_now(handler, due_at):
    desk, queue = Desk(made(handler)), Messages()
    take(desk, queue, put(1, due_at))
    assert queue.calls == 0


def test_a_timer_that_was_used_is_not_visited_again():
    desk, queue = Desk(made(timers)), Messages()
    desk.ticket(1, -20)
    desk.sweep()
    take(desk, queue, put(2, 100))
    desk.ticket(1, -20, note=1)
    take(desk, queue, record(None, desk.items["TICKET#1", "META"], 9, table="rows"))
    assert queue.calls == 0
