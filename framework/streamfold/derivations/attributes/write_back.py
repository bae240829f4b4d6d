"""Copies derived attributes onto the items that bear them, after the commit that changed their stored attributes.

The item is read first, then its stored attributes. Attributes that differ are written on the condition that the item
still has the values that were read, and then both are read again. If a slower process overwrites a newer copy, the
record of that change brings the item here again. So does the record of an item that appears later, or that is put
without the attributes or with old ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from streamfold.commit.outcome import Failed
from streamfold.commit.pending import Cause
from streamfold.commit.transactions import in_slots, may_pass, read_rows
from streamfold.derivations.attributes.kind import MARK, StoredAttributes, stored_of
from streamfold.derivations.derivation import Work
from streamfold.derivations.view.rows import RowBuilder, fold, row_contribution
from streamfold.derivations.yielded import split, target_of
from streamfold.engines import Engine
from streamfold.engines.deadline import TRIES_MAX
from streamfold.errors import Contended, EngineError, HandlerError, RecordError, TableThrottled, redacted, shown
from streamfold.keys.table import CONTRIBUTORS, DERIVED
from streamfold.ledger.contribution import Contribution, RowContribution
from streamfold.ledger.schema import Schema
from streamfold.records.change import Change, ItemKey
from streamfold.records.images import Image, derived_by, derived_names, without_derived
from streamfold.records.values import AttributeValue, encode, same
from streamfold.routes.application import Application
from streamfold.routes.effects import Row
from streamfold.routes.route import Fields, Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import RowKey, UpdateSource

DerivedByName = Mapping[str, Any]
Shown = Mapping[str, Mapping[str, Any]]
"""Values of attributes by name, by whose they are."""


def contributed(route: Route, image: Image, fields: Fields, schema: Schema) -> Contribution:
    """What an existing item contributes. Raises ``HandlerError`` for rows that the declaration does not allow."""
    image = Image(without_derived(image.raw))  # never from what was derived before: that would not come to an end
    stored = stored_of(route)
    assert stored is not None, "an application says where the attributes of its routes are kept"

    def row(builder: RowBuilder, effect: Row) -> tuple[RowKey, RowContribution]:
        target = target_of(route, effect)
        key, values = split(target, effect, fields)
        marked = {MARK + name: value for name, value in values.items()}
        return stored.row(key[1:]), row_contribution(builder, target, marked, effect.wins)

    return fold(RowBuilder(route, schema, fields, mark=MARK), image, fields, row)


class Own(NamedTuple):
    """The handlers whose attributes a process may take away: those of its application that its code knows."""

    application: str
    declared: frozenset[str]
    retired: frozenset[str]

    def knows(self, whose: str, *, retired: bool = True) -> bool:
        """Whether attributes are of such a handler; with ``retired=False`` of one that was not given up."""
        application, _, handler = whose.partition("/")
        return application == self.application and (handler in self.declared or (retired and handler in self.retired))


class PutBack(NamedTuple):
    """An attribute that was derived before a change, and that its writer put back without saying so."""

    name: str
    whose: str
    value: AttributeValue


def put_back(change: Change) -> list[PutBack]:
    """The attributes that the writer of a change put back without saying that they are derived."""
    if not (change.has_old and change.has_new):
        return []
    old, new = change.old.raw, change.new.raw
    marked = derived_names(new)
    return [
        PutBack(name, whose, new[name]) for name, whose in derived_by(old).items() if name in new and name not in marked
    ]


def shown_by(stored: DerivedByName | None) -> dict[str, Any]:
    """The attributes that a stored row holds, as its item is to show them."""
    if not stored or stored.get(CONTRIBUTORS) == 0:
        return {}
    return {name.removeprefix(MARK): value for name, value in stored.items() if name.startswith(MARK)}


class Due(NamedTuple):
    """What is to be done for an item: an update, None where it has its attributes, and what is refused."""

    update: UpdateSource | None
    refused: HandlerError | None = None


def pending_update(
    own: Own,
    item: ItemKey,
    stored: DerivedByName | None,
    shown: Shown,
    unmarked: Iterable[PutBack] = (),
    *,
    retire: bool = True,
) -> Due:
    """What brings an item's derived attributes up to date.

    An attribute that was put back ``unmarked`` is taken away only while the item has the value of that very change:
    another is the writer's own. ``retire``: the attributes of retired handlers are taken away too.
    """
    if stored is None:
        return Due(None)
    marks = derived_by({DERIVED: encode(stored[DERIVED])}) if DERIVED in stored else {}
    holders, refused = _held(own, item, {name: whose for name, whose in marks.items() if name in stored}, shown)
    kept = {name: whose for name, whose in marks.items() if not own.knows(whose, retired=retire)} | holders
    values = {name: shown[whose][name] for name, whose in holders.items()}
    if kept:
        values[DERIVED] = _said(kept)
    gone = {DERIVED, *marks, *(each.name for each in unmarked if _is_still(own, each, stored, marks))}
    removed = tuple(sorted(name for name in gone if name in stored and name not in kept and name not in values))
    return Due(_update(item, stored, values, removed), refused)


def _update(
    item: ItemKey, stored: DerivedByName, values: DerivedByName, removed: tuple[str, ...]
) -> UpdateSource | None:
    """The update, on the condition that what it writes, and whose each attribute is, is still as it was read."""
    differing = {name: value for name, value in values.items() if name not in stored or not _equal(value, stored[name])}
    if not differing and not removed:
        return None
    looked_at = dict.fromkeys((*differing, *removed, DERIVED))
    expected = {name: stored[name] for name in looked_at if name in stored}
    return UpdateSource(item, expected, tuple(name for name in looked_at if name not in stored), differing, removed)


def _held(
    own: Own, item: ItemKey, marks: Mapping[str, str], shown: Shown
) -> tuple[dict[str, str], HandlerError | None]:
    """Whose each attribute is that is to be shown, first come, first served, and why another is refused."""
    claims: dict[str, list[str]] = {}
    for whose, values in shown.items():
        for name in values:
            claims.setdefault(name, []).append(whose)
    holders, refused = {}, None
    for name, claimants in claims.items():
        held = marks.get(name)
        stays = held is not None and (held in claimants or not own.knows(held))
        first = held if held is not None and stays else claimants[0]
        if first in claimants:
            holders[name] = first
        for other in claimants:
            refused = refused if other == first else _clash(item, name, first, other)
    return holders, refused


def _clash(item: ItemKey, name: str, first: str, other: str) -> HandlerError:
    return HandlerError(
        f"Two handlers derive {shown(name)} onto item {shown(item[1:])}: it is {first!r}'s, and {other!r} must not "
        f"overwrite it. Give one of them another name. If {first!r} is given up for good, remove the attribute from "
        "the item."
    )


def _is_still(own: Own, unmarked: PutBack, stored: DerivedByName, marks: Mapping[str, str]) -> bool:
    """Whether an attribute is as the change left it that put it back unmarked, and nobody's by now."""
    name = unmarked.name
    if name not in stored or name in marks or not own.knows(unmarked.whose):
        return False
    return same(encode(stored[name]), unmarked.value)


def _said(marks: Mapping[str, str]) -> dict[str, set[str]]:
    """The marks as the item has them."""
    message: dict[str, set[str]] = {}
    for name, whose in marks.items():
        message.setdefault(whose, set()).add(name)
    return message


def _equal(one: Any, other: Any) -> bool:
    return same(encode(one), encode(other))


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

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.bearers: dict[ItemKey, Bearer] = {}
        self.causes: dict[ItemKey, list[Cause]] = {}

    def rows_changed(self, rows: Mapping[RowKey, Sequence[Cause]]) -> None:
        """Adds items whose stored attributes a commit changed, or may have changed in an attempt that died."""
        for row, causes in rows.items():
            for change, route in causes:
                stored = stored_of(route)
                if stored is not None and stored.holds(row):
                    self._note(stored.item(row), change, route).retire = True

    def changed(self, subscribed: Sequence[Work]) -> None:
        """Adds items that were put or updated: their attributes may be missing or old."""
        for work in subscribed:
            changes = work.changes
            if changes[-1].event == "REMOVE":
                continue
            bearer = self._note(work.item, changes[-1], work.route)
            bearer.unmarked = [each for change in changes for each in put_back(change)]
            bearer.retire |= bool(self.runtime.application.retired) and not all(map(_is_copy, changes))

    def write(self) -> list[Failed]:
        """Brings the items up to date; returns the records of those for which that failed."""
        errors = write_back(self.runtime, self.bearers)
        return [failed for item, error in errors.items() for failed in self._failed(item, error)]

    def _failed(self, item: ItemKey, error: Exception) -> list[Failed]:
        return [Failed(change, route, error) for change, route in self.causes[item]]

    def _note(self, item: ItemKey, change: Change, route: Route) -> Bearer:
        self.causes.setdefault(item, []).append((change, route))
        if item not in self.bearers:
            self.bearers[item] = Bearer(stored_on(self.runtime.application, item))
        return self.bearers[item]


def stored_on(application: Application, item: ItemKey) -> tuple[StoredAttributes, ...]:
    """Where handlers keep the attributes that they derive onto an item."""
    found = (stored_of(each.route) for each, _ in application.listeners(item, called=False))
    return tuple(stored for stored in found if stored is not None)


def _is_copy(change: Change) -> bool:
    """Whether it is known that a change is of derived attributes alone."""
    try:
        return change.has_old and change.has_new and change.as_written() is None
    except RecordError:  # an attribute that cannot be read
        return False


def write_back(runtime: Runtime, bearers: Bearers) -> dict[ItemKey, Exception]:
    """Brings items up to date with their stored attributes; returns those for which that failed."""
    application = runtime.application
    names = frozenset(route.name for route in application.routes)
    own = Own(application.name, names, application.retired)
    failed: dict[ItemKey, Exception] = {}
    left, refused = bearers, False
    try:
        for number in range(TRIES_MAX if left else 0):
            if refused:
                runtime.back_off(number - 1)
            left, refused = _round(runtime, own, left, failed)
            if not left:
                break
    except EngineError as error:
        return failed | dict.fromkeys(left, error)
    busy = Contended(f"Written {TRIES_MAX} times in a row, because others change the item; it comes again.")
    return failed | dict.fromkeys(left, busy)


def _round(runtime: Runtime, own: Own, bearers: Bearers, failed: dict[ItemKey, Exception]) -> tuple[Bearers, bool]:
    """Writes once; returns the items to look at again, and whether a write was refused."""
    items = read_rows(runtime, bearers, failed)
    bearers = {item: bearer for item, bearer in bearers.items() if item not in failed}
    places = [stored.row(item[1:]) for item, bearer in bearers.items() for stored in bearer.stored]
    unread: dict[RowKey, Exception] = {}
    rows = read_rows(runtime, places, unread)
    for error in unread.values():
        raise error
    again = dict(bearers)
    updates: list[tuple[ItemKey, partial[bool]]] = []
    for item, bearer in bearers.items():
        shown = {stored.whose: shown_by(rows.get(stored.row(item[1:]))) for stored in bearer.stored}
        found = pending_update(own, item, items.get(item), shown, bearer.unmarked, retire=bearer.retire)
        if found.update is not None:
            updates.append((item, partial(_refused, runtime.engine, found.update)))
            continue
        del again[item]
        if found.refused is not None:
            failed[item] = found.refused
    any_refused = False
    for item, refused in in_slots(runtime.slots, updates, stops=lambda error: isinstance(error, TableThrottled)):
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
            f"The store refused attributes of item {shown(update.key[1:])}, {reason.code}: {redacted(reason.message)}"
        )
    return True
