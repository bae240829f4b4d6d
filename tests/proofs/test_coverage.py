"""What a proof does not prove is said: no handler is left out in silence."""

import pytest

from streamfold import App, Count, Key, Router, Row
from streamfold.proofs.coverage import by_reason, unproved
from streamfold.proofs.histories import item_keys
from streamfold.proofs.recorded import Recording
from streamfold.testing import Write, check
from tests.helpers.records import change, item

ORDER = Key("ORDER#{order_id}", "METADATA")
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
LINES = Key("LINES", "TOTAL")


@pytest.fixture
def app():
    router = Router()
    router.cascade(ORDER, children=[ORDER_ITEM])

    @router.attributes(ORDER_ITEM, of=ORDER)
    def lines(item):
        yield Row(lines=Count())

    @router.view(ORDER_ITEM, into=LINES)
    def all_lines(item):
        yield Row(lines=Count())

    @router.view(LINES, into=Key("CHAIN", "TOTAL"))
    def chain(row):
        yield Row(rows=Count())

    @router.on(ORDER, external=True)
    def mail(change):
        pass

    return App("shop", routers=[router])


EXTERNAL = "mail (external handlers are not called)"


def test_children_and_bearers_are_items_too(app):
    assert item_keys(app) == [ORDER, ORDER_ITEM, LINES]


def test_all_that_histories_reach_is_proved(app):
    assert unproved(app, [ORDER, ORDER_ITEM]) == (EXTERNAL,)


def test_each_handler_that_histories_do_not_reach_is_named_with_the_reason(app):
    assert unproved(app, [ORDER]) == (
        "cascade_order_metadata (no items of Key('ORDER#{order_id}', 'ITEM#{sku}') are in the histories)",
        "lines (none of its items are in the histories)",
        "all_lines (none of its items are in the histories)",
        EXTERNAL,
    )
    assert unproved(app, [ORDER_ITEM]) == (
        "cascade_order_metadata (none of its items are in the histories)",
        "lines (no items of Key('ORDER#{order_id}', 'METADATA') are in the histories)",
        EXTERNAL,
    )


def test_report_of_a_proof_names_them(app):
    proof = check(app, {ORDER: {}, ORDER_ITEM: {"price": 1}}, histories=2)
    assert proof.unproved == (EXTERNAL,)
    assert f"\n  not proved: {EXTERNAL}" in str(proof)


def test_handlers_with_one_reason_are_named_together():
    assert by_reason(("a (no (such) items)", "b (external handlers are not called)", "c (no (such) items)")) == [
        "a, c (each: no (such) items)",
        "b (external handlers are not called)",
    ]


def test_recording_names_those_of_which_it_has_no_items(app):
    recording = Recording(app, [change(None, item("ORDER#1"), 1)])
    why = "no items of Key('ORDER#{order_id}', 'ITEM#{sku}') are in the histories"
    assert recording.unproved[0] == f"cascade_order_metadata ({why})"


def test_handler_that_yields_nothing_for_any_item_is_named():
    router = Router()

    @router.view(ORDER_ITEM, into=LINES)
    def gifts(item):
        if item["price"] < 0:
            yield Row(lines=Count())

    proof = check(App("shop", routers=[router]), {ORDER_ITEM: {"price": 1}}, histories=2)
    assert proof.unproved == ("gifts (it yields nothing for the items of the histories)",)


def test_histories_without_a_change_or_a_removal_are_said_to_be_so(app):
    writes = [Write(ORDER_ITEM, {"order_id": "1", "sku": "a"}, {"price": 1})]
    left_out = check(app, writes=writes, histories=1).left_out
    assert {"no item is changed in the histories", "no item is removed in the histories"} <= set(left_out)
    assert not {each for each in check(app, {ORDER_ITEM: {"price": 1}}, histories=5).left_out if "no item" in each}


def test_recording_says_what_never_happens_in_it(app):
    recording = Recording(app, [change(None, item("ORDER#1", "ITEM#a", price=1), 1)])
    assert recording.clean_problem() is None
    assert "no item is removed in the histories" in recording.left_out


def test_faults_that_were_never_injected_are_named(app):
    proof = check(app, {ORDER_ITEM: {"price": 1}}, histories=1, seed=1)
    (left,) = [each for each in proof.left_out if each.startswith("faults that were never injected: ")]
    named = set(left.partition(": ")[2].split(", "))
    assert named == proof.offered - proof.faults.keys() != set()


def test_faults_that_were_not_asked_for_are_not_named(app):
    proof = check(app, {ORDER_ITEM: {"price": 1}}, histories=30, faults=["overlap", "rewound"])
    assert proof.faults.keys() == proof.offered == {"overlap", "rewound"}
    assert not [each for each in proof.left_out if "injected" in each]
