"""Repair of one source item: its ledger parts and rows are derived again from the item as it is now.

The ledger item is read first, *then* the source item, both strongly consistent. The write requires the ledger's
revision to be the one read. A change of the item in between moves the ledger, so that the write is refused and the
repair starts again with the first read. A repair writes a fence even if nothing differs, so that no write planned
before it can succeed after it.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import localcontext
from typing import NamedTuple

from streamfold.batch.manifest import note_expiring
from streamfold.batch.process import check_application
from streamfold.batch.steps import images
from streamfold.batch.stored_schema import keep_forms
from streamfold.commit.after_commit import recompute
from streamfold.commit.outcome import explained
from streamfold.commit.pending import NamedRows, Unfinished
from streamfold.commit.plan import without_row
from streamfold.commit.replanning import filled
from streamfold.commit.transactions import check_passing, counts_contributors, is_added_to, is_throttled, not_the_owner
from streamfold.derivations.derivation import LOST, Finishing, Work, contributing, derivation, derived
from streamfold.engines.deadline import TRIES_MAX
from streamfold.errors import Contended, ItemFault, Unprocessable
from streamfold.ledger.contribution import BEFORE_ALL, Contribution, LedgerItem
from streamfold.ledger.forms import Forms
from streamfold.ledger.lives import Lives
from streamfold.ledger.state_keys import ledger_key
from streamfold.ledger.step import Step, Transition, repaired
from streamfold.records.change import Change, ItemKey, image_of
from streamfold.records.values import EXACT
from streamfold.routes.route import ROWS_LOST, Fields, Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import CONDITION, AddRow, GuardedWrite, LedgerWrite, Refused, RowKey


class Repaired(NamedTuple):
    """The result of a repair for one item and handler."""

    item: ItemKey
    handler: str
    written: int = 0  # rows
    removed: int = 0  # rows
    known: bool = False  # the ledger already held the version that was asked for, or a newer one
    error: Exception | None = None  # why nothing was repaired
    conflicts: tuple[Unprocessable, ...] = ()  # unique rows that another item claims too; a repair parks nothing
    handed_on: bool = False  # a fan-out goes on with the rows


def led_by_item(route: Route) -> bool:
    """Whether a late record leads the item to its source as it is now, instead of being replayed."""
    return derivation(route).reconciles and not derivation(route).redriven_by_record


class RepairWork(NamedTuple):
    """One handler's part of one item, to be repaired."""

    item: ItemKey
    route: Route
    fields: Fields
    version: str  # the ledger is to hold at least this one afterwards


@dataclass(slots=True)
class OddRows:
    """What refused writes revealed about rows that are not as their target declares."""

    added: set[RowKey] = field(default_factory=set)  # other handlers add to them
    gone: dict[RowKey, bool] = field(default_factory=dict)  # removed by somebody; True: others made them again
    left: str = ""  # what the ledger item says that earlier steps left behind


@dataclass(slots=True)
class Repair:
    """Repairs items of one application. With ``dry_run`` it only reports what it would do.

    emptied: items are taken for absent, so that all that they contribute is taken back.
    """

    runtime: Runtime
    dry_run: bool = False
    checked: bool = False  # the caller has held the application against the state, which a repair does otherwise
    emptied: bool = False

    def item(
        self,
        item: ItemKey,
        *,
        version: str = BEFORE_ALL,
        handlers: Collection[str] | None = None,
        changes: Sequence[Change] = (),
    ) -> list[Repaired]:
        """Repairs an item for handlers (None: all that late records do not replay).

        version: of the record that the repair stands for; the ledger's version is at least this one afterwards.
        changes: such records. Rows that their images name, and that a crash left empty, are removed.

        Raises ``EngineError`` if the source item cannot be read; nothing is then retracted.
        """
        found = []
        for each, fields in self.runtime.application.listeners(item):
            route = each.route
            if led_by_item(route) and (handlers is None or route.name in handlers):
                with localcontext(EXACT):
                    found.append(self._repaired(Work(route, item, each.role, fields, changes), version))
        return found

    @property
    def _finishing(self) -> Finishing:
        """What a kind is given: a repair parks nothing."""
        return Finishing(self.runtime, lambda failed: failed, Unfinished())

    def _repaired(self, work: Work, version: str) -> Repaired:
        """The result for one handler, with the error that prevented it."""
        route, item, _, fields, changes = work
        with ItemFault() as fault:  # what is no item's fault lets nothing be repaired
            if route.kind.contributes:
                return self._by_ledger(RepairWork(item, route, fields, version), changes)
            return self._by_kind(work)
        assert fault.error is not None
        return Repaired(item, route.name, error=explained(route, fault.error))

    def _by_kind(self, work: Work) -> Repaired:
        """Lets a kind without a ledger repair what it derived from an item. A dry run counts one write."""
        if self.dry_run:
            return Repaired(work.item, work.route.name, written=1)
        self._check()
        outcome = derivation(work.route).reconcile(work, self._finishing)
        tally = outcome.tally(work.route.name)
        wrong = next((failed.error for failed in outcome.failed), None)
        handed_on = tally.handed_on > 0
        return Repaired(work.item, work.route.name, tally.written, tally.removed, error=wrong, handed_on=handed_on)

    def _by_ledger(self, work: RepairWork, changes: Sequence[Change]) -> Repaired:
        """Repairs a handler's part of the ledger item, and its rows."""
        written, removed, named = 0, 0, _named(self.runtime.application.name, work, changes, self.runtime.known.forms)
        odd, lives = OddRows(), Lives(self.runtime.known.lives)
        if not self.dry_run:
            self._check()
        number = 0
        while number < TRIES_MAX:
            known, transition = self._planned(work, named, odd, lives)
            tally, after = transition.tallies[0], transition.rows[0]
            if self.dry_run:
                planned = Repaired(work.item, work.route.name, tally.written, tally.removed, known)
                return self._finished(planned, work.route, after, NamedRows())
            note_expiring(self.runtime)
            if not keep_forms(self.runtime):
                number += 1
                continue  # the handler is refused now
            writes = _writes(transition, odd)
            refused = self.runtime.engine.transact(writes, self.runtime.expires_at)
            if refused is not None:
                over = lives.over
                self._decide(work, writes, refused, number, odd, lives)
                number += lives.over == over  # what a row that expired refuses is refused once
                continue
            lives.committed(writes)
            written, removed = written + tally.written, removed + tally.removed
            named.rows |= _lowered(writes)
            for write in writes:
                if isinstance(write, AddRow):
                    named.take(write.key, write.changed_entries)
            if not transition.partial:
                removed += self._remove_empty(named.rows - after.keys())
                for error in recompute(self.runtime, named.changed_entries).values():
                    raise error
                done = Repaired(work.item, work.route.name, written, removed, known)
                done = self._finished(done, work.route, after, named)
                self._forget_left(transition, odd)
                return done
        raise Contended(
            f"Refused {TRIES_MAX} times in a row, because others change the item or its rows; do it again later."
        )

    def _finished(self, done: Repaired, route: Route, after: Contribution, named: NamedRows) -> Repaired:
        """The result, with the conflicts that the kind finds when it finishes the repair."""
        met = contributing(route).reconciled(route, done.item, after, named, self._finishing)
        return done._replace(conflicts=tuple(met))

    def _check(self) -> None:
        if not self.checked:
            check_application(self.runtime)

    def _forget_left(self, transition: Transition, odd: OddRows) -> None:
        """Deletes the ledger's note of unfinished work: it is done now."""
        (part,) = transition.guard.parts
        if text := part.left or odd.left:
            self.runtime.engine.forget({transition.guard.key: {part.handler: text}})

    def _planned(self, work: RepairWork, named: NamedRows, odd: OddRows, lives: Lives) -> tuple[bool, Transition]:
        """Whether the ledger held the version already, and the step to the source item as it is now.

        named: takes the rows that the ledger item names.
        """
        key = ledger_key(self.runtime.application.name, work.route.group, work.item)
        found = LedgerItem.of(self.runtime.engine.read_state([key], consistent=True).get(key))
        found = filled(self.runtime.engine, key, found, {work.route.name})
        named.add_stored(self.runtime.application.name, work.route, work.item, found)
        source = (
            None if self.emptied else self.runtime.engine.read_source(work.item)
        )  # after the ledger item: see above
        after = derived(work.route, image_of(source), work.fields, self.runtime.known.forms).checked()
        self.runtime.known.learn_expiring()
        stored = found.parts.get(work.route.name)
        known = stored is not None and stored.version >= work.version != BEFORE_ALL
        odd.left = stored.left if stored else ""
        step = Step(work.route, work.version, None, after)
        transition = repaired(key, work.item, step, found, odd.added, lives)
        named.hold(self.runtime.application.name, work.route, work.item, transition.rows[0])
        return known, transition

    def _decide(
        self,
        work: RepairWork,
        writes: Sequence[GuardedWrite],
        refused: Refused,
        number: int,
        odd: OddRows,
        lives: Lives,
    ) -> None:
        """Returns if another try may succeed, after a pause if others are in the way. Raises otherwise."""
        failing = [
            (write, reason)
            for write, reason in zip(writes, refused.reasons, strict=True)
            if reason is not None and reason.code == CONDITION
        ]
        outlived = [lives.refused(write, reason.item) for write, reason in failing]
        if any(isinstance(write, LedgerWrite) for write, _ in failing):
            odd.gone.clear()  # what rows refused to a step from another contribution says nothing of them
            return
        for (write, reason), is_outlived in zip(failing, outlived, strict=True):
            if is_outlived:
                continue
            if isinstance(write, AddRow):
                odd.gone[write.key] = counts_contributors(reason)
                self._warn_of_loss(work.route)
            elif is_added_to(write, reason):
                odd.added.add(write.key)
            elif not lives.expired(write):
                raise not_the_owner(write, reason)
        if failing:
            return
        check_passing(refused)
        self.runtime.back_off(number, throttled=is_throttled(refused))

    def _warn_of_loss(self, route: Route) -> None:
        self.runtime.warn_once((ROWS_LOST, route.name), LOST[ROWS_LOST].text.format(name=route.name, count="1 or more"))

    def _remove_empty(self, rows: set[RowKey]) -> int:
        """Removes the rows that nothing contributes to any more; returns how many."""
        return len(self.runtime.engine.remove_empty(sorted(rows, key=str))) if rows else 0


def _writes(transition: Transition, odd: OddRows) -> list[GuardedWrite]:
    effects = transition.effects
    for key, there in odd.gone.items():
        effects = without_row(effects, key, there=there)
    moving = (effect for effect in effects if not (isinstance(effect, AddRow) and effect.changes_nothing))
    return [transition.guard, *moving]


def _lowered(writes: Iterable[GuardedWrite]) -> set[RowKey]:
    return {write.key for write in writes if isinstance(write, AddRow) and write.may_empty}


def _named(application: str, work: RepairWork, changes: Sequence[Change], forms: Forms) -> NamedRows:
    """The rows that the images of records name: an interrupted attempt may have left them empty or unfinished."""
    named = NamedRows()
    for image in images(changes):
        # An image on which the handler raises contributed nothing.
        named.add(application, work.route, work.item, derived(work.route, image, work.fields, forms).rows)
    return named
