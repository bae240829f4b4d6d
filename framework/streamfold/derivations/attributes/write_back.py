"""Copies derived attributes onto the items that bear them, after the commit that changed their stored attributes.

The item is read first, then its stored attributes. Attributes that differ are written on the condition that the item
still has the values that were read, and then both are read again. If a slower process overwrites a newer copy, the
record of that change brings the item here again. So does the record of an item that appears later, or that is put
without the attributes or with old ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from streamfold.commit.lanes import in_lanes
from streamfold.commit.outcome import Failed
from streamfold.commit.sending import may_pass, read_rows
from streamfold.commit.unfinished import Cause
from streamfold.derivations.attributes.bearing import Own, PutBack, due, put_back, shown_by
from streamfold.derivations.attributes.stored import StoredAttributes, stored_of
from streamfold.derivations.derivation import Finishing, Work
from streamfold.engines import Engine
from streamfold.errors import Contended, EngineError, HandlerError, RecordError, TableThrottled, shown, told
from streamfold.records.change import Change, ItemKey
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.run import TRIES_MAX, Lanes, Run
from streamfold.writes.guarded import RowKey, UpdateSource


@dataclass(slots=True)
class Bearer:
    """An item that bears derived attributes."""

    stored: tuple[StoredAttributes, ...]  # of all handlers that derive attributes onto the item
    unmarked: list[PutBack] = field(default_factory=list)  # attributes that the batch's changes put back
    # Whether attributes of retired handlers are removed. Not after a mere copy: a process with older code may have made
    # it and would make it again, and the two processes would never come to an end.
    retire: bool = False


Bearers = Mapping[ItemKey, Bearer]


class WriteBack:
    """The items of a batch to write back: their stored attributes may have changed, or the items themselves."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.bearers: dict[ItemKey, Bearer] = {}
        self.causes: dict[ItemKey, list[Cause]] = {}

    def moved(self, rows: Mapping[RowKey, Sequence[Cause]]) -> None:
        """Adds items whose stored attributes a commit changed, or may have changed in an attempt that died."""
        for row, causes in rows.items():
            for change, route in causes:
                stored = stored_of(route)
                if stored is not None and stored.holds(row):
                    self._note(stored.item(row), change, route).retire = True

    def changed(self, heard: Sequence[Work]) -> None:
        """Adds items that were put or updated: their attributes may be missing or old."""
        for work in heard:
            changes = work.changes
            if changes[-1].event == "REMOVE":
                continue
            bearer = self._note(work.item, changes[-1], work.route)
            bearer.unmarked = [each for change in changes for each in put_back(change)]
            bearer.retire |= bool(self.application.retired) and not all(map(_is_copy, changes))

    def run(self, engine: Engine, run: Run) -> list[Failed]:
        """Brings the items up to date; returns the records of those for which that failed."""
        errors = write_back(engine, self.application, self.bearers, run)
        return [failed for item, error in errors.items() for failed in self._failed(item, error)]

    def _failed(self, item: ItemKey, error: Exception) -> list[Failed]:
        return [Failed(change, route, error) for change, route in self.causes[item]]

    def _note(self, item: ItemKey, change: Change, route: Route) -> Bearer:
        self.causes.setdefault(item, []).append((change, route))
        if item not in self.bearers:
            self.bearers[item] = Bearer(stored_on(self.application, item))
        return self.bearers[item]


def stored_on(application: Application, item: ItemKey) -> tuple[StoredAttributes, ...]:
    """Where handlers keep the attributes that they derive onto an item."""
    found = (stored_of(each.route) for each, _ in application.listeners(item, called=False))
    return tuple(stored for stored in found if stored is not None)


def write_back_item(item: ItemKey, finishing: Finishing) -> None:
    """Brings one item up to date. Raises the error that prevented it."""
    bearers = {item: Bearer(stored_on(finishing.application, item), retire=True)}
    for error in write_back(finishing.engine, finishing.application, bearers, finishing.run).values():
        raise error


def _is_copy(change: Change) -> bool:
    """Whether it is known that a change is of derived attributes alone."""
    try:
        return change.has_old and change.has_new and change.as_written() is None
    except RecordError:  # an attribute that cannot be read
        return False


def write_back(engine: Engine, application: Application, bearers: Bearers, run: Run) -> dict[ItemKey, Exception]:
    """Brings items up to date with their stored attributes; returns those for which that failed."""
    names = frozenset(route.name for route in application.routes)
    own = Own(application.name, names, application.retired)
    failed: dict[ItemKey, Exception] = {}
    left, refused = bearers, False
    try:
        for number in range(TRIES_MAX if left else 0):
            if refused:
                run.back_off(number - 1)
            left, refused = _round(engine, run.lanes, own, left, failed)
            if not left:
                break
    except EngineError as error:
        return failed | dict.fromkeys(left, error)
    busy = Contended(f"Written {TRIES_MAX} times in a row, because others change the item; it comes again.")
    return failed | dict.fromkeys(left, busy)


def _round(
    engine: Engine, lanes: Lanes, own: Own, bearers: Bearers, failed: dict[ItemKey, Exception]
) -> tuple[Bearers, bool]:
    """Writes once; returns the items to look at again, and whether a write was refused."""
    items = read_rows(engine, lanes, bearers, failed)
    bearers = {item: bearer for item, bearer in bearers.items() if item not in failed}
    places = [stored.row(item[1:]) for item, bearer in bearers.items() for stored in bearer.stored]
    unread: dict[RowKey, Exception] = {}
    rows = read_rows(engine, lanes, places, unread)
    for error in unread.values():
        raise error
    again = dict(bearers)
    updates: list[tuple[ItemKey, partial[bool]]] = []
    for item, bearer in bearers.items():
        shown = {stored.whose: shown_by(rows.get(stored.row(item[1:]))) for stored in bearer.stored}
        found = due(own, item, items.get(item), shown, bearer.unmarked, retire=bearer.retire)
        if found.update is not None:
            updates.append((item, partial(_refused, engine, found.update)))
            continue
        del again[item]
        if found.refused is not None:
            failed[item] = found.refused
    any_refused = False
    for item, refused in in_lanes(lanes, updates, stops=lambda error: isinstance(error, TableThrottled)):
        if isinstance(refused, TableThrottled):
            any_refused = True
        elif isinstance(refused, EngineError | HandlerError):
            failed[item] = refused
            del again[item]
        else:
            any_refused |= refused
    return again, any_refused


def _refused(engine: Engine, update: UpdateSource) -> bool:
    """Whether the item is not as it was read.

    Raises ``HandlerError`` for what the store will never take, ``TableThrottled`` where the table is throttled.
    """
    refused = engine.transact([update], 0)
    if refused is None:
        return False
    (reason,) = refused.reasons
    if reason is not None and not may_pass(reason):
        raise HandlerError(
            f"The store refused attributes of item {shown(update.key[1:])}, {reason.code}: {told(reason.message)}"
        )
    return True
