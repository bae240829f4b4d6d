"""The note of one call of an external handler: a state item, in the form of Powertools' idempotency records.

| stored                        | event            | next       | the failure that this prevents                     |
| ----------------------------- | ---------------- | ---------- | -------------------------------------------------- |
| none, failed, or past its end | a call begins    | INPROGRESS | another process makes the same call                |
| INPROGRESS                    | the call returns | COMPLETED  | a redelivery makes the call again                  |
| INPROGRESS                    | the call raises  | EXPIRED    | the record's retry waits until the note is past    |
| INPROGRESS, past its time     | a call begins    | INPROGRESS | a process died in the call, and nobody makes it    |
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from streamfold.ledger.state_keys import event_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from streamfold.derivations.expected import KnownChange
    from streamfold.engines.protocol import Engine
    from streamfold.records.change import Change
    from streamfold.routes.route import Route
    from streamfold.runtime import Runtime
    from streamfold.writes.guarded import StateKey

IN_PROGRESS, COMPLETED, EXPIRED = "INPROGRESS", "COMPLETED", "EXPIRED"
"""The states of a call, in Powertools' words (persistence/datarecord.py). A call that failed is EXPIRED, so that it is
made again.
"""
SHOWN = {
    IN_PROGRESS: "the call began and has not ended: it is running, or its process died",
    COMPLETED: "called",
    EXPIRED: "the call failed; it is made again with its record",
}
KIND = "external"
"""Begins the keys of notes."""
IN_PROGRESS_SECONDS = 60
"""Outside of Lambda: a call that has begun and not ended counts as running for this time."""
MILLISECONDS = 1000


def note_key(runtime: Runtime, route: Route, change: Change) -> StateKey:
    """The key of the note of a handler's call for a change."""
    return event_key(KIND, runtime.application.name, route.name, change.item, change.identity_text)


class CallNote:
    """The note of one call, guarded by the revision of its item."""

    def __init__(self, runtime: Runtime, key: StateKey) -> None:
        self.runtime = runtime
        self.key = key
        self.revision = 0
        self.expires_at = 0  # epoch seconds

    def begin(self, expires_at: int, until: int | None) -> bool:
        """Notes that the call begins; False if another one has begun or was made.

        expires_at: the time to live of the note, epoch seconds. until: the time up to which the call counts as running,
        epoch milliseconds; None: for ever. Raises ``NotStarted`` after the deadline.
        """
        stored = self.runtime.engine.read_state([self.key]).get(self.key, {})
        self.revision, self.expires_at = int(stored.get("r", 0)), expires_at
        attributes: dict[str, Any] = {"status": IN_PROGRESS, "ttl": expires_at}
        if until is not None:
            attributes["until"] = until
        self.runtime.begin()  # no call begins late; the notes of calls that were made are written at any time
        return not (stored and not may_run(stored)) and self.swap(attributes)

    def read(self) -> Mapping[str, Any] | None:
        return self.runtime.store.read_state([self.key]).get(self.key)

    def succeeded(self, expires_at: int) -> None:
        """Notes that the call was made."""
        self.swap({"status": COMPLETED, "ttl": expires_at})

    def failed(self) -> None:
        """Notes that the call is to be made again.

        The time to live is a real one: DynamoDB deletes nothing that expired more than five years ago (Developer Guide,
        howitworks-ttl).
        """
        self.swap({"status": EXPIRED, "ttl": self.expires_at})

    def swap(self, attributes: dict[str, Any]) -> bool:
        """Writes the note, unless another process wrote it meanwhile."""
        swapped = self.runtime.store.swap_state(self.key, attributes, self.revision)
        self.revision += swapped
        return swapped


def noted_call(route: Route, change: KnownChange, engine: Engine) -> str:
    """What the note of a handler's call for a change states, in words."""
    key = event_key(KIND, change.application, route.name, change.item, change.version)
    stored = engine.read_state([key], consistent=True).get(key)
    return "no note: not called, or long ago" if stored is None else SHOWN[stored["status"]]


def may_run(stored: Mapping[str, Any]) -> bool:
    """Whether the call of a stored note may be made again."""
    now = datetime.now(UTC).timestamp()
    expired = stored["status"] == EXPIRED or int(stored["ttl"]) < now
    abandoned = stored["status"] == IN_PROGRESS and "until" in stored and int(stored["until"]) < now * MILLISECONDS
    return expired or abandoned


def remaining_milliseconds(runtime: Runtime) -> int:
    """How long a call that begins now may run, as Powertools asks Lambda's context."""
    if runtime.context is None:
        return IN_PROGRESS_SECONDS * MILLISECONDS
    return int(runtime.context.get_remaining_time_in_millis())
