"""What is told of a record that could not be processed."""

from traceback import walk_tb
from typing import NamedTuple

from streamfold.errors import NOT_TOLD, public, reason, shortened
from streamfold.routes.route import Route

ITEM_LENGTH_MAX = 400
"""Letters of an item's key in a message; a key may have 3,072 bytes."""
CAUSES_MAX = 3
"""An error that could not be parked, made of what a handler yielded in vain, made of what Python said of it."""


class Failure(NamedTuple):
    """A record that could not be processed: its sequence number, item, the handler if it was one, and the error.

    ``held`` tells a record that was not attempted because an earlier change of the same item failed, ``declared_at``
    where the handler stands, ``file:line``, and ``raised_at``, likewise, the line of its file that raised, if one did.
    """

    sequence: str | None
    item: str
    handler: str | None
    error: Exception
    held: bool = False
    declared_at: str | None = None
    raised_at: str | None = None

    @property
    def what(self) -> str:
        """The error's type and text; a text of any length is cut."""
        return f"{type(self.error).__name__}: {shortened(str(self.error))}"

    @property
    def reason(self) -> str:
        """What the error says without content of the item, for a log: nothing where that is all of it."""
        said = public(reason(self.error))
        return "" if said == NOT_TOLD else shortened(said)

    @property
    def at(self) -> str | None:
        """The place in the user's code, ``file:line``: of the line that raised or else of the handler."""
        return self.raised_at or self.declared_at

    def __str__(self) -> str:
        place = f" ({self.at})" if self.at else ""
        who = f"handler {self.handler!r}{place}, " if self.handler else ""
        return f"{who}item {shortened(self.item, ITEM_LENGTH_MAX)}: {self.what}"


def raised_at(route: Route, error: BaseException | None) -> str | None:
    """The line of the handler's file at which an error, or what it was made of, was raised deepest while it ran."""
    code = getattr(route.function, "__code__", None)
    for _ in range(CAUSES_MAX):
        if error is None or code is None:
            return None
        lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == code.co_filename]
        if lines:
            return f"{code.co_filename}:{lines[-1]}"
        error = error.__cause__
    return None
