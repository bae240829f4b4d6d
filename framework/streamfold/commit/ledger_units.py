"""The one desk where a ledger item that was read becomes a unit: read, filled, waited for, planned, its work noted."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from streamfold.commit.buckets import ready_by_handler, wait_for_items
from streamfold.commit.outcome import Failed
from streamfold.commit.pending import NamedByHandler, PendingWork
from streamfold.commit.plan import Unit, ledger_unit
from streamfold.commit.taking_back import without_refused
from streamfold.commit.transactions import filled, read_state
from streamfold.engines.protocol import Engine, StateItems
from streamfold.errors import EngineError, HandlerError
from streamfold.ledger.contribution import Contribution, LedgerItem
from streamfold.ledger.lives import NO_ROWS, Lives
from streamfold.ledger.step import Step
from streamfold.records.change import Change, ItemKey
from streamfold.routes.route import Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import RowKey, StateKey

Coming = tuple[Route, Contribution, Contribution]
"""A handler, the item's earlier contribution through it as far as it is known, and its contribution now."""
NOTHING_FOUND = LedgerItem.of(None)
"""An item that was never read, or is not in the ledger."""


class HasSteps(Protocol):
    """What is planned from a ledger item: a unit, or a visit."""

    @property
    def steps(self) -> Sequence[Step]: ...


WithSteps = TypeVar("WithSteps", bound=HasSteps)


FromSource = TypeVar("FromSource")


@dataclass(slots=True, eq=False)
class ReadItem(Generic[FromSource]):
    """A ledger item that a unit is planned from, and what the unit is to be of."""

    origin: FromSource  # what its source has of it: the work of a batch, or a unit that was planned before
    key: StateKey
    item: ItemKey
    routes: Sequence[Route]
    changes: Sequence[Change]
    steps: Sequence[Step] = ()  # none before handlers were called that look others up
    added: AbstractSet[RowKey] = NO_ROWS
    found: LedgerItem = NOTHING_FOUND  # as it was read
    is_next: bool = False  # the ledger agrees with the old images: no attempt before has died

    @classmethod
    def of(cls, unit: Unit, found: LedgerItem = NOTHING_FOUND) -> "ReadItem[Unit]":
        """A unit that is planned again. Its steps note the rows that they may leave empty: refused once for such a row,
        it must not be refused again.
        """
        assert isinstance(unit.guard.key, StateKey)
        steps = tuple(
            [step._replace(requires_contributor=False) if step.requires_contributor else step for step in unit.steps]
        )
        return ReadItem(unit, unit.guard.key, unit.item, unit.routes, unit.changes, steps, unit.added, found)


class Follows(Protocol[FromSource]):
    """What notes the items that fail, and those that the ledger has: a batch, or the progress of its plan."""

    def failed(
        self, read: Sequence[ReadItem[FromSource]], error: EngineError | HandlerError, *, of_item: bool = False
    ) -> None:
        """Notes items that fail. ``of_item``: by a fault of their own, so that no other item meets it."""

    def applied(self, read: ReadItem[FromSource]) -> None: ...

    def partly_applied(self) -> None: ...


class ImageSource(ABC):
    """Where the images of items come from: the records of a batch, or stored items that are visited.

    plans_from_refusal: a refused unit is planned again from the item in the refusal. Otherwise that item is newer than
    the image, so both are read again, and the unit goes alone. retired: handlers that were removed; their contributions
    go with the last other one of a ledger item. looks_up: some handler looks others up when a unit is planned again.
    """

    __slots__ = ()
    plans_from_refusal: ClassVar[bool]
    runtime: Runtime
    pending_work: PendingWork

    @property
    @abstractmethod
    def lives(self) -> Lives:
        """Of rows that expire."""

    @property
    def known_lives(self) -> Lives | None:
        return self.lives

    @property
    def retired(self) -> Collection[str]:
        return ()

    @property
    def looks_up(self) -> bool:
        return False

    def pending_rows(self, read: ReadItem[Any]) -> Iterable[NamedByHandler]:  # noqa: ARG002 - a default
        """The rows of an item for which an earlier attempt may have pending work, by handler."""
        return ()

    def derive_again(self, read: Sequence[ReadItem[Unit]]) -> tuple[list[ReadItem[Unit]], list[Failed]]:
        """Items of which steps look others up, with referents that are read now, and the handlers that raise then."""
        return [*read], []

    def again(self, units: Sequence[Unit]) -> tuple[list[Unit], list[Failed]]:
        """Units from newer reads of ledger items and images, and the handlers that raise then. Raises ``EngineError``.

        Asked for where units are not planned from a refusal.
        """
        raise NotImplementedError


def read_lives(engine: Engine, lives: Lives, steps: Iterable[Coming], *, consistent: bool = False) -> None:
    """Reads rows that expire, to which items are added, and whose life the process does not know.

    A row that is read too late costs a refused transaction, which shows the row's life.
    """
    rows = dict.fromkeys(
        row for route, before, after in steps for row in lives.unknown(route, after) if row not in before
    )
    if rows:
        lives.read(engine.read_rows(rows, consistent=consistent))


Faults = Mapping[str, EngineError | HandlerError]
"""Why no step of some handlers is planned, by their names."""
NO_FAULTS: Faults = MappingProxyType({})


def plan_ready(
    pending_work: PendingWork, found: LedgerItem, plan: Callable[[LedgerItem, Faults], WithSteps | None]
) -> tuple[WithSteps | None, LedgerItem, Faults]:
    """What is planned of a ledger item whose last step is in the rows, with the ledger item as it was planned from.

    The first plan shows which rows change: only these have to have taken what the last step added. A handler fails
    alone if one of its rows refuses that, or if it is not there in time. Raises ``EngineError`` for a damaged item.
    """
    planned, faults = plan(found, NO_FAULTS), NO_FAULTS
    if planned is not None and found.waits:
        found, faults = ready_by_handler(found, planned.steps, pending_work.deltas)
        faults = {step.route.name: faults[step.route.name] for step in planned.steps if step.route.name in faults}
        planned = plan(found, faults)
    return planned, found, faults


def note_found(
    pending_work: PendingWork,
    key: StateKey,
    item: ItemKey,
    causes: tuple[Sequence[Route], Sequence[Change]],
    found: LedgerItem,
) -> None:
    """Notes what a ledger item has pending: the notes of its steps, and the deltas that it names."""
    pending_work.note_found(key, item, causes[0], found)
    if found.waits:
        pending_work.deltas.wait_for_item(found, *causes, key)


class LedgerUnits(Generic[FromSource]):
    """The desk: reads ledger items, and plans units from them. Nobody else catches what an item raises meanwhile."""

    __slots__ = ("follows", "pending_work", "runtime", "source")

    def __init__(self, source: ImageSource, follows: Follows[FromSource]) -> None:
        self.runtime, self.source, self.follows = source.runtime, source, follows
        self.pending_work = source.pending_work

    def read(
        self, wanted: Sequence[ReadItem[FromSource]], stored: StateItems | None = None, *, consistent: bool = False
    ) -> list[ReadItem[FromSource]]:
        """The items with what the ledger has of them, read together unless they were. Those fail that are not read."""
        if not wanted:
            return []
        try:
            if stored is None:
                stored = read_state(self.runtime, [each.key for each in wanted], consistent=consistent)
        except EngineError as error:
            self.follows.failed(wanted, error)
            return []
        return [each for each in wanted if self.fill(each, stored.get(each.key))]

    def fill(self, read: ReadItem[FromSource], stored: Mapping[str, Any] | None) -> bool:
        """Takes a stored ledger item and its large contributions; False if they are not read, and the item fails."""
        try:
            handlers = {route.name for route in read.routes}
            read.found = filled(self.runtime.engine, read.key, LedgerItem.of(stored), handlers)
        except EngineError as error:
            self.follows.failed([read], error)
            return False
        return True

    def wait(self, read: Sequence[ReadItem[FromSource]]) -> None:
        """Moves what ledger items name into rows, all at once. Where that fails, ``ready`` says so item by item."""
        if any(each.found.waits for each in read):
            with suppress(EngineError, HandlerError):
                wait_for_items(self.runtime, self.pending_work.deltas, [each.found for each in read])

    def plan(self, read: Sequence[ReadItem[FromSource]]) -> list[Unit]:
        """The units of items: none of an item of which the ledger has all, and none of one that fails.

        An earlier attempt may have died before it removed empty rows or recomputed rows: this work is done again.
        """
        self.wait(read)
        return [unit for each in read if (unit := self._planned(each)) is not None]

    def _planned(self, read: ReadItem[FromSource]) -> Unit | None:
        pending_work = self.pending_work
        try:
            for routes, named in () if read.is_next else self.source.pending_rows(read):
                pending_work.take(named, routes, read.changes)
            if read.found.waits:
                application, waiting = self.runtime.application.name, pending_work.deltas
                newer = [step.route for step in read.steps if step.version >= read.found.version(step.route.name)]
                read.found = without_refused(application, read.item, newer, read.found, waiting)
            pending_work.note_found(read.key, read.item, read.routes, read.found)
            unit, found, faults = plan_ready(pending_work, read.found, partial(self._unit, read))
            if faults:
                self._fail_handlers(read, faults)
            if found.waits:
                self._wait_for(read, found)
        except (EngineError, HandlerError) as error:  # of this item alone: the others go on
            self.follows.failed([read], error, of_item=True)
            return None
        if unit is None and read.routes:
            self.follows.applied(read)
        elif unit is not None and len(unit.routes) < len(read.routes):
            self.follows.partly_applied()
        return unit

    def _wait_for(self, read: ReadItem[FromSource], found: LedgerItem) -> None:
        for route in read.routes:
            try:
                self.pending_work.deltas.wait_for_item(found, [route], read.changes, read.key)
            except EngineError as error:  # the names of its deltas are damaged
                self.follows.failed([replace(read, routes=(route,))], error, of_item=True)

    def _fail_handlers(self, read: ReadItem[FromSource], faults: Faults) -> None:
        """Fails handlers of an item alone: the others go on."""
        for route in read.routes:
            if route.name in faults:
                self.follows.failed([replace(read, routes=(route,))], faults[route.name], of_item=True)
        read.routes = tuple([route for route in read.routes if route.name not in faults])

    def _unit(self, read: ReadItem[FromSource], found: LedgerItem, faults: Faults) -> Unit | None:
        retired, lives = self.source.retired, self.source.lives
        steps = tuple([step for step in read.steps if step.route.name not in faults])
        if not steps:
            return None
        return ledger_unit(read.key, read.item, steps, tuple(read.changes), found, read.added, retired, lives)
