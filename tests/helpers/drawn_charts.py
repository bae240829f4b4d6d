"""Drawn tables: key charts with their truth, and records that a twin of the table made."""

import random
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from streamfold import Table
from streamfold.testing import TableTwin

NOUNS = (
    "account", "agent", "alert", "asset", "batch", "bill", "branch", "card", "claim", "client", "contract", "course",
    "customer", "deal", "device", "driver", "event", "farm", "flight", "garage", "grant", "group", "hotel", "invoice",
    "lead", "lesson", "license", "machine", "match", "member", "order", "parcel", "patient", "payment", "plan",
    "plant", "policy", "product", "project", "quote", "reading", "room", "route", "seat", "sensor", "shift", "ship",
    "site", "slot", "stock", "store", "student", "task", "team", "ticket", "tool", "trip", "truck", "user", "venue",
    "vote", "wallet",
)  # fmt: skip
FEW = ("alpha", "beta", "delta", "gamma", "kappa", "omega", "sigma", "theta", "zeta", "lambda")
ENUMS = ("open", "closed", "paused", "done", "draft", "failed")
START = datetime(2026, 1, 5, 8, tzinfo=UTC)


class DrawnField(NamedTuple):
    """A field of a key: its kind, and how its values are drawn."""

    spec: str
    draw: Callable[[random.Random], Any]


class DrawnAttribute(NamedTuple):
    """The type of an attribute, the share of items that have it, and how its values are drawn."""

    type: str
    share: float
    draw: Callable[[random.Random], Any]


class DrawnShape(NamedTuple):
    """A template of which the kinds of fields count, not their names; and its attributes."""

    partition: Sequence[str | DrawnField]
    sort: Sequence[str | DrawnField] | None
    attributes: Mapping[str, DrawnAttribute]


@dataclass
class DrawnTable:
    """A chart, and the records of its items."""

    table: Table
    shapes: Sequence[DrawnShape]
    records: list[dict[str, Any]]

    def templates(self) -> list[str]:
        """The templates without the names of fields."""
        return [self.template(shape) for shape in self.shapes]

    def template(self, shape: DrawnShape) -> str:
        parts = [shape.partition] if shape.sort is None else [shape.partition, shape.sort]
        return " / ".join(
            self.table.delimiter.join(each if isinstance(each, str) else _spec(each.spec) for each in part)
            for part in parts
        )


def _spec(spec: str) -> str:
    return "{:" + spec + "}" if spec else "{}"


def drawn_table(seed: int) -> DrawnTable:
    """A table of this seed, always the same."""
    return _Drawer(random.Random(seed)).table()


class _Drawer:
    def __init__(self, source: random.Random) -> None:
        self.source = source
        self.case = source.choice([str.upper, str.upper, str.upper, str.lower, str.capitalize])
        self.nouns = source.sample(NOUNS, 40)
        self.tenants: DrawnField | None = None
        self.shared: Mapping[str, DrawnAttribute] | None = None
        self.without_sort = False
        self.sort_type = "S"

    def noun(self) -> str:
        return self.case(self.nouns.pop())

    def table(self) -> DrawnTable:
        source = self.source
        delimiter = source.choice("#####|/:")
        names = source.choice([("PK", "SK"), ("PK", "SK"), ("pk", "sk"), ("partition", "sort"), ("owner", "entry")])
        self.sort_type = source.choice(["S"] * 8 + ["N", "B"])
        if source.random() < 0.1:
            names = (names[0], None)
        self.without_sort = names[1] is None
        table = Table("main", *names, delimiter=delimiter)
        self.shared = self.attributes() if source.random() < 0.25 else None
        if source.random() < 0.25:
            few = [f"{word}{source.choice(['', '-co'])}" for word in source.sample(FEW, 4)]
            self.tenants = DrawnField("", lambda of: of.choice(few))
        shapes: list[DrawnShape] = []
        for _ in range(source.randint(1, 5)):
            shapes += self.entity()
        return DrawnTable(table, shapes, self.records(table, shapes))

    def entity(self) -> list[DrawnShape]:
        """An item with its own sort key, and often items below it."""
        source, literal, identifier = self.source, self.noun(), self.identifier()
        partition: list[str | DrawnField] = [literal, identifier]
        if self.tenants is not None:
            partition = [self.tenants, *partition]
        if self.without_sort:
            return [DrawnShape(partition, None, self.attributes())]
        if self.sort_type != "S":
            spec = source.choice(["number", "number.seconds"]) if self.sort_type == "N" else "binary"
            return [DrawnShape(partition, [DrawnField(spec, KEY_VALUES[spec])], self.attributes())]
        if source.random() < 0.2:
            return [DrawnShape(partition, [self.sort_field()], self.attributes())]
        own = source.choice(["metadata", "profile", "details", "info"])
        shapes = [DrawnShape(partition, [self.case(own)], self.attributes())] if source.random() < 0.8 else []
        for _ in range(source.randint(0 if shapes else 1, 3)):
            sort: list[str | DrawnField] = [self.noun()]
            sort += [self.sort_field() for _ in range(source.choice([1, 1, 1, 2]))]
            shapes.append(DrawnShape(partition, sort, self.attributes()))
        return shapes

    def identifier(self) -> DrawnField:
        source = self.source
        letter = source.choice(string.ascii_lowercase)
        few = source.sample(FEW, 6)
        return source.choice(
            [
                DrawnField("", lambda of: f"{letter}-{of.randrange(80):03d}"),
                DrawnField("", lambda of: f"{of.getrandbits(48):012x}"),
                DrawnField("", _uuid),
                DrawnField("", lambda of: f"{of.choice(FEW)}{of.randrange(30)}@example.com"),
                DrawnField("", lambda of: of.choice(few)),
                DrawnField("ulid", _ulid),
                DrawnField("date", lambda of: f"{START + timedelta(days=of.randrange(60)):%Y-%m-%d}"),
            ]
        )

    def sort_field(self) -> DrawnField:
        source = self.source
        forms = {
            "datetime.seconds": "%Y-%m-%dT%H:%M:%SZ",
            "datetime": "%Y-%m-%dT%H:%M:%S.%fZ",
            "datetime.seconds.offset": "%Y-%m-%dT%H:%M:%S+00:00",
        }
        spec = source.choice(sorted(forms))
        width = source.choice([3, 4, 6])
        return source.choice(
            [
                self.identifier(),
                DrawnField(spec, lambda of: _time(of).strftime(forms[spec])),
                DrawnField("epoch.seconds", lambda of: str(int(_time(of).timestamp()))),
                DrawnField("epoch.milliseconds", lambda of: str(int(_time(of).timestamp() * 1000))),
                DrawnField(f"0{width}d", lambda of: f"{of.randrange(60):0{width}d}"),
                DrawnField("ulid", _ulid),
            ]
        )

    def attributes(self) -> Mapping[str, DrawnAttribute]:
        source = self.source
        if self.shared is not None:
            return self.shared
        kinds: list[tuple[str, Callable[[random.Random], Any]]] = [
            ("str", lambda of: "".join(of.choices(string.ascii_lowercase, k=9))),
            ("str", lambda of: of.choice(ENUMS)),
            ("str", lambda of: _time(of).isoformat()),
            ("int", lambda of: of.randrange(1000)),
            ("int | Decimal", lambda of: Decimal(of.randrange(100_000)) / 100),
            ("bool", lambda of: of.random() < 0.5),
            ("bytes", lambda of: of.randbytes(8)),
            ("list[str]", lambda of: of.sample(ENUMS, 2)),
            ("set[str]", lambda of: set(of.sample(ENUMS, 2))),
            ("set[int]", lambda of: {of.randrange(9), 9 + of.randrange(9)}),
            ("str | None", lambda of: of.choice([None, "x", "y"])),
        ]
        found = {}
        for name in source.sample(["note", "size", "state", "owner", "price", "score", "made", "tags", "flag", "raw",
                                   "label", "ends", "level", "limit"], source.randint(2, 8)):  # fmt: skip
            kind, draw = source.choice(kinds)
            found[f"{name}_{source.randrange(50)}"] = DrawnAttribute(kind, source.choice([1.0, 1.0, 0.7, 0.15]), draw)
        return found

    def records(self, table: Table, shapes: Sequence[DrawnShape]) -> list[dict[str, Any]]:
        source = self.source
        twin = TableTwin(table, key_types={table.sort: self.sort_type} if table.sort else None)
        for shape in shapes:
            for _ in range(source.randint(40, 90)):
                fields: dict[int, Any] = {}
                parts = [shape.partition, *([shape.sort] if shape.sort is not None else [])]
                key = [
                    _key_value(
                        [
                            each if isinstance(each, str) else fields.setdefault(id(each), each.draw(source))
                            for each in part
                        ],
                        table.delimiter,
                    )
                    for part in parts
                ]
                item = dict(zip(table.attributes, key, strict=True))
                for name, attribute in shape.attributes.items():
                    if source.random() < attribute.share:
                        item[name] = attribute.draw(source)
                twin.put(item)
        return [record for shard in twin.stream.shards for record in shard.records]


def _key_value(segments: Sequence[Any], delimiter: str) -> Any:
    return segments[0] if len(segments) == 1 else delimiter.join(segments)


def _time(source: random.Random) -> datetime:
    return START + timedelta(seconds=source.randrange(60 * 86_400), microseconds=1 + source.randrange(999_998))


KEY_VALUES: Mapping[str, Callable[[random.Random], Any]] = {
    "number": lambda of: of.randrange(500),
    "number.seconds": lambda of: int(_time(of).timestamp()),
    "binary": lambda of: of.randbytes(6),
}


def _ulid(source: random.Random) -> str:
    return "01KH" + "".join(source.choices("0123456789ABCDEFGHJKMNPQRSTVWXYZ", k=22))


def _uuid(source: random.Random) -> str:
    digits = f"{source.getrandbits(128):032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
