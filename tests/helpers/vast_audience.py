"""A store with an audience of any size, whose edges are made when they are read, and whose rows are only counted.

Units and requests are those that DynamoDB bills (``counting``): a row is a unit a KB, twenty-five statements are a
request, and a page of mirrors is a request a MB begun. A statement whose row has attributes from before that it does
not take away costs twice, and a call of its own.
"""

from bisect import bisect_right
from math import ceil

from streamfold.derivations.feed.posts import EDGE_DIGITS, StoredCopy
from streamfold.engines import MemoryEngine
from streamfold.records.values import encode, item_bytes
from streamfold.settings.limits import STATEMENTS_MAX
from tests.helpers.feed_histories import FOLLOW

PAGE_BYTES = 1_000_000
KEY_BYTES = 150
"""About what the key of a mirror, its version and its names take."""
SPACE = 16**EDGE_DIGITS


class VastAudience(MemoryEngine):
    """The store of one author with so many followers."""

    def __init__(self, app, followers, names=("text",)):
        super().__init__(app.tables.values(), app.chains)
        self.followers, self.names = followers, set(names)
        self.rows_written, self.units, self.requests = 0, 0, 0

    def edge(self, number):
        item = ("main", *FOLLOW.compose({"reader_id": f"reader-{number:09}", "author_id": "b"}))
        raw = encode({"PK": item[1], "SK": item[2], "name": "one"})["M"]
        return StoredCopy("00/2026-03-01T09:00:00.000/000000000000000000001", item, raw, gone=False)

    def read_entries(self, wanted):
        if not wanted.partition.startswith("edges#"):
            found = super().read_entries(wanted)
        else:
            first = bisect_right(range(self.followers), wanted.after, key=self._place) if wanted.after else 0
            numbers = range(first, min(first + wanted.most, self.followers))
            places = ((self._place(number), number) for number in numbers)
            found = [(at, self.edge(number).text) for at, number in places if not wanted.before or at < wanted.before]
        size = sum(len(text) + KEY_BYTES for _, text in found)
        self.requests += max(1, ceil(size / PAGE_BYTES))
        return found

    def put_post_rows(self, pairs):
        again = 0
        for pair in pairs:
            self.units += ceil(item_bytes(encode(dict(pair.attributes or {}))["M"]) / 1024 + KEY_BYTES / 1024)
            again += not pair.fresh and not self.names <= {*pair.removed, *(pair.attributes or ())}
        self.rows_written += len(pairs)
        self.requests += ceil(len(pairs) / STATEMENTS_MAX) + 2 * again
        self.units += 2 * again
        return []

    def transact(self, writes, expires_at):
        self.requests += 1
        self.units += len(writes) * (2 if len(writes) > 1 else 1)
        return super().transact(writes, expires_at)

    def swap_state(self, key, attributes, revision):
        self.requests += 1
        self.units += 1
        return super().swap_state(key, attributes, revision)

    def read_state(self, keys, *, consistent=False):
        self.requests += 1
        return super().read_state(keys, consistent=consistent)

    def _place(self, number):
        return f"{number * SPACE // self.followers:0{EDGE_DIGITS}x}"
