"""``streamfold restore`` and ``streamfold adopt`` begin an empty state for tables that have rows of another one."""

from collections.abc import Iterator
from typing import Any

from streamfold.cli import shell
from streamfold.cli.backfill import filled_again
from streamfold.cli.items import item_text, row_text
from streamfold.cli.output import Note, Printed, Report, counted, first_lines, item_progress, note
from streamfold.cli.session import Session, confirm
from streamfold.derivations.derivation import searches
from streamfold.derivations.expected import RemainingRow
from streamfold.errors import printable
from streamfold.lifecycle.adoption import Adoption, AdoptionReport, RemovedRows, Renaming, Restore, foreign_tables
from streamfold.lifecycle.other_rows import OtherRows

KEPT_SHOWN = 5
"""Items of the application at keys of rows that are named."""
NEXT = (
    "Next: switch the table's stream on, start the event source mappings (TRIM_HORIZON), and compare once they have "
    "caught up: streamfold verify --full."
)


@shell.command(
    "restore",
    "Derive all rows of a restored table again, into an empty state.",
    shell.STATE_OPTIONS,
    shell.SEGMENTS,
    shell.READ_UNITS,
    shell.flag("--dry-run", "Count the rows that would be removed, and write nothing."),
    shell.yes_flag("removing rows"),
    shell.json_flag(),
    checks=True,
    outside=True,
)
def restore(opened: Session) -> Report:
    """Remove the rows that a restored or copied table has from before, and derive them again from its items into an
    empty state: rows of views and indexes, of feeds, derived attributes, and documents of searches. Histories, copies
    and rows of on stay: they follow from changes. An item without the mark of a row is the application's own and stays.

    STREAMFOLD_STATE_TABLE names the empty state table. No function may work on the restored table meanwhile, and its
    stream is still off: the removals would be records. Documents of items that the table does not have are hidden, if
    STREAMFOLD_SEARCH names the server. If the command was stopped, run it again: it goes on.

    \b
    Exit codes:
      0  all rows were derived again
      1  a handler raised on some items, or some attributes could not be corrected; both are printed
      2  the command stopped early: an option, the application or the store is wrong, or the state is not empty

    \b
    Examples:
      streamfold restore --engine dynamodb --table main=orders-restored --dry-run
      streamfold restore --engine dynamodb --table main=orders-restored --yes
    """
    given, restoring = opened.given, Restore(opened.runtime)
    if not given.dry_run:
        if restoring.goes_on:
            note("An earlier restore was stopped: this one goes on.")
        names = ", ".join(opened.settings.real_name(name) or name for name in opened.app.tables)
        confirm(f"This removes all derived rows of {names}, and makes them anew.", yes=given.yes)
        given.put(yes=True)
    with item_progress("removing", None, shown=not given.json_output) as advance:
        removed = restoring.remove(advance, dry_run=given.dry_run)
    if given.dry_run:
        return Report(_removed_lines(removed, dry_run=True), _object(removed))
    if not given.json_output:
        for line in _removed_lines(removed, dry_run=False):
            note(str(line))
    return _derived_again(opened, restoring, removed)


def _derived_again(opened: Session, restoring: Restore, removed: RemovedRows) -> Report:
    """Makes the rows of the items; the restore has ended then."""
    filled = filled_again(opened)
    remaining = [*_corrected_attributes(opened)]
    hidden, others = _hidden_documents(opened)
    restoring.end()

    def lines() -> Iterator[Printed]:
        yield from filled.lines
        for each in remaining:
            yield Note(f"Not corrected: {item_text(each.row)}: {each.why}")
        for alias, count in hidden.items():
            yield f"Index {alias}: {counted(count, 'document')} without an item hidden."
        yield from map(Note, others)
        yield NEXT

    def found() -> dict[str, Any]:
        counts = filled.json() if callable(filled.json) else filled.json
        return {**_object(removed), "backfill": counts, "hidden": hidden, "remaining": len(remaining)}

    return Report(lines(), found, filled.reported or bool(remaining))


def _removed_lines(found: RemovedRows, *, dry_run: bool) -> Iterator[Printed]:
    done = "would be removed" if dry_run else "removed"
    for name, count in sorted(found.rows.items()):
        yield f"{name}: {counted(count, 'row')} {done}."
    for item in found.kept[:KEPT_SHOWN]:
        yield f"Kept: {item_text(item)} has no mark of a row, and is the application's own."
    if len(found.kept) > KEPT_SHOWN:
        yield f"... and {len(found.kept) - KEPT_SHOWN:,} more."


def _corrected_attributes(opened: Session) -> Iterator[RemainingRow]:
    """Takes attributes off items that the restored table derives nothing onto; yields items that could not be written.

    No item contributes to these attributes, so no page of the backfill visited their items.
    """
    runtime = opened.runtime
    rows = OtherRows(runtime, live=False)
    for route in opened.app.routes:
        if route.kind.contributes and route.kind.touches(route):
            yield from rows.correct(route, rows.verify([route])).remaining


def _hidden_documents(opened: Session) -> tuple[dict[str, int], list[str]]:
    """Hides documents whose items the table does not have; returns their numbers, and what remains to be done."""
    if not searches(opened.app.routes):
        return {}, []
    from streamfold.cli.search import hide_documents, other_indexes

    return hide_documents(opened), list(other_indexes(opened.app))


def _object(removed: RemovedRows) -> dict[str, Any]:
    return {"removed": removed.rows, "kept": len(removed.kept)}


@shell.command(
    "adopt",
    "Take over rows that another state, or another name of the application, derived.",
    shell.STATE_OPTIONS,
    shell.value("--from", "NAME", "The earlier name of the application in this state.", "old"),
    shell.flag("--dry-run", "Print how much there is, and write nothing."),
    shell.yes_flag(),
    shell.json_flag(),
)
def adopt(opened: Session) -> Report:
    """Take over the rows of tables whose markers name another state, or, with --from, another name of the application.
    The command reads all items of the tables, or all of the state.

    Without --from, the state must be empty: the contributions of all items are written into it without their rows, as
    the rows hold them already. Then all rows are compared with the fold of their items, and corrected. The tables are
    marked for this state at the end. Rows of on, copies, histories and feeds continue as they are: they follow from
    changes. Fill feeds and searches with streamfold backfill afterwards.

    With --from, the state's items, the owners of rows and the markers get the new name. STREAMFOLD_STATE_TABLE has to
    name the state, here and in the functions, because the default follows the application's name.

    No function may work on these rows meanwhile, neither one with the other state nor one with the other name: switch
    its mapping off, and wait for 15 minutes, so that no earlier invocation runs. The functions with the new state or
    name may be there already: they are refused until the command has ended. If the command was stopped, run it again:
    it goes on.

    \b
    Exit codes:
      0  the rows belong to this state and this application
      1  some rows could not be corrected, or a handler raises on some items
      2  the command stopped early: an option, the application or the store is wrong, or nothing is to be taken over

    \b
    Examples:
      streamfold adopt --engine dynamodb --table main=shop --dry-run
      streamfold adopt --engine dynamodb --table main=shop --yes
      streamfold adopt --from old_shop --engine dynamodb --table main=shop
    """
    given, runtime = opened.given, opened.runtime
    adoption = Renaming(runtime, given.old) if given.old else Adoption(runtime)
    if not given.dry_run:
        for each in () if given.old else foreign_tables(runtime, opened.app.name):
            table = each.table.name
            note(f"Table {table!r} has rows of the state {each.state!r}, which must not be worked on any more.")
        opened.confirm_writes()
    with item_progress("adopting", None, shown=not given.json_output) as advance:
        report = adoption.go(advance, dry_run=given.dry_run)
    found = {"from": given.old, "dry_run": given.dry_run, **_adopted_object(report)}
    return Report(_adopted_lines(report, dry_run=given.dry_run), found, bool(report.remaining or report.failed))


def _adopted_object(report: AdoptionReport) -> dict[str, Any]:
    return {
        "items": report.items,
        "moved": report.state_items,
        "rows": report.rows,
        "corrected": len(report.corrected),
        "remaining": [{"row": list(map(str, each.row)), "why": each.why} for each in report.remaining],
        "failed": len(report.failed),
        "continued": report.continued,
        "marked": report.marked,
    }


def _adopted_lines(report: AdoptionReport, *, dry_run: bool) -> Iterator[Printed]:
    done = (
        f"{counted(report.items, 'item')} with contributions, {counted(report.state_items, 'state item')} to be moved"
    )
    if dry_run:
        yield f"Dry run: {done}. Nothing was written."
        return
    yield from first_lines(
        report.failed,
        lambda each: Note(f"Failed: item {item_text(each.item)}, {each.handler}: {printable(str(each.error))}"),
        err=True,
    )
    yield from first_lines(
        report.remaining, lambda each: Note(f"Left: row {row_text(each.row)}: {printable(each.why)}"), err=True
    )
    yield (
        f"{counted(report.items, 'item')} with contributions, {counted(report.state_items, 'state item')} moved; "
        f"{counted(report.rows, 'row')} compared, {len(report.corrected):,} corrected, {len(report.remaining):,} left."
    )
    if report.continued:
        yield Note(
            f"Rows of {', '.join(report.continued)} continue as they are: they follow from changes, and changes that "
            "were lost with the other state stay lost."
        )
    if not report.marked:
        yield Note("The tables were not marked: correct or remove the rows above, and run the command again.")
