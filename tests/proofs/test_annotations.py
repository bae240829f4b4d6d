"""Items that ``check`` draws from the annotations of handlers."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from random import Random
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import pytest

from streamfold import App, Count, Key, Lookup, Router, Row, Sum
from streamfold.proofs.annotations import attributes_of, drawn_item, drawn_items
from streamfold.records.values import encode
from streamfold.testing import check
from streamfold.testing.items import TwinError

ORDER, TOTAL = Key("ORDER#{order_id}", "METADATA"), Key("DAY#{day}", "TOTAL")
PRODUCT = Key("PRODUCT#{product_id}", "META")


class Colour(Enum):
    RED = "red"


class Order(TypedDict):
    day: str
    total: int
    product_id: NotRequired[str]


class Product(TypedDict):
    price: int


class Everything(TypedDict):
    text: str
    whole: int
    fraction: Decimal
    real: float
    truth: bool
    binary: bytes
    moment: datetime
    day: date
    colour: Colour
    one_of: Literal["x", "y"]
    identifier: UUID
    maybe: int | None
    lines: list[Order]
    pair: tuple[int, str]
    tags: set[str]
    counts: dict[str, int]
    marked: Annotated[int, "marked"]
    nothing: None


def application():
    router = Router()

    @router.view(ORDER, into=TOTAL)
    def totals(order: Order) -> Row:
        return Row(day=order["day"], total=Sum(order["total"]))

    @router.view(ORDER, into=Key("PRICE#{price:d}", "ALL"), lookup={"product": Lookup(PRODUCT)})
    def priced(order: Order, product: Product) -> Row:
        return Row(price=product["price"], orders=Count())

    return App("shop", routers=[router])


def test_an_application_with_annotated_items_is_proved_without_examples():
    proof = check(application(), histories=20)
    assert proof.unproved == ()
    assert proof.histories == 20


def test_items_are_the_same_at_each_call_and_fit_their_annotation():
    first, second = [drawn_items(application(), 5, lambda _: True) for _ in range(2)]
    assert first == second
    assert set(first) == {ORDER, PRODUCT}
    for each in first[ORDER]:
        assert {"day", "total"} <= set(each) <= {"day", "total", "product_id"}


def test_an_attribute_that_may_lack_is_drawn_in_some_items():
    found = drawn_items(application(), 20, lambda _: True)[ORDER]
    assert {"product_id" in each for each in found} == {True, False}


def test_keys_with_examples_are_not_drawn():
    assert set(drawn_items(application(), 1, lambda key: key != ORDER)) == {PRODUCT}


def test_every_type_of_an_item_can_be_drawn_and_stored():
    for seed in range(30):
        encode(drawn_item(Everything, Random(seed)))


def test_a_type_without_values_is_refused_with_the_remedy():
    class Odd(TypedDict):
        it: complex

    with pytest.raises(TwinError, match=r"Odd.it is of type .*complex.*give examples of the items"):
        drawn_item(Odd, Random(0))


def test_a_handler_that_names_no_type_needs_examples():
    router = Router()

    @router.view(ORDER, into=TOTAL)
    def totals(order: Mapping[str, Any]) -> Row:
        return Row(day=order["day"])

    with pytest.raises(TwinError, match=r"give examples .* or annotate the handlers' items with a TypedDict"):
        check(App("shop", routers=[router]))


def test_attributes_of_a_dataclass_with_a_default_may_lack():
    @dataclass
    class Given:
        one: int
        other: int = 0

    assert [(each.name, each.required) for each in attributes_of(Given)] == [("one", True), ("other", False)]


def test_attributes_of_a_model_are_named_by_their_aliases():
    pydantic = pytest.importorskip("pydantic", reason="pydantic comes with the extra 'typed'")

    class Model(pydantic.BaseModel):
        order_day: str = pydantic.Field(alias="orderDay")
        total: int = 0

    assert [(each.name, each.required) for each in attributes_of(Model)] == [("orderDay", True), ("total", False)]


@dataclass(frozen=True)
class Decoded:
    day: str
    total: int


def test_items_of_a_dataclass_are_drawn():
    pytest.importorskip("pydantic", reason="pydantic comes with the extra 'typed'")
    router = Router()

    @router.view(ORDER, into=TOTAL)
    def totals(order: Decoded) -> Row:
        return Row(day=order.day, total=Sum(order.total))

    assert check(App("shop", routers=[router]), histories=20).unproved == ()
