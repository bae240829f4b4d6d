"""Which rows another version of the code would make of the same items. No state is touched."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamfold.engines import Engine
from streamfold.ledger.forms import Forms
from streamfold.lifecycle.side_rows import RaisedError, RowsByPlace, SideRows, row_at, side_rows
from streamfold.records.change import ItemKey
from streamfold.records.values import same
from streamfold.routes.application import Application
from streamfold.writes.guarded import RowKey

CHANGES_KEPT = 10_000
"""Rows that a comparison remembers; it counts the others."""
OLD, NEW = "old", "new"

OldRows = Callable[[Sequence[tuple[str, Mapping[str, Any]]]], Sequence[SideRows]]
"""What the old code makes of items, each a table's name and a stored item."""


class RowChange(NamedTuple):
    """A row that the new code makes otherwise of an item. A row of one item shows that item's share alone."""

    item: ItemKey
    handler: str
    row: RowKey
    old: Mapping[str, Any] | None  # attributes; None: the old code makes no such row
    new: Mapping[str, Any] | None

    @property
    def attributes(self) -> list[str]:
        """The attributes that differ; all of a row that only one side makes."""
        old, new = self.old or {}, self.new or {}
        return sorted(name for name in {*old, *new} if not same(old.get(name), new.get(name)))


@dataclass(slots=True)
class HandlerDiff:
    """How one handler differs."""

    items: int = 0  # that both versions were asked for
    changed: int = 0  # items
    more: int = 0  # rows that only the new code makes
    fewer: int = 0  # rows that only the old code makes
    other: int = 0  # rows with other attributes
    attributes: Counter[str] = field(default_factory=Counter)  # rows in which an attribute differs

    def add(self, changes: Iterable[RowChange]) -> None:
        for each in changes:
            self.more += each.old is None
            self.fewer += each.new is None
            self.other += each.old is not None and each.new is not None
            self.attributes.update(each.attributes)


@dataclass(slots=True)
class RaisedItems:
    """Items on which a handler raises one type of error."""

    handler: str
    error: RaisedError  # the first
    item: ItemKey  # of the first
    items: int = 0


class CodeDiff:
    """Compares what two versions of the code make of items. ``handlers`` are those of the new code that are compared.

    forms: the forms of attributes that the state knows. The new code is held against them, as a function is.
    """

    def __init__(self, app: Application, engine: Engine, forms: Forms, handlers: Collection[str], old: OldRows) -> None:
        self.app = app
        self.engine = engine
        self.forms = forms
        self.handlers = handlers
        self.old = old
        self.items = 0
        self.found: dict[str, HandlerDiff] = {name: HandlerDiff() for name in handlers}
        self.changes: list[RowChange] = []
        self.raised: dict[str, dict[tuple[str, str], RaisedItems]] = {OLD: {}, NEW: {}}

    def page(self, items: Iterable[ItemKey]) -> int:
        """Compares some items, and returns how many of them are there."""
        sources = self.engine.read_sources(items)
        old = self.old([(item[0], image) for item, image in sources.items()])
        for (item, image), before in zip(sources.items(), old, strict=True):
            self.items += 1
            self._compare(item, before, side_rows(self.app, self.forms, item[0], image, self.handlers))
        return len(sources)

    @property
    def differs(self) -> bool:
        """Whether the new code would change a row, or raises."""
        return any(each.changed for each in self.found.values()) or bool(self.raised[NEW])

    def _compare(self, item: ItemKey, before: SideRows, after: SideRows) -> None:
        for name in self.handlers:
            raised = ((OLD, before.raised.get(name)), (NEW, after.raised.get(name)))
            for side, error in raised:
                if error is not None:
                    self._raises(side, name, item, error)
            if not any(error for _, error in raised) and (name in before.rows or name in after.rows):
                self._rows(item, name, before.rows.get(name, {}), after.rows.get(name, {}))

    def _raises(self, side: str, handler: str, item: ItemKey, error: RaisedError) -> None:
        known = self.raised[side].setdefault((handler, error.type), RaisedItems(handler, error, item))
        known.items += 1

    def _rows(self, item: ItemKey, handler: str, old: RowsByPlace, new: RowsByPlace) -> None:
        places = dict.fromkeys((*old, *new))
        pairs = ((row_at(place), old.get(place), new.get(place)) for place in places)
        changes = [RowChange(item, handler, *pair) for pair in pairs]
        changes = [each for each in changes if each.old is None or each.new is None or each.attributes]
        found = self.found[handler]
        found.items += 1
        found.changed += bool(changes)
        found.add(changes)
        self.changes += changes[: max(CHANGES_KEPT - len(self.changes), 0)]
