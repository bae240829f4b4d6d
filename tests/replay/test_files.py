"""Recorded files, read as a stream: every shape, and the place of what is wrong."""

import gzip
import io
import json
import sys
from base64 import b64decode
from os import mkfifo
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamfold.errors import SettingsError
from streamfold.records.envelope import EXPECTED
from streamfold.replay.files import RECORDS as RECORDS_FORM
from streamfold.replay.files import BadLine, RecordedFiles, check_files, read_bytes

RECORDS = [{"eventName": "INSERT", "dynamodb": {"SequenceNumber": str(number)}} for number in range(1, 6)]


@pytest.fixture
def read(tmp_path):
    """What is read of a file with this text: record numbers by line, and bad lines."""

    def read(text, name="records.jsonl"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return found(RecordedFiles([str(path)]))

    return read


def found(files):
    entries = []
    for entry in files:
        if isinstance(entry, BadLine):
            entries.append((entry.line.number, entry.why))
        else:
            entries.append((entry[0].number, int(entry[1]["dynamodb"]["SequenceNumber"])))
    return entries


def lines(*records):
    return "\n".join(map(json.dumps, records))


def test_a_file_that_may_not_be_read_is_told_before_anything_runs(tmp_path):
    (tmp_path / "a.jsonl").touch()
    with (
        patch.object(Path, "open", side_effect=PermissionError(13, "Permission denied")),
        pytest.raises(SettingsError, match=r"a\.jsonl cannot be read \(Permission denied\)\."),
    ):
        check_files([str(tmp_path / "a.jsonl")])


def test_every_line_has_its_number(read):
    assert read(lines(*RECORDS)) == [(number, number) for number in range(1, 6)]


def test_empty_lines_count_and_hold_nothing(read):
    assert read("\n\n" + lines(RECORDS[0]) + "\n \n\t\n" + lines(RECORDS[1]) + "\n\n") == [(3, 1), (6, 2)]


@pytest.mark.parametrize("text", ["", "\n", " \n\n", "[]", '{"Records": []}'])
def test_file_without_records_holds_nothing(read, text):
    assert read(text) == []


@pytest.mark.parametrize("indent", [0, 1, 2, "\t"])
@pytest.mark.parametrize("event", [RECORDS, {"Records": RECORDS}])
def test_document_over_several_lines_is_one_event_at_its_first_line(read, event, indent):
    assert read("\n" + json.dumps(event, indent=indent)) == [(2, number) for number in range(1, 6)]


def test_single_record_over_several_lines_is_taken(read):
    assert read(json.dumps(RECORDS[0], indent=2)) == [(1, 1)]


def test_records_of_a_list_that_has_one_a_line_are_taken(read):
    assert read("[" + ",\n".join(map(json.dumps, RECORDS)) + "]") == [(1, number) for number in range(1, 6)]


def test_events_of_several_records_may_stand_one_a_line(read):
    assert read(lines({"Records": RECORDS[:2]}, RECORDS[2:4], RECORDS[4])) == [(1, 1), (1, 2), (2, 3), (2, 4), (3, 5)]


def test_bad_line_tells_its_number_what_is_wrong_and_what_was_expected(read):
    (good, (number, why)) = read(lines(RECORDS[0]) + '\n{"a": tru}\n')

    assert (good, number) == ((1, 1), 2)
    assert why.startswith("this is not JSON (Expecting value at column 7); expected a Lambda event")


def test_reading_goes_on_behind_a_bad_line(read):
    assert [number for number, _ in read(lines(RECORDS[0]) + "\nno\n" + lines(RECORDS[1]))] == [1, 2, 3]


def test_damaged_document_tells_the_line_of_the_damage(read):
    text = json.dumps(RECORDS, indent=2).splitlines()
    text[8] = text[8].replace('"', "", 1)

    ((number, why),) = read("\n".join(text))

    assert number == 9
    assert "not JSON" in why


def test_line_that_nests_too_deeply_is_bad_and_no_crash(read):
    ((number, why),) = read("[" * 100_000 + "]" * 100_000)

    assert number == 1
    assert "nested too deeply" in why or "not JSON" in why


def test_document_that_is_too_large_is_bad(read, monkeypatch):
    monkeypatch.setattr("streamfold.replay.files.LINE_BYTES_MAX", 200)

    ((number, why),) = read(json.dumps(RECORDS, indent=2))

    assert number == 1
    assert why.startswith("the document is longer than ")


def test_compressed_file_is_read_line_by_line(read):
    assert read(gzip.compress(lines(*RECORDS).encode()), "records.jsonl.gz")[4] == (5, 5)


def test_compressed_file_is_known_by_how_it_begins_whatever_its_name(read):
    assert read(gzip.compress(lines(*RECORDS).encode()), "records.jsonl")[4] == (5, 5)


def test_compressed_standard_input_is_known_by_how_it_begins(monkeypatch):
    packed = gzip.compress(lines(*RECORDS).encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed)))
    assert found(RecordedFiles(["-"])) == [(number, number) for number in range(1, 6)]


def test_compressed_standard_input_that_is_cut_off_is_bad(monkeypatch):
    packed = gzip.compress(lines(*RECORDS).encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed[:20])))
    assert "its compression is damaged or cut off" in found(RecordedFiles(["-"]))[-1][1]


def test_file_that_is_not_compressed_though_its_name_says_so_is_bad(read):
    ((number, why),) = read(lines(*RECORDS), "records.jsonl.gz")

    assert number == 1
    assert "its compression is damaged or cut off" in why


def test_standard_input_is_named_so(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 1}')))

    (bad,) = RecordedFiles(["-"])

    assert str(bad.line) == "standard input:1"


def test_reading_is_lazy_and_tells_how_far_it_is(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text("\n".join([lines(*RECORDS)] * 1000))
    files = RecordedFiles([str(path), str(path)])
    entries = iter(files)

    next(entries)

    assert files.position_bytes < files.size_bytes / 2
    assert len(list(entries)) == 9999
    assert files.position_bytes == files.size_bytes


def test_progress_in_a_compressed_file_counts_its_own_bytes(tmp_path):
    path = tmp_path / "records.jsonl.gz"
    path.write_bytes(gzip.compress(lines(*RECORDS).encode()))
    files = RecordedFiles([str(path)])

    list(files)

    assert files.position_bytes == files.size_bytes == path.stat().st_size


def test_size_of_standard_input_is_not_known():
    assert RecordedFiles(["-"]).size_bytes is None


def test_folder_is_no_file(tmp_path):
    with pytest.raises(SettingsError, match="is no file: expected a recorded file"):
        check_files([str(tmp_path)])


def test_a_pipe_is_told_to_be_given_as_standard_input(tmp_path):
    mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match=r"is a pipe: give it as standard input, COMMAND \| streamfold replay -"):
        check_files([str(tmp_path / "pipe")])


def test_file_that_vanishes_is_a_bad_line(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text(lines(*RECORDS))
    files = RecordedFiles([str(path)])
    path.unlink()

    (bad,) = files

    assert bad.why == "it cannot be read (No such file or directory)"


def test_lines_of_which_only_two_together_are_a_value_are_bad(read):
    split = '{"Records": [{"eventName": "INSERT", "dynamodb": {"SequenceNumber": "1"}}'
    rest = '{"eventName": "INSERT", "dynamodb": {"SequenceNumber": "2"}}]}'

    found = read(f"{lines(RECORDS[0])}\n{split}\n{rest}\n{lines(RECORDS[1])}")

    assert [number for number, _ in found] == [1, 2, 3, 4]
    assert [why for _, why in found if isinstance(why, int)] == [1, 2]


@settings(max_examples=200)
@given(st.lists(st.sampled_from([*map(json.dumps, RECORDS), "", "{", "}", "[]", "[", "]", "1,2", '"', "{}", "\ufeff"])))
def test_lines_that_are_parsed_together_are_read_as_each_is_alone(texts):
    def entries(content):
        return list(read_bytes("records.jsonl", content.encode(), RECORDS_FORM))

    first = json.dumps(RECORDS[0])  # so that the file is no document of several lines
    together = entries("\n".join([first, *texts]))
    with patch("streamfold.replay.files.LINES_TOGETHER_MAX", 1):
        assert entries("\n".join([first, *texts])) == together


def test_digest_is_of_the_lines_whose_records_were_given(tmp_path):
    paths = [tmp_path / name for name in ("few.jsonl", "more.jsonl")]
    for path, count in zip(paths, (3, 5), strict=True):
        path.write_text(lines(*RECORDS[:count]) + "\n", "utf-8")

    def digests(path):
        recorded = RecordedFiles([str(path)], digested=True)
        return [recorded.digest() for _ in recorded]

    few, more = map(digests, paths)
    assert more[:3] == few
    assert len(set(more)) == 5


def test_lines_before_one_that_cannot_be_read_are_given(tmp_path, monkeypatch):
    class Worn(io.BytesIO):
        def readline(self, size=-1):
            line = super().readline(size)
            if not line:
                raise OSError(5, "Input/output error")
            return line

    path = tmp_path / "records.jsonl"
    path.write_text("{}")
    monkeypatch.setattr("streamfold.replay.files._open", lambda _: Worn(lines(*RECORDS).encode()))

    *records, bad = found(RecordedFiles([str(path)]))

    assert records == [(number, number) for number in range(1, 6)]
    assert bad == (6, "it cannot be read (Input/output error)")


KEYS = {"PK": {"S": "A"}, "SK": {"S": "B"}}
OF_KINESIS = {
    "eventID": "6f",
    "eventName": "INSERT",
    "recordFormat": "application/json",
    "tableName": "shop",
    "dynamodb": {"Keys": KEYS, "NewImage": KEYS, "ApproximateCreationDateTime": 1772359200000001},
}


@pytest.mark.parametrize("between", ["", "\n", " ", "\n\n"])
def test_changes_of_kinesis_that_firehose_delivers_are_records_of_kinesis(tmp_path, between):
    path = tmp_path / "firehose"
    path.write_text(between.join(json.dumps(OF_KINESIS | {"eventID": name}) for name in ("6f", "7a")))
    records = [entry[1]["kinesis"] for entry in RecordedFiles([str(path)])]
    assert [record["sequenceNumber"] for record in records] == ["6f", "7a"]
    assert json.loads(b64decode(records[0]["data"])) == OF_KINESIS


def test_documents_over_several_lines_may_stand_one_after_another(read):
    whole = [json.dumps({"Records": [record]}, indent=2) for record in RECORDS[:2]]
    assert read("\n".join(whole)) == [(1, 1), (1, 2)]


@pytest.mark.parametrize("behind", ["{", "5", "]", '"text"', "{}x"])
def test_a_line_with_something_else_behind_its_record_is_bad(read, behind):
    ((number, why),) = read(json.dumps(RECORDS[0]) + behind)
    assert number == 1
    assert why.startswith("this is not JSON (Extra data at column ")


@pytest.mark.parametrize(
    ("value", "known"),
    [
        ({"Item": {}}, "an item of a table's export to S3, and no event: streamfold backfill --export PLACE/manifest"),
        ({"Keys": {}, "Metadata": {}, "NewImage": {}}, "an item of a table's incremental export to S3, and no event: "),
        ({"Keys": {}, "OldImage": {}}, "an item of a table's incremental export to S3, and no event: streamfold backf"),
        ({"dataFileS3Key": "a", "itemCount": 1}, "the list of files of a table's export to S3, and no event: streamfo"),
        ({"exportArn": "a", "outputFormat": "DYNAMODB_JSON"}, "the summary of a table's export to S3, and no event: "),
        ({"Items": [], "Count": 0}, "the output of a scan or query, items and no changes: streamfold backfill reads "),
        ({"parked": 1}, "a parked record, and no event: streamfold redrive FILE takes it."),
        ({"DDBStreamBatchInfo": {}, "requestContext": {}}, "what Lambda leaves of a failed batch, and no event: stre"),
        ({"KinesisBatchInfo": {}}, "what Lambda leaves of a failed batch, and no event: streamfold redrive FILE takes"),
        ({"requestContext": {}, "payload": "{}"}, "what Lambda leaves of a failed batch, and no event: streamfold re"),
        ({"requestContext": {}, "requestPayload": {}}, "the document of an asynchronous invocation: its 'requestPayl"),
        ({"Type": "Notification", "TopicArn": "a", "Message": ""}, "a notification of SNS. If its 'Message' is a fail"),
        (
            {"Records": [{"EventSource": "aws:sns", "Sns": {}}]},
            "a notification of SNS: its 'Message' is the text that w",
        ),
        ({"detail-type": "a", "detail": {}}, "an event of EventBridge: its 'detail' is the object that was sent."),
        ({"Records": [{"Data": "", "SequenceNumber": "1"}]}, "a record of Kinesis as GetRecords gives it: expected o"),
        ({"Records": [{"parked": 1}]}, "a parked record, and no event: streamfold redrive FILE takes it."),
    ],
)
def test_a_file_of_another_kind_is_told_with_what_takes_it(read, value, known):
    ((number, why),) = read(json.dumps(value))
    assert number == 1
    assert why.startswith(f"This is {known}")
    assert why.endswith(f"Expected {EXPECTED}.")


def test_an_export_in_the_format_ion_is_told(read):
    ((_, why),) = read('$ion_1_0 {Item:{PK:"A"}}\n')
    assert why.startswith("this is an export in the format ION, and no record; expected ")
