"""What a proof does not prove is said: no handler is left out in silence."""

import pytest

from streamfold import App, Count, Key, Router, Row
from streamfold.testing import check
from streamfold.testing.coverage import item_keys, unproved
from streamfold.testing.recorded import Recording
from tests.records import change, item

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
        "cascade (no children are in the histories)",
        "lines (none of its items are in the histories)",
        "all_lines (none of its items are in the histories)",
        EXTERNAL,
    )
    assert unproved(app, [ORDER_ITEM]) == (
        "cascade (none of its items are in the histories)",
        "lines (no items of Key('ORDER#{order_id}', 'METADATA') are in the histories)",
        EXTERNAL,
    )


def test_report_of_a_proof_names_them(app):
    proof = check(app, {ORDER: {}, ORDER_ITEM: {"price": 1}}, histories=2)
    assert proof.unproved == (EXTERNAL,)
    assert str(proof).endswith(f"\n  not proved: {EXTERNAL}")


def test_recording_names_those_of_which_it_has_no_items(app):
    recording = Recording(app, [change(None, item("ORDER#1"), 1)])
    assert recording.unproved[0] == "cascade (no children are in the histories)"
