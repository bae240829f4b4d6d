"""Calls of external handlers: side effects outside of the store, guarded by Powertools' idempotency utility.

A call is made at least once: if a process dies between the call and its note, the call is repeated.
"""

from datetime import UTC, datetime
from typing import Any

from aws_lambda_powertools.utilities.idempotency import BasePersistenceLayer, IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyAlreadyInProgressError,
    IdempotencyInconsistentStateError,
    IdempotencyItemAlreadyExistsError,
    IdempotencyItemNotFoundError,
    IdempotencyPersistenceLayerError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord

from streamfold.derivations.yielded import stopped
from streamfold.errors import EngineError, EngineUnavailable, is_of_table, redacted
from streamfold.ledger.state_keys import event_key
from streamfold.records.change import Change
from streamfold.routes.route import Fields, Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import StateKey

UNWELL = (IdempotencyAlreadyInProgressError, IdempotencyInconsistentStateError, IdempotencyPersistenceLayerError)
"""Errors of the utility if a call cannot be noted or another call is running: the record is redelivered."""
EXPIRED = "EXPIRED"
"""The status of a call that failed, so that it is made again."""
IN_PROGRESS_SECONDS = 60
"""Outside of Lambda: a call that has begun and not ended counts as running for this time."""


class ExternalCalls:
    """Calls external handlers, once for each change unless a note of a call is lost."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.away: EngineError | None = None

    def call(self, route: Route, change: Change, fields: Fields) -> Exception | None:
        """Calls a handler for a change unless it was called before; returns the error of handler or guard."""
        if self.away is not None:
            return self.away
        assert route.function is not None
        function = route.function
        arguments = route.asked(fields)
        key = event_key("external", self.runtime.application.name, route.name, change.item, change.identity_text)

        def run(*, event: str) -> None:  # noqa: ARG001 - Powertools requires the name of its key's argument
            try:
                function(change, **arguments)
            except (KeyboardInterrupt, Exception):
                raise
            except BaseException as error:
                raise stopped(route, error) from error

        config = IdempotencyConfig(
            expires_after_seconds=self.runtime.retention_seconds,
            lambda_context=self.runtime.context or _Local(),  # type: ignore[arg-type]  # only this method is used
        )
        guarded = idempotent_function(
            run,
            data_keyword_argument="event",
            persistence_store=StateLayer(self.runtime, key),
            config=config,
        )
        try:
            guarded(event=f"{key.pk}/{key.sk}")
        except UNWELL as error:  # not the record's fault; if the store is wrong for good, later calls fail at once
            cause = error.__cause__
            if is_of_table(cause):
                self.away = cause
            return cause if isinstance(cause, EngineError) else EngineUnavailable(redacted(error))
        except Exception as error:  # noqa: BLE001 - any error of user code fails its record only
            return error
        return None


class _Local:
    """Takes the place of the Lambda context outside of Lambda."""

    def get_remaining_time_in_millis(self) -> int:
        return IN_PROGRESS_SECONDS * 1000


class StateLayer(BasePersistenceLayer):
    """Keeps the idempotency record of one event as an item of the state table."""

    def __init__(self, runtime: Runtime, key: StateKey) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.runtime = runtime
        self.key = key
        self.revision = 0
        self.expires_at = 0

    def _put_record(self, data_record: DataRecord) -> None:
        stored = self.runtime.engine.read_state([self.key]).get(self.key, {})
        self.revision, self.expires_at = int(stored.get("r", 0)), data_record.expiry_timestamp or 0
        attributes: dict[str, Any] = {"status": data_record.status, "ttl": data_record.expiry_timestamp}
        if data_record.in_progress_expiry_timestamp is not None:
            attributes["until"] = data_record.in_progress_expiry_timestamp
        self.runtime.begin()  # no call begins late; the notes of calls that were made are written at any time
        if (stored and not _may_run(stored)) or not self._swap(attributes):
            raise IdempotencyItemAlreadyExistsError

    def _get_record(self, idempotency_key: str) -> DataRecord:
        stored = self.runtime.store.read_state([self.key]).get(self.key)
        if stored is None:
            raise IdempotencyItemNotFoundError
        return DataRecord(
            idempotency_key,
            status=stored["status"],
            expiry_timestamp=int(stored["ttl"]),
            in_progress_expiry_timestamp=int(stored["until"]) if "until" in stored else None,
        )

    def _update_record(self, data_record: DataRecord) -> None:
        self._swap({"status": data_record.status, "ttl": data_record.expiry_timestamp})

    def _delete_record(self, data_record: DataRecord) -> None:
        # The handler raised: the record is left as expired, so that the next delivery calls again. Its time to live is
        # a real one: DynamoDB deletes nothing that expired more than five years ago (Developer Guide, howitworks-ttl).
        self._swap({"status": EXPIRED, "ttl": self.expires_at})

    def _swap(self, attributes: dict[str, Any]) -> bool:
        swapped = self.runtime.store.swap_state(self.key, attributes, self.revision)
        self.revision += swapped
        return swapped


def _may_run(stored: dict[str, Any]) -> bool:
    now = datetime.now(UTC).timestamp()
    expired = stored["status"] == EXPIRED or int(stored["ttl"]) < now
    abandoned = stored["status"] == "INPROGRESS" and "until" in stored and int(stored["until"]) < now * 1000
    return expired or abandoned
