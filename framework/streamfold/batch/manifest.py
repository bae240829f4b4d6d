"""The manifest: the application as a state knows it. Each batch is compared with it, by one read of its revision."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Any, NamedTuple

from streamfold.batch.ownership import UNMARKED, Marked, Ownership, is_guarded
from streamfold.batch.stored_schema import learn, schema_keys
from streamfold.engines.deadline import TRIES_MAX
from streamfold.engines.protocol import Engine, StateItems
from streamfold.errors import Contended, ManifestError, damaged, manual
from streamfold.keys.table import MAIN
from streamfold.ledger.state_keys import manifest_key
from streamfold.records.envelope import Seen, described
from streamfold.routes.application import Application
from streamfold.routes.lookups import LOOKUP
from streamfold.routes.parts import GATHERED
from streamfold.routes.route import Kind, Route
from streamfold.runtime import DeltasMark, Knowledge, Runtime, StoredSchema
from streamfold.settings import Settings
from streamfold.writes.guarded import StateKey

ManifestEntry = dict[str, Any]
ByName = Mapping[str, ManifestEntry]
FRESH = "For a local state, replay --fresh starts anew."

APPLICATIONS_KEPT = 4
SINCE, PARTIAL, RETIRED, FILLED = "since", "partial", "retired", "filled"
"""When a function first named a handler, since when it may have missed items, since when it is retired, and when it was
last filled from all items."""
FILLING = "filling"
"""The run over all items that was begun last for a handler; code without the handler takes the mark away."""
EXPIRING = "expiring"
"""The targets whose rows a handler lets expire, so that every process has them with its next batch: a row that may
expire is never made without a life (``ledger.lives``).
"""
DELTAS, CLOSED = "deltas", "deltas_closed"
"""Since when handlers' additions may wait in deltas, in epoch seconds, and since when none is put any more."""
DELTAS_TARGET = "(deltas)"
"""A target of such handlers. Earlier code compares targets, knows none of this name, and stops: it would not wait for
deltas, and withdraw from a row what is not in it yet."""
MARKS = (SINCE, PARTIAL, RETIRED, FILLED, FILLING, EXPIRING, DELTAS, CLOSED, UNMARKED)


def check_handlers(
    before: ByName, now: ByName, retired: Collection[str], kinds: Mapping[str, Kind], *, older: bool
) -> None:
    """Raises ``ManifestError`` where handlers do not fit the state; ``older`` code may lack handlers and sources."""
    for name, entry in before.items():
        if name in now:
            _compare_entry(name, kinds[name], entry, now[name], older=older)
        elif name not in retired and "retired" not in entry and not older:
            raise ManifestError(
                f"Handler {name!r} ({entry['kind']} into {', '.join(_targets(entry))}) is known to the state, but the "
                f'application no longer has it. Was it renamed? Then keep its identity: name="{name}". '
                f'Was it removed? Then App(..., retired=["{name}"]); its rows do not change. Is this code older '
                f"than the code before? Then STREAMFOLD_OLDER_CODE=on lets it run. {FRESH}"
            )


def is_lacking(before: ByName, now: ByName, retired: Collection[str]) -> list[str]:
    """The handlers of a state that an application lacks, or of which it lacks a source."""
    return [
        name
        for name, entry in before.items()
        if (name not in now and name not in retired and "retired" not in entry)
        or (name in now and not set(entry["sources"]) <= set(now[name]["sources"]))
    ]


def _compare_entry(name: str, kind: Kind, before: ManifestEntry, now: ManifestEntry, *, older: bool) -> None:
    for what in ("kind", "group"):
        if before[what] != now[what]:
            raise _changed(name, what, before[what], now[what])
    before = {**before, "targets": _targets(before)}
    for what in ("targets",) if older else ("sources", "targets"):
        if not set(before[what]) <= set(now[what]):
            raise _changed(name, what, ", ".join(before[what]), ", ".join(now[what]))
    # A row that several sources could make has its owner; the stored rows do not have it, and would be refused.
    if not set(now["contested"]) <= set(before["contested"]):
        raise _changed(name, "rows", "rows that one source could make", "rows that several could make")
    _compare_identity(name, kind, before, now)


def _compare_identity(name: str, kind: Kind, before: ManifestEntry, now: ManifestEntry) -> None:
    try:
        kind.compare(name, before, now)
    except ManifestError as error:
        raise ManifestError(f"{error} {FRESH}") from None


def _changed(name: str, what: str, before: str, now: str) -> ManifestError:
    return ManifestError(
        f"Handler {name!r} changed its {what} from {before!r} to {now!r}: "
        "its earlier rows would be counted twice or never removed. "
        f'Give the changed handler a new name, name="{name}_2", and a target or attributes of its own, and retire the '
        f'old one, App(..., retired=["{name}"]). {FRESH}'
    )


def check_retired(before: ByName, now: ByName, gone: Collection[str], kinds: Mapping[str, StoredSchema]) -> None:
    """Raises ``ManifestError`` where a handler writes rows or attributes of a retired one: rows would mix both."""
    for name in sorted(set(gone) & before.keys()):
        old = before[name]
        for target in _written(old) if old["contributes"] else ():
            sole_writer = not any(target in entry["targets"] for other, entry in before.items() if other != name)
            for other, new in now.items():
                if new["contributes"] and target in _written(new):
                    what = _both(name, other, kinds.get(target, StoredSchema()))
                    if not (old["shares"] and new["shares"]) or (sole_writer and target in old["owned"]) or what:
                        raise _taken_over(name, other, target, what)


def _written(entry: ManifestEntry) -> list[str]:
    # Several handlers may look up or gather the same item, so these are no targets that are written.
    return [target for target in _targets(entry) if not target.startswith((LOOKUP, GATHERED))]


def _targets(entry: ManifestEntry) -> list[str]:
    """The targets of an entry, without the one that stops code that does not know deltas."""
    return [target for target in entry["targets"] if target != DELTAS_TARGET]


def _both(one: str, other: str, stored: StoredSchema) -> list[str]:
    return sorted(stored.schema.get(one, {}).keys() & stored.schema.get(other, {}).keys())


def _taken_over(name: str, other: str, target: str, names: list[str]) -> ManifestError:
    what = f"attribute {names[0]!r} of {target}" if names else f"rows of {target}"
    return ManifestError(
        f"Handler {name!r} is retired, and its {what} would be written by {other!r} too: the retired handler's "
        f'amounts remain in them and would count twice. Was it renamed? Then keep its identity, name="{name}", and '
        f"take it out of retired=. Otherwise give {other!r} another target{' or attribute' if names else ''}. {FRESH}"
    )


def table_entry(name: str, before: ManifestEntry | None, seen: Seen, settings: Settings) -> ManifestEntry:
    """A manifest's entry of a table. Raises ``ManifestError`` for another table, or another source, of this epoch."""
    epoch = settings.epoch
    if before is None or epoch > before["epoch"]:
        return {"source": seen.source, "epoch": epoch, "name": seen.name, "id": seen.id}
    if before["source"] != seen.source:
        raise ManifestError(
            f"The state knows table {name!r} through {described(before['source'])}, and now its records come from "
            f"{described(seen.source)}: versions of the two do not compare. To change over for good, let the old "
            f"source run dry, then raise STREAMFOLD_EPOCH to {before['epoch'] + 1}: every version is then newer than "
            f"those of the old source. {FRESH}"
        )
    for what in ("name", "id"):
        if None not in (before[what], getattr(seen, what)) and before[what] != getattr(seen, what):
            raise _another_table(name, before, seen)
    return before | {"name": before["name"] or seen.name, "id": before["id"] or seen.id}


def _another_table(name: str, before: ManifestEntry, seen: Seen) -> ManifestError:
    tested = (
        f" Was {before['name']!r} the table of a test event? Then set STREAMFOLD_TABLE_MAIN={seen.name} and "
        f"STREAMFOLD_EPOCH={before['epoch'] + 1}; streamfold rebuild removes its contributions."
        if name == MAIN.name and before["name"] != seen.name
        else ""
    )
    return ManifestError(
        f"The state is of table {name!r} = {_named(before['name'], before['id'])}, and these records are of "
        f"{_named(seen.name, seen.id)}: the state's items and rows are not those of this table, and amounts would "
        f"be added to rows that have other ones.{tested} A table of its own needs a state of its own, "
        f"STREAMFOLD_STATE_TABLE, and an empty one. Was the table restored? {manual('operations')} has the next steps. "
        f"Where the state fits the rows of this table, raise STREAMFOLD_EPOCH to {before['epoch'] + 1}. {FRESH}"
    )


def _named(name: str | None, identity: str | None) -> str:
    return f"{name!r} ({identity})" if identity else f"{name!r}"


class Manifest(NamedTuple):
    """The manifest as read: handlers and tables by name, as of a revision."""

    handlers: Mapping[str, ManifestEntry] = MappingProxyType({})
    tables: Mapping[str, ManifestEntry] = MappingProxyType({})
    revision: int = 0
    epoch: int = 0  # the highest that any function had
    retention_days: int = 0  # the longest that any function had
    marked: Mapping[str, Any] = MappingProxyType({})  # the identity and the tables that have markers (``ownership``)

    @classmethod
    def of(cls, item: Mapping[str, Any]) -> "Manifest":
        """The manifest of a state item. Raises ``EngineError`` for one that is damaged."""
        try:
            handlers, tables, marked = (json.loads(item.get(name, "{}")) for name in ("handlers", "tables", "marked"))
            epoch, retention_days = int(item.get("epoch", 0)), int(item.get("retention_days", 0))
            return cls(handlers, tables, int(item.get("r", 0)), epoch, retention_days, marked)
        except (TypeError, ValueError):
            raise damaged("The state's manifest") from None

    def attributes(self) -> dict[str, Any]:
        """The attributes of the state item; the store keeps its revision."""
        names = ("handlers", "tables", "marked") if self.marked else ("handlers", "tables")
        # Each batch reads the item, and pays for each 4 KB of it: no spaces.
        texts = {name: json.dumps(getattr(self, name), sort_keys=True, separators=(",", ":")) for name in names}
        return {**texts, "epoch": self.epoch, "retention_days": self.retention_days}

    @property
    def deltas(self) -> DeltasMark | None:
        """Since when additions may wait in deltas; None if no process ever put one."""
        marks = [entry for entry in self.handlers.values() if DELTAS in entry]
        if not marks:
            return None
        closed = max((float(entry[CLOSED]) for entry in marks if CLOSED in entry), default=None)
        return DeltasMark(max(float(entry[DELTAS]) for entry in marks), closed)

    @property
    def partial(self) -> dict[str, str]:
        """The handlers that may have missed items, and since when; without those that are retired."""
        return {name: each[PARTIAL] for name, each in self.handlers.items() if PARTIAL in each and RETIRED not in each}

    def partial_since(self, handler: str) -> str | None:
        """Since when a handler may have missed items, None where it has seen all of them."""
        entry = self.handlers.get(handler, {})
        found: str | None = entry.get(PARTIAL) or entry.get(RETIRED)
        return found


def read_manifest(application: str, engine: Engine) -> Manifest:
    """The manifest of an application in a state; an empty one where there is none."""
    key = manifest_key(application)
    return Manifest.of(engine.read_state([key], consistent=True).get(key, {}))


def begin_reading(runtime: Runtime, others: Iterable[StateKey] = ()) -> Callable[[], StateItems]:
    """Begins to read the manifest for ``check_manifest``, and other state items, beside other work. Returns a function
    that waits for the results.
    """
    key = manifest_key(runtime.application.name)
    schema = schema_keys(runtime.application) if runtime.known.revision is None else ()  # while nothing is known
    keys = [key, *schema, *others]
    flight = runtime.slots.flight()
    flight.begin(None, partial(runtime.engine.read_state, keys, consistent=True), keys)
    flight.give_way()
    return flight.answer


def check_manifest(
    runtime: Runtime,
    sources: Mapping[str, Seen] = MappingProxyType({}),
    *,
    write: bool = True,
    read: StateItems | None = None,
) -> Knowledge:
    """Compares the application with the state, unless its revision is the known one, and adds new entries to it.

    ``sources`` are the tables as far as records were seen. ``read`` is the first result, if the manifest was read
    already. Raises ``ManifestError`` when a handler of the manifest is gone or has another kind, group, source or
    target, when a table is another or comes through another source and the epoch is not higher, and when the epoch is
    lower than another function's; ``Contended`` when others write the manifest at every try.
    """
    app, found = runtime.application, runtime.known
    key = manifest_key(app.name)
    # Other processes may write the manifest between the read and the swap: a lost entry would hide a handler from
    # checks.
    for _ in runtime.tries():
        items = begin_reading(runtime)() if read is None else read
        read = None  # the next try reads again
        before = Manifest.of(items.get(key, {}))
        # Nothing changed since the last batch: it needs one read of the manifest, and no comparison.
        if found.revision == before.revision and sources.items() <= found.sources.items():
            return found
        check_settings_of_others(runtime, before)
        after = _with_marks(runtime, before, _after(runtime, before, sources), sources, write=write)
        if found.revision is None:
            learn(found, items, app, _gone(app, before))
        _learn_expiring(found, before)
        found.deltas = before.deltas
        check_retired(before.handlers, _entries(app.routes), _gone(app, before), found.targets)
        if after != before and write:
            if not runtime.engine.swap_state(key, after.attributes(), before.revision):
                continue
            _warn_of_partial(runtime, before, after)
        found.tables = frozenset(after.tables)
        if write:
            found.revision = before.revision + (after != before)
            found.sources |= sources
        return found
    raise Contended(
        f"The manifest of {app.name!r} was written by others {TRIES_MAX} times in a row; the records are retried."
    )


def _with_marks(
    runtime: Runtime, before: Manifest, after: Manifest, sources: Mapping[str, Seen], *, write: bool
) -> Manifest:
    """The manifest with what it notes of markers, which are written before it. Raises ``NotOwned``."""
    app = runtime.application
    unmarked = [] if not write else _unmarked(app, before)
    marked, known = Marked.of(before.marked), bool(before.revision)
    ownership = Ownership(runtime, marked, unmarked, is_known=known, sources=sources)
    if not write:
        ownership.check()
        return after
    new_ids = {name: entry for name, entry in after.tables.items() if name in before.tables} != before.tables
    now = ownership.mark(new_ids=new_ids)
    handlers = {name: {**entry} for name, entry in after.handlers.items()}
    for name, entry in handlers.items():
        if name in ownership.unmarked:
            entry[UNMARKED] = True
        else:
            entry.pop(UNMARKED, None)
    return after._replace(handlers=handlers, marked=now.noted())


def _unmarked(app: Application, before: Manifest) -> list[str]:
    """The handlers with keys that a manifest does not say to be in markers: new ones, or with new targets."""
    found, entries = [], _entries(app.routes)
    for route in app.routes:
        was = before.handlers.get(route.name, {})
        new = UNMARKED in was or not {*was.get("targets", ())}.issuperset(entries[route.name]["targets"])
        if (new or not before.marked) and is_guarded(route):
            found.append(route.name)
    return found


def _after(runtime: Runtime, before: Manifest, sources: Mapping[str, Seen]) -> Manifest:
    """The manifest as this application and its records make it. Raises ``ManifestError``."""
    app = runtime.application
    current, now = _entries(app.routes), _time(runtime)
    older, kinds = runtime.settings.older_code, {route.name: route.kind for route in app.routes}
    check_handlers(before.handlers, current, app.retired, kinds, older=older)
    lacking = is_lacking(before.handlers, current, app.retired)
    handlers = {name: dict(entry) for name, entry in before.handlers.items()}
    for name, entry in current.items():
        marks = {mark: handlers[name][mark] for mark in MARKS if mark in handlers.get(name, {})}
        if name not in handlers:
            handlers[name] = {**entry, SINCE: now, **({PARTIAL: now} if before.handlers else {})}
        elif not lacking:
            handlers[name] = entry | marks
    if before.deltas is not None:
        _mark_deltas(handlers, before.deltas)
    for name in app.retired & handlers.keys():
        handlers[name].setdefault(RETIRED, now)
    for name in lacking:
        handlers[name].setdefault(PARTIAL, now)
        handlers[name].pop(FILLING, None)
    tables = {
        name: table_entry(name, before.tables.get(name), seen, runtime.settings) for name, seen in sources.items()
    }
    epoch, days = runtime.settings.epoch, runtime.settings.retention_days
    highest = max(epoch, before.epoch), max(days, before.retention_days)
    return Manifest(handlers, {**before.tables, **tables}, before.revision, *highest, before.marked)


def check_settings_of_others(runtime: Runtime, before: Manifest) -> None:
    """Raises ``ManifestError`` for an epoch that is lower than another function's; warns of a shorter retention."""
    settings = runtime.settings
    if settings.epoch < before.epoch:
        raise ManifestError(
            f"STREAMFOLD_EPOCH is {settings.epoch} here, and {before.epoch} in another function of this state: "
            "versions of this epoch are older than those in the state, so the changes of these records would be passed "
            f"over. Set STREAMFOLD_EPOCH={before.epoch} here, as in all functions and commands. {FRESH}"
        )
    if settings.retention_days < before.retention_days:
        runtime.warn_once(
            "retention",
            f"STREAMFOLD_RETENTION_DAYS is {settings.retention_days} here, and {before.retention_days} in another "
            "function of this state: claims and tombstones of this one expire first, and a record that is redriven "
            f"later counts again. Set STREAMFOLD_RETENTION_DAYS={before.retention_days} here.",
        )


def note_backfill(application: str, engine: Engine, tries: Iterable[int], names: Collection[str], job: str) -> None:
    """Notes that a job begins to apply these handlers to all items. Raises as ``note_filled``."""

    def note(_: str, entry: ManifestEntry) -> None:
        entry[FILLING] = job

    _mark(application, engine, tries, names, note)


def _mark_deltas(handlers: Mapping[str, ManifestEntry], mark: DeltasMark | None) -> None:
    """Sets the mark of deltas at every handler that may add to rows; None: takes the mark away.

    At a single handler it would not stop code that lacks this one (``STREAMFOLD_OLDER_CODE``).
    """
    for entry in handlers.values():
        targets = _targets(entry)
        entry["targets"] = targets if mark is None else [*targets, DELTAS_TARGET]
        for name in (DELTAS, CLOSED):
            entry.pop(name, None)
        if mark is not None:
            entry[DELTAS] = mark.since
            entry.update({} if mark.closed is None else {CLOSED: mark.closed})


def change_deltas(runtime: Runtime, change: Callable[[DeltasMark | None], DeltasMark | None]) -> DeltasMark | None:
    """Changes the mark of deltas, and returns it. Raises ``Contended`` when others write the manifest at every try."""
    name, engine = runtime.application.name, runtime.engine
    return _rewrite(
        name, engine, runtime.tries(), lambda before, handlers: _mark_deltas(handlers, change(before.deltas))
    ).deltas


def note_may_put(runtime: Runtime) -> None:
    """Reads from the manifest whether deltas may be put, for work that may go on longer than an invocation.

    The command that takes the mark away waits until all have ended that read it before. Nothing is read if nobody puts
    any. Raises the errors of reads.
    """
    if runtime.known.deltas is None and not runtime.pace.sharing:
        return
    runtime.known.deltas = read_manifest(runtime.application.name, runtime.engine).deltas
    runtime.known.note_may_put(runtime.clock())


def open_deltas(runtime: Runtime) -> None:
    """Notes that additions may wait in deltas from now on. None is put until a quarter of an hour later."""
    if runtime.known.deltas is None and not runtime.store.is_local:
        runtime.known.deltas = change_deltas(runtime, lambda mark: mark or DeltasMark(runtime.clock()))


def note_filled(runtime: Runtime, names: Collection[str], job: str) -> None:
    """Notes that a job has applied these handlers to all items: they are no longer partial.

    A handler is still partial if code without it may have run meanwhile, or if another job was begun for it. Raises
    ``Contended`` when others write the manifest at every try.
    """
    now = _time(runtime)

    def note(_: str, entry: ManifestEntry) -> None:
        if entry.get(FILLING) == job:
            entry.pop(FILLING)
            entry.pop(PARTIAL, None)
            entry[FILLED] = now

    _mark(runtime.application.name, runtime.store, runtime.tries(), names, note)


def _mark(
    application: str,
    engine: Engine,
    tries: Iterable[int],
    names: Collection[str],
    note: Callable[[str, ManifestEntry], None],
) -> None:
    """Changes the marks of some handlers of the manifest."""

    def change(_: Manifest, handlers: Mapping[str, ManifestEntry]) -> None:
        for name in handlers.keys() & set(names):
            note(name, handlers[name])

    _rewrite(application, engine, tries, change)


def _rewrite(
    application: str,
    engine: Engine,
    tries: Iterable[int],
    change: Callable[[Manifest, Mapping[str, ManifestEntry]], None],
) -> Manifest:
    """Changes the entries of handlers in the manifest, and returns it."""
    # The swap is refused if another process wrote in between: its marks must not be overwritten by those read before.
    for _ in tries:
        before = read_manifest(application, engine)
        handlers = {name: dict(entry) for name, entry in before.handlers.items()}
        change(before, handlers)
        after = before._replace(handlers=handlers)
        if handlers == before.handlers or engine.swap_state(
            manifest_key(application), after.attributes(), before.revision
        ):
            return after
    raise Contended(f"The manifest of {application!r} was written by others {TRIES_MAX} times in a row: try again.")


def _learn_expiring(found: Knowledge, manifest: Manifest) -> None:
    found.expiring = {name: set(entry[EXPIRING]) for name, entry in manifest.handlers.items() if EXPIRING in entry}
    for name, targets in found.expiring.items():
        if RETIRED not in manifest.handlers[name]:
            found.lives.targets |= targets


def note_expiring(runtime: Runtime) -> None:
    """Notes targets whose rows handlers let expire, before the first such row is written.

    Raises ``Contended`` when others write the manifest at every try.
    """
    found = runtime.known
    found.learn_expiring()
    seen = found.schema.expiring
    new = [name for name, targets in seen.items() if not targets <= found.expiring.get(name, set())]
    if not new:
        return

    def note(name: str, entry: ManifestEntry) -> None:
        entry[EXPIRING] = sorted({*entry.get(EXPIRING, ()), *seen[name]})

    _mark(runtime.application.name, runtime.engine, runtime.tries(), new, note)
    for name in new:
        found.expiring[name] = found.expiring.get(name, set()) | seen[name]


def _gone(app: Application, found: Manifest) -> frozenset[str]:
    retired = app.retired | {name for name, entry in found.handlers.items() if RETIRED in entry}
    return frozenset(retired - {route.name for route in app.routes})


def _warn_of_partial(runtime: Runtime, before: Manifest, after: Manifest) -> None:
    """Warns of handlers that are partial from now on."""
    declared = {route.name for route in runtime.application.routes}
    for name, entry in after.handlers.items():
        if PARTIAL in entry and PARTIAL not in before.handlers.get(name, {}):
            why = (
                "it is new to this state. Items that were there before count from their next change on, unless "
                f"they are backfilled ({manual('backfill')})"
                if name in declared and name not in before.handlers
                else "code without it, or without a source of it, runs (STREAMFOLD_OLDER_CODE)"
            )
            runtime.warn(f"Handler {name!r} is partial since {entry[PARTIAL]}: {why}.")


def _time(runtime: Runtime) -> str:
    return datetime.fromtimestamp(runtime.clock(), UTC).isoformat(timespec="seconds")


@lru_cache(maxsize=APPLICATIONS_KEPT)
def _entries(routes: tuple[Route, ...]) -> Mapping[str, ManifestEntry]:
    # Cached: a proof needs them for every invocation after a death.
    return {route.name: _entry(route) for route in routes}


def _entry(route: Route) -> ManifestEntry:
    return {
        **route.kind.identity(route),
        "group": route.group,
        "sources": [key.stored_name for key in route.sources],
        # What others a handler reads, and the time, are among the targets, because earlier code compares these.
        "targets": [*(key.stored_name for key in route.writes), *route.stored_lookups],
        "contested": [target.key.stored_name for target in route.targets if target.multi_source],
        "owned": [target.key.stored_name for target in route.targets if target.owned],
        "contributes": route.kind.contributes,
        "shares": route.kind.shares_rows,
    }
