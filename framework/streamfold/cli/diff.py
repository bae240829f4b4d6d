"""``streamfold diff`` shows the rows that changed code would make different, before the code is deployed."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from streamfold.app import App
from streamfold.cli import shell
from streamfold.cli.items import item_object, item_text, name_text, row_object, row_text, text
from streamfold.cli.old_code import OldCode, opened_code
from streamfold.cli.output import SHOWN_MAX, Grid, Note, Printed, Report, item_progress, note
from streamfold.cli.session import Session, default_application
from streamfold.derivations import names_with
from streamfold.errors import SettingsError, printable
from streamfold.lifecycle.diff import NEW, OLD, CodeDiff, HandlerDiff, RaisedItems, RowChange
from streamfold.lifecycle.sources import pages, wanted_routes
from streamfold.records.values import decode
from streamfold.routes.route import Route
from streamfold.runtime import MICROSECONDS

SAMPLE_ITEMS = 1_000
PAGE_ITEMS = 100
"""Items that are given to the other process at once, and whose ordered values are compared together."""
TOGETHER = "(of several items)"
"""Behind a value that is not of one item alone."""


@shell.command(
    "diff",
    "Show which rows changed code would make different.",
    shell.HANDLERS,
    shell.value(
        "--old",
        "MODULE:NAME@PLACE",
        "The old application: in a revision of the current git repository, or in a folder, ./FOLDER.",
        required=True,
    ),
    shell.value(
        "--new",
        "MODULE:NAME",
        "The new application, imported from the current folder.",
        "application",
        default=default_application,
        envvar="STREAMFOLD_APP",
        show_default=shell.SHOWN_DEFAULT,
        show_envvar=True,
    ),
    shell.number("--sample", "About so many items, in random parts of the tables.", 1, default=SAMPLE_ITEMS),
    shell.STATE,
    shell.STORE,
    shell.json_flag("Print one JSON object, values in DynamoDB JSON."),
    checks=True,
    kinds=names_with("contributes"),
)
def diff(opened: Session) -> Report:
    """Show the rows and attributes that the new code would make different from the old code, side by side, on a sample
    of the items. Default: all handlers of the new code of kind KINDS. Items that either version looks up are read for
    both.

    Items are read, and nothing is written: no row, and no state. If several items add to a row, the contribution of one
    item is shown. Values that are ordered, as of Max, Top, your own aggregates and unique rows, are also compared for
    up to 100 items together, and so is how they are ordered: of one item alone, Max and Min show the same. Handlers
    that raise are counted by type of error, with the key of one item.

    The old code runs in a process and a folder of its own, with the packages and the streamfold that are installed
    here. A revision is laid out by git archive.

    \b
    Exit codes:
      0  the new code makes the same rows of the sample
      1  it makes other rows, or a handler of it raises
      2  the command did not run: an option, one of the applications, git or the store is wrong

    \b
    Examples:
      streamfold diff --old handlers:app@main
      streamfold diff daily_sales --old handlers:app@v1.4 --sample 10000 --engine dynamodb --table main=shop
      streamfold diff --old handlers:app@../shop-before --json
    """
    given = opened.given
    if "@" in given.application:
        raise SettingsError(
            f"--new {given.application!r}: expected MODULE:NAME in the current folder; --old takes a revision too."
        )
    app, by, code = opened.app, opened.explaining, opened.stack.enter_context(opened_code(given.old))
    routes = _routes(app, given.handlers)
    _note_sides(app, code, routes)
    at, names = opened.runtime.moment / MICROSECONDS, [route.name for route in routes]  # one time for both sides
    found = CodeDiff(by.app, by.engine, by.schema, names, partial(code.rows, at_seconds=at), at)
    wanted = opened.keys(routes).sources(given.sample, Random()) if routes else iter(())  # noqa: S311 - a sample
    with item_progress("comparing", given.sample, shown=not given.json_output) as advance:
        for page in pages(wanted, PAGE_ITEMS):
            advance(found.page(page))
    return Report(_lines(found), lambda: _object(app, code, found), found.differs)


def _routes(app: App, names: Sequence[str]) -> list[Route]:
    """The handlers to compare. Raises ``SettingsError`` for a named one that makes no rows of items alone."""
    routes = wanted_routes(app, dict.fromkeys(names))
    for route in routes:
        if names and not route.kind.contributes:
            raise SettingsError(
                f"Handler {route.name!r} is of kind {route.kind}: it makes no rows that could be compared here. "
                f"Expected one of kind {names_with('contributes')}."
            )
    return [route for route in routes if route.kind.contributes]


def _note_sides(app: App, code: OldCode, routes: Sequence[Route]) -> None:
    """Prints the handlers that only one side has, and the code that both sides share."""
    if code.application != app.name:
        raise SettingsError(
            f"The old code is of application {code.application!r}, and the new one of {app.name!r}: expected "
            "one application."
        )
    declared = {route.name for route in app.routes}
    for name in code.handlers:
        if name not in declared:
            note(f"Handler {name!r} is in the old code only: it is left out.")
    for route in routes:
        if route.name not in code.handlers:
            note(f"Handler {route.name!r} is in the new code only: all of its rows are new.")
        if route.name in code.optional and not route.optional:
            note(
                f"The old code calls handler {route.name!r} without its item too (optional=True): the rows of absent "
                "items, which go, are not compared."
            )
    for name in code.elsewhere:
        note(f"Handler {name!r} of the old code is outside its folder: both sides run the same code for it.")


def _lines(found: CodeDiff) -> Iterator[Printed]:
    """Rows side by side, counts by handler, and at the end what fails: the errors of the new code last."""
    if found.changes:
        cells = (line for change in found.changes[:SHOWN_MAX] for line in _cells(change))
        yield Grid(("handler", "item", "row", "attribute", OLD, NEW), cells)
        if (hidden := len(found.changes) - SHOWN_MAX) > 0:
            yield f"... and {hidden:,} more rows; --json has them."
        yield ""
    yield from (f"{name}: {_counts(counts)}" for name, counts in found.found.items())
    yield f"{found.items:,} items were compared."
    for side, raised in found.raised.items():
        for each in raised.values():
            first = f"first on {item_text(each.item)}: {printable(each.error.message)}"
            yield Note(f"The {side} {each.handler!r} raises {each.error.type} on {each.items:,} items, {first}")


def _cells(change: RowChange) -> Iterator[list[str]]:
    yield from ([change.handler, item_text(change.item), *cells] for cells in attribute_cells(change))


def attribute_cells(change: RowChange) -> Iterator[list[str]]:
    """Row, name and both values of each attribute that differs; one line for a row without attributes."""

    def side(row: Mapping[str, Any] | None, name: str) -> str:
        if row is None:
            return "(no row)"
        return text(decode(row[name])) if name in row else ""

    for name in change.attributes or [""]:
        old, new = side(change.old, name), side(change.new, name)
        if old == new and (together := change.together(name)) is not None:
            old, new = ("" if value is None else f"{text(decode(value))} {TOGETHER}" for value in together)
        elif old == new and name:
            old, new = _made_text(change, name, old)
        yield [row_text(change.row), name_text(name), old, new]


def _made_text(change: RowChange, name: str, value: str) -> tuple[str, str]:
    """A value that both sides show of one item, with how each side orders the values of several."""
    orderings = change.orderings(name)
    if orderings[0] == orderings[1]:
        return value, f"{value} (ordered by another value)"
    old, new = (f"{value} ({each})" if each else value for each in orderings)
    return old, new


def _counts(counts: HandlerDiff) -> str:
    if not counts.changed:
        return f"{counts.items:,} items, all the same"
    return f"{counts.changed:,} of {counts.items:,} items change: {rows_text(counts)}"


def rows_text(counts: HandlerDiff) -> str:
    """How many rows differ, and in which attributes."""
    attributes = ", ".join(f"{name_text(name)} in {rows:,}" for name, rows in counts.attributes.most_common())
    rows = f"{counts.other:,} rows otherwise, {counts.more:,} more, {counts.fewer:,} fewer"
    return f"{rows}; {attributes or 'no attributes'}"


def _object(app: App, code: OldCode, found: CodeDiff) -> dict[str, Any]:
    def counts(each: HandlerDiff) -> dict[str, Any]:
        rows = {"other": each.other, "more": each.more, "fewer": each.fewer}
        return {"items": each.items, "changed": each.changed, "rows": rows, "attributes": dict(each.attributes)}

    def change(each: RowChange) -> dict[str, Any]:
        sides: dict[str, Any] = {"attributes": each.attributes, OLD: each.old, NEW: each.new}
        made = {name: each.orderings(name) for name in each.attributes if any(each.orderings(name))}
        if made and each.old is not None and each.new is not None:
            sides["orderings"] = {name: {OLD: old, NEW: new} for name, (old, new) in made.items()}
        return {**item_object(app, each.item), "handler": each.handler, "row": row_object(app, each.row), **sides}

    def raised(each: RaisedItems) -> dict[str, Any]:
        error = {"error": each.error.type, "message": each.error.message}
        return {"handler": each.handler, **error, "items": each.items, "first": item_object(app, each.item)}

    return {
        "application": app.name,
        "old": code.location,
        "items": found.items,
        "handlers": {name: counts(each) for name, each in found.found.items()},
        "changes": list(map(change, found.changes)),
        "raised": {side: list(map(raised, each.values())) for side, each in found.raised.items()},
    }
