"""An application proposed from what a table holds: its keys, types, a first view with tests, and a recording."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from string import Template
from typing import Any

from streamfold.errors import SettingsError
from streamfold.keys.key import Key
from streamfold.keys.table import MAIN, Table
from streamfold.records.values import decode, to_json
from streamfold.starter import templates
from streamfold.starter.attributes import NUMBER, TypeClass, kept_values, source_text, types_of
from streamfold.starter.chart import EPOCHS, Chart, ProposedKey, chart_of, is_field_name, snake, unique
from streamfold.starter.pseudonyms import KeptValues, Pseudonyms
from streamfold.starter.samples import Sampled, SourceSample, read_sample

SHAPE_RECORDS = 10
"""Records of each shape that the recording has beyond the begin of the file."""
SUMS_MAX = 3
"""Attributes that the proposed view adds up."""
SUM_MAX = 10**12
"""A greater number is an identifier, and no amount."""
MODULE = "totals"
MODULES = (MODULE, "keys")
ITEMS = "items"
RESERVED = ("TABLE", "VIEWS", "ITEM", "FIELDS", "TOTALS")
RESERVED_TYPES = ("Any", "Decimal", "NotRequired", "TypedDict", "Key", "Table", "Row", "Router", "Sum", "Count", "Twin",
                  "App", "Callable", "Proof")  # fmt: skip
UNUSABLE = (ITEMS, "attributes", "wins")
"""Names of aggregates that a row has already, and options of ``Row``."""


@dataclass
class Proposal:
    """The files of an application, by their paths, and what is to be reported of them."""

    files: dict[str, str]
    charts: Sequence[Chart]
    types: Mapping[str, Sequence[TypeClass]]  # by the key's name
    kept: KeptValues | None  # None: all values were kept
    sample: SourceSample
    records: int

    @property
    def keys(self) -> list[ProposedKey]:
        return [key for chart in self.charts for key in chart.keys]

    @property
    def unsure(self) -> list[tuple[str, str]]:
        """What the records do not show: the doubts about tables, keys and attributes, each with its name."""
        return [
            *((f"table {chart.table.name}", note) for chart in self.charts for note in chart.notes),
            *((key.name, note) for key in self.keys for note in key.notes),
            *(
                (f"{of.name}.{each.name}", note)
                for found in self.types.values()
                for of in found
                for each in of.attributes
                for note in each.notes
            ),
        ]

    @property
    def literals(self) -> set[str]:
        """The literals of all keys."""
        return {column.text for key in self.keys for column in key.shape.columns if column.is_literal and column.text}


def propose(path: str, package: str, *, keep_values: bool = False, keys: Sequence[str] = ()) -> Proposal:
    """The application for a recorded file, or for an export's manifest.

    Raises ``SettingsError`` for a file without items, and for one whose keys have no shapes.
    """
    sample = read_sample(path, keys)
    taken = set(RESERVED)
    charts = [chart_of(each.items, each.table, path, each.notes, taken) for each in sample.tables]
    named = {key.name: key for chart in charts for key in chart.keys}
    records = [record.raw for record in _recorded(sample, charts)]
    kept = None
    if not keep_values:
        kept = kept_values({name: key.shape for name, key in named.items()})
        pseudonyms = Pseudonyms(records, kept)
        records = [pseudonyms.record(record) for record in records]
    types = _types(charts)
    view = _View(charts, types, records)
    files = {
        f"{package}/keys.py": _keys_text(charts, types),
        f"{package}/{MODULE}.py": view.text(package),
        f"tests/test_{MODULE}.py": view.test(package),
        "events/recorded.jsonl": "".join(to_json(record) + "\n" for record in records),
        f"{package}/__init__.py": Template(templates.APPLICATION).substitute(
            package=package, name=MODULE, tenant=f', tenant="{view.tenant}"' if view.tenant else ""
        ),
    }
    return Proposal(files, charts, types, kept, sample, len(records))


def _recorded(sample: SourceSample, charts: Sequence[Chart]) -> list[Sampled]:
    """The records of the new recording: the begin of the file, and some more of each shape."""
    shape_of = {id(item): key.name for chart in charts for key in chart.keys for item in key.shape.items}
    items = {each.real_name: iter(each.items) for each in sample.tables}
    counts = Counter[str]()
    found = []
    for position, record in enumerate(sample.records):
        name = shape_of[id(next(items[record.table]))]
        if position >= sample.begin:
            counts[name] += 1
        if position < sample.begin or counts[name] <= SHAPE_RECORDS:
            found.append(record)
    return found


def _types(charts: Sequence[Chart]) -> dict[str, list[TypeClass]]:
    """The types of each key's items, by the key's name; the last one is the item's."""
    keys = {key.name for chart in charts for key in chart.keys}
    taken, names = {*RESERVED_TYPES, *keys}, {}
    for key in (key for chart in charts for key in chart.keys):
        name = "".join(map(str.capitalize, key.name.split("_")))
        # Of a short name, such as K1 or U, the type would have the name of the key itself.
        names[key.name] = unique(f"{name}Item" if name in taken else name, taken)
    return {
        key.name: types_of(names[key.name], key.name, [item.image for item in key.shape.items], taken)
        for chart in charts
        for key in chart.keys
    }


def _keys_text(charts: Sequence[Chart], types: Mapping[str, Sequence[TypeClass]]) -> str:
    blocks = []
    for number, chart in enumerate(charts):
        name = "TABLE" if len(charts) == 1 else f"TABLE_{number + 1}"
        if chart.table != MAIN:
            blocks.append(f"{name} = {table_text(chart.table)}{_unsure(chart.notes)}\n")
        lines = []
        for key in chart.keys:
            given = key_arguments(key.key, "" if chart.table == MAIN else name)
            lines.append(f"{key.name} = Key({given}){_unsure(key.notes)}\n")
        blocks.append("".join(lines))
    classes = "\n\n".join(each.text() for found in types.values() for each in found)
    body = "\n".join(blocks) + "\n\n" + classes
    return f'"""{templates.KEYS}"""\n\n{_imports(body)}\n{body}'


def key_arguments(key: Key, table: str) -> str:
    """The arguments of a key's declaration; ``table`` is the name of its table, or empty."""
    given = [source_text(component.text) for component in key.parts]
    return ", ".join([*given, *([table if len(given) > 1 else f"table={table}"] if table else [])])


def _imports(body: str) -> str:
    typing = [name for name in ("Any", "NotRequired", "TypedDict") if re.search(rf"\b{name}\b", body)]
    lines = ["from decimal import Decimal\n"] if re.search(r"\bDecimal\b", body) else []
    lines.append(f"from typing import {', '.join(typing)}\n")
    own = ["Key", "Table"] if " = Table(" in body else ["Key"]
    return "".join(lines) + f"\nfrom streamfold import {', '.join(own)}\n"


def table_text(table: Table) -> str:
    """The declaration of a table."""
    given = [source_text(table.name), f"partition={source_text(table.partition)}"]
    given.append("sort=None" if table.sort is None else f"sort={source_text(table.sort)}")
    given += [f"ttl={source_text(table.ttl)}"] if table.ttl is not None else []
    given += [f"delimiter={source_text(table.delimiter)}"] if table.delimiter != MAIN.delimiter else []
    return f"Table({', '.join(given)})"


def _unsure(notes: Iterable[str]) -> str:
    text = "; ".join(notes)
    return f"  # unsure: {text}" if text else ""


class _View:
    """The view that the application begins with: how many items of one key there are, and the sums of their numbers."""

    def __init__(
        self, charts: Sequence[Chart], types: Mapping[str, Sequence[TypeClass]], records: Sequence[Mapping[str, Any]]
    ) -> None:
        chart = charts[0]
        self.tenant = chart.tenant if len(charts) == 1 else None
        found = []
        for key in chart.keys:
            example = _example(key.key, records)
            if example is not None:
                sums = _sums(types[key.name][-1], key)
                found.append((min(len(sums), 1), key.shape.keys, key, sums, example))
        if not found:
            raise SettingsError(
                "No item of the file has a key that its own template composes: expected keys as DynamoDB writes them."
            )
        _, _, self.key, self.sums, (self.fields, image) = max(found, key=lambda each: each[:2])
        self.type = types[self.key.name][-1]
        required = {each.name for each in self.type.attributes if each.is_required}
        self.item = {name: value for name, value in image.items() if name in required}
        self.target = self._target(chart)
        self.count = next(name for name in (ITEMS, "item_count") if name not in self.target.table.attributes)

    def _target(self, chart: Chart) -> Key:
        """The key of the totals: in the table of the items, if no key of the chart has such keys."""
        delimiter = chart.table.delimiter
        segments = ["TOTAL", self.key.name]
        if self.tenant is not None:
            segments.insert(0, str(self.key.key.types[self.tenant]))
        partition = delimiter.join(segments)
        is_text = all(field.attribute_type == "S" for key in chart.keys for field in key.key.types.values())
        sort = None if chart.table.sort is None else "ALL"
        if is_text:
            made = Key(partition, sort, chart.table)
            if not any(made.overlaps(key.key) for key in chart.keys):
                return made
        return Key(partition.replace(delimiter, MAIN.delimiter), "ALL", table=Table("views"))

    def text(self, package: str) -> str:
        """The module of the view."""
        key, target = self.key, self.target
        table, imports, streamfold = "", [key.name, self.type.name], ["Count", "Key", "Router", "Row", "Sum"]
        if target.table.name == "views":
            table = 'VIEWS = Table("views")\n'
            streamfold.append("Table")
        elif target.table != MAIN:
            imports.append("TABLE" if key.key.table.name == MAIN.name else "TABLE_1")
        if not self.sums:
            streamfold.remove("Sum")
        given = key_arguments(target, "VIEWS" if table else imports[-1] if target.table != MAIN else "")
        sums = "".join(f', {name}=Sum(item["{name}"])' for name in self.sums)
        return Template(templates.TOTALS).substitute(
            imports=", ".join(sorted(imports, key=str.casefold)),
            streamfold=", ".join(sorted(streamfold)),
            package=package,
            tables=table,
            count=self.count,
            key=key.name,
            given=given,
            type=self.type.name,
            sums=sums,
        )

    def test(self, package: str) -> str:
        """Its tests."""
        item = "".join(f"    {source_text(name)}: {literal_text(value)},\n" for name, value in self.item.items())
        fields = "".join(f"    {source_text(name)}: {literal_text(value)},\n" for name, value in self.fields.items())
        tenant = f', {self.tenant}=FIELDS["{self.tenant}"]' if self.tenant else ""
        body = Template(templates.TOTALS_TEST).substitute(
            package=package,
            key=self.key.name,
            type=self.type.name,
            count=self.count,
            item=f"{{\n{item}}}" if item else "{}",
            fields=f"{{\n{fields}}}" if fields else "{}",
            sums="".join(f', {name}=Sum(ITEM["{name}"])' for name in self.sums),
            sum_import=", Sum" if self.sums else "",
            tenant=tenant,
        )
        return body.replace("${decimal}", "from decimal import Decimal\n" if "Decimal(" in body else "")


def _example(key: Key, records: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The fields and the attributes of an item with this key."""
    for record in records:
        body = record["dynamodb"]
        image = body.get("NewImage") or body.get("OldImage")
        plain = {name: decode(value) for name, value in body["Keys"].items()}
        if image is None or set(plain) != set(key.table.attributes):
            continue
        fields = key.match(plain)
        if fields is not None:
            return fields, {name: decode(value) for name, value in image.items() if name not in plain}
    return None


def _sums(of: TypeClass, key: ProposedKey) -> list[str]:
    """The attributes that may be amounts: numbers that every item has, no times, and no identifiers."""
    found = []
    for each in of.attributes:
        usable = is_field_name(each.name) and each.name not in (*UNUSABLE, *key.key.fields, *key.key.table.attributes)
        if each.is_required and each.type in ("int", NUMBER) and usable and not snake(each.name).endswith("id"):
            numbers = [Decimal(item.image[each.name]["N"]) for item in key.shape.items]
            are_times = any(all(low <= number < high for number in numbers) for low, high in EPOCHS.values())
            if not are_times and all(abs(number) < SUM_MAX for number in numbers):
                found.append(each.name)
    return sorted(found)[:SUMS_MAX]


def literal_text(value: Any) -> str:
    """A value as Python source, the same for equal values."""
    if isinstance(value, str):
        return source_text(value)
    if isinstance(value, Decimal):
        return f'Decimal("{value}")'
    if isinstance(value, set):
        return "{" + ", ".join(sorted(map(literal_text, value))) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(literal_text, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{source_text(name)}: {literal_text(each)}" for name, each in value.items()) + "}"
    if hasattr(value, "isoformat"):
        return source_text(getattr(value, "text", None) or value.isoformat().replace("+00:00", "Z"))
    return repr(value)
