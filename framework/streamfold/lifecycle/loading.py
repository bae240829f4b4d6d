"""Loads exports into a local state: each item as the newest of its exports and records left it.

A full export shows a whole table at its time: items that are older and not in it are gone. An incremental export shows
the items that changed between two times, removed ones too. Derived rows in an export are passed over: the state derives
its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

from streamfold.engines.protocol import KeptState, StoredItem
from streamfold.errors import SettingsError
from streamfold.keys.field import datetime_text
from streamfold.keys.table import Table, is_marker
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.lifecycle.exports import Export, ExportLine
from streamfold.records.change import ItemKey, item_key
from streamfold.records.kinesis import MICROSECONDS
from streamfold.records.sources import ImageOrder, SourceImage, StoredSource, order_of
from streamfold.routes.application import Application

PAGE_ITEMS = 10_000
"""Items of an export that are compared with the stored ones at a time."""


@dataclass(slots=True)
class LoadedExport:
    """What an export changed in a state."""

    newer: int = 0  # items that the export changed, or added
    older: int = 0  # items whose stored state is newer
    removed: int = 0  # items that the export shows as removed, or does not have
    unclear: list[ItemKey] = field(default_factory=list)
    gap: tuple[int, int] | None = None  # a time that no export of the state covers, epoch microseconds


def load(application: Application, state: KeptState, export: Export) -> LoadedExport:
    """Loads an export into a state, whole or not at all.

    Raises ``SettingsError`` for an export without times, and if it and the stored items cannot be put in order.
    """
    begin, end = export.begin, export.end
    covered = state.covered_until(export.table)
    loaded, of_its_second = LoadedExport(), set[ItemKey]()
    if begin > covered:
        loaded.gap = covered, begin
    with state.batch():
        lines = (line for line in export.lines() if not _is_derived(application, line.key))
        while page := list(islice(lines, PAGE_ITEMS)):
            images = [_image(export, line) for line in page]
            of_its_second |= _put(state, images, loaded)
        if export.is_full:
            absent = _absent(state, export.table, end, of_its_second)
            while gone := list(islice(absent, PAGE_ITEMS)):
                _put(state, gone, loaded)
        if loaded.unclear:
            raise _refused(export, loaded.unclear)
        # Exports that follow one another show whole tables: an item that none of them has is gone.
        state.note_loaded(export.table, end if begin <= covered else 0)
        state.advance_clock(end // MICROSECONDS)
    return loaded


def _put(state: KeptState, images: Sequence[SourceImage], loaded: LoadedExport) -> set[ItemKey]:
    """Puts the images that are newer, and returns the items of the others."""
    kept, others = list[SourceImage](), set[ItemKey]()
    stored = state.stored_sources(image.item for image in images)
    for image in images:
        order = order_of(image, stored.get(image.item))
        loaded.newer += order is ImageOrder.NEWER and image.raw is not None
        loaded.removed += order is ImageOrder.NEWER and image.raw is None
        loaded.older += order is ImageOrder.OLDER
        if order is ImageOrder.UNCLEAR:
            loaded.unclear.append(image.item)
        elif order is ImageOrder.OLDER:
            others.add(image.item)
        else:
            kept.append(image)
    state.put_sources(kept)
    return others


def _image(export: Export, line: ExportLine) -> SourceImage:
    if line.at is None:
        raise SettingsError(
            f"An item of export {export.location} has no WriteTimestampMicros: expected the time of its last write, as "
            "incremental exports have it. Without it nobody knows whether the stored item is newer."
        )
    return SourceImage(line.key, line.image, BEFORE_ALL, line.at, line.old, exported=True)


def _absent(state: KeptState, table: Table, at: int, newer: set[ItemKey]) -> Iterator[SourceImage]:
    """The removals of the stored items that a full export does not have. They are read before any is removed."""
    stored = [item_of(table, item) for item in state.older_sources(table, _end_of_second(at))]
    sources = state.stored_sources(stored)
    for item in stored:
        if item not in newer and not _is_of(sources.get(item), at):
            yield SourceImage(item, None, BEFORE_ALL, at, exported=True)


def _is_of(source: StoredSource | None, at: int) -> bool:
    return source is not None and source.exported and source.at is not None and source.at >= at


def item_of(table: Table, item: StoredItem) -> ItemKey:
    return item_key({name: item[name] for name in table.attributes if name in item}, table)


def _end_of_second(at: int) -> int:
    return at // MICROSECONDS * MICROSECONDS + MICROSECONDS - 1


def moment_text(at: int) -> str:
    """A time in epoch microseconds for a person, in whole seconds."""
    return datetime_text(datetime.fromtimestamp(at // MICROSECONDS, UTC), 0)


def _is_derived(application: Application, item: ItemKey) -> bool:
    return is_marker(item[1]) or application.derived(item)


def _refused(export: Export, unclear: list[ItemKey]) -> SettingsError:
    when = moment_text(export.end)
    return SettingsError(
        f"Export {export.location} and the state have {len(unclear)} items of the same second, around {when}, that "
        "differ: which of them is newer is not known. Nothing was loaded. Load an export of another time, or make the "
        "state anew of a full export and of later ones."
    )
