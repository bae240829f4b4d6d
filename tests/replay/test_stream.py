"""The reader of DynamoDB streams and the recording of what it yields, against a stream in memory."""
# ruff: noqa: N803 - the arguments of AWS's API have capitals

import json
from base64 import b64encode
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from types import SimpleNamespace

import pytest
from botocore.exceptions import ClientError

from streamfold.replay import stream
from streamfold.replay.stream import EMPTY_PAGES_MAX, FINISHED, StreamError, StreamReader, lambda_record, record_stream

ARN = "arn:aws:dynamodb:us-east-1:111122223333:table/shop/stream/2026-03-01T10:00:00.000"
SHARDS_PER_PAGE = 2


@dataclass
class FakeShard:
    """Records of a shard by number; ``trimmed`` of them are gone, ``gaps`` empty pages come before the first one."""

    numbers: list[int]
    parent: str | None = None
    is_open: bool = False
    trimmed: int = 0
    gaps: int = 0


@dataclass
class FakeStreams:
    """As much of the DynamoDB Streams API as a reader needs, one record a page unless said otherwise."""

    shards: dict[str, FakeShard]
    records_per_page: int = 1
    status: str = "ENABLED"
    gone: set[str] = field(default_factory=set)
    expiring: list[str] = field(default_factory=list)
    expired: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    before_get_records: object = None
    serial: object = field(default_factory=count)

    def describe_stream(self, StreamArn, ExclusiveStartShardId=None):
        self.calls.append("describe_stream")
        names = list(self.shards)
        start = names.index(ExclusiveStartShardId) + 1 if ExclusiveStartShardId else 0
        listed = names[start : start + SHARDS_PER_PAGE]
        answer = {"StreamStatus": self.status, "Shards": [self._described(name) for name in listed]}
        if start + SHARDS_PER_PAGE < len(names):
            answer["LastEvaluatedShardId"] = listed[-1]
        return {"StreamDescription": answer}

    def _described(self, name):
        shard = self.shards[name]
        parent = {} if shard.parent is None else {"ParentShardId": shard.parent}
        end = {} if shard.is_open else {"EndingSequenceNumber": "999"}
        return {"ShardId": name, **parent, "SequenceNumberRange": {"StartingSequenceNumber": "1", **end}}

    def get_shard_iterator(self, StreamArn, ShardId, ShardIteratorType, SequenceNumber=None):
        shard = self._existing(ShardId)
        if ShardIteratorType == "TRIM_HORIZON":
            return {"ShardIterator": self._iterator(ShardId, shard.trimmed, shard.gaps)}
        position = shard.numbers.index(int(SequenceNumber)) + 1
        if position < shard.trimmed:
            raise refusal("TrimmedDataAccessException")
        return {"ShardIterator": self._iterator(ShardId, position, 0)}

    def _iterator(self, *parts):
        return "|".join(map(str, (*parts, next(self.serial))))

    def get_records(self, ShardIterator):
        if self.before_get_records:
            self.before_get_records()
        name, position, gaps, _ = ShardIterator.split("|")
        self.calls.append(name)
        if name in self.expiring:
            self.expiring.remove(name)
            self.expired.add(ShardIterator)
        if ShardIterator in self.expired:
            raise refusal("ExpiredIteratorException")
        shard, start, empty = self._existing(name), int(position), int(gaps)
        end = start if empty else min(start + self.records_per_page, len(shard.numbers))
        records = [api_record(number) for number in shard.numbers[start:end]]
        if end == len(shard.numbers) and not shard.is_open and not empty:
            return {"Records": records}
        return {"Records": records, "NextShardIterator": self._iterator(name, end, max(empty - 1, 0))}

    def _existing(self, name):
        if name in self.gone:
            raise refusal("ResourceNotFoundException")
        return self.shards[name]


def refusal(code):
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "GetRecords")


def api_record(number):
    return {
        "eventID": f"event-{number}",
        "eventName": "INSERT",
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "awsRegion": "us-east-1",
        "dynamodb": {
            "ApproximateCreationDateTime": datetime(2026, 3, 1, 10, 0, tzinfo=UTC),
            "Keys": {"PK": {"S": f"ORDER#{number}"}},
            "SequenceNumber": str(number),
            "SizeBytes": 20,
            "StreamViewType": "KEYS_ONLY",
        },
    }


def reader_of(streams, latest_stream_arn=ARN):
    table = {} if latest_stream_arn is None else {"LatestStreamArn": latest_stream_arn}
    dynamodb = SimpleNamespace(describe_table=lambda TableName: {"Table": table})
    return StreamReader(dynamodb, streams, "shop", pause_seconds=0)


def family():
    """A parent that was split, one child of which was split again; the listing names the youngest first."""
    return {
        "grandchild": FakeShard([31, 32], parent="left", is_open=True),
        "left": FakeShard([21, 22], parent="parent"),
        "right": FakeShard([23], parent="parent", is_open=True),
        "parent": FakeShard([11, 12, 13], parent="trimmed-long-ago"),
    }


def numbers(pages):
    return [int(record["dynamodb"]["SequenceNumber"]) for page in pages for record in page.records]


def recorded(path):
    return [int(json.loads(line)["dynamodb"]["SequenceNumber"]) for line in path.read_text().splitlines()]


# --- the form of a record ---------------------------------------------------------------------------------------------


def test_record_takes_the_form_in_which_lambda_delivers_it():
    record = api_record(7)
    record["userIdentity"] = {"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}

    shaped = lambda_record(record, ARN)

    assert shaped["dynamodb"]["ApproximateCreationDateTime"] == 1772359200.0
    assert isinstance(shaped["dynamodb"]["ApproximateCreationDateTime"], float)
    assert shaped["userIdentity"] == {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
    assert shaped["eventSourceARN"] == ARN
    assert {name: shaped[name] for name in ("eventID", "eventName", "awsRegion")} == {
        "eventID": "event-7",
        "eventName": "INSERT",
        "awsRegion": "us-east-1",
    }
    assert json.loads(json.dumps(shaped)) == shaped


def test_record_without_identity_gets_none():
    assert "userIdentity" not in lambda_record(api_record(7), ARN)


def test_binary_values_become_base64_text_at_any_depth():
    raw, text = b"\x00\xff", b64encode(b"\x00\xff").decode()
    record = api_record(7)
    record["dynamodb"]["Keys"] = {"PK": {"B": raw}}
    record["dynamodb"]["NewImage"] = {"deep": {"M": {"list": {"L": [{"BS": [raw, b"a"]}, {"B": b""}]}}}}

    shaped = lambda_record(record, ARN)["dynamodb"]

    assert shaped["Keys"] == {"PK": {"B": text}}
    assert shaped["NewImage"] == {"deep": {"M": {"list": {"L": [{"BS": [text, "YQ=="]}, {"B": ""}]}}}}


def test_other_values_stay_as_they_are():
    image = {
        "S": {"S": ""},
        "N": {"N": "-0.5"},
        "BOOL": {"BOOL": False},
        "NULL": {"NULL": True},
        "SS": {"SS": ["a"]},
        "NS": {"NS": ["1", "2"]},
        "L": {"L": []},
        "M": {"M": {}},
    }
    record = api_record(7)
    record["dynamodb"]["OldImage"] = image
    assert lambda_record(record, ARN)["dynamodb"]["OldImage"] == image


def test_empty_map_of_dynamodb_local_is_written_as_a_map():
    record = api_record(7)
    record["dynamodb"]["NewImage"] = {"external_ids": {}, "nested": {"M": {"empty": {}}}}
    assert lambda_record(record, ARN)["dynamodb"]["NewImage"] == {
        "external_ids": {"M": {}},
        "nested": {"M": {"empty": {"M": {}}}},
    }


def test_making_the_lambda_form_leaves_the_record_alone():
    record = api_record(7)
    lambda_record(record, ARN)
    assert record == api_record(7)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_parents_are_read_before_their_children():
    read = numbers(reader_of(FakeStreams(family())).pages())
    assert sorted(read) == [11, 12, 13, 21, 22, 23, 31, 32]
    assert read[:3] == [11, 12, 13]
    assert read.index(22) < read.index(31)


def test_shards_of_all_description_pages_are_read():
    shards = {f"shard-{number}": FakeShard([number]) for number in range(7)}
    assert numbers(reader_of(FakeStreams(shards)).pages()) == list(range(7))


def test_busy_shard_keeps_no_other_waiting():
    shards = {"busy": FakeShard(list(range(100, 150)), is_open=True), "quiet": FakeShard([1], is_open=True)}
    assert numbers(reader_of(FakeStreams(shards)).pages())[:2] == [100, 1]


def test_closed_shard_is_read_on_through_any_number_of_empty_pages():
    streams = FakeStreams({"sparse": FakeShard([1], gaps=3 * EMPTY_PAGES_MAX)})
    assert numbers(reader_of(streams).pages()) == [1]


def test_open_shard_counts_as_drained_after_the_limit_of_empty_pages():
    streams = FakeStreams({"open": FakeShard([1], is_open=True)})
    assert numbers(reader_of(streams).pages()) == [1]
    assert streams.calls.count("open") == 1 + EMPTY_PAGES_MAX


def test_children_that_appear_while_reading_are_read():
    shards = {"parent": FakeShard([1, 2], is_open=True)}
    streams = FakeStreams(shards)

    def split():
        if len(streams.calls) > 3:
            shards["parent"].is_open = False
            shards["child"] = FakeShard([3], parent="parent", is_open=True)

    streams.before_get_records = split
    assert numbers(reader_of(streams).pages()) == [1, 2, 3]


def test_children_do_not_wait_for_a_busy_shard_to_be_drained():
    shards = {"busy": FakeShard(list(range(100, 150)), is_open=True), "parent": FakeShard([1])}
    streams = FakeStreams(shards)
    streams.before_get_records = lambda: shards.setdefault("child", FakeShard([2], parent="parent"))
    assert numbers(reader_of(streams).pages()).index(2) < 10


@pytest.mark.parametrize("pages_kept", range(9))
def test_reading_resumes_exactly_behind_any_page(pages_kept):
    whole = list(reader_of(FakeStreams(family())).pages())
    kept = whole[:pages_kept]
    saved = json.dumps(kept[-1].cursor if kept else None)
    cursor = json.loads(saved)

    rest = list(reader_of(FakeStreams(family())).pages(cursor))

    assert json.dumps(cursor) == saved
    assert sorted(numbers(kept) + numbers(rest)) == [11, 12, 13, 21, 22, 23, 31, 32]


def test_last_cursor_names_finished_shards_and_last_numbers():
    *_, last = reader_of(FakeStreams(family())).pages()
    assert last.cursor == {
        "stream_arn": ARN,
        "shards": {"parent": FINISHED, "left": FINISHED, "right": "23", "grandchild": "32"},
    }


def test_cursor_forgets_finished_shards_that_are_no_longer_listed():
    reader = reader_of(FakeStreams({"child": FakeShard([3], parent="parent")}))
    *_, last = reader.pages({"stream_arn": ARN, "shards": {"parent": FINISHED}})
    assert last.cursor["shards"] == {"child": FINISHED}
    assert reader.trimmed_shards == []


def test_expired_iterator_is_replaced_by_one_behind_the_last_record():
    streams = FakeStreams({"shard": FakeShard([1, 2, 3])})
    pages = reader_of(streams).pages()
    first = next(pages)
    streams.expiring = ["shard"]
    assert numbers([first, *pages]) == [1, 2, 3]


def test_iterator_that_expires_however_new_it_is_is_an_error():
    streams = FakeStreams({"shard": FakeShard([1])}, expiring=["shard"] * 3)
    with pytest.raises(ClientError, match="ExpiredIteratorException"):
        list(reader_of(streams).pages())


def test_other_errors_of_the_service_are_passed_on():
    streams = FakeStreams({"shard": FakeShard([1])})

    def refuse():
        raise refusal("AccessDeniedException")

    streams.before_get_records = refuse
    with pytest.raises(ClientError, match="AccessDeniedException"):
        list(reader_of(streams).pages())


def test_what_is_left_of_a_trimmed_shard_is_read_and_the_gap_reported(caplog):
    reader = reader_of(FakeStreams({"shard": FakeShard([1, 2, 3, 4], trimmed=3)}))
    pages = reader.pages({"stream_arn": ARN, "shards": {"shard": "1"}})
    assert numbers(pages) == [4]
    assert reader.trimmed_shards == ["shard"]
    assert "Shard shard lost records before they were read" in caplog.text


def test_shard_that_is_gone_is_finished_and_its_child_read():
    shards = {"gone": FakeShard([1]), "child": FakeShard([2], parent="gone")}
    reader = reader_of(FakeStreams(shards, gone={"gone"}))
    *_, last = pages = list(reader.pages())
    assert [numbers([page]) for page in pages] == [[], [2]]
    assert last.cursor["shards"] == {"gone": FINISHED, "child": FINISHED}
    assert reader.trimmed_shards == ["gone"]


def test_unfinished_shard_that_is_no_longer_listed_is_reported():
    reader = reader_of(FakeStreams({"child": FakeShard([3], parent="parent")}))
    assert numbers(reader.pages({"stream_arn": ARN, "shards": {"parent": "1"}})) == [3]
    assert reader.trimmed_shards == ["parent"]


def test_following_goes_on_until_it_is_stopped():
    shard = FakeShard([1], is_open=True)
    reader = reader_of(FakeStreams({"shard": shard}))
    read = []
    for page in reader.pages(follow=True):
        read += numbers([page])
        if len(read) == 5:
            reader.stop()
        shard.numbers.append(len(read) + 1)
    assert read == [1, 2, 3, 4, 5]


def test_stopped_reading_ends_after_the_page_in_hand():
    reader = reader_of(FakeStreams({"one": FakeShard([1, 2], is_open=True), "other": FakeShard([3], is_open=True)}))
    pages = reader.pages(follow=True)
    assert numbers([next(pages)]) == [1]
    reader.stop()
    assert list(pages) == []


def test_following_waits_for_the_child_of_the_last_shard():
    shards = {"parent": FakeShard([1])}
    streams = FakeStreams(shards)
    reader = reader_of(streams)
    describe = streams.describe_stream

    def describe_later(**arguments):
        if len(streams.calls) > 10:
            shards["child"] = FakeShard([2], parent="parent", is_open=True)
        return describe(**arguments)

    streams.describe_stream = describe_later
    pages = reader.pages(follow=True)
    assert numbers([next(pages), next(pages)]) == [1, 2]
    reader.stop()


def test_following_asks_a_drained_shard_once_a_round():
    streams = FakeStreams({"shard": FakeShard([1], is_open=True)})
    reader = reader_of(streams)
    rounds = []

    def count_rounds():
        rounds.append(None)
        if len(rounds) == EMPTY_PAGES_MAX + 5:
            reader.stop()

    streams.before_get_records = count_rounds
    assert numbers(reader.pages(follow=True)) == [1]
    # One listing at the start; from the first drained round on, one listing for each page asked for.
    assert streams.calls.count("describe_stream") == 1 + 5


def test_following_ends_with_a_stream_that_was_switched_off():
    streams = FakeStreams({"shard": FakeShard([1, 2])}, status="DISABLED")
    assert numbers(reader_of(streams).pages(follow=True)) == [1, 2]


def test_cursor_of_another_stream_is_refused_at_once():
    reader = reader_of(FakeStreams(family()))
    with pytest.raises(StreamError, match=r"belongs to stream arn:old, .* is now arn:aws.*switched off and on"):
        reader.pages({"stream_arn": "arn:old", "shards": {}})


def test_table_without_a_stream_is_refused_with_the_command_that_makes_one():
    with pytest.raises(StreamError, match=r"Table 'shop' has no stream.*aws dynamodb update-table --table-name shop"):
        reader_of(FakeStreams({}), latest_stream_arn=None).pages()


def table_refused_with(code):
    def describe_table(TableName):
        raise refusal(code)

    meta = SimpleNamespace(region_name="us-east-1", endpoint_url="http://localhost:8000")
    return StreamReader(SimpleNamespace(describe_table=describe_table, meta=meta), FakeStreams({}), "shop")


def test_missing_table_is_refused_with_the_place_where_it_was_looked_for():
    with pytest.raises(StreamError, match="'shop' does not exist in region us-east-1 at http://localhost:8000"):
        table_refused_with("ResourceNotFoundException").pages()


def test_refused_description_of_the_table_is_passed_on():
    with pytest.raises(ClientError, match="AccessDeniedException"):
        table_refused_with("AccessDeniedException").pages()


# --- recording --------------------------------------------------------------------------------------------------------


def test_recording_writes_a_line_for_each_record_and_counts_them(tmp_path):
    out = tmp_path / "shop.jsonl"
    seen = []

    counts = record_stream(reader_of(FakeStreams(family())), out, on_page=seen.extend)

    assert sorted(recorded(out)) == [11, 12, 13, 21, 22, 23, 31, 32]
    assert (counts.records, counts.pages, counts.events, counts.trimmed_shards) == (8, 8, {"INSERT": 8}, ())
    assert [json.dumps(record, separators=(",", ":")) for record in seen] == out.read_text().splitlines()


def test_recording_again_adds_only_what_is_new(tmp_path):
    out = tmp_path / "shop.jsonl"
    shards = {"shard": FakeShard([1, 2], is_open=True)}
    assert record_stream(reader_of(FakeStreams(shards)), out).records == 2
    assert record_stream(reader_of(FakeStreams(shards)), out).records == 0
    shards["shard"].numbers.append(3)
    assert record_stream(reader_of(FakeStreams(shards)), out).records == 1
    assert recorded(out) == [1, 2, 3]


class Killed(BaseException):
    """Stands for the end of the process."""


def kill_at(monkeypatch, function, call):
    """Ends the process before the given call of a function of the module."""
    real, calls = getattr(stream, function), iter(range(100))

    def killing(*arguments):
        if next(calls) == call:
            raise Killed
        return real(*arguments)

    monkeypatch.setattr(stream, function, killing)


@pytest.mark.parametrize("call", range(9))
@pytest.mark.parametrize("function", ["_append", "_replace"])
def test_kill_at_any_moment_neither_repeats_nor_loses_a_line(tmp_path, monkeypatch, function, call):
    out = tmp_path / "shop.jsonl"
    with monkeypatch.context() as patch:
        kill_at(patch, function, call)
        try:
            record_stream(reader_of(FakeStreams(family())), out)
        except Killed:
            pass
        else:
            assert (function, call) == ("_append", 8)

    record_stream(reader_of(FakeStreams(family())), out)

    assert sorted(recorded(out)) == [11, 12, 13, 21, 22, 23, 31, 32]


def test_half_a_line_left_by_a_kill_is_cut_off(tmp_path):
    out = tmp_path / "shop.jsonl"
    record_stream(reader_of(FakeStreams({"shard": FakeShard([1], is_open=True)})), out)
    with out.open("a") as file:
        file.write('{"eventID":"eve')
    record_stream(reader_of(FakeStreams({"shard": FakeShard([1, 2], is_open=True)})), out)
    assert recorded(out) == [1, 2]


def test_interrupted_recording_keeps_what_it_wrote(tmp_path):
    out = tmp_path / "shop.jsonl"

    def interrupt(records):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_stream(reader_of(FakeStreams({"shard": FakeShard([1, 2])})), out, on_page=interrupt)
    assert recorded(out) == [1]
    record_stream(reader_of(FakeStreams({"shard": FakeShard([1, 2])})), out)
    assert recorded(out) == [1, 2]


def test_file_without_its_cursor_is_left_alone(tmp_path):
    out = tmp_path / "notes.txt"
    out.write_text("not a recording")
    with pytest.raises(StreamError, match=r"notes.txt holds 15 bytes, but notes.txt.cursor is missing"):
        record_stream(reader_of(FakeStreams(family())), out)
    assert out.read_text() == "not a recording"


def test_shortened_file_is_refused(tmp_path):
    out = tmp_path / "shop.jsonl"
    record_stream(reader_of(FakeStreams(family())), out)
    out.write_text("")
    with pytest.raises(StreamError, match=r"shop.jsonl holds 0 bytes, but shop.jsonl.cursor covers \d+"):
        record_stream(reader_of(FakeStreams(family())), out)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"length_bytes": "x", "cursor": null}'])
def test_unreadable_cursor_is_refused(tmp_path, text):
    out = tmp_path / "shop.jsonl"
    out.with_name("shop.jsonl.cursor").write_text(text)
    with pytest.raises(StreamError, match=r"shop.jsonl.cursor is no recording's cursor"):
        record_stream(reader_of(FakeStreams(family())), out)


def test_refused_stream_leaves_file_and_cursor_as_they_were(tmp_path):
    out = tmp_path / "shop.jsonl"
    record_stream(reader_of(FakeStreams(family())), out)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StreamError, match="belongs to stream"):
        record_stream(reader_of(FakeStreams(family()), latest_stream_arn="arn:new"), out)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_refused_table_leaves_no_files(tmp_path):
    with pytest.raises(StreamError, match="has no stream"):
        record_stream(reader_of(FakeStreams({}), latest_stream_arn=None), tmp_path / "shop.jsonl")
    assert list(tmp_path.iterdir()) == []
