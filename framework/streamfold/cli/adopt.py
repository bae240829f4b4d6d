"""``streamfold adopt`` takes over rows that another state, or the application under another name, derived."""

from collections.abc import Iterator
from typing import Any

from streamfold.cli import shell
from streamfold.cli.items import item_text, row_text
from streamfold.cli.output import Note, Printed, Report, counted, first_lines, item_progress, note
from streamfold.cli.session import Session
from streamfold.errors import printable
from streamfold.lifecycle.adoption import Adoption, AdoptionReport, Renaming, foreign_tables


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
    found = {"from": given.old, "dry_run": given.dry_run, **_object(report)}
    return Report(_lines(report, dry_run=given.dry_run), found, bool(report.remaining or report.failed))


def _object(report: AdoptionReport) -> dict[str, Any]:
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


def _lines(report: AdoptionReport, *, dry_run: bool) -> Iterator[Printed]:
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
