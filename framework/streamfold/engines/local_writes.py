"""Guarded writes on items that a store of this machine compares itself: their descriptions, compiled to Python.

Rows are DynamoDB attribute values, state items plain values. The items that were found are never changed in place. The
condition of a ledger write becomes

    ('total.v' not in item or (found := item.get('total.v')) is not None and found < write.parts[0].version and ...)

which takes a fifteenth of what reading the description term by term takes (measured), and is made once a shape.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from streamfold.engines.keys import key_attributes
from streamfold.errors import HandlerError
from streamfold.keys.table import Table
from streamfold.records.values import WIDE, Number, decode_number, encode, number_text, same
from streamfold.writes.descriptions import (
    SHAPES,
    Absent,
    All,
    Attribute,
    Attributes,
    Change,
    Check,
    Delete,
    Description,
    Either,
    Exists,
    Is,
    Names,
    Next,
    NoneOf,
    Put,
    Same,
    Shape,
    Term,
    Unchanged,
    Update,
    Value,
    described,
)
from streamfold.writes.guarded import RowKey, StateKey

SHAPES_MAX = 2000
"""Shapes of writes that are kept compiled: an application has a few for each handler."""
NO_ITEM: Mapping[str, Any] = {}
"""Stands for an item that is not there; none that is has no attributes."""


class LocalWrite(NamedTuple):
    """What the writes of one shape require of an item, and what they make of it."""

    looks: bool  # whether the item that is stored decides on anything
    holds: Callable[[Any, Mapping[str, Any]], bool]  # write, item
    after: Callable[[Any, Mapping[str, Any], Table, int], Any]  # write, item, table, expires_at; None: no item
    tells: bool  # a refusal brings the item that was found


_COMPILED: dict[Shape, LocalWrite] = {}


def local_write(write: Any, table: Table) -> LocalWrite:
    """A write to an item of a table, compiled."""
    kind = type(write)
    shape = kind, SHAPES[kind](write, table)  # as ``shape_of``, without its call: a replay comes here at each write
    return _COMPILED.get(shape) or _compile(shape, described(write, table), in_state=type(write.key) is StateKey)


def _compile(shape: Shape, description: Description, *, in_state: bool) -> LocalWrite:
    render = _Plain() if in_state else _Encoded()
    names = dict(_HELPERS)
    lines = [
        "def holds(write, item):",
        f"    return {render.condition(description.guard)}",
        "def after(write, item, table, expires_at):",
        *(f"    {line}" for line in render.change(description.change)),
    ]
    # Names and constants are put in by ``repr``, and all else is the description's: nothing of an item is compiled.
    exec("\n".join(lines), names)  # noqa: S102
    looks = bool(description.guard.terms) or isinstance(description.change, Update)
    made = LocalWrite(looks, names["holds"], names["after"], description.tells)
    if len(_COMPILED) >= SHAPES_MAX:
        _COMPILED.clear()
    _COMPILED[shape] = made
    return made


class _Plain:
    """Python for state items, whose values are plain."""

    each_is_same = "plain_same"
    key = ""  # the attributes of the key in an item

    def condition(self, term: Term) -> str:
        match term:
            case Exists(there):
                return "bool(item)" if there else "not item"
            case Absent(name):
                return f"{name!r} not in item"
            case Is(name, "=", value):
                return f"{self.stored(name, value)} == {value.code}"
            case Is(name, operator, value):
                return f"((found := {self.stored(name, value)}) is not None and found {operator} {value.code})"
            case Same(mapping):
                return f"{self.each_is_same}(item, write.{mapping})"
            case NoneOf(names):
                return f"write_has_none(item, write.{names})"
            case Unchanged(image):
                return f"same({{'M': item}}, {{'M': write.{image}}})"
            case All(terms):
                return f"({' and '.join(map(self.condition, terms))})" if terms else "True"
            case Either(terms):
                return f"({' or '.join(map(self.condition, terms))})"

    def change(self, change: Change) -> list[str]:
        match change:
            case Put(attributes):
                key = [f"**{self.key}"] if self.key else []
                return [f"return {{{', '.join([*key, *map(self.set, attributes)])}}}"]
            case Update():
                return self.update(change)
            case Delete() | Check():
                return ["return None"]

    def update(self, change: Update) -> list[str]:
        base = f"**(item or {self.key})" if self.key else "**item"
        lines = [f"made = {{{', '.join([base, *map(self.set, change.sets)])}}}", *self.add(change.adds)]
        lines += [f"take(made, {part.name!r}, {part.value.code})" for part in change.takes]
        for removed in change.removes:
            if isinstance(removed, Names):
                lines += [f"for name in write.{removed.names}:", "    made.pop(name, None)"]
            else:
                lines.append(f"made.pop({removed!r}, None)")
        return [*lines, "return made"]

    def set(self, part: Attribute | Attributes | Next) -> str:
        if isinstance(part, Attributes):
            return f"**write.{part.mapping}"
        if isinstance(part, Next):
            return f"{part.name!r}: item.get({part.name!r}, {part.start.code}) + 1"
        return f"{part.name!r}: {part.value.code}"

    def add(self, parts: Sequence[Attribute | Attributes]) -> list[str]:
        lines = []
        for part in parts:
            assert isinstance(part, Attribute)
            added = f"made.get({part.name!r}, 0) + {part.value.code}"
            if part.value.type == "SS":
                added = f"members(made.get({part.name!r}, ()), {part.value.code})"
            lines.append(f"made[{part.name!r}] = {added}")
        return lines

    def stored(self, name: str, _: Value) -> str:
        """The stored value of an attribute; None where there is none."""
        return f"item.get({name!r})"


class _Encoded(_Plain):
    """Python for rows and source items, whose values are DynamoDB attribute values."""

    each_is_same = "encoded_same"
    key = "key_attributes(table, write.key)"

    def set(self, part: Attribute | Attributes | Next) -> str:
        if isinstance(part, Attributes):
            return f"**encode(write.{part.mapping})['M']"
        assert isinstance(part, Attribute)
        return f"{part.name!r}: encode({part.value.code})"

    def add(self, parts: Sequence[Attribute | Attributes]) -> list[str]:
        amounts = [
            f"**write.{part.mapping}" if isinstance(part, Attributes) else f"{part.name!r}: {part.value.code}"
            for part in parts
        ]
        return [f"add(made, {{{', '.join(amounts)}}}, write.key)"] if amounts else []

    def stored(self, name: str, value: Value) -> str:
        if value.type == "N":
            return f"stored_number(item, {name!r})"
        return f"item.get({name!r}, NO_ITEM).get('S')"


def _plain_same(item: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return all(name in item and item[name] == value for name, value in expected.items())


def _encoded_same(item: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return all(same(item.get(name), value) for name, value in encode(expected)["M"].items())


def _has_none(item: Mapping[str, Any], names: Iterable[str]) -> bool:
    return not any(name in item for name in names)


def _stored_number(item: Mapping[str, Any], name: str) -> Number | None:
    text = item.get(name, NO_ITEM).get("N")
    return None if text is None else decode_number(text)


def _add(row: dict[str, Any], amounts: Mapping[str, Number], key: RowKey) -> None:
    """Adds amounts to a row. Raises ``HandlerError`` if one of its attributes takes none."""
    for name, amount in amounts.items():
        text = number_text(amount)  # a number that no request could carry is refused, whatever the sum
        if (stored := row.get(name)) is not None:
            if "N" not in stored:
                raise HandlerError(f"attribute {name} of row {key[1:]} is not a number")
            before = decode_number(stored["N"])
            both_whole = type(before) is int and type(amount) is int
            text = number_text(before + amount if both_whole else WIDE.add(before, amount))
        row[name] = {"N": text}


def _members(stored: Iterable[str], added: frozenset[str]) -> list[str]:
    """A set with more members: a sorted list, because the state file has no sets."""
    return sorted({*stored, *added})


def _take(item: dict[str, Any], name: str, members: frozenset[str]) -> None:
    """Takes members from a set. An empty one is absent."""
    if remaining := set(item.pop(name, ())) - members:
        item[name] = sorted(remaining)


_HELPERS: Mapping[str, Any] = {
    "NO_ITEM": NO_ITEM,
    "add": _add,
    "encode": encode,
    "encoded_same": _encoded_same,
    "key_attributes": key_attributes,
    "members": _members,
    "plain_same": _plain_same,
    "same": same,
    "stored_number": _stored_number,
    "take": _take,
    "write_has_none": _has_none,
}
"""What the compiled writes call."""
