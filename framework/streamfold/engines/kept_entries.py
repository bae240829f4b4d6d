"""The entries of partitions that a batch reads in order, kept so that each partition is read from the file once."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from typing import Any, NamedTuple

from streamfold.engines import Entries
from streamfold.writes.guarded import StateKey

PARTITION_ENTRIES_MAX = 2_000
WANTED_TIMES_MAX = 20
"""A partition with more entries, or with so many times those that are wanted of it, is read from the file each time:
what counts of it are its first or last entries."""
ENTRIES_MAX = 160_000
"""Entries that are kept, half of them in each of two generations: about 50 MB."""


def kept_max(wanted: int) -> int:
    """How many entries a partition may have to be kept, where so many of them are wanted at once."""
    return min(PARTITION_ENTRIES_MAX, WANTED_TIMES_MAX * wanted)


class Partition(NamedTuple):
    """The entries of one partition: their places in order, and their values."""

    places: list[str]
    values: dict[str, str]


class KeptEntries:
    """Partitions as they are with all that was written and changed."""

    def __init__(self) -> None:
        self._young: dict[str, Partition | None] = {}  # None: too many entries
        self._old: dict[str, Partition | None] = {}
        self._young_entries = 0

    def knows(self, partition: str) -> bool:
        """Whether a partition was looked at; those with too many entries are known, and not kept."""
        if partition in self._young:
            return True
        if partition not in self._old:
            return False
        self.keep(partition, self._old.pop(partition))
        return True

    def take(self, partition: str, found: Iterable[tuple[str, str]], most: int) -> None:
        """Keeps the entries that were read, in order; notes only that there are too many if they are more than so."""
        values = dict(found)
        self.keep(partition, Partition(list(values), values) if len(values) <= most else None)

    def keep(self, partition: str, entries: Partition | None) -> None:
        count = 1 + (len(entries.places) if entries else 0)
        if self._young_entries + count > ENTRIES_MAX // 2:  # before: what is kept is read next
            self._old, self._young, self._young_entries = self._young, {}, 0
        self._young[partition] = entries
        self._young_entries += count

    def read(self, wanted: Entries) -> list[tuple[str, str]] | None:
        """What ``read_entries`` gives; None for a partition that is not kept."""
        kept = self._young.get(wanted.partition)
        if kept is None:
            return None
        first = bisect_right(kept.places, wanted.after) if wanted.after else 0
        end = bisect_left(kept.places, wanted.before, first) if wanted.before else len(kept.places)
        if wanted.descending:
            places = kept.places[max(first, end - wanted.most) : end][::-1]
        else:
            places = kept.places[first : min(end, first + wanted.most)]
        return [(place, kept.values[place]) for place in places]

    def change(self, key: StateKey, item: dict[str, Any] | None) -> None:
        """Follows a write of a state item (None: removed)."""
        kept = self._young.get(key.pk) or self._old.get(key.pk)
        if kept is None:
            return
        if item is None:
            if kept.values.pop(key.sk, None) is not None:
                del kept.places[bisect_left(kept.places, key.sk)]
        elif len(kept.places) >= PARTITION_ENTRIES_MAX or "s" not in item:
            self.drop(key.pk)
        else:
            if key.sk not in kept.values:
                insort(kept.places, key.sk)
                self._young_entries += 1
            kept.values[key.sk] = item["s"]

    def drop(self, partition: str) -> None:
        """Forgets a partition."""
        self._young.pop(partition, None)
        self._old.pop(partition, None)

    def clear(self) -> None:
        self._young, self._old, self._young_entries = {}, {}, 0
