"""``streamfold diff`` of handlers whose rows differ only where several items meet: aggregates and winners."""

import json

import pytest

STATE, OLD = ("--state", "state.db"), ("--old", "handlers:app@./before")
VIEW = """
from streamfold import *

ITEM, DAY = Key("ITEM#{{item_id}}", "META"), Key("DAY#{{day}}", "ALL")
router = Router()


@router.view(ITEM, into=DAY)
def daily(item, item_id):
    return Row(day=item["day"], {})


app = App("shop", routers=[router])
"""
OWNED = VIEW.replace('"DAY#{{day}}"', '"DAY#{{item_id}}"').replace('day=item["day"], ', "")
MIDDLE = """
from streamfold import *

ITEM, DAY = Key("ITEM#{{item_id}}", "META"), Key("DAY#{{day}}", "ALL")
router = Router()


class MiddleValue(Ordered):
    stored_as = "middle_value"

    @staticmethod
    def show(values):
        return values[{}]

    @staticmethod
    def fold(given):
        return sorted(each.value for each in given)[{}]


@router.view(ITEM, into=DAY)
def daily(item):
    return Row(day=item["day"], x=MiddleValue(item["n"]))


app = App("shop", routers=[router])
"""
ITEMS = ({"n": 5, "t": 1}, {"n": 9, "t": 2}, {"n": 2, "t": 2})


def differs(folder, source, old, new, items=ITEMS):
    """Folds the items with the old code, and compares the new one with it; returns the exit code and the report."""
    records = [source.put(f"ITEM#{number}", "META", day="d", **each) for number, each in enumerate(items)]
    folder.app(old)
    folder.write("before/handlers.py", old)
    assert folder.run("replay", folder.records(*records), *STATE).code == 0
    folder.app(new)
    ran = folder.run("diff", *OLD, *STATE, "--json")
    assert ran.err == ""
    return ran.code, json.loads(ran.out)["changes"]


@pytest.mark.parametrize("items", [ITEMS, ITEMS[:1]])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('x=Max(item["n"])', 'x=Min(item["n"])'),
        ('x=Latest(item["n"], by=item["t"])', 'x=First(item["n"], by=item["t"])'),
        ('x=Latest(item_id, by=item["t"])', 'x=Latest(item_id, by=item["n"])'),
        ('x=Top(5, item["n"], by=item["n"])', 'x=Top(1, item["n"], by=item["n"])'),
        ('x=Latest(item_id, by=item["t"])', 'x=Latest(item_id, by=item["t"], ties="largest key")'),
        ('x=item["n"], wins=item["n"]', 'x=item["n"], wins=item["t"]'),
    ],
)
def test_another_aggregate_differs_whether_several_items_meet_or_one_is_alone(folder, source, items, old, new):
    code, changes = differs(folder, source, VIEW.format(old), VIEW.format(new), items)
    assert (code, {name for each in changes for name in each["attributes"]}) == (1, {"x"})


def test_an_aggregate_that_shows_another_of_its_values_differs(folder, source):
    assert differs(folder, source, MIDDLE.format(0, 0), MIDDLE.format(-1, -1))[0] == 1


def test_another_aggregate_of_a_row_that_one_item_makes_is_the_same(folder, source):
    old, new = OWNED.format('x=Max(item["n"])'), OWNED.format('x=Min(item["n"])')
    assert differs(folder, source, old, new) == (0, [])


def test_the_same_aggregates_are_the_same(folder, source):
    same = VIEW.format('x=Max(item["n"]), y=Top(2, item_id, by=item["t"]), z=Distinct(item["n"])')
    assert differs(folder, source, same, same) == (0, [])


def test_what_several_items_show_together_is_named(folder, source):
    differs(folder, source, VIEW.format('x=Max(item["n"])'), VIEW.format('x=Min(item["n"])'))
    line = folder.run("diff", *OLD, *STATE).out.splitlines()[1]
    assert line.split()[-9:] == ["x", *["9", "(of", "several", "items)", "2", "(of", "several", "items)"]]
