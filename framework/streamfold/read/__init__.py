"""Derived rows, histories and archives as their readers should see them."""

from streamfold.read.derived_rows import average, filtered, has_more, rows, sharded, top
from streamfold.read.feeds import Feed, feed
from streamfold.read.histories import archived, as_of, audit_item, history, item_key

__all__ = [
    "Feed", "archived", "as_of", "audit_item", "average", "feed", "filtered", "has_more", "history", "item_key", "rows",
    "sharded", "top",
]  # fmt: skip
