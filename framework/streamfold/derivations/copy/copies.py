"""Copies of items in another table: one guarded put for the newest image of each item in a batch.

The guard is the version in the copy: an older version never overwrites a newer one, and a removal leaves a tombstone. A
copy is not part of a transaction, so its table may be in another region.

The guard is lost with the copy, when its time to live is over or somebody removes it, and a backfill that makes the
copy again knows no version. A redriven record that finds no copy, or the copy of a backfill, therefore writes only if
the item still is as the record left it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from streamfold.commit.outcome import Outcome
from streamfold.commit.transactions import fold_times, in_slots, is_stale, not_its_row, send
from streamfold.derivations.derivation import Finishing, Planning, Work
from streamfold.derivations.expiry import look_at_writes
from streamfold.engines.protocol import StoredItem
from streamfold.errors import (
    Contended,
    EngineError,
    EngineUnavailable,
    HandlerError,
    NotStarted,
    TableThrottled,
    is_of_table,
    reason,
)
from streamfold.keys.table import CONTRIBUTORS, VERSION
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.records.change import BY_OURSELVES, Change, ItemKey, image_of
from streamfold.records.images import Image, hidden
from streamfold.records.values import alike
from streamfold.routes.checks import check_view
from streamfold.routes.route import Route
from streamfold.writes.guarded import GuardedPut, Refused

Send = Callable[[], Refused | None]


def newest(work: Work, planning: Planning) -> list["Copied"]:
    """The copy of the newest readable image; the records of unreadable ones are reported."""
    for change in reversed(work.changes):
        try:
            check_view(work.route, change)
            row = copy_of(work.route, change)
        except Exception as error:  # noqa: BLE001 - fails this record only
            planning.fails(change, work.route, error)
            continue
        if row is not None:
            look_at_writes(planning.runtime, work.route, (row,), work.changes)
            return [Copied(work.route, tuple(work.changes), row)]
    return []


def copy_of(route: Route, change: Change) -> GuardedPut | None:
    """The copy of an item as a change left it; None if the item is a copy itself.

    Raises ``RecordError`` for a malformed image, ``ImageError`` if the record lacks the image.
    """
    if is_replica(change):
        return None
    return GuardedPut(
        (route.into[0].table.name, *change.item[1:]), attributes_of(route, change.new), change.version_text
    )


def attributes_of(route: Route, image: Image) -> dict[str, Any] | None:
    """The attributes of an item's copy, without its key; None if there is no item."""
    names = route.into[0].table.attributes
    return {name: value for name, value in image.items() if name not in names} if image else None


def reconciled_copy(
    route: Route, item: ItemKey, row: Mapping[str, Any], source: StoredItem | None
) -> GuardedPut | None:
    """The copy of an item as it is now, over the copy that was read before the item; None if both agree.

    The version is above that of the copy and below that of any later record, so a record that comes meanwhile or
    afterwards wins. A missing copy gets the version before all.
    """
    table = route.into[0].table
    image = image_of(source)
    if VERSION in image.raw:
        return None
    attributes = attributes_of(route, image)
    shown = {name: value for name, value in row.items() if not hidden(name) and name not in table.attributes}
    exists = bool(row) and row.get(CONTRIBUTORS) != 0
    if alike(shown if exists else None, attributes):
        return None
    version = f"{row[VERSION]}{BY_OURSELVES}1" if VERSION in row else BEFORE_ALL
    return GuardedPut((table.name, *item[1:]), attributes, version)


def is_replica(change: Change) -> bool:
    """Whether a change only wrote a copy, which has the version of its source, or only hidden attributes."""
    newest = change.old if change.event == "REMOVE" else change.new
    if VERSION in newest.raw:
        return True
    # A writer who puts an item over a copy makes it an item of its own, even with the same attributes.
    return change.is_hidden and VERSION not in change.old.raw


def _is_reconciled(row: Mapping[str, Any]) -> bool:
    # Such a copy was read from its item, which may be newer than any version that the copy could get.
    version = str(row.get(VERSION, ""))
    return version == BEFORE_ALL or BY_OURSELVES in version


class Copied(NamedTuple):
    """A copy of an item as its newest change left it."""

    route: Route
    changes: tuple[Change, ...]
    row: GuardedPut


class Copies:
    """Writes the copies of a batch, one by one. A copy that fails does not affect the others.

    If a table does not answer, or refuses for good, its other copies fail at once: each would wait and fail too.
    """

    def __init__(self, finishing: Finishing) -> None:
        self.runtime = finishing.runtime
        self.finishing = finishing
        self.outcome = Outcome()

    def write(self, copies: Iterable[Copied]) -> Outcome:
        """Writes these copies, several at once if there are call slots."""
        away: dict[str, EngineError] = {}
        calls = self._calls(self._current(copies) if self.runtime.late else copies, away)
        for copy, answer in in_slots(self.runtime.slots, calls, at=lambda copy: copy.row.key):
            try:
                self._take(copy, answer)
            except (EngineError, HandlerError) as error:
                if is_of_table(error):
                    away[copy.row.key[0]] = error
                self._fail(copy, error)
        return self.outcome

    def _current(self, copies: Iterable[Copied]) -> Iterator[Copied]:
        """The copies without those that are missing and whose item has changed since. An error fails a copy."""
        for copy in copies:
            try:
                is_outdated = self._is_outdated(copy)
            except (EngineError, HandlerError) as error:
                self._fail(copy, error)
                continue
            if is_outdated:
                self.outcome.tally(copy.route.name).unchanged += 1
            else:
                yield copy

    def _is_outdated(self, copy: Copied) -> bool:
        row = self.runtime.engine.read_rows([copy.row.key]).get(copy.row.key)
        if copy.row.attributes is None or (row is not None and not _is_reconciled(row)):
            return False  # a tombstone, or a copy whose version decides
        try:
            source = self.runtime.engine.read_source(copy.changes[-1].item)
        except EngineUnavailable:
            raise
        except EngineError:
            if self.runtime.store.is_local:  # a state without source items, whose copies do not expire
                return False
            raise
        return not alike(attributes_of(copy.route, image_of(source)), copy.row.attributes)

    def _calls(self, copies: Iterable[Copied], away: Mapping[str, EngineError]) -> Iterator[tuple[Copied, Send]]:
        for copy in copies:
            if error := away.get(copy.row.key[0]):
                self._fail(copy, error)
            else:
                fold_times(self.runtime, copy.changes[-1].item, (copy.row.key,))
                yield copy, partial(send, self.runtime, [copy.row])

    def _fail(self, copy: Copied, error: Exception) -> None:
        self.outcome.failed += self.finishing.failures(copy.changes, copy.route, error)

    def _take(self, copy: Copied, refused: Refused | EngineError | HandlerError | None) -> None:
        """Counts the result of a copy. Raises its error."""
        if isinstance(refused, Contended | HandlerError | NotStarted | TableThrottled):
            raise refused
        if isinstance(refused, EngineError):  # another region may fail while this one goes on
            raise EngineUnavailable(f"Table {copy.row.key[0]!r} did not take the copy: {reason(refused)}")
        tallies = self.outcome.tally(copy.route.name)
        if refused is None:
            tallies.written += copy.row.attributes is not None
            tallies.removed += copy.row.attributes is None
            return
        (why,) = refused.reasons
        if why is not None and not is_stale(copy.row, why):
            raise not_its_row(copy.route, copy.row, why)
        tallies.unchanged += 1
