"""The code of another revision: laid out in a folder of its own, and run in a process of its own.

A revision is read by ``git archive``, which changes nothing of the repository; files that are not committed, ignored
ones and submodules are not in it. No shell takes part: all arguments are lists.

The process runs this module: it reads lines, a JSON list of ``[table, item]`` each, and answers with a line of JSON for
each item. Its first line is what it has loaded. What handlers print goes to standard error.
"""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from threading import Timer
from types import ModuleType
from typing import Any, TextIO

import streamfold
from streamfold.app import App
from streamfold.cli.session import load_application
from streamfold.errors import SettingsError, StreamfoldError, plain
from streamfold.ledger.schema import Schema
from streamfold.lifecycle.diff import SideRows, side_rows
from streamfold.records.encoded import to_json

MODULE = "streamfold.cli.old_code"
GIT_SECONDS_MAX = 120
"""The longest that git may take."""
ANSWER_SECONDS_MAX = 300
"""The longest that the old code may take to load, or for a page of items."""


class OldCode:
    """An application in a process of its own, which answers until it is closed."""

    def __init__(self, process: "subprocess.Popen[str]", place: str) -> None:
        self.process = process
        self.place = place
        with self._watched():
            found = json.loads(self._line())
        if "error" in found:
            raise SettingsError(f"The code of {place} cannot be used. {found['error']}")
        self.application: str = found["application"]
        self.handlers: list[str] = found["handlers"]
        self.elsewhere: list[str] = found["elsewhere"]

    def rows(self, items: Sequence[tuple[str, Mapping[str, Any]]]) -> list[SideRows]:
        """What it makes of items. Raises ``SettingsError`` if it ends, or takes too long."""
        if not items:
            return []
        assert self.process.stdin is not None
        with self._watched():
            with suppress(BrokenPipeError):  # it has ended, and gives no line
                self.process.stdin.write(to_json([list(item) for item in items]) + "\n")  # type: ignore[arg-type]
                self.process.stdin.flush()
            return [SideRows.of(self._line()) for _ in items]

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SettingsError(
                f"The code of {self.place} ended by itself, or took more than {ANSWER_SECONDS_MAX} seconds for a page "
                "of items."
            )
        return line

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Ends the process if it takes too long."""
        timer = Timer(ANSWER_SECONDS_MAX, self.process.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


@contextmanager
def opened_code(old: str) -> Iterator[OldCode]:
    """Lays out what ``--old`` names, ``MODULE:NAME@REVISION`` or ``MODULE:NAME@FOLDER``, and starts it.

    Raises ``SettingsError`` where there is none, or it does not load.
    """
    application, at, place = old.partition("@")
    if not (at and place) or not all(application.partition(":")):
        raise SettingsError(
            f"--old {old!r}: expected MODULE:NAME@REVISION, for example handlers:app@main, or MODULE:NAME@./FOLDER."
        )
    with _folder(place) as folder, _process(application, folder) as process:
        yield OldCode(process, place)


@contextmanager
def _folder(place: str) -> Iterator[Path]:
    """The folder that stands for the one that the command is called in."""
    if place.startswith((".", "/")):
        if not Path(place).is_dir():
            raise SettingsError(f"There is no folder {place} for --old. A revision does not begin with '.' or '/'.")
        yield Path(place).resolve()
        return
    commit = _git("rev-parse", "--verify", "--end-of-options", f"{place}^{{commit}}", place=place)
    below = _git("rev-parse", "--show-prefix", place=place)
    with TemporaryDirectory() as folder:
        _lay_out(commit, Path(folder))
        here = Path(folder).resolve() / below
        if not here.is_dir():
            raise SettingsError(f"Revision {place} has no folder {below}: stand in one that it has.")
        yield here


def _git(*arguments: str, place: str) -> str:
    """What git prints. Raises ``SettingsError``."""
    program = which("git")
    if program is None:
        raise SettingsError("git is not installed: name a folder, --old MODULE:NAME@./FOLDER.")
    try:
        ran = subprocess.run(  # noqa: S603 - a list, and no shell
            [program, *arguments], capture_output=True, text=True, timeout=GIT_SECONDS_MAX, check=True
        )
    except subprocess.TimeoutExpired:
        raise SettingsError(f"git took more than {GIT_SECONDS_MAX} seconds for revision {place!r}.") from None
    except subprocess.CalledProcessError as error:
        message = (error.stderr.strip().splitlines() or ["nothing"])[-1]
        raise SettingsError(
            f"--old: git knows no revision {place!r} here ({message}). Stand in the repository, and name a branch, tag "
            "or commit."
        ) from None
    return ran.stdout.strip()


def _lay_out(commit: str, folder: Path) -> None:
    """Writes the files of a commit into a folder, without what would leave it."""
    packed = folder / "archive.tar"
    top = _git("rev-parse", "--show-toplevel", place=commit)
    _git("-C", top, "archive", "--format=tar", f"--output={packed}", commit, place=commit)
    with tarfile.open(packed) as files:
        files.extractall(folder, filter="data")
    packed.unlink()


@contextmanager
def _process(application: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """The process of the old code. It finds this streamfold, and all else from the folder."""
    own = str(Path(streamfold.__file__).parent.parent)
    paths = [own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    process = subprocess.Popen(  # noqa: S603 - a list, and no shell
        [sys.executable, "-m", MODULE, application, str(folder)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def serve(application: str, folder: str, lines: TextIO, answers: TextIO) -> None:
    """Loads the application from a folder, and answers until there are no more lines."""

    def answer(found: dict[str, Any]) -> None:
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    try:
        app = load_application(application)
        found = _loaded(app, sys.modules[application.partition(":")[0]], Path(folder).resolve())
    except StreamfoldError as error:
        answer({"error": plain(str(error))})
        return
    answer(found)
    schema = Schema()
    for line in lines:
        answers.writelines(side_rows(app, schema, table, image).line() + "\n" for table, image in json.loads(line))
        answers.flush()


def _loaded(app: App, module: ModuleType, folder: Path) -> dict[str, Any]:
    """What was loaded: the handlers, and those of them whose functions are elsewhere. Raises ``StreamfoldError``."""
    place = Path(module.__file__ or "").resolve()
    if not place.is_relative_to(folder):
        raise StreamfoldError(
            f"Module {module.__name__!r} was found in {place.parent}, and not in the old code. Is it installed as a "
            "package? Then stand in the folder that holds it."
        )
    functions = {route.name: route.function for route in app.routes if route.kind.contributes}
    files = {name: getattr(getattr(each, "__code__", None), "co_filename", "") for name, each in functions.items()}
    elsewhere = [name for name, file in files.items() if file and not Path(file).resolve().is_relative_to(folder)]
    return {"application": app.name, "handlers": list(functions), "elsewhere": elsewhere}


def main() -> None:
    """Answers on the standard output that it was given."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        serve(sys.argv[1], sys.argv[2], sys.stdin, answers)


if __name__ == "__main__":
    main()
