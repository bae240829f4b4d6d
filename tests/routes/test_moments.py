"""``Now``: which moments have come, and at which moment an answer changes."""

import copy
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import count, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamfold import Key, Now, local_day_bounds
from streamfold.errors import HandlerError
from streamfold.keys.field import KeyTime
from streamfold.routes.moments import (
    COME_MAX,
    FIRST_MICROSECONDS,
    LAST_MICROSECONDS,
    microseconds_of,
    moment_microseconds,
    moment_text,
)
from streamfold.testing import TwinError, now

TEN = "2026-03-01T10:00:00Z"
AT = datetime(2026, 3, 1, 10, tzinfo=UTC)
SECONDS = 1_772_359_200
BERLIN = timezone(timedelta(hours=1))


def refusal(moment):
    with pytest.raises(HandlerError) as refused:
        now(TEN).passed(moment)
    return str(refused.value)


@pytest.mark.parametrize(
    "moment",
    [
        AT, AT.astimezone(BERLIN), SECONDS, Decimal(SECONDS), Decimal("1.7723592E+9"), TEN, "2026-03-01T10:00:00+00:00",
        "2026-03-01T10:00:00.000Z", "2026-03-01T10:00:00.000000Z", "2026-03-01T10:00:00.000000000Z", KeyTime.of(TEN),
    ],
)  # fmt: skip
def test_one_moment_is_written_in_many_ways(moment):
    assert microseconds_of(moment) == SECONDS * 1_000_000


@pytest.mark.parametrize("spec", ["", ".seconds", ".milliseconds", ".nanoseconds", ".offset", ".any"])
def test_the_time_of_a_key_is_a_moment_as_text_and_as_value(spec):
    key = Key("A#{id}", f"{{at:datetime{spec}}}")
    text = key.key(id="1", at=AT)["SK"]
    assert microseconds_of(text) == microseconds_of(key.match({"PK": "A#1", "SK": text})["at"]) == SECONDS * 1_000_000


@pytest.mark.parametrize("kind", ["number.seconds", "number.milliseconds", "epoch.milliseconds"])
def test_a_key_reads_its_count_as_a_moment(kind):
    key = Key("A#{id}", f"{{at:{kind}}}")
    assert microseconds_of(key.match(key.key(id="1", at=AT))["at"]) == SECONDS * 1_000_000


def test_a_moment_has_come_at_itself_and_not_before():
    assert now(TEN).passed(AT)
    assert not now(TEN).passed(AT + timedelta(microseconds=1))


@pytest.mark.parametrize("text", ["2026-03-01T10:00:00.000000001Z", "2026-03-01T10:00:00.0000009+00:00"])
def test_a_fraction_of_a_microsecond_is_rounded_up(text):
    assert not now(TEN).passed(text)
    assert microseconds_of(text) == microseconds_of(KeyTime.of(text)) == SECONDS * 1_000_000 + 1


@pytest.mark.parametrize("moment", [None, ""])
def test_what_an_item_lacks_never_comes(moment):
    asked = now(TEN)
    assert not asked.passed(moment)
    assert not asked.between(moment, None)
    assert (asked.came_microseconds, asked.next_microseconds) == (None, None)


def test_a_duration_is_added():
    assert now(TEN).passed("2026-03-01T09:55:00Z", after=timedelta(minutes=5))
    assert not now(TEN).passed("2026-03-01T09:55:00.000001Z", after=timedelta(minutes=5))
    assert now(TEN).passed("2026-03-02T10:00:00Z", after=timedelta(days=-1))


@pytest.mark.parametrize("moment", [AT, SECONDS, datetime.max.replace(tzinfo=UTC)])
def test_a_moment_behind_the_year_9999_never_comes_and_one_before_the_year_1_has(moment):
    asked = now(TEN)
    assert not asked.passed(moment, after=timedelta.max)
    assert asked.next_microseconds is None
    assert asked.passed(AT, after=timedelta.min)
    assert moment_text(asked.came_microseconds) == "0001-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("moment", "fault", "remedy"),
    [
        (1_772_359_200_123, "too many digits", "datetime.fromtimestamp(int(...) / 1000, UTC)"),
        (Decimal(10**11), "too many digits", "datetime.fromtimestamp"),
        (-(10**11), "too many digits", "datetime.fromtimestamp"),
        (1_772_359_200.5, "is a float", "Write int(...)"),
        (Decimal("1772359200.5"), "no whole number", "Give a datetime"),
        (Decimal("NaN"), "no whole number", "Give a datetime"),
        (AT.replace(tzinfo=None), "no time zone", "moment.replace(tzinfo=UTC)"),
        (date(2026, 3, 1), "is a date", "datetime.combine(day, time(), ZoneInfo('Europe/Berlin'))"),
        ("2026-03-01", "is a date", "datetime.combine(date.fromisoformat(...), time(), ZoneInfo('Europe/Berlin'))"),
        ("1772359200", "text of digits", "Write int(...)"),
        ("-1", "text of digits", "Write int(...)"),
        ("2026-03-01T10:00:00", "no text of a datetime field", "2026-03-01T10:00:00Z"),
        ("2026-03-01T11:00:00+01:00", "no text of a datetime field", "datetime.fromisoformat(...)"),
        ("2026-02-30T10:00:00Z", "no text of a datetime field", "2026-03-01T10:00:00Z"),
        ("2026-03-01 10:00:00Z", "no text of a datetime field", "2026-03-01T10:00:00Z"),
        ("tomorrow", "no text of a datetime field", "2026-03-01T10:00:00Z"),
        (True, "is of type bool", "Expected a datetime with a time zone"),
        (timedelta(minutes=5), "is of type timedelta", "Expected a datetime with a time zone"),
        ({"S": "x"}, "is of type dict", "Expected a datetime with a time zone"),
    ],
)
def test_a_value_that_is_no_moment_is_refused_with_the_way_to_write_it(moment, fault, remedy):
    message = refusal(moment)
    assert fault in message
    assert remedy in message


@pytest.mark.parametrize("after", [5, 5.0, "PT5M", None])
def test_a_duration_without_a_unit_is_refused(after):
    with pytest.raises(HandlerError, match=r"after=timedelta\(minutes=5\)"):
        now(TEN).passed(AT, after=after)


def test_between_a_begin_and_an_end():
    nine, eleven = AT - timedelta(hours=1), AT + timedelta(hours=1)
    assert now(TEN).between(nine, eleven)
    assert now(TEN).between(AT, eleven)
    assert not now(TEN).between(nine, AT)
    assert not now(TEN).between(eleven, None)
    assert now(TEN).between(nine, None)
    assert now(TEN).between(nine, "")
    assert not now(TEN).between(nine, nine - timedelta(hours=1))


def test_an_end_is_not_asked_before_the_begin_has_come():
    asked = now(TEN)
    asked.between("2026-03-01T11:00:00Z", "2026-03-01T12:00:00Z")
    assert moment_text(asked.next_microseconds) == "2026-03-01T11:00:00.000000Z"


def test_the_latest_of_an_endless_series():
    midnights = (datetime(2026, 2, 1, tzinfo=UTC) + timedelta(days=each) for each in count())
    asked = now(TEN)
    assert asked.latest(midnights) == datetime(2026, 3, 1, tzinfo=UTC)
    assert moment_text(asked.came_microseconds) == "2026-03-01T00:00:00.000000Z"
    assert moment_text(asked.next_microseconds) == "2026-03-02T00:00:00.000000Z"


def test_the_latest_is_the_value_that_was_given():
    assert now(TEN).latest(["2026-01-01T00:00:00Z", SECONDS, None]) == SECONDS
    assert now(TEN).latest([None, SECONDS]) is None
    assert now(TEN).latest([]) is None


def test_moments_out_of_order_are_refused():
    with pytest.raises(HandlerError, match="takes ascending moments"):
        now(TEN).latest(["2026-02-01T00:00:00Z", "2026-01-01T00:00:00Z"])


def test_ten_thousand_moments_may_have_come_and_one_more_is_refused():
    assert now(TEN).latest(range(COME_MAX)) == COME_MAX - 1
    with pytest.raises(HandlerError, match="10,000 others that have come"):
        now(TEN).latest(range(COME_MAX + 1))


@pytest.mark.parametrize(
    "read",
    [
        lambda now: now < AT, lambda now: now >= AT, lambda now: now < "2026", lambda now: now >= SECONDS,
        lambda now: now == AT, lambda now: now != AT, lambda now: max(now, AT), lambda now: sorted([AT, now]),
        lambda now: now + timedelta(1), lambda now: timedelta(1) + now, lambda now: now - AT, lambda now: AT - now,
        lambda now: now % 60, lambda now: now // 60, lambda now: f"{now}", lambda now: f"{now:%Y}",
        lambda now: {now: 1}, lambda now: now.timestamp(), lambda now: now.isoformat(), bool, int, float, str, range,
    ],
)  # fmt: skip
def test_the_time_cannot_be_read(read):
    with pytest.raises(HandlerError, match=r"now\.passed\(moment\)"):
        read(now(TEN))


def test_its_text_in_a_debugger_has_no_time():
    assert repr(now(TEN)) == repr(now(SECONDS + 1)) == "<streamfold.Now>"
    assert not hasattr(now(TEN), "__missing__")
    assert repr(copy.copy(now(TEN))) == "<streamfold.Now>"


@pytest.mark.parametrize("ask", [
    lambda now: now.passed(AT), lambda now: now.between(None, None), lambda now: now.latest([]),
])  # fmt: skip
def test_after_the_call_it_answers_nothing(ask):
    kept = now(TEN)
    kept.passed(AT)
    kept.end()
    with pytest.raises(HandlerError, match="after the call"):
        ask(kept)
    assert kept.came_microseconds == SECONDS * 1_000_000


def test_a_test_gives_a_moment():
    with pytest.raises(TwinError, match=r'now\("2026-03-01T10:00:00Z"\)'):
        now("")


def test_an_earlier_question_does_not_hide_a_later_one_around_1970():
    asked = Now(10)
    for microseconds in (0, -5_000_000):
        asked.passed(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds))
    assert asked.came_microseconds == 0


moments = st.integers(FIRST_MICROSECONDS, LAST_MICROSECONDS)


@given(moments)
def test_a_text_leads_back_to_its_moment(microseconds):
    assert moment_microseconds(moment_text(microseconds)) == microseconds


@given(moments, moments)
def test_texts_sort_as_their_moments(one, other):
    assert (moment_text(one) < moment_text(other)) == (one < other)


# --- the theorem: from the greatest moment that had come to the smallest that had not, all answers are the same ----

small = st.integers(0, 30)
some = st.none() | small
questions = st.recursive(
    st.tuples(st.just("passed"), some, st.integers(-5, 5))
    | st.tuples(st.just("between"), some, some)
    | st.tuples(st.just("latest"), st.lists(small, max_size=5).map(sorted)),
    lambda inner: st.tuples(st.sampled_from(["if", "and", "or"]), inner, inner, inner),
    max_leaves=12,
)
"""Trees of questions: a branch is asked only where the answer before it leads to it, as ``and`` and ``return`` do."""


def seconds(value):
    return None if value is None else SECONDS + value


def answers(tree, asked, told):
    """The answer of a tree; all answers on the way are noted."""
    kind, *rest = tree
    if kind == "if":
        return answers(rest[1] if answers(rest[0], asked, told) else rest[2], asked, told)
    if kind in ("and", "or"):
        found = answers(rest[0], asked, told)
        return answers(rest[1], asked, told) if bool(found) == (kind == "and") else found
    if kind == "passed":
        found = asked.passed(seconds(rest[0]), after=timedelta(seconds=rest[1]))
    elif kind == "between":
        found = asked.between(seconds(rest[0]), seconds(rest[1]))
    else:
        found = asked.latest(map(seconds, rest[0]))
    told.append((tree, found))
    return found


def result(tree, at):
    asked, told = Now(at), []
    return answers(tree, asked, told), told, asked.came_microseconds, asked.next_microseconds


@given(questions, st.integers(-10, 40), st.data())
def test_from_the_last_moment_that_had_come_to_the_next_all_answers_are_the_same(tree, at, data):
    at = (SECONDS + at) * 1_000_000
    found = result(tree, at)
    *_, since, following = found
    begin = at - 20_000_000 if since is None else since
    end = at + 20_000_000 if following is None else following - 1
    assert begin <= at <= end
    other = data.draw(st.integers(begin, end))
    assert result(tree, other) == found


@given(questions)
def test_visits_at_the_named_moments_alone_see_every_result(tree):
    """Whoever derives again at each named moment holds at every time what the tree says at that time."""
    ends = [(SECONDS - 20) * 1_000_000]
    while (following := result(tree, ends[-1])[3]) is not None:
        assert following > ends[-1]
        ends.append(following)
    for begin, end in pairwise([*ends, (SECONDS + 60) * 1_000_000]):
        assert result(tree, begin)[:2] == result(tree, end - 1)[:2]


def test_the_bounds_of_a_local_day_are_asked_in_turn():
    begin, end = local_day_bounds(TEN, "Europe/Zurich")
    asked = now("2026-02-28T12:00:00Z")
    assert not asked.between(begin, end)
    assert moment_text(asked.next_microseconds) == "2026-02-28T23:00:00.000000Z"
    assert now("2026-03-01T22:59:59Z").between(begin, end)
    assert not now("2026-03-01T23:00:00Z").between(begin, end)
