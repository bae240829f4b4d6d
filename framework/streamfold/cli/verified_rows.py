"""``streamfold verify --rows``: whether rows are what their sources add up to."""

from collections.abc import Sequence
from typing import Any

import click

from streamfold.cli.engines import as_json
from streamfold.cli.items import item_object, item_text
from streamfold.cli.opened import OpenedState
from streamfold.cli.repaired import failed_object, print_failed
from streamfold.errors import shortened
from streamfold.lifecycle.rows import RowDifference, RowsVerifier, VerifiedRows
from streamfold.routes.application import Application
from streamfold.routes.route import Route

SHOWN_MAX = 100
TEXT_LETTERS_MAX = 300
REPORTED = 1


def verified_rows(opened: OpenedState, routes: Sequence[Route], *, json_output: bool) -> int:
    """Compares the rows of these routes, prints what differs, and returns the exit code."""
    verifier = RowsVerifier(opened.app, opened.engine, opened.run, routes, live=not opened.local)
    found = verifier.verify()
    if json_output:
        click.echo(as_json(rows_report(opened.app, [route.name for route in verifier.routes], found)))
    else:
        print_rows(found)
    return REPORTED if found.different or found.failed else 0


def print_rows(found: VerifiedRows) -> None:
    """Prints the first differences, and counts."""
    for each in found.different[:SHOWN_MAX]:
        click.echo(f"{each.what.capitalize()}: {item_text(each.row)}")
        click.echo(f"  shown     {_text(each.shown)}")
        click.echo(f"  expected  {_text(each.expected)}")
    if (left := len(found.different) - SHOWN_MAX) > 0:
        click.echo(f"... and {left:,} more; --json has them all.")
    print_failed(found.failed)
    click.echo(
        f"{found.rows:,} rows: {len(found.different):,} different, {found.moving:,} moving; a handler failed on "
        f"{len(found.failed):,} items."
    )


def _text(row: Any) -> str:
    return "nothing" if row is None else shortened(str(dict(row)), TEXT_LETTERS_MAX)


def rows_report(app: Application, handlers: Sequence[str], found: VerifiedRows) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "application": app.name,
        "handlers": list(handlers),
        "rows": found.rows,
        "moving": found.moving,
        "different": [_object(app, each) for each in found.different],
        "failed": [failed_object(app, failed) for failed in found.failed],
    }


def _object(app: Application, each: RowDifference) -> dict[str, Any]:
    sides = {"shown": each.shown and str(dict(each.shown)), "expected": each.expected and str(dict(each.expected))}
    return item_object(app, each.row) | {"what": each.what} | sides
