"""The key chart of a table: a template for each shape of its keys, with names, kinds of fields, and doubts."""

import keyword
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

from streamfold.keys.field import ANY_TIME, EPOCH_DIGITS, SECOND_DIGITS, make_field
from streamfold.keys.key import Key
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import MAIN, Table
from streamfold.starter.shapes import (
    BINARY,
    NUMBER,
    REST,
    SURE_VALUES,
    TENANT,
    TENANTS,
    TEXT,
    Columns,
    KeyShape,
    SampledItem,
    delimiter_of,
    neighbours,
    of_component,
    shapes_of,
)

EPOCHS = {"seconds": (1_000_000_000, 4_100_000_000), "milliseconds": (1_000_000_000_000, 4_100_000_000_000)}
"""Numbers that are taken for times: from 2001, when seconds have 10 digits, to 2099."""
YEARS = (1900, 2100)
PLAIN_NUMBER = re.compile(r"0|-?[1-9]\d*")
VERSION_NUMBER = re.compile(r"((?:v|ver|version|r|rev|revision)[_.-]?)(\d+)", re.IGNORECASE)
INTEGER_SPEC = re.compile(r"(0\d+)?d")
PADDED_NOTE, INTEGER_NOTE = "padded numbers, or text of digits", "whole numbers, or text of digits"
LONG_DIGITS = 16
"""Digits of a number that is an identifier: it is read as text."""
GENERIC_WORDS = ("META", "METADATA", "PROFILE", "INFO", "DETAILS", "DETAIL", "ROOT", "HEADER", "ITEM", "RECORD", "A")
"""Literals of a sort key that name nothing: the partition's names the shape."""
GENERIC_KEYS = re.compile(
    r"_*(pk|sk|partition_?key|sort_?key|hash_?key|range_?key|hash|range|partition|sort|key)_*", re.IGNORECASE
)
OWN_NAMES = ("SKU", "EMAIL", "UUID", "ULID", "GUID", "ISBN", "EAN", "IP", "URL", "DATE", "DAY", "YEAR", "MONTH", "WEEK")
"""Literals that name a field themselves."""
NAMED_LETTERS_MAX = 40
"""Of a name that is made of literals."""
TAKEN = ("attributes",)
"""Names of fields that a row or a twin would take for its option."""
TIME_NAMES = {"date": "day", "time": "at", "ulid": "id"}


@dataclass
class ProposedKey:
    """A key of the chart, as it is written: ``NAME = Key("PARTITION", "SORT")  # unsure: ...``."""

    name: str
    key: Key
    shape: KeyShape

    @property
    def notes(self) -> list[str]:
        return self.shape.notes


@dataclass
class Chart:
    """The keys of one table."""

    table: Table
    keys: list[ProposedKey]
    notes: list[str] = field(default_factory=list)  # of the table
    tenant: str | None = None  # the field that all keys have first


def chart_of(
    items: Sequence[SampledItem], table: Table, source: str, notes: Iterable[str] = (), taken: set[str] | None = None
) -> Chart:
    """The chart of a table. ``table`` has the names of its key attributes; the chart's has the delimiter too.

    ``taken`` are names that other keys have. Raises ``SettingsError``, which names the source, for keys without shapes.
    """
    delimiter = delimiter_of(item.key for item in items)
    table = Table(table.name, table.partition, table.sort, table.ttl, delimiter=delimiter)
    shapes = shapes_of(items, delimiter, source)
    templates = {id(shape): _Templates(shape, table) for shape in shapes}
    _share_names(list(templates.values()))
    tenant = _tenant(list(templates.values()))
    taken = set() if taken is None else taken
    keys = []
    for shape in shapes:
        made = templates[id(shape)]
        name = unique(_name_of(shape, table), taken)
        partition, *sort = made.texts()
        key = Key(partition, sort[0] if sort else None, None if table == MAIN else table)
        keys.append(ProposedKey(name, key, shape))
    return Chart(table, keys, list(notes), tenant)


class _Templates:
    """The templates of one shape, while its fields are named."""

    def __init__(self, shape: KeyShape, table: Table) -> None:
        self.shape = shape
        self.table = table
        self.specs: dict[int, str] = {}
        self.prefixes: dict[int, str] = {}
        self.names: dict[int, str] = {}
        self.given: set[int] = set()  # columns whose name an attribute of the items gives
        for number, column in enumerate(shape.columns):
            if not column.is_literal:
                twin = next((each for each in self.specs if self._are_equal(each, number)), None)
                self.specs[number] = self._spec(number) if twin is None else self.specs[twin]
        for number in self.specs:
            self.names[number] = self._name(number)
        self._unify()

    def _spec(self, number: int) -> str:
        column, values = self.shape.columns[number], self.shape.values(number)
        if column.kind in (BINARY, REST):
            return column.kind
        if column.kind == NUMBER:
            return _number_spec([value for value in values if not isinstance(value, str | bytes)])
        texts = [value for value in values if isinstance(value, str)]
        is_identifier = column.component == 0 and not self.shape.is_numbered(number)
        spec, note = text_spec(texts, is_partition=is_identifier)
        if not spec and len(of_component(self.shape.columns, column.component)) == 1:
            prefix, spec, note = _version_spec(texts) or ("", "", note)
            if spec:
                self.prefixes[number] = prefix
        if note:
            self.shape.note(note)
        return spec

    def _name(self, number: int) -> str:
        column = self.shape.columns[number]
        own = of_component(self.shape.columns[:number], column.component)
        literal = next((each.text for each in reversed(own) if each.is_literal), "")
        if name := self._attribute_name(number, literal):
            self.given.add(number)
            return name
        if number in self.prefixes:
            return "version"
        # The identifier of POST#{at}#{post_id} is behind the time, and follows the literal.
        nearest = next((each for each in reversed(own) if each.is_literal or each.kind == TEXT), None)
        follows = nearest is not None and bool(nearest.text)
        spec = self.specs[number]
        if column.kind in TIME_NAMES or "time" in spec or spec.startswith(("epoch", "number.")):
            base = TIME_NAMES.get(column.kind, "at")
            return f"{snake(literal)}_id" if base == "id" and follows else base
        if follows:
            base = _singular(snake(literal))
            names_itself = literal.upper() in OWN_NAMES or self._is_of_few(number) or spec == REST
            return base if names_itself else f"{base}_id"
        key_name = self.table.attributes[column.component]
        name = "name" if literal or GENERIC_KEYS.fullmatch(key_name) else snake(key_name)
        return name if name.isidentifier() else f"key_{name}"

    def _attribute_name(self, number: int, literal: str) -> str | None:
        """The attribute that equals a field; of several the shortest, if one has the word of the literal one of these.

        A field of one value takes no name if several attributes equal it.
        """
        equal = sorted(name for name in self.shape.equal_attributes(number) if is_field_name(name))
        if len(equal) > 1 and len(self.shape.values(number)) == 1:
            return None
        wanted = [name for name in equal if literal and snake(literal).split("_")[0] in snake(name)]
        return min(wanted or equal, key=len, default=None)

    def _is_of_few(self, number: int) -> bool:
        values = self.shape.values(number)
        return len(values) * SURE_VALUES <= len(self.shape.items) and all(map(str.isalpha, map(str, values)))

    def _unify(self) -> None:
        """Gives one name to fields of partition and sort key that are always equal, and others to the rest."""
        taken: dict[str, int] = {}
        for number in self.names:
            name = self.names[number]
            twin = next((each for each in taken.values() if self._are_equal(each, number)), None)
            if twin is not None:
                self.names[number] = self.names[twin]
                continue
            self.names[number] = unique(name, {*taken, *TAKEN})
            taken[self.names[number]] = number

    def _are_equal(self, one: int, other: int) -> bool:
        columns = self.shape.columns
        return (
            columns[one].component != columns[other].component
            and columns[one].kind == columns[other].kind
            and len(self.shape.values(one)) > 1
            and all(segments[one] == segments[other] for segments in self.shape.segments)
        )

    def texts(self) -> list[str]:
        """The templates of the table's key attributes."""
        segments: list[list[str]] = [[] for _ in self.table.attributes]
        for number, column in enumerate(self.shape.columns):
            text = column.text
            if not column.is_literal:
                spec = f":{spec}" if (spec := self.specs[number]) else ""
                text = f"{self.prefixes.get(number, '')}{{{self.names[number]}{spec}}}"
            segments[column.component].append(text)
        return list(map(self.table.delimiter.join, segments))


class _Field(NamedTuple):
    """A field of one shape's templates."""

    of: _Templates
    number: int

    @property
    def name(self) -> str:
        return self.of.names[self.number]

    @property
    def spec(self) -> str:
        return self.of.specs[self.number]

    @property
    def is_given(self) -> bool:
        return self.number in self.of.given

    @property
    def values(self) -> set[KeyValue]:
        return set(self.of.shape.values(self.number))

    @property
    def other_names(self) -> set[str]:
        return {name for number, name in self.of.names.items() if number != self.number}

    def rename(self, name: str) -> None:
        if name not in self.other_names:
            self.of.names[self.number] = name

    def take_name(self, known: Iterable[tuple[set[KeyValue], str]]) -> None:
        """Gives the field the name of most known fields that have half of its values, or of which it has half."""
        values = self.values
        same = Counter(name for theirs, name in known if len(values & theirs) * 2 > min(len(values), len(theirs)))
        if free := [name for name, _ in same.most_common() if name not in self.of.names.values()]:
            self.rename(free[0])

    def read_as_text(self) -> None:
        """Makes text of digits, with a note that names the numbers which they may be."""
        if spec := self.spec:
            shape = self.of.shape
            shape.notes = [note for note in shape.notes if note not in (PADDED_NOTE, INTEGER_NOTE)]
            shape.note(f"digits: {{x:{spec}}} reads numbers")
            self.of.specs[self.number] = ""


def _version_spec(texts: Sequence[str]) -> tuple[str, str, str] | None:
    """The prefix and the kind of version numbers, such as ``v17``, and the doubt about them; None for other texts.

    The kind is empty if the digits are no numbers.
    """
    found = [each for text in texts if (each := VERSION_NUMBER.fullmatch(text))]
    if len(found) < len(texts) or len({each[1] for each in found}) != 1:
        return None
    prefix = found[0][1]
    spec, note = text_spec([each[2] for each in found], is_partition=False)
    return (prefix, spec, f"a number behind {prefix!r}, or text") if spec.endswith("d") else (prefix, "", note)


def text_spec(texts: Sequence[str], *, is_partition: bool) -> tuple[str, str]:
    """The kind of a field with these values, and the doubt about it."""
    for spec in ("date", "ulid", *SECOND_DIGITS, ANY_TIME):
        made = make_field("x", spec, "#")
        if made is not None and all(map(made.reads, texts)):
            return spec, ""
    if not all(text.lstrip("-").isdecimal() and text.isascii() for text in texts):
        return "", ""
    if not all(text.isdecimal() for text in texts):
        return ("d", INTEGER_NOTE) if all(map(PLAIN_NUMBER.fullmatch, texts)) else ("", "")
    widths = {len(text) for text in texts}
    for unit, (low, high) in EPOCHS.items():
        if widths == {EPOCH_DIGITS[unit]} and all(low <= int(text) < high for text in texts):
            return f"epoch.{unit}", "" if len(texts) >= SURE_VALUES else "numbers that may be no times"
    if max(widths) >= LONG_DIGITS:
        return "", f"digits: {{x:0{max(widths)}d}} reads numbers" if len(widths) == 1 else ""
    return _digits_spec(texts, widths, is_partition=is_partition)


def _digits_spec(texts: Sequence[str], widths: set[int], *, is_partition: bool) -> tuple[str, str]:
    width = max(widths)
    if len(widths) == 1 and width > 1 and any(text.startswith("0") for text in texts):
        if is_partition:  # an identifier: its number means nothing
            return "", f"digits: {{x:0{width}d}} reads numbers"
        return f"0{width}d", PADDED_NOTE if len(texts) < SURE_VALUES else ""
    if widths == {4} and all(YEARS[0] <= int(text) < YEARS[1] for text in texts):
        return "04d", "years, or other numbers"
    if all(map(PLAIN_NUMBER.fullmatch, texts)):
        return ("", "digits: {x:d} reads numbers") if is_partition else ("d", INTEGER_NOTE)
    return "", "digits of several lengths, some with leading zeros"


def _number_spec(numbers: Sequence[int | Decimal]) -> str:
    for unit, (low, high) in EPOCHS.items():
        if all(low <= number < high and number == int(number) for number in numbers):
            return f"number.{unit}"
    return "number"


def snake(name: str) -> str:
    """``orderId`` and ``ORDER-ID`` as ``order_id``."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return re.sub(r"\W+|_+", "_", name, flags=re.ASCII).strip("_").lower() or "name"


def is_field_name(name: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII)) and not keyword.iskeyword(name)


def _singular(name: str) -> str:
    if name.endswith("ies") and len(name) > 4:
        return f"{name[:-3]}y"
    if name.endswith(("ches", "shes", "xes", "sses")):
        return name[:-2]
    return name[:-1] if len(name) > 3 and name.endswith("s") and not name.endswith(("ss", "us", "is")) else name


def unique(name: str, taken: set[str]) -> str:
    """A name that is not taken, which it is then: the name itself, or with a number behind it."""
    found, number = name, 2
    while found in taken or keyword.iskeyword(found):
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found


def _name_of(shape: KeyShape, table: Table) -> str:
    """The name of a key: its literals, or the name of the table or of its partition key."""
    words: list[str] = []
    has_one_sort = len(of_component(shape.columns, 1)) == 1
    for column in shape.columns:
        word = snake(column.text).upper() if column.text else ""
        names_nothing = column.component == 1 and has_one_sort and word in GENERIC_WORDS
        if word and not (words and (names_nothing or word in words)):
            words.append(word)
    name = "_".join(words)[:NAMED_LETTERS_MAX].strip("_")
    if not name:
        name = (table.partition if table.name == MAIN.name else table.name).removesuffix("_id")
        name = "RECORD" if GENERIC_KEYS.fullmatch(name) or name == "id" else snake(name).upper()
    return name if name[0].isalpha() else f"K_{name}"


def _share_names(templates: Sequence[_Templates]) -> None:
    """Fields behind one literal are one field: they get one name and one kind. Others take the name of a field with the
    same values.
    """
    fields = [_Field(each, number) for each in templates for number in each.names]
    named = [each for each in fields if each.is_given or not re.fullmatch(r"name(_\d+)?", each.name)]
    known = [(each.values, each.name) for each in named]
    unnamed = [each for each in fields if each not in named and not each.spec]
    by_literal: dict[str, list[_Field]] = defaultdict(list)
    for each in fields:
        before, _ = neighbours(each.of.shape.columns, each.number)
        if before is not None and before.text:
            by_literal[before.text].append(each)
    for same in by_literal.values():
        _as_one(same)
    for each in unnamed:
        each.take_name(known)


def _as_one(fields: Sequence[_Field]) -> None:
    """Gives one kind, if they have digits, and one name to the fields behind one literal."""
    specs = {each.spec for each in fields}
    if len(specs) > 1 and all(not spec or INTEGER_SPEC.fullmatch(spec) for spec in specs):
        for each in fields:  # digits of an identifier are text wherever it is
            each.read_as_text()
    names = Counter[str]()
    for each in [each for each in fields if each.is_given] or fields:
        names[each.name] += len(each.of.shape.items)
    name = names.most_common(1)[0][0]
    for each in fields:
        each.rename(name)


def _tenant(templates: Sequence[_Templates]) -> str | None:
    """Names the tenants' field, and gives its name if all keys have it."""
    columns = [(each, _tenant_column(each.shape.columns)) for each in templates]
    firsts = [_Field(each, number) for each, number in columns if number is not None]
    if len({(each.number, each.spec) for each in firsts}) != 1:
        return None
    number, spec = firsts[0].number, firsts[0].spec
    if number == 0 and spec and len(firsts) < len(templates):
        return None
    names = Counter(each.name for each in firsts if each.is_given)
    literal = firsts[0].of.shape.columns[0].text.lower() if number else TENANT
    name = names.most_common(1)[0][0] if names else literal
    for each in firsts:
        if name in each.other_names:
            return None
        each.rename(name)
    return name if len(firsts) == len(templates) else None


def _tenant_column(columns: Columns) -> int | None:
    """The segment that may be a tenant: the first, before a literal, or the one behind a literal such as ``ORG``."""
    if len(columns) == 1 or columns[1].component:
        return None
    if columns[0].text.lower() in TENANTS and not columns[1].is_literal:
        return 1
    return 0 if columns[1].is_literal and not columns[0].is_literal else None
