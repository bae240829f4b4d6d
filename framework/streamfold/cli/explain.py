"""``streamfold explain`` shows the sources of a row, of derived attributes or of a document, and the rows that handlers
make of an item.
"""

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from streamfold.cli import shell
from streamfold.cli.explain_item import (
    contribution_object,
    contribution_texts,
    explained_object,
    item_lines,
    waiting_lines,
    waiting_records,
)
from streamfold.cli.history import item_of_row
from streamfold.cli.items import (
    command_key,
    item_object,
    item_text,
    made_of_object,
    made_of_text,
    name_text,
    note_absent,
    read_keys,
    text,
    typed_item,
    typed_keys,
    values_text,
)
from streamfold.cli.output import SHOWN_MAX, Grid, Printed, Report, counted
from streamfold.cli.session import Session
from streamfold.derivations.derivation import derivation, deriving_onto_items
from streamfold.derivations.expected import ExplainedRow
from streamfold.errors import SettingsError, joined_key, printable
from streamfold.keys.table import DERIVED, is_writers
from streamfold.lifecycle.explain import Explaining, entry_values, explain_item, time_of
from streamfold.lifecycle.row_sources import Contributor, RowExplained, explain_row, row_routes
from streamfold.lifecycle.unseen import ENTRIES, MISSING
from streamfold.records.change import ItemKey, image_of
from streamfold.records.images import derived_by, hidden
from streamfold.records.values import alike, encode
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.writes.guarded import RowKey


@shell.command(
    "explain",
    "Show the sources of a derived row, or the rows that handlers make of an item.",
    shell.key(required=True),
    shell.STATE_OPTIONS,
    shell.flag("--item", "The key is that of an item which handlers read.", "of_item"),
    shell.value("--index", "INDEX", "PARTITION is the id of a document of this search index."),
    shell.search_url("With --index, the OpenSearch server. Default with --engine dynamodb: STREAMFOLD_SEARCH."),
    shell.flag("--scan", "On DynamoDB, read the whole state to find the items of a row, if needed."),
    shell.value(
        "--parked",
        "LOCATION",
        "With --item, also show its failed records that wait there: a file, a folder, s3://BUCKET/PREFIX or a queue.",
    ),
    shell.belongs("--parked", "--item"),
    shell.refuses(
        "--item", "--scan", why="--scan looks for the items of a row, and --item names one: give one of them."
    ),
    shell.belongs("--search-url", "--index"),
    shell.refuses(
        "--index",
        *("--item", "--scan", "SORT"),
        why="--index names a document by its id: leave out SORT, --item and --scan.",
    ),
    shell.json_flag("Print one JSON object, values in DynamoDB JSON."),
    checks=True,
)
def explain(opened: Session) -> Report:
    """Show the contributions to the derived row with the key PARTITION and SORT: the handler, item, version and amounts
    of each, their sum, and the row.

    For an item with derived attributes, show each handler with the items that the attributes are made of. For a row of
    a feed, show its post and its edge, with the versions that the row was made of. With --index, show the item and the
    parts that the document with the id PARTITION is made of, and the number of the run that wrote it.

    With --item, compare the rows that each handler makes of an item now with the rows that the state holds of it, and
    name the items that it refers to and its parts, and backlinks and wakes that the state lacks. Of a part, show the
    roots that gather it; of an item that others look up, show these. Of a handler without rows in the state, show what
    it did for the item's newest change that the state knows: whether it was applied or called, and the id of its
    message.

    With --item and --parked, show each record of the item that waits to be redriven: its sequence number, the handler,
    the error, and the id of the request that failed, by which the log of the function is searched.

    If a handler owns the row, the row's key names the item. For Max, Top and similar aggregates, and for unique rows,
    the entries below the row name the items. All other items are found by reading the whole state: a local state is
    always read, a state on DynamoDB only with --scan, which costs a scan of the state table.

    A row is compared with its contributions, with the entries below it, and these with what the handlers make of the
    items now: code that aggregates otherwise makes another row.

    The version is that of the change that led to the contribution. A version from Kinesis contains the time.

    Additions to shared rows may wait in deltas: of a row, what is pending is shown, and the row with it is compared. Of
    an item, each delta of its last steps is shown: pending, refused by a row with the reason, or gone.

    \b
    Exit codes:
      0  the row agrees with the contributions of its items, and these with the items; the state agrees with the item
      1  it does not agree, or some items were not found without --scan, or a handler raises, or a record waits
      2  the command did not run: an option, the application or the store is wrong

    \b
    Examples:
      streamfold explain SALES#2026-03-01 SKU#a
      streamfold explain --item ORDER#1042 METADATA --json
      streamfold explain --item ORDER#1042 METADATA --parked s3://shop-failures/ --engine dynamodb --table main=shop
      streamfold explain 'PRODUCT#1|META' --index products
      streamfold explain SALES#2026-03-01 SKU#a --scan --engine dynamodb --table main=shop
    """
    given, by = opened.given, opened.explaining
    partition, sort, scan = given.partition, given.sort, given.scan or opened.local is not None
    if given.index is not None:
        from streamfold.cli.documents import document_report

        return document_report(opened)
    if given.of_item:
        item = typed_item(by.app, by.app.routes, partition, sort)
        found = explain_item(by, item)
        note_absent(by.engine, item)
        differs = any(each.agrees is False or each.error is not None for each in found)
        lines, shown_object = item_lines(by, item, found), explained_object(by, item, found)
        if given.parked is None:
            return Report(lines, shown_object, differs)
        waiting = waiting_records(opened, item)
        shown_object["waiting"] = {**waiting._asdict(), "records": [each._asdict() for each in waiting.records]}
        return Report(chain(lines, waiting_lines(waiting)), shown_object, differs or bool(waiting.records))
    if (found_row := explained_row(by, partition, sort)) is not None:
        return Report(_explained_lines(found_row), _explained_object(by.app, found_row), not found_row.agrees)
    if (shown := item_shown(by, partition, sort, scan=scan)) is not None:
        differs = not all(each.agrees for each in shown.attributes)
        return Report(_shown_lines(by, shown), _shown_object(by, shown), differs)
    row = explain_row(by, _row(by, partition, sort), scan=scan)
    return Report(_row_lines(by, row), _row_object(by, row), not row.agrees)


def _row(by: Explaining, partition: str, sort: str | None) -> RowKey:
    """The key of the row. Raises ``SettingsError`` unless exactly one row with contributions can have this key."""
    app, name = by.app, joined_key((partition, sort))
    found = typed_keys([key for route in app.routes for key in route.into], partition, sort)
    explainable = [row for row in found if row_routes(by, row)]
    if len(explainable) == 1:
        return explainable[0]
    if explainable:
        tables = " and ".join(row[0] for row in explainable)
        raise SettingsError(f"Tables {tables} may have a row {name}: explain one of its items, --item.")
    if found:
        writers = [route for route in app.routes if found[0] in typed_keys(route.into, partition, sort)]
        kinds = ", ".join(f"{route.name!r} of kind {route.kind}" for route in writers)
        item = item_of_row(app, found[0])
        more = f" Next: streamfold history {command_key(item)} shows all changes of its item." if item else ""
        raise SettingsError(
            f"The row {name} is written by handler {kinds}: the state keeps no contributions to it.{more}"
        )
    if typed_keys(read_keys(app.routes), partition, sort):
        raise SettingsError(f"{name} is the key of an item, and of no derived row: explain it with --item.")
    templates = ", ".join(dict.fromkeys(key.template for route in app.routes for key in route.into))
    raise SettingsError(f"No handler writes a row {name}: expected PARTITION and SORT of {templates}.")


def _row_lines(by: Explaining, found: RowExplained) -> Iterator[Printed]:
    """The contributions to a row, their sum, and whether the row agrees with the sum."""
    yield item_text(found.row)
    yield from _contribution_lines(by, found)
    yield f"\n{_sum_text(found)}"
    if found.stored is None:
        yield "row  there is none"
    else:
        keys = by.app.tables[found.row[0]].attributes
        shown = {name: value for name, value in found.stored.items() if name not in keys and not hidden(name)}
        yield f"row  {_contributions_text(found.counted, shown)}"
    if found.pending is not None:
        waiting = _contributions_text(found.pending.contributors, found.pending.amounts)
        yield f"pending  {waiting}  in {counted(found.pending.deltas, 'delta')}"
        yield from (printable(f"refused  {why}") for why in found.pending.refused)
    yield _verdict(found)


def _contribution_lines(by: Explaining, found: RowExplained) -> Iterator[Printed]:
    """The first contributions to a row: handler, item, version and amounts of each."""

    def cells(each: Contributor) -> list[str]:
        item = item_text(each.item) if each.item is not None else f"(a long key: {name_text(each.key.pk)})"
        entries = entry_values(by, each.route, each.item, found.row, each.contribution)
        return [
            each.route.name,
            item,
            each.version,
            "  ".join(contribution_texts(each.contribution, entries, each.contribution)),
        ]

    if found.contributors:
        yield Grid(("handler", "item", "version", "adds"), map(cells, found.contributors[:SHOWN_MAX]))
    if (hidden_count := len(found.contributors) - SHOWN_MAX) > 0:
        yield f"... and {hidden_count:,} more; --json has them all."


def _contributions(by: Explaining, found: RowExplained) -> list[dict[str, Any]]:
    """All contributions to a row as JSON."""
    return [
        {
            "handler": each.route.name,
            "item": None if each.item is None else item_object(by.app, each.item),
            "version": each.version,
            "at": time_of(each.version),
            **contribution_object(by, each.route, each.item, found.row, each.contribution),
        }
        for each in found.contributors
    ]


def _sum_text(found: RowExplained) -> str:
    return f"sum  {_contributions_text(len(found.contributors), found.sums)}"


def _contributions_text(number: int, values: Mapping[str, Any]) -> str:
    return f"{counted(number, 'contribution')}{'  ' * bool(values)}{values_text(dict(sorted(values.items())))}"


def _verdict(found: RowExplained) -> str:
    if is_writers(found.stored):
        items = counted(len(found.contributors), "item")
        return (
            f"An item of the application itself is there, without the mark of a row: no handler changes it. {items} "
            "would make the row."
        )
    if not found.complete:
        known = f"{len(found.contributors):,} of {found.counted_in_time:,} contributions are known"
        return f"Only {known} without reading the whole state: --scan reads it."
    if found.stored is None and not found.contributors:
        return "There is no such row, and no item contributes to it."
    retired = (
        f" Retired handlers left {', '.join(map(name_text, sorted(found.retired_names)))} in it."
        if found.retired_names
        else ""
    )
    row_of = "row" if found.pending is None else "row with what is pending"
    outdated = _outdated_text(found) if found.outdated else ""
    if found.adds_up:
        verb = "contributed" if outdated else "contribute"
        return f"The {row_of} is what its items {verb}.{retired}{outdated}"
    row, expected = (
        {name: "nothing" if sides[side] is None else text(sides[side]) for name, sides in found.differing.items()}
        for side in (0, 1)
    )
    wrong = [f"{name_text(name)} is {row[name]}, expected {expected[name]}" for name in row]
    if not found.counts_agree:
        wrong.insert(
            0, f"it counts {counted(found.counted_in_time, 'contribution')}, expected {len(found.contributors):,}"
        )
    if found.lacking:
        number = "1 entry below it is" if found.lacking == 1 else f"{found.lacking:,} entries below it are"
        wrong.append(f"{number} missing or wrong")
    if found.unseen:
        wrong.append(unseen_text(found.unseen))
    return f"The {row_of} is not what its items contribute: {'; '.join(wrong)}.{retired}{outdated}"


def _outdated_text(found: RowExplained) -> str:
    first = next((item_text(each.item) for each in found.outdated if each.item is not None), "")
    return (
        f" {len(found.outdated):,} of {counted(len(found.contributors), 'contribution')} are not what the handlers "
        f"make of the items now, first of {first}: streamfold explain --item shows how; streamfold rebuild, or "
        "repair, derives them again."
    )


def unseen_text(unseen: Mapping[str, tuple[Any, Any]]) -> str:
    """What differs of a row and no reader sees, each with both values; of entries, the name of their attribute."""
    if all(sides == (MISSING, None) for sides in unseen.values()):
        return "entries below it are missing"

    def one(name: str, sides: tuple[Any, Any]) -> str:
        if name.startswith(ENTRIES):
            return f"{name_text(name)} below it are {'missing' if sides[0] == MISSING else 'wrong'}"
        stored, expected = ("nothing" if side is None else text(side) for side in sides)
        return f"{name_text(name)} is {stored}, expected {expected or 'one'}"

    return "; ".join(one(*each) for each in sorted(unseen.items()))


def unseen_object(unseen: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
    """The same as JSON: the name of each, with both values, which are null where nothing is, and for entries."""
    encoded = {name: [None if value is None else encode(value) for value in sides] for name, sides in unseen.items()}
    return {name: {"row": stored, "expected": expected} for name, (stored, expected) in encoded.items()}


def _row_object(by: Explaining, found: RowExplained) -> dict[str, Any]:
    pending = found.pending and {
        "deltas": found.pending.deltas,
        "contributors": found.pending.contributors,
        "adds": encode(dict(found.pending.amounts))["M"],
        "refused": list(found.pending.refused),
    }
    return {
        "row": item_object(by.app, found.row),
        "attributes": None if found.stored is None else encode(dict(found.stored))["M"],
        "contributions": _contributions(by, found),
        "sums": encode(found.sums)["M"],
        "counted": found.counted,
        "agrees": found.agrees,
        "whole": found.complete,
        "missing_entries": found.lacking,
        "outdated": len(found.outdated),
        **({"unseen": unseen_object(found.unseen)} if found.unseen else {}),
        "left_by_retired": sorted(found.retired_names),
        **({} if pending is None else {"pending": pending}),
        "differing": {name: {"row": encode(row), "sum": encode(sum_)} for name, (row, sum_) in found.differing.items()},
    }


def explained_row(by: Explaining, partition: str, sort: str | None) -> ExplainedRow | None:
    """The row with this typed key that a kind makes of several items; None for another key."""
    typed = ((route, row) for route in by.app.routes for row in typed_keys(route.into, partition, sort))
    found = (derivation(route).explained(route, row, by.engine) for route, row in typed)
    return next((each for each in found if each is not None), None)


def _explained_lines(found: ExplainedRow) -> Iterator[Printed]:
    """The items that a row is made of, and whether it shows them."""
    where = "is a row of" if found.exists else "would be a row of"
    yield f"{item_text(found.row)} {where} {found.route.kind} {found.route.name!r}, made of:"
    for each in found.made_of:
        absent = "" if each.exists else ", which does not exist now"
        yield f"  {each.role}  {made_of_text(each, ', at')}{absent}"
    if not found.exists:
        pulls = " or its author is pulled," if found.may_be_pulled else ""
        yield f"There is no such row: an item of it does not exist, it expired,{pulls} or the handler makes none."
    elif not found.is_complete:
        yield "One of them is gone: streamfold repair --key corrects the row."
    else:
        yield "Both items exist."
    if found.exists and found.differing:
        yield f"The handler makes another row of them now: {unseen_text(found.differing)}."


def _explained_object(app: Application, found: ExplainedRow) -> dict[str, Any]:
    return {
        "row": item_object(app, found.row),
        "kind": str(found.route.kind),
        "handler": found.route.name,
        "exists": found.exists,
        "made_of": [made_of_object(app, each) for each in found.made_of],
        "agrees": found.agrees,
        **({"differing": unseen_object(found.differing)} if found.differing else {}),
    }


class DerivedAttributes(NamedTuple):
    """The attributes that one handler derives onto an item."""

    route: Route
    stored: RowExplained  # the attributes before they are copied onto the item, with the items that they are made of
    expected: Mapping[str, Any]  # the attributes that the item should show
    shown: Mapping[str, Any]  # the attributes of the handler that the item shows

    @property
    def agrees(self) -> bool:
        """Whether the stored attributes are what their items contribute, and the item shows them."""
        names = self.expected.keys() | self.shown.keys()
        return self.stored.agrees and all(alike(self.expected.get(name), self.shown.get(name)) for name in names)


class ItemShown(NamedTuple):
    """An item with derived attributes."""

    item: ItemKey
    exists: bool
    attributes: list[DerivedAttributes]


def item_shown(by: Explaining, partition: str, sort: str | None, *, scan: bool) -> ItemShown | None:
    """The item with this typed key onto which handlers derive attributes; None for another key or no attributes."""
    own = deriving_onto_items(by.app.routes)
    items = typed_keys([stored.of for _, stored in own], partition, sort)
    if not items:
        return None
    item = items[0]
    image = by.engine.read_source(item) or {}
    marks = derived_by(image) if DERIVED in image else {}
    shown = image_of(image)
    found: list[DerivedAttributes] = []
    for route, stored in own:
        if stored.of.takes(item):
            explained = explain_row(by, stored.row(item[1:]), scan=scan)
            mine = {name: shown[name] for name, whose in marks.items() if whose == stored.whose and name in shown}
            expected = stored.shown(explained.stored) if image else {}
            found.append(DerivedAttributes(route, explained, expected, mine))
    if not image and not any(each.stored.contributors for each in found):
        return None  # neither the item nor a contribution to its attributes exists
    return ItemShown(item, bool(image), found)


def _shown_lines(by: Explaining, found: ItemShown) -> Iterator[Printed]:
    absent = "" if found.exists else "; it does not exist now"
    yield f"{item_text(found.item)} is an item with derived attributes{absent}"
    for each in found.attributes:
        yield f"\n{each.route.name} ({each.route.kind})  {values_text(dict(sorted(each.shown.items()))) or 'nothing'}"
        yield from _contribution_lines(by, each.stored)
        yield _sum_text(each.stored)
        if not each.stored.complete:
            yield "Not all of its sources are known without reading the whole state: --scan reads it."
        elif each.agrees:
            yield "The item shows what its items contribute."
        else:
            yield "The item does not show what its items contribute: streamfold verify compares them."


def _shown_object(by: Explaining, found: ItemShown) -> dict[str, Any]:
    handlers = [
        {
            "handler": each.route.name,
            "shown": encode(dict(each.shown))["M"],
            "contributions": _contributions(by, each.stored),
            "sums": encode(each.stored.sums)["M"],
            "whole": each.stored.complete,
            "agrees": each.agrees,
        }
        for each in found.attributes
    ]
    return {"item": item_object(by.app, found.item), "kind": "attributes", "exists": found.exists, "handlers": handlers}


def other_things(by: Explaining, partition: str, sort: str | None, *, scan: bool) -> Iterator[str]:
    """A line for a row of a feed, and for each handler's derived attributes, with this typed key.

    ``scan``: the whole state is read.
    """
    if (found := explained_row(by, partition, sort)) is not None and found.exists:
        sides = " and ".join(f"{each.role} {made_of_text(each)}" for each in found.made_of)
        yield f"{item_text(found.row)} is a row of {found.route.kind} {found.route.name!r}, made of {sides}."
    if (item := item_shown(by, partition, sort, scan=scan)) is not None and item.exists:
        for each in item.attributes:
            names = ", ".join(map(name_text, each.shown)) or "nothing"
            of = ", ".join(
                f"{item_text(one.item) if one.item else 'a long key'} at version {name_text(one.version)}"
                for one in each.stored.contributors[:3]
            )
            more = ", ..." if len(each.stored.contributors) > 3 or not each.stored.complete else ""
            yield (
                f"{item_text(item.item)} is an item, onto which {each.route.name!r} derives {names}"
                f"{f', made of {of}{more}' if of or more else ''}: streamfold explain shows more."
            )
