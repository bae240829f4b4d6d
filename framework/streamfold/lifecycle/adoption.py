"""Takes over the rows of a table: for a state that has nothing, and for an application under a new name.

Or removes the rows of a restored table, before a backfill makes them again.

An empty state beside rows is filled from the items: each contribution is written without its rows, because the rows
hold it already. Then the rows are compared with the fold of all items, and corrected. The marker follows, and the
manifest: a process that dies before leaves a table that refuses the new state.

For a renamed application, the state's items get the new name. Its marker is changed first, so that the old name is
refused from then on; the manifest under the new name comes last, so that the new name waits for it.

The rows of a restored table are as old as the backup, and no state agrees with them. Rows that follow from items are
removed, and made again by a backfill: those of views and indexes, and of feeds. What follows from changes stays:
histories, copies, and rows of ``on``. An item without the mark of a row is the application's own, and stays too.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from streamfold.batch.manifest import check_manifest, read_manifest
from streamfold.batch.ownership import (
    FROM,
    Guarded,
    Marked,
    Ownership,
    change_marker,
    guarded,
    key_of,
    parsed,
    read_marker,
)
from streamfold.commit.transactions import in_slots
from streamfold.derivations.derivation import derivation
from streamfold.derivations.expected import ItemFailed, RemainingRow
from streamfold.engines.protocol import Engine, Inserted, StoredItem
from streamfold.errors import EngineError, SettingsError
from streamfold.keys.table import DERIVED, OWNER, STATE, Table, is_writers
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.ledger.state_keys import adopting_key, identity_key, manifest_key, restoring_key
from streamfold.lifecycle.explain import found_in_state, state_key
from streamfold.lifecycle.page import Pages
from streamfold.lifecycle.row_repair import reconcile_rows
from streamfold.lifecycle.sources import LOCAL_SEGMENTS, SEGMENTS, ItemKeys, pages, scanned
from streamfold.records.change import ItemKey
from streamfold.records.values import decode
from streamfold.routes.route import Route
from streamfold.runtime import Knowledge, Runtime
from streamfold.settings.limits import ACTIONS_MAX
from streamfold.writes.guarded import (
    CorrectRow,
    DeleteSource,
    DeleteState,
    GuardedWrite,
    InsertItem,
    PutPostRow,
    PutRow,
    Refused,
    RowKey,
    StateKey,
    UpdateSource,
)

Advance = Callable[[int], None]
OPEN = {"fan": "an open fan-out", "delta": "an addition that waits for a row", "dirty": "a search index in the making"}
"""State items, by the first word of their keys, that hold names of other items: they are finished before a move."""
DIGEST = "sha256:"
"""In a partition key: a digest that an application's name went into, and that nobody can make again."""
ITEMS_OF_A_MOVE = ACTIONS_MAX // 2


class StateOnly:
    """A store that takes writes of the state, and leaves rows and items as they are."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def transact(self, writes: Sequence[GuardedWrite], expires_at: int) -> Refused | None:
        kept = [write for write in writes if _is_of_state(write.key)]
        refused = self.engine.transact(kept, expires_at) if kept else None
        if refused is None:
            return None
        reasons = iter(refused.reasons)
        return Refused(tuple(next(reasons) if _is_of_state(write.key) else None for write in writes))

    def insert_rows(self, rows: Sequence[PutRow]) -> Inserted:
        del rows
        return Inserted([], [])

    def put_post_rows(self, posts: Sequence[PutPostRow]) -> list[RowKey]:
        del posts
        return []

    def remove_empty(self, rows: Sequence[RowKey]) -> list[RowKey]:
        return self.engine.remove_empty([row for row in rows if _is_of_state(row)])


def _is_of_state(key: RowKey | StateKey) -> bool:
    return isinstance(key, StateKey) or key[0] == STATE.name


@dataclass(slots=True)
class AdoptionReport:
    """The results of an adoption."""

    items: int = 0  # whose contributions were written, or would be
    state_items: int = 0  # state items that got the new name, or would get it
    rows: int = 0  # compared
    corrected: list[RowKey] = field(default_factory=list)
    remaining: list[RemainingRow] = field(default_factory=list)  # rows that differ, and could not be corrected
    failed: list[ItemFailed] = field(default_factory=list)  # items on which a handler raises
    continued: list[str] = field(default_factory=list)  # handlers whose rows continue as they are
    marked: bool = False  # the tables belong to this application and this state


class Foreign(NamedTuple):
    """A table whose rows another state, or another application, derived."""

    table: Table
    application: str
    state: str  # the name of the state


def foreign_tables(runtime: Runtime, application: str) -> list[Foreign]:
    """The tables whose markers have an entry of an application with another state. Raises the errors of reads."""
    found = []
    own = runtime.engine.read_state([identity_key()], consistent=True).get(identity_key(), {}).get("s")
    for each in _one_a_table(runtime):
        entry = parsed(read_marker(runtime, key_of(each.key))).get(application)
        if entry is not None and entry["identity"] != own:
            found.append(Foreign(each.key.table, application, entry["state"][0]))
    return found


def _one_a_table(runtime: Runtime) -> list[Guarded]:
    return list({each.table: each for each in guarded(runtime.application.routes)}.values())


@dataclass(slots=True)
class Adoption:
    """Fills an empty state from the items, and takes the tables over.

    Raises ``SettingsError`` if the state is not empty, or no table has rows of another state.
    """

    runtime: Runtime
    report: AdoptionReport = field(default_factory=AdoptionReport)

    def __post_init__(self) -> None:
        app = self.runtime.application
        if self.runtime.store.separate is None:
            raise SettingsError(
                "A local state and its rows are one file, so nothing is to be taken over. For a new name of an "
                "application, name the old one: --from NAME."
            )
        if read_manifest(app.name, self.runtime.engine).revision:
            raise SettingsError(
                f"The state already has a manifest of application {app.name!r}, and may have counted other items than "
                "the rows have. Expected an empty state: name a new table in STREAMFOLD_STATE_TABLE. If state and "
                "tables were restored to one moment, raise STREAMFOLD_EPOCH by one instead."
            )
        if not foreign_tables(self.runtime, app.name):
            raise SettingsError(
                f"No table of application {app.name!r} has rows of another state, so nothing is to be taken over. "
                "Deploy the function, and fill in older items with streamfold backfill."
            )

    def go(self, advance: Advance = lambda _: None, *, dry_run: bool = False) -> AdoptionReport:
        """Writes the contributions, corrects the rows, and marks the tables. Doing it again goes on."""
        app, report = self.runtime.application, self.report
        routes = [route for route in app.routes if route.kind.contributes]
        report.continued = sorted(route.name for route in app.routes if not route.kind.contributes)
        known = Knowledge()
        state_only = replace(self.runtime, store=StateOnly(self.runtime.store), known=known)
        self._fill(Pages(state_only, [route.name for route in routes], dry_run=dry_run), routes, advance)
        if dry_run:
            return report
        reconciled = reconcile_rows(replace(self.runtime, known=known), [route.name for route in routes])
        report.rows = reconciled.compared.rows
        report.corrected, report.remaining = reconciled.corrected.corrected, reconciled.corrected.remaining
        if not report.remaining:
            take_over(self.runtime)
            report.marked = True
        return report

    def _fill(self, backfill: Pages, routes: Sequence[Route], advance: Advance) -> None:
        segments = LOCAL_SEGMENTS if self.runtime.store.is_local else SEGMENTS
        for items in pages(ItemKeys(self.runtime.application, self.runtime.engine, routes, segments).all()):
            page = backfill.reconcile(items)
            self.report.items += page.items
            self.report.failed += page.failed
            advance(len(items))


def take_over(runtime: Runtime) -> None:
    """Marks the tables for this state in place of another one, and writes the manifest."""
    sources = [name for name in runtime.application.tables if runtime.settings.real_name(name)]
    names = [route.name for route in runtime.application.routes]
    Ownership(runtime, Marked(), names, is_known=False, sources=sources, adopts=True).mark(new_ids=False)
    check_manifest(replace(runtime, known=Knowledge()))


@dataclass(slots=True)
class Renaming:
    """Gives the state of an application a new name.

    Raises ``SettingsError`` if the state has nothing under the old name, has a manifest under the new one, or has items
    that cannot be renamed. The functions under the old name must not run.
    """

    runtime: Runtime
    old: str
    report: AdoptionReport = field(default_factory=AdoptionReport)

    def __post_init__(self) -> None:
        app, engine = self.runtime.application, self.runtime.engine
        note = engine.read_state([self._note], consistent=True).get(self._note)
        if note is not None and note[FROM] != self.old:
            raise SettingsError(
                f"The state is being moved from application {note[FROM]!r}: expected --from {note[FROM]}."
            )
        if note is None and not read_manifest(self.old, engine).revision:
            raise SettingsError(
                f"The state has no application {self.old!r}, so nothing is to be moved. Expected the name under which "
                "the rows were derived, and its state in STREAMFOLD_STATE_TABLE."
            )
        if note is None and read_manifest(app.name, engine).revision:
            raise SettingsError(
                f"The state has a manifest of application {app.name!r} beside that of {self.old!r}: both may have "
                "counted items. Remove the rows of one, and backfill."
            )
        if engine.is_local and self._derives_attributes:
            raise SettingsError(
                "The application derives attributes onto items, and a local state has them under the old name: make "
                "the state anew, replay --fresh."
            )
        for stored in engine.state_items():
            word, _, rest = stored["pk"]["S"].partition("#")
            if rest.partition("#")[0] == self.old:
                self._check(word, rest)

    @property
    def _derives_attributes(self) -> bool:
        return any(route.kind.touches(route) for route in self.runtime.application.routes if route.kind.contributes)

    @property
    def _note(self) -> StateKey:
        """Holds the manifest from when it left the old name until it has the new one."""
        return adopting_key(self.runtime.application.name)

    def _check(self, word: str, rest: str) -> None:
        if word in OPEN:
            raise SettingsError(
                f"The state has {OPEN[word]} of application {self.old!r}: let it end under the old name first "
                "(streamfold doctor, streamfold buckets --empty show and end them)."
            )
        if DIGEST in rest and word in ("entries", "attributes"):
            raise SettingsError(
                f"The state has items of application {self.old!r} whose keys are so long that a digest takes their "
                f"place, and the digest holds the old name. Keep the name, or remove the rows and backfill."
            )

    def go(self, advance: Advance = lambda _: None, *, dry_run: bool = False) -> AdoptionReport:
        """Moves the marker, the state's items, the owners of rows, and the manifest. Doing it again goes on."""
        if dry_run:
            self.report.state_items = sum(1 for _ in found_in_state(self.runtime.engine, self._move))
            return self.report
        manifest = self._stop_old_name()
        self._move_items(advance)
        self._rename_rows(advance)
        key = manifest_key(self.runtime.application.name)
        if not read_manifest(self.runtime.application.name, self.runtime.engine).revision:
            self.runtime.engine.swap_state(key, manifest, 0)
        self.runtime.engine.transact([DeleteState(self._note)], 0)
        self.report.marked = True
        names = [route.name for route in self.runtime.application.routes if route.kind.contributes]
        reconciled = reconcile_rows(replace(self.runtime, known=Knowledge()), names)
        self.report.rows, self.report.corrected = reconciled.compared.rows, reconciled.corrected.corrected
        self.report.remaining = reconciled.corrected.remaining
        return self.report

    def _stop_old_name(self) -> Mapping[str, Any]:
        """Notes the manifest, gives the markers the new name, and removes the manifest under the old one."""
        engine, old = self.runtime.engine, manifest_key(self.old)
        found = engine.read_state([self._note, old], consistent=True)
        if old in found:  # also where a note of it is there: a process of the old name may have changed it since
            noted = {name: value for name, value in found[old].items() if name != "r"}
            revision = int(found.get(self._note, {}).get("r", 0))
            engine.swap_state(self._note, {**noted, FROM: self.old}, revision)
            found = engine.read_state([self._note], consistent=True)
        for each in _one_a_table(self.runtime) if self.runtime.store.separate is not None else ():
            change_marker(self.runtime, each.key, self._renamed_marker)
        engine.transact([DeleteState(old)], 0)
        return {name: value for name, value in found[self._note].items() if name not in ("r", FROM)}

    def _renamed_marker(self, marker: dict[str, Any]) -> dict[str, Any]:
        others = {name: entry for name, entry in marker.items() if name != self.old}
        return {**others, self.runtime.application.name: marker[self.old]} if self.old in marker else marker

    def _move_items(self, advance: Advance) -> None:
        """Moves the items of the state, each in one transaction with the removal of its old key."""
        for some in pages(found_in_state(self.runtime.engine, self._move), ITEMS_OF_A_MOVE):
            refused = self.runtime.engine.transact([write for move in some for write in move], 0)
            if refused is not None:
                raise EngineError(
                    f"State items could not be moved to the new name ({refused.reasons[0]}). Does a function of "
                    f"{self.old!r} run? Stop it, and run the command again."
                )
            self.report.state_items += len(some)
            advance(len(some))

    def _move(self, stored: StoredItem) -> tuple[GuardedWrite, GuardedWrite] | None:
        key = state_key(stored)
        word, _, rest = key.pk.partition("#")
        name, separator, rest = rest.partition("#")
        if name != self.old or word in ("manifest", "adopting"):
            return None
        attributes = {name: decode(value) for name, value in stored.items() if name not in ("pk", "sk")}
        if OWNER in attributes:
            attributes[OWNER] = self._renamed_owner(attributes[OWNER])
        pk = f"{word}#{self.runtime.application.name}{separator}{rest}"
        if self._derives_attributes:  # their rows are state items, whose keys are in contributions and entries
            pk = self._renamed_keys(pk)
            attributes = {
                name: self._renamed_keys(value) if isinstance(value, str) else value
                for name, value in attributes.items()
            }
        return InsertItem(StateKey(pk, key.sk), attributes), DeleteState(key)

    def _renamed_keys(self, text: str) -> str:
        return text.replace(f"attributes#{self.old}#", f"attributes#{self.runtime.application.name}#")

    def _renamed_owner(self, owner: str) -> str:
        begins = self.old + "/"
        return f"{self.runtime.application.name}/{owner.removeprefix(begins)}" if owner.startswith(begins) else owner

    def _rename_rows(self, advance: Advance) -> None:
        """Gives rows that are put whole their owner's new name, and derived attributes their handler's."""
        app, engine = self.runtime.application, self.runtime.engine
        tables = {key.table.name: key.table for route in app.routes for key in (*route.writes, *route.into)}
        for table in [app.tables[name] for name in tables if name != STATE.name]:
            for keys in pages(scanned(engine, table)):
                for key, row in engine.read_rows(keys).items():
                    self._rename_row(key, row)
                advance(len(keys))

    def _rename_row(self, key: ItemKey, row: Mapping[str, Any]) -> None:
        engine = self.runtime.engine
        owner, derived = row.get(OWNER), row.get(DERIVED)
        if isinstance(owner, str) and (renamed := self._renamed_owner(owner)) != owner:
            engine.transact([CorrectRow(key, {OWNER: owner}, values={OWNER: renamed})], 0)
        if isinstance(derived, Mapping):
            names = {self._renamed_owner(name): value for name, value in derived.items()}
            if names != derived:
                engine.transact([UpdateSource(key, {DERIVED: derived}, (), {DERIVED: names})], 0)


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
        of_routes = ((route, derivation(route).removed(route)) for route in app.routes)
        self.removed = {route: is_removed for route, is_removed in of_routes if is_removed is not None}
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
        for table in {key.table.name: key.table for route in self.removed for key in route.into}.values():
            for keys in pages(scanned(self.engine, table)):
                found.read += len(keys)
                self._page(keys, found, dry_run=dry_run)
                advance(len(keys))
        if not dry_run:
            take_over(self.runtime)
            self.is_removed = True
        return found

    def end(self) -> None:
        self.engine.transact([DeleteState(restoring_key(self.runtime.application.name))], 0)

    def _page(self, keys: Sequence[ItemKey], found: RemovedRows, *, dry_run: bool) -> None:
        of_keys = ((key, [route for route, is_removed in self.removed.items() if is_removed(key)]) for key in keys)
        wanted = {key: routes[0] for key, routes in of_keys if routes}
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
