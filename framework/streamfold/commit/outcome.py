"""The outcome of a plan: changes that failed or were already applied, rows by handler, and parked records."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import DecimalException
from operator import itemgetter
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from streamfold.errors import (
    REDACTED,
    EngineError,
    EngineUnavailable,
    HandlerError,
    ImageError,
    NotStarted,
    ParkingError,
    RecordError,
    RowTaken,
    StreamfoldError,
    SwitchedOff,
    TableThrottled,
    Unprocessable,
    is_fatal,
    public,
    reason,
    shortened,
)
from streamfold.ledger.state_keys import event_key
from streamfold.parking import ERROR_LETTERS_MAX, Parked
from streamfold.records.change import Change
from streamfold.routes.route import Policy, Route
from streamfold.runtime import Runtime

if TYPE_CHECKING:
    from streamfold.records.change import ItemKey

ITEM_LENGTH_MAX = 400
"""Letters of an item's key in a message; a key may have 3,072 bytes."""
CAUSES_MAX = 3
"""Of an error: that a record could not be parked, from that of a handler's effect, from Python's own error."""

TAKEN = Policy("park", attempts_max=3)
"""The policy for a row that is another item's, if the handler parks at once: that item's record may be on its way in
another shard, and arrives before the third delivery."""
NO_LOCATION = (
    "No parking place is set: expected STREAMFOLD_PARK (s3://BUCKET/PREFIX or the URL of an SQS queue; locally a file, "
    "or replay --park FILE)."
)

NUMBER = re.compile(r"[0-9][0-9,.]*")
"""A number in a message: a size, a count or a place, which differs between failures of one cause."""
FailureMark = tuple[str, int]


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
        """The error's text without content of the item, for a log; empty if the text has only such content."""
        message = public(reason(self.error))
        return "" if message == REDACTED else shortened(message)

    @property
    def at(self) -> str | None:
        """The line in the user's code, ``file:line``: the line that raised, or else the handler."""
        return self.raised_at or self.declared_at

    @property
    def cause(self) -> "Cause":
        return cause_of(self.handler, self.error, self.at)

    def __str__(self) -> str:
        place = f" ({self.at})" if self.at else ""
        who = f"handler {self.handler!r}{place}, " if self.handler else ""
        return f"{who}item {shortened(self.item, ITEM_LENGTH_MAX)}: {self.what}"


Cause = tuple[str | None, str, str | None, str]
"""What failures of one cause share: handler, type of the error, line of code, and the message without values."""
Each = TypeVar("Each")


def cause_of(handler: str | None, error: Exception, at: str | None) -> Cause:
    """The cause of a failure, whatever values its message has."""
    return handler, type(error).__name__, at, NUMBER.sub("0", public(reason(error)))


def by_cause(failed: Iterable[Each], cause: Callable[[Each], Cause]) -> list[tuple[Each, int]]:
    """The first failure of each cause, and how many it has. The first cause of each handler comes before the others:
    many causes of one handler must not hide another handler.
    """
    found: dict[Cause, tuple[Each, int]] = {}
    for each in failed:
        first, count = found.get(key := cause(each), (each, 0))
        found[key] = first, count + 1
    return first_of_handlers(found)


def first_of_handlers(found: Mapping[Cause, Each]) -> list[Each]:
    """What belongs to each cause: that of the first cause of each handler, then that of each second one, and so on."""
    places = Counter[str | None]()
    ranked: list[tuple[int, Each]] = []
    for (handler, *_), value in found.items():
        ranked.append((places[handler], value))
        places[handler] += 1
    return [value for _, value in sorted(ranked, key=itemgetter(0))]


def raised_at(route: Route, error: BaseException | None) -> str | None:
    """The deepest line of the handler's file at which an error, or one of its causes, was raised.

    Of an error that nobody raised on purpose, and that is not of the handler: the line of the kind's file.
    """
    # A handler with a typed item is wrapped, a coroutine twice: the line is one of its own file.
    function: Any = route.function
    while (wrapped := getattr(function, "__wrapped__", None)) is not None:
        function = wrapped
    code = getattr(function, "__code__", None)
    found = _deepest_line(code.co_filename, error) if code else None
    if found is None and not isinstance(error, StreamfoldError):
        found = _deepest_line(sys.modules[type(route.kind).__module__].__file__, error)
    return found


def _deepest_line(file: str | None, error: BaseException | None) -> str | None:
    # A chain of causes may be long, or contain itself: the bound ends the search for the user's line.
    for _ in range(CAUSES_MAX):
        if error is None:
            return None
        lines = [line for frame, line in walk_tb(error.__traceback__) if frame.f_code.co_filename == file]
        if lines:
            return f"{file}:{lines[-1]}"
        error = error.__cause__
    return None


class Held(StreamfoldError):  # noqa: N818 - an outcome, not a mistake
    """Not attempted, because an earlier change of the same item failed for this handler."""


Counts = dict[str, Counter[str]]
HELD = "An earlier change of the same item failed for this handler; the record is retried after it."


class Failed(NamedTuple):
    """A change that one handler could not process, and why."""

    change: Change
    route: Route
    error: Exception


Triages = Callable[[Failed], Failed | None]
"""Decides about a failure: returns it if it is to be reported, None if its record is parked."""


def reported(failed: Iterable[Failed], triage: Triages) -> list[Failed]:
    """The failures that are to be reported: those whose records are not parked."""
    return [left for left in map(triage, failed) if left is not None]


class Tallies:
    """The rows of one handler."""

    __slots__ = ("handed_on", "removed", "unchanged", "written")

    def __init__(self) -> None:
        self.written = self.removed = 0
        self.unchanged = 0  # items whose rows did not change
        self.handed_on = 0  # items whose rows a fan-out continues


class Outcome:
    """The outcome of a plan, or of a kind's work after it; ``+=`` joins two."""

    def __init__(self, failed: Iterable[Failed] = ()) -> None:
        self.failed = list(failed)
        self.tallies: dict[str, Tallies] = {}  # by handler
        self.done: list[Change] = []  # changes that the state already had
        self.fresh: list[Change] = []  # changes that the batch itself committed
        self.counts: Counts = {}  # by a kind's word (``Derivation.says``) and handler
        self.stepped: set[tuple[ItemKey, str]] = set()  # items and handlers whose contribution was written, if noted

    def tally(self, handler: str) -> Tallies:
        """The rows of a handler, to be counted up."""
        return self.tallies.setdefault(handler, Tallies())

    def uncount(self, handler: str, written: int, removed: int) -> None:
        """Takes the rows of one item out of a handler's count: its step was taken back."""
        total = self.tally(handler)
        total.written -= written
        total.removed -= removed
        total.unchanged -= not (written or removed)
        if not (total.written or total.removed or total.unchanged or total.handed_on):
            del self.tallies[handler]

    def count(self, word: str, handler: str, number: int = 1) -> None:
        """Counts under a word of a kind (``Derivation.says``)."""
        self.counts.setdefault(word, Counter())[handler] += number

    def __iadd__(self, other: "Outcome") -> Self:
        self.failed += other.failed
        self.done += other.done
        self.fresh += other.fresh
        add_counts(self.counts, other.counts)
        add_tallies(self.tallies, other.tallies)
        return self


def add_counts(counts: Counts, others: Counts) -> None:
    """Adds counts to counts."""
    for word, by_handler in others.items():
        counts.setdefault(word, Counter()).update(by_handler)


def add_tallies(tallies: dict[str, Tallies], others: dict[str, Tallies]) -> None:
    """Adds tallies to tallies."""
    for handler, other in others.items():
        mine = tallies.setdefault(handler, Tallies())
        mine.written += other.written
        mine.removed += other.removed
        mine.unchanged += other.unchanged
        mine.handed_on += other.handed_on


class Triage:
    """Decides for the failures of one batch, once for each record and handler."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.parked: Counter[str] = Counter()  # records by handler
        self.first: dict[str, Failure] = {}  # by handler: the record that was parked first, and why
        self._throttled: TableThrottled | None = None
        # With the change, which lives as long as the mark: another object could have the same id later.
        self._decided: dict[FailureMark, tuple[Change, Failed | None]] = {}

    def __call__(self, failed: Failed) -> Failed | None:
        """The failure to report; None for a parked record."""
        if self.runtime.handlers is not None or lacks_the_record(failed.error):
            return failed
        known = (failed.route.name, id(failed.change))
        if known not in self._decided:
            self._decided[known] = failed.change, self._decide(failed)
        return self._decided[known][1]

    def _decide(self, failed: Failed) -> Failed | None:
        change, route, error = failed
        attempts = None
        policy = TAKEN if isinstance(error, RowTaken) and route.policy.at_once else route.policy
        if not isinstance(error, Unprocessable | SwitchedOff) and not policy.at_once:
            if not policy.parks:
                return failed
            try:
                attempts = self._attempts(change, route, policy)
            except EngineError:
                return failed
            if not self._given_up(change, policy, attempts):
                return failed
        return self._park(failed, attempts)

    def _given_up(self, change: Change, policy: Policy, attempts: int | None) -> bool:
        most, oldest = policy.attempts_max, policy.age_seconds_max
        if most is not None and attempts is not None and attempts >= most:
            return True
        return oldest is not None and self._age_seconds(change) > oldest

    def _attempts(self, change: Change, route: Route, policy: Policy) -> int | None:
        """Counts an attempt and returns how many there were; None if the policy does not count them.

        Lambda's event carries no count (API Reference, DynamoDB event): the revision of a state item is one.
        """
        if policy.attempts_max is None:
            return None
        key = event_key("attempt", self.runtime.application.name, route.name, change.item, change.identity_text)
        # A throttled table is not asked again for each further record: the batch would wait for every one.
        if self._throttled:
            raise self._throttled
        try:
            # Two processes may count attempts of one record: the guarded swap loses no attempt, and a refusal reads the
            # number again.
            for _ in self.runtime.tries():
                before = int(self.runtime.engine.read_state([key], consistent=True).get(key, {}).get("r", 0))
                if self.runtime.engine.swap_state(key, {"ttl": self.runtime.expires_at}, before):
                    return before + 1
        except TableThrottled as error:
            self._throttled = error
            raise
        return None

    def _age_seconds(self, change: Change) -> float:
        try:
            return self.runtime.clock() - change.at.timestamp()
        except RecordError:  # no time, no age
            return 0.0

    def _park(self, failed: Failed, attempts: int | None) -> Failed | None:
        change, route, error = failed
        if self.runtime.parking is None:
            return Failed(change, route, _unparked(failed, NO_LOCATION))
        try:
            self.runtime.begin()
            self.runtime.parking.park(self._document(failed, attempts))
        except (NotStarted, ParkingError) as why:
            return Failed(change, route, _unparked(failed, reason(why)))
        self.parked[route.name] += 1
        self.first.setdefault(route.name, Failure(change.sequence, change.name, None, error))
        return None

    def _document(self, failed: Failed, attempts: int | None) -> Parked:
        change, route, error = failed
        return Parked(
            self.runtime.application.name,
            route.name,
            change.item[0],
            change.name,
            change.identity_text,
            type(error).__name__,
            str(error)[:ERROR_LETTERS_MAX],
            attempts,
            datetime.fromtimestamp(int(self.runtime.clock()), UTC).isoformat().replace("+00:00", "Z"),
            change.record,
            getattr(self.runtime.context, "aws_request_id", None),
        )


def lacks_the_record(error: Exception) -> bool:
    """Whether an error is of the store, of a setting or of another record: it is never a reason to park."""
    return isinstance(error, EngineUnavailable | Held) or is_fatal(error)


def _unparked(failed: Failed, why: str) -> ParkingError:
    """The error of a record that cannot be parked: first why it failed, then why it is not parked."""
    error = failed.error
    what = f"{type(error).__name__}: {reason(error)}".rstrip(".")
    asked = "" if failed.route.policy.parks else ", which is done for such an error with every on_error="
    unparked = ParkingError(f"{what}. The record cannot be parked{asked}. {why} It is reported instead.")
    unparked.__cause__ = error
    return unparked


def explained(route: Route, error: Exception) -> Exception:
    """The error to report for what a handler raised."""
    if isinstance(error, RecordError) and not isinstance(error, ImageError):
        unprocessable = Unprocessable(f"The record is malformed: {reason(error)}")
        unprocessable.__cause__ = error
        return unprocessable
    if isinstance(error, DecimalException) and not isinstance(error, StreamfoldError):
        return HandlerError(
            f"Handler {route.name!r} led to a number that 38 digits cannot hold exactly ({type(error).__name__})."
        )
    return error
