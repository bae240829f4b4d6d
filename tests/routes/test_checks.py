"""What an application's templates show to be wrong, said with both declarations when it is built."""

import re
from inspect import currentframe

import pytest

from streamfold import AUDIT, App, Count, Key, Put, Router, Row, Table
from streamfold.errors import DeclarationError
from streamfold.routes.checks import chained, checked_routes

ORDER = Key("ORDER#{order_id}", "METADATA")
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
TOTAL = Key("ORDER#{order_id}", "TOTAL")
SALES = Key("SALES#{day}", "SKU#{sku}")
BY_STATUS = Key("STATUS#{status}", "ORDER#{order_id}")
ALL = Key("TOTALS#ALL", "ORDERS")
EVERYTHING = Key("{partition:rest}", "{sort:rest}")
LOG = Key("LOG#{order_id}", "{what}")


def rows(item):
    yield Row(n=Count())


def effects(change):
    yield Put(what="x")


def called(change):
    pass


def checked(*declare):
    """The routes of one router to which these functions add theirs."""
    router = Router()
    for add in declare:
        add(router)
    return checked_routes(router.routes)


def view(*sources, into, name="rows"):
    return lambda router: router.view(*sources, into=into, name=name)(rows)


def index(*sources, into, name="index"):
    return lambda router: router.index(*sources, into=into, name=name)(rows)


def on(*sources, into=(), name="effects", **options):
    return lambda router: router.on(*sources, into=into, name=name, **options)(effects)


def external(*sources, **options):
    return lambda router: router.on(*sources, external=True, **options)(called)


def audit(*sources, **options):
    return lambda router: router.audit(*sources, **{"name": "audit"} | options)


def refused(*declare):
    with pytest.raises(DeclarationError) as caught:
        checked(*declare)
    return str(caught.value)


ROWS, EFFECTS = (f"{__file__}:{function.__code__.co_firstlineno}" for function in (rows, effects))


def test_two_handlers_of_one_name_are_refused_with_both_places():
    message = refused(view(ORDER, into=ALL, name="x"), on(ORDER, into=LOG, name="x"))
    assert f"Two handlers are named 'x': {ROWS} and {EFFECTS}. A name is a handler's identity in the ledger" in message


def test_a_table_declared_twice_differently_is_refused():
    one, other = Table("shop"), Table("shop", ttl="expires")
    message = refused(view(Key("A#{x}", "B", one), into=Key("C", "D", other)))
    assert message.startswith(f"Table 'shop' is declared twice, differently: {one} and {other}. Declare it once, and ")


@pytest.mark.parametrize("order", [1, -1])
def test_a_key_without_a_table_is_of_the_main_one_whatever_its_time_to_live(order):
    source, target = [Key("A#{x}", "B", Table("main", ttl="expires")), Key("C", "D")][::order]
    router = Router()
    view(source, into=target)(router)
    app = App("shop", routers=[router])
    assert app.tables == app.source_tables == {"main": Table("main", ttl="expires")}


@pytest.mark.parametrize("order", [1, -1])
def test_a_key_without_a_table_is_of_the_main_one_whatever_its_indexes(order):
    table = Table("main", indexes={"GSI1": {"GSI1PK": "S"}})
    source, target = [Key("A#{x}", "B", table), Key("C", "D")][::order]
    router = Router()
    view(source, into=target)(router)
    assert App("shop", routers=[router]).tables == {"main": table}


def test_a_table_declared_twice_with_other_indexes_is_refused():
    tables = [Table("shop", indexes={"GSI1": {"GSI1PK": tag}}) for tag in "SN"]
    message = refused(view(Key("A#{x}", "B", tables[0]), into=Key("C", "D", tables[1])))
    assert "Table 'shop' is declared twice, differently: " in message


def test_an_index_with_a_key_of_the_table_has_its_type():
    table = Table("shop", indexes={"LSI1": {"PK": "N", "at": "S"}})
    message = refused(view(Key("A#{x}", "B", table), into=Key("C", "D", table)))
    assert "Table 'shop' has the key 'PK' of type 'N' in index 'LSI1', and Key('A#{x}', 'B'" in message
    table = Table("shop", indexes={"LSI1": {"PK": "S", "at": "S"}})
    assert checked(view(Key("A#{x}", "B", table), into=Key("C", "D", table)))


def test_a_key_without_a_table_is_not_of_one_with_other_key_attributes():
    message = refused(view(Key("A#{x}", "B", Table("main", "id", ttl="expires")), into=Key("C", "D")))
    assert "Table 'main' is declared twice, differently: " in message


def test_keys_of_the_main_table_overlap_whoever_says_its_time_to_live():
    table = Table("main", ttl="expires")
    assert Key("A#{x}", "B").overlaps(Key("A#1", "B", table))
    assert Key("A#{x}", "B", table).contains(Key("A#1", "B"))


def test_a_table_declared_twice_alike_is_one():
    checked(view(Key("A#{x}", "B", Table("shop")), into=Key("C", "D", Table("shop"))))


def test_sources_that_overlap_without_one_holding_the_other_are_refused_with_both_places():
    line = currentframe().f_lineno
    one = Key("A#{x:rest}", "B")
    other = Key("A#1", "{y}")
    message = refused(view(one, into=ALL), on(other, into=Key("LOG#{y}", "C")))
    places = f"Sources {one!r} ({__file__}:{line + 1}) and {other!r} ({__file__}:{line + 2}) overlap: "
    assert places + "some keys are of both templates, but neither contains the other." in message


def test_sources_of_one_handler_that_overlap_are_refused_too():
    message = refused(view(Key("A#{x:02d}", "{s}"), Key("A#{x}", "B"), into=ALL))
    assert message.endswith("Give one of them a literal that the other does not match.")


def test_a_source_may_hold_another():
    assert checked(view(Key("A#{x:rest}", "B"), Key("{y:rest}", "B"), into=ALL))


def test_a_catch_all_for_audit_is_allowed_beside_narrower_keys():
    routes = checked(view(ORDER_ITEM, into=TOTAL), index(ORDER, into=BY_STATUS), audit(EVERYTHING))
    assert [route.name for route in routes] == ["rows", "index", "audit"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (index(ORDER, into=BY_STATUS, name="a"), index(ORDER, into=BY_STATUS, name="b")),
        (index(ORDER, into=BY_STATUS, name="a"), view(ORDER, into=BY_STATUS, name="b")),
        (view(ORDER_ITEM, into=SALES, name="a"), view(ORDER_ITEM, into=Key("SALES#{d}", "SKU#{sku}"), name="b")),
        (on(ORDER, into=LOG, name="a"), on(ORDER, into=LOG, name="b")),
        (view(ORDER, into=LOG, name="a"), audit(ORDER, into=Key("LOG#{order_id}", "{version:rest}"), name="b")),
        (audit(ORDER, name="a"), audit(ORDER, name="b")),
    ],
)
def test_two_writers_of_one_target_are_refused_with_both_places(first, second):
    message = refused(first, second)
    assert re.search(r"is written by 'a' \(.*test_checks.py:\d+\) and by 'b' \(.*test_checks.py:\d+\)", message)
    assert "a target has one writing handler, but for kinds whose handlers may share one, such as views with" in message


def test_a_target_that_is_written_under_two_names_is_shown_under_both():
    wider = Key("TOTALS#{x}", "ORDERS")
    message = refused(on(ORDER, into=ALL, name="a"), on(ORDER, into=wider, name="b"))
    assert f"(as {wider!r}): a target has one" in message
    assert "(as " not in refused(on(ORDER, into=ALL, name="a"), on(ORDER, into=ALL, name="b"))


def test_one_handler_with_two_targets_that_overlap_is_refused():
    assert "is written by 'rows'" in refused(view(ORDER, into=[ALL, Key("TOTALS#{x}", "ORDERS")]))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (view(ORDER_ITEM, into=SALES, name="a"), view(ORDER, into=SALES, name="b")),
        (view(ORDER_ITEM, into=SALES, name="a"), view(ORDER_ITEM, into=SALES, name="b")),
        (audit(ORDER, name="a"), audit(ORDER_ITEM, name="b")),
    ],
)
def test_views_share_a_target_and_audits_of_different_items_do(first, second):
    assert all(not target.sole_writer for route in checked(first, second) for target in route.targets)


SHOP, MUSIC, LOGS = Table("shop"), Table("music"), Table("logs")
HISTORY = Key("AUDIT#{item:rest}", "{version:rest}", LOGS)


def test_histories_of_two_tables_whose_keys_could_be_equal_are_refused_one_target():
    shop, music = Key("ORDER#{order_id}", "METADATA", SHOP), Key("{kind}#{id}", "{part}", MUSIC)
    for declare in (
        (audit(shop, into=HISTORY, name="a"), audit(music, into=HISTORY, name="b")),
        (audit(shop, music, into=HISTORY, name="a"),),
    ):
        message = refused(*declare)
        assert f"of {shop!r} and audit " in message
        assert (
            f"write one target, {HISTORY!r}: items of two tables with the same key would share one history" in message
        )


def test_histories_of_two_tables_whose_fields_alone_fill_one_target_are_refused():
    into = Key("HISTORY#{id}", "{version:rest}", LOGS)
    shop, music = Key("ORDER#{id}", "METADATA", SHOP), Key("SONG#{id}", "X", MUSIC)
    assert "share one history" in refused(audit(shop, into=into, name="a"), audit(music, into=into, name="b"))


@pytest.mark.parametrize("into", [HISTORY, Key("HISTORY#MUSIC#{item:rest}", "{version:rest}", LOGS)])
def test_histories_of_two_tables_whose_keys_differ_or_of_two_targets_are_allowed(into):
    shop, music = Key("ORDER#{id}", "METADATA", SHOP), Key("SONG#{id}", "X", MUSIC)
    assert checked(audit(shop, into=HISTORY, name="a"), audit(music, into=into, name="b"))


def test_histories_of_two_tables_go_to_the_default_target_of_each():
    everything = [Key("{partition:rest}", "{sort:rest}", table) for table in (SHOP, MUSIC)]
    assert checked(audit(*everything))


def test_histories_of_one_table_share_a_target():
    assert checked(audit(ORDER, name="a"), audit(ORDER_ITEM, name="b"))


def only_target(*declare):
    (route,) = checked(*declare)
    (target,) = route.targets
    return target


def test_a_target_that_holds_every_field_of_the_source_s_key_is_owned_and_put_whole():
    assert only_target(view(ORDER, into=BY_STATUS)).replaces
    assert only_target(view(ORDER_ITEM, into=Key("O#{order_id}", "{sku:rest}"))).owned


@pytest.mark.parametrize(
    ("source", "into"),
    [(ORDER_ITEM, TOTAL), (ORDER, ALL), (Key("A#{n:06d}", "B"), Key("C#{n}", "D"))],
)
def test_a_target_that_lacks_a_field_or_its_type_is_not_owned(source, into):
    target = only_target(view(source, into=into))
    assert not target.owned
    assert not target.replaces


def test_a_shared_target_is_added_to_even_where_it_is_owned():
    route, _ = checked(view(ORDER, into=BY_STATUS), view(Key("DRAFT#{order_id}", "X"), into=BY_STATUS, name="b"))
    assert route.targets[0].owned
    assert not route.targets[0].replaces


def test_a_target_of_several_sources_is_contested():
    assert only_target(index(ORDER, Key("DRAFT#{order_id}", "X"), into=BY_STATUS)).multi_source
    assert not only_target(index(ORDER, into=BY_STATUS)).multi_source


OTHER_TYPE = Key("S#{order_id:06d}", "X")


@pytest.mark.parametrize(("into", "missing"), [(ALL, "order_id"), (OTHER_TYPE, "a field of the same type")])
def test_an_index_into_a_target_that_it_does_not_own_is_refused_with_what_is_missing(into, missing):
    message = refused(index(ORDER, into=into))
    assert f"Index 'index' ({ROWS}) writes {into!r}, which it does not own: each index item has one source" in message
    assert message.endswith(
        f"Missing: {missing}. A row that several items may claim, of which one wins, is declared with unique=True."
    )


def test_an_audit_that_redacts_a_key_attribute_is_refused():
    message = refused(audit(ORDER, redact=["email", "SK", "PK"]))
    assert "has redact=['PK', 'SK']: key attributes are never among the changes" in message
    assert checked(audit(ORDER, redact=["email", "id"]))


EXPECTED = "expected a template with {version:rest} and either {item:rest} or every field of the source's key"


@pytest.mark.parametrize(
    "into",
    [
        LOG,
        Key("AUDIT#{item:rest}", "X"),
        Key("AUDIT", "{version:rest}"),
        Key("AUDIT#{item}", "{version:rest}"),
        Key("AUDIT#{item:rest}", "{version:06d}"),
        Key("AUDIT#{item:rest}", "{version}", Table("main2", delimiter=":")),
    ],
)
def test_an_audit_into_a_target_that_cannot_hold_a_row_for_each_change_is_refused(into):
    assert f"writes {into!r}: {EXPECTED}" in refused(audit(ORDER, into=into))


BY_FIELDS = [Key("AUDIT#{order_id}", "{version}"), Key("AUDIT#{order_id}#{version}", "X")]


@pytest.mark.parametrize("into", [AUDIT, *BY_FIELDS, Key("A", "{version}#{item:rest}")])
def test_an_audit_goes_into_a_target_of_item_or_fields_and_version(into):
    assert only_target(audit(ORDER, into=into)).owned


def test_an_audit_s_target_whose_fields_nothing_fills_is_refused_with_their_names():
    into = Key("AUDIT#{order_id}#{b}", "{a}#{version:rest}")
    assert f"nothing fills a, b of {into!r}." in refused(audit(ORDER, into=into))


def test_an_audit_s_target_must_be_filled_by_every_source():
    into = Key("AUDIT#{item:rest}", "{order_id}#{version:rest}")
    message = refused(audit(ORDER, Key("USER#{user_id}", "X"), into=into))
    assert f"nothing fills order_id of {into!r}" in message


def test_an_audit_whose_rows_the_table_cannot_hold_is_refused_with_the_place():
    message = refused(audit(ORDER, keep_days=30))
    assert re.match(r"Audit 'audit' \(.*:\d+\) has keep_days=30, but table 'main' declares no time-to-live", message)


VIEWS = ["NEW_AND_OLD_IMAGES", "NEW_IMAGE", "OLD_IMAGE", "KEYS_ONLY"]


def of(view_type, **options):
    """A key of a table with this view type."""
    return Key("ORDER#{order_id}", "METADATA", Table("shop", view=view_type, **options))


def target_of(source):
    return Key("LOG#{order_id}", "X", source.table)


@pytest.mark.parametrize(
    ("declare", "allowed"),
    [
        (lambda source: view(source, into=target_of(source)), {"NEW_AND_OLD_IMAGES", "NEW_IMAGE"}),
        (lambda source: index(source, into=target_of(source)), {"NEW_AND_OLD_IMAGES", "NEW_IMAGE"}),
        (audit, {"NEW_AND_OLD_IMAGES"}),
        (lambda source: on(source, into=target_of(source), changed=["status"]), {"NEW_AND_OLD_IMAGES"}),
        (lambda source: on(source, into=target_of(source)), set(VIEWS)),
        (external, set(VIEWS)),
    ],
    ids=["view", "index", "audit", "on changed", "on", "external"],
)
@pytest.mark.parametrize("view_type", VIEWS)
def test_each_kind_of_handler_may_do_what_the_view_type_carries(declare, allowed, view_type):
    if view_type in allowed:
        assert checked(declare(of(view_type)))
    else:
        message = refused(declare(of(view_type)))
        assert f"which view type {view_type} does not carry. Switch the stream to NEW_AND_OLD_IMAGES" in message
        assert message.endswith("Table 'shop' is declared with it.")


def test_a_table_of_no_stated_view_type_may_carry_anything():
    assert checked(view(ORDER, into=ALL), audit(ORDER))


@pytest.mark.parametrize(
    "declare",
    [
        [view(EVERYTHING, into=TOTAL)],
        [view(ORDER, into=TOTAL, name="a"), view(TOTAL, into=ORDER, name="b")],
        [
            view(Key("A#{x}", "1"), into=Key("B#{x}", "1"), name="a"),
            view(Key("B#{x}", "1"), into=Key("C#{x}", "1"), name="b"),
            index(Key("C#{x}", "{y}"), into=Key("A#{x}", "{y}"), name="c"),
        ],
        [view(ORDER, into=[ALL, TOTAL], name="a"), view(TOTAL, into=Key("ORDER#{order_id}", "{x}DATA"), name="b")],
    ],
    ids=["itself", "pair", "three", "overlap"],
)
def test_a_loop_is_refused_with_the_way_back(declare):
    message = refused(*declare)
    assert "would read rows derived from its own rows: " in message
    assert "Narrow its source or give it a target outside of it." in message


def test_a_chain_is_allowed_and_known():
    routes = checked(view(ORDER_ITEM, into=TOTAL, name="a"), view(TOTAL, into=ALL, name="b"))
    assert [(writer.name, target, reader.name) for writer, target, reader in chained(routes)] == [("a", TOTAL, "b")]


def test_a_view_may_read_rows_that_an_on_handler_puts():
    assert checked(on(ORDER, into=LOG), view(LOG, into=ALL))


@pytest.mark.parametrize("declare", [audit(TOTAL), on(TOTAL, into=LOG), external(TOTAL)])
def test_audit_and_on_over_derived_rows_are_refused_with_both_places(declare):
    message = refused(view(ORDER_ITEM, into=TOTAL), declare)
    assert f"reads {TOTAL!r}, which are rows derived by 'rows' ({ROWS})" in message
    remedy = f"declare it for the items that they are made of, {ORDER_ITEM!r}."
    assert re.search(r"A handler of kind (audit|on|external) may not read derived rows: ", message)
    assert message.endswith(remedy)


def test_an_on_handler_over_its_own_rows_is_refused():
    assert "which are rows derived by 'effects'" in refused(on(LOG, into=LOG))


def test_a_source_that_is_wider_than_derived_rows_with_one_field_in_both_parts_is_allowed():
    same, wider = Key("USER#{a}", "USER#{a}"), Key("USER#{a}", "USER#{b}")
    assert checked(view(ORDER, into=same), on(wider, into=Key("LOG#{a}", "{b}#{what}")))


def test_a_source_that_only_touches_derived_rows_is_allowed():
    assert checked(view(ORDER_ITEM, into=TOTAL), on(Key("ORDER#{order_id}", "{sort:rest}"), into=LOG))
