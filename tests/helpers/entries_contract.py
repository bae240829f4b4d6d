"""What every engine does alike with entries below rows, and with rows that show what is made of them."""

import pytest

from streamfold.engines.protocol import Entries
from streamfold.keys.table import STAMP
from streamfold.writes.guarded import (
    CONDITION,
    AddRow,
    ChangedEntries,
    DeleteState,
    PutRow,
    PutState,
    RecomputedRow,
    StateKey,
)
from tests.helpers.engine_contract import ALL_TYPES, LEDGER, OTHER_ROW, ROW, optimistic, plain_row

BELOW = "entries#shop#best#shop#SALES"
PLACES = ["N05#a", "N1#a", "N25001#a", "N25001#b", "S#a", "Sa#a", "Sa$21#a", "S\U0001f600#a"]


def entry(place, text="1", partition=BELOW):
    return PutState(StateKey(partition, place), text)


def stamped(stamp, key=ROW, contributors=1, **amounts):
    return AddRow(
        key,
        amounts,
        contributors,
        stamp=stamp,
        changed_entries=(ChangedEntries(BELOW, "best", "max:1", frozenset("x")),),
    )


class EntriesContract:
    """Wants a fixture ``store``, as the contract of engines does."""

    # Entries

    def entries(self, store, most=100, **how):
        return [place for place, _ in store.engine.read_entries(Entries(BELOW, most, **how))]

    def test_entries_are_read_in_order_of_their_places(self, store):
        store.write(*map(entry, PLACES[::-1]))
        store.write(entry("N1#a", partition=BELOW + "#other"))
        assert self.entries(store) == PLACES
        assert self.entries(store, descending=True) == PLACES[::-1]

    def test_as_many_entries_are_read_as_are_asked_for(self, store):
        store.write(*map(entry, PLACES))
        assert self.entries(store, 2) == PLACES[:2]
        assert self.entries(store, 3, descending=True) == PLACES[:-4:-1]

    def test_entries_are_read_from_behind_a_place(self, store):
        store.write(*map(entry, PLACES))
        assert self.entries(store, 2, after="N25001$") == ["S#a", "Sa#a"]
        assert self.entries(store, 1, after="N25001#a") == ["N25001#b"]
        assert self.entries(store, 1, after=PLACES[-1]) == []

    def test_entries_are_read_between_two_places(self, store):
        store.write(*map(entry, PLACES))
        between = {"after": "N25001", "before": "N25001$"}
        assert self.entries(store, **between) == ["N25001#a", "N25001#b"]
        assert self.entries(store, 1, **between, descending=True) == ["N25001#b"]
        assert self.entries(store, after="N2", before="N25001") == []

    def test_an_entry_has_the_text_that_was_put_last_and_is_gone_once_deleted(self, store):
        store.write(entry("N1#a", '{"N":"1"}'))
        store.write(entry("N1#a", '{"S":"é"}'))
        assert store.engine.read_entries(Entries(BELOW, 1)) == [("N1#a", '{"S":"é"}')]
        store.write(DeleteState(StateKey(BELOW, "N1#a")))
        assert self.entries(store) == []

    @pytest.mark.parametrize("descending", [False, True])
    def test_entries_of_more_than_one_megabyte_are_read_up_to_as_many_as_are_asked_for(self, store, descending):
        places = [f"N{number}#a" for number in range(10, 90)]
        for start in range(0, 80, 40):
            store.write(*(entry(place, "x" * 32_000) for place in places[start : start + 40]))
        found = self.entries(store, 75, descending=descending)
        assert found == (places[:4:-1] if descending else places[:75])
        assert len(self.entries(store, 100)) == 80

    def test_no_entries_are_read_of_a_row_that_has_none(self, store):
        assert self.entries(store) == []

    # Stamps

    def test_an_addition_that_moves_entries_stamps_its_row(self, store):
        store.write(stamped("one", units=2))
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "units": 2, "_sf_n": 1, STAMP: "one"}
        store.write(stamped("two", contributors=0))
        assert (store.row()["units"], store.row()["_sf_n"], store.row()[STAMP]) == (2, 1, "two")

    def test_an_addition_that_moves_none_leaves_the_stamp(self, store):
        store.write(stamped("one"))
        store.write(AddRow(ROW, {"units": 1}, 1))
        assert store.row()[STAMP] == "one"

    # What is made of entries

    def test_a_row_is_recomputed_under_the_stamp_that_it_has(self, store):
        store.write(stamped("one", units=2))
        store.write(RecomputedRow(ROW, "one", {"best": 9, "_sf_e_best": "max:1 N25009#a"}))
        store.write(RecomputedRow(ROW, "one", {"best": 10}, ("_sf_e_best", "never there")))
        assert store.row() == {"PK": ROW[1], "SK": ROW[2], "units": 2, "_sf_n": 1, STAMP: "one", "best": 10}

    def test_a_row_may_only_lose_what_it_showed(self, store):
        store.write(stamped("one"), optimistic())
        store.write(RecomputedRow(ROW, "one", {"best": 9}))
        store.write(RecomputedRow(ROW, "one", {}, ("best",)))
        assert "best" not in store.row()

    def test_values_of_all_types_are_shown(self, store):
        store.write(stamped("one"))
        store.write(RecomputedRow(ROW, "one", ALL_TYPES))
        assert store.row().items() >= ALL_TYPES.items()

    @pytest.mark.parametrize("before", [None, plain_row(best=1), stamped("two")], ids=["no row", "put", "other stamp"])
    def test_a_row_without_that_stamp_is_left_as_it_is(self, store, before):
        if before:
            store.write(before)
        found = store.row()
        (reason,) = store.refused(RecomputedRow(ROW, "one", {"best": 9}))
        assert reason.code == CONDITION
        assert store.row() == found

    def test_a_row_that_another_step_stamped_refuses_the_whole_transaction(self, store):
        store.write(stamped("two"))
        reasons = store.refused(optimistic(), RecomputedRow(ROW, "one", {"best": 9}))
        assert [reason and reason.code for reason in reasons] == [None, CONDITION]
        assert store.state(LEDGER) is None

    # Rows

    def test_rows_of_several_tables_are_read_whole(self, store):
        numbered, binary = ("numbered", "a", 5), ("binary", b"\x00", None)
        for key in (ROW, OTHER_ROW, numbered, binary):
            store.write(PutRow(key, {"units": 2}))
        missing = ("numbered", "a", 6)
        found = store.engine.read_rows([ROW, OTHER_ROW, numbered, missing, binary])
        assert found[ROW] == {"PK": ROW[1], "SK": ROW[2], "units": 2}
        assert found[numbered] == {"id": "a", "number": 5, "units": 2}
        assert found[binary] == {"id": b"\x00", "units": 2}
        assert set(found) == {ROW, OTHER_ROW, numbered, binary}

    def test_more_rows_are_read_than_one_request_takes(self, store):
        keys = [("shop", "SALES", f"{number:03d}") for number in range(130)]
        store.engine.insert_rows([plain_row(key, n=1) for key in keys])
        assert set(store.engine.read_rows(keys)) == set(keys)

    def test_no_rows_are_read(self, store):
        assert store.engine.read_rows([]) == {}
