"""What a key names that no sum of contributions explains: a row of a feed, an item with derived attributes, a document.

Each is explained by the handler that made it, the items that it was made of, and their versions.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from streamfold.cli.explained import contributions_grid, contributions_report, sum_text
from streamfold.cli.grids import print_grid
from streamfold.cli.items import item_object, item_text, typed_keys
from streamfold.cli.output import echo
from streamfold.cli.rows import name_text, text
from streamfold.derivations.attributes.kind import stored_of
from streamfold.derivations.attributes.write_back import shown_by
from streamfold.derivations.feed.kind import feed_routes
from streamfold.derivations.feed.kind import options_of as feed_options
from streamfold.derivations.search.documents import gathered, known_items
from streamfold.derivations.search.indexes import SearchIndex
from streamfold.derivations.search.maintenance import Comparing, root_of
from streamfold.derivations.search.options import options_of as search_options
from streamfold.derivations.search.sink import Sink
from streamfold.engines import Engine
from streamfold.errors import printable
from streamfold.keys.table import DERIVED, PARTNER_VERSION, VERSION
from streamfold.ledger.state_keys import document_key
from streamfold.lifecycle.explain import Explaining
from streamfold.lifecycle.row_sources import RowExplained, explain_row
from streamfold.records.change import ItemKey, image_of
from streamfold.records.images import derived_by
from streamfold.records.values import alike, encode
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.settings import Settings
from streamfold.writes.guarded import RowKey

NO_VERSION = "-"


class MadeOf(NamedTuple):
    """An item that something was made of: what it is to its handler, its version then, and whether it is there now."""

    role: str
    item: ItemKey
    version: str | None  # None: not known
    exists: bool


class FeedRow(NamedTuple):
    """A row of a feed, with the post and the edge that its key names."""

    route: Route
    row: RowKey
    exists: bool
    made_of: tuple[MadeOf, MadeOf]

    @property
    def agrees(self) -> bool:
        """Whether both items of a row that is there are there too."""
        return not self.exists or feed_options(self.route).keeps or all(each.exists for each in self.made_of)


def feed_row(app: Application, engine: Engine, partition: str, sort: str | None) -> FeedRow | None:
    """The row of a feed with this typed key; None for a key of no feed."""
    for route in feed_routes(app):
        into = route.into[0]
        for row in typed_keys([into], partition, sort):
            fields = into.match_values(*row[1:]) or {}
            stored = engine.read_rows([row]).get(row)
            sides = (("post", route.sources[0], VERSION), ("edge", feed_options(route).audience, PARTNER_VERSION))
            post, edge = (
                MadeOf(role, item, (stored or {}).get(version), bool(image_of(engine.read_source(item))))
                for role, key, version in sides
                for item in [(key.table.name, *key.compose(fields))]
            )
            return FeedRow(route, row, stored is not None, (post, edge))
    return None


def print_feed_row(found: FeedRow, *, err: bool = False) -> None:
    """Prints what a row of a feed was made of."""
    where = "is a row of" if found.exists else "would be a row of"
    echo(f"{item_text(found.row)} {where} feed {found.route.name!r}, made of:", err=err)
    for each in found.made_of:
        there = "" if each.exists else ", which is not there now"
        echo(
            f"  {each.role}  {item_text(each.item)}, at version {name_text(each.version or NO_VERSION)}{there}", err=err
        )
    if found.exists:
        said = "Both items are there." if found.agrees else "An item of it is gone: streamfold repair --key leads it."
    else:
        pulls = " or its author is pulled," if feed_options(found.route).pull_above is not None else ""
        said = f"There is no such row: an item of it is not there, it expired,{pulls} or the handler makes none."
    echo(said, err=err)


def feed_row_report(app: Application, found: FeedRow) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "row": item_object(app, found.row),
        "kind": "feed",
        "handler": found.route.name,
        "exists": found.exists,
        "made_of": [_made_of(app, each) for each in found.made_of],
        "agrees": found.agrees,
    }


class DerivedAttributes(NamedTuple):
    """What one handler derives onto an item."""

    route: Route
    stored: RowExplained  # the attributes before they are copied onto the item, with the items that they are made of
    expected: Mapping[str, Any]  # what the item is to show
    shown: Mapping[str, Any]  # what the item shows of that

    @property
    def agrees(self) -> bool:
        """Whether the stored attributes are what their items contribute, and the item shows them."""
        names = self.expected.keys() | self.shown.keys()
        alike_all = all(alike(self.expected.get(name), self.shown.get(name)) for name in names)
        return self.stored.agrees and alike_all


class ItemShown(NamedTuple):
    """An item with derived attributes."""

    item: ItemKey
    exists: bool
    attributes: list[DerivedAttributes]


def bearer(by: Explaining, partition: str, sort: str | None, *, scan: bool) -> ItemShown | None:
    """The item with this typed key that handlers derive attributes onto; None for another key, and where nothing is."""
    own = [(route, stored) for route in by.app.routes if (stored := stored_of(route)) is not None]
    items = typed_keys([stored.of for _, stored in own], partition, sort)
    if not items:
        return None
    item = items[0]
    image = by.engine.read_source(item) or {}
    marks = derived_by(image) if DERIVED in image else {}
    shown = image_of(image)
    found: list[DerivedAttributes] = []
    for route, stored in own:
        if stored.of.table.name != item[0] or stored.of.match_values(*item[1:]) is None:
            continue
        explained = explain_row(by, stored.row(item[1:]), scan=scan)
        mine = {name: shown[name] for name, whose in marks.items() if whose == stored.whose and name in shown}
        expected = shown_by(explained.stored) if image else {}
        found.append(DerivedAttributes(route, explained, expected, mine))
    if not image and not any(each.stored.contributors for each in found):
        return None  # neither the item is there, nor anything that is derived onto it
    return ItemShown(item, bool(image), found)


def print_bearer(by: Explaining, found: ItemShown) -> None:
    """Prints the derived attributes of an item, handler by handler."""
    echo(f"{item_text(found.item)} is an item with derived attributes{'' if found.exists else '; it is not there now'}")
    for each in found.attributes:
        values = "  ".join(f"{name_text(name)}={text(value)}" for name, value in sorted(each.shown.items()))
        echo(f"\n{each.route.name} ({each.route.kind})  {values or 'nothing'}")
        contributions_grid(by, each.stored)
        echo(f"sum  {sum_text(len(each.stored.contributors), each.stored.sums)}")
        if not each.stored.whole:
            echo("Not all items that it is made of are known without reading all of the state: --scan does.")
        elif each.agrees:
            echo("The item shows what its items contribute.")
        else:
            echo("The item does not show what its items contribute: streamfold verify compares them.")


def bearer_report(by: Explaining, found: ItemShown) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "item": item_object(by.app, found.item),
        "kind": "attributes",
        "exists": found.exists,
        "handlers": [
            {
                "handler": each.route.name,
                "shown": encode(dict(each.shown))["M"],
                "contributions": contributions_report(by, each.stored),
                "sums": encode(each.stored.sums)["M"],
                "whole": each.stored.whole,
                "agrees": each.agrees,
            }
            for each in found.attributes
        ],
    }


class DocumentMade(NamedTuple):
    """A document, with the item that its id names and the parts of it."""

    place: SearchIndex
    id: str
    version: int | None  # the number of the run that wrote it; None: the index has no such document
    run: int | None  # the number of the item's last run, as the state has it
    made_of: Sequence[MadeOf]
    differences: Sequence[str]  # different, missing, ghost
    error: Exception | None = None  # of the handler


def document(
    app: Application, engine: Engine, sink: Sink, index: SearchIndex, name: str, settings: Settings
) -> DocumentMade:
    """The document of an index with this id."""
    found = sink.read(index.alias, [name]).get(name)
    version = found.version if found else None
    root = root_of(index.route, name)
    if root is None:
        return DocumentMade(index, name, version, None, (), ())
    key = document_key(app.name, index.route.name, root.item)
    counter = engine.read_state([key], consistent=True).get(key)
    stored = engine.read_sources(dict.fromkeys(known_items(root)))
    gathered_now = gathered(root, engine, stored)
    made_of = [MadeOf("item", root.item, None, bool(gathered_now.image))]
    made_of += [
        MadeOf("part", (key.table.name, *key.compose({**root.fields, **each.key})), None, True)
        for key in (search_options(root.route).parts if gathered_now.image else ())
        for each in gathered_now.parts(key)
    ]
    compared = Comparing(app.name, engine, sink, index.alias, settings).compare([root], {root.item: [name]})
    wrong = [what for shown in compared.shown for what, other in shown.differences() if other == name]
    error = compared.failed[0][1] if compared.failed else None
    return DocumentMade(index, name, version, int(counter["n"]) if counter else None, made_of, wrong, error)


def print_document(found: DocumentMade) -> None:
    """Prints what a document was made of, and whether it is what its handler makes now."""
    what = "is a document" if found.version is not None else "would be a document"
    echo(f"{name_text(found.id)} {what} of index {found.place.alias}, made by search {found.place.route.name!r}")
    if found.version is not None:
        echo(f"  version  {found.version}, the number of the run that wrote it")
    if not found.made_of:
        echo("Its id does not name its item: it was cut, or is no id of this search.")
        return
    echo(f"  run      {found.run if found.run is not None else 'none'}, the last of its item in the state")
    lines = [[each.role, item_text(each.item), "" if each.exists else "not there now"] for each in found.made_of]
    print_grid(("", "made of", ""), lines)
    if found.error is not None:
        echo(printable(f"The handler raises {type(found.error).__name__}: {found.error}"))
    elif found.differences:
        echo(f"It is {found.differences[0]}: streamfold search verify --repair mends it.")
    elif found.version is None:
        echo("There is no such document, and its handler makes none.")
    else:
        echo("The document is what its handler makes of the item now.")


def document_report(app: Application, found: DocumentMade) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "document": found.id,
        "kind": "search",
        "index": found.place.alias,
        "handler": found.place.route.name,
        "version": found.version,
        "run": found.run,
        "made_of": [_made_of(app, each) for each in found.made_of],
        "differences": list(found.differences),
        "error": None if found.error is None else f"{type(found.error).__name__}: {found.error}",
    }


def other_things(by: Explaining, partition: str, sort: str | None, *, scan: bool) -> Iterator[str]:
    """What a typed key names beside rows that a sum explains, a line each. ``scan``: the whole state is read."""
    if (found := feed_row(by.app, by.engine, partition, sort)) is not None and found.exists:
        sides = " and ".join(
            f"{each.role} {item_text(each.item)} at version {name_text(each.version or NO_VERSION)}"
            for each in found.made_of
        )
        yield f"{item_text(found.row)} is a row of feed {found.route.name!r}, made of {sides}."
    if (item := bearer(by, partition, sort, scan=scan)) is not None and item.exists:
        for each in item.attributes:
            names = ", ".join(map(name_text, each.shown)) or "nothing"
            of = ", ".join(
                f"{item_text(one.item) if one.item else 'a long key'} at version {name_text(one.version)}"
                for one in each.stored.contributors[:3]
            )
            more = ", ..." if len(each.stored.contributors) > 3 or not each.stored.whole else ""
            yield (
                f"{item_text(item.item)} is an item, onto which {each.route.name!r} derives {names}"
                f"{f', made of {of}{more}' if of or more else ''}: streamfold explain shows more."
            )


def _made_of(app: Application, each: MadeOf) -> dict[str, Any]:
    return {
        "role": each.role, "item": item_object(app, each.item), "version": each.version, "exists": each.exists
    }  # fmt: skip
