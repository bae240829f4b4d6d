"""A file may be small and unpack to anything: it is read in pieces, and takes no more memory than that."""

import gzip
import json
import subprocess
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from streamfold.replay import files
from streamfold.replay.files import BadLine, RecordedFiles, elements, parses_at_once
from tests.helpers.commands import environment

GROWTH_MB_MAX = 100
READS = """
import resource, sys
from streamfold.replay.files import RecordedFiles
from streamfold.replay.files import BadLine
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
bad = [entry.why for entry in RecordedFiles([sys.argv[1]]) if isinstance(entry, BadLine)]
print(peak() - before, bad[:1])
"""
MEGABYTE = 1024 * 1024
BOMBS = {
    "a line": [b'{"a":"', b"a" * 60 * MEGABYTE, b'"}'],
    "a document of short lines": [b"[\n", b"0,\n" * (20 * MEGABYTE)],
    "a document of opening lines": [b"[\n" * (30 * MEGABYTE)],
    "a record of many values": [b'[{"dynamodb":[', b"{}," * (5 * MEGABYTE), b"{}]}]"],
    "wide letters": [b'{"a":"', "😀".encode() * (3 * MEGABYTE), b'"}'],
    "a text that does not end": [b'[{"a":"', b'\\\\"' * (7 * MEGABYTE)],
    "brackets": [b"[" * (15 * MEGABYTE)],
}


SLOW = ("a document of short lines", "a document of opening lines", "a record of many values", "brackets")


@pytest.mark.slow
@pytest.mark.parametrize("bomb", [pytest.param(bomb, marks=[pytest.mark.ci] if bomb in SLOW else []) for bomb in BOMBS])
def test_a_small_compressed_file_takes_no_more_than_100_megabytes(tmp_path, bomb):
    path = tmp_path / "bomb.jsonl.gz"
    with gzip.open(path, "wb", 6) as packed:
        packed.writelines(BOMBS[bomb])

    ran = subprocess.run(
        [sys.executable, "-c", READS, str(path)], env=environment(), capture_output=True, text=True, check=True
    )

    growth, _, bad = ran.stdout.partition(" ")
    assert path.stat().st_size < 100_000
    assert float(growth) < GROWTH_MB_MAX
    assert bad.startswith("['")


def test_a_line_that_is_too_long_is_refused_and_reading_goes_on_behind_it(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LINE_BYTES_MAX", 300)
    record = {"dynamodb": {"SequenceNumber": "1"}}
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(record)}\n{'x' * 100_000}\n{json.dumps(record)}\n")

    first, (line, why), last = RecordedFiles([str(path)])

    assert (first[0].number, line.number, last[0].number) == (1, 2, 3)
    assert why.startswith("the line is longer than 300 bytes")


def test_a_line_of_the_greatest_length_is_taken(tmp_path, monkeypatch):
    record = json.dumps({"dynamodb": {"SequenceNumber": "1"}})
    monkeypatch.setattr(files, "LINE_BYTES_MAX", len(record))
    path = tmp_path / "a.jsonl"
    path.write_text(f"{record}\n{record}\n{record} \n")

    assert [isinstance(entry, BadLine) for entry in RecordedFiles([str(path)])] == [False, False, True]


VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
RECORDS = st.dictionaries(st.text(max_size=8), VALUES, max_size=3)


@given(
    members=st.lists(VALUES, max_size=5),
    wrapped=st.booleans(),
    indent=st.none() | st.integers(0, 2),
    as_ascii=st.booleans(),
)
def test_members_that_are_read_one_at_a_time_are_those_of_the_list(members, wrapped, indent, as_ascii):
    value = {"Records": members} if wrapped else members
    text = json.dumps(value, indent=indent, ensure_ascii=as_ascii).encode()

    assert [json.loads(element) for element in elements(text)] == members


@given(members=st.lists(RECORDS, min_size=2, max_size=5), between=st.sampled_from(["", " ", "\n"]))
def test_objects_one_after_another_are_read_one_at_a_time(members, between):
    assume("Records" not in members[0])
    text = between.join(map(json.dumps, members)).encode()

    assert [json.loads(element) for element in elements(text)] == members


def test_a_line_of_firehose_with_many_records_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "VALUES_MAX", 40)
    records = [{"dynamodb": {"SequenceNumber": str(number), "Keys": {}}} for number in range(100)]
    path = tmp_path / "a.json"
    path.write_text("".join(map(json.dumps, records)))

    assert [record for _, record in RecordedFiles([str(path)])] == records


@pytest.mark.parametrize(
    "text", [b"{}", b"5 {}", b"{}{", b"{}5", b"[1", b"[1]]", b'{"Records":[1],"More":1}', b'["a]', b"[1] 2"]
)
def test_what_is_no_list_of_records_is_not_split(text):
    with pytest.raises(ValueError, match="list of records"):
        list(elements(text))


def test_a_line_of_many_records_is_taken_one_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "VALUES_MAX", 40)
    records = [{"dynamodb": {"SequenceNumber": str(number), "Keys": {}}} for number in range(100)]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"Records": records}) + "\n" + json.dumps(records, indent=1).replace("\n", " "))

    found = [(line.number, record) for line, record in RecordedFiles([str(path)])]

    assert not parses_at_once(json.dumps(records).encode())
    assert found == [(number, record) for number in (1, 2) for record in records]
