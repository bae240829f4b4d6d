"""An item as it was, told from the rows of its history; what they do not tell is said, never guessed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from streamfold.keys.field import Unreadable, datetime_text

HistoryRow = Mapping[str, Any]
"""A history row in plain values."""


@dataclass(frozen=True, slots=True)
class Past:
    """An item at some time, as far as its history tells.

    ``exists`` says whether it was there, None where that is not known. ``item`` holds its key and the attributes whose
    values are known; None where it was not there. ``redacted`` names the attributes whose values were never written,
    ``large`` gives digest and size (``sha256``, ``bytes``) of values that were too large. ``whole``: it had no other
    attributes than these, or none other among ``fields``, where only those are recorded. ``version`` and ``at`` are
    those of the change that made it so. ``unknown_before`` is the time of the first row there is: where ``exists`` is
    None, or the item is not whole, what no row tells is older.
    """

    exists: bool | None = None
    item: dict[str, Any] | None = None
    redacted: tuple[str, ...] = ()
    large: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    whole: bool = False
    fields: tuple[str, ...] | None = None
    version: str | None = None
    at: str | None = None
    unknown_before: str | None = None


def item_as_of(rows: Iterable[HistoryRow], time: datetime, key: Mapping[str, Any]) -> Past:
    """The item with this key as it was at a time, after all changes of that second, from the rows of its history.

    Raises ``ValueError`` for a time without a time zone.
    """
    ordered = sorted(rows, key=_version)
    if not ordered:
        return Past()
    until = _text(time)
    passed = max((number for number, row in enumerate(ordered, 1) if row["at"] <= until), default=0)
    if not passed:
        return Past(unknown_before=ordered[0]["at"])
    known = _Known()
    for row in ordered[:passed]:
        known.add(row)
    return known.past(key, ordered[passed - 1], ordered[0]["at"])


def moment(text: str) -> datetime:
    """The time of an ISO 8601 text with a time zone. Raises ``ValueError`` for any other."""
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
    """What the rows so far tell of an item; entries by attribute: (``value``, ``redacted`` or ``large``, content)."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[str, Any]] = {}
        self.exists = False
        self.whole = False
        self.fields: list[str] | None = None

    def add(self, row: HistoryRow) -> None:
        """Takes the next row."""
        fields, left_out = row.get("fields"), row.get("left_out", ())
        self.exists = row["event"] != "REMOVE"
        if row["event"] != "MODIFY" or "unchanged" in row:
            self.entries, self.whole = {}, True
        elif fields != self.fields:  # what is recorded from now on was not before, or the other way round
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

    def past(self, key: Mapping[str, Any], row: HistoryRow, first_at: str) -> Past:
        """The item as it is after the last row that was taken."""
        found: dict[str, dict[str, Any]] = {"value": {}, "redacted": {}, "large": {}}
        for name, (kind, content) in sorted(self.entries.items()):
            found[kind][name] = content
        return Past(
            self.exists,
            {**key, **found["value"]} if self.exists else None,
            tuple(found["redacted"]),
            found["large"],
            self.whole,
            None if self.fields is None else tuple(self.fields),
            row["version"],
            row["at"],
            first_at,
        )
