"""The types of a shape's attributes, as a ``TypedDict`` that a handler's parameter may have."""

import keyword
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from streamfold.records.values import AttributeValue
from streamfold.starter.chart import snake, unique

ALWAYS_SHARE = 1.0
OFTEN_SHARE = 0.5
"""Items that have an attribute which is there often; fewer have one that is there seldom."""
RECORD_NAMES_MAX = 30
"""Names of a map that is a record; one with more is a dictionary."""
SCALARS = {"S": "str", "BOOL": "bool", "B": "bytes", "SS": "set[str]", "BS": "set[bytes]", "NULL": "None"}
NUMBER = "int | Decimal"
"""A number that may have a fraction: without one it is an ``int``."""
INTEGER = re.compile(r"-?\d+")
UNUSABLE = re.compile(rf"__|({'|'.join(keyword.kwlist)})$")
"""Names that a class cannot have: keywords, and those that Python changes."""
LEVELS_MAX = 5
"""Nested maps that get a type of their own; deeper ones are ``Any``."""


class TypedAttribute(NamedTuple):
    """An attribute of a shape."""

    name: str
    type: str
    share: float  # of the items that have it
    notes: tuple[str, ...] = ()

    @property
    def is_required(self) -> bool:
        return self.share >= ALWAYS_SHARE

    @property
    def comment(self) -> str:
        """How often it is there, and what is unsure."""
        share = "under 1%" if self.share < 0.01 else "over 99%" if self.share > 0.99 else f"{self.share:.0%}"
        often = "often" if self.share >= OFTEN_SHARE else "seldom"
        comments = [] if self.is_required else [f"{often}: in {share} of the items"]
        comments += [f"unsure: {'; '.join(self.notes)}"] if self.notes else []
        return "; ".join(comments)


class TypeClass(NamedTuple):
    """A ``TypedDict``."""

    name: str
    docstring: str
    attributes: Sequence[TypedAttribute]

    def text(self) -> str:
        """Its source. Names that Python does not take need the other syntax."""
        if all(each.name.isidentifier() and not UNUSABLE.match(each.name) for each in self.attributes):
            lines = [f"    {each.name}: {_written(each)}{_comment(each)}\n" for each in self.attributes]
            return (
                f'class {self.name}(TypedDict):\n    """{self.docstring}"""\n'
                + ("\n" if lines else "")
                + "".join(lines)
            )
        lines = [f"        {source_text(each.name)}: {_written(each)},{_comment(each)}\n" for each in self.attributes]
        begin = f'{self.name} = TypedDict(\n    "{self.name}",\n    {{\n'
        return f'{begin}{"".join(lines)}    }},\n)\n"""{self.docstring}"""\n'


def _written(attribute: TypedAttribute) -> str:
    return attribute.type if attribute.is_required else f"NotRequired[{attribute.type}]"


def _comment(attribute: TypedAttribute) -> str:
    return f"  # {attribute.comment}" if attribute.comment else ""


def source_text(text: str) -> str:
    # In double quotes, as formatters have it, where that needs no escapes.
    quoted = repr(text)
    return f'"{quoted[1:-1]}"' if quoted[0] == "'" and '"' not in quoted and "\\'" not in quoted else quoted


def types_of(name: str, key: str, images: Sequence[Mapping[str, AttributeValue]], taken: set[str]) -> list[TypeClass]:
    """The types of a shape's items: that of a nested map comes before the type which has it.

    ``taken`` are names of other types; those of nested maps are added.
    """
    found: list[TypeClass] = []
    _Types(found, taken).add(name, f"An item of {key}.", images, 0)
    return found


class _Types:
    """The classes of one shape, while they are made."""

    def __init__(self, found: list[TypeClass], taken: set[str]) -> None:
        self.found = found
        self.taken = taken

    def add(self, name: str, docstring: str, maps: Sequence[Mapping[str, AttributeValue]], level: int) -> None:
        values: dict[str, list[AttributeValue]] = {}
        for each in maps:
            for attribute, value in each.items():
                values.setdefault(attribute, []).append(value)
        attributes = []
        for attribute, given in values.items():
            nested = f"{name}{''.join(map(str.capitalize, snake(attribute).split('_')))}"
            notes: list[str] = []
            text = self.type(given, nested, notes, level)
            attributes.append(TypedAttribute(attribute, text, len(given) / len(maps), tuple(dict.fromkeys(notes))))
        self.found.append(TypeClass(name, docstring, sorted(attributes, key=lambda each: (-each.share, each.name))))

    def type(self, values: Sequence[AttributeValue], name: str, notes: list[str], level: int) -> str:
        """The type of these values. Maps that are records become classes."""
        contents: dict[str, list[Any]] = {}
        for value in values:
            for tag, content in value.items() or [("M", {})]:
                contents.setdefault(tag, []).append(content)
        types = [self._of_tag(tag, given, name, notes, level) for tag, given in contents.items() if tag != "NULL"]
        if len(types) > 1:
            notes.append("values of several types")
        if not types:
            notes.append("null in all items")
            return "None"
        return " | ".join([*types, *(["None"] if "NULL" in contents else [])])

    def _of_tag(self, tag: str, contents: Sequence[Any], name: str, notes: list[str], level: int) -> str:
        if tag == "N":
            return _number(contents)
        if tag == "NS":
            return f"set[{_number([member for content in contents for member in content])}]"
        if tag == "L":
            members = [member for content in contents for member in content]
            return f"list[{self.type(members, name, notes, level) if members else 'Any'}]"
        return self._map(contents, name, notes, level) if tag == "M" else SCALARS[tag]

    def _map(self, maps: Sequence[Mapping[str, Any]], name: str, notes: list[str], level: int) -> str:
        counts = Counter(key for each in maps for key in each)
        values = [value for each in maps for value in each.values()]
        if not values or level >= LEVELS_MAX:
            return "dict[str, Any]"
        tags = {tag for value in values for tag in value}
        is_fixed = max(counts.values()) == len(maps)
        is_record = len(counts) <= RECORD_NAMES_MAX and 2 * len(values) >= len(counts) * len(maps)
        if is_record and (is_fixed or len(tags) > 1):
            name = unique(name, self.taken)
            self.add(name, "A map of an item.", maps, level + 1)
            return name
        if len(tags) > 1 and len(counts) <= RECORD_NAMES_MAX:
            notes.append("a record, or a dictionary")
        return f"dict[str, {self.type(values, name, notes, level + 1)}]"


def _number(texts: Sequence[str]) -> str:
    return "int" if all(map(INTEGER.fullmatch, texts)) else NUMBER
