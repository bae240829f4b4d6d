"""What every declaration has: sources, targets, a name, a group and a policy, checked where it stands."""

import re
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, TypedDict

from streamfold.errors import DeclarationError
from streamfold.keys.key import Key
from streamfold.keys.table import MAIN
from streamfold.routes.policy import OnError, Policy, checked_policy
from streamfold.routes.route import GROUP, Kind, Route
from streamfold.routes.signature import wanted_fields

Into = Key | Sequence[Key]
Keys = tuple[Key, ...]
Made = Callable[[Keys, str], tuple[Keys, Any]]
"""Makes the targets and the kind's options of a declaration, for its sources and the place where it stands."""
NAME_WORD = re.compile("[a-z0-9]+")
DEFAULT_NAME_LENGTH_MAX = 54
"""Length of a name that is made: 64 (``is_name``), less the longest suffix of a handler that is declared beside."""
NAME_DIGEST_LENGTH = 8
"""Hexadecimal digits, 32 bits, that distinguish long names. Two equal names are refused all the same."""


class CommonOptions(TypedDict, total=False):
    """The options of every declaration. The docstring of ``Router`` describes them."""

    name: str | None
    group: str
    on_error: OnError
    attempts_max: int | None
    age_seconds_max: int | None


def check_kind(kind: object) -> Kind:
    """The kind, if it can be declared. Raises ``DeclarationError`` for what is none, or lacks what has no default."""
    if not isinstance(kind, Kind):
        raise DeclarationError(f"router.declare got {kind!r}: expected a kind, an object such as MYKIND = MyKind().")
    its_class = type(kind)
    if not isinstance(getattr(kind, "name", None), str):
        raise DeclarationError(f'Kind {its_class.__name__} has no name: give the class name = "...", and keep it.')
    if its_class.guard is Kind.guard:
        raise DeclarationError(
            f"Kind {kind.name!r} does not say by what its writes are guarded: give {its_class.__name__} a method "
            "guard(self, route), which returns for example 'claim' (docs/guarantees.md)."
        )
    return kind


def check_options(decorator: str, common: CommonOptions) -> None:
    """Raises ``TypeError`` for an option that no declaration has, as Python does for a keyword argument."""
    known = CommonOptions.__annotations__
    if unknown := [name for name in common if name not in known]:
        raise TypeError(
            f"router.{decorator} got an unexpected keyword argument {unknown[0]!r}: beside its own options it takes "
            f"{', '.join(known)}."
        )


def declared_route(
    decorator: str,
    kind: Kind,
    sources: Keys,
    common: CommonOptions,
    made: Made,
    at: str,
    handler: Callable[..., Any] | None = None,
) -> Route:
    """The route of a declaration that stands ``at`` a place. Raises ``DeclarationError`` for what cannot be."""
    mark = "" if handler is None else "@"
    keys = source_keys(sources, decorator, at, mark)
    targets, options = made(keys, at)
    asked_of = kind.asked_of(keys, targets)
    wants = () if handler is None else wanted_fields(handler, asked_of, kind.items_given(options))
    policy = Policy(common.get("on_error", "retry"), common.get("attempts_max"), common.get("age_seconds_max"))
    name, group = common.get("name"), common.get("group", GROUP)
    if name is None:
        name = default_name(decorator, keys[0]) if handler is None else getattr(handler, "__name__", "")
    policy = checked_policy(policy, f"{mark}router.{decorator}", at)
    return Route(name, kind, keys, targets, handler, at, group, wants, options, policy)


def source_keys(sources: Keys, kind: str, at: str, mark: str = "") -> Keys:
    """The sources of a declaration, each once. Raises ``DeclarationError`` for anything but keys."""
    if not sources or not all(isinstance(source, Key) for source in sources):
        form = f"{mark}router.{kind}(ORDER, ...)"
        unpack = " Keys of a list: (*KEYS, ...)." if any(isinstance(each, list | tuple) for each in sources) else ""
        raise DeclarationError(
            f"{kind} at {at} has the sources {sources!r}: expected one or several Keys, {form}.{unpack}"
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
    """Where the function was called that is so many frames above: ``file:line``."""
    frame = sys._getframe(depth + 1)  # noqa: SLF001 - the one way to know where it was declared
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
