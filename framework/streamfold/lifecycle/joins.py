"""Items of exports brought to the items that are derived with them, for workers that have a part of a table each.

Every function here takes an iterator and gives one, and holds one group of it. Items go to a worker by the first text
of their position, and are sorted by all of it. Items travel thus:

1. A *reference* of an item meets its referent, which goes back to the item. References through a referent go once more.
2. The *ranges* that a handler gathers of a root meet the items of the partition, which go to the root.
3. An item meets all that came for it, and its handlers are called (``derive``).

So a task holds one referent, or one item with its 40 referents and the parts that a root may have: no more are brought.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.commit.collections import (
    PAGE_ITEMS,
    PARTS_BYTES_MAX,
    PARTS_MAX,
    PartRange,
    RootItem,
    is_wanted,
    range_of,
)
from streamfold.commit.referents import Asked, LookedUp, look_up
from streamfold.derivations.derivation import Derived, derived
from streamfold.engines.protocol import StoredItem
from streamfold.errors import ItemFault
from streamfold.ledger.schema import Schema
from streamfold.lifecycle.exports import ExportLine
from streamfold.lifecycle.row_sums import RowSum, is_joined, items_engine, put_larger, slices_of, summed
from streamfold.records.change import ItemKey, image_of
from streamfold.records.images import hidden
from streamfold.records.values import item_bytes, sortable
from streamfold.routes.application import Application
from streamfold.routes.lookups import REFERENCES_MAX, DeclaredLookup, references
from streamfold.routes.parts import PART
from streamfold.routes.roots import root_of
from streamfold.routes.route import REFERENT, SOURCE, Fields, Route
from streamfold.runtime import Runtime
from streamfold.settings import Settings
from streamfold.writes.guarded import RowKey

if TYPE_CHECKING:
    from streamfold.records.images import Image

DERIVED_ITEMS = 500
"""Items that are derived at a time, with all that they read."""
READ_MAX = PARTS_MAX + PAGE_ITEMS
"""Items of a range that are brought to a root: as many as a reader of pages reads until it knows that there are too
many, so that an error names the same number.
"""
Position = tuple[str, str, int, str]
"""The group; a text in the order of a sort key; what comes first; a name, so that each attempt has the same order."""
Positioned = tuple[Position, Any]


class Brought(NamedTuple):
    """An item that goes to another one, or the item itself (``to`` is its own key)."""

    to: ItemKey
    item: ItemKey
    image: StoredItem | None


class JoinedItem(NamedTuple):
    """An item with all that its handlers read beside it."""

    item: ItemKey
    image: StoredItem | None  # None: a root that does not exist
    beside: Sequence[tuple[ItemKey, StoredItem]]


class WantedRange(NamedTuple):
    """A range of items that a root gathers."""

    root: ItemKey
    handler: str
    number: int  # of the part among those of the handler


class Joins:
    """What handlers read beside their items. ``routes``: those that are compared or run."""

    def __init__(self, app: Application, routes: Sequence[Route]) -> None:
        self.app, self.run = app, routes
        self.routes = [route for route in routes if route.kind.contributes and is_joined([route])]
        self.lookups = [lookup for route in self.routes for lookup in route.lookups]
        self.gathering = [route for route in self.routes if route.parts]
        self.has_references = bool(self.lookups)
        self.has_references_through = any(lookup.through is not None for lookup in self.lookups)
        self.has_ranges = bool(self.gathering)

    def own(self, line: ExportLine) -> Iterator[Positioned]:
        """An item that a handler derives with others, to where all that the handler reads is brought."""
        if line.image is not None and self._own(line.key):
            yield _own(line)

    def visited(self, line: ExportLine) -> Iterator[Positioned]:
        """An item that a run visits. A part is none: its root is, and the part is brought there."""
        visited = (
            each.role == SOURCE or (each.role != REFERENT and not each.route.kind.contributes)
            for each, _ in self.app.listeners(line.key)
            if each.route in self.run
        )
        if any(visited):
            yield _own(line)

    # References and referents.

    def asked(self, line: ExportLine) -> Iterator[Positioned]:
        """The references of an item, but those through others; and the item itself, if references may be of it."""
        yield from self._offered(line, through=False)
        if line.image is not None:
            yield from self._asked(JoinedItem(line.key, line.image, ()), through=False)

    def offered_through(self, line: ExportLine) -> Iterator[Positioned]:
        """An item, if references through others may be of it."""
        return self._offered(line, through=True)

    def _offered(self, line: ExportLine, *, through: bool) -> Iterator[Positioned]:
        read = [lookup for lookup in self._is_of(through=through) if lookup.key.takes(line.key)]
        if read and line.image is not None:
            yield (name_of(line.key), "", 0, ""), Brought(line.key, line.key, self._seen(line.key, line.image))

    def asked_through(self, items: Iterable[Positioned]) -> Iterator[Positioned]:
        """The references through referents, of items to which these were brought."""
        for joined in together(items):
            if joined.image is not None:
                yield from self._asked(joined, through=True)

    def _asked(self, joined: JoinedItem, *, through: bool) -> Iterator[Positioned]:
        own = (_referred(*each, joined, through=through) for each in self._own(joined.item))
        for key in dict.fromkeys(key for keys in own for key in keys):
            yield (name_of(key), "", 1, name_of(joined.item)), joined.item

    def _is_of(self, *, through: bool) -> list[DeclaredLookup]:
        return [lookup for lookup in self.lookups if (lookup.through is not None) is through]

    def _own(self, item: ItemKey) -> list[tuple[Route, Fields]]:
        return [(route, fields) for route, fields in self.app.sources(item) if route in self.routes]

    def _seen(self, item: ItemKey, image: StoredItem) -> StoredItem:
        """What handlers read of a referent, its key and the framework's attributes: one may go to a million items."""
        lookups = [lookup for lookup in self.lookups if lookup.key.takes(item)]
        if any(lookup.reads is None for lookup in lookups):
            return image
        names = {name for lookup in lookups for name in (*(lookup.reads or ()), *lookup.needed)}
        names.update(self.app.tables[item[0]].attributes)
        return {name: value for name, value in image.items() if name in names or hidden(name)}

    # Ranges and parts.

    def ranges(self, line: ExportLine) -> Iterator[Positioned]:
        """The ranges that handlers gather of an item, and the item itself, if a range may have it."""
        if line.image is None:
            return
        for route, root, fields in self._roots(line.key):
            for number, part in enumerate(route.parts):
                wanted = range_of(RootItem(route, root, fields), part)
                name = WantedRange(root, route.name, number)
                yield (_partition(root), _begin(wanted), 0, repr(name)), name
        if any(self._may_have(route, line.key) for route in self.gathering):
            yield (_partition(line.key), sortable(line.key[2]), 1, ""), Brought(line.key, line.key, line.image)

    def _roots(self, item: ItemKey) -> Iterator[tuple[Route, ItemKey, Fields]]:
        for each, fields in self.app.listeners(item):
            if each.route not in self.gathering:
                continue
            if each.role == SOURCE:
                yield each.route, item, fields
            elif each.role == PART and each.route.optional:  # the root may not exist
                yield (each.route, *root_of(each.route, fields))

    def _may_have(self, route: Route, item: ItemKey) -> bool:
        begins = (each.key.sort.pieces[0] for each in route.parts if each.key.sort is not None)
        heads = tuple(head if isinstance(head, str) else "" for head in begins)
        (root,) = route.sources
        is_in = item[0] == root.table.name and sortable(item[2]).startswith(heads)
        return is_in and root.partition.match(item[1]) is not None

    def gathered(self, items: Iterable[Positioned]) -> Iterator[Positioned]:
        """The items of ranges, brought to their roots. Ranges whose prefixes begin alike lie within one another."""
        opened: list[_OpenRange] = []
        partition = ""
        for (group, sort, side, _), given in items:
            ended = [each for each in opened if group != partition or not each.takes(sort)]
            for each in ended:
                yield from each.end()
            opened = [each for each in opened if each not in ended]
            partition = group
            if side:
                yield from chain.from_iterable(each.add(given) for each in opened)
                continue
            new = self._open(given)
            # Several handlers may gather alike, and each part of a root that may not exist asks for the root's ranges.
            if not any(each.is_same(new) for each in opened):
                opened.append(new)
        for each in opened:
            yield from each.end()

    def _open(self, wanted: WantedRange) -> "_OpenRange":
        route, fields = next(each for each in self._own(wanted.root) if each[0].name == wanted.handler)
        return _OpenRange(wanted, range_of(RootItem(route, wanted.root, fields), route.parts[wanted.number]))


class _OpenRange:
    """A range of which items are being read, in the order of their sort keys."""

    __slots__ = ("begin", "count", "kept", "range", "size", "wanted")

    def __init__(self, wanted: WantedRange, of: PartRange) -> None:
        self.wanted, self.range, self.begin = wanted, of, _begin(of)
        self.count = self.size = 0  # of the items that are brought, or kept
        self.kept: deque[tuple[Brought, int, bool]] = deque()  # the last items, their sizes, and whether they count

    def is_same(self, other: "_OpenRange") -> bool:
        return self.wanted.root == other.wanted.root and self.range == other.range

    def takes(self, sort: str) -> bool:
        return sort == self.begin if self.range.single is not None else sort.startswith(self.begin)

    def add(self, given: Brought) -> Iterator[Positioned]:
        """An item of the range, brought at once, unless the last ones are wanted or there are too many."""
        assert given.image is not None
        if self.range.newest:
            self._keep(given, given.image)
        elif self.count < READ_MAX and self.size <= PARTS_BYTES_MAX:
            self.count += 1
            self.size += item_bytes(given.image)
            yield self._brought(given)

    def end(self) -> Iterator[Positioned]:
        yield from (self._brought(each) for each, _, _ in self.kept)

    def _keep(self, given: Brought, image: StoredItem) -> None:
        """Keeps what a reader of the last parts reads: items from the end on, until enough of them count."""
        size, counts = item_bytes(image), is_wanted(self.range, image)
        self.kept.append((given, size, counts))
        self.size += size
        self.count += counts
        while self._is_beyond():
            _, size, counts = self.kept.popleft()
            self.size -= size
            self.count -= counts

    def _is_beyond(self) -> bool:
        """Whether the reader ends before the first item that is kept."""
        _, size, counts = self.kept[0]
        enough = self.count - counts >= self.range.newest
        return enough or len(self.kept) > READ_MAX or self.size - size > PARTS_BYTES_MAX

    def _brought(self, given: Brought) -> Positioned:
        root = self.wanted.root
        return (name_of(root), "", 2, name_of(given.item)), Brought(root, given.item, given.image)


def answered(items: Iterable[Positioned]) -> Iterator[Positioned]:
    """The referents, brought to the items that refer to them. A referent that does not exist goes nowhere."""
    known: tuple[str, Brought] | None = None
    for (group, _, side, _), given in items:
        if not side:
            known = group, given
        elif known is not None and known[0] == group:
            found = known[1]
            yield (name_of(given), "", 1, group), Brought(given, found.item, found.image)


def together(items: Iterable[Positioned]) -> Iterator[JoinedItem]:
    """Whole groups: an item and others, of those that were brought the largest images."""
    for _, group in groupby(items, key=lambda each: each[0][0]):
        image: StoredItem | None = None
        beside: dict[ItemKey, StoredItem] = {}
        for (_, _, side, _), brought in group:
            image = image if side else brought.image
            if side and brought.image is not None:
                put_larger(beside, brought.item, brought.image)
        yield JoinedItem(brought.to, image, (*beside.items(),))


def derive(
    app: Application, settings: Settings, routes: Sequence[Route], items: Iterable[JoinedItem], moment: float = 0.0
) -> Iterator[tuple[ItemKey, list[tuple[RowKey, RowSum]]]]:
    """Calls the handlers on items with all that they read; gives what each contributes to rows, as a fold would.

    moment: for handlers that ask for the time, in epoch seconds; 0 for the time of this machine.
    """
    schema = Schema()
    for some in slices_of(items, DERIVED_ITEMS, _bytes_of):
        yield from _derived(app, settings, routes, some, schema, moment)


def _derived(
    app: Application,
    settings: Settings,
    routes: Sequence[Route],
    some: Sequence[JoinedItem],
    schema: Schema,
    moment: float,
) -> Iterator[tuple[ItemKey, list[tuple[RowKey, RowSum]]]]:
    known: dict[ItemKey, StoredItem] = {}
    for joined in some:
        for key, image in joined.beside:
            put_larger(known, key, image)
    images = {**known, **{each.item: each.image for each in some}}
    runtime = Runtime(app, items_engine(app, images, moment), settings)
    own = {
        each.item: [
            Asked(route, each.item, image_of(each.image), fields)
            for route, fields in app.sources(each.item)
            if route in routes
        ]
        for each in some
    }
    reading = [each for asked in own.values() for each in asked if is_joined([each.route])]
    looked_up = look_up(runtime, reading, notes=False)
    found = {(each.item, each.route.name): one for each, one in zip(reading, looked_up, strict=True)}
    for joined in some:
        made = ((each.route, _called(each, found, schema)) for each in own[joined.item])
        yield joined.item, [*summed(joined.item, joined.image, made, joined.beside)]


def _called(asked: Asked, found: Mapping[tuple[ItemKey, str], LookedUp], schema: Schema) -> Derived:
    read = found.get((asked.item, asked.route.name), LookedUp(asked.image))
    made = derived(asked.route, read.image, asked.fields, schema, read.at)
    return made if read.error is None else Derived({}, read.error)


def _referred(route: Route, fields: Fields, joined: JoinedItem, *, through: bool) -> list[ItemKey]:
    """The references of an item of one level; none of an item that ``derive`` fails on because of them."""
    known, image = dict(joined.beside), image_of(joined.image)
    named: dict[str, list[tuple[ItemKey, Image]]] = {}
    found: list[ItemKey] = []
    with ItemFault():
        for lookup in (each for each in route.lookups if image and (through or each.through is None)):
            keys = references(lookup, image, fields, named)
            named[lookup.name] = [(key, image_of(known.get(key))) for key in keys]
            found += keys if (lookup.through is not None) is through else ()
    return found if len(found) <= REFERENCES_MAX else []


def _bytes_of(joined: JoinedItem) -> int:
    own = 0 if joined.image is None else item_bytes(joined.image)
    return own + sum(item_bytes(image) for _, image in joined.beside)


def _own(line: ExportLine) -> Positioned:
    return (name_of(line.key), "", 0, ""), Brought(line.key, line.key, line.image)


def _begin(of: PartRange) -> str:
    return str(of.begins) if of.single is None else sortable(of.single[2])


def name_of(item: ItemKey) -> str:
    """A text that equal keys share: a number may be a whole one here, and a decimal one where it was composed."""
    return repr((item[0], sortable(item[1]), sortable(item[2])))


def _partition(item: ItemKey) -> str:
    return name_of((item[0], item[1], None))
