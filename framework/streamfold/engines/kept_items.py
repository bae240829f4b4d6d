"""Items of a state file that a batch has read or changed, so that each is read and written once.

What is changed is kept until it is written. What was read is kept too, as far as there is room: of two generations,
the older is dropped when the younger has half of it.
"""

from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeVar

from streamfold.engines.kept_entries import KeptEntries
from streamfold.writes.guarded import StateKey

KeptKey = TypeVar("KeptKey", bound=Hashable)
KeptItem = dict[str, Any] | None
"""An item; None: there is none."""

UNKNOWN: dict[str, Any] = {}
"""Stands for an item of which nothing is known: neither what it is nor that there is none."""
KEPT_LETTERS_MAX = 24_000_000
"""Letters of the texts of items that are kept, half in each generation: about 150 MB as Python keeps them."""
ITEM_LETTERS = 120
"""What a key, and what keeps it, count beside an item's text."""


class KeptItems(Generic[KeptKey]):
    """What is known of the items of one table of the file."""

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
        """Forgets an item that is not kept any more, or that others write."""
        self._young.pop(key, None)
        self._old.pop(key, None)

    def clear(self) -> None:
        """Forgets everything, also what was not written."""
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
        """What is to be written: it does not count as changed any more."""
        changed, self.changed, self._partitions = self.changed, {}, {}
        return changed

    def clear(self) -> None:
        super().clear()
        self.entries.clear()
        self._partitions = {}
