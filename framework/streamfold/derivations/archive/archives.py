"""Archives: removed and expired items as compressed JSON Lines by date, and the reader that drops duplicates.

A file holds the items that one batch removed on one day. Its name is a digest of their versions, so the same batch
writes the same file when it is redelivered. Another batch of the same records writes another file with equal lines: the
reader remembers a day's versions, and yields each item once.
"""

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from hashlib import blake2b, sha256
from typing import Any, NamedTuple

from streamfold.commit.outcome import Outcome
from streamfold.derivations.archive.locations import FOLDER, NOT_ARCHIVED, ArchiveLocation, open_location
from streamfold.derivations.derivation import Finishing
from streamfold.derivations.expected import Expected, History, Values
from streamfold.errors import EngineError, RecordError, SettingsError
from streamfold.records.change import Change, item_name
from streamfold.records.values import CANONICAL, decode, encode
from streamfold.routes.route import Route
from streamfold.writes.guarded import RowKey

SUFFIX = ".jsonl.gz"
DATE = "date="
"""The begin of a day's folder, in the form that query engines read as a partition."""
COMPRESSION = 6
MARK_BYTES = 16
"""Size of the digest by which a reader remembers a version: some 100 bytes of memory for each item of a day."""


class Archived(NamedTuple):
    """A removed item, and the line that an archive keeps of it."""

    route: Route
    changes: tuple[Change, ...]
    line: str

    def __str__(self) -> str:
        return f"archive {self.changes[0].name}"


class ArchivedItem(NamedTuple):
    """An item at the time of its removal."""

    table: str  # the logical name
    item: dict[str, Any]  # in plain values
    version: str  # of the removal: the version of the change; through Kinesis, with a digest after it
    at: datetime  # the time of the removal, UTC
    expired: bool  # removed by time to live


class Archives:
    """Writes the removed items of a batch, day by day. A file that cannot be written fails its own records only.

    If the run must not write declared buckets (``Runtime.outside``) and no setting names another location, items are
    counted and not written.
    """

    def __init__(self, finishing: Finishing) -> None:
        self.runtime = finishing.runtime
        self.finishing = finishing
        self.outcome = Outcome()

    def write(self, archived: Iterable[Archived]) -> Outcome:
        """Writes these items."""
        days: dict[tuple[str, date], list[Archived]] = defaultdict(list)
        for each in archived:
            days[each.route.name, each.changes[0].at.date()].append(each)
        for (name, day), items in days.items():
            try:
                location = self._location(items[0].route)
                if location is None:
                    self.outcome.count(NOT_ARCHIVED, name, len(items))
                    continue
                self.runtime.begin()
                location.write(f"{name}/{DATE}{day.isoformat()}/{_digest(items)}{SUFFIX}", _content(items))
                self.outcome.tally(name).written += len(items)
            except (EngineError, SettingsError) as error:
                changes = (each.changes[0] for each in items)
                self.outcome.failed += self.finishing.failures(changes, items[0].route, error)
        return self.outcome

    def _location(self, route: Route) -> ArchiveLocation | None:
        """The location of a route's items, opened once; None if the items are not written."""
        text, declared = self.runtime.settings.archive, str(route.options)
        if text is None and (self.runtime.outside or declared.startswith(FOLDER)):
            text = declared
        if text is None or self.runtime.outside is False:
            return None
        if text not in self.runtime.opened:
            self.runtime.opened[text] = open_location(text)
        location: ArchiveLocation = self.runtime.opened[text]
        return location


def archived_line(change: Change) -> str:
    """One line of an archive. Raises ``ImageError`` if the record lacks the old image."""
    line = {
        "table": change.table.name,
        "key": item_name(change.item),
        "version": change.identity_text,
        "at": int(change.at.timestamp()),
        "expired": change.expired,
        "item": change.old.raw,
    }
    return CANONICAL.encode(line)


def _digest(items: Sequence[Archived]) -> str:
    """A name for these versions, the same in any order."""
    changes = [each.changes[0] for each in items]
    marks = sorted({_mark(change.table.name, item_name(change.item), change.identity_text) for change in changes})
    return sha256(b"".join(marks)).hexdigest()[:32]


def _mark(table: str, key: str, version: str) -> bytes:
    return blake2b(f"{table}\n{version}\n{key}".encode(errors="replace"), digest_size=MARK_BYTES).digest()


def _content(items: Sequence[Archived]) -> bytes:
    """Compressed lines, the same bytes for the same items: a repeated write must not change the file."""
    lines = sorted({each.line for each in items})
    text = "".join(f"{line}\n" for line in lines)
    return gzip.compress(text.encode(), COMPRESSION, mtime=0)


def read_archive(
    place: ArchiveLocation | str, handler: str, first: date | None = None, last: date | None = None
) -> Iterator[ArchivedItem]:
    """The items that an ``archive`` handler has kept, each once, day by day, from the first day to the last.

    ``place``: a location, as ``to=`` or the setting has it. One day's versions are remembered at a time. Raises
    ``RecordError`` for a damaged content, ``EngineUnavailable`` if the location cannot be read.
    """
    opened = open_location(place) if isinstance(place, str) else place
    minimum, maximum = _day_of(first), _day_of(last)
    for folder in opened.folders(f"{handler}/"):
        day = folder.removeprefix(DATE)
        if folder.startswith(DATE) and (minimum is None or minimum <= day) and (maximum is None or day <= maximum):
            yield from _day(opened, f"{handler}/{folder}/")


def _day_of(bound: date | None) -> str | None:
    """A day as the folders name it; a time, which is a date too, counts as its whole day."""
    if isinstance(bound, datetime):
        bound = (bound if bound.tzinfo is None else bound.astimezone(UTC)).date()
    return None if bound is None else str(bound)


def _day(location: ArchiveLocation, folder: str) -> Iterator[ArchivedItem]:
    seen: set[bytes] = set()
    for name in location.names(folder):
        if not name.endswith(SUFFIX):
            continue
        for line in _lines(location, name):
            mark, item = _item(name, line)
            if mark not in seen:
                seen.add(mark)
                yield item


def _lines(location: ArchiveLocation, name: str) -> Iterator[bytes]:
    try:
        with location.read(name) as packed, gzip.GzipFile(fileobj=packed) as stream:
            yield from stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RecordError(f"{name} in {location} is damaged or cut off ({error}).") from error


def _item(name: str, line: bytes) -> tuple[bytes, ArchivedItem]:
    try:
        found = json.loads(line)
        item = {attribute: decode(value, 1) for attribute, value in found["item"].items()}
        at = datetime.fromtimestamp(found["at"], UTC)
        mark = _mark(found["table"], found["key"], found["version"])
        return mark, ArchivedItem(found["table"], item, found["version"], at, found["expired"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RecordError(f"A line of {name} is no archived item ({type(error).__name__}: {error}).") from error


def expected(route: Route, history: History) -> Expected:
    """The removed items."""
    found = Expected()
    for change, _ in history.changes_of(route):
        if change.event == "REMOVE":
            item = decode({"M": change.old.raw})
            kept = ArchivedItem(change.table.name, item, change.identity_text, change.at, change.expired)
            found.outside[_kept_key(route.name, kept)] = _kept(kept)
    return found


def found_outside(route: Route, place: Any) -> dict[RowKey, Values]:
    """The items that an archive's reader yields; an item that it yields twice has two keys."""
    found: dict[RowKey, Values] = {}
    for kept in read_archive(place, route.name):
        key = _kept_key(route.name, kept)
        found[key if key not in found else (*key[:2], f"{key[2]!r} again")] = _kept(kept)
    return found


def _kept_key(handler: str, kept: ArchivedItem) -> RowKey:
    # The version keeps several removals of one item apart.
    return f"archive {handler}", f"{kept.table} {CANONICAL.encode(encode(kept.item))}", kept.version


def _kept(kept: ArchivedItem) -> Values:
    return {"item": kept.item, "at": kept.at, "expired": kept.expired}
