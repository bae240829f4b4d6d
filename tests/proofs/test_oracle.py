"""The oracle, kind by kind, against rows that are written down here: everything else is compared with it."""

from itertools import pairwise

import pytest

from streamfold import Add, App, Count, Delete, First, Key, Latest, Max, Min, Put, Router, Row, Sum, Table
from streamfold.proofs.oracle import expected_rows, stored_rows
from streamfold.testing import HandlerFails, Write, check
from tests.helpers.expenses import CARD, EXPENSE, GROUP, group_total
from tests.helpers.records import VERSION_PREFIX, change, item

SEEN = Key("SEEN#{expense_id}", "LAST")
CHANGES = Key("CHANGES#{event}", "TOTAL")
BY_TOTAL = Key("BY#{total}", "GROUPS")
ONE = "EXPENSE#1"
SMALL, LARGE = {"group": "a", "amount": 2}, {"group": "b", "amount": 5}


def app_with(declare):
    router = Router()
    declare(router)
    return App("shop", routers=[router])


def totals(router):
    router.view(EXPENSE, into=GROUP)(group_total)


def history(*images, partition=ONE, first=1):
    """The changes of an item through these images; None stands for an item that is not there."""
    items = [None, *(image and item(partition, **image) for image in images)]
    return [change(*pair, first + place) for place, pair in enumerate(pairwise(items))]


def test_view_is_the_sum_over_the_last_images_of_all_items():
    changes = [*history(SMALL, LARGE), *history(LARGE, partition="EXPENSE#2", first=10)]
    expected = {("main", "GROUP#b", "TOTAL"): {"total": {"N": "10"}, "expenses": {"N": "2"}}}

    assert expected_rows(app_with(totals), changes) == expected


def test_item_that_was_removed_contributes_nothing():
    assert expected_rows(app_with(totals), history(SMALL, None)) == {}


def test_order_and_number_of_deliveries_do_not_matter():
    changes = history(SMALL, LARGE, SMALL)

    assert expected_rows(app_with(totals), [*reversed(changes), *changes]) == expected_rows(app_with(totals), changes)


def test_sum_of_nothing_is_left_out():
    rows = expected_rows(app_with(totals), history({"group": "a", "amount": 0}))

    assert rows == {("main", "GROUP#a", "TOTAL"): {"expenses": {"N": "1"}}}


def test_index_has_the_rows_of_the_last_image():
    def declare(router):
        @router.index(EXPENSE, into=CARD)
        def card(item):
            yield Row(group=item["group"])

    rows = expected_rows(app_with(declare), history(SMALL, LARGE))

    assert rows == {("main", "CARD#1", "CARD"): {"group": {"S": "b"}}}


def test_views_of_derived_rows_follow_from_these():
    def declare(router):
        totals(router)

        @router.view(GROUP, into=BY_TOTAL)
        def by_total(row):
            yield Row(total=str(row["total"]), groups=Count(), expenses=Sum(row["expenses"]))

    rows = expected_rows(app_with(declare), history(SMALL))

    assert rows["main", "BY#2", "GROUPS"] == {"groups": {"N": "1"}, "expenses": {"N": "1"}}


def test_audit_has_a_row_for_every_change_and_no_value_that_is_redacted():
    rows = expected_rows(app_with(lambda router: router.audit(EXPENSE, redact=["amount"])), history(SMALL, LARGE))

    assert [row["event"] for row in rows.values()] == [{"S": "INSERT"}, {"S": "MODIFY"}]
    key, row = next(reversed(rows.items()))
    assert key[1] == "AUDIT#EXPENSE#1|METADATA"
    assert key[2].startswith(VERSION_PREFIX)
    redacted = {"M": {"redacted": {"L": [{"S": "old"}, {"S": "new"}]}}}
    assert row["changes"] == {"M": {"group": {"M": {"old": {"S": "a"}, "new": {"S": "b"}}}, "amount": redacted}}
    assert row["unchanged"] == {"M": {}}


def test_audit_has_what_its_declaration_asks_for():
    key = Key("EXPENSE#{expense_id}", "METADATA", table=Table("main", ttl="expires"))
    app = app_with(lambda router: router.audit(key, fields=["group"], actor="amount", keep_days=1))
    first, second = expected_rows(app, history(SMALL, {**SMALL, "amount": 9})).values()

    assert (first["changes"], second["changes"]) == ({"M": {"group": {"M": {"new": {"S": "a"}}}}}, {"M": {}})
    assert second["unchanged"] == {"M": {"group": {"M": {"value": {"S": "a"}}}}}
    assert second["fields"] == {"L": [{"S": "group"}]}
    assert second["actor"] == {"N": "9"}
    assert second["expires"] == {"N": str(1_772_355_600 + 24 * 60 * 60)}


@pytest.mark.parametrize("size", [40_000, 390_000])
def test_an_audit_of_values_that_are_too_large_for_a_row_is_proved(size):
    large, other = {"group": "a" * size, "amount": 2, "by": "b" * 2000}, {"group": "c" * size, "amount": 3, "by": "d"}
    app = app_with(lambda router: router.audit(EXPENSE, actor="by"))
    first, second, third = expected_rows(app, history(large, {**large, "amount": 3}, other)).values()
    assert first["changes"]["M"]["group"]["M"]["large"]["M"]["new"]["M"]["bytes"] == {"N": str(size)}
    assert first["left_out"] == {"L": [{"S": "actor"}]}
    assert set(second["unchanged"]["M"]["group"]["M"]) == {"large"}
    assert third["actor"] == {"S": "d"}
    writes = [Write(EXPENSE, {"expense_id": "1"}, image) for image in (large, other)]
    assert check(app, writes=writes, histories=5).histories


@pytest.mark.parametrize("aggregate", [Max, Min, lambda time: Latest(time, by=1), lambda time: First(time, by=1)])
def test_a_shared_row_expires_later_than_its_sources(aggregate):
    table = Table("main", ttl="expires")
    router = Router()

    @router.view(Key("EXPENSE#{expense_id}", "METADATA", table=table), into=Key("ALL", "TOTAL", table=table))
    def total(expense):
        yield Row(total=Sum(expense["amount"]), expires=aggregate(1_900_000_000), seen=Max(1_900_000_000))

    (row,) = expected_rows(App("shop", routers=[router]), history(SMALL)).values()
    assert row["expires"] == {"N": str(1_900_000_000 + 7 * 24 * 60 * 60)}
    assert row["seen"] == {"N": "1900000000"}


def test_an_application_whose_shared_rows_expire_is_proved():
    table = Table("main", ttl="expires")
    expense = Key("EXPENSE#{expense_id}", "METADATA", table=table)
    router = Router()

    @router.view(expense, into=Key("GROUP#{group}", "TOTAL", table=table))
    def total(item):
        yield Row(group=item["group"], total=Sum(item["amount"]), expires=Max(item["expires"]))

    @router.view(expense, into=Key("EXPENSE#{expense_id}", "COPY", table=table))
    def copied(item):
        yield Row(amount=item["amount"], expires=Max(item["expires"]))

    example = {"group": "a", "amount": 1, "expires": 1_900_000_000}
    assert check(App("shop", routers=[router]), {expense: example}, histories=20).histories


def test_on_takes_every_change_once_in_order():
    def declare(router):
        @router.on(EXPENSE, into=[SEEN, CHANGES])
        def seen(change):
            yield Add(CHANGES, event=change.event, changes=1)
            yield Put(SEEN, group=change.new["group"]) if change.new else Delete(SEEN)

    app, changes = app_with(declare), history(SMALL, LARGE, SMALL, None, LARGE)

    assert expected_rows(app, [*changes, *changes]) == {
        ("main", "CHANGES#INSERT", "TOTAL"): {"changes": {"N": "2"}},
        ("main", "CHANGES#MODIFY", "TOTAL"): {"changes": {"N": "2"}},
        ("main", "CHANGES#REMOVE", "TOTAL"): {"changes": {"N": "1"}},
        ("main", "SEEN#1", "LAST"): {"group": {"S": "b"}},
    }
    assert ("main", "SEEN#1", "LAST") not in expected_rows(app, changes[:-1])


def test_on_leaves_out_what_it_does_not_take():
    def declare(router):
        @router.on(EXPENSE, events=["MODIFY"], changed=["group"], into=SEEN)
        def seen(change):
            yield Put(group=change.new["group"])

    app = app_with(declare)

    assert expected_rows(app, history(SMALL, {**SMALL, "amount": 3})) == {}
    assert expected_rows(app, history(SMALL, LARGE))


def test_handler_that_raises_is_named_with_the_item():
    with pytest.raises(
        HandlerFails,
        match=r"'group_total' \(.*expenses.py:\d+\), item EXPENSE#1 / METADATA: LookupError: no",
    ):
        expected_rows(app_with(totals), history({"group": "broken", "amount": 1}))


def test_stored_rows_are_those_that_readers_see():
    counted = {"_sf_n": {"N": "1"}, "total": {"N": "2"}, "refunds": {"N": "0"}}
    items = {
        ("main", "GROUP#a", "TOTAL"): {"PK": {"S": "GROUP#a"}, "SK": {"S": "TOTAL"}, **counted},
        ("main", "GROUP#b", "TOTAL"): {"PK": {"S": "GROUP#b"}, "SK": {"S": "TOTAL"}, "_sf_n": {"N": "0"}},
        ("main", "EXPENSE#1", "METADATA"): {"PK": {"S": "EXPENSE#1"}, "SK": {"S": "METADATA"}},
    }

    assert stored_rows(app_with(totals), items.items()) == {("main", "GROUP#a", "TOTAL"): {"total": {"N": "2"}}}


def test_an_item_of_two_sources_is_read_by_the_narrower_one():
    wide, narrow = Key("A#{x}", "{y:rest}"), Key("A#{x}", "B")
    router = Router()

    @router.view(wide, narrow, into=Key("Y#{z}", "N"))
    def counted(item, y="none"):
        return Row(z=y, n=Count())

    app = App("nested", routers=[router])
    rows = expected_rows(app, [change(None, item("A#1", "B"))])
    assert list(rows) == [("main", "Y#none", "N")]


def test_an_audit_tells_a_truth_value_from_a_number():
    changes = history({"paid": 1}, {"paid": True})

    first, second = expected_rows(app_with(lambda router: router.audit(EXPENSE)), changes).values()

    assert second["changes"] == {"M": {"paid": {"M": {"old": {"N": "1"}, "new": {"BOOL": True}}}}}
    assert second["unchanged"] == {"M": {}}
    assert first["changes"] == {"M": {"paid": {"M": {"new": {"N": "1"}}}}}
