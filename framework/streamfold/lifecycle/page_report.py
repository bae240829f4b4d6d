"""What became of the items of pages: counts, differences, failures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, cast

from streamfold.errors import parts_text
from streamfold.ledger.item import BEFORE_ALL
from streamfold.records.change import ItemKey

if TYPE_CHECKING:
    from streamfold.records.change import Change


class Scanned(NamedTuple):
    """Stands for the change of an item that a page met; a failure names it."""

    item: ItemKey
    version_text: str = BEFORE_ALL
    sequence: str = ""
    event: str = ""

    @property
    def record(self) -> Mapping[str, object]:
        """There is none."""
        return {}

    @property
    def name(self) -> str:
        return parts_text(self.item[1:])


class ItemFailed(NamedTuple):
    """An item that a page could not lead to its source, for one handler."""

    item: ItemKey
    handler: str
    error: Exception


class Difference(NamedTuple):
    """A part of an item that did not agree with its source."""

    item: ItemKey
    handler: str
    stored: str  # what the ledger holds, as text
    expected: str  # what the handler makes of the source
    seen: str = ""  # of which revision of the ledger item, and of which image: another one has moved

    @property
    def agrees(self) -> bool:
        """Whether only work that an earlier step left is to be done: rows to remove or recompute, and its note."""
        return self.stored == self.expected


@dataclass(slots=True)
class PageReport:
    """What became of the items of pages, by handler and in all."""

    items: int = 0  # that a handler was asked for
    written: int = 0  # parts of items that were led to their source, or would be in a dry run
    equal: int = 0  # parts that agree with their source
    uncompared: int = 0  # of those written, parts of kinds without a ledger: nothing tells whether they agree
    rows: int = 0  # writes and removals of rows
    write_units: int = 0  # of the transactions of a dry run
    failed: list[ItemFailed] = field(default_factory=list)
    differing: list[Difference] = field(default_factory=list)  # in a dry run
    pending: list[Difference] = field(default_factory=list)  # in a dry run: parts that agree, and are to be finished

    def add(self, other: "PageReport") -> None:
        """Adds another page's counts."""
        self.items += other.items
        self.written += other.written
        self.equal += other.equal
        self.uncompared += other.uncompared
        self.rows += other.rows
        self.write_units += other.write_units
        self.failed += other.failed
        self.differing += other.differing
        self.pending += other.pending


def stand_in(item: ItemKey, version: str = BEFORE_ALL) -> "Change":
    """What stands for the change of an item that a page met."""
    return cast("Change", Scanned(item, version))
