"""Archives: removed items by date, under a name by digest, read back once each."""

import gzip
import json
from collections import Counter
from contextlib import closing
from datetime import UTC, date, datetime
from random import Random

import pytest

from streamfold import App, Key, Router, Table
from streamfold.batch.process import process_event
from streamfold.derivations.archive.archives import ArchivedItem, read_archive
from streamfold.derivations.archive.locations import Folder, open_location
from streamfold.engines import MemoryEngine
from streamfold.errors import EngineUnavailable, NotStarted, RecordError, SettingsError
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import ARN, LABEL, item, record

SESSION = Key("SESSION#{session_id}", "METADATA")
ORDER = Key("ORDER#{order_id}", "METADATA", table=Table("orders"))
FIRST_DAY = 1_772_355_600.0
A_DAY = 24 * 60 * 60


def application(*sources, to="s3://kept/archive", **options):
    router = Router()
    router.archive(*(sources or (SESSION,)), to=to, **{"name": "archive"} | options)
    return App("shop", routers=[router])


@pytest.fixture
def app():
    return application()


@pytest.fixture
def place(tmp_path):
    return Folder(str(tmp_path / "kept"))


def play(app, place, *records, **more):
    """Processes records with a place that takes the declared one's."""
    with closing(MemoryEngine(app.tables.values())) as engine:
        run = Runtime(app, engine, Settings(), outside=True, opened={"s3://kept/archive": place}, **more)
        return process_event(run, list(records))


def removal(number, sequence=None, *, day=0, expired=False, **attributes):
    removed = record(item(f"SESSION#{number}", **attributes), None, sequence or number)
    removed["dynamodb"]["ApproximateCreationDateTime"] = FIRST_DAY + day * A_DAY
    return {**removed, **({"userIdentity": EXPIRED} if expired else {})}


EXPIRED = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}


def names(place):
    return list(place.names(""))


def test_a_removed_item_is_kept_with_its_version_and_time(app, place):
    report = play(app, place, removal(1, user="ana", scan=b"\x00\xff", tags={"a"}, total=5, expired=True))
    assert (report.failures, report.tallies["archive"].written) == ([], 1)
    (name,) = names(place)
    assert name.startswith("archive/date=2026-03-01/")
    assert list(read_archive(place, "archive")) == [
        ArchivedItem(
            "main",
            item("SESSION#1", user="ana", scan=b"\x00\xff", tags={"a"}, total=5),
            f"00/{LABEL}/{1:040d}",
            datetime(2026, 3, 1, 9, tzinfo=UTC),
            expired=True,
        )
    ]


def test_only_removed_items_are_kept(app, place):
    play(app, place, record(None, item("SESSION#1"), 1), record(item("SESSION#1"), item("SESSION#1", a=1), 2))
    assert names(place) == []


def test_a_batch_makes_one_content_a_day_and_handler(app, place):
    play(app, place, removal(1), removal(2), removal(3, day=1))
    assert Counter(name.split("/")[1] for name in names(place)) == {"date=2026-03-01": 1, "date=2026-03-02": 1}
    assert [kept.item["PK"] for kept in read_archive(place, "archive")] == ["SESSION#1", "SESSION#2", "SESSION#3"]


def test_the_same_batch_writes_the_same_content_under_the_same_name(app, place):
    play(app, place, removal(1), removal(2))
    first = {name: (place.path / name).read_bytes() for name in names(place)}
    play(app, place, removal(2), removal(1))
    assert {name: (place.path / name).read_bytes() for name in names(place)} == first


def test_another_batch_of_the_same_records_writes_another_content_and_its_items_are_read_once(app, place):
    play(app, place, removal(1), removal(2))
    play(app, place, removal(2), removal(3))
    assert len(names(place)) == 2
    assert sorted(kept.item["PK"] for kept in read_archive(place, "archive")) == ["SESSION#1", "SESSION#2", "SESSION#3"]


def test_an_item_that_was_removed_twice_is_kept_twice(app, place):
    play(app, place, removal(1, 1, total=1), removal(1, 3, total=2))
    assert sorted(kept.item["total"] for kept in read_archive(place, "archive")) == [1, 2]


def test_items_of_two_tables_with_one_key_and_number_are_told_apart(place):
    app = application(Key("SESSION#{session_id}", "METADATA", table=Table("orders")), SESSION)
    other = {**removal(1), "eventSourceARN": ARN.format(table="orders", label=LABEL)}
    play(app, place, removal(1), other)
    assert sorted(kept.table for kept in read_archive(place, "archive")) == ["main", "orders"]


def test_days_are_read_from_the_first_to_the_last(app, place):
    play(app, place, *(removal(number, day=number) for number in range(1, 6)))
    found = read_archive(place, "archive", first=date(2026, 3, 3), last=date(2026, 3, 4))
    assert [kept.item["PK"] for kept in found] == ["SESSION#2", "SESSION#3"]


@pytest.mark.parametrize(
    "time",
    [
        datetime(2026, 3, 3),  # noqa: DTZ001 - a day of UTC, as a date is
        datetime(2026, 3, 3, 23, 59, tzinfo=UTC),
        datetime.fromisoformat("2026-03-04T01:00+02:00"),
    ],
)
def test_a_time_stands_for_its_whole_day(app, place, time):
    play(app, place, *(removal(number, day=number) for number in range(1, 6)))
    found = read_archive(place, "archive", first=time, last=time)
    assert [kept.item["PK"] for kept in found] == ["SESSION#2"]


def test_each_handler_has_a_folder_of_its_own(place):
    play(application(name="sessions"), place, removal(1))
    assert len(list(read_archive(place, "sessions"))) == 1
    assert list(read_archive(place, "archive")) == []


def test_what_lies_beside_the_contents_is_passed_over(app, place):
    play(app, place, removal(1))
    (place.path / "archive/date=2026-03-01/notes.txt").write_text("mine")
    (place.path / "archive/other").mkdir()
    assert len(list(read_archive(place, "archive"))) == 1


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (gzip.compress(b'{"table"')[:-4], "is damaged or cut off"),
        (gzip.compress(b'{"table": "main"}\n'), "A line of archive/date=2026-03-01/x.jsonl.gz is no archived item"),
        (b"plain", "is damaged or cut off"),
    ],
    ids=["cut off", "another document", "not compressed"],
)
def test_a_damaged_content_is_named(place, content, text):
    place.write("archive/date=2026-03-01/x.jsonl.gz", content)
    with pytest.raises(RecordError, match=text):
        list(read_archive(place, "archive"))


class Away(Folder):
    """Takes nothing."""

    def write(self, name, content):
        raise EngineUnavailable("away")


def test_records_come_again_where_the_place_does_not_take_them(app, tmp_path):
    report = play(app, Away(str(tmp_path)), removal(1), removal(2))
    assert [(failure.sequence, str(failure.error)) for failure in report.failures] == [("1", "away"), ("2", "away")]
    assert "archive" not in report.tallies


def test_nothing_is_written_when_time_is_nearly_over(app, place):
    (failure,) = play(app, place, removal(1), seconds_left=lambda: 1.0).failures
    assert isinstance(failure.error, NotStarted)
    assert names(place) == []


def test_a_record_without_the_old_image_is_reported(app, place):
    (failure,) = play(app, place, record(item("SESSION#1"), None, 1, view="NEW_IMAGE")).failures
    assert "keeps the old image, which view type NEW_IMAGE does not carry" in str(failure)


def test_a_declared_bucket_is_left_alone_where_nothing_says_otherwise(app):
    with closing(MemoryEngine(app.tables.values())) as engine:
        report = process_event(Runtime(app, engine, Settings()), [removal(1), removal(2)])
    assert (report.failures, report.counts["not_archived"]) == ([], {"archive": 2})


def test_a_setting_names_another_place(app, tmp_path):
    place = f"file:{tmp_path}"
    with closing(MemoryEngine(app.tables.values())) as engine:
        assert not process_event(Runtime(app, engine, Settings(archive=place)), [removal(1)]).failures
    assert [kept.item["PK"] for kept in read_archive(place, "archive")] == ["SESSION#1"]


def test_nothing_is_written_where_the_world_says_so(tmp_path):
    app = application(to=f"file:{tmp_path}")
    with closing(MemoryEngine(app.tables.values())) as engine:
        report = process_event(Runtime(app, engine, Settings(), outside=False), [removal(1)])
    assert (report.counts["not_archived"], list(tmp_path.iterdir())) == ({"archive": 1}, [])


def test_a_declared_folder_is_written_anywhere(tmp_path):
    app = application(to=f"file:{tmp_path}")
    with closing(MemoryEngine(app.tables.values())) as engine:
        assert not app.process([removal(1)], engine=engine)
    assert len(list(read_archive(f"file:{tmp_path}", "archive"))) == 1


@pytest.mark.slow
def test_ten_thousand_items_interrupted_twenty_times_are_all_kept_and_read_once(app, place):
    random, records = Random(20260301), [removal(number, day=number % 3) for number in range(1, 10_001)]
    position, interrupted, largest = 0, 0, 0
    while position < len(records):
        batch = records[position : position + random.randint(100, 600)]
        if interrupted < 20 and random.random() < 0.7:
            interrupted += 1
            run = {"seconds_left": iter([60.0] * random.randint(2, 4) + [0.0] * 9).__next__}
            assert play(app, place, *batch, **run).failures
            continue
        assert not play(app, place, *batch).failures
        largest = max(largest, len(batch))
        position += len(batch)
    assert interrupted == 20
    kept = [each.item["PK"] for each in read_archive(place, "archive")]
    assert (len(kept), len(set(kept)), largest <= 600) == (10_000, 10_000, True)
    lines = sum(len(gzip.decompress((place.path / name).read_bytes()).splitlines()) for name in names(place))
    assert lines > 10_000  # what an interrupted batch wrote is there twice


def test_lines_hold_the_item_as_it_was_stored(app, place):
    play(app, place, removal(1, total=5))
    (name,) = names(place)
    line = json.loads(gzip.decompress((place.path / name).read_bytes()))
    assert line["item"]["total"] == {"N": "5"}
    assert (line["key"], line["expired"], line["at"]) == ("SESSION#1|METADATA", False, int(FIRST_DAY))


def test_a_place_that_is_none_is_refused():
    with pytest.raises(SettingsError, match="expected s3://BUCKET/PREFIX, or locally file:FOLDER"):
        open_location("kept")
