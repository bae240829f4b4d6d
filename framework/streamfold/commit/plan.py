"""The plan of a batch: units of work, each behind its guard, merged per row and cut into transactions.

A plan is a value: it can be printed, compared, and carried out by ``Committer``. A *unit* succeeds or fails as one: the
step of one source item through the ledger, or the effects of one change behind a claim.
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from decimal import DecimalException
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeGuard

from streamfold.errors import HandlerError
from streamfold.keys.table import CONTRIBUTORS, OWNER, is_in_state
from streamfold.ledger.contribution import REFERENCE, LedgerItem, holds_row, stored_rows
from streamfold.ledger.deltas import (
    ADDITION_BYTES_MAX,
    ROWS_MAX,
    Additions,
    before_text,
    bucket_of,
    delta_key,
    just_before,
    may_wait,
    names_in,
    names_text,
    new_name,
)
from streamfold.ledger.lives import NO_ROWS, Lives
from streamfold.ledger.state_keys import row_name, row_names
from streamfold.ledger.step import Step, Tally, Transition, optimistic, reconciled, replanned
from streamfold.records.change import Change, ItemKey
from streamfold.records.values import Value, value
from streamfold.routes.route import Route, is_spread
from streamfold.runtime import Shared
from streamfold.settings.limits import ACTIONS_MAX
from streamfold.writes.guarded import (
    ACTION_BYTES,
    BYTES_PLANNED_MAX,
    SURELY_FIT,
    AbsentSource,
    AddRow,
    Claim,
    DeleteState,
    GuardedPut,
    GuardedWrite,
    HandlerContribution,
    LedgerWrite,
    PutRow,
    PutState,
    RowKey,
    RowWrite,
    StateKey,
    SwapText,
    estimated_bytes,
    too_large,
)

UnitWrite = RowWrite | PutState | DeleteState | AbsentSource | SwapText
WrittenKey = RowKey | StateKey


@value
class Unit(Value):
    """A guard and the writes behind it, which succeed or fail as one."""

    item: ItemKey
    guard: LedgerWrite | Claim
    effects: tuple[UnitWrite, ...]
    routes: tuple[Route, ...]  # the handlers that are reported if the unit fails
    changes: tuple[Change, ...]  # the changes that are reported then
    tallies: tuple[Tally, ...]
    steps: tuple[Step, ...] = ()  # of a ledger unit, to plan it again from the ledger; a claim has none
    partial: bool = False  # one page of a step with more effects than fit: the next page is planned after it
    added: AbstractSet[RowKey] = NO_ROWS  # rows of replacing targets to which others add, so that this unit adds too
    found: LedgerItem | None = None  # the ledger item of the plan; None: the unit is optimistic
    lives: Lives | None = None  # of rows that expire; None: no row did when it was planned


class Transaction(NamedTuple):
    """The units of one transaction."""

    units: tuple[Unit, ...]
    writes: tuple[GuardedWrite, ...]  # the guards of the units, in their order; then the writes of rows, merged

    @property
    def guards(self) -> Sequence[GuardedWrite]:
        """The guards as they are sent: with the deltas that the units put."""
        return self.writes[: len(self.units)]


class KeyedPut(NamedTuple):
    """A row whose key contains the change. It is inserted without a guard: a redelivery inserts the same row."""

    route: Route
    change: Change
    row: PutRow


class Deferred(Protocol):
    """The work of a kind after the commit. A dry run prints its ``str()``."""

    @property
    def route(self) -> Route: ...

    @property
    def changes(self) -> tuple[Change, ...]: ...


class Plan(NamedTuple):
    """All that a batch will write."""

    transactions: tuple[Transaction, ...]  # transactions, in order
    puts: tuple[KeyedPut, ...]  # written after the transactions
    deferred: tuple[Deferred, ...] = ()  # the work of kinds after the commit


def ledger_unit(
    key: StateKey,
    item: ItemKey,
    steps: tuple[Step, ...],
    changes: tuple[Change, ...],
    found: LedgerItem | None,
    added: AbstractSet[RowKey] = NO_ROWS,
    retired: Collection[str] = (),
    lives: Lives | None = None,
) -> Unit | None:
    """The unit of an item's ledger step; None if the ledger has it already.

    It is planned from ``found``. With None the ledger was not read: the unit is optimistic (see ``optimistic``).
    """
    if found is None:
        return unit_of(item, optimistic(key, item, steps, added, lives), changes, added, None, lives)
    transition = replanned(key, item, steps, found, added, retired, lives)
    return None if transition is None else unit_of(item, transition, changes, added, found, lives)


def claim_unit(key: StateKey, route: Route, change: Change, rows: Sequence[RowWrite]) -> Unit:
    """The unit of one change's effects behind a claim."""
    claim = Claim(key, row_names(row.key for row in rows if isinstance(row, GuardedPut)))
    return Unit(change.item, claim, tuple(rows), (route,), (change,), (Tally.of(route.name, rows),))


def again(
    unit: Unit, found: LedgerItem | None, retired: Collection[str] = (), lives: Lives | None = None
) -> Unit | None:
    """A ledger unit planned again from the ledger; None if the ledger has all of it.

    Its steps note the rows that they may leave empty: a unit that was refused once must not be refused again.
    """
    assert isinstance(unit.guard, LedgerWrite)
    steps = tuple(
        [step._replace(requires_contributor=False) if step.requires_contributor else step for step in unit.steps]
    )
    return ledger_unit(unit.guard.key, unit.item, steps, unit.changes, found, unit.added, retired, unit.lives or lives)


def by_handler(unit: Unit, lives: Lives | None = None) -> list[Unit]:
    """A ledger unit split so that each handler succeeds or fails alone."""
    if len(unit.steps) < 2:
        return [unit]
    guard = unit.guard
    assert isinstance(guard, LedgerWrite)
    key, item, added, found, lives = guard.key, unit.item, unit.added, None, unit.lives or lives
    if guard.fence:
        # A visit never takes an item for new: once one handler has changed the revision, the next visits it again.
        found = unit.found
        assert found is not None
        planned = [reconciled(key, item, (step,), found, added, lives) for step in unit.steps]
    elif unit.found is not None and any(step.route.planned_from_ledger for step in unit.steps):
        # Such a step is never an item's first, nor optimistic: its referents were read after the ledger item only. Once
        # one handler moved the revision, the next is refused and reads them again.
        found = unit.found
        steps = (step._replace(requires_contributor=False) for step in unit.steps)
        transitions = (replanned(key, item, (step,), found, added, lives=lives) for step in steps)
        planned = [transition for transition in transitions if transition is not None]
    else:
        # A step without an old image is tried as the item's first. A ledger item that has more refuses the step.
        steps = (step if step.before is not None else step._replace(before={}) for step in unit.steps)
        planned = [optimistic(key, item, (step._replace(requires_contributor=False),), added, lives) for step in steps]
    return [unit_of(item, transition, unit.changes, added, found, lives) for transition in planned]


def unit_of(
    item: ItemKey,
    transition: Transition,
    changes: tuple[Change, ...],
    added: AbstractSet[RowKey] = NO_ROWS,
    found: LedgerItem | None = None,
    lives: Lives | None = None,
) -> Unit:
    made, steps = transition, transition.steps
    routes = tuple([step.route for step in steps])
    effects: tuple[UnitWrite, ...] = made.effects
    if found is not None and found.shares:  # what the steps replace in deltas that rows refuse
        effects += tuple([write for handler, write in found.shares if any(route.name == handler for route in routes)])
    return Unit(item, made.guard, effects, routes, changes, made.tallies, steps, made.partial, added, found, lives)


def exceeds_transaction(unit: Unit) -> bool:
    """Whether a unit alone has more writes than one transaction takes, or is larger."""
    if len(unit.effects) < SURELY_FIT:  # as nearly always
        return False
    return len(unit.effects) >= ACTIONS_MAX or too_large((unit.guard, *unit.effects))


def without(unit: Unit, stale: Iterable[WrittenKey]) -> Unit:
    """A unit without the effects on rows that are as new already."""
    stale_keys = set(stale)
    remaining = tuple(effect for effect in unit.effects if effect.key not in stale_keys)
    if len(remaining) == len(unit.effects):
        return unit
    rows = [effect for effect in remaining if not isinstance(effect, PutState | DeleteState | AbsentSource | SwapText)]
    return unit._replace(effects=remaining, tallies=(Tally.of(unit.routes[0].name, rows),))


def without_row(
    effects: Iterable[UnitWrite], key: WrittenKey, found: Mapping[str, Any] | None
) -> tuple[UnitWrite, ...]:
    """Effects without an addition that amends or subtracts an earlier contribution, if another writer removed its row.

    ``found``: the row, if others made it again, or its count is wrong.
    """
    remaining: list[UnitWrite] = []
    for effect in effects:
        remaining += dropped(effect, found) if is_lost(effect, key, found) else [effect]
    return tuple(remaining)


def is_lost(effect: UnitWrite, key: WrittenKey, found: Mapping[str, Any] | None) -> TypeGuard[AddRow]:
    """Whether an addition is dropped because another writer removed its row, or put an item of his own there.

    An item that comes to the row is not dropped over such an item, but refused: otherwise nothing would say that the
    row lacks it.
    """
    comes = found is not None and CONTRIBUTORS not in found and amends(effect) and effect.contributors > 0
    return effect.key == key and amends(effect) and not comes


def dropped(addition: AddRow, found: Mapping[str, Any] | None) -> list[AddRow | AbsentSource]:
    """The write in place of an addition that is dropped because its row was removed.

    It requires that the row is absent, or still counts too few: once it is corrected, it counts what is subtracted.
    A row that is there gets the step's stamp, because entries below it change. It is written in any case: the ledger
    changes without it, and a correction that is under way would otherwise use the ledger's state before.
    """
    if found is None:
        return [AbsentSource(addition.key)]
    if CONTRIBUTORS not in found:  # somebody put a row of his own, which no correction makes count
        return []
    stamp, changed, life = addition.stamp, addition.changed_entries, addition.life
    written = AddRow(
        addition.key, {}, 0, stamp=stamp, changed_entries=changed, contributors_min=0, removed=(OWNER,), life=life
    )
    return [written._replace(contributors_below=addition.contributors_min)]


def is_dropped(write: GuardedWrite) -> bool:
    """Whether a write replaces an addition that was dropped because its row was removed."""
    return isinstance(write, AbsentSource) or (isinstance(write, AddRow) and write.contributors_below is not None)


def amends(effect: UnitWrite) -> TypeGuard[AddRow]:
    """Whether a write amends or subtracts an earlier contribution to a row."""
    return isinstance(effect, AddRow) and effect.contributors_min is not None


def writers(unit: Unit, row: WrittenKey) -> tuple[Route, ...]:
    """The handlers of a unit that contribute to a row, or did before: only these fail if the row refuses a write."""
    if len(unit.routes) < 2:
        return unit.routes
    assert isinstance(unit.guard, LedgerWrite)
    steps_with_parts = zip(
        unit.steps, unit.guard.contributions, strict=False
    )  # contributions of retired handlers may follow
    found = tuple(
        step.route
        for step, contribution in steps_with_parts
        if row in step.after or _contributed_before(step, contribution, row)
    )
    return found or unit.routes


def _contributed_before(step: Step, contribution: HandlerContribution, row: WrittenKey) -> bool:
    """Whether a handler contributed to a row before a step, by its old image or by the ledger."""
    if row in (step.before or ()):
        return True
    # A contribution stored elsewhere is compared by its digest, and only where the old image gives it.
    return not contribution.expected.startswith(REFERENCE) and holds_row(contribution.expected, row)


def pack(units: Sequence[Unit], actions: int, shared: Shared | None = None) -> list[Transaction]:
    """Transactions of at most ``actions`` writes, grouped by shared row; a unit is never split.

    ``shared``: decides which additions go through deltas; None: nobody puts any.

    Units that write no row fill up the other transactions. A unit with more than ``actions`` writes has a transaction
    of its own. A unit over ``ACTIONS_MAX`` or 4 MB is split into one unit per handler. So is a unit in which two
    handlers write the same row and the writes cannot be merged.
    """
    fitting: list[Unit] = []
    for unit in units:
        fitting += by_handler(unit) if exceeds_transaction(unit) else (unit,)
    idle = deque([unit for unit in fitting if unit.steps and not unit.effects])
    transactions: list[Transaction] = []
    builder = _TransactionBuilder(actions, shared)
    for unit in _grouped([unit for unit in fitting if unit.effects or not unit.steps], shared):
        if builder.add(unit):
            continue
        if builder.units:
            transactions.append(builder.filled(idle))
        builder = _TransactionBuilder(actions, shared)
        if not builder.add(unit):
            transactions += [_alone(part, shared) for part in by_handler(unit)]
    while builder.units or idle:
        transactions.append(builder.filled(idle))
        builder = _TransactionBuilder(actions, shared)
    return transactions


def _alone(unit: Unit, shared: Shared | None) -> Transaction:
    builder = _TransactionBuilder(ACTIONS_MAX, shared)
    added = builder.add(unit)
    assert added, "one handler's writes of an item are to different rows"
    return builder.transaction()


def _waits(unit: Unit, effect: UnitWrite, shared: Shared) -> bool:
    """Whether an addition goes through a delta. Each page of a large step would have to wait for the one before."""
    if not isinstance(effect, AddRow) or unit.partial or is_in_state(effect.key):
        return False
    return shared.takes(effect.key) and may_wait(effect)


def _waiting_additions(unit: Unit, shared: Shared) -> dict[WrittenKey, list[AddRow]]:
    """A unit's additions that go through deltas, by row: to a row, those of all handlers or none.

    A ledger item names the rows of a delta. If one handler added to such a row itself, the way back of its step would
    take that from the delta, which holds what another handler adds.
    """
    additions: dict[WrittenKey, list[AddRow]] = {}
    direct: set[WrittenKey] = set()
    for effect in unit.effects:
        if effect.key not in direct and type(effect) is AddRow and _waits(unit, effect, shared):
            additions.setdefault(effect.key, []).append(effect)
        else:
            direct.add(effect.key)
    return {key: some for key, some in additions.items() if key not in direct}


def _grouped(units: Sequence[Unit], shared: Shared | None) -> Iterator[Unit]:
    """Ledger units sorted by the rows that they share, the most shared first; then claims in the order of changes.

    Every other group of a most shared row is reversed: rows that two groups share meet where both meet. With deltas,
    units are sorted by the buckets of their additions: a transaction puts one delta for each.
    """
    ledger = [unit for unit in units if unit.steps]
    if shared is not None and shared.takes_any:
        in_buckets = [(_by_bucket(unit, shared), number) for number, unit in enumerate(ledger)]
        yield from (ledger[number] for _, number in sorted(in_buckets))
        yield from (unit for unit in units if not unit.steps)
        return
    touched: Counter[WrittenKey] = Counter(
        [effect.key for unit in ledger for effect in unit.effects if type(effect) is AddRow]
    )
    common = [key for key, count in touched.items() if count > 1]
    common.sort(key=lambda key: (-touched[key], " ".join(map(str, key))))
    places = {key: place for place, key in enumerate(common)}
    anchored = sorted([(_anchor(unit, places), number) for number, unit in enumerate(ledger)])
    for turn, (_, group) in enumerate(groupby(anchored, lambda each: each[0][0])):
        some = [ledger[number] for _, number in group]
        yield from reversed(some) if turn % 2 else some
    yield from (unit for unit in units if not unit.steps)


def _anchor(unit: Unit, places: Mapping[WrittenKey, int]) -> list[int]:
    # The most shared row first, and units without a shared row last.
    own = sorted([places[effect.key] for effect in unit.effects if effect.key in places])
    return own or [len(places)]


def _by_bucket(unit: Unit, shared: Shared) -> tuple[list[int], list[str]]:
    """First by the buckets of additions that wait, then by the rows that are added to directly."""
    wait = _waiting_additions(unit, shared)
    rows = [str(effect.key) for effect in unit.effects if type(effect) is AddRow and effect.key not in wait]
    return sorted({bucket_of(additions[0].key) for additions in wait.values()}), sorted(rows)


class _TransactionBuilder:
    """Collects units until one does not fit: too many actions, too large, or a write that cannot be merged."""

    def __init__(self, actions: int, shared: Shared | None = None) -> None:
        self.actions = actions
        self.shared = shared
        self.waiting: dict[int, Additions] = {}  # that go through deltas, by bucket
        self.waits: dict[StateKey, set[WrittenKey]] = {}  # the rows of these, by unit
        self.units: list[Unit] = []
        self.guards: set[StateKey] = set()
        self.rows: dict[WrittenKey, UnitWrite] = {}
        self.written = 0  # number of rows that change
        self.bytes = 0

    def add(self, unit: Unit) -> bool:
        """Takes the unit and returns True; or returns False and changes nothing. The first unit may have any size."""
        if self.units and (unit.guard.key in self.guards or self._is_of_another_shard(unit)):
            return False
        merged: dict[WrittenKey, UnitWrite] = {}
        size, written, rows = estimated_bytes(unit.guard), self.written, self.rows
        waiting: dict[int, Additions] = {}
        wait = _waiting_additions(unit, self.shared) if self.shared is not None else {}
        taken = {key for key, additions in wait.items() if self._takes(additions, waiting)}
        if self.units and len(taken) < len(wait):
            return False
        for effect in unit.effects:
            key = effect.key
            if key in taken:
                continue
            present = merged.get(key) or rows.get(key)
            if present is None:
                merged[key] = effect
                written += _is_written(effect)
            else:
                joined = _join(present, effect)
                if joined is None:
                    return False
                merged[key] = joined
                written += _is_written(joined) - _is_written(present)
            is_small = type(effect) is AddRow and not effect.values  # as most are
            size += ACTION_BYTES if is_small else estimated_bytes(effect)
        size += ADDITION_BYTES_MAX * len(unit.effects) if waiting else 0
        put = len(waiting.keys() | self.waiting.keys())
        full = len(self.units) + 1 + written + put > self.actions or self.bytes + size > BYTES_PLANNED_MAX
        if self.units and full:
            return False
        if waiting:
            self.waiting.update(waiting)
            self.waits[unit.guard.key] = taken
        rows.update(merged)
        self.written = written
        self.units.append(unit)
        self.guards.add(unit.guard.key)
        self.bytes += size
        return True

    def _is_of_another_shard(self, unit: Unit) -> bool:
        """Whether a unit writes another shard of a spread row. With one shard each, transactions seldom conflict."""
        if not (unit.effects and any(map(is_spread, unit.routes))):
            return False
        return not any(isinstance(effect, AddRow) and effect.key in self.rows for effect in unit.effects)

    def filled(self, idle: deque[Unit]) -> Transaction:
        """The transaction, filled up with units that write no row."""
        while idle and self.add(idle[0]):
            idle.popleft()
        return self.transaction()

    def transaction(self) -> Transaction:
        guards: Sequence[GuardedWrite] = [unit.guard for unit in self.units]
        rows = [row for row in self.rows.values() if _is_written(row)]
        if self.shared is None:
            return Transaction(tuple(self.units), (*guards, *rows))
        deltas = {new_name(bucket, self.shared.sharing.token()): each for bucket, each in self.waiting.items()}
        guards = [_naming(unit, self.waits.get(unit.guard.key, ()), deltas, self.shared) for unit in self.units]
        handlers: dict[str, set[str]] = {name: set() for name in deltas}
        for unit, guard in zip(self.units, guards, strict=True):
            for handler, name in _named_by(unit, guard):
                handlers.get(name, set()).add(handler)
        puts = [
            SwapText(
                # A name that was used would replace a delta that is pending: what that adds would be lost.
                delta_key(_application(self.units[0].guard.key), name),
                additions.delta(handlers[name], self.shared.met(additions.rows)).text(),
                None,
            )
            for name, additions in deltas.items()
        ]
        return Transaction(tuple(self.units), (*guards, *rows, *puts))

    def _takes(self, additions: Sequence[AddRow], waiting: dict[int, Additions]) -> bool:
        """Adds a unit's additions to one row to their bucket's delta; False, and none of them is in it, if that is
        full, or a sum would have too many digits.
        """
        row = additions[0].key
        bucket = bucket_of(row)
        present = waiting.get(bucket) or self.waiting.get(bucket, Additions())
        if len(present) >= ROWS_MAX and row not in present.rows:
            return False
        more = present.copy()
        try:
            for each in additions:
                more.add(each)
            more.both(row)
        except (DecimalException, HandlerError):
            return False
        waiting[bucket] = more
        return True


def _named_by(unit: Unit, guard: GuardedWrite) -> Iterator[tuple[str, str]]:
    """The handlers of a unit, with the deltas that its guard names."""
    if isinstance(guard, Claim):
        yield from ((unit.routes[0].name, name) for name in names_in(guard.deltas))
    elif isinstance(guard, LedgerWrite):
        yield from ((each.handler, name) for each in guard.contributions for name in names_in(each.deltas or ""))


def _application(key: StateKey) -> str:
    return key.pk.split("#", 2)[1]


def _naming(
    unit: Unit, rows: Collection[WrittenKey], deltas: Mapping[str, Additions], shared: Shared
) -> LedgerWrite | Claim:
    """A unit's guard with the names of the deltas that hold what the unit adds to these rows.

    An optimistic guard requires that its item's last step is in the rows, too.
    """
    guard = unit.guard
    if isinstance(guard, Claim):
        return guard._replace(deltas=_names(rows, deltas)) if rows else guard
    if not rows and guard.revision is not None:
        return guard
    steps = {step.route.name: step for step in unit.steps}
    contributions = []
    for each in guard.contributions:
        own = [row for row in rows if any(route.name == each.handler for route in writers(unit, row))]
        names = _names(own, deltas) if own and each.handler in steps else ""
        if each.deltas:  # what other rows refuse of earlier steps
            names = names_text({**names_in(each.deltas), **names_in(names)})
        gone = each.gone
        if guard.revision is None:
            gone = shared.gone(guard.key, each.handler)
        kept = each.deltas if not names and not gone else names
        before = _changed_by(unit, steps[each.handler]) if names and not each.deltas else None
        contributions.append(each._replace(deltas=kept, gone=gone, before=before))
    return guard._replace(contributions=tuple(contributions))


def _changed_by(unit: Unit, step: Step) -> str | None:
    """What a step changes that puts deltas, so that it can be taken back."""
    if unit.found is not None:
        stored = unit.found.contributions.get(step.route.name)
        return (
            before_text(stored.version, stored_rows(stored.text), step.after)
            if stored
            else before_text("", {}, step.after)
        )
    version = just_before(unit.changes[0].version_text)
    return None if step.before is None else before_text(version, step.before, step.after)


def _names(rows: Iterable[WrittenKey], deltas: Mapping[str, Additions]) -> str:
    found = {
        name: frozenset(row_name(row) for row in rows if row in additions.rows) for name, additions in deltas.items()
    }
    return names_text({name: some for name, some in found.items() if some})


def _is_written(write: UnitWrite) -> bool:
    # Additions of several units may cancel each other out.
    return type(write) is not AddRow or write.contributors != 0 or not write.changes_nothing


def _join(one: UnitWrite, other: UnitWrite) -> UnitWrite | None:
    """Two writes of one row as one, or None where they cannot be in one transaction."""
    if isinstance(one, AddRow) and isinstance(other, AddRow):
        if one.life != other.life or is_dropped(one) or is_dropped(other):
            return None
        try:
            return one.merged(other)
        except DecimalException:
            return None
    if isinstance(one, GuardedPut) and isinstance(other, GuardedPut) and one.owner == other.owner:
        return max(one, other, key=lambda put: put.version)
    return None


def most_shared_first(transactions: Sequence[Transaction]) -> Sequence[Transaction]:
    """Transactions in the order in which most are in flight together: those that block most others come first.

    Transactions whose changes are delivered in order come after the others, and keep their order.
    """
    times = Counter([write.key for transaction in transactions for write in transaction.writes])

    def in_the_way(transaction: Transaction) -> tuple[bool, int]:
        if not all(unit.steps for unit in transaction.units):
            return True, 0
        return False, -sum([times[write.key] - 1 for write in transaction.writes])

    return sorted(transactions, key=in_the_way)
