"""``streamfold verify --rows``: whether rows are what their sources add up to."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from streamfold.cli.differences import BOTH, SHOWN_MAX, print_differences
from streamfold.cli.engines import REPORTED
from streamfold.cli.grids import counted
from streamfold.cli.items import item_object, item_text
from streamfold.cli.opened import OpenedState, followed_chains
from streamfold.cli.repaired import failed_object, print_failed
from streamfold.cli.rows import name_text, text
from streamfold.lifecycle.row_mending import RowMending, RowsMended
from streamfold.lifecycle.rows import UNFOUNDED, RowDifference, RowsVerifier, ShownRow, VerifiedRows
from streamfold.records.values import encode
from streamfold.routes.application import Application
from streamfold.routes.route import Route

NEXT = "Next: streamfold explain shows what makes one; verify --full --repair, then --rows --repair, mends them."


class ComparedRows(NamedTuple):
    """Rows that were compared, and mended if that was asked for."""

    handlers: Sequence[str]
    found: VerifiedRows
    mended: RowsMended | None

    @property
    def exit_code(self) -> int:
        return REPORTED if self.found.different or self.found.failed else 0


def compared_rows(
    opened: OpenedState, routes: Sequence[Route], tolerance_seconds: float, *, repair: bool
) -> ComparedRows:
    """Compares the rows of these routes, and mends what differs if that is asked for."""
    verifier = RowsVerifier(
        opened.app,
        opened.engine,
        opened.run,
        routes,
        live=opened.local is None,
        tolerance_seconds=tolerance_seconds,
    )
    found = verifier.verify()
    mended = _mended(opened, found) if repair else None
    return ComparedRows([route.name for route in verifier.routes], found, mended)


def print_compared(rows: ComparedRows) -> None:
    """Prints the first differences, counts, and what is to be done, or was."""
    print_rows(rows.found)
    if rows.found.different and rows.mended is None:
        click.echo(NEXT)
    if rows.mended is not None:
        print_mended(rows.mended)


def compared_report(app: Application, rows: ComparedRows) -> dict[str, Any]:
    """The same as JSON."""
    return rows_report(app, rows.handlers, rows.found) | mended_report(app, rows.mended)


def _mended(opened: OpenedState, found: VerifiedRows) -> RowsMended:
    mended = RowMending(opened.explaining, opened.run).mend([each.row for each in found.different])
    followed_chains(opened)
    return mended


def print_mended(mended: RowsMended) -> None:
    """Prints the first rows that were left, and counts."""
    for each in mended.left[:SHOWN_MAX]:
        click.echo(f"Left: {item_text(each.row)}: {each.why}", err=True)
    click.echo(
        f"Led to what the state holds of their items: {counted(len(mended.mended), 'row')}, {len(mended.left):,} left."
    )


def print_rows(found: VerifiedRows) -> None:
    """Prints the first differences, and counts."""
    print_differences(found.different, lambda each: f"{each.what.capitalize()}: {item_text(each.row)}", _readable)
    print_failed(found.failed)
    click.echo(
        f"{counted(found.rows, 'row')}: {len(found.different):,} different, {found.moving:,} moving; a handler failed "
        f"on {counted(len(found.failed), 'item')}."
    )


def _readable(each: RowDifference) -> dict[str, str]:
    """Both sides of a row; one where they are the same, and the row lacks what it stands on."""
    if each.what == UNFOUNDED:
        return {BOTH: f"{_row_text(each.shown)}  (entries below it are missing)"}
    return {"shown": _row_text(each.shown), "expected": _row_text(each.expected)}


def _row_text(row: ShownRow | None) -> str:
    if row is None:
        return ""
    return "  ".join(f"{name_text(name)}={text(value)}" for name, value in sorted(row.items())) or "no attributes"


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
    shown, expected = (None if row is None else encode(dict(row))["M"] for row in (each.shown, each.expected))
    return item_object(app, each.row) | {"what": each.what, "shown": shown, "expected": expected}


def mended_report(app: Application, mended: RowsMended | None) -> dict[str, Any]:
    """What became of rows as JSON; None: nothing was to be mended."""
    return {
        "mended": None if mended is None else [item_object(app, row) for row in mended.mended],
        "left": None if mended is None else [item_object(app, each.row) | {"why": each.why} for each in mended.left],
    }
