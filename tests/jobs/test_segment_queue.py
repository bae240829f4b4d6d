"""The queue of segments: the messages that are sent, and the messages that the queue refuses."""

import json

import pytest
from botocore.exceptions import EndpointConnectionError

from streamfold.errors import RecordError
from streamfold.jobs.fan_outs import MESSAGES_MAX, SegmentQueue, read_message
from tests.helpers.doorbells import URL, Messages

LANES = [("timeline-push-1", number) for number in range(25)]


@pytest.fixture
def warnings():
    return []


def doorbell(client, warnings):
    return SegmentQueue("social", URL, warnings.append, client)


def test_ten_lanes_are_rung_for_in_one_call(warnings):
    queue = Messages()
    assert doorbell(queue, warnings).enqueue(LANES) == []
    assert (queue.calls, queue.sent) == (3, 25)
    assert [read_message(each["body"], "social") for each in queue.waiting] == LANES
    assert warnings == []


def test_a_lane_that_is_rung_for_twice_at_once_is_sent_once(warnings):
    queue = Messages()
    doorbell(queue, warnings).enqueue(LANES[:2] * 3)
    assert queue.sent == 2


def test_a_message_holds_application_fan_out_and_lane_and_nothing_else(warnings):
    queue = Messages()
    doorbell(queue, warnings).enqueue(LANES[:1])
    assert json.loads(queue.waiting[0]["body"]) == {"application": "social", "fan_out": "timeline-push-1", "lane": 0}


def test_what_the_queue_does_not_take_is_returned_and_warned_about(warnings):
    queue = Messages()
    queue.refuses = True
    assert doorbell(queue, warnings).enqueue(LANES) == LANES
    assert warnings[0] == "The queue of STREAMFOLD_JOBS did not take a message (InternalError)."
    assert warnings[-1].startswith("25 segments of fan-outs could not be queued.")


def test_a_queue_that_is_away_ends_nothing(warnings):
    class Away:
        def send_message_batch(self, **_):
            raise EndpointConnectionError(endpoint_url="https://sqs")

    assert doorbell(Away(), warnings).enqueue(LANES[:1]) == LANES[:1]
    assert "could not be reached (EndpointConnectionError" in warnings[0]


def test_no_call_is_begun_when_time_is_over(warnings):
    queue, left = Messages(), iter([True, False, False])
    assert doorbell(queue, warnings).enqueue(LANES, lambda: next(left)) == LANES[MESSAGES_MAX:]
    assert queue.calls == 1


def test_a_queue_of_sqs_takes_the_messages(aws, queue, warnings):
    del aws
    send_messages = SegmentQueue("social", queue.url, warnings.append)
    assert send_messages.enqueue(LANES[:10]) == []
    assert queue.left() == 10
    assert warnings == []


def test_a_message_of_another_application_is_refused():
    with pytest.raises(RecordError, match="needs a queue of its own in STREAMFOLD_JOBS"):
        read_message('{"application": "shop", "fan_out": "a", "lane": 0}', "social")
