"""Takes steps back whose additions a row refuses, so that a refused delta concerns nobody but who caused it.

A delta merges what several items add. If a row takes it no more, the step of each item that waits for it is taken back:
in one transaction the ledger item contributes what it did before, the item's share leaves the delta, and what the step
moved elsewhere is moved back. Then the item is processed again without deltas: it succeeds or fails by itself.

| ledger item   | event                                            | next       | the failure that this prevents      |
| ------------- | ------------------------------------------------ | ---------- | ----------------------------------- |
| names a delta | ledger item, delta and rows are as they were     | taken back | the share counts twice, or is taken |
|               | read: one transaction writes all of them         |            | from what others add                |
| names a delta | another row that the step moved cannot be        | the        | a next contribution of the item is  |
|               | written                                          | refused    | refused with this one               |
|               |                                                  | rows go    |                                     |
|               |                                                  | back alone |                                     |
| names a delta | the delta is gone, or others took the step back  | as it is   | what is in the row is taken away    |
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import DecimalException

from streamfold.commit.buckets import WaitingDeltas
from streamfold.commit.pending import PendingWork
from streamfold.commit.plan import dropped, unit_of
from streamfold.commit.transactions import filled, is_throttled
from streamfold.engines.deadline import TRIES_MAX
from streamfold.errors import EngineError, EngineUnavailable, HandlerError
from streamfold.ledger.contribution import (
    Contribution,
    LedgerItem,
    StoredContribution,
    has_stored,
    kept_text,
    moments_of,
    stored_references,
    stored_rows,
    stored_text,
)
from streamfold.ledger.deltas import Additions, Delta, contribution_before, delta_key, names_in, version_before
from streamfold.ledger.difference import difference
from streamfold.ledger.lives import Lives
from streamfold.ledger.state_keys import row_name
from streamfold.ledger.step import Step, Transition, taken_back
from streamfold.records.change import Change, ItemKey
from streamfold.routes.route import Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import (
    CONDITION,
    CONFLICT,
    AddRow,
    DeleteState,
    GuardedWrite,
    Refused,
    RowKey,
    StateKey,
    SwapText,
)


@dataclass(slots=True, eq=False)
class StepBack:
    """The step of one handler of one item that is taken back."""

    key: StateKey
    item: ItemKey
    route: Route
    changes: Sequence[Change]


class TakingBack:
    """Takes steps back. pending_work: takes the rows that are lowered by it."""

    def __init__(self, runtime: Runtime, pending_work: PendingWork, lives: Lives) -> None:
        self.runtime, self.engine = runtime, runtime.engine
        self.pending_work, self.lives = pending_work, lives

    def take(self, way: StepBack) -> bool:
        """Takes a step back; False if it cannot be: its additions wait for the row. True also if nothing waits."""
        try:
            for only_refused in (False, True):  # all that the step moved, or the refused rows alone
                if (done := self._take(way, only_refused=only_refused)) is not None:
                    return done
        except EngineUnavailable:
            pass
        except (EngineError, HandlerError, DecimalException):  # damaged, or the rest of a delta is no number
            pass
        return False

    def _take(self, way: StepBack, *, only_refused: bool) -> bool | None:
        """None: a row that the step moved beside the refused one cannot be written."""
        removed: dict[RowKey, Mapping[str, object] | None] = {}
        for number in range(TRIES_MAX):
            found = self._read(way)
            stored = found.contributions.get(way.route.name)
            if stored is None or not stored.deltas:
                return True
            pending = self._pending(names_in(stored.deltas))
            if not pending:
                return True
            if stored.before is None or any(not each.refused for each in pending.values()):
                return False
            refusing = _refusing(stored, pending)
            transition = self._transition(way, found, stored, refusing if only_refused else None)
            if transition.partial:
                return None
            application, (before,) = self.runtime.application.name, transition.rows
            shares = _shares(application, way.item, way.route, stored, before, pending)
            rows = self._rows(transition, refusing, removed)
            writes: list[GuardedWrite] = [transition.guard, *rows, *shares]
            try:
                refused = self.engine.transact(writes, self.runtime.expires_at)
            except EngineUnavailable:
                raise
            except EngineError:  # the table of another row is missing or forbidden
                return None
            if refused is None:
                self._note(way, transition, rows)
                return True
            if not self._learns(writes, refused, removed, number):
                return None
        return False

    def _read(self, way: StepBack) -> LedgerItem:
        stored = self.engine.read_state([way.key], consistent=True).get(way.key)
        return filled(self.engine, way.key, LedgerItem.of(stored), {way.route.name})

    def _pending(self, names: Collection[str]) -> dict[str, Delta]:
        """The deltas of these names that are there, as of one moment."""
        application = self.runtime.application.name
        keys = {delta_key(application, name): name for name in names}
        found = self.engine.read_together(keys)
        return {keys[key]: Delta.of(str(item.get("s", "")), key) for key, item in found.items()}

    def _transition(
        self, way: StepBack, found: LedgerItem, stored: StoredContribution, only: Collection[str] | None
    ) -> Transition:
        now = stored_rows(stored.text)
        before = contribution_before(stored.before or "", now, only)
        version = version_before(stored.before or "")
        # Referents are kept: the record of the item leads to them again, and until then their changes find the item.
        step = Step(way.route, version, None, before, references=stored_references(stored.text))
        if way.route.asks_time:  # what the step before asked for is not known: the item is visited at once
            from streamfold.ledger.wakes import Times  # few handlers ask for the time

            at = self.runtime.moment
            step = step._replace(times=Times(at, found.since(way.route.name), at))
        return taken_back(way.key, way.item, step, found, self.lives)

    def _rows(
        self, transition: Transition, refusing: Collection[str], removed: Mapping[RowKey, Mapping[str, object] | None]
    ) -> list[GuardedWrite]:
        """The writes of what the step moved elsewhere."""
        rows: list[GuardedWrite] = []
        for effect in transition.effects:
            if isinstance(effect, AddRow) and row_name(effect.key) in refusing:
                continue
            if isinstance(effect, AddRow) and effect.key in removed:
                rows += dropped(effect, removed[effect.key])
            else:
                rows.append(effect)
        return rows

    def _learns(
        self,
        writes: Sequence[GuardedWrite],
        refused: Refused,
        removed: dict[RowKey, Mapping[str, object] | None],
        number: int,
    ) -> bool:
        """Whether another try may help."""
        reasons = [(write, why) for write, why in zip(writes, refused.reasons, strict=True) if why is not None]
        if all(why.code in CONFLICT for _, why in reasons):
            self.runtime.back_off(number, throttled=is_throttled(refused))
            return True
        for write, why in reasons:
            if isinstance(write.key, StateKey) or why.code in CONFLICT:
                continue  # others moved the delta, or made a step: both are read again
            if why.code != CONDITION or not isinstance(write, AddRow) or write.contributors_min is None:
                return False
            if write.key in removed:
                del removed[write.key]
            else:
                removed[write.key] = why.item  # somebody removed the row
        return True

    def _note(self, way: StepBack, transition: Transition, rows: Sequence[GuardedWrite]) -> None:
        """Has the rows removed that the way back may leave empty."""
        self.pending_work.commit([unit_of(way.item, transition, tuple(way.changes))], rows)


def _refusing(stored: StoredContribution, pending: Mapping[str, Delta]) -> set[str]:
    names = names_in(stored.deltas or "")
    return {row for name, delta in pending.items() for row in names[name] & delta.rows}


def _shares(
    application: str,
    item: ItemKey,
    route: Route,
    stored: StoredContribution,
    before: Contribution,
    pending: Mapping[str, Delta],
) -> list[SwapText | DeleteState]:
    """The deltas without what the item adds by them, each as it was read. Raises ``HandlerError`` if that is not so."""
    forward = difference(application, route, item, before, stored_rows(stored.text))
    shares: list[SwapText | DeleteState] = []
    for name, delta in pending.items():
        rest = Additions(delta.additions)
        rows = names_in(stored.deltas or "")[name] & delta.rows
        for write in forward:
            if isinstance(write, AddRow) and row_name(write.key) in rows:
                rest.take(write)
        key, text = delta_key(application, name), delta.text()
        if len(rest):
            shares.append(SwapText(key, delta._replace(additions=rest.in_order).text(), text))
        else:
            shares.append(DeleteState(key, text))
    return shares


def without_refused(
    application: str,
    item: ItemKey,
    routes: Iterable[Route],
    found: LedgerItem,
    waiting: WaitingDeltas,
    *,
    keeps_version: bool = False,
) -> LedgerItem:
    """A ledger item from which steps are planned that replace what rows refuse of the last ones.

    It contributes to these rows what it did before. Its shares leave the deltas with the step, in one transaction:
    the process that put a delta may be at work, and is done once the delta is gone. So the new step of each of these
    handlers has to be as new as the one that it replaces. ``keeps_version``: it is, whatever its version.
    """
    for route in routes:
        stored = found.contributions.get(route.name)
        if stored is None or not stored.deltas or stored.before is None or kept_text(stored.text) != stored.text:
            continue
        try:
            names = names_in(stored.deltas)
            pending = {name: waiting.refused[name] for name in names if name in waiting.refused}
            if not pending or any(name not in waiting.gone for name in names.keys() - pending.keys()):
                continue
            refusing = _refusing(stored, pending)
            before = contribution_before(stored.before, stored_rows(stored.text), refusing)
            shares = _shares(application, item, route, stored, before, pending)
        except (EngineError, HandlerError, DecimalException):  # damaged: the step waits, and is reported
            continue
        # The wake in place stays: the new step exchanges it, as any does.
        text = stored_text(before, stored_references(stored.text), moments_of(stored.text))
        version = stored.version if keeps_version else version_before(stored.before)
        replaced = stored._replace(version=version, text=text, deltas="", before=None)
        found = found._replace(
            counted={**found.counted, route.name: has_stored(stored.text)},
            contributions={**found.contributions, route.name: replaced},
            shares=(*found.shares, *((route.name, share) for share in shares)),
        )
    return found
