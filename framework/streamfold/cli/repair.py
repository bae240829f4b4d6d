"""``streamfold repair`` derives rows again from some items. Other commands print their failed items here, too."""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from traceback import walk_tb
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.cli import shell
from streamfold.cli.explain import unseen_object, unseen_text
from streamfold.cli.items import (
    KEY_LINES,
    item_object,
    item_of,
    item_text,
    items_in,
    lines_of,
    note_absent,
    typed_item,
    values_text,
)
from streamfold.cli.jobs import followed_chains
from streamfold.cli.output import BOTH, SHOWN_MAX, Note, Printed, Report, counted, difference_lines, item_progress
from streamfold.cli.session import Session, chosen_routes, export_of
from streamfold.commit.outcome import Cause, by_cause, cause_of
from streamfold.derivations.expected import (
    UNFOUNDED,
    ItemFailed,
    RowDifference,
    RowsCorrected,
    ShownRow,
    VerifiedRows,
)
from streamfold.errors import SettingsError, printable
from streamfold.lifecycle.backfill import KeepFailed
from streamfold.lifecycle.page import PageReport, Pages
from streamfold.lifecycle.row_repair import RowsReconciled
from streamfold.lifecycle.sources import pages, source_tables
from streamfold.records.change import ItemKey
from streamfold.records.values import encode, to_json
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.settings.readers import make_private
from streamfold.writes.guarded import RowKey

QUOTED = re.compile(r"'[^']*'|[0-9]+")


class FailedElsewhere(Exception):  # noqa: N818 - an error of another process, as its line has it
    """An error of another process, as text."""


class GivenItems(NamedTuple):
    """Items to be repaired. An export may name more items than fit into memory."""

    items: Iterable[ItemKey]
    number: int  # of all, for the progress

    @classmethod
    def each_once(cls, items: Iterable[ItemKey]) -> "GivenItems":
        """Items that fit into memory."""
        known = list(dict.fromkeys(items))
        return cls(known, len(known))


@dataclass(slots=True)
class RepairedItems:
    """The outcome of a repair."""

    dry_run: bool
    given: int = 0
    report: PageReport = field(default_factory=PageReport)
    chains: int = 0  # failures of handlers behind the rows of a local state


@shell.command(
    "repair",
    "Derive rows again from some items as they are now.",
    shell.key_option("The item with this key."),
    shell.file("--keys", f"The items of a file. {KEY_LINES}"),
    shell.file("--from-verify", "The items that differ or failed in the output of verify --json.", "report", "REPORT"),
    shell.value(
        "--export",
        "MANIFEST",
        "The items of an export, for example an incremental one: its manifest-files.json, a file or s3://.",
    ),
    shell.STATE_OPTIONS,
    shell.value(
        "--handler", "NAME", "Only for this handler. May be repeated. Default: all.", "handlers", multiple=True
    ),
    shell.file("--failed", "Write the keys of failed items to this file, for --keys."),
    shell.exactly_one(
        *("--key", "--keys", "--from-verify", "--export"),
        why="Say which items: either --key PARTITION [SORT], --keys FILE, --from-verify REPORT or --export MANIFEST.",
    ),
    shell.flag("--dry-run", "Print what differs, and write nothing."),
    shell.yes_flag(),
    shell.json_flag(),
    checks=True,
    outside=True,
)
def repair(opened: Session) -> Report:
    """Derive rows again from some items as they are now. The new contributions of the items replace the stored ones.

    The ledger item is read first, then the source item. A write is refused if the ledger item has changed since, so the
    live stream may go on. If an item is gone, its contributions are taken back. Each item is written even if nothing
    differs. A write that was planned before is then refused. Doing it twice changes nothing.

    \b
    Exit codes:
      0  all items were derived again
      1  some items failed: a handler raised, or other writers changed the item at every try
      2  the command stopped early: an option, the application, the store or a source table is wrong

    \b
    Examples:
      streamfold repair --key ORDER#1042 METADATA
      streamfold repair --keys failed.jsonl --handler daily_sales --dry-run
      streamfold repair --export s3://exports/AWSDynamoDB/ID/manifest-files.json --engine dynamodb --table main=shop
      streamfold repair --from-verify report.json --engine dynamodb --table main=shop --failed left.jsonl
    """
    app, given = opened.app, opened.given
    check_failed_file(given.failed)
    routes, typed = chosen_routes(opened, given.handlers), None
    if given.partition is not None:
        typed = typed_item(app, routes, given.partition, given.sort)
        items = GivenItems.each_once([typed])
    elif given.export is not None:
        export = export_of(opened.settings, source_tables(routes), given.export)
        items = GivenItems((line.key for line in export.lines()), export.items)
    else:
        items = GivenItems.each_once(items_in(app, given.keys) if given.keys else _reported(app, given.report))
    if not given.dry_run:
        opened.confirm_writes()
        opened.confirm_documents()
    found = repaired_items(opened, routes, items, dry_run=given.dry_run)
    if found.given and not found.report.items:
        names = ", ".join(route.name for route in routes) or "a handler"
        raise SettingsError(f"None of the {found.given:,} items is read by {names}: nothing was done.")
    with failed_keys(app, given.failed) as keep:
        keep(found.report.failed)
    if typed is not None:
        note_absent(opened.engine, typed)
    unread = found.given - found.report.items
    counts = {"dry_run": found.dry_run, "unread": unread, **repaired_object(app, found)}
    return Report(repaired_lines(found), counts, bool(found.report.failed or found.chains))


def _reported(app: App, report: Path) -> Iterator[ItemKey]:
    """The items of a report of verify. Raises ``SettingsError`` for any other file, or another application's report."""
    text = "\n".join(lines_of(report, "--from-verify"))
    try:
        found = json.loads(text)
        of, entries = found["application"], [*found["different"], *found["failed"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise SettingsError(
            f"{report} is no report of verify: expected what streamfold verify --json printed."
        ) from None
    if of != app.name:
        raise SettingsError(f"{report} is a report of application {of!r}: expected one of {app.name!r}.")
    for number, entry in enumerate(entries, 1):
        key = {name: entry[name] for name in ("table", "key") if name in entry}
        yield item_of(app, key, f"{report}, entry {number},")


def repaired_items(opened: Session, routes: Sequence[Route], items: GivenItems, *, dry_run: bool) -> RepairedItems:
    """Derives the rows of items again, for some handlers, and then the chains of a local state."""
    names = {route.name for route in routes}
    reconciling = Pages(opened.runtime, names, always=not dry_run, dry_run=dry_run, sources_only=False)
    found = RepairedItems(dry_run)
    with item_progress("repairing", items.number, shown=not opened.given.json_output) as advance:
        for page in pages(items.items):
            found.given += len(page)
            found.report.add(reconciling.reconcile(page))
            advance(len(page))
    if not dry_run:
        found.chains = len(followed_chains(opened))
    return found


def repaired_lines(found: RepairedItems) -> Iterator[Printed]:
    """The outcome for a person."""
    report = found.report
    yield from failed_lines(report.failed)
    if unread := found.given - report.items:
        yield Note(f"No handler reads {unread:,} of the keys.")
    items, counts = counted(report.items, "item"), f"{report.equal:,} equal, {len(report.failed):,} failed"
    if not found.dry_run:
        written, rows = counted(report.written, "contribution"), counted(report.rows, "write")
        yield f"{items}: {written} written, {counts}; {rows} of rows."
        return
    for each in report.differing[:SHOWN_MAX]:
        yield f"{item_text(each.item)}, handler {each.handler!r} differs"
    uncompared = counted(report.uncompared, "contribution")
    others = f"; {uncompared} not comparable, derived again" if report.uncompared else ""
    pending = f", {len(report.pending):,} with pending work" if report.pending else ""
    different = report.written - report.uncompared - len(report.pending)
    yield f"Dry run of {items}: {different:,} different{pending}, {counts}{others}. Nothing was written."


def repaired_object(app: App, found: RepairedItems) -> dict[str, Any]:
    """The same as JSON."""
    report = found.report
    return {
        "items": report.items,
        "written": report.written,
        "equal": report.equal,
        "uncompared": report.uncompared,
        "row_writes": report.rows,
        "failed": [failed_object(app, failed) for failed in report.failed],
        "chains_failed": found.chains,
    }


def error_text(error: Exception) -> str:
    """The type and the message of an error of this process or another."""
    return str(error) if isinstance(error, FailedElsewhere) else f"{type(error).__name__}: {error}"


def failed_object(app: Application, failed: ItemFailed) -> dict[str, Any]:
    return {**item_object(app, failed.item), "handler": failed.handler, "error": error_text(failed.error)}


def failed_lines(failed: Sequence[ItemFailed], count: int = 0, kept_by: str = "") -> Iterator[Printed]:
    """The first failed items, and the number of the others. ``count``: of all, if ``failed`` is only some of them."""
    causes = by_cause(failed, _cause)
    for each, number in causes[:SHOWN_MAX]:
        error = printable(error_text(each.error))
        others = f" So did {number - 1:,} more, for the same reason." if number > 1 else ""
        yield Note(f"Failed: item {item_text(each.item)}, handler {each.handler!r}: {error}{others}")
    shown = sum(number for _, number in causes[:SHOWN_MAX])
    if (hidden := max(count, len(failed)) - shown) > 0:
        yield Note(f"... and {hidden:,} more; {kept_by or '--json has them all'}.")


def _cause(failed: ItemFailed) -> Cause:
    error = failed.error
    if isinstance(error, FailedElsewhere):  # its text alone came: values are quoted in it
        return failed.handler, "", None, QUOTED.sub("''", str(error))
    lines = [f"{frame.f_code.co_filename}:{line}" for frame, line in walk_tb(error.__traceback__)]
    return cause_of(failed.handler, error, lines[-1] if lines else None)


def check_failed_file(failed: Path | None) -> None:
    """Raises ``SettingsError`` for a file of ``--failed`` that cannot be written, before the command does anything."""
    if failed is None:
        return
    if not failed.parent.is_dir():
        raise SettingsError(f"There is no folder {failed.parent} for {failed.name}: name another file with --failed.")
    try:
        is_new = not failed.exists()
        if is_new or failed.is_file():  # a pipe can be opened only once
            make_private(failed)
            failed.open("a").close()
    except OSError as error:
        raise SettingsError(f"--failed {failed} cannot be written: {error.strerror}. Name another file.") from None
    if is_new:
        failed.unlink()  # the command may still be refused, and would leave an empty file


@contextmanager
def failed_keys(app: App, failed: Path | None, *, goes_on: bool = False) -> Iterator[KeepFailed]:
    """Gives a function that writes the keys of failed items to a file, for ``repair --keys``.

    goes_on: the keys of an earlier run in this file are kept. Each call flushes, so that a killed run keeps its keys.
    """
    if failed is None:
        yield lambda _: None
        return
    make_private(failed)
    with failed.open("a" if goes_on else "w", encoding="utf-8") as lines:

        def keep(items: Sequence[ItemFailed]) -> None:
            keys = dict.fromkeys(each.item for each in items)
            lines.writelines(to_json(item_object(app, item)) + "\n" for item in keys)
            lines.flush()

        yield keep


def rows_lines(found: VerifiedRows, passed_over: Collection[RowKey] = ()) -> Iterator[Printed]:
    """The first differences, without the rows of ``passed_over``, and counts."""

    def row(shown: ShownRow | None) -> str:
        return "" if shown is None else values_text(dict(sorted(shown.items()))) or "no attributes"

    def sides(each: RowDifference) -> dict[str, str]:
        unseen = f"  ({unseen_text(each.unseen)})" if each.unseen else ""
        if each.what == UNFOUNDED:
            return {BOTH: f"{row(each.shown)}{unseen or f'  ({unseen_text({})})'}"}
        return {"shown": row(each.shown), "expected": f"{row(each.expected)}{unseen}"}

    different = [each for each in found.different if each.row not in passed_over]
    yield from difference_lines(different, lambda each: f"{each.what.capitalize()}: {item_text(each.row)}", sides)
    yield from failed_lines(found.failed)
    yield (
        f"{counted(found.rows, 'row')}: {len(found.different):,} different, {found.moving:,} moving; a handler failed "
        f"on {counted(len(found.failed), 'item')}."
    )
    if found.pending:
        yield _pending_line(found)
    if found.writers:
        items = counted(found.writers, "item")
        yield f"{items} of the application at keys of rows to which nothing contributes: no command changes them."


def corrected_lines(corrected: RowsCorrected) -> Iterator[Printed]:
    for each in corrected.remaining[:SHOWN_MAX]:
        yield Note(f"Not corrected: {item_text(each.row)}: {printable(str(each.why))}")
    rows = counted(len(corrected.corrected), "row")
    yield f"Corrected by the state: {rows}. Not corrected: {len(corrected.remaining):,}."


def reconciled_lines(rows: RowsReconciled) -> Iterator[Printed]:
    """The comparison and the corrections of rows at the end of a rebuild."""
    yield f"{counted(rows.compared.rows, 'row')} compared with the sum of all items."
    if rows.compared.pending:
        yield _pending_line(rows.compared)
    yield from corrected_lines(rows.corrected)


def reconciled_object(app: Application, rows: RowsReconciled | None) -> dict[str, Any]:
    """The same as JSON; empty if rows were not compared."""
    if rows is None:
        return {}
    return {"rows": rows.compared.rows, **_pending_object(rows.compared), **corrected_object(app, rows.corrected)}


def rows_object(app: Application, handlers: Sequence[str], found: VerifiedRows) -> dict[str, Any]:
    def row(each: ShownRow | None) -> Any:
        return None if each is None else encode(dict(each))["M"]

    different = [
        item_object(app, each.row)
        | {"what": each.what, "shown": row(each.shown), "expected": row(each.expected)}
        | ({"unseen": unseen_object(each.unseen)} if each.unseen else {})
        for each in found.different
    ]
    failed = [failed_object(app, each) for each in found.failed]
    counts = {"rows": found.rows, "moving": found.moving, **_pending_object(found)}
    counts |= {"items_of_writers": found.writers} if found.writers else {}
    return {"application": app.name, "handlers": [*handlers], **counts, "different": different, "failed": failed}


def _pending_line(found: VerifiedRows) -> str:
    them = "it" if found.pending == 1 else "them"
    rows = counted(found.pending, "row")
    return f"{rows} not compared: additions to {them} are pending. Next: streamfold buckets shows them."


def _pending_object(found: VerifiedRows) -> dict[str, int]:
    return {"pending_rows": found.pending} if found.pending else {}


def corrected_object(app: Application, corrected: RowsCorrected | None) -> dict[str, Any]:
    if corrected is None:
        return {"mended": None, "left": None}
    remaining = [item_object(app, each.row) | {"why": each.why} for each in corrected.remaining]
    return {"mended": [item_object(app, row) for row in corrected.corrected], "left": remaining}
