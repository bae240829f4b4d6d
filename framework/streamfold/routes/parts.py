"""Parts: the items of the partition of an item, the *root*, that its handler gets beside it.

A part has one root, which its key names: every field of the root's key is one of the part's. So nothing is kept to find
the root of a part. See docs/collections.md.
"""

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, TypeVar, is_typeddict, overload

from streamfold.errors import AttributeMissing, DeclarationError, HandlerError, shown
from streamfold.keys.key import Key, sort_prefix
from streamfold.records.images import Image, hidden
from streamfold.records.values import RawImage
from streamfold.routes.lookups import GivenReferents, JoinedImage, alike_in, seen_attributes

if TYPE_CHECKING:
    from collections.abc import Callable


T = TypeVar("T")

NOTHING: Mapping[str, Any] = MappingProxyType({})
PART = "part"
"""The role of an item that a handler of another item gathers."""
GATHERED = "part "
"""Begins the manifest's text of the key of parts; a table's name has no space."""
NEWEST_MAX = 2_000
"""Parts of one root: a query of so many items of 1 KB takes two pages."""
GATHERING = ("view", "index", "attributes", "search")
"""The kinds whose handlers may gather parts."""


class Every:
    """Every part of a key, ``Every(SHIPMENT, reads=["sku"])``: a key alone in ``parts=`` is the same without ``reads``.

    ``reads`` are the attributes that the handler reads: changes of others cost nothing. That a part comes or goes
    always counts.
    """

    __slots__ = ("key", "reads")

    def __init__(self, key: Key, /, *, reads: Collection[str] | None = None) -> None:
        self.key: Key = key
        self.reads: Collection[str] | None = reads


class Newest:
    """The last parts of a key in the order of their sort keys, at most ``number`` of them: ``Newest(READING, 10)``.

    The handler gets them in that order. ``reads`` is as in ``Every``. It is no history: rows follow from these parts as
    they are now.
    """

    __slots__ = ("key", "number", "reads")

    def __init__(self, key: Key, number: int, /, *, reads: Collection[str] | None = None) -> None:
        self.key: Key = key
        self.number: int = number
        self.reads: Collection[str] | None = reads


GivenParts = Sequence[Key | Every | Newest]
"""The option ``parts`` of a declaration."""


class DeclaredPart(NamedTuple):
    """A key of parts of a handler, checked."""

    key: Key
    reads: frozenset[str] | None = None  # None: all attributes
    newest: int = 0  # how many of the last parts; 0 for all parts
    derived: bool = False  # attributes that are derived onto the part are seen

    @property
    def stored_name(self) -> str:
        """The manifest's text. Which of the parts are gathered is not in it: that is as free as the function's code."""
        return f"{GATHERED}{self.key.stored_name}"

    @property
    def shown(self) -> str:
        """Its name in messages."""
        return f"a part of {self.key!r}"

    def agrees(self, one: Image, other: Image) -> bool:
        """Whether two images of a part are alike to the handler."""
        return alike_in(*(seen_attributes(each, self.reads, derived=self.derived) for each in (one, other)))

    def prefix(self, fields: Mapping[str, Any]) -> str | None:
        """The begin of the sort keys of a root's parts; None for a single part, whose key the root's fields give."""
        return None if set(self.key.types) <= set(fields) else sort_prefix(self.key, fields)


class RootImage(JoinedImage):
    """A root, or the place of one that is not there, whose parts are read when they are asked for.

    They are not kept: many roots together may have more parts than memory takes.
    """

    __slots__ = ("_gather",)

    def __init__(
        self,
        raw: RawImage,
        referents: GivenReferents,
        plain: Image | None,
        gather: "Callable[[], Parts]",
    ) -> None:
        super().__init__(raw, referents, plain)
        self._gather = gather

    def beside(self, more: Mapping[str, Any]) -> "RootImage":
        return RootImage(self.raw, {**self.referents, **more}, self, self._gather)

    def replaced(self, raw: RawImage) -> "RootImage":
        return RootImage(raw, self.referents, None, self._gather)

    @property
    def given(self) -> tuple[Image | None, "Parts"]:
        """What the handler gets: None for a root that is not there. Raises the error of the read."""
        return self if self.raw else None, self._gather()

    def __bool__(self) -> bool:
        """The root exists, or one of its parts does."""
        return bool(self.raw) or bool(self._gather())


class Part(Mapping[str, Any]):
    """One part of a collection: an item's attributes as a mapping, and the fields of its key as ``key``."""

    __slots__ = ("_item", "key")

    def __init__(self, item: Mapping[str, Any] = NOTHING, key: Mapping[str, Any] = NOTHING) -> None:
        self._item = item
        self.key: Mapping[str, Any] = key

    def __getitem__(self, name: str) -> Any:
        try:
            return self._item[name]
        except AttributeMissing:
            raise
        except KeyError:
            raise AttributeMissing(name, names=self._item) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._item)

    def __len__(self) -> int:
        return len(self._item)

    @property
    def item(self) -> Mapping[str, Any]:
        """The item itself."""
        return self._item

    def __repr__(self) -> str:
        return f"Part({dict(self._item)!r}, {dict(self.key)!r})"


GivenPart: TypeAlias = Part | Mapping[str, Any]


class Parts:
    """The parts of a collection, by the key that ``parts=`` names.

    A test makes them of dicts, or of ``Part(item, key)`` where the function reads the key:
    ``Parts({ORDER_ITEM: [Part({"price": 3}, {"sku": "A1"})], ORDER_TOTAL: [{"total": 3}]})``.
    """

    __slots__ = ("_by_key",)

    def __init__(self, by_key: Mapping[Key, Sequence[GivenPart]] = NOTHING) -> None:  # type: ignore[assignment]
        self._by_key = {key: [_part(each) for each in given] for key, given in by_key.items()}

    def __bool__(self) -> bool:
        """Whether there is any part."""
        return any(self._by_key.values())

    def __iter__(self) -> NoReturn:
        declared = ", ".join(map(repr, self._by_key)) or "none"
        raise HandlerError(f"Parts are listed for one key each: write parts(KEY), with a key of parts=, {declared}.")

    @overload
    def __call__(self, key: Key) -> list[Part]: ...
    @overload
    def __call__(self, key: Key, of: type[T]) -> list[T]: ...
    def __call__(self, key: Key, of: type[T] | None = None) -> list[T] | list[Part]:
        """The parts of this key, in the order of their sort keys, or what they are as ``of``.

        ``of`` is a ``TypedDict``, a dataclass or a pydantic model. Raises ``HandlerError`` for a key not declared, and
        for a part that does not fit the type.
        """
        if key not in self._by_key:
            declared = ", ".join(map(repr, self._by_key)) or "none"
            raise HandlerError(f"parts({key!r}): expected a key of parts=, one of {declared}.")
        found = self._by_key[key]
        return list(found) if of is None else [_typed(key, part, of) for part in found]

    @overload
    def one(self, key: Key) -> Part: ...
    @overload
    def one(self, key: Key, of: type[T]) -> T | None: ...
    def one(self, key: Key, of: type[T] | None = None) -> T | Part | None:
        """The only part of this key; an empty one, or None with a type, if there is none.

        Raises ``HandlerError`` for several, and for a part that does not fit the type.
        """
        found = self(key)
        if len(found) > 1:
            raise HandlerError(f"parts.one({key!r}): expected one part, found {len(found)}. parts({key!r}) gives all.")
        if of is not None:
            return _typed(key, found[0], of) if found else None
        return found[0] if found else Part()


def _typed(key: Key, part: Part, of: type[T]) -> T:
    """A part as a type; as it is for a ``TypedDict``, which is for type checkers."""
    if is_typeddict(of):
        return part  # type: ignore[return-value] # a mapping with the same attributes
    # few applications have typed parts, and no start of the others should wait for the module
    from streamfold.routes.typed import needed_decoder

    found: T = needed_decoder(of, f"parts({key!r}, ...):").of(part.item, f"A handler takes a part of {key!r}")
    return found


def _part(given: GivenPart) -> Part:
    if isinstance(given, Part):
        return given
    if not isinstance(given, Mapping):
        raise HandlerError(f"Parts got {shown(given)}: expected a Part, or an item as a mapping.")
    return Part(given)


class DeclaredParts(NamedTuple):
    """The parts of a handler, and whether it is called without a root."""

    parts: tuple[DeclaredPart, ...] = ()
    optional: bool = False


def checked_parts(
    given: Any, optional: Any, sources: Sequence[Key], kind: str, at: str, *, derived: bool
) -> DeclaredParts:
    """The parts of a declaration. Raises ``DeclarationError``, with the remedy, for what cannot be."""
    if not isinstance(given, list | tuple) or not all(isinstance(each, Key | Every | Newest) for each in given):
        raise DeclarationError(f"{kind} at {at} has parts={given!r}: expected a list of Keys, parts=[ORDER_ITEM].")
    if type(optional) is not bool:
        raise DeclarationError(f"{kind} at {at} has optional={optional!r}: expected True or False.")
    if optional and not given:
        raise DeclarationError(
            f"{kind} at {at} has optional=True without parts=: only a handler of parts can be called without its item."
        )
    if given and len(sources) > 1:
        raise DeclarationError(
            f"{kind} at {at} has parts= and several sources: parts have one root. Declare a handler for each source."
        )
    found: dict[Key, DeclaredPart] = {}
    for each in given:
        part = _checked(each, f"{kind} at {at}", sources[0], derived=derived)
        if found.setdefault(part.key, part) != part:
            raise DeclarationError(f"{kind} at {at} has {part.key!r} in parts= twice, differently: name it once.")
    return DeclaredParts(tuple(found.values()), optional)


def _checked(given: Key | Every | Newest, who: str, root: Key, *, derived: bool) -> DeclaredPart:
    if isinstance(given, Key):
        return DeclaredPart(given, derived=derived)
    if not isinstance(given.key, Key):
        raise DeclarationError(
            f"{who} has {type(given).__name__}({given.key!r}) in parts=: expected a Key, parts=[Every(ORDER_ITEM)]."
        )
    reads = _reads(given.reads, who)
    if isinstance(given, Every):
        return DeclaredPart(given.key, reads, derived=derived)
    number: Any = given.number
    if type(number) is not int or not 1 <= number <= NEWEST_MAX:
        raise DeclarationError(
            f"{who} has Newest({given.key!r}, {number!r}): expected a whole number from 1 to {NEWEST_MAX}, "
            "Newest(READING, 10)."
        )
    _check_order(given.key, who, root)
    return DeclaredPart(given.key, reads, number, derived=derived)


def _reads(reads: Any, who: str) -> frozenset[str] | None:
    if reads is None:
        return None
    if isinstance(reads, str) or not isinstance(reads, Collection) or not all(isinstance(each, str) for each in reads):
        raise DeclarationError(f'{who} has reads={reads!r}: expected the names of attributes, reads=["sku"].')
    for each in reads:
        if not each or hidden(each):
            raise DeclarationError(
                f"{who} has {each!r} in reads=, which is no name of an attribute of the application."
            )
    return frozenset(reads)


def _check_order(key: Key, who: str, root: Key) -> None:
    """Refuses a key whose parts the store has in another order, or among the items of other roots."""
    sort = key.sort
    if sort is None or not set(key.types) - set(root.types):
        raise DeclarationError(
            f"{who} has Newest({key!r}, ...), of which a root has one item: name the key alone, parts=[{key!r}]."
        )
    own: list[str] = []
    for field in (piece for piece in sort.pieces if not isinstance(piece, str)):
        if field.name not in root.types:
            own.append(field.name)
            if sort.attribute_type == "S" and field.spec == "d":
                raise DeclarationError(
                    f"{who} has Newest({key!r}, ...), whose sort key orders {field} as text: 10 comes before 9. Write "
                    f"it with a fixed number of digits, {{{field.name}:06d}}."
                )
        elif own and not any(piece.name == field.name for piece in key.partition.fields):
            raise DeclarationError(
                f"{who} has Newest({key!r}, ...), whose sort key has {{{own[0]}}} before {{{field.name}}} of the root "
                f"{root!r}: the last items are of other roots too. Put {{{field.name}}} before it, or gather all: "
                f"parts=[{key!r}]."
            )


def check_function(function: Any, name: str, at: str, *, optional: bool) -> None:
    """Refuses a function that takes no parts, or that takes a root where there may be none."""
    parameters = [*inspect.signature(function).parameters.values()]
    placed = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    takes_any = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    if len(placed) < 2 and not takes_any:
        first = placed[0].name if placed else "item"
        raise DeclarationError(
            f"Handler {name} at {at} has parts= and no parameter for them; write\n    def {name}({first}, parts):"
        )
    written = placed[0].annotation if placed else None
    named = getattr(written, "__name__", written if isinstance(written, str) else "")
    if optional and getattr(written, "__origin__", written) is not None and named in ("Item", "Mapping", "dict"):
        raise DeclarationError(
            f"Handler {name} at {at} takes {placed[0].name} as an item, but it is None where there is no root "
            f"(optional=True); write\n    {placed[0].name}: Item | None"
        )


def refuse_parts(decorator: str) -> None:
    """Raises the error of a declaration whose kind gathers no parts."""
    if decorator == "feed":
        remedy = "Let an index make the posts of the parts, router.index(..., parts=...), and the feed be of its rows."
    elif decorator == "audit":
        remedy = "A history is of changes, and one of an item with its parts has none of its own."
    else:
        remedy = (
            "Which parts there were at a change cannot be known later. Derive what depends on them onto the item, "
            "router.attributes(..., parts=...), or put it into a row, router.view(..., parts=...)."
        )
    raise DeclarationError(f"router.{decorator} takes no parts=: {', '.join(GATHERING)} do. {remedy}")
