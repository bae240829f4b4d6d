"""Compares the rows that two versions of the code make of the same items. No state is touched."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from streamfold.commit.referents import Asked, LookedUp, look_up
from streamfold.derivations.derivation import derived
from streamfold.engines import Engine, StoredItem
from streamfold.engines.memory import MemoryEngine
from streamfold.errors import RecordError, SettingsError
from streamfold.ledger.contribution import PLAIN_ENTRY, Contribution, RowContribution, value_of_one_source
from streamfold.ledger.schema import Schema
from streamfold.records.change import ItemKey, image_of, item_key
from streamfold.records.encoded import to_json
from streamfold.records.images import hidden
from streamfold.records.values import decode, encode, same
from streamfold.routes.application import Application
from streamfold.routes.route import REFERENT, Fields, Route
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import RowKey

RowsByKey = Mapping[str, StoredItem]
"""Rows by their keys as JSON, with the attributes that readers would see if the item were the only contributor."""

Referents = Mapping[str, StoredItem | None]
"""Items by their keys as JSON; None: there is no such item."""
NO_REFERENTS: Referents = MappingProxyType({})

CHANGES_KEPT = 10_000
"""Rows that a comparison remembers; the others are only counted."""
OLD, NEW = "old", "new"


class RaisedError(NamedTuple):
    """An error that a handler raised."""

    type: str
    message: str


class SideRows(NamedTuple):
    """The rows that one version of the code makes of one item, by handler."""

    rows: Mapping[str, RowsByKey]
    raised: Mapping[str, RaisedError]
    wanted: Mapping[str, Sequence[str]] = MappingProxyType({})  # keys of referents without which no row can be made

    def line(self) -> str:
        return to_json({"rows": self.rows, "raised": self.raised, "wanted": self.wanted})

    @classmethod
    def of(cls, line: str) -> "SideRows":
        """The value of a line. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for another text."""
        found = json.loads(line)
        raised = {name: RaisedError(*each) for name, each in found["raised"].items()}
        return cls(found["rows"], raised, found["wanted"])


class _GivenReferents(MemoryEngine):
    """A store of the referents that are given to a version of the code, which has no other."""

    def __init__(self, app: Application, referents: Referents) -> None:
        super().__init__(app.tables.values())
        self.referents = referents

    def read_sources(self, items: Iterable[ItemKey]) -> dict[ItemKey, StoredItem]:
        return {item: image for item in items if (image := self.referents.get(row_text(item))) is not None}


def side_rows(
    app: Application,
    schema: Schema,
    table: str,
    image: StoredItem,
    handlers: Collection[str] | None = None,
    referents: Referents = NO_REFERENTS,
) -> SideRows:
    """The rows that handlers make of a stored item, for views, indexes and derived attributes.

    schema: the aggregations of attributes that are known; new ones are added.
    handlers: only these; None: all.
    referents: items that handlers look up. A handler that needs others makes no rows, and names these.
    """
    rows: dict[str, RowsByKey] = {}
    raised: dict[str, RaisedError] = {}
    wanted: dict[str, Sequence[str]] = {}
    for route, fields, item in _listeners(app, table, image):
        if not route.kind.contributes or (handlers is not None and route.name not in handlers):
            continue
        looked_up = LookedUp(image_of(image))
        if route.lookups:
            runtime = Runtime(app, _GivenReferents(app, referents), Settings())
            (looked_up,) = look_up(runtime, [Asked(route, item, looked_up.image, fields)], notes=False)
            if lacking := [text for text in map(row_text, looked_up.references) if text not in referents]:
                wanted[route.name] = lacking
                continue
        made = derived(route, looked_up.image, fields, schema)
        if (error := looked_up.error or made.error) is None:
            rows[route.name] = _shown(made.rows)
        else:
            raised[route.name] = RaisedError(type(error).__name__, str(error))
    return SideRows(rows, raised, wanted)


def row_at(text: str) -> RowKey:
    """The key of a row or an item from ``row_text``."""
    table, *values = json.loads(text)
    return (table, *(None if value is None else decode(value) for value in values))


def _listeners(app: Application, table: str, image: StoredItem) -> list[tuple[Route, Fields, ItemKey]]:
    if table not in app.tables:
        return []
    try:
        names = app.tables[table].attributes
        item = item_key({name: image[name] for name in names}, app.tables[table])
    except (KeyError, RecordError):
        return []  # this code declares other key attributes
    return [(each.route, fields, item) for each, fields in app.listeners(item) if each.role != REFERENT]


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


TableAndItem = tuple[str, Mapping[str, Any]]
MakeRows = Callable[[Sequence[TableAndItem], Referents], Sequence[SideRows]]
"""Returns the rows that a version of the code makes of items, each a table's name and a stored item."""


class RowChange(NamedTuple):
    """A row that the new code makes differently of an item. It shows the contribution of that item alone."""

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

    schema: the aggregations of attributes in the state. The new code is checked against it, as a function is.
    """

    def __init__(
        self, app: Application, engine: Engine, schema: Schema, handlers: Collection[str], old: MakeRows
    ) -> None:
        self.app = app
        self.engine = engine
        self.schema = schema
        self.handlers = handlers
        self.old = old
        self.items = 0
        self.found: dict[str, HandlerDiff] = {name: HandlerDiff() for name in handlers}
        self.changes: list[RowChange] = []
        self.raised: dict[str, dict[tuple[str, str], RaisedItems]] = {OLD: {}, NEW: {}}

    def page(self, items: Iterable[ItemKey]) -> int:
        """Compares some items, and returns how many of them exist."""
        sources = self.engine.read_sources(items)
        wanted = [(item[0], image) for item, image in sources.items()]
        referents: dict[str, StoredItem | None] = {}  # both sides get the same ones
        before, after = self._made(self.old, wanted, referents), self._made(self._new, wanted, referents)
        for item, old, new in zip(sources, before, after, strict=True):
            self.items += 1
            self._compare(item, old, new)
        return len(sources)

    def _new(self, items: Sequence[TableAndItem], referents: Referents) -> list[SideRows]:
        return [side_rows(self.app, self.schema, *item, self.handlers, referents) for item in items]

    def _made(
        self, make: MakeRows, items: Sequence[TableAndItem], referents: dict[str, StoredItem | None]
    ) -> list[SideRows]:
        """The rows that one version makes of items, after the referents that it asks for were read, level by level."""
        found = list(make(items, referents))
        while lacking := [number for number, each in enumerate(found) if self._lacks(each, referents)]:
            wanted = {text: row_at(text) for number in lacking for text in self._lacks(found[number], referents)}
            for text, item in wanted.items():
                if item[0] not in self.app.tables:
                    raise SettingsError(
                        f"The old code looks up items of table {item[0]!r}, which the new one does not declare: they "
                        "cannot be read. Name the handlers to compare, without the one that looks them up."
                    )
                referents[text] = None
            stored = self.engine.read_sources(wanted.values())
            referents |= {row_text(item): image for item, image in stored.items()}
            again = make([items[number] for number in lacking], referents)
            for number, each in zip(lacking, again, strict=True):
                found[number] = each
        return found

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
                self._rows(item, name, before.rows.get(name, {}), after.rows.get(name, {}))

    def _raises(self, side: str, handler: str, item: ItemKey, error: RaisedError) -> None:
        known = self.raised[side].setdefault((handler, error.type), RaisedItems(handler, error, item))
        known.items += 1

    def _rows(self, item: ItemKey, handler: str, old: RowsByKey, new: RowsByKey) -> None:
        rows = {key: row_at(key) for key in dict.fromkeys((*old, *new))}
        changes = [
            each
            for key, row in rows.items()
            if (each := RowChange(item, handler, row, old.get(key), new.get(key))).is_one
        ]
        found = self.found[handler]
        found.items += 1
        found.changed += bool(changes)
        found.add(changes)
        self.changes += changes[: max(CHANGES_KEPT - len(self.changes), 0)]
