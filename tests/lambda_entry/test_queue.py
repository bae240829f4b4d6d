"""The queue's Lambda entry: segments go on from message to message, and no work depends on a message."""

import json
import logging

import pytest

from streamfold.batch.fan_outs import run_fan_outs
from streamfold.derivations.feed.fan_outs import FeedSegments
from streamfold.errors import RecordError, SettingsError, StreamfoldError
from streamfold.jobs.fan_outs import FanOuts, SegmentQueue
from streamfold.lambda_entry.function import Function
from streamfold.lambda_entry.queue import RING, STILL_SECONDS, QueueFunction
from tests.helpers.doorbells import (
    QUEUED,
    Clock,
    Messages,
    body,
    new_run,
    opened,
    post,
    queue_function,
    rows_of,
    time_for_one_page,
)
from tests.helpers.feed_histories import applications, small
from tests.helpers.records import item, record


def event(*bodies):
    return {
        "Records": [
            {"eventSource": "aws:sqs", "messageId": f"m{number}", "body": text} for number, text in enumerate(bodies)
        ]
    }


def failed(response):
    return [failure["itemIdentifier"] for failure in response["batchItemFailures"]]


def open_ones(app, engine):
    return list(FanOuts(new_run(app, engine)).all())


@pytest.fixture(autouse=True)
def _small():
    with small():
        yield


def test_a_message_has_its_lane_worked_on_to_the_end_and_the_last_closes_the_fan_out():
    app, engine, run = opened(9)
    function = queue_function(app, engine)
    assert len(rows_of(engine)) == 0
    assert failed(function(event(*map(body, run.queued)), Clock())) == []
    assert len(rows_of(engine)) == 9
    assert open_ones(app, engine) == []


def test_lanes_are_handed_over_from_message_to_message_as_often_as_they_need():
    app, engine, run = opened(90)
    queue, clock = Messages(), Clock()
    function = queue_function(app, engine, queue)
    queue.send_message_batch(
        QueueUrl=QUEUED.jobs, Entries=[{"Id": str(n), "MessageBody": body(each)} for n, each in enumerate(run.queued)]
    )
    with time_for_one_page(clock):
        while queue.waiting:
            clock.seconds = 60.0
            assert failed(function({"Records": [queue.waiting.pop(0)]}, clock)) == []
    handed_over = queue.sent - len(run.queued)
    assert handed_over >= 2 * 40  # of each of two lanes
    assert len(rows_of(engine)) == 90
    assert open_ones(app, engine) == []


def test_a_message_whose_next_one_could_not_be_sent_comes_again():
    app, engine, run = opened(90)
    queue, clock = Messages(), Clock()
    queue.fails = True
    with time_for_one_page(clock):
        assert failed(queue_function(app, engine, queue)(event(body(run.queued[0])), clock)) == ["m0"]
    assert queue.calls == 1


def test_a_message_that_begins_without_time_is_not_handed_over_for_ever():
    app, engine, run = opened(9)
    queue = Messages()
    assert failed(queue_function(app, engine, queue)(event(body(run.queued[0])), Clock(20.0))) == ["m0"]
    assert queue.calls == 0


def test_doubled_and_late_messages_change_nothing():
    app, engine, run = opened(9)
    function = queue_function(app, engine)
    messages = event(*map(body, [*run.queued, *run.queued]))
    assert failed(function(messages, Clock())) == []
    assert failed(function(messages, Clock())) == []
    assert len(rows_of(engine)) == 9


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[]",
        "null",
        '{"application": "social"}',
        '{"application": "social", "fan_out": 1, "lane": 0}',
        '{"application": "social", "fan_out": "a", "lane": -1}',
        '{"application": "social", "fan_out": "a", "lane": true}',
        '{"application": "social", "fan_out": "a", "lane": "0"}',
    ],
)
def test_a_message_that_rings_for_no_lane_fails_alone(text, caplog):
    app, engine, run = opened(9)
    with caplog.at_level(logging.ERROR, "streamfold"):
        response = queue_function(app, engine)(event(text, *map(body, run.queued)), Clock())
    assert failed(response) == ["m0"]
    assert len(rows_of(engine)) == 9
    (failure,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert failure.sequence == "m0"
    assert failure.reason.startswith("The message ... names no segment: expected ")


def test_a_message_of_another_application_fails_and_says_so(caplog):
    app, engine, run = opened(9)
    with caplog.at_level(logging.ERROR, "streamfold"):
        assert failed(queue_function(app, engine)(event(body(run.queued[0], "shop")), Clock())) == ["m0"]
    assert "names application 'shop', and this function is of 'social': each application" in caplog.records[-1].reason


def test_a_message_of_a_fan_out_that_is_done_is_acknowledged():
    app, engine, _ = opened(9)
    assert failed(queue_function(app, engine)(event(body(("timeline-push-0", 3))), Clock())) == []


@pytest.mark.parametrize(
    "bad", [{}, [], {"Records": {}}, {"Records": [{"eventSource": "aws:dynamodb"}]}, {"ring": "yes"}]
)
def test_an_event_that_is_none_of_a_queue_stops_the_invocation(bad):
    app, engine, _ = opened(1)
    with pytest.raises(RecordError, match="The event is no batch of SQS messages"):
        queue_function(app, engine)(bad, Clock())


def test_a_lane_that_fails_comes_again_and_the_others_go_on(monkeypatch, caplog):
    app, engine, run = opened(9)
    pages = FeedSegments.page

    def page(self, lane):
        if lane.number == 0:
            raise StreamfoldError("no")
        return pages(self, lane)

    monkeypatch.setattr(FeedSegments, "page", page)
    with caplog.at_level(logging.ERROR, "streamfold"):
        assert failed(queue_function(app, engine)(event(*map(body, run.queued)), Clock())) == ["m0"]
    assert 0 < len(rows_of(engine)) < 9
    assert caplog.records[-1].handler == "timeline"


def test_the_log_tells_counts_and_no_contents(caplog):
    app, engine, run = opened(9)
    with caplog.at_level(logging.INFO, "streamfold"):
        queue_function(app, engine)(event(*map(body, run.queued)), Clock())
    (told,) = [each for each in caplog.records if each.message == "segments were worked on"]
    assert (told.lanes, told.lanes_handed_over, told.lanes_failed, told.rows_written) == (2, 0, 0, 9)
    assert "hello" not in caplog.text + str([vars(each) for each in caplog.records])


def scheduled(seconds):
    """What a schedule rings for so long after a post whose messages were lost, and what it logs."""
    app, engine, _ = opened(9)
    queue = Messages()
    function = queue_function(app, engine, queue)
    made = function.runtime_of

    def runtime_of(*arguments):
        runtime = made(*arguments)
        runtime.clock = lambda: new_run(app, engine).clock() + seconds
        return runtime

    function.runtime_of = runtime_of
    assert failed(function(dict(RING), Clock())) == []
    return app, engine, queue, function


def test_the_schedule_rings_for_lanes_that_stand_still():
    app, engine, queue, function = scheduled(STILL_SECONDS)
    assert failed(function({"Records": queue.waiting}, Clock())) == []
    assert len(rows_of(engine)) == 9
    assert open_ones(app, engine) == []


def test_the_schedule_leaves_alone_what_moved_a_moment_ago():
    *_, queue, _ = scheduled(STILL_SECONDS - 1)
    assert queue.waiting == []


def test_the_schedule_measures_how_long_the_oldest_fan_out_is_open(caplog):
    with caplog.at_level(logging.INFO, "streamfold"):
        scheduled(4000)
    (told,) = [each for each in caplog.records if each.message == "open fan-outs were read"]
    assert (told.fan_outs_open, told.fan_out_oldest_seconds, told.lanes_rung) == (1, 4000, 2)


@pytest.mark.parametrize("of_schedule", [True, False])
def test_an_invocation_in_which_nothing_failed_writes_one_line(capsys, of_schedule):
    app, engine, run = opened(9)
    function = queue_function(app, engine, observe="lines")
    capsys.readouterr()
    function(dict(RING) if of_schedule else event(*map(body, run.queued)), Clock())
    (line,) = capsys.readouterr().out.splitlines()
    assert "_aws" in json.loads(line)


def test_the_age_is_a_metric_in_seconds(capsys):
    app, engine, _ = opened(9)
    function = queue_function(app, engine, observe="lines")
    capsys.readouterr()
    function(dict(RING), Clock())
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    (metrics,) = json.loads(line)["_aws"]["CloudWatchMetrics"]
    assert {"Name": "fan_out_oldest_seconds", "Unit": "Seconds"} in metrics["Metrics"]
    assert json.loads(line)["service"] == "social"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"jobs": None}, "STREAMFOLD_JOBS is not set"),
        ({"tables": {}}, "STREAMFOLD_TABLE_MAIN is not set"),
        ({"engine": "embedded:a.db"}, "STREAMFOLD_ENGINE='embedded:a.db' is set"),
    ],
)
def test_a_function_that_could_not_go_on_does_not_begin(settings, said):
    with pytest.raises(SettingsError, match=said):
        QueueFunction(applications()[0], QUEUED._replace(**settings), client=object())


def stream_function(app, engine, queue):
    function = Function(app, QUEUED, client=object())
    function.engine = engine
    function.segment_queue = SegmentQueue(app.name, QUEUED.jobs, function.warn, queue)
    return function


def edited():
    return record(item(*post(1), text="hello"), item(*post(1), text="again"), 20_000, table="rows")


def test_the_stream_function_rings_for_what_it_opened_and_works_on_none_of_it():
    app, engine, _ = opened(9)
    queue = Messages()
    response = stream_function(app, engine, queue)({"Records": [edited()]}, Clock())
    assert failed(response) == []
    assert [json.loads(each["body"])["lane"] for each in queue.waiting] == [0, 1]
    assert set(json.loads(queue.waiting[0]["body"])) == {"application", "fan_out", "lane"}
    assert "hello" not in str(queue.waiting)
    assert rows_of(engine) == []


def test_a_ring_that_fails_is_warned_about_and_loses_nothing(caplog):
    app, engine, run = opened(9)
    queue = Messages()
    queue.fails = True
    with caplog.at_level(logging.WARNING, "streamfold"):
        assert failed(stream_function(app, engine, queue)({"Records": [edited()]}, Clock())) == []
    assert "did not take a message (AccessDenied" in caplog.text
    assert run_fan_outs(run).failures == []
    assert len(rows_of(engine)) == 9


def test_jobs_handler_is_the_entry_of_the_queue(monkeypatch):
    app = applications()[0]
    monkeypatch.setenv("STREAMFOLD_TABLE_MAIN", "rows")
    with pytest.raises(SettingsError, match="STREAMFOLD_JOBS is not set"):
        app.jobs_handler({"Records": []}, None)
