"""Proofs of handlers that write to items, remove or keep them: right ones pass, and each kind made wrong is found."""

import pytest

from streamfold import App, Average, Count, Key, Max, Router, Row, Sum, Table
from streamfold.derivations.archive.archives import Archives
from streamfold.derivations.attributes import write_back
from streamfold.derivations.attributes.write_back import WriteBack
from streamfold.derivations.cascade.children import CascadeCursor, Children
from streamfold.engines import memory
from streamfold.proofs.histories import item_keys
from streamfold.proofs.oracle import ItemsWrong, attribute_names, check_cascades, expected_items
from streamfold.proofs.recorded import Recording
from streamfold.proofs.store import DeliveredChange
from streamfold.routes.route import Route
from streamfold.testing import Diverged, HandlerFails, Scenario, Write, check, check_scenario
from streamfold.writes.guarded import AbsentSource, GuardedPut, UpdateSource
from tests.helpers.changed_writes import on_writes
from tests.helpers.records import change, item

ORDER = Key("ORDER#{order_id}", "METADATA")
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
BANDS = Key("BAND#{band}", "COUNT")
ITEMS = {
    ORDER: [{"status": "open", "at": "2026-03-01", "weight": 3}, {"status": "paid", "at": "2026-03-02", "weight": 4}],
    ORDER_ITEM: [{"price": 5}, {"price": 7}],
}


def totals(router):
    router.audit(ORDER, name="audit")

    @router.attributes(ORDER_ITEM, of=ORDER)
    def order_total(item):
        yield Row(total=Sum(item["price"]), lines=Count(), highest=Max(item["price"]), mean=Average(item["price"]))

    @router.attributes(ORDER)
    def open_orders(order):
        if order["status"] == "open":
            yield Row(GSI1PK="OPEN", GSI1SK=order["at"])

    @router.view(ORDER, into=BANDS)
    def bands(order):
        yield Row(band="high" if order.get("total", 0) > 10 else "low", orders=Count())


def cascade(router):
    router.cascade(ORDER, children=[ORDER_ITEM], name="cascade")


def archive(router):
    router.archive(ORDER, to="s3://kept/orders", name="archive")


def copies(router):
    router.copy(ORDER, to=Table("copies"), name="copy")


def app_with(*declarations):
    router = Router()
    for declare in declarations:
        declare(router)
    return App("shop", routers=[router])


def diverged(declare, match, histories=300):
    app = app_with(declare)
    with pytest.raises(Diverged, match=match) as raised:
        check(app, {key: ITEMS[key] for key in item_keys(app)}, histories=histories)
    return raised.value


@pytest.mark.parametrize("source", ["stream", "kinesis"])
def test_all_kinds_together_hold_under_every_fault(source):
    proof = check(app_with(totals, cascade, archive, copies), ITEMS, histories=8, source=source)
    assert (proof.histories, proof.unproved) == (8, ())
    assert proof.faults["written-meanwhile"]


def test_same_seed_tries_the_same_where_handlers_write_to_items():
    first, again = (check(app_with(totals, cascade), ITEMS, histories=5, seed=3) for _ in range(2))
    assert (first.faults, first.changes) == (again.faults, again.changes)


def test_attributes_that_are_not_set_right_are_found_on_the_item(monkeypatch):
    monkeypatch.setattr(WriteBack, "changed", lambda *_: None)
    found = diverged(totals, r"ORDER#\d / METADATA: found \{.*expected \{")
    assert len(found.scenario.writes) <= 6


def test_attributes_that_are_written_over_the_writers_own_are_found(monkeypatch):
    write = memory.MemoryEngine.transact

    def careless(engine, writes, expires_at):
        if isinstance(writes[0], UpdateSource):
            writes = [UpdateSource(writes[0].key, {}, (), {**writes[0].values, "weight": 0}, writes[0].removed)]
        return write(engine, writes, expires_at)

    monkeypatch.setattr(memory.MemoryEngine, "transact", careless)
    diverged(totals, "'weight': {'N': '0'}")


def test_attributes_that_never_come_to_rest_are_said_with_their_handler(monkeypatch):
    def counting(router):
        @router.attributes(ORDER)
        def counted(order):
            yield Row(n=order.get("n", 0) + 1)

    # What was derived is taken for the writer's own.
    monkeypatch.setattr(write_back, "without_derived", lambda raw: raw)
    with pytest.raises(
        Diverged, match=r"handlers 'counted', item ORDER#\d / METADATA: they still wrote to it after 50"
    ):
        check(app_with(counting), {ORDER: ITEMS[ORDER]}, histories=5)


def test_children_that_are_left_are_found(monkeypatch):
    monkeypatch.setattr(Children, "remove_pages", lambda *_: CascadeCursor(done=True))
    found = diverged(cascade, r"ItemsWrong: ORDER#\d / ITEM#\d still exists, though ORDER#\d / METADATA was removed")
    assert len(found.scenario.writes) == 3


def test_children_of_a_parent_that_exists_are_missed():
    with on_writes(AbsentSource, guard=lambda _: lambda *_: True):
        diverged(cascade, r"ItemsWrong: ORDER#\d / ITEM#\d was removed by a cascade, though no parent of it was gone")


def test_removals_that_are_not_archived_are_found(monkeypatch):
    write = Archives.write

    def forgetful(archives, archived):
        outcome = write(archives, archived)
        outcome.failed.clear()
        return outcome

    monkeypatch.setattr(Archives, "write", forgetful)
    diverged(archive, r"archive archive / .*: found None, expected \{'item'")


def test_what_is_archived_though_nobody_removed_it_is_found(monkeypatch):
    monkeypatch.setattr(Route, "takes", lambda route, change: bool(change.old))
    diverged(archive, r"archive archive / .*: found \{'item'.*expected None")


def test_copies_that_an_older_change_overwrites_are_found():
    with on_writes(GuardedPut, guard=lambda _: lambda *_: True):
        diverged(
            copies,
            r"copies / ORDER#\d / METADATA: found|InvariantBroken: guarded row .'ORDER#\d', 'METADATA'. went back",
        )


def test_handler_of_attributes_that_cannot_take_an_item_is_named_with_it():
    def picky(router):
        @router.attributes(ORDER)
        def missing(order):
            yield Row(n=order["missing"])

    with pytest.raises(
        HandlerFails, match=r"handler 'missing' \(.*py:\d+\), item ORDER#\d / METADATA: AttributeMissing: "
    ):
        check(app_with(picky), {ORDER: ITEMS[ORDER]}, histories=5)


def test_scenario_that_writes_between_invocations_is_run_again():
    writes = (
        Write(ORDER, {"order_id": "1"}, ITEMS[ORDER][0]),
        Write(ORDER_ITEM, {"order_id": "1", "sku": "a"}, {"price": 5}),
    )
    check_scenario(app_with(totals, cascade), Scenario(writes, pace=1))


def test_recorded_changes_are_written_anew_where_handlers_write_to_items():
    put, line = item("ORDER#1", status="open", at="2026-03-01"), item("ORDER#1", "ITEM#a", price=5)
    changes = [change(None, line, 1), change(None, put, 2), change(put, None, 3)]
    recording = Recording(app_with(totals, cascade, archive), changes)
    assert recording.clean_problem() is None
    assert [kept for key, kept in recording.expected.items() if key[1] == "ORDER#1"] == []
    assert [run.problem for run in map(recording.run, range(20))] == [None] * 20


def told(*changes, by_handlers=()):
    return [DeliveredChange(each, place not in by_handlers) for place, each in enumerate(changes)]


PARENT, CHILD = item("ORDER#1", status="paid"), item("ORDER#1", "ITEM#a", price=5)
OTHER = item("ORDER#2", "ITEM#a", price=5)
COMES_BACK = [(None, PARENT), (PARENT, None), (None, PARENT)]


@pytest.mark.parametrize(
    ("wrong", "history", "by_handlers"),
    [
        (None, [(None, PARENT), (None, CHILD), (PARENT, None), (CHILD, None)], {3}),
        (None, [(None, PARENT), (PARENT, None), (None, CHILD)], ()),
        (None, [(None, PARENT), (None, CHILD), (PARENT, None), (None, PARENT)], ()),
        (None, [(None, CHILD), (CHILD, None)], ()),
        ("still exists", [(None, CHILD), (None, PARENT), (PARENT, None)], ()),
        ("was removed by a cascade", [(None, CHILD), (None, PARENT), (CHILD, None)], {2}),
        (
            "was removed by a cascade",
            [(None, CHILD), (None, PARENT), (PARENT, None), (None, PARENT), (CHILD, None)],
            {4},
        ),
        ("was removed by a cascade", [(None, OTHER), (None, PARENT), (PARENT, None), (OTHER, None)], {3}),
    ],
)
def test_children_go_with_their_parent_and_no_other_way(wrong, history, by_handlers):
    changes = told(*(change(*images, place) for place, images in enumerate(history, 1)), by_handlers=by_handlers)
    if wrong is None:
        check_cascades(app_with(cascade), changes)
        return
    with pytest.raises(ItemsWrong, match=wrong):
        check_cascades(app_with(cascade), changes)


def test_child_that_was_written_behind_the_end_of_a_cascade_stays():
    parent, gone, child, missed = (
        DeliveredChange(change(*images, place), place < 4, "R" if place == 4 else "")
        for place, images in enumerate([(None, PARENT), (PARENT, None), (None, CHILD), (CHILD, None)], 1)
    )
    told = [parent, gone, child, missed]
    check_cascades(app_with(cascade), told, {"R": 3})
    with pytest.raises(ItemsWrong, match="a cascade that had come to its end before it was written"):
        check_cascades(app_with(cascade), told, {"R": 2})


def test_items_are_as_the_application_wrote_them_with_what_is_derived():
    put = item("ORDER#1", status="open", at="2026-03-01")
    changes = told(change(None, put, 1), change(None, item("ORDER#1", "ITEM#a", price=5), 2))
    app = app_with(totals)
    found = expected_items(app, changes, attribute_names(app, [each.change for each in changes]))
    order = found["main", "ORDER#1", "METADATA"]
    assert (order["status"], order["total"], order["GSI1PK"]) == ({"S": "open"}, {"N": "5"}, {"S": "OPEN"})
    said = {"open_orders": ["GSI1PK", "GSI1SK"], "order_total": ["highest", "lines", "mean_count", "mean_sum", "total"]}
    assert order["_sf_a"] == {"M": {f"shop/{handler}": {"SS": names} for handler, names in said.items()}}
    assert found["main", "ORDER#1", "ITEM#a"].keys() == {"PK", "SK", "price"}
