"""Items drawn from the annotations of handlers: a TypedDict, a dataclass or a pydantic model says what an item is."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from inspect import Parameter, signature
from random import Random
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

from streamfold.app import App
from streamfold.keys.key import Key
from streamfold.proofs.histories import item_keys, usual_values
from streamfold.routes.route import Route
from streamfold.routes.typed import TypedChange
from streamfold.testing.items import TwinError

FEW = 3
"""Different texts, members and days: items then share rows, and a change often brings an equal value back."""
NUMBER_MAX = 20
FIRST_DAY = datetime(2026, 3, 1, 12, tzinfo=UTC)
EITHER = 0.5
"""How often an attribute that may lack is there."""


def drawn_items(app: App, count: int, wanted: Callable[[Key], bool]) -> dict[Key, list[Mapping[str, Any]]]:
    """``count`` items of each wanted key whose items handlers annotate, the same at each call.

    An item of a key that several handlers annotate has the attributes of all.
    """
    found: dict[Key, list[Mapping[str, Any]]] = {}
    fields = {name: each for key in item_keys(app) for name, each in key.types.items()}
    references = {name: usual_values(each) for name, each in fields.items() if each.python_type in (str, int)}
    for route in app.routes:
        for key, annotation in _annotated(route):
            if wanted(key):
                random = Random(0)  # noqa: S311 - a seed
                drawn = [_fitted(key, drawn_item(annotation, random), references, random) for _ in range(count)]
                found[key] = [{**one, **other} for one, other in zip(found.get(key, drawn), drawn, strict=True)]
    return found


def _fitted(
    key: Key, item: Mapping[str, Any], references: Mapping[str, Sequence[Any]], random: Random
) -> dict[str, Any]:
    # Without key attributes, and with values of other items' key fields, so that it refers to one of them.
    own = {name: value for name, value in item.items() if name not in key.table.attributes}
    return {
        name: _chosen(references[name], value, random) if name in references else value for name, value in own.items()
    }


def _chosen(references: Sequence[Any], value: Any, random: Random) -> Any:
    """A reference in place of a value, or of each element of a list or set."""
    if isinstance(value, list | set | frozenset):
        return type(value)(random.choice(references) for _ in value)
    return random.choice(references)


def _annotated(route: Route) -> Iterator[tuple[Key, Any]]:
    if route.function is None:
        return
    function = getattr(route.function, "__wrapped__", route.function)
    annotations: dict[str, Any] = {}
    with suppress(NameError, TypeError):  # a name that only type checkers import
        annotations = get_type_hints(function, include_extras=True)
    names = [each.name for each in signature(function).parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    several = route.items_given > 1 and len(route.sources) == route.items_given  # a post and an edge
    for position, name in enumerate(names[: route.items_given]):
        for key in route.sources[position : position + 1] if several else route.sources if not position else ():
            yield from _of(key, annotations.get(name))
    for lookup in route.lookups:
        yield from _of(lookup.key, annotations.get(lookup.name))


def _of(key: Key, annotation: Any) -> Iterator[tuple[Key, Any]]:
    if get_origin(annotation) is TypedChange:
        (annotation,) = get_args(annotation)
    if get_origin(annotation) in (Union, UnionType):
        members = [each for each in get_args(annotation) if each is not type(None)]
        annotation = members[0] if len(members) == 1 else annotation
        if members and all(map(_has_attributes, members)):
            yield key, annotation
    elif _has_attributes(annotation):
        yield key, annotation


def _has_attributes(annotation: Any) -> bool:
    return is_typeddict(annotation) or is_dataclass(annotation) or hasattr(annotation, "__pydantic_fields__")


class AnnotatedAttribute(NamedTuple):
    """An attribute of an annotated item."""

    name: str
    annotation: Any
    required: bool


def attributes_of(annotation: Any) -> list[AnnotatedAttribute]:
    """The attributes of a TypedDict, a dataclass or a pydantic model, by the names that the item has for them."""
    hints = get_type_hints(annotation, include_extras=True)
    if is_typeddict(annotation):
        return [AnnotatedAttribute(name, each, name in annotation.__required_keys__) for name, each in hints.items()]
    if (known := getattr(annotation, "__pydantic_fields__", None)) is not None:
        found = []
        for name, each in known.items():
            alias = each.validation_alias or each.alias
            given = alias if isinstance(alias, str) else name
            found.append(AnnotatedAttribute(given, each.annotation, each.is_required()))
        return found
    return [
        AnnotatedAttribute(each.name, hints[each.name], each.default is MISSING and each.default_factory is MISSING)
        for each in fields(annotation)
        if each.init
    ]


def drawn_item(annotation: Any, random: Random) -> dict[str, Any]:
    """An item that an annotation describes. Raises ``TwinError`` for a type of which no value can be drawn."""
    if get_origin(annotation) in (Union, UnionType):
        annotation = random.choice(get_args(annotation))
    return {
        each.name: drawn_value(each.annotation, random, f"{annotation.__name__}.{each.name}")
        for each in attributes_of(annotation)
        if each.required or random.random() < EITHER
    }


def drawn_value(annotation: Any, random: Random, where: str) -> Any:
    """A value of a type, as an item stores it. Raises ``TwinError`` for a type of which no value can be drawn."""
    origin, given = get_origin(annotation), get_args(annotation)
    if origin in (Annotated, Required, NotRequired):
        return drawn_value(given[0], random, where)
    if origin in (Union, UnionType):
        return drawn_value(random.choice(given), random, where)
    if origin is Literal:
        return random.choice(given)
    if _has_attributes(annotation):
        return drawn_item(annotation, random)
    kind = origin or annotation
    for base, draw in SIMPLE:
        if isinstance(kind, type) and issubclass(kind, base):
            return draw(random, kind)
    if annotation in (None, type(None), Any):
        return None
    if isinstance(kind, type) and issubclass(kind, (Mapping, AbstractSet, Sequence)):
        return _drawn_members(kind, given or (str, str), random, where)
    raise TwinError(
        f"{where} is of type {annotation!r}, of which check() draws no value: give examples of the items, "
        "items={ORDER: {...}}."
    )


def _drawn_members(kind: type, given: Sequence[Any], random: Random, where: str) -> Any:
    if issubclass(kind, tuple) and Ellipsis not in given:
        return [drawn_value(each, random, where) for each in given]
    count = random.randint(1, FEW)  # a set has a member at least
    members = [drawn_value(given[-1] if issubclass(kind, Mapping) else given[0], random, where) for _ in range(count)]
    if issubclass(kind, Mapping):
        return {drawn_text(random): each for each in members}
    return set(members) if issubclass(kind, AbstractSet) else members


def drawn_text(random: Random) -> str:
    return random.choice("abc"[:FEW])


def _moment(random: Random) -> datetime:
    return FIRST_DAY + timedelta(days=random.randrange(FEW))


def _fraction(random: Random) -> Decimal:
    return Decimal(random.randint(0, NUMBER_MAX * 100)).scaleb(-2)


SIMPLE: tuple[tuple[type, Callable[[Random, Any], Any]], ...] = (
    (Enum, lambda random, kind: random.choice(list(kind)).value),
    (bool, lambda random, _: random.random() < EITHER),
    (int, lambda random, _: random.randint(0, NUMBER_MAX)),
    (Decimal, lambda random, _: _fraction(random)),
    (float, lambda random, _: _fraction(random)),
    (str, lambda random, _: drawn_text(random)),
    (bytes, lambda random, _: drawn_text(random).encode()),
    (datetime, lambda random, _: _moment(random).isoformat()),
    (date, lambda random, _: _moment(random).date().isoformat()),
    (UUID, lambda random, _: str(UUID(int=random.randint(1, FEW)))),
)
"""How values of a type are drawn; the first type that fits decides."""
