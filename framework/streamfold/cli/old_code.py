"""The code of another revision, extracted into a folder of its own and run in a process of its own.

``git archive`` reads a revision and leaves the repository unchanged. Uncommitted files, ignored files and submodules
are not in it. No shell is used: all arguments are lists.

The process runs this module. It reads lines, each with a page of ``[table, item]`` and the items that these look up,
and writes a line of JSON for each item. It has no store: a line names the items that it lacks. Its first line describes
the loaded application. Prints of handlers go to standard error.
"""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
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
from streamfold.lifecycle.diff import NO_REFERENTS, Referents, SideRows, TableAndItem, side_page
from streamfold.records.values import to_json

MODULE = "streamfold.cli.old_code"
GIT_SECONDS_MAX = 120
"""The longest that git may take."""
RESPONSE_SECONDS_MAX = 300
"""The longest that the old code may take to load, or for a page of items: a handler may wait for ever."""


class OldCode:
    """An application in a process of its own, which responds until it is closed."""

    def __init__(self, process: "subprocess.Popen[str]", location: str) -> None:
        self.process = process
        self.location = location
        with self._watched():
            found = json.loads(self._line())
        if "error" in found:
            raise SettingsError(f"The code of {location} cannot be used. {found['error']}")
        self.application: str = found["application"]
        self.handlers: list[str] = found["handlers"]
        self.elsewhere: list[str] = found["elsewhere"]
        self.optional: list[str] = found["optional"]

    def rows(
        self, items: Sequence[TableAndItem], referents: Referents = NO_REFERENTS, at_seconds: float = 0.0
    ) -> list[SideRows]:
        """The rows that the old code makes of items, at a time. Raises ``SettingsError`` if it ends, or takes too
        long.
        """
        if not items:
            return []
        assert self.process.stdin is not None
        with self._watched():
            with suppress(BrokenPipeError):  # it has ended: reading its line raises a better error
                page = {"items": [list(item) for item in items], "referents": dict(referents), "at": at_seconds}
                self.process.stdin.write(to_json(page) + "\n")
                self.process.stdin.flush()
            return [SideRows.of(self._line()) for _ in items]

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SettingsError(
                f"The code of {self.location} ended by itself, or took more than {RESPONSE_SECONDS_MAX} seconds for a "
                "page of items."
            )
        return line

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Ends the process if it takes too long."""
        timer = Timer(RESPONSE_SECONDS_MAX, self.process.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


@contextmanager
def opened_code(old: str) -> Iterator[OldCode]:
    """Extracts the code of ``--old``, ``MODULE:NAME@REVISION`` or ``MODULE:NAME@FOLDER``, and starts it.

    Raises ``SettingsError`` if the code does not exist, or does not load.
    """
    application, at, location = old.partition("@")
    if not (at and location) or not all(application.partition(":")):
        raise SettingsError(
            f"--old {old!r}: expected MODULE:NAME@REVISION, for example handlers:app@main, or MODULE:NAME@./FOLDER."
        )
    with _folder(location) as folder, _process(application, folder) as process:
        yield OldCode(process, location)


@contextmanager
def _folder(location: str) -> Iterator[Path]:
    """The folder of the old code that corresponds to the current folder."""
    if location.startswith((".", "/")):
        if not Path(location).is_dir():
            raise SettingsError(f"There is no folder {location} for --old. A revision does not begin with '.' or '/'.")
        yield Path(location).resolve()
        return
    commit = _git("rev-parse", "--verify", "--end-of-options", f"{location}^{{commit}}", location=location)
    below = _git("rev-parse", "--show-prefix", location=location)
    with TemporaryDirectory() as folder:
        _lay_out(commit, Path(folder))
        here = Path(folder).resolve() / below
        if not here.is_dir():
            raise SettingsError(f"Revision {location} has no folder {below}: change to a folder that it has.")
        yield here


def _git(*arguments: str, location: str) -> str:
    """The output of git. Raises ``SettingsError`` if git fails, or takes too long."""
    program = which("git")
    if program is None:
        raise SettingsError("git is not installed: name a folder, --old MODULE:NAME@./FOLDER.")
    try:
        ran = subprocess.run(  # noqa: S603 - a list, and no shell
            [program, *arguments], capture_output=True, text=True, timeout=GIT_SECONDS_MAX, check=True
        )
    except subprocess.TimeoutExpired:
        raise SettingsError(f"git took more than {GIT_SECONDS_MAX} seconds for revision {location!r}.") from None
    except subprocess.CalledProcessError as error:
        message = (error.stderr.strip().splitlines() or ["nothing"])[-1]
        raise SettingsError(
            f"--old: git knows no revision {location!r} here ({message}). Change to a folder of the repository, and "
            "name a branch, tag or commit."
        ) from None
    return ran.stdout.strip()


def _lay_out(commit: str, folder: Path) -> None:
    """Writes the files of a commit into a folder. The filter refuses paths that lead out of the folder."""
    packed = folder / "archive.tar"
    top = _git("rev-parse", "--show-toplevel", location=commit)
    _git("-C", top, "archive", "--format=tar", f"--output={packed}", commit, location=commit)
    with tarfile.open(packed) as files:
        files.extractall(folder, filter="data")
    packed.unlink()


@contextmanager
def _process(application: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """The process of the old code. It imports this streamfold, and everything else from the folder."""
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


def serve(application: str, folder: str, lines: TextIO, output: TextIO) -> None:
    """Loads the application from a folder, and responds until there are no more lines."""

    def respond(found: dict[str, Any]) -> None:
        output.write(json.dumps(found) + "\n")
        output.flush()

    try:
        app = load_application(application)
        found = _loaded(app, sys.modules[application.partition(":")[0]], Path(folder).resolve())
    except StreamfoldError as error:
        respond({"error": plain(str(error))})
        return
    respond(found)
    schema = Schema()
    for line in lines:
        page = json.loads(line)
        made = side_page(app, schema, page["items"], None, page["referents"], page["at"])
        output.writelines(each.line() + "\n" for each in made)
        output.flush()


def _loaded(app: App, module: ModuleType, folder: Path) -> dict[str, Any]:
    """The handlers, and those whose functions are outside the folder. Raises ``StreamfoldError`` for another module."""
    location = Path(module.__file__ or "").resolve()
    if not location.is_relative_to(folder):
        raise StreamfoldError(
            f"Module {module.__name__!r} was found in {location.parent}, and not in the old code. Is it installed as a "
            "package? Then change to the folder that holds it."
        )
    routes = [route for route in app.routes if route.kind.contributes]
    functions = {route.name: getattr(route.function, "__wrapped__", route.function) for route in routes}
    files = {name: getattr(getattr(each, "__code__", None), "co_filename", "") for name, each in functions.items()}
    elsewhere = [name for name, file in files.items() if file and not Path(file).resolve().is_relative_to(folder)]
    optional = [route.name for route in routes if route.optional]
    return {"application": app.name, "handlers": list(functions), "elsewhere": elsewhere, "optional": optional}


def main() -> None:
    """Responds on the original standard output."""
    # Handlers may print. A copy of the output carries the protocol, and descriptor 1 becomes standard error.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as output:
        os.dup2(2, 1)
        sys.stdin.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
        serve(sys.argv[1], sys.argv[2], sys.stdin, output)


if __name__ == "__main__":
    main()
