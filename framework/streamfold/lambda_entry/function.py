"""A function of AWS Lambda: one batch in, the partial batch response out. The schedule's function is here too.

Lambda may log the error that a function raises, and items belong in no log. Every entry raises its errors through
``in_public``, which keeps the type and the trace, and only the framework's own text of the message.
"""

import logging
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from streamfold.batch.already_applied import begin_with_records
from streamfold.batch.process import all_failed, check_settings, process_changes, read_changes, undeclared_names
from streamfold.batch.report import Response, response_of
from streamfold.derivations.derivation import contributing, derivation
from streamfold.engines.deadline import time_left
from streamfold.engines.dynamodb import DynamoEngine
from streamfold.engines.dynamodb_client import Consumed, Meter, make_client
from streamfold.errors import (
    REDACTED,
    EngineError,
    ManifestError,
    NotOwned,
    RecordError,
    SettingsError,
    StreamfoldError,
    public,
    reason,
)
from streamfold.keys.table import MAIN
from streamfold.lambda_entry import collect_in_batches
from streamfold.lambda_entry.accounts import LOCAL_ACCOUNT, SourceAccounts
from streamfold.lambda_entry.telemetry import Processed, invocation_ids, log, log_counts, measuring, observer, start_log
from streamfold.parking import FileParking, Parking, open_parking
from streamfold.records.envelope import Origins, records_of
from streamfold.routes.application import Application
from streamfold.runtime import Knowledge, Runtime, SendingPace, Threads
from streamfold.settings import Settings
from streamfold.settings.readers import PREFIX

if TYPE_CHECKING:
    from streamfold.batch.already_applied import Redelivery
    from streamfold.jobs.fan_outs import SegmentQueue
    from streamfold.lambda_entry.spans import Spans
    from streamfold.runtime import QueuedSegment

TALKATIVE = ("aws_lambda_powertools", "boto3", "botocore", "opensearch", "opensearchpy", "s3transfer", "urllib3")
"""Loggers of libraries that log requests, and so items, below INFO (botocore.endpoint, "Making request")."""
TOO_LITTLE_TIME = (
    "An invocation began with no more time than the {} seconds of STREAMFOLD_STOP_SECONDS, so that none of its records "
    "is processed: the function's timeout has to be longer, for example 60 seconds."
)


OPENTELEMETRY = "opentelemetry.trace"
"""The module of OpenTelemetry's API that every SDK imports (extra ``otel``)."""
SAMPLE_TABLE = "ExampleTableWithStream"
"""The table of the sample event that Lambda's console and documentation give."""
ROLE = PREFIX + "ROLE"
"""The variable of the role that the first client works by."""


_prepared: list[Any] = []  # the client that was made at init, until a function takes it


def prepare() -> None:
    """Makes the client, at init. Without a region none is made: the first invocation fails, with the reason."""
    if not _prepared and not _functions:
        with suppress(EngineError):
            _prepared.append(make_client(role=os.environ.get(ROLE)))


def taken_client(settings: Settings) -> Any:
    """The client that was made at init, once, or a new one."""
    return _prepared.pop() if _prepared else make_client(role=settings.role)


class Function:
    """One application in one execution environment: settings read once, one client, one engine.

    The adopted table and the logged warnings are remembered from batch to batch.
    """

    unit = "batch"
    """What an invocation works on, in the name of its span."""

    def __init__(self, app: Application, settings: Settings, client: Any = None) -> None:
        self.app = app
        self.settings = settings
        self.client = client or taken_client(settings)
        self.engine: DynamoEngine | None = None
        self.segment_queue: SegmentQueue | None = None
        self.function_arn: object = None  # of the invocation
        self.origins = self._new_origins()
        self.warned: set[object] = set()
        self.parking = _parking(settings)
        self.opened: dict[str, Any] = {}
        self.known = Knowledge()  # of the state of ``engine``
        self.slots = Threads(settings.lanes)
        self.pace = SendingPace()
        for route in app.routes:
            derivation(route).check_settings(route, settings)
        check_parking(app, settings)
        self.observe = observer(app, settings, self.pace)
        self.meter: Meter | None = None  # of the client, once an engine calls it
        self.clock: Callable[[], float] = time.time  # a test replaces it
        self.spans = _spans(app)
        check_settings(app, settings)
        for text in undeclared_names(app, settings):
            self.warn(text)
        keep_quiet()
        collect_in_batches()

    def __call__(self, event: Any, context: Any) -> Response:
        invocation_ids.begin(context)
        try:
            if self.spans is None:
                return self._processed(event, context)
            return self.spans.processed(self.unit, self._processed, event, context)
        except Exception as error:  # noqa: BLE001 - Lambda logs the text of any error
            stopped = in_public(error)
        raise stopped  # outside of the except clause: as its context, the error would be logged too

    def _processed(self, event: Any, context: Any) -> Response:
        self.function_arn = getattr(context, "invoked_function_arn", None)
        began = time.perf_counter()
        records = records_of(event)
        begun: Redelivery | None = None
        if self.engine:  # reads of the state begin while records are parsed
            runtime = self.runtime_of(context)
            begun = begin_with_records(runtime, records, self.origins)
            changes, malformed = read_changes(records, self.origins)
        else:  # the engine needs the table's name, which the records give
            changes, malformed = read_changes(records, self.origins)
            runtime = self.runtime_of(context)
        # Warned about, not raised: a warning is logged once, and the records are reported as failed in any case.
        if not runtime.enough_time():
            runtime.warn_once("time", TOO_LITTLE_TIME.format(self.settings.stop_seconds))
        try:
            report = process_changes(runtime, changes, self.origins.sources, begun)
        except NotOwned as error:  # logged with both names, and counted: an error of the function would name neither
            report = all_failed(changes, error)
        except ManifestError:  # the state refuses these records: the table's name that they gave is forgotten
            self.origins = self._new_origins()
            raise
        runtime.queued += runtime.visits
        self.enqueue(runtime)
        report.failures[:0] = malformed
        consumed = self.meter.take() if self.meter else Consumed()
        self.observe(Processed(report, changes, len(malformed), consumed, time.perf_counter() - began, runtime.clock()))
        return response_of(report.failures)

    def runtime_of(self, context: Any, stop_seconds: int | None = None) -> Runtime:
        """The runtime of one invocation, whose engine waits no longer. ``stop_seconds``: in place of the setting."""
        engine = self.engine or self._engine()
        settings = self.settings if stop_seconds is None else self.settings._replace(stop_seconds=stop_seconds)
        app, store = (self.app, engine) if self.spans is None else (self.spans.app, self.spans.store(engine))
        runtime = Runtime(
            app,
            store,
            settings,
            known=self.known if engine is self.engine else Knowledge(),
            seconds_left=time_left(context),
            outside=True,
            warn=self.warn,
            warned=self.warned,
            clock=self.clock,
            context=context,
            parking=self.parking,
            opened=self.opened,
            pace=self.pace,
        )
        engine.deadline = runtime
        if not engine.is_local:
            runtime.slots = self.slots
            runtime.fans_out = self.settings.jobs is not None
        return runtime

    def enqueue(self, runtime: Runtime, enough_time: Callable[[], bool] | None = None) -> "list[QueuedSegment]":
        """Sends a message for each waiting segment; returns the segments whose message could not be sent.

        The client of the queue is made at its first use: most batches open no fan-out.
        """
        queued, runtime.queued = runtime.queued, []
        if not queued or self.settings.jobs is None:
            return queued
        if self.segment_queue is None:
            from streamfold.jobs.fan_outs import SegmentQueue

            self.segment_queue = SegmentQueue(self.app.name, self.settings.jobs, self.warn)
        return self.segment_queue.enqueue(queued, enough_time or runtime.enough_time)

    def _new_origins(self) -> Origins:
        return Origins(
            self.app.source_tables,
            self.settings,
            self.warn,
            self.app.watched_tables,
            identify=SourceAccounts(self.app, self.settings, self._client_of, lambda: self.function_arn).identify,
            check_adopted=self._check_adopted,
        )

    def _check_adopted(self, real: str, arn: Any) -> None:
        """Raises ``RecordError`` for a table that a test event may have made up.

        The event of the console's Test is a sample, of a table in another account that does not exist. A state that
        was bound to that table would refuse the records of the real one.
        """
        own, source = _region_and_account(self.function_arn), _region_and_account(arn)
        is_local = source is not None and source[1] == LOCAL_ACCOUNT
        if real != SAMPLE_TABLE and (own is None or source == own or is_local):
            return
        raise RecordError(
            f"A record of table {real!r} comes from {arn}, which is no event source in the function's own account and "
            "region: it may be a test event, so the function does not take that table for the application's, and "
            f"nothing is derived. Is it the application's table? Then set STREAMFOLD_TABLE_MAIN={real}."
        )

    def _client_of(self, role: str | None) -> Any:
        return self.client if role == self.settings.role else make_client(role=role)

    def warn(self, text: str) -> None:
        """Logs a warning once, without content of items: the warnings of two items may then be one text."""
        if (shown := public(text)) not in self.warned:
            self.warned.add(shown)
            log.warning(shown)

    def _engine(self) -> DynamoEngine:
        """The engine, with the real names of the tables from the settings or from the stream's records."""
        real = self.origins.real_names()
        tables = {
            name: (table, self.settings.real_name(name) or real.get(name, name))
            for name, table in self.app.tables.items()
        }
        state_table = self.settings.state_table or f"{self.app.name}-state"
        engine = DynamoEngine(self.client, tables, state_table, role_of=self.settings.role_of)
        if self.meter is None and self.settings.observe != "off":
            self.meter = Meter(self.client)
        # Without the main table's name the engine serves one batch: the next one may give the name.
        if MAIN.name not in tables or real.get(MAIN.name):
            self.engine = engine
        return engine


def _spans(app: Application) -> "Spans | None":
    """The spans of a function, if something has imported OpenTelemetry's API, as every SDK does."""
    if OPENTELEMETRY not in sys.modules:
        return None
    from streamfold.lambda_entry.spans import Spans

    return Spans(app)


def _region_and_account(arn: object) -> list[str] | None:
    parts = arn.split(":") if isinstance(arn, str) else []
    return parts[3:5] if len(parts) > 5 and all(parts[3:5]) else None


SomeFunction = TypeVar("SomeFunction", bound=Function)
_functions: dict[tuple[type[Function], str], Function] = {}


def handle(app: Application, event: Any, context: Any) -> Response:
    """Processes one invocation of a stream's function."""
    return function_of(app, Function)(event, context)


def function_of(app: Application, made: type[SomeFunction]) -> SomeFunction:
    """The function of an application. The first call in an execution environment reads the settings and makes it."""
    function = _functions.get((made, app.name))
    if not isinstance(function, made) or function.app is not app:
        function = _functions[made, app.name] = made(app, Settings.from_environment(os.environ))
    return function


def handle_work(app: Application, event: Any, context: Any) -> dict[str, Any]:
    """Works on a segment of a run, as far as the invocation's time goes."""
    from streamfold.lifecycle.backfill import work

    function = function_of(app, Function)
    invocation_ids.begin(context)
    try:
        runtime = replace(function.runtime_of(context), parking=None, pace=SendingPace())
        result = work(runtime, event)
        function.enqueue(runtime)
        return result
    except Exception as error:  # noqa: BLE001 - Lambda logs the text of any error
        stopped = in_public(error)
    raise stopped


def handle_verify(app: Application, event: Any, context: Any, client: Any = None) -> dict[str, int]:
    """Compares a sample of the items with the state without writing; returns, logs and measures the counts."""
    invocation_ids.begin(context)
    try:
        return _verified(app, event, context, client)
    except Exception as error:  # noqa: BLE001 - Lambda logs the text of any error
        stopped = in_public(error)
    raise stopped


def _verified(app: Application, event: Any, context: Any, client: Any) -> dict[str, int]:
    from random import Random

    from streamfold.lifecycle.verify import AskedSample, verify_sample

    settings = Settings.from_environment(os.environ)
    keep_quiet()
    start_log(app.name, settings)
    check_settings(app, settings)
    for text in undeclared_names(app, settings):
        _warn(text)
    tables = {name: (table, settings.real_name(name) or name) for name, table in app.tables.items()}
    state_table = settings.state_table or f"{app.name}-state"
    engine = DynamoEngine(client or taken_client(settings), tables, state_table, role_of=settings.role_of)
    runtime = Runtime(app, engine, settings, warn=_warn, context=context, seconds_left=time_left(context))
    engine.deadline = runtime
    collect_in_batches()
    found = verify_sample(runtime, AskedSample.of(event), Random())  # noqa: S311 - a sample
    trouble = bool(found.different or found.failed or found.partial)
    log_counts("sample verified", found.counts, settings, trouble=trouble)
    for text, by_handler in (("contributions differ", found.different), ("items fail", found.failed)):
        for handler, count in by_handler.items():
            log.error(text, extra={"handler": handler, "count": count})
    for handler, since in found.partial.items():
        log.error("handler may have missed items", extra={"handler": handler, "since": since})
    measuring(app.name, settings)(found.counts)
    return dict(found.counts)


def _warn(text: str) -> None:
    log.warning(public(text))


def in_public(error: Exception) -> Exception:
    """The error as Lambda may log it: without its cause, and without content of items."""
    shown = public(reason(error))
    if shown == REDACTED:
        stopped: Exception = StreamfoldError(
            f"{type(error).__name__} ended the invocation; its message may hold content of an item."
        )
    else:
        stopped = type(error)(shown)
    return stopped.with_traceback(error.__traceback__)


def keep_quiet() -> None:
    """Keeps libraries from logging requests and responses, with items in them, if the root logger has level DEBUG."""
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.INFO)


def _parking(settings: Settings) -> Parking | None:
    """The parking location. A file is refused: the function's disk is lost with its environment."""
    if settings.park is None:
        return None
    parking = open_parking(settings.park)
    if isinstance(parking, FileParking):
        raise SettingsError(
            f"STREAMFOLD_PARK={settings.park!r} is a file, which is lost with the function's environment: expected "
            "s3://BUCKET/PREFIX or the URL of an SQS queue."
        )
    return parking


def check_parking(app: Application, settings: Settings) -> None:
    """Refuses handlers that park without a parking location: their records would be retried until they are lost.

    Handlers of other groups run in other functions.
    """
    for route in app.routes if settings.park is None else ():
        parks_conflicts = route.kind.contributes and contributing(route).parks_conflicts(route)
        option = 'on_error="park"' if route.policy.parks else 'on_conflict="park"' if parks_conflicts else None
        if option is not None and settings.serves(route.group):
            raise SettingsError(
                f"Handler {route.name!r} ({route.declared_at}) has {option}, but the function has no parking location: "
                "expected STREAMFOLD_PARK=s3://BUCKET/PREFIX, or the URL of an SQS queue. Without one, declare "
                f"{option.replace('park', 'report' if 'conflict' in option else 'retry')}."
            )
