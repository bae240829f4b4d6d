"""Places of archives: a folder and a bucket behave alike."""

import boto3
import pytest

from streamfold.archive_places import Bucket, Folder, open_place
from streamfold.errors import EngineUnavailable


@pytest.fixture(params=["folder", "bucket"])
def place(request, tmp_path):
    if request.param == "folder":
        return open_place(f"file:{tmp_path}/kept")
    request.getfixturevalue("aws")
    boto3.client("s3").create_bucket(Bucket="kept")
    return open_place("s3://kept/some/prefix")


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


def test_a_bucket_that_refuses_is_told_with_the_permission_that_is_needed(aws):
    missing = open_place("s3://missing/prefix")
    with pytest.raises(EngineUnavailable, match="s3:PutObject is needed there"):
        missing.write("a", b"")
    with pytest.raises(EngineUnavailable, match="s3:ListBucket is needed there"):
        list(missing.names(""))
    with pytest.raises(EngineUnavailable, match="s3:GetObject is needed there"):
        missing.read("a")


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineUnavailable, match="cannot be written"):
        Folder(str(tmp_path / "file")).write("a/x", b"")
