"""The key chart of a table: a template for each shape of its keys, with names, kinds of fields, and doubts."""

import keyword
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from streamfold.keys.field import ANY_TIME, EPOCH_DIGITS, SECOND_DIGITS, make_field
from streamfold.keys.key import Key
from streamfold.keys.table import MAIN, Table
from streamfold.starter.shapes import (
    BINARY,
    NUMBER,
    REST,
    SURE_VALUES,
    TENANT,
    TENANTS,
    TEXT,
    KeyShape,
    SampledItem,
    delimiter_of,
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
        if column.kind == BINARY:
            return "binary"
        if column.kind == NUMBER:
            return _number_spec([value for value in values if not isinstance(value, str | bytes)])
        if column.kind == REST:
            return "rest"
        texts = [value for value in values if isinstance(value, str)]
        is_identifier = column.component == 0 and not self.shape.is_numbered(number)
        spec, note = text_spec(texts, is_partition=is_identifier)
        own = [each for each in self.shape.columns if each.component == column.component]
        if not spec and len(own) == 1:
            found = [each for text in texts if (each := VERSION_NUMBER.fullmatch(text))]
            if len(found) == len(texts) and len({each[1] for each in found}) == 1:
                digits, note = text_spec([each[2] for each in found], is_partition=False)
                if digits.endswith("d"):
                    self.prefixes[number], spec = found[0][1], digits
                    note = f"a number behind {found[0][1]!r}, or text"
        if note:
            self.shape.note(note)
        return spec

    def _name(self, number: int) -> str:
        shape, column = self.shape, self.shape.columns[number]
        equal = sorted(name for name in shape.equal_attributes(number) if is_field_name(name))
        literal = next(
            (
                each.text
                for each in reversed(shape.columns[:number])
                if each.component == column.component and each.is_literal
            ),
            "",
        )
        if equal and (len(shape.values(number)) > 1 or len(equal) == 1):
            self.given.add(number)
            wanted = [name for name in equal if literal and snake(literal).split("_")[0] in snake(name)]
            return min(wanted or equal, key=len)
        before = [each for each in range(number) if shape.columns[each].component == column.component]
        while before and not shape.columns[before[-1]].is_literal and shape.columns[before[-1]].kind != TEXT:
            before.pop()  # POST#{at}#{post_id}: the identifier is behind the time
        if number in self.prefixes:
            return "version"
        follows = bool(before) and shape.columns[before[-1]].is_literal and literal
        if column.kind in TIME_NAMES or "time" in (spec := self.specs[number]) or spec.startswith(("epoch", "number.")):
            base = TIME_NAMES.get(column.kind, "at")
            return f"{snake(literal)}_id" if base == "id" and follows else base
        if not follows:
            key_name = self.table.attributes[column.component]
            named = snake(key_name) if not GENERIC_KEYS.fullmatch(key_name) and not literal else "name"
            return named if named.isidentifier() else f"key_{named}"
        base = _singular(snake(literal))
        return base if literal.upper() in OWN_NAMES or self._is_of_few(number) or spec == "rest" else f"{base}_id"

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
        found = []
        for component in range(len(self.table.attributes)):
            segments = []
            for number, column in enumerate(self.shape.columns):
                if column.component != component:
                    continue
                spec = self.specs.get(number, "")
                named = "{" + self.names[number] + (f":{spec}" if spec else "") + "}" if number in self.names else ""
                segments.append(column.text if column.is_literal else self.prefixes.get(number, "") + named)
            found.append(self.table.delimiter.join(segments))
        return found


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
    words: list[str] = []
    sorts = [column for column in shape.columns if column.component == 1]
    for column in shape.columns:
        word = snake(column.text).upper() if column.is_literal and column.text else ""
        names_nothing = column.component == 1 and len(sorts) == 1 and word in GENERIC_WORDS
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
    by_literal: dict[str, list[tuple[_Templates, int]]] = defaultdict(list)
    known: list[tuple[set[Any], str]] = []
    unnamed: list[tuple[_Templates, int]] = []
    for each in templates:
        for number, name in each.names.items():
            before = each.shape.columns[number - 1] if number else None
            if before is not None and before.text and before.component == each.shape.columns[number].component:
                by_literal[before.text].append((each, number))
            if number in each.given or not re.fullmatch(r"name(_\d+)?", name):
                known.append((set(each.shape.values(number)), name))
            elif not each.specs[number]:
                unnamed.append((each, number))
    for fields in by_literal.values():
        _as_one(fields)
    for each, number in unnamed:
        values = set(each.shape.values(number))
        same = Counter(name for theirs, name in known if len(values & theirs) * 2 > min(len(values), len(theirs)))
        free = [name for name, _ in same.most_common() if name not in each.names.values()]
        if free:
            each.names[number] = free[0]


def _as_one(fields: Sequence[tuple[_Templates, int]]) -> None:
    specs = {each.specs[number] for each, number in fields}
    if len(specs) > 1 and all(not spec or INTEGER_SPEC.fullmatch(spec) for spec in specs):
        for each, number in fields:  # digits of an identifier are text wherever it is
            if each.specs[number]:
                each.shape.notes = [note for note in each.shape.notes if note not in (PADDED_NOTE, INTEGER_NOTE)]
                each.shape.note(f"digits: {{x:{each.specs[number]}}} reads numbers")
                each.specs[number] = ""
    named = [(each, number) for each, number in fields if number in each.given] or fields
    names = Counter[str]()
    for each, number in named:
        names[each.names[number]] += len(each.shape.items)
    name = names.most_common(1)[0][0]
    for each, number in fields:
        if name not in each.names.values():
            each.names[number] = name


def _tenant(templates: Sequence[_Templates]) -> str | None:
    """Names the tenants' field, and gives its name if all keys have it."""
    firsts = []
    for each in templates:
        columns = each.shape.columns
        if len(columns) > 1 and not columns[0].is_literal and columns[1].is_literal and columns[1].component == 0:
            firsts.append((each, 0))
        elif (
            len(columns) > 1
            and columns[0].text.lower() in TENANTS
            and columns[1].component == 0
            and not columns[1].is_literal
        ):
            firsts.append((each, 1))
    if not firsts or len({(number, each.specs[number]) for each, number in firsts}) > 1:
        return None
    names = Counter(each.names[number] for each, number in firsts if number in each.given)
    each, number = firsts[0]
    literal = each.shape.columns[0].text.lower() if number else TENANT
    name = names.most_common(1)[0][0] if names else literal
    if len(firsts) < len(templates) and number == 0 and not any(each.specs[number] == "" for each, number in firsts):
        return None
    for each, number in firsts:
        others = {other for column, other in each.names.items() if column != number}
        if name in others:
            return None
        each.names[number] = name
    return name if len(firsts) == len(templates) else None
