"""Parking places: what a parked record holds, where it goes, and what is said where it cannot go."""

import json

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError

from streamfold.errors import ParkingError, RecordError, SettingsError
from streamfold.failures.failed_records import open_location
from streamfold.jobs.fan_outs import SegmentQueue
from streamfold.parking import (
    ERROR_LETTERS_MAX,
    FORMAT,
    MESSAGE_BYTES_MAX,
    FileParking,
    Parked,
    S3Parking,
    SqsParking,
    make_client,
    open_parking,
    queue_client,
)
from tests.helpers.records import item, record

RECORD = record(None, item("ORDER#1", photo=b"\x00\xff", name="Größe"))
PARKED = Parked(
    "shop",
    "total",
    "main",
    "ORDER#1 / METADATA",
    "00/label/1",
    "LookupError",
    "no price",
    3,
    "2026-03-01T09:00:00Z",
    RECORD,
)
QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/parked"


@pytest.fixture
def bucket(aws):
    client = boto3.client("s3")
    client.create_bucket(Bucket="failures")
    return client


def test_document_holds_the_record_as_it_was_delivered_with_binary_as_text():
    document = json.loads(PARKED.text())
    assert document["parked"] == FORMAT
    assert document["record"]["dynamodb"]["NewImage"]["photo"] == {"B": "AP8="}
    assert document["record"]["dynamodb"]["NewImage"]["name"] == {"S": "Größe"}
    assert {name: value for name, value in document.items() if name not in ("parked", "record")} == {
        name: value for name, value in PARKED._asdict().items() if name != "record"
    }


def test_document_is_read_back():
    document = json.loads(PARKED.text())
    assert Parked.of(document) == PARKED._replace(record=document["record"])


def test_half_a_surrogate_pair_is_kept_as_it_came():
    broken = PARKED._replace(record={"dynamodb": {"NewImage": {"a": {"S": "\ud800"}}}})
    assert Parked.of(json.loads(broken.text().encode())).record == broken.record


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parked": 2}, f"A parked record has the format 2: this version reads {FORMAT}."),
        ({"handler": None}, "A parked record is damaged"),
        ({"record": []}, "A parked record is damaged"),
        ({"item": 5}, "A parked record is damaged: expected 'item' to be text."),
        ({"item": ["x"], "error": None}, "A parked record is damaged: expected 'item', 'error' to be text."),
    ],
)
def test_document_that_is_none_is_refused(change, message):
    with pytest.raises(RecordError) as raised:
        Parked.of({**json.loads(PARKED.text()), **change})
    assert str(raised.value).startswith(message)


def test_document_that_lacks_something_is_refused_with_its_name():
    document = json.loads(PARKED.text())
    del document["version"]
    with pytest.raises(RecordError, match="A parked record has no 'version'"):
        Parked.of(document)


@pytest.mark.parametrize("other", [{"handler": "x"}, {"version": "00/label/2"}, {"item": "ORDER#2"}, {"table": "x"}])
def test_name_is_a_function_of_handler_item_and_version(other):
    assert PARKED.name == PARKED._replace(at="later", attempts=9, error="another").name
    assert PARKED.name != PARKED._replace(**other).name


def test_file_takes_a_line_a_record(tmp_path):
    parking = open_parking(str(tmp_path / "parked.jsonl"))
    parking.park(PARKED)
    parking.park(PARKED._replace(handler="other"))
    lines = (tmp_path / "parked.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["handler"] for line in lines] == ["total", "other"]


def test_a_part_of_a_line_that_a_writer_left_spoils_no_other_record(tmp_path):
    path = tmp_path / "parked.jsonl"
    path.write_bytes(PARKED.text().encode()[:40])
    FileParking(str(path)).park(PARKED)
    FileParking(str(path)).park(PARKED)
    _, first, second = path.read_text("utf-8").splitlines()
    assert first == second == PARKED.text()


def test_file_that_cannot_be_written_is_an_error(tmp_path):
    with pytest.raises(ParkingError) as raised:
        FileParking(str(tmp_path)).park(PARKED)
    assert str(raised.value) == f"File {tmp_path} cannot be written: Is a directory."


@pytest.mark.parametrize("prefix", ["", "/", "/parked", "/parked/", "/a/b"])
def test_bucket_takes_one_object_however_often_a_record_is_parked(bucket, prefix):
    parking = open_parking(f"s3://failures{prefix}")
    parking.park(PARKED._replace(attempts=1))
    parking.park(PARKED)
    (key,) = [each["Key"] for each in bucket.list_objects_v2(Bucket="failures")["Contents"]]
    folder = prefix.strip("/")
    assert key == (f"{folder}/" if folder else "") + PARKED.name
    assert json.loads(bucket.get_object(Bucket="failures", Key=key)["Body"].read())["attempts"] == 3


def test_bucket_that_refuses_is_an_error_with_the_permission_it_takes(aws):
    with pytest.raises(ParkingError) as raised:
        open_parking("s3://missing/parked").park(PARKED)
    assert str(raised.value).startswith("s3://missing/parked/ did not take the record (NoSuchBucket: ")
    assert str(raised.value).endswith("The function needs s3:PutObject there.")


def test_place_that_cannot_be_reached_is_an_error():
    class Away:
        def put_object(self, **arguments):
            raise EndpointConnectionError(endpoint_url="https://s3")

    with pytest.raises(ParkingError, match=r"s3://failures/ could not be reached \(.*\)\."):
        S3Parking(lambda _: Away(), "failures", "").park(PARKED)


def test_queue_takes_a_message_a_record(aws):
    client = boto3.client("sqs")
    url = client.create_queue(QueueName="parked")["QueueUrl"]
    open_parking(url).park(PARKED)
    (message,) = client.receive_message(QueueUrl=url)["Messages"]
    assert json.loads(message["Body"])["item"] == "ORDER#1 / METADATA"


class Queue:
    def __init__(self):
        self.bodies = []

    def send_message(self, **arguments):
        self.bodies.append(arguments["MessageBody"])


def test_record_larger_than_a_message_is_an_error_with_the_remedy():
    queue = Queue()
    with pytest.raises(ParkingError) as raised:
        SqsParking(lambda _: queue, QUEUE).park(PARKED._replace(error="é" * (MESSAGE_BYTES_MAX // 2)))
    assert f"and a message of {QUEUE} {MESSAGE_BYTES_MAX} at most" in str(raised.value)
    assert str(raised.value).endswith("STREAMFOLD_PARK=s3://BUCKET/PREFIX.")
    assert queue.bodies == []


def test_characters_that_a_queue_refuses_are_escaped():
    queue = Queue()
    SqsParking(lambda _: queue, QUEUE).park(PARKED._replace(error="\ufffe\uffff\x00"))
    assert queue.bodies[0].isprintable()
    assert json.loads(queue.bodies[0])["error"] == "\ufffe\uffff\x00"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("s3://", "'s3://' names no bucket: expected s3://BUCKET/PREFIX."),
        (QUEUE + ".fifo", "is a FIFO queue, which would hold records behind one another"),
        ("arn:aws:sqs:us-east-1:123456789012:parked", "is not known: expected s3://BUCKET/PREFIX, the URL of an SQS"),
        ("gs://bucket", "is not known: expected s3://BUCKET/PREFIX"),
        (
            "no folder/parked.jsonl",
            "cannot be a file: expected the path of a JSON Lines file in an existing folder",
        ),
        (".", "cannot be a file"),
        pytest.param(
            "x" * 5000, "x' can be no file: it is longer than the file system takes. Name another.", id="long"
        ),
        ("parked\0.jsonl", "The parking place 'parked\\x00.jsonl' can be no file: it holds a NUL. Name another."),
        ("\udcff.jsonl", "The parking place '\\udcff.jsonl' can be no file: it is no text in UTF-8. Name another."),
    ],
)
def test_place_that_cannot_be_is_refused(place, message):
    with pytest.raises(SettingsError) as raised:
        open_parking(place, lambda service: None)
    assert message in str(raised.value)


def test_client_that_cannot_be_made_is_an_error(monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with pytest.raises(
        SettingsError, match="The client of sqs cannot be made without an AWS region: set AWS_DEFAULT_REGION"
    ):
        make_client("sqs")


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("http://localhost:4566/000000000000/bell", "http://localhost:4566"),
        ("http://[::1]:4566/000000000000/bell", "http://[::1]:4566"),
        ("https://127.0.0.1:4566/000000000000/bell", "https://127.0.0.1:4566"),
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/bell", "https://sqs.eu-west-1.amazonaws.com"),
    ],
)
def test_queue_of_this_machine_is_asked_where_its_url_says(monkeypatch, url, endpoint):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert queue_client(url).meta.endpoint_url == endpoint


def test_every_user_of_a_queue_asks_it_where_its_url_says(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    url = "http://localhost:4566/000000000000/q"
    clients = [SegmentQueue("shop", url, print).client, open_parking(url).client, open_location(url).client]
    assert [client.meta.endpoint_url for client in clients] == ["http://localhost:4566"] * 3


def test_limit_of_an_error_s_text_leaves_room_in_a_message():
    assert ERROR_LETTERS_MAX * 4 < MESSAGE_BYTES_MAX / 100


def test_a_client_is_made_for_the_first_record_that_is_parked(tmp_path):
    made = []

    class Bucket:
        def put_object(self, **arguments):
            pass

    parking = open_parking("s3://failures", lambda service: made.append(service) or Bucket())
    assert made == []
    parking.park(PARKED)
    parking.park(PARKED)
    assert made == ["s3"]


def test_a_record_whose_client_cannot_be_made_is_not_parked(monkeypatch):
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "none")
    with pytest.raises(
        ParkingError, match="The client of sqs cannot be made without an AWS region: set AWS_DEFAULT_REGION"
    ):
        open_parking(QUEUE).park(PARKED)
