"""``streamfold verify --rows``: whether rows are what their sources add up to."""

from collections.abc import Sequence
from typing import Any

from streamfold.cli.differences import BOTH, SHOWN_MAX, print_differences
from streamfold.cli.engines import REPORTED, as_json
from streamfold.cli.grids import counted
from streamfold.cli.items import item_object, item_text
from streamfold.cli.opened import OpenedState, followed_chains
from streamfold.cli.output import echo
from streamfold.cli.repaired import failed_object, print_failed
from streamfold.cli.rows import name_text, text
from streamfold.errors import printable
from streamfold.lifecycle.row_mending import RowMending, RowsMended
from streamfold.lifecycle.rows import UNFOUNDED, RowDifference, RowsVerifier, ShownRow, VerifiedRows
from streamfold.records.values import encode
from streamfold.routes.application import Application
from streamfold.routes.route import Route

NEXT = "Next: streamfold explain shows what makes one; verify --full --repair, then --rows --repair, mends them."


def compare_rows(
    opened: OpenedState, routes: Sequence[Route], tolerance_seconds: float, *, repair: bool, json_output: bool
) -> int:
    """Compares the rows of these routes, prints what differs, mends it if asked for, and returns the exit code."""
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
    if json_output:
        handlers = [route.name for route in verifier.routes]
        echo(as_json(rows_report(opened.app, handlers, found) | _mended_report(opened.app, mended)))
    else:
        print_rows(found)
        if found.different and mended is None:
            echo(NEXT)
        _print_mended(mended)
    return REPORTED if found.different or found.failed else 0


def _mended(opened: OpenedState, found: VerifiedRows) -> RowsMended:
    mended = RowMending(opened.explaining, opened.run).mend([each.row for each in found.different])
    followed_chains(opened)
    return mended


def _print_mended(mended: RowsMended | None) -> None:
    if mended is None:
        return
    for each in mended.left[:SHOWN_MAX]:
        echo(f"Left: {item_text(each.row)}: {printable(str(each.why))}", err=True)
    echo(
        f"Led to what the state holds of their items: {counted(len(mended.mended), 'row')}, {len(mended.left):,} left."
    )


def print_rows(found: VerifiedRows) -> None:
    """Prints the first differences, and counts."""
    print_differences(found.different, lambda each: f"{each.what.capitalize()}: {item_text(each.row)}", _readable)
    print_failed(found.failed)
    echo(
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


def _mended_report(app: Application, mended: RowsMended | None) -> dict[str, Any]:
    return {
        "mended": None if mended is None else [item_object(app, row) for row in mended.mended],
        "left": None if mended is None else [item_object(app, each.row) | {"why": each.why} for each in mended.left],
    }
