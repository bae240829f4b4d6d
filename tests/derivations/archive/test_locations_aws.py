"""Places of archives: a folder and a bucket behave alike."""

from contextlib import closing
from datetime import date

import boto3
import pytest
from botocore.exceptions import ClientError

from streamfold import App, Key, Router
from streamfold.batch.process import process_event
from streamfold.derivations.archive.locations import Bucket, Folder, open_location
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineError, EngineUnavailable
from streamfold.read import archived
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import item, record

FIRST_OF_MARCH = 1_772_355_600.0
A_DAY = 24 * 60 * 60


@pytest.fixture(params=["folder", "bucket"])
def place(request, tmp_path):
    if request.param == "folder":
        return open_location(f"file:{tmp_path}/kept")
    request.getfixturevalue("aws")
    boto3.client("s3").create_bucket(Bucket="kept")
    return open_location("s3://kept/some/prefix")


def test_contents_are_read_back_in_the_order_of_their_names(place):
    for name in ("b/2/x", "a/1/x", "b/1/x", "b/1/a"):
        place.write(name, name.encode())
    assert list(place.names("b/1/")) == ["b/1/a", "b/1/x"]
    assert list(place.names("")) == ["a/1/x", "b/1/a", "b/1/x", "b/2/x"]
    assert list(place.folders("b/")) == ["1", "2"]
    with place.read("b/1/a") as stream:
        assert stream.read() == b"b/1/a"


def test_a_content_is_replaced_by_one_of_the_same_name(place):
    place.write("a/x", b"1")
    place.write("a/x", b"2")
    assert list(place.names("a/")) == ["a/x"]
    with place.read("a/x") as stream:
        assert stream.read() == b"2"


def test_an_empty_place_has_no_names_and_folders(place):
    assert (list(place.names("a/")), list(place.folders("a/"))) == ([], [])


def test_a_place_is_shown_as_it_is_named(tmp_path):
    assert str(Folder("kept")) == "file:kept"
    assert str(Bucket(None, "kept", "some/")) == "s3://kept/some/"


CALLS = [
    ("s3:PutObject", lambda place: place.write("a", b"")),
    ("s3:ListBucket", lambda place: list(place.names(""))),
    ("s3:GetObject", lambda place: place.read("a")),
]


@pytest.mark.parametrize(("permission", "call"), CALLS)
def test_a_bucket_that_is_missing_is_told_with_the_permission_that_is_needed(aws, permission, call):
    with pytest.raises(EngineError, match=f"NoSuchBucket.*{permission} on it to be permitted") as raised:
        call(open_location("s3://missing/prefix"))
    assert not isinstance(raised.value, EngineUnavailable)


class Refusing:
    """A client of S3 that refuses every call."""

    def __init__(self, code):
        self.code = code

    def put_object(self, **_):
        raise ClientError({"Error": {"Code": self.code, "Message": "why"}}, "PutObject")


def test_a_permission_that_is_missing_is_named_and_no_reason_to_try_again():
    with pytest.raises(EngineError, match=r"AccessDenied: why.*s3:PutObject") as raised:
        Bucket(Refusing("AccessDenied"), "kept", "").write("a", b"")
    assert not isinstance(raised.value, EngineUnavailable)


def test_a_bucket_that_is_busy_is_tried_again():
    with pytest.raises(EngineUnavailable, match="SlowDown: why"):
        Bucket(Refusing("SlowDown"), "kept", "").write("a", b"")


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineUnavailable, match="cannot be written"):
        Folder(str(tmp_path / "file")).write("a/x", b"")


def removal(number, seconds):
    removed = record(item(f"SESSION#{number}"), None, number)
    removed["dynamodb"]["ApproximateCreationDateTime"] = seconds
    return removed


def test_readers_give_their_own_client(aws):
    client = boto3.client("s3")
    client.create_bucket(Bucket="kept")
    router = Router()
    router.archive(Key("SESSION#{session_id}", "METADATA"), to="s3://kept/archive", name="archive")
    app = App("shop", routers=[router])
    opened = {"s3://kept/archive": open_location("s3://kept/archive")}
    with closing(MemoryEngine(app.tables.values())) as engine:
        run = Runtime(app, engine, Settings(), outside=True, opened=opened)
        process_event(run, [removal(1, FIRST_OF_MARCH), removal(2, FIRST_OF_MARCH + A_DAY)])
    found = archived("s3://kept/archive", "archive", last=date(2026, 3, 1), client=client)
    assert [kept.item["PK"] for kept in found] == ["SESSION#1"]
