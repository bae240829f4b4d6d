"""The plan of a batch: units of work, each behind its guard, merged per row and cut into transactions.

A plan is a value: it can be printed, compared and carried out by ``commit``. A *unit* is what succeeds or fails as one:
the step of one source item through the ledger, or one change's effects behind a claim.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from decimal import DecimalException
from typing import NamedTuple, Protocol

from streamfold.ledger.contribution import NO_ROWS
from streamfold.ledger.item import LedgerItem, Step, Tally, Transition, optimistic, replanned
from streamfold.limits import ACTIONS_MAX
from streamfold.records.change import Change, ItemKey
from streamfold.routes.route import Route
from streamfold.writes.guarded import (
    AddRow,
    Claim,
    DeleteState,
    GuardedPut,
    GuardedWrite,
    LedgerWrite,
    PutRow,
    PutState,
    RowKey,
    RowWrite,
    StateKey,
)
from streamfold.writes.sizes import BYTES_PLANNED_MAX, estimated_bytes, too_large

UnitWrite = RowWrite | PutState | DeleteState
WrittenKey = RowKey | StateKey


class Unit(NamedTuple):
    """What succeeds or fails as one. ``changes`` are reported if it fails, ``routes`` say for which handlers.

    ``steps`` of a ledger unit allow it to be planned again from what the ledger holds; a claim unit has none.
    ``partial``: the unit is one page of a step with more effects than fit, and is to be planned again after it.
    ``added``: rows that others add to, so that they are not put whole, though their targets are.
    """

    item: ItemKey
    guard: LedgerWrite | Claim
    effects: tuple[UnitWrite, ...]
    routes: tuple[Route, ...]
    changes: tuple[Change, ...]
    tallies: tuple[Tally, ...]
    steps: tuple[Step, ...] = ()
    partial: bool = False
    added: AbstractSet[RowKey] = NO_ROWS


class Chunk(NamedTuple):
    """One transaction: the guards of its units first, in their order, then the writes of rows, merged."""

    units: tuple[Unit, ...]
    writes: tuple[GuardedWrite, ...]


class KeyedPut(NamedTuple):
    """A row whose key contains the change: written without condition, as often as it comes."""

    route: Route
    change: Change
    row: PutRow


class Deferred(Protocol):
    """What a kind does after the commit. ``str()`` says it in a dry run."""

    @property
    def route(self) -> Route: ...

    @property
    def changes(self) -> tuple[Change, ...]: ...


class Plan(NamedTuple):
    """The writes of a batch: transactions in order, and keyed puts; and what its kinds do after these."""

    chunks: tuple[Chunk, ...]
    puts: tuple[KeyedPut, ...]
    deferred: tuple[Deferred, ...] = ()


def ledger_unit(
    key: StateKey,
    item: ItemKey,
    steps: tuple[Step, ...],
    changes: tuple[Change, ...],
    found: LedgerItem | None,
    added: AbstractSet[RowKey] = NO_ROWS,
    retired: Collection[str] = (),
) -> Unit | None:
    """The unit of an item's ledger step, from what was found or, where nothing was read, optimistic; None if done."""
    transition = optimistic(key, item, steps) if found is None else replanned(key, item, steps, found, added, retired)
    return None if transition is None else _unit(item, transition, changes, added)


def claim_unit(key: StateKey, route: Route, change: Change, rows: Sequence[RowWrite]) -> Unit:
    """The unit of one change's effects behind a claim."""
    return Unit(change.item, Claim(key), tuple(rows), (route,), (change,), (Tally.of(route.name, rows),))


def again(unit: Unit, found: LedgerItem, retired: Collection[str] = ()) -> Unit | None:
    """A ledger unit planned again from what the ledger holds; None when all of it is done."""
    assert isinstance(unit.guard, LedgerWrite)
    return ledger_unit(unit.guard.key, unit.item, unit.steps, unit.changes, found, unit.added, retired)


def by_handler(unit: Unit) -> list[Unit]:
    """A ledger unit split so that each handler succeeds or fails alone."""
    if len(unit.steps) < 2:
        return [unit]
    guard = unit.guard
    assert isinstance(guard, LedgerWrite)
    # A step from an unknown image is tried as the item's first: a ledger that knows more refuses it, and says what.
    steps = (step if step.before is not None else step._replace(before={}) for step in unit.steps)
    planned = (optimistic(guard.key, unit.item, (step,), unit.added) for step in steps)
    return [_unit(unit.item, transition, unit.changes, unit.added) for transition in planned]


def _unit(item: ItemKey, transition: Transition, changes: tuple[Change, ...], added: AbstractSet[RowKey]) -> Unit:
    routes = tuple(step.route for step in transition.steps)
    return Unit(
        item,
        transition.guard,
        transition.effects,
        routes,
        changes,
        transition.tallies,
        transition.steps,
        transition.partial,
        added,
    )


def exceeds_transaction(unit: Unit) -> bool:
    """Whether a unit alone has more writes, or is larger, than one transaction takes."""
    return len(unit.effects) >= ACTIONS_MAX or too_large((unit.guard, *unit.effects))


def without(unit: Unit, stale: Iterable[WrittenKey]) -> Unit:
    """A unit without the row-guarded effects that were refused as older than what is stored."""
    places = set(stale)
    left = tuple(effect for effect in unit.effects if effect.key not in places)
    if len(left) == len(unit.effects):
        return unit
    rows = [effect for effect in left if not isinstance(effect, PutState | DeleteState)]
    return unit._replace(effects=left, tallies=(Tally.of(unit.routes[0].name, rows),))


def without_row(effects: Iterable[UnitWrite], key: WrittenKey, *, there: bool) -> tuple[UnitWrite, ...]:
    """Effects that take back or amend what was added to a row which does not have it: somebody removed that row.

    The ledger goes on without the row. One that is ``there``, made again by others, is told that entries moved.
    """
    left: list[UnitWrite] = []
    for effect in effects:
        if not isinstance(effect, AddRow) or effect.key != key or effect.least is None:
            left.append(effect)
        elif there and effect.stamp:
            left.append(AddRow(effect.key, {}, 0, stamp=effect.stamp, moved=effect.moved, least=0))
    return tuple(left)


def pack(units: Sequence[Unit], actions: int) -> list[Chunk]:
    """Chunks of at most ``actions`` writes, grouped by shared row; a unit is never split.

    A unit that alone needs more than ``actions`` has a chunk of its own, up to ``ACTIONS_MAX``; one that needs more
    than that or is too large is split by handler, and so is one whose handlers' writes of a row cannot be one.
    """
    whole = [part for unit in units for part in (by_handler(unit) if exceeds_transaction(unit) else [unit])]
    chunks: list[Chunk] = []
    builder = _ChunkBuilder(actions)
    for unit in _grouped(whole):
        if builder.add(unit):
            continue
        if builder.units:
            chunks.append(builder.chunk())
        builder = _ChunkBuilder(actions)
        if not builder.add(unit):
            chunks += [_alone(part) for part in by_handler(unit)]
    return [*chunks, builder.chunk()] if builder.units else chunks


def _alone(unit: Unit) -> Chunk:
    builder = _ChunkBuilder(ACTIONS_MAX)
    added = builder.add(unit)
    assert added, "one handler's writes of an item are to different rows"
    return builder.chunk()


def _grouped(units: Sequence[Unit]) -> Iterator[Unit]:
    """Ledger units by the rows that they share, the most shared first, then claims in the order of their changes."""
    ledger = [unit for unit in units if unit.steps]
    touched: Counter[WrittenKey] = Counter(
        effect.key for unit in ledger for effect in unit.effects if isinstance(effect, AddRow)
    )
    shared = {key: (count, " ".join(map(str, key))) for key, count in touched.items() if count > 1}
    yield from sorted(ledger, key=lambda unit: _anchor(unit, shared))
    yield from (unit for unit in units if not unit.steps)


def _anchor(unit: Unit, shared: Mapping[WrittenKey, tuple[int, str]]) -> tuple[int, list[tuple[int, str]]]:
    """Where a unit stands: beside those that share its hottest row, among them beside those that share the next."""
    rows = sorted((shared[effect.key] for effect in unit.effects if effect.key in shared), reverse=True)
    return (0, [(-count, name) for count, name in rows]) if rows else (1, [])


class _ChunkBuilder:
    """Collects units until one does not fit: too many actions, too large, or a write that cannot be merged."""

    def __init__(self, actions: int) -> None:
        self.actions = actions
        self.units: list[Unit] = []
        self.guards: set[StateKey] = set()
        self.rows: dict[WrittenKey, UnitWrite] = {}
        self.bytes = 0

    def add(self, unit: Unit) -> bool:
        """Takes the unit, or leaves the chunk as it was and says no; the first is taken whatever its size."""
        size, new = estimated_bytes(unit.guard), 0
        for effect in unit.effects:
            size += estimated_bytes(effect)
            new += effect.key not in self.rows
        full = len(self.units) + 1 + len(self.rows) + new > self.actions or self.bytes + size > BYTES_PLANNED_MAX
        if self.units and (full or unit.guard.key in self.guards or self._is_of_another_shard(unit)):
            return False
        merged = self._merged(unit)
        if merged is None:
            return False
        self.rows.update(merged)
        self.units.append(unit)
        self.guards.add(unit.guard.key)
        self.bytes += size
        return True

    def _is_of_another_shard(self, unit: Unit) -> bool:
        """A chunk keeps to one shard of a spread row: chunks of batches beside it then seldom meet it."""
        if not any(route.kind.spread(route) for route in unit.routes):
            return False
        return not any(isinstance(effect, AddRow) and effect.key in self.rows for effect in unit.effects)

    def _merged(self, unit: Unit) -> dict[WrittenKey, UnitWrite] | None:
        merged: dict[WrittenKey, UnitWrite] = {}
        for effect in unit.effects:
            present = merged.get(effect.key) or self.rows.get(effect.key)
            joined = effect if present is None else _join(present, effect)
            if joined is None:
                return None
            merged[effect.key] = joined
        return merged

    def chunk(self) -> Chunk:
        rows = (row for row in self.rows.values() if not (isinstance(row, AddRow) and row.changes_nothing))
        return Chunk(tuple(self.units), (*(unit.guard for unit in self.units), *rows))


def _join(one: UnitWrite, other: UnitWrite) -> UnitWrite | None:
    """Two writes of one row as one, or None where they cannot stand in one transaction."""
    if isinstance(one, AddRow) and isinstance(other, AddRow):
        try:
            return one.merged(other)
        except DecimalException:
            return None
    if isinstance(one, GuardedPut) and isinstance(other, GuardedPut) and one.owner == other.owner:
        return max(one, other, key=lambda put: put.version)
    return None
