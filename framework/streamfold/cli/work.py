"""``streamfold work``: one process of a run that others carry too."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, redirect_stdout
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import IO, TYPE_CHECKING, Any

import click

from streamfold.app import App
from streamfold.batch.process import check_application
from streamfold.cli.engines import (
    REPORTED,
    Store,
    application_and_settings,
    as_json,
    make_runtime,
    open_store,
    state_options,
)
from streamfold.cli.fan_outs import tell_failed, with_fan_outs
from streamfold.cli.filling_output import print_led
from streamfold.cli.jobs import keys_text
from streamfold.cli.metered import metered
from streamfold.cli.output import echo
from streamfold.cli.repaired import check_failed_file, failed_keys
from streamfold.cli.shared_options import FilePath, check_one
from streamfold.cli.stream_lag import check_lag, lag_of, lag_options
from streamfold.cli.verified_rows import mended_report
from streamfold.cli.work_lines import failed_line, page_line, part_line
from streamfold.errors import NotStarted, SettingsError, shortened
from streamfold.jobs.job import Jobs
from streamfold.lifecycle.backfill import (
    REBUILD,
    FillingProgress,
    KeepFailed,
    RunHooks,
    Tell,
    end_job,
    job_parts,
    job_to_carry,
)
from streamfold.lifecycle.page import ItemFailed
from streamfold.lifecycle.row_repair import lead_rows
from streamfold.lifecycle.state_machine import definition
from streamfold.runtime import Runtime

LINE_LETTERS_MAX = 100
"""Of a line that is no number, in a message."""

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamfold.commit.outcome import Failure
    from streamfold.lifecycle.backfill import Filling


@click.command("work", short_help="Do parts of a run that backfill or rebuild began, here or on any machine.")
@click.argument("job", required=False, metavar="JOB")
@state_options
@click.option("--part", "parts", type=click.IntRange(min=0), multiple=True, metavar="N", help="Do this part only.")
@click.option(
    "--sharing",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="So many processes carry the run: this one takes its share of the rates.",
)
@lag_options
@click.option(
    "--failed",
    type=FilePath(),
    metavar="FILE",
    help="Add the keys of items that failed to this file, which repair --keys takes.",
)
@click.option("--end", is_flag=True, help="Do nothing but end the job. Its handlers are then filled, if all is done.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object a line.")
@click.option("--from-input", is_flag=True, hidden=True, help="Take the numbers of parts from standard input.")
@click.option(
    "--asl",
    is_flag=True,
    help="Print the Step Functions state machine that carries a run, and exit.",
)
def command(
    job: str | None,
    application: str,
    store: Store,
    tables: tuple[str, ...],
    parts: tuple[int, ...],
    sharing: int,
    max_lag: float | None,
    function: str | None,
    failed: Path | None,
    end: bool,
    json_output: bool,
    from_input: bool,
    asl: bool,
) -> None:
    """Do parts of a run that backfill or rebuild began, on this machine or any other.

    Without --part, every part that is left, in any order, and then end the job. A part is a segment of a table or a
    file of an export. Its cursor is in the state, so whoever is killed loses a page, and two that do the same part do
    no harm. With --part, for a scheduler that gives each machine its own, the job is left open: --end ends it.

    \b
    Exit codes:
      0  the parts are done
      1  a handler raised on some items
      2  it did not run, or not to its end

    \b
    Examples:
      streamfold backfill --runner elsewhere --engine dynamodb --table main=orders-prod --yes
      streamfold work 20260301-100000-a1b2 --engine dynamodb --table main=orders-prod --sharing 10
      streamfold work --asl > backfill.asl.json
    """
    check_one({"--part": parts, "--end": end, "--from-input": from_input, "--asl": asl})
    if asl:
        check_one({"--asl": asl, "JOB": job})
        echo(definition(), nl=False)
        return
    if job is None:
        raise click.UsageError("Missing argument 'JOB'.")
    check_lag(max_lag, function, is_local=store.engine == "embedded")
    check_failed_file(failed)
    app, settings = application_and_settings(application, tables)
    with closing(open_store(app, settings, store)) as opened:
        worker = _Worker(app, make_runtime(app, opened, store, settings, outside=True), job, sharing)
        worker.json_output = json_output
        worker.lag = lag_of(max_lag, function, worker.runtime.clock)
        if from_input:
            worker.from_input()
        elif end:
            sys.exit(worker.end())
        else:
            with failed_keys(app, failed, goes_on=True) as keep:
                sys.exit(worker.do(parts, keep))


class _Worker:
    """One process of a run."""

    def __init__(self, app: App, runtime: Runtime, identity: str, sharing: int) -> None:
        self.app = app
        self.gone = Event()  # whoever gives the parts
        self.json_output = False
        self.lag: Callable[[], str] = lambda: ""
        self.left: list[Failure] = []  # fan-outs that failed
        self.runtime = runtime.until(lambda: 0.0 if self.gone.is_set() else float("inf"))
        check_application(self.runtime, write=False)
        job = job_to_carry(Jobs(app.name, runtime.store, runtime.clock), identity)
        self.parts: Filling = job_parts(self.runtime, job, metered=metered(runtime.store), sharing=sharing)

    def do(self, numbers: Sequence[int], keep: KeepFailed) -> int:
        """Does these parts, or all that are left; returns the exit code. ``keep`` takes what failed."""
        self._heed(lambda _: None, keep)
        if wrong := [number for number in numbers if number >= self.parts.job.segments]:
            raise SettingsError(f"--part {wrong[0]}: the job has parts 0 to {self.parts.job.segments - 1}.")
        for number in numbers or _shuffled(self.parts.left()):
            self.parts.run_part(number)
        found = self.parts.progress
        failed = len(found.report.failed)
        told = {"job": self.parts.job.id, "read": found.read, "written": found.report.written, "failed": failed}
        keys = keys_text(found.read, exported=self.parts.export is not None)
        self._tell(told, f"{keys}, {found.report.written:,} parts of items written, {failed:,} failed.")
        code = 0 if numbers else self.end()
        tell_failed(self.left)
        return REPORTED if failed or self.left else code

    def _heed(self, tell: Tell, keep: KeepFailed) -> None:
        """Has each page told and kept, and its fan-outs worked on."""
        self.parts.hooks = RunHooks(with_fan_outs(self.runtime, tell, self.left), keep, self.lag)

    def end(self) -> int:
        """Ends the job, a rebuild with its rows led to their items; returns the exit code.

        Raises ``SettingsError`` while parts are left.
        """
        if left := self.parts.left():
            raise SettingsError(f"{len(left)} parts of job {self.parts.job.id} are not done, {left[0]} is the first.")
        job = self.parts.job
        rows = lead_rows(self.runtime, job.handlers) if job.what == REBUILD else None
        ended = end_job(self.runtime, self.parts.job.id)
        counts = ", ".join(f"{number:,} {word}" for word, number in ended.counts.items())
        led = {} if rows is None else {"rows": rows.compared.rows, **mended_report(self.app, rows.mended)}
        self._tell({"job": ended.id, "ended": True, **ended.counts, **led}, f"Job {ended.id} has ended: {counts}.")
        if rows is not None and not self.json_output:
            print_led(rows)
        return REPORTED if rows is not None and rows.mended.left else 0

    def _tell(self, told: Mapping[str, Any], text: str) -> None:
        echo(as_json(told) if self.json_output else text)

    def from_input(self) -> None:
        """Does the parts whose numbers come in, and prints what became of each page.

        What handlers print goes to standard error. When the input ends, the page that was begun is the last.
        """
        told = sys.stdout
        self._heed(self._teller(told), self._keeper(told))
        with redirect_stdout(sys.stderr):
            for number in self._given():
                done = self._done(number)
                echo(part_line(number, done=done), file=told)
        tell_failed(self.left)

    def _done(self, number: int) -> bool:
        try:
            return self.parts.run_part(number, self.runtime).done
        except NotStarted:
            return False

    def _teller(self, told: IO[str]) -> Tell:
        def tell(progress: FillingProgress) -> None:
            progress.report.failed = []  # they were told before
            echo(page_line(self.app, progress), file=told)
            self.parts.progress = FillingProgress()

        return tell

    def _keeper(self, told: IO[str]) -> KeepFailed:
        def keep(failed: Sequence[ItemFailed]) -> None:
            if failed:
                echo(failed_line(self.app, failed), file=told)

        return keep

    def _given(self) -> Iterator[int]:
        """The numbers of standard input, until it ends."""
        queue: SimpleQueue[str | None] = SimpleQueue()

        def read() -> None:
            for line in sys.stdin or ():
                queue.put(line)
            self.gone.set()
            queue.put(None)

        Thread(target=read, daemon=True).start()
        while (line := queue.get()) is not None:
            number = line.strip()
            if not (number.isdecimal() and number.isascii() and int(number) < self.parts.job.segments):
                raise SettingsError(
                    f"Standard input has the line {shortened(number, LINE_LETTERS_MAX)!r}: expected the number of a "
                    f"part, 0 to {self.parts.job.segments - 1}."
                )
            yield int(number)


def _shuffled(numbers: list[int]) -> list[int]:
    """In an order of this process's own, so that several seldom do the same part."""
    from random import shuffle

    shuffle(numbers)
    return numbers
