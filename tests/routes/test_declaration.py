"""What is fit to be a handler, and the corrected line for what is not."""

from collections.abc import Iterator
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from functools import partial

import pytest

from streamfold import Item, Key, Row
from streamfold.errors import DeclarationError
from streamfold.routes.declaration import check_handler, check_plain, source_line, wanted_fields

ORDER_ITEM = Key("ORDER#{order_id}", "{at:datetime}#{line:03d}")
PAYMENT = Key("PAYMENT#{order_id}", "{day:date}")


def good(item):
    yield Row(total=1)


def returns_a_row(item):
    return Row(total=item["total"])


def returns_a_list(item):
    return [Row(total=item["total"])]


def returns_a_row_or_none(item):
    if "total" in item:
        return Row(total=item["total"])
    return None


def forgets_return(item):
    Row(total=item["total"])


def gives_nothing(item):
    item.get("total")


def returns_beside(item):
    if item["many"]:
        return Row(total=2)
    yield Row(total=1)


async def is_async(item):
    return Row(total=1)


async def is_async_and_yields(item):
    yield Row(total=1)


@pytest.mark.parametrize(
    ("function", "kind", "what", "corrected"),
    [
        (forgets_return, "view", "never returns or yields anything: a view", 'return Row(total=item["total"])'),
        (gives_nothing, "index", "never returns or yields anything: an index", "return Row(...)"),
        (gives_nothing, "on", "never returns or yields anything: an on handler gives", "return Put(...)"),
        (returns_beside, "view", "yields, and returns a value, which would be lost", "yield Row(total=2)"),
        (is_async, "index", "is async, and an index handler only computes", "def is_async(item):"),
        (is_async_and_yields, "view", "is async, and a view handler only computes", "def is_async_and_yields(item):"),
    ],
)
def test_what_gives_nothing_or_is_async_is_refused_with_the_corrected_line(function, kind, what, corrected):
    with pytest.raises(DeclarationError) as caught:
        check_handler(function, kind)
    first, second = str(caught.value).splitlines()
    assert first.startswith(f"Handler {function.__name__} at {__file__}:{function.__code__.co_firstlineno} {what}")
    assert f"    {corrected}" == second


def test_a_function_without_source_is_refused_all_the_same():
    namespace = {}
    exec("def made_up(item): item.get(1)", namespace)
    with pytest.raises(DeclarationError, match=r"made_up at <string>:1 never returns(.|\n)*    return Row\(\.\.\.\)"):
        check_handler(namespace["made_up"], "view")


def bare_returns(item):
    with suppress(KeyError):
        for each in item["lines"]:
            try:
                if each:
                    return
            finally:
                yield Row(line=each)
            with suppress(ValueError):
                return None
    received = yield Row()
    yield from received or ()


@pytest.mark.parametrize("function", [good, bare_returns, partial(good)])
def test_a_generator_function_may_end_early(function):
    check_handler(function, "view")


@pytest.mark.parametrize(
    "function", [returns_a_row, returns_a_list, returns_a_row_or_none, partial(returns_a_row), lambda item: Row()]
)
def test_a_plain_function_may_return_what_it_gives(function):
    check_handler(function, "view")


@pytest.mark.parametrize("function", [good, is_async, is_async_and_yields])
def test_an_external_handler_must_be_a_plain_function(function):
    with pytest.raises(DeclarationError, match="is declared external=True: expected a plain function that does"):
        check_plain(function)


def test_a_plain_function_may_be_external():
    check_plain(returns_a_row)


def asks(item, order_id: str, line: int) -> Iterator[Row]:
    yield Row(order_id=order_id, line=line)


def asks_by_keyword(item, *, order_id, at: datetime) -> Iterator[Row]:
    yield Row()


def test_the_fields_that_a_handler_asks_for_follow_its_first_parameter():
    assert wanted_fields(asks, [ORDER_ITEM]) == ("order_id", "line")
    assert wanted_fields(asks_by_keyword, [ORDER_ITEM]) == ("order_id", "at")
    assert wanted_fields(good, [ORDER_ITEM]) == ()


def no_parameter():
    yield Row()


def keyword_first(*, item):
    yield Row()


def asks_for_another(item: Item, sku):
    yield Row()


def asks_for_all(item, **fields):
    yield Row()


def asks_with_defaults(item, limit=10, line=0):
    yield Row()


FIELDS = "(its fields: order_id, at, line); write, with those that you need,"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_parameter, "takes no parameter: the first is the item or the change, write\n    def no_parameter(item):"),
        (keyword_first, "takes no parameter: the first is the item or the change, write\n    def keyword_first(item):"),
        (asks_for_another, f"asks for 'sku', which is no field of {ORDER_ITEM!r} {FIELDS}"),
        (asks_for_another, "need,\n    def asks_for_another(item, order_id, at, line):"),
        (asks_for_all, f"asks for '**fields', which is no field of {ORDER_ITEM!r} {FIELDS}"),
    ],
)
def test_a_parameter_that_nothing_fills_is_refused_with_the_corrected_line(function, message):
    with pytest.raises(DeclarationError) as caught:
        wanted_fields(function, [ORDER_ITEM])
    assert message in str(caught.value)


def test_a_parameter_with_a_default_that_is_no_field_is_the_functions_own():
    assert wanted_fields(asks_with_defaults, [ORDER_ITEM]) == ("line",)


def test_a_parameter_with_a_default_may_be_a_field_of_some_sources_only():
    assert wanted_fields(asks_with_defaults, [PAYMENT, ORDER_ITEM]) == ("line",)
    assert wanted_fields(asks_with_defaults, [PAYMENT]) == ()


def test_a_parameter_with_a_default_has_the_type_of_its_field():
    with pytest.raises(DeclarationError, match=r"takes line as str, but \{line:03d\}"):
        wanted_fields(annotated(str, default=""), [PAYMENT, ORDER_ITEM])


def test_a_parameter_must_be_a_field_of_every_source():
    with pytest.raises(DeclarationError, match=r"asks for 'line: int', which is no field of Key\('PAYMENT#"):
        wanted_fields(asks, [ORDER_ITEM, PAYMENT])


def annotated(annotation, **defaults):
    def handler(item, line):
        yield Row()

    handler.__annotations__["line"] = annotation
    handler.__defaults__ = tuple(defaults.values())
    return handler


@pytest.mark.parametrize("annotation", [str, "str", float, bool, date, "datetime.date", Decimal])
def test_an_annotation_that_does_not_fit_a_typed_field_is_refused(annotation):
    with pytest.raises(DeclarationError) as caught:
        wanted_fields(annotated(annotation), [ORDER_ITEM])
    name = annotation.rpartition(".")[2] if isinstance(annotation, str) else annotation.__name__
    message = f"takes line as {name}, but {{line:03d}} of {ORDER_ITEM!r} is of type int; write\n    line: int"
    assert message in str(caught.value)


@pytest.mark.parametrize("annotation", [int, "int", "LineNumber", int | str, object])
def test_an_annotation_that_fits_or_is_unknown_is_taken(annotation):
    assert wanted_fields(annotated(annotation), [ORDER_ITEM]) == ("line",)


def test_a_place_is_a_file_and_a_line():
    assert f"{__file__}:{good.__code__.co_firstlineno}" == source_line(good)
    assert source_line(partial(good)).startswith("functools.partial(")


def test_a_handler_may_return_a_row_or_none_in_one_expression():
    def counted(order):
        return Row(n=1) if order.get("paid") else None

    check_handler(counted, "view")


def written(body):
    """A handler that is written so."""
    names = {}
    exec(f"def handler(item):\n    {body}", names)
    return names["handler"]


@pytest.mark.parametrize(
    "body",
    [
        "return 1",
        "return item and None",
        "return None if item else item",
        "return item if item else None",
        "return [" + ", ".join(f"'{number}'" for number in range(300)) + ", item]",
        "x = (" + ", ".join(f"item[{number}.5]" for number in range(300)) + "); return 'last'",
    ],
)
def test_a_function_that_may_return_a_value_is_a_handler(body):
    check_handler(written(body), "view")


@pytest.mark.parametrize(
    "body",
    [
        "item.get('a')",
        "return",
        "return None",
        "if item: return",
        "x = (" + ", ".join(f"item[{number}.5]" for number in range(300)) + "); return None",
    ],
)
def test_a_function_that_returns_nothing_is_no_handler(body):
    with pytest.raises(DeclarationError, match="never returns or yields anything"):
        check_handler(written(body), "view")
