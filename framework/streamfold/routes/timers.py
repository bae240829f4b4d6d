"""What a handler gets at a moment of an item, and the change in its place that the kinds know."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from streamfold.keys.field import EPOCH
from streamfold.records.change import ABSENT, Change, image_of
from streamfold.records.images import Image  # noqa: TC001 - type hints of a public class are evaluated
from streamfold.routes.moments import SECOND_MICROSECONDS, moment_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from streamfold.keys.table import Table
    from streamfold.records.change import Event, ItemKey

EVENT = cast("Event", "TIMER")
"""In place of INSERT, MODIFY or REMOVE."""


class Timer(NamedTuple):
    """What a handler with ``at=`` gets: the item as it is when the handler is called, and the moment.

    ``item`` is read-only. ``at`` is the moment that the function gave, an aware datetime in UTC: the present time may
    be later. Fields of the key are asked for by name, as in every handler.
    """

    item: Image
    at: datetime


class TimerChange(Change):
    """A moment of an item, where the kinds expect a change. It has no record, and its old image is empty.

    Its moment is its identity and its version: one claim, one note and one message id for each moment of an item, and
    of two moments of an item the later has the row.
    """

    __slots__ = ("moment",)

    def __init__(self, item: ItemKey, table: Table, image: Mapping[str, Any], moment: int) -> None:
        self.moment = moment  # epoch microseconds
        self.event, self.expired, self.view = EVENT, False, None
        self.record, self.sequence = {}, ""
        self.table, self.item = table, item
        self.version_text = moment_text(moment)
        self._old, self._new = ABSENT, image_of(image)
        self._at = moment // SECOND_MICROSECONDS

    @property
    def timer(self) -> Timer:
        return Timer(self.new, EPOCH + timedelta(microseconds=self.moment))
