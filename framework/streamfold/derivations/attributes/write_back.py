"""Copies derived attributes onto their items, after the commit that changed their stored attributes.

The item is read first, then its stored attributes. Attributes that differ are written on the condition that the item
still has the values that were read, and then both are read again. If a slower process overwrites a newer copy, the
record of that change brings the item here again. So does the record of an item that appears later, or that a writer
put without the attributes or with old ones.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from streamfold.commit.outcome import Failed
from streamfold.commit.pending import ChangeAndHandler
from streamfold.commit.transactions import fold_row, fold_times, in_slots, may_pass, read_rows
from streamfold.derivations.derivation import Work, derivation, deriving_onto_items
from streamfold.derivations.expected import Comparison, RowDifference, VerifiedRows
from streamfold.derivations.view.rows import RowBuilder, fold, row_contribution
from streamfold.derivations.yielded import split, target_of
from streamfold.engines.deadline import TRIES_MAX
from streamfold.engines.protocol import Engine
from streamfold.errors import (
    Contended,
    EngineError,
    HandlerError,
    RecordError,
    TableThrottled,
    in_brackets,
    redacted,
    shown,
)
from streamfold.keys.table import DERIVED
from streamfold.ledger.contribution import Contribution, RowContribution
from streamfold.ledger.schema import Schema
from streamfold.ledger.state_keys import ATTRIBUTE_MARK, StoredAttributes
from streamfold.records.change import Change, ItemKey
from streamfold.records.images import Image, derived_by, derived_names, without_derived
from streamfold.records.values import AttributeValue, encode, same
from streamfold.routes.application import Application
from streamfold.routes.effects import Row
from streamfold.routes.lookups import JoinedImage
from streamfold.routes.route import Fields, Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import NO_VALUES, RowKey, UpdateSource

DerivedByName = Mapping[str, Any]
Shown = Mapping[str, Mapping[str, Any]]
"""Values of attributes by name, by owner."""


def contributed(route: Route, image: Image, fields: Fields, schema: Schema) -> Contribution:
    """The contribution of an existing item. Raises ``HandlerError`` for rows that the declaration does not allow."""
    raw = without_derived(image.raw)  # a value derived from a derived value would change without end
    image = image.replaced(raw) if isinstance(image, JoinedImage) else Image(raw)
    stored = derivation(route).stored_attributes(route)
    assert stored is not None, "an application binds the routes of attributes to their stored rows"

    def row(builder: RowBuilder, effect: Row) -> tuple[RowKey, RowContribution]:
        target = target_of(route, effect)
        key, values = split(target, effect, fields)
        marked = {ATTRIBUTE_MARK + name: value for name, value in values.items()}
        return stored.row(key[1:]), row_contribution(builder, target, marked, effect.wins)

    return fold(RowBuilder(route, schema, fields, mark=ATTRIBUTE_MARK), image, fields, row)


class Own(NamedTuple):
    """The handlers whose attributes a process may remove: of its application, and known to its code."""

    application: str
    declared: frozenset[str]
    retired: frozenset[str]

    @classmethod
    def of(cls, application: Application) -> "Own":
        names = frozenset(route.name for route in application.routes)
        return cls(application.name, names, application.retired)

    def knows(self, whose: str, *, retired: bool = True) -> bool:
        """Whether an owner is such a handler; with ``retired=False`` one that is not retired."""
        application, _, handler = whose.partition("/")
        return application == self.application and (handler in self.declared or (retired and handler in self.retired))


class PutBack(NamedTuple):
    """An attribute that was derived before a change, and that its writer put back without a mark."""

    name: str
    whose: str
    value: AttributeValue


def put_back(change: Change) -> list[PutBack]:
    """The attributes that the writer of a change put back without the mark that they are derived."""
    if not (change.has_old and change.has_new):
        return []
    old, new = change.old.raw, change.new.raw
    marked = derived_names(new)
    return [
        PutBack(name, whose, new[name]) for name, whose in derived_by(old).items() if name in new and name not in marked
    ]


class PendingUpdate(NamedTuple):
    """The work for an item: an update, None if its attributes are right, and the error of a refused attribute."""

    update: UpdateSource | None
    refused: HandlerError | None = None
    writers: Mapping[str, Any] = NO_VALUES  # of attributes that the writer has put, the derived values


def pending_update(
    own: Own,
    item: ItemKey,
    stored: DerivedByName | None,
    shown: Shown,
    unmarked: Iterable[PutBack] = (),
    *,
    retire: bool = True,
) -> PendingUpdate:
    """The update that makes an item's derived attributes right.

    An attribute that was put back ``unmarked`` is overwritten or removed only while the item has the value of that very
    change: another value is the writer's own, and so is any other attribute without a mark. ``retire``: the attributes
    of retired handlers are removed too.
    """
    if stored is None:
        return PendingUpdate(None)
    marks = derived_by({DERIVED: encode(stored[DERIVED])}) if DERIVED in stored else {}
    ours = {each.name for each in unmarked if _is_still(own, each, stored, marks)}
    free = {
        whose: {name: value for name, value in values.items() if name not in stored or name in ours or name in marks}
        for whose, values in shown.items()
    }
    writers = {
        name: value for whose, values in shown.items() for name, value in values.items() if name not in free[whose]
    }
    holders, refused = _held(own, item, {name: whose for name, whose in marks.items() if name in stored}, free)
    kept = {name: whose for name, whose in marks.items() if not own.knows(whose, retired=retire)} | holders
    values = {name: shown[whose][name] for name, whose in holders.items()}
    if kept:
        values[DERIVED] = _marks(kept)
    gone = {DERIVED, *marks, *ours}
    removed = tuple(sorted(name for name in gone if name in stored and name not in kept and name not in values))
    if writers:
        refused = _writers_own(item, next(iter(writers)), shown)
    return PendingUpdate(_update(item, stored, values, removed), refused, writers)


def _update(
    item: ItemKey, stored: DerivedByName, values: DerivedByName, removed: tuple[str, ...]
) -> UpdateSource | None:
    """The update, on the condition that the written attributes and all marks are still as they were read."""
    differing = {
        name: value
        for name, value in values.items()
        if name not in stored or not same(encode(value), encode(stored[name]))
    }
    if not differing and not removed:
        return None
    looked_at = dict.fromkeys((*differing, *removed, DERIVED))
    expected = {name: stored[name] for name in looked_at if name in stored}
    return UpdateSource(item, expected, tuple(name for name in looked_at if name not in stored), differing, removed)


def _held(
    own: Own, item: ItemKey, marks: Mapping[str, str], shown: Shown
) -> tuple[dict[str, str], HandlerError | None]:
    """The owner of each shown attribute, and the error of a refused one. The first owner of an attribute keeps it."""
    claims: dict[str, list[str]] = {}
    for whose, values in shown.items():
        for name in values:
            claims.setdefault(name, []).append(whose)
    holders, refused = {}, None
    for name, claimants in claims.items():
        # A stored mark wins, also that of an unknown handler: else two handlers would overwrite each other for ever.
        held = marks.get(name)
        keeps = held is not None and (held in claimants or not own.knows(held))
        first = held if held is not None and keeps else claimants[0]
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


def _writers_own(item: ItemKey, name: str, derived: Shown) -> HandlerError:
    whose = next(whose for whose, values in derived.items() if name in values)
    return HandlerError(
        f"Item {shown(item[1:])} has an attribute {shown(name)} of its writer's, which {whose!r} derives: no handler "
        "overwrites what it has not derived. Give the derived attribute another name, or remove the attribute from the "
        "item and let its writers leave it out: the item's next record then derives it."
    )


def _is_still(own: Own, unmarked: PutBack, stored: DerivedByName, marks: Mapping[str, str]) -> bool:
    """Whether an attribute still has the value of the change that put it back unmarked, and no owner by now."""
    name = unmarked.name
    if name not in stored or name in marks or not own.knows(unmarked.whose):
        return False
    return same(encode(stored[name]), unmarked.value)


def _marks(owners: Mapping[str, str]) -> dict[str, set[str]]:
    """The marks of attributes, as their item has them: the names by owner."""
    marks: dict[str, set[str]] = {}
    for name, whose in owners.items():
        marks.setdefault(whose, set()).add(name)
    return marks


@dataclass(slots=True)
class DerivedItem:
    """An item with derived attributes."""

    stored: tuple[StoredAttributes, ...]  # of all handlers that derive attributes onto the item
    unmarked: list[PutBack] = field(default_factory=list)  # attributes that the batch's changes put back
    # Whether attributes of retired handlers are removed. Not after a mere copy: a process with older code may have made
    # the copy and would make it again, and the two processes would go on for ever.
    retire: bool = False


DerivedItems = Mapping[ItemKey, DerivedItem]


class WriteBack:
    """The items of a batch to update: their stored attributes may have changed, or the items themselves."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.derived_items: dict[ItemKey, DerivedItem] = {}
        self.causes: dict[ItemKey, list[ChangeAndHandler]] = {}

    def rows_changed(self, rows: Mapping[RowKey, Sequence[ChangeAndHandler]]) -> None:
        """Adds items whose stored attributes a commit changed, or an interrupted attempt may have changed."""
        for row, causes in rows.items():
            for change, route in causes:
                stored = derivation(route).stored_attributes(route)
                if stored is not None and stored.holds(row):
                    self._note(stored.item(row), change, route).retire = True
                    fold_row(self.runtime, row, stored.item(row))

    def changed(self, subscribed: Sequence[Work]) -> None:
        """Adds items that were put or updated: their attributes may be missing or old."""
        for work in subscribed:
            changes = work.changes
            if changes[-1].event == "REMOVE":
                continue
            derived_item = self._note(work.item, changes[-1], work.route)
            derived_item.unmarked = [each for change in changes for each in put_back(change)]
            derived_item.retire |= bool(self.runtime.application.retired) and not all(map(_is_copy, changes))

    def write(self) -> list[Failed]:
        """Updates the items; returns the records of the items that failed."""
        errors = write_back(self.runtime, self.derived_items)
        return [Failed(change, route, error) for item, error in errors.items() for change, route in self.causes[item]]

    def _note(self, item: ItemKey, change: Change, route: Route) -> DerivedItem:
        self.causes.setdefault(item, []).append((change, route))
        fold_times(self.runtime, change.item, (item,))
        if item not in self.derived_items:
            self.derived_items[item] = DerivedItem(stored_on(self.runtime.application, item))
        return self.derived_items[item]


def stored_on(application: Application, item: ItemKey) -> tuple[StoredAttributes, ...]:
    """The stored rows of all attributes that handlers derive onto an item."""
    found = deriving_onto_items(each.route for each, _ in application.listeners(item, called=False))
    return tuple(stored for _, stored in found)


def _is_copy(change: Change) -> bool:
    """Whether a change is known to be of derived attributes alone."""
    try:
        return change.has_old and change.has_new and change.as_written() is None
    except RecordError:  # an unreadable attribute
        return False


def write_back(runtime: Runtime, derived_items: DerivedItems) -> dict[ItemKey, Exception]:
    """Updates items to their stored attributes; returns the errors of items that failed."""
    own = Own.of(runtime.application)
    failed: dict[ItemKey, Exception] = {}
    pending, refused, throttled = derived_items, False, list[TableThrottled]()
    try:
        # Another writer may refuse each write: the stored attributes are read again, a bounded number of times.
        for number in range(TRIES_MAX if pending else 0):
            if refused:
                runtime.back_off(number - 1)
            pending, refused = _round(runtime, own, pending, failed, throttled)
            if not pending:
                break
    except EngineError as error:
        return failed | dict.fromkeys(pending, error)
    limits = in_brackets(limit for each in throttled for limit in each.limits)
    why = f"the table is throttled{limits}" if throttled else "others change the item"
    busy = Contended(f"Written {TRIES_MAX} times in a row, because {why}; the record is redelivered.")
    return failed | dict.fromkeys(pending, busy)


def _round(
    runtime: Runtime,
    own: Own,
    derived_items: DerivedItems,
    failed: dict[ItemKey, Exception],
    throttled: list[TableThrottled],
) -> tuple[DerivedItems, bool]:
    """Writes once; returns the items to read again, and whether a write was refused."""
    items = read_rows(runtime, derived_items, failed)
    derived_items = {item: derived_item for item, derived_item in derived_items.items() if item not in failed}
    keys = [stored.row(item[1:]) for item, derived_item in derived_items.items() for stored in derived_item.stored]
    unread: dict[RowKey, Exception] = {}
    rows = read_rows(runtime, keys, unread)
    for error in unread.values():
        raise error
    again = dict(derived_items)
    updates: list[tuple[ItemKey, partial[bool]]] = []
    for item, derived_item in derived_items.items():
        shown = {stored.whose: stored.shown(rows.get(stored.row(item[1:]))) for stored in derived_item.stored}
        found = pending_update(own, item, items.get(item), shown, derived_item.unmarked, retire=derived_item.retire)
        if found.update is not None:
            updates.append((item, partial(_refused, runtime.engine, found.update)))
            continue
        del again[item]
        if found.refused is not None:
            failed[item] = found.refused
    any_refused = False
    for item, refused in in_slots(runtime.slots, updates, stops=lambda error: isinstance(error, TableThrottled)):
        if isinstance(refused, TableThrottled):
            throttled.append(refused)
            any_refused = True
        elif isinstance(refused, EngineError | HandlerError):
            failed[item] = refused
            del again[item]
        else:
            any_refused |= refused
    return again, any_refused


def _refused(engine: Engine, update: UpdateSource) -> bool:
    """Whether the item has changed since it was read.

    Raises ``HandlerError`` for an update that the store will never take, ``TableThrottled`` if the table is throttled.
    """
    refused = engine.transact([update], 0)
    if refused is None:
        return False
    (reason,) = refused.reasons
    if reason is not None and not may_pass(reason, update.key):
        raise HandlerError(
            f"The store refused attributes of item {shown(update.key[1:])}, {reason.code}: {redacted(reason.message)}"
        )
    return True


class AttributesOnItems:
    """The items onto which one handler derives attributes, compared with the stored attributes of all handlers."""

    def __init__(self, route: Route) -> None:
        (self.target,) = route.kind.touches(route)

    def compared(self, comparing: Comparison) -> VerifiedRows:
        """Compares all items of the target."""
        found = VerifiedRows()
        for keys in comparing.keys(self.target.table, lambda _: True):
            own = [key for key in keys if self.target.takes(key)]
            found.rows += len(own)
            found.different += _differing(comparing.runtime, own) if own else ()
        return found

    def correct(self, rows: Sequence[RowKey], comparing: Comparison) -> dict[RowKey, str]:
        """Writes the stored attributes onto their items again, also where no item contributes to them any more."""
        app = comparing.runtime.application
        derived_items = {item: DerivedItem(stored_on(app, item), retire=True) for item in rows}
        return {item: str(error) for item, error in write_back(comparing.runtime, derived_items).items()}


def _differing(runtime: Runtime, keys: Sequence[ItemKey]) -> Iterator[RowDifference]:
    """The items that do not show their stored attributes."""
    application, engine = runtime.application, runtime.engine
    own = Own.of(application)
    items = engine.read_rows(keys)
    stored = {key: stored_on(application, key) for key in keys}
    rows = engine.read_rows([each.row(key[1:]) for key, own_rows in stored.items() for each in own_rows])
    for key, own_rows in stored.items():
        shown = {each.whose: each.shown(rows.get(each.row(key[1:]))) for each in own_rows}
        pending = pending_update(own, key, items.get(key), shown)
        if pending.update is not None or pending.writers:
            values, removed = ({}, ()) if pending.update is None else (pending.update.values, pending.update.removed)
            expected = {name: value for name, value in {**values, **pending.writers}.items() if name != DERIVED}
            names = {*expected, *removed} & items[key].keys()
            yield RowDifference(key, {name: items[key][name] for name in names - {DERIVED}}, expected)
