"""Records beside an export that was loaded into a local state.

A record that is older than the stored item changes nothing that follows from items: the export has it already. Kinds
that take each change by itself get it. A record of the second of the export is refused if its images do not show on
which side of the export it is.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from streamfold.batch.process import process_changes
from streamfold.batch.report import Report, merge
from streamfold.commit.outcome import Failure
from streamfold.derivations.derivation import derivation
from streamfold.engines.protocol import OwnStream
from streamfold.errors import RecordError
from streamfold.keys.field import datetime_text
from streamfold.records.change import Change, ItemKey
from streamfold.records.envelope import Seen
from streamfold.records.kinesis import MICROSECONDS
from streamfold.records.sources import StoredSource, source_of, split
from streamfold.routes.route import Route
from streamfold.runtime import Runtime


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


def put_in_order(stream: OwnStream, found: SortedChanges) -> None:
    """Puts the states of loaded items, one after another: each is newer only beside the one before."""
    for change in sorted([*found.older, *found.newer], key=lambda change: change.version_text):
        if change.item in found.loaded and change.has_new:
            stream.put_sources([source_of(change)])


def process_beside(runtime: Runtime, found: SortedChanges, sources: Mapping[str, Seen]) -> Report:
    """Processes the changes of a batch beside the loaded items: the older ones first, as they happened first."""
    report = _process_older(runtime, found) if found.older or found.unclear else None
    if runtime.own_stream is not None:
        put_in_order(runtime.own_stream, found)
    newer = process_changes(runtime, found.newer, sources)
    if report is None:
        return newer
    merge(newer, report)
    return newer


def _process_older(runtime: Runtime, found: SortedChanges) -> Report:
    """Processes the changes that the loaded items have already, for the kinds that take each change by itself."""
    report = Report(failures=list(found.unclear))
    report.known = len(found.older)
    names = frozenset(route.name for route in runtime.application.routes if not follows_items(route))
    if found.older and names:
        older = process_changes(replace(runtime, handlers=names), found.older)
        older.unrouted.clear()  # what no such handler wants, others have had from the export
        older.known = 0
        merge(report, older)
    return report


def follows_items(route: Route) -> bool:
    """Whether the rows of a handler follow from items as they are, or whether it changes items."""
    kind = derivation(route)
    return kind.reconciles or bool(kind.touches(route))


def _refused(change: Change, source: StoredSource) -> Failure:
    at = datetime_text(datetime.fromtimestamp((source.at or 0) // MICROSECONDS, UTC), 0)
    error = RecordError(
        f"The record is of the same second as the loaded item, {at}, and neither of its images is that item: which of "
        "them is newer is not known. Replay the records before it too, or load a later export."
    )
    return Failure(change.sequence, change.name, None, error)
