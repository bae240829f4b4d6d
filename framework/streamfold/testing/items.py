"""Stored items, DynamoDB's rules for items and keys, the actions of a transaction, and the errors of the twins.

The actions are those of the API Reference, TransactWriteItems. The errors correspond to errors of AWS:

TwinError                    AWS has no such operation, or the twin was used in a way that cannot work
+-- WriteRefused             ValidationException; nothing was written
|   +-- ConditionFailed      ConditionalCheckFailedException
|   +-- TransactionCancelled TransactionCanceledException
+-- RecordsTrimmed           TrimmedDataAccessException
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, cast, get_args

from streamfold.errors import HandlerError, StreamfoldError
from streamfold.keys.key import PARTITION_BYTES_MAX, SORT_BYTES_MAX
from streamfold.keys.table import KeyType, Table
from streamfold.records.values import (
    ITEM_BYTES_MAX,
    WIDE,
    AttributeValue,
    RawImage,
    decode,
    decode_number,
    encode,
    item_bytes,
)


class TwinError(StreamfoldError):
    """The base of all errors that the twins raise on purpose."""


class WriteRefused(TwinError):  # noqa: N818 - named by the outcome of the write
    """Raised when DynamoDB would refuse a write; nothing of it was done."""


class ConditionFailed(WriteRefused):
    """Raised when a write's condition on the item's existence does not hold."""


class TransactionCancelled(WriteRefused):
    """Raised when a condition of a transaction does not hold.

    ``reasons`` has one code per action, in order, ``"None"`` for an action that was not the cause (API Reference,
    TransactionCanceledException).
    """

    def __init__(self, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        super().__init__(
            f"The transaction was cancelled [{', '.join(reasons)}]: a condition on an item's existence does not hold. "
            "None of its actions was done."
        )


class RecordsTrimmed(TwinError):  # noqa: N818 - named by the outcome of the records
    """Raised when a reader asks for records that the stream no longer holds."""


class HandlerFails(AssertionError):  # noqa: N818 - named by its cause
    """Raised when a handler cannot process an item although no fault was injected."""


ItemImage: TypeAlias = Mapping[str, Any]
"""An item: attribute names and Python values, key attributes included."""
KeyOfItem: TypeAlias = Mapping[str, Any] | tuple[Any, ...]
"""An item's key: ``{"PK": "ORDER#1", "SK": "METADATA"}`` or ``("ORDER#1", "METADATA")``."""


@dataclass(frozen=True, slots=True)
class _Action:
    """``exists`` is the only condition: True requires that the item exists before, False that it does not."""

    exists: bool | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class _ActionOnKey(_Action):
    key: KeyOfItem


@dataclass(frozen=True, slots=True)
class PutItem(_Action):
    """Puts an item, and replaces the one with its key."""

    item: ItemImage


@dataclass(frozen=True, slots=True)
class UpdateItem(_ActionOnKey):
    """Sets attributes, adds to numbers, removes attributes; if the item does not exist, creates it."""

    put: Mapping[str, Any] = field(default_factory=dict)
    add: Mapping[str, Any] = field(default_factory=dict)
    remove: Iterable[str] = ()


class DeleteItem(_ActionOnKey):
    """Deletes an item if it exists."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class CheckItem(_ActionOnKey):
    """Requires that an item exists, or does not; writes nothing."""

    exists: bool = field(default=True, kw_only=True)


TableAction: TypeAlias = PutItem | UpdateItem | DeleteItem | CheckItem

UTF8_BYTES_MAX = 4
"""Bytes of one character: a text shorter than a quarter of a limit need not be measured."""

StoredKey = tuple[str | bytes, ...]
"""The contents of an item's encoded key: equal for equal keys."""


class StoredImage(NamedTuple):
    """An item, encoded, with the sizes of key and item as DynamoDB counts them."""

    key: StoredKey
    keys: RawImage
    image: RawImage
    keys_bytes: int
    image_bytes: int

    def plain(self) -> dict[str, Any]:
        """The item in Python values."""
        return {name: decode(value) for name, value in self.image.items()}


class KeySchema:
    """The key attributes of a table: their names, types and sizes."""

    __slots__ = ("_keys", "_table")

    def __init__(self, table: Table, types: Mapping[str, KeyType]) -> None:
        for name, tag in types.items():
            if name not in table.attributes or tag not in get_args(KeyType):
                raise TwinError(
                    f"key_types has {name!r}: {tag!r}; expected a key attribute of {table.name!r} "
                    f"({', '.join(table.attributes)}) and one of {', '.join(get_args(KeyType))}."
                )
        limits = (PARTITION_BYTES_MAX, SORT_BYTES_MAX)
        self._table = table
        self._keys = tuple(
            (name, types.get(name, "S"), limit) for name, limit in zip(table.attributes, limits, strict=False)
        )

    def stored(self, image: RawImage) -> StoredImage:
        """An encoded item, measured.

        Raises ``WriteRefused`` for a key that is not of this table, for more than 400 KB, and for an invalid key of a
        secondary index that the table declares.
        """
        key = self.key_of(image)
        if self._table.index_keys and (fault := self._table.index_key_fault(image)):
            raise WriteRefused(f"Item {key_name(key)} was refused: {fault}.")
        size_bytes = item_bytes(image)
        if size_bytes > ITEM_BYTES_MAX:
            raise WriteRefused(
                f"Item {key_name(key)} has {size_bytes} bytes and was refused: expected {ITEM_BYTES_MAX} at most "
                "(Developer Guide, ServiceQuotas)."
            )
        keys = {name: image[name] for name, _, _ in self._keys}
        return StoredImage(key, keys, image, item_bytes(keys), size_bytes)

    def key_image(self, key: KeyOfItem) -> RawImage:
        """A key given as a mapping or a tuple, encoded. Raises ``WriteRefused`` when it is not of this table."""
        names = self._table.attributes
        by_name = key
        if not isinstance(by_name, Mapping):
            by_name = dict(zip(names, by_name, strict=False)) if len(by_name) == len(names) else {}
        if by_name.keys() != set(names):
            raise WriteRefused(
                f"Key {key!r} was refused: expected {' and '.join(names)}, as a mapping or a tuple in this order."
            )
        return encoded(by_name, "Key")

    def key_of(self, image: RawImage) -> StoredKey:
        """The key of an encoded item.

        Raises ``WriteRefused`` for a key attribute that is missing, of another type, empty, or larger than 2,048 bytes
        (partition key) or 1,024 (sort key).
        """
        try:
            key = tuple(image[name][tag] for name, tag, _ in self._keys)
        except KeyError:
            raise WriteRefused(self._message(image)) from None
        for content, (name, _, bytes_max) in zip(key, self._keys, strict=True):
            if not content or len(content) * UTF8_BYTES_MAX > bytes_max:
                _check_length(name, content, bytes_max)
        return key

    def _message(self, image: RawImage) -> str:
        wanted = ", ".join(f"{name} ({tag})" for name, tag, _ in self._keys)
        found = ", ".join(f"{name} ({next(iter(image[name]))})" for name, _, _ in self._keys if name in image)
        return (
            f"An item was refused: table {self._table.name!r} has the key {wanted}; found {found or 'none of it'}. Key "
            f'attributes that are no text need a declaration: key_types={{"{self._keys[-1][0]}": "N"}}.'
        )


def encoded(values: Mapping[str, Any], what: str) -> dict[str, dict[str, Any]]:
    """Encoded attributes. Raises ``WriteRefused`` for a value that DynamoDB lacks: a float, an empty set."""
    try:
        return cast("dict[str, dict[str, Any]]", encode(values)["M"])
    except HandlerError as why:
        raise WriteRefused(f"{what} {dict(values)!r:.200} was refused: {why}") from None


def key_name(key: StoredKey) -> str:
    """A key as one text, for messages: ``ORDER#1 / METADATA``."""
    return " / ".join(map(str, key))


def _check_length(name: str, content: str | bytes, bytes_max: int) -> None:
    size_bytes = len(content.encode() if isinstance(content, str) else content)
    if not 1 <= size_bytes <= bytes_max:
        raise WriteRefused(
            f"Key attribute {name!r} is {content!r:.40} of {size_bytes} bytes and was refused: expected 1 to "
            f"{bytes_max} (Developer Guide, ServiceQuotas)."
        )


def updated(schema: KeySchema, items: Mapping[StoredKey, StoredImage], action: UpdateItem) -> StoredImage:
    """The item after an update. Raises ``WriteRefused`` for an update that DynamoDB refuses."""
    if isinstance(action.remove, str):
        raise TwinError(f"An update has remove={action.remove!r}; expected names, such as [{action.remove!r}].")
    keys = schema.key_image(action.key)
    old = items.get(schema.key_of(keys))
    put, add, remove = encoded(action.put, "put"), encoded(action.add, "add"), tuple(action.remove)
    _check_names(keys, [*put, *add, *remove])
    image = {**(keys if old is None else old.image), **put}
    for name, amount in add.items():
        image[name] = {"N": _sum(name, image.get(name, {"N": "0"}), amount)}
    return schema.stored({name: value for name, value in image.items() if name not in remove})


def _check_names(keys: Mapping[str, AttributeValue], names: Sequence[str]) -> None:
    for name in names:
        if name in keys:
            raise WriteRefused(f"Attribute {name!r} is part of the key, which no update changes.")
        if names.count(name) > 1:
            raise WriteRefused(f"Attribute {name!r} is in the update twice: expected one of put, add and remove.")


def _sum(name: str, before: AttributeValue, amount: AttributeValue) -> str:
    if "N" not in before or "N" not in amount:
        raise WriteRefused(
            f"Attribute {name!r} cannot be added to: it holds {before!r:.80} and the amount is {amount!r:.80}; "
            "expected two numbers."
        )
    total = WIDE.add(decode_number(before["N"]), decode_number(amount["N"]))
    return str(encoded({name: total}, "The sum of")[name]["N"])
