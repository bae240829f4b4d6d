"""Visits: ledger items are reconciled with their present source items.

A repair and a redrive visit one item; a page of a backfill or a rebuild visits many at once.

1. The ledger item is read, *then* its source item, both strongly. So the source is at least as new as the contributions
in this revision of the ledger item. In the other order an older image would be written over a newer contribution.
2. One transaction writes the handlers' contributions of the source, on the revision that was read. A record in between
changes the ledger item, and the write is refused.
3. The write sets a fence, also where nothing differs: an optimistic write that was planned before expects the same
   contribution, and would land behind the visit.
4. A refused visit is repeated, from 1: its images are older than the ledger item that refused it.

The version of a contribution never falls. It becomes the greatest version that the ledger item has of any handler: the
record that led to that version was committed before the source was read. A redrive asks for at least the version of its
record.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, cast

from streamfold.batch.manifest import note_expiring, note_may_put
from streamfold.batch.stored_schema import keep_schema
from streamfold.commit.buckets import wait_for_items
from streamfold.commit.committer import Committer
from streamfold.commit.ledger_units import Faults, ImageSource, note_found, plan_ready, read_lives
from streamfold.commit.outcome import Failed, Outcome
from streamfold.commit.pending import NamedRows, PendingWork
from streamfold.commit.plan import Plan, Unit, pack, unit_of
from streamfold.commit.referents import Asked, LookedUp, look_up
from streamfold.commit.taking_back import without_refused
from streamfold.commit.transactions import filled
from streamfold.derivations.derivation import LOST, derived
from streamfold.engines.protocol import StoredItem
from streamfold.errors import EngineError, HandlerError, RecordError, joined_key
from streamfold.keys.table import Table, is_in_state
from streamfold.ledger.contribution import BEFORE_ALL, Contribution, LedgerItem, stored_rows, stored_text
from streamfold.ledger.lives import NO_ROWS, Lives, as_stored
from streamfold.ledger.state_keys import ledger_key
from streamfold.ledger.step import Step, Transition, reconciled
from streamfold.records.change import Change, ItemKey, image_of, item_key
from streamfold.records.values import encode
from streamfold.routes.route import ROWS_LOST, Fields, Route, times_to_live
from streamfold.runtime import Runtime
from streamfold.writes.guarded import RowKey, StateKey


class Scanned(NamedTuple):
    """Replaces the change of an item that is visited; a failure names it."""

    item: ItemKey
    version_text: str = BEFORE_ALL
    sequence: str = ""
    event: str = ""

    @property
    def record(self) -> Mapping[str, object]:
        """There is none."""
        return {}

    @property
    def name(self) -> str:
        return joined_key(self.item[1:])

    @property
    def at(self) -> NoReturn:
        raise RecordError("An item that is visited has no record, and so no time.")


VISITED = "visited"
"""In the record of a parked document: the item that was visited. It has no record of its own."""


def record_of_item(item: ItemKey, table: Table) -> Mapping[str, object]:
    """What is parked of an item that was visited: its key."""
    keys = {name: encode(value) for name, value in zip(table.attributes, item[1:], strict=False)}
    return {VISITED: {"table": table.name, "Keys": keys}}


def item_of_record(record: Mapping[str, Any], tables: Mapping[str, Table]) -> ItemKey | None:
    """The item of such a record; None for a record of a stream. Raises ``RecordError`` for one that is damaged."""
    if VISITED not in record:
        return None
    try:
        return item_key(record[VISITED]["Keys"], tables[record[VISITED]["table"]])
    except (KeyError, TypeError):
        raise RecordError(
            f"A parked record names no item: expected {VISITED!r} to be {{'table': NAME, 'Keys': ...}}."
        ) from None


def synthetic_change(item: ItemKey, version: str = BEFORE_ALL) -> Change:
    return cast("Change", Scanned(item, version))


class VisitedHandler(NamedTuple):
    """One handler's contribution of one item, to be visited."""

    route: Route
    fields: Fields


class VisitedItem(NamedTuple):
    """The handlers of one ledger item that are visited."""

    item: ItemKey
    group: str
    handlers: Sequence[VisitedHandler]


HandlerOfItem = tuple[ItemKey, str]
"""An item and the name of a handler."""


class Visit(NamedTuple):
    """The reads of one ledger item, and the handlers' contributions."""

    key: StateKey
    wanted: VisitedItem
    held: LedgerItem
    source: StoredItem | None
    steps: Sequence[Step]
    failed: Sequence[Failed]  # of handlers that raise: their contributions are not changed

    def stored(self, step: Step) -> str:
        """The ledger's contribution of a step's handler, as text."""
        contribution = self.held.contributions.get(step.route.name)
        return contribution.text if contribution else ""

    def after(self, step: Step) -> Contribution:
        """A handler's contribution of the item, in the lives of rows that its stored contribution names."""
        stored = self.stored(step)
        return as_stored(stored_rows(stored), step.after) if stored else step.after

    def text(self, step: Step) -> str:
        """What the ledger item is to hold of a step's handler, as text."""
        return stored_text(self.after(step), step.references)

    def differs(self, step: Step) -> bool:
        """Whether the ledger differs from the source, or has pending work."""
        contribution = self.held.contributions.get(step.route.name)
        if contribution is None:
            return bool(step.after or step.references)
        if any(handler == step.route.name for handler, _ in self.held.shares):
            return True
        return bool(contribution.pending) or contribution.text != self.text(step)


@dataclass(slots=True, kw_only=True)
class Visits(ImageSource):
    """Visits items of one application, and commits the changes; the caller then finishes the pending work."""

    plans_from_refusal = False
    runtime: Runtime
    bounds: Mapping[str, str] = field(default_factory=dict)  # the smallest version for a read, by table
    named: Mapping[str, NamedRows] = field(default_factory=dict)  # rows that records of the item name, by handler
    emptied: bool = False  # items are taken for absent
    dry_run: bool = False
    renews: bool = False  # backlinks of references that the ledger item holds are put too, in case one was lost
    gets: bool = True  # a single item is got: a redrive may have the permission for that, a function for batches
    idle: Mapping[HandlerOfItem, Sequence[ItemKey]] = field(default_factory=dict)  # whose backlinks named an item
    pending_work: PendingWork = field(init=False, default_factory=PendingWork)
    visited: dict[StateKey, Visit] = field(init=False, default_factory=dict)  # as they were read last
    planned: dict[StateKey, Transition] = field(init=False, default_factory=dict)  # the last of each ledger item
    lives: Lives = field(init=False)
    _wanted: dict[StateKey, VisitedItem] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.lives = Lives(self.runtime.known.lives)
        self.pending_work.deltas.tries_all = True

    def read(self, wanted: Iterable[VisitedItem]) -> list[Visit]:
        """Reads ledger items, then their sources, and derives. Raises ``EngineError`` if one of them cannot be read."""
        runtime = self.runtime
        keys = {ledger_key(runtime.application.name, each.group, each.item): each for each in wanted}
        stored = runtime.engine.read_state([*keys], consistent=True)
        ledgers = {
            key: filled(runtime.engine, key, LedgerItem.of(stored.get(key)), {one.route.name for one in each.handlers})
            for key, each in keys.items()
        }
        sources = self._sources([*dict.fromkeys(each.item for each in keys.values())])
        if not self.dry_run:
            wait_for_items(runtime, self.pending_work.deltas, ledgers.values())
            ledgers = {key: self._without_refused(keys[key], held) for key, held in ledgers.items()}
        looked_up = self._looked_up([*keys.values()], [*ledgers.values()], sources)
        visits = [self._visit(key, each, ledgers[key], sources, looked_up) for key, each in keys.items()]
        runtime.known.learn_expiring()
        if not self.dry_run:
            note_expiring(runtime)
            # Another process may make an attribute otherwise: the handler is refused now.
            if runtime.known.schema_grew and not keep_schema(runtime):
                visits = [self._visit(key, each, ledgers[key], sources, looked_up) for key, each in keys.items()]
        if self.lives.matter:
            coming = (
                (step.route, stored_rows(visit.stored(step)), step.after) for visit in visits for step in visit.steps
            )
            read_lives(runtime.engine, self.lives, coming, consistent=True)
        for visit in visits:
            self.visited[visit.key] = visit
            self._wanted.setdefault(visit.key, visit.wanted)
        return visits

    def _without_refused(self, wanted: VisitedItem, held: LedgerItem) -> LedgerItem:
        if not held.waits:
            return held
        routes, application = [each.route for each in wanted.handlers], self.runtime.application.name
        return without_refused(application, wanted.item, routes, held, self.pending_work.deltas, keeps_version=True)

    def _sources(self, items: Sequence[ItemKey]) -> Mapping[ItemKey, StoredItem]:
        if self.emptied:
            return {}
        if self.gets and len(items) == 1:
            source = self.runtime.engine.read_source(items[0])
            return {} if source is None else {items[0]: source}
        return self.runtime.engine.read_sources(items)

    def _looked_up(
        self, wanted: Sequence[VisitedItem], ledgers: Sequence[LedgerItem], sources: Mapping[ItemKey, StoredItem]
    ) -> Mapping[HandlerOfItem, LookedUp]:
        """The items with their referents, for handlers that look others up."""
        asked = [
            Asked(
                route,
                each.item,
                image_of(sources.get(each.item)),
                fields,
                () if self.renews else held.references(route.name),
            )
            for each, held in zip(wanted, ledgers, strict=True)
            for route, fields in each.handlers
            if route.lookups
        ]
        found = look_up(self.runtime, asked, notes=not self.dry_run) if asked else ()
        return {(each.item, each.route.name): one for each, one in zip(asked, found, strict=True)}

    def _visit(
        self,
        key: StateKey,
        wanted: VisitedItem,
        held: LedgerItem,
        sources: Mapping[ItemKey, StoredItem],
        looked_up: Mapping[HandlerOfItem, LookedUp],
    ) -> Visit:
        item, source = wanted.item, sources.get(wanted.item)
        version = max([self.bounds.get(item[0], BEFORE_ALL), *(each.version for each in held.contributions.values())])
        image, steps, failed, emptying = image_of(source), [], [], self.runtime.emptying_handlers
        for route, fields in wanted.handlers:
            own = looked_up.get((item, route.name), LookedUp(image))
            after, error = derived(route, own.image, fields, self.runtime.known.schema)
            error = own.error or error
            if error is None:
                if after and times_to_live(route):
                    _look_at(self.runtime, route, after)
                idle = tuple(self.idle.get((item, route.name), ()))
                expects = route.name not in emptying
                steps.append(Step(route, version, None, after, expects, own.references, idle))
            else:
                failed.append(Failed(synthetic_change(item), route, error))
        found = Visit(key, wanted, held, source, steps, failed)
        if self.dry_run:
            return found

        def able(held: LedgerItem, faults: Faults) -> Visit:
            return found._replace(held=held, steps=[step for step in steps if step.route.name not in faults])

        try:
            planned, _, faults = plan_ready(self.pending_work, held, able)
        except (EngineError, HandlerError) as refused:  # of this item alone: the others go on
            failed += [Failed(synthetic_change(item), step.route, refused) for step in steps]
            return found._replace(steps=[])
        faulty = [step for step in steps if step.route.name in faults]
        failed += [Failed(synthetic_change(item), step.route, faults[step.route.name]) for step in faulty]
        assert planned is not None, "a visit plans each of its handlers"
        return planned

    def unit(self, visit: Visit, steps: Iterable[Step], added: AbstractSet[RowKey] = NO_ROWS) -> Unit:
        """The unit of some steps of a visit."""
        item = visit.wanted.item
        transition = reconciled(visit.key, item, tuple(steps), visit.held, added, self.lives)
        self.planned[visit.key] = transition
        return unit_of(item, transition, (synthetic_change(item),), added, visit.held, self.lives)

    def name(self, visit: Visit) -> None:
        """Takes the rows for which an earlier attempt may have pending work, if it died.

        The ledger item notes pending work. It does not note whether the item's present rows were recomputed, so they
        are checked again.
        """
        application, item = self.runtime.application.name, visit.wanted.item
        changes = [synthetic_change(item)]
        # What a row refuses of an earlier step is not done, even if this visit changes nothing.
        note_found(self.pending_work, visit.key, item, ([step.route for step in visit.steps], changes), visit.held)
        for step in visit.steps:
            contribution, after = visit.held.contributions.get(step.route.name), visit.after(step)
            named = NamedRows()
            if contribution is not None and contribution.pending:
                named.add_stored(application, step.route, item, visit.held)
            if step.route.name in self.named:
                named.join(self.named[step.route.name])
            named.rows.difference_update(after)
            named.hold(application, step.route, item, after)
            named.state_rows.update(filter(is_in_state, step.after))
            self.pending_work.take(named, [step.route], changes)

    def commit(self, units: Sequence[Unit]) -> Outcome:
        """Carries out units of visits; refused units are visited again, alone."""
        runtime = self.runtime
        if runtime.known.deltas is not None or runtime.pace.sharing:
            note_may_put(runtime)
        outcome = Committer(self).carry_out(Plan(tuple(pack(units, runtime.chunk_actions, runtime.shared)), ()))
        for handler in outcome.counts.get(ROWS_LOST, ()):
            runtime.warn_once((ROWS_LOST, handler), LOST[ROWS_LOST].text.format(name=handler, count="1 or more"))
        return outcome

    def again(self, units: Sequence[Unit]) -> tuple[list[Unit], list[Failed]]:
        """Units from newer reads, of the same handlers, and the handlers that raise now. A refused visit always writes,
        even without a difference, so that no write that was planned before can land behind it.
        """
        added = {unit.guard.key: unit.added for unit in units}
        visits = self.read(self._limited(unit) for unit in units)
        for visit in visits:
            self.name(visit)
        planned = [self.unit(visit, visit.steps, added[visit.key]) for visit in visits if visit.steps]
        return planned, [failed for visit in visits for failed in visit.failed]

    def _limited(self, unit: Unit) -> VisitedItem:
        """The handlers of a ledger item in a unit."""
        assert isinstance(unit.guard.key, StateKey)
        wanted, names = self._wanted[unit.guard.key], {route.name for route in unit.routes}
        return wanted._replace(handlers=[each for each in wanted.handlers if each.route.name in names])


def _look_at(runtime: Runtime, route: Route, rows: Contribution) -> None:
    # Imported here: few applications have rows that expire.
    from streamfold.derivations.expiry import look_at_contribution

    look_at_contribution(runtime, route, rows, ())
