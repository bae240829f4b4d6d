"""A table that tests write to, for the records that come of it."""

from tests.helpers.records import item, record

FIRST = 100_000_000_000_000_000_000


class Source:
    """Items of one table. Every write gives its record, numbered as on AWS: long, with gaps."""

    def __init__(self, **more):
        self.items = {}
        self.sequence = FIRST
        self.more = more

    def put(self, partition, sort="METADATA", **attributes):
        """The record of an item's new state."""
        return self._write((partition, sort), item(partition, sort, **attributes))

    def remove(self, partition, sort="METADATA"):
        """The record of an item's removal."""
        return self._write((partition, sort), None)

    def _write(self, key, new):
        old = self.items.pop(key, None)
        if new is not None:
            self.items[key] = new
        self.sequence += 7
        return record(old, new, self.sequence, **self.more)
