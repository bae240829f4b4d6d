"""One component of a key template, partition or sort: parsed, matched and composed."""

import re
from collections.abc import Collection, Mapping
from datetime import date, datetime
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.errors import DeclarationError, KeyValueError, shown
from streamfold.keys.field import KINDS, Atoms, Field, Unreadable, literal, make_field, nearest_spec

if TYPE_CHECKING:
    from collections.abc import Callable

KeyValue = str | int | Decimal | bytes
LETTER_BYTES_MAX = 4
"""Bytes of one letter in UTF-8 (RFC 3629, 3)."""
PIECE = re.compile(r"\{([^{}]*)\}|([^{}]+)")
FIELD = re.compile(r"([A-Za-z_]\w*)(?::(.*))?", re.ASCII)


class FieldMiss(NamedTuple):
    """A field, and a value that is not of its kind."""

    field: Field
    value: KeyValue


class KeyComponent:
    """One component (partition or sort) of a template.

    The expression and the atoms are made at their first use: a function sees keys of few templates.
    """

    __slots__ = (
        "_atoms", "_one_text", "_pattern", "attribute_type", "begins", "bytes_max", "constant", "convert", "delimiter",
        "fields", "letters_max", "pieces", "text", "writers",
    )  # fmt: skip

    def __init__(self, text: str, delimiter: str, bytes_max: int) -> None:
        self.text: str = text
        self.bytes_max: int = bytes_max
        self.delimiter: str = delimiter
        self.pieces: tuple[str | Field, ...] = _pieces(text, delimiter)
        self.fields: tuple[Field, ...] = tuple(piece for piece in self.pieces if isinstance(piece, Field))
        self.attribute_type = self.fields[0].attribute_type if self.fields else "S"
        self.begins: str = self.pieces[0] if self.pieces and isinstance(self.pieces[0], str) else ""
        # ``ORDER#{order_id}``, as in most templates: matched without an expression, and composed without writers. Each
        # saves 1,000 instructions (``test_a_part_of_one_text_does_what_its_expression_and_its_writers_do``).
        self._one_text = self.pieces[-1].name if _is_one_text(self.pieces) else None  # type: ignore[union-attr]
        # A text of at most this length needs no count of its bytes.
        self.letters_max: int = bytes_max // LETTER_BYTES_MAX
        is_short = len(text) <= self.letters_max
        # The one text of a component without fields.
        self.constant: str | None = text if is_short and not self.fields else None
        self._pattern: re.Pattern[str] | None = None
        self._atoms: Atoms | None = None
        self.convert: tuple[Field, ...] = tuple(field for field in self.fields if field.python_type is not str)
        self.writers: tuple[tuple[str, Callable[[Any], Any]] | str, ...] = tuple(
            (piece.name, piece.write) if isinstance(piece, Field) else piece for piece in self.pieces
        )

    @property
    def pattern(self) -> re.Pattern[str]:
        """The expression that a text of this component matches."""
        if self._pattern is None:
            self._pattern = re.compile(_regex(self.pieces), re.DOTALL | re.ASCII)
        return self._pattern

    @property
    def atoms(self) -> Atoms:
        """The texts of this component, to compare templates by."""
        if self._atoms is None:
            atoms = (piece.atoms if isinstance(piece, Field) else literal(piece) for piece in self.pieces)
            self._atoms = tuple(chain.from_iterable(atoms))
        return self._atoms

    def is_apart(self, other: "KeyComponent") -> bool:
        """Whether their beginnings show that no text matches both. False: ``overlaps`` decides."""
        mine, theirs = self.begins, other.begins
        if not (mine.startswith(theirs) or theirs.startswith(mine)):
            return True
        return not (self.fields or other.fields) and self.text != other.text

    def match(self, value: KeyValue) -> dict[str, Any] | None:
        """The field values, or None where this is no text of the template."""
        if self._one_text is not None and isinstance(value, str):
            text = value[len(self.begins) :]
            is_match = text and self.delimiter not in text and value.startswith(self.begins)
            return {self._one_text: text} if is_match else None
        if self.attribute_type != "S":
            return self._match_attribute(value)
        if not self.fields:
            return {} if value == self.text else None
        if not isinstance(value, str):
            return None
        found = (self._pattern or self.pattern).fullmatch(value)
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

    def _match_attribute(self, value: KeyValue) -> dict[str, Any] | None:
        (only,) = self.fields
        if not isinstance(value, bytes if self.attribute_type == "B" else (int, Decimal)):
            return None
        try:
            return {only.name: only.read(value)}
        except Unreadable:
            return None

    def near_miss(self, value: KeyValue) -> list[FieldMiss]:
        """The fields whose values prevent a match; none if anything else differs too.

        One field, if the rest matches. Otherwise the fields with a kind whose values are not of their kind.
        """
        if self.attribute_type != "S" or not isinstance(value, str):
            timed = len(self.fields) == len(self.pieces) == 1 and self.fields[0].python_type in (date, datetime)
            return [FieldMiss(self.fields[0], value)] if timed else []
        for field in self.fields:
            found = re.fullmatch(_regex(self.pieces, [field]), value, re.DOTALL | re.ASCII)
            if found and not field.reads(found[field.name]):
                return [FieldMiss(field, found[field.name])]
        typed = [field for field in self.fields if field.spec and field.spec != "rest"]
        if len(typed) < 2:
            return []
        found = re.fullmatch(_regex(self.pieces, typed, self.delimiter), value, re.DOTALL | re.ASCII)
        return (
            [FieldMiss(field, found[field.name]) for field in typed if not field.reads(found[field.name])]
            if found
            else []
        )

    def compose(self, values: Mapping[str, Any]) -> KeyValue:
        if self._one_text is not None:
            value = values.get(self._one_text)
            if type(value) is str and value and value.isascii() and self.delimiter not in value:
                text = self.begins + value
                if len(text) <= self.letters_max:  # as nearly always
                    return text
        elif self.attribute_type != "S":
            value_of_field: KeyValue = self.write(self.fields[0], values)
            return value_of_field
        text = ""
        try:
            for writer in self.writers:
                text += writer if type(writer) is str else writer[1](values[writer[0]])  # type: ignore[operator]
        except (KeyError, Unreadable):
            for field in self.fields:
                self.write(field, values)  # raises, with the field
            raise
        if len(text) > self.letters_max and len(text.encode()) > self.bytes_max:
            raise KeyValueError(
                f"Template {self.text!r} gives a key of {len(text.encode())} bytes; "
                f"DynamoDB takes {self.bytes_max} at most."
            )
        return text

    def write(self, field: Field, values: Mapping[str, Any]) -> Any:
        try:
            return field.write(values[field.name])
        except KeyError:
            raise KeyValueError(
                f"Template {self.text!r} needs a value for {field.name!r}: give {field.name}=..."
            ) from None
        except Unreadable as why:
            raise KeyValueError(
                f"Value {shown(values[field.name])} cannot be used for {field} in template {self.text!r}: {why}."
            ) from None


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
        raise DeclarationError(f"Key template {text!r} names a field twice in one component.")
    return tuple(pieces)


def _field(text: str, found: re.Match[str], delimiter: str) -> Field:
    named = FIELD.fullmatch(found[1])
    if named is None:
        raise _malformed(text, found.start(), f"{found[0]} does not name a field: expected a name such as {{order_id}}")
    field = make_field(named[1], named[2] or "", delimiter)
    if field is None:
        near = nearest_spec(named[2] or "")
        hint = f" (did you mean {{{named[1]}:{near}}}?)" if near else ""
        raise _malformed(text, found.start(), f"{found[0]} is of no known kind{hint}: expected {KINDS}")
    if field.attribute_type != "S" and found[0] != text:
        raise _malformed(text, found.start(), f"{field} must be the whole key attribute")
    if field.spec == "rest" and found.end() != len(text):
        raise _malformed(text, found.start(), f"{field} must be the last of its component, because it takes everything")
    return field


def _check_neighbour(text: str, position: int, pieces: list[str | Field], piece: str | Field) -> None:
    before = pieces[-1] if pieces else None
    if isinstance(before, Field) and isinstance(piece, Field) and not before.fixed_width:
        raise _malformed(
            text,
            position,
            f"{before} and {piece} touch: nothing shows where one ends. Put a delimiter between them, {before}#{piece}",
        )


def _malformed(text: str, position: int, what: str) -> DeclarationError:
    return DeclarationError(f"Key template {text!r} is malformed at character {position + 1}: {what}.")


def _is_one_text(pieces: tuple[str | Field, ...]) -> bool:
    last = pieces[-1]
    return isinstance(last, Field) and not last.spec and sum(isinstance(piece, Field) for piece in pieces) == 1


def _regex(pieces: tuple[str | Field, ...], loose: Collection[Field] = (), without: str = "") -> str:
    """The expression of a component; the ``loose`` fields take any text, or any ``without`` a delimiter."""
    anything = f"[^{re.escape(without)}]+" if without else ".*"
    return "".join(
        re.escape(piece)
        if isinstance(piece, str)
        else f"(?P<{piece.name}>{anything if piece in loose else piece.pattern})"
        for piece in pieces
    )


def looks_like(field: Field, value: KeyValue) -> bool:
    """Whether a value may have been meant for a field with a kind: their texts and numbers hold digits."""
    return bool(field.spec) and any(letter.isdigit() for letter in str(value))


def is_ambiguous(pieces: tuple[str | Field, ...], delimiter: str) -> bool:
    """Whether a literal between two fields could be part of a field's value."""
    between = pieces[1:-1] if isinstance(pieces[0], Field) else pieces[2:-1]
    return any(isinstance(piece, str) and delimiter not in piece for piece in between)


def known_prefix(component: KeyComponent, fields: Mapping[str, Any]) -> tuple[Any, bool]:
    """The beginning of a component as far as the fields are known, and whether it is complete."""
    if component.attribute_type != "S":
        name = component.fields[0].name
        return (component.compose(fields), True) if name in fields else ("", False)
    text = ""
    for index, piece in enumerate(component.pieces):
        if isinstance(piece, Field) and piece.name not in fields:
            later = [
                later.name for later in component.pieces[index:] if isinstance(later, Field) and later.name in fields
            ]
            if later:
                raise KeyValueError(f"Template {component.text!r} needs {piece.name!r} before {later[0]!r} in a query.")
            return text, False
        text += piece if isinstance(piece, str) else str(component.write(piece, fields))
    return text, True
