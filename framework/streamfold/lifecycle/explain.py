"""Explains an item: the rows that handlers make of it, and whether the state holds them."""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from streamfold.batch.referrers import listed
from streamfold.commit.referents import Asked, LookedUp, lacking_backlinks, look_up
from streamfold.commit.transactions import filled
from streamfold.derivations.derivation import derivation, derived
from streamfold.derivations.expected import KnownChange
from streamfold.engines.protocol import Engine, StoredItem
from streamfold.errors import ItemFault
from streamfold.ledger.contribution import (
    Contribution,
    LedgerItem,
    RowContribution,
    SourceEntries,
    moments_of,
    partition,
    referrer,
    sort_key_of,
    source_text,
    stored_references,
    stored_rows,
    stored_text,
)
from streamfold.ledger.lives import as_stored
from streamfold.ledger.schema import Schema
from streamfold.ledger.state_keys import ledger_key, source_of
from streamfold.ledger.step import Step, awaited_wake, moments_after
from streamfold.lifecycle.buckets import DeltaOfItem, deltas_of
from streamfold.records.change import ItemKey, Version, image_of
from streamfold.records.images import Image
from streamfold.records.kinesis import LABEL, MICROSECONDS
from streamfold.records.values import decode
from streamfold.routes.application import Application
from streamfold.routes.parts import PART, DeclaredPart, RootImage
from streamfold.routes.route import REFERENT, Route
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import RowKey, StateKey

T = TypeVar("T")


def state_key(stored: StoredItem) -> StateKey:
    return StateKey(stored["pk"]["S"], stored["sk"]["S"])


def found_in_state(engine: Engine, wanted: Callable[[StoredItem], T | None]) -> Iterator[T]:
    """The results of ``wanted`` for each state item, without None.

    A local store is read to its end before the first result: it must not be written while it is read.
    """
    found = (made for stored in engine.state_items() if (made := wanted(stored)) is not None)
    return iter(list(found)) if engine.is_local else found


class NamedEntry(NamedTuple):
    """An entry of a ledger item."""

    row: RowKey
    key: StateKey


def entry_keys(
    application: str, handler: str, item: ItemKey, row: RowKey, contribution: RowContribution
) -> Iterator[StateKey]:
    """The keys of the entries of an item below a row."""
    for name, held in contribution.ordered.items():
        where = partition(application, handler, name, row, contribution.life)
        for order in held.entries:
            yield StateKey(where, sort_key_of(order, source_text(item)))


class EntriesInLedger(NamedTuple):
    """What ledger items name."""

    lives: set[tuple[RowKey, str]]  # rows, each with the life in which an item contributes to it; "" for none
    lacking: set[RowKey]  # rows below which entries are missing


def entries_in_ledger(app: Application, engine: Engine, ledgers: Sequence[StateKey]) -> EntriesInLedger:
    """The lives of rows that these ledger items name, and the rows below which entries of these items are missing."""
    lives: set[tuple[RowKey, str]] = set()
    named: list[NamedEntry] = []
    for key, item in (engine.read_state(ledgers, consistent=True) if ledgers else {}).items():
        ledger, source = LedgerItem.of(item), source_of(key)
        for name, stored in filled(engine, key, ledger, ledger.contributions.keys()).contributions.items():
            rows = stored_rows(stored.text).items()
            lives.update((row, contribution.life) for row, contribution in rows)
            if source is not None:
                named += [
                    NamedEntry(row, entry)
                    for row, contribution in rows
                    for entry in entry_keys(app.name, name, source.item, row, contribution)
                ]
    found = engine.read_state({entry.key for entry in named}, consistent=True) if named else {}
    return EntriesInLedger(lives, {entry.row for entry in named if entry.key not in found})


class PartsRead(NamedTuple):
    """The parts of one key that a handler reads for a root."""

    part: DeclaredPart
    items: Sequence[ItemKey]  # in the order of their sort keys


class ItemExplained(NamedTuple):
    """The contribution that a handler makes of an item now, and the stored one."""

    route: Route
    expected: Contribution  # by the present source
    stored: Contribution
    version: str = ""  # of the change that led to the stored contribution; "" if nothing was ever stored
    error: Exception | None = None  # of the handler
    references: tuple[ItemKey, ...] = ()  # what the item refers to now
    stored_references: tuple[ItemKey, ...] = ()
    deltas: Sequence[DeltaOfItem] = ()  # that the ledger names as those of the handler's last step
    change: str = ""  # what a handler without a ledger did for the newest change that the state knows, in words
    moments: str = ""  # that the handler asks for now, as the ledger stores them
    stored_moments: str = ""
    parts: Sequence[PartsRead] = ()  # of a root
    root: ItemKey | None = None  # that a handler without a ledger reads the item for, as a part
    lacking: Sequence[ItemKey] = ()  # stored references without a backlink: their changes do not reach the item
    wake: StateKey | None = None  # that the ledger names
    lacks_wake: bool = False  # it is not there

    @property
    def again_at(self) -> str | None:
        """When the item is derived again at the latest, because a moment comes; None if it does not wait."""
        wake = self.stored_moments.split(",")[2].strip('"') if self.stored_moments else "null"
        return None if wake == "null" else wake

    @property
    def called_for(self) -> str | None:
        """The moment for which a handler with ``at=`` was called; None if none was yet."""
        is_used = self.stored_moments and self.route.kind.calls_once(self.route) and self.again_at is None
        return self.stored_moments.split(",")[1].strip('"') if is_used else None

    @property
    def agrees(self) -> bool | None:
        """Whether both are equal, and backlinks and wake are there; None for a handler without a ledger, or one that
        raises.
        """
        if self.error is not None or not self.route.kind.contributes:
            return None
        if self.lacking or self.lacks_wake:
            return False
        expected = stored_text(as_stored(self.stored, self.expected), self.references, self.moments)
        return expected == stored_text(self.stored, self.stored_references, self.stored_moments)


class GatheredInto(NamedTuple):
    """A handler that gathers an item as a part."""

    route: Route
    root: ItemKey
    has_root: bool
    newest: int  # the number of last parts that the handler reads; 0 for all
    is_read: bool  # the item is among them
    error: Exception | None = None  # why the parts cannot be read


class LookedUpBy(NamedTuple):
    """A handler that looks an item up."""

    route: Route
    referrers: Sequence[ItemKey]  # the first items that refer to it
    has_more: bool


class Explaining(NamedTuple):
    """What an explanation needs."""

    app: Application
    engine: Engine
    schema: Schema  # the stored schema


def explain_item(by: Explaining, item: ItemKey) -> list[ItemExplained]:
    """Explains an item for every handler that reads it."""
    own = [
        (each, fields)
        for each, fields in by.app.listeners(item)
        if each.role != REFERENT and not (each.role == PART and each.route.kind.contributes)
    ]
    listeners = {each.route.name: (each.route, fields) for each, fields in own}
    roots = {each.route.name: each.visited(item, fields)[0] for each, fields in own if each.role == PART}
    held = {
        group: read_ledger(by, ledger_key(by.app.name, group, item))
        for group in {route.group for route, _ in listeners.values() if route.kind.contributes}
    }
    source = by.engine.read_source(item)
    image = image_of(source)
    deltas = [each for ledger in held.values() for each in deltas_of(by.app.name, by.engine, ledger)]
    explained = [
        _explained(by, Asked(route, item, image, fields), held.get(route.group, LedgerItem.of(None)))
        for route, fields in listeners.values()
    ]
    version = max((each.version for each in explained), default="")
    if version and Version(version).label != LABEL:  # the identity of a change of Kinesis has more than its version
        known = KnownChange(by.app.name, item, version)
        explained = [
            each._replace(version=version, change=text) if (text := _of_change(each.route, known, by.engine)) else each
            for each in explained
        ]
    explained = _with_lacking(by, item, explained)
    return [
        each._replace(
            deltas=[delta for delta in deltas if delta.handler == each.route.name], root=roots.get(each.route.name)
        )
        for each in explained
    ]


def _with_lacking(by: Explaining, item: ItemKey, explained: Sequence[ItemExplained]) -> list[ItemExplained]:
    """Each with the backlinks and the wake that the ledger names and that are not there, as ``verify`` finds them."""
    references = [(each.route, item, each.stored_references) for each in explained]
    lacking = lacking_backlinks(Runtime(by.app, by.engine, Settings()), references)
    wakes = {each.route.name: each.wake for each in explained if each.wake is not None}
    found = by.engine.read_state(wakes.values(), consistent=True) if wakes else {}
    lost = {name for name, key in wakes.items() if key not in found}
    return [
        each._replace(lacking=lacking.get((each.route.name, item), ()), lacks_wake=each.route.name in lost)
        for each in explained
    ]


REFERRERS_MAX = 1_000
"""Items that refer to an explained one, and that are counted."""


def explain_roots(by: Explaining, item: ItemKey) -> list[GatheredInto]:
    """Who has an item as a part: handlers with a ledger, each with its root, read as its visits do."""
    runtime, roots = Runtime(by.app, by.engine, Settings()), []
    for each, fields in by.app.listeners(item):
        route = each.route
        if each.role != PART or not route.kind.contributes:
            continue
        root, own = each.visited(item, fields)
        image = image_of(by.engine.read_source(root))
        (found,) = look_up(runtime, [Asked(route, root, image, own)], notes=False)
        read, error = _parts_read(route, found.image)
        newest = max(part.newest for part in route.parts if part.key.takes(item))
        roots.append(GatheredInto(route, root, bool(image), newest, any(item in some.items for some in read), error))
    return roots


def _parts_read(route: Route, image: Image) -> tuple[Sequence[PartsRead], Exception | None]:
    """The parts that a handler gets with a root, or why there are none; nothing where the handler is not called."""
    if not isinstance(image, RootImage):
        return (), None
    with ItemFault() as fault:
        _, parts = image.given
        return [
            PartsRead(each, [(each.key.table.name, *each.key.compose(one.key)) for one in parts(each.key)])
            for each in route.parts
        ], None
    return (), fault.error


def explain_referrers(by: Explaining, item: ItemKey) -> list[LookedUpBy]:
    """Who looks an item up, by backlinks, and for which first items."""
    runtime, found = Runtime(by.app, by.engine, Settings()), []
    for each, _ in by.app.listeners(item):
        if each.role == REFERENT:
            texts = listed(runtime, each.route, item, REFERRERS_MAX + 1)
            items = sorted(map(referrer, texts[:REFERRERS_MAX]), key=str)
            found.append(LookedUpBy(each.route, items, len(texts) > REFERRERS_MAX))
    return found


def _of_change(route: Route, change: KnownChange, engine: Engine) -> str:
    return "" if route.kind.contributes else derivation(route).explained_change(route, change, engine)


def read_ledger(by: Explaining, key: StateKey) -> LedgerItem:
    """A ledger item with its large contributions, which are stored in items of their own."""
    found = LedgerItem.of(by.engine.read_state([key], consistent=True).get(key))
    return filled(by.engine, key, found, found.contributions.keys())


def time_of(version: str) -> str | None:
    """The time of the change with this version. Only versions of Kinesis contain it."""
    found = Version(version)
    if found.label != LABEL:
        return None
    return datetime.fromtimestamp(found.sequence / MICROSECONDS, UTC).isoformat(timespec="milliseconds")


def entry_values(
    by: Explaining, route: Route, item: ItemKey | None, row: RowKey, contribution: RowContribution
) -> dict[str, list[Any]]:
    """The values of an item below a row, by attribute; "" is the name of all plain attributes together."""
    if not contribution.ordered or item is None:
        return {}
    return {
        name: [
            decode(json.loads(text))
            for text in _contents(by, partition(by.app.name, route.name, name, row, contribution.life), item, held)
        ]
        for name, held in contribution.ordered.items()
    }


def _contents(by: Explaining, where: str, item: ItemKey, held: SourceEntries) -> list[str]:
    """The texts of an item's entries, in order. New entries have their content, stored ones are read."""
    source, orders = source_text(item), sorted(held.entries)
    keys = {
        order: StateKey(where, sort_key_of(order, source)) for order in orders if held.entries[order].content is None
    }
    stored = by.engine.read_state(keys.values(), consistent=True) if keys else {}
    texts = [stored.get(keys[order], {}).get("s") if order in keys else held.entries[order].content for order in orders]
    return [text for text in texts if text is not None]


def _explained(by: Explaining, asked: Asked, held: LedgerItem) -> ItemExplained:
    route = asked.route
    if not route.kind.contributes:
        return ItemExplained(route, {}, {})
    stored = held.contributions.get(route.name)
    text, version = (stored.text, stored.version) if stored else ("", "")
    found = LookedUp(asked.image)
    if route.planned_from_ledger:
        asked = asked._replace(since=held.since(route.name))
        (found,) = look_up(Runtime(by.app, by.engine, Settings()), [asked], notes=False)
    made = derived(route, found.image, asked.fields, by.schema, found.at)
    step = Step(route, version, None, made.rows, times=made.times)
    return ItemExplained(
        route,
        made.rows,
        stored_rows(text),
        version,
        found.error or made.error,
        found.references,
        stored_references(text),
        moments=moments_after(step, text),
        stored_moments=moments_of(text),
        parts=_parts_read(route, found.image)[0],
        wake=awaited_wake(by.app.name, route.name, asked.item, text),
    )
