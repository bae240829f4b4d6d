"""``streamfold restore`` derives all rows of a restored table again, into an empty state."""

from collections.abc import Iterator
from random import Random
from typing import Any

from streamfold.cli import shell
from streamfold.cli.backfill import filled_again
from streamfold.cli.items import item_text
from streamfold.cli.output import Note, Printed, Report, counted, item_progress, note
from streamfold.cli.session import Session, confirm
from streamfold.derivations.search.indexes import SearchIndex, find_index, searches_of
from streamfold.derivations.search.options import options_of
from streamfold.lifecycle.adoption import RemovedRows, Restore
from streamfold.lifecycle.other_repair import OtherCorrection
from streamfold.lifecycle.other_rows import OtherRows
from streamfold.lifecycle.row_repair import RemainingRow
from streamfold.lifecycle.search import IndexVerifier, repair
from streamfold.routes.application import Application

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
    hidden = {index.alias: _hidden_documents(opened, index) for index in _indexes(opened)}
    restoring.end()

    def lines() -> Iterator[Printed]:
        yield from filled.lines
        for each in remaining:
            yield Note(f"Not corrected: {item_text(each.row)}: {each.why}")
        for alias, count in hidden.items():
            yield f"Index {alias}: {counted(count, 'document')} without an item hidden."
        yield from _other_indexes(opened.app)
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
    for route in opened.app.routes:
        if route.kind.contributes and route.kind.touches(route):
            found = OtherRows(runtime, live=False).verify([route])
            yield from OtherCorrection(runtime, live=False).correct(route, found).remaining


def _indexes(opened: Session) -> Iterator[SearchIndex]:
    """The indexes of the application's searches, where one search has one index."""
    for route in searches_of(opened.app.routes) if opened.settings.search is not None else ():
        if not options_of(route).index.fields:
            yield find_index(opened.app.routes, options_of(route).index.text, opened.settings)


def _other_indexes(app: Application) -> Iterator[Printed]:
    for route in searches_of(app.routes):
        if fields := options_of(route).index.fields:
            of = ", ".join(field.name for field in fields)
            yield Note(
                f"Search {route.name!r} has an index for each {of}: streamfold search verify INDEX --full --repair "
                "hides documents of items that the table does not have, for each of them."
            )


def _hidden_documents(opened: Session, index: SearchIndex) -> int:
    """Hides documents whose items the table does not have; returns how many documents were wrong."""
    verifier = IndexVerifier(opened.runtime, index, opened.server(), index.alias, 0)
    wrong = verifier.verify(None, Random(0)).wrong  # noqa: S311 - all are compared
    repair(opened.runtime, index, wrong)
    return len(wrong)


def _object(removed: RemovedRows) -> dict[str, Any]:
    return {"removed": removed.rows, "kept": len(removed.kept)}
