"""Histories of an application's items: writes to the table, drawn from examples of the items."""

import json
from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import product
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.app import App
from streamfold.errors import HandlerError
from streamfold.keys.field import Field
from streamfold.keys.key import Key
from streamfold.proofs.faults import Choices
from streamfold.records.change import Change, Origin, times_of
from streamfold.records.envelope import KINESIS, STREAM, Origins
from streamfold.records.images import Image, without_derived
from streamfold.records.kinesis import KinesisChange, unwrapped
from streamfold.records.values import number_text
from streamfold.settings import Settings
from streamfold.testing.items import TwinError
from streamfold.testing.stream import START, Clock, KinesisTwin, kinesis_record
from streamfold.testing.table import TableTwin
from streamfold.testing.twin import Write, carry_out, key_types

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

ARRIVAL = ("arrives-late", "arrives-last", "arrives-twice")
"""Ways in which a record of Kinesis may arrive, other than once and in order (Developer Guide, kds)."""
LATE_RECORDS = 3


def arriving(changes: Sequence[Change], choices: Choices) -> Sequence[Change]:
    """The changes in order of arrival: unchanged for a DynamoDB stream, chosen one by one for Kinesis."""
    positions: list[tuple[float, Change]] = []
    for position, change in enumerate(changes):
        how = choices.choose("arrival", ARRIVAL) if isinstance(change, KinesisChange) else None
        late = {"arrives-late": LATE_RECORDS + 0.5, "arrives-last": len(changes)}.get(how or "", 0)
        positions.append((position + late, change))
        if how == "arrives-twice" and isinstance(change, KinesisChange):
            positions.append((position + LATE_RECORDS + 0.5, _second_notice(change)))
    return [change for _, change in sorted(positions, key=lambda placed: placed[0])]


def _second_notice(change: KinesisChange) -> Change:
    record, data = change.record, unwrapped(change.record)
    number = int(change.sequence) + 1
    again = kinesis_record(json.loads(b64decode(record["kinesis"]["data"])), number, record["eventSourceARN"])
    prefix = change.version_text[: change.version_text.rindex("/") + 1]
    notice = KinesisChange(again, data, Origin(change.table, prefix))
    notice.event, notice.version_text = change.event, change.version_text  # as the table found it
    notice._old, notice._new, notice._digest = change._old, change._new, change._digest  # noqa: SLF001 - the same
    return notice


ITEMS_MAX = 4
"""Different items of one key in a history: few, so that they are changed often."""
ITEMS_OF_ROOT = 2
"""Parts of one root in a history: rows of collections follow from several. A recorded file has any number."""
IMAGES_MAX = 40
"""Different images of each key that are taken from a recorded file: a large file would make every history slow."""
FIELD_VALUES: Mapping[str, tuple[Any, ...]] = {"S": ("1", "2"), "N": (1, 2), "B": (b"\x01", b"\x02")}
TYPED_VALUES: Mapping[type, tuple[Any, ...]] = {
    int: (1, 2),
    date: (date(2026, 3, 1), date(2026, 3, 2)),
    datetime: (datetime(2026, 3, 1, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC)),
}
ULIDS = ("01JN8B4R0000000000000000A1", "01JN8B4R0000000000000000A2")
WHAT = ("put", "put", "put", "put", "put", "put", "delete", "expire")
"""The kinds of a drawn write: six puts to two removals keep most items alive."""
WRITES_AT_ONCE, HOURS_BETWEEN = 4, 17
"""Writes of a history in one second, and hours between two such groups. Some changes then share a time, and a history
lasts for days, which begin at another write in each time zone."""
KnownItems = Mapping[tuple[str, str], Sequence[Any]]
"""Values of fields, by name and type."""


class Shape(NamedTuple):
    """Example items of one key: the values of its fields, and the attributes.

    ``given`` are the items that were not varied, each with the fields of its own key. ``start`` is the time at which
    histories of the items begin, epoch seconds.
    """

    key: Key
    fields: Sequence[Mapping[str, Any]]
    items: Sequence[Mapping[str, Any]]
    given: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] = ()
    start: float = START


def item_keys(app: App) -> list[Key]:
    """The keys of all items that handlers read or write: sources, children, items with derived attributes."""
    keys: dict[Key, None] = {}
    for route in app.routes:
        subscribed = (each.key for each in route.kind.subscriptions(route))
        keys.update(dict.fromkeys((*subscribed, *route.kind.touches(route))))
    return list(keys)


def shapes_of(given: Mapping[Key, Sequence[Mapping[str, Any]]]) -> list[Shape]:
    """The shapes of the items of several keys, from examples.

    Field values are shared across keys, so that drawn order lines refer to drawn orders.
    """
    known: dict[tuple[str, str], list[Any]] = {}
    for key, examples in given.items():
        for name, field in key.types.items():
            known.setdefault((name, field.spec), []).extend(each[name] for each in examples if name in each)
    return [shape(key, examples, known) for key, examples in given.items()]


def shape(
    key: Key,
    examples: Iterable[Mapping[str, Any]],
    known: KnownItems = MappingProxyType({}),
) -> Shape:
    """The shape of a key's items, from examples: attributes, and fields of the key by name if they matter.

    ``known`` has values, by name and type, for fields that the examples lack.
    """
    examples = list(examples)
    if not examples:
        raise TwinError(f"{key!r} has no example of an item: give one, {{{key!r}: {{'price': 3}}}}.")
    values = {name: _field_values(field, examples, known) for name, field in key.types.items()}
    fields = [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())][:ITEMS_MAX]
    items = [{name: value for name, value in example.items() if name not in key.types} for example in examples]
    own = [{name: example.get(name, usual) for name, usual in fields[0].items()} for example in examples]
    return Shape(key, fields, _varied(items), list(zip(own, items, strict=True)))


def recorded_shapes(app: App, changes: Iterable[Change]) -> list[Shape]:
    """The shapes of source items in recorded changes: a few of their keys, and some of their images. Parts are those of
    the same few roots.

    Histories of them begin at the time of the latest change: keys and attributes have times of the recording, which a
    feed would take for posts of the future, or for posts that it shows no more.
    """
    keys = item_keys(app)
    fields: dict[Key, list[Mapping[str, Any]]] = {key: [] for key in keys}
    items: dict[Key, list[Mapping[str, Any]]] = {key: [] for key in keys}
    given: dict[Key, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {key: [] for key in keys}
    latest, gathered = 0.0, {key: root for route in app.routes for key, root in route.gathered.items()}
    for change in changes:
        latest = max((latest, *times_of([change])))
        if not (change.has_new and change.new) or app.derived(change.item):
            continue
        own = Image(without_derived(change.new.raw))
        image = {name: value for name, value in own.items() if name not in change.table.attributes}
        of_table = [(key, key.match_values(*change.item[1:])) for key in keys if key.table.name == change.table.name]
        for key, found in of_table:
            if found is None:
                continue
            _add_new(fields[key], found, IMAGES_MAX if key in gathered else ITEMS_MAX)
            if _add_new(items[key], image, IMAGES_MAX):
                given[key].append((found, image))
    for key, root in gathered.items():
        by_root = ([each for each in fields[key] if one.items() <= each.items()] for one in fields[root])
        few = [each for of_root in by_root for each in of_root[:ITEMS_OF_ROOT]]
        fields[key] = [*few, *(each for each in fields[key] if each not in few)][:ITEMS_MAX]
    return [Shape(key, fields[key], items[key], given[key], latest or START) for key in keys if items[key]]


def _add_new(found: list[Mapping[str, Any]], one: Mapping[str, Any], count_max: int) -> bool:
    """Adds one if it is new and has room; returns whether it was added."""
    if len(found) >= count_max or one in found:
        return False
    found.append(one)
    return True


def _field_values(field: Field, examples: Sequence[Mapping[str, Any]], known: KnownItems) -> list[Any]:
    own = [example[field.name] for example in examples if field.name in example]
    given = list(dict.fromkeys(own or known.get((field.name, field.spec), ())))
    return (given + [value for value in usual_values(field) if value not in given])[: max(2, len(given))]


def usual_values(field: Field) -> tuple[Any, ...]:
    """Two values that a field takes."""
    if field.spec == "ulid":
        return ULIDS
    return TYPED_VALUES.get(field.python_type) or FIELD_VALUES[field.attribute_type]


def _varied(items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The examples, and variants of each: with one number changed, or one attribute of another example."""
    found = [dict(item) for item in items]
    for item in items:
        for name, value in item.items():
            others = [other[name] for other in items if name in other and other[name] != value]
            found += [{**item, name: other} for other in (*others, *_other_numbers(value))]
    unique: list[Mapping[str, Any]] = []
    for candidate in found:
        if candidate not in unique:
            unique.append(candidate)
    return unique


def _other_numbers(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return ()
    return tuple(number for number in (value + 1, value * 2, 0) if _is_stored(number))


def _is_stored(number: int | Decimal) -> bool:
    """Whether DynamoDB can store a number: twice a large number of an example may be out of range."""
    try:
        number_text(number)
    except HandlerError:
        return False
    return True


def drawn(random: Random, shapes: Sequence[Shape], count: int) -> list[Write]:
    """A random history of ``count`` writes."""
    history = []
    for _ in range(count):
        shape = random.choice(shapes)
        what, fields = random.choice(WHAT), random.choice(shape.fields)
        item = random.choice(shape.items) if what == "put" else None
        history.append(Write(shape.key, fields, item, what == "expire"))
    return history


def changes_of(
    app: App, history: Iterable[Write], shards: int = 1, source: str = STREAM, start: float = START
) -> list[list[Change]]:
    """The changes of a history, by shard; with ``source="kinesis"`` those of one Kinesis stream for all tables.

    ``start`` is the time of the first write, epoch seconds.
    """
    history, clock = list(history), Clock(start)
    tables = {write.key.table.name: write.key.table for write in history}
    twins = {
        name: TableTwin(table, clock=clock, shards=shards, key_types=key_types(history, name))
        for name, table in tables.items()
    }
    for number, write in enumerate(history, 1):
        carry_out(twins[write.key.table.name], write)
        clock.advance(0 if number % WRITES_AT_ONCE else HOURS_BETWEEN * 60 * 60)
    origins = Origins(app.source_tables, Settings())
    records = [shard.records for twin in twins.values() for shard in twin.stream.shards]
    if source == KINESIS:
        kinesis = KinesisTwin()
        records = [[kinesis.append(record) for record in some] for some in records]
    return [[origins.change(record) for record in some] for some in records]


def examples_of(strategy: "SearchStrategy[Mapping[str, Any]]", count: int) -> list[Mapping[str, Any]]:
    """``count`` items of a strategy, the same at each call. Needs the extra ``testing``."""
    from hypothesis import HealthCheck, Phase, given, seed, settings

    found: list[Mapping[str, Any]] = []

    @seed(0)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(item: Mapping[str, Any]) -> None:
        found.append(item)

    collect()
    return found[:count]
