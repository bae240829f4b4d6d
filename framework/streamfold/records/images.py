"""Images of items: read-only, decoded where they are read, without the framework's own attributes."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NoReturn, TypeAlias, TypeVar

from streamfold.errors import AttributeMissing, RecordError, shown
from streamfold.keys.table import DERIVED, RESERVED_PREFIX
from streamfold.records.values import RawImage, decode, decode_number, expected_content

LEGACY_REPLICATION_PREFIX = "aws:rep:"
"""Attributes that global tables of version 2017.11.29 add to an item (Developer Guide, globaltables_HowItWorks)."""
T = TypeVar("T")
HIDDEN = (RESERVED_PREFIX, LEGACY_REPLICATION_PREFIX)
READ_ONLY = "An item that a handler gets is read-only: change a copy of it, dict(item)."
READ_ONLY_VALUE = (
    "A list, map or set of an item that a handler gets is read-only: make a new one of it, "
    '{**item["size"], "length": 1} or sorted(item["lines"]), or change a copy, copy.deepcopy(item["size"]).'
)
Item: TypeAlias = Mapping[str, Any]
"""An item as a handler sees it: a read-only mapping of attribute names to Python values; a test may pass a ``dict``."""


def hidden(name: str) -> bool:
    """Whether an attribute belongs to the framework or to replication, not to the application."""
    return name.startswith(HIDDEN)


class ReadOnlyMap(dict[str, Any]):
    """A map of an item. Copies of it, also deep ones, are plain dicts."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


class ReadOnlyList(list[Any]):
    """A list of an item. Copies of it, also deep ones, are plain lists."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type[list[Any]], tuple[list[Any]]]:
        return list, (list(self),)


class ReadOnlySet(set[Any]):
    """A set of an item. Copies of it, and what it is joined with, are plain sets."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type[set[Any]], tuple[set[Any]]]:
        return set, (set(self),)

    def __repr__(self) -> str:
        return repr(set(self))


def _refused(*_: object, **__: object) -> NoReturn:
    # A change would be lost without a word: the next access, and the other image, have the item as it was written.
    raise TypeError(READ_ONLY_VALUE)


def _of_a_copy(name: str) -> Callable[..., Any]:
    # Python makes the result of these of the class of the set, and so read-only.
    return lambda members, *others: getattr(set(members), name)(*others)


CHANGES: Mapping[type, str] = {
    ReadOnlyMap: "__setitem__ __delitem__ __ior__ clear pop popitem setdefault update",
    ReadOnlyList: "__setitem__ __delitem__ __iadd__ __imul__ append clear extend insert pop remove reverse sort",
    ReadOnlySet: "__iand__ __ior__ __isub__ __ixor__ add clear difference_update discard intersection_update pop "
    "remove symmetric_difference_update update",
}
"""The methods of Python's own classes that change an object."""
JOINS = "__and__ __or__ __sub__ __xor__ copy difference intersection symmetric_difference union"
"""The methods of a set that give another set."""
for _class, _names in CHANGES.items():
    _class.__name__ = _class.__mro__[1].__name__  # messages name the type of a value
    for _name in _names.split():
        setattr(_class, _name, _refused)
for _name in JOINS.split():
    setattr(ReadOnlySet, _name, _of_a_copy(_name))


def read_only(value: Any) -> Any:
    """A decoded value, whose lists, maps and sets cannot be changed."""
    kind = type(value)
    if kind is list:
        return ReadOnlyList([member if type(member) is str else read_only(member) for member in value])
    if kind is dict:
        return ReadOnlyMap(
            {name: member if type(member) is str else read_only(member) for name, member in value.items()}
        )
    return ReadOnlySet(value) if kind is set else value


class Image(Mapping[str, Any]):
    """An item's image, read-only at every level, decoded where it is read; empty and falsy when there is none.

    The framework's own attributes are hidden. A change of a list, map or set of the item raises ``TypeError``.
    """

    __slots__ = ("_decoded", "raw")

    def __init__(self, raw: RawImage) -> None:
        self.raw: RawImage = raw
        self._decoded: dict[Any, Any] = {}  # values by the attribute's name, objects by what decoded them

    def __getitem__(self, name: str) -> Any:
        decoded = self._decoded
        if name in decoded:
            return decoded[name]
        if name not in self.raw or name.startswith(HIDDEN):
            raise AttributeMissing(name, names=self, is_absent=not self)
        return self._decode(name)

    def __getattr__(self, name: str) -> NoReturn:
        """Only for a name that an image has not: perhaps that of an attribute of the item."""
        if name.startswith("_"):  # asked for by Python itself, as copying does
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        instead = "" if name in self.raw else f', or item.get("{name}") where an item may lack it'
        raise AttributeError(f'An item is a mapping without an attribute {name!r}: read item["{name}"]{instead}.')

    def get(self, name: str, default: Any = None) -> Any:
        """The attribute, or the default where there is none. Raises as ``image[name]`` does for a malformed value."""
        return default if name not in self.raw or name.startswith(HIDDEN) else self[name]

    def _decode(self, name: str) -> Any:
        tagged = self.raw[name]
        try:
            if len(tagged) != 1:
                raise TypeError
            if "S" in tagged:
                return tagged["S"]
            if "N" not in tagged:
                value = self._decoded[name] = read_only(decode(tagged, 1))
                return value
            text = tagged["N"]
            number = self._decoded[name] = int(text) if text.isdigit() else decode_number(text)
        except (ArithmeticError, AttributeError, TypeError, ValueError):
            raise RecordError(
                f"Attribute {shown(name)} is {shown(tagged)}, which is no attribute value: {expected_content(tagged)}."
            ) from None
        return number

    def share_decoded(self, other: "Image") -> None:
        """Takes what another image of the same item has decoded, and gives it what it decodes."""
        if type(other) is Image:
            self._decoded = other._decoded  # noqa: SLF001 - its own

    def decoded(self, by: object, names: Collection[str] | None, decode: Callable[["Image"], T]) -> T:
        """What ``decode`` makes of the image, once for all handlers. It reads these attributes; None: all."""
        del names
        if by not in self._decoded:
            self._decoded[by] = decode(self)
        found: T = self._decoded[by]
        return found

    def __setitem__(self, name: str, value: object) -> NoReturn:
        raise TypeError(READ_ONLY)

    def __delitem__(self, name: str) -> NoReturn:
        raise TypeError(READ_ONLY)

    def __contains__(self, name: object) -> bool:
        return name in self.raw and not hidden(str(name))

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self.raw if not name.startswith(HIDDEN)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return bool(self.raw)

    def __repr__(self) -> str:
        return f"Image({dict(self)!r})"


class WatchedImage(Image):
    """An image that notes which attributes are read: an image with the same values of these gives the same result.

    A read of its names, its length or the raw image counts as a read of all attributes.
    """

    __slots__ = ("_all_read", "_image", "_read")

    def __init__(self, image: Image) -> None:
        self._image = image
        self._read: set[str] = set()  # attributes that were read, or asked for
        self._all_read = False

    def reads_alike(self, other: Image) -> bool:
        """Whether all attributes that were read are equal in another image; False in doubt."""
        if self._all_read:
            return False
        mine, theirs = self._image.raw, other.raw
        for name in self._read:  # noqa: SIM110 - asked for every step
            if mine.get(name) != theirs.get(name):
                return False
        return True

    @property
    def raw(self) -> RawImage:  # type: ignore[override]
        """The attributes as they came."""
        self._all_read = True
        return self._image.raw

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._image[name]

    def get(self, name: str, default: Any = None) -> Any:
        self._read.add(name)
        return self._image.get(name, default)

    def decoded(self, by: object, names: Collection[str] | None, decode: Callable[["Image"], T]) -> T:
        if names is None:
            self._all_read = True
        else:
            self._read.update(names)
        return self._image.decoded(by, names, decode)

    def __contains__(self, name: object) -> bool:
        self._read.add(str(name))
        return name in self._image

    def __bool__(self) -> bool:
        return bool(self._image)

    def __reduce__(self) -> tuple[type[Image], tuple[RawImage]]:
        """A plain image with all attributes: copying reads all of them, so the copy need not note reads."""
        return Image, (self.raw,)


def derived_by(raw: RawImage) -> dict[str, str]:
    """The attributes that an image marks as derived, each with its handler: ``APPLICATION/HANDLER``."""
    try:
        names = raw[DERIVED]["M"] if DERIVED in raw else {}
        return {name: whose for whose in sorted(names) for name in names[whose]["SS"]}
    except (KeyError, TypeError):  # not written by the framework, so no mark
        return {}


def derived_names(*images: RawImage) -> frozenset[str]:
    """The attributes that images mark as derived, and the attribute that holds the marks."""
    marked = [image for image in images if DERIVED in image]
    return frozenset((DERIVED,)).union(*map(derived_by, marked)) if marked else frozenset()


def without(raw: RawImage, names: Collection[str]) -> RawImage:
    """An image without these attributes."""
    return {name: value for name, value in raw.items() if name not in names} if names else raw


def without_derived(raw: RawImage) -> RawImage:
    """An image without the attributes that the framework derived onto the item."""
    return without(raw, derived_names(raw))
