"""Guarded writes on items that a store of this machine compares itself: their descriptions, compiled to Python.

Rows are DynamoDB attribute values, state items plain values. Found items are never changed in place. The
condition of a ledger write becomes

    ('total.v' not in item or (found := item.get('total.v')) is not None and found < …version and ...)

which takes a fifteenth of the time of evaluating the description term by term (measured), and is made once a shape.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from streamfold.engines.keys import key_attributes
from streamfold.errors import HandlerError
from streamfold.keys.table import Table
from streamfold.records.values import WIDE, Number, decode_number, encode, number_text, same
from streamfold.writes import descriptions as terms
from streamfold.writes.guarded import RowKey, StateKey

NO_ITEM: Mapping[str, Any] = {}
"""Represents an item that does not exist; none that does has no attributes."""


class LocalWrite(NamedTuple):
    """The condition and the changes of the writes of one shape, compiled."""

    looks: bool  # whether the item that is stored decides on anything
    holds: Callable[[Any, Mapping[str, Any]], bool]  # write, item
    after: Callable[[Any, Mapping[str, Any], Table, int], Any]  # write, item, table, expires_at; None: no item
    returns_item: bool  # a refusal brings the item that was found


_COMPILED: dict[terms.WriteShape, LocalWrite] = {}


def local_write(write: Any, table: Table) -> LocalWrite:
    """A write to an item of a table, compiled."""
    kind = type(write)
    shape = kind, terms.SHAPES[kind](write, table)  # as ``shape_of``, but quicker: a replay does this for each write
    found = _COMPILED.get(shape)
    if found is None:
        compiled = _compile(terms.described(write, table), in_state=type(write.key) is StateKey)
        found = terms.learn(_COMPILED, shape, compiled)
    return found


def _compile(description: terms.Description, *, in_state: bool) -> LocalWrite:
    render, names = _Plain() if in_state else _Encoded(), dict(HELPERS)
    lines = [
        "def holds(write, item):",
        f"    return {render.condition(description.guard)}",
        "def after(write, item, table, expires_at):",
        *(f"    {line}" for line in render.change(description.change)),
    ]
    # Names and constants are put in by ``repr``, and all else is the description's: nothing of an item is compiled.
    exec("\n".join(lines), names)  # noqa: S102
    looks = bool(description.guard.terms) or isinstance(description.change, terms.Update)
    return LocalWrite(looks, names["holds"], names["after"], description.returns_item)


class _Plain:
    """Python for state items, whose values are plain."""

    key = ""  # the attributes of the key in an item

    def condition(self, term: terms.Term) -> str:
        match term:
            case terms.Exists(exists):
                return "bool(item)" if exists else "not item"
            case terms.Absent(name) | terms.Present(name):
                return f"{name!r} {'in' if isinstance(term, terms.Present) else 'not in'} item"
            case terms.Is(name, operator, value):
                stored = self.stored(name, value)
                if operator == "=":
                    return f"{stored} == {value.code}"
                return f"((found := {stored}) is not None and found {operator} {value.code})"
            case terms.Same(mapping):
                return self.same(mapping)
            case terms.NoneOf(names):
                return f"not any(map(item.__contains__, write.{names}))"
            case terms.Unchanged(image):
                return f"same({{'M': item}}, {{'M': write.{image}}})"
            case terms.All(each):
                return f"({' and '.join(map(self.condition, each))})" if each else "True"
            case terms.Either(each):
                return f"({' or '.join(map(self.condition, each))})"

    def change(self, change: terms.ItemChange) -> list[str]:
        if isinstance(change, terms.Update):
            return self.update(change)
        if isinstance(change, terms.Replace):
            key = [f"**{self.key}"] if self.key else []
            return [f"return {{{', '.join([*key, *map(self.set, change.attributes)])}}}"]
        return ["return None"]

    def update(self, change: terms.Update) -> list[str]:
        base = f"**(item or {self.key})" if self.key else "**item"
        lines = [f"made = {{{', '.join([base, *map(self.set, change.sets)])}}}", *self.add(change.adds)]
        lines += [f"take(made, {taken.name!r}, {taken.value.code})" for taken in change.takes]
        for removed in change.removes:
            if isinstance(removed, terms.NamesOf):
                lines += [f"for name in write.{removed.names}:", "    made.pop(name, None)"]
            else:
                lines.append(f"made.pop({removed!r}, None)")
        return [*lines, "return made"]

    def set(self, given: terms.Attribute | terms.AttributesOf | terms.Increment) -> str:
        if isinstance(given, terms.AttributesOf):
            return f"**write.{given.mapping}"
        if isinstance(given, terms.Increment):
            return f"{given.name!r}: item.get({given.name!r}, {given.start.code}) + 1"
        return f"{given.name!r}: {given.value.code}"

    def add(self, adds: Sequence[terms.Attribute | terms.AttributesOf]) -> list[str]:
        lines = []
        for given in adds:
            assert isinstance(given, terms.Attribute)
            added = f"made.get({given.name!r}, 0) + {given.value.code}"
            if given.value.type == "SS":
                added = f"members(made.get({given.name!r}, ()), {given.value.code})"
            lines.append(f"made[{given.name!r}] = {added}")
        return lines

    def same(self, mapping: str) -> str:
        return f"all(item.get(name) == value for name, value in write.{mapping}.items())"

    def stored(self, name: str, _: terms.WriteValue) -> str:
        """The stored value of an attribute; None where there is none."""
        return f"item.get({name!r})"


class _Encoded(_Plain):
    """Python for rows and source items, whose values are DynamoDB attribute values."""

    key = "key_attributes(table, write.key)"

    def set(self, given: terms.Attribute | terms.AttributesOf | terms.Increment) -> str:
        if isinstance(given, terms.AttributesOf):
            return f"**encode(write.{given.mapping})['M']"
        assert isinstance(given, terms.Attribute)
        return f"{given.name!r}: encode({given.value.code})"

    def add(self, adds: Sequence[terms.Attribute | terms.AttributesOf]) -> list[str]:
        amounts = [
            f"**write.{given.mapping}"
            if isinstance(given, terms.AttributesOf)
            else f"{given.name!r}: {given.value.code}"
            for given in adds
        ]
        return [f"add(made, {{{', '.join(amounts)}}}, write.key)"] if amounts else []

    def same(self, mapping: str) -> str:
        return f"all(same(item.get(name), value) for name, value in encode(write.{mapping})['M'].items())"

    def stored(self, name: str, value: terms.WriteValue) -> str:
        stored = f"item.get({name!r}, NO_ITEM).get({value.type!r})"
        return f"number({stored})" if value.type == "N" else stored


def number(text: str | None) -> Number | None:
    return None if text is None else decode_number(text)


def add(row: dict[str, Any], amounts: Mapping[str, Number], key: RowKey) -> None:
    """Adds amounts to attributes of a row.

    Raises ``HandlerError`` if one of them is no number, or the sum is none that DynamoDB holds.
    """
    for name, amount in amounts.items():
        text = number_text(amount)  # a number that no request could carry is refused, also if the sum could be stored
        if (stored := row.get(name)) is not None:
            if "N" not in stored:
                raise HandlerError(f"attribute {name} of row {key[1:]} is not a number")
            before = decode_number(stored["N"])
            are_integers = type(before) is int and type(amount) is int
            text = number_text(before + amount if are_integers else WIDE.add(before, amount))
        row[name] = {"N": text}


def members(stored: Iterable[str], added: frozenset[str]) -> list[str]:
    """A set with more members: a sorted list, because the state file has no sets."""
    return sorted({*stored, *added})


def take(item: dict[str, Any], name: str, removed: frozenset[str]) -> None:
    """Takes members from a set. An empty one is absent."""
    if remaining := set(item.pop(name, ())) - removed:
        item[name] = sorted(remaining)


CALLED = (add, encode, key_attributes, members, number, same, take)
"""The functions that compiled writes call."""
HELPERS: Mapping[str, Any] = {"NO_ITEM": NO_ITEM, **{each.__name__: each for each in CALLED}}
