"""Declarations that take items as they are: what they note, and what they refuse where they stand."""

import pytest

from streamfold import App, Count, Key, Put, Router, Row, Table
from streamfold.errors import DeclarationError

ORDER = Key("ORDER#{order_id}", "METADATA")
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
COPIES = Table("copies", region="eu-west-1")


@pytest.fixture
def router():
    return Router()


def refusal(declare):
    with pytest.raises(DeclarationError) as raised:
        declare()
    return str(raised.value)


def order_total(item):
    yield Row(lines=Count())


def moved(change):
    yield Put(status="moved")


# Copies


def test_a_copy_is_noted_with_the_keys_of_its_sources_in_the_other_table(router):
    router.copy(ORDER, ORDER_ITEM, to=COPIES, name="abroad", function="slow", on_error="park")
    (route,) = router.routes
    assert (route.kind, route.name, route.group, route.guard) == ("copy", "abroad", "slow", "row guard")
    assert route.sources == (ORDER, ORDER_ITEM)
    assert route.into == tuple(Key(*(part.text for part in key.parts), table=COPIES) for key in route.sources)
    assert route.declared_at.startswith(__file__)
    assert {key.declared_at for key in route.into} == {route.declared_at}
    assert str(route.policy) == "park"


def test_rows_of_a_copy_have_one_source_each(router):
    router.copy(ORDER, ORDER_ITEM, to=COPIES)
    (route,) = App("shop", routers=[router]).routes
    assert all(target.owned and not target.contested for target in route.targets)


def test_a_copy_without_sources_is_refused(router):
    assert "expected one or several Keys, router.copy(ORDER, ...)." in refusal(lambda: router.copy(to=COPIES))


def test_a_copy_to_what_is_no_table_is_refused(router):
    assert 'expected a Table, to=Table("copies", region="eu-west-1").' in refusal(lambda: router.copy(ORDER, to="x"))


def test_a_copy_into_its_own_table_is_refused(router):
    assert "expected another table" in refusal(lambda: router.copy(ORDER, to=ORDER.table))


@pytest.mark.parametrize("to", [Table("copies", partition="id"), Table("copies", sort=None), Table("c", delimiter="/")])
def test_a_copy_into_a_table_of_other_keys_is_refused(router, to):
    message = refusal(lambda: router.copy(ORDER, to=to))
    assert f"to={to.name!r} with the key attributes {', '.join(to.attributes)} and the delimiter" in message
    assert "expected those of Key('ORDER#{order_id}', 'METADATA'), PK, SK and '#'." in message


def test_two_copies_of_one_item_in_one_table_are_refused(router):
    router.copy(ORDER, to=COPIES)
    router.copy(ORDER, to=COPIES, name="again")
    assert "a target has one writing handler" in refusal(lambda: App("shop", routers=[router]))


def test_a_copy_needs_new_images(router):
    order = Key("ORDER#{order_id}", "METADATA", table=Table("shop", view="OLD_IMAGE"))
    router.copy(order, to=COPIES)
    assert "copy 'copy'" in (message := refusal(lambda: App("shop", routers=[router])))
    assert "needs the new image, which view type OLD_IMAGE does not carry" in message


def test_derived_rows_are_not_copied(router):
    router.view(ORDER_ITEM, into=TOTAL)(order_total)
    router.copy(TOTAL, to=COPIES)
    assert "Only a view or an index may read derived rows." in refusal(lambda: App("shop", routers=[router]))


def test_copies_are_not_copied_on(router):
    router.copy(ORDER, to=Table("near"))
    router.copy(Key("ORDER#{order_id}", "METADATA", table=Table("near")), to=Table("far"), name="on")
    assert "Only a view or an index may read derived rows." in refusal(lambda: App("shop", routers=[router]))


def test_a_target_in_another_region_is_refused(router):
    there = Key("ORDER#{order_id}", "TOTAL", table=COPIES)
    router.view(ORDER_ITEM, into=there)(order_total)
    message = refusal(lambda: App("shop", routers=[router]))
    assert "view 'order_total'" in message
    assert "whose table is in region 'eu-west-1': only router.copy(..., to=...) goes to another region" in message


def test_a_source_in_another_region_is_refused(router):
    router.on(Key("ORDER#{order_id}", "METADATA", table=COPIES), into=Key("MOVED#{order_id}", "LAST"))(moved)
    assert "has Key('ORDER#{order_id}', 'METADATA', table='copies')" in refusal(lambda: App("shop", routers=[router]))
