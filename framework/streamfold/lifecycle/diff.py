"""Compares the rows that two versions of the code make of the same items. No state is touched."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from streamfold.commit.after_commit import read_shows
from streamfold.commit.referents import Asked, LookedUp, look_up
from streamfold.derivations.derivation import derived
from streamfold.engines.memory import MemoryEngine
from streamfold.engines.protocol import Engine, Page, StoredItem
from streamfold.errors import ItemFault, RecordError, SettingsError
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import Table
from streamfold.ledger.contribution import (
    NOTHING,
    PLAIN_ENTRY,
    Contribution,
    Mark,
    RowContribution,
    partition,
    value_of_one_source,
    values_of,
)
from streamfold.ledger.contribution import writes as entry_writes
from streamfold.ledger.schema import Schema
from streamfold.records.change import ItemKey, image_of, item_key
from streamfold.records.images import hidden
from streamfold.records.values import decode, encode, same, to_json
from streamfold.routes.aggregates import ordering_of, shown_of
from streamfold.routes.application import Application
from streamfold.routes.parts import PART
from streamfold.routes.route import SOURCE, Fields, Route
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import RowKey

RowsByKey = Mapping[str, StoredItem]
"""Rows by their keys as JSON, with the attributes that readers would see if the item were the only contributor."""

Referents = Mapping[str, StoredItem | None]
"""Items by their keys as JSON; None: there is no such item."""
RANGE = " range"
"""Begins the text of a range of parts; a table's name has no space."""
NO_REFERENTS: Referents = MappingProxyType({})

AggregatesByKey = Mapping[str, Mapping[str, "MadeAttribute"]]
"""How attributes of ordered values are made (``MadeAttribute``), by attribute, of rows by their keys as JSON."""

CHANGES_KEPT = 10_000
"""Rows that a comparison remembers; the others are only counted."""
OLD, NEW = "old", "new"


TableAndItem = tuple[str, Mapping[str, Any]]
"""A table's name and a stored item."""


class RaisedError(NamedTuple):
    """An error that a handler raised."""

    type: str
    message: str


class MadeAttribute(NamedTuple):
    """How an attribute of ordered values is made of an item, and what the items of one page show together."""

    ordering: str
    orders: Sequence[str]  # the texts that order the item's values
    together: Mapping[str, Any] | None = None  # the attributes of the row that all items of the page make


class SideRows(NamedTuple):
    """The rows that one version of the code makes of one item, by handler."""

    rows: Mapping[str, RowsByKey]
    raised: Mapping[str, RaisedError]
    wanted: Mapping[str, Sequence[str]] = MappingProxyType({})  # keys of referents without which no row can be made
    aggregates: Mapping[str, AggregatesByKey] = MappingProxyType({})  # of values that are ordered, by handler

    def line(self) -> str:
        return to_json(self._asdict())

    @classmethod
    def of(cls, line: str) -> "SideRows":
        """The value of a line. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for another text."""
        found = json.loads(line)
        raised = {name: RaisedError(*each) for name, each in found["raised"].items()}
        aggregates = {
            handler: {key: {name: MadeAttribute(*each) for name, each in made.items()} for key, made in rows.items()}
            for handler, rows in found["aggregates"].items()
        }
        return cls(found["rows"], raised, found["wanted"], aggregates)


class _GivenReferents(MemoryEngine):
    """A store of the referents that are given to a version of the code, which has no other."""

    def __init__(self, app: Application, referents: Referents) -> None:
        super().__init__(app.tables.values())
        self.referents = referents
        self.lacking: dict[str, None] = {}  # ranges of parts that were asked for and are not given, as text

    def read_sources(self, items: Iterable[ItemKey]) -> dict[ItemKey, StoredItem]:
        return {item: image for item in items if (image := self.referents.get(row_text(item))) is not None}

    def page(
        self,
        table: Table,
        partition: KeyValue,
        begins: str,
        after: KeyValue | None,
        limit: int,
        *,
        descending: bool = False,
    ) -> Page:
        del limit, after  # a range is given as one page
        text = json.dumps([RANGE, table.name, encode(partition), begins, descending])
        if text not in self.referents:
            self.lacking[text] = None
            return Page([], None)
        return Page([*(self.referents[text] or {}).get(RANGE, ())], None)


def side_page(
    app: Application,
    schema: Schema,
    items: Iterable[TableAndItem],
    handlers: Collection[str] | None = None,
    referents: Referents = NO_REFERENTS,
    at_seconds: float = 0.0,
) -> list[SideRows]:
    """The rows that handlers make of stored items, for views, indexes and derived attributes, each of one item alone.

    A row of one item shows the same whether it has the largest of its values or the smallest. So ordered attributes
    also have the values that all of the items show together.

    schema: the aggregations of attributes that are known; new ones are added.
    handlers: only these; None: all.
    referents: items that handlers look up. A handler that needs others makes no rows, and names these.
    at_seconds: the time for handlers that ask for it, epoch seconds; 0: that of this machine.
    """
    page = _SidePage(app, schema, handlers, referents, at_seconds)
    sides = [page.side(table, image) for table, image in items]
    return [page.completed(each) for each in sides]


class _SidePage:
    """The items of a page, as one version of the code makes rows of them."""

    def __init__(
        self,
        app: Application,
        schema: Schema,
        handlers: Collection[str] | None,
        referents: Referents,
        at_seconds: float,
    ) -> None:
        self.app, self.schema, self.handlers, self.referents = app, schema, handlers, referents
        self.at_seconds = at_seconds
        self.entries = MemoryEngine(app.tables.values())  # what the items have below their rows
        self.items: dict[tuple[str, str, str], int] = {}  # how many items have some, by handler, row and attribute

    def side(self, table: str, image: StoredItem) -> SideRows:
        rows: dict[str, RowsByKey] = {}
        raised: dict[str, RaisedError] = {}
        wanted: dict[str, Sequence[str]] = {}
        aggregates: dict[str, AggregatesByKey] = {}
        for route, fields, item in _listeners(self.app, table, image):
            if not route.kind.contributes or (self.handlers is not None and route.name not in self.handlers):
                continue
            is_absent = self.referents.get(row_text(item), image) is None  # a root: its parts are given
            if is_absent and not route.optional:
                continue
            looked_up = LookedUp(image_of(None if is_absent else image))
            given = _GivenReferents(self.app, self.referents)
            given.advance_clock(self.at_seconds)
            if route.planned_from_ledger:
                runtime = Runtime(self.app, given, Settings())
                (looked_up,) = look_up(runtime, [Asked(route, item, looked_up.image, fields)], notes=False)
                if lacking := [text for text in map(row_text, looked_up.references) if text not in self.referents]:
                    wanted[route.name] = lacking
                    continue
            made = derived(route, looked_up.image, fields, self.schema, looked_up.at)
            if given.lacking:  # parts, which are read when the handler is called
                wanted[route.name] = [*given.lacking]
                continue
            if (error := looked_up.error or made.error) is None:
                rows[route.name] = _shown(made.rows)
                if found := self._aggregates(route, item, made.rows):
                    aggregates[route.name] = found
            else:
                raised[route.name] = RaisedError(type(error).__name__, str(error))
        return SideRows(rows, raised, wanted, aggregates)

    def _aggregates(self, route: Route, item: ItemKey, rows: Contribution) -> AggregatesByKey:
        """Keeps the entries of an item below rows that several items may share; returns how they are made."""
        mark, found = Mark(self.app.name, route.name, item, ""), dict[str, dict[str, MadeAttribute]]()
        for row, contribution in rows.items():
            target = route.target_of(row)
            if not contribution.ordered or (target is not None and target.owned):
                continue
            if puts := entry_writes(mark, row, NOTHING, contribution.ordered):
                self.entries.transact(puts, 0)
            text = row_text(row)
            for name, held in contribution.ordered.items():
                found.setdefault(text, {})[name] = MadeAttribute(held.ordering, sorted(held.entries))
                where = route.name, text, name
                self.items[where] = self.items.get(where, 0) + 1
        return found

    def completed(self, side: SideRows) -> SideRows:
        """The rows of an item with what the items of the page show together in their ordered attributes."""
        aggregates = {
            handler: {
                text: {name: self._together(handler, text, name, made) for name, made in found.items()}
                for text, found in by_row.items()
            }
            for handler, by_row in side.aggregates.items()
        }
        return side._replace(aggregates=aggregates)

    def _together(self, handler: str, text: str, name: str, made: MadeAttribute) -> MadeAttribute:
        if self.items[handler, text, name] < 2:
            return made
        where, known = partition(self.app.name, handler, name, row_at(text)), ordering_of(made.ordering)
        with ItemFault() as fault:
            shown = shown_of(known.form, values_of(read_shows(self.entries, where, known).contents))
        if fault.error is not None:  # more values than a row takes: it is reported where the row is made
            return made
        return made._replace(together=encode(shown if name == PLAIN_ENTRY else {name: shown})["M"])


def row_at(text: str) -> RowKey:
    """The key of a row or an item from ``row_text``."""
    table, *values = json.loads(text)
    return (table, *(None if value is None else decode(value) for value in values))


def _is_range(text: str) -> bool:
    return text.startswith(f'["{RANGE}"')


def _listeners(app: Application, table: str, image: StoredItem) -> list[tuple[Route, Fields, ItemKey]]:
    if table not in app.tables:
        return []
    try:
        names = app.tables[table].attributes
        item = item_key({name: image[name] for name in names}, app.tables[table])
    except (KeyError, RecordError):
        return []  # this code declares other key attributes
    return [(each.route, fields, item) for each, fields in app.listeners(item) if each.role == SOURCE]


def _shown(rows: Contribution) -> RowsByKey:
    return {row_text(row): _visible(contribution) for row, contribution in rows.items()}


def row_text(row: RowKey) -> str:
    """The key of a row or an item as JSON."""
    table, *values = row
    return to_json([table, *(None if value is None else encode(value) for value in values)])  # type: ignore[arg-type]


def _visible(contribution: RowContribution) -> StoredItem:
    """The attributes of a row of one contribution. A sum of 0 and no sum look the same to readers."""
    values: dict[str, Any] = {name: amount for name, amount in contribution.amounts.items() if amount}
    values |= contribution.plain or {}
    for name, held in contribution.ordered.items():
        made = value_of_one_source(held)
        values |= made if name == PLAIN_ENTRY else {name: made}
    found: StoredItem = encode({name: value for name, value in values.items() if not hidden(name)})["M"]
    return found


MakeRows = Callable[[Sequence[TableAndItem], Referents], Sequence[SideRows]]
"""Returns the rows that a version of the code makes of items, each a table's name and a stored item."""


class RowChange(NamedTuple):
    """A row that the new code makes differently of an item. It shows the contribution of that item alone."""

    item: ItemKey
    handler: str
    row: RowKey
    old: Mapping[str, Any] | None  # attributes; None: the old code makes no such row
    new: Mapping[str, Any] | None
    old_made: Mapping[str, MadeAttribute] = MappingProxyType({})  # of attributes whose values are ordered
    new_made: Mapping[str, MadeAttribute] = MappingProxyType({})

    @property
    def attributes(self) -> list[str]:
        """The attributes that differ; all of a row that only one side makes."""
        old, new = self.old or {}, self.new or {}
        found = {name for name in {*old, *new} if not same(old.get(name), new.get(name))}
        if self.old is not None and self.new is not None:
            for name in {*self.old_made, *self.new_made}:
                found.update(self._made_otherwise(name))
        return sorted(found)

    def _made_otherwise(self, name: str) -> Collection[str]:
        """The attributes that are made otherwise under one name, though this item alone may show the same."""
        one, other = self.old_made.get(name), self.new_made.get(name)
        sides = [(each and each.together) or {} for each in (one, other)]
        if differing := {each for each in {*sides[0], *sides[1]} if not same(sides[0].get(each), sides[1].get(each))}:
            return differing
        if one is not None and other is not None and one[:2] == other[:2]:
            return ()
        return [name] if name != PLAIN_ENTRY else sorted({*(self.old or {}), *(self.new or {})})

    def together(self, name: str) -> tuple[Any, Any] | None:
        """The values that an attribute has on both sides for the items of a page together, if these differ."""
        old, new = (
            next((each.together[name] for each in made.values() if each.together and name in each.together), None)
            for made in (self.old_made, self.new_made)
        )
        return None if same(old, new) else (old, new)

    def orderings(self, name: str) -> tuple[str, str]:
        """How the values of an attribute are ordered on both sides; "" where they are not."""
        old, new = (made.get(name) or made.get(PLAIN_ENTRY) for made in (self.old_made, self.new_made))
        return old.ordering if old else "", new.ordering if new else ""

    @property
    def is_one(self) -> bool:
        return self.old is None or self.new is None or bool(self.attributes)


@dataclass(slots=True)
class HandlerDiff:
    """The differences of one handler."""

    items: int = 0  # that both versions processed
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
    """Compares the rows that two versions of the code make of items. ``handlers``: of the new code, to be compared.

    at_seconds: as in ``side_page``; ``old`` takes the same, or a moment that comes meanwhile would be a difference.
    schema: the aggregations of attributes in the state. The new code is checked against it, as a function is.
    """

    def __init__(
        self,
        app: Application,
        engine: Engine,
        schema: Schema,
        handlers: Collection[str],
        old: MakeRows,
        at_seconds: float = 0.0,
    ) -> None:
        self.app = app
        self.engine = engine
        self.schema = schema
        self.handlers = handlers
        self.old = old
        self.at_seconds = at_seconds
        self.items = 0
        self.roots: set[ItemKey] = set()  # that do not exist, and were compared
        self.found: dict[str, HandlerDiff] = {name: HandlerDiff() for name in handlers}
        self.changes: list[RowChange] = []
        self.raised: dict[str, dict[tuple[str, str], RaisedItems]] = {OLD: {}, NEW: {}}

    def page(self, items: Iterable[ItemKey]) -> int:
        """Compares some items, and returns how many of them exist."""
        sources = self.engine.read_sources(items)
        roots = self._absent_roots(sources)
        referents: dict[str, StoredItem | None] = {row_text(root): None for root in roots}  # the same for both sides
        count, sources = len(sources), {**sources, **roots}
        wanted = [(item[0], image) for item, image in sources.items()]
        before, after = self._made(self.old, wanted, referents), self._made(self._new, wanted, referents)
        for item, old, new in zip(sources, before, after, strict=True):
            self.items += 1
            self._compare(item, old, new)
        return count

    def _absent_roots(self, parts: Iterable[ItemKey]) -> dict[ItemKey, StoredItem]:
        """The roots of these parts that do not exist and have rows all the same, each once, with its key alone."""
        roots = dict.fromkeys(
            each.visited(item, fields)[0]
            for item in parts
            for each, fields in self.app.listeners(item)
            if each.route.optional and each.role == PART and each.route.name in self.handlers
        )
        wanted = [root for root in roots if root not in self.roots]
        existing = self.engine.read_sources(wanted) if wanted else {}
        absent = [root for root in wanted if root not in existing]
        self.roots.update(absent)
        return {
            root: dict(zip(self.app.tables[root[0]].attributes, map(encode, root[1:]), strict=False)) for root in absent
        }

    def _new(self, items: Sequence[TableAndItem], referents: Referents) -> list[SideRows]:
        return side_page(self.app, self.schema, items, self.handlers, referents, self.at_seconds)

    def _made(
        self, make: MakeRows, items: Sequence[TableAndItem], referents: dict[str, StoredItem | None]
    ) -> list[SideRows]:
        """The rows that one version makes of items, after the referents that it asks for were read, level by level."""
        found, lacked = list(make(items, referents)), False
        while lacking := [number for number, each in enumerate(found) if self._lacks(each, referents)]:
            texts = dict.fromkeys(text for number in lacking for text in self._lacks(found[number], referents))
            referents |= {text: self._range(text) for text in texts if _is_range(text)}
            wanted = {text: row_at(text) for text in texts if not _is_range(text)}
            for text, item in wanted.items():
                if item[0] not in self.app.tables:
                    raise SettingsError(
                        f"The old code looks up items of table {item[0]!r}, which the new one does not declare: they "
                        "cannot be read. Name the handlers to compare, without the one that looks them up."
                    )
                referents[text] = None
            stored = self.engine.read_sources(wanted.values())
            referents |= {row_text(item): image for item, image in stored.items()}
            again, lacked = make([items[number] for number in lacking], referents), True
            for number, each in zip(lacking, again, strict=True):
                found[number] = each
        return list(make(items, referents)) if lacked else found  # all of them together

    def _range(self, text: str) -> StoredItem:
        """The items of a range of parts, which are no more than one handler may gather."""
        from streamfold.commit.collections import PAGE_ITEMS, PARTS_MAX  # few handlers gather parts

        _, table, partition, begins, descending = json.loads(text)
        if table not in self.app.tables:
            raise SettingsError(
                f"The old code gathers items of table {table!r}, which the new one does not declare: they cannot be "
                "read. Name the handlers to compare, without the one that gathers them."
            )
        items: list[StoredItem] = []
        after: KeyValue | None = None
        while len(items) <= PARTS_MAX:
            page = self.engine.page(
                self.app.tables[table], decode(partition), begins, after, PAGE_ITEMS, descending=descending
            )
            items += page.items
            after = page.after
            if after is None:
                break
        return {RANGE: items}

    def _lacks(self, side: SideRows, referents: Referents) -> list[str]:
        named = (text for name in self.handlers for text in side.wanted.get(name, ()))
        return [text for text in named if text not in referents]

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
                self._rows(item, name, before, after)

    def _raises(self, side: str, handler: str, item: ItemKey, error: RaisedError) -> None:
        known = self.raised[side].setdefault((handler, error.type), RaisedItems(handler, error, item))
        known.items += 1

    def _rows(self, item: ItemKey, handler: str, before: SideRows, after: SideRows) -> None:
        old, new = before.rows.get(handler, {}), after.rows.get(handler, {})
        old_made, new_made = before.aggregates.get(handler, {}), after.aggregates.get(handler, {})
        changes = [
            each
            for key in dict.fromkeys((*old, *new))
            if (
                each := RowChange(
                    item,
                    handler,
                    row_at(key),
                    old.get(key),
                    new.get(key),
                    old_made.get(key, {}),
                    new_made.get(key, {}),
                )
            ).is_one
        ]
        found = self.found[handler]
        found.items += 1
        found.changed += bool(changes)
        found.add(changes)
        self.changes += changes[: max(CHANGES_KEPT - len(self.changes), 0)]
