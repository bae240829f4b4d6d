"""Single steps of an application over tables in process."""

import re

import pytest

from streamfold import App, Count, Document, Key, Lookup, Put, Router, Row, Sum, Table
from streamfold.errors import SettingsError
from streamfold.testing import HandlerFails, Twin, TwinError
from tests.helpers.everything import BAND, ORDER_ITEM, ORDER_TOTAL, SEEN, SESSION, app, app_of, order_total

ITEM = {"price": 2, "quantity": 3, "day": "2026-03-01", "tags": [], "customer": "ana"}


@pytest.fixture
def twin():
    return Twin(app)


def test_put_is_seen_in_the_rows_at_once(twin):
    twin.put(ORDER_ITEM, order_id="1", sku="a", **ITEM)
    assert twin.rows(ORDER_TOTAL) == [{"PK": "ORDER#1", "SK": "TOTAL", "total": 6, "lines": 1}]


def test_amended_item_is_taken_back_before_it_is_added(twin):
    twin.put(ORDER_ITEM, order_id="1", sku="a", **ITEM)
    twin.put(ORDER_ITEM, order_id="1", sku="a", **{**ITEM, "quantity": 1})
    assert twin.row(ORDER_TOTAL, order_id="1")["total"] == 2


def test_row_without_contributors_is_gone(twin):
    twin.put(ORDER_ITEM, order_id="1", sku="a", **ITEM)
    twin.delete(ORDER_ITEM, order_id="1", sku="a")
    assert twin.row(ORDER_TOTAL, order_id="1") is None


def test_chains_are_run(twin):
    twin.put(ORDER_ITEM, order_id="1", sku="a", **ITEM)
    assert [row["orders"] for row in twin.rows(BAND)] == [1]


def test_expiry_is_told_from_deletion(twin):
    twin.put(SESSION, session_id="1", user="ana", day="2026-03-01", devices=1)
    twin.expire(SESSION, session_id="1")
    assert [row["state"] for row in twin.rows(SEEN)] == ["expired"]


def test_attribute_named_as_a_field_is_given_apart(twin):
    twin.put(ORDER_ITEM, order_id="1", sku="a", attributes={"sku": "other"}, **ITEM)
    assert twin.tables["main"].items()[0]["sku"] == "other"


def test_error_of_a_handler_is_raised_with_its_name_and_item(twin):
    with pytest.raises(
        HandlerFails,
        match=r"handler 'order_total' .*, item ORDER#1 / ITEM#a: AttributeMissing: The item has no attribute 'price'",
    ):
        twin.put(ORDER_ITEM, order_id="1", sku="a")


def test_number_keys_are_written_as_numbers():
    router = Router()
    reading = Key("SENSOR#{sensor}", "{at:number}", table=Table("sensors", sort="at"))

    @router.view(reading, into=Key("SENSOR#{sensor}", "TOTAL"))
    def total(item):
        yield Row(value=Sum(item["value"]))

    twin = Twin(App("sensors", routers=[router]))
    twin.put(reading, sensor="a", at=5, value=7)
    assert twin.rows(Key("SENSOR#{sensor}", "TOTAL")) == [{"PK": "SENSOR#a", "SK": "TOTAL", "value": 7}]


ORDER = Key("ORDER#{order_id}", "METADATA")
cascading = Router()
cascading.cascade(ORDER, children=[ORDER_ITEM])
cascading.view(ORDER_ITEM, into=ORDER_TOTAL)(order_total)


@pytest.mark.parametrize("key", [Key("FOO", "BAR"), Key("ORDER#{order_id}", "TOTALS"), ORDER_ITEM])
def test_rows_of_a_key_that_no_handler_writes_are_refused_with_those_that_some_write(twin, key):
    message = f"No handler of 'everything' writes rows of {key!r}: expected one of "
    for read in (lambda: twin.rows(key), lambda: twin.row(key, **dict.fromkeys(key.fields, "1"))):
        with pytest.raises(TwinError, match=re.escape(message)) as caught:
            read()
    assert f" {ORDER_TOTAL!r}, " in str(caught.value)
    assert str(caught.value).endswith("Items that were put are in twin.tables.")


def test_an_item_of_a_table_that_no_handler_reads_is_refused(twin):
    key = Key("ORDER#{order_id}", "METADATA", table=Table("elsewhere"))
    for write in (twin.put, twin.delete, twin.expire):
        with pytest.raises(TwinError, match="reads table 'elsewhere': expected one of 'main'"):
            write(key, order_id="1")


def test_rows_are_read_by_a_narrower_or_a_wider_key_than_the_target_s_too(twin):
    twin.put(ORDER_ITEM, order_id="1", sku="a", **ITEM)
    assert twin.row(Key("ORDER#1", "TOTAL"))["total"] == 6
    assert len(twin.rows(Key("ORDER#{order}", "{rest:rest}"))) == 1


def test_children_of_a_removed_item_go_with_it_and_come_again():
    twin = Twin(App("shop", routers=[cascading]))
    twin.put(ORDER, order_id="1")
    for sku in "ab":
        twin.put(ORDER_ITEM, order_id="1", sku=sku, **ITEM)
    twin.put(ORDER_ITEM, order_id="2", sku="a", **ITEM)
    twin.delete(ORDER, order_id="1")
    assert [row["PK"] for row in twin.rows(ORDER_TOTAL)] == ["ORDER#2"]
    assert [item["PK"] for item in twin.tables["main"].items()] == ["ORDER#2"]
    twin.put(ORDER_ITEM, order_id="1", sku="a", **ITEM)
    assert twin.row(ORDER_TOTAL, order_id="1")["total"] == 6


def test_children_go_from_the_table_though_another_handler_fails():
    router = Router()
    router.cascade(ORDER, children=[ORDER_ITEM])

    @router.on(ORDER, events=["REMOVE"], into=Key("REMOVED", "{order_id}"))
    def removed(change):
        return Put(total=change.old["total"])

    twin = Twin(App("shop", routers=[router]))
    twin.put(ORDER, order_id="1")
    twin.put(ORDER_ITEM, order_id="1", sku="a")
    with pytest.raises(HandlerFails, match=r"'removed' .* has no attribute 'total'"):
        twin.delete(ORDER, order_id="1")
    assert twin.tables["main"].items() == []


def test_a_conflict_that_would_be_parked_is_shown_by_the_row():
    router, email = Router(), Key("EMAIL#{email}", "USER")

    @router.index(ORDER, into=email, unique=True, on_conflict="park")
    def by_email(order, order_id):
        yield Row(email=order["email"], order_id=order_id)

    twin = Twin(App("shop", routers=[router]))
    for order_id in "12":
        twin.put(ORDER, order_id=order_id, email="a@example.com")
    assert twin.row(email, email="a@example.com")["conflict"] == [{"order_id": "2"}]


def test_documents_are_read_as_a_search_of_the_index_may_find_them():
    router = Router()

    @router.search(ORDER_ITEM, to="lines", fields={"price": "long"})
    def lines(item):
        return Document(price=item["price"])

    twin = Twin(App("shop", routers=[router]))
    assert twin.documents("lines") == {}
    twin.put(ORDER_ITEM, order_id="1", sku="a", price=2)
    twin.put(ORDER_ITEM, order_id="1", sku="b", price=3)
    twin.delete(ORDER_ITEM, order_id="1", sku="a")
    assert twin.documents("lines") == {"ORDER#1|ITEM#b": {"price": 3}}
    with pytest.raises(SettingsError, match="lines"):
        twin.documents("rows")


def test_referents_of_a_table_that_only_a_lookup_names_have_its_key_types():
    line, row = Key("L#{l}", "X"), Key("R#{c}", "T")
    number = Key("{p:number}", table=Table("numbers", partition="id", sort=None))
    router = Router()

    @router.view(line, into=row, lookup={"number": Lookup(number, p="by")})
    def sales(line, number):
        return Row(c=number["c"], n=Count())

    twin = Twin(App("sums", routers=[router]))
    twin.put(number, p=7, c="X")
    twin.put(line, l="1", by=7)
    assert twin.row(row, c="X")["n"] == 1


def test_an_item_that_a_writer_puts_over_a_row_is_the_writer_s_from_then_on():
    twin = Twin(app_of("order_total"))
    twin.put(ORDER_ITEM, order_id="1", sku="a", price=5, quantity=1)
    twin.put(ORDER_TOTAL, order_id="1", total=40)
    with pytest.raises(HandlerFails, match="belongs to the application itself"):
        twin.put(ORDER_ITEM, order_id="1", sku="b", price=7, quantity=1)
    assert twin.row(ORDER_TOTAL, order_id="1")["total"] == 40
