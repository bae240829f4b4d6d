"""The code of another revision: laid out in a folder of its own, and run in a process of its own.

A revision is read by ``git archive``, which changes nothing of the repository; files that are not committed, ignored
ones and submodules are not in it. No shell takes part: all arguments are lists.
"""

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import environ, pathsep
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any, NamedTuple

import streamfold
from streamfold.cli.old_side import MODULE
from streamfold.errors import SettingsError
from streamfold.lifecycle.diff import SideRows
from streamfold.records.encoded import to_json

GIT_SECONDS_MAX = 120
"""The longest that git may take."""
ANSWER_SECONDS_MAX = 300
"""The longest that the old code may take to load, or for a page of items."""


class OldPlace(NamedTuple):
    """What ``--old`` names: ``MODULE:NAME@REVISION``, or ``MODULE:NAME@FOLDER``."""

    application: str
    place: str

    @property
    def is_folder(self) -> bool:
        return self.place.startswith((".", "/"))


class OldCode:
    """An application in a process of its own, which answers until it is closed."""

    def __init__(self, process: "subprocess.Popen[str]", place: str) -> None:
        self.process = process
        self.place = place
        found = self._answer()
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
            try:
                self.process.stdin.write(to_json([list(item) for item in items]) + "\n")  # type: ignore[arg-type]
                self.process.stdin.flush()
            except BrokenPipeError:
                raise self._end_error() from None
            return [SideRows.of(self._line()) for _ in items]

    def _answer(self) -> dict[str, Any]:
        with self._watched():
            found: dict[str, Any] = json.loads(self._line())
            return found

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise self._end_error()
        return line

    def _end_error(self) -> SettingsError:
        return SettingsError(
            f"The code of {self.place} ended by itself, or took more than {ANSWER_SECONDS_MAX} seconds for a page of "
            "items."
        )

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Ends the process if it takes too long."""
        timer = Timer(ANSWER_SECONDS_MAX, self.process.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


def old_place(text: str) -> OldPlace:
    """Reads ``--old``. Raises ``SettingsError``."""
    application, at, place = text.partition("@")
    if not (at and place) or not all(application.partition(":")):
        raise SettingsError(
            f"--old {text!r}: expected MODULE:NAME@REVISION, for example handlers:app@main, or MODULE:NAME@./FOLDER."
        )
    return OldPlace(application, place)


@contextmanager
def opened_code(old: OldPlace) -> Iterator[OldCode]:
    """Lays the old code out, and starts it. Raises ``SettingsError`` where there is none, or it does not load."""
    with _folder(old) as folder, _process(old.application, folder) as process:
        yield OldCode(process, old.place)


@contextmanager
def _folder(old: OldPlace) -> Iterator[Path]:
    """The folder that stands for the one that the command is called in."""
    if old.is_folder:
        if not Path(old.place).is_dir():
            raise SettingsError(f"There is no folder {old.place} for --old. A revision does not begin with '.' or '/'.")
        yield Path(old.place).resolve()
        return
    commit = _git("rev-parse", "--verify", "--end-of-options", f"{old.place}^{{commit}}", place=old.place)
    below = _git("rev-parse", "--show-prefix", place=old.place)
    with TemporaryDirectory() as folder:
        _lay_out(commit, Path(folder))
        here = Path(folder).resolve() / below
        if not here.is_dir():
            raise SettingsError(f"Revision {old.place} has no folder {below}: stand in one that it has.")
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
        said = (error.stderr.strip().splitlines() or ["nothing"])[-1]
        raise SettingsError(
            f"--old: git knows no revision {place!r} here ({said}). Stand in the repository, and name a branch, tag or "
            "commit."
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
    paths = [own, *filter(None, environ.get("PYTHONPATH", "").split(pathsep))]
    process = subprocess.Popen(  # noqa: S603 - a list, and no shell
        [sys.executable, "-m", MODULE, application, str(folder)],
        cwd=folder,
        env={**environ, "PYTHONPATH": pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"},
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
