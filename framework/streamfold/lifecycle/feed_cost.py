"""What a feed costs a day: an author's posts pushed to all followers, or pulled by those who read.

Counted as DynamoDB counts on demand: a write unit for each 1 KB of a row, a read unit for each 4 KB, and half of it for
a query that is not strongly consistent (Developer Guide, read-write-operations).
"""

from math import ceil
from typing import NamedTuple

from streamfold.derivations.feed.fan_outs import PAGE
from streamfold.lifecycle.backfill import PRICE_READ, PRICE_WRITE, READ_BYTES
from streamfold.lifecycle.page import WRITE_BYTES
from streamfold.read.feeds import LIMIT

PRICE_STORED = 0.25
"""Dollars for a GB and month (DynamoDB pricing, us-east-1)."""
ITEM_BYTES = 100
"""What storage counts for an item beside its attributes (DynamoDB pricing)."""
EDGE_BYTES = 300
"""What the state holds of an edge without many attributes; a lane reads it strongly."""
DAYS_A_MONTH = 30
SHARE = 0.5
"""Read units of 4 KB, eventually consistent."""


class Author(NamedTuple):
    """An author and those who follow him."""

    posts: float  # a day
    followers: int
    reads: float  # pages of the feed that one follower reads a day
    row_bytes: int = 500
    keep_days: int = 30


class Prices(NamedTuple):
    """Dollars: for a million units, and for a GB and month."""

    write: float = PRICE_WRITE
    read: float = PRICE_READ
    stored: float = PRICE_STORED


class FeedCost(NamedTuple):
    """What one way costs a day."""

    write_units: float
    read_units: float
    stored_bytes: float

    def dollars(self, prices: Prices) -> float:
        """Dollars a day."""
        units = self.write_units * prices.write + self.read_units * prices.read
        return units / 1e6 + self.stored_bytes / 1e9 * prices.stored / DAYS_A_MONTH


def pushed(author: Author) -> FeedCost:
    """A row for each follower and post, and what keeps it going: the post's mirror, and a lane's place a page.

    Reading adds nothing: the rows are in the one query that a page of the feed takes anyway.
    """
    rows = author.posts * author.followers
    mirrors = author.posts * ceil(author.row_bytes / WRITE_BYTES)
    writes = rows * ceil(author.row_bytes / WRITE_BYTES) + mirrors + rows / PAGE
    return FeedCost(writes, rows * EDGE_BYTES / READ_BYTES, rows * author.keep_days * (author.row_bytes + ITEM_BYTES))


def pulled(author: Author) -> FeedCost:
    """The post's mirror, and a query of the author's posts for each page that a follower reads."""
    mirrors = author.posts * ceil(author.row_bytes / WRITE_BYTES)
    found = min(author.posts * author.keep_days, LIMIT + 1)
    units = max(SHARE * ceil(found * author.row_bytes / READ_BYTES), SHARE)
    return FeedCost(mirrors, author.followers * author.reads * units, 0.0)


def even_reads(author: Author, prices: Prices) -> float:
    """Pages that each follower reads a day at which both ways cost the same; below it, pulling is cheaper."""
    one = pulled(author._replace(reads=1.0))
    page = one.read_units * prices.read / 1e6
    fixed = one.write_units * prices.write / 1e6
    return (pushed(author).dollars(prices) - fixed) / page if page else 0.0
