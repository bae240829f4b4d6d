"""Prepares a restored table for an empty state: removes the rows that are derived from items, by their marks.

The rows of a restored table are as old as the backup, and no state agrees with them. Rows that follow from items are
removed, and made again by a backfill: those of views and indexes, and of feeds. What follows from changes stays:
histories, copies, and rows of ``on``. An item without the mark of a row is the application's own, and stays too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from streamfold.batch.manifest import read_manifest
from streamfold.commit.transactions import in_slots
from streamfold.derivations.derivation import derivation
from streamfold.derivations.feed.spreading import PULL
from streamfold.engines.protocol import StoredItem
from streamfold.errors import EngineError, SettingsError
from streamfold.keys.table import Table, is_writers
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.ledger.state_keys import restoring_key
from streamfold.lifecycle.adoption import Advance, take_over
from streamfold.lifecycle.sources import pages, scanned
from streamfold.records.change import ItemKey
from streamfold.routes.route import Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import DeleteSource, DeleteState, RowKey

ROWS_AT_ONCE = 25
"""Rows that one transaction removes."""


@dataclass(slots=True)
class RemovedRows:
    """The rows that were removed, or would be."""

    read: int = 0
    rows: dict[str, int] = field(default_factory=dict)  # by the first handler whose key matches
    kept: list[ItemKey] = field(default_factory=list)  # items of the application at keys of rows


class Restore:
    """Removes the derived rows, and takes the tables over for an empty state.

    A note in the state says that a restore is under way, from before the first row is removed until ``end``: a command
    that was stopped goes on. Once the manifest is there, no row is removed any more, because a backfill makes them.

    Raises ``SettingsError`` for a state that is not empty, and for rows and a state in one file.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self.engine, app = runtime, runtime.engine, runtime.application
        self.routes = [route for route in app.routes if _is_made_again(route)]
        if runtime.store.separate is None:
            raise SettingsError(
                "A local state and its rows are one file: restore the file as a whole, or make it anew, replay --fresh."
            )
        known = read_manifest(app.name, self.engine).revision
        self.goes_on = bool(self.engine.read_state([restoring_key(app.name)], consistent=True))
        if known and not self.goes_on:
            raise SettingsError(
                f"The state already has a manifest of application {app.name!r}: what it has counted is not what the "
                "restored table holds. Expected an empty state: name a new table in STREAMFOLD_STATE_TABLE."
            )
        self.is_removed = bool(known)

    def remove(self, advance: Advance = lambda _: None, *, dry_run: bool = False) -> RemovedRows:
        """Removes the rows, unless an earlier command has done so, and marks the tables for this state."""
        found = RemovedRows()
        if self.is_removed:
            return found
        if not dry_run and not self.goes_on:
            self.engine.swap_state(restoring_key(self.runtime.application.name), {"s": ""}, 0)
        for table in {key.table.name: key.table for route in self.routes for key in route.into}.values():
            for keys in pages(scanned(self.engine, table)):
                found.read += len(keys)
                self._page(table, keys, found, dry_run=dry_run)
                advance(len(keys))
        if not dry_run:
            take_over(self.runtime)
            self.is_removed = True
        return found

    def end(self) -> None:
        self.engine.transact([DeleteState(restoring_key(self.runtime.application.name))], 0)

    def _page(self, table: Table, keys: Sequence[ItemKey], found: RemovedRows, *, dry_run: bool) -> None:
        wanted = {key: route for key in keys if (route := self._route_of(table, key)) is not None}
        stored = self.engine.read_sources(wanted) if wanted else {}
        removed: dict[RowKey, StoredItem] = {}
        for key, image in stored.items():
            if is_writers(image):
                found.kept.append(key)
                continue
            name = wanted[key].name
            found.rows[name] = found.rows.get(name, 0) + 1
            removed[key] = image
        if not dry_run:
            self._remove(removed)

    def _route_of(self, table: Table, key: ItemKey) -> Route | None:
        for route in self.routes:
            if any(into.table.name == table.name and into.match_values(*key[1:]) is not None for into in route.into):
                return route
            is_pulling = str(key[1]).startswith(f"{PULL}{route.name}#")
            if is_pulling and derivation(route).joins_items and route.into[0].table.name == table.name:
                return route
        return None

    def _remove(self, rows: dict[RowKey, StoredItem]) -> None:
        calls = (
            (tuple(some), partial(self.engine.transact, [DeleteSource(row, rows[row], BEFORE_ALL) for row in some], 0))
            for some in pages(rows, ROWS_AT_ONCE)
        )
        for _, refused in in_slots(self.runtime.slots, calls):
            if isinstance(refused, Exception):
                raise refused
            if refused is not None:
                raise EngineError(
                    "Rows change while they are removed: switch the event source mappings of the restored table off, "
                    "and run the command again."
                )


def _is_made_again(route: Route) -> bool:
    is_ledgers = route.kind.contributes and not route.kind.touches(route)
    return bool(route.into) and (is_ledgers or derivation(route).joins_items)
