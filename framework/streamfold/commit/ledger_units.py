"""The one desk where a ledger item that was read becomes a unit: read, waited for, derived, planned, its work noted."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

from streamfold.commit.buckets import ready_by_handler, wait_for_items
from streamfold.commit.pending import NamedByHandler, PendingWork
from streamfold.commit.plan import Unit, ledger_unit, unit_of
from streamfold.commit.taking_back import without_refused
from streamfold.commit.transactions import filled, read_state
from streamfold.engines.protocol import Engine, StateItems
from streamfold.errors import EngineError, HandlerError
from streamfold.ledger.contribution import Contribution, LedgerItem
from streamfold.ledger.lives import NO_ROWS, Lives
from streamfold.ledger.step import Step, is_done, reconciled
from streamfold.records.change import Change, ItemKey
from streamfold.routes.route import Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import RowKey, StateKey

Coming = tuple[Route, Contribution, Contribution]
"""A handler, the item's earlier contribution through it as far as it is known, and its contribution now."""
NOTHING_FOUND = LedgerItem.of(None)
"""An item that was never read, or is not in the ledger."""


@dataclass(slots=True, eq=False)
class ReadItem:
    """A ledger item that a unit is planned from, and what the unit is to be of."""

    key: StateKey
    item: ItemKey
    routes: Sequence[Route]
    changes: Sequence[Change]
    steps: Sequence[Step] = ()  # none before handlers were called
    added: AbstractSet[RowKey] = NO_ROWS
    found: LedgerItem = NOTHING_FOUND  # as it was read
    unit: Unit | None = None  # that was planned before, and is planned again
    rows: Sequence[Contribution] = ()  # of a visit: what each handler contributes by the unit that was planned last

    @classmethod
    def of(cls, unit: Unit) -> "ReadItem":
        """A unit that is planned again. Its steps note the rows that they may leave empty: refused once for such a row,
        it must not be refused again.
        """
        assert isinstance(unit.guard.key, StateKey)
        steps = tuple(
            [step._replace(requires_contributor=False) if step.requires_contributor else step for step in unit.steps]
        )
        return ReadItem(unit.guard.key, unit.item, unit.routes, unit.changes, steps, unit.added, unit=unit)

    def keep(self, steps: Sequence[Step]) -> None:
        """Plans no others than these steps, and reports no others."""
        self.steps, self.routes = steps, tuple([step.route for step in steps])


ReadT = TypeVar("ReadT", bound=ReadItem)
HandlerFailure = tuple[ReadItem, Route, Exception]
"""A handler that fails on an item."""


class Follows(ABC):
    """What notes the items that fail, and those of which the ledger has the steps of all handlers, or of some (partly):
    a batch, visits, or the progress of a plan.
    """

    __slots__ = ()

    @abstractmethod
    def failed(self, read: Sequence[Any], error: Exception, *, of_item: bool = False) -> None:
        """Notes items that fail. ``of_item``: by a fault of their own, so that no other item meets it."""

    @abstractmethod
    def applied(self, read: Any, *, partly: bool) -> None: ...


class ImageSource(Follows):
    """Where the images of items come from: the records of a batch, or stored items that are visited.

    visits: they are stored items. A unit is written without a difference too, behind a fence. A refused unit is not
    planned from the item in the refusal, which is newer than the image: both are read again, and the unit goes alone.
    derives: the steps of an item are made only after its ledger item was read. dry_run: no delta is moved. retired:
    handlers that were removed; their contributions go with the last other one of a ledger item.
    """

    __slots__ = ()
    visits: ClassVar[bool]
    runtime: Runtime
    pending_work: PendingWork
    dry_run: bool = False
    notes_steps: bool = False  # the outcome notes whose contributions were written

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

    def pending_rows(self, read: Any) -> Iterable[NamedByHandler]:  # noqa: ARG002 - a default
        """The rows of an item for which an earlier attempt may have pending work, by handler."""
        return ()

    def again(self, unit: Unit) -> ReadItem:
        return ReadItem.of(unit)

    @abstractmethod
    def derives(self, read: Any) -> bool: ...

    @abstractmethod
    def derive(self, read: Sequence[Any]) -> Iterable[HandlerFailure]:
        """Makes the steps of such items; returns the handlers that fail. Raises ``EngineError``."""


def read_lives(engine: Engine, lives: Lives, steps: Iterable[Coming], *, consistent: bool = False) -> None:
    """Reads rows that expire, to which items are added, and whose life the process does not know.

    A row that is read too late costs a refused transaction, which shows the row's life.
    """
    rows = dict.fromkeys(
        row for route, before, after in steps for row in lives.unknown(route, after) if row not in before
    )
    if rows:
        lives.read(engine.read_rows(rows, consistent=consistent))


class LedgerUnits(Generic[ReadT]):
    """The desk: reads ledger items, and plans units from them. Nobody else catches what an item raises meanwhile."""

    __slots__ = ("follows", "pending_work", "runtime", "source")

    def __init__(self, source: ImageSource, follows: Follows) -> None:
        self.runtime, self.source, self.follows = source.runtime, source, follows
        self.pending_work = source.pending_work

    def read(
        self, wanted: Sequence[ReadT], stored: StateItems | None = None, *, consistent: bool = False
    ) -> list[ReadT]:
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

    def fill(self, read: ReadT, stored: Mapping[str, Any] | None) -> bool:
        """Takes a stored ledger item and its large contributions; False if they are not read, and the item fails."""
        try:
            handlers = {route.name for route in read.routes}
            read.found = filled(self.runtime.engine, read.key, LedgerItem.of(stored), handlers)
        except EngineError as error:
            self.follows.failed([read], error)
            return False
        return True

    def plan(self, read: Sequence[ReadT]) -> list[Unit]:
        """The units of items: none of an item of which the ledger has all, and none of one that fails.

        An earlier attempt may have died before it removed empty rows or recomputed rows: this work is done again.
        """
        return [unit for each in self.prepare(read) if (unit := self._of_item(each, self._planned)) is not None]

    def prepare(self, read: Sequence[ReadT]) -> list[ReadT]:
        """The items of which some steps can be planned: what ledger items name is in its rows, and handlers were
        called.
        """
        if not self._is_waited_for(read):
            return []
        if derived := [each for each in read if self.source.derives(each)]:
            read = [*[each for each in read if not self.source.derives(each)], *derived]
            try:
                failures = self.source.derive(derived)
            except EngineError as error:
                self.follows.failed(derived, error)
                for each in derived:
                    each.keep(())
            else:
                for failing, route, raised in failures:
                    self.follows.failed([replace(failing, routes=(route,))], raised, of_item=True)
        for each in read:
            if each.found.waits and not self.source.dry_run:
                self._of_item(each, self._replace_refused)
        return [each for each in read if each.steps]

    def unit(self, read: ReadT, steps: Sequence[Step]) -> Unit | None:
        """The unit of some steps of an item; None if the ledger has all of them."""
        source, changes = self.source, tuple(read.changes)
        key, item, found, added, lives = read.key, read.item, read.found, read.added, source.lives
        if not source.visits:
            return ledger_unit(key, item, tuple(steps), changes, found, added, source.retired, lives)
        made = reconciled(key, item, tuple(steps), found, added, lives)
        read.rows = made.rows
        return unit_of(item, made, changes, added, found, lives)

    def note(self, read: ReadT) -> None:
        """Notes what an item has pending: rows that it names, notes of its steps, and the deltas that it names."""
        pending_work = self.pending_work
        for routes, named in self.source.pending_rows(read):
            pending_work.take(named, routes, read.changes)
        pending_work.note_found(read.key, read.item, read.routes, read.found)
        for route in read.routes if read.found.waits else ():
            try:
                pending_work.deltas.wait_for_item(read.found, [route], read.changes, read.key)
            except EngineError as error:  # the names of its deltas are damaged
                self.follows.failed([replace(read, routes=(route,))], error, of_item=True)

    def _is_waited_for(self, read: Sequence[ReadT]) -> bool:
        """Moves what ledger items name into rows, all at once. If that fails, the items of a batch fail one by one in
        ``_replace_refused``, and visits fail together.
        """
        if self.source.dry_run or not any(each.found.waits for each in read):
            return True
        try:
            wait_for_items(self.runtime, self.pending_work.deltas, [each.found for each in read])
        except (EngineError, HandlerError) as error:
            if self.source.visits:
                self.follows.failed(read, error)
                return False
        return True

    def _of_item(self, read: ReadT, call: Callable[[ReadT], Unit | None]) -> Unit | None:
        """What a call gives for one item; an error is that of this item alone: the others go on."""
        try:
            return call(read)
        except (EngineError, HandlerError) as error:
            self.follows.failed([read], error, of_item=True)
            read.keep(())
            return None

    def _replace_refused(self, read: ReadT) -> None:
        """Has the steps of an item replace what rows refuse of the steps before. A handler fails alone if one of the
        rows that its step changes refuses a delta, or does not have it in time.
        """
        waiting, visits = self.pending_work.deltas, self.source.visits
        newer = [step.route for step in read.steps if step.version >= read.found.version(step.route.name)]
        read.found = without_refused(
            self.runtime.application.name, read.item, newer, read.found, waiting, keeps_version=visits
        )
        steps = [step for step in read.steps if visits or not is_done(step, read.found)]
        if not read.found.waits or not steps:
            return
        read.found, faults = ready_by_handler(read.found, steps, waiting)
        for step in steps:
            if (fault := faults.get(step.route.name)) is not None:
                self.follows.failed([replace(read, routes=(step.route,))], fault, of_item=True)
                read.keep([each for each in read.steps if each is not step])

    def _planned(self, read: ReadT) -> Unit | None:
        unit = self.unit(read, read.steps)
        self.note(read)
        if unit is None or len(unit.routes) < len(read.routes):
            self.follows.applied(read, partly=unit is not None)
        return unit
