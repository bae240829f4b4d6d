"""Exports of a table to S3, as a source of keys: full and incremental, in DynamoDB JSON, from S3 or a folder.

An export has ``manifest-summary.json``, ``manifest-files.json`` with a line for each data file, and data files of JSON
lines, compressed by gzip (Developer Guide, S3DataExport.Output). On DynamoDB only the keys are taken from an export:
the items are read again, as they are now. A local state takes the items too (``load``): each item as the newest of its
exports and records left it.

A full export shows a whole table at its time: items that are older and not in it are gone. An incremental export shows
the items that changed between two times, removed ones too. Derived rows in an export are passed over: the state derives
its own.
"""

import gzip
import json
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import cached_property
from hashlib import md5
from itertools import islice
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any, NamedTuple, cast

from streamfold.engines.protocol import KeptState, ScanCursor, ScanPage, Segment, StoredItem
from streamfold.errors import RecordError, SettingsError, refusal
from streamfold.keys.field import datetime_text
from streamfold.keys.table import Table, is_marker
from streamfold.ledger.contribution import BEFORE_ALL
from streamfold.parking import make_client
from streamfold.records.change import ItemKey, item_key
from streamfold.records.kinesis import MICROSECONDS
from streamfold.records.sources import UNKNOWN, ImageOrder, SourceImage, StoredSource, order_of
from streamfold.replay.files import PIECE_BYTES, bounded_lines, parses_at_once
from streamfold.routes.application import Application
from streamfold.settings.readers import read_path

FILES = "manifest-files.json"
SUMMARY = "manifest-summary.json"
JSON_FORMAT = "DYNAMODB_JSON"
SECONDS_MAX = 10**11
"""A larger number of seconds would be of the year 5138: it is one of milliseconds."""
FULL, INCREMENTAL = "FULL_EXPORT", "INCREMENTAL_EXPORT"
S3 = "s3://"
DATA = "data"
Read = Callable[[str], IO[bytes]]
"""Opens a file of an export by its name below the export's folder."""
MANIFEST_BYTES_MAX = 16 * 1024 * 1024
"""Size of a manifest: some 300 bytes for each data file, and some thousand data files for a large table."""
KEPT_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of an object of S3 that are held in memory; a larger one is written to a temporary file."""


class DataFile(NamedTuple):
    """One data file of an export."""

    name: str  # below the export's folder
    items: int
    checksum: str  # MD5 in base64, as the manifest has it


class ExportLine(NamedTuple):
    """One item of an export."""

    key: ItemKey
    image: StoredItem | None  # at the time of the export; None: removed, or not in the export
    at: int | None = None  # the time of the image, epoch microseconds; None: the export does not say
    old: StoredItem | str | None = UNKNOWN  # the item before, in an incremental export with both images


class Export:
    """An opened export of one table. Raises ``SettingsError`` if it cannot be read."""

    def __init__(self, place: str, table: Table, read: Read, real_name: str | None = None) -> None:
        self.location = place
        self.table = table
        self.read = read
        self.summary = self._summary(real_name)
        self.files = [self._file(line) for line in self._text(FILES).split("\n") if line.strip()]
        self._keys: tuple[int, list[ItemKey]] | None = None  # of the file that was read last

    @property
    def items(self) -> int:
        """The number of items in the export."""
        return sum(file.items for file in self.files)

    @property
    def segments(self) -> int:
        """The number of its data files."""
        return len(self.files)

    @property
    def is_full(self) -> bool:
        """Whether the export has all items of its table, and not only those that changed between two times."""
        return bool(self.summary.get("exportType", FULL) != INCREMENTAL)

    @property
    def end(self) -> int:
        """The time that the export shows, epoch microseconds. Raises ``SettingsError`` for an export without one."""
        return self._time("exportTime" if self.is_full else "exportToTime")

    @property
    def begin(self) -> int:
        """The time from which on it shows changes, epoch microseconds; 0: of a full one. Raises as ``end``."""
        return 0 if self.is_full else self._time("exportFromTime")

    @property
    def billed_bytes(self) -> int:
        """The size of the table, by the export; 0 if the export does not have it."""
        found = self.summary.get("billedSizeBytes", 0)
        return found if type(found) is int else 0

    def sample(self, number: int) -> Iterator[ExportLine]:
        """About so many items, from the begin of each data file: items are in the order of their keys' hashes."""
        each = number // max(len(self.files), 1) + 1
        for file in self.files:
            yield from islice(self._read_file(file), each)

    def name_of(self, number: int) -> str:
        return self.files[number].name

    def scan(self, table: Table, segment: Segment, after: ScanCursor | None, limit: int) -> ScanPage:
        """Some keys of the data file of a segment; the cursor is the number of a line."""
        del table
        first, found = int(after or 0), self._keys_of(segment.number)
        last = min(first + limit, len(found))
        return ScanPage(found[first:last], str(last) if last < len(found) else None)

    def lines(self) -> Iterator[ExportLine]:
        """All items, file by file."""
        for number in range(len(self.files)):
            yield from self.lines_of(number)

    def lines_of(self, number: int) -> Iterator[ExportLine]:
        """The items of a data file. The whole file is checked before its first line is read."""
        return self._read_file(self.files[number])

    def _keys_of(self, number: int) -> list[ItemKey]:
        if self._keys is None or self._keys[0] != number:
            self._keys = number, [line.key for line in self.lines_of(number)]
        return self._keys[1]

    def objects_of(self, number: int) -> Iterator[Mapping[str, Any]]:
        """The objects of a data file as they are: with ``Item``, or with ``Keys`` and images."""
        return (found for _, found in self._objects(self.files[number]))

    def _read_file(self, file: DataFile) -> Iterator[ExportLine]:
        lines = (self._line(file, number, found) for number, found in self._objects(file))
        return (line for line in lines if not is_marker(line.key[1]))

    def _objects(self, file: DataFile) -> Iterator[tuple[int, Mapping[str, Any]]]:
        with self.read(file.name) as packed:
            self._check_sum(file, packed)
            try:
                with gzip.open(packed, "rb") as lines:
                    for number, line in enumerate(bounded_lines(cast("IO[bytes]", lines)), 1):
                        yield number, self._object(file, number, line)
            except (OSError, EOFError, zlib.error) as error:
                raise SettingsError(f"{file.name} of export {self.location} cannot be unpacked ({error}).") from None

    def _check_sum(self, file: DataFile, packed: IO[bytes]) -> None:
        """Raises ``SettingsError`` for a damaged file, before a line of it is read: half a file would look complete."""
        found = md5(usedforsecurity=False)
        for piece in iter(lambda: packed.read(PIECE_BYTES), b""):
            found.update(piece)
        packed.seek(0)
        if file.checksum and b64encode(found.digest()).decode() != file.checksum:
            raise SettingsError(
                f"{file.name} of export {self.location} is damaged: its MD5 is not that of the manifest."
            )

    def _object(self, file: DataFile, number: int, text: bytes | None) -> Mapping[str, Any]:
        try:
            if text is None or not parses_at_once(text):
                raise ValueError("it is longer than any item")
            found: Mapping[str, Any] = json.loads(text.decode())
            if not found.get("Item") and not found.get("Keys"):
                raise KeyError("Item")
            return found
        except (AttributeError, KeyError, ValueError, RecursionError) as error:
            raise self._no_item(file, number, error) from None

    def _line(self, file: DataFile, number: int, found: Mapping[str, Any]) -> ExportLine:
        try:
            image: StoredItem | None = found.get("Item") or found.get("NewImage")
            raw: Mapping[str, Any] = found.get("Keys") or found["Item"]
            keys = {name: raw[name] for name in self.table.attributes if name in raw}
            key = item_key(keys, self.table)
            if self.is_full:
                return ExportLine(key, image, self._full_at)
            before = found.get("OldImage") if self.summary.get("outputView") != "NEW_IMAGE" else UNKNOWN
            return ExportLine(key, image, self._written_at(found), before)
        except (AttributeError, TypeError, ValueError, RecordError) as error:
            raise self._no_item(file, number, error) from None

    @cached_property
    def _full_at(self) -> int | None:
        return self._time("exportTime") if "exportTime" in self.summary else None

    def _written_at(self, found: Mapping[str, Any]) -> int | None:
        """The time of a line of an incremental export, a number or a text, also as an attribute value."""
        written = (found.get("Metadata") or {}).get("WriteTimestampMicros")
        if isinstance(written, Mapping):
            written = written.get("N")
        return None if written is None else int(written)

    def _time(self, name: str) -> int:
        given = self.summary.get(name)
        try:
            return _microseconds(given)
        except (ArithmeticError, TypeError, ValueError):
            what = f"has no {name}" if given is None else f"has {name}={given!r}"
            raise SettingsError(
                f"{SUMMARY} of export {self.location} {what}: expected the time of the export, such as "
                "2026-03-01T00:00:00Z. Without it nobody knows which of two states of an item is the newer one."
            ) from None

    def _no_item(self, file: DataFile, number: int, error: Exception) -> SettingsError:
        return SettingsError(
            f"Line {number} of {file.name} in export {self.location} is no item of table {self.table.name!r}: {error}"
        )

    def _summary(self, real_name: str | None) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = json.loads(self._text(SUMMARY))
            found_format = found.get("outputFormat", JSON_FORMAT)
            name = str(found.get("tableArn", "")).rpartition("/")[2]
        except (AttributeError, ValueError, RecursionError) as error:
            raise SettingsError(f"{SUMMARY} of export {self.location} is no JSON object ({error}).") from None
        if found_format != JSON_FORMAT:
            raise SettingsError(f"Export {self.location} is in the format {found_format}: expected {JSON_FORMAT}.")
        if real_name is not None and name and name != real_name:
            raise SettingsError(f"Export {self.location} is of table {name!r}: expected {real_name!r}.")
        return found

    def _file(self, line: str) -> DataFile:
        try:
            found = json.loads(line)
            name = f"{DATA}/{found['dataFileS3Key'].rpartition('/')[2]}"
            return DataFile(name, int(found.get("itemCount", 0)), found.get("md5Checksum", ""))
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            raise SettingsError(
                f"A line of {FILES} of export {self.location} names no data file: "
                f"expected the file {FILES} of an export."
            ) from None

    def _text(self, name: str) -> str:
        with self.read(name) as stream:
            content = stream.read(MANIFEST_BYTES_MAX + 1)
        if len(content) > MANIFEST_BYTES_MAX:
            raise SettingsError(
                f"{name} of export {self.location} has over {MANIFEST_BYTES_MAX:,} bytes: is it that file?"
            )
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise SettingsError(f"{name} of export {self.location} cannot be read: it is no UTF-8 text.") from None


def _microseconds(given: Any) -> int:
    """A time in epoch microseconds: from a text with its zone, or from seconds since 1970, as number or text."""
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise TypeError
    if isinstance(given, str) and "T" in given:
        moment = datetime.fromisoformat(given)
        if moment.tzinfo is None:
            raise ValueError(given)
        return round(moment.timestamp() * MICROSECONDS)
    seconds = Decimal(str(given))
    if not 0 < seconds < SECONDS_MAX:
        raise ValueError(given)
    return int(seconds * MICROSECONDS)


def open_export(place: str, table: Table, real_name: str | None = None) -> Export:
    """Opens an export by its ``manifest-files.json``, in a folder or in S3.

    Raises ``SettingsError`` for another file, and if it cannot be read.
    """
    folder, _, name = place.rpartition("/")
    if name != FILES:
        raise SettingsError(f"--export {place!r}: expected the {FILES} of an export, in a folder or s3://BUCKET/...")
    read = _from_bucket(folder) if place.startswith(S3) else _from_folder(Path(folder or "."))
    return Export(place, table, read, real_name)


def _from_folder(folder: Path) -> Read:
    def read(name: str) -> IO[bytes]:
        file = read_path("The file of the export", str(folder / name))
        try:
            return file.open("rb")
        except OSError as error:
            raise SettingsError(f"{file} of the export cannot be read: {error.strerror}.") from None

    return read


def _from_bucket(folder: str) -> Read:
    from botocore.exceptions import BotoCoreError, ClientError

    bucket, _, prefix = folder.removeprefix(S3).partition("/")
    client = make_client("s3")

    def read(name: str) -> IO[bytes]:
        kept = SpooledTemporaryFile(KEPT_BYTES_MAX)  # noqa: SIM115 - the reader closes it
        try:
            body = client.get_object(Bucket=bucket, Key=f"{prefix}/{name}")["Body"]
            for piece in iter(lambda: body.read(PIECE_BYTES), b""):
                kept.write(piece)
            kept.seek(0)
            return cast("IO[bytes]", kept)
        except (BotoCoreError, ClientError) as error:
            kept.close()
            why = refusal(error) if isinstance(error, ClientError) else error
            raise SettingsError(f"{name} of export {folder} cannot be read ({why}).") from None

    return read


PAGE_ITEMS = 10_000
"""Items of an export that are compared with the stored ones at a time."""


@dataclass(slots=True)
class LoadedExport:
    """What an export changed in a state."""

    newer: int = 0  # items that the export changed, or added
    older: int = 0  # items whose stored state is newer
    removed: int = 0  # items that the export shows as removed, or does not have
    unclear: list[ItemKey] = field(default_factory=list)
    gap: tuple[int, int] | None = None  # a time that no export of the state covers, epoch microseconds


def load(application: Application, state: KeptState, export: Export) -> LoadedExport:
    """Loads an export into a state, whole or not at all.

    Raises ``SettingsError`` for an export without times, and if it and the stored items cannot be put in order.
    """
    begin, end = export.begin, export.end
    covered = state.covered_until(export.table)
    loaded, of_its_second = LoadedExport(), set[ItemKey]()
    if begin > covered:
        loaded.gap = covered, begin
    with state.batch():
        lines = (line for line in export.lines() if not _is_derived(application, line.key))
        while page := list(islice(lines, PAGE_ITEMS)):
            images = [_image(export, line) for line in page]
            of_its_second |= _put(state, images, loaded)
        if export.is_full:
            absent = _absent(state, export.table, end, of_its_second)
            while gone := list(islice(absent, PAGE_ITEMS)):
                _put(state, gone, loaded)
        if loaded.unclear:
            raise _refused(export, loaded.unclear)
        # Exports that follow one another show whole tables: an item that none of them has is gone.
        state.note_loaded(export.table, end if begin <= covered else 0)
        state.advance_clock(end // MICROSECONDS)
    return loaded


def _put(state: KeptState, images: Sequence[SourceImage], loaded: LoadedExport) -> set[ItemKey]:
    """Puts the images that are newer, and returns the items of the others."""
    kept, others = list[SourceImage](), set[ItemKey]()
    stored = state.stored_sources(image.item for image in images)
    for image in images:
        order = order_of(image, stored.get(image.item))
        loaded.newer += order is ImageOrder.NEWER and image.raw is not None
        loaded.removed += order is ImageOrder.NEWER and image.raw is None
        loaded.older += order is ImageOrder.OLDER
        if order is ImageOrder.UNCLEAR:
            loaded.unclear.append(image.item)
        elif order is ImageOrder.OLDER:
            others.add(image.item)
        else:
            kept.append(image)
    state.put_sources(kept)
    return others


def _image(export: Export, line: ExportLine) -> SourceImage:
    if line.at is None:
        raise SettingsError(
            f"An item of export {export.location} has no WriteTimestampMicros: expected the time of its last write, as "
            "incremental exports have it. Without it nobody knows whether the stored item is newer."
        )
    return SourceImage(line.key, line.image, BEFORE_ALL, line.at, line.old, exported=True)


def _absent(state: KeptState, table: Table, at: int, newer: set[ItemKey]) -> Iterator[SourceImage]:
    """The removals of the stored items that a full export does not have. They are read before any is removed."""
    stored = [item_of(table, item) for item in state.older_sources(table, _end_of_second(at))]
    sources = state.stored_sources(stored)
    for item in stored:
        if item not in newer and not _is_of(sources.get(item), at):
            yield SourceImage(item, None, BEFORE_ALL, at, exported=True)


def _is_of(source: StoredSource | None, at: int) -> bool:
    return source is not None and source.exported and source.at is not None and source.at >= at


def item_of(table: Table, item: StoredItem) -> ItemKey:
    return item_key({name: item[name] for name in table.attributes if name in item}, table)


def _end_of_second(at: int) -> int:
    return at // MICROSECONDS * MICROSECONDS + MICROSECONDS - 1


def moment_text(at: int) -> str:
    """A time in epoch microseconds for a person, in whole seconds."""
    return datetime_text(datetime.fromtimestamp(at // MICROSECONDS, UTC), 0)


def _is_derived(application: Application, item: ItemKey) -> bool:
    return is_marker(item[1]) or application.derived(item)


def _refused(export: Export, unclear: list[ItemKey]) -> SettingsError:
    when = moment_text(export.end)
    return SettingsError(
        f"Export {export.location} and the state have {len(unclear)} items of the same second, around {when}, that "
        "differ: which of them is newer is not known. Nothing was loaded. Load an export of another time, or make the "
        "state anew of a full export and of later ones."
    )
