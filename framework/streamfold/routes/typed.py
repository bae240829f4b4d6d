"""Typed items: a handler's item as a dataclass or a pydantic model, decoded by pydantic once per image.

Only annotations that need it are decoded: a ``TypedDict`` is for type checkers, and the handler gets the item as it is.
pydantic is imported when the first such annotation is declared. See docs/typed-items.md.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache, wraps
from inspect import iscoroutinefunction
from types import SimpleNamespace, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from streamfold.errors import DeclarationError, HandlerError, redacted
from streamfold.records.change import Change
from streamfold.records.images import Image

T = TypeVar("T")

ANNOTATIONS_KEPT_MAX = 1000
"""Annotations whose decoders are cached: an application has a few dozen."""
MISFITS_MAX = 3
"""Misfits of one item in a message."""
VALUE_IN_MESSAGE = ("union_tag_invalid", "value_error", "assertion_error", "get_attribute_error", "mapping_type")
"""pydantic's errors whose message has, or may have, the value."""
TYPES: tuple[tuple[type, str], ...] = (
    (str, "text (S)"),
    (bool, "a boolean (BOOL)"),
    (int, "a whole number (N)"),
    (Decimal, "a number with a fraction (N)"),
    (bytes, "binary (B)"),
    (list, "a list (L)"),
    (Mapping, "a map (M)"),
    (set, "a set (SS, NS or BS)"),
)
"""What is found in an item, with DynamoDB's types, by the Python type."""


class OrderedSet(set[Any]):
    """A set that iterates in the order of its members: a list that pydantic makes of it is the same in each process."""

    def __iter__(self) -> Iterator[Any]:
        return iter(sorted(super().__iter__()))


class Decoder:
    """Makes objects of one annotation from images."""

    def __init__(self, annotation: Any, adapter: Any) -> None:
        self.annotation = annotation
        self.name: str = shown_type(annotation)
        self.names: tuple[str, ...] | None = attribute_names(annotation)
        self._validated: Callable[[Any], Any] = adapter.validator.validate_python
        self._refused: type[Exception] = _pydantic_core().ValidationError

    def of(self, subject: Any, who: str) -> Any:
        """The object of an item. Whatever is no item, such as None for no referent, is returned as it is.

        Raises ``HandlerError`` for an item that does not fit: ``who`` begins the message.
        """
        if isinstance(subject, Image):
            return subject.decoded(self, self.names, lambda image: self._decoded(image, who))
        return self._decoded(subject, who) if isinstance(subject, Mapping) else subject

    def _decoded(self, item: Mapping[str, Any], who: str) -> Any:
        given = item if self.names is None else [name for name in self.names if name in item]
        values = {name: item[name] for name in given}
        for name, value in values.items():
            if isinstance(value, set | list | dict):
                values[name] = _in_order(value)
        try:
            return self._validated(values)
        except self._refused as error:
            misfits = error.errors(include_url=False, include_context=False)  # type: ignore[attr-defined] # pydantic's
            raise HandlerError(f"{who} as {self.name}: {_in_words(misfits)}") from None


def _in_order(value: Any) -> Any:
    # Sets inside of lists and maps too. All are new, and a validator of the user may change them.
    if isinstance(value, set):
        return OrderedSet(value)
    if isinstance(value, list):
        return [_in_order(member) for member in value]
    return {name: _in_order(member) for name, member in value.items()} if isinstance(value, dict) else value


def _in_words(misfits: Sequence[Mapping[str, Any]]) -> str:
    some = "; ".join(map(_misfit, misfits[:MISFITS_MAX]))
    more = len(misfits) - MISFITS_MAX
    return f"{some}{f'; and {more} more' if more > 0 else ''}. {REMEDY}"


REMEDY = (
    "Correct the item or the type: an attribute that may lack needs a default (total: int = 0), one that may be null "
    "takes None (total: int | None)."
)


def _misfit(misfit: Mapping[str, Any]) -> str:
    # Neither the value nor a message that may have it: pydantic's own messages quote what they could not parse.
    where, kind = redacted(".".join(map(str, misfit["loc"])) or "the item"), misfit["type"]
    if kind in ("missing", "missing_argument"):
        return f"attribute {where} is missing"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"attribute {where} is {_found(misfit['input'])}, and the type has no such field and forbids others"
    return f"attribute {where} is {_found(misfit['input'])}, expected {_expected(kind, misfit['msg'])}"


def _expected(kind: str, message: str) -> str:
    known: frozenset[str] = _known_errors()
    if kind in VALUE_IN_MESSAGE or kind not in known:
        return f"what its validator takes ({redacted(kind)})"
    if kind.endswith(("_parsing", "_from_float")):
        message = message.partition(",")[0]
    return message.removeprefix("Input should be ").removeprefix("Value should have ")


@lru_cache(1)
def _known_errors() -> frozenset[str]:
    from pydantic_core.core_schema import ErrorType

    return frozenset(get_args(ErrorType))


def _pydantic_core() -> Any:
    import pydantic_core

    return pydantic_core


def _found(value: Any) -> str:
    if value is None:
        return "null (NULL)"
    return next((name for kind, name in TYPES if isinstance(value, kind)), type(value).__name__)


if TYPE_CHECKING:

    class _Base(Change, Generic[T]):
        pass

else:
    _Base = Generic  # at run time it asks its change for all else


class TypedChange(_Base[T]):
    """A change whose ``old`` and ``new`` are of a type, or None where there is no image: ``TypedChange[Order]``.

    It has all else that a ``Change`` has. A test makes one of a change: ``TypedChange(change, Order)``.
    """

    __slots__ = ("_change", "_decoder", "_who")

    def __init__(self, change: Change, of: "type[T] | Decoder", who: str = "The change's item") -> None:
        self._change = change
        self._decoder = of if isinstance(of, Decoder) else needed_decoder(of, "TypedChange(...)")
        self._who = who

    @property
    def old(self) -> T | None:  # type: ignore[override] # in place of the image
        """The item before the change. Raises ``HandlerError`` for one that does not fit the type."""
        return self._of(self._change.old)

    @property
    def new(self) -> T | None:  # type: ignore[override] # likewise
        """The item after the change. Raises ``HandlerError`` for one that does not fit the type."""
        return self._of(self._change.new)

    def _of(self, image: Image) -> T | None:
        found: T | None = self._decoder.of(image, self._who) if image else None
        return found

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return getattr(self._change, name)


def decoding(
    function: Callable[..., Any],
    annotations: Mapping[str, Any],
    given: Sequence[str],
    reads: Mapping[str, Collection[str] | None],
    what: str,
    *,
    gets_items: bool,
    many: Collection[str] = (),
) -> Callable[..., Any]:
    """The function that gets its items as ``annotations`` want them; the same function if they want nothing.

    ``given`` are the names of the parameters before the fields and referents. ``reads`` has each referent's attributes
    that are read, None for all; those of ``many`` are tuples of items. Raises ``DeclarationError`` for an annotation
    that cannot be decoded.
    """
    found = _decoders(function, annotations, what, many)
    for name in given:
        _check_subject(what, name, found.get(name), gets_items=gets_items)
    for name, names in reads.items():
        _check_reads(what, name, names, found.get(name))
    who = f"{what.partition(' at ')[0]} takes "
    by_position = [(position, each) for position, name in enumerate(given) if (each := found.get(name)) is not None]
    by_name = [(name, each) for name, each in found.items() if name not in given and isinstance(each, Decoder)]
    if not by_position and not by_name:
        return function

    @wraps(function)
    def decoded(*subjects: Any, **fields: Any) -> Any:
        taken = list(subjects)
        for position, each in by_position:
            if isinstance(each, Decoder):
                taken[position] = each.of(taken[position], f"{who}the item")
            else:
                taken[position] = TypedChange(taken[position], each.decoder, f"{who}the change's item")
        for name, decoder in by_name:
            fields[name] = _decoded(decoder, fields[name], f"{who}{name!r}", several=name in many)
        return function(*taken, **fields)

    return _awaited(decoded) if iscoroutinefunction(function) else decoded


def _awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as one that is known for a coroutine function, because what it returns is awaited."""

    @wraps(function)
    async def awaited(*subjects: Any, **fields: Any) -> Any:
        return await function(*subjects, **fields)

    return awaited


def _decoded(decoder: Decoder, given: Any, who: str, *, several: bool) -> Any:
    return tuple(decoder.of(each, who) for each in given) if several else decoder.of(given, who)


def _decoders(
    function: Any, annotations: Mapping[str, Any], what: str, many: Collection[str]
) -> dict[str, "Decoder | OfChange | None"]:
    every = annotations.items()
    return {name: _decoder(function, name, each, what, several=name in many) for name, each in every}


class OfChange:
    """The decoder of a change's images."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder


def _decoder(
    function: Any, name: str, annotation: Any, what: str, *, several: bool = False
) -> Decoder | OfChange | None:
    """The decoder of an annotation; ``several``: of the items in a tuple or sequence."""
    if isinstance(annotation, str):
        with suppress(Exception):  # a name that only type checkers import: the handler then gets the item as it is
            text = SimpleNamespace(__annotations__={name: annotation})
            hints = get_type_hints(text, getattr(function, "__globals__", {}), include_extras=True)
            return _decoder(function, name, hints[name], what, several=several)
        return None
    if several:
        (annotation, *_) = get_args(annotation) or (Any,)
    if get_origin(annotation) is TypedChange:
        (of,) = get_args(annotation)
        return OfChange(needed_decoder(of, f"{what}, {name}:"))
    return decoder_of(annotation, f"{what}, {name}:") if is_decoded(annotation) else None


def is_decoded(annotation: Any) -> bool:
    """Whether objects of an annotation are decoded: of a dataclass, a pydantic model, or a union with one."""
    annotation = getattr(annotation, "__value__", annotation)  # ``type Orders = ...`` of Python 3.12
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return any(map(is_decoded, get_args(annotation)))
    if origin is Annotated:
        return is_decoded(get_args(annotation)[0])
    kind = annotation if origin is None else origin
    return isinstance(kind, type) and (hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__pydantic_fields__"))


def needed_decoder(annotation: Any, where: str) -> Decoder:
    """The decoder of an annotation that is asked for. Raises ``DeclarationError`` for one that is not decoded."""
    if not is_decoded(annotation):
        raise DeclarationError(
            f"{where} {shown_type(annotation)} is no type to decode items to: expected a dataclass or a pydantic model."
        )
    return decoder_of(annotation, where)


def decoder_of(annotation: Any, where: str) -> Decoder:
    """The decoder of an annotation. Raises ``DeclarationError`` without pydantic, and for types that it cannot make."""
    try:
        return _made(annotation)
    except ImportError:
        raise DeclarationError(
            f"{where} {shown_type(annotation)} is a dataclass or a model, which pydantic decodes, and pydantic is not "
            "installed: pip install 'streamfold[typed]'. A TypedDict needs nothing."
        ) from None
    except Exception as error:  # pydantic has errors of several trees for types that it does not know
        raise DeclarationError(
            f"{where} pydantic makes no {shown_type(annotation)} of an item: {str(error).partition(chr(10))[0]} "
            "Expected fields of DynamoDB's types: str, int, Decimal, bool, bytes, None, list, dict, set, datetime or "
            "date, or a dataclass or model of these."
        ) from error


@lru_cache(ANNOTATIONS_KEPT_MAX)
def _made(annotation: Any) -> Decoder:
    from pydantic import TypeAdapter

    return Decoder(annotation, TypeAdapter(annotation))


def attribute_names(annotation: Any) -> tuple[str, ...] | None:
    """The attributes that a type may read, so that others are neither decoded nor count as read; None: all."""
    fields = getattr(annotation, "__dataclass_fields__", None)
    if fields is None or hasattr(annotation, "__pydantic_fields__") or hasattr(annotation, "__pydantic_config__"):
        return None  # a model, or pydantic's own dataclass: it may have aliases, and validators of the whole item
    hints = get_type_hints(annotation, include_extras=True)
    if any(get_origin(each) is Annotated for each in hints.values()):
        return None  # Annotated[..., Field(alias=...)] is read under another name
    return tuple(name for name, each in fields.items() if each.init)


def _check_subject(what: str, name: str, decoder: Decoder | OfChange | None, *, gets_items: bool) -> None:
    if isinstance(decoder, Decoder) and not gets_items:
        _refuse(what, name, f"{decoder.name}, but the handler gets a change: write {name}: TypedChange[{decoder.name}]")
    if isinstance(decoder, OfChange) and gets_items:
        of = decoder.decoder.name
        _refuse(what, name, f"TypedChange[{of}], but the handler gets an item: write {name}: {of}")


def _check_reads(what: str, name: str, reads: Collection[str] | None, decoder: Decoder | OfChange | None) -> None:
    if isinstance(decoder, OfChange):
        _refuse(what, name, "a change, but the handler gets an item")
    if decoder is None or reads is None or decoder.names is None:
        return
    if unread := [each for each in decoder.names if each not in reads]:
        listed = ", ".join(f'"{each}"' for each in sorted({*reads, *unread}))
        _refuse(
            what,
            name,
            f"{decoder.name}, whose field {unread[0]!r} reads= does not list: changes of it would not be noticed. "
            f"Write reads=[{listed}]",
        )


def _refuse(what: str, name: str, why: str) -> NoReturn:
    raise DeclarationError(f"{what} takes {name} as {why}.")


def shown_type(annotation: Any) -> str:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation.__name__
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join("None" if each is type(None) else shown_type(each) for each in get_args(annotation))
    return str(annotation)
