"""What a feed costs: pushing against pulling, as units and money."""

import pytest

from streamfold.lifecycle.feed_cost import Author, Prices, even_reads, pulled, pushed

PRICES = Prices()


def test_a_post_to_a_million_followers_is_a_write_unit_a_row():
    cost = pushed(Author(posts=1, followers=1_000_000, reads=0))
    assert cost.write_units == 1_000_000 + 1 + 1_000
    assert cost._replace(stored_bytes=0, read_units=0).dollars(PRICES) == pytest.approx(0.6256, abs=1e-4)


def test_rows_of_more_than_a_kilobyte_take_a_unit_for_each_that_was_begun():
    assert pushed(Author(1, 1000, 0, row_bytes=1025)).write_units == 2000 + 2 + 1


def test_pulling_writes_no_row_and_reads_for_each_page():
    cost = pulled(Author(posts=1, followers=200, reads=5, keep_days=1))
    assert (cost.write_units, cost.read_units, cost.stored_bytes) == (1, 200 * 5 * 0.5, 0)


def test_rows_are_stored_for_as_long_as_the_feed_keeps_them():
    month = pushed(Author(posts=1, followers=1000, reads=0, row_bytes=900, keep_days=30))
    assert month.stored_bytes == 1000 * 30 * 1000
    assert month._replace(write_units=0, read_units=0).dollars(PRICES) == pytest.approx(0.03 * 0.25 / 30)


@pytest.mark.parametrize("author", [Author(1, 200, 0), Author(5, 1_000_000, 0), Author(0.1, 50, 0, 2000, 3)])
def test_at_the_even_number_of_reads_both_ways_cost_the_same(author):
    even = author._replace(reads=even_reads(author, PRICES))
    assert pushed(even).dollars(PRICES) == pytest.approx(pulled(even).dollars(PRICES))
    fewer = even._replace(reads=even.reads / 2)
    assert pulled(fewer).dollars(PRICES) < pushed(fewer).dollars(PRICES)
