"""What a kind should have made: the results that proofs compare with, and the values of comparing stored rows.

Nothing here uses the planner, the ledger or a store: it can be checked by comparing it with the declarations.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from streamfold.engines.protocol import StoredItem
from streamfold.keys.key import child_fields
from streamfold.keys.table import Table
from streamfold.records.change import Change, ItemKey, item_name
from streamfold.records.values import alike, sortable
from streamfold.routes.parts import DeclaredPart, Part, Parts
from streamfold.routes.roots import root_of
from streamfold.routes.route import Fields, Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import RowKey

FIELDS_KEPT_MAX = 100_000
"""A proof reads the same few thousand items again in each of its runs, for every route."""

NO_ITEM: Mapping[str, Any] = {}
PartitionItems = Sequence[tuple[ItemKey, Mapping[str, Any]]]
"""The items of a partition, in the order of their sort keys."""
Values = dict[str, Any]
Stored = Mapping[RowKey, StoredItem]
"""Items of the store by key, with DynamoDB's attribute values."""


@dataclass(slots=True)
class History:
    """The changes of an application's items."""

    changes: Sequence[Change]  # each once, in order
    items: Mapping[ItemKey, Mapping[str, Any]]  # their last images, and the known derived rows
    called: Callable[[Route, Any, Fields, ItemKey], list[Any]]  # calls a handler with an image or a change
    referents: Mapping[ItemKey, Mapping[str, Any]] | None = None  # the items that may be looked up, unless all of them

    def changes_of(self, route: Route) -> Iterator[tuple[Change, Fields]]:
        """The changes of the items that a route is declared for, with the fields of their keys."""
        for change in self.changes:
            if (fields := fields_of(route, change.item)) is not None:
                yield change, fields

    def items_of(self, route: Route) -> Iterator[tuple[ItemKey, Mapping[str, Any], Fields]]:
        """The existing items that a route is declared for."""
        for item, image in self.items.items():
            if image and (fields := fields_of(route, item)) is not None:
                yield item, image, fields


class ItemVersion(NamedTuple):
    """One change of an item, by its version."""

    item: ItemKey
    version: str


class Share(NamedTuple):
    """The contribution of one item to a row, or to the derived attributes of an item."""

    key: RowKey
    source: str
    order: Any  # by which the item wins, or claims the row
    values: Values


@dataclass(slots=True)
class Expected:
    """The right results of one route."""

    rows: dict[RowKey, Values] = field(default_factory=dict)
    shares: list[Share] = field(default_factory=list)  # of rows that are sums of several items
    claims: list[Share] = field(default_factory=list)  # of rows that one of several items wins
    ranked: Any = None  # of claims: whether the ``smallest`` wins, and the rule for ``ties``
    on_items: list[Share] = field(default_factory=list)  # of attributes of other items
    outside: dict[RowKey, Values] = field(default_factory=dict)  # contents outside of the store


@lru_cache(FIELDS_KEPT_MAX)
def fields_of(route: Route, item: ItemKey) -> Fields | None:
    """The fields of an item's key, by the route's narrowest source for it."""
    keys = [key for key in route.sources if key.takes(item)]
    narrowest = next((key for key in keys if len(keys) == 1 or all(other.contains(key) for other in keys)), None)
    return None if narrowest is None else narrowest.match_values(*item[1:])


def shares_of(
    route: Route,
    history: History,
    more: Callable[[Fields], Fields] = lambda _: {},
    order: Callable[[Mapping[str, Any]], Any] | None = None,
) -> list[Share]:
    """The shares that the handler of a route yields of existing items.

    ``more`` gives fields beside those of the key, ``order`` the order by which an item claims a row, instead of
    ``Row(wins=)``.
    """
    shares = []
    for item, image, fields, gathering in gathered_items(route, history):
        referents = referents_of(
            route, image, fields, history.items if history.referents is None else history.referents
        )
        if referents is None:
            continue
        for effect in history.called(gathering, image, {**fields, **referents}, item):
            key, values = placed(route, effect, {**fields, **more(fields)})
            by = effect.wins if order is None else order(image)
            shares.append(Share(key, f"{item[0]}|{item_name(item)}", by, values))
    return shares


def gathered_items(route: Route, history: History) -> Iterator[tuple[ItemKey, Mapping[str, Any], Fields, Route]]:
    """The items that a handler is called for, each with the fields of its key and the route whose function gets its
    parts: those that exist, and with ``optional=True`` absent ones of which a part exists.
    """
    found = history.items_of(route)
    if not route.parts:
        yield from ((item, image, fields, route) for item, image, fields in found)
        return
    items = history.items if history.referents is None else history.referents
    partitions = partitions_of(items)
    roots = {item: (image, fields) for item, image, fields in found}
    for item in items if route.optional else ():
        for part in route.parts:
            values = part.key.match_values(*item[1:]) if part.key.table.name == item[0] and items[item] else None
            if values is not None:
                root, own = root_of(route, values)
                roots.setdefault(root, (NO_ITEM, own))
    for item, (image, fields) in roots.items():
        parts = parts_among(route, partitions[item[:2]], fields)
        if image or parts:
            yield item, image, fields, with_parts(route, parts)


def parts_among(route: Route, beside: PartitionItems, fields: Fields) -> Parts:
    """The parts of a root among the items of its partition, which are in the order of their sort keys."""
    return Parts({part.key: _parts(part, beside, fields) for part in route.parts})


def with_parts(route: Route, parts: Parts) -> Route:
    """The route whose function gets these parts."""
    function = route.function
    assert function is not None

    def called(item: Any, **asked: Any) -> Any:
        return function(item or None, parts, **asked)

    return replace(route, function=called)


def partitions_of(items: Mapping[ItemKey, Mapping[str, Any]]) -> Mapping[tuple[Any, ...], PartitionItems]:
    """The items by partition: looking for parts among all items would take most of the time of a proof."""
    found: dict[tuple[Any, ...], list[tuple[ItemKey, Mapping[str, Any]]]] = defaultdict(list)
    for item, image in items.items():
        if image:
            found[item[:2]].append((item, image))
    for some in found.values():
        some.sort(key=lambda each: sortable(each[0][2]))
    return found


def _parts(part: DeclaredPart, beside: PartitionItems, fields: Fields) -> list[Part]:
    matching = ((image, child_fields(part.key, fields, *item[1:])) for item, image in beside)
    found = [Part(_read(part.reads, image) or {}, own) for image, own in matching if own is not None]
    return found[-part.newest :] if part.newest else found


def referents_of(
    route: Route, image: Mapping[str, Any], fields: Fields, items: Mapping[ItemKey, Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """What an item refers to, by the names of the lookups; None where one is missing that is not optional."""
    keys = references_of(route, image, fields, items)
    found: dict[str, Any] = {}
    for each in route.lookups:
        existing = [items[key] for key in keys.get(each.name, ()) if items.get(key)]
        shown_items = tuple(_read(each.reads, item) for item in existing)
        if each.many is None and not existing and not each.optional:
            return None
        found[each.name] = shown_items if each.many is not None else next(iter(shown_items), None)
    return found


def references_of(
    route: Route, image: Mapping[str, Any], fields: Fields, items: Mapping[ItemKey, Mapping[str, Any]]
) -> Mapping[str, Sequence[ItemKey]]:
    """The keys of what an item refers to, by the names of the lookups. There may be no item of such a key."""
    keys: dict[str, list[ItemKey]] = {}
    known: dict[str, Fields] = {}  # the fields of these keys
    for lookup in route.lookups:
        base, own = image, fields
        if lookup.through is not None:
            name = lookup.through.name
            base, own = items.get(keys[name][0], {}) if name in keys else {}, known.get(name, {})
        if not base:
            continue
        given = {name: own[name] if name in own else _at(base, name) for _, name in lookup.taken}
        lists = (
            [given] if lookup.many is None else [{**given, lookup.many: each} for each in _listed(given[lookup.many])]
        )
        for values in lists:
            if all(value not in (None, "", b"") for value in values.values()):
                key = _key_of(lookup, values)
                known[lookup.name] = lookup.key.match_values(*key) or {}
                keys.setdefault(lookup.name, []).append((lookup.key.table.name, *key))
    return keys


def _at(item: Mapping[str, Any], name: str) -> Any:
    """An attribute, or a value in maps by its path."""
    before, _, rest = name.partition(".")
    if name in item or not rest:
        return item.get(name)
    inner = item.get(before)
    return _at(inner, rest) if isinstance(inner, Mapping) else None


def _listed(value: Any) -> Iterable[Any]:
    return sorted(value) if isinstance(value, set | frozenset) else value or ()


def _key_of(lookup: Any, values: Mapping[str, Any]) -> tuple[Any, Any]:
    if not lookup.from_key:
        found: tuple[Any, Any] = lookup.key.compose({field: values[name] for field, name in lookup.taken})
        return found
    texts = [values[name] for _, name in lookup.taken]
    fields = {**lookup.key.partition.match(texts[0])}
    return (texts[0], texts[1]) if len(texts) > 1 else lookup.key.compose(fields)


def _read(reads: Collection[str] | None, item: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    return item if item is None or reads is None else {name: item[name] for name in reads if name in item}


def placed(route: Route, effect: Any, fields: Fields) -> tuple[RowKey, Values]:
    """The row of an effect, and its attributes."""
    target = effect.target or route.writes[0]
    values = {name: value for name, value in effect.values.items() if name not in target.types}
    key = target.compose({**fields, **effect.values})
    return (target.table.name, *key), {**values, **(effect.attributes or {})}


ShownRow = Mapping[str, Any]
Unseen = Mapping[str, tuple[Any, Any]]
"""What no reader sees and differs, by name: as it is stored, and as it is expected. Entries: ``lifecycle.unseen``."""
TAKEN = "taken"
"""The result for a row in whose place is an item of the application, which no command changes."""
UNFOUNDED = "unfounded"
"""The result for a row that readers see as it should be, and that a later change would make wrong."""
NOTHING_UNSEEN: Unseen = {}
BUSY = "Others changed it or its item at the same time: compare again."
"""Why a row was not corrected that changed after it was read."""


class ItemFailed(NamedTuple):
    """An item that could not be reconciled or compared, for one handler."""

    item: ItemKey
    handler: str
    error: Exception


class RowDifference(NamedTuple):
    """A row that is not what its sources make."""

    row: RowKey
    shown: ShownRow | None  # the row in the table; None: there is no such row
    expected: ShownRow | None  # the row that the sources make; None: there should be no row
    unseen: Unseen = NOTHING_UNSEEN  # what readers do not see and differs
    taken: bool = False  # an item of the application is there, and ``shown`` is what it has

    @property
    def what(self) -> str:
        if self.taken:
            return TAKEN
        if alike(self.shown, self.expected):
            return UNFOUNDED
        return "missing" if self.shown is None else "extra" if self.expected is None else "different"


@dataclass(slots=True)
class VerifiedRows:
    """The result of a comparison of rows."""

    rows: int = 0  # that were read
    different: list[RowDifference] = field(default_factory=list)
    moving: int = 0
    pending: int = 0  # rows that were not compared, because additions to them are pending
    writers: int = 0  # items of the application at keys of rows to which nothing contributes
    failed: list[ItemFailed] = field(default_factory=list)

    def add(self, other: "VerifiedRows") -> None:
        """Adds the result for other rows."""
        self.rows += other.rows
        self.different = sorted([*self.different, *other.different], key=lambda each: str(each.row))
        self.moving += other.moving
        self.pending += other.pending
        self.writers += other.writers
        self.failed += other.failed


class RemainingRow(NamedTuple):
    """A row that was not corrected."""

    row: RowKey
    why: str


class RowsCorrected(NamedTuple):
    """The results for rows."""

    corrected: list[RowKey]
    remaining: list[RemainingRow]


class Comparison(NamedTuple):
    """The means of comparing and correcting rows one by one."""

    runtime: Runtime
    moment: float  # of the store, in epoch seconds
    keys: Callable[[Table, Callable[[ItemKey], bool]], Iterator[list[ItemKey]]]  # of a table, if they are wanted
    has_state: bool = True  # the store has the state too
    partial: Collection[str] = ()  # the handlers whose rows lack items that are older than their declaration
    reconcile: Callable[[Iterable[ItemKey]], object] = tuple  # derives the handler's rows of these items again
    differing: Callable[[], Collection[RowKey]] = tuple  # compares the handler's rows again


class OwnRows(Protocol):
    """The rows of one handler that are no sums of contributions: its kind compares and corrects them one by one."""

    def compared(self, comparing: Comparison) -> VerifiedRows:
        """Reads all rows, and compares each with what it is made of."""
        ...

    def correct(self, rows: Sequence[RowKey], comparing: Comparison) -> Mapping[RowKey, str]:
        """Corrects rows that differ; returns those that remain, with the reasons. Raises the errors of reads."""
        ...


class MadeOf(NamedTuple):
    """A source of a row or document: its role for the handler, its version at that time, and whether it exists now."""

    role: str
    item: ItemKey
    version: str | None  # None: not known
    exists: bool


class KnownChange(NamedTuple):
    """The newest change of an item that the state knows."""

    application: str
    item: ItemKey
    version: str


class ExplainedRow(NamedTuple):
    """A row that its kind makes of several items, with the items that its key names."""

    route: Route
    row: RowKey
    exists: bool
    made_of: tuple[MadeOf, ...]
    is_complete: bool = True  # all items exist that an existing row needs
    differing: Unseen = NOTHING_UNSEEN  # attributes: in the row, and as the handler makes them now
    may_be_pulled: bool = False  # readers may be shown an item without a row

    @property
    def agrees(self) -> bool:
        """Whether a row shows what its handler makes of its items."""
        return self.is_complete and not self.differing


def differing_attributes(shown: ShownRow, expected: ShownRow | None) -> dict[str, tuple[Any, Any]]:
    right = expected or {}
    names = sorted(name for name in {*shown, *right} if not alike(shown.get(name), right.get(name)))
    return {name: (shown.get(name), right.get(name)) for name in names}
