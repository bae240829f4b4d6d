"""Runs over all items: segments, cursors, kills, pauses, and the items that only the state knows."""

import tracemalloc
from collections import Counter
from random import Random

import pytest

from streamfold import App, Count, Key, Router, Row, Sum
from streamfold.batch.manifest import PARTIAL, Manifest, note_backfill, note_filled, read_manifest
from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.engines.protocol import ScanPage
from streamfold.errors import EngineUnavailable, SettingsError, TableThrottled
from streamfold.jobs.job import Jobs
from streamfold.jobs.rates import StreamLag
from streamfold.lifecycle.backfill import BackfillRun, RunHooks, TableSize, estimate, new_job
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.sources import check_deployment_delay, check_named, source_tables, wanted_routes
from streamfold.records.envelope import KINESIS, Seen
from streamfold.records.values import encode, item_bytes
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.testing.mapping import Died
from tests.helpers.records import change, item

ITEM = Key("ITEM#{item_id}", "METADATA")
TOTAL = Key("TOTAL#{group}", "TOTAL")
COUNT = Key("COUNT#{group}", "COUNT")
OWN = Key("OWN#{item_id}", "OWN")
NOW = 1_772_355_600.0


def application(*, both=True):
    router = Router()

    @router.view(ITEM, into=TOTAL)
    def total(item):
        return Row(group=item["group"], total=Sum(item["amount"]))

    if both:

        @router.view(ITEM, into=COUNT)
        def count(item):
            return Row(group=item["group"], items=Count())

        @router.index(ITEM, into=OWN)
        def own(item):
            return Row(group=item["group"])

    router.audit(ITEM, name="history")
    return App("shop", routers=[router])


@pytest.fixture
def app():
    return application()


@pytest.fixture
def engine(app):
    engine = MemoryEngine(app.tables.values())
    engine.source_tables.add("main")
    return engine


def items(engine, number, group="x"):
    changes = [change(None, item(f"ITEM#{n}", "METADATA", group=group, amount=1), n) for n in range(1, number + 1)]
    engine.put_sources(newest_sources(changes))
    return changes


def run_of(app, engine, clock=lambda: NOW, **more):
    return Runtime(app, engine, Settings(), clock=clock, pause=more.pop("pause", lambda _: None), **more)


def filling(app, engine, names=("count",), segments=3, page_items=5, job=None, **more):
    run = more.pop("run", None) or run_of(app, engine)
    jobs, tables = Jobs(app.name, engine, lambda: NOW), source_tables(wanted_routes(app, names))
    job = job or new_job(jobs, "backfill", names, tables, segments, by="test")
    return BackfillRun(jobs, job, Pages(run, names), tables, page_items=page_items, **more)


def row(engine, *key):
    return engine.read_rows([("main", *key)]).get(("main", *key))


def test_a_run_leads_all_items_to_their_rows_and_ends_its_job(app, engine):
    items(engine, 40)
    progress = filling(app, engine).run()
    (job,) = Jobs(app.name, engine).all()
    assert row(engine, "COUNT#x", "COUNT")["items"] == 40
    assert (progress.report.written, job.done, job.counts["written"]) == (40, True, 40)


def test_a_run_that_was_killed_goes_on_and_does_at_most_a_page_again(app, engine):
    items(engine, 100)
    random, transact, done = Random(3), engine.transact, []

    def dies(writes, expires_at):
        answer = transact(writes, expires_at)
        done.append(len(writes))
        if random.random() < 0.4:
            raise Died
        return answer

    engine.transact = dies
    first = filling(app, engine)
    job, kills = first.job, 0
    while not Jobs(app.name, engine).read(job.id).ended:
        try:
            filling(app, engine, job=job).run()
        except Died:
            kills += 1
    assert kills > 5
    assert row(engine, "COUNT#x", "COUNT")["items"] == 100


def test_two_runs_of_one_job_do_no_harm(app, engine):
    items(engine, 60)
    first = filling(app, engine)
    second = filling(app, engine, job=first.job)
    reconcile, inside = first.pages.reconcile, []

    def overlapped(keys):
        if not inside:
            inside.append(True)
            second.run()
        return reconcile(keys)

    first.pages = type("Overlapped", (), {"__getattr__": lambda _, name: getattr(second.pages, name)})()
    first.pages.reconcile = overlapped
    first.run()
    assert row(engine, "COUNT#x", "COUNT")["items"] == 60


def test_an_item_that_only_the_state_knows_is_taken_back(app, engine):
    changes = items(engine, 3)
    process_changes(run_of(app, engine), changes)
    engine.put_sources([(("main", "ITEM#2", "METADATA"), None, "9")])
    filling(app, engine).run()
    assert row(engine, "COUNT#x", "COUNT")["items"] == 2


def test_a_page_is_tried_again_where_the_store_does_not_answer(app, engine):
    items(engine, 10)
    reads, left = engine.read_sources, [EngineUnavailable("away"), TableThrottled()]

    def away(keys):
        if left:
            raise left.pop()
        return reads(keys)

    engine.read_sources = away
    filling(app, engine, segments=1).run()
    assert row(engine, "COUNT#x", "COUNT")["items"] == 10


def test_items_without_an_answer_are_done_again_and_are_no_failures(app, engine):
    items(engine, 10)
    transact, left = engine.transact, [EngineUnavailable("away"), TableThrottled()]

    def away(writes, expires_at):
        if left:
            raise left.pop()
        return transact(writes, expires_at)

    engine.transact = away
    progress = filling(app, engine, segments=1).run()
    assert (row(engine, "COUNT#x", "COUNT")["items"], progress.report.failed, progress.report.written) == (10, [], 10)


def test_items_that_never_get_an_answer_are_told(app, engine):
    items(engine, 10)

    def away(writes, expires_at):
        raise EngineUnavailable("away")

    engine.transact = away
    progress = filling(app, engine, segments=1).run()
    assert {each.item[1] for each in progress.report.failed} == {f"ITEM#{n}" for n in range(1, 11)}


def test_a_paused_job_waits_and_one_that_was_ended_stops(app, engine):
    items(engine, 30)
    times, waits = iter(range(10**6)), []
    jobs = Jobs(app.name, engine)
    run = run_of(
        app, engine, clock=lambda: NOW + 10 * next(times), pause=lambda seconds: waits.append(seconds) or resume()
    )
    begun = filling(app, engine, run=run)
    jobs.change(begun.job.id, paused=True)

    def resume():
        jobs.change(begun.job.id, paused=False)

    begun.run()
    assert waits
    assert row(engine, "COUNT#x", "COUNT")["items"] == 30

    stopped = filling(app, engine, run=run)
    jobs.end(stopped.job.id)
    with pytest.raises(SettingsError, match="was ended by somebody else"):
        stopped.run()


def test_a_run_writes_no_page_after_another_has_ended_its_job(app, engine):
    items(engine, 30)
    times, jobs = iter(range(10**6)), Jobs(app.name, engine)
    begun = filling(app, engine, run=run_of(app, engine, clock=lambda: NOW + 10 * next(times)))
    other, read = filling(app, engine, job=begun.job), begun.jobs.segment

    def overtaken(job, number):
        found, begun.jobs.segment = read(job, number), read
        other.run()
        return found

    begun.jobs.segment = overtaken
    assert begun.run_segment(0).done
    assert begun.progress.read == 0
    assert jobs.read(begun.job.id).done


def test_a_run_is_held_to_the_rate_of_its_job(app, engine):
    items(engine, 20)
    now, waits = [NOW], []

    def pause(seconds):
        waits.append(seconds)
        now[0] += seconds

    run = run_of(app, engine, clock=lambda: now[0], pause=pause)
    jobs, tables = Jobs(app.name, engine, lambda: NOW), source_tables(wanted_routes(app, ["count"]))
    job = new_job(jobs, "backfill", ["count"], tables, 1, by="test", write_units=10)
    BackfillRun(jobs, job, Pages(run, ["count"]), tables, page_items=5, metered=lambda: (0, 20)).run()
    assert sum(waits) >= 5 * 2 - 1


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["missing"], "missing"),
        (["history"], "is of kind audit: its rows follow from the changes"),
    ],
)
def test_what_cannot_be_filled_is_refused_with_the_reason(app, names, text):
    with pytest.raises(SettingsError, match=text):
        wanted_routes(app, names)


def test_a_retired_handler_is_not_filled():
    router = Router()
    router.routes = application().routes[:1]
    app = App("shop", routers=[router], retired=["old"])
    with pytest.raises(SettingsError, match="is retired"):
        wanted_routes(app, ["old"])


def test_a_handler_is_filled_after_the_gate_and_is_partial_no_more(engine):
    old, new = application(both=False), application()
    process_changes(run_of(old, engine), items(engine, 1))
    routes = wanted_routes(new, ["count"])

    def gate(now, *, offline=False):
        check_deployment_delay(read_manifest("shop", engine), routes, Settings(), now, offline=offline)

    process_changes(run_of(new, engine), [])
    with pytest.raises(SettingsError, match="Begin in 901 seconds"):
        gate(NOW)
    gate(NOW, offline=True)
    gate(NOW + 901)
    assert PARTIAL in read_manifest("shop", engine).handlers["count"]
    note_backfill("shop", engine, range(1), ["count"], "job")
    note_filled(run_of(new, engine), ["count"], "job")
    assert PARTIAL not in read_manifest("shop", engine).handlers["count"]


def test_a_handler_that_no_function_has_named_is_refused_where_a_stream_delivers(app):
    routes = wanted_routes(app, ["count"])
    with pytest.raises(SettingsError, match="not named by any function yet"):
        check_named(Manifest(), routes, offline=False)
    check_named(Manifest(), routes, offline=True)


def test_the_gate_is_longer_where_changes_come_through_kinesis(app, engine):
    process_changes(run_of(app, engine), [], {"main": Seen(KINESIS)})
    found, routes = read_manifest("shop", engine), wanted_routes(app, ["count"])
    with pytest.raises(SettingsError, match="Begin in 300 seconds"):
        check_deployment_delay(found, routes, Settings(), NOW + 901, offline=False)
    check_deployment_delay(found, routes, Settings(), NOW + 1_200, offline=False)


def test_a_run_waits_while_the_function_is_behind_and_says_so(app, engine):
    items(engine, 30)
    ages, waits, told = iter([100.0, 90.0, 5.0, 61.0, None]), [], []
    run = run_of(app, engine, clock=lambda: NOW + 10 * len(waits), pause=waits.append)
    lag = StreamLag("projector", 60, lambda: next(ages, 0.0), run.clock)
    begun = filling(app, engine, run=run, hooks=RunHooks(show=lambda progress: told.append(progress.waits), lag=lag))
    begun.run()
    assert told[0] == "function projector is 100 seconds behind its stream, --max-lag 60"
    assert "function projector is 90 seconds" in told[3]
    assert (len(waits), told[-1]) == (6, "")  # an age is read again after 30 seconds
    assert row(engine, "COUNT#x", "COUNT")["items"] == 30


def test_no_wait_is_longer_than_a_day(app, engine):
    items(engine, 3)
    waits = []
    run = run_of(app, engine, clock=lambda: NOW + 3600 * len(waits), pause=waits.append)
    begun = filling(app, engine, run=run, hooks=RunHooks(lag=lambda: "the stream is behind"))
    with pytest.raises(EngineUnavailable, match="waited for 24 hours, and the reason remains: the stream is behind"):
        begun.run()
    assert (len(waits), begun.progress.read) == (24, 0)


@pytest.mark.parametrize(
    ("handler", "rows", "page", "size"),
    [
        ("count", 2, 500, 3_000),
        ("own", 1, 500, 3_000),
        pytest.param("count", 2, 500, 10_000, marks=pytest.mark.ci),
        pytest.param("count", 1_000, 500, 10_000, marks=pytest.mark.ci),
        pytest.param("count", 1_000, 10_000, 10_000, marks=pytest.mark.ci),
        pytest.param("own", 1, 500, 10_000, marks=pytest.mark.ci),
    ],
)
def test_an_estimate_is_within_a_tenth_of_the_units_that_are_counted(app, engine, handler, rows, page, size):
    images = [item(f"ITEM#{n}", "METADATA", group=f"g{n % rows}", amount=1) for n in range(size)]
    engine.put_sources(newest_sources(change(None, image, n) for n, image in enumerate(images)))
    stored = sum(item_bytes(encode(image)["M"]) for image in images[:100]) * size // 100
    dry = Pages(run_of(app, engine), [handler], dry_run=True)
    expected = estimate(dry, source_tables(app.routes), [TableSize(size, stored)], Random(1), page)
    units = counted(engine)
    filling(app, engine, [handler], page_items=page, segments=1).run()
    units["read"] += stored // 4_096 + size * 300 // 4_096  # by the scans of the table and the state
    told = f"{handler}, {rows} rows, page {page}: write {expected.write_units} of {units['write']}"
    print(f"{told}, read {expected.read_units} of {units['read']}")
    assert expected.write_units == pytest.approx(units["write"], rel=0.1)
    assert expected.read_units == pytest.approx(units["read"], rel=0.1)


def counted(engine):
    """Units of transactions and strong reads from now on: no item here has a KB."""
    units, reads, transact = Counter(), (engine.read_state, engine.read_sources), engine.transact

    def counting(read):
        def counts(keys, **how):
            known = list(keys)
            units["read"] += len(known)
            return read(known, **how)

        return counts

    def counts_writes(writes, expires_at):
        units["write"] += len(writes) * (2 if len(writes) > 1 else 1)
        return transact(writes, expires_at)

    engine.read_state, engine.read_sources = map(counting, reads)
    engine.transact = counts_writes
    return units


class Endless(MemoryEngine):
    """A table of so many items, made when they are read; what is written is counted and forgotten."""

    number = 0

    def scan(self, table, part, after, limit):
        if table.name != "main":
            return ScanPage([], None)
        first = int(after or 0)
        last = min(first + limit, self.number)
        keys = [("main", f"ITEM#{n}", "METADATA") for n in range(first, last)]
        return ScanPage(keys, str(last) if last < self.number else None)

    def read_sources(self, items):
        return {
            key: {"PK": {"S": key[1]}, "SK": {"S": key[2]}, "group": {"S": f"g{hash(key) % 7}"}, "amount": {"N": "1"}}
            for key in items
        }

    def transact(self, writes, expires_at):
        return None


@pytest.mark.nightly
def test_a_million_items_take_little_memory(app):
    engine = Endless(app.tables.values())
    engine.number = 1_000_000
    begun = filling(app, engine, segments=1, page_items=500)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    progress = begun.run()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert progress.report.written == 1_000_000
    assert (peak - before) / 1e6 < 60
