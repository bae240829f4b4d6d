"""The batch loop: changes are routed, derived, planned, committed and finished.

Reading the manifest and a sample of the ledger comes first, because both decide how the batch is planned.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import localcontext
from types import MappingProxyType
from typing import Any

from streamfold.batch.already_applied import NOTHING_APPLIED, Redelivery, begin
from streamfold.batch.manifest import check_manifest, note_expiring, open_deltas
from streamfold.batch.order import ItemWork, by_item
from streamfold.batch.report import Failing, Report, add_failures, add_outcome, finish
from streamfold.batch.steps import Steps
from streamfold.batch.stored_schema import keep_schema
from streamfold.commit.buckets import empty_unvisited, learn_shared, note_unvisited
from streamfold.commit.committer import Committer
from streamfold.commit.outcome import HELD, Failed, Failure, Held, Outcome, Triage
from streamfold.commit.plan import Deferred, Plan, pack
from streamfold.commit.transactions import note_times
from streamfold.derivations.derivation import Finishing, Planned, Planning, Work, derivation
from streamfold.errors import EngineError, EngineUnavailable, HandlerError, RecordError, SettingsError, SwitchedOff
from streamfold.records.change import Change, times_of
from streamfold.records.envelope import Origins, RawRecord, Seen, number_of, records_of
from streamfold.records.values import EXACT
from streamfold.routes.application import Application, unknown_handler
from streamfold.routes.parts import PART
from streamfold.routes.route import REFERENT, Route, by_kind
from streamfold.runtime import Knowledge, Runtime
from streamfold.settings import Settings, undeclared_indexes, undeclared_roles, undeclared_tables


class Batch:
    """A batch, from changes to a plan. No object in it refers back to it, so its memory is freed as soon as it is done.

    redelivery: the changes that were applied before. None: a dry run, which does not check.
    """

    def __init__(
        self,
        runtime: Runtime,
        changes: Sequence[Change],
        triage: Triage | None = None,
        redelivery: Redelivery | None = None,
    ) -> None:
        self.runtime = runtime
        self.failing = Failing(triage)
        self.report = Report()
        self.done: list[Change] = []
        self.work = by_item(runtime, changes, self.report)
        self.steps = Steps(runtime, self.work, self.failing, self.done)
        self.redelivery = redelivery
        self.referents: list[Work] = []  # items that others refer to, and that changed in what handlers read of them
        self.parts: list[Work] = []  # items that others gather, likewise

    def plan(self) -> Plan:
        """Derives every handler's effects and plans them.

        Reads state only of a batch that was applied before, and where an old image is not known.
        """
        applied = NOTHING_APPLIED
        if self.redelivery is not None and self.redelivery.sample:
            applied = self.redelivery.applied(self.work, self.steps.pending_work)
        units = self.steps.units(applied)
        works: dict[Route, list[Work]] = {}
        for item in self.work.values():
            for route in dict.fromkeys(item.off):
                self._put_aside(route, item)
            for work in item.works(item.others) if item.others else ():
                if (read_by := self._read_by(work)) is None:
                    works.setdefault(work.route, []).append(work)
                elif self._counts(work):
                    read_by.append(work)
        planned = Planned()
        if works:
            planning = Planning(self.runtime, self.failing.fails, self._hold, self._count)
            planned = Planned.joined(derivation(route).plan(own, planning) for route, own in works.items())
        transactions = pack([*units, *planned.units], self.runtime.chunk_actions, self.runtime.shared)
        return Plan(tuple(transactions), tuple(planned.puts), tuple(planned.deferred))

    @property
    def failed(self) -> list[Failed]:
        """The failures that are reported."""
        return self.failing.failed

    @property
    def subscribed(self) -> list[Work]:
        """The work of routes that subscribe to an item without their handlers being called."""
        return [work for item in self.work.values() if item.subscribed for work in item.works(item.subscribed)]

    def _hold(self, route: Route, changes: Collection[Change]) -> None:
        self.failing.failed += [Failed(change, route, Held(HELD)) for change in changes]

    def _read_by(self, work: Work) -> list[Work] | None:
        """Where items are collected whose changes visit other items; None for the work of a kind."""
        if work.role == REFERENT:
            return self.referents
        return self.parts if work.role == PART and work.route.kind.contributes else None

    def _counts(self, work: Work) -> bool:
        """Whether a change of an item reaches those that read it; a record that cannot be read fails."""
        from streamfold.batch import referrers  # few batches have one

        counts = referrers.counts if work.role == REFERENT else referrers.part_counts
        try:
            return counts(work)
        except RecordError as error:
            for change in work.changes:
                self.failing.fails(change, work.route, error)
            return False

    def visit_others(self, outcome: Outcome, finishing: Finishing) -> Sequence[Deferred]:
        """Visits the items that read those which changed. Returns the work that remains for ``finish``."""
        deferred: Sequence[Deferred] = ()
        if self.referents:
            from streamfold.batch.referrers import visit_referrers  # few batches have one

            visited, deferred = visit_referrers(self.referents, finishing)
            outcome += visited
        if self.parts:
            from streamfold.batch.referrers import visit_roots  # few batches have one

            outcome += visit_roots(self.parts, finishing, outcome.stepped)
        return deferred

    def _count(self, word: str, route: Route) -> None:
        self.report.count(word, route.name)

    def _put_aside(self, route: Route, work: ItemWork) -> None:
        """The records of a handler that is switched off: parked if possible, else skipped and counted."""
        changes = [change for change in work.changes_for(route) if _may_take(route, change)]
        if self.failing.triage is not None and self.runtime.parking is not None:
            for change in changes:
                self.failing.fails(change, route, SwitchedOff("The handler was switched off, STREAMFOLD_HANDLERS_OFF."))
            return
        self.report.off[route.name] += len(changes)
        self.runtime.warn_once(
            ("off", route.name),
            f"Handler {route.name!r} is switched off, and without a parking place (STREAMFOLD_PARK) its records are "
            "skipped.",
        )


def _may_take(route: Route, change: Change) -> bool:
    """Whether a handler may want a change; one that gets items sees derived attributes too."""
    if route.kind.gets_items:
        return True
    try:
        own = change.as_written()
        return own is not None and route.takes(own)
    except RecordError:  # an image that cannot be read: the handler would have failed on it
        return True


def process_event(runtime: Runtime, event: Any) -> Report:
    """Processes an event.

    A record that is malformed is a failure if it can be named by its sequence number; otherwise this raises
    ``RecordError``, so that nothing is acknowledged unseen.
    """
    app = runtime.application
    origins = Origins(app.source_tables, runtime.settings, runtime.warn, app.watched_tables)
    changes, failures = read_changes(records_of(event), origins)
    report = process_changes(runtime, changes, origins.sources)
    report.failures[:0] = failures
    return report


def read_changes(records: Iterable[RawRecord], origins: Origins) -> tuple[list[Change], list[Failure]]:
    """The changes of raw records, and a failure for each that is malformed but has a sequence number."""
    changes, failures = [], []
    for record in records:
        try:
            changes.append(origins.change(record))
        except RecordError as error:
            if (sequence := number_of(record)) is None:
                raise
            failures.append(Failure(sequence, "?", None, error))
    return changes, failures


def process_changes(
    runtime: Runtime,
    changes: Sequence[Change],
    sources: Mapping[str, Seen] = MappingProxyType({}),
    begun: Redelivery | None = None,
) -> Report:
    """Processes the changes of a batch: routes, derives, plans, commits and finishes them; returns the outcome.

    sources: the tables of the records, which are checked against the manifest. begun: the reads for the batch that were
    begun before its records were parsed, if any.
    """
    _check_served(runtime)
    with localcontext(EXACT):
        redelivery = begun or begin(runtime, changes)
        triage = Triage(runtime)
        batch = Batch(runtime, changes, triage, redelivery)  # which routes the changes meanwhile
        is_new = runtime.known.revision is None
        try:
            check_manifest(runtime, sources, read=redelivery.answer())
            _begin_sharing(runtime, len(changes), is_new=is_new)
        except EngineUnavailable as error:  # no work was begun
            return all_failed(changes, error)
        if runtime.own_stream is not None:
            runtime.own_stream.advance_clock(max(times_of(changes), default=0.0))
        runtime.pace.began()
        if runtime.folds_times:
            note_times(runtime, changes)
        plan = batch.plan()
        if runtime.known.schema.expiring:
            note_expiring(runtime)
        if runtime.known.schema_grew and not keep_schema(runtime):
            # Another process has stored an aggregation meanwhile that contradicts one of this batch.
            batch = Batch(runtime, changes, triage, redelivery)
            plan = batch.plan()
        pending_work = batch.steps.pending_work
        committer = Committer(batch.steps, triage, first_transaction_alone=redelivery.is_possible)
        outcome = committer.carry_out(plan)
        outcome.failed[:0] = batch.failed
        finishing = Finishing(runtime, triage, pending_work)
        outcome += finish((*plan.deferred, *batch.visit_others(outcome, finishing)), batch.subscribed, finishing)
    if runtime.pace.sharing and runtime.known.deltas is None:
        with suppress(EngineUnavailable):  # the next batch that meets others notes it
            open_deltas(runtime)
    runtime.pace.ended(again=bool(outcome.failed))
    return _reported(batch, changes, outcome, triage)


def all_failed(changes: Iterable[Change], error: Exception) -> Report:
    """The report of a batch that was not begun: the response has all records, which are retried."""
    return Report(failures=[Failure(change.sequence, change.name, None, error) for change in changes])


def _begin_sharing(runtime: Runtime, records: int, *, is_new: bool) -> None:
    """Decides how the batch sends additions to shared rows."""
    known, now = runtime.known, runtime.clock()
    known.note_may_put(now)
    runtime.pace.sharing.began(records, now)
    if known.deltas is not None:
        with suppress(EngineError, HandlerError):  # a favour to others: what fails there fails no record of this batch
            learn_shared(runtime)
            if is_new and _may_empty(runtime):
                note_unvisited(runtime)
            empty_unvisited(runtime)


def _may_empty(runtime: Runtime) -> bool:
    """Whether the function has the permissions for deltas: some handler of its group may put one."""
    routes = [route for route in runtime.application.routes if runtime.settings.serves(route.group)]
    return any(derivation(route).delta_keys(route) for route in routes)


def _reported(batch: Batch, changes: Sequence[Change], outcome: Outcome, triage: Triage) -> Report:
    for handler, items in batch.steps.unchanged.items():
        outcome.tally(handler).unchanged += items
    add_outcome(batch.report, outcome, triage)
    batch.report.known = _known(batch, changes, outcome)
    return batch.report


def _known(batch: Batch, changes: Sequence[Change], outcome: Outcome) -> int:
    """The number of changes of a batch that had taken effect before; each repetition counts."""
    known = {id(change): change for change in (*outcome.done, *batch.done)}
    for change in (*outcome.fresh, *(each.change for each in outcome.failed)):
        known.pop(id(change), None)
    if not known or len(changes) == sum(len(work.changes) for work in batch.work.values()):
        return len(known)
    identities = {(change.item, change.identity_text) for change in known.values()}
    return sum((change.item, change.identity_text) in identities for change in changes)


def check_application(
    runtime: Runtime, sources: Mapping[str, Seen] = MappingProxyType({}), *, write: bool = True
) -> Knowledge:
    """Checks the application against the settings and the state's manifest. With ``write`` the manifest is updated.

    Returns the knowledge of the state. Raises ``SettingsError`` and ``ManifestError``.
    """
    _check_served(runtime)
    return check_manifest(runtime, sources, write=write)


def check_settings(app: Application, settings: Settings) -> None:
    """Raises ``SettingsError`` for an unknown handler to switch off, for rows in another account than the state, and
    for real names that make one index of two.

    ``undeclared_names`` gives the settings by name that have no effect.
    """
    names = {route.name for route in app.routes}
    for name in settings.handlers_off:
        if name not in names:
            raise unknown_handler("STREAMFOLD_HANDLERS_OFF", name, sorted(names))
    if settings.role or settings.roles:
        from streamfold.routes.checks import check_accounts

        check_accounts(app.routes, settings.role_of)
    for _, routes in by_kind(app.routes) if settings.indexes else ():
        derivation(routes[0]).check_names(routes, settings)


def _check_served(runtime: Runtime) -> None:
    """Refuses, besides, a group without handlers, which would skip every record."""
    app, settings = runtime.application, runtime.settings
    check_settings(app, settings)
    groups, group = sorted({route.group for route in app.routes}), settings.group
    if group is not None and group not in groups:
        raise SettingsError(f"STREAMFOLD_GROUP={group!r} is no group of {app.name!r}: expected {' or '.join(groups)}.")


def undeclared_names(app: Application, settings: Settings) -> list[str]:
    """The warnings about settings whose names are not in the application, and which have no effect."""
    if not (settings.tables or settings.indexes or settings.roles):  # as nearly always
        return []
    indexes = {name: shown for route in app.routes for name, shown in route.kind.indexes(route).items()}
    of_tables = (*undeclared_tables(settings, app.tables), *undeclared_roles(settings, app.tables))
    return [*of_tables, *undeclared_indexes(settings, indexes)]


def plan_changes(runtime: Runtime, changes: Sequence[Change]) -> tuple[Plan, Report]:
    """Plans a batch without writing it (``replay --dry-run``)."""
    _check_served(runtime)
    with localcontext(EXACT):
        batch = Batch(runtime, changes)
        plan = batch.plan()
    batch.report.known = len({id(change) for change in batch.done})
    add_failures(batch.report, batch.failed)
    return plan, batch.report
