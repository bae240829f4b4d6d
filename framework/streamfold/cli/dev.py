"""``streamfold dev`` folds a recording again whenever the code of a handler is saved, and shows the rows that change.

The command waits for files to change: it reads their times, which also works on folders that a network or a virtual
machine shares. A process of its own folds each edition of the code (``dev_fold``), and is ended by the next one.
"""

import gc
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, NamedTuple

import click

from streamfold.cli import shell
from streamfold.cli.dev_fold import Edition, KnownRows, Order, Pass, Stamps, stamp_of
from streamfold.cli.output import Fitted, Report, write
from streamfold.cli.session import Session, import_from_here, load_application, named_application
from streamfold.errors import SettingsError, StreamfoldError
from streamfold.records.values import to_json
from streamfold.replay.files import STANDARD_INPUT, GrowingRecording, check_files
from streamfold.replay.replay import FileEntry

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from streamfold.replay.files import BadLine

ROWS = 10
ROWS_MAX = 10_000
POLL_SECONDS = 0.1
QUIET_SECONDS = 0.03
"""Files that do not change for so long were saved completely: some editors write a file in several steps."""
CUT_OFF_SECONDS = 2.0
"""A last line that has not grown for so long was cut off: ``record --follow`` writes complete pages of records."""
ALIVE_SECONDS = 1.0
BROKEN_PIPE = 3
"""The exit code of a process that folds, if nobody reads its output any more."""
# Forked, an edition has the modules of streamfold and the records at once. Elsewhere than on Linux, libraries of the
# system may fail after a fork (Python documentation, multiprocessing, Contexts and start methods).
CONTEXT = multiprocessing.get_context("fork") if sys.platform == "linux" else multiprocessing.get_context("spawn")


class Done(NamedTuple):
    """What a process that folds reports after each pass, before it prints it."""

    learnt: KnownRows | None  # None: the code does not import, or cannot be folded
    files: Stamps


@shell.command(
    "dev",
    "Fold a recording again on each save, and show the rows that change.",
    click.argument("file", metavar="FILE"),
    shell.APPLICATION,
    shell.value(
        "--handler", "NAME", "Show only this handler. May be repeated. Default: all.", "handlers", multiple=True
    ),
    shell.value(
        "--table",
        "NAME=REAL",
        "The real name of a table; REAL alone names the table main. May be repeated.",
        "tables",
        multiple=True,
    ),
    shell.number("--rows", "Show at most N changed rows of each target.", 1, ROWS_MAX, default=ROWS),
    shell.flag("--once", "Fold once, and end: for scripts."),
    shell.json_flag("Print one JSON object for each pass, one a line."),
)
def dev(opened: Session) -> Report:
    """Fold a recording in memory, watch the code of the application, and fold again on each save: the rows that the
    edit changes are shown before and after it, with the failures and the counts of the handlers that it concerns.

    FILE holds recorded records: events, lists, or one record a line, plain or gzip. A file that streamfold record
    --follow goes on writing is followed.

    Each save is imported in a new process. Code that does not import is reported with its line, and the next save is
    waited for. No test is run. Nothing is written: external handlers are not called, and documents and archived items
    stay in memory. Ctrl-C ends the command.

    \b
    Exit codes:
      0    with --once: all records were folded
      1    with --once: records failed, or lines are bad
      2    it did not begin: an option, the file, or with --once the application is wrong
      130  Ctrl-C

    \b
    Examples:
      streamfold dev events/shop.jsonl
      streamfold dev events/shop.jsonl --handler daily_sales --rows 50
      streamfold dev events/shop.jsonl --once --json
    """
    given = opened.given
    if given.file == STANDARD_INPUT:
        raise SettingsError(
            "streamfold dev folds its file again on each save, and standard input is read once: name a file."
        )
    check_files([given.file])
    order = Order(
        given.application, given.file, given.handlers, given.tables, given.rows, as_json=bool(given.json_output)
    )
    recording = GrowingRecording(order.file)
    recording.read()
    if given.once:
        edition = Edition(order, KnownRows(), watches=False)
        cut_off = recording.cut_off  # nobody waits for its rest
        entries = recording.entries if cut_off is None else [*recording.entries, cut_off]
        return edition.report(edition.load().edited(entries, ()))
    _, module, _ = named_application(given.application)
    import_from_here()
    if find_spec(module.partition(".")[0]) is None:  # nothing is imported
        load_application(given.application)  # raises: no save could correct the name
    watching = Watching(order, recording)
    try:
        watching.run()
    finally:
        watching.end()
    return Report()


class Watching:
    """The process that watches, and starts one that folds for each edition of the code."""

    def __init__(self, order: Order, recording: GrowingRecording) -> None:
        self.order, self.recording = order, recording
        self.known = KnownRows()
        self.files: Stamps = {}
        self.editions = recording.editions
        self.process: BaseProcess | None = None
        self.connection: Connection | None = None
        self.is_idle = False  # the process has reported its last pass, and waits for more records
        self.cut_off: tuple[BadLine, float] | None = None  # since when the last line ends inside a record

    def run(self) -> None:
        self.start(())
        while True:
            self.receive(POLL_SECONDS)
            if saved := self.saved():
                self.start(saved)
                continue
            self.follow()

    def start(self, saved: Sequence[str]) -> None:
        """Folds the present edition of the code. An older one is given up, even within its pass."""
        self.end()
        ours, theirs = CONTEXT.Pipe()
        # A pass has folded so many: the others follow once what the edit changes is shown.
        entries = self.recording.entries[: self.known.entries or None]
        gc.freeze()  # or the first collection of the new process would copy all of this one's memory
        given = self.order, self.known, entries, saved, theirs
        process = CONTEXT.Process(target=fold_edition, args=given, daemon=True)
        process.start()
        theirs.close()
        self.process, self.connection, self.is_idle = process, ours, False

    def receive(self, seconds: float) -> None:
        """Waits for so long, or until the process reports a pass or ends."""
        if self.connection is None or self.process is None:
            time.sleep(seconds)
            return
        if not wait([self.connection], seconds):
            return
        try:
            done: Done = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            self.end()
            if code == BROKEN_PIPE:
                raise BrokenPipeError from None
            text = (
                f"The process that folded the records ended by itself (exit code {code}). Save a file to start again."
            )
            show([Fitted(text)], self.order)
            return
        if done.learnt is not None:
            self.known.learn(done.learnt)
        self.is_idle = done.learnt is not None
        self.files = {name: self.files.get(name, stamp) for name, stamp in done.files.items()}

    def saved(self) -> list[str]:
        """The files that were saved since the last edition, once none changes any more."""
        found = self.changed()
        while found:
            time.sleep(QUIET_SECONDS)
            before, now = found, self.changed()
            found = now
            if now == before:
                self.files |= now
                return sorted(now)
        return []

    def changed(self) -> Stamps:
        return {name: now for name, stamp in self.files.items() if (now := stamp_of(name)) != stamp}

    def follow(self) -> None:
        """Has more records folded, if there are any and nothing else is at work."""
        self.recording.read()
        if self.recording.editions != self.editions:
            self.editions = self.recording.editions
            show([Fitted(f"{self.order.file} was replaced: it is folded from its begin.")], self.order)
            self.known.digests, self.known.entries = {}, 0
            self.start(())
            return
        more = self.recording.entries[self.known.entries :]
        if self.is_idle and more and self.connection is not None:
            self.is_idle = False
            self.connection.send(more)
        now, cut_off = time.monotonic(), self.recording.cut_off
        if cut_off is None or self.cut_off is None or self.cut_off[0] != cut_off:
            self.cut_off = None if cut_off is None else (cut_off, now)
        elif self.is_idle and 0 <= self.cut_off[1] <= now - CUT_OFF_SECONDS:
            show([Fitted(f"Bad line: {cut_off.line}: {cut_off.why}")], self.order)
            self.cut_off = cut_off, -1.0  # shown

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
        if self.connection is not None:
            self.connection.close()
        self.process = self.connection = None
        self.is_idle = False


def show(lines: Sequence[Fitted], order: Order) -> None:
    """Prints a message, as a line of text or as a JSON object."""
    output = sys.__stdout__ if order.as_json else None
    write(Report(lines, lambda: to_json({"message": " ".join(each.text for each in lines)})), output)


def fold_edition(
    order: Order, known: KnownRows, entries: list[FileEntry], saved: Sequence[str], connection: Connection
) -> None:
    """The process of one edition: folds the recording, then more records as they are sent, until it is ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process: the one that watches ends this one
    parent = os.getppid()
    try:
        # Prints of handlers would break JSON.
        with redirect_stdout(sys.stderr) if order.as_json else nullcontext():
            edition = Edition(order, known)
            _report(edition, connection, lambda: edition.load().edited(entries, saved))
            while os.getppid() == parent:
                if connection.poll(ALIVE_SECONDS):
                    more = connection.recv()
                    _report(edition, connection, partial(edition.grown, list(entries), more))
                    entries += more
    except EOFError:
        return
    except BrokenPipeError:
        os._exit(BROKEN_PIPE)  # without the flush that would raise it again


def _report(edition: Edition, connection: Connection, fold: Callable[[], Pass]) -> None:
    """Makes a pass, shows it, and has the process that watches know of it."""
    learnt = None
    try:
        done = fold()
    except StreamfoldError as error:
        show([Fitted(f"Error: {error}"), Fitted("Next: correct it and save. The next save is folded.")], edition.order)
    else:
        write(edition.report(done), sys.__stdout__ if edition.order.as_json else None)
        learnt = done.learnt
    if sys.stdout is not None:
        sys.stdout.flush()
    connection.send(Done(learnt, edition.watched()))
