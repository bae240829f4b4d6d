"""Copies of items in another table: one guarded put each, of the newest image that a batch brings.

The guard is the version that the copy bears: an older one never overwrites a newer, a removal leaves a tombstone. No
transaction joins a copy with anything else, so its table may be in another region.
"""

from collections.abc import Callable, Iterable

from streamfold.commit.outcome import Failed, Tallies
from streamfold.commit.plan import Copied
from streamfold.commit.refusals import is_stale, not_its_row
from streamfold.commit.sending import send
from streamfold.engines import Engine
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
from streamfold.keys.table import VERSION
from streamfold.records.change import Change
from streamfold.records.values import LEGACY_REPLICATION_PREFIX
from streamfold.routes.route import Route
from streamfold.run import Run
from streamfold.writes.guarded import GuardedPut


def copy_of(route: Route, change: Change) -> GuardedPut | None:
    """The copy of an item as a change left it; None where the item is a copy itself.

    Raises ``RecordError`` for an image that is malformed, ``ImageError`` for one that the record does not carry.
    """
    if is_replica(change):
        return None
    table, new = route.into[0].table, change.new
    attributes = {name: value for name, value in new.items() if name not in table.attributes} if new else None
    return GuardedPut((table.name, *change.item[1:]), attributes, change.version_text)


def is_replica(change: Change) -> bool:
    """Whether a change is none of the application's own: a copy was written, or replication attributes only.

    A copy bears the version of its source. Global tables of version 2017.11.29 write attributes of their own into the
    item behind every write (Developer Guide, globaltables_HowItWorks).
    """
    newest = change.old if change.event == "REMOVE" else change.new
    if VERSION in newest.raw:
        return True
    replicated = any(name.startswith(LEGACY_REPLICATION_PREFIX) for name in newest.raw)
    return replicated and change.event == "MODIFY" and change.has_old and not change.changed


class Copies:
    """Writes the copies of a batch, one by one; one that fails leaves the others alone.

    A table that does not answer, or refuses for good, takes no more of this batch: every further copy into it would
    wait and fail likewise.
    """

    def __init__(self, engine: Engine, world: Run, triage: Callable[[Failed], Failed | None]) -> None:
        self.engine = engine
        self.world = world
        self.triage = triage
        self.failed: list[Failed] = []
        self.tallies: dict[str, Tallies] = {}

    def run(self, copies: Iterable[Copied]) -> None:
        away: dict[str, EngineError] = {}
        for copy in copies:
            table = copy.row.key[0]
            error = away.get(table) or self._error(copy)
            if is_of_table(error):
                away[table] = error
            if error is not None:
                failures = map(self.triage, (Failed(change, copy.route, error) for change in copy.changes))
                self.failed += [failed for failed in failures if failed is not None]

    def _error(self, copy: Copied) -> Exception | None:
        """Writes a copy, or returns why that failed."""
        try:
            self._write(copy)
        except (Contended, HandlerError, NotStarted, TableThrottled) as error:
            return error
        except EngineError as error:  # another region may be away while all else goes on
            return EngineUnavailable(f"Table {copy.row.key[0]!r} did not take the copy: {reason(error)}")
        return None

    def _write(self, copy: Copied) -> None:
        refused = send(self.engine, [copy.row], self.world)
        tallies = self.tallies.setdefault(copy.route.name, Tallies())
        if refused is None:
            tallies.written += copy.row.attributes is not None
            tallies.removed += copy.row.attributes is None
            return
        (reason,) = refused.reasons
        if reason is not None and not is_stale(copy.row, reason):
            raise not_its_row(copy.route, copy.row, reason)
        tallies.unchanged += 1
