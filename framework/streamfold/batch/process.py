"""The batch loop that joins the rooms: changes are routed, derived, planned and committed. The world is passed in."""

from collections.abc import Iterable, Mapping, Sequence
from decimal import localcontext
from types import MappingProxyType
from typing import Any

from streamfold.app import App
from streamfold.batch.known_forms import KnownState, keep_kinds
from streamfold.batch.manifest import check_manifest
from streamfold.batch.planning import Batch
from streamfold.batch.report import Failure, Report, add_failures, merge
from streamfold.commit.committer import Committer, CommitWorld
from streamfold.commit.outcome import Failed
from streamfold.commit.plan import Archived, Copied, Plan, Removed
from streamfold.commit.recompute import forget_left
from streamfold.commit.sending import expires_at
from streamfold.commit.triage import Triage
from streamfold.derivations.attributes.write_back import Upkeep
from streamfold.derivations.cascade.children import Children
from streamfold.derivations.copy.copies import Copies
from streamfold.engines import Engine
from streamfold.engines.timed import Timed
from streamfold.errors import EngineUnavailable, RecordError, SettingsError
from streamfold.records.change import Change
from streamfold.records.envelope import Origins, RawRecord, Seen, number_of, records_of
from streamfold.records.values import EXACT
from streamfold.routes.suggestions import unknown_handler
from streamfold.run import Run
from streamfold.settings import Settings


def process_event(app: App, event: Any, engine: Engine, world: Run) -> Report:
    """Processes an event.

    A record that is malformed is a failure if it can be named by its sequence number; otherwise this raises
    ``RecordError``, so that nothing is acknowledged unseen.
    """
    origins = Origins(app.source_tables, world.settings, world.warn)
    changes, failures = read_changes(records_of(event), origins)
    report = process_changes(app, changes, engine, world, origins.sources)
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
    app: App,
    changes: Sequence[Change],
    engine: Engine,
    world: Run,
    sources: Mapping[str, Seen] = MappingProxyType({}),
) -> Report:
    """Processes the changes of a batch: routes, derives, plans and commits them, and returns what became of them.

    ``sources`` are the tables as far as they were seen; the state's manifest holds them to it.
    """
    try:
        known = check_application(app, engine, world, sources)
    except EngineUnavailable as error:  # nothing was begun: all records come again, and the response says so
        return Report(failures=[Failure(change.sequence, change.name, None, error) for change in changes])
    with localcontext(EXACT):
        triage = Triage(app.name, engine, world)
        batch = Batch(app, changes, engine, world, triage)
        plan = batch.plan()
        if not keep_kinds(app, engine, known, world):
            batch = Batch(app, changes, engine, world, triage)  # others made an attribute otherwise at the same time
            plan = batch.plan()
        timed = triage.engine = Timed(engine, world)
        outcome = Committer(
            timed,
            CommitWorld(expires_at(world), batch.actions, world.wait),
            batch.named,
            batch.unsettled,
            triage,
            app.retired,
        ).run(plan)
        batch.failed += outcome.failed
        batch.failed += _keep_up(app, batch, timed, world, triage)
        forget_left(timed, batch.unsettled)
        copies = Copies(timed, world, triage)
        copies.run(each for each in plan.whole if isinstance(each, Copied))
        batch.failed += copies.failed
        batch.call_external()
    report = batch.report
    report.tallies = outcome.tallies | copies.tallies
    report.parked, report.first_parked = triage.parked, triage.first
    report.conflicts = outcome.conflicts
    add_failures(report, batch.failed)
    _archive([each for each in plan.whole if isinstance(each, Archived)], world, triage, report)
    _cascade(app, [each for each in plan.whole if isinstance(each, Removed)], timed, world, report)
    done = {id(change) for change in (*outcome.done, *batch.done)}
    report.known = len(done - {id(change) for change in (*outcome.fresh, *(each.change for each in batch.failed))})
    return report


def _keep_up(app: App, batch: Batch, engine: Engine, world: Run, triage: Triage) -> list[Failed]:
    """Copies derived attributes onto the items that bear them."""
    if not any(route.kind == "attributes" for route in app.routes):
        return []
    upkeep = Upkeep(app)
    upkeep.moved(batch.unsettled.truths)
    for work in batch.work.values():
        upkeep.changed(work.item, work.changes, work.bears)
    failures = upkeep.run(engine, world)
    batch.unsettled.fail(failures)
    return [failed for failed in map(triage, failures) if failed is not None]


def _archive(archived: Sequence[Archived], world: Run, triage: Triage, report: Report) -> None:
    if archived:
        from streamfold.derivations.archive.archives import Archives

        archives = Archives(world, triage)
        archives.run(archived)
        report.tallies |= archives.tallies
        report.not_archived.update(archives.skipped)
        add_failures(report, archives.failed)


def _cascade(app: App, removed: Sequence[Removed], engine: Engine, world: Run, report: Report) -> None:
    if not world.cascade:
        report.not_cascaded.update(each.route.name for each in removed)
    elif world.later is not None:
        for each in removed:
            place = each.route.name, each.changes[-1].item
            known = world.later.get(place)
            world.later[place] = each._replace(changes=(*known.changes, *each.changes)) if known else each
    elif removed:
        merge(report, remove_children(app, removed, engine, world))


def remove_children(app: App, removed: Iterable[Removed], engine: Engine, world: Run) -> Report:
    """Removes the children of items that are gone, and returns what became of them."""
    triage = Triage(app.name, engine, world)
    children = Children(app.name, engine, world, world.actions or world.settings.chunk_actions, triage)
    children.run(removed)
    report = Report(tallies=children.tallies, kept=children.kept, parked=triage.parked, first_parked=triage.first)
    add_failures(report, children.failed)
    return report


def check_application(
    app: App,
    engine: Engine,
    world: Run,
    sources: Mapping[str, Seen] = MappingProxyType({}),
    *,
    write: bool = True,
) -> KnownState:
    """Checks that the application fits the settings and the state and, with ``write``, notes it in the state.

    Returns what the state is known to hold. Raises ``SettingsError`` and ``ManifestError``.
    """
    _check_handlers(app, world.settings)
    known = check_manifest(app, engine, world, app.checked_engines.get(engine), sources, write=write)
    if write:
        app.checked_engines[engine] = known
    return known


def _check_handlers(app: App, settings: Settings) -> None:
    """A group that no handler is of would acknowledge every record unprocessed; a wrong name would switch off none."""
    names, group = {route.name for route in app.routes}, settings.group
    for name in settings.handlers_off:
        if name not in names:
            raise unknown_handler("STREAMFOLD_HANDLERS_OFF", name, sorted(names))
    groups = sorted({route.group for route in app.routes})
    if group is not None and group not in groups:
        raise SettingsError(f"STREAMFOLD_GROUP={group!r} is no group of {app.name!r}: expected {' or '.join(groups)}.")


def plan_changes(app: App, changes: Sequence[Change], engine: Engine, world: Run) -> tuple[Plan, Report]:
    """What would be written for a batch, without writing it (``replay --dry-run``)."""
    _check_handlers(app, world.settings)
    with localcontext(EXACT):
        batch = Batch(app, changes, engine, world)
        plan = batch.plan()
    batch.report.known = len({id(change) for change in batch.done})
    add_failures(batch.report, batch.failed)
    return plan, batch.report
