"""What items add up to, row by row, in any order and in pieces: for a cluster, which joins the pieces of a row.

Numbers are added up as they are. A row that shows entries or plain attributes needs its items themselves: they are
kept, and folded by the same code as everywhere once all pieces of the row are joined.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import localcontext
from typing import Any, NamedTuple, TypeVar

from streamfold.derivations.derivation import contribution
from streamfold.engines import StoredItem
from streamfold.engines.memory import MemoryEngine
from streamfold.errors import is_fatal
from streamfold.keys.table import CONTRIBUTORS
from streamfold.ledger.contribution import RowPart
from streamfold.ledger.forms import Forms
from streamfold.ledger.item import BEFORE_ALL
from streamfold.lifecycle.exports import ExportLine
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.rows import ACTIONS, RowDifference, ShownRow, is_target, visible
from streamfold.records.alike import alike
from streamfold.records.change import ItemKey, image_of
from streamfold.records.numbers import EXACT, WIDE, Number
from streamfold.records.values import decode
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.run import Run
from streamfold.writes.guarded import RowKey

T = TypeVar("T")
FAILED = ""
"""Stands for the table in the key of an item on which a handler raised."""


class ItemError(NamedTuple):
    """An error that a handler raised on an item, as text: it goes from process to process."""

    item: ItemKey
    handler: str
    error: str


class RowSum(NamedTuple):
    """What some items contribute to one row, and the row as it is shown where one of them is the row itself."""

    amounts: Mapping[str, Number] = {}
    contributors: int = 0
    items: Sequence[tuple[ItemKey, StoredItem]] = ()  # those that the row cannot be told without
    shown: StoredItem | None = None
    failed: tuple[ItemError, ...] = ()


def joined(one: RowSum, other: RowSum) -> RowSum:
    """Both together: the same in whatever order and grouping. The first one's list of items is taken over."""
    amounts = dict(one.amounts)
    for name, amount in other.amounts.items():
        amounts[name] = WIDE.add(amounts[name], amount) if name in amounts else amount
    return RowSum(
        amounts,
        one.contributors + other.contributors,
        _both(one.items, other.items),
        other.shown if one.shown is None else one.shown,
        one.failed + other.failed,
    )


def _both(one: Sequence[T], other: Sequence[T]) -> Sequence[T]:
    """Both lists; a row of a million items must not copy them a million times."""
    if not one or not other:
        return one or other
    if isinstance(one, list):
        one.extend(other)
        return one
    return [*one, *other]


def contributed(
    app: Application, routes: Sequence[Route], forms: Forms, line: ExportLine
) -> Iterator[tuple[RowKey, RowSum]]:
    """What an item of an export adds to rows; and the item itself, if it is a row of these routes."""
    if line.image is None:
        return
    if is_target(routes, line.key):
        yield line.key, RowSum(shown=line.image)
    parts: dict[RowKey, list[RowPart]] = {}
    image = image_of(line.image)
    with localcontext(EXACT):
        for each, fields in app.listeners(line.key):
            if each.route not in routes:
                continue
            try:
                for row, part in contribution(each.route, image, fields, forms).items():
                    parts.setdefault(row, []).append(part)
            except Exception as error:
                if is_fatal(error):
                    raise
                failed = ItemError(line.key, each.route.name, f"{type(error).__name__}: {error}")
                yield (FAILED, *line.key[1:]), RowSum(failed=(failed,))
        for row, found in parts.items():
            yield row, _summed(line, found)


def _summed(line: ExportLine, parts: Sequence[RowPart]) -> RowSum:
    assert line.image is not None
    if any(part.plain is not None or part.ordered or part.names for part in parts):
        return RowSum(items=((line.key, line.image),))
    total = RowSum()
    for part in parts:
        total = joined(total, RowSum(part.amounts, 1))
    return total


def compared(
    app: Application, run: Run, routes: Sequence[Route], rows: Iterable[tuple[RowKey, RowSum]]
) -> Iterator[RowDifference | ItemError | int]:
    """The rows whose pieces are all joined: those that differ, what failed, and how many rows there were."""
    known = list(rows)
    folded = _folded(app, run, routes, (each for _, found in known for each in found.items))
    number = 0
    for row, found in known:
        yield from found.failed
        if row[0] == FAILED:
            continue
        number += 1
        shown = visible(app, row, None if found.shown is None else decode({"M": found.shown}))
        expected = visible(app, row, _expected(row, found, folded))
        if not alike(shown, expected):
            yield RowDifference(row, shown, expected)
    yield number


def _expected(row: RowKey, found: RowSum, folded: MemoryEngine | None) -> ShownRow | None:
    """The row that its sum and its folded items make."""
    made: dict[str, Any] = {}
    if found.items and folded is not None:
        made = folded.read_rows([row]).get(row, {})
    number = found.contributors + int(made.get(CONTRIBUTORS, 0))
    if not number:
        return None
    with localcontext(EXACT):
        for name, amount in found.amounts.items():
            made[name] = WIDE.add(made[name], amount) if name in made else amount
    return made | {CONTRIBUTORS: number}


def _folded(
    app: Application, run: Run, routes: Collection[Route], items: Iterable[tuple[ItemKey, StoredItem]]
) -> MemoryEngine | None:
    """The rows that items make; of the rows that are looked at, all items are there."""
    wanted = dict(items)
    if not wanted:
        return None
    engine = MemoryEngine(app.tables.values(), actions_max=ACTIONS)
    engine.put_sources((key, image, BEFORE_ALL) for key, image in wanted.items())
    names = [route.name for route in routes]
    own = replace(run, actions=ACTIONS, handlers=frozenset(names), parking=None)
    Pages(app, engine, own, names).reconcile(wanted)
    return engine
