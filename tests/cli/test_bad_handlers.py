"""What a handler yields that cannot be written: refused with row, handler and remedy, and nothing is written."""

import re

import pytest

STATE = ("--state", "state.db")
APP = """
from datetime import date, datetime
from decimal import Decimal

from streamfold import Add, App, Collect, Count, Delete, Key, Lookup, Max, Put, Router, Row, Sum, Table, Top

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
    "sum of a text": (
        VIEW,
        "yield Row(price=Sum('3'))",
        (
            "Sum('3') is of type str, expected int or Decimal: a number that is stored as text becomes one by "
            "Sum(Decimal(item[...])); Count() counts items."
        ),
    ),
    "sum of nothing": (
        VIEW,
        "yield Row(price=Sum(item.get('price')))",
        "Sum(None) is of type NoneType, expected int or Decimal: leave Sum out for an item without a value.",
    ),
    "largest of a map": (
        VIEW,
        "yield Row(most=Max({'price': 1}))",
        "which does not compare: expected a number (int or Decimal), text, bytes, a date or a time; order by one of",
    ),
    "list where one value is collected": (
        VIEW,
        "yield Row(tags=Collect(['a', 'b']))",
        "expected a number (int or Decimal), text, bytes, a date or a time; for several values return several rows",
    ),
    "length and value of a top exchanged": (
        VIEW,
        "yield Row(best=Top({'sku': 'a'}, 10, by=1))",
        "keeps {'sku': 'a'} values: expected a whole number from 1 to 100.",
    ),
    "set of several types": (
        CARDS,
        "yield Row(tags={1, 'a'})",
        "expected members that are all text, all numbers or all bytes, at least one. Leave an empty set out; a list",
    ),
    "moment without a time zone": (
        CARDS,
        "yield Row(at=datetime(2026, 3, 1))",
        "cannot be stored: it has no time zone; give one, for example datetime.now(UTC).",
    ),
    "seconds as a date": (
        DATES,
        "yield Row(day=1767225600, lines=Count())",
        "it is of type int, not a date; a moment's day is moment.date().",
    ),
    "date in another format": (
        "@router.view(ITEM, into=Key('AT#{at:datetime}', 'TOTAL'))",
        "yield Row(at='01.03.2026', lines=Count())",
        (
            "Value '01.03.2026' cannot be used for {at:datetime} in template "
            "'AT#{at:datetime}': it is not a moment like "
            "2026-03-01T10:00:00Z."
        ),
    ),
    "misspelled field of a target": (
        "@router.view(ITEM, into=Key('ORDER#{oder_id}', 'TOTAL'))",
        "yield Row(lines=Count())",
        (
            "leaves 'oder_id' of Key('ORDER#{oder_id}', 'TOTAL') without a value: give "
            "oder_id=..., or write {order_id}, "
            "the field of its source"
        ),
    ),
    "key attribute as a value": (
        CARDS,
        "yield Row(PK='CARD#1')",
        (
            "cannot set 'PK': key attributes and names that begin with _sf_ are the "
            "framework's. Give the fields of the "
            "target's key by their names"
        ),
    ),
    "returned text": (
        VIEW,
        "return 'total'",
        "Handler 'handler' returned 'total' of type str: expected Row, a list of them, or None. Write",
    ),
    "class in place of a row": (
        VIEW,
        "return Row",
        "of type type: expected Row, a list of them, or None. Write",
    ),
    "yielded None": (
        VIEW,
        "yield None",
        "gave None: a handler of kind view gives Row. To give nothing for an item, leave out the yield.",
    ),
    "change read as an item": (
        ON,
        "yield Put(price=item['price'])",
        (
            "A change has two images and no attribute 'price' of its own: read change.new['price'] as it is now, or "
            "change.old['price']"
        ),
    ),
    "attribute by a dot": (
        VIEW,
        "yield Row(price=Sum(item.price))",
        'An item is a mapping without an attribute \'price\': read item["price"], or item.get("price") where',
    ),
    "text that is added": (
        ON,
        "yield Add(lines='1')",
        "lines='1' is no number (int or Decimal) to add. A number that is stored as text becomes one by Decimal(...)",
    ),
    "attributes in a dict": (
        VIEW,
        "yield Row({'total': 1})",
        "the first argument is the target Key; attributes are given by name.",
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
        (
            "@router.view(ITEM, target=TOTAL)",
            (
                "has target=, which is no option of it, and no into=, the Key or Keys that the "
                "handler may write: write\n"
                "    @router.view(ITEM, into=TOTAL)\n"
            ),
        ),
        (
            "@router.view(ITEM, into='ORDER#1')",
            "has into='ORDER#1': expected the Key, or the list of Keys, that it may",
        ),
        ("@router.view('ORDER#{order_id}', into=TOTAL)", "expected one or several Keys, @router.view(ORDER, ...)."),
        ("@router.on(ITEM, into=TOTAL, events=['insert'])", "expected"),
        (
            "@router.view(ITEM, into=TOTAL, on_error='parks')",
            'expected "retry" or "park", @router.view(..., on_error="',
        ),
    ],
)
def test_declaration_that_cannot_work_is_refused_with_its_line(folder, decorators, message):
    folder.app(APP.replace("DECORATOR", decorators).replace("BODY", "yield Row()"))

    ran = folder.run("routes")

    assert ran.code == 2
    assert message in ran.err
    assert "handlers.py:" in ran.err


DECLARATIONS = {
    "mutable default": (
        "@router.view(ITEM, into=TOTAL)\ndef handler(item, seen=[]):\n    return Row(lines=Count())",
        "has seen=[], which all calls share, and it must give the same for each; write\n    seen=None",
    ),
    "async handler": (
        "@router.view(ITEM, into=TOTAL)\nasync def handler(item):\n    return Row(lines=Count())",
        "is async, and a view handler only computes: write\n    def handler(item):",
    ),
    "method": (
        (
            "class Handlers:\n    @router.view(ITEM, into=TOTAL)"
            "\n    def handler(self, item):\n        return Row(n=Count())"
        ),
        "is a method, and a handler is a plain function: write it outside of the class,\n    def handler(item):",
    ),
    "parameter that is no field": (
        "@router.view(ITEM, into=TOTAL)\ndef handler(item, context):\n    return Row(lines=Count())",
        "asks for 'context', which is no field of Key('ORDER#{order_id}', 'ITEM#{sku}') (its fields: order_id, sku)",
    ),
    "no parameter": (
        "@router.view(ITEM, into=TOTAL)\ndef handler():\n    return Row(lines=Count())",
        "takes no parameter: the first is the item or the change, write\n    def handler(item):",
    ),
    "forgotten return": (
        "@router.view(ITEM, into=TOTAL)\ndef handler(item):\n    Row(lines=Count())",
        "never returns or yields anything: a view handler gives its effects, write\n    return Row(lines=Count())",
    ),
    "one name twice": (
        (
            "@router.view(ITEM, into=TOTAL)\ndef handler(item):\n    return Row(lines=Count())\n\n\n"
            "@router.view(ITEM, into=CARD)\ndef handler(item):\n    return Row(lines=Count())"
        ),
        "A name is a handler's identity in the ledger: give one of them another, name=",
    ),
    "two indexes on one target": (
        (
            "@router.index(ITEM, into=CARD)\ndef one(item):\n    return Row(a=1)\n\n\n"
            "@router.index(ITEM, into=CARD)\ndef two(item):\n    return Row(a=1)"
        ),
        "Give one of them another target.",
    ),
    "lookup without its parameter": (
        "@router.attributes(ITEM, lookup={'product': Lookup(CARD)})\ndef handler(item):\n    return Row(a=1)",
        "looks 'product' up and has no parameter of that name; write\n    def handler(item, product):",
    ),
    "unknown kind of field": (
        "Key('DAY#{day:dat}', 'TOTAL')",
        "is of no known kind (did you mean {day:date}?): expected",
    ),
    "template without the name of a field": (
        "Key('ORDER#{}', 'TOTAL')",
        "{} does not name a field: expected a name such as {order_id}.",
    ),
    "fields that touch": (
        "Key('ORDER#{one}{two}', 'TOTAL')",
        "{one} and {two} touch: nothing shows where one ends. Put a delimiter between them, {one}#{two}",
    ),
    "key without a sort template": (
        "Key('ORDER#{order_id}')",
        "Give one, Key('ORDER#{order_id}', \"METADATA\"), or a table",
    ),
    "sort template of a table without one": (
        "Key('ORDER#{order_id}', 'TOTAL', Table('orders', sort=None))",
        'Leave the sort template out, or give the table a sort key: Table("orders", sort="SK").',
    ),
    "table by its name": ("Key('A#{a}', 'B', 'orders')", "has table='orders': expected a Table, Table(\"shop\")."),
    "one table declared twice": (
        (
            "@router.view(Key('A#{a}', 'B', Table('t', 'a')), into=Key('C#{a}', 'D', Table('t', 'b')))\n"
            "def handler(item):\n    return Row(lines=Count())"
        ),
        "Declare it once, and give this Table to all of its keys.",
    ),
    "key without one of its fields": ("ITEM.key(order_id='1')", "needs a value for 'sku': give sku=..."),
    "key with a misspelled field": ("ITEM.key(order_id='1', skuu='2')", "has no field 'skuu'; it has order_id, sku."),
    "a module without a router": (
        "import json\nApp('shop', routers=[json])",
        "expected a Router, or a module that has one",
    ),
    "retired names as text": ("App('shop', routers=[router], retired='old')", 'expected a list of names, ["old"].'),
    "a name with a space": (
        "App('my shop', routers=[router])",
        "expected a letter, then letters, digits, '_', '-' or '.'",
    ),
}


@pytest.mark.parametrize("mistake", DECLARATIONS)
def test_mistake_of_a_declaration_is_answered_with_value_expectation_and_remedy(folder, mistake):
    text, message = DECLARATIONS[mistake]
    declared, _, rest = APP.partition("DECORATOR")
    folder.app(f"{declared}{text}\n{rest.partition('BODY')[2]}")

    ran = folder.run("routes")

    assert (ran.code, message in ran.err) == (2, True), ran.err
    assert "handlers.py:" in ran.err


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ("handlers.py:app", "names a file: expected a module, such as handlers:app."),
        ("handlers:shop", "the module has no 'shop'. Did you mean handlers:app?"),
        ("orders:app", "there is no module 'orders' in "),
        ("handlers", "names no application: expected MODULE:NAME, for example handlers:app."),
    ],
)
def test_application_that_is_named_wrongly_is_answered_with_the_right_name(folder, monkeypatch, named, message):
    monkeypatch.setenv("STREAMFOLD_APP", named)

    ran = folder.run("routes")

    assert (ran.code, message in ran.err) == (2, True), ran.err
    assert f"STREAMFOLD_APP {named!r}" in ran.err


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
