"""``streamfold work``: one process of a run over all items, the lines that it prints, and how such processes are begun.

A process is given one part of a run at a time, and prints its pages. Nothing is pickled. One that is killed costs a
page, and another takes its place. One whose input ends, because the process that began it is gone, ends after its page.
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
from streamfold.cli import shell
from streamfold.cli.items import item_of
from streamfold.cli.jobs import keys_text, note_failed, with_fan_outs
from streamfold.cli.output import Report, echo, note, write
from streamfold.cli.repair import FailedElsewhere, check_failed_file, failed_keys, failed_object
from streamfold.cli.session import GivenOptions, Session, metered
from streamfold.cli.verify import reconciled_lines, reconciled_object
from streamfold.errors import EngineError, NotStarted, SettingsError, shortened
from streamfold.jobs.job import Jobs
from streamfold.jobs.rates import StreamLag, iterator_age
from streamfold.lifecycle.backfill import (
    REBUILD,
    BackfillProgress,
    KeepFailed,
    RunHooks,
    ShowProgress,
    end_job,
    job_segments,
    job_to_carry,
)
from streamfold.lifecycle.page import ItemFailed, PageReport
from streamfold.lifecycle.row_repair import reconcile_rows
from streamfold.lifecycle.state_machine import definition
from streamfold.records.encoded import to_json

if TYPE_CHECKING:
    from streamfold.cli.output import Printed
    from streamfold.commit.outcome import Failure
    from streamfold.lifecycle.backfill import BackfillRun

LINE_LETTERS_MAX = 100
"""Of a line that is no number, in a message."""
PART, DONE = "part", "done"
COUNTS = ("items", "written", "equal", "uncompared", "rows")
DEATHS_MAX = 3
"""Processes in a row that may die of one part, before the run stops."""
LOOK_SECONDS = 0.2
STOP_SECONDS = 30
"""How long a process may take to end its page, before it is killed."""
TakesLine = Callable[[Mapping[str, Any]], None]


def _lag_error(_: object, values: Mapping[str, Any]) -> str | None:
    if (values["max_lag"] is None) != (values["function"] is None):
        return "--max-lag SECONDS and --function NAME belong together: give both, or none."
    if values["function"] is not None and values["engine"] == "embedded":
        return "--max-lag looks at a function's lag, and no function works on a local state."
    return None


LAG_RULE = shell.Rule(_lag_error)


def lag_of(seconds_max: float | None, function: str | None, clock: Callable[[], float]) -> Callable[[], str]:
    """Why a run has to wait for the live stream, if that was asked for."""
    if seconds_max is None or function is None:
        return lambda: ""
    return StreamLag(function, seconds_max, iterator_age(function), clock)


@shell.command(
    "work",
    "Do parts of a run that backfill or rebuild began, here or on any machine.",
    click.argument("job", required=False, metavar="JOB"),
    shell.STATE_OPTIONS,
    shell.number("--part", "Do this part only.", 0, variable="parts", multiple=True, show_default=False),
    shell.number("--sharing", "So many processes carry the run: this one takes its share of the rates.", 1, default=1),
    shell.LAG,
    shell.file("--failed", "Add the keys of items that failed to this file, which repair --keys takes."),
    shell.flag("--end", "Do nothing but end the job. Its handlers are then filled, if all is done."),
    shell.json_flag("Print one JSON object a line."),
    shell.flag("--from-input", "Take the numbers of parts from standard input.", hidden=True),
    shell.flag("--asl", "Print the Step Functions state machine that carries a run, and exit."),
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
    given = opened.given
    if given.asl:
        text = definition().removesuffix("\n")
        return Report([text], text)
    if given.job is None:
        raise click.UsageError("Missing argument 'JOB'.")
    check_failed_file(given.failed)
    worker = _Worker(opened)
    if given.from_input:
        worker.from_input()
        return Report()
    if given.end:
        return worker.end()
    with failed_keys(opened.app, given.failed, goes_on=True) as keep:
        return worker.do(given.parts, keep)


class _Worker:
    """One process of a run."""

    def __init__(self, opened: Session) -> None:
        self.opened = opened
        self.app = opened.app
        self.gone = Event()  # the process that gives the parts
        self.left: list[Failure] = []  # fan-outs that failed
        self.runtime = opened.runtime.until(lambda: 0.0 if self.gone.is_set() else float("inf"))
        check_application(self.runtime, write=False)
        job, spent = job_to_carry(Jobs.of(self.runtime), opened.given.job), metered(opened.engine)
        self.parts: BackfillRun = job_segments(self.runtime, job, metered=spent, sharing=opened.given.sharing)

    def do(self, numbers: Sequence[int], keep: KeepFailed) -> Report:
        """Does these parts, or all that remain. ``keep`` takes what failed."""
        self._hook(lambda _: None, keep)
        if wrong := [number for number in numbers if number >= self.parts.job.segments]:
            raise SettingsError(f"--part {wrong[0]}: the job has parts 0 to {self.parts.job.segments - 1}.")
        for number in numbers or _shuffled(self.parts.left()):
            self.parts.run_segment(number)
        found = self.parts.progress
        failed = len(found.report.failed)
        keys = keys_text(found.read, exported=self.parts.export is not None)
        line = f"{keys}, {found.report.written:,} parts of items written, {failed:,} failed."
        counts = {"job": self.parts.job.id, "read": found.read, "written": found.report.written, "failed": failed}
        write(Report([line], counts), self.opened.json_file)  # now: the job may not be ended yet
        ended = Report() if numbers else self.end()
        note_failed(self.left)
        return ended._replace(reported=bool(failed or self.left or ended.reported))

    def _hook(self, show: ShowProgress, keep: KeepFailed) -> None:
        """Has each page printed and kept, and its fan-outs worked on."""
        given = self.opened.given
        lag = lag_of(given.max_lag, given.function, self.runtime.clock)
        following = with_fan_outs(self.runtime, show, self.left)
        self.parts.hooks = RunHooks(following, keep, lag)

    def end(self) -> Report:
        """Ends the job, a rebuild with its rows led to their items. Raises ``SettingsError`` while parts remain."""
        job = self.parts.job
        if left := self.parts.left():
            raise SettingsError(f"{len(left)} parts of job {job.id} are not done, {left[0]} is the first.")
        rows = reconcile_rows(self.runtime, job.handlers) if job.what == REBUILD else None
        ended = end_job(self.runtime, job.id)
        counts = ", ".join(f"{number:,} {word}" for word, number in ended.counts.items())
        lines: list[Printed] = [f"Job {ended.id} has ended: {counts}.", *(reconciled_lines(rows) if rows else ())]
        found = {"job": ended.id, "ended": True, **ended.counts, **reconciled_object(self.app, rows)}
        return Report(lines, found, bool(rows and rows.corrected.left))

    def from_input(self) -> None:
        """Does the parts whose numbers come in, and prints what became of each page.

        What handlers print goes to standard error. When the input ends, the page that was begun is the last.
        """
        output = sys.stdout

        def show(progress: BackfillProgress) -> None:
            progress.report.failed = []  # they were printed before
            echo(page_line(self.app, progress), file=output)
            self.parts.progress = BackfillProgress()

        def keep(failed: Sequence[ItemFailed]) -> None:
            if failed:
                echo(failed_line(self.app, failed), file=output)

        self._hook(show, keep)
        with redirect_stdout(sys.stderr):
            for number in self._given():
                try:
                    done = self.parts.run_segment(number, self.runtime).done
                except NotStarted:
                    done = False
                echo(to_json({PART: number, DONE: done}), file=output)
        note_failed(self.left)

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


def page_line(app: App, found: BackfillProgress) -> str:
    """What became of a page, as one process gives it to another."""
    report = found.report
    failed = [failed_object(app, each) for each in report.failed]
    counts = {name: getattr(report, name) for name in COUNTS}
    return to_json({"read": found.read, "unkeyed": found.unkeyed, "waits": found.waits, **counts, "failed": failed})


def failed_line(app: App, failed: Sequence[ItemFailed]) -> str:
    """The failed items of a page, printed before its cursor moves: a kill then repeats them, and loses none."""
    return page_line(app, BackfillProgress(report=PageReport(failed=list(failed))))


def add_page(app: App, parts: "BackfillRun", line: Mapping[str, Any]) -> None:
    """Adds the line of another process to the progress of these parts, and keeps what failed."""
    progress = parts.progress
    failed = [
        ItemFailed(item_of(app, each, "a line of another process"), each["handler"], FailedElsewhere(each["error"]))
        for each in line["failed"]
    ]
    parts.hooks.keep(failed)
    progress.waits = line["waits"]
    progress.unkeyed += line["unkeyed"]
    parts.count(line["read"], PageReport(failed=failed, **{name: line[name] for name in COUNTS}))


def joined(app: App, parts: "BackfillRun", given: GivenOptions, processes: int) -> None:
    """Carries the parts of a run by several processes, and joins their lines in its progress.

    Raises ``EngineError`` if one of them stops for another reason than a kill; it has printed why.
    """

    def take(line: Mapping[str, Any]) -> None:
        if PART in line:
            parts.progress.done += bool(line[DONE])
            return
        add_page(app, parts, line)
        parts.hooks.show(parts.progress)

    Workers(worker_command(parts.job.id, given, processes), parts.left(), processes, take).run()


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
    """Processes that do the parts of a run. ``take`` is given each line of theirs, one at a time."""

    def __init__(self, command: Sequence[str], parts: Iterable[int], processes: int, take: TakesLine) -> None:
        self.command = command
        self.parts = deque(parts)
        self.take = take
        self.threads = [Thread(target=self._work, daemon=True) for _ in range(min(processes, len(self.parts)))]
        self.running: list[subprocess.Popen[str]] = []
        self.deaths: Counter[int] = Counter()
        self.errors: list[Exception] = []
        self.stopped = Event()
        self._lock = Lock()

    def run(self) -> None:
        """Has every part done. Raises the first error, after all processes have ended."""
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
        """The work of one thread: gives parts to a process, and begins another process when that one ends."""
        process: subprocess.Popen[str] | None = None
        try:
            while not self.stopped.is_set() and self.parts:
                try:
                    part = self.parts.popleft()
                except IndexError:
                    break
                process = process or self._begin()
                if not self._done(process, part):
                    self._died(process, part)
                    process = None
        except Exception as error:  # noqa: BLE001 - a thread's error is raised by the one that waits for it
            self.errors.append(error)
            self.stopped.set()
        finally:
            if process is not None:
                _end(process, read=False)

    def _begin(self) -> "subprocess.Popen[str]":
        """A new process, which a Ctrl-C of the terminal does not reach: its input ends, and it ends after its page."""
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

    def _done(self, process: "subprocess.Popen[str]", part: int) -> bool:
        """Whether a process did a part to its end."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{part}\n")
            process.stdin.flush()
        except (OSError, ValueError):
            return False
        for text in process.stdout:
            try:
                line = json.loads(text)
            except ValueError:
                line = None
            if not isinstance(line, dict):
                raise EngineError(f"A process of the run wrote what is no line of it: {shortened(text)}")
            with self._lock:
                self.take(line)
            if PART in line:
                return bool(line[DONE])
        return False

    def _died(self, process: "subprocess.Popen[str]", part: int) -> None:
        """A process ended before its part did: another does the part, unless the process printed why."""
        _end(process, read=False)
        if self.stopped.is_set():
            return
        self.deaths[part] += 1
        if process.returncode >= 0 or self.deaths[part] >= DEATHS_MAX:
            raise EngineError(
                f"A process of the run stopped with code {process.returncode} at part {part}: see what it said above. "
                "What was done is kept; the same command goes on from there."
            )
        note(f"A process was killed (signal {-process.returncode}); another goes on with its part.")
        self.parts.append(part)

    def _stop(self) -> None:
        self.stopped.set()
        with self._lock:
            running = list(self.running)
        for process in running:
            _end(process)
        for thread in self.threads:
            thread.join(LOOK_SECONDS)


def _end(process: "subprocess.Popen[str]", *, read: bool = True) -> None:
    """Ends a process after its page, and waits for it. ``read``: somebody reads on what it prints."""
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
