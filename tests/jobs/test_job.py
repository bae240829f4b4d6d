"""Jobs: made, listed, changed while they run, moved on by runs that die or overlap, and kept for a while."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import Table
from streamfold.engines import EmbeddedEngine, MemoryEngine
from streamfold.engines.deadline import Deadline
from streamfold.engines.protocol import Segment
from streamfold.errors import Contended, EngineError, EngineUnavailable, SettingsError
from streamfold.jobs.job import KEPT_DAYS, SEGMENTS_MAX, Job, Jobs, JobSegment
from streamfold.proofs.faults import Drawn, FaultyEngine
from streamfold.settings.limits import SECONDS_A_DAY
from streamfold.testing.mapping import Died
from streamfold.writes.guarded import PutRow, StateKey

SHOP = Table("shop", sort=None)
NOW = 1_772_366_400  # 2026-03-01T12:00:00Z
QUICK = Deadline(pause=lambda _: None)


@pytest.fixture(params=[MemoryEngine, EmbeddedEngine])
def engine(request):
    engine = request.param([SHOP])
    yield engine
    engine.close()


@pytest.fixture
def jobs(engine):
    return jobs_of(engine)


def jobs_of(engine, now=NOW):
    return Jobs("shop", engine, clock=lambda: now, deadline=QUICK)


def made(jobs, **given):
    return jobs.create("backfill", ("daily", "monthly"), "shop", 4, **{"by": "ann", **given})


def test_job_is_read_as_it_was_made(jobs):
    job = made(jobs, read_units=2000, options={"export": "s3://b/x"})
    assert job == jobs.read(job.id)
    assert (job.what, job.handlers, job.table, job.segments) == ("backfill", ("daily", "monthly"), "shop", 4)
    assert (job.read_units, job.write_units, job.by, job.started) == (2000, 0, "ann", NOW)
    assert (job.paused, job.ended, job.done, job.options, job.revision) == (False, 0, False, {"export": "s3://b/x"}, 1)
    assert job.id.startswith("20260301-120000-")


def test_jobs_are_listed_newest_first_and_by_application(jobs, engine):
    assert jobs.all() == []
    first, second = made(jobs), made(jobs_of(engine, NOW + 1))
    Jobs("other", engine, clock=lambda: NOW).create("verify", (), "shop", 1, by="bob")
    jobs.advance(first, JobSegment(0), "x", {})
    assert jobs.all() == [second, first]


@pytest.mark.parametrize("segments", [0, -1, SEGMENTS_MAX + 1])
def test_segments_that_cannot_be_are_refused(jobs, segments):
    with pytest.raises(SettingsError, match=f"A job has {segments} segments: expected 1 to 1000000"):
        jobs.create("backfill", (), "shop", segments, by="ann")


def test_rates_below_0_are_refused(jobs):
    with pytest.raises(SettingsError, match="A rate is below 0"):
        made(jobs, write_units=-1)
    with pytest.raises(SettingsError, match="A rate is below 0"):
        jobs.change(made(jobs).id, read_units=-1)
    assert len(jobs.all()) == 1


def test_unknown_job_is_told(jobs):
    assert jobs.read("20260301-120000-0000") is None
    with pytest.raises(SettingsError, match="Job x is not known: streamfold jobs lists the known ones"):
        jobs.change("x", paused=True)


def test_rates_and_pause_are_changed(jobs):
    job = made(jobs, read_units=100)
    jobs.change(job.id, write_units=50)
    changed = jobs.change(job.id, paused=True)
    assert changed == jobs.read(job.id)
    assert (changed.read_units, changed.write_units, changed.paused, changed.revision) == (100, 50, True, 3)


class Busy:
    """A store in which others change a job before the first writes of it."""

    def __init__(self, engine, job, times):
        self.engine = engine
        self.job = job
        self.times = times

    def swap_state(self, *arguments):
        if self.times:
            self.times -= 1
            jobs_of(self.engine).change(self.job.id, read_units=self.times + 1)
        return self.engine.swap_state(*arguments)

    def __getattr__(self, name):
        return getattr(self.engine, name)


def test_change_beside_another_keeps_both(jobs, engine):
    job = made(jobs)
    changed = jobs_of(Busy(engine, job, 3)).change(job.id, paused=True)
    assert (changed.paused, changed.read_units) == (True, 1)


def test_change_is_tried_a_few_times(jobs, engine):
    job = made(jobs)
    with pytest.raises(Contended, match=f"Job {job.id} was changed by others at every try"):
        jobs_of(Busy(engine, job, 99)).change(job.id, paused=True)


def test_segment_moves_on_and_counts(jobs):
    job = made(jobs)
    begin = jobs.segment(job, 2)
    assert begin == JobSegment(2)
    first = jobs.advance(job, begin, '["a","b"]', {"read": 500, "written": 7})
    second = jobs.advance(job, first, None, {"read": 20, "failed": 1})
    assert first == JobSegment(2, '["a","b"]', {"read": 500, "written": 7}, done=False, revision=1)
    assert second == JobSegment(2, None, {"read": 520, "written": 7, "failed": 1}, done=True, revision=2)
    assert jobs.segment(job, 2) == second
    assert jobs.segments(job) == {2: second}
    assert [segment.number for segment in jobs.pending(job)] == [0, 1, 3]


def test_run_that_was_overtaken_goes_on_where_the_other_is(jobs):
    job = made(jobs)
    behind = jobs.segment(job, 0)
    ahead = jobs.advance(job, jobs.advance(job, behind, "a", {"read": 1}), "b", {"read": 1})
    assert jobs.advance(job, behind, "a", {"read": 1}) == ahead == jobs.segment(job, 0)


def test_ended_job_tells_what_was_done(jobs, engine):
    job = made(jobs)
    for number in range(4):
        jobs.advance(job, JobSegment(number), None, {"read": number})
    ended = jobs_of(engine, NOW + 60).end(job.id)
    assert (ended.ended, ended.done, ended.counts) == (NOW + 60, True, {"read": 6})
    assert jobs.end(job.id) == ended == jobs.read(job.id)
    with pytest.raises(SettingsError, match="has ended: nothing of it can be changed"):
        jobs.change(job.id, paused=True)


def test_job_may_end_before_it_is_done(jobs):
    job = made(jobs)
    jobs.advance(job, JobSegment(0), None, {"read": 5})
    ended = jobs.end(job.id)
    assert (ended.done, ended.counts) == (False, {"read": 5})


def test_job_expires_after_its_end_and_a_segment_after_its_last_page(jobs, engine):
    job = made(jobs)
    jobs.advance(job, JobSegment(0), None, {})
    keys = StateKey("job#shop", job.id), StateKey(f"job#shop#{job.id}", "seg#000000")
    expiry = NOW + KEPT_DAYS * SECONDS_A_DAY
    assert ["ttl" in item for item in engine.read_state(keys).values()] == [False, True]
    jobs.end(job.id)
    assert [item["ttl"] for item in engine.read_state(keys).values()] == [expiry, expiry]


def test_attributes_of_newer_code_are_left_out_and_damage_is_told(jobs, engine):
    job, key = made(jobs), StateKey("job#shop", "damaged")
    stored = engine.read_state([StateKey("job#shop", job.id)])[StateKey("job#shop", job.id)]["s"]
    engine.swap_state(key, {"s": json.dumps({**json.loads(stored), "new": 1})}, 0)
    assert jobs.read("damaged") == job
    for revision, text in enumerate(("{", "[]", "{}"), 1):
        engine.swap_state(key, {"s": text}, revision)
        with pytest.raises(EngineError, match="Job damaged cannot be read: the state is damaged"):
            jobs.read("damaged")


def run(jobs, engine, job, seen):
    """Does what is left of a job: notes each key, then moves the segment on."""
    for left in jobs.pending(job):
        segment = left
        while not segment.done:
            page = engine.scan(SHOP, Segment(segment.number, job.segments), segment.after, 3)
            seen.update(key[1] for key in page.keys)
            segment = jobs.advance(job, segment, page.after, {"read": len(page.keys)})


@given(st.integers(0, 2**32))
def test_killed_and_overlapping_runs_leave_no_key_out(seed):
    engine, seen, drawn = MemoryEngine([SHOP]), set(), random.Random(seed)
    engine.insert_rows([PutRow(("shop", str(number), None), {}) for number in range(30)])
    job = made(jobs_of(engine))

    def meanwhile():
        if drawn.random() < 0.05:
            other = next(jobs_of(engine).pending(job), None)
            if other is not None:
                page = engine.scan(SHOP, Segment(other.number, 4), other.after, 5)
                seen.update(key[1] for key in page.keys)
                jobs_of(engine).advance(job, other, page.after, {"read": len(page.keys)})

    faulty = FaultyEngine(engine, Drawn(drawn, 0.15, None), meanwhile, lambda: None, lambda _: None)
    for _ in range(200):
        try:
            run(jobs_of(faulty), faulty, job, seen)
            break
        except (Died, EngineUnavailable):
            continue
    faulty.land_all()
    ended = jobs_of(engine).end(job.id)
    assert seen == {str(number) for number in range(30)}
    assert (ended.done, ended.counts["read"]) == (True, 30)


def test_answer_that_was_lost_makes_no_second_job(engine):
    class Twice:
        def swap_state(self, *arguments):
            engine.swap_state(*arguments)
            return engine.swap_state(*arguments)

        def __getattr__(self, name):
            return getattr(engine, name)

    job = made(jobs_of(Twice()))
    assert jobs_of(engine).all() == [job]
    assert jobs_of(Twice()).change(job.id, paused=True).revision == 2


def test_a_job_is_a_plain_value():
    assert Job(id="1", what="a", handlers=["x"], table="t", segments=1, started=0, by="").handlers == ("x",)
