"""Key templates: one declaration matches the keys of an item and composes them."""

import re
import sys
from collections.abc import Mapping
from decimal import Decimal
from itertools import chain
from typing import Any, NamedTuple

from streamfold.errors import DeclarationError, KeyValueError, shown
from streamfold.keys.field import KINDS, Field, Unreadable, make_field
from streamfold.keys.table import MAIN, Table
from streamfold.keys.template_language import contains, literal, overlaps

PARTITION_BYTES_MAX = 2048
SORT_BYTES_MAX = 1024
"""Size of key values: DynamoDB Developer Guide, ServiceQuotas."""

KeyValue = str | int | Decimal | bytes
KeyValues = tuple[KeyValue, KeyValue | None]

PIECE = re.compile(r"\{([^{}]*)\}|([^{}]+)")
FIELD = re.compile(r"([A-Za-z_]\w*)(?::(.*))?", re.ASCII)


class NearMiss(NamedTuple):
    """A key that fits a template but for one field, whose value is not of the field's kind."""

    template: "Key"
    field: str
    value: str


class KeyPart:
    """One part (partition or sort) of a template, compiled."""

    __slots__ = ("atoms", "attribute_type", "bytes_max", "convert", "fields", "pattern", "pieces", "text")

    def __init__(self, text: str, delimiter: str, bytes_max: int) -> None:
        self.text = text
        self.bytes_max = bytes_max
        self.pieces = _pieces(text, delimiter)
        self.fields = tuple(piece for piece in self.pieces if isinstance(piece, Field))
        self.attribute_type = self.fields[0].attribute_type if self.fields else "S"
        self.pattern = re.compile(_regex(self.pieces), re.DOTALL | re.ASCII)
        self.convert = tuple(field for field in self.fields if field.python_type is not str)
        atoms = (piece.atoms if isinstance(piece, Field) else literal(piece) for piece in self.pieces)
        self.atoms = tuple(chain.from_iterable(atoms))

    def match(self, value: KeyValue) -> dict[str, Any] | None:
        """The field values, or None where this is no text of the template."""
        if self.attribute_type != "S":
            wanted = bytes if self.attribute_type == "B" else (int, Decimal)
            return {self.fields[0].name: value} if isinstance(value, wanted) else None
        if not self.fields:
            return {} if value == self.text else None
        found = self.pattern.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            return None
        values: dict[str, Any] = found.groupdict()
        if self.convert:
            try:
                for field in self.convert:
                    values[field.name] = field.read(values[field.name])
            except Unreadable:
                return None
        return values

    def near_miss(self, value: KeyValue) -> tuple[str, str] | None:
        """The field whose value alone keeps this text from matching, with that value."""
        if not isinstance(value, str) or self.attribute_type != "S":
            return None
        for field in self.fields:
            found = re.fullmatch(_regex(self.pieces, loose=field), value, re.DOTALL | re.ASCII)
            if found and not field.reads(found[field.name]):
                return field.name, found[field.name]
        return None

    def compose(self, values: Mapping[str, Any]) -> KeyValue:
        if self.attribute_type != "S":
            whole: KeyValue = self.write(self.fields[0], values)
            return whole
        text = ""
        try:
            for piece in self.pieces:
                text += piece if isinstance(piece, str) else piece.write(values[piece.name])
        except (KeyError, Unreadable):
            for field in self.fields:
                self.write(field, values)  # says which one it was
            raise
        if len(text) * 4 > self.bytes_max and len(text.encode()) > self.bytes_max:
            raise KeyValueError(
                f"Template {self.text!r} gives a key of {len(text.encode())} bytes; "
                f"DynamoDB takes {self.bytes_max} at most."
            )
        return text

    def write(self, field: Field, values: Mapping[str, Any]) -> Any:
        try:
            return field.write(values[field.name])
        except KeyError:
            raise KeyValueError(f"Template {self.text!r} needs a value for {field.name!r}.") from None
        except Unreadable as why:
            raise KeyValueError(
                f"Value {shown(values[field.name])} cannot be used for {field} in template {self.text!r}: {why}."
            ) from None


class Key:
    """A key template: matches the key of an item and composes it; both are inverse.

    ``partition`` and ``sort`` are texts with fields in braces, ``"ORDER#{order_id}"``; see ``keys.field`` for the
    kinds of field. A field that stands in both parts must have the same value in both. No field is empty: an item
    ``ORDER#`` is none of ``"ORDER#{order_id}"``, and has a key of its own, ``"ORDER#"``. ``table`` is the table that
    the key belongs to; without one it is ``Table("main")``, with the key attributes ``PK`` and ``SK``.

    Raises ``DeclarationError``, with the place in the template, when the template is malformed.
    """

    __slots__ = ("_hash", "_twice", "_wants_check", "declared_at", "fields", "partition", "sort", "table", "types")

    def __init__(self, partition: str, sort: str | None = None, table: Table | None = None) -> None:
        frame = sys._getframe(1)  # noqa: SLF001 - the one way to know where a key was written
        self.declared_at = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        self.table = MAIN if table is None else table
        _check_types(partition, sort, self.table)
        if (sort is None) != (self.table.sort is None):
            raise DeclarationError(_sort_message(partition, sort, self.table))
        self.partition = KeyPart(partition, self.table.delimiter, PARTITION_BYTES_MAX)
        self.sort = None if sort is None else KeyPart(sort, self.table.delimiter, SORT_BYTES_MAX)
        self._hash = hash(self._identity())  # asked for with every row that a handler yields
        self.types = {field.name: field for field in self._all_fields()}
        for field in self._all_fields():
            if self.types[field.name].spec != field.spec:
                raise DeclarationError(
                    f"{self!r}: field {field.name!r} has two kinds, {field} and {self.types[field.name]}."
                )
        self.fields = tuple(self.types)
        self._twice = tuple(
            name for name in self.fields if all(_holds(part, name) for part in self.parts[:2]) and sort is not None
        )
        # Literals between plain fields that do not hold the delimiter, and typed fields, can be read in two ways.
        self._wants_check = any(_ambiguous(part.pieces, self.table.delimiter) for part in self.parts)

    @property
    def parts(self) -> tuple[KeyPart, ...]:
        return (self.partition,) if self.sort is None else (self.partition, self.sort)

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

        They take all fields of the partition, and as many of the sort key as are known from the left; where some are
        not, the condition is a ``begins_with``.

        Raises ``KeyValueError`` for a missing partition field or an unusable value.
        """
        self._check_names(fields)
        names, values = {"#partition": self.table.partition}, {":partition": self.partition.compose(fields)}
        condition = "#partition = :partition"
        if self.sort is not None and self.table.sort is not None:
            prefix, whole = _prefix(self.sort, fields)
            if whole or prefix:
                names["#sort"], values[":sort"] = self.table.sort, prefix
                condition += " AND #sort = :sort" if whole else " AND begins_with(#sort, :sort)"
        return {
            "KeyConditionExpression": condition,
            "ExpressionAttributeNames": names,
            "ExpressionAttributeValues": values,
        }

    def compose(self, values: Mapping[str, Any]) -> KeyValues:
        """The values of partition and sort key; names that the template does not have are ignored."""
        partition = self.partition.compose(values)
        sort = None if self.sort is None else self.sort.compose(values)
        if self._wants_check and (found := self.match_values(partition, sort)) is not None:
            for name, value in found.items():
                if value != values[name] and not (isinstance(values[name], str) and not isinstance(value, str)):
                    raise KeyValueError(f"{self!r} would read {name}={shown(values[name])} back as {shown(value)}.")
        elif self._wants_check:
            raise KeyValueError(f"{self!r} could not read back the key that {shown(dict(values))} makes.")
        return partition, sort

    def match_values(self, partition: KeyValue, sort: KeyValue | None) -> dict[str, Any] | None:
        """The fields of these key values, or None."""
        found = self.partition.match(partition)
        if found is None or self.sort is None:
            return found
        rest = None if sort is None else self.sort.match(sort)
        if rest is None:
            return None
        for name in self._twice:
            if rest[name] != found[name]:
                return None
        found.update(rest)
        return found

    def near_miss(self, partition: KeyValue, sort: KeyValue | None) -> NearMiss | None:
        """The one field that keeps a key from matching this template, or None where more does."""
        misses = []
        for part, value in zip(self.parts, (partition, sort), strict=False):
            if value is None or part.match(value) is None:
                misses.append(None if value is None else part.near_miss(value))
        return NearMiss(self, *misses[0]) if len(misses) == 1 and misses[0] else None

    def attributes(self, partition: KeyValue, sort: KeyValue | None) -> dict[str, KeyValue]:
        """Key values under the names of the table's key attributes."""
        names = {self.table.partition: partition}
        if self.table.sort is not None and sort is not None:
            names[self.table.sort] = sort
        return names

    def overlaps(self, other: "Key") -> bool:
        """Whether some key is of both templates."""
        return self.table == other.table and self.alike(other)

    def alike(self, other: "Key") -> bool:
        """Whether some key values fit both templates, be it in two tables."""
        if len(self.parts) != len(other.parts):
            return False
        if not (self.fields and other.fields):
            return _has(self, other) if self.fields else _has(other, self)
        return all(
            mine.attribute_type == theirs.attribute_type and overlaps(mine.atoms, theirs.atoms)
            for mine, theirs in zip(self.parts, other.parts, strict=True)
        )

    def contains(self, other: "Key") -> bool:
        """Whether every key of the other template is one of this."""
        if self.table == other.table and not other.fields:
            return _has(self, other)
        if self._twice and not other._twice:  # noqa: SLF001 - of another key
            return False  # the other's parts may differ where this one's must agree
        return self.table == other.table and all(
            mine.attribute_type == theirs.attribute_type and contains(mine.atoms, theirs.atoms)
            for mine, theirs in zip(self.parts, other.parts, strict=True)
        )

    @property
    def template(self) -> str:
        """The template as one text, for messages and tables: ``ORDER#{order_id} / METADATA``."""
        return " / ".join(part.text for part in self.parts)

    @property
    def place(self) -> str:
        """The key as a state names it: its table and its templates."""
        return f"{self.table.name}: {self.template}"

    def _check_names(self, fields: Mapping[str, Any]) -> None:
        for name in fields:
            if name not in self.types:
                raise KeyValueError(f"{self!r} has no field {name!r}; it has {', '.join(self.fields) or 'none'}.")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        table = "" if self.table == MAIN else f", table={self.table.name!r}"
        return f"Key({', '.join(repr(part.text) for part in self.parts)}{table})"

    def _identity(self) -> tuple[Any, ...]:
        return (self.table, *(part.text for part in self.parts))

    def _all_fields(self) -> list[Field]:
        return [field for part in self.parts for field in part.fields]


def _has(key: Key, literal: Key) -> bool:
    """Whether the one key of a template without fields is of this template."""
    partition, sort = literal.compose({})
    return key.match_values(partition, sort) is not None


def _check_types(partition: object, sort: object, table: object) -> None:
    for name, value in (("partition", partition), ("sort", sort)):
        if not isinstance(value, str) and not (name == "sort" and value is None):
            raise DeclarationError(f"Key({partition!r}, {sort!r}) has {name}={value!r}: expected a template as text.")
    if not isinstance(table, Table):
        raise DeclarationError(f'Key({partition!r}, {sort!r}) has table={table!r}: expected a Table, Table("shop").')


def _holds(part: KeyPart, name: str) -> bool:
    return any(field.name == name for field in part.fields)


def _sort_message(partition: str, sort: str | None, table: Table) -> str:
    if sort is None:
        return (
            f"Key({partition!r}) has no sort template, but table {table.name!r} has the sort key {table.sort!r}. "
            f'Give one, Key({partition!r}, "METADATA"), or a table without one: table=Table("{table.name}", sort=None).'
        )
    return f"Key({partition!r}, {sort!r}) has a sort template, but table {table.name!r} has a partition key only."


def _pieces(text: str, delimiter: str) -> tuple[str | Field, ...]:
    if not text:
        raise DeclarationError(f"Key template {text!r} is empty: expected text such as 'ORDER{delimiter}{{order_id}}'.")
    pieces: list[str | Field] = []
    position = 0
    while position < len(text):
        found = PIECE.match(text, position)
        if found is None:
            raise _malformed(text, position, "a brace without its partner")
        piece = found[2] if found[2] is not None else _field(text, found, delimiter)
        _check_neighbour(text, position, pieces, piece)
        pieces.append(piece)
        position = found.end()
    names = [piece.name for piece in pieces if isinstance(piece, Field)]
    if len(names) != len(set(names)):
        raise DeclarationError(f"Key template {text!r} names a field twice in one part.")
    return tuple(pieces)


def _field(text: str, found: re.Match[str], delimiter: str) -> Field:
    named = FIELD.fullmatch(found[1])
    if named is None:
        raise _malformed(text, found.start(), f"{found[0]} does not name a field: expected a name such as {{order_id}}")
    field = make_field(named[1], named[2] or "", delimiter)
    if field is None:
        raise _malformed(text, found.start(), f"{found[0]} is of no known kind: expected {KINDS}")
    if field.attribute_type != "S" and found[0] != text:
        raise _malformed(text, found.start(), f"{field} must be the whole key attribute")
    if field.spec == "rest" and found.end() != len(text):
        raise _malformed(text, found.start(), f"{field} must be the last of its part, because it takes everything")
    return field


def _check_neighbour(text: str, position: int, pieces: list[str | Field], piece: str | Field) -> None:
    before = pieces[-1] if pieces else None
    if isinstance(before, Field) and isinstance(piece, Field) and not before.fixed_width:
        raise _malformed(text, position, f"{before} and {piece} touch: nothing tells where one ends")


def _malformed(text: str, position: int, what: str) -> DeclarationError:
    return DeclarationError(f"Key template {text!r} is malformed at character {position + 1}: {what}.")


def _regex(pieces: tuple[str | Field, ...], loose: Field | None = None) -> str:
    """The expression of a part; the ``loose`` field takes any text."""
    return "".join(
        re.escape(piece) if isinstance(piece, str) else f"(?P<{piece.name}>{'.*' if piece is loose else piece.pattern})"
        for piece in pieces
    )


def _ambiguous(pieces: tuple[str | Field, ...], delimiter: str) -> bool:
    """Whether a literal between two fields could be part of a field's value."""
    between = pieces[1:-1] if isinstance(pieces[0], Field) else pieces[2:-1]
    return any(isinstance(piece, str) and delimiter not in piece for piece in between)


def _prefix(part: KeyPart, fields: Mapping[str, Any]) -> tuple[Any, bool]:
    """The beginning of a part as far as the fields are known, and whether that is all of it."""
    if part.attribute_type != "S":
        name = part.fields[0].name
        return (part.compose(fields), True) if name in fields else ("", False)
    text = ""
    for index, piece in enumerate(part.pieces):
        if isinstance(piece, Field) and piece.name not in fields:
            later = [later.name for later in part.pieces[index:] if isinstance(later, Field) and later.name in fields]
            if later:
                raise KeyValueError(f"Template {part.text!r} needs {piece.name!r} before {later[0]!r} in a query.")
            return text, False
        text += piece if isinstance(piece, str) else str(part.write(piece, fields))
    return text, True
