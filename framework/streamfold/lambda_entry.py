"""The AWS Lambda entry: one batch in, the partial batch response out.

Powertools' Logger, Metrics and Tracer are each on or off by setting, and imported only when on. What is logged are
counts, names of handlers and templates, sequence numbers, error types, places in the code, and messages without what
they tell of an item: never keys or other contents of items, at any level.
"""

import logging
import os
from collections.abc import Callable, Mapping
from random import Random
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from streamfold.batch.process import process_changes, read_changes
from streamfold.batch.report import Report
from streamfold.derivations import KINDS
from streamfold.derivations.derivation import contributing, derivation
from streamfold.engines.dynamodb import DynamoEngine
from streamfold.engines.dynamodb_client import make_client, table_id
from streamfold.errors import NOT_TOLD, ManifestError, SettingsError, StreamfoldError, public, reason
from streamfold.keys.table import MAIN
from streamfold.parking import FileParking, Parking, open_parking
from streamfold.records.envelope import Origins, records_of
from streamfold.routes.application import Application
from streamfold.run import Run
from streamfold.settings import Settings, undeclared_tables

if TYPE_CHECKING:
    from streamfold.run import Learned

Response = dict[str, list[dict[str, str]]]
NAMESPACE = "streamfold"
FAILURES_LOGGED_MAX = 20
TALKATIVE = ("aws_lambda_powertools", "boto3", "botocore", "opensearch", "opensearchpy", "s3transfer", "urllib3")
"""Loggers of libraries that tell requests, and so items, below INFO (botocore.endpoint, "Making request")."""
TOO_LITTLE_TIME = (
    "An invocation began with no more time than the {} seconds of STREAMFOLD_STOP_SECONDS, so that none of its records "
    "is processed: the function's timeout has to be longer, for example 60 seconds."
)

SAID = {word: said.log for kind in KINDS for word, said in kind.says.items() if said.log}
"""What is logged of a count, by word."""

log = logging.getLogger("streamfold")


class Function:
    """One application in one execution environment: settings read once, one client, one engine.

    What was seen stays known from batch to batch: the table that was adopted, and what was warned about.
    """

    def __init__(self, app: Application, settings: Settings, client: Any = None) -> None:
        self.app = app
        self.settings = settings
        self.client = client or make_client()
        self.engine: DynamoEngine | None = None
        self.origins = self._new_origins()
        self.warned: set[object] = set()
        self.parking = _parking(settings)
        self.opened: dict[str, Any] = {}
        self.learned: Learned = WeakKeyDictionary()
        for route in app.routes:
            derivation(route).check_settings(route, settings)
        _check_parking(app, settings)
        self.observe = _observer(app.name, settings)
        for text in undeclared_tables(settings, app.tables):
            self._warn(text)
        _keep_quiet()

    def __call__(self, event: Any, context: Any) -> Response:
        try:
            return self._processed(event, context)
        except Exception as error:  # noqa: BLE001 - Lambda logs the text of whatever is raised
            stopped = _in_public(error)
        raise stopped

    def _processed(self, event: Any, context: Any) -> Response:
        run = Run(self.settings, outside=True, warn=self._warn, warned=self.warned, context=context)
        run.parking, run.opened, run.learned = self.parking, self.opened, self.learned
        if context is not None:
            run.seconds_left = lambda: context.get_remaining_time_in_millis() / 1000
        changes, malformed = read_changes(records_of(event), self.origins)
        engine = self.engine or self._engine()
        engine.deadline = run
        if not run.enough_time():
            run.warn_once("time", TOO_LITTLE_TIME.format(self.settings.stop_seconds))
        try:
            report = process_changes(self.app, changes, engine, run, self.origins.sources)
        except ManifestError:  # what was learnt from records that are not taken says nothing about others
            self.origins = self._new_origins()
            raise
        report.failures[:0] = malformed
        self.observe(report, len(changes) + len(malformed))
        identifiers = dict.fromkeys(failure.sequence for failure in report.failures if failure.sequence)
        return {"batchItemFailures": [{"itemIdentifier": sequence} for sequence in identifiers]}

    def _new_origins(self) -> Origins:
        return Origins(
            self.app.source_tables,
            self.settings,
            self._warn,
            identify=lambda name: table_id(self.client, name),
        )

    def _warn(self, text: str) -> None:
        """Logs what a warning says without the item, once: of two items that is the same."""
        if (said := public(text)) not in self.warned:
            self.warned.add(said)
            log.warning(said)

    def _engine(self) -> DynamoEngine:
        """The engine, with the real names of the tables: set, or for an application without tables that of its
        stream.
        """
        real = self.origins.real_names()
        tables = {
            name: (table, self.settings.real_name(name) or real.get(name, name))
            for name, table in self.app.tables.items()
        }
        state_table = self.settings.state_table or f"{self.app.name}-state"
        engine = DynamoEngine(self.client, tables, state_table)
        if MAIN.name not in tables or real.get(MAIN.name):
            self.engine = engine
        return engine


_functions: dict[str, Function] = {}


def handle(app: Application, event: Any, context: Any) -> Response:
    """Processes one invocation; the first in an execution environment reads the settings and makes the client."""
    function = _functions.get(app.name)
    if function is None or function.app is not app:
        function = _functions[app.name] = Function(app, Settings.from_environment(os.environ))
    return function(event, context)


def handle_verify(app: Application, event: Any, context: Any, client: Any = None) -> dict[str, int]:
    """Processes one scheduled comparison of items with the state; returns its counts, logs and measures them."""
    try:
        return _verified(app, event, context, Settings.from_environment(os.environ), client)
    except Exception as error:  # noqa: BLE001 - Lambda logs the text of whatever is raised
        stopped = _in_public(error)
    raise stopped


def _verified(app: Application, event: Any, context: Any, settings: Settings, client: Any) -> dict[str, int]:
    from streamfold.lifecycle.scheduled import AskedSample, verify_sample

    _keep_quiet()
    if settings.logger:
        _powertools_logger(app.name)
    run = Run(settings, warn=lambda text: log.warning(public(text)), context=context)
    if context is not None:
        run.seconds_left = lambda: context.get_remaining_time_in_millis() / 1000
    tables = {name: (table, settings.real_name(name) or name) for name, table in app.tables.items()}
    engine = DynamoEngine(client or make_client(), tables, settings.state_table or f"{app.name}-state")
    engine.deadline = run
    found = verify_sample(app, engine, run, AskedSample.of(event), Random())  # noqa: S311 - a sample
    log.info("sample verified", extra=dict(found.counts))
    for text, by_handler in (("parts of items differ", found.different), ("items fail", found.failed)):
        for handler, count in by_handler.items():
            log.error(text, extra={"handler": handler, "count": count})
    if settings.metrics:
        _powertools_counts(app.name)(found.counts)
    return dict(found.counts)


def _in_public(error: Exception) -> Exception:
    """What ends the invocation, as Lambda may log it: without what it tells of an item, nor what caused it."""
    said = public(reason(error))
    if said == NOT_TOLD:
        stopped: Exception = StreamfoldError(
            f"{type(error).__name__} ended the invocation; what it says may be of an item."
        )
    else:
        stopped = type(error)(said)
    return stopped.with_traceback(error.__traceback__)


def _keep_quiet() -> None:
    """Libraries log what they send and receive, with items in it, where the root logger's level is DEBUG."""
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.INFO)


def _parking(settings: Settings) -> Parking | None:
    """The parking place. A function's own disk goes with its environment: a file there would lose what it takes."""
    if settings.park is None:
        return None
    parking = open_parking(settings.park)
    if isinstance(parking, FileParking):
        raise SettingsError(
            f"STREAMFOLD_PARK={settings.park!r} is a file, which goes when the function's environment does: expected "
            "s3://BUCKET/PREFIX or the URL of an SQS queue."
        )
    return parking


def _check_parking(app: Application, settings: Settings) -> None:
    """Refuses handlers that park, without a parking place: their failing records would come again until they are lost.

    Handlers of other groups run in other functions.
    """
    for route in app.routes if settings.park is None else ():
        parks_conflicts = route.kind.contributes and contributing(route).parks_conflicts(route)
        option = 'on_error="park"' if route.policy.parks else 'on_conflict="park"' if parks_conflicts else None
        if option is not None and settings.group in (None, route.group):
            raise SettingsError(
                f"Handler {route.name!r} ({route.declared_at}) has {option}, but the function has no parking place: "
                "expected STREAMFOLD_PARK=s3://BUCKET/PREFIX, or the URL of an SQS queue. Without one, declare "
                f"{option.replace('park', 'report' if 'conflict' in option else 'retry')}."
            )


def _observer(service: str, settings: Settings) -> Callable[[Report, int], None]:
    """Logs and measures a report with what is switched on."""
    if settings.logger:
        _powertools_logger(service)
    metrics = _powertools_metrics(service) if settings.metrics else None
    if settings.tracer:
        _powertools_tracer(service)

    def observe(report: Report, records: int) -> None:
        counts = {
            "records": records,
            "failed": len({failure.sequence for failure in report.failures}),
            "known": report.known,
            "parked": sum(report.parked.values()),
            **{word: report.counts[word].total() if word in report.counts else 0 for word in SAID},
            "unrouted": sum(report.unrouted.values()),
        }
        log.info("batch processed", extra=counts)
        for failure in report.failures[:FAILURES_LOGGED_MAX]:
            log.error(
                "record failed and comes again",
                extra={
                    "sequence": failure.sequence,
                    "handler": failure.handler,
                    "error_type": type(failure.error).__name__,
                    "reason": failure.reason,
                    "at": failure.at,
                    "held": failure.held,
                },
            )
        for handler, parked in report.parked.items():
            log.error("records were parked", extra={"handler": handler, "parked": parked})
        for word, text in SAID.items():
            for handler, count in report.counts.get(word, {}).items():
                log.warning(text, extra={"handler": handler, word: count})
        if metrics is not None:
            metrics(counts, report)

    return observe


def _powertools_logger(service: str) -> None:
    from aws_lambda_powertools import Logger
    from aws_lambda_powertools.logging.utils import copy_config_to_registered_loggers

    copy_config_to_registered_loggers(Logger(service=service), include={log.name})


def _powertools_metrics(service: str) -> Callable[[Mapping[str, int], Report], None]:
    emit = _powertools_counts(service)

    def observed(counts: Mapping[str, int], report: Report) -> None:
        emit({**counts, "rows_written": sum(tally.written for tally in report.tallies.values())})

    return observed


def _powertools_counts(service: str) -> Callable[[Mapping[str, int]], None]:
    from aws_lambda_powertools import Metrics
    from aws_lambda_powertools.metrics import MetricUnit

    metrics = Metrics(namespace=NAMESPACE, service=service)

    def emit(counts: Mapping[str, int]) -> None:
        for name, count in counts.items():
            metrics.add_metric(name=name, unit=MetricUnit.Count, value=count)
        metrics.flush_metrics()

    return emit


def _powertools_tracer(service: str) -> None:
    from aws_lambda_powertools import Tracer

    try:
        Tracer(service=service)  # patches boto3, so that every request shows in the trace
    except ModuleNotFoundError:
        raise SettingsError(
            "STREAMFOLD_TRACER is on, but the AWS X-Ray SDK is not installed: add aws-lambda-powertools[tracer] to the "
            "function's requirements, or switch the tracer off."
        ) from None
