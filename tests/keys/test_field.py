"""The kinds of field: written and read back, and what none of them takes."""

import copy
import re
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold.keys.field import (
    ANY_TIME,
    SECOND_DIGITS,
    TIME_NUMBERS,
    TIME_TEXTS,
    ULID_LETTERS,
    Unreadable,
    contains,
    datetime_text,
    literal,
    make_field,
    overlaps,
    time_spec,
    ulid_milliseconds,
    ulid_of,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
"""That of the specification (github.com/ulid/spec)."""
NO_ULID = "it is no ULID: expected 26 digits and capital letters without I, L, O and U, 7... at most"
MOMENTS = st.datetimes(timezones=st.just(UTC))
WHOLE_SECONDS = MOMENTS.filter(lambda at: 1970 <= at.year < 2286).map(lambda at: at.replace(microsecond=0))
VALUES = {
    "": st.text(st.characters(exclude_characters="#", codec="utf-8"), min_size=1),
    "rest": st.text(st.characters(codec="utf-8"), min_size=1),
    "06d": st.integers(0, 999_999),
    "d": st.integers(-(10**40), 10**40),
    "date": st.dates(),
    "datetime": st.datetimes(timezones=st.just(UTC)),
    "datetime.milliseconds": st.datetimes(timezones=st.just(UTC)).map(lambda at: at.replace(microsecond=1000)),
    "datetime.seconds": st.datetimes(timezones=st.just(UTC)).map(lambda at: at.replace(microsecond=0)),
    "datetime.nanoseconds": MOMENTS,
    "datetime.offset": MOMENTS,
    "datetime.seconds.offset": MOMENTS.map(lambda at: at.replace(microsecond=0)),
    "datetime.milliseconds.offset": MOMENTS.map(lambda at: at.replace(microsecond=7000)),
    "datetime.nanoseconds.offset": MOMENTS,
    "datetime.any": MOMENTS,
    "epoch.seconds": WHOLE_SECONDS,
    "epoch.milliseconds": WHOLE_SECONDS.map(lambda at: at.replace(microsecond=9000)),
    "number.seconds": WHOLE_SECONDS,
    "number.milliseconds": WHOLE_SECONDS.map(lambda at: at.replace(microsecond=9000)),
    "ulid": st.from_regex(f"[0-7][{ULID_LETTERS}]{{25}}", fullmatch=True),
    "number": st.integers(-(10**38) + 1, 10**38 - 1) | st.decimals(-(10**30), 10**30, places=8),
    "binary": st.binary(min_size=1),
}


def field(spec, delimiter="#"):
    return make_field("x", spec, delimiter)


@given(st.data(), st.sampled_from(list(VALUES)))
def test_what_is_written_is_recognised_and_read_back(data, spec):
    value, kind = data.draw(VALUES[spec]), field(spec)
    text = kind.write(value)
    assert value == kind.read(text)
    assert kind.attribute_type != "S" or re.fullmatch(kind.pattern, text, re.DOTALL | re.ASCII)


@given(st.data(), st.sampled_from([spec for spec in VALUES if field(spec).attribute_type == "S"]))
def test_the_atoms_of_a_field_hold_every_text_that_it_writes(data, spec):
    text = field(spec).write(data.draw(VALUES[spec]))
    assert contains(field(spec).atoms, literal(text))


MANY_TIMES = st.builds(
    lambda at, digits, end: f"{at.isoformat()[:19]}{digits and '.'}{digits}{end}",
    MOMENTS,
    st.text("0123456789", max_size=9),
    st.sampled_from(["Z", "+00:00"]),
)
"""Times in UTC, as languages write them."""


@given(MANY_TIMES)
def test_a_time_of_any_form_is_read_and_written_back_as_the_same_text(text):
    any_time, spec = field(ANY_TIME), time_spec(text)
    assert any_time.write(any_time.read(text)) == text
    assert any_time.write(copy.deepcopy(any_time.read(text))) == text
    assert spec is not None
    assert field(spec).write(field(spec).read(text)) == text
    assert contains(any_time.atoms, literal(text))
    assert contains(any_time.atoms, field(spec).atoms)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("2026-03-01T10:00:00.123Z", "datetime.milliseconds"),
        ("2026-03-01T10:00:00.123456789Z", "datetime.nanoseconds"),
        ("2026-03-01T10:00:00+00:00", "datetime.seconds.offset"),
        ("2026-03-01T10:00:00.12Z", "datetime.any"),
        ("1772359200", "epoch.seconds"),
        ("1772359200123", "epoch.milliseconds"),
        (1772359200, "number.seconds"),
        (Decimal(1772359200123), "number.milliseconds"),
        ("2026-03-01T11:00:00+01:00", None),
        ("2026-02-30T10:00:00Z", None),
        ("2026-03-01 10:00:00Z", None),
        ("177235920", None),
        (Decimal("1.5"), None),
        (b"1772359200", None),
    ],
)
def test_the_field_that_takes_a_time_is_known(text, spec):
    assert time_spec(text) == spec


@pytest.mark.parametrize(
    "text",
    ["2026-03-01T10:00:00.Z", "2026-03-01T10:00:00.1234567890Z", "2026-03-01T10:00:00", "2026-03-01T10:00:00z", "Z"],
)
def test_the_atoms_of_any_time_hold_no_other_text(text):
    assert not overlaps(field(ANY_TIME).atoms, literal(text))
    assert not field(ANY_TIME).reads(text)


def test_what_is_computed_from_a_time_of_a_key_has_no_text_of_its_own():
    found = field("datetime.nanoseconds").read("2026-03-01T12:00:00.000000001Z")
    assert (found, found.nanoseconds) == (NOON, 1)
    assert field(ANY_TIME).write(found + timedelta(seconds=1)) == "2026-03-01T12:00:01.000000Z"


@pytest.mark.parametrize("spec", [*(each for each in SECOND_DIGITS if "nano" not in each), "epoch.milliseconds"])
def test_nanoseconds_are_not_cut_off(spec):
    exact = field("datetime.nanoseconds").read("2026-03-01T12:00:00.000000001Z")
    for value in (exact, exact.text):
        with pytest.raises(Unreadable):
            field(spec).write(value)


@given(st.lists(WHOLE_SECONDS), st.sampled_from([*TIME_TEXTS, *TIME_NUMBERS]))
def test_the_order_of_all_texts_of_times_is_theirs(moments, spec):
    assert sorted(moments) == sorted(moments, key=field(spec).write)


@pytest.mark.parametrize(
    ("text", "overlapping"), [("-1", True), ("1", True), ("x1", False), ("1x", False), ("-", False)]
)
def test_the_atoms_of_an_integer_hold_a_sign_and_digits(text, overlapping):
    assert overlaps(field("d").atoms, literal(text)) == overlapping


@pytest.mark.parametrize(
    ("spec", "text", "is_read"),
    [("06d", "000001", True), ("06d", "\u0660" * 6, False), ("d", "\u0661", False), ("rest", "a\nb", True)],
)
def test_digits_are_those_of_ascii_and_a_line_may_end_in_text(spec, text, is_read):
    assert field(spec).reads(text) == is_read


def test_a_field_tells_the_type_of_its_values():
    types = {spec: field(spec).python_type for spec in ("", "rest", "d", "date", "datetime", "number", "binary")}
    assert list(types.values()) == [str, str, int, date, datetime, Decimal, bytes]


@given(st.lists(st.integers(0, 999_999)))
def test_the_text_order_of_padded_numbers_is_their_order(numbers):
    assert sorted(numbers) == sorted(numbers, key=field("06d").write)


@given(st.lists(VALUES["datetime"]))
def test_the_text_order_of_moments_is_their_order(moments):
    assert sorted(moments) == sorted(moments, key=field("datetime").write)


@pytest.mark.parametrize(
    ("spec", "value", "text"),
    [
        ("06d", 17, "000017"),
        ("06d", Decimal("17.0"), "000017"),
        ("d", -5, "-5"),
        ("date", date(2026, 3, 1), "2026-03-01"),
        ("date", "2026-03-01", "2026-03-01"),
        ("datetime", NOON, "2026-03-01T12:00:00.000000Z"),
        ("datetime", NOON.astimezone(timezone(timedelta(hours=2))), "2026-03-01T12:00:00.000000Z"),
        ("datetime", "2026-03-01T14:00:00+02:00", "2026-03-01T12:00:00.000000Z"),
        ("datetime.milliseconds", NOON, "2026-03-01T12:00:00.000Z"),
        ("datetime.seconds", NOON, "2026-03-01T12:00:00Z"),
        ("datetime.nanoseconds", NOON, "2026-03-01T12:00:00.000000000Z"),
        ("datetime.nanoseconds", "2026-03-01T12:00:00.123456789Z", "2026-03-01T12:00:00.123456789Z"),
        ("datetime.offset", NOON, "2026-03-01T12:00:00.000000+00:00"),
        ("datetime.seconds.offset", NOON, "2026-03-01T12:00:00+00:00"),
        ("datetime.any", NOON, "2026-03-01T12:00:00.000000Z"),
        ("datetime.any", "2026-03-01T12:00:00+00:00", "2026-03-01T12:00:00+00:00"),
        ("epoch.seconds", NOON, "1772366400"),
        ("epoch.milliseconds", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "0000000001000"),
        ("number.seconds", NOON, 1772366400),
        ("number.milliseconds", NOON, 1772366400000),
    ],
)
def test_a_value_has_one_text(spec, value, text):
    assert text == field(spec).write(value)


TOO_FINE = NOON.replace(microsecond=1)


@pytest.mark.parametrize(
    ("spec", "value", "why"),
    [
        ("", 5, "it is of type int and would come back as text; give text or type the field"),
        ("", "", "it is empty, as no field may be: yield nothing for it, or a row of a key without the field"),
        ("", "a#b", "it holds the delimiter '#'; only a last field written {x:rest} may"),
        ("rest", None, "it is of type NoneType and would come back as text; give text or type the field"),
        ("06d", -1, "it is negative, and padded text would not sort as its number"),
        ("06d", 1_000_000, "it has more than 6 digits, and padded text would not sort as its number"),
        ("06d", True, "it is not a whole number"),
        ("d", "5", "it is not a whole number"),
        ("d", Decimal("1.5"), "it is not a whole number"),
        ("d", Decimal("NaN"), "it is not a whole number"),
        ("d", Decimal("Infinity"), "it is not a whole number"),
        ("d", Decimal("sNaN"), "it is not a whole number"),
        ("ulid", ULID.lower(), NO_ULID),
        ("ulid", ULID[:-1], NO_ULID),
        ("ulid", "8" + ULID[1:], NO_ULID),
        ("ulid", ULID[:-1] + "U", NO_ULID),
        ("ulid", 5, NO_ULID),
        ("date", NOON, "it is of type datetime, not a date; a moment's day is moment.date()"),
        ("date", "2026-02-30", "it is not a date like 2026-03-01"),
        ("date", "2026-W09-7", "it is not a date like 2026-03-01"),
        ("date", "20260301", "it is not a date like 2026-03-01"),
        ("datetime", NOON.replace(tzinfo=None), "it has no time zone; give one, for example datetime.now(UTC)"),
        ("datetime", "yesterday", "it is not a moment like 2026-03-01T10:00:00Z"),
        ("datetime", 5, "it is of type int, not a datetime"),
        ("datetime.seconds", TOO_FINE, "its microseconds do not fit 0 digits of a second"),
        ("datetime.any", "yesterday", "it is not a moment like 2026-03-01T10:00:00Z in UTC, with Z or +00:00"),
        ("datetime.any", "2026-02-30T10:00:00Z", "it is not a moment like 2026-03-01T10:00:00Z"),
        ("epoch.seconds", NOON.replace(tzinfo=None), "it has no time zone; give one, for example datetime.now(UTC)"),
        ("epoch.seconds", TOO_FINE, "it is no whole number of seconds since 1970"),
        ("number.seconds", datetime(1969, 12, 31, tzinfo=UTC), "its seconds since 1970 do not have up to 10 digits"),
        ("number.seconds", 5, "it is of type int, not a datetime"),
        ("datetime", datetime.min.replace(tzinfo=timezone.max), "it is outside the years 1 to 9999 in UTC"),
        ("number", "5", "it is not a number (int or Decimal)"),
        ("number", Decimal("NaN"), "it is not a number (int or Decimal)"),
        ("number", 10**38 + 1, "DynamoDB holds 38 digits, from 1E-130 to 9.99E+125"),
        ("number", Decimal("1E-131"), "DynamoDB holds 38 digits, from 1E-130 to 9.99E+125"),
        ("number", Decimal("1E+126"), "DynamoDB holds 38 digits, from 1E-130 to 9.99E+125"),
        ("binary", b"", "it is not bytes with content"),
        ("binary", "text", "it is not bytes with content"),
    ],
)
def test_a_value_that_could_not_be_read_back_is_refused_with_the_reason(spec, value, why):
    with pytest.raises(Unreadable) as caught:
        field(spec).write(value)
    assert why == str(caught.value)


@pytest.mark.parametrize(
    ("spec", "text", "is_one"),
    [("date", "2026-03-01", True), ("date", "2026-02-30", False), ("date", "2026", False), ("02d", "07", True)],
)
def test_a_field_tells_whether_a_text_is_one_of_it(spec, text, is_one):
    assert is_one == field(spec).reads(text)


@pytest.mark.parametrize(("spec", "text"), [("date", "2026-02-30"), ("datetime", "2026-02-30T10:00:00.000000Z")])
def test_a_day_that_no_calendar_has_is_not_read(spec, text):
    assert re.fullmatch(field(spec).pattern, text)
    with pytest.raises(Unreadable):
        field(spec).read(text)


@pytest.mark.parametrize("spec", ["6d", "0d", "00d", "0100d", "x", "D", "date ", "datetime.minutes"])
def test_a_kind_that_does_not_exist_is_none(spec):
    assert make_field("x", spec, "#") is None


@pytest.mark.parametrize("delimiter", ["^", "]", "-", "\\", "|", "#"])
def test_any_delimiter_is_kept_out_of_a_plain_field(delimiter):
    plain = field("", delimiter)
    assert re.fullmatch(plain.pattern, "a^b]c-d\\e|f#".replace(delimiter, ""))
    assert not re.fullmatch(plain.pattern, f"a{delimiter}b")


@given(VALUES["datetime"], st.sampled_from([0, 3, 6]))
def test_a_moment_cut_to_fewer_digits_is_exact_or_refused(moment, digits):
    try:
        assert moment == datetime.fromisoformat(datetime_text(moment, digits))
    except Unreadable:
        assert moment.microsecond % 10 ** (6 - digits)


def test_a_field_shows_as_it_is_written_in_a_template():
    assert [str(field("")), str(field("06d"))] == ["{x}", "{x:06d}"]


def test_a_ulid_tells_its_time():
    assert ulid_milliseconds(ULID) == 1_469_922_850_259


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**48 - 1))
def test_ulids_sort_by_their_time(one, other):
    assert ulid_milliseconds(ulid_of(one)) == one
    assert (ulid_of(one) < ulid_of(other)) == (one < other)
    assert make_field("x", "ulid", "#").write(ulid_of(one)) == ulid_of(one)


@pytest.mark.parametrize(
    "text", ["01arz3ndektsv4rrffq69g5fav", "01ARZ3NDEKTSV4RRFFQ69G5FA", "81ARZ3NDEKTSV4RRFFQ69G5FAV"]
)
def test_a_text_that_is_no_ulid_is_of_no_key_with_one(text):
    assert not re.fullmatch(field("ulid").pattern, text, re.DOTALL | re.ASCII)
