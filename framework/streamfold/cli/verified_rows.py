"""``streamfold verify --rows``: whether rows are what their sources add up to."""

from collections.abc import Sequence
from typing import Any

import click

from streamfold.cli.differences import print_differences
from streamfold.cli.engines import as_json
from streamfold.cli.items import item_object, item_text
from streamfold.cli.opened import OpenedState
from streamfold.cli.repaired import failed_object, print_failed
from streamfold.lifecycle.rows import RowDifference, RowsVerifier, VerifiedRows
from streamfold.routes.route import Route

REPORTED = 1


def verified_rows(opened: OpenedState, routes: Sequence[Route], *, json_output: bool) -> int:
    """Compares the rows of these routes, prints what differs, and returns the exit code."""
    verifier = RowsVerifier(opened.app, opened.engine, opened.run, routes, live=not opened.local)
    found = verifier.verify()
    if json_output:
        click.echo(as_json(_report(opened, verifier, found)))
    else:
        _print(found)
    return REPORTED if found.different or found.failed else 0


def _print(found: VerifiedRows) -> None:
    print_differences(found.different, lambda each: f"{each.what.capitalize()}: {item_text(each.row)}", _sides)
    print_failed(found.failed)
    click.echo(
        f"{found.rows:,} rows: {len(found.different):,} different, {found.moving:,} moving; a handler failed on "
        f"{len(found.failed):,} items."
    )


def _sides(each: RowDifference) -> dict[str, str]:
    sides = {"shown": each.shown, "expected": each.expected}
    return {word: "" if row is None else str(dict(row)) for word, row in sides.items()}


def _report(opened: OpenedState, verifier: RowsVerifier, found: VerifiedRows) -> dict[str, Any]:
    app = opened.app
    return {
        "application": app.name,
        "handlers": [route.name for route in verifier.routes],
        "rows": found.rows,
        "moving": found.moving,
        "different": [_object(opened, each) for each in found.different],
        "failed": [failed_object(app, failed) for failed in found.failed],
    }


def _object(opened: OpenedState, each: RowDifference) -> dict[str, Any]:
    sides = {word: text or None for word, text in _sides(each).items()}
    return item_object(opened.app, each.row) | {"what": each.what} | sides
