"""Shards of a hot row: the shard of a source item, and the requirements of the declaration.

The target's template has a field ``{shard:02d}``, which the framework fills with a hash of the source's key. An item's
hash never changes, so its contribution is found again. The number of shards may be changed at any time: the ledger
holds the row of each contribution.
"""

from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from types import CodeType, ModuleType
from typing import Any

from streamfold.errors import DeclarationError
from streamfold.keys.field import Unreadable
from streamfold.keys.key import Key
from streamfold.routes.aggregates import Ordered
from streamfold.routes.route import SHARD, Fields, Route

FIELD = f"{{{SHARD}:02d}}"
"""The recommended field: two digits hold every number of shards, so the template never changes."""
NOT_IN_SHARDS = (
    "leave shards= out, or give the class in_shards = True, so that each shard's row keeps the values that count"
)
SHARDS_MAX = 100
"""Items that one request reads (API Reference, BatchGetItem): a reader reads all shards of a row with one request."""


def shard_of(fields: Fields, shards: int) -> int:
    """The shard of a source item, from the fields of its key: 0 to ``shards - 1``."""
    text = "\0".join(f"{name}={fields[name]}" for name in sorted(fields))
    return int.from_bytes(sha256(text.encode(errors="surrogatepass")).digest()[:8], "big") % shards


def checked_shards(shards: Any, sources: tuple[Key, ...], targets: tuple[Key, ...], at: str) -> int:
    """The number of shards, 0 for none. Raises ``DeclarationError`` for a wrong number or template."""
    if shards is None:
        return 0
    if isinstance(shards, bool) or not isinstance(shards, int) or not 2 <= shards <= SHARDS_MAX:
        raise DeclarationError(
            f"The view at {at} has shards={shards!r}: expected a whole number from 2 to {SHARDS_MAX}, the rows that "
            "one request reads."
        )
    for source in sources:
        if SHARD in source.types:
            raise DeclarationError(
                f"The view at {at} has shards={shards} and reads {source!r}, which has a field {SHARD!r} of its own: "
                f"the framework fills {{{SHARD}}} of the target. Give the source's field another name."
            )
    for target in targets:
        _check_target(shards, target, at)
    return int(shards)


def check_aggregates(route: Route) -> None:
    """Raises ``DeclarationError`` for a view with shards that names an aggregate which no reader can merge.

    A reader would show the value of one shard. An aggregate that a handler reaches by other names is refused when the
    handler yields it.
    """
    for value in _named(route.function):
        if isinstance(value, type) and issubclass(value, Ordered) and not value.in_shards:
            raise DeclarationError(
                f"{route.kind} {route.name!r} ({route.declared_at}) has shards= and names {value.__name__} "
                f"({value.declared_at}), of which no reader knows how the values of shards are put together: "
                f"{NOT_IN_SHARDS}, or use another aggregate."
            )


def _named(function: Any) -> Iterator[Any]:
    """The names in the code of a function: also globals, enclosed names, and attributes of modules."""
    function = getattr(function, "__wrapped__", function)
    if (code := getattr(function, "__code__", None)) is None:
        return
    named = [function.__globals__[name] for name in _names_in(code) if name in function.__globals__]
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # of a name that is not bound yet
            named.append(cell.cell_contents)
    yield from named
    modules = [value for value in named if isinstance(value, ModuleType)]
    yield from (vars(module)[name] for module in modules for name in _names_in(code) if name in vars(module))


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)


def _check_target(shards: int, target: Key, at: str) -> None:
    field = target.types.get(SHARD)
    if field is None or field.python_type is not int:
        example = f"{target.partition.text}{target.table.delimiter}{FIELD}"
        raise DeclarationError(
            f"The view at {at} has shards={shards}, but {target!r} has no field {FIELD} for the number of a shard. "
            f"Give it one, for example in its partition: {example!r}."
        )
    try:
        field.write(shards - 1)
    except Unreadable as why:
        raise DeclarationError(
            f"The view at {at} has shards={shards}, but {field} of {target!r} does not take shard {shards - 1}: {why}."
        ) from None
