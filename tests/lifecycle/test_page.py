"""Pages: items are reconciled with their sources beside the stream, with as few writes as their rows allow."""

from collections import Counter
from itertools import chain, count
from unittest.mock import patch

import pytest

from streamfold import App, Key, Router, Row, Sum
from streamfold.batch.manifest import change_deltas, check_manifest
from streamfold.batch.process import process_changes
from streamfold.batch.visits import Visit, Visits
from streamfold.commit.ledger_units import LedgerUnits
from streamfold.engines import MemoryEngine
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.lifecycle import page
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.verify import Verifier
from streamfold.records.change import Version
from streamfold.records.envelope import KINESIS, Seen
from streamfold.replay.replay import newest_sources
from streamfold.runtime import DeltasMark, Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import SwapText
from tests.helpers.backfill_histories import History, KinesisHistory, check
from tests.helpers.records import change, item

ITEM = Key("ITEM#{item_id}", "METADATA")
TOTAL = Key("TOTAL#{group}", "TOTAL")
OWN = Key("OWN#{item_id}", "OWN")
HISTORIES_OF_MUTANTS = 2_000


def app_of(into=TOTAL):
    router = Router()

    @router.view(ITEM, into=into)
    def total(item):
        if item["group"] == "wrong":
            raise ValueError(item["group"])
        return Row(group=item["group"], total=Sum(item["amount"])) if into is TOTAL else Row(amount=item["amount"])

    return App("shop", routers=[router])


@pytest.fixture
def app():
    return app_of()


@pytest.fixture
def engine(app):
    engine = MemoryEngine(app.tables.values())
    engine.source_tables.add("main")
    return engine


def run_of(app, engine, **more):
    return Runtime(app, engine, Settings(), pause=lambda _: None, **more)


def put(engine, *numbers, group="x", amount=2):
    changes = [change(None, item(f"ITEM#{n}", "METADATA", group=group, amount=amount), n) for n in numbers]
    engine.put_sources(newest_sources(changes))
    return changes


def keys(*numbers):
    return [("main", f"ITEM#{n}", "METADATA") for n in numbers]


def row(engine, name="TOTAL#x", sort="TOTAL"):
    return engine.read_rows([("main", name, sort)]).get(("main", name, sort))


def test_items_of_a_full_table_are_filled_and_a_second_page_changes_nothing(app, engine):
    put(engine, 1, 2, 3)
    pages = Pages(run_of(app, engine), {"total"})
    first = pages.reconcile(keys(1, 2, 3))
    again = pages.reconcile(keys(1, 2, 3))
    assert (first.items, first.written, first.failed) == (3, 3, [])
    assert (again.written, again.equal) == (0, 3)
    assert row(engine)["total"] == 6


def test_a_record_that_comes_after_its_page_counts_once(app, engine):
    changes = put(engine, 1)
    Pages(run_of(app, engine), {"total"}).reconcile(keys(1))
    process_changes(run_of(app, engine), changes)
    assert row(engine)["total"] == 2


def test_an_item_that_is_gone_is_taken_back(app, engine):
    process_changes(run_of(app, engine), put(engine, 1))
    engine.put_sources([(keys(1)[0], None, "9")])
    report = Pages(run_of(app, engine), {"total"}).reconcile(keys(1))
    assert report.written == 1
    assert row(engine) is None


def test_what_an_earlier_step_left_behind_is_finished_once(app, engine, monkeypatch):
    process_changes(run_of(app, engine), put(engine, 1))
    engine.put_sources([(keys(1)[0], None, "9")])
    monkeypatch.setattr(engine, "remove_empty", lambda _: [])
    monkeypatch.setattr(engine, "clear_pending", lambda _: None)
    Pages(run_of(app, engine), {"total"}).reconcile(keys(1))
    assert "_sf_n" in row(engine)
    monkeypatch.undo()
    reports = [Pages(run_of(app, engine), {"total"}).reconcile(keys(1)) for _ in range(2)]
    assert row(engine) is None
    assert [report.written for report in reports] == [1, 0]


def test_an_item_on_which_the_handler_raises_is_reported_and_the_others_go_on(app, engine):
    put(engine, 1, group="wrong")
    put(engine, 2)
    report = Pages(run_of(app, engine), {"total"}).reconcile(keys(1, 2))
    ((failed),) = report.failed
    assert (failed.item, failed.handler, type(failed.error)) == (keys(1)[0], "total", ValueError)
    assert row(engine)["total"] == 2


def test_a_dry_run_writes_nothing_and_tells_what_differs(app, engine):
    put(engine, 1)
    before = dict(engine.state)
    report = Pages(run_of(app, engine), {"total"}, dry_run=True).reconcile(keys(1))
    assert engine.state == before
    assert [(each.item, each.handler, each.stored) for each in report.differing] == [(keys(1)[0], "total", "")]


def test_a_new_part_has_the_version_of_its_neighbour_and_without_one_that_before_all(app, engine):
    put(engine, 1)
    Pages(run_of(app, engine), {"total"}).reconcile(keys(1))
    (stored,) = (found for key, found in engine.state.items() if key.pk.startswith("ledger"))
    assert stored["total.v"] == BEFORE_ALL


@pytest.mark.parametrize(
    ("into", "rows", "size", "units_max"),
    [(TOTAL, 2, 500, 2.05), (TOTAL, 1_000, 10_000, 2.25), (OWN, 0, 500, 4.05)],
    ids=["two rows", "a thousand rows", "own rows"],
)
def test_an_item_costs_little_more_than_its_ledger_item(into, rows, size, units_max):
    app = app_of(into)
    engine = MemoryEngine(app.tables.values())
    engine.source_tables.add("main")
    units = Counter()
    transact = engine.transact

    def counted(writes, expires_at):
        units["write"] += 2 * len(writes)
        units["requests"] += 1
        return transact(writes, expires_at)

    engine.transact = counted
    items = 10_000
    for n in range(items):
        put(engine, n, group=f"g{n % rows}" if rows else "x")
    pages = Pages(run_of(app, engine), {"total"})
    for start in range(0, items, size):
        pages.reconcile(keys(*range(start, start + size)))
        units["requests"] += 2 * (size // 100)  # ledger items and sources, a hundred a request
    assert units["write"] / items <= units_max
    assert units["requests"] / items <= (0.035 if rows else 0.045)


def test_each_page_reads_whether_additions_may_be_put_into_deltas(app, engine):
    put(engine, 1, 2, 3)
    ticks, puts, transact = count(2_000.0), [], engine.transact
    run = run_of(app, engine, clock=lambda: next(ticks))

    def counted(writes, expires_at):
        puts.extend(write for write in writes if isinstance(write, SwapText) and write.expected is None)
        return transact(writes, expires_at)

    engine.transact = counted
    check_manifest(run)
    run.pace.sharing.all = True
    pages, found = Pages(run, {"total"}), []
    for number, mark in ((1, DeltasMark(0.0)), (2, DeltasMark(0.0, closed=1_500.0)), (3, DeltasMark(0.0))):
        change_deltas(run_of(app, engine), lambda _, mark=mark: mark)
        assert pages.reconcile(keys(number)).failed == []
        found.append(len(puts))
    assert found == [1, 1, 2]
    assert row(engine)["total"] == 6


def test_deployments_with_pages_beside_the_stream_end_right():
    check(20)


@pytest.mark.slow
def test_deployments_with_additions_in_deltas_end_right():
    check(20, deltas=True)


@pytest.mark.ci
@pytest.mark.parametrize("first", range(1_000, 1_500, 250))
def test_hundreds_of_deployments_with_pages_beside_the_stream_end_right(first):
    check(250, first)


@pytest.mark.ci
def test_hundreds_of_deployments_with_additions_in_deltas_end_right():
    check(250, 5_000, deltas=True)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(10_000, 90_000, 10_000))
def test_eighty_thousand_deployments_with_pages_beside_the_stream_end_right(first):
    check(10_000, first)


def test_deployments_through_kinesis_end_right():
    check(6, kind=KinesisHistory)


@pytest.mark.ci
def test_hundreds_of_deployments_through_kinesis_end_right():
    check(500, 1_000, KinesisHistory)


@pytest.mark.nightly
@pytest.mark.parametrize("first", [10_000, 20_000])
def test_twenty_thousand_deployments_through_kinesis_end_right(first):
    check(10_000, first, KinesisHistory)


def source_first(visits, wanted):
    """Reads sources before ledger items."""
    wanted = list(wanted)
    sources = visits._sources([*dict.fromkeys(each.item for each in wanted)])
    with patch.object(Visits, "_sources", lambda *_: sources):
        return read(visits, wanted)


def absent_only(visit, step):
    """Passes parts over that are there."""
    return step.route.name not in visit.found.contributions and bool(step.after)


read = Visits.read
MUTANTS = {
    "no gate": (None, "", None, {"gate": False}),
    "no sweep": (None, "", None, {"sweep": False}),
    "absent parts only": (Visit, "differs", absent_only, {}),
    "sources before ledger items": (Visits, "read", source_first, {}),
    "rows of an earlier page are not looked at again": (LedgerUnits, "note", lambda *_: None, {}),
}
SHOWN_BY = {"sources before ledger items": 618, "no sweep": 87}
"""The first history that shows what few do. It is played first; if it does so no more, all of them are."""


@pytest.mark.ci
@pytest.mark.parametrize("name", MUTANTS)
def test_a_page_that_is_made_wrong_is_noticed(name, monkeypatch):
    whose, rule, wrong, options = MUTANTS[name]
    if whose:
        monkeypatch.setattr(whose, rule, wrong)
    seeds = chain([SHOWN_BY.get(name, 0)], range(HISTORIES_OF_MUTANTS))
    assert any(History(seed, **options).run().wrong() for seed in seeds)


@pytest.mark.ci
@pytest.mark.parametrize("bounded", [True, False], ids=["a gate without the margin", "parts at 0"])
def test_a_page_that_heeds_kinesis_too_little_is_noticed(bounded, monkeypatch):
    if not bounded:
        monkeypatch.setattr(page, "lower_bound", lambda *_: BEFORE_ALL)
    histories = (KinesisHistory(seed, late_gate=not bounded) for seed in range(100, 100 + HISTORIES_OF_MUTANTS))
    assert any(history.run().wrong() for history in histories)


def test_a_part_of_what_comes_through_kinesis_gets_the_time_before_its_reads(app, engine):
    run = run_of(app, engine)
    run.clock = lambda: 1_772_355_600.0
    changes = put(engine, 1)
    process_changes(run, [], {"main": Seen(KINESIS)})
    Pages(run, {"total"}, delivered=True).reconcile(keys(1))
    (ledger,) = (each for key, each in engine.state.items() if key.pk.startswith("ledger#"))
    expected = str(Version.of(0, "kinesis", (1_772_355_600 - 300) * 1_000_000))
    assert ledger["total.v"] == expected
    changes[0].version_text = str(Version.of(0, "kinesis", (1_772_355_600 - 301) * 1_000_000))
    report = process_changes(run, changes)
    assert (report.known, report.failures) == (1, [])


def verified(app, engine, *numbers, pause=lambda _: None):
    run = Runtime(app, engine, Settings(), pause=pause)
    verifier = Verifier(Pages(run, {"total"}, dry_run=True), 60)
    verifier.page(keys(*numbers))
    return verifier.found


def test_items_that_agree_are_equal_and_one_that_was_lost_is_different(app, engine):
    process_changes(run_of(app, engine), put(engine, 1))
    put(engine, 2)
    found = verified(app, engine, 1, 2)
    assert (found.equal, [each.item for each in found.different], found.moving) == (1, keys(2), 0)


def test_an_item_whose_record_comes_meanwhile_is_not_different(app, engine):
    changes = put(engine, 1)
    found = verified(app, engine, 1, pause=lambda _: process_changes(run_of(app, engine), changes))
    assert (found.different, found.equal, found.moving) == ([], 1, 0)


def test_an_item_that_moves_whenever_it_is_looked_at_is_moving(app, engine):
    put(engine, 1)
    amounts = iter(range(10))

    def moves(_):
        engine.put_sources(
            [(keys(1)[0], {"group": {"S": "x"}, "amount": {"N": str(next(amounts))}}, f"{next(amounts)}z")]
        )

    found = verified(app, engine, 1, pause=moves)
    assert (found.different, found.moving) == ([], 1)


def test_an_item_that_moved_to_the_same_difference_is_moving(app, engine):
    put(engine, 1)
    image, numbers = item("ITEM#1", "METADATA", group="x", amount=2), iter(range(10, 30, 2))

    def moves(_):
        number = next(numbers)
        told = [change(None, image, number), change(image, None, number + 1)]
        for each in told:
            assert process_changes(run_of(app, engine), [each]).failures == []

    found = verified(app, engine, 1, pause=moves)
    assert (found.different, found.moving) == ([], 1)
