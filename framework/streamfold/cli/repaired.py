"""Repairs items, and says what became of them: in lines, as JSON, and as a file of the keys that failed."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.cli.engines import as_json
from streamfold.cli.grids import counted
from streamfold.cli.items import item_line, item_object, item_text
from streamfold.cli.opened import OpenedState, followed_chains
from streamfold.cli.output import echo
from streamfold.cli.progress import item_progress
from streamfold.cli.work_lines import error_text
from streamfold.errors import SettingsError, printable
from streamfold.lifecycle.backfill import KeepFailed
from streamfold.lifecycle.page import ItemFailed, PageReport, Pages
from streamfold.lifecycle.sources import pages
from streamfold.records.change import ItemKey
from streamfold.routes.application import Application
from streamfold.routes.route import Route
from streamfold.settings.readers import make_private

SHOWN_MAX = 100
"""Items of a table for a person; ``--json`` has every one."""


class GivenItems(NamedTuple):
    """Items to be repaired: an export may name more of them than fit into memory."""

    items: Iterable[ItemKey]
    number: int  # of all, for the progress

    @classmethod
    def each_once(cls, items: Iterable[ItemKey]) -> "GivenItems":
        """Items that fit into memory."""
        known = list(dict.fromkeys(items))
        return cls(known, len(known))


@dataclass(slots=True)
class RepairedItems:
    """What became of the items of a repair."""

    dry_run: bool
    given: int = 0
    report: PageReport = field(default_factory=PageReport)
    chains: int = 0  # failures of handlers behind the rows of a local state

    @property
    def unread(self) -> int:
        """Items that none of the handlers reads."""
        return self.given - self.report.items


def repaired_items(
    opened: OpenedState, routes: Sequence[Route], items: GivenItems, *, dry_run: bool, shown: bool
) -> RepairedItems:
    """Leads items to their sources, for some handlers, and lets the chains of a local state follow."""
    names = {route.name for route in routes}
    led = Pages(opened.runtime, names, always=not dry_run, dry_run=dry_run, sources_only=False)
    found = RepairedItems(dry_run)
    with item_progress("repairing", items.number, shown=shown) as advance:
        for page in pages(items.items):
            found.given += len(page)
            found.report.add(led.reconcile(page))
            advance(len(page))
    if not dry_run:
        found.chains = len(followed_chains(opened))
    return found


def failed_line(failed: ItemFailed) -> str:
    """A failed item for a person."""
    return f"Failed: item {item_text(failed.item)}, handler {failed.handler!r}: {printable(error_text(failed.error))}"


def failed_object(app: Application, failed: ItemFailed) -> dict[str, Any]:
    """A failed item as JSON."""
    return {**item_object(app, failed.item), "handler": failed.handler, "error": error_text(failed.error)}


def print_repaired(app: App, found: RepairedItems, *, json_output: bool) -> None:
    """Prints what became of the items, as lines or as one JSON object."""
    if json_output:
        echo(as_json({"dry_run": found.dry_run, "unread": found.unread, **counts_of(app, found)}))
        return
    print_failed(found.report.failed)
    if found.unread:
        echo(f"{found.unread:,} of the keys are read by none of the handlers.", err=True)
    _print_counts(found)


def print_failed(failed: Sequence[ItemFailed], count: int = 0, kept_by: str = "--json has them all") -> None:
    """Prints the first of the failed items, and how many more there are.

    count: of all failed items, where not each is at hand.
    kept_by: where the others are found.
    """
    shown = failed[:SHOWN_MAX]
    for each in shown:
        echo(failed_line(each), err=True)
    if (left := max(count, len(failed)) - len(shown)) > 0:
        echo(f"... and {left:,} more; {kept_by}.", err=True)


def check_failed_file(file: Path | None) -> None:
    """Raises ``SettingsError`` for a file of ``--failed`` that cannot be made: before anything is done."""
    if file is None:
        return
    if not file.parent.is_dir():
        raise SettingsError(f"There is no folder {file.parent} for {file.name}: name another file with --failed.")
    try:
        is_new = not file.exists()
        if is_new or file.is_file():  # another thing, such as a pipe, is opened once
            make_private(file)
            file.open("a").close()
    except OSError as error:
        raise SettingsError(f"--failed {file} cannot be written: {error.strerror}. Name another file.") from None
    if is_new:
        file.unlink()  # the command may be refused yet


@contextmanager
def failed_keys(app: App, file: Path | None, *, goes_on: bool = False) -> Iterator[KeepFailed]:
    """Gives a function that writes the keys of failed items to a file, which ``repair --keys`` takes.

    goes_on: keys that an earlier run has left there are kept. Each call is on the disk when it returns to the system,
    so that a run that is killed leaves what it has found.
    """
    if file is None:
        yield lambda _: None
        return
    make_private(file)
    with file.open("a" if goes_on else "w", encoding="utf-8") as lines:

        def keep(failed: Sequence[ItemFailed]) -> None:
            lines.writelines(item_line(app, item) + "\n" for item in dict.fromkeys(each.item for each in failed))
            lines.flush()

        yield keep


def _print_counts(found: RepairedItems) -> None:
    report = found.report
    items, counts = counted(report.items, "item"), f"{report.equal:,} equal, {len(report.failed):,} failed"
    if found.dry_run:
        for each in report.differing[:SHOWN_MAX]:
            echo(f"{item_text(each.item)}, handler {each.handler!r} differs")
        others = f"; {counted(report.uncompared, 'part')} not comparable, derived again" if report.uncompared else ""
        pending = f", {len(report.pending):,} with pending work" if report.pending else ""
        different = report.written - report.uncompared - len(report.pending)
        echo(f"Dry run of {items}: {different:,} different{pending}, {counts}{others}. Nothing was written.")
        return
    written, rows = counted(report.written, "part"), counted(report.rows, "write")
    echo(f"{items}: {written} written, {counts}; {rows} of rows.")


def counts_of(app: App, found: RepairedItems) -> dict[str, Any]:
    """The counts of a repair as JSON."""
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
