"""Locations of failed records: what each has, what it removes, and the error if it cannot be read."""

import gzip
import json
from typing import ClassVar

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from streamfold.errors import LocationError, SettingsError
from streamfold.failures.failed_records import S3Records, SqsRecords, open_location

QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/failures"


def line(number):
    return json.dumps({"number": number})


def numbers(place):
    return [waiting.document["number"] for waiting in place]


@pytest.fixture
def bucket(aws):
    client = boto3.client("s3")
    client.create_bucket(Bucket="failures")

    def put(**objects):
        for key, text in objects.items():
            client.put_object(Bucket="failures", Key=key.replace("__", "/"), Body=text)

    return put


def test_a_file_gives_a_document_a_line_with_its_place(tmp_path):
    path = tmp_path / "parked.jsonl"
    path.write_text(f"{line(1)}\n\nno json\n{line(2)}\n")
    first, bad, last = open_location(str(path))
    assert (first.location, first.document) == (f"{path}:1", {"number": 1})
    assert (bad.location, bad.document) == (f"{path}:3", None)
    assert bad.why.startswith("this is not JSON (")
    assert "expected a parked record" in bad.why
    assert last.document == {"number": 2}


def test_a_file_may_be_one_document_over_several_lines(tmp_path):
    path = tmp_path / "failure"
    path.write_text(json.dumps({"number": 1}, indent=2))
    assert numbers(open_location(str(path))) == [1]


def test_a_folder_gives_all_files_in_it_but_hidden_ones(tmp_path):
    (tmp_path / "aws" / "lambda").mkdir(parents=True)
    (tmp_path / "b.jsonl").write_text(f"{line(2)}\n{line(3)}")
    (tmp_path / "aws" / "lambda" / "object").write_text(line(1))
    (tmp_path / "c.gz").write_bytes(gzip.compress(line(4).encode()))
    (tmp_path / ".hidden").write_text("hidden")
    assert numbers(open_location(str(tmp_path))) == [1, 2, 3, 4]


def test_a_file_stays_as_it_is(tmp_path):
    path = tmp_path / "parked.jsonl"
    path.write_text(line(1))
    place = open_location(str(path))
    assert [waiting.receipt for waiting in place] == [None]
    place.close()
    assert path.read_text() == line(1)


def test_a_prefix_gives_all_objects_behind_it_in_the_order_of_their_keys(bucket):
    bucket(parked__shop__b=line(2), parked__shop__a=line(1), parked__c=gzip.compress(line(3).encode()), other=line(9))
    places = ["s3://failures/parked/shop/a", "s3://failures/parked/shop/", "s3://failures/parked"]
    assert [sorted(numbers(open_location(place))) for place in places] == [[1], [1, 2], [1, 2, 3]]


def test_an_object_is_read_alone_though_others_begin_like_it(bucket):
    bucket(failure=line(1), failure2=line(2))
    assert numbers(open_location("s3://failures/failure")) == [1]


def test_an_object_tells_its_place(bucket):
    bucket(failure=f"{line(1)}\n17")
    good, bad = open_location("s3://failures")
    assert (good.location, bad.location) == ("s3://failures/failure:1", "s3://failures/failure:2")
    assert bad.why.startswith("A document is int, 17")


def test_an_object_that_is_too_large_is_told(bucket, monkeypatch):
    monkeypatch.setattr("streamfold.failures.failed_records.LINE_BYTES_MAX", 10)
    bucket(failure=line(1))
    ((place, document, why, _),) = open_location("s3://failures/failure")
    assert (place, document, why) == ("s3://failures/failure", None, "it is larger than 10 bytes")


def test_a_bucket_that_is_missing_is_an_error_with_the_permission_it_takes(aws):
    with pytest.raises(LocationError) as raised:
        list(open_location("s3://missing/parked"))
    assert str(raised.value).startswith("s3://missing/parked refused (NoSuchBucket: ")
    assert str(raised.value).endswith("s3:ListBucket is needed there.")


def test_a_place_that_cannot_be_reached_is_an_error():
    class Away:
        def get_paginator(self, name):
            raise EndpointConnectionError(endpoint_url="https://s3")

    with pytest.raises(LocationError, match=r"s3://failures/ could not be reached \(.*\)\."):
        list(S3Records(Away(), "failures", ""))


def test_a_queue_gives_every_message_once(queue):
    queue.send(*map(line, range(25)))
    assert sorted(numbers(open_location(queue.url))) == list(range(25))


def test_a_message_that_is_settled_is_gone_and_the_others_are_there_for_the_next(queue):
    queue.send(line(1), line(2))
    place = open_location(queue.url)
    for waiting in place:
        if waiting.document == {"number": 1}:
            place.acknowledge(waiting.receipt)
    assert numbers(open_location(queue.url)) == []
    place.close()
    assert numbers(open_location(queue.url)) == [2]


def test_a_message_that_comes_again_while_the_queue_is_read_ends_the_reading():
    class Again:
        def receive_message(self, **_):
            return {"Messages": [{"MessageId": "1", "ReceiptHandle": "r", "Body": line(1)}]}

    assert numbers(SqsRecords(Again(), QUEUE)) == [1]


def received(*numbers):
    return [{"MessageId": str(each), "ReceiptHandle": f"r{each}", "Body": line(each)} for each in numbers]


def test_messages_behind_those_that_come_again_are_read():
    class Behind:
        pages: ClassVar = [received(1, 2), received(1, 2), received(2), received(1, 3)]

        def receive_message(self, **_):
            return {"Messages": self.pages.pop(0) if self.pages else []}

    assert numbers(SqsRecords(Behind(), QUEUE)) == [1, 2, 3]


def test_a_message_that_is_visible_already_keeps_no_other_one_hidden():
    asked = []

    class Expired:
        def change_message_visibility(self, **call):
            asked.append(call["ReceiptHandle"])
            code = "AWS.SimpleQueueService.MessageNotInflight" if len(asked) == 1 else "InvalidParameterValue"
            raise ClientError({"Error": {"Code": code, "Message": "no"}}, "ChangeMessageVisibility")

    place = SqsRecords(Expired(), QUEUE)
    place._pending.update(a=None, b=None)
    place.close()
    assert asked == ["a", "b"]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("hello", "this is not JSON"),
        (f"{line(1)}\n{line(2)}", "it holds 2 documents: expected one"),
        (f"[{line(1)}, {line(2)}]", "it holds 2 documents: expected one"),
        ("[]", "it holds 0 documents: expected one"),
    ],
)
def test_a_message_that_is_no_document_is_told_and_kept(queue, body, why):
    queue.send(body)
    (waiting,) = open_location(queue.url)
    assert waiting.document is None
    assert waiting.location.startswith("message ")
    assert waiting.why.startswith(why)


@pytest.mark.parametrize(
    ("act", "action"),
    [
        (list, "sqs:ReceiveMessage"),
        (lambda place: place.acknowledge("r"), "sqs:DeleteMessage"),
        (lambda place: (place._pending.update(r=None), place.close()), "sqs:ChangeMessageVisibility"),
    ],
)
def test_a_queue_that_refuses_is_an_error_with_the_permission_it_takes(act, action):
    class Denied:
        def __getattr__(self, name):
            def call(**_):
                raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, name)

            return call

    with pytest.raises(LocationError) as raised:
        act(SqsRecords(Denied(), QUEUE))
    assert str(raised.value) == f"{QUEUE} refused (AccessDenied: no). {action} is needed there."


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("s3://", "'s3://' names no bucket: expected s3://BUCKET/PREFIX."),
        ("missing.jsonl", "'missing.jsonl' does not exist: expected a file or folder of documents, s3://BUCKET/PREFIX"),
        ("arn:aws:sqs:us-east-1:123456789012:parked", "or the URL of an SQS queue (https://sqs.REGION.amazonaws.com"),
    ],
)
def test_a_place_that_cannot_be_is_refused(name, message):
    with pytest.raises(SettingsError) as raised:
        open_location(name)
    assert message in str(raised.value)
