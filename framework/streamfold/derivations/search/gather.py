"""The items of documents, read strongly: source items, and the parts of their partitions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from streamfold.derivations.derivation import Work
from streamfold.derivations.partition import child_fields, sort_prefix
from streamfold.derivations.search.document import Part, Parts
from streamfold.derivations.search.options import options_of
from streamfold.engines import Engine, StoredItem
from streamfold.errors import Unprocessable, parts_text
from streamfold.keys.key import Key
from streamfold.records.change import Change, ItemKey, image_of
from streamfold.records.images import Image
from streamfold.records.values import decode
from streamfold.routes.route import SOURCE, Fields, Route

PARTS_MAX = 2_000
"""Parts of one document: a query of so many items of 1 KB takes two pages, and their document 2 MB."""
PARTS_BYTES_MAX = 10_000_000
"""Size of the parts of one document: ten pages of a query (1 MB each; API Reference, Query). An OpenSearch domain takes
requests of 10 MB or 100 MB, by its instance (OpenSearch Service Developer Guide, limits)."""
PAGE_ITEMS = 500
StoredItems = Mapping[ItemKey, StoredItem]


class Root(NamedTuple):
    """An item whose documents are to be led to what the item is now; the changes are what asks for it."""

    route: Route
    item: ItemKey
    fields: Fields
    changes: tuple[Change, ...] = ()

    @property
    def is_new(self) -> bool:
        """Whether no earlier run of the item is likely."""
        return any(change.event == "INSERT" and change.item == self.item for change in self.changes)

    @property
    def place(self) -> str:
        """The item's key for a person."""
        return parts_text(self.item[1:])

    def __str__(self) -> str:
        what = " and its parts" if options_of(self.route).parts else ""
        return f"{self.route.name}: document of {self.place}{what}"


def root_of(work: Work) -> Root:
    """The item whose document a change is of: the item itself, or the parent of a part."""
    if work.role == SOURCE:
        return Root(work.route, work.item, work.fields, tuple(work.changes))
    (source,) = work.route.sources
    fields = {name: work.fields[name] for name in source.types}
    return Root(work.route, (source.table.name, *source.compose(fields)), fields, tuple(work.changes))


class Gathered(NamedTuple):
    """An item as it is, and its parts; the item is empty if there is none."""

    image: Image
    parts: Parts


def known_items(root: Root) -> Iterator[ItemKey]:
    """The items of a document whose keys are known: the source, and parts without fields of their own."""
    yield root.item
    for key in options_of(root.route).parts:
        if set(key.types) <= set(root.fields):
            yield (key.table.name, *key.compose(root.fields))


def gathered(root: Root, engine: Engine, stored: StoredItems) -> Gathered:
    """What a document is made of; ``stored`` has the items that ``known_items`` names.

    Raises ``Unprocessable`` for more parts than one document may have.
    """
    image = image_of(stored.get(root.item))
    options = options_of(root.route)
    if not image or not options.parts:
        return Gathered(image, Parts())
    counted = _Counted(root)
    return Gathered(image, Parts({key: [*_parts(root, key, engine, stored, counted)] for key in options.parts}))


class _Counted:
    """Counts the parts of one document."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.items = self.size = 0

    def add(self, items: Sequence[StoredItem]) -> None:
        self.items += len(items)
        self.size += sum(len(repr(item)) for item in items)
        if self.items > PARTS_MAX or self.size > PARTS_BYTES_MAX:
            raise Unprocessable(
                f"The document of an item would have over {PARTS_MAX} parts or {PARTS_BYTES_MAX} bytes of them: it has "
                f"{self.items} parts and more. Index them one by one, with their parent's key as a field, or keep what "
                "is searched of them in a row of a view, and gather that."
            )


def _parts(root: Root, key: Key, engine: Engine, stored: StoredItems, counted: _Counted) -> Iterator[Part]:
    table = key.table
    for item in _items(root, key, engine, stored, counted):
        sort = decode(item[table.sort]) if table.sort else None
        fields = child_fields(key, root.fields, decode(item[table.partition]), sort)
        image = image_of(item)
        if fields is not None and image:
            yield Part(image, fields)


def _items(root: Root, key: Key, engine: Engine, stored: StoredItems, counted: _Counted) -> Iterator[StoredItem]:
    if set(key.types) <= set(root.fields):
        found = stored.get((key.table.name, *key.compose(root.fields)))
        yield from [found] if found is not None else []
        return
    after, begins = None, sort_prefix(key, root.fields)
    for _ in range(PARTS_MAX):  # each page but the last has an item, and they are counted
        page = engine.page(key.table, root.item[1], begins, after, PAGE_ITEMS)
        counted.add(page.items)
        yield from page.items
        after = page.after
        if after is None:
            return
