"""Brings rows up to date with the entries below them, after the commit that moved entries.

A row's stamp changes in every transaction that moves entries below it. The row is read first, then its entries, and
what is made of them is written on the condition that the stamp is still the one that was read: what another process
moves in between refuses the write, and it is made again. So a row is right once everybody who moved entries has settled
it, and whoever died before that settles it when the record comes again.

Where nothing that moved lies among the entries that count (up to the row's edge), what the row shows stays as it is,
and neither entries are read nor the row is written.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from streamfold.change import Change, ItemKey
from streamfold.contribution import Contribution, moved_by, stored_rows
from streamfold.engines import Engine, Entries
from streamfold.entries import BEHIND, BEYOND, made
from streamfold.errors import EngineUnavailable, HandlerError
from streamfold.ledger import LedgerItem
from streamfold.ordered import FORMS, Ordering
from streamfold.part import PLAIN_ENTRY
from streamfold.refusals import not_shown
from streamfold.route import Route
from streamfold.sending import pause_seconds
from streamfold.table import EDGE, PLACES, PLAIN_NAMES, STAMP
from streamfold.truth import is_truth
from streamfold.values import encode
from streamfold.writes import CONDITION, CONFLICT, Moved, RowKey, SettleRow, all_moved

ROUNDS_MAX = 8
"""Times that a row is read and written beside others that move its entries; then the records come again."""
PAGE_ENTRIES = 100
"""Entries that are read at once where each value counts once."""

Row = Mapping[str, Any]
Touched = Mapping[RowKey, tuple[Moved, ...]]


@dataclass(slots=True)
class Named:
    """The counted rows that images of an item name, and that an attempt that died may have left empty or unsettled."""

    rows: set[RowKey] = field(default_factory=set)
    moved: dict[RowKey, tuple[Moved, ...]] = field(default_factory=dict)
    truths: set[RowKey] = field(default_factory=set)

    def add(self, application: str, route: Route, item: ItemKey, parts: Contribution) -> None:
        """Takes what one image of an item contributes."""
        self.rows.update(key for key, part in parts.items() if not part.digest)
        self.truths.update(filter(is_truth, parts))
        for key, places in moved_by(application, route, item, parts).items():
            self.take(key, places)

    def add_stored(self, application: str, route: Route, item: ItemKey, found: LedgerItem) -> None:
        """Takes the entries that a ledger item holds, and those that it held until its last step."""
        if route.name in found.parts:
            part = found.parts[route.name]
            for text in (part.text, part.left):
                rows = stored_rows(text)
                self.truths.update(filter(is_truth, rows))
                for key, places in moved_by(application, route, item, rows).items():
                    self.take(key, places)

    def join(self, other: "Named") -> None:
        """Takes all that another names."""
        self.rows |= other.rows
        self.truths |= other.truths
        for row, moved in other.moved.items():
            self.take(row, moved)

    def take(self, row: RowKey, moved: tuple[Moved, ...]) -> None:
        """Takes what moved below a row."""
        if moved:
            self.moved[row] = all_moved(self.moved.get(row, ()), moved)


class Unsettled:
    """Rows whose entries moved, each with the changes that moved them through which handlers.

    ``truths`` are, likewise, rows of derived attributes that are to be copied onto their items.
    """

    def __init__(self) -> None:
        self.moved: dict[RowKey, tuple[Moved, ...]] = {}
        self.causes: dict[RowKey, list[Cause]] = {}
        self.truths: dict[RowKey, list[Cause]] = {}

    def touch(self, rows: Iterable[Any], routes: Sequence[Route], changes: Sequence[Change]) -> None:
        """Takes those of the rows that are truths."""
        for row in filter(is_truth, rows):
            self.truths.setdefault(row, []).extend((change, route) for route in routes for change in changes)

    def add(self, row: RowKey, moved: tuple[Moved, ...], routes: Sequence[Route], changes: Sequence[Change]) -> None:
        if moved:
            self.moved[row] = all_moved(self.moved.get(row, ()), moved)
            self.causes.setdefault(row, []).extend((change, route) for route in routes for change in changes)


Cause = tuple[Change, Route]


class Shows(NamedTuple):
    """What a row shows of some entries, and the last place that counts for it, "" where all do; where each entry is."""

    contents: tuple[str, ...]
    edge: str
    places: tuple[str, ...] = ()


def settle(engine: Engine, touched: Touched, pause: Callable[[float], None]) -> dict[RowKey, Exception]:
    """Settles rows whose entries moved; returns those for which that failed."""
    failed: dict[RowKey, Exception] = {}
    left = touched
    for number in range(ROUNDS_MAX if left else 0):
        left = _round(engine, left, failed)
        if not left:
            return failed
        pause(pause_seconds(CONFLICT[:1], number))
    busy = EngineUnavailable(f"Refused {ROUNDS_MAX} times in a row, because others change the row; it comes again.")
    return failed | dict.fromkeys(left, busy)


def _round(engine: Engine, touched: Touched, failed: dict[RowKey, Exception]) -> Touched:
    """Tries each row once; returns those that others moved meanwhile. ``failed`` takes those that no try will help."""
    try:
        rows = engine.read_rows(touched)
    except EngineUnavailable as error:
        failed.update(dict.fromkeys(touched, error))
        return {}
    again: dict[RowKey, tuple[Moved, ...]] = {}
    for key, moved in touched.items():
        try:
            if key in rows and not _settled(engine, key, rows[key], moved):
                again[key] = moved
        except (EngineUnavailable, HandlerError) as error:
            failed[key] = error
    return again


def _settled(engine: Engine, key: RowKey, row: Row, moved: Iterable[Moved]) -> bool:
    """Whether the row shows what its entries say; False where another process moved them meanwhile."""
    concerned = [each for each in moved if STAMP in row and _concerns(row, each)]
    values: dict[str, Any] = {}
    removed: list[str] = []
    for each in concerned:
        _show(row, each, _read(engine, each.partition, Ordering.of(each.ordering)), values, removed)
    differing = {name: value for name, value in values.items() if name not in row or not _equal(value, row[name])}
    gone = tuple(name for name in removed if name in row and name not in values)
    if not differing and not gone:
        return True
    refused = engine.transact([SettleRow(key, row[STAMP], differing, gone)], 0)
    if refused is None:
        return True
    reason = next(reason for reason in refused.reasons if reason is not None)
    if reason.code != CONDITION and reason.code not in CONFLICT:
        raise not_shown(key, {name: value for name, value in {**row, **differing}.items() if name not in gone}, reason)
    return False


def _concerns(row: Row, moved: Moved) -> bool:
    """Whether something moved among the entries that count, as far as the row tells."""
    ordering, _, edge = str(row.get(EDGE + moved.name, "")).partition(" ")
    if ordering != moved.ordering or not edge:
        return True
    if FORMS[Ordering.of(ordering).form].descending:
        return any(place >= edge for place in moved.places)
    return any(place <= edge for place in moved.places)


def _read(engine: Engine, partition: str, ordering: Ordering) -> Shows:
    """The entries that count."""
    form = FORMS[ordering.form]
    if form.once:
        return _read_once_each(engine, partition, ordering)
    found = engine.read_entries(Entries(partition, ordering.most, descending=form.descending))
    edge = found[-1][0] if len(found) == ordering.most else ""
    return Shows(tuple(content for _, content in found), edge, tuple(place for place, _ in found))


def _read_once_each(engine: Engine, partition: str, ordering: Ordering) -> Shows:
    """The entries that count where each value does so once: page by page, past the rest of the last value."""
    found: dict[str, str] = {}
    after = ""
    while page := engine.read_entries(Entries(partition, PAGE_ENTRIES, after)):
        for place, content in page:
            found.setdefault(place.partition(BEHIND)[0], content)
        after = page[-1][0].partition(BEHIND)[0] + BEYOND  # greater each time, so that this ends
        if len(page) < PAGE_ENTRIES or 0 < ordering.most < len(found):
            break
    if 0 < ordering.most <= len(found):
        kept = list(found)[: ordering.most]
        return Shows(tuple(found[order] for order in kept), kept[-1] + BEYOND)
    return Shows(tuple(found.values()), "")


def _show(row: Row, moved: Moved, shows: Shows, values: dict[str, Any], removed: list[str]) -> None:
    """Notes what the row is to have of one attribute's entries, and what it is to lose."""
    edge, names = EDGE + moved.name, [moved.name]
    if moved.name == PLAIN_ENTRY:
        names = [*row.get(PLAIN_NAMES, ()), PLAIN_NAMES]
    removed.append(PLACES + moved.name)
    if not shows.contents:
        removed += [*names, edge]
        return
    ordering = Ordering.of(moved.ordering)
    value = made(ordering, shows.contents)
    values[edge] = f"{moved.ordering} {shows.edge}"
    if FORMS[ordering.form].placed:
        values[PLACES + moved.name] = list(shows.places)
    if moved.name == PLAIN_ENTRY:
        values.update(value)
        values[PLAIN_NAMES] = sorted(value)
        removed += [name for name in names if name not in values]
    else:
        values[moved.name] = value


def _equal(one: Any, other: Any) -> bool:
    return encode(one) == encode(other)
