"""The interface of a kind of derivation for a batch, a redrive, a repair and a proof."""

from __future__ import annotations

from decimal import localcontext
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from streamfold.errors import ItemFault, SettingsError, manual
from streamfold.keys.table import is_writers
from streamfold.records.values import EXACT
from streamfold.routes.lookups import at_time
from streamfold.routes.route import ROUTES_KEPT_MAX, ROWS_LOST, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from streamfold.commit.outcome import Failed, Outcome, Triages
    from streamfold.commit.pending import PendingWork
    from streamfold.commit.plan import Deferred, KeyedPut, Unit
    from streamfold.derivations.calls import Permissions
    from streamfold.derivations.expected import (
        Expected,
        ExplainedRow,
        History,
        ItemVersion,
        KnownChange,
        OwnRows,
        Stored,
    )
    from streamfold.engines.protocol import Engine, StoredItem
    from streamfold.errors import Unprocessable
    from streamfold.jobs.fan_outs import Paged
    from streamfold.jobs.job import Job, JobSegment
    from streamfold.keys.key import Key
    from streamfold.ledger.contribution import Contribution
    from streamfold.ledger.schema import Schema
    from streamfold.ledger.state_keys import StoredAttributes
    from streamfold.ledger.wakes import Times
    from streamfold.records.change import Change, ItemKey
    from streamfold.records.images import Image
    from streamfold.routes.application import Application
    from streamfold.routes.route import Fields, Route
    from streamfold.runtime import Runtime
    from streamfold.settings import Settings
    from streamfold.writes.guarded import PutRow, RowKey, StateKey

    Contributes = Callable[[Route, Image, Fields, Schema], Contribution]


class Work(NamedTuple):
    """The work of one route for one item of a batch."""

    route: Route
    item: ItemKey
    role: str  # of the item for the route
    fields: Fields  # of the item's key
    changes: Sequence[Change]  # oldest first
    idle: Sequence[ItemKey] = ()  # referents with a backlink of this item that it may no longer need


class Planned(NamedTuple):
    """The planned work of a route."""

    units: Sequence[Unit] = ()  # for the transactions, each behind its guard
    puts: Sequence[KeyedPut] = ()  # rows whose keys contain the change
    deferred: Sequence[Deferred] = ()  # for ``finish``

    @classmethod
    def joined(cls, plans: Iterable[Planned]) -> Planned:
        """All plans as one, in their order."""
        units: list[Unit] = []
        puts: list[KeyedPut] = []
        deferred: list[Deferred] = []
        for each in plans:
            units += each.units
            puts += each.puts
            deferred += each.deferred
        return cls(units, puts, deferred)


class Planning:
    """The means of planning, beside the work."""

    def __init__(
        self,
        runtime: Runtime,
        fails: Callable[[Change, Route, Exception], bool],
        hold: Callable[[Route, Collection[Change]], None],
        count: Callable[[str, Route], None],
    ) -> None:
        self.runtime = runtime
        self.fails = fails  # notes a failure; False if the record was parked
        self.hold = hold  # notes that changes wait for an earlier one of their item
        self.count = count  # counts under a word of ``says``


class Finishing(NamedTuple):
    """The means of finishing, beside the deferred work."""

    runtime: Runtime
    triage: Triages
    pending_work: PendingWork  # the rows that the commit changed, with their causes
    subscribed: Sequence[Work] = ()  # items for which no handler is called

    def change_of(self, record: Mapping[str, object]) -> Change:
        """The change of a record that a job kept. Raises ``RecordError`` for another value."""
        from streamfold.engines.own_stream import is_own
        from streamfold.records.envelope import Origins

        app, settings = self.runtime.application, self.runtime.settings
        if is_own(record):
            settings = settings._replace(tables={name: name for name in app.tables})
        return Origins(app.source_tables, settings, self.runtime.warn).change(record)

    def failures(self, changes: Iterable[Change], route: Route, error: Exception) -> list[Failed]:
        """The failures to report if changes failed for a handler: none for records that are parked."""
        from streamfold.commit.outcome import Failed, reported

        return reported((Failed(change, route, error) for change in changes), self.triage)


class SegmentWork(Protocol):
    """The work on the segments of a fan-out."""

    def page(self, segment: JobSegment) -> Paged:
        """Does the next page of a segment. A repetition changes nothing."""
        ...

    def ended(self, counts: Mapping[str, int]) -> None:
        """The work after all segments; ``counts`` is their sum. A repetition changes nothing."""
        ...


class Preview(NamedTuple):
    """A dry run's text for deferred work, for a person who has the items anyway: it must not be logged."""

    text: str
    fields: Mapping[str, Any] | None = None  # the values that would be written


class CountedWord(NamedTuple):
    """The report of a count; ``{name}`` and ``{count}`` are filled in."""

    text: str  # for a person
    log: str = ""  # for the log of a function; "" if it is not logged
    stale: str = ""  # for a redrive: why a record changed nothing; "" if the count does not explain that


LOST: Mapping[str, CountedWord] = {
    ROWS_LOST: CountedWord(
        "Rows that handler {name} adds to were removed by somebody else (noticed {count} times): made again, they "
        f"lack the earlier contributions. {manual('operations')} describes how to correct them.",
        log="rows were removed by somebody else",
    )
}
"""The counts of kinds whose rows are added to (``watches``)."""


class Derivation(Kind):
    """A kind of derivation. The core calls these members and compares no names.

    ``plan`` is pure. The core guards and commits the plan, and then calls ``finish``, kind by kind in the order of
    ``KINDS``. Both report failures with their changes, which are redelivered: a repetition of either must leave the
    same result as one run.
    """

    yields: ClassVar[tuple[type, ...]] = ()
    gives_value: ClassVar[bool] = False  # its function returns a value of its own or None, and no effects
    says: ClassVar[Mapping[str, CountedWord]] = {}  # its counts, by word
    outside: ClassVar[bool] = False  # its effects are outside of the store: it is called only if the run may make them
    takes_coroutines: ClassVar[bool] = False  # its handlers may be ``async`` functions
    finishes_last: ClassVar[bool] = False  # a replay finishes it after all records
    reads_items: ClassVar[bool] = False  # it reads items of the application when it finishes
    reconciles: ClassVar[bool] = False  # ``reconcile`` derives an item's rows from the item as it is now
    reconciles_all_roles: ClassVar[bool] = False  # a run over all items reconciles items of every role
    verified_by: ClassVar[tuple[str, str] | None] = None  # why ``verify`` passes it over, and the command for it
    joins_items: ClassVar[bool] = False  # its rows are made of two items each, and compared one by one
    fans_out: ClassVar[bool] = False  # it opens fan-outs, whose segments are worked on later by ``segment_work``
    keeps: ClassVar[tuple[str, ...]] = ()  # the first words of the keys of its own state items
    keeps_history: ClassVar[bool] = False  # its rows are the changes of each item, which begin with an initial row
    secrets: ClassVar[tuple[str, ...]] = ()  # settings that may refer to a secret, which its functions then read
    redriven_by_record: ClassVar[bool] = False  # a redrive replays its records, although it reconciles

    def plan(self, works: Sequence[Work], planning: Planning) -> Planned:
        """Plans the work of one route in a batch."""
        return Planned()

    def finish(self, deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
        """Does deferred work until the deadline of the run; the rest is among the failed."""
        from streamfold.commit.outcome import Outcome

        return Outcome()

    def check_done(self, route: Route, outcome: Outcome) -> None:
        """Raises ``SettingsError`` if work that was asked for was left to another run."""

    def deferred_of(self, work: Work) -> Deferred:
        """The work for ``finish`` that reconciles an item whose referents changed, of a kind without a ledger."""
        raise NotImplementedError(f"Kind {self} looks items up, and has no method deferred_of.")

    def preview(self, deferred: Deferred, settings: Settings) -> Sequence[Preview]:
        """The texts of a dry run for deferred work."""
        return [Preview(str(deferred))]

    def segment_work(self, route: Route, job: Job, finishing: Finishing) -> SegmentWork:
        """The work on the segments of an open fan-out."""
        raise NotImplementedError(f"Kind {self} opens fan-outs, and has no method segment_work.")

    def reconcile(self, work: Work, finishing: Finishing) -> Outcome:
        """Derives a route's rows of an item from its source as it is now; ``work`` has the changes that caused it."""
        raise NotImplementedError(f"Kind {self} reconciles, and has no method reconcile.")

    def reconcile_all(self, works: Sequence[Work], finishing: Finishing) -> Outcome:
        """Reconciles several items; reports failures with the changes of their work."""
        from streamfold.commit.outcome import Failed, Outcome, explained

        outcome = Outcome()
        for work in works:
            with ItemFault() as fault:
                outcome += self.reconcile(work, finishing)
            if fault.error is not None:
                error = explained(work.route, fault.error)
                outcome.failed += [Failed(change, work.route, error) for change in work.changes]
        return outcome

    def kept_items(self, route: Route, keys: Sequence[StateKey], finishing: Finishing) -> Sequence[ItemKey]:
        """The items for which a route keeps these state items, beside ledger items: a run scans them for orphans."""
        return ()

    def check_names(self, own: Sequence[Route], settings: Settings) -> None:
        """Raises ``SettingsError`` if the real names in the settings contradict the routes of this kind."""

    def check_settings(self, route: Route, settings: Settings) -> None:
        """Raises ``SettingsError`` if the route cannot run in a function. Called when the function starts."""
        if route.lookups and settings.serves(route.group) and settings.jobs is None and settings.engine is None:
            raise SettingsError(
                f"{self.name} {route.name!r} ({route.declared_at}) looks items up and has no queue for those that many "
                "refer to: expected STREAMFOLD_JOBS=https://..., the URL of a standard SQS queue whose function is "
                "app.jobs_handler, or another group for this function."
            )

    def process_calls(self, route: Route) -> Permissions:
        """The permissions that it takes to process the changes of its items."""
        return frozenset()

    def delta_keys(self, route: Route) -> tuple[Key, ...]:
        """The keys of the rows that it may add to by deltas, which any process of the application may move."""
        return ()

    def stored_attributes(self, route: Route) -> StoredAttributes | None:
        """The rows of the state with what a route derives onto items; None if it writes rows of tables."""
        return None

    def parent_keys(self, route: Route) -> tuple[Key, ...]:
        """The keys of items onto which it derives sums of other items, which the state has."""
        return ()

    def reconcile_calls(self, route: Route) -> Permissions:
        """The permissions that it takes, beside these, to reconcile all items and single ones with their sources."""
        from streamfold.derivations.calls import of_items

        return of_items(route, "BatchGetItem")

    def expected(self, route: Route, history: History) -> Expected:
        """The right results of a route, from its declaration alone: proofs compare with them."""
        raise NotImplementedError(f"Kind {self} has no method expected, which proofs compare with.")

    def called_later(self, route: Route) -> bool:
        """Whether the function behind the queue calls its handler: the route has work for the queue."""
        return self.fans_out or route.is_revisited

    def as_read(self, route: Route, rows: Stored, stored: Stored, history: History) -> Stored:
        """Derived rows as readers of this route see them, if they differ from the stored rows.

        ``rows`` are the visible rows, ``stored`` all items of the framework, both with DynamoDB's attribute values.
        """
        return rows

    def found_outside(self, route: Route, place: Any) -> dict[RowKey, dict[str, Any]]:
        """The contents of a location outside of the store, in the form of ``Expected.outside``."""
        return {}

    def first_appearances(self, route: Route, place: Any) -> Sequence[ItemVersion]:
        """The changes that reached a location outside of the store, each where it did so first: a proof checks that
        those of one item are in order.
        """
        return ()

    def removed(self, route: Route) -> Callable[[RowKey], bool] | None:
        """Which rows of its tables a restore removes, because a backfill makes them again; None: no row."""
        return None

    def initial_row(
        self, route: Route, item: ItemKey, image: StoredItem, fields: Fields, runtime: Runtime
    ) -> PutRow | None:
        """The row that begins the history of an item as it is now; None if the item has a history.

        Raises ``SettingsError`` if the target does not say which, and ``HandlerError`` if no row can be made.
        """
        raise NotImplementedError(f"Kind {self} keeps no history, and has no method initial_row.")

    def verified(self, route: Route) -> OwnRows | None:
        """The rows of a route that the kind itself compares and corrects; None for sums of contributions, or for rows
        that nothing compares.
        """

    def explained(self, route: Route, row: RowKey, engine: Engine) -> ExplainedRow | None:
        """What a row of a route is made of; None for a row that the state holds contributions to, or of no items."""

    def explained_change(self, route: Route, change: KnownChange, engine: Engine) -> str:
        """What a route did for a change, in words, for a person; "" if the state has nothing of it."""
        return ""

    def local_locations(self, routes: Sequence[Route], engine: Engine, settings: Settings) -> Mapping[str, Any]:
        """Its locations outside of tables in a run that reaches none, by the names under which a run keeps them.

        Each names in ``writes`` its method that writes a list of things; a proof lets the calls of that method fail.
        """
        return {}

    def read_rows(self, routes: Sequence[Route], location: str, engine: Engine) -> dict[str, dict[str, Any]]:
        """What readers see of a location outside of tables, in a local store. Raises ``SettingsError`` for another."""
        raise NotImplementedError(f"Kind {self} writes documents, and has no method read_rows.")

    def messages(self, routes: Sequence[Route], to: str, opened: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The messages that a destination has in a run without AWS; None for one that none of its routes goes to."""
        return None

    def outside_costs(self, routes: Sequence[Route], opened: Mapping[str, Any], records: int) -> Iterable[str]:
        """What else than the store costs for a million records, a sentence each; ``records`` were counted."""
        return ()

    def takes_along(self, route: Route, fields: Fields, item: ItemKey) -> bool:
        """Whether an item is removed together with the source item that has these fields."""
        return False


class Contributing(Derivation):
    """A kind whose handlers contribute to rows through the ledger: planned, repeated and reconciled by the core."""

    contributes = True
    gets_items = True
    reads_derived = True
    reconciles = True
    says = LOST

    def watches(self, route: Route) -> tuple[Key, ...]:
        return route.into

    def removed(self, route: Route) -> Callable[[RowKey], bool] | None:
        return None if self.touches(route) else lambda row: route.target_of(row) is not None

    def contribution(self, route: Route, image: Image, fields: Fields, schema: Schema) -> Contribution:
        """The contribution of an existing item. ``schema`` holds the known aggregations, and learns new ones.

        Raises ``HandlerError`` for rows that the declaration does not allow. Errors of the handler are not changed.
        """
        raise NotImplementedError(f"Kind {self} contributes, and has no method contribution.")

    def outlived(self, route: Route, change: Change, after: Contribution) -> bool:
        """Whether rows of this contribution may expire before the contributing item does.

        Called for routes with a target whose table has a time to live.
        """
        return False

    def reconciled(
        self, route: Route, item: ItemKey, after: Contribution, finishing: Finishing
    ) -> Sequence[Unprocessable]:
        """Finishes one reconciled item, which has no pending work after a dry run; returns its conflicts.

        Raises the error that prevented it.
        """
        return ()

    def parks_conflicts(self, route: Route) -> bool:
        """Whether records are parked that cause the conflicts of ``reconciled``."""
        return False

    def guard(self, route: Route) -> str:
        return "ledger"

    def process_calls(self, route: Route) -> Permissions:
        from streamfold.derivations.calls import of_ledger

        return of_ledger(route, ordered=self.orders(route), adds=self.adds(route))

    def delta_keys(self, route: Route) -> tuple[Key, ...]:
        from streamfold.derivations.calls import named_by
        from streamfold.routes.aggregates import Added

        # ``ledger.deltas.may_wait``: of sums alone, and of no row that may expire.
        adds = named_by(route.function).makes(Added)
        return tuple(target.key for target in route.targets if adds and target.key.table.ttl is None)

    def orders(self, route: Route) -> bool:
        """Whether rows may show values in an order, which are read from entries."""
        from streamfold.derivations.calls import named_by

        return named_by(route.function).orders

    def adds(self, route: Route) -> bool:
        """Whether rows of which it is the only writer may be added to, instead of put: those of aggregates alone."""
        from streamfold.derivations.calls import named_by
        from streamfold.routes.aggregates import Aggregate

        return named_by(route.function).makes(Aggregate)


def derivation(route: Route) -> Derivation:
    assert isinstance(route.kind, Derivation), f"{route.kind!r} is no kind of derivation"
    return route.kind


def deriving_onto_items(routes: Iterable[Route]) -> list[tuple[Route, StoredAttributes]]:
    """The routes among these that derive onto items, each with the rows of the state that have its attributes."""
    every = ((route, derivation(route).stored_attributes(route)) for route in routes)
    return [(route, stored) for route, stored in every if stored is not None]


def audits(application: Application) -> list[Route]:
    return [route for route in application.routes if derivation(route).keeps_history]


def searches(routes: Iterable[Route]) -> list[Route]:
    return [route for route in routes if route.kind.indexes(route)]


def searching(routes: Iterable[Route], index: str) -> Derivation:
    """The kind that writes documents of an index. Raises ``SettingsError`` if the application has none."""
    for route in searches(routes):
        return derivation(route)
    raise SettingsError(f"Index {index!r} is not known: the application has no search.")


def local_locations(application: Application, engine: Engine, settings: Settings) -> dict[str, Any]:
    """The locations outside of tables of a run that reaches none, by the names under which a run keeps them."""
    kinds = dict.fromkeys(map(derivation, application.routes))
    found = (kind.local_locations(application.routes, engine, settings) for kind in kinds)
    return {name: location for each in found for name, location in each.items()}


def messages_to(routes: Sequence[Route], to: str, opened: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The messages that a destination has in a run without AWS; None for one that no route goes to."""
    kinds = dict.fromkeys(map(derivation, routes))
    return next((found for kind in kinds if (found := kind.messages(routes, to, opened)) is not None), None)


def fans_out(route: Route) -> bool:
    """Whether a route has work for the queue: it opens fan-outs, or has items visited when a moment comes."""
    return derivation(route).called_later(route)


def reads_items(route: Route) -> bool:
    """Whether a route reads items of the application beside those of its records, or these once more."""
    return derivation(route).reads_items or route.planned_from_ledger


@lru_cache(ROUTES_KEPT_MAX)  # called for each item
def contributing(route: Route) -> Contributing:
    assert isinstance(route.kind, Contributing), f"{route.kind!r} does not contribute"
    return route.kind


def passes_over(route: Route, image: Mapping[str, Any]) -> bool:
    """Whether a handler of rows is not given an item: the application's writers put the item among the rows."""
    return route.reads_rows and bool(image) and is_writers(image)


def contributed(route: Route, image: Image, fields: Fields, schema: Schema) -> Contribution:
    """The contribution of an item that is there. Raises the errors of the handler."""
    if route.reads_rows and passes_over(route, image.raw):  # ``raw`` notes the whole image as read
        return {}
    return contributing(route).contribution(route, image, fields, schema)


class Derived(NamedTuple):
    """The rows that a handler makes of an item, or its error."""

    rows: Contribution
    error: Exception | None = None
    times: Times | None = None  # the moments that the handler asked for, if it asks for the time

    def checked(self) -> Contribution:
        """The rows. Raises the handler's error."""
        if self.error is not None:
            raise self.error
        return self.rows


def derived(route: Route, image: Image, fields: Fields, schema: Schema, at: int | None = None) -> Derived:
    """The contribution of an item; no rows if it is absent. ``schema`` learns the aggregations of new attributes.

    ``at``: the time in epoch microseconds, for a handler that asks for the time.

    Raises errors that are not the item's own. A batch calls its handlers by itself (``batch.steps``): it derives each
    record, and skips old images that read alike.
    """
    if route.asks_time:
        return _derived_at(route, image, fields, schema, at)
    with ItemFault() as fault, localcontext(EXACT):
        return Derived(contributed(route, image, fields, schema) if image else {})
    from streamfold.commit.outcome import explained

    assert fault.error is not None
    return Derived({}, explained(route, fault.error))


def _derived_at(route: Route, image: Image, fields: Fields, schema: Schema, at: int | None) -> Derived:
    from streamfold.ledger.wakes import Times  # few handlers ask for the time
    from streamfold.routes.moments import Now

    assert at is not None, f"nobody gave {route.name!r} the time that it asks for"
    now = Now(at)
    rows: Contribution = {}
    with ItemFault() as fault, localcontext(EXACT):
        rows = contributed(route, at_time(image, route.asks_time, now), fields, schema) if image else {}
    now.end()
    if fault.error is not None:
        from streamfold.commit.outcome import explained

        return Derived({}, explained(route, fault.error))
    times = Times(at, now.came_microseconds, now.next_microseconds, once=route.kind.calls_once(route) != "")
    return Derived(rows, None, times)


class Expiring(Contributing):
    """A kind that aggregates: a shared row shows the time to live of its contributors, and one may have none."""

    def outlived(self, route: Route, change: Change, after: Contribution) -> bool:
        return self._outlived(route, change, after)

    @cached_property  # an import statement costs, and this is called for each item
    def _outlived(self) -> Callable[[Route, Change, Contribution], bool]:
        from streamfold.derivations.expiry import outlived

        return outlived
