"""What a run over all items prints: an estimate before, a progress bar meanwhile, and counts at its end."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from streamfold.app import App
from streamfold.cli.engines import as_json
from streamfold.cli.filling_options import FillingOptions
from streamfold.cli.grids import counted
from streamfold.cli.jobs import handlers_text, keys_text
from streamfold.cli.output import echo
from streamfold.cli.repaired import failed_object, print_failed
from streamfold.cli.verified_rows import mended_report, print_mended
from streamfold.jobs.job import Job
from streamfold.keys.table import Table
from streamfold.lifecycle.backfill import Estimate, FillingProgress
from streamfold.lifecycle.row_repair import RowsLed

TABLES, EXPORT = "the tables", "the export"
COUNTS = ("read", "written", "equal", "uncompared", "failed")
"""What a job counts, by word."""
KEPT_BY = "--failed FILE keeps their keys"


def print_estimate(
    expected: Estimate, names: Sequence[str], tables: Sequence[Table], asked: FillingOptions, *, counted_by: str | None
) -> None:
    """Prints what a run is expected to do, and on DynamoDB what it costs.

    counted_by: what says how many items there are; None for a local state, which costs nothing.
    """
    counted = "counted" if counted_by is None else f"as {counted_by} {'says' if counted_by == EXPORT else 'say'}"
    counted += ", some hours old" if counted_by == TABLES else ""
    _say(f"{asked.what} of {handlers_text(names)} over {', '.join(table.name for table in tables)}")
    _say(
        f"  items        {expected.items:,} ({counted}); of {expected.sampled:,} looked at, handlers read "
        f"{expected.fitting:.0%}"
    )
    _say(f"  to write     {expected.writing:.0%} of what they read")
    if counted_by is None:
        return
    dollars = expected.dollars(asked.price_write, asked.price_read)
    _say(f"  write units  {expected.write_units:,}")
    _say(f"  read units   {expected.read_units:,}")
    _say(f"  cost         ${dollars:,.2f} on demand, at ${asked.price_write} and ${asked.price_read} a million")
    seconds = expected.seconds(asked.read_units, asked.write_units)
    if seconds is not None:
        _say(f"  time         {seconds // 3600} h {seconds % 3600 // 60} min at the given rates")


@contextmanager
def filling_bar(expected: Estimate, *, shown: bool) -> Iterator[Callable[[FillingProgress], None]]:
    """Gives a function that shows the progress of a run: a bar on a terminal, and anywhere else why the run waits."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    visible = shown and console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not visible) as bar:
        task, told = bar.add_task("items", total=expected.items or None), ""

        def tell(progress: FillingProgress) -> None:
            nonlocal told
            report = progress.report
            text = f"{progress.read:,} read, {report.written:,} written, {len(report.failed):,} failed"
            bar.update(task, completed=min(progress.read, expected.items), description=progress.waits or text)
            if not visible and progress.waits and not told:
                _say(f"Waiting: {progress.waits}.")
            told = progress.waits

        yield tell


def tell_gone_on(job: Job) -> None:
    """Says that a run goes on which may have been begun by other code."""
    _say(
        f"Job {job.id} goes on where it was; what it did before was derived by the code of then. If that has changed, "
        f"begin anew: streamfold jobs --end {job.id}, and the same command again."
    )


def print_filled(
    app: App,
    job: Job,
    progress: FillingProgress,
    chains: int,
    asked: FillingOptions,
    *,
    swept: bool = True,
    rows: RowsLed | None = None,
) -> None:
    """Prints what a run did, and the first of the items that failed.

    ``swept``: it went over the state too. ``rows``: what became of rows at its end; None: they were not compared.
    """
    counts = {word: job.counts.get(word, 0) for word in COUNTS}
    failed = progress.report.failed
    if asked.json_output:
        failures = [failed_object(app, each) for each in failed]
        led = {} if rows is None else {"rows": rows.compared.rows, **mended_report(app, rows.mended)}
        echo(as_json({"job": job.id, **counts, "failures": failures, "chains_failed": chains, **led}))
        return
    uncompared = counts["uncompared"]
    again = f"{counted(uncompared, 'part')} not comparable, derived again, " if uncompared else ""
    echo(
        f"{asked.what}: {keys_text(counts['read'], exported=asked.export is not None, swept=swept)}, "
        f"{counted(counts['written'] - uncompared, 'part')} written, {again}{counts['equal']:,} right before, "
        f"{counts['failed']:,} failed (job {job.id})."
    )
    if progress.unkeyed:
        _say(f"{progress.unkeyed:,} ledger items with very long keys were passed over.")
    print_failed(failed, counts["failed"], KEPT_BY)
    if rows is not None:
        print_led(rows)


def print_led(rows: RowsLed) -> None:
    """Prints what became of rows at the end of a rebuild."""
    echo(f"{counted(rows.compared.rows, 'row')} compared with the sum of all items.")
    print_mended(rows.mended)


def print_unkept(job: Job, progress: FillingProgress, asked: FillingOptions) -> None:
    """Prints how many keys the file of ``--failed`` lacks, because a process ended before it reported them."""
    lacking = job.counts.get("failed", 0) - progress.failed
    if asked.failed is not None and lacking > 0:
        _say(
            f"The keys of {lacking:,} failed items are not in {asked.failed}: a process ended before it told them. "
            "streamfold verify finds them."
        )


def _say(text: str) -> None:
    echo(text, err=True)
