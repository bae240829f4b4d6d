"""The options of every declaration: sources, targets, a name, a group and a policy, checked at import."""

import dis
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from hashlib import sha256
from types import CodeType, FunctionType
from typing import Any, NamedTuple, NoReturn, TypedDict

from streamfold.errors import DeclarationError, manual
from streamfold.keys.key import Key
from streamfold.keys.table import MAIN
from streamfold.routes.lookups import NO_LOOKUPS, DeclaredLookup, GivenLookups, checked_lookups
from streamfold.routes.parts import GivenParts, check_function, checked_parts, refuse_parts
from streamfold.routes.route import GROUP, Kind, OnError, Policy, Route, checked_policy

RETURN_ROW = "return Row(...)"
EXAMPLE = {"on": "return Put(...)", "search": "return Document(...)"}
RETURN = r"\breturn\b(\s+)(?=\w+\()"
EFFECT = r"^(?=(Row|Put|Add|Delete|Document)\()"
"""Expressions that correct a line. They are compiled for a message: no start has to wait for that."""
NOW = ("streamfold.routes.moments", "Now")
"""The module and the name of the class that asks for the time."""
WITHOUT_TIME = (
    "what it does for a change is done once, and is not done again when a moment comes. A row that appears at a "
    "moment is an index with Now; a feed or another handler may read its rows."
)
ACCEPTED: dict[type, tuple[str, ...]] = {
    str: ("str",),
    int: ("int",),
    date: ("date",),
    datetime: ("datetime",),
    Decimal: ("Decimal", "int"),
    bytes: ("bytes",),
}
ITEMS_GIVEN = ("item", "parts")
"""What a handler that looks others up gets before these."""
ITEM_ALONE = ("Item", "Mapping", "dict")
"""Annotations of an item that take no None."""
PLAIN_SUBJECTS = (*ITEM_ALONE, "Any", "Change", "Timer", "Parts")
"""Annotations of what a handler gets undecoded."""
CHECKED = {name for names in ACCEPTED.values() for name in names} | {"float", "bool", "list", "dict"}
BYTES = 2
"""Bytes of an operation of Python's code, its argument included (``dis``)."""
RETURN_VALUE = dis.opmap["RETURN_VALUE"]
RETURNS = (RETURN_VALUE, dis.opmap.get("RETURN_CONST", RETURN_VALUE))
"""Operations that return; the second is one of Python 3.12 and 3.13."""
CONSTANTS = (dis.opmap["LOAD_CONST"], dis.opmap.get("RETURN_CONST", RETURN_VALUE))
"""Operations that name a constant. On a Python without ``RETURN_CONST`` no operation has the second number."""

POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)
MORE = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

Into = Key | Sequence[Key]
Keys = tuple[Key, ...]
Made = Callable[[Keys, str], tuple[Keys, Any]]
"""Makes the targets and the kind's options of a declaration, from its sources and its line in the code."""
NAME_WORD = re.compile("[a-z0-9]+")
DEFAULT_NAME_LENGTH_MAX = 54
"""Length of a generated name: 64 (``is_name``), less the longest suffix of a handler that is declared with it."""
NAME_DIGEST_LENGTH = 8
"""Hexadecimal digits, 32 bits, that distinguish long names. Two equal names are refused all the same."""


def source_line(function: Callable[..., Any]) -> str:
    """Where a function was written: ``file:line``."""
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


def check_handler(function: Callable[..., Any], kind: str) -> None:
    """Refuses a function that is async, that never gives a value, or that both yields and returns a value."""
    handler = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} handler"
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        _refuse(function, f"is async, and {handler} only computes: write", f"def {function.__name__}(item):")
    if inspect.isgeneratorfunction(function):
        if _returns_value(function):
            line = _corrected(function, RETURN, r"yield\1", EXAMPLE.get(kind, RETURN_ROW).replace("return", "yield"))
            _refuse(function, "yields, and returns a value, which would be lost; write", line)
    elif not _returns_value(function):
        line = _corrected(function, EFFECT, "return ", EXAMPLE.get(kind, RETURN_ROW))
        _refuse(function, f"never returns or yields anything: {handler} gives its effects, write", line)


def check_plain(function: Callable[..., Any], *, coroutines: bool = False) -> None:
    """Refuses a generator as an external handler, whose calls would do nothing, and a coroutine if none is taken."""
    kinds = [inspect.isgeneratorfunction, inspect.isasyncgenfunction]
    if not coroutines:
        kinds.append(inspect.iscoroutinefunction)
    if any(is_kind(function) for is_kind in kinds):
        expected = "a plain or an async function" if coroutines else "a plain function"
        raise DeclarationError(
            f"Handler {function.__name__} at {source_line(function)} is declared external=True: expected {expected} "
            f"that does its work when it is called, without yield{'' if coroutines else ', async or await'}."
        )


def wanted_fields(
    function: Callable[..., Any],
    sources: Sequence[Key],
    given: int = 1,
    lookups: Sequence[DeclaredLookup] = (),
    asks_time: str = "",
) -> tuple[str, ...]:
    """The fields of the source's key that a handler asks for by name, after the ``given`` items, and its lookups.

    A parameter with a default need not be a field: it is filled for the sources that have one of its name.
    """
    if not lookups and _takes_single_items(function, given):
        return ()
    parameters = list(inspect.signature(function).parameters.values())
    _check_parameters(function, parameters)
    _check_lookups(function, parameters, given, lookups)
    looked_up, names = {each.name for each in lookups} | {asks_time}, []
    for parameter in parameters[given:]:
        name = parameter.name
        if name not in looked_up:
            _check_parameter(function, parameter, [source for source in sources if not _is_own(parameter, source)])
        if name in looked_up or any(name in source.types for source in sources):
            names.append(name)
    return tuple(names)


def _check_parameters(function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> None:
    """Refuses a handler without an item, a method, and a default value that all calls share."""
    if not parameters or parameters[0].kind not in POSITIONAL:
        corrected = f"def {function.__name__}(item):"
        _refuse(function, "takes no parameter: the first is the item or the change, write", corrected)
    if parameters[0].name == "self":
        corrected = f"def {function.__name__}({', '.join(each.name for each in parameters[1:]) or 'item'}):"
        _refuse(function, "is a method, and a handler is a plain function: write it outside of the class,", corrected)
    for parameter in parameters:
        if isinstance(parameter.default, list | dict | set | bytearray) and not parameter.default:
            # All calls share an empty default, so a handler could collect values in it. Its result would then depend
            # on the process and on the order of records.
            kept = f"{parameter.name}={parameter.default!r}"
            _refuse(
                function,
                f"has {kept}, which all calls share, and it must give the same for each; write",
                f"{parameter.name}=None",
            )


def _check_lookups(
    function: Callable[..., Any], parameters: Sequence[inspect.Parameter], given: int, lookups: Sequence[DeclaredLookup]
) -> None:
    """Refuses a handler that lacks the parameter of a lookup, or one that takes None where there may be no referent."""
    known = {parameter.name: parameter for parameter in parameters[given:] if parameter.kind in NAMED}
    name = getattr(function, "__name__", function)
    if missing := [each.name for each in lookups if each.name not in known]:
        own = [parameter.name for parameter in parameters[:given] if parameter.name not in {*missing, *known}]
        own += ITEMS_GIVEN[len(own) : given]
        corrected = f"def {name}({', '.join([*own, *(each.name for each in lookups)])}):"
        _refuse(function, f"looks {missing[0]!r} up and has no parameter of that name; write", corrected)
    for each in lookups:
        written = known[each.name].annotation
        annotation = _annotation_name(getattr(written, "__origin__", written))  # ``Item`` is an alias
        if each.many is not None and annotation in ITEM_ALONE:
            _refuse(
                function,
                f"takes {each.name} as an item, but it is a tuple of items (many=True); write",
                f"{each.name}: tuple[Item, ...]",
            )
        if each.optional and annotation in ITEM_ALONE:
            _refuse(
                function,
                f"takes {each.name} as an item, but it is None where there is no referent (optional=True); write",
                f"{each.name}: Item | None",
            )


def time_parameter(function: Callable[..., Any] | None, kind: Kind, decorator: str, given: int) -> str:
    """The parameter by which a handler asks for the time, found by its annotation; "" if it has none.

    Raises ``DeclarationError`` for a kind whose handlers may not, and for more than one such parameter.
    """
    if function is None or _takes_single_items(function, given):
        return ""
    found = [name for name, annotation in _annotations(function).items() if _is_now(function, annotation)]
    if not found:
        return ""
    positions = [*inspect.signature(function).parameters]
    name, corrected = getattr(function, "__name__", "handler"), ", ".join([*ITEMS_GIVEN[:given], "now: Now"])
    if not kind.takes_time:
        _refuse(
            function,
            f"asks for the time, {found[0]}: Now, and router.{decorator} takes none: {WITHOUT_TIME} Write",
            f"@router.index(...)\n    def {name}({corrected}):",
        )
    if len(found) > 1 or found[0] in positions[:given]:
        _refuse(function, "takes Now once, behind its item; write", f"def {name}({corrected}):")
    return found[0]


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    with suppress(NameError):  # Python 3.14 evaluates annotations here: some are names that only type checkers import
        found: dict[str, Any] = getattr(inspect.unwrap(function), "__annotations__", None) or {}
        return {name: annotation for name, annotation in found.items() if name != "return"}
    return {}


def _is_now(function: Callable[..., Any], annotation: Any) -> bool:
    if isinstance(annotation, str):  # ``from __future__ import annotations``
        known = getattr(inspect.unwrap(function), "__globals__", {})
        if annotation in ("Now", "streamfold.Now"):
            return True
        annotation = known.get(annotation)
    # By its name: no start of another application imports the module.
    return isinstance(annotation, type) and (annotation.__module__, annotation.__name__) == NOW


def _takes_single_items(function: Callable[..., Any], given: int) -> bool:
    """Whether a function takes the items and nothing else, as most do: seen without its signature, which takes long."""
    if (
        type(function) is not FunctionType or function.__dict__
    ):  # a wrapper has the signature of the function that it wraps
        return False
    code = function.__code__
    return code.co_argcount == given > 0 and not code.co_kwonlyargcount and not code.co_flags & MORE


def _is_own(parameter: inspect.Parameter, source: Key) -> bool:
    return parameter.default is not inspect.Parameter.empty and parameter.name not in source.types


def _check_parameter(function: Callable[..., Any], parameter: inspect.Parameter, sources: Sequence[Key]) -> None:
    for source in sources:
        if parameter.kind not in NAMED or parameter.name not in source.types:
            corrected = ", ".join(["item", *source.fields])
            _refuse(
                function,
                f"asks for {str(parameter)!r}, which is no field of {source!r} "
                f"(its fields: {', '.join(source.fields) or 'none'}); write, with those that you need,",
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


def with_typed_items(
    function: Callable[..., Any], name: str, given: int, lookups: Sequence[DeclaredLookup], *, gets_items: bool, at: str
) -> Callable[..., Any]:
    """The function that gets its items as their annotations want them; the same function if these are plain items."""
    with suppress(NameError):  # Python 3.14 evaluates annotations here: some are names that only type checkers import
        annotations: dict[str, Any] = getattr(function, "__annotations__", None) or {}
        code = getattr(inspect.unwrap(function), "__code__", None) if annotations else None
        if code is None:
            return function
        names = [*code.co_varnames[:given], *(each.name for each in lookups)]
        typed = {each: annotations[each] for each in names if each in annotations and not _is_plain(annotations[each])}
        if typed:
            # few applications have typed items, and no start of the others should wait for the module
            from streamfold.routes.typed import decoding

            reads = {each.name: each.reads for each in lookups}
            many = {each.name for each in lookups if each.many is not None}
            what = f"Handler {name!r} at {at}"
            return decoding(function, typed, names[:given], reads, what, gets_items=gets_items, many=many)
    return function


def _is_plain(annotation: Any) -> bool:
    name = _annotation_name(getattr(annotation, "__origin__", annotation))
    return name is not None and name.partition("[")[0] in PLAIN_SUBJECTS


def _returns_value(function: Callable[..., Any]) -> bool:
    """Whether a function has a ``return`` with a value. A callable without code counts as one that has."""
    if not hasattr(function, "__code__"):
        return not inspect.isgeneratorfunction(function)
    code = function.__code__
    labels: list[int] | None = None
    for place in _positions(code.co_code, RETURNS):
        loaded = place - BYTES if code.co_code[place] == RETURN_VALUE else place
        if code.co_code[loaded] not in CONSTANTS or _constant(code, loaded) is not None:
            return True
        labels = dis.findlabels(code.co_code) if labels is None else labels  # type: ignore[arg-type] # it takes bytes
        if place in labels and loaded != place:  # another branch jumps here with a value of its own
            return True
    return False


def _positions(code: bytes, wanted: tuple[int, ...]) -> list[int]:
    # Disassembling the code takes ten times as long, and would delay every start of a function.
    operations = code[::BYTES]
    return [place * BYTES for place, operation in enumerate(operations) if operation in wanted]


def _constant(code: CodeType, position: int) -> Any:
    """The constant that the operation at a position loads or returns."""
    number = code.co_code[position + 1]
    if position and code.co_code[position - BYTES] == dis.EXTENDED_ARG:
        number += code.co_code[position - BYTES + 1] << 8
    return code.co_consts[number]


def _corrected(function: Callable[..., Any], wrong: str, right: str, example: str) -> str:
    """The function's first line that is wrong, corrected, or the example where it has none."""
    try:
        lines = [line.strip() for line in inspect.getsource(function).splitlines()]
    except (OSError, TypeError):
        lines = []
    return next((re.sub(wrong, right, line) for line in lines if re.search(wrong, line)), example)


def _refuse(function: Callable[..., Any], what: str, corrected: str) -> NoReturn:
    name = getattr(function, "__name__", function)
    raise DeclarationError(f"Handler {name} at {source_line(function)} {what}\n    {corrected}")


class CommonOptions(TypedDict, total=False):
    """The options of every declaration. The docstring of ``Router`` describes them."""

    name: str | None
    group: str
    on_error: OnError
    attempts_max: int | None
    age_seconds_max: int | None


def check_kind(kind: object) -> Kind:
    """The kind, if it can be declared. Raises ``DeclarationError`` for another object, or for a kind without a required
    method.
    """
    if not isinstance(kind, Kind):
        raise DeclarationError(f"router.declare got {kind!r}: expected a kind, an object such as MYKIND = MyKind().")
    its_class = type(kind)
    if not isinstance(getattr(kind, "name", None), str):
        raise DeclarationError(f'Kind {its_class.__name__} has no name: give the class name = "...", and keep it.')
    if its_class.guard is Kind.guard:
        raise DeclarationError(
            f"Kind {kind.name!r} does not define the guard of its writes: give {its_class.__name__} a method "
            f"guard(self, route), which returns for example 'claim' ({manual('guarantees')})."
        )
    return kind


def check_options(decorator: str, common: CommonOptions) -> None:
    """Raises ``TypeError`` for an option that no declaration has, as Python does for a keyword argument."""
    known = CommonOptions.__annotations__
    if "parts" in common:
        refuse_parts(decorator)
    if "lookup" in common:
        raise DeclarationError(
            f"router.{decorator} takes no lookup=: what a referent was at a change cannot be known later. Derive its "
            "attributes onto the item, router.attributes(..., lookup=...), or copy them when the item is written."
        )
    if unknown := [name for name in common if name not in known]:
        raise TypeError(
            f"router.{decorator} got an unexpected keyword argument {unknown[0]!r}: beside its own options it takes "
            f"{', '.join(known)}."
        )


class GivenReads(NamedTuple):
    """What a declaration gives its handler beside its item: the options ``lookup`` and ``inline``, and ``parts`` and
    ``optional``.
    """

    looked_up: GivenLookups = NO_LOOKUPS
    gathered: tuple[GivenParts, bool] = ((), False)


NO_READS = GivenReads()


def declared_route(
    decorator: str,
    kind: Kind,
    sources: Keys,
    common: CommonOptions,
    made: Made,
    at: str,
    handler: Callable[..., Any] | None = None,
    *,
    reads: GivenReads = NO_READS,
) -> Route:
    """The route of the declaration ``at`` a line of code. Raises ``DeclarationError`` for options that cannot work."""
    mark = "" if handler is None else "@"
    keys = source_keys(sources, decorator, at, mark)
    targets, options = made(keys, at)
    asked_of = kind.asked_of(keys, targets)
    lookups, inline = checked_lookups(*reads.looked_up, keys, at, derived=kind.sees_derived_attributes)
    parts, optional = checked_parts(*reads.gathered, keys, decorator, at, derived=kind.sees_derived_attributes)
    given = kind.items_given(options) + bool(parts)
    if parts:
        check_function(handler, getattr(handler, "__name__", ""), at, optional=optional)
    asks_time = time_parameter(handler, kind, decorator, given)
    wants = () if handler is None else wanted_fields(handler, asked_of, given, lookups, asks_time)
    policy = Policy(common.get("on_error", "retry"), common.get("attempts_max"), common.get("age_seconds_max"))
    name, group = common.get("name"), common.get("group", GROUP)
    if name is None:
        name = default_name(decorator, keys[0]) if handler is None else getattr(handler, "__name__", "")
    policy = checked_policy(policy, f"{mark}router.{decorator}", at)
    if handler is not None:
        handler = with_typed_items(handler, name, given, lookups, gets_items=kind.gets_items, at=at)
    route = Route(name, kind, keys, targets, handler, at, group, wants, options, policy, (), lookups, inline, asks_time)
    return replace(route, parts=parts, optional=optional) if parts else route


def source_keys(sources: Keys, kind: str, at: str, mark: str = "") -> Keys:
    """The sources of a declaration, each once. Raises ``DeclarationError`` for anything but keys."""
    if not sources or not all(isinstance(source, Key) for source in sources):
        expected = f"{mark}router.{kind}(ORDER, ...)"
        unpack = " Keys of a list: (*KEYS, ...)." if any(isinstance(each, list | tuple) for each in sources) else ""
        raise DeclarationError(
            f"{kind} at {at} has the sources {sources!r}: expected one or several Keys, {expected}.{unpack}"
        )
    return tuple(dict.fromkeys(sources))


def target_keys(into: Into, at: str) -> Keys:
    """The targets of a declaration, each once. Raises ``DeclarationError`` for anything but keys."""
    targets = tuple(into) if isinstance(into, list | tuple) else (into,)
    if not targets or not all(isinstance(target, Key) for target in targets):
        raise DeclarationError(
            f"The handler at {at} has into={into!r}: expected the Key, or the list of Keys, that it may write."
        )
    return tuple(dict.fromkeys(targets))


def default_name(kind: str, source: Key) -> str:
    """The name of a declaration that gives none: its kind and the literals of its first source, ``audit_order_item``.

    A table other than the main one is named before them. Further sources leave the name as it is.
    """
    table = "" if source.table.name == MAIN.name else source.table.name
    literals = [piece for part in source.parts for piece in part.pieces if isinstance(piece, str)]
    name = "_".join([kind, *NAME_WORD.findall(" ".join([table, *literals]).lower())])
    if len(name) <= DEFAULT_NAME_LENGTH_MAX:
        return name
    digest = sha256(name.encode()).hexdigest()[:NAME_DIGEST_LENGTH]
    return f"{name[: DEFAULT_NAME_LENGTH_MAX - NAME_DIGEST_LENGTH - 1]}_{digest}"


def caller(depth: int) -> str:
    """The line that called the function ``frames`` above, as ``file:line``."""
    frame = sys._getframe(depth + 1)  # noqa: SLF001 - the one way to know where it was declared
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
