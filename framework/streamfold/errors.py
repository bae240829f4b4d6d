"""Every error that streamfold raises on purpose, sorted by what happens next.

StreamfoldError
+-- DeclarationError     the application is wrong: raised at import or when ``App`` is built; nothing ran
+-- SettingsError        a setting, option or file of the user is wrong; nothing ran
+-- ManifestError        the application does not fit the state it is run over; nothing was written
|   +-- NotOwned             a table has rows that another state or another application derived
+-- RecordError          an event or record is not what AWS documents; the record is reported, never acknowledged
|   +-- ImageError           a handler asks for an image that the stream's view type does not carry
+-- KeyValueError        a value does not fit the field of a key; a ValueError too
+-- HandlerError         one handler cannot process one record; only that record is reported
    +-- AttributeMissing     it read an attribute that the item does not have; a KeyError too
    +-- RowTaken             the row still belongs to another item, whose record may come and release it
+-- Unprocessable        no retry can help, or the handler says so: that record is parked at once
+-- ParkingError         the parking place refused a record: the record is reported and retried
+-- LocationError           a location of failed records cannot be read: the redrive stops, and the records stay
+-- EngineError          the store is missing, not reachable or refuses for good: the run stops
    +-- EngineUnavailable    the outcome of one call is unknown; its records are reported and retried
        +-- EngineUnreachable    no connection: the same in a function, but a local replay stops
        +-- NotStarted           the call was not begun, because the invocation's time is nearly over
        +-- TableThrottled       the table was throttled at every try; the next call to it would be, too
        +-- Contended            others changed the same items at every try
"""

import re
from collections.abc import Iterable
from itertools import islice
from reprlib import Repr
from typing import Any, Self, TypeGuard

__all__ = [
    "AttributeMissing", "Contended", "DeclarationError", "EngineError", "EngineUnavailable", "EngineUnreachable",
    "HandlerError", "ImageError", "KeyValueError", "LocationError", "ManifestError", "NotOwned", "NotStarted",
    "ParkingError", "RecordError", "RoleRefused", "RowTaken", "SettingsError", "StreamfoldError", "TableThrottled",
    "Unprocessable",
]  # fmt: skip

OPENED, CLOSED = "\ufdd0", "\ufdd1"
"""Marks around item content in a text. Unicode reserves both for such use (section 23.7, noncharacters)."""
MARKED_CONTENT = re.compile(f"{OPENED}([^{CLOSED}]*){CLOSED}")
REDACTED = "..."
"""Replaces item content in a log."""
PACKAGE = "streamfold"
VALUE_LENGTH_MAX = 200
"""Letters of one value that a message quotes; a value may be as large as an item, and nested 32 levels."""
NAMES_COMPARED_MAX, NAME_COMPARED_LETTERS_MAX = 200, 100
"""Bounds of the search for the attribute that a handler probably meant: an item may have thousands of names."""
EXPIRED = frozenset(("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"))
TIMES = frozenset(("RequestExpired", "RequestInTheFuture", "RequestTimeTooSkewed"))
UNKNOWN = frozenset(
    ("InvalidAccessKeyId", "InvalidClientTokenId", "SignatureDoesNotMatch", "UnrecognizedClientException")
)
BAD_SIGNATURE = "InvalidSignatureException"
"""Codes of calls that AWS refuses for their credentials or their time (IAM, Common errors; S3, Error responses). The
last one may be of either.
"""
LIMITS_SHOWN_MAX = 3
"""Limits of a throttled batch that a message names."""
TEXT_LENGTH_MAX = 2000
"""Letters of an error's text that are passed on, of a handler's own error too."""

_short = Repr()
_short.maxlevel = 4
_short.maxstring = _short.maxother = _short.maxlong = VALUE_LENGTH_MAX


def shown(value: object) -> str:
    """A value for a message: as ``repr`` writes it, shortened in the middle, and marked as item content."""
    return redacted(shortened(_short.repr(value), 2 * VALUE_LENGTH_MAX))


def redacted(text: object) -> str:
    """Marks item content in a message: values, keys, names of attributes. Logs leave it out."""
    content = str(text)
    if OPENED in content or CLOSED in content:
        content = content.replace(OPENED, "").replace(CLOSED, "")
    return OPENED + content + CLOSED


def manual(page: str) -> str:
    """The address of a page of the documentation for a message: the command that prints it, because a wheel comes
    without the repository.
    """
    return f"streamfold docs {page}"


def refusal(error: Any) -> str:
    """What a service of AWS answered to a call that it refused: boto3's ``ClientError`` as code and message."""
    answer = error.response["Error"]
    message = answer.get("Message", "")
    if remedy := credentials_remedy(answer["Code"], message):
        return f"{answer['Code']}: {remedy}"
    return f"{answer['Code']}: {redacted(message)}" if message else f"{answer['Code']}"


def credentials_remedy(code: str, message: str) -> str:
    """What is wrong with the credentials or the clock of a refused call, and what to do; empty for another refusal."""
    if code in EXPIRED:
        return "The AWS credentials have expired. Sign in again (aws sso login), or set new ones."
    if code in TIMES or (code == BAD_SIGNATURE and any(word in message for word in ("expired", "current", "later"))):
        return "The clock of this machine differs from that of AWS by minutes. Set the clock."
    if code in UNKNOWN or code == BAD_SIGNATURE:
        return (
            "AWS does not know the credentials. Set AWS_PROFILE, or an access key and its secret that belong together."
        )
    return ""


def printable(text: str) -> str:
    """A text without control characters, which would move a terminal's cursor: they are written as ``repr`` writes
    them.
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def plain(text: str) -> str:
    """A message with its item content, for readers who have the items anyway: commands, parking places.

    The content is printable: a key that contains a line's end must not look like a line of the message.
    """
    return MARKED_CONTENT.sub(lambda found: printable(found[1]), text)


def public(text: str) -> str:
    """A message without its item content, for a log."""
    return MARKED_CONTENT.sub(REDACTED, text)


def reason(error: BaseException) -> str:
    """The text of an error, marked. If streamfold did not raise the error, all of the text counts as item content."""
    if isinstance(error, StreamfoldError) and _is_own(error):
        return error.marked
    return redacted(shortened(str(error)))


def shortened(text: str, length_max: int = TEXT_LENGTH_MAX) -> str:
    """A text, without its middle if it is too long."""
    if len(text) <= length_max:
        return text
    head = length_max * 2 // 3
    return f"{text[:head]}...{text[head + 3 - length_max :]}"


class StreamfoldError(Exception):
    """The base of all errors that streamfold raises on purpose."""

    @property
    def marked(self) -> str:
        """The text, with item content marked."""
        return super().__str__()

    def __str__(self) -> str:
        return plain(self.marked)


class DeclarationError(StreamfoldError):
    """Raised when a key, table, handler or application is declared in a way that cannot work."""


class SettingsError(StreamfoldError):
    """Raised when a setting, an option or a file given by the user is wrong."""


class ManifestError(StreamfoldError):
    """Raised when a handler that the state has is missing in the application, or has changed its meaning."""


class NotOwned(ManifestError):  # noqa: N818 - says what the rows are
    """Raised when a table has rows that another state, or another application, derived: they would count again."""


class RecordError(StreamfoldError):
    """Raised when an event or a record is not as AWS documents it, or is of an unknown table."""


class ImageError(RecordError):
    """Raised when a handler asks for an image that the stream's view type does not carry."""


class KeyValueError(StreamfoldError, ValueError):
    """Raised when values cannot be composed to a key. The message has the value and the template."""


class HandlerError(StreamfoldError):
    """Raised when a handler yields something that cannot be written as declared."""


class AttributeMissing(HandlerError, KeyError):  # noqa: N818 - says what the item lacks
    """Raised when a handler reads an attribute that its item does not have. ``args`` holds the name.

    names: the names of the item's attributes; the message suggests the most similar one. is_absent: there is no item,
    because the image is the old one of an INSERT, or the new one of a REMOVE.
    """

    def __init__(self, *args: object, names: Iterable[str] = (), is_absent: bool = False) -> None:
        super().__init__(*args)
        self._names = names
        self._is_absent = is_absent

    @property
    def marked(self) -> str:
        from difflib import get_close_matches  # only for a message: a function's start should not pay for it

        name, names = shown(self.args[0]), list(islice(self._names, NAMES_COMPARED_MAX))
        if self._is_absent:
            return (
                f"There is no image to read {name} of: an INSERT has no old image, and a REMOVE has no new one. Take "
                f'changes that have both, events=["MODIFY"], or give a default, change.old.get({name}, ...).'
            )
        near = get_close_matches(str(self.args[0])[:NAME_COMPARED_LETTERS_MAX], names, 1)
        meant = f". Did you mean {shown(near[0])}? If not," if near else ":"
        return (
            f"The item has no attribute {name}{meant} yield nothing for such an item, if {name} in item: ..., or give "
            f"a default, item.get({name}, ...)."
        )


class RowTaken(HandlerError):  # noqa: N818 - says what the row is
    """Raised when the row that a handler writes still belongs to another item."""


class Unprocessable(StreamfoldError):  # noqa: N818 - says what the record is
    """Raised by a handler for a record that it will never process: the record is parked at once, without a retry."""


class SwitchedOff(StreamfoldError):  # noqa: N818 - an outcome, not a mistake
    """The reason of a record that is parked because its handler is switched off; the handler is never called."""


class ParkingError(StreamfoldError):
    """Raised when a record has to be parked, and there is no parking place or the parking place refused the record."""


class LocationError(StreamfoldError):
    """Raised when a location of failed records cannot be read for a redrive."""


class EngineError(StreamfoldError):
    """Raised when a store is missing, not reachable or refuses a call for good."""


def damaged(what: str) -> EngineError:
    """The error of a state with content that streamfold never wrote."""
    return EngineError(
        f"{what} cannot be read: the state is damaged. For a local state, run replay --fresh. On DynamoDB rebuild "
        f"the rows over an empty state, as {manual('operations')} describes."
    )


class EngineUnavailable(EngineError):  # noqa: N818 - says what the store is, as the SDKs do
    """Raised when a call timed out or failed inside the service. It may or may not have taken effect."""


class RoleRefused(EngineError):  # noqa: N818 - as the others are named
    """A role of another account could not be assumed."""


class EngineUnreachable(EngineUnavailable):
    """Raised when no connection could be made: likely a short outage in a function, a wrong endpoint in a command."""


class NotStarted(EngineUnavailable):  # an outcome, not a mistake
    """Raised instead of beginning a call, because the invocation's time is nearly over; the record is retried."""


class TableThrottled(EngineUnavailable):
    """Raised when a table was throttled at every try. The next call to the same table would be throttled too.

    limits: the tables or indexes, with the limits that calls exceeded, as the store names them.
    """

    def __init__(self, text: str = "", limits: Iterable[str] = ()) -> None:
        self.limits: tuple[str, ...] = tuple(limits)
        super().__init__(text or f"The store is throttled{in_brackets(self.limits)}; the record is retried.")


def in_brackets(limits: Iterable[str]) -> str:
    """The limits that throttled calls exceeded, for a message; nothing if the store named none."""
    named = [*islice(dict.fromkeys(filter(None, limits)), LIMITS_SHOWN_MAX)]
    return f" ({'; '.join(named)})" if named else ""


class Contended(EngineUnavailable):
    """Raised when others changed the same items at every try. Other items of the table need not be affected."""


def is_fatal(error: BaseException) -> bool:
    """Whether an error is not the fault of a record and does not pass by itself: something is missing or forbidden."""
    return isinstance(error, EngineError | ManifestError | SettingsError) and not isinstance(error, EngineUnavailable)


class ItemFault:
    """Catches the error of one item in a ``with`` block, so that the next items go on.

    An error that the next items would meet too (``is_fatal``) is raised, and so is one of the types of ``raised``.
    """

    __slots__ = ("error", "raised")

    def __init__(self, *raised: type[Exception]) -> None:
        self.raised: tuple[type[Exception], ...] = raised
        self.error: Exception | None = None  # that was caught

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception) or is_fatal(error) or isinstance(error, self.raised):
            return False
        self.error = error
        return True


def is_of_table(error: BaseException | None) -> TypeGuard[EngineError]:
    """Whether the next call to the same table would most likely meet the same error."""
    return isinstance(error, EngineError) and not isinstance(error, Contended | NotStarted)


def _is_own(error: StreamfoldError) -> bool:
    """Whether streamfold raised an error: a handler may raise one of these classes too, with a text of its own."""
    if not _of_package(type(error).__module__):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is None or _of_package(trace.tb_frame.f_globals.get("__name__", ""))


def _of_package(module: str) -> bool:
    return module.partition(".")[0] == PACKAGE


def joined_key(values: Iterable[Any]) -> str:
    """The values of a key as messages have them: ``ORDER#1 / METADATA``."""
    return " / ".join(printable(str(value)) for value in values if value is not None)


EARLIER = {"PlaceError": "LocationError"}
"""Names of errors in earlier commits, with those of now."""


def __getattr__(name: str) -> Any:
    # An AttributeError would lose its text in ``from streamfold.errors import PlaceError``.
    if name in EARLIER:
        raise ImportError(f"{name} of an earlier commit is named {EARLIER[name]} now: import {EARLIER[name]}.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
