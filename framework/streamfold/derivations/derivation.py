"""The seam: what a batch, a redrive, a repair and a proof ask of a kind of derivation."""

from __future__ import annotations

from decimal import localcontext
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from streamfold.errors import ItemFault
from streamfold.records.values import EXACT
from streamfold.routes.route import ROUTES_KEPT_MAX, ROWS_LOST, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from streamfold.commit.outcome import Failed, Outcome, Triages
    from streamfold.commit.pending import PendingWork
    from streamfold.commit.plan import Deferred, KeyedPut, Unit
    from streamfold.derivations.expected import Expected, History, Stored
    from streamfold.errors import Unprocessable
    from streamfold.jobs.fan_outs import Paged
    from streamfold.jobs.job import Job, JobSegment
    from streamfold.keys.key import Key
    from streamfold.ledger.contribution import Contribution
    from streamfold.ledger.schema import Schema
    from streamfold.records.change import Change, ItemKey
    from streamfold.records.images import Image
    from streamfold.routes.route import Fields, Route
    from streamfold.runtime import Runtime
    from streamfold.settings import Settings
    from streamfold.writes.guarded import RowKey, StateKey

    Contributes = Callable[[Route, Image, Fields, Schema], Contribution]


class Work(NamedTuple):
    """What one route is to do with one item of a batch."""

    route: Route
    item: ItemKey
    role: str  # the part that the item plays for the route
    fields: Fields  # of the item's key
    changes: Sequence[Change]  # oldest first


class Planned(NamedTuple):
    """What a route makes of its work."""

    units: Sequence[Unit] = ()  # for the transactions, each behind its guard
    puts: Sequence[KeyedPut] = ()  # rows whose keys contain the change
    deferred: Sequence[Deferred] = ()  # for ``finish``

    @classmethod
    def joined(cls, parts: Iterable[Planned]) -> Planned:
        """All parts as one, in their order."""
        units: list[Unit] = []
        puts: list[KeyedPut] = []
        deferred: list[Deferred] = []
        for part in parts:
            units += part.units
            puts += part.puts
            deferred += part.deferred
        return cls(units, puts, deferred)


class Planning:
    """What planning is given beside the work."""

    def __init__(
        self,
        runtime: Runtime,
        fails: Callable[[Change, Route, Exception], bool],
        hold: Callable[[Route, Collection[Change]], None],
        count: Callable[[str, Route], None],
    ) -> None:
        self.runtime = runtime
        self.fails = fails  # notes a failure; False where the record was parked
        self.hold = hold  # notes that changes wait for an earlier one of their item
        self.count = count  # counts under a word of ``says``


class Finishing(NamedTuple):
    """What finishing is given beside what was deferred."""

    runtime: Runtime
    triage: Triages
    pending_work: PendingWork  # the rows that the commit moved, with their causes
    subscribed: Sequence[Work] = ()  # items for which no handler is called

    def change_of(self, record: Mapping[str, object]) -> Change:
        """The change of a record that a job kept. Raises ``RecordError`` for one that is none."""
        from streamfold.engines.own_stream import is_own
        from streamfold.records.envelope import Origins

        app, settings = self.runtime.application, self.runtime.settings
        if is_own(record):
            settings = settings._replace(tables={name: name for name in app.tables})
        return Origins(app.source_tables, settings, self.runtime.warn).change(record)

    def failures(self, changes: Iterable[Change], route: Route, error: Exception) -> list[Failed]:
        """What is to be reported where changes failed for a handler: nothing of records that are parked."""
        from streamfold.commit.outcome import Failed, reported

        return reported((Failed(change, route, error) for change in changes), self.triage)


class SegmentWork(Protocol):
    """The lanes of a fan-out, as they are worked on."""

    def page(self, lane: JobSegment) -> Paged:
        """Does the next page of a lane. Doing it again changes nothing."""
        ...

    def ended(self, counts: Mapping[str, int]) -> None:
        """What follows when all lanes are done; ``counts`` is their sum. Doing it again changes nothing."""
        ...


class Preview(NamedTuple):
    """What a dry run says of deferred work, for a person who has the items anyway: it is no text for a log."""

    text: str
    fields: Mapping[str, Any] | None = None  # what would be written


class CountedWord(NamedTuple):
    """How a count is reported; ``{name}`` and ``{count}`` are filled in."""

    text: str  # for a person
    log: str = ""  # for the log of a function; "" if it is not logged
    stale: str = ""  # for a redrive: why a record changed nothing; "" if the count does not explain that


LOST: Mapping[str, CountedWord] = {
    ROWS_LOST: CountedWord(
        "Rows that handler {name} adds to were removed by somebody else (noticed {count} times): made again, they "
        "lack what was added before. docs/operations.md says how to mend them.",
        log="rows were removed by somebody else",
    )
}
"""What kinds count whose rows are added to (``watches``)."""


class Derivation(Kind):
    """A kind of derivation as it is carried out. The core asks these members and compares no names.

    ``plan`` is pure. The core guards and commits the plan, and then calls ``finish``, kind by kind in the order of
    ``KINDS``. Both report failures with their changes, which are delivered again: running either twice must leave the
    same result as running it once.
    """

    yields: ClassVar[tuple[type, ...]] = ()
    says: ClassVar[Mapping[str, CountedWord]] = {}  # what it counts, by word
    outside: ClassVar[bool] = False  # its effects are outside of the store: only a run that may make them calls it
    finishes_last: ClassVar[bool] = False  # a replay finishes it behind all records
    reads_items: ClassVar[bool] = False  # it reads items of the application when it finishes
    reconciles: ClassVar[bool] = False  # ``reconcile`` makes an item's rows what the item now says
    reconciles_all_roles: ClassVar[bool] = (
        False  # a run over all items reconciles items of every role, not sources alone
    )
    joins_items: ClassVar[bool] = False  # its rows are made of two items each, and compared pair by pair
    fans_out: ClassVar[bool] = False  # it opens fan-outs, whose ``lanes`` are worked on later
    keeps: ClassVar[tuple[str, ...]] = ()  # how the keys of its own state items begin
    redriven_by_record: ClassVar[bool] = False  # a redrive replays its records, though it reconciles

    def plan(self, works: Sequence[Work], planning: Planning) -> Planned:
        """Plans the work of one route in a batch."""
        del works, planning
        return Planned()

    def finish(self, deferred: Sequence[Deferred], finishing: Finishing) -> Outcome:
        """Carries out deferred work until the deadline of the run; the rest is among the failed."""
        from streamfold.commit.outcome import Outcome

        del deferred, finishing
        return Outcome()

    def preview(self, deferred: Deferred, settings: Settings) -> Sequence[Preview]:
        """What a dry run says of deferred work."""
        del settings
        return [Preview(str(deferred))]

    def lanes(self, route: Route, job: Job, finishing: Finishing) -> SegmentWork:
        """How the lanes of an open fan-out are worked on."""
        raise NotImplementedError(f"Kind {self} opens fan-outs, and has no method lanes.")

    def reconcile(self, work: Work, finishing: Finishing) -> Outcome:
        """Leads what a route made of an item to what its source says now; ``work`` has the changes that ask for it."""
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
        """The items that a route keeps these state items for, beside ledger items: those that a run has to sweep."""
        del route, keys, finishing
        return ()

    def check_names(self, own: Sequence[Route], settings: Settings) -> None:
        """Raises ``SettingsError`` if the real names of the settings do not fit the routes of this kind."""
        del own, settings

    def check_settings(self, route: Route, settings: Settings) -> None:
        """Raises ``SettingsError`` if the route cannot run in a function. Called when the function starts."""
        del route, settings

    def expected(self, route: Route, history: History) -> Expected:
        """What a route has to lead to, told from its declaration alone: what proofs compare with."""
        raise NotImplementedError(f"Kind {self} has no method expected, which proofs compare with.")

    def as_read(self, route: Route, rows: Stored, stored: Stored, history: History) -> Stored:
        """Derived rows as readers of this route see them, where that is not as they lie in the store.

        ``rows`` are those that are shown, ``stored`` all items of the framework, both with DynamoDB's attribute values.
        """
        del route, stored, history
        return rows

    def found_outside(self, route: Route, place: Any) -> dict[RowKey, dict[str, Any]]:
        """The contents of a place outside of the store, in the form of ``Expected.outside``."""
        del route, place
        return {}

    def takes_along(self, route: Route, fields: Fields, item: ItemKey) -> bool:
        """Whether an item is removed together with the source item that has these fields."""
        del route, fields, item
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

    def contribution(self, route: Route, image: Image, fields: Fields, schema: Schema) -> Contribution:
        """What an existing item contributes. ``forms`` holds the known forms of attributes, and learns new ones.

        Raises ``HandlerError`` for rows that the declaration does not allow. Errors of the handler are not changed.
        """
        raise NotImplementedError(f"Kind {self} contributes, and has no method contribution.")

    def outlived(self, route: Route, change: Change, after: Contribution) -> bool:
        """Whether rows of this contribution may expire before the contributing item does.

        Asked for routes with a target whose table has a time to live.
        """
        del route, change, after
        return False

    def reconciled(
        self, route: Route, item: ItemKey, after: Contribution, finishing: Finishing
    ) -> Sequence[Unprocessable]:
        """Finishes one reconciled item, of which a dry run left nothing unfinished; returns its conflicts.

        Raises the error that prevented it.
        """
        del route, item, after, finishing
        return ()

    def parks_conflicts(self, route: Route) -> bool:
        """Whether records that lead to the conflicts of ``reconciled`` are parked."""
        del route
        return False

    def guard(self, route: Route) -> str:
        del route
        return "ledger"


def derivation(route: Route) -> Derivation:
    """The kind of a route, as it is carried out."""
    assert isinstance(route.kind, Derivation), f"{route.kind!r} is no kind that can be carried out"
    return route.kind


@lru_cache(ROUTES_KEPT_MAX)  # asked for with each item
def contributing(route: Route) -> Contributing:
    """The kind of a route that contributes."""
    assert isinstance(route.kind, Contributing), f"{route.kind!r} does not contribute"
    return route.kind


class Derived(NamedTuple):
    """What a handler makes of an item: rows, or the error that it raised."""

    rows: Contribution
    error: Exception | None = None

    def checked(self) -> Contribution:
        """The rows. Raises the handler's error."""
        if self.error is not None:
            raise self.error
        return self.rows


def derived(route: Route, image: Image, fields: Fields, schema: Schema) -> Derived:
    """What an item contributes; no rows if it is absent. ``forms`` learns the forms of the attributes.

    Raises what is no item's fault. A batch calls its handlers by itself (``batch.steps``): it derives each record, and
    skips old images that read alike.
    """
    with ItemFault() as fault, localcontext(EXACT):
        return Derived(contributing(route).contribution(route, image, fields, schema) if image else {})
    from streamfold.commit.outcome import explained

    assert fault.error is not None
    return Derived({}, explained(route, fault.error))


class Expiring(Contributing):
    """A kind that aggregates: a shared row shows the time to live of its contributors, and one may have none."""

    def outlived(self, route: Route, change: Change, after: Contribution) -> bool:
        return self._outlived(route, change, after)

    @cached_property  # an import statement costs, and this is called for each item
    def _outlived(self) -> Callable[[Route, Change, Contribution], bool]:
        from streamfold.derivations.view.expiry import outlived

        return outlived
