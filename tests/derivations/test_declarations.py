"""Declarations of kinds that take whole items: their options, and the ones that are refused."""

import re

import pytest

from streamfold import App, Count, Key, Put, Router, Row, Table
from streamfold.derivations.archive.kind import ARCHIVE
from streamfold.derivations.cascade.kind import CASCADE
from streamfold.derivations.copy.kind import COPY
from streamfold.errors import DeclarationError
from streamfold.routes.declaration import default_name

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
    router.copy(ORDER, ORDER_ITEM, to=COPIES, name="abroad", group="slow", on_error="park")
    (route,) = router.routes
    assert (route.kind, route.name, route.group, route.guard) == (COPY, "abroad", "slow", "row guard")
    assert route.sources == (ORDER, ORDER_ITEM)
    assert route.into == tuple(Key(*(part.text for part in key.parts), table=COPIES) for key in route.sources)
    assert route.declared_at.startswith(__file__)
    assert {key.declared_at for key in route.into} == {route.declared_at}
    assert str(route.policy) == "park"


def test_rows_of_a_copy_have_one_source_each(router):
    router.copy(ORDER, ORDER_ITEM, to=COPIES)
    (route,) = App("shop", routers=[router]).routes
    assert all(target.owned and not target.multi_source for target in route.targets)


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
    assert "copy 'copy_shop_order_metadata'" in (message := refusal(lambda: App("shop", routers=[router])))
    assert "needs the new image, which view type OLD_IMAGE does not carry" in message


def test_derived_rows_are_not_copied(router):
    router.view(ORDER_ITEM, into=TOTAL)(order_total)
    router.copy(TOTAL, to=COPIES)
    assert "of kind copy may not read derived rows: declare it for the items that they are made of" in refusal(
        lambda: App("shop", routers=[router])
    )


def test_copies_are_not_copied_on(router):
    router.copy(ORDER, to=Table("near"))
    router.copy(Key("ORDER#{order_id}", "METADATA", table=Table("near")), to=Table("far"), name="on")
    assert "of kind copy may not read derived rows: declare it for the items that they are made of" in refusal(
        lambda: App("shop", routers=[router])
    )


def test_a_target_in_another_region_is_refused(router):
    there = Key("ORDER#{order_id}", "TOTAL", table=COPIES)
    router.view(ORDER_ITEM, into=there)(order_total)
    message = refusal(lambda: App("shop", routers=[router]))
    assert "view 'order_total'" in message
    assert "whose table is in region 'eu-west-1': only router.copy(..., to=...) goes to another region" in message


def test_a_source_in_another_region_is_refused(router):
    router.on(Key("ORDER#{order_id}", "METADATA", table=COPIES), into=Key("MOVED#{order_id}", "LAST"))(moved)
    assert "has Key('ORDER#{order_id}', 'METADATA', table='copies')" in refusal(lambda: App("shop", routers=[router]))


# Cascades


def cascading(router, *parents, children):
    router.cascade(*parents, children=children)
    return refusal(lambda: App("shop", routers=[router]))


def test_a_cascade_is_noted_with_its_parents_and_children(router):
    router.cascade(ORDER, children=[ORDER_ITEM, ORDER_ITEM], name="below", group="slow", on_error="park")
    (route,) = App("shop", routers=[router]).routes
    assert (route.kind, route.name, route.group, route.into) == (CASCADE, "below", "slow", ())
    assert (route.sources, route.kind.touches(route)) == ((ORDER,), (ORDER_ITEM,))
    assert route.guard == "parent absent, child as read"
    assert route.declared_at.startswith(__file__)


@pytest.mark.parametrize("children", [[], ORDER_ITEM, ["ITEM"]], ids=["none", "no list", "text"])
def test_a_cascade_without_children_is_refused(router, children):
    message = refusal(lambda: router.cascade(ORDER, children=children))
    assert "expected a list of Keys, children=[ORDER_ITEM]." in message


@pytest.mark.parametrize(
    "child",
    [
        Key("ITEMS#{order_id}", "ITEM#{sku}"),
        Key("ORDER#{id}", "ITEM#{sku}"),
        Key("ORDER#{order_id}", "ITEM#{sku}", table=Table("other")),
    ],
    ids=["partition", "name of a field", "table"],
)
def test_a_child_outside_of_its_parents_partition_is_refused(router, child):
    message = cascading(router, ORDER, children=[child])
    assert f"has the child {child!r}, which is not in the partition of {ORDER!r}" in message
    assert "Expected a template Key('ORDER#{order_id}', ...) of table 'main'." in message


@pytest.mark.parametrize("names", ["the parent", "the child"])
def test_a_table_s_time_to_live_may_be_said_by_one_key_of_a_partition(router, names):
    said = Table("main", ttl="expires")
    parent = Key("ORDER#{order_id}", "METADATA", table=said if names == "the parent" else None)
    child = Key("ORDER#{order_id}", "ITEM#{sku}", table=said if names == "the child" else None)
    router.cascade(parent, children=[child])
    assert [route.name for route in App("shop", routers=[router]).routes] == ["cascade_order_metadata"]


def test_a_cascade_that_would_reach_its_own_parent_is_refused(router):
    message = cascading(router, ORDER, children=[Key("ORDER#{order_id}", "{any:rest}")])
    assert "would reach its own parent: Key('ORDER#{order_id}', '{any:rest}') takes keys of Key('ORDER#" in message


def test_a_cascade_names_the_way_on_which_it_leads_back(router):
    left, right = Key("TREE#{tree}", "L#{a}#{b}"), Key("TREE#{tree}", "R#{a}#{b}")
    router.cascade(left, children=[Key("TREE#{tree}", "R#{a}#{b}")], name="to_the_right")
    router.cascade(right, children=[Key("TREE#{tree}", "L#{a}#{b}")], name="to_the_left")
    message = refusal(lambda: App("trees", routers=[router]))
    assert "would reach its own parent: 'to_the_right' leads to 'to_the_left' leads to 'to_the_right'." in message


def test_children_that_several_parents_would_share_are_refused(router):
    parent, child = Key("CUSTOMER#{customer}", "ORDER#{order}"), Key("CUSTOMER#{customer}", "NOTE#{n}")
    message = cascading(router, parent, children=[child])
    assert "several items of Key('CUSTOMER#{customer}', 'ORDER#{order}') would share" in message
    assert "Missing: order." in message


def test_children_that_are_derived_rows_are_refused(router):
    router.view(ORDER_ITEM, into=TOTAL)(order_total)
    message = cascading(router, ORDER, children=[Key("ORDER#{order_id}", "TOTAL")])
    assert "takes rows derived by 'order_total'" in message
    assert "these are removed with their sources" in message


def test_parents_that_are_derived_rows_are_refused(router):
    router.view(ORDER_ITEM, into=TOTAL)(order_total)
    message = cascading(router, TOTAL, children=[Key("ORDER#{order_id}", "NOTE#{n}")])
    assert "of kind cascade may not read derived rows: declare it for the items that they are made of" in message


# Archives


def test_an_archive_is_noted_with_its_place(router):
    router.archive(ORDER, ORDER_ITEM, to="s3://kept/orders", name="kept", on_error="park")
    (route,) = App("shop", routers=[router]).routes
    assert (route.kind, route.name, route.into) == (ARCHIVE, "kept", ())
    assert route.kind.outside_locations(route) == ("s3://kept/orders",)
    assert route.guard == "name by digest"


@pytest.mark.parametrize("place", ["kept", "s3://", "s3:///prefix", "file:", COPIES, None])
def test_an_archive_in_no_place_is_refused(router, place):
    message = refusal(lambda: router.archive(ORDER, to=place))
    assert "expected s3://BUCKET/PREFIX, or locally file:FOLDER." in message


def test_an_archive_needs_old_images(router):
    router.archive(Key("ORDER#{order_id}", "METADATA", table=Table("shop", view="NEW_IMAGE")), to="s3://kept")
    message = refusal(lambda: App("shop", routers=[router]))
    assert "keeps the old image, which view type NEW_IMAGE does not carry" in message


# Names of declarations that give none.


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (ORDER, "audit_order_metadata"),
        (Key("album#{artist}", "{album}"), "audit_album"),
        (Key("{workspace}#PROJECT#{project}", "TASK#{task}"), "audit_project_task"),
        (Key("Order-Lines#{id}", "V{n:04d}"), "audit_order_lines_v"),
        (Key("{one}", "{other}"), "audit"),
        (Key("{id}", table=Table("orders", partition="id", sort=None)), "audit_orders"),
        (Key("#{one}", "ÄÖ#{other}"), "audit"),
    ],
)
def test_a_declaration_without_a_name_is_named_after_its_source(source, name):
    assert default_name("audit", source) == name


def test_a_name_that_is_made_of_a_long_source_is_cut_and_ends_in_a_digest():
    names = [default_name("cascade", Key("ORDER" * 12 + f"#{end}" + "#{id}", "X")) for end in ("A", "B")]
    assert all(re.fullmatch("cascade_(order){7}or_[0-9a-f]{8}", name) for name in names)
    assert len({*names, default_name("cascade", Key("ORDER" * 12 + "#A#{id}", "X"))}) == 2


def test_further_sources_leave_the_name_as_it_is():
    router = Router()
    router.copy(ORDER, to=COPIES)
    router.copy(ORDER, ORDER_ITEM, to=COPIES)
    assert [route.name for route in router.routes] == ["copy_order_metadata"] * 2


def test_two_of_a_kind_need_no_names_in_one_application():
    router = Router()
    for source in (ORDER, ORDER_ITEM):
        router.audit(source)
        router.copy(source, to=COPIES)
        router.archive(source, to="s3://kept")
    router.cascade(ORDER, children=[ORDER_ITEM])
    names = {f"{kind}_order_{what}" for kind in ("audit", "copy", "archive") for what in ("metadata", "item")}
    assert {route.name for route in App("shop", [router]).routes} == {*names, "cascade_order_metadata"}


def test_two_that_get_one_name_are_refused_with_the_remedy():
    router = Router()
    for place in ("s3://one", "s3://other"):
        router.archive(ORDER, to=place)
    with pytest.raises(DeclarationError, match=r"named 'archive_order_metadata': .* give one of them another, name="):
        App("shop", [router])


def test_an_empty_name_is_refused():
    with pytest.raises(DeclarationError, match="has name='': expected a letter, then"):
        Router().archive(ORDER, to="s3://kept", name="")
