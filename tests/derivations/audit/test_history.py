"""An item as it was at a time, from the rows of its history."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold.derivations.audit.history import ItemAsOf, item_as_of, moment
from tests.helpers.history_rows import BORN, KEY, LARGE, lives, rows_of, states

FIRST = "2026-03-01T09:00:00.000000Z"


def as_of(rows, seconds):
    return item_as_of(rows, datetime.fromtimestamp(BORN + seconds, UTC), KEY)


def item_after(*images, seconds=99, **options):
    """What the history of an item that was changed every second tells of it."""
    passed = [(BORN + number, image) for number, image in enumerate(images)]
    return as_of(rows_of(passed, **options), seconds)


@given(
    life=lives(),
    seconds=st.integers(-1, 25),
    first=st.integers(0, 3),
    unchanged=st.booleans(),
    fields=st.sampled_from([None, ["a", "b", "d"]]),
)
def test_an_item_is_told_as_it_was_at_every_time(life, seconds, first, unchanged, fields):
    passed = states(life)
    rows = rows_of(passed, redact=["d"], unchanged=unchanged, fields=fields)[first:]
    known = as_of(rows, seconds)

    if not any(at <= BORN + seconds for at, _ in passed[first:]):
        assert (known.exists, known.item, known.whole) == (None, None, False)
        assert known.unknown_before == (rows[0]["at"] if rows else None)
        return
    image = next(image for at, image in reversed(passed) if at <= BORN + seconds)
    assert known.exists == (image is not None)
    visible = {name: value for name, value in (image or {}).items() if fields is None or name in fields}
    plain = {name: value for name, value in visible.items() if name != "d" and value != LARGE}
    redacted = {"d"} & visible.keys()
    large = {name for name, value in visible.items() if name != "d" and value == LARGE}
    if known.whole:
        assert known.item == (None if image is None else {**KEY, **plain})
        assert (set(known.redacted), set(known.large)) == (redacted, large)
    else:
        assert (first, unchanged) != (0, False)  # the history is cut off, or rows are not whole
        assert (known.item or {}).items() <= {**KEY, **plain}.items()
        assert set(known.redacted) <= redacted
        assert set(known.large) <= large
    assert known.whole or not unchanged


def test_what_a_change_left_alone_is_told_by_its_row_alone():
    rows = rows_of([(BORN, {"a": 1, "b": 1, "text": LARGE}), (BORN + 1, {"a": 2, "b": 1, "text": LARGE})])
    known = as_of(rows[1:], 1)
    assert (known.item, list(known.large), known.whole) == ({**KEY, "a": 2, "b": 1}, ["text"], True)
    assert known.unknown_before == rows[1]["at"]
    assert as_of(rows, 1).unknown_before == rows[0]["at"]


def test_before_the_first_row_nothing_is_known():
    assert item_after({"a": 1}, seconds=-1) == ItemAsOf(unknown_before=FIRST)


def test_without_rows_nothing_is_known_at_any_time():
    assert as_of([], 0) == ItemAsOf()


def test_all_changes_of_a_second_have_happened_when_it_has_begun():
    rows = rows_of([(BORN, {"a": 1}), (BORN, {"a": 2})])
    assert as_of(rows, 0).item == {**KEY, "a": 2}
    assert as_of(reversed(rows), 0.5).item == {**KEY, "a": 2}


def test_the_order_of_changes_is_that_of_versions_where_times_go_back():
    rows = rows_of([(BORN, {"a": 1}), (BORN + 5, {"a": 2}), (BORN + 3, {"a": 3})])
    assert as_of(rows, 3).item == {**KEY, "a": 3}
    assert as_of(rows, 2).item == {**KEY, "a": 1}


def test_an_item_that_was_removed_is_known_to_be_gone():
    known = item_after({"a": 1}, None)
    assert (known.exists, known.item, known.whole) == (False, None, True)


def test_values_that_were_not_written_are_named():
    known = item_after({"a": 1, "email": "x", "text": LARGE}, redact=["email"])
    assert known.item == {**KEY, "a": 1}
    assert known.redacted == ("email",)
    assert known.large["text"]["bytes"] == len(LARGE)


def test_attributes_that_no_row_names_are_unknown_where_rows_are_not_whole():
    rows = rows_of([(BORN, {"a": 1, "b": 1}), (BORN + 1, {"a": 2, "b": 1})], unchanged=False)
    known = as_of(rows[1:], 1)
    assert (known.item, known.whole, known.unknown_before) == ({**KEY, "a": 2}, False, rows[1]["at"])
    assert as_of(rows, 1).item == {**KEY, "a": 2, "b": 1}
    assert as_of(rows, 1).whole


def test_what_was_not_recorded_for_a_while_is_unknown_after_it():
    passed = [(BORN + number, {"a": number, "b": number}) for number in range(3)]
    every, only_a = (rows_of(passed, fields=fields, unchanged=False) for fields in (None, ["a"]))
    known = as_of([every[0], only_a[1]], 9)
    assert (known.item, known.whole, known.fields) == ({**KEY, "a": 1}, False, ("a",))
    again = as_of([every[0], only_a[1], every[2]], 9)
    assert (again.item, again.whole, again.fields) == ({**KEY, "a": 2, "b": 2}, False, None)


@pytest.mark.slow
def test_a_row_that_its_changes_did_not_fit_leaves_the_item_unknown():
    many = {f"a{number:04d}": "x" * 50 for number in range(6900)}
    known = item_after({"b": 1}, {**many, "b": 1})
    assert (known.exists, known.item, known.whole) == (True, KEY, False)
    assert item_after({"b": 1}, {**many, "b": 1}, None).whole


def test_the_change_that_made_it_so_is_named():
    known = item_after({"a": 1}, {"a": 2}, seconds=0)
    assert known.at == FIRST
    assert known.version.endswith("/" + "1".zfill(40))


def test_a_time_in_any_zone_is_taken():
    rows = rows_of([(BORN, {"a": 1})])
    east = datetime(2026, 3, 1, 11, tzinfo=timezone(timedelta(hours=2)))
    assert item_as_of(rows, east, KEY).exists
    assert item_as_of(rows, east - timedelta(seconds=1), KEY).exists is None


@pytest.mark.parametrize("name", ["changes", "unchanged", "fields", "left_out"])
@pytest.mark.parametrize("value", [5, "x", ["x"], {"a": 5}, {"a": []}, None], ids=repr)
def test_a_row_that_somebody_changed_is_not_raised_on(name, value):
    rows = rows_of([(BORN, {"a": 1}), (BORN + 1, {"a": 2}), (BORN + 2, {"a": 3, "b": 1})], unchanged=True)
    rows[1] = {**rows[1], name: value}
    assert as_of(rows, 1).exists
    assert as_of(rows, 2).item == {**KEY, "a": 3, "b": 1}


@pytest.mark.parametrize("at", [5, None, [], {}, b"x"])
def test_what_is_no_time_counts_as_none(at):
    rows = rows_of([(BORN, {"a": 1}), (BORN + 1, {"a": 2}), (BORN + 2, {"a": 3})])
    rows[1] = {**rows[1], "at": at}
    assert [(as_of(rows, seconds).item or {}).get("a") for seconds in (1, 2)] == [1, 3]


@pytest.mark.parametrize("other", [{"version": 5}, {"event": "SOLD"}, {"event": ["x"]}])
def test_an_item_of_others_is_no_row_of_the_history(other):
    rows = rows_of([(BORN, {"a": 1})])
    assert as_of([*rows, {**rows[0], "changes": 5, **other}], 9) == as_of(rows, 9)


@pytest.mark.parametrize("text", ["2026-03-01T09:00:00", "2026-03-01", "yesterday"])
def test_a_time_without_a_zone_is_refused(text):
    with pytest.raises(ValueError, match=r"has no time zone|Invalid isoformat"):
        moment(text)


def test_a_time_is_read_with_its_zone():
    assert moment("2026-03-01T09:00:00Z") == datetime(2026, 3, 1, 9, tzinfo=UTC)
    assert moment("2026-03-01T11:00:00+02:00") == datetime(2026, 3, 1, 9, tzinfo=UTC)


def untimed(rows, *numbers):
    return [{name: row[name] for name in row if name != "at" or n not in numbers} for n, row in enumerate(rows)]


def test_a_row_without_a_time_counts_as_one_of_the_time_of_the_next():
    rows = untimed(rows_of([(BORN, {"a": 1}), (BORN + 1, {"a": 2}), (BORN + 2, {"a": 3}), (BORN + 3, {"a": 4})]), 1, 3)
    assert [(as_of(rows, seconds).item or {}).get("a") for seconds in (0, 1, 2, 9)] == [1, 1, 3, 3]
    assert as_of(untimed(rows, 0), 0) == ItemAsOf(unknown_before=rows[2]["at"])


def test_of_rows_of_which_none_has_a_time_nothing_is_known():
    assert as_of(untimed(rows_of([(BORN, {"a": 1})]), 0), 9) == ItemAsOf()
