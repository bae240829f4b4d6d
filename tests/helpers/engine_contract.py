"""What every engine does alike: each write of the closed set under every form of its condition, and the reads.

One class for all engines: ``test_engines.py`` runs it on the embedded engine and on moto,
``engine/test_engines_on_local.py`` on DynamoDB Local, which decides where they disagree.
"""

from decimal import Decimal

import pytest

from streamfold import Key, Table
from streamfold.engines import DynamoEngine
from streamfold.engines.protocol import Counter, Entries, Inserted, Segment
from streamfold.errors import EngineError, EngineUnavailable
from streamfold.keys.table import CONTRIBUTORS, LIFE, OWNER, STATE, VERSION
from streamfold.ledger.state_keys import StoredAttributes
from streamfold.records.values import decode, encode
from streamfold.writes.guarded import (
    CONDITION,
    CONFLICT,
    AbsentSource,
    AddRow,
    Claim,
    CorrectRow,
    CounterWrite,
    DeleteRow,
    DeleteSource,
    DeleteState,
    GuardedPut,
    HandlerContribution,
    LedgerWrite,
    PutPostRow,
    PutRow,
    PutState,
    RecomputedRow,
    StateKey,
    SwapState,
    UpdateSource,
)
from tests.helpers.tables import make_table

SHOP = Table("shop", ttl="expires")
PLAIN = Table("plain", partition="id", sort="name")
NUMBERED = Table("numbered", partition="id", sort="number")
BINARY = Table("binary", partition="id", sort=None)
MARKED = Table("marked", partition="#id", sort=":at")
TABLES = {
    SHOP: {"PK": "S", "SK": "S"},
    PLAIN: {"id": "S", "name": "S"},
    NUMBERED: {"id": "S", "number": "N"},
    BINARY: {"id": "B"},
    MARKED: {"#id": "S", ":at": "S"},
}
STATE_TABLE = "shop-state"
EXPIRES = 1_900_000_000
LEDGER = StateKey("ledger#shop#main#shop#S#ORDER#1", "S#METADATA")
CLAIM = StateKey("claim#shop#signed_in#shop#S#SESSION#1", "S#METADATA#v1")
ROW = ("shop", "SALES#2026-03-01", "SKU#a")
OTHER_ROW = ("plain", "CUSTOMER#1", "ORDERS")
DIGITS_38 = "12345678901234567890123456789012345678"
ALL_TYPES = {
    "text": "grün €  \U0001f600",
    "empty_text": "",
    "whole": 10**37,
    "most_digits": int(DIGITS_38),
    "negative": Decimal(f"-0.{DIGITS_38}"),
    "smallest": Decimal("1E-130"),
    "largest": Decimal("9.99E+125"),
    "zero": 0,
    "yes": True,
    "no": False,
    "null": None,
    "bytes": b"\x00\xff",
    "empty_bytes": b"",
    "list": [1, "two", [Decimal("3.5"), {"four": b"\x04"}]],
    "empty_list": [],
    "map": {"a": {"b": [None, {"c": True}]}, "ttl": "a reserved word"},
    "empty_map": {},
    "texts": {"a", "b"},
    "numbers": {1, Decimal("2.5")},
    "binaries": {b"\x01", b"\x02\x03"},
}


def nested(levels):
    return [nested(levels - 1)] if levels else []


class Store:
    """An engine under test, and a look at what it holds."""

    def __init__(self, engine):
        self.engine = engine

    def write(self, *writes):
        assert self.engine.transact(writes, EXPIRES) is None

    def refused(self, *writes):
        refused = self.engine.transact(writes, EXPIRES)
        assert refused is not None
        assert len(refused.reasons) == len(writes)
        return refused.reasons

    def row(self, key=ROW):
        found = [row for row in self.rows(key[0], key[1]) if key[2] is None or key[2] in row.values()]
        return found[0] if found else None

    def rows(self, name, partition=None):
        table = next(table for table in TABLES if table.name == name)
        return [{name: decode(value) for name, value in item.items()} for item in self.engine.items(table, partition)]

    def put(self, key, attributes, version="v1"):
        """Puts a source item, as the application would."""
        if not hasattr(self.engine, "put_sources"):
            self.write(PutRow(key, attributes))
            return
        table = next(table for table in TABLES if table.name == key[0])
        item = {**dict(zip(table.attributes, key[1:], strict=False)), **attributes}
        self.engine.put_sources([(key, encode(item)["M"], version)])

    def sorts(self, begins, limit):
        """The sort keys of a partition, page by page."""
        pages, after = [], None
        while not pages or after is not None:
            page = self.engine.page(SHOP, "ORDER#1", begins, after, limit)
            pages.append([item["SK"]["S"] for item in page.items])
            after = page.after
        return [page for page in pages if page] or [[]]

    def state(self, key=LEDGER):
        return self.engine.read_state([key]).get(key)


def dynamo_store(client):
    """A store on this client, with all tables made."""
    for table, types in TABLES.items():
        make_table(client, f"real-{table.name}", types)
    make_table(client, STATE_TABLE, {"pk": "S", "sk": "S"})
    return Store(dynamo_engine(client))


def dynamo_engine(client):
    """An engine on this client, whether its tables are there or not."""
    tables = {table.name: (table, f"real-{table.name}") for table in TABLES}
    return DynamoEngine(client, tables, STATE_TABLE, pause=lambda seconds: None)


def part(handler="total", version="v2", after="new", before=""):
    return HandlerContribution(handler, version, after, before)


def optimistic(*parts, live=0, expires=False, live_expected=None):
    return LedgerWrite(LEDGER, parts or (part(),), None, live, expires, live_expected)


def revised(revision, *parts, live=0, expires=False):
    return LedgerWrite(LEDGER, parts or (part(),), revision, live, expires)


def repairing(revision, *parts, live=0, expires=False):
    return LedgerWrite(LEDGER, parts or (part(),), revision, live, expires, fence=True)


def plain_row(key=ROW, **attributes):
    return PutRow(key, attributes)


def owned(owner, key=ROW, **attributes):
    return PutRow(key, {**attributes, OWNER: owner}, owner)


def added(key=ROW, **amounts):
    """What an ``on`` handler's ``Add`` becomes."""
    return AddRow(key, amounts, 1, unversioned=True)


def is_permanent(reason):
    return reason is not None and reason.code not in (CONDITION, *CONFLICT)


class EngineContract:
    """Wants a fixture ``store``."""

    # The ledger's optimistic form: the stored contribution is compared with what the effects were computed from.

    def test_first_step_makes_the_ledger_item(self, store):
        store.write(optimistic(part(version="v1", after="a"), live=1))
        assert store.state() == {"total.v": "v1", "total.s": "a", "r": 1, "live": 1}

    def test_step_over_an_older_version_moves_the_part_on(self, store):
        store.write(optimistic(part(version="v1", after="a"), live=1))
        store.write(optimistic(part(version="v2", before="a", after="b")))
        assert store.state() == {"total.v": "v2", "total.s": "b", "r": 2, "live": 1}

    def test_step_that_leaves_the_contribution_still_raises_version_and_revision(self, store):
        store.write(optimistic(part(version="v1", after="a"), live=1))
        store.write(optimistic(part(version="v2", before="a", after="a")))
        assert store.state() == {"total.v": "v2", "total.s": "a", "r": 2, "live": 1}

    def test_first_step_that_contributes_nothing_is_stored(self, store):
        store.write(optimistic(part(version="v1", after="")))
        assert store.state() == {"total.v": "v1", "total.s": "", "r": 1}

    @pytest.mark.parametrize("version", ["v1", "v2"])
    def test_step_over_an_equal_or_newer_version_is_refused_with_what_is_stored(self, store, version):
        store.write(optimistic(part(version="v2", after="a"), live=1))
        (reason,) = store.refused(optimistic(part(version=version, before="a", after="b")))
        assert reason.code == CONDITION
        assert store.state().items() <= reason.item.items()
        assert store.state()["total.s"] == "a"

    def test_step_from_another_contribution_is_refused_with_what_is_stored(self, store):
        store.write(optimistic(part(version="v1", after="a"), live=1))
        (reason,) = store.refused(optimistic(part(version="v2", before="b", after="c")))
        assert (reason.code, reason.item["total.v"], reason.item["total.s"]) == (CONDITION, "v1", "a")
        assert store.state() == {"total.v": "v1", "total.s": "a", "r": 1, "live": 1}

    def test_step_from_nothing_over_a_contribution_is_refused(self, store):
        store.write(optimistic(part(version="v1", after="a"), live=1))
        (reason,) = store.refused(optimistic(part(version="v2", before="", after="c")))
        assert reason.item["total.s"] == "a"

    def test_step_from_nothing_over_an_older_empty_part_moves_it_on(self, store):
        store.write(optimistic(part(version="v1", after="")))
        store.write(optimistic(part(version="v2", before="", after="b"), live=1))
        assert store.state() == {"total.v": "v2", "total.s": "b", "r": 2, "live": 1}

    def test_step_from_a_contribution_is_refused_without_an_item_where_there_is_none(self, store):
        (reason,) = store.refused(optimistic(part(before="a")))
        assert (reason.code, reason.item) == (CONDITION, None)
        assert store.state() is None

    def test_step_from_a_contribution_is_refused_where_only_other_handlers_have_parts(self, store):
        store.write(optimistic(part("lines", after="a"), live=1))
        (reason,) = store.refused(optimistic(part("total", before="a")))
        assert reason.item["lines.s"] == "a"

    @pytest.mark.parametrize("contribution", ["", "a"])
    def test_fenced_part_refuses_the_optimistic_form(self, store, contribution):
        store.engine.swap_state(LEDGER, {"total.v": "v1", "total.s": contribution, "total.fence": True}, 0)
        (reason,) = store.refused(optimistic(part(version="v2", before=contribution)))
        assert reason.item["total.fence"] is True

    def test_fence_of_another_handler_does_not_matter(self, store):
        store.engine.swap_state(LEDGER, {"total.v": "v1", "total.s": "a", "lines.fence": True}, 0)
        store.write(optimistic(part(version="v2", before="a")))
        assert store.state()["lines.fence"] is True

    def test_versions_and_contributions_are_compared_by_their_bytes(self, store):
        store.write(optimistic(part(version="v\uffff", after="a"), live=1))
        store.write(optimistic(part(version="v\U00010000", before="a", after="b")))
        assert store.state()["total.s"] == "b"

    # Two handlers in one item

    def test_parts_of_two_handlers_move_in_one_write(self, store):
        store.write(optimistic(part("total", after="a"), part("lines", after="b"), live=2))
        assert store.state() == {"total.v": "v2", "total.s": "a", "lines.v": "v2", "lines.s": "b", "r": 1, "live": 2}

    def test_handler_that_is_new_joins_the_item_of_another(self, store):
        store.write(optimistic(part("total", "v1", "a"), live=1))
        store.write(optimistic(part("total", "v2", "b", "a"), part("lines", "v2", "c"), live=1))
        assert store.state() == {"total.v": "v2", "total.s": "b", "lines.v": "v2", "lines.s": "c", "r": 2, "live": 2}

    def test_one_part_that_does_not_fit_refuses_all_parts(self, store):
        store.write(optimistic(part("total", "v1", "a"), part("lines", "v3", "b"), live=2))
        before = store.state()
        store.refused(optimistic(part("total", "v2", "c", "a"), part("lines", "v2", "d", "b")))
        assert store.state() == before

    # The ledger's revision form

    def test_revision_0_makes_the_item(self, store):
        store.write(revised(0, part(after="a"), live=1))
        assert store.state() == {"total.v": "v2", "total.s": "a", "r": 1, "live": 1}

    def test_revision_0_is_refused_where_there_is_an_item(self, store):
        store.write(optimistic(part(after="a"), live=1))
        (reason,) = store.refused(revised(0))
        assert (reason.code, reason.item["r"]) == (CONDITION, 1)

    def test_equal_revision_moves_the_part_on_whatever_it_holds(self, store):
        store.write(optimistic(part(version="v1", after="a"), live=1))
        store.write(revised(1, part(version="v2", before="not compared", after="b")))
        assert store.state() == {"total.v": "v2", "total.s": "b", "r": 2, "live": 1}

    @pytest.mark.parametrize("revision", [1, 3])
    def test_other_revision_is_refused(self, store, revision):
        store.write(revised(0, live=1), revised_elsewhere())
        store.write(revised(1))
        (reason,) = store.refused(revised(revision))
        assert (reason.code, reason.item["r"]) == (CONDITION, 2)

    def test_revision_is_refused_without_an_item_where_there_is_none(self, store):
        (reason,) = store.refused(revised(1))
        assert (reason.code, reason.item) == (CONDITION, None)

    def test_revision_form_takes_the_fence_away(self, store):
        store.engine.swap_state(LEDGER, {"total.v": "v1", "total.s": "a", "total.fence": True, "live": 1}, 0)
        store.write(revised(1, part(after="b")))
        assert store.state() == {"total.v": "v2", "total.s": "b", "r": 2, "live": 1}

    # The fence of a repair

    @pytest.mark.parametrize("contribution", ["", "a"])
    def test_repair_leaves_a_fence_that_refuses_every_optimistic_write(self, store, contribution):
        store.write(repairing(0, part(version="0", after=contribution)))
        assert store.state() == {"total.v": "0", "total.s": contribution, "total.fence": True, "r": 1}
        store.refused(optimistic(part(version="v2", before=contribution)))

    def test_repair_on_the_revision_that_was_read_keeps_version_and_contribution(self, store):
        store.write(optimistic(part(version="v1", after="a"), live=1))
        store.write(repairing(1, part(version="v1", after="a")))
        assert store.state() == {"total.v": "v1", "total.s": "a", "total.fence": True, "r": 2, "live": 1}

    def test_repair_on_another_revision_is_refused(self, store):
        store.write(optimistic(part(version="v1", after="a"), live=1))
        store.refused(repairing(0, part(version="v1", after="b")))
        assert store.state()["total.s"] == "a"

    def test_next_write_of_the_repaired_part_takes_its_fence_away_and_no_other(self, store):
        store.write(repairing(0, part("total", "v1", "a"), part("lines", "v1", "b"), live=2))
        store.write(revised(1, part("total", "v2", "c")))
        assert store.state()["lines.fence"] is True
        assert "total.fence" not in store.state()

    def test_repair_of_the_last_part_lets_the_item_expire(self, store):
        store.write(repairing(0, part(after=""), expires=True))
        assert store.state()["ttl"] == EXPIRES

    # Live handlers and time to live

    def test_live_counts_up_and_down(self, store):
        store.write(optimistic(part("total", "v1", "a"), part("lines", "v1", "b"), live=2))
        store.write(optimistic(part("total", "v2", "", "a"), live=-1))
        assert store.state()["live"] == 1

    def test_time_to_live_is_set_and_taken_away(self, store):
        store.write(optimistic(part(version="v1", after="a"), live=1))
        store.write(optimistic(part(version="v2", before="a", after=""), live=-1, expires=True, live_expected=1))
        assert store.state() == {"total.v": "v2", "total.s": "", "r": 2, "live": 0, "ttl": EXPIRES}
        store.write(optimistic(part(version="v3", before="", after="b"), live=1))
        assert store.state() == {"total.v": "v3", "total.s": "b", "r": 3, "live": 1}

    def test_time_to_live_is_refused_while_a_handler_that_is_not_planned_holds_something(self, store):
        store.write(optimistic(part("total", "v1", "a"), part("lines", "v1", "b"), live=2))
        (reason,) = store.refused(optimistic(part("total", "v2", "", "a"), live=-1, expires=True, live_expected=1))
        assert (reason.code, reason.item["live"]) == (CONDITION, 2)
        assert store.state()["live"] == 2

    def test_none_live_is_the_same_as_an_item_without_the_number(self, store):
        store.write(optimistic(part(version="v1", after=""), expires=True, live_expected=0))
        store.write(optimistic(part(version="v2", after=""), expires=True, live_expected=0))
        assert store.state()["ttl"] == EXPIRES

    def test_none_live_is_a_stored_zero_too(self, store):
        store.write(optimistic(part(version="v1", after="a"), live=1))
        store.write(optimistic(part(version="v2", before="a", after=""), live=-1))
        store.write(optimistic(part(version="v3", after=""), expires=True, live_expected=0))
        assert store.state()["ttl"] == EXPIRES

    @pytest.mark.parametrize("live_expected", [0, 2])
    def test_another_number_of_live_handlers_is_refused(self, store, live_expected):
        store.write(optimistic(part(version="v1", after="a"), live=1))
        store.refused(optimistic(part(before="a", after=""), live=-1, expires=True, live_expected=live_expected))

    def test_some_live_is_refused_where_there_is_no_item(self, store):
        (reason,) = store.refused(optimistic(part(after=""), expires=True, live_expected=1))
        assert (reason.code, reason.item) == (CONDITION, None)

    def test_revision_form_sets_the_time_to_live(self, store):
        store.write(revised(0, part(after=""), expires=True))
        assert store.state()["ttl"] == EXPIRES

    # Transactions

    def test_reasons_come_one_per_write_in_their_order_with_the_item_found(self, store):
        store.write(Claim(CLAIM), optimistic(part(after="a"), live=1))
        reasons = store.refused(AddRow(ROW, {"units": 1}, 1), Claim(CLAIM), optimistic(part(before="a")))
        assert [reason and reason.code for reason in reasons] == [None, CONDITION, CONDITION]
        assert (reasons[1].item["ttl"], reasons[2].item["total.s"]) == (EXPIRES, "a")

    def test_refused_write_keeps_all_others_from_being_made_in_every_table(self, store):
        store.write(Claim(CLAIM))
        store.refused(
            optimistic(),
            AddRow(ROW, {"units": 1}, 1),
            plain_row(OTHER_ROW, orders=1),
            GuardedPut(("numbered", "a", 1), {"x": 1}, "v1"),
            Claim(CLAIM),
        )
        assert (store.state(), store.row(), store.row(OTHER_ROW), store.rows("numbered")) == (None, None, None, [])

    def test_writes_to_several_tables_are_made_together(self, store):
        store.write(
            optimistic(part(after="a"), live=1),
            Claim(CLAIM),
            AddRow(ROW, {"units": 1}, 1),
            plain_row(OTHER_ROW, orders=1),
            GuardedPut(("numbered", "a", 1), {"x": 1}, "v1"),
            PutState(StateKey("part", "a"), "large"),
        )
        assert store.state()["total.s"] == "a"
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "units": 1, CONTRIBUTORS: 1}
        assert store.row(OTHER_ROW) == {"id": "CUSTOMER#1", "name": "ORDERS", "orders": 1}
        assert store.rows("numbered") == [{"id": "a", "number": 1, "x": 1, VERSION: "v1"}]

    def test_hundred_writes_are_made_together_and_one_more_is_refused_for_good(self, store):
        adds = [AddRow(("shop", "SALES", f"{number:03d}"), {"units": 1}, 1) for number in range(101)]
        assert all(map(is_permanent, store.refused(*adds)))
        assert store.rows("shop") == []
        store.write(*adds[:100])
        assert len(store.rows("shop")) == 100

    def test_transaction_over_4_megabytes_is_refused_for_good_and_one_just_under_it_is_made(self, store):
        large = [plain_row(("shop", "LARGE", f"{number:03d}"), text="x" * 380_000) for number in range(12)]
        assert all(map(is_permanent, store.refused(*large)))
        assert store.rows("shop") == []
        store.write(*large[:10], plain_row(("shop", "LARGE", "rest"), text="x" * 380_000))
        assert len(store.rows("shop")) == 11

    def test_two_writes_of_one_row_are_refused_for_good(self, store):
        reasons = store.refused(AddRow(ROW, {"units": 1}, 1), plain_row(units=5))
        assert any(map(is_permanent, reasons))
        assert store.row() is None

    # Rows that are added to

    def test_addition_makes_the_row_with_its_contributors(self, store):
        store.write(AddRow(ROW, {"units": 3, "revenue": Decimal("9.99")}, 1))
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "units": 3, "revenue": Decimal("9.99"), CONTRIBUTORS: 1}

    def test_additions_add_up(self, store):
        store.write(AddRow(ROW, {"units": 3, "revenue": Decimal("9.99")}, 1))
        store.write(AddRow(ROW, {"units": -5, "revenue": Decimal("0.01"), "lines": 1}, 2))
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "units": -2, "revenue": 10, "lines": 1, CONTRIBUTORS: 3}

    def test_addition_without_contributors_does_not_count_them(self, store):
        store.write(AddRow(ROW, {"sign_ins": 1}, 0))
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "sign_ins": 1}

    def test_addition_of_contributors_alone_is_one(self, store):
        store.write(AddRow(ROW, {}, 1))
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], CONTRIBUTORS: 1}

    def test_zero_that_is_added_is_there(self, store):
        store.write(AddRow(ROW, {"units": 0}, 1))
        assert store.row()["units"] == 0

    def test_addition_keeps_other_attributes(self, store):
        store.write(plain_row(name="set by an update", **{CONTRIBUTORS: 1}))
        store.write(AddRow(ROW, {"units": 1}, 1))
        assert store.row()["name"] == "set by an update"

    @pytest.mark.parametrize(
        "write",
        [
            AddRow(ROW, {"units": 1}, 1),
            AddRow(ROW, {"units": 1}, 1, unversioned=True),
            AddRow(ROW, {}, 0, stamp="s", contributors_min=0),
            AddRow(ROW, {"units": 1}, 1, life=""),
            AddRow(ROW, {"units": 1}, 1, life="one", born=True),
            AddRow(ROW, {"units": 1}, 1, contributors_below=1),
            AddRow(ROW, {"units": -1}, -1, contributors_min=1),
            owned("shop/total", a=1),
            DeleteRow(ROW, "shop/total"),
            GuardedPut(ROW, {"a": 1}, "v1"),
            GuardedPut(ROW, None, "v1"),
            GuardedPut(ROW, {"a": 1}, "v1", "SESSION#1"),
            PutPostRow(ROW, {"a": 1}, ("v1", "w1"), EXPIRES),
            RecomputedRow(ROW, "stamp", {"best": 1}),
            CorrectRow(ROW, {}, (OWNER,), {OWNER: "#mark"}, {CONTRIBUTORS: 0}),
        ],
        ids=lambda write: type(write).__name__,
    )
    @pytest.mark.parametrize("beside", [[], [Claim(CLAIM)]], ids=["alone", "in a transaction"])
    def test_no_write_of_a_row_changes_an_item_without_its_mark(self, store, beside, write):
        store.write(plain_row(name="an item of the application", units=40))
        *_, reason = store.refused(*beside, write)
        assert (reason.code, reason.item["units"]) == (CONDITION, 40)
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "name": "an item of the application", "units": 40}
        assert store.state(CLAIM) is None

    def test_no_row_is_inserted_over_or_removed_as_empty_where_there_is_an_item_without_a_mark(self, store):
        store.write(plain_row(units=0))
        assert store.engine.insert_rows([plain_row(a=1)]).known == [ROW]
        assert store.engine.remove_empty([ROW]) == []
        assert store.engine.put_post_rows([PutPostRow(ROW, {"a": 1}, ("v1", "w1"), EXPIRES)]) == [ROW]
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "units": 0}

    def test_names_that_are_reserved_words_or_hold_odd_characters_are_added_to(self, store):
        amounts = {"count": 1, "a.b": 2, "größe": 3, "#1": 4}
        store.write(AddRow(ROW, amounts, 1))
        assert amounts.items() <= store.row().items()

    @pytest.mark.parametrize("beside", [[], [Claim(CLAIM)]], ids=["alone", "in a transaction"])
    def test_addition_to_text_is_refused_for_good_and_nothing_is_written(self, store, beside):
        store.write(plain_row(units="three", **{CONTRIBUTORS: 1}))
        reasons = store.refused(*beside, AddRow(ROW, {"units": 1, "lines": 1}, 1))
        assert is_permanent(reasons[-1])
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "units": "three", CONTRIBUTORS: 1}
        assert store.state(CLAIM) is None

    @pytest.mark.parametrize(
        ("one", "other"), [(int("9" * 38), 2), (Decimal("1E+20"), Decimal("1E-20"))], ids=["whole", "decimal"]
    )
    def test_sum_of_more_than_38_digits_is_refused_for_good(self, store, one, other):
        store.write(AddRow(ROW, {"units": one}, 1))
        (reason,) = store.refused(AddRow(ROW, {"units": other}, 1))
        assert is_permanent(reason)
        assert store.row()["units"] == one

    def test_sum_beyond_the_largest_number_is_refused_for_good(self, store):
        store.write(AddRow(ROW, {"units": Decimal("9.9E+125")}, 1))
        assert is_permanent(store.refused(AddRow(ROW, {"units": Decimal("9.9E+125")}, 1))[0])

    def test_addition_of_more_than_38_digits_is_refused_for_good_whatever_the_sum(self, store):
        store.write(AddRow(ROW, {"units": -int("9" * 38)}, 1))
        assert is_permanent(store.refused(AddRow(ROW, {"units": int("1" * 39)}, 1))[0])
        assert store.row()["units"] == -int("9" * 38)

    def test_large_whole_numbers_that_fit_add_up_exactly(self, store):
        store.write(AddRow(ROW, {"units": int("9" * 38)}, 1))
        store.write(AddRow(ROW, {"units": 1}, 1))
        assert store.row()["units"] == 10**38

    # Rows that are put and deleted whole

    def test_put_replaces_the_row(self, store):
        store.write(plain_row(a=1, b=2))
        store.write(plain_row(a=3))
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "a": 3}

    def test_delete_removes_the_row_and_is_content_where_there_is_none(self, store):
        store.write(plain_row(a=1))
        store.write(DeleteRow(ROW))
        store.write(DeleteRow(ROW))
        assert store.row() is None

    def test_owner_puts_where_there_is_no_row_and_over_its_own(self, store):
        store.write(owned("ORDER#1", a=1))
        store.write(owned("ORDER#1", a=2))
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "a": 2, OWNER: "ORDER#1"}

    def test_put_over_the_row_of_another_owner_is_refused_with_that_row(self, store):
        store.write(owned("ORDER#1", a=1))
        (reason,) = store.refused(owned("ORDER#2", a=2))
        assert (reason.code, reason.item[OWNER]) == (CONDITION, "ORDER#1")
        assert store.row()["a"] == 1

    def test_put_of_an_owner_over_a_row_without_one_is_refused(self, store):
        store.write(plain_row(a=1))
        (reason,) = store.refused(owned("ORDER#2", a=2))
        assert reason.code == CONDITION
        assert OWNER not in reason.item

    def test_owner_deletes_its_own_row_and_is_content_where_there_is_none(self, store):
        store.write(owned("ORDER#1", a=1))
        store.write(DeleteRow(ROW, "ORDER#1"))
        store.write(DeleteRow(ROW, "ORDER#1"))
        assert store.row() is None

    def test_delete_of_the_row_of_another_owner_is_refused_with_that_row(self, store):
        store.write(owned("ORDER#1", a=1))
        (reason,) = store.refused(DeleteRow(ROW, "ORDER#2"))
        assert (reason.code, reason.item[OWNER]) == (CONDITION, "ORDER#1")
        assert store.row()["a"] == 1

    def test_an_amendment_of_a_whole_row_that_is_gone_is_refused(self, store):
        (reason,) = store.refused(owned("ORDER#1", a=1)._replace(amends=True))
        assert (reason.code, reason.item) == (CONDITION, None)
        store.write(owned("ORDER#1", a=1))
        store.write(owned("ORDER#1", a=2)._replace(amends=True))
        (reason,) = store.refused(owned("ORDER#2", a=3)._replace(amends=True))
        assert (store.row()["a"], reason.item[OWNER]) == (2, "ORDER#1")

    # Rows that are corrected

    def test_a_correction_is_made_on_what_was_read(self, store):
        store.write(AddRow(ROW, {"units": 2}, 1))
        store.write(CorrectRow(ROW, {"units": 2}, (OWNER,), {OWNER: "#mark", "a": "b"}, {"units": 3, CONTRIBUTORS: 1}))
        row = store.row()
        assert (row["units"], row[CONTRIBUTORS], row[OWNER], row["a"]) == (5, 2, "#mark", "b")
        for expected, absent in (({"units": 4}, ()), ({}, (OWNER,)), ({"other": 1}, ())):
            (reason,) = store.refused(CorrectRow(ROW, expected, absent, {"a": "c"}))
            assert reason.code == CONDITION
        assert store.row()["a"] == "b"

    def test_an_addition_takes_the_mark_of_a_correction_away(self, store):
        store.write(AddRow(ROW, {"units": 2}, 1))
        store.write(CorrectRow(ROW, {}, (OWNER,), {OWNER: "#mark"}, {CONTRIBUTORS: 0}))
        store.write(AddRow(ROW, {}, 0, contributors_min=0, removed=(OWNER,)))
        (reason,) = store.refused(CorrectRow(ROW, {OWNER: "#mark"}, (), {"a": "c"}, removed=(OWNER,)))
        assert reason.code == CONDITION

    def test_a_correction_makes_a_row_where_there_is_none(self, store):
        store.write(CorrectRow(ROW, {}, (OWNER, VERSION), {OWNER: "#mark"}, {CONTRIBUTORS: 0}))
        assert store.row()[CONTRIBUTORS] == 0
        store.write(DeleteRow(ROW, "#mark"))
        assert store.row() is None

    # Rows that expire

    def test_an_addition_makes_a_row_in_its_life_where_there_is_none(self, store):
        store.write(AddRow(ROW, {"units": 2}, 1, life="one", born=True, stamp="s", values={"a": "b"}))
        assert (store.row()[LIFE], store.row()["units"], store.row()["_sf_s"], store.row()["a"]) == ("one", 2, "s", "b")
        (reason,) = store.refused(AddRow(ROW, {"units": 2}, 1, life="two", born=True))
        assert (reason.code, reason.item[LIFE]) == (CONDITION, "one")

    def test_an_addition_is_made_in_the_life_of_its_row_alone(self, store):
        (reason,) = store.refused(AddRow(ROW, {"units": 2}, 1, life="one"))
        assert (reason.code, reason.item) == (CONDITION, None)
        store.write(AddRow(ROW, {"units": 2}, 1, life="one", born=True))
        store.write(AddRow(ROW, {"units": 3}, 1, life="one", contributors_min=1))
        for life in ("two", ""):
            (reason,) = store.refused(AddRow(ROW, {"units": -2}, -1, life=life, contributors_min=1))
            assert (reason.code, reason.item[LIFE]) == (CONDITION, "one")
        assert (store.row()["units"], store.row()[CONTRIBUTORS]) == (5, 2)

    def test_an_addition_to_a_row_without_a_life_makes_one_where_there_is_none(self, store):
        store.write(AddRow(ROW, {"units": 2}, 1, life=""))
        store.write(AddRow(ROW, {"units": 2}, 1, life=""))
        assert (LIFE in store.row(), store.row()["units"]) == (False, 4)

    def test_an_addition_counts_and_stays_in_a_life(self, store):
        store.write(AddRow(ROW, {"units": 2}, 1, life="one", born=True))
        (reason,) = store.refused(
            AddRow(ROW, {"units": -2}, -1, life="one", contributors_min=1, requires_contributor=True)
        )
        assert (reason.code, reason.item[CONTRIBUTORS]) == (CONDITION, 1)

    # Rows under their source's version

    def test_guarded_put_writes_a_row_with_its_version(self, store):
        store.write(GuardedPut(ROW, {"a": 1}, "v1"))
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "a": 1, VERSION: "v1"}

    def test_newer_version_replaces_the_row(self, store):
        store.write(GuardedPut(ROW, {"a": 1, "b": 1}, "v1"))
        store.write(GuardedPut(ROW, {"a": 2}, "v2"))
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "a": 2, VERSION: "v2"}

    @pytest.mark.parametrize("version", ["v1", "v2"])
    def test_older_or_equal_version_is_refused_with_the_row(self, store, version):
        store.write(GuardedPut(ROW, {"a": 2}, "v2"))
        (reason,) = store.refused(GuardedPut(ROW, {"a": 1}, version))
        assert (reason.code, reason.item[VERSION]) == (CONDITION, "v2")
        assert store.row()["a"] == 2

    def test_tombstone_stays_with_version_and_time_to_live(self, store):
        store.write(GuardedPut(ROW, {"a": 1}, "v1"))
        store.write(GuardedPut(ROW, None, "v2"))
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], VERSION: "v2", CONTRIBUTORS: 0, "expires": EXPIRES}

    def test_tombstone_in_a_table_without_time_to_live_stays_for_good(self, store):
        store.write(GuardedPut(OTHER_ROW, None, "v2"))
        assert store.row(OTHER_ROW) == {"id": "CUSTOMER#1", "name": "ORDERS", VERSION: "v2", CONTRIBUTORS: 0}

    def test_tombstone_refuses_what_is_older_and_gives_way_to_what_is_newer(self, store):
        store.write(GuardedPut(ROW, None, "v2"))
        store.refused(GuardedPut(ROW, {"a": 1}, "v1"))
        store.write(GuardedPut(ROW, {"a": 3}, "v3"))
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "a": 3, VERSION: "v3"}

    def test_guarded_put_with_an_owner_is_only_over_its_own_row(self, store):
        store.write(GuardedPut(ROW, {"a": 1}, "v1", "SESSION#1"))
        store.write(GuardedPut(ROW, {"a": 2}, "v2", "SESSION#1"))
        (reason,) = store.refused(GuardedPut(ROW, {"a": 3}, "v3", "SESSION#2"))
        assert (reason.code, reason.item[OWNER]) == (CONDITION, "SESSION#1")
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "a": 2, VERSION: "v2", OWNER: "SESSION#1"}

    # A row is put or added to, never both

    def test_change_s_addition_counts_itself_as_a_contributor(self, store):
        store.write(added(sign_ins=1))
        store.write(added(sign_ins=2))
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "sign_ins": 3, CONTRIBUTORS: 2}

    @pytest.mark.parametrize("attributes", [{"a": 1}, None], ids=["row", "tombstone"])
    @pytest.mark.parametrize("beside", [[], [Claim(CLAIM)]], ids=["alone", "in a transaction"])
    def test_change_s_addition_to_a_row_with_a_version_is_refused_with_that_row(self, store, beside, attributes):
        store.write(GuardedPut(ROW, attributes, "v1"))
        before = store.row()
        *_, reason = store.refused(*beside, added(sign_ins=1))
        assert (reason.code, reason.item[VERSION]) == (CONDITION, "v1")
        assert (store.row(), store.state(CLAIM)) == (before, None)

    @pytest.mark.parametrize("attributes", [{"a": 1}, None], ids=["row", "tombstone"])
    @pytest.mark.parametrize("owner", [None, "SESSION#1"])
    def test_guarded_put_over_a_row_that_is_added_to_is_refused_with_that_row(self, store, attributes, owner):
        store.write(added(sign_ins=1))
        (reason,) = store.refused(GuardedPut(ROW, attributes, "v1", owner))
        assert (reason.code, reason.item[CONTRIBUTORS]) == (CONDITION, 1)
        assert store.row()["sign_ins"] == 1

    def test_addition_of_a_view_asks_for_no_version(self, store):
        store.write(GuardedPut(ROW, None, "v1"))
        store.write(AddRow(ROW, {"units": 1}, 1))
        assert store.row()["units"] == 1

    def test_addition_of_a_view_is_refused_by_a_row_that_is_put_and_counts_nobody(self, store):
        store.write(GuardedPut(ROW, {"a": 1}, "v1"))
        (reason,) = store.refused(AddRow(ROW, {"units": 1}, 1))
        assert (reason.code, reason.item[VERSION]) == (CONDITION, "v1")

    # Claims, and contributions in items of their own

    def test_claim_is_taken_once(self, store):
        store.write(Claim(CLAIM))
        (reason,) = store.refused(Claim(CLAIM))
        assert (reason.code, reason.item["ttl"]) == (CONDITION, EXPIRES)
        assert store.state(CLAIM) == {"ttl": EXPIRES}

    def test_claim_keeps_the_names_of_rows_and_is_taken_once(self, store):
        store.write(Claim(CLAIM, "abcdefgh"))
        (reason,) = store.refused(Claim(CLAIM, "ijklmnop"))
        assert (reason.code, reason.item["s"]) == (CONDITION, "abcdefgh")
        assert store.state(CLAIM) == {"s": "abcdefgh", "ttl": EXPIRES}

    def test_claims_are_read_newest_first_and_one_that_names_no_row_has_no_text(self, store):
        keys = [StateKey(CLAIM.pk, f"S#METADATA#00/x/{number}") for number in range(4)]
        store.write(*[Claim(key, "abcdefgh" if number != 2 else "") for number, key in enumerate(keys)])
        store.write(Claim(StateKey(CLAIM.pk, "S#METADATA2#00/x/9"), "ijklmnop"))
        wanted = Entries(CLAIM.pk, 5, keys[0].sk, descending=True, before="S#METADATA#:")
        claims = [(keys[3].sk, "abcdefgh"), (keys[2].sk, ""), (keys[1].sk, "abcdefgh")]
        assert store.engine.read_entries(wanted) == claims
        assert store.engine.read_entries(wanted._replace(most=1)) == claims[:1]

    def test_contribution_is_kept_replaced_and_removed_in_an_item_of_its_own(self, store):
        own = StateKey("part#shop", "S#METADATA#total")
        store.write(PutState(own, "one"))
        store.write(PutState(own, "two"))
        assert store.state(own) == {"s": "two"}
        store.write(DeleteState(own))
        store.write(DeleteState(own))
        assert store.state(own) is None

    # Rows that are put where none is

    def test_many_rows_are_inserted_and_the_first_of_one_key_stays(self, store):
        rows = [plain_row(("shop", "AUDIT", f"{number:03d}"), a=number) for number in range(60)]
        assert store.engine.insert_rows([*rows, plain_row(("shop", "AUDIT", "007"), a="last")]) == Inserted([], [])
        assert [row["a"] for row in store.rows("shop")] == list(range(60))

    def test_row_that_is_there_stays_as_it_is_and_the_others_are_inserted(self, store):
        store.write(plain_row(email="redacted"))
        inserted = store.engine.insert_rows([plain_row(email="in clear"), plain_row(OTHER_ROW, a=2)])
        assert inserted == Inserted([], [ROW])
        assert (store.row()["email"], store.row(OTHER_ROW)["a"]) == ("redacted", 2)

    @pytest.mark.parametrize("key", [("numbered", "a", Decimal("-1.5")), ("binary", b"\x00\xff", None)])
    def test_rows_with_number_and_binary_keys_are_inserted_once(self, store, key):
        assert store.engine.insert_rows([plain_row(key, a=1)]) == Inserted([], [])
        assert store.engine.insert_rows([plain_row(key, a=2)]) == Inserted([], [key])
        assert [row["a"] for row in store.rows(key[0])] == [1]

    def test_row_just_under_400_kilobytes_is_inserted_beside_others(self, store):
        large = plain_row(("shop", "AUDIT", "1"), text="x" * 409_000)
        assert store.engine.insert_rows([plain_row(("shop", "AUDIT", "0")), large]) == Inserted([], [])
        assert len(store.rows("shop")[1]["text"]) == 409_000

    def test_row_of_some_hundred_attributes_is_inserted_once_beside_others(self, store):
        wide = {f"attribute_name_{number:05}": str(number) for number in range(330)}
        rows = [PutRow(("shop", "AUDIT", "0"), {"a": 1}), PutRow(("shop", "AUDIT", "1"), wide)]
        assert store.engine.insert_rows(rows) == Inserted([], [])
        assert store.engine.insert_rows(rows) == Inserted([], [row.key for row in rows])
        assert {name: value for name, value in store.rows("shop")[1].items() if name in wide} == wide

    def test_names_of_attributes_may_hold_quotes(self, store):
        store.engine.insert_rows([PutRow(ROW, {"it's": 1, 'a "name"': 2})])
        assert (store.row()["it's"], store.row()['a "name"']) == (1, 2)

    def test_rows_of_several_tables_are_inserted(self, store):
        rows = [plain_row(a=1), plain_row(OTHER_ROW, a=2), plain_row(("numbered", "a", 1), a=3)]
        assert store.engine.insert_rows(rows) == Inserted([], [])
        assert (store.row()["a"], store.row(OTHER_ROW)["a"], store.rows("numbered")[0]["a"]) == (1, 2, 3)

    @pytest.mark.parametrize("value", ["x" * 410_000, int("9" * 39), nested(33)], ids=["size", "digits", "levels"])
    def test_row_that_cannot_be_inserted_is_named_and_the_others_are_inserted(self, store, value):
        rows = [plain_row(("shop", "AUDIT", str(number)), a=value if number == 3 else 1) for number in range(5)]
        assert store.engine.insert_rows(rows) == Inserted([("shop", "AUDIT", "3")], [])
        assert [row["SK"] for row in store.rows("shop", "AUDIT")] == ["0", "1", "2", "4"]

    @pytest.mark.parametrize("value", ["x" * 410_000, int("9" * 39), nested(33)], ids=["size", "digits", "levels"])
    @pytest.mark.parametrize("name", ["plain", "marked"])
    def test_the_reason_of_a_row_that_is_never_inserted_is_told(self, store, name, value):
        row = plain_row((name, "AUDIT", "3"), a=value)
        inserted = store.engine.insert_rows([row])
        assert inserted == Inserted([row.key], [])
        assert list(inserted.refused) == [row.key]
        assert inserted.refused[row.key]

    def test_rows_whose_key_attributes_begin_like_placeholders_are_inserted_once(self, store):
        rows = [plain_row(("marked", "AUDIT", str(number)), a=number) for number in range(3)]
        assert store.engine.insert_rows([*rows[:2], plain_row(("shop", "AUDIT", "1"))]) == Inserted([], [])
        assert store.engine.insert_rows(rows) == Inserted([], [row.key for row in rows[:2]])
        assert [row["a"] for row in store.rows("marked")] == [0, 1, 2]

    def test_empty_rows_whose_key_attributes_begin_like_placeholders_are_removed(self, store):
        full, empty, missing = [("marked", "AUDIT", name) for name in ("full", "empty", "missing")]
        store.write(added(full, units=1), AddRow(empty, {}, 1))
        store.write(AddRow(empty, {}, -1))
        assert store.engine.remove_empty([full, empty, missing]) == [empty]
        assert [row[":at"] for row in store.rows("marked")] == ["full"]

    def test_state_items_are_inserted_once_and_stay_as_they_are(self, store):
        items = [PutState(StateKey("backlinks#shop", str(number)), f"text {number}") for number in range(30)]
        assert store.engine.insert_state(items[:2]) == []
        assert store.engine.insert_state([*items, PutState(items[0].key, "another")]) == []
        found = store.engine.read_entries(Entries("backlinks#shop", 100))
        assert found == sorted((item.key.sk, item.text) for item in items)
        assert "ttl" not in store.state(items[0].key)
        assert store.engine.insert_state([]) == []

    def test_no_rows_are_inserted(self, store):
        assert store.engine.insert_rows([]) == Inserted([], [])

    # Rows that others add to

    def test_addition_takes_the_mark_of_who_put_a_row_whole(self, store):
        store.write(owned("shop/total", a=1, **{CONTRIBUTORS: 1}))
        store.write(AddRow(ROW, {"units": 5}, 1))
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "a": 1, "units": 5, CONTRIBUTORS: 2}
        for write in (owned("shop/total", a=2), DeleteRow(ROW, "shop/total")):
            (reason,) = store.refused(write)
            assert (reason.code, reason.item["units"]) == (CONDITION, 5)

    def test_addition_sets_and_removes_plain_attributes(self, store):
        store.write(owned("shop/total", a=1, b=2, c="old", **{CONTRIBUTORS: 1}))
        store.write(AddRow(ROW, {"units": 5}, 1, values={"c": "new", "d": {"e": [1]}}, removed=("a", "none")))
        expected = {"b": 2, "c": "new", "d": {"e": [1]}, "units": 5, CONTRIBUTORS: 2}
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], **expected}

    def test_plain_attributes_are_removed_without_anything_added(self, store):
        store.write(owned("shop/total", a=1, b=2, **{CONTRIBUTORS: 1}))
        store.write(AddRow(ROW, {}, 0, removed=("a",)))
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "b": 2, CONTRIBUTORS: 1}

    def test_addition_that_needs_contributors_is_refused_where_there_is_no_row(self, store):
        (reason,) = store.refused(AddRow(ROW, {"units": -1}, -1, contributors_min=1))
        assert (reason.code, reason.item) == (CONDITION, None)
        assert store.row() is None

    def test_addition_that_needs_more_contributors_than_a_row_has_is_refused_with_that_row(self, store):
        store.write(AddRow(ROW, {"units": 2}, 2))
        (reason,) = store.refused(AddRow(ROW, {"units": -1}, -1, contributors_min=3))
        assert (reason.code, reason.item[CONTRIBUTORS]) == (CONDITION, 2)
        store.write(AddRow(ROW, {"units": -1}, -1, contributors_min=2))
        assert (store.row()["units"], store.row()[CONTRIBUTORS]) == (1, 1)

    def test_addition_after_which_a_row_has_to_stay_is_refused_where_it_would_count_nobody(self, store):
        store.write(AddRow(ROW, {"units": 3}, 3))
        (reason,) = store.refused(AddRow(ROW, {"units": -3}, -3, contributors_min=3, requires_contributor=True))
        assert (reason.code, reason.item[CONTRIBUTORS]) == (CONDITION, 3)
        store.write(AddRow(ROW, {"units": -2}, -2, contributors_min=2, requires_contributor=True))
        store.write(
            AddRow(ROW, {"units": 4}, 0, contributors_min=1, requires_contributor=True)
        )  # one leaves, another comes
        assert (store.row()["units"], store.row()[CONTRIBUTORS]) == (5, 1)

    def test_addition_to_a_row_that_is_there_is_refused_where_it_counts_nobody(self, store):
        (reason,) = store.refused(AddRow(ROW, {}, 0, stamp="s", contributors_min=0))
        assert reason.code == CONDITION
        store.write(AddRow(ROW, {}, 1))
        store.write(AddRow(ROW, {}, 0, stamp="s", contributors_min=0))
        assert store.row()["_sf_s"] == "s"

    # What a step left behind

    def left(self, store, text="[]"):
        part = HandlerContribution("total", "v1", "", "", text)
        store.write(LedgerWrite(LEDGER, (part,), None, 0, expires=False))

    def test_what_was_left_behind_is_forgotten_once_it_is_finished(self, store):
        self.left(store)
        assert store.state()["total.u"] == "[]"
        store.engine.clear_pending({LEDGER: {"total": "[]"}})
        assert "total.u" not in store.state()
        assert (store.state()["r"], store.state()["total.v"]) == (1, "v1")

    def test_what_was_left_behind_since_is_kept(self, store):
        self.left(store)
        store.engine.clear_pending({LEDGER: {"total": "[1]"}})
        store.engine.clear_pending(
            {LEDGER: {"total": "[]", "other": "[]"}, StateKey("ledger#none", "-"): {"total": "[]"}}
        )
        assert store.state()["total.u"] == "[]"
        assert store.state(StateKey("ledger#none", "-")) is None

    def test_what_several_handlers_left_behind_is_forgotten_at_once(self, store):
        parts = [HandlerContribution(name, "v1", "", "", "[]") for name in ("total", "by-day", "a.b")]
        keys = [LEDGER._replace(sk=str(number)) for number in range(30)]
        for key in keys:
            store.write(LedgerWrite(key, tuple(parts), None, 0, expires=False))
        store.engine.clear_pending({key: {part.handler: "[]" for part in parts} for key in keys})
        assert [name for key in keys for name in store.state(key) if name.endswith(".u")] == []

    def test_what_is_not_finished_is_never_overwritten_unread(self, store):
        self.left(store)
        part = HandlerContribution("total", "v2", "", "", "[2]")
        (reason,) = store.refused(LedgerWrite(LEDGER, (part,), None, 0, expires=False))
        assert (reason.code, reason.item["total.u"]) == (CONDITION, "[]")
        store.write(LedgerWrite(LEDGER, (part,), 1, 0, expires=False))
        assert store.state()["total.u"] == "[2]"

    def test_step_that_leaves_nothing_has_to_read_what_is_not_finished_too(self, store):
        self.left(store)
        part = HandlerContribution("total", "v2", "", "")
        (reason,) = store.refused(LedgerWrite(LEDGER, (part,), None, 0, expires=False))
        assert (reason.code, reason.item["total.u"]) == (CONDITION, "[]")
        store.write(LedgerWrite(LEDGER, (part,), 1, 0, expires=False))
        assert (store.state()["total.u"], store.state()["total.v"]) == ("[]", "v2")

    # Rows without contributors

    def test_only_rows_without_contributors_are_removed(self, store):
        keys = [("shop", "SALES", f"{number:03d}") for number in range(30)]
        for start in range(0, 30, 10):
            store.write(*(AddRow(key, {"units": 1}, 1) for key in keys[start : start + 10]))
        store.write(*(AddRow(key, {"units": -1}, -1) for key in keys[:28]))
        missing = ("shop", "SALES", "999")
        assert store.engine.remove_empty([missing, *keys]) == keys[:28]
        assert [row["SK"] for row in store.rows("shop")] == ["028", "029"]

    def test_rows_that_do_not_count_contributors_are_never_removed(self, store):
        store.write(AddRow(ROW, {"units": 0}, 0))
        assert store.engine.remove_empty([ROW]) == []
        assert store.row()["units"] == 0

    @pytest.mark.parametrize(
        "key", [("numbered", "a", Decimal("-1.5")), ("numbered", "a", 10**30), ("binary", b"\x00\xff", None)]
    )
    def test_empty_rows_with_number_and_binary_keys_are_removed(self, store, key):
        store.write(AddRow(key, {"units": 1}, 1))
        assert store.engine.remove_empty([key]) == []
        store.write(AddRow(key, {"units": -1}, -1))
        assert store.engine.remove_empty([key]) == [key]
        assert store.rows(key[0]) == []

    def test_row_that_is_named_twice_is_removed_once(self, store):
        store.write(AddRow(ROW, {"units": 0}, 1))
        store.write(AddRow(ROW, {"units": 0}, -1))
        assert store.engine.remove_empty([ROW, ROW]) == [ROW]

    # State items

    def test_state_items_are_read_by_the_hundred_and_missing_ones_are_left_out(self, store):
        keys = [StateKey("claim#shop", f"{number:04d}") for number in range(130)]
        for start in range(0, 130, 65):
            store.write(*map(Claim, keys[start : start + 65]))
        found = store.engine.read_state(iter([*keys, *keys[:5], StateKey("claim#shop", "none")]))
        assert found == {key: {"ttl": EXPIRES} for key in keys}
        assert store.engine.read_state(keys, consistent=True) == found

    def test_state_items_of_no_keys_are_none(self, store):
        assert store.engine.read_state([]) == {}

    def test_state_item_is_swapped_only_over_the_revision_that_was_read(self, store):
        assert store.engine.swap_state(LEDGER, {"handlers": "{}"}, 0)
        assert not store.engine.swap_state(LEDGER, {"handlers": "late"}, 0)
        assert store.engine.swap_state(LEDGER, {"handlers": "{1}"}, 1)
        assert not store.engine.swap_state(LEDGER, {"handlers": "late"}, 1)
        assert store.state() == {"handlers": "{1}", "r": 2}

    def test_state_item_without_a_revision_is_not_swapped_as_if_it_were_missing(self, store):
        store.write(Claim(CLAIM))
        assert not store.engine.swap_state(CLAIM, {"status": "COMPLETED"}, 0)

    def test_all_state_items_are_listed(self, store):
        store.write(Claim(CLAIM), optimistic(part(after="a"), live=1))
        items = [{name: decode(value) for name, value in item.items()} for item in store.engine.state_items()]
        assert sorted(items, key=lambda item: item["pk"]) == [
            {**CLAIM._asdict(), "ttl": EXPIRES},
            {**LEDGER._asdict(), "total.v": "v2", "total.s": "a", "r": 1, "live": 1},
        ]

    # Source items

    @pytest.mark.parametrize("key", [ROW, ("numbered", "a", Decimal("1.5")), ("binary", b"\xff\x00", None)])
    def test_source_item_is_read_with_every_type(self, store, key):
        names = next(table.attributes for table in TABLES if table.name == key[0])
        store.write(PutRow(key, ALL_TYPES))
        assert decode({"M": store.engine.read_source(key)}) == {**dict(zip(names, key[1:], strict=False)), **ALL_TYPES}

    def test_source_item_that_is_not_there_is_none(self, store):
        if not isinstance(store.engine, DynamoEngine):  # which reads the application's own tables
            store.engine.put_sources([(("shop", "ORDER#2", "METADATA"), {"PK": {"S": "ORDER#2"}}, "v1")])
        assert store.engine.read_source(ROW) is None

    def test_source_items_that_exist_are_read_from_several_tables(self, store):
        keys = [ROW, ("numbered", "a", Decimal("1.50")), ("numbered", "a", 2), ("binary", b"\xff\x00", None)]
        for key in keys:
            store.put(key, ALL_TYPES)
        missing = [("shop", "ORDER#2", "METADATA"), ("numbered", "a", 3)]
        found = store.engine.read_sources(iter([*missing, *keys, *keys]))
        assert found == {key: store.engine.read_source(key) for key in keys}

    def test_source_items_are_read_by_the_hundred(self, store):
        keys = [("shop", f"ORDER#{number}", "METADATA") for number in range(130)]
        for number, key in enumerate(keys):
            store.put(key, {"total": number})
        found = store.engine.read_sources(keys)
        assert [found[key]["total"] for key in keys] == [{"N": str(number)} for number in range(130)]

    def test_no_source_items_are_read(self, store):
        assert store.engine.read_sources([]) == {}

    # Source items that a cascade removes

    def test_state_item_is_swapped_in_a_transaction_only_over_the_revision_that_was_read(self, store):
        store.write(SwapState(CLAIM, {"child": "a"}, 0))
        assert store.state(CLAIM) == {"child": "a", "r": 1, "ttl": EXPIRES}
        (reason,) = store.refused(SwapState(CLAIM, {"child": "b"}, 0))
        assert (reason.code, reason.item["child"]) == (CONDITION, "a")
        store.write(SwapState(CLAIM, {"done": True}, 1))
        assert store.state(CLAIM) == {"done": True, "r": 2, "ttl": EXPIRES}

    @pytest.mark.parametrize("key", [ROW, ("numbered", "a", Decimal("1.5")), ("binary", b"\xff\x00", None)])
    def test_source_item_is_deleted_as_it_was_read(self, store, key):
        store.put(key, ALL_TYPES)
        store.write(DeleteSource(key, store.engine.read_source(key), "v2"), Claim(CLAIM))
        assert not store.rows(key[0])

    def test_source_item_that_changed_since_it_was_read_is_not_deleted(self, store):
        store.put(ROW, {"price": 1, "tags": {"a"}})
        image = store.engine.read_source(ROW)
        store.put(ROW, {"price": 2, "tags": {"a"}}, "v2")
        reasons = store.refused(Claim(CLAIM), DeleteSource(ROW, image, "v3"))
        assert (reasons[0], reasons[1].code) == (None, CONDITION)
        assert (store.row()["price"], store.state(CLAIM)) == (2, None)

    def test_source_item_that_is_gone_is_not_deleted_again(self, store):
        store.put(ROW, {"price": 1})
        image = store.engine.read_source(ROW)
        store.write(DeleteSource(ROW, image, "v2"))
        (reason,) = store.refused(DeleteSource(ROW, image, "v2"))
        assert (reason.code, reason.item) == (CONDITION, None)

    def test_source_item_of_many_attributes_is_deleted_as_it_was_read(self, store):
        store.put(ROW, {f"attribute_{number:04d}": number for number in range(300)})
        store.write(DeleteSource(ROW, store.engine.read_source(ROW), "v2"))
        assert store.row() is None

    def test_attributes_of_a_source_item_are_written_and_removed_as_they_were_read(self, store):
        store.put(ROW, {"status": "open", "total": 1, "tags": {"a", "b"}, "old": None})
        read = {"total": 1, "tags": {"b", "a"}, "old": None}
        store.write(UpdateSource(ROW, read, ("lines",), {"total": 5, "lines": {"x"}}, ("tags", "old")))
        row = store.row()
        assert (row["status"], row["total"], row["lines"]) == ("open", 5, {"x"})
        assert not {"tags", "old"} & row.keys()

    @pytest.mark.parametrize(("expected", "absent"), [({"total": 2}, ()), ({"lines": 1}, ()), ({}, ("total",))])
    def test_attributes_are_not_written_over_what_was_not_read(self, store, expected, absent):
        store.put(ROW, {"total": 1})
        (reason,) = store.refused(UpdateSource(ROW, expected, absent, {"total": 9}))
        assert (reason.code, store.row()["total"]) == (CONDITION, 1)

    def test_attributes_make_no_item(self, store):
        (reason,) = store.refused(UpdateSource(ROW, {}, ("total",), {"total": 1}))
        assert (reason.code, store.row()) == (CONDITION, None)

    def test_attributes_that_make_an_item_too_large_are_refused_for_good(self, store):
        store.put(ROW, {"text": "x" * 250_000, "old": "x" * 100_000})
        (reason,) = store.refused(UpdateSource(ROW, {}, ("more",), {"more": "x" * 200_000}))
        assert is_permanent(reason)
        assert "more" not in store.row()
        store.write(UpdateSource(ROW, {}, ("more",), {"more": "x" * 100_000}, ("old",)))
        assert len(store.row()["more"]) == 100_000

    def test_rows_of_derived_attributes_are_rows_of_the_state_table(self, store):
        stored = (STATE.name, "attributes#shop#shop#ORDER#1", "totals#METADATA")
        store.write(AddRow(stored, {"@total": 5}, 1))
        assert store.engine.read_rows([stored])[stored]["@total"] == 5
        store.write(AddRow(stored, {"@total": -5}, -1))
        assert store.engine.remove_empty([stored]) == [stored]

    @pytest.mark.parametrize(("partition", "sort"), [("x" * 2049, "METADATA"), ("ORDER#1", "ü" * 513)])
    def test_key_over_the_limits_is_refused_for_good(self, store, partition, sort):
        for write in (PutRow(("shop", partition, sort), {"a": 1}), PutState(StateKey(partition, sort), "x")):
            (reason,) = store.refused(write)
            assert reason.code not in (CONDITION, *CONFLICT)
        assert store.row(("shop", partition, sort)) is None

    @pytest.mark.parametrize(("partition", "sort"), [("x" * 2048, "y"), ("x", "ü" * 512), ("ü" * 1024, "y" * 1024)])
    def test_rows_of_derived_attributes_have_a_key_however_long_their_item_s_is(self, store, partition, sort):
        stored = StoredAttributes("shop", "totals", Key("{order_id}", "{place}", table=SHOP)).row((partition, sort))
        other = (*stored[:2], stored[2] + "2")
        store.write(AddRow(stored, {"@total": 5}, 1), AddRow(other, {"@total": 7}, 1))
        found = store.engine.read_rows([stored, other])
        assert (found[stored]["@total"], found[other]["@total"]) == (5, 7)

    def test_check_of_an_absent_item_writes_nothing(self, store):
        store.write(AbsentSource(ROW), Claim(CLAIM))
        assert (store.row(), store.state(CLAIM)) == (None, {"ttl": EXPIRES})

    def test_check_of_an_item_that_is_there_refuses_the_transaction(self, store):
        store.put(ROW, {"price": 1})
        reasons = store.refused(AbsentSource(ROW), Claim(CLAIM))
        assert (reasons[0].code, reasons[1], store.state(CLAIM)) == (CONDITION, None, None)

    def test_partition_is_read_in_pages(self, store):
        sorts = [f"ITEM#{number}" for number in range(5)]
        for sort in (*sorts, "ITEN", "A", "METADATA"):
            store.put(("shop", "ORDER#1", sort), {"a": 1})
        store.put(("shop", "ORDER#10", "ITEM#0"), {"a": 1})
        assert store.sorts("ITEM#", limit=2) == [sorts[:2], sorts[2:4], sorts[4:]]
        assert store.sorts("", limit=10) == [sorted((*sorts, "ITEN", "A", "METADATA"))]
        assert store.sorts("NONE", limit=10) == [[]]

    def test_pages_of_more_than_one_megabyte_go_on_where_they_ended(self, store):
        sorts = [f"ITEM#{number}" for number in range(5)]
        for sort in sorts:
            store.put(("shop", "ORDER#1", sort), {"text": "x" * 350_000})
        assert [sort for page in store.sorts("ITEM#", limit=10) for sort in page] == sorts

    def test_pages_go_on_behind_an_item_that_is_gone(self, store):
        for number in range(4):
            store.put(("shop", "ORDER#1", f"ITEM#{number}"), {"a": 1})
        page = store.engine.page(SHOP, "ORDER#1", "ITEM#", None, 2)
        last = ("shop", "ORDER#1", page.after)
        store.write(DeleteSource(last, page.items[-1], "v2"))
        rest = store.engine.page(SHOP, "ORDER#1", "ITEM#", page.after, 3)
        assert ([item["SK"] for item in rest.items], rest.after) == ([{"S": "ITEM#2"}, {"S": "ITEM#3"}], None)

    def test_pages_of_number_sort_keys_are_in_the_order_of_their_values(self, store):
        for number in (10, Decimal("-1.5"), 2):
            store.put(("numbered", "a", number), {"a": 1})
        first = store.engine.page(NUMBERED, "a", "", None, 2)
        rest = store.engine.page(NUMBERED, "a", "", first.after, 2)
        assert [decode(item["number"]) for item in (*first.items, *rest.items)] == [Decimal("-1.5"), 2, 10]

    # Keys and values

    def test_32_levels_are_stored_and_more_are_refused_for_good(self, store):
        deepest = "a"
        for _ in range(31):
            deepest = [deepest]
        store.write(plain_row(deep=deepest))
        assert store.row()["deep"] == deepest
        assert all(map(is_permanent, store.refused(plain_row(deep=[deepest]))))

    def test_every_type_comes_back_as_it_was_put(self, store):
        store.write(PutRow(ROW, ALL_TYPES))
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], **ALL_TYPES}

    def test_every_type_comes_back_as_it_was_put_in_a_batch(self, store):
        assert store.engine.insert_rows([PutRow(ROW, ALL_TYPES)]) == Inserted([], [])
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], **ALL_TYPES}

    def test_every_type_comes_back_as_it_was_put_under_a_version(self, store):
        store.write(GuardedPut(ROW, ALL_TYPES, "v1"))
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], **ALL_TYPES, VERSION: "v1"}

    def test_row_found_by_a_refusal_holds_every_type(self, store):
        store.write(PutRow(ROW, {**ALL_TYPES, OWNER: "ORDER#1"}, "ORDER#1"))
        (reason,) = store.refused(owned("ORDER#2"))
        assert reason.item == {"PK": ROW[1], "SK": ROW[2], **ALL_TYPES, OWNER: "ORDER#1"}

    def test_number_sort_keys_are_in_the_order_of_their_values(self, store):
        numbers = [
            Decimal("-1E+30"),
            -200,
            -15,
            Decimal("-1.5"),
            0,
            Decimal("1E-100"),
            1,
            Decimal("1.25"),
            9,
            10,
            10**37,
        ]
        rows = [plain_row(("numbered", "a", number)) for number in reversed(numbers)]
        assert store.engine.insert_rows(rows) == Inserted([], [])
        assert [row["number"] for row in store.rows("numbered", "a")] == numbers

    def test_number_keys_are_one_key_in_every_spelling(self, store):
        store.write(AddRow(("numbered", "a", Decimal("1.50")), {"units": 1}, 1))
        store.write(AddRow(("numbered", "a", Decimal("1.5")), {"units": 1}, 1))
        assert store.rows("numbered") == [{"id": "a", "number": Decimal("1.5"), "units": 2, CONTRIBUTORS: 2}]

    def test_binary_keys_of_a_table_without_sort_key_take_every_write(self, store):
        one, other = ("binary", b"\x00", None), ("binary", b"\xff\x00", None)
        store.write(AddRow(one, {"units": 1}, 1), PutRow(other, {"a": 1}))
        store.write(AddRow(one, {"units": 1}, 1), DeleteRow(other, None))
        store.write(GuardedPut(other, {"a": 2}, "v1"))
        assert store.rows("binary", b"\x00") == [{"id": b"\x00", "units": 2, CONTRIBUTORS: 2}]
        assert store.rows("binary", b"\xff\x00") == [{"id": b"\xff\x00", "a": 2, VERSION: "v1"}]
        assert len(store.rows("binary")) == 2

    def test_owners_are_told_apart_in_a_table_without_sort_key(self, store):
        key = ("binary", b"\x00", None)
        store.write(owned("ORDER#1", key))
        store.refused(owned("ORDER#2", key))

    def test_items_of_one_partition_come_alone_and_sorted(self, store):
        for sort in ("b", "Z", "a#2", "a", "é", "\U0001f600", "\uffff"):
            store.write(plain_row(("shop", "ONE", sort)))
        store.write(plain_row(("shop", "ONE MORE", "a")))
        assert [row["SK"] for row in store.rows("shop", "ONE")] == ["Z", "a", "a#2", "b", "é", "\uffff", "\U0001f600"]
        assert len(store.rows("shop")) == 8

    # Sizes

    @pytest.mark.parametrize("text", ["x" * 410_000, "€" * 140_000], ids=["letters", "three bytes each"])
    def test_row_over_400_kilobytes_is_refused_for_good(self, store, text):
        reasons = store.refused(Claim(CLAIM), PutRow(ROW, {"text": text}))
        assert is_permanent(reasons[1])
        assert (store.row(), store.state(CLAIM)) == (None, None)

    def test_row_just_under_400_kilobytes_is_written(self, store):
        store.write(PutRow(ROW, {"text": "x" * 409_000}))
        assert len(store.row()["text"]) == 409_000

    def test_row_that_grows_over_400_kilobytes_is_refused_for_good(self, store):
        store.write(PutRow(ROW, {"text": "x" * 409_500, CONTRIBUTORS: 1}))
        assert is_permanent(store.refused(AddRow(ROW, {"x" * 200: 1}, 1))[0])
        assert len(store.row()) == 4

    def test_contribution_over_400_kilobytes_is_refused_for_good(self, store):
        assert is_permanent(store.refused(PutState(StateKey("part#shop", "a"), "x" * 410_000))[0])


CALLS = {
    "one write": lambda engine: engine.transact([Claim(CLAIM)], EXPIRES),
    "a transaction": lambda engine: engine.transact([Claim(CLAIM), AddRow(ROW, {"units": 1}, 1)], EXPIRES),
    "insert rows": lambda engine: engine.insert_rows([plain_row(a=1)]),
    "insert state": lambda engine: engine.insert_state([PutState(CLAIM, "text")]),
    "put pairs": lambda engine: engine.put_post_rows([PutPostRow(ROW, None, ("v1", "w1"), EXPIRES)]),
    "remove empty rows": lambda engine: engine.remove_empty([ROW]),
    "read state": lambda engine: engine.read_state([LEDGER]),
    "read state together": lambda engine: engine.read_together([LEDGER]),
    "swap state": lambda engine: engine.swap_state(LEDGER, {}, 0),
    "read rows": lambda engine: engine.read_rows([ROW]),
    "read entries": lambda engine: engine.read_entries(Entries("entries", 1)),
    "recompute a row": lambda engine: engine.transact([RecomputedRow(ROW, "stamp", {"best": 1})], EXPIRES),
    "read a source": lambda engine: engine.read_source(ROW),
    "read sources": lambda engine: engine.read_sources([ROW]),
    "count up": lambda engine: engine.count_up([Counter(CLAIM)], 0, EXPIRES),
    "count what is new": lambda engine: engine.count_up([Counter(CLAIM, new=True)], 0, EXPIRES),
    "write a counter": lambda engine: engine.transact([CounterWrite(CLAIM, 1)], EXPIRES),
    "page": lambda engine: engine.page(SHOP, "ORDER#1", "", None, 1),
    "scan": lambda engine: engine.scan(SHOP, Segment(), None, 1),
    "scan the state": lambda engine: engine.scan(STATE, Segment(), None, 1),
    "list items": lambda engine: list(engine.items(SHOP)),
    "list items of a partition": lambda engine: list(engine.items(SHOP, "ORDER#1")),
    "list state items": lambda engine: list(engine.state_items()),
}
"""Every method of an engine that goes to the store."""


class MissingTablesContract:
    """Wants a fixture ``engine`` on a database without tables."""

    @pytest.mark.parametrize("call", CALLS)
    def test_missing_table_is_named_with_what_to_do_about_it(self, engine, call):
        with pytest.raises(EngineError) as raised:
            CALLS[call](engine)
        assert not isinstance(raised.value, EngineUnavailable)
        assert str(raised.value) == (
            "Tables are missing: real-shop, real-plain, real-numbered, real-binary, real-marked, shop-state do not "
            "exist in this account and region. Create what is missing (replay --create-tables does on a loopback "
            "endpoint), or name "
            "the real one: --table logical=real, STREAMFOLD_TABLE_<NAME>, STREAMFOLD_STATE_TABLE."
        )


def revised_elsewhere():
    """A write of another ledger item, so that the first is in a transaction."""
    return LedgerWrite(StateKey("ledger#shop", "other"), (part(),), 0, 1, expires=False)
