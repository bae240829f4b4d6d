"""Records of Kinesis Data Streams for DynamoDB: unwrapped, in order by time, the same change however often told."""

import json
from base64 import b64decode, b64encode
from datetime import UTC, datetime

import pytest

from streamfold import App, Key, Router, Table, Unprocessable
from streamfold.batch.process import process_event
from streamfold.derivations.audit.puts import audit_row
from streamfold.engines import MemoryEngine
from streamfold.errors import RecordError
from streamfold.keys.table import MAIN
from streamfold.records.change import Origin
from streamfold.records.kinesis import KinesisChange, sequence_of, unwrapped
from streamfold.records.values import encode
from streamfold.routes.checks import checked_routes
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing import KinesisTwin
from tests.helpers.records import item, record

OLD, NEW = item("ORDER#1", status="new"), item("ORDER#1", status="paid")
PREFIX = "02/kinesis/"
MICROSECONDS = 1_789_780_904_316_691
TIME_TO_LIVE = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}


def wrapped(data, number="49678472130519358219034520697029564442432767835208941570"):
    """A record of Kinesis with this data, text or an object."""
    text = data if isinstance(data, str) else json.dumps(data)
    kinesis = {"sequenceNumber": number, "data": b64encode(text.encode()).decode()}
    return {"kinesis": kinesis, "eventSource": "aws:kinesis", "eventSourceARN": "arn:aws:kinesis:eu-west-1:1:stream/s"}


def data_of(old=OLD, new=NEW, **body):
    """What DynamoDB tells Kinesis of a change, with some parts replaced; None takes a part away."""
    data = json.loads(b64decode(KinesisTwin().append(record(old, new))["kinesis"]["data"]))
    data["dynamodb"]["ApproximateCreationDateTime"] = MICROSECONDS
    keys = data["dynamodb"]["Keys"]
    images = {name: {**keys, **body[name]} for name in ("OldImage", "NewImage") if isinstance(body.get(name), dict)}
    data["dynamodb"].update(body | images)
    data["dynamodb"] = {name: value for name, value in data["dynamodb"].items() if value is not None}
    return data


def change_of(raw, table=MAIN):
    return KinesisChange(raw, unwrapped(raw), Origin(table, PREFIX))


def changed(**body):
    return change_of(wrapped(data_of(**body)))


def test_a_change_has_event_item_and_both_images():
    found = changed()
    assert (found.event, found.item) == ("MODIFY", ("main", "ORDER#1", "METADATA"))
    assert (found.old, found.new) == (OLD, NEW)


def test_its_version_is_the_time_in_microseconds_and_its_failure_is_reported_by_kinesis_number():
    found = changed()
    assert found.version_text == f"{PREFIX}{MICROSECONDS:040d}"
    assert (found.version.epoch, found.version.label, found.version.sequence) == (2, "kinesis", MICROSECONDS)
    assert found.sequence == "49678472130519358219034520697029564442432767835208941570"


def test_its_moment_is_in_whole_seconds_as_a_stream_gives_it():
    assert changed().at == datetime(2026, 9, 19, 1, 21, 44, tzinfo=UTC)


@pytest.mark.parametrize(("old", "new", "event"), [(None, NEW, "INSERT"), (OLD, None, "REMOVE")])
def test_the_image_that_there_is_not_is_known_to_be_absent(old, new, event):
    found = change_of(wrapped(data_of(old, new)))
    assert found.event == event
    assert (found.has_old, found.has_new) == (True, True)
    assert (dict(found.old), dict(found.new)) == (old or {}, new or {})


@pytest.mark.parametrize(("identity", "expired"), [(TIME_TO_LIVE, True), (None, False)])
def test_a_deletion_by_time_to_live_is_told_by_its_identity(identity, expired):
    assert change_of(wrapped({**data_of(new=None), "userIdentity": identity})).expired is expired


@pytest.mark.parametrize(("seconds_left", "expired"), [(0, True), (1, False)])
def test_a_deletion_of_an_item_that_had_expired_counts_as_expired_without_identity(seconds_left, expired):
    data = data_of(new=None)
    data["dynamodb"]["OldImage"]["expires"] = {"N": str(MICROSECONDS // 1_000_000 + seconds_left)}
    assert change_of(wrapped(data), Table("main", ttl="expires")).expired is expired


def test_a_change_of_replication_attributes_alone_is_hidden():
    image = data_of()["dynamodb"]["OldImage"]
    found = changed(OldImage=image, NewImage={**image, "aws:rep:updatetime": {"N": "1"}})
    assert found.as_written() is None


def test_binary_values_that_came_as_base64_of_base64_are_bytes_at_any_depth():
    # Encoded as an observed record was: bytes 00 01 ff as QUFILw==.
    kept = {"B": "QUFILw=="}
    image = {**data_of()["dynamodb"]["NewImage"], "b": kept, "bs": {"BS": ["QUE9PQ==", "L3c9PQ=="]}}
    image["m"] = {"M": {"B": {"L": [kept, {"S": "B"}]}}}
    found = changed(NewImage=image).new
    assert (found["b"], found["bs"]) == (b"\x00\x01\xff", {b"\x00", b"\xff"})
    assert found["m"] == {"B": [b"\x00\x01\xff", "B"]}


def test_copies_of_a_change_are_one_whatever_their_event_ids_and_numbers():
    first = KinesisTwin()
    raw = first.append(record(OLD, NEW))
    one, other = change_of(raw), change_of(first.again(raw))
    assert one.sequence != other.sequence
    assert data_id(one) != data_id(other)
    assert (one, one.identity_text) == (other, other.identity_text)


def data_id(change):
    return unwrapped(change.record)["eventID"]


@pytest.mark.parametrize("image", ["OldImage", "NewImage"])
def test_an_image_with_another_key_than_its_record_is_malformed(image):
    with pytest.raises(RecordError, match="and an image in it has the key"):
        changed(**{image: {"SK": {"S": "OTHER"}}})


def test_the_order_of_attributes_and_of_sets_does_not_make_another_change():
    image = {"a": {"SS": ["x", "y"]}, "b": {"M": {"NS": {"NS": ["1", "2"]}}}}
    turned = {"b": {"M": {"NS": {"NS": ["2", "1"]}}}, "a": {"SS": ["y", "x"]}}
    assert changed(NewImage=image).identity_text == changed(NewImage=turned).identity_text


@pytest.mark.parametrize("body", [{"NewImage": {"a": {"L": [{"N": "2"}, {"N": "1"}]}}}, {"OldImage": None}])
def test_changes_of_one_microsecond_with_other_images_are_others(body):
    plain = {"NewImage": {"a": {"L": [{"N": "1"}, {"N": "2"}]}}}
    one, other = changed(**plain), changed(**{**plain, **body})
    assert one.version_text == other.version_text
    assert one.identity_text != other.identity_text
    assert one != other


@pytest.mark.parametrize(
    "body",
    [
        {"ApproximateCreationDateTimePrecision": None, "ApproximateCreationDateTime": MICROSECONDS // 1000},
        {"ApproximateCreationDateTimePrecision": "MILLISECOND"},
        {"ApproximateCreationDateTime": float(MICROSECONDS)},
        {"ApproximateCreationDateTime": True},
        {"ApproximateCreationDateTime": -1},
        {"ApproximateCreationDateTime": 10**40},
        {"ApproximateCreationDateTime": None},
    ],
)
def test_a_time_of_less_precision_is_refused_with_the_command_that_helps(body):
    with pytest.raises(RecordError) as caught:
        changed(**body)
    assert "expected MICROSECOND, since the order of two changes of an item in one millisecond would be unknown" in str(
        caught.value
    )
    assert str(caught.value).endswith(
        "aws dynamodb update-kinesis-streaming-destination --table-name main --stream-arn "
        "arn:aws:kinesis:eu-west-1:1:stream/s "
        "--update-kinesis-streaming-configuration ApproximateCreationDateTimePrecision=MICROSECOND."
    )


@pytest.mark.parametrize(
    "data",
    [
        "no json",
        "[" * 100_000,
        [],
        "{}",
        {"tableName": "main", "dynamodb": []},
        {"tableName": 5, "dynamodb": {}},
        {"tableName": "main", "dynamodb": {"NewImage": {"a": {"B": 5, "S": "x"}}}},
    ],
)
def test_data_that_is_no_change_of_a_table_is_refused(data):
    with pytest.raises(RecordError, match="holds no change of a DynamoDB table: expected base64 of an object with"):
        unwrapped(wrapped(data))


@pytest.mark.parametrize("data", [None, 5, "###", "/w=="])
def test_data_that_is_no_base64_of_text_is_refused(data):
    raw = wrapped("{}")
    raw["kinesis"]["data"] = data
    with pytest.raises(RecordError, match="holds no change of a DynamoDB table"):
        unwrapped(raw)


def test_data_that_is_nested_too_deeply_is_refused():
    deep = {"SS": ["b", "a"]}
    for _ in range(700):
        deep = {"M": {"a": deep}}
    data = data_of()
    data["dynamodb"]["NewImage"]["a"] = deep
    with pytest.raises(RecordError, match="is nested deeper than any item can be"):
        KinesisChange(wrapped("{}"), data, Origin(MAIN, PREFIX))


@pytest.mark.parametrize("number", [None, "", 5])
def test_a_record_that_could_not_be_reported_is_refused(number):
    with pytest.raises(RecordError, match=f"has sequenceNumber={number!r}: expected text, by which a failure"):
        unwrapped(wrapped({}, number))


@pytest.mark.parametrize("record", [{"kinesis": None}, {"kinesis": []}, {"eventSource": "aws:kinesis"}])
def test_a_record_of_no_form_has_no_number(record):
    assert sequence_of(record) is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({**data_of(), "eventName": "TOUCH"}, "eventName='TOUCH'"),
        (data_of(Keys=[]), r"Keys=\[\]"),
        (data_of(Keys={"Id": {"S": "1"}}), "key attributes Id: table 'main' is declared with PK, SK"),
        (data_of(OldImage=["a"]), "has an image that is no object of attributes"),
        ({**data_of(), "eventName": "REMOVE"}, "is of event REMOVE and has a NewImage: expected the record as"),
    ],
)
def test_a_change_without_what_every_change_has_is_refused(data, words):
    with pytest.raises(RecordError, match=words):
        change_of(wrapped(data))


def test_its_identity_among_some_attributes_tells_nothing_of_the_others():
    one, other = (
        changed(NewImage=encode(item("ORDER#1", status="paid", email=email))["M"]) for email in ("a@b.c", "d@e.f")
    )
    assert one.identity_text != other.identity_text
    assert one.identity_among(lambda name: name != "email") == other.identity_among(lambda name: name != "email")
    assert one.identity_among(lambda name: True) == one.identity_text
    assert one.identity_among(lambda name: name != "status") != one.identity_among(lambda name: name != "email")


@pytest.mark.parametrize("options", [{"redact": ["email"]}, {"fields": ["status"]}])
def test_a_history_row_tells_nothing_of_what_it_does_not_record(options):
    router = Router()
    router.audit(Key("ORDER#{order_id}", "METADATA"), **options)
    (route,) = checked_routes(router.routes)
    rows = [
        audit_row(route, changed(NewImage=encode(item("ORDER#1", status="paid", email=email))["M"]), {"order_id": "1"})
        for email in ("a@b.c", "d@e.f")
    ]
    assert rows[0] == rows[1]


class Names:
    """A parking place that keeps the names of what it takes."""

    def __init__(self):
        self.names = []

    def park(self, parked):
        self.names.append(parked.name)


def test_two_changes_of_one_microsecond_are_parked_under_two_names():
    router = Router()

    @router.on(Key("ORDER#{order_id}", "METADATA"), into=Key("SEEN#{order_id}", "ORDER"))
    def never(change):
        raise Unprocessable("of another currency")
        yield

    app = App("shop", routers=[router])
    run = Runtime(app, MemoryEngine(app.tables.values()), Settings(), parking=Names())
    records = [wrapped(data_of()), wrapped(data_of(new=item("ORDER#1", status="sent")), number="5")]
    for _ in range(2):
        report = process_event(run, {"Records": records})
        assert report.failures == []
    first, second, *again = run.parking.names
    assert first != second
    assert again == [first, second]
