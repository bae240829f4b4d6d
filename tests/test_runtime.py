"""Shared rows: how a process learns of them, and when it may put deltas."""

import pytest

from streamfold.ledger.deltas import NAME_LETTERS, STRIPES, new_name
from streamfold.ledger.state_keys import ledger_key, row_name
from streamfold.runtime import (
    DELTAS_AFTER_SECONDS,
    FIRST_WAIT_SECONDS,
    FIRST_WAIT_SECONDS_MAX,
    GONE_MAX,
    HEADS_SECONDS,
    ROWS_SHARED_MAX,
    SHARED_SECONDS,
    DeltasMark,
    Knowledge,
    SendingPace,
    Shared,
    Sharing,
    new_token,
)

A, B = ("main", "CUSTOMER#a", "TOTAL"), ("main", "CUSTOMER#b", "TOTAL")
NOW = 1_800_000_000.0


@pytest.fixture
def sharing():
    return Sharing()


def test_no_row_is_shared_until_somebody_meets_at_it(sharing):
    assert not sharing
    sharing.met([A], NOW, first=True)
    assert (sharing.is_shared(A), sharing.is_shared(B)) == (True, False)
    assert len(sharing) == 1


def test_a_row_is_its_process_s_own_again_after_a_minute_without_meeting(sharing):
    sharing.met([A], NOW, first=True)
    sharing.began(1, NOW + SHARED_SECONDS)
    assert sharing.is_shared(A)
    sharing.began(1, NOW + SHARED_SECONDS + 1)
    assert not sharing.is_shared(A)
    assert sharing.has_met([A]) == []


def test_a_row_stays_shared_while_others_meet_at_it(sharing):
    sharing.met([A], NOW, first=True)
    sharing.learn({row_name(A): NOW + 50})
    sharing.learn({row_name(A): NOW + 10})
    sharing.began(1, NOW + 50 + SHARED_SECONDS)
    assert sharing.is_shared(A)


def test_a_process_names_only_rows_at_which_it_met_others_itself(sharing):
    sharing.met([A], NOW, first=True)
    sharing.learn({row_name(B): NOW})
    assert sharing.has_met([A, B]) == [row_name(A)]


def sent(sharing, met, of):
    """A batch of so many transactions, of which some met others."""
    sharing.began(100, NOW)
    for number in range(of):
        sharing.sends()
        if number < met:
            sharing.met([A], NOW, first=True)
            sharing.met([A], NOW, first=False)
    sharing.began(100, NOW + 1)


@pytest.mark.parametrize(("met", "all_additions"), [(0, False), (3, False), (4, True), (10, True)])
def test_a_batch_that_met_others_in_four_tenths_of_its_transactions_has_the_next_one_share_all(
    sharing, met, all_additions
):
    sent(sharing, met, of=10)
    assert sharing.is_shared(B) is all_additions


def test_a_batch_of_no_transaction_says_nothing_about_the_next_one(sharing):
    sent(sharing, 4, of=10)
    sharing.began(100, NOW + 2)
    assert sharing.all
    sharing.sends()
    sharing.began(100, NOW + 3)
    assert not sharing.all


def test_a_conflict_at_no_row_is_no_meeting(sharing):
    sharing.began(1, NOW)
    sharing.sends()
    sharing.met([], NOW, first=True)
    sharing.began(1, NOW)
    assert not sharing


def test_heads_are_read_every_three_seconds_by_who_knows_shared_rows(sharing):
    assert not sharing.wants_heads(NOW)
    sharing.met([A], NOW, first=True)
    assert sharing.wants_heads(NOW)
    sharing.heads_at = NOW
    assert not sharing.wants_heads(NOW + HEADS_SECONDS - 0.1)
    assert sharing.wants_heads(NOW + HEADS_SECONDS)


@pytest.mark.parametrize(
    ("records", "seconds", "waits"),
    [
        (1_000, 1, FIRST_WAIT_SECONDS),  # 20 records take 20 ms to come
        (40, 1, 0.5),
        (20, 1, FIRST_WAIT_SECONDS_MAX),
        (1, 3_600, FIRST_WAIT_SECONDS_MAX),
        (0, 1, FIRST_WAIT_SECONDS_MAX),
    ],
)
def test_the_first_wait_is_as_long_as_twenty_records_take_to_come(sharing, records, seconds, waits):
    sharing.began(1, NOW)
    sharing.began(records, NOW + seconds)
    assert sharing.wait_seconds == pytest.approx(waits)


def test_a_process_remembers_so_many_rows_and_no_more_the_latest_ones(sharing):
    sharing.learn({f"{number:08d}": NOW for number in range(ROWS_SHARED_MAX)})
    sharing.learn({"00000000": NOW, row_name(A): NOW})
    assert len(sharing) == ROWS_SHARED_MAX
    assert sharing.is_shared(A)
    assert "00000000" in sharing._rows  # met again
    assert "00000001" not in sharing._rows


def test_counts_are_taken_once(sharing):
    sharing.put, sharing.merged, sharing.waited_seconds = 3, 2, 0.5
    assert sharing.take_counts() == (3, 2, 0.5)
    assert sharing.take_counts() == (0, 0, 0.0)


def test_a_transaction_that_met_others_at_rows_need_not_be_smaller():
    pace = SendingPace()
    pace.met_at_rows()
    assert pace.take_counts() == (100, 1)


def test_tokens_are_of_all_stripes_and_each_is_another_one():
    made = [new_token() for _ in range(2_000)]
    assert len(set(made)) == len(made)
    assert {int(token[0], 16) for token in made} == set(range(STRIPES))
    assert {len(new_name(0, token)) for token in made} == {NAME_LETTERS}


# What a batch does with it.


@pytest.mark.parametrize("may_put", [False, True])
def test_rows_are_taken_only_where_deltas_may_be_put(sharing, may_put):
    sharing.met([A], NOW, first=True)
    shared = Shared(sharing, Knowledge(), may_put)
    assert (shared.takes(A), shared.takes(B), shared.takes_any) == (may_put, False, may_put)
    assert shared._replace(takes_all=True).takes(B) is may_put


@pytest.mark.parametrize(
    ("mark", "after", "may_put"),
    [
        (None, 10**6, False),
        (DeltasMark(NOW), DELTAS_AFTER_SECONDS - 1, False),
        (DeltasMark(NOW), DELTAS_AFTER_SECONDS, True),
        (DeltasMark(NOW, closed=True), 10**6, False),
    ],
)
def test_deltas_are_put_a_quarter_of_an_hour_after_the_manifest_says_so(mark, after, may_put):
    known = Knowledge()
    known.deltas = mark
    known.note_may_put(NOW + after)
    assert known.may_put is may_put


def test_a_process_knows_the_latest_ledger_items_whose_deltas_it_saw_gone(sharing):
    known, keys = Knowledge(), [ledger_key("shop", "main", ("main", f"A#{n}", None)) for n in range(GONE_MAX + 1)]
    for key in keys:
        known.note_gone(key, "totals", "name")
    shared = Shared(sharing, known, may_put=True)
    assert [shared.gone(keys[n], "totals") for n in (0, 1, GONE_MAX)] == ["", "name", "name"]
    assert shared.gone(keys[1], "others") == ""
