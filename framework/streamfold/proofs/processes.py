"""Handlers called in other processes: each has another order of sets and another ``hash()``, and remembers nothing.

``main`` is what such a process does. It imports the application by its name, calls the handlers
on the changes that it is given, in another order, and answers what they yield, as text.
"""

import ast
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple, Self

from streamfold.app import App
from streamfold.proofs.determinism import Call, NotDeterministic, calls_on, message
from streamfold.records.change import Change
from streamfold.records.encoded import CANONICAL
from streamfold.records.values import encode

PROCESSES = 2
SECONDS_MAX = 60
"""Seconds after which a process is ended that has not answered."""
LEFT_OUT = "other processes, in which hash() and the order of sets differ: "
HASHES = (
    "in two processes it gives two things: it goes by hash(), or by the order of a set, which every process has "
    "another of"
)
MEMORY = "a new process gives another thing: it remembers other calls, or what it goes by differs between processes"

ModulePath = tuple[str, str]
ElsewhereAnswer = list[list[str] | None]
"""What each call yields, as texts in their order; None where it raises."""


class Process(NamedTuple):
    """A process that was begun, and the files that it answers into."""

    running: "subprocess.Popen[bytes]"
    answer: IO[bytes]
    errors: IO[bytes]


class Elsewhere:
    """So many processes that call an application's handlers on these changes while this one goes on.

    Where the application cannot be imported by a name, none is begun.
    """

    def __init__(self, app: App, changes: Sequence[Change], count: int) -> None:
        self.app = app
        self.changes = changes
        self.place = place_of(app) if count else None
        self.why_not = "" if self.place else _why_not(count)
        self._begun: list[Process] = []
        if self.place:
            asked = pickle.dumps((self.place, list(changes)))
            self._begun = [_begin(asked, seed) for seed in _seeds(count)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._begun:
            process.running.kill()
            process.running.wait()
            process.answer.close()
            process.errors.close()

    @property
    def processes(self) -> "list[subprocess.Popen[bytes]]":
        return [process.running for process in self._begun]

    def compare(self) -> tuple[str, ...]:
        """Compares what the handlers give there and here; why they were not compared, nothing where they were.

        Raises ``NotDeterministic`` for a handler that gives two things.
        """
        answers: list[ElsewhereAnswer] = []
        for process in self._begun:
            try:
                if process.running.wait(SECONDS_MAX):
                    return (LEFT_OUT + _last_line(process.errors),)
            except subprocess.TimeoutExpired:
                return (f"{LEFT_OUT}{self._name} was not imported and called within {SECONDS_MAX} seconds",)
            process.answer.seek(0)
            answers.append(pickle.load(process.answer))  # noqa: S301 - of a process of our own
        if answers:
            self._compare(answers)
        return (LEFT_OUT + self.why_not,) if self.why_not else ()

    def _compare(self, answers: list[ElsewhereAnswer]) -> None:
        calls = calls_on(self.app, self.changes)
        here = [_yielded(call) for call in calls]
        for number, call in enumerate(calls):
            there = [answer[number] for answer in answers]
            if any(answer != there[0] for answer in there):
                raise NotDeterministic(message(call.route, call.change, HASHES))
            if there[0] != here[number]:
                raise NotDeterministic(message(call.route, call.change, MEMORY))

    @property
    def _name(self) -> str:
        return ":".join(self.place or ())


def place_of(app: App) -> ModulePath | None:
    """The module and the name by which another process finds an application; None where there is none.

    A module that imports it from another, as tests do, is named only where no other has it.
    """
    places = [
        (name, attribute)
        for name, module in list(sys.modules.items())
        if name != "__main__" and getattr(module, "__spec__", None) is not None
        for attribute, value in list(vars(module).items())
        if value is app
    ]
    return next((place for place in places if not _is_imported(*place)), places[0] if places else None)


def _is_imported(module: str, name: str) -> bool:
    """Whether a module takes a name from another one."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, SyntaxError):  # it has no source
        return False
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    return any(name == (alias.asname or alias.name) for node in imports for alias in node.names)


def _why_not(count: int) -> str:
    if not count:
        return "processes=0"
    return "no module has the application under a name that another process could import"


def _seeds(count: int) -> list[str]:
    """Hash seeds that are not that of this process."""
    own = os.environ.get("PYTHONHASHSEED")
    return [seed for seed in map(str, range(1, count + 2)) if seed != own][:count]


def _begin(asked: bytes, seed: str) -> Process:
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    with TemporaryFile() as question:
        question.write(asked)
        question.seek(0)
        answer, errors = TemporaryFile(), TemporaryFile()  # noqa: SIM115 - closed when the proof ends
        running = subprocess.Popen(  # noqa: S603 - this module
            [sys.executable, "-c", f"from {__name__} import main; main()"],
            stdin=question,
            stdout=answer,
            stderr=errors,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths},
        )
    return Process(running, answer, errors)


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "the process ended without an answer"


def _yielded(call: Call) -> list[str] | None:
    """What a call yields, in whatever order: a row for each member of a set may come in any."""
    given = call()
    return None if given is None else sorted(map(_text, given))


def _text(effect: Any) -> str:
    values = {**getattr(effect, "values", {}), **(getattr(effect, "attributes", None) or {})}
    message = ", ".join(f"{name}={_value(value)}" for name, value in sorted(values.items()))
    return f"{type(effect).__name__} {getattr(effect, 'target', None)!r} {message} {getattr(effect, 'wins', None)!r}"


def _value(value: Any) -> str:
    """A value as text: members of sets in their order where it can be stored, as Python writes it else."""
    try:
        return CANONICAL.encode(encode(value))
    except Exception:  # noqa: BLE001 - an aggregate, or what no row can hold
        return repr(value)


def main() -> None:
    """Answers what the handlers yield, the last call first: what they remember has not come about as it did there."""
    (module, name), changes = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that began this one
    with redirect_stdout(sys.stderr):
        app = getattr(import_module(module), name)
        calls = calls_on(app, changes)
        answer = [_yielded(call) for call in reversed(calls)][::-1]
    pickle.dump(answer, sys.stdout.buffer)
