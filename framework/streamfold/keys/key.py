"""Key templates: one declaration matches the keys of an item and composes them."""

import sys
from collections.abc import Mapping
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.errors import DeclarationError, KeyValueError, shown
from streamfold.keys.field import contains, equal_values, overlaps, time_spec
from streamfold.keys.key_part import KeyComponent, KeyValue, is_ambiguous, known_prefix, looks_like
from streamfold.keys.table import (
    MAIN,
    RESERVED_PREFIX,
    Table,
    checked_attribute_name,
    is_reserved,
    may_be_reserved,
    merged,
)

if TYPE_CHECKING:
    from streamfold.keys.field import Field
    from streamfold.keys.key_part import FieldMiss
PARTITION_BYTES_MAX = 2048
SORT_BYTES_MAX = 1024
"""Size of key values: DynamoDB Developer Guide, ServiceQuotas."""

KeyValues = tuple[KeyValue, KeyValue | None]
NAMES_KEPT_MAX = 1000
"""Sets of names that are remembered for a template: a handler gives few."""


class NearMiss(NamedTuple):
    """A key that would match a template, but a field's value is not of the field's kind. ``field`` is the first such
    field.
    """

    template: "Key"
    field: str
    value: KeyValue

    @property
    def is_meant(self) -> bool:
        """Whether the item was probably meant for the template.

        A field that is a whole key attribute has no literal before it: where ``{at:datetime}`` is expected,
        ``METADATA`` is a key of another kind of item.
        """
        is_attribute = any(
            len(component.pieces) == 1 and _holds(component, self.field) for component in self.template.parts
        )
        return not is_attribute or looks_like(self.template.types[self.field], self.value)

    @property
    def is_of_time(self) -> bool:
        """Whether the field is one of times."""
        return self.template.types[self.field].python_type in (datetime, date)

    @property
    def takes(self) -> str | None:
        """The kind of field that takes the value, if the value is a time in another notation."""
        return time_spec(self.value) if self.is_of_time else None

    @property
    def why(self) -> str:
        """Why the value does not fit, and the kind of field that takes it, for messages."""
        hint = f"; {{{self.field}:{self.takes}}} takes it" if self.takes else ""
        return f"{shown(self.value)} is no {self.template.types[self.field]}{hint}"


class Key:
    """A key template: matches the key of an item and composes it; both are inverse.

    ``partition`` and ``sort`` are texts with fields in braces, ``"ORDER#{order_id}"``; see ``keys.field`` for the kinds
    of field. A field in both components must have the same value in both. No field is empty: ``"ORDER#{order_id}"``
    does not match an item ``ORDER#``, which has a template of its own, ``"ORDER#"``. ``table`` is the table of the key;
    by default ``Table("main")``, with the key attributes ``PK`` and ``SK``, and with the time to live that another key
    of the application declares.

    Raises ``DeclarationError``, with the position in the template, when the template is malformed.
    """

    __slots__ = (
        "_divided",
        "_hash",
        "_identity",
        "_may_be_reserved",
        "_twice",
        "_wants_check",
        "declared_at",
        "fields",
        "partition",
        "parts",
        "sort",
        "table",
        "types",
    )

    def __init__(self, partition: str, sort: str | None = None, table: Table | None = None) -> None:
        frame = sys._getframe(1)  # noqa: SLF001 - the one way to know where a key was written
        self.declared_at: str = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        self.table: Table = MAIN if table is None else table
        _check_types(partition, sort, self.table)
        if (sort is None) != (self.table.sort is None):
            raise DeclarationError(_sort_message(partition, sort, self.table))
        self.partition: KeyComponent = KeyComponent(partition, self.table.delimiter, PARTITION_BYTES_MAX)
        self.sort: KeyComponent | None = None
        if sort is not None:
            self.sort = KeyComponent(sort, self.table.delimiter, SORT_BYTES_MAX)
        self.parts: tuple[KeyComponent, ...] = (self.partition,) if self.sort is None else (self.partition, self.sort)
        self._identity = (*(component.text for component in self.parts), self.table)
        self._hash = hash(self._identity)  # asked for with every row that a handler yields
        self.types: dict[str, Field] = {field.name: field for component in self.parts for field in component.fields}
        _check_kinds(self)
        self.fields: tuple[str, ...] = tuple(self.types)
        self._divided: dict[tuple[str, ...], tuple[tuple[str, ...], bool]] = {}
        self._twice = tuple(
            name for name in self.fields if all(_holds(each, name) for each in self.parts[:2]) and sort is not None
        )
        # A template that takes any partition key would take a table's marker for an item of the application.
        self._may_be_reserved = may_be_reserved(self.partition.begins)
        # Literals between plain fields that do not hold the delimiter, and typed fields, can be read in two ways.
        self._wants_check = any(is_ambiguous(component.pieces, self.table.delimiter) for component in self.parts)

    def key(self, /, **fields: Any) -> dict[str, KeyValue]:
        """The key attributes for these fields, as boto3's ``Key=`` takes them.

        Raises ``KeyValueError`` for a missing field, one that the template does not have, or a value that could not be
        read back from the key.
        """
        self._check_names(fields)
        partition, sort = self.compose(fields)
        return self.attributes(partition, sort)

    def match(self, item: Mapping[str, Any]) -> dict[str, Any] | None:
        """The fields of an item's key, or None where the key is not of this template."""
        if self.table.partition not in item:
            return None
        return self.match_values(item[self.table.partition], item.get(self.table.sort) if self.table.sort else None)

    def query(self, /, **fields: Any) -> dict[str, Any]:
        """Keyword arguments for boto3's ``table.query``.

        They need all fields of the partition, and take the leading fields of the sort key; if some of these are
        missing, the condition is a ``begins_with``.

        Raises ``KeyValueError`` for a missing partition field or an unusable value.
        """
        self._check_names(fields)
        names, values = {"#partition": self.table.partition}, {":partition": self.partition.compose(fields)}
        condition = "#partition = :partition"
        if self.sort is not None and self.table.sort is not None:
            prefix, is_complete = known_prefix(self.sort, fields)
            if is_complete or prefix:
                names["#sort"], values[":sort"] = self.table.sort, prefix
                condition += " AND #sort = :sort" if is_complete else " AND begins_with(#sort, :sort)"
        return {
            "KeyConditionExpression": condition,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
        }

    def compose(self, values: Mapping[str, Any]) -> KeyValues:
        """The values of partition and sort key; names that the template does not have are ignored."""
        partition, sort = self.partition.constant or self.partition.compose(values), None
        if self.sort is not None:
            sort = self.sort.constant or self.sort.compose(values)
        if self._wants_check and (found := self.match_values(partition, sort)) is not None:
            for name, value in found.items():
                if value != values[name] and not (isinstance(values[name], str) and not isinstance(value, str)):
                    raise KeyValueError(f"{self!r} would read {name}={shown(values[name])} back as {shown(value)}.")
        elif self._wants_check:
            raise KeyValueError(f"{self!r} could not read back the key that {shown(dict(values))} makes.")
        return partition, sort

    def divided(self, names: tuple[str, ...]) -> tuple[tuple[str, ...], bool]:
        """Which of the names that a handler gives a row are attributes, not fields of its key; and whether these are
        the application's to set. Raises ``HandlerError`` for a name that DynamoDB does not store.
        """
        known = self._divided.get(names)  # a handler gives the same names again and again
        if known is None:
            attributes = tuple(checked_attribute_name(name) for name in names if name not in self.types)
            own = self.table.attributes
            known = attributes, not any(name in own or name.startswith(RESERVED_PREFIX) for name in attributes)
            if len(self._divided) < NAMES_KEPT_MAX:
                self._divided[names] = known
        return known

    def match_values(self, partition: KeyValue, sort: KeyValue | None) -> dict[str, Any] | None:
        """The fields of these key values, or None; no template matches an item of the framework's own."""
        if self._may_be_reserved and is_reserved(partition):
            return None
        found = self.partition.match(partition)
        if found is None or self.sort is None:
            return found
        rest = None if sort is None else self.sort.match(sort)
        if rest is None:
            return None
        for name in self._twice:
            if not equal_values(rest[name], found[name]):
                return None
        found.update(rest)
        return found

    def takes(self, item: tuple[str, KeyValue, KeyValue | None]) -> bool:
        return self.table.name == item[0] and self.match_values(*item[1:]) is not None

    def near_miss(self, partition: KeyValue, sort: KeyValue | None) -> NearMiss | None:
        """The first field that keeps a key from matching this template, or None where more than fields does."""
        if self._may_be_reserved and is_reserved(partition):
            return None
        return _near_miss(self, (partition, sort))

    def attributes(self, partition: KeyValue, sort: KeyValue | None) -> dict[str, KeyValue]:
        """Key values under the names of the table's key attributes."""
        names = {self.table.partition: partition}
        if self.table.sort is not None and sort is not None:
            names[self.table.sort] = sort
        return names

    def overlaps(self, other: "Key") -> bool:
        """Whether some key is of both templates."""
        if self.partition.is_apart(other.partition):  # so are most pairs
            return False
        return self.table.name == other.table.name and self.alike(other)

    def alike(self, other: "Key") -> bool:
        """Whether some key values match both templates, also those of two tables."""
        if self.partition.is_apart(other.partition) or len(self.parts) != len(other.parts):
            return False
        if self.sort is not None and other.sort is not None and self.sort.is_apart(other.sort):
            return False
        if not (self.fields and other.fields):
            return _has(self, other) if self.fields else _has(other, self)
        return all(
            mine.attribute_type == theirs.attribute_type and overlaps(mine.atoms, theirs.atoms)
            for mine, theirs in zip(self.parts, other.parts, strict=True)
        )

    def contains(self, other: "Key") -> bool:
        """Whether every key of the other template is one of this."""
        if self.partition.is_apart(other.partition) or self.table.name != other.table.name:
            return False
        if any(map(KeyComponent.is_apart, self.parts, other.parts)):
            return False
        if not other.fields:
            return _has(self, other)
        if self._twice and not other._twice:  # noqa: SLF001 - of another key
            return False  # the other's components may differ where this one's must agree
        return all(
            mine.attribute_type == theirs.attribute_type and contains(mine.atoms, theirs.atoms)
            for mine, theirs in zip(self.parts, other.parts, strict=True)
        )

    @property
    def template(self) -> str:
        """The template as one text, for messages and tables: ``ORDER#{order_id} / METADATA``."""
        return " / ".join(component.text for component in self.parts)

    @property
    def stored_name(self) -> str:
        """The key as a state names it: its table and its templates."""
        return f"{self.table.name}: {self.template}"

    def _check_names(self, fields: Mapping[str, Any]) -> None:
        for name in fields:
            if name not in self.types:
                raise KeyValueError(f"{self!r} has no field {name!r}; it has {', '.join(self.fields) or 'none'}.")

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Key) and self._identity == other._identity)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        table = "" if self.table.name == MAIN.name else f", table={self.table.name!r}"
        return f"Key({', '.join(repr(component.text) for component in self.parts)}{table})"


def template_text(key: Key) -> str:
    """A template for a person; its table is named unless it is ``MAIN``."""
    return key.template if key.table.name == MAIN.name else f"{key.table.name}: {key.template}"


def _near_miss(key: Key, values: tuple[KeyValue, KeyValue | None]) -> NearMiss | None:
    # Of one field any value is a near miss. Of several each has to look like the field's: a key of another kind differs
    # in all of them, and so do all times of an application that writes another notation.
    misses: list[FieldMiss] = []
    for component, value in zip(key.parts, values, strict=False):
        if value is None:
            return None
        if component.match(value) is None:
            if not (found := component.near_miss(value)):
                return None
            misses += found
    names = {miss.field.name for miss in misses}
    if not names or (len(names) > 1 and not (_is_anchored(key, names) and all(looks_like(*miss) for miss in misses))):
        return None
    return NearMiss(key, misses[0].field.name, misses[0].value)


def _is_anchored(key: Key, names: set[str]) -> bool:
    """Whether the template has something fixed beside these fields: a literal, or another field."""
    return any(
        isinstance(piece, str) or piece.name not in names for component in key.parts for piece in component.pieces
    )


def _has(key: Key, literal: Key) -> bool:
    partition, sort = literal.compose({})
    return key.match_values(partition, sort) is not None


def _check_types(partition: object, sort: object, table: object) -> None:
    for name, value in (("partition", partition), ("sort", sort)):
        if not isinstance(value, str) and not (name == "sort" and value is None):
            raise DeclarationError(f"Key({partition!r}, {sort!r}) has {name}={value!r}: expected a template as text.")
    if not isinstance(table, Table):
        raise DeclarationError(f'Key({partition!r}, {sort!r}) has table={table!r}: expected a Table, Table("shop").')


def _check_kinds(key: Key) -> None:
    for field in (field for component in key.parts for field in component.fields):
        if (other := key.types[field.name]).spec != field.spec:
            raise DeclarationError(f"{key!r}: field {field.name!r} has two kinds, {field} and {other}.")


def _holds(component: KeyComponent, name: str) -> bool:
    return any(field.name == name for field in component.fields)


def _sort_message(partition: str, sort: str | None, table: Table) -> str:
    if sort is None:
        return (
            f"Key({partition!r}) has no sort template, but table {table.name!r} has the sort key {table.sort!r}. "
            f'Give one, Key({partition!r}, "METADATA"), or a table without one: table=Table("{table.name}", sort=None).'
        )
    return (
        f"Key({partition!r}, {sort!r}) has a sort template, but table {table.name!r} has a partition key only. "
        f'Leave the sort template out, or give the table a sort key: Table("{table.name}", sort="SK").'
    )


def check_in_partition(who: str, what: str, parent: Key, child: Key) -> None:
    """Raises ``DeclarationError`` unless every item of the child's template has one parent, in its own partition.

    ``who`` names the declaration, ``what`` the child: "the child", "the component".
    """
    if merged(child.table, parent.table) is None or child.partition.text != parent.partition.text:
        raise DeclarationError(
            f"{who} has {what} {child!r}, which is not in the partition of {parent!r}: it is found by a query of "
            f"that partition. Expected a template Key({parent.partition.text!r}, ...) of table {parent.table.name!r}."
        )
    if child.overlaps(parent):
        raise DeclarationError(
            f"{who} would reach its own parent: {child!r} takes keys of {parent!r} too. Give {what} a "
            "sort key with a literal that the parent does not have."
        )
    missing = [
        name
        for name, field in parent.types.items()
        if child.types.get(name) is None or field.spec != child.types[name].spec
    ]
    if missing:
        raise DeclarationError(
            f"{who} has {what} {child!r}, which several items of {parent!r} would share: its template must "
            f"hold every field of the parent's key. Missing: {', '.join(missing)}."
        )


def sort_prefix(child: Key, fields: Mapping[str, Any]) -> str:
    """The common beginning of the sort keys of a parent's children; ``""`` if it is unknown."""
    assert child.sort is not None
    text = ""
    for piece in child.sort.pieces:
        if not isinstance(piece, str) and (piece.name not in fields or piece.attribute_type != "S"):
            break
        text += piece if isinstance(piece, str) else str(piece.write(fields[piece.name]))
    return text


def child_fields(child: Key, fields: Mapping[str, Any], partition: Any, sort: Any) -> dict[str, Any] | None:
    found = child.match_values(partition, sort)
    return found if found is not None and all(found[name] == value for name, value in fields.items()) else None
