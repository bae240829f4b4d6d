"""Proofs of recorded items whose keys have times, of any year: a feed judges posts by the time of the run."""

from datetime import datetime

import pytest

from streamfold import App, Key, Router, Row, Table
from streamfold.proofs.check import Scenario, source_of
from streamfold.proofs.histories import recorded_shapes
from streamfold.proofs.recorded import Recording
from streamfold.records.envelope import Origins
from streamfold.records.values import to_json
from streamfold.settings import Settings
from streamfold.testing import check
from streamfold.testing.stream import START, Clock
from streamfold.testing.table import TableTwin
from tests.helpers.records import change, item

SOCIAL = Table("main", ttl="expires")
POST = Key("AUTHOR#{author}", "POST#{at:datetime.seconds}", SOCIAL)
WATCH = Key("READER#{reader}", "WATCH#{author}", SOCIAL)
HOME = Key("HOME#{reader}", "{at:datetime.seconds}#{author}", SOCIAL)
DAYS = ["2019-05-04", "2026-02-27", "2026-03-01", "2026-05-04", "2031-12-31"]


def feed(made=None):
    router = Router()

    @router.feed(POST, audience=WATCH, into=HOME, keep_days=30)
    def home(post, watch):
        if made is not None:
            made.append(post["text"])
        return Row(text=post["text"])

    return App("social", routers=[router])


def records(day):
    start = datetime.fromisoformat(f"{day}T08:00:00Z")
    table = TableTwin(SOCIAL, clock=Clock(start.timestamp()))
    found = []
    for number in range(4):
        found.append(table.put({**WATCH.key(reader=f"r{number}", author="a"), "since": number}))
        found.append(table.put({**POST.key(author="a", at=start.replace(minute=number)), "text": f"t{number}"}))
    return found


@pytest.fixture
def recording(tmp_path):
    def written(day):
        file = tmp_path / f"{day}.jsonl"
        file.write_text("".join(to_json(record) + "\n" for record in records(day)))
        return file

    return written


@pytest.mark.parametrize("source", ["stream", "kinesis"])
@pytest.mark.parametrize("day", DAYS)
def test_a_feed_is_proved_with_posts_of_any_year(recording, day, source):
    made = []
    assert check(feed(made), recorded=recording(day), histories=8, source=source, processes=0).histories == 8
    assert made
    assert all(text.startswith("t") for text in made)


@pytest.mark.parametrize("day", DAYS)
def test_a_recording_under_faults_has_the_rows_of_its_own_time(day):
    table = Origins({"main": SOCIAL}, Settings())
    recording = Recording(feed(), [table.change(record) for record in records(day)])
    assert recording.clean_problem() is None
    assert sum(str(key[1]).startswith("HOME#") for key in recording.expected) == 16
    assert recording.run(1).problem is None


def test_histories_of_a_recording_without_times_begin_when_others_do():
    changes = [change(None, item("AUTHOR#a", "POST#2019-05-04T08:00:00Z", text="t"), at=None)]
    assert [shape.start for shape in recorded_shapes(feed(), changes)] == [START]


def test_a_saved_history_has_its_time():
    assert "    start=1556956800.0,\n" in source_of(Scenario((), start=1_556_956_800.0), "handlers:app")
