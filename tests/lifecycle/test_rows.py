"""Rows against what their sources add up to: planted faults are found, and nothing that moves is called different."""

from itertools import chain, count, cycle

import pytest

from streamfold import App, Count, Delete, Key, Max, Put, Router, Row, Sum, Top
from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.keys.table import CONTRIBUTORS, STATE
from streamfold.ledger.schema import Schema
from streamfold.lifecycle.explain import Explaining
from streamfold.lifecycle.exports import open_export
from streamfold.lifecycle.other_rows import verify_exports
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.row_repair import RowCorrection, reconcile_rows
from streamfold.lifecycle.row_sources import explain_row
from streamfold.lifecycle.rows import RowsVerifier
from streamfold.lifecycle.sources import PAGE_ITEMS
from streamfold.records.values import encode
from streamfold.replay.replay import newest_sources
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.exports import write_export
from tests.helpers.records import change, item

ITEM = Key("ITEM#{item_id}", "METADATA")
TOTAL = Key("TOTAL#{group}", "TOTAL")
OWN = Key("OWN#{item_id}", "OWN")
ALL = Key("ALL", "ALL")
ITEM_1 = ("main", "ITEM#1", "METADATA")
TOTAL_0 = ("main", "TOTAL#g0", "TOTAL")


@pytest.fixture
def app():
    router = Router()

    @router.view(ITEM, into=TOTAL)
    def total(item, item_id):
        return Row(group=item["group"], total=Sum(item["amount"]), best=Top(2, item_id, by=item["amount"]))

    @router.index(ITEM, into=OWN)
    def own(item):
        return Row(amount=item["amount"])

    @router.view(TOTAL, into=ALL)
    def groups(row):
        return Row(groups=Count())

    return App("shop", routers=[router])


@pytest.fixture
def engine(app):
    engine = MemoryEngine(app.tables.values(), app.chains)
    changes = [change(None, item(f"ITEM#{n}", "METADATA", group=f"g{n % 3}", amount=n), n) for n in range(1, 31)]
    engine.put_sources(newest_sources(changes))
    process_changes(run_of(app, engine), changes)
    for each in engine.pending(100):
        app.process({"Records": [each.record]}, engine=engine)
    return engine


def run_of(app, engine):
    return Runtime(app, engine, Settings(), pause=lambda _: None)


def verified(app, engine, *, live=False):
    return RowsVerifier(run_of(app, engine), app.routes, live=live).verify()


def test_rows_that_agree_are_not_different(app, engine):
    found = verified(app, engine)
    assert (found.rows, found.different, found.failed) == (34, [], [])


def test_rows_that_were_changed_removed_or_put_by_hand_are_found(app, engine):
    engine.rows["main", "TOTAL#g1", "TOTAL"] |= {"total": {"N": "1"}}
    del engine.rows["main", "OWN#4", "OWN"]
    engine.rows["main", "OWN#99", "OWN"] = encode(item("OWN#99", "OWN", amount=1, **{CONTRIBUTORS: 1}))["M"]
    found = verified(app, engine)
    assert [(each.what, each.row[1]) for each in found.different] == [
        ("missing", "OWN#4"),
        ("extra", "OWN#99"),
        ("different", "TOTAL#g1"),
    ]


@pytest.mark.parametrize("live", [True, False])
def test_a_row_that_lost_a_record_is_different(app, engine, live):
    engine.put_sources(
        [(("main", "ITEM#3", "METADATA"), encode(item("ITEM#3", "METADATA", group="g0", amount=99))["M"], "9")]
    )
    found = verified(app, engine, live=live)
    assert {each.row[1] for each in found.different} == {"TOTAL#g0", "OWN#3"}
    Pages(run_of(app, engine), {"total", "own"}).reconcile([("main", "ITEM#3", "METADATA")])
    assert verified(app, engine, live=live).different == []


def test_rows_that_move_while_they_are_compared_are_not_different(app, engine):
    read, numbers, inside = engine.read_rows, iter(range(100, 10_000)), []

    def moves(keys):
        if inside:  # a batch reads rows too
            return read(keys)
        number = next(numbers)
        changed = change(None, item(f"ITEM#{number}", "METADATA", group="g1", amount=1), number)
        engine.put_sources(newest_sources([changed]))
        answer = read(keys)
        inside.append(True)
        process_changes(run_of(app, engine), [changed])
        inside.clear()
        return answer

    engine.read_rows = moves
    found = verified(app, engine, live=True)
    assert found.different == []


def test_a_row_that_comes_and_goes_while_it_is_compared_is_not_different(app, engine):
    row, read = ("main", "OWN#99", "OWN"), engine.read_rows
    engine.rows[row] = encode(item("OWN#99", "OWN", amount=1, **{CONTRIBUTORS: 1}))["M"]
    shows = chain([True], cycle([True, False]))  # at first; then before each fold, and behind it

    def comes_and_goes(keys):
        found = read(wanted := list(keys))
        if row in wanted and not next(shows):
            del found[row]
        return found

    engine.read_rows = comes_and_goes
    found = verified(app, engine, live=True)
    assert (found.different, found.moving) == ([], 1)


def test_a_row_that_was_another_during_the_fold_alone_is_not_different():
    router = Router()
    router.view(ITEM, into=TOTAL, name="count")(lambda item: Row(group=item["group"], items=Count()))
    app = App("shop", routers=[router])
    engine, number = MemoryEngine(app.tables.values(), app.chains), count(1)
    images = [item(f"ITEM#{n}", "METADATA", group="g0", amount=n) for n in range(3)]
    others = [item(f"OTHER#{n}", "METADATA") for n in range(PAGE_ITEMS)]  # so that there is another page behind
    puts = [change(None, image, next(number)) for image in (*images, *others)]
    engine.put_sources(newest_sources(puts))
    process_changes(run_of(app, engine), puts)
    scan, sources = engine.scan, engine.read_sources

    def led(before, after):
        changes = [change(before, after, next(number))]
        engine.put_sources(newest_sources(changes))
        process_changes(run_of(app, engine), changes)

    def reads_without_one(items):
        engine.read_sources = sources
        led(images[1], None)
        return sources(items)

    def scans_with_all(*place):
        if engine.read_source(ITEM_1) is None:
            led(None, images[1])
        engine.read_sources = reads_without_one
        return scan(*place)

    engine.scan = scans_with_all
    found = verified(app, engine, live=True)
    assert (found.different, found.moving) == ([], 1)


def test_an_item_on_which_a_handler_raises_is_told(app, engine):
    engine.put_sources([(("main", "ITEM#5", "METADATA"), encode(item("ITEM#5", "METADATA"))["M"], "9")])
    assert {each.item[1] for each in verified(app, engine).failed} == {"ITEM#5"}


def neighbours(*names):
    """An application of some of two handlers that add to the same rows; the others are retired."""
    router = Router()
    if "kept" in names:
        router.view(ITEM, into=TOTAL, name="kept")(lambda item: Row(group=item["group"], total=Sum(item["amount"])))
    if "left" in names:
        router.view(ITEM, into=TOTAL, name="left")(
            lambda item: Row(group=item["group"], more=Sum(item["amount"]), most=Max(item["amount"]))
        )
    return App("shop", routers=[router], retired={"kept", "left"} - set(names))


def with_retired_neighbour():
    """The state in which one of two neighbours was retired, and then an item of a group was removed."""
    both, after = neighbours("kept", "left"), neighbours("kept")
    engine = MemoryEngine(both.tables.values(), both.chains)
    images = [item(f"ITEM#{n}", "METADATA", group=f"g{n % 2}", amount=n + 1) for n in range(3)]
    put = [change(None, image, n + 1) for n, image in enumerate(images)]
    gone = [change(images[1], None, 10)]
    for app, changes in ((both, put), (after, gone)):
        engine.put_sources(newest_sources(changes))
        run = run_of(app, engine)
        assert process_changes(run, changes).failures == []
    return after, engine, run


def test_what_a_retired_neighbour_left_in_rows_is_no_difference():
    app, engine, run = with_retired_neighbour()
    assert engine.read_rows([("main", "TOTAL#g1", "TOTAL")])["main", "TOTAL#g1", "TOTAL"]["more"] == 2
    assert RowsVerifier(run, app.routes, live=False).verify().different == []


def test_what_a_retired_neighbour_left_in_a_row_is_explained_as_left():
    app, engine, run = with_retired_neighbour()
    found = explain_row(Explaining(app, engine, run.known.schema), TOTAL_0, scan=True)
    assert (found.agrees, found.counted, len(found.contributors), found.retired_names) == (True, 4, 2, {"more", "most"})
    engine.rows[TOTAL_0] |= {"total": {"N": "100"}}
    found = explain_row(Explaining(app, engine, run.known.schema), TOTAL_0, scan=True)
    assert (found.agrees, found.differing) == (False, {"total": (100, 4)})


def test_what_a_retired_neighbour_left_is_no_difference_in_exports(tmp_path):
    app, engine, _ = with_retired_neighbour()
    contents = {app.tables["main"]: engine.items(app.tables["main"]), STATE: engine.state_items()}
    exports = {
        table.name: open_export(write_export(tmp_path / table.name, list(items)), table)
        for table, items in contents.items()
    }
    found = verify_exports(app, Settings(), app.routes, exports)
    assert (found.rows.different, found.rows.rows > 0) == ([], True)


def test_a_row_that_differs_beside_what_a_retired_neighbour_left_is_found_and_left_to_a_person():
    app, engine, run = with_retired_neighbour()
    engine.rows[TOTAL_0] |= {"total": {"N": "100"}}
    (different,) = RowsVerifier(run, app.routes, live=False).verify().different
    assert (different.shown, different.expected) == ({"total": 100}, {"total": 4})
    before = engine.read_rows([TOTAL_0])
    found = RowCorrection(run).correct([TOTAL_0])
    assert (found.corrected, [each.row for each in found.remaining]) == ([], [TOTAL_0])
    assert "Retired handlers left 'more', 'most' in it" in found.remaining[0].why
    assert engine.read_rows([TOTAL_0]) == before


@pytest.mark.parametrize("by_hand", [{"N": "1"}, {"BOOL": False}, None])
def test_a_truth_value_is_told_from_a_number_and_from_nothing(by_hand):
    router = Router()
    router.view(ITEM, into=OWN, name="own")(lambda item: Row(paid=item["paid"], late=False))
    app = App("shop", routers=[router])
    engine = MemoryEngine(app.tables.values())
    changes = [change(None, item("ITEM#1", "METADATA", paid=True))]
    engine.put_sources(newest_sources(changes))
    process_changes(run_of(app, engine), changes)
    assert verified(app, engine).different == []
    row = engine.rows["main", "OWN#1", "OWN"]
    if by_hand is None:
        del row["late"]
    else:
        row["paid"] = by_hand
    (found,) = verified(app, engine).different
    assert found.what == "different"
    by = Explaining(app, engine, Schema())
    assert not explain_row(by, found.row, scan=True).agrees
    assert RowCorrection(run_of(app, engine)).correct([found.row]).corrected == [found.row]
    assert verified(app, engine).different == []


def test_a_sum_that_somebody_made_a_truth_value_is_named(app, engine):
    engine.rows[TOTAL_0] |= {"total": {"BOOL": True}}
    ((left,),) = [RowCorrection(run_of(app, engine)).correct([TOTAL_0]).remaining]
    assert "'total' is no number any more" in left.why


def test_a_sum_that_no_number_leads_to_what_it_should_be_is_named_and_others_are_mended(app, engine):
    other = ("main", "TOTAL#g1", "TOTAL")
    engine.rows[TOTAL_0] |= {"total": {"N": "0.12345678901234567890123456789012345678"}}
    engine.rows[other] |= {"total": {"N": "7"}}
    found = RowCorrection(run_of(app, engine)).correct([TOTAL_0, other])
    assert ([left.row for left in found.remaining], found.corrected) == ([TOTAL_0], [other])
    assert "No number of 38 digits corrects its attribute 'total':" in found.remaining[0].why


@pytest.mark.parametrize("live", [True, False])
def test_a_handler_that_reads_rows_is_compared_without_the_one_that_makes_them(app, engine, live):
    groups = [route for route in app.routes if route.name == "groups"]

    def wrong():
        return RowsVerifier(run_of(app, engine), groups, live=live).verify().different

    assert wrong() == []
    engine.rows["main", "ALL", "ALL"] |= {"groups": {"N": "9"}}
    ((row, shown, expected, *_),) = wrong()
    assert (row[1:], shown, expected) == (("ALL", "ALL"), {"groups": 9}, {"groups": 3})
    del engine.rows["main", "ALL", "ALL"]
    assert [each.what for each in wrong()] == ["missing"]


def test_rows_that_no_ledger_keeps_are_sources_of_those_that_are_compared():
    router = Router()
    router.on(ITEM, into=OWN, name="latest")(
        lambda change: [Put(amount=change.new["amount"])] if change.new else [Delete()]
    )
    router.view(OWN, into=ALL, name="amounts")(lambda row: Row(total=Sum(row["amount"])))
    app = App("shop", routers=[router])
    engine = MemoryEngine(app.tables.values(), app.chains)
    items = [item(f"ITEM#{number}", "METADATA", amount=number) for number in (1, 2, 4)]
    changes = [*(change(None, each, number) for number, each in enumerate(items, 1)), change(items[0], None, 9)]
    engine.put_sources(newest_sources(changes))
    process_changes(run_of(app, engine), changes)
    for each in engine.pending(100):
        app.process({"Records": [each.record]}, engine=engine)
    found = verified(app, engine)
    assert (found.rows, found.different) == (1, [])
    engine.rows["main", "ALL", "ALL"] |= {"total": {"N": "9"}}
    assert [each.expected for each in verified(app, engine).different] == [{"total": 6}]


def test_rows_of_a_handler_that_was_never_filled_are_left_to_a_backfill(engine):
    router = Router()

    @router.view(ITEM, into=TOTAL)
    def later(item):
        return Row(group=f"new {item['group']}", items=Count())

    sent = []
    engine.transact = lambda writes, expires_at: sent.append(writes)
    led = reconcile_rows(run_of(App("shop", routers=[router]), engine), ["later"])

    missing = {each.row for each in led.compared.different if each.what == "missing"}
    assert {row[1] for row in missing} == {f"TOTAL#new g{n}" for n in range(3)}
    assert not missing & {write.key for writes in sent for write in writes}
