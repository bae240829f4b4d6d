"""A recording that grows: its complete lines, its last line, and a file that is replaced."""

import gzip
import json
from pathlib import Path

import pytest

from streamfold.errors import SettingsError
from streamfold.replay import files
from streamfold.replay.files import BadLine, GrowingRecording


def line(number):
    return json.dumps({"eventName": "INSERT", "dynamodb": {"SequenceNumber": str(number)}})


@pytest.fixture
def recording(tmp_path):
    (tmp_path / "r.jsonl").write_bytes(b"")
    made = GrowingRecording(str(tmp_path / "r.jsonl"))
    made.read()
    return made


def write(recording, text, mode="ab"):
    with Path(recording.path).open(mode) as file:
        file.write(text.encode() if isinstance(text, str) else text)
    return recording.read()


def found(recording):
    return [
        (each.line.number, "bad")
        if isinstance(each, BadLine)
        else (each[0].number, each[1]["dynamodb"]["SequenceNumber"])
        for each in recording.entries
    ]


def test_lines_are_added_with_their_numbers(recording):
    write(recording, line(1) + "\n\n" + line(2) + "\n")
    write(recording, line(3) + "\n")
    assert found(recording) == [(1, "1"), (3, "2"), (4, "3")]
    assert recording.editions == 1


def test_a_line_waits_for_its_rest(recording):
    text = line(2) + "\n"
    write(recording, line(1) + "\n" + text[:20])
    assert found(recording) == [(1, "1")]
    assert str(recording.cut_off.line).endswith("r.jsonl:2")
    assert "ends inside this record, after 20 bytes" in recording.cut_off.why
    write(recording, text[20:])
    assert (found(recording), recording.cut_off) == ([(1, "1"), (2, "2")], None)


def test_any_cut_gives_the_same_records(tmp_path):
    text = "".join(f"{line(number)}\n" for number in range(1, 5)).encode()
    for cut in range(len(text)):
        (tmp_path / "r.jsonl").write_bytes(text[:cut])
        recording = GrowingRecording(str(tmp_path / "r.jsonl"))
        recording.read()
        write(recording, text[cut:])
        assert found(recording) == [(number, str(number)) for number in range(1, 5)], cut


def test_a_last_line_without_a_line_feed_is_a_record(recording):
    write(recording, line(1) + "\n" + line(2))
    assert (found(recording), recording.cut_off) == ([(1, "1"), (2, "2")], None)
    write(recording, "\n" + line(3) + "\n")
    assert found(recording) == [(1, "1"), (2, "2"), (3, "3")]


def test_a_bad_line_is_among_the_others(recording):
    write(recording, line(1) + "\nno record\n" + line(3) + "\n")
    assert found(recording) == [(1, "1"), (2, "bad"), (3, "3")]


def test_a_file_that_is_replaced_begins_anew(recording):
    write(recording, line(1) + "\n" + line(2) + "\n")
    write(recording, line(3) + "\n", "wb")
    assert (found(recording), recording.editions) == ([(1, "3")], 2)


def test_a_document_and_a_packed_file_are_read_as_a_whole(recording, tmp_path):
    write(recording, f"[\n{line(1)},\n{line(2)}\n]")
    assert [number for _, number in found(recording)] == ["1", "2"]
    (tmp_path / "r.gz").write_bytes(gzip.compress((line(3) + "\n").encode()))
    packed = GrowingRecording(str(tmp_path / "r.gz"))
    packed.read()
    assert found(packed) == [(1, "3")]


def test_a_file_that_did_not_change_is_not_read(recording):
    write(recording, line(1) + "\n")
    assert recording.read() is False


def test_a_file_that_is_too_large_is_refused_with_a_remedy(recording, monkeypatch):
    monkeypatch.setattr(files, "KEPT_BYTES_MAX", 100)
    with pytest.raises(
        SettingsError, match=r"r\.jsonl holds more than 0 MB .* head -n 100000 .*r\.jsonl > first\.jsonl"
    ):
        write(recording, line(1) + "\n" + line(2) + "\n")


def test_a_file_that_is_gone_is_reported(recording):
    Path(recording.path).unlink()
    with pytest.raises(SettingsError, match=r"cannot be read any more \(No such file or directory\)"):
        recording.read()
