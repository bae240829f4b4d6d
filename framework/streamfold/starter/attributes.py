"""The attributes of a shape: their types, as a ``TypedDict``, and the values that a recording keeps."""

import keyword
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from streamfold.records.values import AttributeValue
from streamfold.starter.chart import snake, unique
from streamfold.starter.pseudonyms import TOKEN, KeptValues, scalars
from streamfold.starter.shapes import KeyShape

ALWAYS_SHARE = 1.0
OFTEN_SHARE = 0.5
"""The share of items from which on an attribute is commented as *often* present; below it is *seldom*."""
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

KINDS_MAX = 12
"""Values of an attribute of few kinds, such as a status."""
ITEMS_A_KIND_MIN = 3
"""Items that have each kind, on average: a name is of one item, however often that changes."""
KIND_LETTERS_MAX = 40
COMPOSED = r"[#|]"
"""Separators of composed keys in attributes."""
IDENTIFYING = re.compile(
    r"(.*_)?(id|ids|uid|uuid|key|token|secret|hash|email|mail|phone|name|street|address|user|users|owner|owners|author|"
    r"by|member|members|customer|client|person|people|patient|doctor|driver|teacher|student|contact|guest|holder|"
    r"assignee|agent|employee|account|login|ip|tenant|workspace|org|organization|organisation|company)"
)
"""Names of attributes that identify a person or an account. Their values are replaced even if they are few."""
BALANCED_SHARE = 0.5
"""Sums that are 0, of all sums of several items, for an attribute to hold the amounts of books."""


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
        """The share of items that have the attribute, and the doubts about its type."""
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
    """The types of a shape's items. The type of a nested map precedes the type that uses it.

    ``taken`` are names of other types; the names of the new types are added.
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


def kept_values(shapes: Mapping[str, KeyShape]) -> KeptValues:
    """The values that stay: literals, and attributes of few kinds which many items share; by the shapes' names."""
    kept = KeptValues()
    for shape in shapes.values():
        for number, column in enumerate(shape.columns):
            if column.is_literal:
                kept.keep(column.text)
            elif not _is_of_kinds(shape, number):
                kept.identifiers.update(map(str, shape.values(number)))
        kept.balanced |= balanced_numbers(shape)
    for name, shape in shapes.items():
        _keep_kinds(kept, name, shape)
    for text in [text for values in kept.values.values() for text in values]:
        kept.keep(text)
    return kept


def _is_of_kinds(shape: KeyShape, column: int) -> bool:
    """Whether a key's field, as in ``STATUS#{status}``, equals an attribute of few kinds."""
    items: dict[str, set[Any]] = defaultdict(set)
    for item, segments in zip(shape.items, shape.segments, strict=True):
        items[str(segments[column])].add(item.key)
    return any(_are_kinds(name, "S", items) for name in shape.equal_attributes(column))


def _keep_kinds(kept: KeptValues, name: str, shape: KeyShape) -> None:
    """Keeps the values of few kinds of a shape's attributes, and the literals of composed keys, as of an index."""
    found: dict[tuple[str, str], dict[str, set[Any]]] = defaultdict(lambda: defaultdict(set))
    for item in shape.items:
        for path, tag, content in [each for named in item.image.items() for each in scalars(*named)]:
            if tag in ("S", "N"):
                found[path, tag][content].add(item.key)
    for (path, tag), values in sorted(found.items()):
        segments = [re.split(COMPOSED, text) for text in values]
        if all(len(each) > 1 for each in segments):
            for words in zip(*segments, strict=False):
                if len(set(words)) == 1:
                    kept.keep(words[0])
        elif not kept.identifiers & values.keys() and _are_kinds(path, tag, values):
            kept.values[f"{name}.{path}"] = sorted(values)


def _are_kinds(path: str, tag: str, values: Mapping[str, set[Any]]) -> bool:
    """Whether an attribute has few values, each of many items, and its name does not identify a person."""
    items = set().union(*values.values())
    if len(values) > KINDS_MAX or len(items) < ITEMS_A_KIND_MIN * len(values):
        return False
    if IDENTIFYING.fullmatch(snake(path.rpartition(".")[2])):
        return False
    if tag == "N":
        return True
    tokens = [token for text in values for token in TOKEN.finditer(text)]
    are_words = all(token["word"] or token["counted"] for token in tokens)
    return are_words and all(len(text) <= KIND_LETTERS_MAX and "@" not in text for text in values)


def balanced_numbers(shape: KeyShape) -> set[Decimal]:
    """The amounts of books that balance: of an attribute with both signs, that adds up to 0 over the items with one
    value in a field of their key.
    """
    columns = [number for number, column in enumerate(shape.columns) if not column.is_literal]
    fields = {item.key: segments for item, segments in zip(shape.items, shape.segments, strict=True)}
    amounts: dict[str, dict[Any, Decimal]] = defaultdict(dict)
    for key, image in {item.key: item.image for item in shape.items}.items():  # the last image of each
        for name, value in image.items():
            if "N" in value:
                amounts[name][key] = Decimal(value["N"])
    found: set[Decimal] = set()
    for of_items in amounts.values():
        groups = ([(fields[key][column], amount) for key, amount in of_items.items()] for column in columns)
        if any(amount < 0 for amount in of_items.values()) and any(map(_are_balanced, groups)):
            found.update(map(abs, of_items.values()))
    return found


def _are_balanced(amounts: Iterable[tuple[Any, Decimal]]) -> bool:
    """Whether most sums of several amounts with one value are 0."""
    by_value: dict[Any, list[Decimal]] = defaultdict(list)
    for value, amount in amounts:
        by_value[value].append(amount)
    several = [each for each in by_value.values() if len(each) > 1]
    return len([each for each in several if not sum(each)]) > BALANCED_SHARE * len(several)
