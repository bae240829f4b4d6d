"""Plans units again, from the item in a refusal or from the ledger."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.commit.buckets import ready, wait_for_items
from streamfold.commit.emptying import note_refused, with_notes, would_be_empty
from streamfold.commit.outcome import Failed
from streamfold.commit.pending import NamedByHandler, Progress
from streamfold.commit.plan import (
    Transaction,
    Unit,
    WrittenKey,
    again,
    amends,
    by_handler,
    is_dropped,
    pack,
    without,
    without_row,
    writers,
)
from streamfold.commit.transactions import (
    in_slots,
    is_added_to,
    is_stale,
    not_its_row,
    read_rows,
    read_state,
    send,
)
from streamfold.engines import Engine, Entries
from streamfold.errors import EngineError, EngineUnavailable, HandlerError, RowTaken, redacted
from streamfold.keys.table import CONTRIBUTORS, VERSION
from streamfold.ledger.contribution import Contribution, LedgerItem, elsewhere, kept_text
from streamfold.ledger.lives import Lives
from streamfold.ledger.state_keys import claimed_identity, contribution_key, names_of_rows, row_name, version_of
from streamfold.routes.route import Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import (
    CONDITION,
    AddRow,
    GuardedPut,
    GuardedWrite,
    LedgerWrite,
    Reason,
    Refused,
    RowKey,
    StateKey,
    SwapText,
)

if TYPE_CHECKING:
    from streamfold.commit.pending import ItemAndHandler
Coming = tuple[Route, Contribution, Contribution]
"""A handler, the item's earlier contribution through it as far as it is known, and its contribution now."""
READS_MAX = 3
"""Times that a ledger item and its large contributions are read until they match each other."""

CLAIMS_READ, CLAIMS_READ_MAX = 20, 1_280
"""Claims of newer changes that the first read takes, the newest first, and the bound; each read takes four times as
many as the one before. The newest claim names the rows of most handlers.
"""
BEHIND_VERSIONS = ":"
"""Sorts behind every version, because a version begins with a digit."""

Newer = Mapping[RowKey, str]
"""Rows of an older change, each with the version of the newest change whose claim names it."""

Named = Callable[[Unit, LedgerItem], Iterable[NamedByHandler]]
FoundUnits = Sequence[tuple["Unit", LedgerItem]]
"""Units with the ledger items that they are to be planned from."""
DeriveAgain = Callable[[FoundUnits], tuple[FoundUnits, list[Failed]]]
"""Units with the steps of handlers that look others up derived again, from referents that are read now, and the
handlers that raise then."""
Revisit = Callable[[Sequence[Unit]], tuple[list[Unit], list[Failed]]]
"""Plans units of visits again, from newer reads of ledger items and sources; returns the handlers that raise then."""


def read_lives(engine: Engine, lives: Lives, steps: Iterable[Coming], *, consistent: bool = False) -> None:
    """Reads rows that expire, to which items are added, and whose life the process does not know.

    A row that is read too late costs a refused transaction, which shows the row's life.
    """
    rows = dict.fromkeys(
        row for route, before, after in steps for row in lives.unknown(route, after) if row not in before
    )
    if rows:
        lives.read(engine.read_rows(rows, consistent=consistent))


def filled(engine: Engine, key: StateKey, found: LedgerItem, handlers: Collection[str]) -> LedgerItem:
    """A ledger item with the large contributions of these handlers.

    Raises ``EngineUnavailable`` if the item changes at each of ``READS_MAX`` reads; the records are retried.
    """
    # A step in between replaces the item and its large contributions, and both reads must be of one step.
    for _ in range(READS_MAX):
        whole = _with_large_contributions(engine, key, found, handlers)
        if whole is not None:
            return whole
        found = LedgerItem.of(engine.read_state([key], consistent=True).get(key))
    raise EngineUnavailable(f"Ledger item {redacted(key.pk)} changed while it was read.")


def _with_large_contributions(
    engine: Engine, key: StateKey, found: LedgerItem, handlers: Collection[str]
) -> LedgerItem | None:
    """The ledger item with its large contributions; None if the digest of one does not match: it changed between the
    reads.
    """
    large = {
        contribution_key(key, name): name
        for name, each in found.contributions.items()
        if name in handlers and elsewhere(each)
    }
    if not large:
        return found
    items = engine.read_state(large, consistent=True)
    contributions = dict(found.contributions)
    for place, name in large.items():
        text = items[place]["s"] if place in items else ""
        if kept_text(text) != contributions[name].text:
            return None
        contributions[name] = contributions[name]._replace(text=text)
    return found._replace(contributions=contributions)


class ClaimsPartition(NamedTuple):
    """Where the claims of one handler and item are, in the order of their changes."""

    partition: str
    beginning: str  # of their sort keys; sort keys of other items may begin so too

    @classmethod
    def of(cls, unit: Unit) -> "ClaimsPartition":
        return cls(unit.guard.key.pk, unit.guard.key.sk.removesuffix(unit.changes[0].identity_text))


class OlderChanges:
    """Finds the changes of one plan that are older than their rows were, and omits or removes the rows."""

    def __init__(self, runtime: Runtime, progress: Progress) -> None:
        self.runtime = runtime
        self.progress = progress
        self.redriven: list[Unit] = []  # as they were planned, with all of their rows

    def without_newer(self, transactions: Sequence[Transaction]) -> Sequence[Transaction]:
        """The transactions without rows that newer changes wrote or deleted. Units fail whose item's claims are not
        read.
        """
        late = [
            unit
            for transaction in transactions
            for unit in transaction.units
            if not unit.steps and self._may_be_late(unit)
        ]
        if not late:
            return transactions
        newer, failed = self._newer(late)
        if self.runtime.late:
            self.redriven = [unit for unit in late if unit.guard.key not in failed]
        if not failed and not any(newer.values()):
            return transactions
        self._fail(late, failed)
        units = [unit for transaction in transactions for unit in transaction.units if unit.guard.key not in failed]
        wanted = [without(unit, newer[unit.guard.key]) if newer.get(unit.guard.key) else unit for unit in units]
        return pack(wanted, self.runtime.chunk_actions, self.runtime.shared)

    def take_back(self) -> None:
        """Removes the rows of older changes that a newer change wrote or deleted, according to its claim."""
        units = self.redriven or self._overtaken()
        if not units:
            return
        newer, wrong = self._newer(units)
        unread: dict[RowKey, Exception] = {}
        keys = dict.fromkeys(row for named in newer.values() for row in named)
        rows = read_rows(self.runtime, keys, unread) if keys else {}
        for unit in units:
            named = newer.get(unit.guard.key, {})
            try:
                for row in named:
                    if row in unread:
                        raise unread[row]
                self._replace_older(unit, named, rows)
            except (EngineError, HandlerError) as error:
                wrong[unit.guard.key] = error
        self._fail(units, wrong)

    def _replace_older(self, unit: Unit, named: Newer, rows: Mapping[RowKey, Mapping[str, Any]]) -> None:
        """Replaces older rows by tombstones of newer changes."""
        for effect in unit.effects:
            if not isinstance(effect, GuardedPut) or effect.key not in named:
                continue
            row, newest = rows.get(effect.key, {}), named[effect.key]
            if row.get(CONTRIBUTORS) != 0 and row.get(VERSION, newest) < newest:
                # Refused if the row is newer by now, or another item's: then nothing has to be removed.
                refused = send(self.runtime, [effect._replace(attributes=None, version=newest)])
                self.progress.outcome.tally(unit.routes[0].name).removed += refused is None

    def _may_be_late(self, unit: Unit) -> bool:
        return (self.runtime.late or not unit.changes[0].in_order) and _puts(unit)

    def _overtaken(self) -> list[Unit]:
        """Units that were new, and are older than a change of their table that was known. So this batch came before."""
        newest: dict[str, str] = {}
        for unit in self.progress.known:
            (change,) = unit.changes
            if change.in_order:
                newest[change.item[0]] = max(newest.get(change.item[0], ""), change.version_text)
        return [
            unit
            for unit in (self.progress.claimed if newest else ())
            if unit.changes[0].version_text < newest.get(unit.item[0], "") and _puts(unit)
        ]

    def _newer(self, units: Iterable[Unit]) -> tuple[dict[StateKey, Newer], dict[StateKey, Exception]]:
        """The rows of units that newer claims name, and why the claims of some were not read, by the units' claims."""
        places: dict[ClaimsPartition, list[Unit]] = {}
        for unit in units:
            places.setdefault(ClaimsPartition.of(unit), []).append(unit)
        newer: dict[StateKey, Newer] = {}
        failed: EngineError | HandlerError | None = None
        calls = ((place, partial(_named, self.runtime.engine, place, own)) for place, own in places.items())
        slots = self.runtime.slots
        for _, answer in in_slots(slots, calls, stops=lambda _: True, count=slots.reads):
            if isinstance(answer, EngineError | HandlerError):
                failed = failed or answer
            else:
                newer |= answer
        unread = [unit for own in places.values() for unit in own if unit.guard.key not in newer]
        return newer, {unit.guard.key: failed for unit in unread if failed is not None}

    def _fail(self, units: Iterable[Unit], failed: Mapping[StateKey, Exception]) -> None:
        for unit in units:
            if (error := failed.get(unit.guard.key)) is not None:
                self.progress.fail([unit], error)


def _puts(unit: Unit) -> bool:
    # Only a row that comes back is wrong: a deletion needs no check.
    return any(isinstance(effect, GuardedPut) and effect.attributes is not None for effect in unit.effects)


def _put_rows(unit: Unit) -> dict[str, RowKey]:
    return {row_name(effect.key): effect.key for effect in unit.effects if isinstance(effect, GuardedPut)}


def _named(engine: Engine, place: ClaimsPartition, units: Sequence[Unit]) -> dict[StateKey, Newer]:
    """The rows of an item's changes that claims of newer changes name. A claim of older code names none."""
    older = [(unit.changes[0], _put_rows(unit), dict[RowKey, str]()) for unit in units]
    first = place.beginning + min(change.version_text for change, _, _ in older)
    before, most = place.beginning + BEHIND_VERSIONS, CLAIMS_READ
    while True:
        claims = engine.read_entries(Entries(place.partition, most, first, descending=True, before=before))
        for sort_key, text in claims:
            if (identity := claimed_identity(sort_key, place.beginning)) is None:
                continue
            for change, rows, newest in older:
                # Of two changes with one version neither is newer, and the first to come has the row.
                if change.version_text < identity != change.identity_text:
                    for name in rows.keys() & names_of_rows(text):
                        newest.setdefault(rows[name], version_of(identity))
        if len(claims) < most or all(len(newest) == len(rows) for _, rows, newest in older):
            return {unit.guard.key: newest for unit, (_, _, newest) in zip(units, older, strict=True)}
        before, most = claims[-1][0], min(most * 4, CLAIMS_READ_MAX)


class Replanner:
    """Plans units again. A unit that cannot be planned again fails; a unit that the state has already is done."""

    def __init__(
        self,
        runtime: Runtime,
        progress: Progress,
        named: Named,
        retired: Collection[str],
        revisit: Revisit | None,
        derive_again: DeriveAgain | None = None,
    ) -> None:
        self.runtime = runtime
        self.progress = progress
        self.named = named  # the rows of an item for which an earlier attempt may have pending work
        self.derive_again = derive_again
        self.revisit = revisit  # the units are of visits, which nobody plans again from the images at hand
        self.lives = progress.lives
        self.rounds = 1  # that the last refusal counts for: none where it showed a life that is over
        self.retired = retired  # handlers whose contributions go with the last other one of a ledger item
        self.behind: list[Unit] = []  # units whose row belongs to another item, to be tried again behind the others
        self.tried: dict[ItemAndHandler, int] = {}  # changes that had got through when a unit was put behind

    def decide(self, transaction: Transaction, refused: Refused) -> list[Unit]:
        """The units of a transaction to be sent again after conditions failed."""
        failing = [reason if reason and reason.code == CONDITION else None for reason in refused.reasons]
        count, over = len(transaction.units), self.lives.over
        outlived = {
            write.key
            for write, reason in zip(transaction.writes[count:], failing[count:], strict=True)
            if reason is not None and self.lives.refused(write, reason.item)
        }
        guarded = [*zip(transaction.units, failing, strict=False)]
        units: list[Unit] = []
        found: list[tuple[Unit, LedgerItem]] = []
        for unit, reason in guarded:
            if reason is None:
                units.append(unit)
            elif self.revisit is None:
                found += self._found_by(unit, reason)
        units += self._planned_from(found)
        if self.revisit is not None:  # the item in the refusal is newer than the source that was read
            units += self.again([unit for unit, reason in guarded if reason is not None])
        assumed = any(reason for unit, reason in guarded if unit.steps)
        for write, reason in zip(transaction.writes[count:], failing[count:], strict=True):
            # Units that assumed another contribution are planned again: the row's refusal does not apply to their new
            # writes.
            if isinstance(write, SwapText):
                continue  # refused with the ledger items that name the delta: the transaction had taken effect before
            if reason is not None and not (assumed and isinstance(write, AddRow)) and write.key not in outlived:
                units = self._without_refused(units, write, reason)
        self.rounds = int(self.lives.over == over)
        return self._in_other_lives(units, outlived) if outlived else units

    def _in_other_lives(self, units: list[Unit], outlived: Collection[WrittenKey]) -> list[Unit]:
        """Units planned again that assumed another state of these rows."""
        if self.revisit is not None:
            wrong = [unit for unit in units if writes_any(unit, outlived)]
            return [unit for unit in units if not writes_any(unit, outlived)] + self.again(wrong)
        planned = (again(unit, unit.found, self.retired) if writes_any(unit, outlived) else unit for unit in units)
        return [unit for unit in planned if unit is not None]

    def _found_by(self, unit: Unit, reason: Reason) -> list[tuple[Unit, LedgerItem]]:
        """A unit with the ledger item that refused it; a claim that is there is done."""
        if not isinstance(unit.guard, LedgerWrite):
            self._claimed(unit, reason.item)
            return []
        if reason.item is None and unit.guard.revision == 0:  # refused because there is an item, yet none is shown
            return self.found([unit], consistent=True)
        found = self._filled(unit, LedgerItem.of(reason.item))
        return [] if found is None else [(unit, found)]

    def _claimed(self, unit: Unit, claim: Mapping[str, Any] | None) -> None:
        """Counts a change that was done before. What its claim names may still wait in deltas."""
        self.progress.done(unit)
        self.progress.pending_work.deltas.wait_for((claim or {}).get("p", ""), unit.routes, unit.changes)

    def _without_refused(self, units: list[Unit], write: GuardedWrite, reason: Reason) -> list[Unit]:
        if is_stale(write, reason):
            return [without(unit, [write.key]) for unit in units]
        if would_be_empty(write, reason):
            note_refused(self.runtime.pace.emptying, units, write.key)
            # Of all handlers: a refusal need not name every row.
            return [with_notes(unit, [route.name for route in unit.routes], self.retired) for unit in units]
        if is_dropped(write):  # the row counts enough by now, or is there again
            return self._in_other_lives(units, [write.key])
        if isinstance(write, AddRow) and write.contributors_min is not None:
            return self._without_lost(units, write.key, reason.item)
        remaining: list[Unit] = []
        for unit in units:
            if not writes_any(unit, {write.key}):
                remaining.append(unit)
            elif is_added_to(write, reason):
                remaining += self.again([unit._replace(added=unit.added | {write.key})], consistent=True)
            elif self.lives.expired(write):
                remaining += self._in_other_lives([unit], [write.key])
            elif len(apart := by_handler(unit)) > 1:
                remaining += apart
            else:
                self._taken(unit, not_its_row(unit.routes[0], write, reason))
        return remaining

    def _without_lost(self, units: Sequence[Unit], row: RowKey, found: Mapping[str, Any] | None) -> list[Unit]:
        """Units without their amendments of a row that somebody removed, which are counted."""
        for unit in units:
            if any(effect.key == row and amends(effect) for effect in unit.effects):
                self.progress.lose(row, writers(unit, row))
        return [unit._replace(effects=without_row(unit.effects, row, found)) for unit in units]

    def with_notes(self, units: Iterable[Unit]) -> list[Unit]:
        """Units whose steps note the rows that they may leave empty, if their handlers do so every now and then."""
        return [with_notes(unit, self.runtime.pace.emptying, self.retired) for unit in units]

    def _taken(self, unit: Unit, error: HandlerError) -> None:
        """Tries a unit again behind the others while these get through: one of them may give the row up."""
        work, got_through = (unit.item, unit.routes[0].name), len(self.progress.outcome.fresh)
        if isinstance(error, RowTaken) and unit.steps and self.tried.get(work) != got_through:
            self.tried[work] = got_through
            self.behind.append(unit)
        else:
            self.progress.fail([unit], error)

    def again(self, units: Sequence[Unit], *, consistent: bool = False) -> list[Unit]:
        """Ledger units planned again from the ledger."""
        if self.revisit is not None:
            return self._revisited(self.revisit, units)
        return self._planned_from(self.found(units, consistent=consistent))

    def _planned_from(self, found: FoundUnits) -> list[Unit]:
        """Units planned again from ledger items that were read since: referents are read after these, again."""
        if self.derive_again is not None:
            looking = [each for each in found if any(step.route.lookups for step in each[0].steps)]
            if looking:
                others = [each for each in found if each not in looking]
                try:
                    derived, failed = self.derive_again(looking)
                except EngineError as error:
                    self.progress.fail([unit for unit, _ in looking], error)
                    derived, failed = [], []
                self.progress.report(failed)
                found = [*others, *derived]
        if any(item.waits for _, item in found):
            found = self._waited(found)
        return [planned for unit, item in found for planned in self.planned(unit, item)]

    def _waited(self, found: FoundUnits) -> FoundUnits:
        """The units whose items' last steps are in the rows by now; the others fail."""
        try:
            wait_for_items(self.runtime, self.progress.pending_work.deltas, (item for _, item in found))
        except EngineError as error:
            self.progress.fail([unit for unit, item in found if item.waits], error)
            return [(unit, item) for unit, item in found if not item.waits]
        return found

    def _revisited(self, revisit: Revisit, units: Sequence[Unit]) -> list[Unit]:
        if not units:
            return []
        try:
            planned, failed = revisit(units)
        except EngineError as error:
            self.progress.fail(units, error)
            return []
        self.progress.report(failed)
        return planned

    def planned(self, unit: Unit, found: LedgerItem) -> list[Unit]:
        """A unit planned again, or nothing if the ledger has all of it already.

        An earlier attempt may have died before it removed empty rows or recomputed rows: this work is done again.
        """
        for routes, named in self.named(unit, found):
            self.progress.pending_work.take(named, routes, unit.changes)
        self.progress.pending_work.note_found(unit.guard.key, unit.item, unit.routes, found)
        deltas, planned = self.progress.pending_work.deltas, again(unit, found, self.retired)
        if planned is None:
            self.progress.done(unit)
            deltas.wait_for_item(found, unit.routes, unit.changes)
            return []
        if found.waits:
            try:
                held = ready(found, planned.steps, deltas)
                deltas.wait_for_item(held, unit.routes, unit.changes)  # what a row refuses still
                planned = again(unit, held, self.retired)
            except HandlerError as error:
                self.progress.fail([unit], error)
                return []
        return [] if planned is None else [planned]

    def unclaimed(self, units: list[Unit]) -> list[Unit]:
        """The units without those whose claims exist already."""
        claims = [unit for unit in units if not unit.steps]
        if not claims:
            return units
        try:
            taken = read_state(self.runtime, [unit.guard.key for unit in claims])
        except EngineError as error:
            self.progress.fail(claims, error)
            return [unit for unit in units if unit.steps]
        for unit in claims:
            if unit.guard.key in taken:
                self._claimed(unit, taken[unit.guard.key])
        return [unit for unit in units if unit.guard.key not in taken]

    def found(self, units: Sequence[Unit], *, consistent: bool = False) -> list[tuple[Unit, LedgerItem]]:
        """The ledger items of units. Units whose ledger item cannot be read fail."""
        if not units:
            return []
        try:
            keys = [unit.guard.key for unit in units]
            items = read_state(self.runtime, keys, consistent=consistent)
        except EngineError as error:
            self.progress.fail(units, error)
            return []
        read = [(unit, self._filled(unit, LedgerItem.of(items.get(unit.guard.key)))) for unit in units]
        return [(unit, item) for unit, item in read if item is not None]

    def _filled(self, unit: Unit, found: LedgerItem) -> LedgerItem | None:
        try:
            return filled(self.runtime.engine, unit.guard.key, found, {route.name for route in unit.routes})
        except EngineError as error:
            self.progress.fail([unit], error)
            return None


def writes_any(unit: Unit, places: Collection[RowKey | StateKey]) -> bool:
    """Whether a unit writes an item of one of these keys."""
    return unit.guard.key in places or any(effect.key in places for effect in unit.effects)
