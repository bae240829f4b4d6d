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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, cast

from streamfold.batch.manifest import note_expiring, note_may_put
from streamfold.batch.order import RoutedFields
from streamfold.batch.stored_schema import keep_schema
from streamfold.commit.committer import Committer
from streamfold.commit.ledger_units import HandlerFailure, ImageSource, LedgerUnits, ReadItem, read_lives
from streamfold.commit.outcome import Failed, Outcome
from streamfold.commit.pending import NamedByHandler, NamedRows, PendingWork
from streamfold.commit.plan import Plan, Unit, pack
from streamfold.commit.referents import Asked, LookedUp, look_up
from streamfold.derivations.derivation import LOST, derived
from streamfold.engines.protocol import StoredItem
from streamfold.errors import RecordError, joined_key
from streamfold.keys.table import Table, is_in_state
from streamfold.ledger.contribution import BEFORE_ALL, Contribution, stored_rows, stored_text
from streamfold.ledger.lives import Lives, as_stored
from streamfold.ledger.state_keys import ledger_key
from streamfold.ledger.step import Step, moments_after
from streamfold.records.change import Change, ItemKey, image_of, item_key
from streamfold.records.values import encode
from streamfold.routes.route import ROWS_LOST, Route, times_to_live
from streamfold.runtime import Runtime
from streamfold.writes.guarded import StateKey

if TYPE_CHECKING:
    from streamfold.ledger.wakes import Times


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


class VisitedItem(NamedTuple):
    """The handlers of one ledger item that are visited, each with the fields of the item's key."""

    item: ItemKey
    group: str
    handlers: Sequence[RoutedFields]


HandlerOfItem = tuple[ItemKey, str]
"""An item and the name of a handler."""


@dataclass(slots=True, eq=False)
class Visit(ReadItem):
    """A ledger item and its source item, which are reconciled."""

    wanted: VisitedItem = field(kw_only=True)
    source: StoredItem | None = None
    failed: list[Failed] = field(default_factory=list)  # of handlers that raise: their contributions are not changed

    def stored(self, step: Step) -> str:
        """The ledger's contribution of a step's handler, as text."""
        contribution = self.found.contributions.get(step.route.name)
        return contribution.text if contribution else ""

    def after(self, step: Step) -> Contribution:
        """A handler's contribution of the item, in the lives of rows that its stored contribution names."""
        stored = self.stored(step)
        return as_stored(stored_rows(stored), step.after) if stored else step.after

    def text(self, step: Step) -> str:
        """What the ledger item is to have of a step's handler, as text."""
        return stored_text(self.after(step), step.references, moments_after(step, self.stored(step)))

    def differs(self, step: Step) -> bool:
        """Whether the ledger differs from the source, or has pending work."""
        contribution = self.found.contributions.get(step.route.name)
        if contribution is None:
            return bool(self.text(step))
        if any(handler == step.route.name for handler, _ in self.found.shares):
            return True
        return bool(contribution.pending) or contribution.text != self.text(step)


class VisitTimes(Protocol):
    """What visits have to do with moments, where it is not that of each visit."""

    def visits(self, read: Visit) -> bool:
        """Whether a handler of an item is to be called; leaves the others out."""
        ...

    def since(self, read: Visit, route: Route, since: int | None) -> int | None:
        """The time before which a handler is not called. ``since``: that of its ledger item."""
        ...

    def held(self, times: "Times", read: Visit, route: Route) -> "Times":
        """The moments of a call of a handler on an item, with what becomes of the wake."""
        ...

    def kept(self, read: Visit, route: Route, version: str) -> Step | None:
        """The step of a handler that is not called: only its wake changes."""
        ...


@dataclass(slots=True, kw_only=True)
class Visits(ImageSource):
    """Visits items of one application, and commits the changes; the caller then finishes the pending work."""

    visits = True
    runtime: Runtime
    bounds: Mapping[str, str] = field(default_factory=dict)  # the smallest version for a read, by table
    named: Mapping[str, NamedRows] = field(default_factory=dict)  # rows that records of the item name, by handler
    emptied: bool = False  # items are taken for absent
    dry_run: bool = False
    renews: bool = False  # backlinks of references that the ledger item has are put too, in case one was lost
    gets: bool = True  # a single item is got: a redrive may have the permission for that, a function for batches
    idle: Mapping[HandlerOfItem, Sequence[ItemKey]] = field(default_factory=dict)  # whose backlinks named an item
    moments: "VisitTimes | None" = None  # of visits at wakes, or of a repair
    pending_work: PendingWork = field(init=False, default_factory=partial(PendingWork, tries_all=True))
    visited: dict[StateKey, Visit] = field(init=False, default_factory=dict)  # as they were read last
    lives: Lives = field(init=False)
    _wanted: dict[StateKey, VisitedItem] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.lives = Lives(self.runtime.known.lives)

    @property
    def desk(self) -> LedgerUnits[Visit]:
        # Made at each call: visits that referred to it would be freed late.
        return LedgerUnits(self, self)

    def read(self, wanted: Iterable[VisitedItem]) -> list[Visit]:
        """Reads ledger items, then their sources, and derives. Raises ``EngineError`` if one of them cannot be read."""
        visits = [self._visit(each) for each in wanted]
        self.desk.prepare(self.desk.read(visits, consistent=True))
        return visits

    def unit(self, visit: Visit, steps: Sequence[Step]) -> Unit:
        """The unit of some steps of a visit, which it writes without a difference too."""
        unit = self.desk.unit(visit, steps)
        assert unit is not None, "a visit is never taken for done"
        return unit

    def again(self, unit: Unit) -> Visit:
        """A visit of the same handlers. It always writes, even without a difference, so that no write that was planned
        before can land behind it.
        """
        assert isinstance(unit.guard.key, StateKey)
        wanted, names = self._wanted[unit.guard.key], {route.name for route in unit.routes}
        visit = self._visit(wanted._replace(handlers=[each for each in wanted.handlers if each[0].name in names]))
        visit.added, visit.unit = unit.added, unit
        return visit

    def _visit(self, wanted: VisitedItem) -> Visit:
        key = ledger_key(self.runtime.application.name, wanted.group, wanted.item)
        self._wanted.setdefault(key, wanted)
        routes = tuple(route for route, _ in wanted.handlers)
        return Visit(key, wanted.item, routes, (synthetic_change(wanted.item),), wanted=wanted)

    def failed(self, read: Sequence[Visit], error: Exception, *, of_item: bool = False) -> None:
        if not of_item:
            raise error
        for visit in read:
            visit.failed += [Failed(change, route, error) for route in visit.routes for change in visit.changes]

    def applied(self, read: Visit, *, partly: bool) -> None:
        raise NotImplementedError("A visit is never taken for done.")

    def derives(self, read: Visit) -> bool:  # noqa: ARG002 - a visit does at any time
        return True

    def derive(self, read: Sequence[Visit]) -> Sequence[HandlerFailure]:
        """Reads the sources, and calls the handlers on what they are now."""
        runtime = self.runtime
        if self.moments is not None:
            read = [each for each in read if self.moments.visits(each)]
        sources = self._sources([*dict.fromkeys(each.item for each in read)])
        for each in read:
            each.source = sources.get(each.item)
            self.visited[each.key] = each
        looked_up = self._looked_up(read)
        failures = [failure for each in read for failure in self._derive(each, looked_up)]
        runtime.known.learn_expiring()
        if not self.dry_run:
            note_expiring(runtime)
            # Another process may make an attribute otherwise: the handler is refused now.
            if runtime.known.schema_grew and not keep_schema(runtime):
                failures = [failure for each in read for failure in self._derive(each, looked_up)]
        if self.lives.matter:
            coming = ((step.route, stored_rows(each.stored(step)), step.after) for each in read for step in each.steps)
            read_lives(runtime.engine, self.lives, coming, consistent=True)
        return failures

    def _sources(self, items: Sequence[ItemKey]) -> Mapping[ItemKey, StoredItem]:
        if self.emptied:
            return {}
        if self.gets and len(items) == 1:
            source = self.runtime.engine.read_source(items[0])
            return {} if source is None else {items[0]: source}
        return self.runtime.engine.read_sources(items)

    def _looked_up(self, read: Sequence[Visit]) -> Mapping[HandlerOfItem, LookedUp]:
        """The items with their referents, for handlers that read any."""
        asked = [
            Asked(
                route,
                each.item,
                image_of(each.source),
                fields,
                () if self.renews else each.found.references(route.name),
                self._since(each, route),
            )
            for each in read
            for route, fields in each.wanted.handlers
            if route.planned_from_ledger and not self.emptied  # of an item that is taken for absent nothing is read
        ]
        found = look_up(self.runtime, asked, notes=not self.dry_run) if asked else ()
        return {(each.item, each.route.name): one for each, one in zip(asked, found, strict=True)}

    def _since(self, visit: Visit, route: Route) -> int | None:
        """The time before which a handler is not called, epoch microseconds."""
        since = visit.found.since(route.name)
        return since if self.moments is None else self.moments.since(visit, route, since)

    def _derive(self, visit: Visit, looked_up: Mapping[HandlerOfItem, LookedUp]) -> list[HandlerFailure]:
        """Calls the handlers of a visit; returns those that raise."""
        item, versions = visit.item, [each.version for each in visit.found.contributions.values()]
        version = max([self.bounds.get(item[0], BEFORE_ALL), *versions])
        image, steps, emptying = image_of(visit.source), [], self.runtime.emptying_handlers
        failures: list[HandlerFailure] = []
        for route, fields in visit.wanted.handlers:
            own = looked_up.get((item, route.name), LookedUp(image))
            if self.moments is not None and (kept := self.moments.kept(visit, route, version)) is not None:
                steps.append(kept)  # its wake is put off, and its rows stay
                continue
            after, error, times = derived(route, own.image, fields, self.runtime.known.schema, own.at)
            error = own.error or error
            if error is not None:
                failures.append((visit, route, error))
                continue
            if after and times_to_live(route):
                _look_at(self.runtime, route, after)
            idle = tuple(self.idle.get((item, route.name), ()))
            expects = route.name not in emptying
            if times is not None and self.moments is not None:
                times = self.moments.held(times, visit, route)
            steps.append(Step(route, version, None, after, expects, own.references, idle, times))
        visit.keep(steps)
        return failures

    def pending_rows(self, read: Visit) -> Iterator[NamedByHandler]:
        """The rows that a visit names.

        The ledger item notes pending work. It does not note whether the item's present rows were recomputed, so they
        are checked again.
        """
        application, item = self.runtime.application.name, read.item
        for step in read.steps:
            contribution, after = read.found.contributions.get(step.route.name), read.after(step)
            named = NamedRows()
            if contribution is not None and contribution.pending:
                named.add_stored(application, step.route, item, read.found)
            if step.route.name in self.named:
                named.join(self.named[step.route.name])
            named.rows.difference_update(after)
            named.hold(application, step.route, item, after)
            named.state_rows.update(filter(is_in_state, step.after))
            yield [step.route], named

    def commit(self, units: Sequence[Unit]) -> Outcome:
        """Carries out units of visits; refused units are visited again, alone."""
        runtime = self.runtime
        note_may_put(runtime)
        outcome = Committer(self).carry_out(Plan(tuple(pack(units, runtime.chunk_actions, runtime.shared)), ()))
        for handler in outcome.counts.get(ROWS_LOST, ()):
            runtime.warn_once((ROWS_LOST, handler), LOST[ROWS_LOST].text.format(name=handler, count="1 or more"))
        return outcome


def _look_at(runtime: Runtime, route: Route, rows: Contribution) -> None:
    # Imported here: few applications have rows that expire.
    from streamfold.derivations.expiry import look_at_contribution

    look_at_contribution(runtime, route, rows, ())
