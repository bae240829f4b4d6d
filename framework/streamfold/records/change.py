"""One change of one item, out of a raw stream record: name and keys, lazily decoded images, version, time."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from copy import copy
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, NoReturn

from streamfold.errors import ImageError, RecordError, redacted, shown
from streamfold.keys.key import Key, KeyValues
from streamfold.keys.key_part import KeyValue
from streamfold.keys.table import CONTRIBUTORS, Table
from streamfold.records.images import HIDDEN, Image, ReadOnlyMap, derived_names, without, without_derived
from streamfold.records.values import AttributeValue, RawImage, decode, decode_number, number_text, same
from streamfold.settings.limits import SECONDS_A_DAY

PLAIN_SECONDS_MAX = 253_402_300_800
"""The end of the year 9999: what is later is no date."""
SEQUENCE_DIGITS_MAX = 40
"""Length of a sequence number (DynamoDB Streams API, StreamRecord: 21 to 40 digits)."""
LOCALSTACK_DIGITS = 56
"""Length of LocalStack's sequence numbers: those of the Kinesis records behind its DynamoDB streams."""
SEQUENCE = rf"[0-9]{{1,{SEQUENCE_DIGITS_MAX}}}|[0-9]{{{LOCALSTACK_DIGITS}}}"
LONGER = ":"
"""Begins a number of more than 40 digits in a version: it sorts after every digit, so after every shorter number."""
BY_OURSELVES = "+"
"""Begins the suffix of a version, for a change that a cascade or derived attributes made to a source item in a store
without a stream. Such a version sorts after the version of the change that caused it, and before every later one.
"""
UNLABELLED = "0000-00-00T00:00:00.000"
"""The stream label of records without a stream ARN: it sorts before every real label, so a real stream always wins."""

Event = Literal["INSERT", "MODIFY", "REMOVE"]
EVENTS: tuple[Event, ...] = ("INSERT", "MODIFY", "REMOVE")
TIME_TO_LIVE = {"type": "Service", "principalId": "dynamodb.amazonaws.com"}
"""The identity of a deletion by time to live (Developer Guide, time-to-live-ttl-streams)."""
SEQUENCE_LENGTHS = frozenset((*range(1, SEQUENCE_DIGITS_MAX + 1), LOCALSTACK_DIGITS))
EXPIRED_SECONDS_MAX = 5 * 365 * SECONDS_A_DAY
"""Time to live removes no item that expired longer ago (Developer Guide, howitworks-ttl)."""
HAS_OLD = ("NEW_AND_OLD_IMAGES", "OLD_IMAGE")
HAS_NEW = ("NEW_AND_OLD_IMAGES", "NEW_IMAGE")
ABSENT = Image({})
TIME_TEXT = re.compile(r"\d{4}-\d\d-\d\dT")
"""Begins a time as the AWS CLI prints it, ``2026-03-01T11:00:00+01:00``."""

ItemKey = tuple[str, KeyValue, KeyValue | None]
"""An item anywhere: logical table, partition key, sort key."""

NAME_BYTES_MAX = 2000
"""A name becomes part of a partition key, which takes 2,048 bytes (Developer Guide, ServiceQuotas)."""
PLAIN_WORD = r"[\w@%+=:,./-][\w@%+=:,./#-]*"
"""A word that a shell needs no quotes for (POSIX, Shell Command Language, 2.2): ``#`` begins a comment only in front.
"""


def sequence_text(sequence: str) -> str:
    """A sequence number as text whose order is the order of the numbers: padded to 40 digits.

    LocalStack's longer numbers are ``:`` and their 56 digits. Padding all to 56 would change every version, and make
    every state item larger.
    """
    if len(sequence) <= SEQUENCE_DIGITS_MAX or len(sequence := sequence.lstrip("0")) <= SEQUENCE_DIGITS_MAX:
        return sequence.zfill(SEQUENCE_DIGITS_MAX)
    return LONGER + sequence.zfill(LOCALSTACK_DIGITS)


class Version(NamedTuple):
    """A text that sorts in the order of the changes of one item: ``epoch/stream label/sequence number``.

    The number is padded to 40 digits; ``sequence_text`` writes longer ones. Sequence numbers differ in length, exceed
    64 bits and restart with a new stream, so neither their text nor the number alone can be compared. For Kinesis the
    label is ``kinesis``, and the number is the time of the change in microseconds.
    """

    text: str

    @classmethod
    def of(cls, epoch: int, label: str, sequence: int | str) -> "Version":
        return cls(f"{epoch:02d}/{label}/{sequence_text(str(sequence))}")

    @property
    def epoch(self) -> int:
        return int(self.text[:2])

    @property
    def label(self) -> str:
        return self._bare[3:].rpartition("/")[0]

    @property
    def sequence(self) -> int:
        return int(self._bare.rpartition("/")[2].removeprefix(LONGER))

    @property
    def _bare(self) -> str:
        return self.text.partition(BY_OURSELVES)[0]

    def __str__(self) -> str:
        return self.text


class Origin(NamedTuple):
    """Where records come from: their table, and the beginning of their versions."""

    table: Table
    version_prefix: str


class Change:
    """One change of one item.

    ``event`` is INSERT, MODIFY or REMOVE. ``keys`` holds the decoded key attributes. ``old`` and ``new`` are read-only
    images, empty if there is none. ``expired`` is true for a deletion by time to live, and for a deletion of an item
    whose time to live had passed. ``at`` is the time, aware and in whole seconds: it does not order changes.
    ``changed`` names the attributes that differ. ``version`` orders the changes of an item.
    """

    __slots__ = (
        "_at",
        "_new",
        "_old",
        "event",
        "expired",
        "item",
        "record",
        "sequence",
        "table",
        "version_text",
        "view",
    )
    in_order: ClassVar[bool] = True
    """Whether the source delivers the changes of an item in order."""

    if not TYPE_CHECKING:  # for type checkers it has no items, and they say so

        def __getitem__(self, name: str) -> NoReturn:
            raise TypeError(
                f"A change has two images and no attribute {name!r} of its own: read change.new[{name!r}] as it is "
                f"now, or change.old[{name!r}] as it was before."
            )

    def __init__(self, record: Mapping[str, Any], origin: Origin) -> None:
        try:
            body = record["dynamodb"]
            keys: RawImage = body["Keys"]
            event: Event = record["eventName"]
            sequence: str = body["SequenceNumber"]
            digits = sequence.isdigit() and sequence.isascii() and len(sequence) in SEQUENCE_LENGTHS
        except (AttributeError, KeyError, TypeError):
            raise RecordError(missing_fields(record)) from None
        if event not in EVENTS or not digits:
            raise RecordError(missing_fields(record))
        old, new = body.get("OldImage"), body.get("NewImage")
        if (old and type(old) is not dict and not hasattr(old, "keys")) or (
            new and type(new) is not dict and not hasattr(new, "keys")
        ):
            raise RecordError(broken_image(sequence))
        if old if event == "INSERT" else event == "REMOVE" and new:
            raise RecordError(contradicting(event, sequence))
        self.event = event
        self.record: Mapping[str, Any] = record
        self.sequence: str = sequence
        table = origin.table
        self.table: Table = table
        self.item: ItemKey = item_key(keys, table)
        for name, value in keys.items():
            if (new and new.get(name) != value) or (old and old.get(name) != value):
                check_images((old, new), self.item, table, sequence)
        self.version_text: str = origin.version_prefix + sequence_text(sequence)
        self.view: str | None = body.get("StreamViewType")
        self._old: RawImage | Image | None = old or None
        self._new: RawImage | Image | None = new or None
        self._at: Any = body.get("ApproximateCreationDateTime")
        self.expired: bool = event == "REMOVE" and (
            is_time_to_live(record.get("userIdentity")) or has_expired(self.table, self._old, lambda: self.at)
        )

    @property
    def version(self) -> Version:
        return Version(self.version_text)

    @property
    def identity_text(self) -> str:
        """Identifies the change among all changes of its item. Each delivery of the change has the same identity."""
        return self.version_text

    def identity_among(self, visible: Callable[[str], bool]) -> str:  # noqa: ARG002 - a version reveals none
        """``identity_text`` made of visible attributes only: it reveals nothing of the others."""
        return self.version_text

    @property
    def keys(self) -> dict[str, KeyValue]:
        names = self.table.attributes
        own = {name: value for name, value in zip(names, self.item[1:], strict=False) if value is not None}
        return ReadOnlyMap(own)  # a change of it would be lost: the next access makes another

    @property
    def has_old(self) -> bool:
        """Whether the old image is known, or known to be absent."""
        return self._old is not None or self.event == "INSERT"

    @property
    def has_new(self) -> bool:
        """Whether the new image is known, or known to be absent."""
        return self._new is not None or self.event == "REMOVE"

    @property
    def old(self) -> Image:
        """The item before the change. Raises ``ImageError`` where the record does not carry it."""
        old = self._old
        if type(old) is Image:  # asking an abstract class whether a dict is one of its instances takes longer
            return old
        if old is None and not self.has_old:
            raise ImageError(self._image_message("old", HAS_OLD))
        self._old = image = image_of(old)
        return image

    @property
    def new(self) -> Image:
        """The item after the change. Raises ``ImageError`` where the record does not carry it."""
        new = self._new
        if type(new) is Image:
            return new
        if new is None and not self.has_new:
            raise ImageError(self._image_message("new", HAS_NEW))
        self._new = image = image_of(new)
        return image

    @property
    def has_at(self) -> bool:
        """Whether the record has a time. Samples of AWS, and records that a test writes, may have none."""
        return self._at is not None

    @property
    def at(self) -> datetime:
        """The time of the change in whole seconds. Raises ``RecordError`` when it is missing."""
        try:
            return _moment(self._at)
        except (TypeError, ValueError, OverflowError, OSError):
            raise RecordError(
                f"Record {self.sequence} has ApproximateCreationDateTime={shown(self._at)}: expected seconds since "
                "1970, or a time with its time zone as the AWS CLI prints it."
            ) from None

    @property
    def at_seconds(self) -> float:
        """The time of the change, epoch seconds. Raises as ``at``."""
        given = self._at
        if type(given) in (int, float) and 0 <= given < PLAIN_SECONDS_MAX:  # as on AWS; a date takes ten times as long
            return float(int(given))
        return self.at.timestamp()

    @property
    def changed(self) -> frozenset[str]:
        """The names of the attributes that differ between the images; all of them when one image is absent."""
        old, new = without_derived(self.old.raw), without_derived(self.new.raw)
        if not (old and new):
            return frozenset([name for name in old or new if not name.startswith(HIDDEN)])
        found = []
        for name in old.keys() | new.keys():
            mine, theirs = old.get(name), new.get(name)
            if mine == theirs or name.startswith(HIDDEN):
                continue
            if mine is None or theirs is None or not same(mine, theirs):
                found.append(name)
        return frozenset(found)

    def without_derived(self) -> "Change":
        """The change without the attributes that were derived onto the item; the same object if there are none."""
        return self._without(derived_names(_raw(self._old)), derived_names(_raw(self._new)))

    def as_written(self) -> "Change | None":
        """The change without derived attributes; None if only these, or hidden ones, are known to have changed.

        An attribute that either image marks as derived counts as derived in both. A writer may have put it back without
        the mark, and how often the framework then corrects it depends on batches.
        """
        derived = derived_names(_raw(self._old), _raw(self._new))
        return self.unless_same(self._without(derived, derived))

    def unless_same(self, own: "Change") -> "Change | None":
        """``own``, this change without derived attributes; None if nothing else that is visible is known to change."""
        if own is self:
            return None if self.is_hidden else own
        idle = own.event == "MODIFY" and own.has_old and own.has_new and not own.changed
        return None if idle else own

    @property
    def is_hidden(self) -> bool:
        """Whether only attributes that no handler can read are known to have changed.

        A global table of version 2017.11.29 writes such a change after each write of the application (Developer Guide,
        globaltables_HowItWorks): a handler that ran for it would run twice.
        """
        if self.event != "MODIFY" or not (self.has_old and self.has_new):
            return False
        return _only_hidden(self.old.raw, self.new.raw)

    def _without(self, of_old: Collection[str], of_new: Collection[str]) -> "Change":
        if not (of_old or of_new):
            return self
        own = copy(self)
        images = (self._old, of_old), (self._new, of_new)
        own._old, own._new = (image and without(_raw(image), names) for image, names in images)  # noqa: SLF001 - its own
        return own

    @property
    def name(self) -> str:
        """The item's key as one text, for messages: ``ORDER#1 / METADATA``."""
        return " / ".join(str(value) for value in self.item[1:] if value is not None)

    def _image_message(self, which: str, views: tuple[str, ...]) -> str:
        asked = f"The {which} image of {redacted(self.name)} was asked for, but"
        if self.view is None or self.view in views:
            return f"{asked} the record does not carry it: one of {self.event} and view type {self.view} should."
        return f"{asked} the stream's view type is {self.view}. Switch the stream to NEW_AND_OLD_IMAGES."

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Change) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash((self.item, self.version_text))

    def _identity(self) -> tuple[object, ...]:
        return self.item, self.identity_text, self.event

    def __repr__(self) -> str:
        return f"<Change {self.event} {self.name} {self.version_text}>"


def _moment(value: Any) -> datetime:
    """The time of a record, in whole seconds. Raises for a value that is no time."""
    if isinstance(value, str) and TIME_TEXT.match(value):
        found = datetime.fromisoformat(value)
        if found.tzinfo is None:
            raise ValueError
    else:
        found = datetime.fromtimestamp(float(value), UTC)
    # DynamoDB rounds down to the second; LocalStack does not, and a field of seconds would refuse its times.
    return found.astimezone(UTC).replace(microsecond=0)


def _only_hidden(old: RawImage, new: RawImage) -> bool:
    """Whether images differ, and in nothing but attributes that no handler can read."""
    found = False
    for name, value in new.items():
        before = old.get(name)
        if before != value:
            if not name.startswith(HIDDEN) and not _alike(before, value):
                return False
            found = True
    for name in old:
        if name not in new:
            if not name.startswith(HIDDEN):
                return False
            found = True
    return found


def has_expired(table: Table, old: RawImage | Image | None, at: Callable[[], datetime]) -> bool:
    """Whether the removed item's time to live had passed when the item was removed.

    Only the record in the region that deletes an expired item names the service. Replicas see a plain deletion.
    """
    ttl = table.ttl
    value = _raw(old).get(ttl) if ttl is not None else None
    if not isinstance(value, Mapping) or value.keys() != {"N"}:  # DynamoDB takes the time as a number only
        return False
    try:
        return 0 <= at().timestamp() - float(value["N"]) <= EXPIRED_SECONDS_MAX
    except (RecordError, TypeError, ValueError):  # no time, or no number
        return False


def _alike(one: AttributeValue | None, other: AttributeValue | None) -> bool:
    """Whether two values are known to be equal. A malformed value is unequal: the handler that reads it raises the
    error.
    """
    try:
        return same(one, other)
    except (AttributeError, RecordError, TypeError):
        return False


def _raw(image: "RawImage | Image | None") -> RawImage:
    return image.raw if isinstance(image, Image) else image or {}


def contradicting(event: Event, sequence: str) -> str:
    image = "an OldImage" if event == "INSERT" else "a NewImage"
    return f"Record {sequence} is of event {event} and has {image}: expected the record as the stream gives it."


def times_of(changes: Iterable[Change]) -> Iterator[float]:
    """The times of the changes that have one which can be read, epoch seconds."""
    for change in changes:
        with suppress(RecordError):
            yield change.at_seconds


def broken_image(sequence: str) -> str:
    return f"Record {sequence} has an image that is no object of attributes."


def check_images(images: Iterable[RawImage | None], item: ItemKey, table: Table, sequence: str) -> None:
    """Raises ``RecordError`` for an image without the key of its record: its item would be unknown."""
    for image in images:
        if image:
            _check_image(image, item, table, sequence)


def _check_image(image: RawImage, item: ItemKey, table: Table, sequence: str) -> None:
    raw = {name: image[name] for name in table.attributes if name in image}
    try:
        if item_key(raw, table) == item:
            return
    except RecordError:
        pass
    raise RecordError(
        f"Record {sequence} is of item {redacted(' / '.join(map(str, item[1:])))}, and an image in it has the key "
        f"{shown(raw)}: expected the key attributes {', '.join(table.attributes)} with the values of 'Keys'."
    )


def missing_fields(record: object) -> str:
    """The message for a record in which something is missing."""
    if not isinstance(record, Mapping):
        return f"A record is {type(record).__name__}: expected an object with 'eventName' and 'dynamodb'."
    body = record.get("dynamodb")
    if not isinstance(body, Mapping):
        found = shown(sorted(map(str, record))[:8])
        return f"A record has no 'dynamodb' object: expected a DynamoDB stream record, found the keys {found}."
    event, sequence = record.get("eventName"), body.get("SequenceNumber")
    if event not in EVENTS:
        return f"A record has eventName={shown(event)}: expected INSERT, MODIFY or REMOVE."
    if not (isinstance(sequence, str) and re.fullmatch(SEQUENCE, sequence)):
        return (
            f"A record has SequenceNumber={shown(sequence)}: expected up to {SEQUENCE_DIGITS_MAX} digits as text. "
            f"LocalStack gives {LOCALSTACK_DIGITS}."
        )
    return f"Record {sequence} has no 'Keys': expected the item's key attributes."


def item_key(keys: RawImage, table: Table) -> ItemKey:
    """The item of a record's key attributes. Raises ``RecordError`` if the table has other key attributes."""
    try:
        if len(keys) != len(table.attributes):
            raise KeyError
        sort = None if table.sort is None else _key_value(keys[table.sort])
        return (table.name, _key_value(keys[table.partition]), sort)
    except (KeyError, ValueError, AttributeError, TypeError):
        found = ", ".join(map(str, keys)) if hasattr(keys, "items") else repr(keys)
        raise RecordError(
            f"A record has the key attributes {redacted(found or 'none')}: table {table.name!r} is declared with "
            f"{', '.join(table.attributes)}. Other names are given with Table({table.name!r}, partition=..., sort=...)."
        ) from None


def _key_value(value: AttributeValue) -> KeyValue:
    if "S" in value and len(value) == 1:
        text: str = value["S"]
        if not text.isascii():
            text.encode()  # half a surrogate pair is legal JSON, but no text that DynamoDB could hold
        return text
    if "N" in value or "B" in value:
        number_or_bytes: KeyValue = decode(value)
        return number_or_bytes
    raise RecordError(f"A record has the key value {shown(value)}: expected text (S), a number (N) or bytes (B).")


def image_of(raw: RawImage | None) -> Image:
    """The image; empty also for a tombstone, and for a row without contributors."""
    if not raw or (CONTRIBUTORS in raw and raw[CONTRIBUTORS] == {"N": "0"}):
        return ABSENT
    return Image(raw)


def is_time_to_live(identity: object) -> bool:
    """Whether an identity is the service that deletes by time to live."""
    if not isinstance(identity, Mapping):
        return False
    names = {name[:1].lower() + name[1:]: value for name, value in identity.items()}
    return all(names.get(name) == value for name, value in TIME_TO_LIVE.items())


def item_name(item: ItemKey) -> str:
    """One text for an item's key, different for any two items of a table: ``ORDER#1|ITEM#a``.

    A name that is too long for a key after ``AUDIT#`` is replaced by its digest.
    """
    texts = [value if type(value) is str else key_text(value) for value in item[1:] if value is not None]
    name = "|".join(texts)
    if name.count("|") >= len(texts) or "%" in name:
        name = "|".join([text.replace("%", "%25").replace("|", "%7C") for text in texts])
    if len(name) * 4 <= NAME_BYTES_MAX or len(name.encode()) <= NAME_BYTES_MAX:
        return name
    return f"sha256:{sha256(name.encode()).hexdigest()}"


def name_components(name: str) -> list[str]:
    """The texts of the key values in an item's name; a digest is returned as it is."""
    return [part.replace("%7C", "|").replace("%25", "%") for part in name.split("|")]


def typed_values(source: Key, partition: str, sort: str | None) -> KeyValues | None:
    """Texts as the values of a source's key; None if the key is of another type."""
    if (sort is None) != (source.sort is None):
        return None
    try:
        first = KEY_READERS[source.partition.attribute_type](partition)
        second = None if sort is None or source.sort is None else KEY_READERS[source.sort.attribute_type](sort)
    except (ArithmeticError, ValueError):
        return None
    return first, second


def typed(name: str) -> str:
    """The arguments of a command for an item's name: partition and sort, quoted where a shell needs it."""
    from shlex import quote  # only messages for a person need it, and a function's start should not pay for it

    return " ".join(part if re.fullmatch(PLAIN_WORD, part) else quote(part) for part in name_components(name))


KEY_READERS: Mapping[str, Callable[[str], KeyValue]] = {"S": str, "N": decode_number, "B": bytes.fromhex}
"""Read a key value, by its type, from a text of ``key_text``, as an item's name has it."""


def key_text(value: KeyValue) -> str:
    """A key value as text: a number in its shortest form, bytes in hexadecimal."""
    if isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else number_text(value)
