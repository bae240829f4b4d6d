"""Accounts: every balance, the books, and the transfers that do not balance, from the entries alone."""

from collections import Counter

import pytest

from handlers.bank import AMENDED, BALANCE, BOOKS, ENTRY, TRANSFER, UNBALANCED
from tests.systems import Replayed


@pytest.fixture(scope="module")
def books():
    return Replayed("bank")


@pytest.fixture(scope="module")
def entries(books):
    return books.items(ENTRY)


def summed(entries, place):
    """What the entries add up to, by account (0) or by transfer (1)."""
    totals = Counter()
    for fields, entry in entries.items():
        totals[fields[place]] += entry["amount"]
    return {name: total for name, total in totals.items() if total}


def found(books, key, name):
    return {fields[0]: row[name] for fields, row in books.rows(key).items() if name in row}


def test_balances_are_what_the_entries_of_the_account_add_up_to(books, entries):
    assert found(books, BALANCE, "balance") == summed(entries, 0)


def test_transfers_that_do_not_add_up_to_nothing_are_shown(books, entries):
    off = summed(entries, 1)
    assert 0 < len(off) < len(books.rows(TRANSFER))
    assert found(books, UNBALANCED, "off_by") == off


def test_the_books_are_off_by_what_their_transfers_are(books, entries):
    (row,) = books.rows(BOOKS).values()
    assert row["total"] == sum(summed(entries, 1).values()) == sum(summed(entries, 0).values())
    assert row["turnover"] == sum(abs(entry["amount"]) for entry in entries.values())


def test_entries_that_did_not_stay_as_they_were_written_are_named(books):
    amended = {fields for fields, images in books.images(ENTRY).items() if len(images) > 1}
    assert amended
    assert set(books.rows(AMENDED)) == amended
