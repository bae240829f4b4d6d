"""Calls of external handlers that are plain functions, guarded by Powertools' idempotency utility.

A call is made at least once: if a process dies between the call and its note, the call is repeated.
"""

from aws_lambda_powertools.utilities.idempotency import BasePersistenceLayer, IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyAlreadyInProgressError,
    IdempotencyInconsistentStateError,
    IdempotencyItemAlreadyExistsError,
    IdempotencyItemNotFoundError,
    IdempotencyPersistenceLayerError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord

from streamfold.derivations.external.notes import CallNote, note_key, remaining_milliseconds
from streamfold.derivations.yielded import stopped
from streamfold.errors import EngineError, EngineUnavailable, HandlerError, is_of_table, redacted
from streamfold.records.change import Change
from streamfold.routes.route import Fields, Route
from streamfold.runtime import Runtime
from streamfold.writes.guarded import StateKey

UNWELL = (IdempotencyAlreadyInProgressError, IdempotencyInconsistentStateError, IdempotencyPersistenceLayerError)
"""Errors of the utility if a call cannot be noted or another call is running: the record is redelivered."""


class ExternalCalls:
    """Calls external handlers, once for each change unless a note of a call is lost. Threads may share it."""

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
        key = note_key(self.runtime, route, change)

        def run(*, event: str) -> None:  # noqa: ARG001 - Powertools requires the name of its key's argument
            try:
                refuse_awaitable(route, function(change, **arguments))
            except (KeyboardInterrupt, Exception):
                raise
            except BaseException as error:
                raise stopped(route, error) from error

        config = IdempotencyConfig(
            expires_after_seconds=self.runtime.retention_seconds,
            lambda_context=_Remaining(self.runtime),  # type: ignore[arg-type]  # only this method is used
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


def refuse_awaitable(route: Route, given: object) -> None:
    """Raises ``HandlerError`` if a plain function returned a coroutine: nobody would await it, and nothing be done."""
    if not hasattr(given, "__await__"):
        return
    if (close := getattr(given, "close", None)) is not None:
        close()  # or Python warns of a coroutine that nobody awaited
    raise HandlerError(
        f"Handler {route.name!r} ({route.declared_at}) returned {type(given).__name__}, which nobody awaits: declare "
        f"an async function, async def {route.name}(change): ..."
    )


class _Remaining:
    """Takes the place of the Lambda context, also outside of Lambda."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def get_remaining_time_in_millis(self) -> int:
        return remaining_milliseconds(self.runtime)


class StateLayer(BasePersistenceLayer):
    """Keeps the idempotency record of one event as the note of its call."""

    def __init__(self, runtime: Runtime, key: StateKey) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.note = CallNote(runtime, key)

    def _put_record(self, data_record: DataRecord) -> None:
        if not self.note.begin(data_record.expiry_timestamp or 0, data_record.in_progress_expiry_timestamp):
            raise IdempotencyItemAlreadyExistsError

    def _get_record(self, idempotency_key: str) -> DataRecord:
        stored = self.note.read()
        if stored is None:
            raise IdempotencyItemNotFoundError
        return DataRecord(
            idempotency_key,
            status=stored["status"],
            expiry_timestamp=int(stored["ttl"]),
            in_progress_expiry_timestamp=int(stored["until"]) if "until" in stored else None,
        )

    def _update_record(self, data_record: DataRecord) -> None:
        self.note.swap({"status": data_record.status, "ttl": data_record.expiry_timestamp})

    def _delete_record(self, data_record: DataRecord) -> None:
        self.note.failed()  # the handler raised
