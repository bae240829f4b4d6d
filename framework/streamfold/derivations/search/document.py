"""What a search handler gets and gives: documents, and the parts that a document is gathered from."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from streamfold.errors import AttributeMissing, HandlerError, shown
from streamfold.keys.key import Key
from streamfold.routes.effects import GivenEffect

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Document(GivenEffect):
    """A document of an index, as long as the function gives it for its item.

    ``Document(title=item["title"], price=item["price"])``: the names are the document's fields. ``attributes`` is for
    fields whose names are no names of Python. Numbers keep their digits, sets become sorted lists, bytes base64 text,
    times UTC text.
    """

    __slots__ = ()

    def __init__(self, /, *, attributes: Mapping[str, Any] | None = None, **values: Any) -> None:
        super().__init__(None, attributes=attributes, **values)

    @property
    def fields(self) -> dict[str, Any]:
        """The document's fields."""
        return {**self.values, **(self.attributes or {})}


class Part(Mapping[str, Any]):
    """One part of a document: an item's attributes as a mapping, and the fields of its key as ``key``."""

    __slots__ = ("_item", "key")

    def __init__(self, item: Mapping[str, Any] = NOTHING, key: Mapping[str, Any] = NOTHING) -> None:
        self._item = item
        self.key = key

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

    def __repr__(self) -> str:
        return f"Part({dict(self._item)!r}, {dict(self.key)!r})"


GivenPart: TypeAlias = Part | Mapping[str, Any]


class Parts:
    """The parts of a document, by the key that ``parts=`` names.

    A test makes them of dicts, or of ``Part(item, key)`` where the function reads the key:
    ``Parts({ORDER_ITEM: [Part({"price": 3}, {"sku": "A1"})], ORDER_TOTAL: [{"total": 3}]})``.
    """

    __slots__ = ("_by_key",)

    def __init__(self, by_key: Mapping[Key, Sequence[GivenPart]] = NOTHING) -> None:  # type: ignore[assignment]
        self._by_key = {key: [_part(each) for each in given] for key, given in by_key.items()}

    def __call__(self, key: Key) -> list[Part]:
        """The parts of this key, in the order of their sort keys. Raises ``HandlerError`` for a key not declared."""
        if key not in self._by_key:
            declared = ", ".join(map(repr, self._by_key)) or "none"
            raise HandlerError(f"parts({key!r}): expected a key of parts=, one of {declared}.")
        return list(self._by_key[key])

    def one(self, key: Key) -> Part:
        """The only part of this key; an empty one where there is none. Raises ``HandlerError`` for several."""
        found = self(key)
        if len(found) > 1:
            raise HandlerError(f"parts.one({key!r}): expected one part, found {len(found)}. parts({key!r}) gives all.")
        return found[0] if found else Part()


def _part(given: GivenPart) -> Part:
    if isinstance(given, Part):
        return given
    if not isinstance(given, Mapping):
        raise HandlerError(f"Parts got {shown(given)}: expected a Part, or an item as a mapping.")
    return Part(given)
