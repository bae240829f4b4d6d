"""Decides about a record that a handler could not process: it is reported and comes again, or it is parked.

| the error                                                        | the record                                        |
| ---------------------------------------------------------------- | ------------------------------------------------- |
| the store is unavailable, missing or forbidden; a wrong setting  | comes again: the error says nothing of the record |
| an earlier change of the item failed, or there was no time       | comes again                                       |
| ``Unprocessable``, or the handler is switched off                | is parked at once                                 |
| the row is another item's                                        | comes again twice at least; that item may give    |
|                                                                  | the row up                                        |
| any other                                                        | as the handler's policy says                      |
"""

from collections import Counter
from datetime import UTC, datetime
from decimal import DecimalException

from streamfold.commit.failure import Failure
from streamfold.commit.outcome import Failed, Held
from streamfold.engines import Engine
from streamfold.errors import (
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
    reason,
)
from streamfold.ledger.state_keys import event_key
from streamfold.parking import ERROR_LETTERS_MAX, Parked
from streamfold.records.change import Change
from streamfold.routes.policy import Policy
from streamfold.routes.route import Route
from streamfold.run import Run

TAKEN = Policy("park", attempts_max=3)
"""The policy for a row that is another item's, if the handler parks at once: that item's record may be on its way in
another shard, and arrives before the third delivery."""
NO_PLACE = (
    "No parking place is set: expected STREAMFOLD_PARK (s3://BUCKET/PREFIX or the URL of an SQS queue; locally a file, "
    "or replay --park FILE)."
)

FailureMark = tuple[str, int]


class Triage:
    """Decides for the failures of one batch, once for each record and handler."""

    def __init__(self, application: str, engine: Engine, run: Run) -> None:
        self.application = application
        self.engine = engine
        self.run = run
        self.parked: Counter[str] = Counter()  # records by handler
        self.first: dict[str, str] = {}  # by handler: which record was parked first, and why
        self._throttled: TableThrottled | None = None
        self._decided: dict[FailureMark, Failed | None] = {}

    def __call__(self, failed: Failed) -> Failed | None:
        """The failure to report; None for a record that is safe in its parking place."""
        if self.run.handlers is not None or says_nothing_of_the_record(failed.error):
            return failed
        known = (failed.route.name, id(failed.change))
        if known not in self._decided:
            self._decided[known] = self._decide(failed)
        return self._decided[known]

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
        key = event_key("attempt", self.application, route.name, change.item, change.identity_text)
        if self._throttled:
            raise self._throttled
        try:
            for _ in self.run.tries():
                before = int(self.engine.read_state([key], consistent=True).get(key, {}).get("r", 0))
                if self.engine.swap_state(key, {"ttl": self.run.expires_at}, before):
                    return before + 1
        except TableThrottled as error:
            self._throttled = error
            raise
        return None

    def _age_seconds(self, change: Change) -> float:
        try:
            return self.run.clock() - change.at.timestamp()
        except RecordError:  # no time, no age
            return 0.0

    def _park(self, failed: Failed, attempts: int | None) -> Failed | None:
        change, route, error = failed
        if self.run.parking is None:
            return Failed(change, route, _unparked(failed, NO_PLACE))
        try:
            self.run.begin()
            self.run.parking.park(self._document(failed, attempts))
        except (NotStarted, ParkingError) as why:
            return Failed(change, route, _unparked(failed, reason(why)))
        self.parked[route.name] += 1
        self.first.setdefault(route.name, str(Failure(change.sequence, change.name, None, error)))
        return None

    def _document(self, failed: Failed, attempts: int | None) -> Parked:
        change, route, error = failed
        return Parked(
            self.application,
            route.name,
            change.table.name,
            change.name,
            change.identity_text,
            type(error).__name__,
            str(error)[:ERROR_LETTERS_MAX],
            attempts,
            datetime.fromtimestamp(int(self.run.clock()), UTC).isoformat().replace("+00:00", "Z"),
            change.record,
        )


def says_nothing_of_the_record(error: Exception) -> bool:
    """Whether an error is of the store, of a setting or of another record: it is never a reason to park."""
    return isinstance(error, EngineUnavailable | Held) or is_fatal(error)


def _unparked(failed: Failed, why: str) -> ParkingError:
    """The error of a record that has no place to go: first why it failed, then why it is not parked."""
    error = failed.error
    what = f"{type(error).__name__}: {reason(error)}".rstrip(".")
    asked = "" if failed.route.policy.parks else ", which is done for such an error whatever on_error= says"
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
