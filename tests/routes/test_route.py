"""From a change's key to its routes, at a cost that does not grow with their number."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import Key, Router, Table
from streamfold.derivations.on.kind import ON, Filter
from streamfold.routes.application import Dispatch, DispatchEntry, Listener, entries_of
from streamfold.routes.checks import checked_routes
from streamfold.routes.route import SOURCE, Route, Target, owns
from tests.helpers.records import change, item

ORDER = Key("ORDER#{order_id}", "METADATA")
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
READING = Key("SENSOR#{sensor}", "{at:datetime.seconds}")
EVERYTHING = Key("{partition:rest}", "{sort:rest}")
LOG = Key("LOG#{order_id}", "X")
TEMPLATES = [
    *[ORDER, ORDER_ITEM, READING, EVERYTHING],
    *[Key("{tenant}#ORDER", "METADATA"), Key("ORDER#{order_id}", "{sort:rest}"), Key("TOTALS", "ALL")],
    *[Key("user{user_id}", "ITEM#{sku}"), Key("{partition:rest}", "METADATA"), Key("ORDER#{order_id}#", "{line:02d}")],
]
WORDS = ["ORDER", "METADATA", "ITEM", "TOTALS", "ALL", "user1", "12", "#", "#", ""]


def dispatch(keys):
    return Dispatch([DispatchEntry(key, ()) for key in keys], "#")


def found(routes, *values):
    return [entry.key for entry, _ in routes.find(*values)]


key_texts = st.lists(st.sampled_from(WORDS), max_size=4).map("".join)


@given(st.lists(st.sampled_from(TEMPLATES), unique=True), key_texts, key_texts)
def test_dispatch_finds_every_template_that_matches_and_no_other(keys, partition, sort):
    matching = {key for key in keys if key.match_values(partition, sort) is not None}
    assert matching == set(found(dispatch(keys), partition, sort))


def test_dispatch_gives_the_values_of_the_fields():
    ((entry, values),) = dispatch([ORDER, ORDER_ITEM]).find("ORDER#1", "ITEM#a")
    assert (entry.key, values) == (ORDER_ITEM, {"order_id": "1", "sku": "a"})


@pytest.mark.parametrize("count", [1, 10, 100])
def test_the_number_of_templates_tried_does_not_grow_with_the_number_of_routes(count):
    keys = [Key(f"KIND{number}#{{id}}", "METADATA") for number in range(count)]
    assert [keys[0]] == [entry.key for entry in dispatch(keys).candidates("KIND0#1", "METADATA")]


@pytest.mark.parametrize("count", [1, 10, 100])
def test_nor_does_it_where_the_sort_key_tells_the_kinds_apart(count):
    keys = [Key("ORDER#{id}", f"KIND{number}#{{x}}") for number in range(count)]
    assert [keys[-1]] == [entry.key for entry in dispatch(keys).candidates("ORDER#1", f"KIND{count - 1}#a")]
    assert dispatch(keys).candidates("ORDER#1", "METADATA") == []


def test_number_and_binary_keys_find_their_templates():
    table = Table("raw", partition="N", sort="B")
    key, mixed = Key("{n:number}", "{b:binary}", table), Key("A#{x}", "{b:binary}", table)
    routes = dispatch([key, mixed])
    assert [key] == found(routes, 5, b"\0")
    assert [mixed] == found(routes, "A#1", b"\0")
    assert found(routes, "5", "0") == []


def test_a_table_with_a_partition_key_only_finds_its_templates():
    table = Table("plain", sort=None)
    narrow, wide = Key("A#{x}", table=table), Key("{y:rest}", table=table)
    assert [narrow, wide] == found(dispatch([narrow, wide]), "A#1", None)
    assert [wide] == found(dispatch([narrow, wide]), "B", None)


@pytest.mark.parametrize(
    ("keys", "values", "misses"),
    [
        ([ORDER, ORDER_ITEM], ("ORDER#1", "ITEM#a#b"), [(ORDER_ITEM, "sku", "a#b")]),
        ([READING], ("SENSOR#s", "yesterday"), [(READING, "at", "yesterday")]),
        ([ORDER_ITEM, EVERYTHING], ("ORDER#1", "ITEM#a#b"), [(ORDER_ITEM, "sku", "a#b")]),
        ([ORDER_ITEM, Key("ORDER#{order_id}", "ITEM#{sku}#{size}")], ("ORDER#1", "ITEM#a#b"), []),
        ([ORDER_ITEM], ("ORDER#1", "ITEM#a"), []),
        ([ORDER_ITEM], ("ORDER#1", "METADATA"), []),
    ],
    ids=["plain", "typed", "beside a catch-all", "taken by a narrower key", "match", "other"],
)
def test_a_key_that_misses_a_template_by_one_field_is_told_unless_another_takes_it(keys, values, misses):
    assert misses == dispatch(keys).near_misses(*values)


@pytest.mark.parametrize(
    ("keys", "alone"),
    [
        ([ORDER, ORDER_ITEM], True),
        ([ORDER_ITEM, Key("ORDER#{order_id}", "ITEM#{sku}#{size}")], False),
        ([ORDER_ITEM, EVERYTHING], False),
        ([ORDER_ITEM, Key("ORDER#{order_id}", "{what}")], False),
        ([ORDER_ITEM, Key("CUSTOMER#{customer}", "{what}")], True),
        ([ORDER_ITEM, Key("{anything:rest}", "METADATA")], True),
        ([ORDER], False),
    ],
    ids=[
        "other segments",
        "the same segments",
        "a catch-all",
        "an open sort key",
        "one elsewhere",
        "an open partition key",
        "not among them",
    ],
)
def test_a_key_is_alone_where_no_other_may_fit_its_items(keys, alone):
    assert dispatch(keys).is_sole_writer(ORDER_ITEM) is alone


def test_the_entries_of_a_table_are_its_source_keys_with_their_routes():
    other = Key("X#{x}", "Y", Table("other"))
    first, second = route(ORDER, ORDER_ITEM), route(ORDER, other)
    one, two = (Listener(each, SOURCE, called=True) for each in (first, second))
    assert [DispatchEntry(ORDER, (one, two)), DispatchEntry(ORDER_ITEM, (one,))] == entries_of([first, second], "main")
    assert [DispatchEntry(other, (two,))] == entries_of([first, second], "other")


def route(*sources, **options):
    return Route("name", ON, sources, (), None, "here:1", options=Filter(**options))


INSERT, MODIFY = change(None, item("ORDER#1", n=1)), change(item("ORDER#1", n=1), item("ORDER#1", n=2))
REMOVE = change(item("ORDER#1", n=1), None)


@pytest.mark.parametrize(
    ("filters", "taken"),
    [
        ({}, [INSERT, MODIFY, REMOVE]),
        ({"events": frozenset({"INSERT", "REMOVE"})}, [INSERT, REMOVE]),
        ({"changed": frozenset({"n", "x"})}, [INSERT, MODIFY, REMOVE]),
        ({"changed": frozenset({"SK"})}, [INSERT, REMOVE]),
        ({"changed": frozenset({"x"})}, []),
        ({"expired": False}, [INSERT, MODIFY, REMOVE]),
        ({"expired": True}, []),
    ],
)
def test_the_filters_of_an_on_route_let_these_changes_through(filters, taken):
    assert taken == [each for each in (INSERT, MODIFY, REMOVE) if route(ORDER, **filters).takes(each)]


def test_an_expiry_passes_a_route_for_expiries_only():
    expiry = change(item("ORDER#1"), None)
    expiry.expired = True
    assert route(ORDER, expired=True).takes(expiry)
    assert not route(ORDER, expired=False).takes(expiry)


def test_a_target_is_found_by_its_key_or_where_it_is_the_only_one():
    log, total = Target(LOG), Target(Key("TOTAL", "X"))
    one, two = (replace(route(ORDER), targets=targets) for targets in ((log,), (log, total)))
    assert log is one.target(None)
    assert two.target(None) is None
    assert total is two.target(Key("TOTAL", "X"))
    assert two.target(ORDER) is None


def effects(change):
    yield from ()


def test_each_kind_has_its_guard():
    router, kept = Router(), Key("KEPT#{order_id}", "Y")
    router.view(ORDER, into=Key("TOTAL", "X"), name="view")(effects)
    router.index(ORDER, into=LOG, name="index")(effects)
    router.audit(ORDER, name="audit")
    router.on(ORDER, into=kept, name="put")(effects)
    router.on(ORDER, into=Key("COUNTS", "X"), name="add")(effects)
    router.on(ORDER, external=True, name="mail")(lambda change: None)
    guards = {each.name: each.guard for each in checked_routes(router.routes)}
    ledger = {"view": "ledger", "index": "ledger", "audit": "keyed put"}
    assert {**ledger, "put": "claim, row guard", "add": "claim", "mail": "idempotency"} == guards


@pytest.mark.parametrize(
    ("target", "source", "owned"),
    [
        ("datetime", "datetime.seconds", True),
        ("datetime", "number.seconds", True),
        ("datetime.any", "datetime.any", True),
        ("datetime.any", "datetime", True),
        ("datetime", "datetime.any", False),
        ("datetime.nanoseconds", "datetime.any", False),
        ("datetime", "datetime.nanoseconds", False),
    ],
)
def test_a_target_owns_times_only_if_it_tells_their_texts_apart(target, source, owned):
    assert owns(Key("T", f"{{at:{target}}}"), Key("S", f"{{at:{source}}}")) == owned
