"""Declarations of parts: what a handler gets, and what is refused when it is declared, with the remedy."""

import pytest

from streamfold import App, Count, Every, Item, Key, Newest, Part, Parts, Router, Row
from streamfold.errors import DeclarationError, HandlerError
from streamfold.keys.table import Table
from streamfold.records.images import Image
from streamfold.routes.lookups import ReferentImage
from streamfold.routes.parts import PART, DeclaredPart
from streamfold.routes.roots import root_of

ORDER = Key("ORDER#{order_id}", "META")
LINE = Key("ORDER#{order_id}", "LINE#{sku}")
STATE = Key("STATE#{state}", "ORDERS")
DAY, CLICK = Key("USER#{user}", "DAY#{day}"), Key("USER#{user}", "CLICK#{day}#{at}")


def state(order, parts):
    return Row(state="x", orders=Count())


def route_of(*, source=ORDER, kind="view", function=state, **options):
    router = Router()
    more = {} if kind == "attributes" else {"into": STATE}
    getattr(router, kind)(source, **{**more, **options})(function)
    return App("shop", routers=[router]).routes[0]


def refused(**options):
    with pytest.raises(DeclarationError) as error:
        route_of(**options)
    return str(error.value)


def test_a_part_leads_to_its_root_by_the_fields_of_its_key():
    route = route_of(source=DAY, parts=[CLICK], into=Key("S#{state}", "N"))
    assert root_of(route, {"user": "u", "day": "1", "at": "9"}) == (
        ("main", "USER#u", "DAY#1"),
        {"user": "u", "day": "1"},
    )
    assert [each.key for each in route.kind.subscriptions(route) if each.role == PART] == [CLICK]


def test_a_part_is_read_by_the_narrowest_prefix():
    assert DeclaredPart(CLICK).prefix({"user": "u", "day": "1"}) == "CLICK#1#"
    assert DeclaredPart(LINE).prefix({"order_id": "1"}) == "LINE#"
    assert DeclaredPart(Key("ORDER#{order_id}", "TOTAL")).prefix({"order_id": "1"}) is None


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (LINE, "expected a list of Keys"),
        ([3], "expected a list of Keys"),
        ([Every("LINE")], "expected a Key"),
        ([Every(LINE, reads="sku")], 'reads=["sku"]'),
        ([Every(LINE, reads=["_sf_n"])], "which is no name of an attribute"),
        ([LINE, Every(LINE, reads=["a"])], "twice, differently"),
        ([Newest(LINE, 0)], "a whole number from 1 to 2000"),
        ([Newest(LINE, True)], "a whole number from 1 to 2000"),
        ([Newest(Key("ORDER#{order_id}", "MOVE#{n:d}"), 3)], "{n:06d}"),
        ([Newest(Key("ORDER#{order_id}", "TOTAL"), 3)], "name the key alone"),
        ([Key("CUSTOMER#{order_id}", "LINE#{sku}")], "Let an index put rows into this partition"),
        ([Key("ORDER#{order_id}", "LINE#{sku}", table=Table("other"))], "Let an index put rows into this partition"),
        ([Key("ORDER#{order_id}", "{what}")], "would reach its own parent"),
    ],
)
def test_parts_that_cannot_be_gathered_are_refused_with_the_remedy(parts, message):
    assert message in refused(parts=parts)


def test_newest_of_a_key_whose_own_fields_precede_the_roots_is_refused():
    mixed = Key("USER#{user}", "CLICK#{at}#{day}")
    assert "the last items are of other roots too" in refused(source=DAY, parts=[Newest(mixed, 3)])
    assert "Missing: day" in refused(source=DAY, parts=[Key("USER#{user}", "CLICK#{at}")])


def test_several_sources_are_refused():
    router = Router()
    with pytest.raises(DeclarationError, match="parts have one root"):
        router.view(ORDER, LINE, into=STATE, parts=[Key("ORDER#{order_id}", "X#{x}")])(state)


def test_optional_needs_parts_and_a_function_that_takes_none():
    assert "without parts=" in refused(optional=True, function=lambda order: Row(state="x", orders=Count()))

    def strict(order: Item, parts: Parts) -> Row:
        return Row(state="x", orders=Count())

    assert "order: Item | None" in refused(parts=[LINE], optional=True, function=strict)
    assert "optional=True: claims" in refused(
        kind="index", parts=[LINE], optional=True, unique=True, by="at", into=Key("S#{state}", "N")
    )
    with pytest.raises(TypeError, match="optional"):
        Router().attributes(ORDER, parts=[LINE], optional=True)(state)


def test_parts_that_are_listed_without_a_key_are_refused_with_the_keys():
    with pytest.raises(HandlerError, match=r"write parts\(KEY\), with a key of parts=, Key\('ORDER#\{order_id\}'"):
        list(Parts({LINE: [{"price": 3}]}))


def test_a_function_without_a_parameter_for_parts_is_refused():
    def alone(order):
        return Row(state="x", orders=Count())

    assert "def alone(order, parts):" in refused(parts=[LINE], function=alone)


@pytest.mark.parametrize("kind", ["on", "audit", "copy", "cascade", "archive", "feed"])
def test_other_kinds_refuse_parts_and_name_those_that_take_them(kind):
    required = {
        "on": {"into": STATE},
        "copy": {"to": Table("other")},
        "cascade": {"children": [LINE]},
        "archive": {"to": "file:x"},
        "feed": {"audience": LINE, "into": STATE, "keep_days": 3},
    }
    with pytest.raises(DeclarationError, match=f"router.{kind} takes no parts=: view, index, attributes, search do"):
        getattr(Router(), kind)(ORDER, parts=[LINE], **required.get(kind, {}))


def test_rows_that_are_spread_over_keys_are_no_parts():
    router = Router()
    spread = Key("ORDER#{order_id}", "SHARD#{shard:02d}")

    @router.view(LINE, into=spread, shards=3)
    def lines(line):
        return Row(lines=Count())

    router.view(ORDER, into=STATE, parts=[spread])(state)
    with pytest.raises(DeclarationError, match="Gather a view without shards"):
        App("shop", routers=[router])


def test_a_handler_that_gathers_what_follows_from_its_own_rows_is_refused():
    own = Key("ORDER#{order_id}", "OWN#{n:02d}")

    def rows(order, parts):
        return Row(n=len(parts(own)))

    assert "leads back to" in refused(kind="index", parts=[own], into=own, function=rows)


def test_another_attribute_than_those_of_reads_is_an_error_with_the_corrected_line():
    part = DeclaredPart(LINE, frozenset(["sku"]))
    image = Part(ReferentImage(part, {"sku": {"S": "a"}, "price": {"N": "1"}}), {})
    assert image["sku"] == "a"
    with pytest.raises(HandlerError, match=r'Write reads=\["price", "sku"\]'):
        image.get("price")


@pytest.mark.parametrize(
    ("one", "other", "agrees"),
    [
        ({"sku": "a", "note": 1}, {"sku": "a", "note": 2}, True),
        ({"sku": "a"}, {"sku": "b"}, False),
        ({"note": 1}, None, False),
        (None, None, True),
    ],
)
def test_a_change_counts_if_it_is_in_what_the_handler_reads(one, other, agrees):
    images = [Image({} if each is None else {n: {"S": str(v)} for n, v in each.items()}) for each in (one, other)]
    assert DeclaredPart(LINE, frozenset(["sku"])).agrees(*images) is agrees
