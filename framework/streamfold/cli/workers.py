"""Several processes carry one run: each is given a part at a time, and tells its pages.

A process is the command ``streamfold work``, so nothing is pickled. One that is killed costs a page, and another takes
its place. One whose input ends, because this process stops or is gone, ends after its page.
"""

import json
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any

from streamfold.app import App
from streamfold.cli.filling_options import FillingOptions
from streamfold.cli.output import echo
from streamfold.cli.work_lines import DONE, PART, add_page
from streamfold.errors import EngineError, shortened
from streamfold.lifecycle.backfill import Filling

DEATHS_MAX = 3
"""Processes in a row that may die of one part, before the run stops."""
LOOK_SECONDS = 0.2
STOP_SECONDS = 30
"""How long a process may take to end its page, before it is killed."""
TakesLine = Callable[[Mapping[str, Any]], None]


def joined(app: App, parts: Filling, options: FillingOptions, processes: int) -> None:
    """Carries the parts of a run by several processes, and joins what they tell in its progress.

    Raises ``EngineError`` if one of them stops for another reason than a kill; it has said why.
    """

    def told(line: Mapping[str, Any]) -> None:
        if PART in line:
            parts.progress.done += bool(line[DONE])
            return
        add_page(app, parts, line)
        parts.hooks.tell(parts.progress)

    Workers(worker_command(parts.job.id, options, processes), parts.left(), processes, told).run()


def worker_command(job: str, options: FillingOptions, processes: int) -> list[str]:
    """The command of one process of a run."""
    store, lag = options.store, options.max_lag
    place = ["--engine", store.engine, *(["--endpoint-url", store.endpoint_url] if store.endpoint_url else [])]
    named = [text for table in options.tables for text in ("--table", table)]
    heeds = ["--max-lag", str(lag), "--function", str(options.function)] if lag is not None else []
    return [
        *(sys.executable, "-m", "streamfold", "work", job, "--app", options.application, *place, *named, *heeds),
        *("--from-input", "--sharing", str(processes)),
    ]


class Workers:
    """Processes that do the parts of a run. ``told`` takes each line of theirs, one at a time."""

    def __init__(self, command: Sequence[str], parts: Iterable[int], processes: int, told: TakesLine) -> None:
        self.command = command
        self.parts = deque(parts)
        self.told = told
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
                _end(process, heard=False)

    def _begin(self) -> "subprocess.Popen[str]":
        """A new process, which a Ctrl-C of the terminal does not reach: it is told to end after its page."""
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
            line = _told(text)
            with self._lock:
                self.told(line)
            if PART in line:
                return bool(line[DONE])
        return False

    def _died(self, process: "subprocess.Popen[str]", part: int) -> None:
        """A process ended before its part did: the part is another's, unless it said why."""
        _end(process, heard=False)
        if self.stopped.is_set():
            return
        self.deaths[part] += 1
        if process.returncode >= 0 or self.deaths[part] >= DEATHS_MAX:
            raise EngineError(
                f"A process of the run stopped with code {process.returncode} at part {part}: see what it said above. "
                "What was done is kept; the same command goes on from there."
            )
        echo(f"A process was killed (signal {-process.returncode}); another goes on with its part.", err=True)
        self.parts.append(part)

    def _stop(self) -> None:
        self.stopped.set()
        with self._lock:
            running = list(self.running)
        for process in running:
            _end(process)
        for thread in self.threads:
            thread.join(LOOK_SECONDS)


def _told(text: str) -> Mapping[str, Any]:
    try:
        line = json.loads(text)
    except ValueError:
        line = None
    if isinstance(line, dict):
        return line
    raise EngineError(f"A process of the run wrote what is no line of it: {shortened(text)}")


def _end(process: "subprocess.Popen[str]", *, heard: bool = True) -> None:
    """Ends a process after its page, and waits for it. ``heard``: somebody reads on what it tells."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError):  # it is gone already
        process.stdin.close()
    if not heard:
        process.stdout.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
