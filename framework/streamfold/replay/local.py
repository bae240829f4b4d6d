"""Runs an application in this process, without AWS: an event, then the records of the engine's own stream.

A local state may hold an export that was loaded. A record that is older than the stored item changes nothing that
follows from items: the export has it already. Kinds that take each change by itself get it. A record of the second of
the export is refused if its images do not show on which side of the export it is.
"""

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from streamfold.batch.fan_outs import enqueue_open, run_chains, run_fan_outs
from streamfold.batch.process import all_failed, process_changes, read_changes, undeclared_names
from streamfold.batch.report import Report, Response, merge, response_of
from streamfold.commit.outcome import Failure, by_cause
from streamfold.derivations import COUNTED_WORDS
from streamfold.derivations.derivation import derivation
from streamfold.engines.embedded import EmbeddedEngine
from streamfold.engines.protocol import Engine, OwnStream
from streamfold.errors import NotOwned, RecordError, SettingsError, public
from streamfold.keys.field import datetime_text
from streamfold.parking import open_parking
from streamfold.records.change import Change, ItemKey, times_of
from streamfold.records.envelope import Origins, Seen, records_of
from streamfold.records.kinesis import MICROSECONDS
from streamfold.records.sources import StoredSource, newest_sources, source_of, split
from streamfold.routes.application import Application
from streamfold.runtime import Knowledge, Runtime
from streamfold.settings import Settings
from streamfold.settings.readers import EMBEDDED, read_path

FUNCTION_NAME = "AWS_LAMBDA_FUNCTION_NAME"
"""Set in every execution environment (Lambda Developer Guide, configuration-envvars)."""

log = logging.getLogger("streamfold")


@dataclass(slots=True)
class Memory:
    """What this process knows of an engine's state by application, and its warnings so far."""

    warned: set[object] = field(default_factory=set)
    known: WeakKeyDictionary[Application, Knowledge] = field(default_factory=WeakKeyDictionary)


MEMORIES: WeakKeyDictionary[Engine, Memory] = WeakKeyDictionary()


class Ran(NamedTuple):
    """The reports of an event."""

    report: Report  # of the event's records
    chains: Report  # of fan-outs, and of the records of the engine's own stream

    @property
    def failures(self) -> list[Failure]:
        return self.report.failures + self.chains.failures


def process(
    app: Application,
    event: Any,
    engine: Engine,
    settings: Settings,
    *,
    external: bool = False,
    opened: dict[str, Any] | None = None,
) -> list[Failure]:
    """Processes an event. What is learnt of the engine's state is remembered while the engine lives.

    opened: the locations outside of tables, by the names under which a run keeps them.
    """
    memory = MEMORIES.setdefault(engine, Memory())
    known = memory.known.get(app)
    if known is None:
        known = memory.known[app] = Knowledge()
    runtime = _runtime(app, engine, settings, known)
    runtime.outside, runtime.warned = external or None, memory.warned
    runtime.opened |= opened or {}
    return process_to_end(runtime, event).failures


def process_to_end(runtime: Runtime, event: Any) -> Ran:
    """Processes an event and the fan-outs that it opens. Chains are run to their end in an engine with a stream."""
    app, settings, state = runtime.application, runtime.settings, runtime.store.durable
    for text in undeclared_names(app, settings):
        runtime.warn_once(text, text)
    origins = Origins(app.source_tables, settings, runtime.warn)
    changes, malformed = read_changes(records_of(event), origins)
    found = SortedChanges(changes)
    woken = work_off(runtime, changes) if app.asks_time else Report()  # before the items that the records show
    if state is not None:
        if state.wanted is not None:  # derived rows come through the own stream, not a second time from the event
            changes = [change for change in changes if not app.derived(change.item)]
        found = sorted_changes(runtime.own_stream, changes)
        state.put_sources(
            newest_sources(each for each in changes if not app.derived(each.item) and each.item not in found.loaded)
        )
    stream = runtime.own_stream
    if stream is not None and app.chained:
        stream.item_times.clear()
    try:
        if found.loaded:
            report = process_beside(runtime, found, origins.sources)
        else:
            report = process_changes(runtime, changes, origins.sources)
    except NotOwned as error:
        report = all_failed(changes, error)
    report.failures[:0] = malformed
    if stream is None:
        return Ran(report, run_fan_outs(runtime) if runtime.queued else Report())
    stream.retry(settings.group)
    if runtime.queued or settings.group is not None or stream.pending(1):
        merge(woken, run_chains(runtime, stream))
    if app.asks_time:
        merge(woken, work_off(runtime))
    return Ran(report, woken)


def work_off(runtime: Runtime, changes: Sequence[Change] = (), until: int | None = None) -> Report:
    """Works off the wakes of a local state up to its clock, or beyond it: to the first of some changes, or a moment."""
    if not runtime.application.asks_time:
        return Report()
    from streamfold.batch.wakes import work_off as work_off_until  # few applications do

    stream = runtime.store.own_stream
    clock = 0 if stream is None else round(stream.clock_seconds * MICROSECONDS)
    if not (changes or until or clock):  # a new state: the time of this machine would make each record an old one
        return Report()
    to = min((round(each * MICROSECONDS) for each in times_of(changes)), default=until)
    if changes and to is not None:
        to = max(to, clock)
    return work_off_until(runtime, to)


def handle(app: Application, event: Any) -> Response:
    """Processes one invocation on the local state that the setting names, and returns the partial batch response.

    Failures are logged with their reasons. A failed record of the state's own stream is retried with the next event.
    Raises ``SettingsError`` in a Lambda function, whose files disappear with its environment.
    """
    settings = Settings.from_environment(os.environ)
    if name := os.environ.get(FUNCTION_NAME):
        raise SettingsError(
            f"STREAMFOLD_ENGINE={settings.engine!r} is set in the Lambda function {name!r}, whose files are lost with "
            "its environment: unset it there."
        )
    with closing(_open(app, settings)) as engine:
        runtime = _runtime(app, engine, settings, Knowledge())
        enqueue_open(runtime)  # fan-outs that an earlier process left open
        ran = process_to_end(runtime, event)
    for failure, count in by_cause(ran.failures, lambda each: each.cause):
        others = f" (and {count - 1} more for the same reason)" if count > 1 else ""
        log.error("Record failed and is retried: %s%s", failure, others)
    for text in _noted(ran.report):
        log.warning(text)
    return response_of(ran.report.failures)


def _open(app: Application, settings: Settings) -> EmbeddedEngine:
    path = read_path("State file", str(settings.engine).removeprefix(EMBEDDED))
    if not path.parent.is_dir():
        raise SettingsError(f"STREAMFOLD_ENGINE={settings.engine!r}: there is no folder {path.parent}; make it first.")
    return EmbeddedEngine(app.tables.values(), path, app.chains)


def _runtime(app: Application, engine: Engine, settings: Settings, known: Knowledge) -> Runtime:
    parking = open_parking(settings.park) if settings.park else None
    # A trial calls no external handlers and writes to no buckets of archives: ``outside`` keeps its default.
    runtime = Runtime(app, engine, settings, known, warn=lambda message: log.warning(public(message)), parking=parking)
    runtime.own_stream = engine.own_stream
    return runtime


def _noted(report: Report) -> Iterator[str]:
    """Log lines about a batch besides its failures: parked records and counts of the kinds."""
    for handler, count in report.parked.items():
        yield f"{count} records were parked for handler {handler}. The first: {report.first_parked[handler]}"
    for word, message in COUNTED_WORDS.items():
        for handler, count in report.counts.get(word, {}).items():
            yield message.text.format(name=handler, count=count)


class SortedChanges(NamedTuple):
    """The changes of a batch beside the loaded items."""

    newer: Sequence[Change]
    older: Sequence[Change] = ()  # the loaded items have them already
    unclear: Sequence[Failure] = ()
    loaded: Collection[ItemKey] = ()  # items that an export was the last to change


def sorted_changes(stream: OwnStream | None, changes: Sequence[Change]) -> SortedChanges:
    """Sorts the changes of a batch by what the state has of their items."""
    if stream is None or not stream.has_exports:
        return SortedChanges(changes)
    by_item: dict[ItemKey, list[Change]] = {}
    for change in changes:
        by_item.setdefault(change.item, []).append(change)
    stored = {item: source for item, source in stream.stored_sources(by_item).items() if source.exported}
    older, unclear = set[int](), dict[int, StoredSource]()
    for item, source in stored.items():
        _, known, open_ones = split(by_item[item], source)
        older.update(map(id, known))
        unclear.update((id(change), source) for change in open_ones)
    return SortedChanges(
        [change for change in changes if id(change) not in older and id(change) not in unclear],
        [change for change in changes if id(change) in older],
        [_refused(change, unclear[id(change)]) for change in changes if id(change) in unclear],
        stored,
    )


def process_beside(runtime: Runtime, found: SortedChanges, sources: Mapping[str, Seen]) -> Report:
    """Processes the changes of a batch beside the loaded items: the older ones first, as they happened first."""
    report = _process_older(runtime, found) if found.older or found.unclear else None
    for change in sorted([*found.older, *found.newer], key=lambda change: change.version_text):
        # One after another: each state of a loaded item is newer only beside the one before.
        if runtime.own_stream is not None and change.item in found.loaded and change.has_new:
            runtime.own_stream.put_sources([source_of(change)])
    newer = process_changes(runtime, found.newer, sources)
    if report is None:
        return newer
    merge(newer, report)
    return newer


def _process_older(runtime: Runtime, found: SortedChanges) -> Report:
    """Processes the changes that the loaded items have already, for the kinds that take each change by itself."""
    report = Report(failures=list(found.unclear))
    report.known = len(found.older)
    kinds = ((route, derivation(route)) for route in runtime.application.routes)
    # Rows of the others follow from items as they are, which the export has, or they change items.
    names = frozenset(route.name for route, kind in kinds if not (kind.reconciles or kind.touches(route)))
    if found.older and names:
        older = process_changes(replace(runtime, handlers=names), found.older)
        older.unrouted.clear()  # what no such handler wants, others have had from the export
        older.known = 0
        merge(report, older)
    return report


def _refused(change: Change, source: StoredSource) -> Failure:
    at = datetime_text(datetime.fromtimestamp((source.at or 0) // MICROSECONDS, UTC), 0)
    error = RecordError(
        f"The record is of the same second as the loaded item, {at}, and neither of its images is that item: which of "
        "them is newer is not known. Replay the records before it too, or load a later export."
    )
    return Failure(change.sequence, change.name, None, error)
