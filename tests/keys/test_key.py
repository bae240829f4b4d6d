"""Key templates: matching and composing are inverse, and what cannot be is refused where it stands."""

import pickle
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import StrEnum

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from streamfold import Key, Table
from streamfold.errors import DeclarationError, KeyValueError, plain
from streamfold.keys.field import Unreadable

ORDER = Key("ORDER#{order_id}", "METADATA")
ORDER_ITEM = Key("ORDER#{order_id}", "ITEM#{sku}")
READING = Key("SENSOR#{sensor}#{day:date}", "{number:06d}#{note:rest}")
PLAIN = Table("plain", sort=None)

FIELDS = {
    "{x}": st.text("ab-é0", min_size=1, max_size=4),
    "{x:02d}": st.integers(0, 99),
    "{x:d}": st.integers(-20, 20),
    "{x:date}": st.dates(),
    "{x:datetime.seconds}": st.datetimes(timezones=st.just(UTC)).map(lambda at: at.replace(microsecond=0)),
}
LITERALS = ["A#", "#", "-", "B", "0", "METADATA"]


@st.composite
def parts(draw, names):
    """A part of a template and values for its fields."""
    text, values = draw(st.sampled_from(["", *LITERALS])), {}
    for name in draw(st.sampled_from([names, names[:1], ""])):
        form = draw(st.sampled_from(list(FIELDS)))
        text += form.replace("x", name) + draw(st.sampled_from(["", *LITERALS]))
        values[name] = draw(FIELDS[form])
    if draw(st.booleans()):
        last = names[-1].upper()
        text, values = f"{text}{{{last}:rest}}", values | {last: draw(FIELDS["{x}"])}
    return text, values


@st.composite
def keys(draw):
    """A key and values for its fields; malformed templates do not count."""
    (partition, some), (sort, others) = draw(parts("xy")), draw(parts("zw"))
    try:
        return Key(partition, sort), some | others
    except DeclarationError:
        assume(False)


@given(st.text("O#1é", max_size=4) | st.integers(), st.sampled_from(["ORDER#", ""]))
def test_a_part_of_one_text_does_what_its_expression_and_its_writers_do(value, begins):
    quick, general = (Key(f"{begins}{{order_id}}", "METADATA").partition for _ in range(2))
    general._one_text = None
    for text in (value, f"ORDER#{value}"):
        assert quick.match(text) == general.match(text)
    assert composed(quick, value) == composed(general, value)


def composed(part, value):
    try:
        return part.compose({"order_id": value})
    except (KeyValueError, Unreadable) as error:
        return str(error)


@given(keys())
def test_what_a_template_composes_it_matches_with_the_same_values_or_it_refuses_to(key_and_values):
    key, values = key_and_values
    try:
        composed = key.key(**values)
    except KeyValueError:
        assert key._wants_check  # two fields with a literal between them that both may hold
    else:
        assert values == key.match(composed)


@given(st.data(), keys())
def test_what_a_template_matches_it_composes_again(data, key_and_values):
    key, _ = key_and_values
    found = {part: data.draw(st.from_regex(part.pattern, fullmatch=True)) for part in key.parts}
    item = dict(zip(("PK", "SK"), found.values(), strict=True))
    assert key.match(item) is None or key.key(**key.match(item)) == item


@given(keys(), keys())
def test_a_key_that_two_templates_match_is_of_templates_that_overlap(one_and_values, other_and_values):
    (one, values), (other, _) = one_and_values, other_and_values
    try:
        item = one.key(**values)
    except KeyValueError:
        assume(False)
    assert other.match(item) is None or (one.overlaps(other) and other.overlaps(one))


def test_an_order_is_composed_and_matched():
    item = {"PK": "ORDER#o-1", "SK": "METADATA"}
    assert item == ORDER.key(order_id="o-1")
    assert ORDER.match({**item, "status": "new"}) == {"order_id": "o-1"}


def test_typed_fields_come_back_as_their_types():
    values = {"sensor": "s1", "day": date(2026, 3, 1), "number": 17, "note": "a#b"}
    item = {"PK": "SENSOR#s1#2026-03-01", "SK": "000017#a#b"}
    assert item == READING.key(**values)
    assert values == READING.match(item)


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"PK": "ORDER#1"},
        {"SK": "METADATA"},
        {"PK": "ORDER#1", "SK": "ITEM#1"},
        {"PK": "ORDER#", "SK": "METADATA"},
        {"PK": "ORDER#1#2", "SK": "METADATA"},
        {"PK": "ORDER#1\n", "SK": "METADATA\n"},
        {"PK": 1, "SK": "METADATA"},
    ],
)
def test_a_key_of_another_form_does_not_match(item):
    assert ORDER.match(item) is None


@pytest.mark.parametrize("sort", ["0000٣#n", "00017#n", "0000017#n", "-00017#n", "00017 #n"])
def test_a_padded_number_of_other_digits_or_width_does_not_match(sort):
    assert READING.match({"PK": "SENSOR#s1#2026-03-01", "SK": sort}) is None


def test_a_day_that_no_calendar_has_does_not_match():
    assert READING.match({"PK": "SENSOR#s1#2026-02-30", "SK": "000017#n"}) is None


def test_a_field_in_both_parts_must_have_one_value():
    key = Key("USER#{user_id}", "PROFILE#{user_id}")
    assert key.key(user_id="1") == {"PK": "USER#1", "SK": "PROFILE#1"}
    assert key.match({"PK": "USER#1", "SK": "PROFILE#2"}) is None


def test_fields_of_one_width_may_touch_what_follows():
    key = Key("{day:date}{at:datetime.seconds}{n:02d}{x}", "B")
    values = {"day": date(2026, 3, 1), "at": datetime(2026, 3, 1, 12, tzinfo=UTC), "n": 7, "x": "a"}
    assert key.key(**values) == {"PK": "2026-03-012026-03-01T12:00:00Z07a", "SK": "B"}
    assert key.match(key.key(**values)) == values


def test_number_and_binary_key_attributes_hold_the_value_itself():
    key = Key("{n:number}", "{b:binary}", table=Table("raw", partition="N", sort="B"))
    item = {"N": Decimal("1.5"), "B": b"\0"}
    assert item == key.key(n=Decimal("1.5"), b=b"\0")
    assert {"n": Decimal("1.5"), "b": b"\0"} == key.match(item)
    assert key.match({"N": "1.5", "B": b"\0"}) is None


def test_a_table_may_have_a_partition_key_only_and_names_of_its_own():
    key = Key("ORDER-{order_id}", table=Table("orders", partition="id", sort=None, delimiter="-"))
    assert key.key(order_id="1") == {"id": "ORDER-1"}
    assert key.match({"id": "ORDER-1#2"}) == {"order_id": "1#2"}


def test_a_member_of_an_enumeration_is_composed_as_its_text():
    assert ORDER.key(order_id=StrEnum("Colour", {"RED": "red"}).RED) == {"PK": "ORDER#red", "SK": "METADATA"}


def test_a_field_may_have_the_name_of_a_parameter():
    key = Key("A#{self}", "B#{key}")
    assert key.match(key.key(self="1", key="2")) == {"self": "1", "key": "2"}


@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        (ORDER, {}, "Template 'ORDER#{order_id}' needs a value for 'order_id': give order_id=..."),
        (ORDER, {"order_id": "1", "sku": "a"}, f"{ORDER!r} has no field 'sku'; it has order_id."),
        (Key("ALL", "ORDERS"), {"x": "1"}, "Key('ALL', 'ORDERS') has no field 'x'; it has none."),
        (
            ORDER,
            {"order_id": "a#b"},
            (
                "Value 'a#b' cannot be used for {order_id} in template 'ORDER#{order_id}': "
                "it holds the delimiter '#'; only a last field written {order_id:rest} may."
            ),
        ),
        (
            ORDER,
            {"order_id": 7},
            (
                "Value 7 cannot be used for {order_id} in template 'ORDER#{order_id}': "
                "it is of type int and would come back as text; give text or type the field."
            ),
        ),
        (
            READING,
            {"sensor": "s", "day": date(2026, 3, 1), "number": Decimal("NaN"), "note": "n"},
            (
                "Value Decimal('NaN') cannot be used for {number:06d} in template '{number:06d}#{note:rest}': "
                "it is not a whole number."
            ),
        ),
        (
            ORDER,
            {"order_id": "é" * 1030},
            "Template 'ORDER#{order_id}' gives a key of 2066 bytes; DynamoDB takes 2048 at most.",
        ),
        (
            Key("A", "{x:rest}"),
            {"x": "y" * 1025},
            "Template '{x:rest}' gives a key of 1025 bytes; DynamoDB takes 1024 at most.",
        ),
        (Key("{x}-{y}", "A"), {"x": "a", "y": "b-c"}, "Key('{x}-{y}', 'A') would read x='a' back as 'a-b'."),
        (
            Key("{x}-{day:date}-{y}", "A"),
            {"x": "a", "day": date(2026, 3, 1), "y": "2026-99-99-z"},
            (
                "Key('{x}-{day:date}-{y}', 'A') could not read back the key that "
                "{'day': datetime.date(2026, 3, 1), 'x': 'a', 'y': '2026-99-99-z'} makes."
            ),
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_value_and_template(key, values, message):
    with pytest.raises(KeyValueError) as caught:
        key.key(**values)
    assert message == str(caught.value)


@pytest.mark.parametrize(
    ("template", "what"),
    [
        ("ORDER#{order_id", "at character 7: a brace without its partner"),
        ("ORDER#order_id}", "at character 15: a brace without its partner"),
        ("ORDER#{{order_id}}", "at character 7: a brace without its partner"),
        ("ORDER#{}", "at character 7: {} does not name a field: expected a name such as {order_id}"),
        ("ORDER#{1st}", "at character 7: {1st} does not name a field: expected a name such as {order_id}"),
        ("ORDER#{a b}", "at character 7: {a b} does not name a field: expected a name such as {order_id}"),
        ("{a:float}", "at character 1: {a:float} is of no known kind: expected {name}, {name:rest}, {name:06d}, "),
        ("N#{a:number}", "at character 3: {a:number} must be the whole key attribute"),
        ("{a:binary}#", "at character 1: {a:binary} must be the whole key attribute"),
        ("{a:rest}#{b}", "at character 1: {a:rest} must be the last of its component, because it takes everything"),
        ("A#{a}{b}", "at character 6: {a} and {b} touch: nothing shows where one ends"),
        ("A#{a:d}{b:02d}", "at character 8: {a:d} and {b:02d} touch: nothing shows where one ends"),
    ],
)
def test_a_malformed_template_is_refused_with_the_place_in_it(template, what):
    with pytest.raises(DeclarationError) as caught:
        Key("A", template)
    assert str(caught.value).startswith(f"Key template {template!r} is malformed {what}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("A",), "Key('A') has no sort template, but table 'main' has the sort key 'SK'. Give one, Key('A', \"META"),
        (("A", "B", PLAIN), "Key('A', 'B') has a sort template, but table 'plain' has a partition key only."),
        (("", None, PLAIN), "Key template '' is empty: expected text such as 'ORDER#{order_id}'."),
        (("{a}#{a}", "B"), "Key template '{a}#{a}' names a field twice in one component."),
        (("A#{a:d}", "B#{a}"), "Key('A#{a:d}', 'B#{a}'): field 'a' has two kinds, {a:d} and {a}."),
        ((5, "B"), "Key(5, 'B') has partition=5: expected a template as text."),
        (("A", 5), "Key('A', 5) has sort=5: expected a template as text."),
        (("A", "B", "shop"), "Key('A', 'B') has table='shop': expected a Table, Table(\"shop\")."),
    ],
)
def test_a_key_that_cannot_be_is_refused(arguments, message):
    with pytest.raises(DeclarationError) as caught:
        Key(*arguments)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "1st"}, "Table name '1st' cannot be used: expected a letter, then letters, digits"),
        ({"name": "a" * 65}, f"Table name '{'a' * 65}' cannot be used"),
        ({"view": "BOTH"}, "Table 'shop' has view='BOTH': expected one of NEW_AND_OLD_IMAGES, NEW_IMAGE, OLD_IMAGE, "),
        ({"delimiter": "::"}, "Table 'shop' has delimiter='::': expected one character that is no letter, digit or"),
        ({"delimiter": "0"}, "Table 'shop' has delimiter='0': expected one character that is no letter, digit or"),
        ({"sort": "PK"}, "Table 'shop' has partition='PK' and sort='PK': expected the names of two attributes, or"),
        ({"partition": ""}, "Table 'shop' has partition='' and sort='SK': expected the names of two attributes, or"),
    ],
)
def test_a_table_that_cannot_be_is_refused(options, message):
    with pytest.raises(DeclarationError) as caught:
        Table(**{"name": "shop", **options})
    assert str(caught.value).startswith(message)


def test_a_key_of_the_largest_size_is_composed():
    key = Key("{x:rest}", "{y:rest}")
    assert key.key(x="x" * 2048, y="y" * 1024) == {"PK": "x" * 2048, "SK": "y" * 1024}


WHOLE = "#partition = :partition AND #sort = :sort"
BEGINS = "#partition = :partition AND begins_with(#sort, :sort)"


@pytest.mark.parametrize(
    ("key", "fields", "condition", "sort"),
    [
        (ORDER, {"order_id": "1"}, WHOLE, "METADATA"),
        (ORDER_ITEM, {"order_id": "1"}, BEGINS, "ITEM#"),
        (ORDER_ITEM, {"order_id": "1", "sku": "a"}, WHOLE, "ITEM#a"),
        (Key("ORDER#{order_id}", "{at:date}#{sku}"), {"order_id": "1", "at": "2026-03-01"}, BEGINS, "2026-03-01#"),
        (Key("ORDER#{order_id}", "{order_id}#{sku}"), {"order_id": "1"}, BEGINS, "1#"),
        (Key("ORDER#{order_id}", "{sku}"), {"order_id": "1"}, "#partition = :partition", None),
    ],
)
def test_a_query_takes_what_is_known_of_the_sort_key_from_the_left(key, fields, condition, sort):
    found = key.query(**fields)
    assert condition == found["KeyConditionExpression"]
    assert found["ExpressionAttributeValues"][":partition"] == "ORDER#1"
    assert sort == found["ExpressionAttributeValues"].get(":sort")


def test_a_query_over_a_number_as_sort_key_takes_it_whole_or_not_at_all():
    key = Key("ORDER#{order_id}", "{line:number}")
    assert key.query(order_id="1")["ExpressionAttributeValues"] == {":partition": "ORDER#1"}
    assert key.query(order_id="1", line=5)["ExpressionAttributeValues"] == {":partition": "ORDER#1", ":sort": 5}


def test_a_query_uses_the_table_s_names():
    key = Key("ORDER#{order_id}", "{sku}", table=Table("shop", partition="id", sort="range"))
    assert key.query(order_id="1", sku="a")["ExpressionAttributeNames"] == {"#partition": "id", "#sort": "range"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"y": "2"}, "Template 'A#{x}' needs a value for 'x': give x=..."),
        ({"x": "1", "z": "3"}, "Template '{y}#{z}' needs 'y' before 'z' in a query."),
        ({"x": "1", "w": "4"}, "Key('A#{x}', '{y}#{z}') has no field 'w'; it has x, y, z."),
        ({"x": "#"}, "Value '#' cannot be used for {x} in template 'A#{x}': it holds the delimiter '#'; "),
    ],
)
def test_a_query_that_cannot_be_is_refused(fields, message):
    with pytest.raises(KeyValueError) as caught:
        Key("A#{x}", "{y}#{z}").query(**fields)
    assert str(caught.value).startswith(message)


SPAN = Key("DEV#{id}", "{begin:datetime}#{end:datetime}")


@pytest.mark.parametrize(
    ("key", "values", "miss"),
    [
        (ORDER_ITEM, ("ORDER#1", "ITEM#a#b"), ("sku", "a#b")),
        (ORDER_ITEM, ("ORDER#1", "ITEM#"), ("sku", "")),
        (ORDER_ITEM, ("ORDER#1#2", "ITEM#a"), ("order_id", "1#2")),
        (READING, ("SENSOR#s#2026-13-01", "000017#n"), ("day", "2026-13-01")),
        (READING, ("SENSOR#s#2026-03-01", "17#n"), ("number", "17")),
        (ORDER_ITEM, ("ORDER#1", "ITEM#a"), None),
        (ORDER_ITEM, ("ORDER#1", "METADATA"), None),
        (ORDER_ITEM, ("ORDER#1#2", "ITEM#a#b"), None),
        (ORDER_ITEM, ("ORDER#1", None), None),
        (Key("A", "{n:number}"), ("A", "5"), None),
        (Key("A", "{at:number.seconds}"), ("A", 1772359200123), ("at", 1772359200123)),
        (Key("A", "{at:number.seconds}"), ("A", "1772359200"), ("at", "1772359200")),
        (Key("A", "{at:datetime}"), ("A", 1772359200), ("at", 1772359200)),
        (Key("A", "AT#{at:datetime}"), ("A", 1772359200), None),
        (SPAN, ("DEV#1", "2026-03-01T10:00:00Z#2026-03-01T11:00:00Z"), ("begin", "2026-03-01T10:00:00Z")),
        (SPAN, ("DEV#1", "early#late"), None),
        (Key("D#{day:date}", "{day:date}#{n:d}"), ("D#2026-3-1", "2026-3-1#5"), ("day", "2026-3-1")),
        (Key("{day:date}", "{at:datetime}"), ("2026-3-1", "2026-3-1T10:00"), None),
    ],
)
def test_a_near_miss_names_the_one_field_that_keeps_a_key_from_matching(key, values, miss):
    found = key.near_miss(*values)
    assert miss == (found and (found.field, found.value))


@pytest.mark.parametrize(
    ("key", "values", "is_meant"),
    [
        (Key("DEV#{id}", "{at:datetime}"), ("DEV#1", "METADATA"), False),
        (Key("DEV#{id}", "{at:datetime}"), ("DEV#1", "2026-03-01"), True),
        (Key("DEV#{id}", "AT#{at:datetime}"), ("DEV#1", "AT#soon"), True),
        (Key("DEV#{id}", "{sku}"), ("DEV#1", "a#5"), False),
    ],
)
def test_a_field_that_is_a_whole_key_is_not_meant_by_a_value_of_another_kind(key, values, is_meant):
    assert key.near_miss(*values).is_meant == is_meant


def test_a_near_miss_names_the_field_that_takes_the_time():
    miss = Key("DEV#{id}", "AT#{at:datetime}").near_miss("DEV#1", "AT#2026-03-01T10:00:00.123Z")
    assert plain(miss.why) == "'2026-03-01T10:00:00.123Z' is no {at:datetime}; {at:datetime.milliseconds} takes it"


def test_a_kind_that_is_spelled_wrongly_is_refused_with_the_near_one():
    with pytest.raises(DeclarationError, match=r"\(did you mean \{at:datetime\.milliseconds\}\?\): expected"):
        Key("A", "{at:datetime.millis}")


def test_one_time_in_two_texts_is_not_the_same_value_of_both_parts():
    key = Key("A#{at:datetime.any}", "{at:datetime.any}")
    assert key.match({"PK": "A#2026-03-01T10:00:00Z", "SK": "2026-03-01T10:00:00.0Z"}) is None
    assert key.match({"PK": "A#2026-03-01T10:00:00Z", "SK": "2026-03-01T10:00:00Z"}) is not None


def test_a_near_miss_of_a_long_key_is_looked_for_in_reasonable_time():
    key = Key("A#{a}#{b}#{c}#{d}#Z", "METADATA")
    assert key.near_miss("A" + "#" * 2000, "METADATA") is None


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (("{x:rest}", "{y:rest}"), ("ORDER#{order_id}", "METADATA")),
        (("ORDER#{x:rest}", "{y:rest}"), ("ORDER#{order_id}", "ITEM#{sku}")),
        (("ORDER#{x}", "{y}"), ("ORDER#{order_id:06d}", "2026-03-01")),
        (("ORDER#{x}", "{y}"), ("ORDER#{at:datetime}", "{day:date}")),
        (("ORDER#{x:d}", "{y}"), ("ORDER#{order_id:01d}", "METADATA")),
    ],
)
def test_a_wider_template_contains_a_narrower_one_and_not_the_other_way_round(outer, inner):
    assert Key(*outer).contains(Key(*inner))
    assert Key(*outer).overlaps(Key(*inner))
    assert not Key(*inner).contains(Key(*outer))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ORDER, ORDER_ITEM),
        (Key("A#{x:02d}", "B"), Key("A#{x:03d}", "B")),
        (Key("A#{x}", "B"), Key("A#{x}#{y}", "B")),
        (Key("{n:number}", "B"), Key("{s:rest}", "B")),
        (Key("A#{x}", table=PLAIN), Key("A#{x}", table=Table("other", sort=None))),
    ],
)
def test_templates_without_a_common_key_do_not_overlap(one, other):
    assert not one.overlaps(other)
    assert not one.contains(other)


def test_plain_numbers_and_padded_ones_have_some_keys_in_common_and_neither_has_all_of_the_other_s():
    plain, padded = Key("A#{n:d}", "B"), Key("A#{n:03d}", "B")
    assert (plain.match_values("A#123", "B"), padded.match_values("A#123", "B")) == ({"n": 123}, {"n": 123})
    assert (plain.match_values("A#007", "B"), padded.match_values("A#7", "B")) == (None, None)
    assert plain.overlaps(padded)
    assert not plain.contains(padded)
    assert not padded.contains(plain)


@pytest.mark.parametrize("text", ["A#00{n:d}", "A#-0{n:d}", "A#{n:d}-", "A#+{n:d}"])
def test_what_no_plain_number_is_written_as_does_not_overlap_one(text):
    assert not Key(text, "B").overlaps(Key("A#{n:d}", "B"))


SAME, ANY = Key("USER#{a}", "USER#{a}"), Key("USER#{a}", "USER#{b}")


def test_a_template_with_one_field_in_both_parts_does_not_contain_one_with_two():
    assert ANY.contains(SAME)
    assert not SAME.contains(ANY)
    assert SAME.contains(Key("USER#{x}", "USER#{x}"))


@pytest.mark.parametrize(
    ("key", "literal", "has"),
    [
        (SAME, Key("USER#1", "USER#1"), True),
        (SAME, Key("USER#1", "USER#2"), False),
        (Key("A#{day:date}", "B"), Key("A#2026-02-30", "B"), False),
        (Key("A#{n:d}", "B"), Key("A#007", "B"), False),
        (Key("ALL", "X"), Key("ALL", "X"), True),
        (Key("ALL", "X"), Key("ALL", "Y"), False),
    ],
)
def test_a_template_without_fields_is_one_key(key, literal, has):
    assert has == key.contains(literal) == key.overlaps(literal) == literal.overlaps(key)


def test_keys_are_equal_when_their_templates_and_tables_are():
    assert Key("A#{x}", "B") == Key("A#{x}", "B")
    assert len({Key("A#{x}", "B"), Key("A#{x}", "B"), Key("A#{y}", "B")}) == 2
    assert Key("A", table=PLAIN) != Key("A", table=Table("plain", sort=None, ttl="expires"))


def test_a_key_shows_its_templates_and_a_table_that_is_not_the_usual_one():
    assert repr(Key("A#{x}", table=PLAIN)) == "Key('A#{x}', table='plain')"
    assert repr(Key("A#{x}", "B")) == "Key('A#{x}', 'B')"
    assert ORDER.template == "ORDER#{order_id} / METADATA"


def test_a_key_knows_where_it_was_written():
    assert re.fullmatch(r".*test_key\.py:\d+", ORDER.declared_at)


@pytest.mark.parametrize("template", ["A#{x}-{y}", "{x}-{y}"])
def test_a_value_that_holds_what_stands_between_two_fields_is_refused(template):
    key = Key(template, "B")
    assert key.match(key.key(x="1", y="2")) == {"x": "1", "y": "2"}
    with pytest.raises(KeyValueError):
        key.key(x="1", y="2-3")  # it would be read back as 1-2 and 3


def test_a_moment_is_composed_in_utc():
    key = Key("A#{at:datetime}", "B")
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert key.key(at=at)["PK"] == "A#2026-03-01T12:00:00.000000Z"
    assert {"at": at} == key.match(key.key(at="2026-03-01T14:00:00+02:00"))


GSI = {"GSI1": {"GSI1PK": "S", "GSI1SK": "N"}}


def test_a_table_names_its_indexes_with_the_types_of_their_keys():
    table = Table("shop", indexes={**GSI, "GSI2": {"GSI1SK": "N"}})
    assert table.indexes == {**GSI, "GSI2": {"GSI1SK": "N"}}
    assert {name: (key.type, key.bytes_max) for name, key in table.index_keys.items()} == {
        "GSI1PK": ("S", 2048),
        "GSI1SK": ("N", 1024),
    }


def test_tables_with_other_indexes_are_other_tables():
    table = Table("shop", indexes=GSI)
    assert (table, hash(table)) == (Table("shop", indexes=dict(GSI)), hash(Table("shop", indexes=dict(GSI))))
    assert table != Table("shop")
    assert Table("shop") == Table("shop", indexes={})
    assert repr(table).endswith("indexes={'GSI1': {'GSI1PK': 'S', 'GSI1SK': 'N'}})")
    assert "indexes" not in repr(Table("shop"))


def test_the_indexes_of_a_table_do_not_change_with_what_was_given():
    given = {"GSI1": {"GSI1PK": "S"}}
    table = Table("shop", indexes=given)
    given["GSI1"]["GSI1PK"] = "N"
    assert table.indexes == {"GSI1": {"GSI1PK": "S"}}


@pytest.mark.parametrize(
    ("indexes", "message"),
    [
        (["GSI1"], "Table 'shop' has indexes=['GSI1']: expected {"),
        ({"G1": {"a": "S"}}, "Table 'shop' has an index 'G1': expected 3 to 255 letters, digits"),
        ({1: {"a": "S"}}, "Table 'shop' has an index 1: expected 3 to 255"),
        ({"GSI1": {}}, "the index 'GSI1' with the keys {}: expected a partition key and at most a sort key"),
        ({"GSI1": {"a": "S", "b": "S", "c": "S"}}, "expected a partition key and at most a sort key"),
        ({"GSI1": ["a"]}, "with the keys ['a']: expected a partition key"),
        ({"GSI1": {"": "S"}}, "expected a partition key"),
        (
            {"GSI1": {"a": "text"}},
            "of type 'text': expected 'S' for text, 'N' for a number or 'B' for bytes",
        ),
        ({"GSI1": {"a": "S"}, "GSI2": {"a": "N"}}, "the key 'a' of type 'S' in index 'GSI1' and of type 'N' in index"),
    ],
)
def test_indexes_that_no_table_has_are_refused(indexes, message):
    with pytest.raises(DeclarationError, match=re.escape(message)):
        Table("shop", indexes=indexes)


def test_a_table_with_indexes_can_be_sent_to_another_process():
    for table in (Table("main"), Table("main", ttl="expires", indexes={"GSI1": {"GSI1PK": "S", "GSI1SK": "N"}})):
        sent = pickle.loads(pickle.dumps(table))
        assert (sent, sent.indexes, sent.index_keys) == (table, table.indexes, table.index_keys)
