"""Source items as a local store keeps them, and which of two states of an item is the newer one.

A record has a version, an item of an export has none: it has a time. Two records compare by version. A record and an
export, or two exports, compare by time: in whole seconds, which a stream's record has, or in microseconds through
Kinesis. Within one second the images decide, as far as they can:

| the record, beside an item of an export of its second | the record is |
| --- | --- |
| its new image equals the item | known: the export has it |
| its old image equals the item | newer |
| neither | unclear, and refused |

A time is no version: as one, it would sort before later records of a stream with an older label, and lose them. So an
item of an export keeps the version of the newest record that the store has of it, beside the time of the export.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

from streamfold.keys.table import is_marker
from streamfold.records.change import Change, ItemKey, times_of
from streamfold.records.images import without_derived
from streamfold.records.kinesis import LABEL, MICROSECONDS, images_digest
from streamfold.records.values import RawImage

UNKNOWN = "?"
"""The digest of an old image that a record does not carry."""


class ImageOrder(Enum):
    """A state of an item, compared with the stored one."""

    NEWER, KNOWN, OLDER, UNCLEAR = "newer", "known", "older", "unclear"


class SourceImage(NamedTuple):
    """A state of a source item, as a record or an export has it."""

    item: ItemKey
    raw: RawImage | None  # None: removed
    version: str
    at: int | None = None  # epoch microseconds; None: not known
    old: RawImage | str | None = UNKNOWN  # the image before, None if there was none
    exported: bool = False


class StoredSource(NamedTuple):
    """The stored state of a source item."""

    version: str
    raw: RawImage | None
    at: int | None = None
    before: str = UNKNOWN  # the digest of the image before the newest record
    exported: bool = False  # an export was the last that changed it


def digest_of(raw: RawImage | str | None) -> str:
    """The digest of an image without derived attributes; "" for one that is absent."""
    if isinstance(raw, str):
        return raw
    return images_digest([without_derived(raw)]) if raw else ""


def source_of(change: Change) -> SourceImage:
    """The state of an item behind a change. Raises ``ImageError`` for a record without the new image."""
    old = (change.old.raw or None) if change.has_old else UNKNOWN
    return SourceImage(change.item, change.new.raw or None, change.version_text, microseconds_of(change), old)


def microseconds_of(change: Change) -> int | None:
    """The time of a change, epoch microseconds; None if it is not known. A record of a stream has whole seconds."""
    if _unit(change.version_text) == 1:
        return int(change.version_text.rpartition("/")[2])
    seconds = next(times_of((change,)), None)
    return None if seconds is None else int(seconds * MICROSECONDS)


def newest_sources(changes: Iterable[Change]) -> Iterator[SourceImage]:
    """The newest state of each item. Records without a new image are skipped, and those of a table's marker."""
    newest: dict[ItemKey, Change] = {}
    for change in changes:
        known = newest.get(change.item)
        if (
            change.has_new
            and not is_marker(change.item[1])
            and (known is None or known.version_text < change.version_text)
        ):
            newest[change.item] = change
    return (source_of(change) for item, change in newest.items() if not is_marker(item[1]))


def order_of(image: SourceImage, stored: StoredSource | None) -> ImageOrder:
    """How a state of an item compares with the stored one."""
    if stored is None:
        return ImageOrder.NEWER
    if not image.exported and (not stored.exported or image.version <= stored.version):
        return ImageOrder.NEWER if image.version > stored.version else ImageOrder.OLDER
    return _by_time(image, stored) or _by_images(image, stored)


def _by_time(image: SourceImage, stored: StoredSource) -> ImageOrder | None:
    """The order by time; None if both are of one second, or a time is not known."""
    if image.at is None or stored.at is None:
        return None
    unit = max(_unit(image.version, exported=image.exported), _unit(stored.version, exported=stored.exported))
    mine, theirs = image.at // unit, stored.at // unit
    return None if mine == theirs else ImageOrder.NEWER if mine > theirs else ImageOrder.OLDER


def _by_images(image: SourceImage, stored: StoredSource) -> ImageOrder:
    mine, theirs = digest_of(image.raw), digest_of(stored.raw)
    if mine == theirs:
        return ImageOrder.KNOWN
    if digest_of(image.old) == theirs:
        return ImageOrder.NEWER
    return ImageOrder.OLDER if stored.before == mine and not stored.exported else ImageOrder.UNCLEAR


def _unit(version: str, *, exported: bool = False) -> int:
    """The microseconds in which a time is known: a stream's record has whole seconds."""
    return 1 if exported or f"/{LABEL}/" in version else MICROSECONDS


def kept(image: SourceImage, stored: StoredSource | None) -> StoredSource | None:
    """The state to store after another state of the item has come; None: the stored state remains."""
    order = order_of(image, stored)
    version = max(image.version, stored.version) if stored is not None else image.version
    if order is ImageOrder.NEWER:
        before = UNKNOWN if image.exported else digest_of(image.old)
        return StoredSource(version, image.raw, image.at, before, image.exported)
    if order is ImageOrder.KNOWN and stored is not None:
        # The later time holds: what is between the two is in both of them.
        return stored._replace(version=version, at=_later(image.at, stored.at), exported=True)
    return None


def _later(one: int | None, other: int | None) -> int | None:
    return max((each for each in (one, other) if each is not None), default=None)


def split(changes: Sequence[Change], stored: StoredSource) -> tuple[list[Change], list[Change], list[Change]]:
    """The changes of one item that are newer than an export, that it has already, and that are unclear.

    The changes of a stream follow one another: those before a known one are known too, and those behind a newer one
    are newer.
    """
    ordered = sorted(changes, key=lambda change: change.version_text)
    orders = [_order_of_change(change, stored) for change in ordered]
    known = max((n + 1 for n, order in enumerate(orders) if order in (ImageOrder.KNOWN, ImageOrder.OLDER)), default=0)
    first = next((n for n, order in enumerate(orders) if n >= known and order is ImageOrder.NEWER), len(ordered))
    if first < len(ordered) and _follows(ordered[first], stored):
        known = first
    return ordered[first:], ordered[:known], ordered[known:first]


def _order_of_change(change: Change, stored: StoredSource) -> ImageOrder:
    if change.has_new:
        return order_of(source_of(change), stored)
    if change.version_text <= stored.version:
        return ImageOrder.OLDER
    unknown = SourceImage(change.item, None, change.version_text, microseconds_of(change))
    return _by_time(unknown, stored) or ImageOrder.UNCLEAR


def _follows(change: Change, stored: StoredSource) -> bool:
    return change.has_old and digest_of(change.old.raw or None) == digest_of(stored.raw)
