"""``streamfold verify --rows``: whether rows are what their sources add up to."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from streamfold.cli.differences import BOTH, SHOWN_MAX, print_differences
from streamfold.cli.engines import REPORTED
from streamfold.cli.grids import counted
from streamfold.cli.items import item_object, item_text
from streamfold.cli.opened import OpenedState, followed_chains, left_out
from streamfold.cli.output import echo
from streamfold.cli.repaired import failed_object, print_failed
from streamfold.cli.rows import name_text, text
from streamfold.derivations.audit.kind import audit_routes
from streamfold.derivations.derivation import derivation
from streamfold.derivations.search.kind import SEARCH
from streamfold.errors import printable
from streamfold.lifecycle.other_rows import OtherRows, is_compared
from streamfold.lifecycle.row_repair import RowLeft, RowMending, RowsMended
from streamfold.lifecycle.rows import UNFOUNDED, RowDifference, RowsVerifier, ShownRow, VerifiedRows
from streamfold.lifecycle.sources import unfilled
from streamfold.records.values import encode
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.writes.guarded import RowKey

NEXT = "Next: streamfold explain shows what makes one; verify --full --repair, then --rows --repair, mends them."
UNSUMMED = "It is no sum of items: streamfold repair of its items derives it again; a history keeps what it has."


class RowsOptions(NamedTuple):
    """What the command line said of a comparison of rows."""

    tolerance_seconds: float
    repair: bool
    every: bool  # no handler was named


class NotCompared(NamedTuple):
    """What a comparison did not look at."""

    handler: str | None  # None: rows of all handlers
    why: str
    command: str | None  # that compares it; None: none does


class ComparedRows(NamedTuple):
    """Rows that were compared, and mended if that was asked for."""

    handlers: Sequence[str]
    found: VerifiedRows
    mended: RowsMended | None
    left: Sequence[NotCompared]
    unfilled: Sequence[tuple[Route, str]] = ()  # handlers that no backfill has filled, with the reason

    @property
    def exit_code(self) -> int:
        return REPORTED if self.found.different or self.found.failed else 0


def compared_rows(opened: OpenedState, routes: Sequence[Route], options: RowsOptions) -> ComparedRows:
    """Compares the rows of these routes, and mends what differs if that is asked for."""
    live, tolerance_seconds = opened.local is None, options.tolerance_seconds
    verifier = RowsVerifier(opened.runtime, routes, live=live, tolerance_seconds=tolerance_seconds)
    summed = [route for route in routes if route.kind.contributes]
    found = verifier.verify() if summed else VerifiedRows()
    mended = _mended(opened, found, verifier.expiring) if options.repair else None
    others = OtherRows(opened.runtime, live=live, tolerance_seconds=tolerance_seconds)
    found.add(unsummed := others.verify(routes))
    if mended is not None:
        mended.left.extend(RowLeft(each.row, UNSUMMED) for each in unsummed.different)
    names = dict.fromkeys(route.name for route in (*verifier.routes, *routes))
    compared = [route for route in opened.app.routes if route.name in names]
    why = unfilled(opened.manifest, compared)
    new = [(route, why[route.name]) for route in compared if route.name in why]
    return ComparedRows([*names], found, mended, not_compared(opened, compared, every=options.every), new)


def print_compared(rows: ComparedRows) -> None:
    """Prints the first differences, counts, and what is to be done, or was. Of rows of handlers that no backfill has
    filled, only how many there are: to mend them by what the state holds would leave them as they are.
    """
    new = {
        each.row: route.name for each in rows.found.different for route, _ in rows.unfilled if _writes(route, each.row)
    }
    print_rows(rows.found, new)
    for route, why in rows.unfilled:
        if count := sum(1 for name in new.values() if name == route.name):
            echo(
                f"Handler {route.name!r} {why}, and was not backfilled: {counted(count, 'row')} may lack items "
                f"from before it. Next: streamfold backfill {route.name}"
            )
    if rows.mended is None and len(new) < len(rows.found.different):
        echo(NEXT)
    if rows.mended is not None:
        print_mended(rows.mended)


def _writes(route: Route, row: RowKey) -> bool:
    """Whether a row has a key that a handler writes."""
    return any(
        key.table.name == row[0] and key.match(dict(zip(key.table.attributes, row[1:], strict=False))) is not None
        for key in route.writes
    )


def compared_report(app: Application, rows: ComparedRows) -> dict[str, Any]:
    """The same as JSON."""
    report = rows_report(app, rows.handlers, rows.found) | mended_report(app, rows.mended)
    return report | not_compared_report(rows.left)


def not_compared(
    opened: OpenedState, routes: Collection[Route], *, every: bool, rows: bool = True
) -> list[NotCompared]:
    """What a comparison with these routes does not look at. ``rows``: it looks at rows, and not at the ledger.

    every: all handlers were asked for; otherwise no other than these were.
    """
    found = [_not_compared(opened, route, rows=rows) for route in opened.app.routes if every and route not in routes]
    if rows and any(route in audit_routes(opened.app) for route in routes):
        found.append(
            NotCompared(None, "rows of histories but the newest of each item", "streamfold audit verify --all")
        )
    for route in routes if rows else ():
        since = opened.manifest.partial_since(route.name)
        if since is not None and route in audit_routes(opened.app):
            why = f"items without a history of {route.name!r}, which is partial since {since}"
            found.append(NotCompared(None, why, f"streamfold backfill {route.name} --opening"))
    return found


def _not_compared(opened: OpenedState, route: Route, *, rows: bool) -> NotCompared:
    kind = derivation(route)
    if why := left_out(opened, route):
        return NotCompared(route.name, f"it {why}", None)
    if not rows and is_compared(opened.app, route):
        return NotCompared(
            route.name,
            f"it is of kind {route.kind}, and the state holds nothing of it to compare",
            f"streamfold verify --rows {route.name}",
        )
    if route.kind is SEARCH:
        return NotCompared(route.name, "its documents are in an index", f"streamfold search verify {route.name}")
    if kind.reconciles:
        return NotCompared(route.name, f"it is of kind {route.kind}, and what it made is not read back", None)
    return NotCompared(route.name, f"it is of kind {route.kind}, and follows from changes, which no item tells", None)


def not_compared_report(left: Sequence[NotCompared]) -> dict[str, Any]:
    """The same as JSON; nothing where all was compared."""
    return {"not_compared": [each._asdict() for each in left]} if left else {}


def print_not_compared(left: Sequence[NotCompared]) -> None:
    """Prints the last line of a comparison: what it did not look at, and what does."""
    if left:
        echo(f"Not compared: {'; '.join(map(_left_text, left))}.")


def _left_text(each: NotCompared) -> str:
    what = each.why if each.handler is None else f"handler {each.handler!r} ({each.why})"
    return f"{what}: {each.command}" if each.command else what


def _mended(opened: OpenedState, found: VerifiedRows, expiring: Collection[str]) -> RowsMended:
    mended = RowMending(opened.runtime, expiring).mend([each.row for each in found.different])
    followed_chains(opened)
    return mended


def print_mended(mended: RowsMended) -> None:
    """Prints the first rows that were left, and counts."""
    for each in mended.left[:SHOWN_MAX]:
        echo(f"Left: {item_text(each.row)}: {printable(str(each.why))}", err=True)
    echo(
        f"Led to what the state holds of their items: {counted(len(mended.mended), 'row')}, {len(mended.left):,} left."
    )


def print_rows(found: VerifiedRows, passed_over: Collection[RowKey] = ()) -> None:
    """Prints the first differences, but for rows that are passed over, and counts."""
    different = [each for each in found.different if each.row not in passed_over]
    print_differences(different, lambda each: f"{each.what.capitalize()}: {item_text(each.row)}", _readable)
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


def mended_report(app: Application, mended: RowsMended | None) -> dict[str, Any]:
    """What became of rows as JSON; None: nothing was to be mended."""
    return {
        "mended": None if mended is None else [item_object(app, row) for row in mended.mended],
        "left": None if mended is None else [item_object(app, each.row) | {"why": each.why} for each in mended.left],
    }
