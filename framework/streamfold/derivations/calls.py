"""Calls of AWS: which action a function or a person takes on which place.

A place has the name that the application knows it by; a template says which resource it is. The actions are those of
the engine's requests: a transaction takes the permissions of its operations (Developer Guide, transaction-apis-iam), a
PartiQL statement that of its verb (ql-iam).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache, partial
from inspect import getattr_static
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from streamfold.engines.requests import PLACEHOLDERS
from streamfold.keys.table import STATE as STATE_TABLE
from streamfold.routes import effects, shipped_aggregates
from streamfold.routes.aggregates import Added, Aggregate, Ordered
from streamfold.routes.route import declared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from streamfold.keys.key import Key
    from streamfold.routes.route import Route

PlaceKind = Literal[
    "table",  # by its logical name
    "stream",  # of a table
    "state",  # the state table
    "key",  # the KMS key of a table's own, which its stream is encrypted with
    "failure bucket",
    "failures",  # objects that event source mappings leave in the failure bucket
    "parking bucket",
    "parked",  # objects of parked records
    "archive",  # objects of removed items, by the location that the archive declares
    "destination",  # of messages, by its service and logical name
    "large data",  # objects with data that a destination does not take, by the location that is declared
    "queue",  # of segments of fan-outs
    "dead letters",  # of that queue
    "search",  # a path in the search domain
    "secret",  # that a setting refers to, by the setting's name
    "log",  # of the function itself
    "account",  # calls that name no resource
    "role",  # of another account, by its ARN
]
"""What a place is."""


class Place(NamedTuple):
    """Something that an action is permitted on."""

    kind: PlaceKind
    name: str = ""


class Permission(NamedTuple):
    """One action on one place."""

    action: str
    place: Place


class Role(NamedTuple):
    """What runs with a role of its own: a function, or a person's commands."""

    kind: Literal["stream", "queue", "verifier", "operate", "read"]
    group: str | None = None  # of a function of the stream or the queue; None for all groups

    def serves(self, group: str) -> bool:
        """Whether it works for handlers of a group."""
        return self.group in (None, group)


Permissions = frozenset[Permission]
NO_CALLS: Permissions = frozenset()
QUEUE = Place("queue")
STATE = Place("state")


def table_of(key: Key) -> Place:
    """The place of a key's items."""
    return STATE if key.table.name == STATE_TABLE.name else Place("table", key.table.name)


def tables_of(keys: Iterable[Key]) -> Iterator[Place]:
    """The places of the items of keys, each once."""
    yield from dict.fromkeys(map(table_of, keys))


def dynamodb(place: Place, *actions: str) -> Permissions:
    """Actions of DynamoDB on a table, without their prefix."""
    return frozenset(Permission(f"dynamodb:{action}", place) for action in actions)


def beside_searches(permissions: Permissions) -> Permissions:
    return frozenset(each for each in permissions if each.place.kind != "search")


def inserted(key: Key) -> Permissions:
    """Inserts rows, 25 a call where statements can name the key attributes."""
    return dynamodb(table_of(key), "PartiQLInsert" if _takes_statements(key) else "PutItem")


def replaced(key: Key) -> Permissions:
    """Replaces rows likewise."""
    return dynamodb(table_of(key), "PartiQLUpdate" if _takes_statements(key) else "PutItem")


def emptied(key: Key, place: Place) -> Permissions:
    """Removes empty rows likewise."""
    return dynamodb(place, "PartiQLDelete" if place == STATE or _takes_statements(key) else "DeleteItem")


def _takes_statements(key: Key) -> bool:
    return not any(name.startswith(PLACEHOLDERS) for name in key.table.attributes)


def of_items(route: Route, *actions: str) -> Permissions:
    """Reads of all items of a route's sources, and of single ones."""
    every = ("Scan", "DescribeTable", "GetItem", *actions)
    return NO_CALLS.union(*(dynamodb(place, *every) for place in tables_of(route.sources)))


def of_ledger(route: Route, *, ordered: bool, adds: bool, stored: Place | None = None) -> Permissions:
    """Steps of the ledger, and the rows of a contributing handler.

    ordered: rows may show values in an order. adds: rows with one writer may be added to. stored: where the rows are,
    if it is not the table of their keys.
    """
    large = dynamodb(STATE, "PutItem", "DeleteItem")  # contributions of their own items
    calls = large | dynamodb(STATE, "BatchGetItem", "UpdateItem")
    if ordered:  # entries, and rows that are recomputed from them
        calls |= dynamodb(STATE, "Query")
    for target in route.targets:
        place, key = stored or table_of(target.key), target.key
        if target.replaces:
            calls |= dynamodb(place, "PutItem", "DeleteItem")
        if adds or not target.replaces:  # a row without contributors is removed, and then its note
            calls |= dynamodb(place, "UpdateItem") | emptied(key, place) | dynamodb(STATE, "PartiQLUpdate")
            calls |= dynamodb(place, "ConditionCheckItem")  # a row that somebody removed is still absent
            if ordered or key.table.ttl is not None:  # a row that may be recomputed; the life of one that expires
                calls |= dynamodb(place, "BatchGetItem")
    return calls


# What a handler may yield. No declaration says which effects and aggregates it makes, but its code has to name them.

SHIPPED: Mapping[str, Any] = {**vars(effects), **vars(shipped_aggregates)}
"""Effects and aggregates by their names: a handler may import them where it runs."""


class NamesInCode(NamedTuple):
    """What the code of a handler names."""

    classes: frozenset[type]  # aggregates and effects
    words: frozenset[str]  # keyword arguments

    @property
    def orders(self) -> bool:
        """Whether it may order values: by an aggregate, or by saying whose plain attributes win."""
        return "wins" in self.words or any(issubclass(each, Ordered) for each in self.classes)

    def makes(self, *wanted: type) -> bool:
        """Whether it may make one of these."""
        return any(issubclass(each, wanted) for each in self.classes)


ANYTHING = NamesInCode(
    frozenset([effects.Row, effects.Put, effects.Add, effects.Delete, Added, Ordered]), frozenset(["wins"])
)
"""What a handler without code in Python may name."""


@lru_cache(1000)
def named_by(function: Callable[..., Any] | None) -> NamesInCode:
    """What a handler names, and what it calls names in turn: functions and classes of the user's own modules."""
    function = declared(function)
    classes: set[type] = set()
    words: set[str] = set()
    waiting: list[Any] = [function]
    seen: dict[int, Any] = {}  # which keeps the values: another one may get the address of a value that is gone
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, type) and (issubclass(value, Aggregate) or value in SHIPPED.values()):
            classes.add(value)
        elif isinstance(value, FunctionType):
            if value is function or not _is_library(value.__module__):
                waiting += _values_in(value)
                words.update(_words_in(value.__code__))
        else:
            waiting += _members(value)
    return (
        NamesInCode(frozenset(classes), frozenset(words))
        if words or classes or isinstance(function, FunctionType)
        else ANYTHING
    )


def _is_library(module: str | None) -> bool:
    """Whether a module is streamfold's or Python's: what its code names, such as ``ast.Add``, no handler yields."""
    return module is None or module.partition(".")[0] in {"streamfold", *sys.stdlib_module_names}


def _members(value: Any) -> Iterable[Any]:
    """What a handler may reach through a value: members of containers, functions of the user's classes."""
    match value:
        case Mapping():
            return value.values()
        case list() | tuple() | set() | frozenset():
            return value
        case MethodType():
            return [value.__func__, value.__self__]
        case type():
            return () if _is_library(value.__module__) else [*vars(value).values(), *value.__bases__]
        case ModuleType():
            return ()
    if isinstance(value, partial):
        return [value.func]
    # Without the value's own code: what a module imports may make attributes, or raise, when it is asked for one.
    return [type(value), getattr_static(value, "__wrapped__", None), getattr_static(value, "func", None)]


def _values_in(function: FunctionType) -> Iterator[Any]:
    """The values behind the names of a function: globals, enclosed names, attributes of modules."""
    names = {*_names_in(function.__code__)}
    modules: list[ModuleType] = []
    for name in names:
        value = function.__globals__.get(name, SHIPPED.get(name))
        modules += [value] if isinstance(value, ModuleType) else []
        yield value
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # of a name that is not bound yet
            yield cell.cell_contents
    yield from (vars(module)[name] for module in modules for name in names if name in vars(module))
    yield from function.__defaults__ or ()


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in _inner(code):
        yield from _names_in(inner)


def _words_in(code: CodeType) -> Iterator[str]:
    """The names of keyword arguments, and of keys of a mapping that may become some."""
    for constant in code.co_consts:
        yield from (each for each in (constant if isinstance(constant, tuple) else [constant]) if isinstance(each, str))
    for inner in _inner(code):
        yield from _words_in(inner)


def _inner(code: CodeType) -> Iterator[CodeType]:
    return (each for each in code.co_consts if isinstance(each, CodeType))
