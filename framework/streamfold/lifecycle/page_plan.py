"""What becomes of the ledger items of one page: each part is compared with its source, and what differs planned."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import ceil
from typing import NamedTuple

from streamfold.commit.ledger_reads import Coming
from streamfold.commit.plan import Chunk, Unit, exceeds_transaction, pack, unit_of
from streamfold.commit.triage import explained
from streamfold.commit.unfinished import NamedRows, Unfinished
from streamfold.derivations.derivation import contribution
from streamfold.engines import StoredItem
from streamfold.errors import is_fatal
from streamfold.keys.table import is_in_state
from streamfold.ledger.contribution import Contribution, stored_rows, stored_text
from streamfold.ledger.forms import Forms
from streamfold.ledger.item import BEFORE_ALL, LedgerItem
from streamfold.ledger.lives import Lives, as_stored
from streamfold.ledger.step import Step, reconciled
from streamfold.lifecycle.page_report import Difference, ItemFailed, PageReport, stand_in
from streamfold.records.change import ItemKey, image_of
from streamfold.records.encoded import to_json
from streamfold.routes.route import Fields, Route
from streamfold.writes.guarded import GuardedWrite, LedgerWrite, PutRow, PutState, StateKey
from streamfold.writes.sizes import estimated_bytes

WRITE_BYTES = 1024
UNITS_OF_A_TRANSACTION = 2


class HandlerPart(NamedTuple):
    """One handler's part of one item, as a page has to lead it."""

    route: Route
    fields: Fields


class ItemParts(NamedTuple):
    """The parts of one ledger item."""

    item: ItemKey
    group: str
    parts: Sequence[HandlerPart]


class DerivedParts(NamedTuple):
    """A ledger item with the steps to its source."""

    key: StateKey
    held: LedgerItem
    source: StoredItem | None
    steps: Sequence[Step]


@dataclass(slots=True, kw_only=True)
class PagePlan:
    """What becomes of the ledger items of one page.

    always: parts are written although they agree with their source, with a fence.
    dry_run: nothing will be written; the report says what differs.
    """

    application: str
    forms: Forms
    keys: Mapping[StateKey, ItemParts]
    bounds: Mapping[str, str]  # the least version of what is read, by table
    report: PageReport
    always: bool
    dry_run: bool
    lives: Lives
    derived: list[DerivedParts] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
    alone: list[ItemParts] = field(default_factory=list)  # to be led one by one
    unfinished: Unfinished = field(default_factory=Unfinished)

    def bound(self, item: ItemKey) -> str:
        """The version that what is read of an item has at least."""
        return self.bounds.get(item[0], BEFORE_ALL)

    def write_units(self, actions: int) -> int:
        """What writing the units costs, with so many writes in a transaction."""
        return sum(map(_write_units, pack(self.units, actions)))

    def derive(self, key: StateKey, held: LedgerItem, source: StoredItem | None) -> None:
        """Derives what the handlers make of one ledger item's source."""
        self.derived.append(DerivedParts(key, held, source, self._steps(self.keys[key], held, source)))

    def coming(self) -> Iterator[Coming]:
        """The steps that were derived, with what the ledger holds."""
        for _, held, _, steps in self.derived:
            for step in steps:
                stored = held.parts.get(step.route.name)
                yield step.route, stored_rows(stored.text) if stored else {}, step.after

    def plan(self) -> None:
        """Plans the units of ledger items of which a part differs."""
        for derived in self.derived:
            self._plan(*derived)

    def _plan(self, key: StateKey, held: LedgerItem, source: StoredItem | None, steps: Sequence[Step]) -> None:
        each, report = self.keys[key], self.report
        if not self.dry_run:
            self._name(key, each, steps, held)
        differing = [step for step in steps if self._differs(step, held)]
        unit = _unit(key, each.item, differing, held, self.lives)
        report.equal += len(steps) - (len(unit.steps) if unit else 0)
        if unit is None:
            return
        report.written += len(unit.steps)
        if self.dry_run:
            seen = _seen(held, source)
            found = [_difference(each.item, step, held, seen) for step in unit.steps]
            report.differing += [each for each in found if not each.agrees]
            report.pending += [each for each in found if each.agrees]
        if unit.partial or exceeds_transaction(unit):
            self.alone.append(each)
        else:
            self.units.append(unit)

    def _steps(self, each: ItemParts, found: LedgerItem, source: StoredItem | None) -> list[Step]:
        """The step of each part to what its source says now; a handler that raises fails its own part only."""
        known = (part.version for part in found.parts.values())
        bound = max([self.bound(each.item), *known])
        image, steps = image_of(source), []
        for route, fields in each.parts:
            stored = found.parts.get(route.name)
            try:
                after = contribution(route, image, fields, self.forms)
            except Exception as error:
                if is_fatal(error):
                    raise
                self.report.failed.append(ItemFailed(each.item, route.name, explained(route, error)))
                continue
            steps.append(Step(route, max(bound, stored.version) if stored else bound, None, after))
        return steps

    def _differs(self, step: Step, found: LedgerItem) -> bool:
        """Whether a step is to be written."""
        stored = found.parts.get(step.route.name)
        if stored is None:
            return bool(step.after)
        return self.always or bool(stored.left) or stored.text != stored_text(_as_stored(step, found))

    def _name(self, key: StateKey, each: ItemParts, steps: Sequence[Step], found: LedgerItem) -> None:
        """Takes the rows that an earlier page or record may have left unfinished when it died.

        What was left behind is in the ledger item. Whether the rows that the item leads to now were recomputed is not,
        so they are looked at again.
        """
        change = stand_in(each.item)
        self.unfinished.note_found(key, each.item, [step.route for step in steps], found)
        for step in steps:
            named = NamedRows()
            if (stored := found.parts.get(step.route.name)) is not None and stored.left:
                named.add_stored(self.application, step.route, each.item, found)
            named.hold(self.application, step.route, each.item, _as_stored(step, found))
            named.state_rows.update(filter(is_in_state, step.after))
            self.unfinished.take(named, [step.route], [change])


def _as_stored(step: Step, found: LedgerItem) -> Contribution:
    """What a handler makes of an item, in the lives of rows that its stored contribution names."""
    stored = found.parts.get(step.route.name)
    return as_stored(stored_rows(stored.text), step.after) if stored and stored.text else step.after


def _unit(key: StateKey, item: ItemKey, steps: Sequence[Step], found: LedgerItem, lives: Lives) -> Unit | None:
    """The unit of the steps that differ; None if there are none."""
    if not steps:
        return None
    transition = reconciled(key, item, tuple(steps), found, lives)
    return unit_of(item, transition, (stand_in(item),), found=found, lives=lives)


def _write_units(chunk: Chunk) -> int:
    """The write units of a transaction: two for each KB of an item (Developer Guide, transaction-apis)."""
    return sum(UNITS_OF_A_TRANSACTION * ceil(_bytes(write) / WRITE_BYTES) for write in chunk.writes)


def _bytes(write: GuardedWrite) -> int:
    """About the size of the item that a write leaves."""
    return estimated_bytes(write) if isinstance(write, LedgerWrite | PutRow | PutState) else 1


def _seen(held: LedgerItem, source: StoredItem | None) -> str:
    image = sha256(to_json(source).encode(errors="surrogatepass")).hexdigest() if source else ""
    return f"{held.revision}/{image}"


def _difference(item: ItemKey, step: Step, found: LedgerItem, seen: str) -> Difference:
    stored = found.parts.get(step.route.name)
    made = stored_text(_as_stored(step, found))
    return Difference(item, step.route.name, stored.text if stored else "", made, seen)
