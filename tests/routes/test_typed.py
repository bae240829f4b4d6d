"""Typed items: what pydantic makes of an item, and what is reported about an item that does not fit."""

import re
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_origin
from uuid import UUID

import pytest

from streamfold import App, Item, Key, Lookup, Parts, Put, Router, Row, Sum, TypedChange
from streamfold.errors import DeclarationError, HandlerError
from streamfold.records.images import Image, WatchedImage
from streamfold.records.values import encode
from streamfold.routes.declaration import with_typed_items
from streamfold.routes.parts import Part
from streamfold.testing import HandlerFails, Twin
from tests.helpers.records import change, item

ORDER, TOTAL = Key("ORDER#{order_id}", "METADATA"), Key("DAY#{day}", "TOTAL")
LINE, PRODUCT = Key("ORDER#{order_id}", "ITEM#{sku}"), Key("PRODUCT#{product_id}", "META")


PAGE = (Path(__file__).parents[2] / "docs/typed-items.md").read_text("utf-8")


def needs_pydantic():
    return pytest.importorskip("pydantic", reason="pydantic decodes: it comes with the extra 'typed'")


@dataclass(frozen=True)
class Order:
    day: str
    total: int
    note: str | None = None


class OrderItem(TypedDict):
    day: str
    total: int


def image_of(**values):
    return Image({name: encode(value) for name, value in values.items()})


def decoded(annotation, given):
    needs_pydantic()

    def handler(it):
        return it

    handler.__annotations__ = {"it": annotation}
    return with_typed_items(handler, "totals", 1, (), gets_items=True, at="here:1")(given)


def misfit(annotation, **values):
    with pytest.raises(HandlerError) as raised:
        decoded(annotation, image_of(**values))
    return str(raised.value)


class Colour(Enum):
    RED = "red"


def one(kind):
    """A dataclass with one attribute of a type."""

    @dataclass
    class One:
        it: Annotated[kind, "as it is"]

    One.__annotations__["it"] = kind
    One.__dataclass_fields__["it"].type = kind
    return One


TABLE = [
    ("text", str, "a", "a"),
    ("text to int", int, "5", 5),
    ("text to a moment", datetime, "2026-03-01T12:00:00Z", datetime(2026, 3, 1, 12, tzinfo=UTC)),
    ("text to a date", date, "2026-03-01", date(2026, 3, 1)),
    ("text to Decimal", Decimal, "5.25", Decimal("5.25")),
    (
        "text to an identifier",
        UUID,
        "12345678-1234-5678-1234-567812345678",
        UUID(int=0x12345678123456781234567812345678),
    ),
    ("text to an enum", Colour, "red", Colour.RED),
    ("text of few", Literal["a", "b"], "a", "a"),
    ("number to int", int, 5, 5),
    ("number to Decimal", Decimal, Decimal("5.25"), Decimal("5.25")),
    ("number to float", float, Decimal("5.25"), 5.25),
    ("whole number to float", float, 5, 5.0),
    ("binary", bytes, b"\x00\xff", b"\x00\xff"),
    ("boolean", bool, True, True),
    ("null", int | None, None, None),
    ("list", list[int], [1, 2], [1, 2]),
    ("list to a tuple", tuple[int, ...], [1, 2], (1, 2)),
    ("map", dict[str, int], {"a": 1}, {"a": 1}),
    ("map to a dataclass", Order, {"day": "a", "total": 1}, Order("a", 1)),
    ("set of text", set[str], {"a", "b"}, {"a", "b"}),
    ("set of text as a list", list[str], set("zyxcba"), list("abcxyz")),
    ("set of numbers", frozenset[int], {1, 2}, frozenset({1, 2})),
    ("set of binary", set[bytes], {b"a"}, {b"a"}),
]


@pytest.mark.parametrize(("kind", "stored", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_type_of_dynamodb_is_decoded(kind, stored, expected):
    found = decoded(one(kind), image_of(it=stored)).it
    assert (found, type(found)) == (expected, type(expected))


REFUSED = [
    ("number to an identifier", UUID, 5, "a whole number (N), expected UUID input should be a string"),
    ("text that is no Decimal", Decimal, "secret", "text (S), expected a valid decimal"),
    ("fraction to int", int, Decimal("1.5"), "a number with a fraction (N), expected a valid integer"),
    ("number to text", str, 5, "a whole number (N), expected a valid string"),
    ("null to int", int, None, "null (NULL), expected a valid integer"),
    ("text to a moment", datetime, "secret", "text (S), expected a valid datetime"),
    ("text to a number", int, "secret", "text (S), expected a valid integer"),
    ("text of others", Literal["a", "b"], "secret", "text (S), expected 'a' or 'b'"),
    ("map to list", list[int], {"a": 1}, "a map (M), expected a valid list"),
    ("list to map", dict[str, int], [1], "a list (L), expected a valid dictionary"),
    ("set to text", str, {"secret"}, "a set (SS, NS or BS), expected a valid string"),
    ("binary to a number", int, b"\xff", "binary (B), expected a valid integer"),
    ("boolean to text", str, True, "a boolean (BOOL), expected a valid string"),
]


@pytest.mark.parametrize(("kind", "stored", "expected"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_misfit_is_reported_with_both_types_and_without_the_value(kind, stored, expected):
    message = misfit(one(kind), it=stored)
    assert message.startswith(f"Handler 'totals' takes the item as One: attribute it is {expected}")
    assert "secret" not in message


LETTERS = {"SS": "SS, NS, BS", "NS": "SS, NS, BS", "BS": "SS, NS, BS"}
NAMES = {Order: "a dataclass", Colour: "an enum"}


def documented_lines():
    """The lines of the page's table, as (type of DynamoDB, types of Python)."""
    table = PAGE.partition("## DynamoDB's types")[2].partition("## ")[0]
    stored = ""
    for line in table.splitlines():
        if line.startswith("| ") and not line.startswith(("| in the item", "| ---")):
            cells = [cell.strip() for cell in line.replace("\\|", "/")[1:-1].split("|")]
            stored = cells[0] or stored
            yield stored, cells[1].replace("/", "|")


def types_played():
    """The pairs of types that a row of the tables above plays."""
    for _, kind, stored, _ in (*TABLE, *REFUSED):
        (tag,) = encode(stored)
        name = NAMES.get(kind) or ("`Literal`" if get_origin(kind) is Literal else f"`{_written(kind)}`")
        yield LETTERS.get(tag, tag), name


def _written(kind):
    return kind.__name__ if isinstance(kind, type) and not get_origin(kind) else str(kind)


@pytest.mark.parametrize(("stored", "kinds"), [pair for pair in documented_lines() if "(" in pair[0]])
def test_each_line_of_the_page_is_played(stored, kinds):
    letters = re.search(r"\((.*)\)", stored)[1]
    tested = {name for tag, name in types_played() if tag == letters}
    wanted = {*re.findall(r"`[^`]+`|an enum|a dataclass", kinds)} - {"`TypedDict`"}  # which has a test of its own
    assert wanted <= tested, f"no row plays {wanted - tested}"


def test_a_map_is_a_typed_dict():
    needs_pydantic()
    from typing_extensions import TypedDict as Inner  # before 3.12 pydantic takes no other

    bill = Inner("bill", {"total": int})  # noqa: UP013 - its class would be of another module
    assert decoded(one(bill), image_of(it={"total": 1})).it == {"total": 1}


def test_a_map_is_a_model():
    pydantic = needs_pydantic()
    model = pydantic.create_model("Bill", total=(int, ...))
    assert decoded(one(model), image_of(it={"total": 1})).it.total == 1


def test_the_other_lines_of_the_page_are_those_of_absent_and_unknown_attributes():
    assert [stored for stored, _ in documented_lines() if "(" not in stored] == [
        "no attribute",
        "an attribute without field",
    ]


def test_an_absent_attribute_is_missing_unless_the_type_has_a_default():
    assert "attribute total is missing" in misfit(Order, day="a")
    assert decoded(Order, image_of(day="a", total=1)).note is None


def test_null_is_no_absent_attribute():
    assert "attribute day is null (NULL), expected a valid string" in misfit(Order, day=None, total=1)


def test_unknown_attributes_are_ignored():
    assert decoded(Order, image_of(day="a", total=1, more=2)) == Order("a", 1)


def test_unknown_attributes_are_refused_by_a_model_that_forbids_them():
    pydantic = needs_pydantic()

    class Strict(pydantic.BaseModel, extra="forbid"):
        day: str

    assert "attribute more is text (S), and the type has no such field" in misfit(Strict, day="a", more="secret")


def test_an_attribute_inside_is_named_by_its_path():
    @dataclass
    class Outer:
        lines: list[Order]

    message = misfit(Outer, lines=[{"day": "a", "total": 1}, {"day": "a", "total": "secret"}])
    assert "attribute lines.1.total is text (S)" in message
    assert "secret" not in message


def test_many_misfits_are_counted():
    @dataclass
    class Many:
        a: int
        b: int
        c: int
        d: int
        e: int

    assert "attribute c is missing; and 2 more." in misfit(Many)


def test_a_validator_is_never_quoted():
    pydantic = needs_pydantic()

    class Checked(pydantic.BaseModel):
        it: str

        @pydantic.field_validator("it")
        @classmethod
        def check(cls, value: str) -> str:
            raise ValueError(f"bad {value}")

    message = misfit(Checked, it="secret")
    assert "expected what its validator takes (value_error)" in message
    assert "secret" not in message


def test_a_tag_of_a_union_is_never_quoted():
    pydantic = needs_pydantic()

    class Cat(pydantic.BaseModel):
        kind: Literal["cat"]

    class Dog(pydantic.BaseModel):
        kind: Literal["dog"]

    message = misfit(Annotated[Cat | Dog, pydantic.Field(discriminator="kind")], kind="secret")
    assert "secret" not in message


def test_a_union_is_the_member_that_fits():
    @dataclass
    class Invoice:
        sum: int

    assert decoded(Order | Invoice, image_of(sum=3)) == Invoice(3)
    message = misfit(Order | Invoice, other=1)
    assert "takes the item as Order | Invoice: attribute Order.day is missing" in message


def test_a_model_is_read_by_its_aliases():
    pydantic = needs_pydantic()

    class Aliased(pydantic.BaseModel):
        order_day: str = pydantic.Field(alias="orderDay")

    assert decoded(Aliased, image_of(orderDay="a")).order_day == "a"


def test_an_annotation_written_as_text_is_decoded(monkeypatch):
    monkeypatch.setitem(globals(), "Order", Order)

    def handler(it):
        return it

    needs_pydantic()
    handler.__annotations__ = {"it": "Order"}
    assert with_typed_items(handler, "x", 1, (), gets_items=True, at="here:1")(image_of(day="a", total=1)) == Order(
        "a", 1
    )


@pytest.mark.parametrize("annotation", [Item, "Item", OrderItem, "OrderItem", Any, dict, "Unknown", Item | None])
def test_a_plain_annotation_leaves_the_function_as_it_is(annotation):
    def handler(it):
        return it

    handler.__annotations__ = {"it": annotation}
    assert with_typed_items(handler, "x", 1, (), gets_items=True, at="here:1") is handler


def test_a_handler_without_annotations_never_imports_the_decoder(monkeypatch):
    monkeypatch.setitem(sys.modules, "streamfold.routes.typed", None)  # an import raises
    router = Router()

    def totals(order):
        return Row(day=order["day"], total=Sum(order["total"]))

    def annotated(order: Item) -> Row:
        return Row(day=order["day"], total=Sum(order["total"]))

    router.view(ORDER, into=TOTAL)(totals)
    router.view(ORDER, into=TOTAL)(annotated)
    assert [route.function for route in router.routes] == [totals, annotated]


def test_without_pydantic_the_declaration_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydantic", None)

    @dataclass
    class Other:
        total: int

    with pytest.raises(DeclarationError, match=r"pip install 'streamfold\[typed\]'. A TypedDict needs nothing"):

        @Router().view(ORDER, into=TOTAL)
        def totals(order: Other) -> Row:
            return Row(day="a", total=Sum(order.total))


def test_a_type_that_pydantic_does_not_know_is_refused_at_import():
    needs_pydantic()

    class Opaque:
        pass

    with pytest.raises(DeclarationError, match=r"pydantic makes no One of an item"):
        decoded(one(Opaque), image_of(it=1))


def typed_app(*, extra=()):
    needs_pydantic()
    router = Router()

    @router.view(ORDER, into=TOTAL)
    def totals(order: Order) -> Row:
        return Row(day=order.day, total=Sum(order.total))

    return App("shop", routers=[router, *extra])


def test_a_view_of_a_dataclass_follows_its_items():
    twin = Twin(typed_app())
    twin.put(ORDER, order_id="1", day="a", total=3)
    twin.put(ORDER, order_id="1", day="b", total=4)
    assert twin.row(TOTAL, day="a") is None
    assert twin.row(TOTAL, day="b")["total"] == 4


def test_the_function_stays_plain():
    router = Router()
    needs_pydantic()

    @router.view(ORDER, into=TOTAL)
    def totals(order: Order) -> Row:
        return Row(day=order.day, total=Sum(order.total))

    assert totals(Order("a", 3)) == Row(day="a", total=Sum(3))


def test_a_misfit_fails_its_record_alone():
    twin = Twin(typed_app())
    with pytest.raises(HandlerFails, match=r"attribute total is text \(S\), expected a valid integer"):
        twin.put(ORDER, order_id="1", day="a", total="many")


def test_an_old_image_that_does_not_fit_stops_no_removal():
    """The ledger holds what the item contributed: the type may have got a field since."""
    from streamfold.batch.process import process_changes
    from tests.helpers.looked_up import LookupShop

    class Shop(LookupShop):
        def __init__(self):
            super().__init__(typed_app())

    shop = Shop()
    written = shop.write("ORDER#1", "METADATA", {"day": "a", "total": 3})
    assert not process_changes(shop.runtime(), [written]).failures
    removed = shop.write("ORDER#1", "METADATA", None)
    removed._old = {name: value for name, value in removed.old.raw.items() if name != "total"}
    assert not process_changes(shop.runtime(), [removed]).failures
    assert [row for row in shop.engine.rows.values() if row["_sf_n"] != {"N": "0"}] == []


def test_an_image_is_decoded_once_for_all_handlers(monkeypatch):
    from streamfold.routes import typed

    calls = []
    decode = typed.Decoder._decoded
    monkeypatch.setattr(typed.Decoder, "_decoded", lambda self, *given: calls.append(1) or decode(self, *given))
    router = Router()
    needs_pydantic()
    for number in range(3):

        def totals(order: Order) -> Row:
            return Row(day=order.day, total=Sum(order.total))

        router.view(ORDER, into=Key(f"DAY{number}#{{day}}", "TOTAL"), name=f"totals{number}")(totals)
    Twin(App("shop", routers=[router])).put(ORDER, order_id="1", day="a", total=3)
    assert len(calls) == 1


def test_a_change_of_an_attribute_that_no_field_names_is_not_read():
    watched = WatchedImage(image_of(day="a", total=1, more=1))
    assert decoded(Order, watched) == Order("a", 1)
    assert watched.reads_alike(image_of(day="a", total=1, more=2))
    assert not watched.reads_alike(image_of(day="a", total=2, more=1))


def test_a_model_reads_all_attributes():
    pydantic = needs_pydantic()

    class Model(pydantic.BaseModel):
        day: str

    watched = WatchedImage(image_of(day="a", more=1))
    decoded(Model, watched)
    assert not watched.reads_alike(image_of(day="a", more=2))


def test_looked_up_items_are_typed():
    @dataclass(frozen=True)
    class Product:
        category: str

    needs_pydantic()
    router = Router()

    @router.view(LINE, into=TOTAL, lookup={"product": Lookup(PRODUCT, optional=True, reads=["category"])})
    def sales(line: Item, product: Product | None) -> Row:
        return Row(day=product.category if product else "none", total=Sum(line["quantity"]))

    twin = Twin(App("shop", routers=[router]))
    twin.put(LINE, order_id="1", sku="a", product_id="p", quantity=2)
    assert twin.row(TOTAL, day="none")["total"] == 2
    twin.put(PRODUCT, product_id="p", category="tea")
    assert twin.row(TOTAL, day="tea")["total"] == 2


def test_a_typed_referent_whose_field_reads_leaves_out_is_refused():
    needs_pydantic()
    with pytest.raises(DeclarationError, match=r"whose field 'total' reads= does not list.*reads=\[\"day\", \"note\""):

        @Router().view(LINE, into=TOTAL, lookup={"product": Lookup(PRODUCT, reads=["day"])})
        def sales(line: Item, product: Order) -> Row:
            return Row(day=product.day, total=Sum(product.total))


def test_parts_are_typed():
    needs_pydantic()
    parts = Parts({LINE: [Part(image_of(day="a", total=1), {"sku": "x"})], PRODUCT: []})
    assert parts(LINE, Order) == [Order("a", 1)]
    assert parts.one(LINE, Order) == Order("a", 1)
    assert parts.one(PRODUCT, Order) is None
    with pytest.raises(HandlerError, match=r"a part of Key\(.*as Order: attribute day is missing"):
        Parts({LINE: [{"total": 1}]})(LINE, Order)


def test_parts_of_a_typed_dict_are_the_items():
    parts = Parts({LINE: [{"day": "a", "total": 1}]})
    assert parts(LINE, OrderItem)[0]["total"] == 1
    assert parts.one(LINE, OrderItem)["day"] == "a"


def test_a_changes_images_are_typed():
    needs_pydantic()
    router = Router()

    @router.on(ORDER, into=Key("LOG#{order_id}", "{total}"))
    def log(change: TypedChange[Order]) -> Put | None:
        assert change.event == "INSERT"
        assert change.old is None
        return Put(total=str(change.new.total)) if change.new else None

    twin = Twin(App("shop", routers=[router]))
    twin.put(ORDER, order_id="1", day="a", total=3)
    assert twin.row(Key("LOG#{order_id}", "{total}"), order_id="1", total="3") is not None


def test_a_test_makes_a_typed_change():
    needs_pydantic()
    made = TypedChange(change(None, item("ORDER#1", "METADATA", day="a", total=3)), Order)
    assert (made.new, made.old) == (Order("a", 3), None)


@pytest.mark.parametrize("annotation", [OrderItem, str])
def test_a_typed_change_is_of_a_dataclass_or_model(annotation):
    with pytest.raises(DeclarationError, match=r"is no type to decode items to: expected a dataclass or a pydantic"):

        @Router().on(ORDER, into=TOTAL)
        def log(change: TypedChange[annotation]) -> Put:
            return Put(day="a")


def test_the_type_of_an_item_is_refused_for_a_change():
    needs_pydantic()
    with pytest.raises(DeclarationError, match=r"gets a change: write change: TypedChange\[Order\]"):

        @Router().on(ORDER, into=TOTAL)
        def log(change: Order) -> Put:
            return Put(day="a")


def test_the_type_of_a_change_is_refused_for_an_item():
    needs_pydantic()
    with pytest.raises(DeclarationError, match=r"gets an item: write order: Order"):

        @Router().view(ORDER, into=TOTAL)
        def totals(order: TypedChange[Order]) -> Row:
            return Row(day="a")


def test_a_default_made_by_a_factory_is_made():
    @dataclass
    class Tagged:
        tags: list[str] = field(default_factory=list)

    assert decoded(Tagged, image_of()).tags == []
