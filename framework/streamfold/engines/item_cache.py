"""Items and entries of a state file that a batch has read or changed, so that each is read and written once.

Changes are kept until they are written. Items that were read are kept as far as there is room: of two generations, the
older is dropped when the younger fills half of it.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from streamfold.engines.protocol import Entries
from streamfold.writes.guarded import StateKey

PARTITION_ENTRIES_MAX = 2_000
WANTED_TIMES_MAX = 20
"""A partition with more entries, or with this many times the wanted entries, is read from the file each time: only its
first or last entries count.
"""
ENTRIES_MAX = 160_000
"""Entries that are kept, half of them in each of two generations: about 50 MB."""

KeptKey = TypeVar("KeptKey", bound=Hashable)
KeptItem = dict[str, Any] | None
"""An item; None: there is none."""

UNKNOWN: dict[str, Any] = {}
"""Marks an item about which nothing is known: neither its content nor its absence."""
KEPT_LETTERS_MAX = 24_000_000
"""Letters of the texts of items that are kept, half in each generation: about 150 MB as Python keeps them."""
ITEM_LETTERS = 120
"""The size that a key and its bookkeeping count in addition to an item's text."""


def kept_max(wanted: int) -> int:
    """The most entries of a kept partition, if ``wanted`` of them are read at once."""
    return min(PARTITION_ENTRIES_MAX, WANTED_TIMES_MAX * wanted)


class Partition(NamedTuple):
    """The entries of one partition: their sort positions in order, and their values."""

    positions: list[str]
    values: dict[str, str]


class KeptEntries:
    """Partitions as they are with all that was written and changed."""

    def __init__(self) -> None:
        self._young: dict[str, Partition | None] = {}  # None: too many entries
        self._old: dict[str, Partition | None] = {}
        self._young_entries = 0

    def knows(self, partition: str) -> bool:
        """Whether a partition was read; partitions with too many entries are noted, but not kept."""
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
        count = 1 + (len(entries.positions) if entries else 0)
        if self._young_entries + count > ENTRIES_MAX // 2:  # before: what is kept is read next
            self._old, self._young, self._young_entries = self._young, {}, 0
        self._young[partition] = entries
        self._young_entries += count

    def read(self, wanted: Entries) -> list[tuple[str, str]] | None:
        """The result of ``read_entries``; None for a partition that is not kept."""
        kept = self._young.get(wanted.partition)
        if kept is None:
            return None
        first = bisect_right(kept.positions, wanted.after) if wanted.after else 0
        end = bisect_left(kept.positions, wanted.before, first) if wanted.before else len(kept.positions)
        if wanted.descending:
            positions = kept.positions[max(first, end - wanted.most) : end][::-1]
        else:
            positions = kept.positions[first : min(end, first + wanted.most)]
        return [(position, kept.values[position]) for position in positions]

    def change(self, key: StateKey, item: dict[str, Any] | None) -> None:
        """Follows a write of a state item (None: removed)."""
        kept = self._young.get(key.pk) or self._old.get(key.pk)
        if kept is None:
            return
        if item is None:
            if kept.values.pop(key.sk, None) is not None:
                del kept.positions[bisect_left(kept.positions, key.sk)]
        elif len(kept.positions) >= PARTITION_ENTRIES_MAX or "s" not in item:
            self.drop(key.pk)
        else:
            if key.sk not in kept.values:
                insort(kept.positions, key.sk)
                self._young_entries += 1
            kept.values[key.sk] = item["s"]

    def drop(self, partition: str) -> None:
        """Drops a partition."""
        self._young.pop(partition, None)
        self._old.pop(partition, None)

    def clear(self) -> None:
        self._young, self._old, self._young_entries = {}, {}, 0


class KeptItems(Generic[KeptKey]):
    """The known items of one table of the file."""

    def __init__(self) -> None:
        self.changed: dict[KeptKey, KeptItem] = {}  # not written yet
        self._young: dict[KeptKey, tuple[KeptItem, int]] = {}
        self._old: dict[KeptKey, tuple[KeptItem, int]] = {}
        self._young_letters = 0

    def get(self, key: KeptKey) -> KeptItem:
        """The item, or ``UNKNOWN``."""
        found = self.changed.get(key, UNKNOWN)
        if found is not UNKNOWN:
            return found
        kept = self._young.get(key)
        if kept is None:
            kept = self._old.pop(key, None)
            if kept is None:
                return UNKNOWN
            self.keep(key, *kept)
        return kept[0]

    def keep(self, key: KeptKey, item: KeptItem, letters: int) -> None:
        """Keeps an item that was read or written, with the length of its text."""
        self._young[key] = item, letters
        self._young_letters += letters + ITEM_LETTERS
        if self._young_letters > KEPT_LETTERS_MAX // 2:
            self._old, self._young, self._young_letters = self._young, {}, 0

    def drop(self, key: KeptKey) -> None:
        """Drops an item that is no longer kept, or that others write."""
        self._young.pop(key, None)
        self._old.pop(key, None)

    def clear(self) -> None:
        """Drops everything, also unwritten changes."""
        self.changed = {}
        self._young, self._old, self._young_letters = {}, {}, 0


class KeptStates(KeptItems[StateKey]):
    """State items, and the entries of partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = KeptEntries()
        self._partitions: dict[str, list[StateKey]] = {}

    def change(self, key: StateKey, item: KeptItem) -> None:
        if key not in self.changed:
            self._partitions.setdefault(key.pk, []).append(key)
        self.changed[key] = item
        self.entries.change(key, item)

    def changed_in(self, partition: str) -> Sequence[StateKey]:
        """The keys of a partition whose items are to be written."""
        return self._partitions.get(partition, ())

    def take(self) -> dict[StateKey, KeptItem]:
        """The changes to be written: they no longer count as changes."""
        changed, self.changed, self._partitions = self.changed, {}, {}
        return changed

    def clear(self) -> None:
        super().clear()
        self.entries.clear()
        self._partitions = {}
