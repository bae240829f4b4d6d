"""The changes of a batch by item: routed by key, in the order of their versions, each once."""

from collections.abc import Container, Iterable
from itertools import repeat
from operator import ge
from typing import TYPE_CHECKING, Any, TypeVar

from streamfold.batch.report import Report
from streamfold.derivations.derivation import Work
from streamfold.errors import redacted
from streamfold.keys.table import CONTRIBUTORS, LIFE, OWNER, VERSION
from streamfold.ledger.state_keys import ledger_key
from streamfold.records.change import Change, ItemKey
from streamfold.records.values import decode_number
from streamfold.routes.application import Application, DispatchEntry, FoundEntries
from streamfold.routes.route import ROWS_LOST, SOURCE, Fields, Route
from streamfold.runtime import Runtime

if TYPE_CHECKING:
    from streamfold.keys.key import Key, NearMiss
    from streamfold.writes.guarded import StateKey

RoutedFields = tuple[Route, Fields]
NO_REMOVALS: frozenset[ItemKey] = frozenset()
T = TypeVar("T", bound=tuple[Any, ...])


class ItemWork:
    """The changes of one item in a batch, and the routes that subscribe to it."""

    __slots__ = ("changes", "is_row", "item", "ledger", "of_key", "off", "others", "subscribed", "writers")

    def __init__(self, item: ItemKey) -> None:
        self.item = item
        self.of_key: Sorted | None = None  # counts the records of items that only contributing routes subscribe to
        self.ledger: dict[StateKey, list[RoutedFields]] = {}  # routes that contribute, a ledger item for each group
        self.others: tuple[tuple[Route, str, Fields], ...] = ()  # routes of other kinds, with the item's role
        self.subscribed: tuple[tuple[Route, str, Fields], ...] = ()  # routes whose handlers are not called
        self.off: tuple[Route, ...] = ()  # routes whose handlers are switched off
        self.changes: list[Change] = []  # oldest first, each once
        self.is_row = False  # its key is one of a target
        self.writers: list[Change] = []  # of these, changes of an item that the application's own code put there

    def works(self, routed: Iterable[tuple[Route, str, Fields]]) -> list[Work]:
        return [Work(route, self.item, role, fields, self.changes_for(route)) for route, role, fields in routed]

    def changes_for(self, route: Route) -> list[Change]:
        """The changes that a route gets: those of rows only if its kind can read rows."""
        return self.writers if self.is_row and not route.kind.reads_derived else self.changes

    def sort_out(self, application: Application) -> None:
        """Leaves out routes that read no rows, if all changes are of a row: rows come back through the stream."""
        self.writers = [change for change in self.changes if application.is_of_writer(change)]
        if not self.writers:
            self.others = tuple([each for each in self.others if each[0].kind.reads_derived])
            self.off = tuple([route for route in self.off if route.kind.reads_derived])


class Sorted:
    """The subscriptions to the items of one key."""

    __slots__ = ("changes", "contributes", "ledger", "off", "others", "subscribed", "unmistakable")

    def __init__(self, *, unmistakable: bool) -> None:
        self.unmistakable = unmistakable  # no other key nearly matches such an item
        self.ledger: dict[str, list[Route]] = {}  # routes that contribute, by group
        self.others: list[tuple[Route, str]] = []  # routes of other kinds, with the item's role
        self.subscribed: list[tuple[Route, str]] = []  # routes whose handlers are not called
        self.off: list[Route] = []  # routes whose handlers are switched off
        self.contributes = False  # only contributing routes subscribe, and no other key nearly matches the item
        self.changes: list[Change] = []  # of items of the key, if it contributes


class Routing:
    """Sorts the subscriptions to items of a key, once for all items of a batch."""

    def __init__(self, runtime: Runtime) -> None:
        self.application = runtime.application
        self.runtime = runtime
        self.near: dict[ItemKey, list[NearMiss]] = {}  # source keys that items nearly match
        self._sorted: dict[int, Sorted] = {}  # by identity of the entry, which the application keeps
        self._begins: dict[str, set[str]] = {}  # by table, how the partition keys begin that handlers read

    def routed(self, item: ItemKey) -> ItemWork:
        """The routes that subscribe to an item."""
        name, found, work = self.application.name, self.application.found(item), ItemWork(item)
        unmistakable = len(found) == 1
        for entry, fields in found:
            for_key = self._sorted.get(id(entry)) or self._sort(entry)
            for group, routes in for_key.ledger.items():
                work.ledger.setdefault(ledger_key(name, group, item), []).extend(zip(routes, repeat(fields)))
            if unmistakable and for_key.contributes:  # as nearly always: the other checks cannot apply
                work.of_key = for_key
                return work
            unmistakable = unmistakable and for_key.unmistakable
            if for_key.others or for_key.subscribed:
                work.others += tuple([(route, role, fields) for route, role in for_key.others])
                work.subscribed += tuple([(route, role, fields) for route, role in for_key.subscribed])
            work.off += tuple(for_key.off)
        if len(found) > 1:  # a route with two sources, of which one holds the other
            work.ledger = {key: _once(routed) for key, routed in work.ledger.items()}
            work.others, work.subscribed = tuple(_once(work.others)), tuple(_once(work.subscribed))
        if (work.others or work.off) and self.application.derived(item):
            work.is_row = True
        if not unmistakable:
            self._look_for_near_misses(item, found)
        return work

    def _look_for_near_misses(self, item: ItemKey, found: FoundEntries) -> None:
        """Warns of the keys that an item nearly matches, and notes those whose items a handler of this function reads.

        No handler reads such a record. It is acknowledged and never redelivered, so the report has to count it.
        """
        known = self.application.known(item[0])
        if len(known.candidates(*item[1:])) == len(found):
            return
        for miss in known.near_misses(*item[1:]):
            key = miss.template
            if (key, miss.value) not in self.runtime.warned:  # why is looked for once a value
                self.runtime.warn_once((key, miss.value), _near_miss_warning(item, miss))
            if miss.is_meant and self._is_read(key):
                self.near.setdefault(item, []).append(miss)

    def _is_read(self, key: "Key") -> bool:
        serves, only, off = self.runtime.settings.serves, self.runtime.handlers, self.runtime.settings.handlers_off
        reading = (
            route
            for route in self.application.routes
            if serves(route.group) and route.name not in off and (only is None or route.name in only)
        )
        return any(each.called and each.key == key for route in reading for each in route.kind.subscriptions(route))

    def _sort(self, entry: DispatchEntry) -> Sorted:
        known = self.application.known(entry.key.table.name)
        found = self._sorted[id(entry)] = Sorted(unmistakable=known.is_sole_writer(entry.key))
        settings, only = self.runtime.settings, self.runtime.handlers
        for route, role, called in entry.listeners:
            if not settings.serves(route.group):
                continue
            if not called:
                found.subscribed.append((route, role))
            elif only is not None and route.name not in only:
                continue
            elif route.name in settings.handlers_off:
                found.off.append(route)
            elif route.kind.contributes and role == SOURCE:
                found.ledger.setdefault(route.group, []).append(route)
            else:
                found.others.append((route, role))
        found.contributes = (
            found.unmistakable and bool(found.ledger) and not (found.others or found.subscribed or found.off)
        )
        return found

    def shape(self, item: ItemKey, delimiter: str) -> str:
        """How a key looks that no route reads: its first segment, ``CUSTOMER#``, or ``ORDER# / ITEM#``.

        Where the keys that handlers read begin alike, the names of all segments: ``TENANT#*#INVOICE#* / META``.
        """
        if item[0] not in self._begins:
            keys = (entry for route in self.application.routes for entry in route.sources)
            own = [key.partition.begins for key in keys if key.table.name == item[0]]
            self._begins[item[0]] = {begins.partition(delimiter)[0] for begins in own}
        values = [str(value) for value in item[1:] if value is not None]
        if values[0].partition(delimiter)[0] in self._begins[item[0]]:
            return " / ".join(filter(None, (_names(value, delimiter) for value in values))) or values[0]
        heads = [value.partition(delimiter) for value in values]
        return " / ".join(head + mark for head, mark, _ in heads if mark) or f"keys without {delimiter}"

    def count(self, report: Report) -> None:
        """Counts the records of keys that contribute, once for all items of a key."""
        for found in self._sorted.values():
            for routes in found.ledger.values():
                for route in routes if found.changes else ():
                    self.deliver(report, route.name, found.changes)

    def deliver(self, report: Report, handler: str, changes: list[Change]) -> None:
        report.records[handler] += len(changes)
        if self.runtime.settings.observe_handlers:
            report.delivered.setdefault(handler, []).extend(changes)


def _once(routed: Iterable[T]) -> list[T]:
    """The routes of an item, each once for every role: the fields are those of the narrowest key, which comes first."""
    found: dict[tuple[Any, ...], T] = {}
    for each in routed:
        found.setdefault((each[0], *each[1:-1]), each)
    return list(found.values())


def note_removals(runtime: Runtime, changes: Iterable[Change], report: Report) -> set[ItemKey]:
    """Counts for their handlers the rows that somebody else removed while items contributed to them; returns these.

    The framework removes a row that is added to only when nothing contributes to it any more.
    """
    application, settings, only = runtime.application, runtime.settings, runtime.handlers
    noted: set[ItemKey] = set()
    for change in {(change.item, change.version_text): change for change in changes}.values():
        for route in application.watchers(change.item) if is_of_counted_row(change) else ():
            group = application.watching_group(route, change.item[0])
            if settings.serves(group) and (only is None or route.name in only):
                report.count(ROWS_LOST, route.name)
                noted.add(change.item)
    return noted


def is_of_counted_row(change: Change) -> bool:
    """Whether a record is the removal of a row with contributions.

    A replaced row has an owner or a version, and a row that expires a life. Without the old image the row's attributes
    are unknown.
    """
    if change.event != "REMOVE" or not change.has_old or not change.old:
        return False
    row = change.old.raw
    if CONTRIBUTORS not in row or any(name in row for name in (OWNER, VERSION, LIFE)):
        return False
    try:
        return decode_number(row[CONTRIBUTORS]["N"]) >= 1
    except (ArithmeticError, KeyError, TypeError, ValueError):  # no row of the framework's
        return False


def by_item(runtime: Runtime, changes: Iterable[Change], report: Report) -> dict[ItemKey, ItemWork]:
    """The work of a batch by item, with counts in the report."""
    found: dict[ItemKey, ItemWork] = {}
    routing = Routing(runtime)
    removals: list[Change] = []
    for change in changes:
        if change.event == "REMOVE":
            removals.append(change)
        work = found.get(change.item)
        if work is None:
            work = found[change.item] = routing.routed(change.item)
        work.changes.append(change)
    noted = note_removals(runtime, removals, report) if removals else NO_REMOVALS
    for work in found.values():
        if len(work.changes) > 1:
            _order(work)
        if work.is_row:
            work.sort_out(runtime.application)
        if work.of_key is None:
            _count(work, report, routing, noted)
        else:
            work.of_key.changes += work.changes
    routing.count(report)
    for item, misses in routing.near.items():
        report.count_near_misses(misses, len(found[item].changes))
    return found


def _order(work: ItemWork) -> None:
    """Sorts an item's changes by version and drops repeated ones."""
    changes = work.changes
    versions = [change.version_text for change in changes]
    if any(map(ge, versions, versions[1:])):
        identities = [change.identity_text for change in changes]  # each begins with the version
        ordered = sorted(dict(zip(identities, changes, strict=True)).items())
        work.changes[:] = [change for _, change in ordered]


def _count(work: ItemWork, report: Report, routing: Routing, noted: Container[ItemKey]) -> None:
    for routed in work.ledger.values():
        for route, _ in routed:
            routing.deliver(report, route.name, work.changes)
    for name, changes in {route.name: work.changes_for(route) for route, _, _ in work.others}.items():
        routing.deliver(report, name, changes)
    if not (work.ledger or work.others or work.subscribed or work.off or work.item in noted):
        report.unrouted[routing.shape(work.item, work.changes[0].table.delimiter)] += len(work.changes)


def _near_miss_warning(item: ItemKey, miss: "NearMiss") -> str:
    key = miss.template
    return (
        f"Item {redacted(' / '.join(map(str, item[1:])))} fits {key!r} ({key.declared_at}) but for {miss.field!r}: "
        f"{miss.why}. It is not processed by that key's handlers."
    )


def _names(component: str, delimiter: str) -> str:
    """A component of a key with its names and a star for each value: ``TENANT#*#ORDER#*``."""
    segments = component.split(delimiter)
    if len(segments) == 1:
        return component if component.isupper() else ""
    return delimiter.join("*" if number % 2 else name for number, name in enumerate(segments))
