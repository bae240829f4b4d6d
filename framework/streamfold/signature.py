"""Is a function fit to be a handler? Asked where it is declared, answered with the corrected line."""

import dis
import inspect
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NoReturn

from streamfold.errors import DeclarationError
from streamfold.key import Key

RETURN = re.compile(r"\breturn\b(\s+)(?=\w+\()")
ACCEPTED: dict[type, tuple[str, ...]] = {
    str: ("str",),
    int: ("int",),
    date: ("date",),
    datetime: ("datetime",),
    Decimal: ("Decimal", "int"),
    bytes: ("bytes",),
}
CHECKED = {name for names in ACCEPTED.values() for name in names} | {"float", "bool", "list", "dict"}


def place(function: Callable[..., Any]) -> str:
    """Where a function was written: ``file:line``."""
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


def check_generator(function: Callable[..., Any], kind: str) -> None:
    """Refuses what is not a plain generator function."""
    if inspect.isgeneratorfunction(function):
        if _returns_value(function):
            wrong = next((line for line in _lines(function) if RETURN.search(line)), "return Row(...)")
            _refuse(function, "yields, and returns a value, which would be lost; write", RETURN.sub(r"yield\1", wrong))
        return
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        _refuse(function, f"is async, and a {kind} handler only computes: write", _line(function, "def ").replace("async ", ""))
    wrong = _line(function, "return ")
    _refuse(function, f"never yields, so it is no generator function: a {kind} handler yields what it keeps, write", RETURN.sub(r"yield\1", wrong))


def check_plain(function: Callable[..., Any]) -> None:
    """Refuses a generator or coroutine as an external handler, whose calls would then do nothing."""
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise DeclarationError(
            f"Handler {function.__name__} at {place(function)} is declared external=True: expected a plain function that "
            "does its work when it is called, without yield, async or await."
        )


def wanted_fields(function: Callable[..., Any], sources: Sequence[Key]) -> tuple[str, ...]:
    """The fields of the source's key that a handler asks for by name, after its first parameter."""
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters:
        _refuse(function, "takes no parameter: the first is the item or the change, write", f"def {function.__name__}(item):")
    for parameter in parameters[1:]:
        _check_parameter(function, parameter, sources)
    return tuple(parameter.name for parameter in parameters[1:])


def _check_parameter(function: Callable[..., Any], parameter: inspect.Parameter, sources: Sequence[Key]) -> None:
    for source in sources:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY) or parameter.name not in source.types:
            corrected = ", ".join(["item", *source.fields])
            _refuse(
                function,
                f"asks for {str(parameter)!r}, which is no field of {source!r} (its fields: {', '.join(source.fields) or 'none'}); write, "
                "with those that you need,",
                f"def {function.__name__}({corrected}):",
            )
        field = source.types[parameter.name]
        given = _annotation_name(parameter.annotation)
        accepted = ACCEPTED[field.python_type]
        if given in CHECKED and given not in accepted:
            _refuse(
                function,
                f"takes {parameter.name} as {given}, but {field} of {source!r} is of type {accepted[0]}; write",
                f"{parameter.name}: {accepted[0]}",
            )


def _annotation_name(annotation: Any) -> str | None:
    if isinstance(annotation, str):
        return annotation.rpartition(".")[2]
    return annotation.__name__ if isinstance(annotation, type) and annotation is not inspect.Parameter.empty else None


def _returns_value(function: Callable[..., Any]) -> bool:
    """Whether a generator function has a ``return`` with a value: nobody would see it."""
    before: Any = None
    for instruction in dis.get_instructions(function):
        if instruction.opname == "RETURN_CONST" and instruction.argval is not None:
            return True
        if instruction.opname == "RETURN_VALUE" and not (before.opname == "LOAD_CONST" and before.argval is None):
            return True
        before = instruction
    return False


def _line(function: Callable[..., Any], word: str) -> str:
    """The first line of the function's source that holds a word, or one made up to show the form."""
    return next((line for line in _lines(function) if word in line and not line.startswith("@")), "return Row(...)")


def _lines(function: Callable[..., Any]) -> list[str]:
    try:
        return [line.strip() for line in inspect.getsource(function).splitlines()]
    except (OSError, TypeError):
        return []


def _refuse(function: Callable[..., Any], what: str, corrected: str) -> NoReturn:
    raise DeclarationError(f"Handler {getattr(function, '__name__', function)} at {place(function)} {what}\n    {corrected}")
