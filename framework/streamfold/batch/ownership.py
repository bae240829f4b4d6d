"""Whose rows a table has: the identity of a state, and the markers of the tables that handlers add to.

A ledger without entries beside rows that it did not derive would count every item again. So each table that has rows
of the ledger, or sums of ``on``, has a *marker*, an item that names the application, the state and the table itself.
Three steps are made in this order, each put if absent and read back strongly consistent:

| step | item | the failure that the order prevents                                                |
| ---- | ---- | ---------------------------------------------------------------------------------- |
| 1    | the identity, a random text in the state | an identity of a process: two first batches would refuse |
|      |                                          | each other                                               |
| 2    | the marker of each target table          | a marker after the manifest: a death between the two     |
|      |                                          | would leave the table without one for good               |
| 3    | the manifest, with the names             | a batch that begins sees that all is marked, and pays    |
|      |                                          | nothing                                                  |

A marker is read when a manifest is made, when a handler gets a target, and when a table or the state has another real
name or id than the manifest says. Rows and state of a store of this machine are one: there the manifests of other
applications take the place of markers.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from os import urandom
from types import MappingProxyType
from typing import Any, NamedTuple

from streamfold.derivations.derivation import contributing, derivation
from streamfold.engines.deadline import TRIES_MAX
from streamfold.engines.protocol import NamedTable, Seekable
from streamfold.errors import Contended, DeclarationError, NotOwned, damaged, manual
from streamfold.keys.key import Key
from streamfold.keys.table import CONTRIBUTORS, MAIN, MARKED, OWNER, STATE, Table, marker_key
from streamfold.ledger.state_keys import adopting_key, derived_prefixes, identity_key, manifest_key
from streamfold.routes.application import Application
from streamfold.routes.route import ROUTES_KEPT_MAX, Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import RowKey, SwapMarker

IDENTITY_BYTES = 16
ADDED, PUT, ONTO = "adds", "puts", "onto"
"""How a handler writes what has a key: it adds to rows of others, puts rows of its own whole, or derives attributes
onto items, of which the state has the sums."""

Marker = dict[str, Any]
"""The content of a marker: an entry for each application."""


class Guarded(NamedTuple):
    """A key whose rows follow from what a state holds."""

    route: Route
    key: Key
    how: str  # rows that are put whole name their owner, and so do derived attributes

    @property
    def adds(self) -> bool:
        return self.how == ADDED

    @property
    def table(self) -> str:
        return self.key.table.name


class StateLocation(NamedTuple):
    """What a state is the state of, as its manifest and the markers say."""

    identity: str
    state: NamedTable
    tables: Mapping[str, NamedTable]  # those with markers, by logical name


def guarded(routes: Iterable[Route]) -> Iterator[Guarded]:
    """The keys of handlers whose rows count twice, or stay for ever, beside a state that did not derive them.

    So do attributes that are derived onto items from others: an empty state would begin their sums anew, and overwrite
    what the items have. Attributes of the source item itself, and rows of the other kinds, have their guard in
    themselves.
    """
    for route in routes:
        if route.kind.contributes and not route.kind.touches(route):
            for target in route.targets:
                added = not target.replaces or contributing(route).adds(route)
                yield Guarded(route, target.key, ADDED if added else PUT)
        elif route.kind.contributes:
            yield from (Guarded(route, key, ONTO) for key in derivation(route).parent_keys(route))
        else:
            yield from (Guarded(route, key, ADDED) for key in derivation(route).delta_keys(route))


def marked_tables(routes: Iterable[Route]) -> dict[str, Table]:
    return {each.table: each.key.table for each in guarded(routes)}


@lru_cache(ROUTES_KEPT_MAX)
def is_guarded(route: Route) -> bool:
    return any(guarded([route]))


FROM = "from"
"""In the manifest of an application whose state is being moved: its earlier name."""
UNMARKED = "unmarked"
"""The mark of a handler in the manifest that has keys which are in no marker yet: its group's function enters them."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Marked(NamedTuple):
    """What the manifest notes of markers: the names under which tables were marked. Each batch reads the note, so that
    it is short. A name is noted only after the marker was read back.
    """

    state: str = ""  # the real name of the state table; "": nothing is marked
    tables: Mapping[str, str] = NOTHING  # real names by logical name
    epoch: int = 0  # the setting under which these names were noted

    @classmethod
    def of(cls, noted: Mapping[str, Any]) -> "Marked":
        """What a manifest notes. Raises ``EngineError`` for notes that are damaged."""
        try:
            return cls(**noted)
        except TypeError:
            raise damaged("The state's manifest") from None

    def noted(self) -> dict[str, Any]:
        """The attribute of the manifest; empty for a store that has no markers."""
        if not self.state:
            return {}
        return {"state": self.state, "tables": dict(self.tables), **({"epoch": self.epoch} if self.epoch else {})}


class Ownership:
    """Compares the tables that a process writes with their markers, and marks those that have none.

    was: what the manifest notes. unmarked: handlers with keys that are in no marker, as far as the manifest knows.
    is_known: whether there is a manifest. sources: the source tables whose records were seen. adopts: the application's
    rows are taken over, of whichever state they are.
    """

    def __init__(
        self,
        runtime: Runtime,
        was: Marked,
        unmarked: Collection[str],
        *,
        is_known: bool,
        sources: Iterable[str] = (),
        adopts: bool = False,
    ) -> None:
        self.runtime = runtime
        self.app: Application = runtime.application
        self.was = was
        self.unmarked = set(unmarked)
        self.is_known = is_known
        self.adopts = adopts
        self.moves = bool(was.state) and runtime.settings.epoch > was.epoch  # the user says that the state fits
        served = [route for route in self.app.routes if runtime.settings.serves(route.group)]
        # An application without names of tables learns the name of its table with the first record.
        named = runtime.store.separate is None or MAIN.name in sources or runtime.settings.real_name(MAIN.name)
        self.keys = [each for each in guarded(served) if named or each.table != MAIN.name]

    def check(self) -> None:
        """Raises ``NotOwned`` if the names of the tables are not those that the manifest notes. Reads nothing."""
        store = self.runtime.store.separate
        if store is None or not self.was.state or self.moves:
            return
        real = store.real_name(STATE.name)
        if self.was.state != real:
            raise NotOwned(_renamed("the state table", self.was.state, real))
        for name in {each.table for each in self.keys}:
            if self.was.tables.get(name, store.real_name(name)) != store.real_name(name):
                raise NotOwned(_renamed(f"table {name!r}", self.was.tables[name], store.real_name(name)))

    def mark(self, *, new_ids: bool) -> Marked:
        """Marks what is not marked yet; returns what the manifest is to note. ``unmarked`` has the handlers that other
        functions have yet to mark. new_ids: a source table has another id.

        Raises ``NotOwned`` if a table has rows of another state, or of another application where a handler adds;
        ``Contended`` if others write a marker at every try.
        """
        store, own = self.runtime.store.separate, {each.route.name for each in self.keys}
        if store is None:
            if self.unmarked & own:
                self._check_local()
            self.unmarked = set()
            return self.was
        self.check()
        names = {name: store.real_name(name) for name in {each.table for each in self.keys}}
        if not names or not (new_ids or self.moves or self.unmarked & own or names.items() - self.was.tables.items()):
            return self.was
        if not self.is_known:
            self._check_adopting(self.app.name)
        location = StateLocation(
            self._identity(), store.named_table(STATE.name), {n: store.named_table(n) for n in names}
        )
        for name in sorted(names):
            self._mark_table(name, location)
        epoch = self.runtime.settings.epoch
        if self.moves:  # functions of other groups have yet to say so of their tables
            self.unmarked = {each.route.name for each in guarded(self.app.routes)} - own
            return Marked(location.state.name, names, epoch)
        self.unmarked -= own
        return Marked(location.state.name, {**self.was.tables, **names}, max(epoch, self.was.epoch))

    def _identity(self) -> str:
        """The identity of the state, which the first process makes."""
        engine, key = self.runtime.engine, identity_key()
        for _ in range(2):
            if found := engine.read_state([key], consistent=True).get(key):
                return str(found["s"])
            engine.swap_state(key, {"s": urandom(IDENTITY_BYTES).hex()}, 0)  # refused if another process was first
        found = engine.read_state([key], consistent=True).get(key)
        if not found:
            raise Contended("The identity of the state was written and cannot be read back: try again.")
        return str(found["s"])

    def _mark_table(self, name: str, location: StateLocation) -> None:
        """Enters the application into the marker of a table, unless it is there."""
        own = [each for each in self.keys if each.table == name]
        key = key_of(own[0].key)
        # Another group, or another application, may write the marker between the read and the write.
        for _ in self.runtime.tries():
            text = read_marker(self.runtime, key)
            marker = before = parsed(text)
            if self.adopts:
                marker = {other: entry for other, entry in before.items() if other != self.app.name}
            epoch = self.runtime.settings.epoch
            check_marker(self.app, own, marker, location, epoch)
            after = entered(marker, self.app.name, own, location, epoch)
            if after == before:
                return
            if write_marker(self.runtime, key, text, after) and parsed(read_marker(self.runtime, key)) == after:
                return
        raise Contended(f"The marker of table {name!r} was written by others {TRIES_MAX} times in a row: try again.")

    def _check_adopting(self, application: str) -> None:
        """Refuses a state of which only a part has the new name."""
        key = adopting_key(application)
        if found := self.runtime.engine.read_state([key], consistent=True).get(key):
            raise NotOwned(
                f"The state is being moved from application {found[FROM]!r} to {application!r}, and the command was "
                f"stopped: run streamfold adopt --from {found[FROM]} again, with {application!r}."
            )

    def _check_local(self) -> None:
        """Compares with the other applications of a store of this machine."""
        seekable = self.runtime.store.by_prefix
        if seekable is None:
            return
        for partition in seekable.state_partitions(adopting_key("").pk):
            self._check_adopting(partition.partition("#")[2])
        begins = manifest_key("").pk
        for partition in seekable.state_partitions(begins):
            other = partition.removeprefix(begins)
            found = self.runtime.engine.read_state([manifest_key(other)], consistent=True)
            for item in found.values():
                check_entries(self.app.name, self.keys, other, json.loads(item.get("handlers", "{}")))
        derived = any(seekable.state_partitions(each) for each in derived_prefixes(self.app.name))
        if self.runtime.store.durable is None and not (self.is_known or derived):
            self._check_rows(seekable)

    def _check_rows(self, seekable: Seekable) -> None:
        """Refuses rows in a store whose state knows nothing of them: a test has put them there from another one."""
        for each in self.keys:
            if each.how == ONTO:
                continue  # items, and no rows
            table = self.app.tables[each.table]
            for row in seekable.items_from(table, "", derived=True):
                if (CONTRIBUTORS in row or OWNER in row) and each.key.match(plain_key(row, table)) is not None:
                    raise NotOwned(
                        f"The store has rows of {each.key!r}, and a state that did not derive them: it has nothing of "
                        f"application {self.app.name!r}. Each item would count once more. {WAYS}"
                    )


def plain_key(row: Mapping[str, Any], table: Table) -> dict[str, Any]:
    """The key attributes of an encoded row, as Python values."""
    from streamfold.records.values import decode

    return {name: decode(row[name]) for name in table.attributes if name in row}


def key_of(key: Key) -> RowKey:
    types = {name: part.attribute_type for name, part in zip(key.table.attributes, key.parts, strict=True)}
    return marker_key(key.table, types)


def read_marker(runtime: Runtime, key: RowKey) -> str | None:
    """The text of a marker, strongly consistent; None where there is none.

    Raises ``NotOwned`` for an item that is no marker.
    """
    item = runtime.engine.read_rows([key]).get(key)
    if item is None:
        return None
    if MARKED not in item:
        raise NotOwned(
            f"Table {key[0]!r} has an item under the key of the framework's marker, and it is no marker: it has no "
            f"{MARKED}. Give the item another key. The marker says which application and state the table's rows are of."
        )
    return str(item[MARKED])


def write_marker(runtime: Runtime, key: RowKey, expected: str | None, after: Marker) -> bool:
    """Writes a marker in place of the one that was read; returns whether it did."""
    write = SwapMarker(key, json.dumps(after, sort_keys=True), expected)
    return runtime.engine.transact([write], runtime.expires_at) is None


def parsed(text: str | None) -> Marker:
    """The content of a marker. Raises ``EngineError`` for one that is damaged."""
    try:
        found: Marker = json.loads(text) if text else {}
        for entry in found.values():
            _, _, _ = NamedTable(*entry["state"]), NamedTable(*entry["table"]), int(entry["epoch"])
            _, _, _ = entry["identity"], entry["delimiter"], entry["handlers"].items()
    except (AttributeError, KeyError, TypeError, ValueError):
        raise damaged("The marker of a table") from None
    return found


def entered(marker: Marker, application: str, own: Iterable[Guarded], location: StateLocation, epoch: int) -> Marker:
    """A marker with the handlers of an application."""
    own = list(own)
    handlers: dict[str, Any] = {}
    for each in own:
        entry = handlers.setdefault(each.route.name, {})
        entry.setdefault(each.how, []).append([part.text for part in each.key.parts])
    table = own[0].key.table
    known = marker.get(application, {}).get("handlers", {})
    entry = {
        "identity": location.identity,
        "state": list(location.state),
        "table": list(location.tables[table.name]),
        "delimiter": table.delimiter,
        "epoch": epoch,
        "handlers": {**known, **handlers},
    }
    return {**marker, application: entry}


def without(marker: Marker, application: str, handlers: Iterable[str]) -> Marker:
    """A marker without some handlers of an application, whose rows are gone."""
    entry = marker.get(application)
    if entry is None:
        return marker
    gone = set(handlers)
    remaining = {name: found for name, found in entry["handlers"].items() if name not in gone}
    others = {name: each for name, each in marker.items() if name != application}
    return {**others, application: {**entry, "handlers": remaining}} if remaining else others


def check_marker(app: Application, own: Iterable[Guarded], marker: Marker, location: StateLocation, epoch: int) -> None:
    """Raises ``NotOwned`` where a table's rows are another state's, or another application's where a handler adds."""
    for name, entry in marker.items():
        if name == app.name:
            _check_state(app.name, entry, location, next(each.table for each in own), epoch)
        else:
            _check_other(app.name, own, name, entry)


def _check_state(application: str, entry: Mapping[str, Any], location: StateLocation, table: str, epoch: int) -> None:
    was, now, real = NamedTable(*entry["state"]), location.state, location.tables[table]
    if entry["identity"] == location.identity and epoch > entry["epoch"]:
        return  # the user says that the state fits these tables
    if entry["identity"] != location.identity or _differ(was, now):
        raise NotOwned(
            f"The rows of table {table!r} = {_named(real)} were derived by application {application!r} "
            f"with the state {_named(was)}, and the state here is {_named(now)}, another one: items that the other one "
            f"has counted would count again. {WAYS} Does this state fit the rows, because both were restored to one "
            f"moment or moved together? Then raise STREAMFOLD_EPOCH by one."
        )
    if _differ(own := NamedTable(*entry["table"]), real):
        raise NotOwned(
            f"Table {table!r} is {_named(real)}, and its rows were derived in {_named(own)}, of which "
            f"it is a copy, with the state {_named(was)}: the state has counted what was written there since. {WAYS} "
            "Does this state fit the rows, because both were restored to one moment or moved together? Then raise "
            "STREAMFOLD_EPOCH by one."
        )


def difference(entry: Mapping[str, Any], identity: str | None, state: NamedTable, table: NamedTable) -> str | None:
    """Why an entry of a marker is not of this state and this table; None where it is."""
    was_state, was_table = NamedTable(*entry["state"]), NamedTable(*entry["table"])
    if entry["identity"] != identity or _differ(was_state, state):
        return f"its rows are of the state {_named(was_state)}, and the state is {_named(state)}, another one"
    if _differ(was_table, table):
        return f"its rows were derived in {_named(was_table)}, and it is {_named(table)}, a copy"
    return None


def _check_other(application: str, own: Iterable[Guarded], other: str, entry: Mapping[str, Any]) -> None:
    for each, handler, keys in ((each, *named) for each in own for named in entry["handlers"].items()):
        # Otherwise both name their owner: nothing is taken for another application's.
        adding = (how for how in keys if ADDED in (each.how, how) and ONTO not in (each.how, how))
        for parts in (parts for how in adding for parts in keys[how]):
            if _overlaps(each.key, parts, entry["delimiter"]):
                raise NotOwned(_shared(application, each, other, handler, " / ".join(parts), entry))


def _overlaps(key: Key, parts: list[str], delimiter: str) -> bool:
    table = key.table
    try:
        sort = parts[1] if len(parts) > 1 else None
        other = Key(parts[0], sort, Table(table.name, table.partition, table.sort, delimiter=delimiter))
    except DeclarationError:  # a template of other code, which this one cannot read: it may be any
        return True
    return key.alike(other)


def check_entries(
    application: str, own: Iterable[Guarded], other: str, entries: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raises ``NotOwned`` where another application of a store of this machine adds to rows of these handlers."""
    if other == application:
        return
    for each, handler, entry in ((each, *named) for each in own if each.how != ONTO for named in entries.items()):
        adds = each.adds and (entry["contributes"] or each.route.kind.is_of(entry))
        for target in entry["targets"] if adds or entry["contributes"] else ():
            table, _, template = target.partition(": ")
            parts = template.split(" / ")
            both_add = adds or (each.route.kind.contributes and target not in entry["owned"])
            is_alike = table == each.table and len(parts) == len(each.key.parts)
            if both_add and is_alike and _overlaps(each.key, parts, each.key.table.delimiter):
                raise NotOwned(_shared(application, each, other, handler, template, None))


def _shared(
    application: str, own: Guarded, other: str, handler: str, template: str, entry: Mapping[str, Any] | None
) -> str:
    state = f" with the state {_named(NamedTable(*entry['state']))}" if entry else ""
    fresh = "" if entry else " For a local state, replay --fresh starts anew."
    return (
        f"Handler {own.route.name!r} of application {application!r} derives rows of {own.key.template} in table "
        f"{own.table!r}, and application {other!r} derives rows of {template} there{state} ({handler!r}): they may be "
        f"the same rows, and each item would count in both. Is {application!r} a new name of {other!r}? Then keep the "
        f"name, App('{other}', ...), or move its state to the new name: streamfold adopt --from {other}. Otherwise "
        f"give one of the two another target. {manual('adopting')} has the next steps.{fresh}"
    )


def _differ(one: NamedTable, other: NamedTable) -> bool:
    """Whether two tables are certainly different ones: an id may be unknown."""
    return one.name != other.name or (None not in (one.id, other.id) and one.id != other.id)


def _named(table: NamedTable) -> str:
    return f"{table.name!r} ({table.id})" if table.id else f"{table.name!r}"


def _renamed(what: str, was: str, now: str) -> str:
    return (
        f"The state's manifest notes {was!r} as {what}, and now {what} is {now!r}: the rows here may not be those that "
        f"the state has counted. {WAYS} Does the state fit the rows, because both were restored to one moment or moved "
        "together? Then raise STREAMFOLD_EPOCH by one."
    )


WAYS = (
    "The ways on: name the state that derived these rows, STREAMFOLD_STATE_TABLE; or remove the rows and backfill; or "
    f"take the rows over, streamfold adopt. {manual('adopting')} says which."
)

MarkerChange = Callable[[Marker], Marker]


def change_marker(runtime: Runtime, key: Key, change: MarkerChange) -> None:
    """Changes the marker of a key's table, if there is one. Raises ``Contended`` if others write it at every try."""
    at = key_of(key)
    for _ in runtime.tries():
        text = read_marker(runtime, at)
        if text is None or (after := change(parsed(text))) == parsed(text):
            return
        if write_marker(runtime, at, text, after):
            return
    raise Contended(f"The marker of table {at[0]!r} was written by others {TRIES_MAX} times in a row: try again.")


def take_out(runtime: Runtime, handler: str) -> None:
    """Takes a handler whose rows are gone out of the markers of its tables, so that others may have the templates."""
    if runtime.store.separate is None:
        return
    name = runtime.application.name
    for each in guarded(route for route in runtime.application.routes if route.name == handler):
        change_marker(runtime, each.key, lambda marker: without(marker, name, [handler]))
