"""Calls handlers in other processes: each has another order of sets, another ``hash()`` and another time zone, and
remembers nothing.

``main`` is the program of such a process. It imports the application by its name, calls the handlers on the given
changes in another order, and returns the yielded rows as text.
"""

import ast
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple, Self

from streamfold.app import App
from streamfold.proofs.determinism import ZONES, Call, NotDeterministic, calls_on, message
from streamfold.records.change import Change
from streamfold.records.values import CANONICAL, encode

PROCESSES = 2
SECONDS_MAX = 60
"""Seconds after which a process without a response is ended: an import may wait for ever."""
LEFT_OUT = "other processes, in which hash() and the order of sets differ: "
HASHES = (
    "in two processes it gives two results: it depends on hash(), or on the order of a set, which differs between "
    "processes, or on the time zone that a module read when it was imported"
)
MEMORY = (
    "a new process gives another result: it remembers other calls, or depends on the process, such as on its time zone"
)

ModulePath = tuple[str, str]
ElsewhereAnswer = list[list[str] | None]
"""The rows that each call yields, as sorted texts; None if the call raises."""


class Process(NamedTuple):
    """A running process, and the files of its response and its errors."""

    running: "subprocess.Popen[bytes]"
    response: IO[bytes]
    errors: IO[bytes]


class Elsewhere:
    """Processes that call an application's handlers on these changes, beside this process.

    None is started if the application cannot be imported by a name.
    """

    def __init__(self, app: App, changes: Sequence[Change], count: int) -> None:
        self.app = app
        self.changes = changes
        self.module_path = module_path_of(app) if count else None
        self.why_not = "" if self.module_path else _why_not(count)
        self._begun: list[Process] = []
        if self.module_path:
            asked = pickle.dumps((self.module_path, list(changes)))
            self._begun = [_begin(asked, seed, zone) for seed, zone in zip(_seeds(count), cycle(ZONES), strict=False)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._begun:
            process.running.kill()
            process.running.wait()
            process.response.close()
            process.errors.close()

    @property
    def processes(self) -> "list[subprocess.Popen[bytes]]":
        return [process.running for process in self._begun]

    def compare(self) -> tuple[str, ...]:
        """Compares the results of the handlers there and here. Returns the reason if they cannot be compared.

        Raises ``NotDeterministic`` for a handler with two results.
        """
        given: list[ElsewhereAnswer] = []
        for process in self._begun:
            try:
                if process.running.wait(SECONDS_MAX):
                    return (LEFT_OUT + _last_line(process.errors),)
            except subprocess.TimeoutExpired:
                return (f"{LEFT_OUT}{self._name} was not imported and called within {SECONDS_MAX} seconds",)
            process.response.seek(0)
            given.append(pickle.load(process.response))  # noqa: S301 - of a process of our own
        if given:
            self._compare(given)
        return (LEFT_OUT + self.why_not,) if self.why_not else ()

    def _compare(self, given: list[ElsewhereAnswer]) -> None:
        calls = calls_on(self.app, self.changes)
        here = [_yielded(call) for call in calls]
        for number, call in enumerate(calls):
            there = [response[number] for response in given]
            if any(response != there[0] for response in there):
                raise NotDeterministic(message(call.route, call.change, HASHES))
            if there[0] != here[number]:
                raise NotDeterministic(message(call.route, call.change, MEMORY))

    @property
    def _name(self) -> str:
        return ":".join(self.module_path or ())


def module_path_of(app: App) -> ModulePath | None:
    """The module and the name by which another process can import an application; None if there is none.

    A module that imports it from another one, as tests do, is named only if no other module has it.
    """
    paths = [
        (name, attribute)
        for name, module in list(sys.modules.items())
        if name != "__main__" and getattr(module, "__spec__", None) is not None
        for attribute, value in list(vars(module).items())
        if value is app
    ]
    return next((module_path for module_path in paths if not _is_imported(*module_path)), paths[0] if paths else None)


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
    own = os.environ.get("PYTHONHASHSEED")  # with the same seed, sets would have the same order there
    return [seed for seed in map(str, range(1, count + 2)) if seed != own][:count]


def _begin(asked: bytes, seed: str, zone: str) -> Process:
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    with TemporaryFile() as question:
        question.write(asked)
        question.seek(0)
        response, errors = TemporaryFile(), TemporaryFile()  # noqa: SIM115 - closed when the proof ends
        running = subprocess.Popen(  # noqa: S603 - this module
            [sys.executable, "-c", f"from {__name__} import main; main()"],
            stdin=question,
            stdout=response,
            stderr=errors,
            env={**os.environ, "PYTHONHASHSEED": seed, "TZ": zone, "PYTHONPATH": paths},
        )
    return Process(running, response, errors)


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "the process ended without an answer"


def _yielded(call: Call) -> list[str] | None:
    given = call()
    # Sorted, because a handler may yield a row for each member of a set, in any order.
    return None if given is None else sorted(map(_text, given))


def _text(effect: Any) -> str:
    own: Mapping[str, Any] = effect if isinstance(effect, Mapping) else getattr(effect, "values", {})
    values = {**own, **(getattr(effect, "attributes", None) or {})}
    shown = ", ".join(f"{name}={_value(value)}" for name, value in sorted(values.items()))
    return f"{type(effect).__name__} {getattr(effect, 'target', None)!r} {shown} {getattr(effect, 'wins', None)!r}"


def _value(value: Any) -> str:
    """A value as text, with the members of sets in order; a value that cannot be stored as Python writes it."""
    try:
        return CANONICAL.encode(encode(value))
    except Exception:  # noqa: BLE001 - an aggregate, or a value that no row can hold
        return repr(value)


def main() -> None:
    """Writes the yielded rows of all calls. The last call is made first, so that remembered values differ."""
    (module, name), changes = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that began this one
    with redirect_stdout(sys.stderr):
        app = getattr(import_module(module), name)
        calls = calls_on(app, changes)
        response = [_yielded(call) for call in reversed(calls)][::-1]
    pickle.dump(response, sys.stdout.buffer)
