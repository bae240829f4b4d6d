"""The collections of roots: their parts, read strongly, after the ledger item and the root.

A collection is read in pages, which are no snapshot. A change of a part between two pages visits the root, and that
visit writes on the revision that it read after the change.

The roots of a batch or a page are read a few at a time: the handlers of one are called, and its parts are dropped.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from streamfold.commit.transactions import in_slots
from streamfold.engines.protocol import Engine, StoredItem
from streamfold.errors import Unprocessable
from streamfold.keys.key import Key, child_fields
from streamfold.keys.key_part import KeyValue
from streamfold.records.change import ItemKey, image_of
from streamfold.records.images import Image
from streamfold.records.values import decode, item_bytes
from streamfold.routes.lookups import ReferentImage
from streamfold.routes.parts import DeclaredPart, Part, Parts, RootImage
from streamfold.routes.route import Fields, Route
from streamfold.runtime import Runtime

PARTS_MAX = 2_000
"""Items that are read for one root: a query of so many items of 1 KB takes two pages."""
PARTS_BYTES_MAX = 10_000_000
"""Size of the items that are read for one root: ten pages of a query (1 MB each; API Reference, Query). An OpenSearch
domain takes requests of 10 MB or 100 MB, by its instance (OpenSearch Service Developer Guide, limits)."""
PARTS_MANY = 500
BYTES_MANY = 1_000_000
"""Parts of one root, or their size, of which a handler is warned once: each change of one reads them all."""
PAGE_ITEMS = 500
SIDE_BY_SIDE = 4
"""Roots whose parts are read at the same time, and held: 40 MB of stored items at most."""


class PartRange(NamedTuple):
    """Items that are read together: those of a prefix, the last of a key, or a single one."""

    key: Key
    partition: KeyValue  # of the root
    begins: str | None  # of the sort keys; None: the item whose key is ``single``
    newest: int = 0  # how many of the last items of the key; 0 for all items of the prefix
    single: ItemKey | None = None
    fields: tuple[tuple[str, object], ...] = ()  # of the root's key, by which the last items are recognised


class ReadRange(NamedTuple):
    """The items of a range in the order of their sort keys, and what was read for them."""

    items: Sequence[StoredItem]
    number: int
    size: int
    above: bool = False  # more than one root may have


class RootItem(NamedTuple):
    """A root that a handler gathers the parts of."""

    route: Route
    item: ItemKey
    fields: Fields


class Collections:
    """Reads the collections of roots in the order in which they are asked for, each once for its handlers."""

    def __init__(self, runtime: Runtime, roots: Sequence[RootItem]) -> None:
        self.runtime = runtime
        self.routes: dict[ItemKey, list[RootItem]] = {}
        for each in roots:
            self.routes.setdefault(each.item, []).append(each)
        self.order = [*self.routes]
        self.positions = {item: number for number, item in enumerate(self.order)}
        self.read: dict[ItemKey, dict[PartRange, ReadRange] | Exception] = {}

    def parts(self, root: RootItem) -> Parts:
        """The parts of a root. Raises ``EngineError``, and ``Unprocessable`` for more than one root may have."""
        if root.item not in self.read:
            self._read_from(self.positions[root.item])
        found = self.read[root.item]
        if isinstance(found, Exception):
            raise found
        self._warn(root.route, found)
        return parts_of(root, found)

    def _read_from(self, first: int) -> None:
        self.read = {}
        some = self.order[first : first + max(1, min(SIDE_BY_SIDE, self.runtime.slots.count))]
        self.runtime.begin()
        calls = ((item, partial(read_ranges, self.runtime.engine, ranges_of(self.routes[item]))) for item in some)
        for item, answer in in_slots(self.runtime.slots, calls):
            self.read[item] = answer
            if not isinstance(answer, Exception):
                self.runtime.pace.parts_read += sum(each.number for each in answer.values())

    def _warn(self, route: Route, found: Mapping[PartRange, ReadRange]) -> None:
        if all(each.newest for each in route.parts):
            return
        count, size = sum(each.number for each in found.values()), sum(each.size for each in found.values())
        if count >= PARTS_MANY or size >= BYTES_MANY:
            self.runtime.warn_once(
                ("parts", route.name),
                f"Handler {route.name!r} ({route.declared_at}) gathers over {PARTS_MANY} parts of one item, or "
                f"{BYTES_MANY} bytes: each change of one of them reads them all. Totals belong into a view, "
                "Sum or Count; of many readings the last may do, Newest(KEY, n).",
            )


def with_parts(runtime: Runtime, roots: Iterable[RootItem], images: Iterable[Image | None]) -> list[Image]:
    """The images of roots, whose parts are read when they are asked for. None: the handler is not called."""
    both = [*zip(roots, images, strict=True)]
    collections = Collections(runtime, [root for root, image in both if image is not None])
    found = []
    for root, image in both:
        if image is None:
            found.append(Image({}))
            continue
        referents = (
            getattr(image, "referents", {}) if image else {each.name: each.nothing for each in root.route.lookups}
        )
        found.append(RootImage(image.raw, referents, image, partial(collections.parts, root)))
    return found


def parts_of(root: RootItem, read: Mapping[PartRange, ReadRange]) -> Parts:
    """The parts that a handler gets. Raises ``Unprocessable`` for more than one root may have."""
    ranges = {part: _range(root, part, read) for part in root.route.parts}
    own = [read[each] for each in dict.fromkeys(ranges.values())]
    count, size = sum(each.number for each in own), sum(each.size for each in own)
    if any(each.above for each in own) or count > PARTS_MAX or size > PARTS_BYTES_MAX:
        raise too_many(root.route, count)
    return Parts({part.key: [*_matching(root, part, read[ranges[part]].items)] for part in root.route.parts})


def too_many(route: Route, count: int) -> Unprocessable:
    """The error of a root with more parts than a handler may gather."""
    return Unprocessable(
        f"{route.kind.name} {route.name!r} would gather over {PARTS_MAX} parts of one item, or {PARTS_BYTES_MAX} bytes "
        f"of them: {count} items and more are read. Gather the last ones, parts=[Newest(KEY, 100)], or rows that a "
        "view or an index makes of them."
    )


def _matching(root: RootItem, part: DeclaredPart, items: Iterable[StoredItem]) -> Iterator[Part]:
    for item in items:
        fields = _fields(part.key, root.fields, item)
        image = image_of(item)
        if fields is not None and image:
            is_plain = part.derived and part.reads is None
            yield Part(image if is_plain else ReferentImage(part, image.raw), fields)


def _fields(key: Key, fields: Fields, item: StoredItem) -> Mapping[str, object] | None:
    table = key.table
    return child_fields(key, fields, decode(item[table.partition]), decode(item[table.sort]) if table.sort else None)


def _range(root: RootItem, part: DeclaredPart, known: Iterable[PartRange]) -> PartRange:
    """The range that has a part's items: one that is read for another part too, if its prefix begins this one's."""
    own = range_of(root, part)
    if own.newest or own.begins is None:
        return own
    return next(each for each in known if _holds(each, own))


def range_of(root: RootItem, part: DeclaredPart) -> PartRange:
    """The items that hold a root's parts of a key."""
    begins = part.prefix(root.fields)
    if begins is None:
        single = (part.key.table.name, *part.key.compose({name: root.fields[name] for name in part.key.types}))
        return PartRange(part.key, root.item[1], None, single=single)
    if part.newest:
        return PartRange(part.key, root.item[1], begins, part.newest, fields=(*root.fields.items(),))
    return PartRange(part.key, root.item[1], begins)


def _holds(one: PartRange, other: PartRange) -> bool:
    return not one.newest and one.begins is not None and str(other.begins).startswith(one.begins)


def ranges_of(roots: Iterable[RootItem]) -> list[PartRange]:
    """The ranges of one item's handlers, each prefix that begins another one's instead of both."""
    own = dict.fromkeys(range_of(root, part) for root in roots for part in root.route.parts)
    found: list[PartRange] = []
    for each in sorted(own, key=lambda one: (one.begins is not None, len(one.begins or ""))):
        if each.newest or each.begins is None or not any(_holds(known, each) for known in found):
            found.append(each)
    return found


def read_ranges(
    engine: Engine, ranges: Sequence[PartRange], stored: Mapping[ItemKey, StoredItem] | None = None
) -> dict[PartRange, ReadRange]:
    """The items of ranges. ``stored`` has the single ones if they were read together. Raises ``EngineError``."""
    if stored is None:
        singles = [each.single for each in ranges if each.single is not None]
        stored = engine.read_sources(singles) if singles else {}
    found: dict[PartRange, ReadRange] = {}
    for each in ranges:
        if each.single is not None:
            items = [stored[each.single]] if each.single in stored else []
            found[each] = ReadRange(items, len(items), sum(map(item_bytes, items)))
        else:
            found[each] = _read(engine, each)
    return found


def _read(engine: Engine, wanted: PartRange) -> ReadRange:
    """The items of a prefix, or the last of a key; no more than one root may have."""
    items: list[StoredItem] = []
    count = size = 0
    after, down = None, {"descending": True} if wanted.newest else {}
    for _ in range(PARTS_MAX + 1):  # each page but the last has an item, and they are counted
        limit = min(PAGE_ITEMS, wanted.newest - len(items)) if wanted.newest else PAGE_ITEMS
        page = engine.page(wanted.key.table, wanted.partition, str(wanted.begins), after, limit, **down)
        count += len(page.items)
        size += sum(map(item_bytes, page.items))
        items += [each for each in page.items if is_wanted(wanted, each)]
        if count > PARTS_MAX or size > PARTS_BYTES_MAX:
            return ReadRange((), count, size, above=True)
        after = page.after
        if after is None or (wanted.newest and len(items) >= wanted.newest):
            break
    return ReadRange(items[::-1] if wanted.newest else items, count, size)


def is_wanted(wanted: PartRange, item: StoredItem) -> bool:
    """Whether an item counts among the last of its key: others of the prefix, and rows that are absent, do not."""
    return not wanted.newest or (_fields(wanted.key, dict(wanted.fields), item) is not None and bool(image_of(item)))
