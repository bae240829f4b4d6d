"""The segments of a run: worked on by any process, in any order, in pieces, and again."""

import json
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest

from streamfold import App, Count, Key, Router, Row
from streamfold.batch.manifest import PARTIAL, read_manifest
from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.engines.deadline import Deadline
from streamfold.errors import NotStarted, SettingsError
from streamfold.jobs.job import Jobs, run_here
from streamfold.lifecycle.backfill import definition, end_job, job_options, job_segments, location_in_s3, new_job, work
from streamfold.lifecycle.exports import open_export
from streamfold.lifecycle.sources import source_tables
from streamfold.records.values import encode
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.exports import write_export
from tests.helpers.records import change, item

ITEM = Key("ITEM#{item_id}", "METADATA")
COUNT = Key("COUNT#{group}", "COUNT")
NOW = 1_772_355_600.0
ITEMS = 60


def application(*, filled=True):
    router = Router()

    @router.index(ITEM, into=Key("OWN#{item_id}", "OWN"))
    def own(item):
        return Row(group=item["group"])

    if filled:

        @router.view(ITEM, into=COUNT)
        def count(item):
            return Row(group=item["group"], items=Count())

    return App("shop", routers=[router])


@pytest.fixture
def app():
    return application()


@pytest.fixture
def engine(app):
    """A full table, and a handler that was deployed long ago."""
    engine = MemoryEngine(app.tables.values())
    engine.source_tables.add("main")
    changes = [change(None, item(f"ITEM#{n}", "METADATA", group="x"), n) for n in range(ITEMS)]
    engine.put_sources(newest_sources(changes))
    process_changes(run_of(application(filled=False), engine), changes[:1])
    process_changes(run_of(app, engine), [])
    return engine


def run_of(app, engine, **more):
    return Runtime(app, engine, Settings(), clock=lambda: NOW, pause=lambda _: None, **more)


def begun(app, engine, segments=3, page=5, **more):
    given = {"by": "test", "options": job_options(page, None), **more}
    return new_job(
        Jobs(app.name, engine, lambda: NOW), "backfill", ["count"], source_tables(app.routes), segments, **given
    )


def parts(app, engine, job, **more):
    return job_segments(run_of(app, engine), job, **more)


def finished(app, engine, job):
    """Does all parts of a job, and ends it."""
    run_here(parts(app, engine, job))
    return end_job(run_of(app, engine), job.id)


def counted(engine):
    return engine.read_rows([("main", "COUNT#x", "COUNT")]).get(("main", "COUNT#x", "COUNT"), {}).get("items", 0)


@pytest.mark.parametrize("filled_before", [False, True], ids=["partial before", "whole before"])
def test_a_handler_that_older_code_left_out_during_the_run_stays_partial(app, engine, filled_before):
    if filled_before:
        finished(app, engine, begun(app, engine))
        assert PARTIAL not in read_manifest("shop", engine).handlers["count"]
    job = begun(app, engine)
    older = Runtime(
        application(filled=False), engine, Settings(older_code=True), clock=lambda: NOW, pause=lambda _: None
    )
    process_changes(older, [])

    finished(app, engine, job)

    assert PARTIAL in read_manifest("shop", engine).handlers["count"]
    finished(app, engine, begun(app, engine))
    assert PARTIAL not in read_manifest("shop", engine).handlers["count"]


def test_a_part_is_not_done_for_a_handler_that_is_switched_off(app, engine):
    job, off = begun(app, engine), Runtime(app, engine, Settings(handlers_off=("count",)), clock=lambda: NOW)
    with pytest.raises(SettingsError, match=rf"Handler 'count' of job {job.id} is switched off here"):
        job_segments(off, job)


class Pages(Deadline):
    """Time for so many pages."""

    def __init__(self, pages):
        left = iter([1.0] * pages)
        super().__init__(seconds_left=lambda: next(left, 0.0))


def test_a_part_goes_on_at_its_cursor_until_it_is_done(app, engine):
    job, calls = begun(app, engine, segments=1), 1
    while not parts(app, engine, job).run_segment(0, Pages(1)).done:
        calls += 1
    assert (calls >= ITEMS // 5, counted(engine)) == (True, ITEMS)


def test_parts_are_done_in_any_order_in_pieces_and_twice(app, engine):
    job, random = begun(app, engine), Random(5)
    for number in [*range(job.segments), *range(job.segments)] * 2:
        parts(app, engine, job).run_segment(
            random.choice([number, random.randrange(job.segments)]), Pages(random.randint(0, 3))
        )
    run_here(parts(app, engine, job))
    assert counted(engine) == ITEMS
    assert parts(app, engine, job).pending() == []


def test_the_end_of_a_job_fills_its_handlers_and_not_before(app, engine):
    job = begun(app, engine)
    some = parts(app, engine, job)
    some.run_segment(0)
    assert PARTIAL in read_manifest("shop", engine).handlers["count"]
    run_here(some)
    ended = end_job(run_of(app, engine), job.id)
    assert (ended.done, ended.counts["read"] >= ITEMS) == (True, True)
    assert PARTIAL not in read_manifest("shop", engine).handlers["count"]


def test_a_job_that_ended_undone_fills_nothing(app, engine):
    job = begun(app, engine)
    assert not end_job(run_of(app, engine), job.id).done
    assert PARTIAL in read_manifest("shop", engine).handlers["count"]


def test_the_end_of_a_job_that_others_change_is_not_waited_for_beyond_the_deadline(app, engine):
    job = begun(app, engine)
    with patch.object(MemoryEngine, "swap_state", lambda *_: False), pytest.raises(NotStarted):
        end_job(run_of(app, engine, seconds_left=lambda: 0.0), job.id)


def test_processes_share_the_rates_of_a_job(app, engine):
    job = begun(app, engine, read_units=100, write_units=40)
    assert parts(app, engine, job, sharing=4).pace.rates == (25, 10)


class Context:
    """Lambda's context, with time for so many looks at the clock."""

    def __init__(self, looks):
        self.left = iter([60_000] * looks)

    def get_remaining_time_in_millis(self):
        return next(self.left, 0)


def called(app, engine, event, looks=10**6):
    context = Context(looks)
    return work(run_of(app, engine, seconds_left=lambda: context.get_remaining_time_in_millis() / 1000), event)


def test_a_function_is_called_for_a_part_until_it_is_done(app, engine):
    job, calls = begun(app, engine, segments=1, page=5), 0
    for number in range(job.segments):
        answer = {"done": False}
        while not answer["done"]:
            answer = called(app, engine, {"job": job.id, "part": number, "sharing": 2}, looks=25)
            calls += 1
    assert (counted(engine), calls > 3) == (ITEMS, True)
    for _ in range(2):  # the answer may be lost
        assert called(app, engine, {"job": job.id, "end": True})["counts"]["written"] == ITEMS
    assert PARTIAL not in read_manifest("shop", engine).handlers["count"]


def test_every_line_of_a_manifest_is_done_by_the_function_that_it_is_given_to(app, engine, tmp_path):
    images = [encode(item(f"ITEM#{n}", "METADATA", group="x"))["M"] for n in range(ITEMS)]
    place = write_export(tmp_path, images, files=4)
    table = app.tables["main"]
    given = {"by": "test", "options": job_options(5, place)}
    jobs = Jobs(app.name, engine, lambda: NOW)
    job = new_job(jobs, "backfill", ["count"], [table], 2, open_export(place, table), **given)
    lines = [json.loads(line) for line in Path(place).read_text().splitlines()]
    for number, line in enumerate(lines):  # what the Distributed Map hands to its children
        assert called(app, engine, {"job": job.id, "sharing": 16, "part": number, "file": line})["done"]
    for number in range(len(lines), job.segments):
        assert called(app, engine, {"job": job.id, "sharing": 16, "part": number})["done"]
    ended = called(app, engine, {"job": job.id, "end": True})
    assert (ended["counts"]["written"], counted(engine)) == (ITEMS, ITEMS)
    with pytest.raises(SettingsError, match="has ended"):
        called(app, engine, {"job": job.id, "part": 0})


def test_a_function_without_time_for_a_page_fails(app, engine):
    job = begun(app, engine)
    with pytest.raises(NotStarted, match="got no page done"):
        called(app, engine, {"job": job.id, "part": 0}, looks=3)


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({}, "The event is no part of a run"),
        ({"job": "x", "part": "y"}, "The event is no part of a run"),
        ({"job": "x", "part": float("inf")}, "The event is no part of a run"),
        ({"job": "x", "part": 0, "sharing": 0}, "The event is no part of a run"),
        ({"job": "x", "part": 0, "sharing": "four"}, "The event is no part of a run"),
        ({"job": "nobody", "part": 1}, "Job nobody is not known"),
        ({"part": 99}, "has parts 0 to 5"),
        ({"part": 1, "file": {"dataFileS3Key": "a/data/b.json.gz"}}, "expected the same file"),
        ({"end": True}, "6 parts of job .* are not done"),
    ],
)
def test_an_event_that_is_no_part_is_refused(app, engine, event, text):
    job = begun(app, engine)
    with pytest.raises(SettingsError, match=text):
        called(app, engine, {"job": job.id, **event} if event else event)


def test_a_job_of_other_code_or_another_kind_is_refused(app, engine):
    job = begun(app, engine)
    with pytest.raises(SettingsError, match="'count'"):
        parts(application(filled=False), engine, job)
    other = Jobs(app.name, engine).create("search rebuild", (), "main", 1, by="test")
    with pytest.raises(SettingsError, match="expected one of backfill or rebuild"):
        called(app, engine, {"job": other.id, "part": 0})


def test_a_manifest_in_a_folder_is_not_for_functions():
    assert location_in_s3("s3://b/x/manifest-files.json") == {"bucket": "b", "key": "x/manifest-files.json"}
    with pytest.raises(SettingsError, match="expected s3://BUCKET"):
        location_in_s3("export/manifest-files.json")


def machines(machine, path="machine"):
    yield path, machine
    for name, state in machine["States"].items():
        if state["Type"] == "Map":
            yield from machines(state["ItemProcessor"], name)


def test_the_state_machine_leads_from_its_start_to_an_end():
    for path, machine in machines(json.loads(definition())):
        states = machine["States"]
        assert machine["StartAt"] in states, path
        found, todo = set(), [machine["StartAt"]]
        while todo:
            name = todo.pop()
            found.add(name)
            nexts = [states[name].get("Next"), states[name].get("Default")]
            nexts += [choice["Next"] for choice in states[name].get("Choices", ())]
            assert all(each in states for each in nexts if each), name
            assert any(nexts) or states[name].get("End"), name
            todo += [each for each in nexts if each and each not in found]
        assert found == set(states), path


def test_every_state_of_the_machine_has_a_name_of_its_own():
    names = [name for _, machine in machines(json.loads(definition())) for name in machine["States"]]
    assert len(names) == len(set(names))


def test_every_task_of_the_machine_is_tried_again_and_calls_the_one_function():
    tasks = [state for _, machine in machines(json.loads(definition())) for state in machine["States"].values()]
    tasks = [state for state in tasks if state["Type"] == "Task"]
    assert len(tasks) == 3
    for task in tasks:
        assert task["Parameters"]["FunctionName"] == "${WorkerFunctionArn}"
        assert task["Retry"][0]["ErrorEquals"] == ["States.ALL"]
