"""Times to live that remove no row, or remove it at once: each kind that can give one warns of it."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from streamfold import Add, App, Count, Key, Max, Put, Router, Row, Table
from streamfold.batch.process import process_changes
from streamfold.engines import MemoryEngine
from streamfold.records.values import encode
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from tests.helpers.records import change

NOW = 1_772_359_200
MAIN, COPIES = Table("main", ttl="ttl"), Table("copies", ttl="gone")
ITEM, DAY, BY, DONE = (
    Key("S#{id}", "M", MAIN),
    Key("DAY#{d}", "N", MAIN),
    Key("BY#{id}", "M", MAIN),
    Key("DONE#{id}", "M", MAIN),
)
WRONG = {
    "milliseconds": (NOW * 1000, "in milliseconds or finer: the row never expires. Divide it"),
    "nanoseconds": (NOW * 10**9, "in milliseconds or finer"),
    "text": (str(NOW), "that is no number: the row never expires"),
    "a time as text": ("2026-06-01T00:00:00Z", "that is no number"),
    "a flag": (True, "that is no number"),
    "a fraction": (Decimal("1780000000.5"), "with a fraction"),
    "before 1970": (-5, "more than a day before the change"),
    "two days ago": (NOW - 2 * 86_400, "more than a day before the change"),
}
RIGHT = [NOW + 60, NOW - 60, Decimal(NOW + 1), None, 4_102_444_800]


def shared(router):
    @router.view(ITEM, into=DAY)
    def handler(item):
        return Row(d="1", n=Count(), ttl=Max(item["at"]))


def indexed(router):
    @router.index(ITEM, into=BY)
    def handler(item):
        return Row(ttl=item["at"])


def claimed(router):
    @router.index(ITEM, into=BY, unique=True)
    def handler(item):
        return Row(ttl=item["at"])


def put(router):
    @router.on(ITEM, into=DONE)
    def handler(change):
        return Put(ttl=change.new["at"])


def added(router):
    @router.on(ITEM, into=DAY)
    def handler(change):
        return Add(d="1", ttl=change.new["at"])


def derived(router):
    @router.attributes(ITEM)
    def handler(item):
        return Row(ttl=item["at"])


def copied(router):
    router.copy(ITEM, to=COPIES, name="handler")


def warnings_of(declared, value, *times):
    router = Router()
    declared(router)
    app, said = App("times", routers=[router]), []
    runtime = Runtime(app, MemoryEngine(app), Settings(), warn=said.append)
    name = "gone" if declared is copied else "at"
    for number in range(1, 3):
        image = {"PK": f"S#{number}", "SK": "M", name: value}
        process_changes(runtime, [change(None, image, number, table=MAIN, **dict(zip(("at",), times, strict=False)))])
    return [each for each in said if "the time to live" in each]


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("declared", [shared, indexed, claimed, put, derived, copied])
def test_a_time_to_live_that_removes_no_row_or_removes_it_at_once_is_warned_of_once(declared, case):
    value, expected = WRONG[case]
    if declared is shared and case in ("a flag", "two days ago"):
        pytest.skip("Max refuses a flag, and a shared row expires a week later than its items")
    (warning,) = warnings_of(declared, value, NOW)
    assert warning.startswith("Handler 'handler' (")
    assert f"gives a row the time to live {'gone' if declared is copied else 'ttl'!r} {expected}" in warning
    assert str(value) not in warning.partition("gives")[2].partition("Write")[0]


@pytest.mark.parametrize("value", RIGHT)
@pytest.mark.parametrize("declared", [indexed, claimed, put, derived, copied])
def test_a_time_to_live_in_seconds_is_not_warned_of(declared, value):
    assert warnings_of(declared, value, NOW) == []


def test_an_addition_to_a_time_to_live_is_looked_at():
    (warning,) = warnings_of(added, NOW * 1000, NOW)
    assert "in milliseconds" in warning


def test_a_time_is_written_as_text():
    (warning,) = warnings_of(indexed, encode(datetime(2026, 6, 1, tzinfo=UTC))["S"], NOW)
    assert "that is no number" in warning


def test_a_table_without_a_time_to_live_has_none():
    router = Router()

    @router.index(Key("S#{id}", "M"), into=Key("BY#{id}", "M"))
    def handler(item):
        return Row(ttl=NOW * 1000)

    app, said = App("times", routers=[router]), []
    process_changes(
        Runtime(app, MemoryEngine(app), Settings(), warn=said.append), [change(None, {"PK": "S#1", "SK": "M"}, 1)]
    )
    assert said == []
