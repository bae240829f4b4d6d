"""Reads a history: the item as it was at a time, and rows that were altered or are missing."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from streamfold.derivations.audit.options import plain_row, recorded_of
from streamfold.derivations.audit.puts import OPENING
from streamfold.derivations.audit.rows import ROW, image_digest, row_digest, same_digest
from streamfold.derivations.expected import Comparison, RowDifference, VerifiedRows
from streamfold.keys.field import Unreadable, datetime_text
from streamfold.records.change import EVENTS, ItemKey, image_of, item_name, typed
from streamfold.records.images import Image, hidden, without_derived
from streamfold.records.values import alike, decode
from streamfold.routes.route import Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import RowKey

HistoryRow = Mapping[str, Any]
"""A history row in plain values."""
OF_CHANGES = "It follows from changes, not from its item: the next change of the item adds a row to the history."
WRITTEN = (*EVENTS, OPENING)
"""The events of rows that an audit writes."""

Problem = Literal["forged", "unsigned", "gap", "behind"]
MEANINGS: Mapping[Problem, str] = {
    "forged": "is not as it was written, or not written with this key",
    "unsigned": "carries no digests: written without a key, or stripped of them",
    "gap": "does not begin with the item as the row before left it: a change between them has no row",
    "behind": "is the last, and does not leave the item as it is now: a later change has no row, or none yet",
}
AT_THE_END = "rows that are missing at the end of a history"
NOT_FOUND = (
    AT_THE_END,
    "rows that are missing at its beginning, or behind one that has expired or that opens a history",
    "rows that are missing where the item came back to what it was before them",
)
"""Rows whose absence no walk along the rows can find. A comparison with the item as it is now finds those that are
missing ``AT_THE_END``.
"""


@dataclass(frozen=True, slots=True)
class ItemAsOf:
    """An item as it was at a time, as far as its history is known."""

    exists: bool | None = None  # None if that is unknown
    item: dict[str, Any] | None = None  # its key and its known values; None if it did not exist
    redacted: tuple[str, ...] = ()  # attributes whose values were never recorded
    large: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # sha256 and bytes of values too large for a row
    whole: bool = False  # it had no other attributes, or no others among ``fields``
    fields: tuple[str, ...] | None = None  # the only attributes that are recorded; None for all
    version: str | None = None  # of the last change up to the time
    at: str | None = None  # the time of that change
    unknown_before: str | None = None  # the time of the first row that has one: changes before it are unknown


def item_as_of(rows: Iterable[HistoryRow], time: datetime, key: Mapping[str, Any]) -> ItemAsOf:
    """The item with this key as it was at a time, after all changes of that second, from the rows of its history.

    A row without a time counts as one of the time of the row after it: it is no later.

    Raises ``ValueError`` for a time without a time zone.
    """
    ordered, until = _ordered(rows), _text(time)
    times = [_at(row) for row in ordered]
    first_at = next((at for at in times if at is not None), None)
    passed = max((number for number, at in enumerate(times, 1) if at is not None and at <= until), default=0)
    return _after(ordered[:passed], key, first_at)


def item_now(rows: Iterable[HistoryRow], key: Mapping[str, Any]) -> ItemAsOf:
    """The item with this key after all rows of its history, also after those without a time."""
    return _after(_ordered(rows), key, None)


def is_of_history(row: HistoryRow) -> bool:
    """Whether an audit wrote a row: another item under such a key is no change of the item."""
    return isinstance(row.get("version"), str) and row.get("event") in WRITTEN


def newest_is_damaged(rows: Iterable[HistoryRow]) -> bool:
    """Whether the newest row of a history was changed so that it cannot be read."""
    return any(not _Known().add(row) for row in _ordered(rows)[-1:])


def _ordered(rows: Iterable[HistoryRow]) -> list[HistoryRow]:
    return sorted(filter(is_of_history, rows), key=_version)


def _after(rows: Sequence[HistoryRow], key: Mapping[str, Any], first_at: str | None) -> ItemAsOf:
    if not rows:
        return ItemAsOf(unknown_before=first_at)
    known = _Known()
    for row in rows:
        known.add(row)
    return known.as_of(key, rows[-1], first_at)


def _at(row: HistoryRow) -> str | None:
    # Others may have changed the row: an attribute of another type is no time.
    at = row.get("at")
    return at if isinstance(at, str) else None


def moment(text: str) -> datetime:
    """The time of an ISO 8601 text with a time zone. Raises ``ValueError`` for another text."""
    time = datetime.fromisoformat(text)
    _text(time)
    return time


def _text(time: datetime) -> str:
    try:
        return datetime_text(time)
    except Unreadable as why:
        raise ValueError(f"The time {time} cannot be used: {why}.") from None


def _version(row: HistoryRow) -> str:
    version: str = row["version"]
    return version


class _Known:
    """What is known of an item after some rows."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[str, Any]] = {}  # by attribute: (``value``, ``redacted`` or ``large``, content)
        self.exists = False
        self.whole = False
        self.fields: list[str] | None = None

    def add(self, row: HistoryRow) -> bool:
        """Adds the next row; False if somebody has changed the row: then only the fact of a change is known."""
        try:
            self._add(row)
        except (AttributeError, KeyError, TypeError):
            self.entries, self.whole, self.fields = {}, False, None
            return False
        return True

    def _add(self, row: HistoryRow) -> None:
        fields, left_out = row.get("fields"), row.get("left_out", ())
        fields = None if fields is None else list(fields)
        self.exists = row["event"] != "REMOVE"
        if row["event"] != "MODIFY" or "unchanged" in row:
            self.entries, self.whole = {}, True
        elif fields != self.fields:  # values recorded under other ``fields`` may have changed since
            self.entries, self.whole = {}, False
        if "changes" in left_out and self.exists:
            self.entries, self.whole = {}, False
        self.fields = fields
        if self.exists:
            self._take(row.get("unchanged", {}), "value")
            self._take(row["changes"], "new")

    def _take(self, entries: Mapping[str, Any], side: str) -> None:
        for name, entry in entries.items():
            self.entries.pop(name, None)
            if side in entry:
                self.entries[name] = ("value", entry[side])
            elif side in entry.get("redacted", ()):
                self.entries[name] = ("redacted", None)
            elif side in entry.get("large", {}):
                self.entries[name] = ("large", entry["large"][side])

    def as_of(self, key: Mapping[str, Any], row: HistoryRow, first_at: str | None) -> ItemAsOf:
        """The item after the last row that was added."""
        found: dict[str, dict[str, Any]] = {"value": {}, "redacted": {}, "large": {}}
        for name, (kind, content) in sorted(self.entries.items()):
            found[kind][name] = content
        return ItemAsOf(
            self.exists,
            {**key, **found["value"]} if self.exists else None,
            tuple(found["redacted"]),
            found["large"],
            self.whole,
            None if self.fields is None else tuple(self.fields),
            row["version"],
            _at(row),
            first_at,
        )


class Finding(NamedTuple):
    """A problem of an item's history, at one of its rows."""

    item: str
    version: str
    problem: Problem

    def __str__(self) -> str:
        return f"{typed(self.item)}  {self.version}  {self.problem}: the row {MEANINGS[self.problem]}"


def findings(
    item: str,
    rows: Sequence[Mapping[str, Any]],
    key: bytes,
    expired: Callable[[Mapping[str, Any]], bool] = lambda _: False,
) -> Iterator[Finding]:
    """The problems of the history of one item: its complete rows in plain values, sorted by version.

    A missing row is reported at the row after it, unless the row before it has ``expired``: DynamoDB removes expired
    rows in any order (Developer Guide, howitworks-ttl). ``NOT_FOUND`` lists the problems that are not found.
    """
    before: Mapping[str, Any] | None = None
    for row in rows:
        version, digests = str(row.get("version")), row.get("digests")
        if not isinstance(digests, Mapping):
            yield Finding(item, version, "unsigned")
            before = None
            continue
        if not same_digest(digests.get(ROW), row_digest(key, row)):
            yield Finding(item, version, "forged")
        if before is not None and before.get("new") != digests.get("old"):
            yield Finding(item, version, "gap")
        # A first row has the item as it was read: changes whose rows come next may be in it.
        before = None if expired(row) or row.get("event") == OPENING else digests


def behind(item: str, rows: Sequence[Mapping[str, Any]], key: bytes, table: str, image: Image) -> Finding | None:
    """The problem of the last of these rows, compared with the item as it is now; ``table``: the item's, logical."""
    last = rows[-1] if rows else {}
    digests = last.get("digests")
    if not isinstance(digests, Mapping) or digests.get("new") == image_digest(key, table, image):
        return None
    return Finding(item, str(last.get("version")), "behind")


class NewestRows:
    """The newest row of each history, compared with its item."""

    def __init__(self, route: Route) -> None:
        self.route = route

    def compared(self, comparing: Comparison) -> VerifiedRows:
        """Compares all items of an audit."""
        found, application = VerifiedRows(), comparing.runtime.application
        for table in {key.table.name: key.table for key in self.route.sources}.values():
            for keys in comparing.keys(table, lambda _: True):
                own = [key for key in keys if any(each is self.route for each, _ in application.sources(key))]
                found.rows += len(own)
                found.different += self._differing(comparing, own) if own else ()
        return found

    def correct(self, rows: Sequence[RowKey], comparing: Comparison) -> dict[RowKey, str]:
        return dict.fromkeys(rows, OF_CHANGES)

    def _differing(self, comparing: Comparison, keys: Sequence[ItemKey]) -> Iterator[RowDifference]:
        runtime = comparing.runtime
        histories = {key: self._history(runtime, key) for key in keys}  # before the items: these may be newer
        items = runtime.engine.read_sources(keys)
        # An expiring history may have lost all of its rows, and a partial history lacks items that are older than it.
        may_lack = recorded_of(self.route).keep_days is not None or self.route.name in comparing.partial
        for key, history in histories.items():
            if key not in items or (may_lack and not history):
                continue
            names = runtime.application.tables[key[0]].attributes
            if (differing := _difference(key, names, history, items[key])) is not None:
                yield differing

    def _history(self, runtime: Runtime, key: ItemKey) -> list[HistoryRow]:
        sources, name = runtime.application.sources(key), item_name(key)
        fields = next(fields for each, fields in sources if each is self.route)
        target = next((each for each in self.route.into if each.table.name == key[0]), self.route.into[0])
        stored = runtime.engine.items(target.table, target.partition.compose({**fields, "item": name}))
        rows = (plain_row(target, decode({"M": each})) for each in stored)
        return [row for row in rows if row is not None and str(row.get("item")) == name]


def _difference(
    key: ItemKey, names: Collection[str], history: Sequence[HistoryRow], stored: Mapping[str, Any]
) -> RowDifference | None:
    """The difference between an item and the newest row of its history; None if they agree.

    names: the attributes of the item's key.
    """
    image = decode({"M": without_derived(image_of(stored).raw)})
    item = {name: value for name, value in image.items() if name not in names and not hidden(name)}
    known = item_now(history, {})
    if not known.exists:
        return RowDifference(key, None, item)
    if newest_is_damaged(history):
        return RowDifference(key, {}, item)
    recorded = {name: value for name, value in (known.item or {}).items() if name not in names}
    is_whole = known.whole and known.fields is None and not known.redacted and not known.large
    expected = item if is_whole else {name: value for name, value in item.items() if name in recorded}
    return None if alike(recorded, expected) else RowDifference(key, recorded, expected)
