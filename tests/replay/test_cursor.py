"""A replay into a state that is stopped anywhere, and goes on where it was."""

import json
from contextlib import closing
from random import Random

import pytest

from streamfold import App, Collect, Count, Item, Key, Max, Router, Row, Sum
from streamfold.engines import EmbeddedEngine
from streamfold.keys.table import STAMP
from streamfold.records.envelope import Origins
from streamfold.replay.files import RecordedFiles
from streamfold.replay.replay import Replay, ReplayCursor
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.source import Source

ORDER = Key("ORDER#{order_id}", "METADATA")
LINE = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
ALL = Key("ALL", "ORDERS")
BATCH_RECORDS = 5


class Stopped(BaseException):
    """Ends a replay as a signal does."""


def application(*more):
    router = Router()

    @router.view(LINE, into=TOTAL)
    def total(item: Item):
        yield Row(total=Sum(item["price"]), dearest=Max(item["price"]), skus=Collect(item["sku"], most=3))

    @router.view(TOTAL, into=ALL)
    def orders(order: Item):
        yield Row(orders=Count(), total=Sum(order["total"]))

    router.audit(LINE)
    router.cascade(ORDER, children=[LINE], name="lines")
    for name in more:
        router.view(LINE, into=Key("MORE", name), name=name)(lambda item: Row(n=Count()))
    return App("shop", routers=[router])


def recorded(seed, count=60):
    """Inserts, amendments and removals of orders and their lines."""
    random, source = Random(seed), Source()
    records = []
    for number in range(count):
        order = f"ORDER#{random.randrange(6)}"
        kind = random.random()
        if kind < 0.15:
            records.append(source.put(order, "METADATA", number=number))
        elif kind < 0.25 and (order, "METADATA") in source.items:
            records.append(source.remove(order, "METADATA"))
        else:
            sku = f"s{random.randrange(4)}"
            records.append(source.put(order, f"ITEM#{sku}", sku=sku, price=random.randrange(1, 99)))
    return records


@pytest.fixture
def place(tmp_path):
    """A folder with a file of records and room for states."""

    class Folder:
        file = tmp_path / "records.jsonl"

        def write(self, records, *more):
            lines = [json.dumps(record) for record in records]
            (tmp_path / "records.jsonl").write_text("\n".join([*lines, *more]) + "\n")

        def replay(self, state, app=None, stop=None, **options):
            """Replays the file; ``stop`` is called with each batch, within its transaction, and may raise."""
            app = app or application()
            with closing(EmbeddedEngine(app, tmp_path / state)) as engine:
                settings, files = Settings(), RecordedFiles([str(tmp_path / "records.jsonl")], digested=True)
                origins = Origins(app.source_tables, settings)
                run = Replay(
                    Runtime(app, engine, settings),
                    origins,
                    batch_records=BATCH_RECORDS,
                    put_sources=engine.put_sources,
                    **options,
                )
                cursor = ReplayCursor(app, settings, engine, files)
                if stop:
                    noted = cursor.note

                    def note(*arguments):
                        noted(*arguments)
                        stop()

                    cursor.note = note
                summary = run.process(files, cursor)
                return summary, cursor.behind

        def shown(self, state, app=None):
            app = app or application()
            with closing(EmbeddedEngine(app, tmp_path / state)) as engine:
                items = [list(engine.items(table)) for table in app.tables.values()]
            # The stamp of a row tells which batch it was in, and batches are cut anew behind kept records.
            return [[{name: item[name] for name in item if name != STAMP} for item in some] for some in items]

        def kept(self, state):
            with closing(EmbeddedEngine(application(), tmp_path / state)) as engine:
                return engine._file.one("SELECT count(*) FROM progress", ())[0]

    return Folder()


def after(batches):
    """Raises in the batch behind so many."""
    left = iter(range(batches))

    def stop():
        if next(left, None) is None:
            raise Stopped

    return stop


@pytest.mark.parametrize("seed", range(6))
def test_a_replay_that_is_stopped_in_any_batch_goes_on_and_ends_with_the_same_rows(place, seed):
    random, batches = Random(seed), -(-60 // BATCH_RECORDS)
    place.write(recorded(seed))
    place.replay("clean.db")
    done = 0
    while done < batches:
        more = random.randrange(batches - done + 1)
        if done + more == batches:
            break
        with pytest.raises(Stopped):
            place.replay("state.db", stop=after(more))
        done += more
    summary, behind = place.replay("state.db")
    assert min(done, 1) <= behind <= done * BATCH_RECORDS  # less, where kept records came first
    assert summary.clean
    assert place.shown("state.db") == place.shown("clean.db")


def test_a_batch_is_there_as_a_whole_or_not_at_all(place):
    place.write(recorded(1))
    place.replay("empty.db", stop=None)
    with pytest.raises(Stopped):
        place.replay("state.db", stop=after(0))
    assert place.shown("state.db") == [[] for _ in application().tables]


def test_a_replay_that_has_ended_begins_anew(place):
    place.write(recorded(1))
    for _ in range(2):
        summary, behind = place.replay("state.db")
        assert (summary.records, behind, place.kept("state.db")) == (60, 0, 0)


def test_a_file_that_was_changed_is_read_from_its_beginning(place):
    records = recorded(1)
    place.write(records)
    with pytest.raises(Stopped):
        place.replay("state.db", stop=after(3))
    place.write([*records[1:], records[0]])
    assert place.replay("state.db")[1] == 0


def test_a_file_that_has_grown_is_read_behind_the_place(place):
    records = recorded(1)
    place.write(records[:30])
    with pytest.raises(Stopped):
        place.replay("state.db", stop=after(3))
    place.write(records)
    place.replay("clean.db")
    assert place.replay("state.db")[1] == 15
    assert place.shown("state.db") == place.shown("clean.db")


def test_a_handler_that_is_new_gets_all_records(place):
    place.write(recorded(1))
    with pytest.raises(Stopped):
        place.replay("state.db", stop=after(3))
    summary, behind = place.replay("state.db", application("more"))
    assert behind == 0
    assert summary.report.records["more"] == summary.report.records["total"]


def test_a_record_that_failed_comes_again_when_the_replay_goes_on(place):
    records = recorded(1)
    broken = records[2]["dynamodb"]["NewImage"]
    del broken["price"]
    place.write(records)
    with pytest.raises(Stopped):
        place.replay("state.db", stop=after(4))
    summary, behind = place.replay("state.db")
    assert behind == 20
    assert summary.failure_count
    assert {str(failed.line) for failed in summary.failures} == {f"{place.file}:3"}


def test_children_of_items_that_were_removed_before_the_stop_are_removed_in_the_end(place):
    source = Source()
    line = source.put("ORDER#1", "ITEM#a", sku="a", price=1)
    order = [source.put("ORDER#1", "METADATA"), source.remove("ORDER#1", "METADATA")]
    others = [source.put("ORDER#2", f"ITEM#{number}", sku="b", price=1) for number in range(20)]
    place.write([line, *order, *others])
    with pytest.raises(Stopped):
        place.replay("state.db", stop=after(2))
    place.replay("state.db")
    place.replay("clean.db")
    assert place.shown("state.db") == place.shown("clean.db")
    assert not any(item["SK"] == {"S": "ITEM#a"} for item in place.shown("state.db")[0] if "price" in item)


def test_bad_lines_before_the_place_are_told_again(place):
    records = recorded(1)
    place.write(records[:10], "no record", *map(json.dumps, records[10:]))
    with pytest.raises(Stopped):
        place.replay("state.db", stop=after(5), keep_going=True)
    summary, behind = place.replay("state.db", keep_going=True)
    assert (behind, summary.bad_line_count) == (25, 1)


def test_a_bad_record_is_told_again_and_never_passed_over(place):
    records = recorded(1)
    records[10]["eventSourceARN"] = {}
    place.write(records)
    for _ in range(2):
        summary, behind = place.replay("state.db")
        assert (summary.stopped, [str(bad.line) for bad in summary.bad_lines]) == (True, [f"{place.file}:11"])
    assert behind == 10
    summary, behind = place.replay("state.db", keep_going=True)
    assert (behind, summary.bad_line_count, summary.records) == (10, 1, 49)
    assert place.kept("state.db") == 0


def test_bad_records_before_the_place_are_told_again(place):
    records = recorded(1)
    records[2]["eventSourceARN"] = records[12]["eventSourceARN"] = {}
    place.write(records)
    for batches in (2, 2):  # the second time, the bad record comes with the first of them
        with pytest.raises(Stopped):
            place.replay("state.db", stop=after(batches), keep_going=True)
    summary, behind = place.replay("state.db", keep_going=True)
    assert (behind, summary.bad_line_count) == (20, 2)


def test_with_too_many_bad_records_the_place_stays(place, monkeypatch):
    monkeypatch.setattr("streamfold.replay.replay.KEPT_RECORDS_MAX", 2)
    records = recorded(1)
    for record in records[5:10]:
        record["eventSourceARN"] = {}
    place.write(records)
    with pytest.raises(Stopped):
        place.replay("state.db", stop=after(4), keep_going=True)
    assert place.replay("state.db", keep_going=True)[1] == 5


def test_a_replay_that_stopped_at_a_bad_line_goes_on_once_the_line_may_be_skipped(place):
    records = recorded(1)
    place.write(records[:10], "no record", *map(json.dumps, records[10:]))
    assert place.replay("state.db")[0].stopped
    summary, behind = place.replay("state.db", keep_going=True)
    assert behind == 10
    assert summary.bad_line_count == 1
    assert summary.records == 50


def test_with_too_many_records_that_come_again_the_place_stays(place, monkeypatch):
    monkeypatch.setattr("streamfold.replay.replay.KEPT_RECORDS_MAX", 2)
    records = recorded(1)
    for record in records[5:10]:
        record["dynamodb"].get("NewImage", {}).pop("price", None)
    place.write(records)
    with pytest.raises(Stopped):
        place.replay("state.db", stop=after(4))
    assert place.replay("state.db")[1] == 5


def test_the_place_of_one_replay_is_not_that_of_another():
    with closing(EmbeddedEngine([])) as engine:
        progress = engine.progress
        for name in ("one", "other"):
            progress.put_cursor(name, f"place of {name}")
            progress.add_records(name, ["a", "b", "c"])
        progress.drop_first("one", 2)
        progress.add_records("one", ["d"])
        assert progress.records("one") == ["c", "d"]
        progress.end("one")
        assert (progress.cursor("one"), progress.records("one")) == (None, [])
        assert (progress.cursor("other"), progress.records("other")) == ("place of other", ["a", "b", "c"])
