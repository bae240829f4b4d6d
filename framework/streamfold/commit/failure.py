"""The report of a record that could not be processed."""

import sys
from traceback import walk_tb
from typing import NamedTuple

from streamfold.errors import NOT_TOLD, ParkingError, StreamfoldError, public, reason, shortened
from streamfold.routes.route import Route

ITEM_LENGTH_MAX = 400
"""Letters of an item's key in a message; a key may have 3,072 bytes."""
CAUSES_MAX = 3
"""Of an error: that a record could not be parked, from that of a handler's effect, from Python's own error."""


class Failure(NamedTuple):
    """A record that could not be processed."""

    sequence: str | None  # the record's sequence number
    item: str
    handler: str | None  # None if no handler was at fault
    error: Exception
    held: bool = False  # not attempted, because an earlier change of the same item failed
    declared_at: str | None = None  # where the handler is declared, ``file:line``
    raised_at: str | None = None  # the line of the handler's file, or its kind's, that raised, ``file:line``

    @property
    def what(self) -> str:
        """The error's type and text; a text of any length is cut."""
        text = shortened(str(self.error))
        if isinstance(self.error, ParkingError):  # begins with why the record failed
            return text
        return f"{type(self.error).__name__}: {text}"

    @property
    def reason(self) -> str:
        """The error's text without content of the item, for a log; empty if all of the text is such content."""
        said = public(reason(self.error))
        return "" if said == NOT_TOLD else shortened(said)

    @property
    def at(self) -> str | None:
        """The place in the user's code, ``file:line``: the line that raised, or else the handler."""
        return self.raised_at or self.declared_at

    def __str__(self) -> str:
        place = f" ({self.at})" if self.at else ""
        who = f"handler {self.handler!r}{place}, " if self.handler else ""
        return f"{who}item {shortened(self.item, ITEM_LENGTH_MAX)}: {self.what}"


def raised_at(route: Route, error: BaseException | None) -> str | None:
    """The deepest line of the handler's file at which an error, or one of its causes, was raised.

    Of an error that nobody raised on purpose, and that is not of the handler: the line of the kind's file.
    """
    code = getattr(route.function, "__code__", None)
    found = _deepest_line(code.co_filename, error) if code else None
    if found is None and not isinstance(error, StreamfoldError):
        found = _deepest_line(sys.modules[type(route.kind).__module__].__file__, error)
    return found


def _deepest_line(file: str | None, error: BaseException | None) -> str | None:
    for _ in range(CAUSES_MAX):
        if error is None:
            return None
        lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
        if lines:
            return f"{file}:{lines[-1]}"
        error = error.__cause__
    return None
