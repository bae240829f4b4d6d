"""Copies derived attributes onto the items that bear them, after the commit that moved their truth.

The item is read first, then the truth; what differs is written on the condition that the item still has what was read
of it, and then both are read again. A copy that a slower process writes over a newer one is a change of the item, whose
own record brings it here again, as does an item that appears later, or is put without the attributes or with old ones.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Any

from streamfold.app import App
from streamfold.change import Change, ItemKey
from streamfold.engines import Engine
from streamfold.errors import EngineError, EngineUnavailable, HandlerError, shown, told
from streamfold.outcome import Failed
from streamfold.route import Route
from streamfold.sending import Throttled, pause_seconds, throttled
from streamfold.settle import Cause
from streamfold.table import CONTRIBUTORS, DERIVED
from streamfold.truth import MARK, Truth
from streamfold.values import derived_names, encode, hidden, same
from streamfold.world import World
from streamfold.writes import CONDITION, CONFLICT, THROTTLED, RowKey, UpdateSource

ROUNDS_MAX = 8
"""Times that an item is read and written beside others that change it; then the records come again."""

Item = Mapping[str, Any]
Bearers = Mapping[ItemKey, tuple[Truth, ...]]
"""Items, and the truths of all handlers that derive attributes onto each."""


class Upkeep:
    """The items of a batch that bear derived attributes: those whose truth moved, and those that changed themselves."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.bearers: dict[ItemKey, tuple[Truth, ...]] = {}
        self.unmarked: dict[ItemKey, set[str]] = {}
        self.causes: dict[ItemKey, list[Cause]] = {}

    def moved(self, truths: Mapping[RowKey, Sequence[Cause]]) -> None:
        """Takes the items of truths that a commit moved, or may have moved in an attempt that died."""
        for row, causes in truths.items():
            for change, route in causes:
                if route.truth is not None and route.truth.holds(row):
                    self._note(route.truth.item(row), change, route)

    def changed(self, item: ItemKey, changes: Sequence[Change], routes: Sequence[Route]) -> None:
        """Takes an item that was put or amended: its attributes may be missing, or be old ones."""
        if changes[-1].event != "REMOVE" and routes:
            self.unmarked[item] = set().union(*map(unmarked_names, changes))
            for route in routes:
                self._note(item, changes[-1], route)

    def run(self, engine: Engine, world: World) -> list[Failed]:
        """Brings the items up to date; returns the records of those for which that failed."""
        errors = keep_up(engine, self.bearers, self.unmarked, world.wait)
        return [failed for item, error in errors.items() for failed in self._failed(item, error)]

    def _failed(self, item: ItemKey, error: Exception) -> list[Failed]:
        return [Failed(change, route, error) for change, route in self.causes[item]]

    def _note(self, item: ItemKey, change: Change, route: Route) -> None:
        self.causes.setdefault(item, []).append((change, route))
        if item not in self.bearers:
            self.bearers[item] = truths_of(self.app, item)


def truths_of(app: App, item: ItemKey) -> tuple[Truth, ...]:
    """The truths of all handlers that derive attributes onto an item."""
    routes = [route for entry, _ in app.dispatch[item[0]].find(*item[1:]) for route in entry.bears]
    return tuple(route.truth for route in routes if route.truth is not None)


def unmarked_names(change: Change) -> AbstractSet[str]:
    """The attributes that were derived before a change, and that its writer put back without saying so."""
    if not (change.has_old and change.has_new):
        return set()
    return (derived_names(change.old.raw) - derived_names(change.new.raw)) & change.new.raw.keys()


def keep_up(
    engine: Engine, bearers: Bearers, unmarked: Mapping[ItemKey, Collection[str]], pause: Callable[[float], None]
) -> dict[ItemKey, Exception]:
    """Brings items up to date with their truths; returns those for which that failed."""
    failed: dict[ItemKey, Exception] = {}
    left, refused = dict(bearers), False
    for number in range(ROUNDS_MAX if left else 0):
        try:
            if refused:
                pause(pause_seconds(CONFLICT[:1], number - 1))
            left, refused = _round(engine, left, unmarked, failed)
        except EngineError as error:
            return failed | dict.fromkeys(left, error)
        if not left:
            return failed
    busy = EngineUnavailable(f"Written {ROUNDS_MAX} times in a row, because others change the item; it comes again.")
    return failed | dict.fromkeys(left, busy)


def _round(
    engine: Engine,
    bearers: Bearers,
    unmarked: Mapping[ItemKey, Collection[str]],
    failed: dict[ItemKey, Exception],
) -> tuple[dict[ItemKey, tuple[Truth, ...]], bool]:
    """The items that were written and are to be looked at again, and whether a write was refused."""
    items = engine.read_rows(bearers)
    rows = engine.read_rows(truth.row(item[1:]) for item, truths in bearers.items() for truth in truths)
    again: dict[ItemKey, tuple[Truth, ...]] = {}
    any_refused = False
    for number, (item, truths) in enumerate(bearers.items()):
        try:
            found = [rows.get(truth.row(item[1:])) for truth in truths]
            update = update_of(item, items.get(item), found, unmarked.get(item, ()))
            if update is not None:
                any_refused |= _refused(engine, update)
                again[item] = truths
        except Throttled:
            return again | dict(islice(bearers.items(), number, None)), True
        except (EngineError, HandlerError) as error:
            failed[item] = error
    return again, any_refused


def _refused(engine: Engine, update: UpdateSource) -> bool:
    """Whether the item is not as it was read.

    Raises ``HandlerError`` for what the store will never take, ``Throttled`` where the table is throttled.
    """
    refused = engine.transact([update], 0)
    if refused is None:
        return False
    (reason,) = refused.reasons
    if reason is not None and reason.code in THROTTLED:
        raise throttled()
    if reason is not None and reason.code != CONDITION and reason.code not in CONFLICT:
        raise HandlerError(
            f"The store refused attributes of item {shown(update.key[1:])}, {reason.code}: {told(reason.message)}"
        )
    return True


def update_of(
    item: ItemKey, stored: Item | None, truths: Sequence[Item | None], unmarked: Collection[str] = ()
) -> UpdateSource | None:
    """What brings an item's derived attributes up to date; None where it has them, or is not there.

    ``unmarked`` are those that its writer put back without saying that they are derived.
    Raises ``HandlerError`` where two handlers derive one attribute.
    """
    if stored is None:
        return None
    wanted = _wanted(item, truths)
    if wanted:
        wanted[DERIVED] = set(wanted)
    gone = {DERIVED, *stored.get(DERIVED, ()), *unmarked}
    removed = tuple(sorted(name for name in gone if name in stored and name not in wanted))
    values = {name: value for name, value in wanted.items() if name not in stored or not _equal(value, stored[name])}
    if not values and not removed:
        return None
    touched = (*values, *removed)
    expected = {name: stored[name] for name in touched if name in stored}
    return UpdateSource(item, expected, tuple(name for name in touched if name not in stored), values, removed)


def _wanted(item: ItemKey, truths: Sequence[Item | None]) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    for truth in truths:
        for name, value in truth.items() if truth and truth.get(CONTRIBUTORS) != 0 else ():
            if not name.startswith(MARK) or hidden(name):
                continue
            if name[1:] in wanted:
                raise HandlerError(
                    f"Two handlers derive {shown(name[1:])} onto item {shown(item[1:])}: give one another name."
                )
            wanted[name[1:]] = value
    return wanted


def _equal(one: Any, other: Any) -> bool:
    return same(encode(one), encode(other))
