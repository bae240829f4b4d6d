"""A sample of a recording's or an export's items, of bounded size, and the names of its tables' key attributes."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice, permutations
from typing import Any, NamedTuple

from streamfold.errors import RecordError, SettingsError
from streamfold.keys.field import time_spec
from streamfold.keys.table import DERIVED, MAIN, RESERVED_PREFIX, Table, is_name
from streamfold.lifecycle.exports import FILES, SUMMARY, Export, open_export
from streamfold.records.envelope import is_kinesis
from streamfold.records.images import derived_names, without
from streamfold.records.kinesis import unwrapped
from streamfold.records.values import decode
from streamfold.replay.files import BadLine, RecordedFiles, check_files
from streamfold.starter.chart import EPOCHS
from streamfold.starter.shapes import TYPE_NAMES, SampledItem

RECORDS_READ_MAX = 200_000
"""Records of a recording that are read: a minute's work, and every shape of a table is among them."""
ITEMS_MAX = 20_000
"""Items of the sample: hundreds of each shape, and some seconds of work."""
SAMPLE_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of the sample as JSON; as Python objects they take about eight times as much."""
BEGIN_RECORDS = 300
"""Records at the begin of the file that the new application's recording has, so that it has what belongs together."""
FILES_MAX = 20
"""Data files of an export that are read, spread over all: an export has one for some 10 MB."""
KEY_SAMPLE = 1_000
"""Items of a full export that show which attributes are its keys."""
TABLES_MAX = 20
"""Tables of one recording."""
KEY_TYPES = ("S", "N", "B")
PARTITION_NAMES = re.compile(r"\W*_*(pk|p|(partition|hash)[\W_]*key|partition|hash)_*\W*", re.IGNORECASE)
SORT_NAMES = re.compile(r"\W*_*(sk|s|(sort|range)[\W_]*key|sort|range)_*\W*", re.IGNORECASE)
IDENTIFIER_NAMES = re.compile(r".*id|.*key|.*_no|.*number|name", re.IGNORECASE)
REGION = "us-east-1"
EXPORT_TIME = 1_772_355_600
"""The time of records that are made of an export's items: 2026-03-01T09:00:00Z."""
WITHOUT_IMAGES = "records without images"
NO_SAMPLE = "expected a recording of DynamoDB's stream (streamfold record), or an export's manifest-files.json"

KEYS_HINT = "give the names of the table's key attributes, --keys PK,SK."


class Sampled(NamedTuple):
    """A record of the sample."""

    number: int  # in the file
    raw: Mapping[str, Any]  # in the format of a stream
    table: str


@dataclass
class TableSample:
    """What a file has of one table."""

    table: Table
    real_name: str
    items: list[SampledItem]
    notes: list[str] = field(default_factory=list)


@dataclass
class SourceSample:
    """What was read of a file."""

    tables: list[TableSample]
    records: list[Sampled]  # of the sample, in the file's order; the first ``begin`` are consecutive
    begin: int
    read: int  # records or items
    skipped: Mapping[str, int]  # by the reason


class _Thinned:
    """The first records, and every n-th of all, n being doubled whenever there are too many."""

    def __init__(self) -> None:
        self.begin: list[Sampled] = []
        self.kept: list[tuple[Sampled, int]] = []  # with its bytes
        self._bytes = 0
        self._step = 1
        self._seen = 0

    def add(self, record: Sampled, size_bytes: int) -> None:
        if len(self.begin) < BEGIN_RECORDS:
            self.begin.append(record)
        self._seen += 1
        if (self._seen - 1) % self._step:
            return
        self.kept.append((record, size_bytes))
        self._bytes += size_bytes
        while len(self.kept) > 1 and (len(self.kept) > ITEMS_MAX or self._bytes > SAMPLE_BYTES_MAX):
            self.kept = self.kept[::2]
            self._bytes = sum(size for _, size in self.kept)
            self._step *= 2

    def records(self) -> dict[int, Sampled]:
        return {record.number: record for record in (*self.begin, *(each for each, _ in self.kept))}


def read_sample(path: str, keys: Sequence[str] = ()) -> SourceSample:
    """A sample of a recorded file, or of the export of a manifest. ``keys`` are the table's key attributes, if given.

    Raises ``SettingsError`` for a file without items.
    """
    name = path.rpartition("/")[2]
    skipped = Counter[str]()
    notes: list[str] = []
    if name in (FILES, SUMMARY):
        export = open_export(path.removesuffix(name) + FILES, MAIN)
        keys = keys or _key_attributes(path, export, notes)
        records = _exported(path, export, keys, skipped)
    else:
        records = _recorded(path, skipped)
    thinned, read = _Thinned(), 0
    for record, size in records:
        read = record.number
        raw = _without_rows(record.raw)
        if raw is None:
            skipped["derived rows"] += 1
        else:
            thinned.add(record._replace(raw=raw), size)
    both = thinned.records()
    kept = {number: record for number, record in both.items() if _is_sound(record.raw["dynamodb"])}
    if len(kept) < len(both):
        skipped["malformed records"] = len(both) - len(kept)
    if not kept:
        why = "".join(f"; {count} {reason}" for reason, count in skipped.items())
        raise SettingsError(f"{path} has no item ({read} records read{why}): {NO_SAMPLE}.")
    found = list(kept.values())
    begun = sum(record.number in kept for record in thinned.begin)
    tables = _tables(path, found, keys)
    for table in tables:
        table.notes += notes
    return SourceSample(tables, found, begun, read, skipped)


def _is_sound(body: Mapping[str, Any]) -> bool:
    """Whether DynamoDB could have written the keys and images of a record."""
    try:
        images = [body[name] for name in ("Keys", "OldImage", "NewImage") if body.get(name)]
        for image in images:
            decode({"M": image})
        return all(tag in KEY_TYPES for value in body["Keys"].values() for tag in value)
    except (RecordError, AttributeError):
        return False


def _without_rows(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A record without the attributes that streamfold derived; None if it is of a row of its own."""
    body = raw["dynamodb"]
    images = [body[name] for name in ("OldImage", "NewImage") if isinstance(body.get(name), Mapping)]
    if any(name.startswith(RESERVED_PREFIX) and name != DERIVED for image in images for name in image):
        return None
    if not any(DERIVED in image for image in images):
        return raw
    names = derived_names(*images)
    changed = {name: without(body[name], names) for name in ("OldImage", "NewImage") if body.get(name)}
    return {**raw, "dynamodb": {**body, **changed}}


def _recorded(path: str, skipped: Counter[str]) -> Iterator[tuple[Sampled, int]]:
    check_files([path])
    first_bad: BadLine | None = None
    number = 0
    for entry in RecordedFiles([path]):
        if number >= RECORDS_READ_MAX:
            skipped[f"or more records after the first {RECORDS_READ_MAX:,}"] = 1
            break
        if isinstance(entry, BadLine):
            first_bad = first_bad or entry
            skipped["bad lines"] += 1
            continue
        line, raw = entry
        number += 1
        try:
            raw, table = _stream_record(raw, number)
        except (RecordError, KeyError, TypeError, AttributeError):
            skipped["records without keys"] += 1
            continue
        body = raw["dynamodb"]
        if not any(isinstance(body.get(name), Mapping) and body[name] for name in ("NewImage", "OldImage")):
            skipped[WITHOUT_IMAGES] += 1
            continue
        yield Sampled(number, raw, table), line.record_bytes
    if number and skipped[WITHOUT_IMAGES] == number:
        raise SettingsError(
            f"{path} has {number} {WITHOUT_IMAGES}: expected NewImage or OldImage, from which the types of "
            "attributes come. Set the stream's view type to NEW_AND_OLD_IMAGES and record again, or give an export."
        )
    if first_bad is not None and not number:
        raise SettingsError(f"{path} has no record: {first_bad.line}: {first_bad.why}")


def _stream_record(raw: Mapping[str, Any], number: int) -> tuple[Mapping[str, Any], str]:
    """A record in the format of a stream, and the name of its table. Raises for a record without keys."""
    if is_kinesis(raw):
        data = unwrapped(raw)
        return _made(data["eventName"], data["tableName"], data["dynamodb"], number), str(data["tableName"])
    if not raw["dynamodb"]["Keys"]:
        raise KeyError("Keys")
    return raw, str(raw.get("eventSourceARN", "")).partition(":table/")[2].partition("/")[0]


def _made(event: str, table: str, body: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    if not body["Keys"]:
        raise KeyError("Keys")
    images = {name: body[name] for name in ("OldImage", "NewImage") if body.get(name)}
    created = body.get("ApproximateCreationDateTime", EXPORT_TIME)
    seconds = created if created < 10**11 else created / 10 ** (3 if created < 10**14 else 6)  # Kinesis: finer
    return {
        "eventID": f"{number:032x}",
        "eventName": event,
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "awsRegion": REGION,
        "dynamodb": {
            "ApproximateCreationDateTime": seconds,
            "Keys": body["Keys"],
            **images,
            "SequenceNumber": f"{number:021d}",
            "StreamViewType": "NEW_AND_OLD_IMAGES",
        },
        "eventSourceARN": f"arn:aws:dynamodb:{REGION}:123456789012:table/{table}/stream/2026-03-01T00:00:00.000",
    }


def _exported(
    path: str, export: Export, attributes: Sequence[str], skipped: Counter[str]
) -> Iterator[tuple[Sampled, int]]:
    name = str(export.summary.get("tableArn", "")).rpartition("/")[2] or MAIN.name
    numbers = _numbers(export)
    if len(numbers) < len(export.files):
        skipped["data files"] = len(export.files) - len(numbers)
    each = -(-ITEMS_MAX // max(len(numbers), 1))
    count = 0
    for number in numbers:
        for found in islice(export.objects_of(number), each):
            count += 1
            image = found.get("Item") or found.get("NewImage") or found.get("OldImage")
            if not image:
                skipped["items without images"] += 1
                continue
            named = found.get("Keys") or {name: image[name] for name in attributes if name in image}
            if len(named) != len(attributes):
                raise SettingsError(f"An item of {path} lacks a key attribute of {', '.join(attributes)}: {KEYS_HINT}")
            body = {"Keys": named, "NewImage": image}
            yield Sampled(count, _made("INSERT", name, body, count), name), len(json.dumps(image))


def _numbers(export: Export) -> range:
    return range(0, len(export.files), -(-len(export.files) // FILES_MAX) or 1)


def _key_attributes(path: str, export: Export, notes: list[str]) -> list[str]:
    """The key attributes of an export. A full one does not name them, so they are guessed, with a note: every item has
    them, and no two items have the same.
    """
    each = KEY_SAMPLE // max(len(export.files), 1) + 1
    items = [found for number in _numbers(export) for found in islice(export.objects_of(number), each)]
    if not items:
        return []
    if "Keys" in items[0]:
        return list(items[0]["Keys"])
    images = [found["Item"] for found in items]
    tags = {name: {next(iter(image[name])) if name in image else None for image in images} for name in images[0]}
    candidates = [name for name, found in tags.items() if len(found) == 1 and found <= set(KEY_TYPES)]
    partitions = [name for name in candidates if PARTITION_NAMES.fullmatch(name)]
    if partitions:
        return [partitions[0], *[name for name in candidates if SORT_NAMES.fullmatch(name)][:1]]
    for names in _possible_keys(candidates, images):
        if len({json.dumps([image[name] for name in names]) for image in images}) == len(images):
            notes.append(f"the key attributes of the export: {', '.join(names)}? (--keys)")
            return names
    raise SettingsError(f"{path}: no attributes of its items are a key: {KEYS_HINT}")


def _possible_keys(candidates: Sequence[str], images: Sequence[Mapping[str, Any]]) -> Iterator[list[str]]:
    """Attributes that may be a key, the likeliest first: an identifier, with a time or another one; then all others."""
    times = [name for name in candidates if all(_is_time(decode(image[name])) for image in images)]
    others = sorted((name for name in candidates if name not in times), key=lambda name: "N" in images[0][name])
    identifiers = [name for name in others if IDENTIFIER_NAMES.fullmatch(name)]
    yield from ([name] for name in identifiers)
    yield from _couples((*identifiers, *others), (*times, *identifiers))
    yield from ([name] for name in others)
    yield from _couples(others, others)


def _couples(partitions: Sequence[str], sorts: Sequence[str]) -> Iterator[list[str]]:
    return ([one, other] for one in partitions for other in sorts if one != other)


def _tables(path: str, records: Sequence[Sampled], keys: Sequence[str]) -> list[TableSample]:
    by_table: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        by_table.setdefault(record.table, []).append(record.raw["dynamodb"])
    if len(by_table) > TABLES_MAX:
        raise SettingsError(f"{path} has records of over {TABLES_MAX} tables: expected those of one application.")
    found = []
    for name, changes in by_table.items():
        logical = MAIN.name if len(by_table) == 1 or not is_name(name) else name
        names, notes = _ordered_names(path, changes, keys)
        table = Table(logical, names[0], names[1] if len(names) > 1 else None, _time_to_live(changes))
        found.append(TableSample(table, name, [_item(body, names) for body in changes], notes))
    return found


def _ordered_names(path: str, changes: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> tuple[list[str], list[str]]:
    """The key attributes, the partition key first, and the doubt about that."""
    names = list(changes[0]["Keys"])
    if any(set(body["Keys"]) != set(names) for body in changes):
        raise SettingsError(f"{path} has records of one table with other key attributes than {', '.join(names)}.")
    if keys:
        if set(keys) != set(names):
            raise SettingsError(f"--keys {','.join(keys)}: the records have the key attributes {', '.join(names)}.")
        return list(keys), []
    if len(names) == 1:
        return names, []
    values = {name: [decode(body["Keys"][name]) for body in changes] for name in names}
    for first, second in permutations(names):
        if PARTITION_NAMES.fullmatch(first) or SORT_NAMES.fullmatch(second):
            return [first, second], []
    for first, second in permutations(names):
        if all(map(_is_time, values[second])) and not all(map(_is_time, values[first])):
            return [first, second], []
    # An attribute that names the type of an item is a sort key more often than a partition of all items of the type.
    order = sorted(names, key=lambda name: (bool(TYPE_NAMES.fullmatch(name)), len(set(values[name]))))
    return order, [f"which key attribute is the partition key: {order[0]} or {order[1]} (--keys)"]


def _is_time(value: Any) -> bool:
    return time_spec(value) is not None and (isinstance(value, str) or value >= EPOCHS["seconds"][0])


def _item(body: Mapping[str, Any], names: Sequence[str]) -> SampledItem:
    image = body.get("NewImage") or body["OldImage"]
    key = [decode(body["Keys"][name]) for name in names]
    return SampledItem(tuple(key), {name: value for name, value in image.items() if name not in names})


def _time_to_live(changes: Sequence[Mapping[str, Any]]) -> str | None:
    """The attribute of the time to live: seconds since 1970, under a name such as ``ttl`` or ``expires_at``."""
    counts: dict[str, int] = {}
    for body in changes:
        for name, value in (body.get("NewImage") or body["OldImage"]).items():
            if re.search(r"ttl|expir", name, re.IGNORECASE):
                number = decode(value) if "N" in value else None
                is_time = isinstance(number, int | Decimal) and time_spec(number) == "number.seconds"
                counts[name] = counts.get(name, 0) + (1 if is_time else -len(changes))
    return next((name for name, count in counts.items() if count > 0), None)
