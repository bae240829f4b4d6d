"""Rows of exports in pieces: what some items contribute to a row, joined in any order, and compared with the row.

A worker has a part of the items. It sums what the amounts of a row allow; the items of other rows are folded where all
pieces of the row meet.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from decimal import localcontext
from typing import Any, NamedTuple, TypeVar

from streamfold.derivations.derivation import Derived, derived
from streamfold.derivations.expected import NOTHING_UNSEEN, RowDifference, ShownRow
from streamfold.engines.memory import MemoryEngine
from streamfold.engines.protocol import Page, StoredItem
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import CONTRIBUTORS, OWNER, Table, is_writers
from streamfold.ledger.contribution import BEFORE_ALL, RowContribution
from streamfold.ledger.schema import Schema
from streamfold.lifecycle.exports import ExportLine
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.rows import ACTIONS, is_target, visible
from streamfold.lifecycle.unseen import ComparedRow, UnseenDifferences
from streamfold.records.change import ItemKey, image_of
from streamfold.records.values import EXACT, WIDE, Number, alike, decode, item_bytes
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import RowKey

T = TypeVar("T")
ReadBeside = Mapping[ItemKey, StoredItem] | Sequence[tuple[ItemKey, StoredItem]]
"""Items that handlers read beside another one, by their keys. A sequence is never changed; a mapping may grow."""
COMPARED_ROWS, COMPARED_BYTES = 2_000, 8_000_000
"""Rows of exports that are compared at a time, or the size of the items that are folded for these: Python's objects
take five to ten times the size."""
FAILED = ""
"""Takes the place of the table in the key of an item on which a handler raised."""


class ItemError(NamedTuple):
    """An error of a handler on an item, as text: it is passed between processes."""

    item: ItemKey
    handler: str
    error: str


class RowSum(NamedTuple):
    """The contributions of some items to one row, and the row itself if it is among the items."""

    amounts: Mapping[str, Number] = {}
    contributors: int = 0
    items: Sequence[tuple[ItemKey, StoredItem | None]] = ()  # whose contributions have to be folded
    beside: ReadBeside = ()  # what the handlers read beside these items: referents and parts
    shown: StoredItem | None = None
    failed: tuple[ItemError, ...] = ()


def joined(one: RowSum, other: RowSum) -> RowSum:
    """The sum of both, equal in any order and grouping. The first one's list of items is extended in place."""
    amounts = dict(one.amounts)
    for name, amount in other.amounts.items():
        amounts[name] = WIDE.add(amounts[name], amount) if name in amounts else amount
    return RowSum(
        amounts,
        one.contributors + other.contributors,
        _both(one.items, other.items),
        _all_of(one.beside, other.beside),
        other.shown if one.shown is None else one.shown,
        one.failed + other.failed,
    )


def _both(one: Sequence[T], other: Sequence[T]) -> Sequence[T]:
    """Both lists in one, without a copy: a row of a million items must not copy them a million times."""
    if not one or not other:
        return one or other
    if isinstance(one, list):
        one.extend(other)
        return one
    return [*one, *other]


def _all_of(one: ReadBeside, other: ReadBeside) -> ReadBeside:
    """The items of both, each once: a referent of a million items must not be held a million times."""
    if not one or not other:
        return one or other
    known = one if isinstance(one, dict) else dict(one)
    for key, image in dict(other).items():
        put_larger(known, key, image)
    return known


def put_larger(known: dict[ItemKey, StoredItem], key: ItemKey, image: StoredItem) -> None:
    """Adds an image of an item, unless a larger one is known: some readers get few of an item's attributes."""
    if len(known.get(key, ())) < len(image):
        known[key] = image


def is_joined(routes: Iterable[Route]) -> bool:
    """Whether one of an item's handlers reads others, or asks for the time: a worker that has the item alone cannot
    derive its rows.
    """
    return any(route.planned_from_ledger for route in routes)


def contributed(
    app: Application, routes: Sequence[Route], schema: Schema, line: ExportLine
) -> Iterator[tuple[RowKey, RowSum]]:
    """The contributions of an item of an export to rows; and the item itself, if it is a row of these routes.

    An item that is joined with others (``is_joined``) contributes nothing here: see ``lifecycle.joins``.
    """
    if line.image is None:
        return
    if is_target(routes, line.key):
        yield line.key, RowSum(shown=line.image)
    own = [(route, fields) for route, fields in app.sources(line.key) if route in routes]
    if is_joined(route for route, _ in own):
        return
    image = image_of(line.image)
    made = ((route, derived(route, image, fields, schema)) for route, fields in own)
    yield from summed(line.key, line.image, made)


def summed(
    item: ItemKey, image: StoredItem | None, made: Iterable[tuple[Route, Derived]], beside: ReadBeside = ()
) -> Iterator[tuple[RowKey, RowSum]]:
    """What handlers made of an item, row by row, and their errors."""
    contributions: dict[RowKey, list[RowContribution]] = {}
    for route, (rows, error, _) in made:
        for row, contribution in rows.items():
            contributions.setdefault(row, []).append(contribution)
        if error is not None:
            failed = ItemError(item, route.name, f"{type(error).__name__}: {error}")
            yield (FAILED, *item[1:]), RowSum(failed=(failed,))
    for row, found in contributions.items():
        if any(each.plain is not None or each.ordered or each.names for each in found):
            yield row, RowSum(items=((item, image),), beside=beside)
        else:
            yield row, _total(found)


def _total(contributions: Iterable[RowContribution]) -> RowSum:
    total = RowSum()
    for each in contributions:
        total = joined(total, RowSum(each.amounts, 1))
    return total


def compared(
    app: Application,
    settings: Settings,
    routes: Sequence[Route],
    rows: Iterable[tuple[RowKey, RowSum]],
    moment: float = 0.0,
) -> Iterator[RowDifference | ItemError | int]:
    """Compares rows whose sums are complete; yields the differences, the errors, and numbers of rows.

    moment: of the exports, for handlers that ask for the time, in epoch seconds.
    """
    for some in slices_of(rows, COMPARED_ROWS, lambda row: _bytes_of(row[1])):
        yield from _compared(app, settings, routes, some, moment)


def slices_of(values: Iterable[T], most: int, size: Callable[[T], int]) -> Iterator[list[T]]:
    """Lists of at most ``most`` values. A list ends with the value whose size makes it ``COMPARED_BYTES``."""
    found: list[T] = []
    total = 0
    for each in values:
        found.append(each)
        total += size(each)
        if len(found) >= most or total >= COMPARED_BYTES:
            yield found
            found, total = [], 0
    if found:
        yield found


def _bytes_of(row: RowSum) -> int:
    images = (*(image for _, image in row.items), *dict(row.beside).values())
    return sum(item_bytes(image) for image in images if image is not None)


def _compared(
    app: Application, settings: Settings, routes: Sequence[Route], known: Sequence[tuple[RowKey, RowSum]], moment: float
) -> Iterator[RowDifference | ItemError | int]:
    folded = _folded(app, settings, routes, [found for _, found in known], moment)
    runtime = Runtime(app, folded or MemoryEngine(app.tables.values()), settings)
    unseen = UnseenDifferences(runtime, routes, folded, has_state=False)
    number = 0
    for row, found in known:
        yield from found.failed
        if row[0] == FAILED:
            continue
        number += 1
        stored, made = None if found.shown is None else decode({"M": found.shown}), _expected(row, found, folded)
        differing = unseen.of([ComparedRow(row, stored, made)]) if stored and made else {}
        shown, expected = visible(app, row, stored), visible(app, row, made)
        if is_writers(stored):
            if expected is not None:
                yield RowDifference(row, shown, expected, taken=True)
            continue
        if not alike(shown, expected) or differing:
            yield RowDifference(row, shown, expected, differing.get(row, NOTHING_UNSEEN))
    yield number


def _expected(row: RowKey, found: RowSum, folded: MemoryEngine | None) -> ShownRow | None:
    """The row of a sum and its folded items."""
    made: dict[str, Any] = {}
    if found.items and folded is not None:
        made = folded.read_rows([row]).get(row, {})
    number = found.contributors + int(made.get(CONTRIBUTORS, 0))
    if not number:
        return None
    with localcontext(EXACT):
        for name, amount in found.amounts.items():
            made[name] = WIDE.add(made[name], amount) if name in made else amount
    if number > 1:
        made.pop(OWNER, None)  # the fold has one of them alone
    return made | {CONTRIBUTORS: number}


class _BesideRows(MemoryEngine):
    """The rows of a fold. Items are read from another store: a row that is read as exported is made beside it."""

    items_behind: MemoryEngine

    def read_source(self, item: ItemKey) -> StoredItem | None:
        return self.items_behind.read_source(item)

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
        return self.items_behind.page(table, partition, begins, after, limit, descending=descending)


def items_engine(app: Application, items: Mapping[ItemKey, StoredItem | None], moment: float) -> MemoryEngine:
    """A store with these items as sources, at this moment, epoch seconds. No other item exists in it."""
    engine = MemoryEngine(app.tables.values())
    engine.put_sources((key, image, BEFORE_ALL) for key, image in items.items())
    engine.source_tables.update(app.tables)
    engine.advance_clock(moment)
    return engine


def _folded(
    app: Application, settings: Settings, routes: Collection[Route], sums: Iterable[RowSum], moment: float
) -> MemoryEngine | None:
    """The rows of the items of sums; all items of a compared row have to be among them."""
    beside: dict[ItemKey, StoredItem] = {}
    wanted: dict[ItemKey, StoredItem | None] = {}
    for each in sums:
        wanted.update(each.items)
        for key, image in dict(each.beside).items():
            put_larger(beside, key, image)
    if not wanted:
        return None
    engine = _BesideRows(app.tables.values(), actions_max=ACTIONS)
    engine.items_behind = items_engine(app, {**beside, **wanted}, moment)
    engine.advance_clock(moment)
    names = [route.name for route in routes]
    runtime = Runtime(app, engine, settings, actions=ACTIONS, handlers=frozenset(names))
    Pages(runtime, names).reconcile(wanted)
    return engine
