"""What a comparison of two versions of the code prints: rows side by side, and as JSON."""

from collections.abc import Iterator, Mapping
from typing import Any

from streamfold.app import App
from streamfold.cli.grids import print_grid
from streamfold.cli.items import item_object, item_text, row_object, row_text
from streamfold.cli.old_code import OldCode
from streamfold.cli.output import echo
from streamfold.cli.rows import name_text, text
from streamfold.errors import printable
from streamfold.lifecycle.diff import NEW, OLD, CodeDiff, HandlerDiff, RaisedItems, RowChange
from streamfold.records.values import decode

SHOWN_MAX = 100
"""Rows for a person; ``--json`` has more."""


def print_diff(found: CodeDiff) -> None:
    """Prints rows side by side, what raises, and counts by handler."""
    lines = (line for change in found.changes[:SHOWN_MAX] for line in _lines(change))
    if found.changes:
        print_grid(("handler", "item", "row", "attribute", OLD, NEW), lines)
        if (left := len(found.changes) - SHOWN_MAX) > 0:
            echo(f"... and {left:,} more rows; --json has them.")
        echo()
    for side, raised in found.raised.items():
        for each in raised.values():
            echo(_raised_line(side, each), err=True)
    for name, counts in found.found.items():
        echo(f"{name}: {_counts(counts)}")
    echo(f"{found.items:,} items were compared.")


def diff_report(app: App, code: OldCode, found: CodeDiff) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "application": app.name,
        "old": code.place,
        "items": found.items,
        "handlers": {name: _counts_object(each) for name, each in found.found.items()},
        "changes": [_change(app, each) for each in found.changes],
        "raised": {side: [_raised(app, each) for each in raised.values()] for side, raised in found.raised.items()},
    }


def _lines(change: RowChange) -> Iterator[list[str]]:
    """A line for each attribute that differs; one for a row without attributes."""
    head = [change.handler, item_text(change.item), row_text(change.row)]
    for name in change.attributes or [""]:
        yield [*head, name_text(name), _side(change.old, name), _side(change.new, name)]


def _side(row: Mapping[str, Any] | None, name: str) -> str:
    if row is None:
        return "(no row)"
    return text(decode(row[name])) if name in row else ""


def _counts(counts: HandlerDiff) -> str:
    if not counts.changed:
        return f"{counts.items:,} items, all the same"
    attributes = ", ".join(f"{name_text(name)} in {rows:,}" for name, rows in counts.attributes.most_common())
    rows = f"{counts.other:,} rows otherwise, {counts.more:,} more, {counts.fewer:,} fewer"
    return f"{counts.changed:,} of {counts.items:,} items change: {rows}; {attributes or 'no attributes'}"


def _raised_line(side: str, raised: RaisedItems) -> str:
    error = raised.error
    return (
        f"The {side} {raised.handler!r} raises {error.type} on {raised.items:,} items, first on "
        f"{item_text(raised.item)}: {printable(error.message)}"
    )


def _counts_object(counts: HandlerDiff) -> dict[str, Any]:
    return {
        "items": counts.items,
        "changed": counts.changed,
        "rows": {"other": counts.other, "more": counts.more, "fewer": counts.fewer},
        "attributes": dict(counts.attributes),
    }


def _change(app: App, each: RowChange) -> dict[str, Any]:
    sides = {"attributes": each.attributes, OLD: each.old, NEW: each.new}
    return {**item_object(app, each.item), "handler": each.handler, "row": row_object(app, each.row), **sides}


def _raised(app: App, each: RaisedItems) -> dict[str, Any]:
    error = {"error": each.error.type, "message": each.error.message}
    return {"handler": each.handler, **error, "items": each.items, "first": item_object(app, each.item)}
