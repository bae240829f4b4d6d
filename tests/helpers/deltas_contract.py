"""What every engine does alike with deltas: reads as of one moment, swapped texts, and rows that count too few."""

import pytest

from streamfold.engines.protocol import Entries
from streamfold.keys.table import CONTRIBUTORS, OWNER
from streamfold.settings.limits import ACTIONS_MAX
from streamfold.writes.guarded import CONDITION, AddRow, DeleteState, PutState, StateKey, SwapText
from tests.helpers.engine_contract import LEDGER, OTHER_ROW, ROW, optimistic, part, plain_row

STRIPE = "delta#shop#3#a"
DELTA, OTHER = StateKey(STRIPE, "3a00"), StateKey(STRIPE, "3a01")


def below(most, key=ROW, **amounts):
    """What new items add to a row that counts fewer contributors than it should."""
    return AddRow(key, amounts, 1, contributors_below=most, removed=(OWNER,))


class DeltasContract:
    """Wants a fixture ``store``, as the contract of engines does."""

    # Reads as of one moment

    def test_items_that_do_not_exist_are_missing_among_those_read_together(self, store):
        assert store.engine.read_together([]) == {}
        assert store.engine.read_together([DELTA]) == {}
        store.write(PutState(DELTA, "one"))
        assert store.engine.read_together(iter([OTHER, DELTA, DELTA])) == {DELTA: {"s": "one"}}

    def test_items_are_read_together_whole_and_as_plain_values(self, store):
        store.write(optimistic(part(after="é"), live=1), PutState(DELTA, "\U0001f600"))
        assert store.engine.read_together([LEDGER, DELTA]) == {
            LEDGER: {"total.v": "v2", "total.s": "é", "r": 1, "live": 1},
            DELTA: {"s": "\U0001f600"},
        }

    def test_more_items_are_read_together_than_one_call_takes(self, store):
        keys = [StateKey(STRIPE, f"{number:04}") for number in range(2 * ACTIONS_MAX + 5)]
        for first in range(0, len(keys), ACTIONS_MAX):
            store.write(*[PutState(key, key.sk) for key in keys[first : first + ACTIONS_MAX]])
        assert store.engine.read_together([*keys, OTHER]) == {key: {"s": key.sk} for key in keys}

    def test_items_larger_than_one_answer_are_read_together(self, store):
        keys = [StateKey(STRIPE, str(number)) for number in range(20)]
        for first in range(0, len(keys), 5):
            store.write(*[PutState(key, "x" * 390_000) for key in keys[first : first + 5]])
        found = store.engine.read_together(keys)
        assert {key: len(item["s"]) for key, item in found.items()} == dict.fromkeys(keys, 390_000)

    def test_a_transaction_that_was_answered_is_seen_by_those_who_read_together(self, store):
        for number in range(20):
            ledger, delta = StateKey("ledger#shop", str(number)), StateKey(STRIPE, str(number))
            store.write(PutState(ledger, "names it"), SwapText(delta, "adds", None))
            assert store.engine.read_together([ledger, delta]).keys() == {ledger, delta}
            store.write(AddRow(ROW, {"units": 1}, 1), DeleteState(delta, "adds"))
            assert store.engine.read_together([ledger, delta]).keys() == {ledger}

    def test_entries_are_read_without_consistency(self, store):
        store.write(PutState(DELTA, "one"), PutState(OTHER, "two"))
        wanted = Entries(STRIPE, 10, consistent=False)
        assert store.engine.read_entries(wanted) == [(DELTA.sk, "one"), (OTHER.sk, "two")]
        assert store.engine.read_entries(wanted._replace(most=1)) == [(DELTA.sk, "one")]

    # Texts

    def test_a_text_is_put_where_there_is_none(self, store):
        store.write(SwapText(DELTA, "one", None))
        assert store.state(DELTA) == {"s": "one"}
        (reason,) = store.refused(SwapText(DELTA, "two", None))
        assert (reason.code, reason.item["s"]) == (CONDITION, "one")
        assert store.state(DELTA) == {"s": "one"}

    def test_a_text_is_swapped_for_the_one_that_was_read(self, store):
        (reason,) = store.refused(SwapText(DELTA, "two", "one"))
        assert (reason.code, reason.item) == (CONDITION, None)
        store.write(PutState(DELTA, "one"))
        store.write(SwapText(DELTA, "two", "one"))
        (reason,) = store.refused(SwapText(DELTA, "three", "one"))
        assert (reason.code, reason.item["s"]) == (CONDITION, "two")
        assert store.state(DELTA) == {"s": "two"}

    @pytest.mark.parametrize("wrong", [SwapText(DELTA, "b", "x"), DeleteState(DELTA, "x"), SwapText(DELTA, "b", None)])
    def test_a_delta_that_is_not_what_was_read_refuses_all_of_its_transaction(self, store, wrong):
        store.write(PutState(DELTA, "one"), PutState(OTHER, "two"))
        first, second, third = store.refused(AddRow(ROW, {"units": 1}, 1), DeleteState(OTHER, "two"), wrong)
        assert (first, second, third.code, third.item["s"]) == (None, None, CONDITION, "one")
        assert store.row() is None
        assert store.engine.read_together([DELTA, OTHER]) == {DELTA: {"s": "one"}, OTHER: {"s": "two"}}

    # Rows that count too few

    def test_an_addition_below_a_number_makes_the_row_where_there_is_none(self, store):
        store.write(PutState(DELTA, "one"))
        store.write(DeleteState(DELTA, "one"), below(1, units=2))
        row = store.row()
        assert (row["units"], row[CONTRIBUTORS], store.state(DELTA)) == (2, 1, None)

    def test_an_addition_below_a_number_is_refused_once_the_row_counts_as_many(self, store):
        store.write(AddRow(ROW, {"units": 2}, 1), PutState(DELTA, "one"))
        store.write(DeleteState(DELTA, "one"), below(2, units=3))
        store.write(PutState(DELTA, "one"))
        taken, reason = store.refused(DeleteState(DELTA, "one"), below(2, units=4))
        assert (taken, reason.code, reason.item[CONTRIBUTORS]) == (None, CONDITION, 2)
        assert (store.row()["units"], store.state(DELTA)) == (5, {"s": "one"})

    def test_an_addition_below_a_number_goes_to_a_row_that_somebody_put_and_takes_its_mark_away(self, store):
        marked = {OWNER: "#mark", "name_of": "somebody", CONTRIBUTORS: 0}
        store.write(plain_row(OTHER_ROW, **marked), PutState(DELTA, "one"))
        store.write(below(1, OTHER_ROW, units=2), DeleteState(DELTA, "one"))
        row = store.row(OTHER_ROW)
        assert (row["units"], row["name_of"], row[CONTRIBUTORS], OWNER in row) == (2, "somebody", 1, False)
