"""What a handler yields that cannot be written: refused with row, handler and remedy, and nothing is written."""

import re

import pytest

STATE = ("--state", "state.db")
APP = """
from datetime import date
from decimal import Decimal

from streamfold import Add, App, Count, Delete, Key, Put, Router, Row, Sum

ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
CARD = Key("CARD#{order_id}", "ITEM#{sku}")
OTHER = Key("OTHER", "TOTAL")
router = Router()


DECORATOR
def handler(item):
    BODY


app = App("shop", routers=[router])
"""
VIEW, CARDS = "@router.view(ITEM, into=TOTAL)", "@router.view(ITEM, into=CARD)"
ON = "@router.on(ITEM, into=TOTAL)"
DAYS = "@router.view(ITEM, into=Key('DAY#{day}', 'TOTAL'))"
DATES = "@router.view(ITEM, into=Key('DAY#{day:date}', 'TOTAL'))"
TAGS = "@router.index(ITEM, into=Key('TAG#{tag}', '{order_id}#{sku}'))"
MISTAKES = {
    "unknown effect": (
        VIEW,
        'yield {"total": 1}',
        "Handler 'handler' gave {'total': 1}: a handler of kind view gives Row.",
    ),
    "dict that is returned": (
        VIEW,
        'return {"total": 1}',
        "Handler 'handler' returned {'total': 1} of type dict: expected Row, a list of them, or None. Write",
    ),
    "effect of another kind": (
        ON,
        "yield Row(total=Sum(1))",
        "a handler of kind on gives Put, Add, Delete.",
    ),
    "write outside of into": (
        VIEW,
        "yield Row(OTHER, total=Sum(1))",
        "which writes outside of into=Key('ORDER#{order_id}', 'TOTAL'). Add the target to into=.",
    ),
    "plain attribute on a target that is not owned": (
        VIEW,
        "yield Row(name='x')",
        "Use an aggregate (Sum, Max, Latest), say whose values win, Row(..., wins=item[...]), or take a target of its",
    ),
    "put on a target that is not owned": (ON, "yield Put(name='x')", "does not own Key('ORDER#{order_id}', 'TOTAL')"),
    "field left out": (
        DAYS,
        "yield Row(total=Sum(1))",
        "leaves 'day' of Key('DAY#{day}', 'TOTAL') without a value: give day=...",
    ),
    "delimiter in a field": (
        DAYS,
        "yield Row(day='1#2', total=Sum(1))",
        "Value '1#2' cannot be used for {day} in template 'DAY#{day}': it holds the delimiter '#'",
    ),
    "more than 99 effects": (
        TAGS,
        "yield from (Row(tag=str(number)) for number in range(100))",
        "Handler 'handler' gave more than 99 effects for one item",
    ),
    "float": (CARDS, "yield Row(price=0.1)", "Value 0.1 is a float, which is not exact: use Decimal('0.1')"),
    "float in a sum": (
        VIEW,
        "yield Row(price=Sum(0.1))",
        "expected int or Decimal: use Decimal('0.1'); in place of a / b",
    ),
    "more than 38 digits": (VIEW, "yield Row(price=Sum(10**40 + 1))", "DynamoDB holds 38 digits"),
    "inexact arithmetic": (VIEW, "yield Row(price=Sum(Decimal(1) / 3))", "a number that 38 digits cannot hold exactly"),
    "item over 400 KB": (CARDS, "yield Row(text='x' * 410_000)", "bytes; DynamoDB takes items of 409600 at most."),
    "missing attribute": (
        VIEW,
        "yield Row(total=Sum(item['price']))",
        "AttributeMissing: The item has no attribute 'price': yield nothing for such an item",
    ),
    "bucket from a missing date": (
        DATES,
        "yield Row(day=date.fromisoformat(item['at']), lines=Count())",
        "AttributeMissing: The item has no attribute 'at': yield nothing for such an item, if 'at' in item: ...",
    ),
    "bucket from no date": (
        DATES,
        "yield Row(day=item.get('at'), lines=Count())",
        "of type NoneType, not a date; a moment's day is moment.date(). Yield nothing for an item without a value.",
    ),
    "bucket from a date that is none": (
        DATES,
        "yield Row(day='soon', lines=Count())",
        "Value 'soon' cannot be used for {day:date} in template 'DAY#{day:date}': it is not a date like 2026-03-01.",
    ),
    "bucket formatted from no date": (
        DAYS,
        "yield Row(day=f\"{item.get('at'):%Y-%m}\", lines=Count())",
        "than the format is for (unsupported format string passed to NoneType.__format__): expected a date or a moment",
    ),
    "bucket formatted from text": (
        DAYS,
        "yield Row(day=f\"{'2026-03-01':%Y-%m}\", lines=Count())",
        "Dates of an item are text, date.fromisoformat(item[...]); yield nothing for an item without one.",
    ),
    "bucket formatted from a number": (
        DAYS,
        'yield Row(day=f"{Decimal(5):%Y-%m}", lines=Count())',
        "another type than the format is for (invalid format string)",
    ),
    "changed item": (
        VIEW,
        "item['a'] = 1\n    yield",
        "TypeError: An item that a handler gets is read-only: change a copy",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_of_a_handler_is_told_with_the_item_and_nothing_is_written(folder, source, mistake):
    decorator, body, message = MISTAKES[mistake]
    folder.app(APP.replace("DECORATOR", decorator).replace("BODY", body))

    ran = folder.run("replay", folder.records(source.put("ORDER#1", "ITEM#a")), *STATE)

    assert ran.code == 1
    place = rf"{re.escape(str(folder.path / 'handlers.py'))}:\d+"
    assert re.match(rf"Failed: records.jsonl:1: handler 'handler' \({place}\), item ORDER#1 / ITEM#a: ", ran.err)
    assert message in ran.err
    assert folder.rows(*STATE) == {}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_line_of_the_handler_is_shown(folder, source, mistake):
    decorator, body, _ = MISTAKES[mistake]
    folder.app(APP.replace("DECORATOR", decorator).replace("BODY", body))

    ran = folder.run("replay", folder.records(source.put("ORDER#1", "ITEM#a")))

    assert f"{folder.path / 'handlers.py'}:" in ran.err


@pytest.mark.parametrize(
    ("decorators", "message"),
    [
        (
            "@router.index(ITEM, into=CARD, name='one')\n@router.view(ITEM, into=CARD)",
            "a target has one writing handler",
        ),
        ("@router.index(ITEM, into=TOTAL)", "which it does not own"),
        ("@router.view(TOTAL, into=TOTAL)", "would read rows derived from its own rows"),
        ("@router.view(ITEM)", "that the handler may write: write\n    @router.view(ITEM, into=TARGET)\n"),
        ("@router.view", "is decorated without source and target: write\n    @router.view(SOURCE, into=TARGET)"),
        ("@router.on", "is decorated without source and target: write\n    @router.on(SOURCE, into=TARGET)"),
    ],
)
def test_declaration_that_cannot_work_is_refused_with_its_line(folder, decorators, message):
    folder.app(APP.replace("DECORATOR", decorators).replace("BODY", "yield Row()"))

    ran = folder.run("routes")

    assert ran.code == 2
    assert message in ran.err
    assert "handlers.py:" in ran.err


def test_recursion_without_end_shows_its_first_and_its_last_lines_only(folder, source):
    decorator = "def deeper(number):\n    return deeper(number + 1)\n\n\n@router.view(ITEM, into=TOTAL)"
    folder.app(APP.replace("DECORATOR", decorator).replace("BODY", "yield Row(price=Sum(deeper(0)))"))

    ran = folder.run("replay", folder.records(source.put("ORDER#1", "ITEM#a")))

    lines = ran.err.splitlines()
    assert "RecursionError: maximum recursion depth exceeded" in lines[0]
    assert lines[1].endswith("in handler: yield Row(price=Sum(deeper(0)))")
    assert re.fullmatch(r"    \.\.\. \d{3} more \.\.\.", lines[5])
    assert len(lines) == 1 + 4 + 1 + 4


def test_values_of_any_length_make_messages_of_bounded_length(folder, source):
    records = folder.records(source.put("ORDER#1", "ITEM#a", text="x" * 300_000))
    raising = "raise ValueError(item['text'])\n    yield"
    for body in ("yield item['text']", raising, "yield Row(order_id='#' + item['text'])"):
        folder.app(APP.replace("DECORATOR", VIEW).replace("BODY", body))
        ran = folder.run("replay", records)
        assert "xxx..." in ran.err
        assert len(ran.err) < 3000
