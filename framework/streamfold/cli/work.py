"""``streamfold work``: one process of a run over all items, its lines, and the parent that joins them.

A process gets one segment of a run at a time, and prints a line for each page. Nothing is pickled. If it is killed, one
page is lost and another process replaces it. If its input ends, because its parent is gone, it ends after its page.
"""

import json
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from queue import SimpleQueue
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

import click

from streamfold.app import App
from streamfold.batch.process import check_application
from streamfold.cli import repair, shell
from streamfold.cli.items import item_of
from streamfold.cli.jobs import keys_text, note_failed, with_fan_outs
from streamfold.cli.output import Report, counted, echo, note, write
from streamfold.cli.session import GivenOptions, Session, metered
from streamfold.derivations.expected import ItemFailed
from streamfold.errors import EngineError, NotStarted, SettingsError, shortened
from streamfold.jobs.job import Jobs
from streamfold.jobs.rates import StreamLag, iterator_age
from streamfold.lifecycle.backfill import (
    REBUILD,
    BackfillProgress,
    KeepFailed,
    RunHooks,
    ShowProgress,
    definition,
    end_job,
    job_segments,
    job_to_carry,
)
from streamfold.lifecycle.page import PageReport
from streamfold.lifecycle.row_repair import reconcile_rows
from streamfold.records.values import to_json

if TYPE_CHECKING:
    from streamfold.cli.output import Printed
    from streamfold.commit.outcome import Failure
    from streamfold.lifecycle.backfill import BackfillRun

LINE_LETTERS_MAX = 100
"""The most letters of a bad line in a message."""
PART, DONE = "part", "done"
COUNTS = ("items", "written", "equal", "uncompared", "rows")
DEATHS_MAX = 3
"""Processes that may be killed at one segment. Without a bound, a segment that kills each would be retried for ever."""
LOOK_SECONDS = 0.2
STOP_SECONDS = 30
"""The longest that a process may take to end its page before it is killed: a handler may wait for ever."""
TakesLine = Callable[[Mapping[str, Any]], None]


def _lag_error(_: object, values: Mapping[str, Any]) -> str | None:
    if (values["max_lag"] is None) != (values["function"] is None):
        return "--max-lag SECONDS and --function NAME belong together: give both, or none."
    if values["function"] is not None and values["engine"] == "embedded":
        return "--max-lag reads a function's lag, and no function works on a local state."
    return None


LAG_RULE = shell.Rule(_lag_error)


def lag_of(seconds_max: float | None, function: str | None, clock: Callable[[], float]) -> Callable[[], str]:
    """A function that gives the reason why a run has to wait for the live stream; "" if it need not wait."""
    if seconds_max is None or function is None:
        return lambda: ""
    return StreamLag(function, seconds_max, iterator_age(function), clock)


@shell.command(
    "work",
    "Do parts of a run that backfill or rebuild began, here or on any machine.",
    click.argument("job", required=False, metavar="JOB"),
    shell.STATE_OPTIONS,
    shell.number(
        "--part", "Do this part only. May be repeated.", 0, variable="parts", multiple=True, show_default=False
    ),
    shell.number("--sharing", "The number of processes that share the rates of the run.", 1, default=1),
    shell.LAG,
    shell.file("--failed", "Append the keys of failed items to this file, for repair --keys."),
    shell.flag("--end", "Only end the job, if all of its parts are done. Its handlers are then filled."),
    shell.json_flag("Print one JSON object a line."),
    shell.flag("--from-input", "Take the numbers of parts from standard input.", hidden=True),
    shell.flag("--asl", "Print a Step Functions state machine that does a run, and exit."),
    shell.exclusive("--part", "--end", "--from-input", "--asl"),
    shell.exclusive("--asl", "JOB"),
    shell.refuses(
        *("--end", "--failed", "--max-lag", "--sharing"),
        why="{other} is for parts that are done, and --end does none: leave it out.",
    ),
    LAG_RULE,
    outside=True,
)
def work(opened: Session) -> Report:
    """Do parts of a run that backfill or rebuild began, on this machine or any other.

    Without --part, the command does every remaining part, in any order, and then ends the job. A part is a segment of a
    table or a file of an export. Its cursor is in the state, so a process that is killed loses one page, and two
    processes may do the same part. Use --part for a scheduler that gives parts to machines; the job then stays open
    until --end.

    \b
    Exit codes:
      0  the parts are done
      1  a handler raised on some items
      2  the command did not run, or not to its end

    \b
    Examples:
      streamfold backfill --runner elsewhere --engine dynamodb --table main=orders-prod --yes
      streamfold work 20260301-100000-a1b2 --engine dynamodb --table main=orders-prod --sharing 10
      streamfold work --asl > backfill.asl.json
    """
    given = opened.given
    if given.asl:
        text = definition().removesuffix("\n")
        return Report([text], text)
    if given.job is None:
        raise click.UsageError("Missing argument 'JOB'.")
    repair.check_failed_file(given.failed)
    worker = _Worker(opened)
    if given.from_input:
        worker.from_input()
        return Report()
    if given.end:
        return worker.end()
    with repair.failed_keys(opened.app, given.failed, goes_on=True) as keep:
        return worker.do(given.parts, keep)


class _Worker:
    """One process of a run."""

    def __init__(self, opened: Session) -> None:
        self.opened = opened
        self.app = opened.app
        self.gone = Event()  # the parent process, which gives the segments
        self.failures: list[Failure] = []  # fan-outs that failed
        self.runtime = opened.runtime.until(lambda: 0.0 if self.gone.is_set() else float("inf"))
        check_application(self.runtime, write=False)
        job, spent = job_to_carry(Jobs.of(self.runtime), opened.given.job), metered(opened.engine)
        self.run: BackfillRun = job_segments(self.runtime, job, metered=spent, sharing=opened.given.sharing)

    def do(self, numbers: Sequence[int], keep: KeepFailed) -> Report:
        """Does these segments, or all that remain. ``keep`` gets the failed items."""
        self._hook(lambda _: None, keep)
        if wrong := [number for number in numbers if number >= self.run.job.segments]:
            raise SettingsError(f"--part {wrong[0]}: the job has parts 0 to {self.run.job.segments - 1}.")
        for number in numbers or _shuffled(self.run.pending()):
            self.run.run_segment(number)
        found = self.run.progress
        failed = len(found.report.failed)
        keys = keys_text(found.read, exported=self.run.export is not None)
        line = f"{keys}, {counted(found.report.written, 'contribution')} written, {failed:,} failed."
        counts = {"job": self.run.job.id, "read": found.read, "written": found.report.written, "failed": failed}
        write(Report([line], counts), self.opened.json_file)  # before the end of the job, which may be refused
        ended = Report() if numbers else self.end()
        note_failed(self.failures)
        return ended._replace(reported=bool(failed or self.failures or ended.reported))

    def _hook(self, show: ShowProgress, keep: KeepFailed) -> None:
        """Prints and keeps each page, and processes its fan-outs."""
        given = self.opened.given
        lag = lag_of(given.max_lag, given.function, self.runtime.clock)
        following = with_fan_outs(self.runtime, show, self.failures)
        self.run.hooks = RunHooks(following, keep, lag)

    def end(self) -> Report:
        """Ends the job; for a rebuild, corrects its rows first. Raises ``SettingsError`` while parts remain."""
        job = self.run.job
        if remaining := self.run.pending():
            raise SettingsError(f"{len(remaining)} parts of job {job.id} are not done, {remaining[0]} is the first.")
        rows = reconcile_rows(self.runtime, job.handlers) if job.what == REBUILD else None
        ended = end_job(self.runtime, job.id)
        counts = ", ".join(f"{number:,} {word}" for word, number in ended.counts.items())
        lines: list[Printed] = [
            f"Job {ended.id} has ended: {counts}.",
            *(repair.reconciled_lines(rows) if rows else ()),
        ]
        found = {"job": ended.id, "ended": True, **ended.counts, **repair.reconciled_object(self.app, rows)}
        return Report(lines, found, bool(rows and rows.corrected.remaining))

    def from_input(self) -> None:
        """Does the segments of the numbers on standard input, and prints a line for each page.

        Prints of handlers go to standard error, or they would break the lines. The current page is the last one when
        the input ends.
        """
        output = sys.stdout

        def show(progress: BackfillProgress) -> None:
            progress.report.failed = []  # they were printed before
            echo(page_line(self.app, progress), file=output)
            self.run.progress = BackfillProgress()

        def keep(failed: Sequence[ItemFailed]) -> None:
            if failed:
                echo(failed_line(self.app, failed), file=output)

        self._hook(show, keep)
        with redirect_stdout(sys.stderr):
            for number in self._given():
                try:
                    done = self.run.run_segment(number, self.runtime).done
                except NotStarted:
                    done = False
                echo(to_json({PART: number, DONE: done}), file=output)
        note_failed(self.failures)

    def _given(self) -> Iterator[int]:
        """The numbers of standard input, until it ends.

        A thread reads them: the end of the input is then noticed within a page, and not only behind the segment.
        """
        queue: SimpleQueue[str | None] = SimpleQueue()

        def read() -> None:
            for line in sys.stdin or ():
                queue.put(line)
            self.gone.set()
            queue.put(None)

        Thread(target=read, daemon=True).start()
        while (line := queue.get()) is not None:
            number = line.strip()
            if not (number.isdecimal() and number.isascii() and int(number) < self.run.job.segments):
                raise SettingsError(
                    f"Standard input has the line {shortened(number, LINE_LETTERS_MAX)!r}: expected the number of a "
                    f"part, 0 to {self.run.job.segments - 1}."
                )
            yield int(number)


def _shuffled(numbers: list[int]) -> list[int]:
    """The numbers in random order, so that several processes seldom do the same segment."""
    from random import shuffle

    shuffle(numbers)
    return numbers


def page_line(app: App, found: BackfillProgress) -> str:
    """The outcome of a page, as a line from one process to another."""
    report = found.report
    failed = [repair.failed_object(app, each) for each in report.failed]
    counts = {name: getattr(report, name) for name in COUNTS}
    return to_json({"read": found.read, "unkeyed": found.unkeyed, "waits": found.waits, **counts, "failed": failed})


def failed_line(app: App, failed: Sequence[ItemFailed]) -> str:
    """The failed items of a page, printed before its cursor moves: a kill then repeats them instead of losing them."""
    return page_line(app, BackfillProgress(report=PageReport(failed=list(failed))))


def add_page(app: App, run: "BackfillRun", line: Mapping[str, Any]) -> None:
    """Adds the line of another process to the progress of a run, and keeps the failed items."""
    progress = run.progress
    failed = [
        ItemFailed(
            item_of(app, each, "a line of another process"), each["handler"], repair.FailedElsewhere(each["error"])
        )
        for each in line["failed"]
    ]
    run.hooks.keep(failed)
    progress.waits = line["waits"]
    progress.unkeyed += line["unkeyed"]
    run.count(line["read"], PageReport(failed=failed, **{name: line[name] for name in COUNTS}))


def joined(app: App, run: "BackfillRun", given: GivenOptions, processes: int) -> None:
    """Does the segments of a run in several processes, and adds their lines to its progress.

    Raises ``EngineError`` if one of them stops for another reason than a kill; it has printed why.
    """

    def take(line: Mapping[str, Any]) -> None:
        if PART in line:
            run.progress.done += bool(line[DONE])
            return
        add_page(app, run, line)
        run.hooks.show(run.progress)

    Workers(worker_command(run.job.id, given, processes), run.pending(), processes, take).run()


def worker_command(job: str, given: GivenOptions, processes: int) -> list[str]:
    """The command of one process of a run."""
    store, lag = given.store, given.max_lag
    place = ["--engine", store.engine, *(["--endpoint-url", store.endpoint_url] if store.endpoint_url else [])]
    named = [text for table in given.tables for text in ("--table", table)]
    heeds = ["--max-lag", str(lag), "--function", str(given.function)] if lag is not None else []
    return [
        *(sys.executable, "-m", "streamfold", "work", job, "--app", given.application, *place, *named, *heeds),
        *("--from-input", "--sharing", str(processes)),
    ]


class Workers:
    """Processes that do the segments of a run. ``take`` gets each of their lines, one at a time."""

    def __init__(self, command: Sequence[str], run: Iterable[int], processes: int, take: TakesLine) -> None:
        self.command = command
        self.segments = deque(run)
        self.take = take
        self.threads = [Thread(target=self._work, daemon=True) for _ in range(min(processes, len(self.segments)))]
        self.running: list[subprocess.Popen[str]] = []
        self.deaths: Counter[int] = Counter()
        self.errors: list[Exception] = []
        self.stopped = Event()
        self._lock = Lock()

    def run(self) -> None:
        """Does every segment. Raises the first error, after all processes have ended."""
        for thread in self.threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in self.threads):
                for thread in self.threads:
                    thread.join(LOOK_SECONDS)
        finally:
            self._stop()
        if self.errors:
            raise self.errors[0]

    def _work(self) -> None:
        """The work of one thread: gives segments to a process, and begins another process when that one ends."""
        process: subprocess.Popen[str] | None = None
        try:
            while not self.stopped.is_set() and self.segments:
                try:
                    number = self.segments.popleft()
                except IndexError:
                    break
                process = process or self._begin()
                if not self._done(process, number):
                    self._died(process, number)
                    process = None
        except Exception as error:  # noqa: BLE001 - a thread's error is raised by the one that waits for it
            self.errors.append(error)
            self.stopped.set()
        finally:
            if process is not None:
                _end(process, read=False)

    def _begin(self) -> "subprocess.Popen[str]":
        """A new process in a session of its own. Ctrl-C would otherwise kill it within a page, instead of after it."""
        process = subprocess.Popen(  # noqa: S603 - this very command
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        with self._lock:
            self.running.append(process)
        return process

    def _done(self, process: "subprocess.Popen[str]", number: int) -> bool:
        """Gives a segment to a process; returns whether the process did all of it."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
        except (OSError, ValueError):
            return False
        for text in process.stdout:
            try:
                line = json.loads(text)
            except ValueError:
                line = None
            if not isinstance(line, dict):
                raise EngineError(f"A process of the run wrote a line that is no JSON object: {shortened(text)}")
            with self._lock:
                self.take(line)
            if PART in line:
                return bool(line[DONE])
        return False

    def _died(self, process: "subprocess.Popen[str]", number: int) -> None:
        """Handles a process that ended within a segment. If it was killed, another process does the segment.

        An exit code means an error that the process has printed: another process would meet the same error.
        """
        _end(process, read=False)
        if self.stopped.is_set():
            return
        self.deaths[number] += 1
        if process.returncode >= 0 or self.deaths[number] >= DEATHS_MAX:
            raise EngineError(
                f"A process of the run stopped with code {process.returncode} at part {number}: see its message above. "
                "Its writes are kept; the same command goes on from there."
            )
        note(f"A process was killed (signal {-process.returncode}); another goes on with its part.")
        self.segments.append(number)

    def _stop(self) -> None:
        self.stopped.set()
        with self._lock:
            running = list(self.running)
        for process in running:
            _end(process)
        for thread in self.threads:
            thread.join(LOOK_SECONDS)


def _end(process: "subprocess.Popen[str]", *, read: bool = True) -> None:
    """Ends a process after its page, and waits for it. ``read``: its output is still read."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError):  # it is gone already
        process.stdin.close()
    if not read:
        process.stdout.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
