"""The queue's Lambda entry: messages name segments of fan-outs, and a schedule queues idle segments again.

A message is acknowledged when its segment is done, or when the next message for the segment was sent. So a long
segment spends no receives: only a failure is redelivered, and reaches the dead-letter queue.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from streamfold.batch.fan_outs import watch_open, work_on
from streamfold.batch.process import check_application
from streamfold.batch.report import Report, Response, merge, response_of
from streamfold.commit.outcome import Failure
from streamfold.engines.deadline import TIME_OVER
from streamfold.errors import EngineUnavailable, NotStarted, RecordError, SettingsError
from streamfold.jobs.fan_outs import read_message
from streamfold.keys.table import MAIN
from streamfold.lambda_entry.function import Function, function_of
from streamfold.lambda_entry.telemetry import is_troubled, log_counts, log_failures, measuring
from streamfold.routes.application import Application
from streamfold.runtime import VISITS, QueuedSegment, Runtime
from streamfold.settings import Settings
from streamfold.settings.limits import CALL_SECONDS_MAX

STILL_SECONDS = 300
"""A segment that is idle for so long is queued again; a page of a segment takes seconds."""
RING = {"ring": True}
"""The event of the schedule."""
WAKE = {"wake": True}
"""The event of the schedule for handlers that ask for the time."""
WAKE_METRIC = "wake_oldest_seconds"
AGE_METRIC = "fan_out_oldest_seconds"
WORKED_METRICS = ("lanes", "lanes_handed_over", "lanes_failed", "items_failed", "parked", "rows_written")
OPEN_METRICS = ("fan_outs_open", AGE_METRIC, "lanes_rung")
"""Metrics of an invocation for segments, and of one for the schedule."""
SQS = "aws:sqs"
NOT_SENT = "The next message for this segment could not be sent; this one is redelivered."
NO_TIME = f"{TIME_OVER} The timeout of the function has to be longer, for example 120 seconds."
FAILED = "segment failed and is redelivered"
ITEM_FAILED = "item failed and is visited again"


class QueueFunction(Function):
    """The function behind the queue, in one execution environment."""

    unit = "segments"

    def __init__(self, app: Application, settings: Settings, client: Any = None) -> None:
        if settings.engine is not None:
            raise SettingsError(
                f"STREAMFOLD_ENGINE={settings.engine!r} is set, and jobs_handler works on DynamoDB: a local state has "
                "no queue, and its fan-outs are worked on where they are opened. streamfold jobs --ring goes on with "
                "open ones."
            )
        if settings.jobs is None:
            raise SettingsError(
                "STREAMFOLD_JOBS is not set: expected the URL of the queue that calls jobs_handler, which sends the "
                "next message for a segment that it cannot end in time."
            )
        if MAIN.name in app.tables and not settings.real_name(MAIN.name):
            raise SettingsError("STREAMFOLD_TABLE_MAIN is not set: no record gives jobs_handler the table's name.")
        super().__init__(app, settings, client)
        self.emit = measuring(app.name, settings)

    def _processed(self, event: Any, context: Any) -> Response:
        # The earlier stop leaves time to send the messages that hand segments over.
        runtime = self.runtime_of(context, self.settings.stop_seconds + CALL_SECONDS_MAX)
        if event == RING:
            self._watched(runtime)
            return response_of([])
        if event == WAKE:
            self._woken(runtime)
            return response_of([])
        return response_of(self._worked(messages_of(event), runtime).failures)

    def _watched(self, runtime: Runtime) -> None:
        """Queues idle segments again, and measures the age of the oldest fan-out."""
        found = watch_open(runtime, still_seconds=STILL_SECONDS)
        self.enqueue(runtime, self._time_to_enqueue(runtime))
        numbers = found.fan_outs, int(found.oldest_seconds), found.queued
        counts = dict(zip(OPEN_METRICS, numbers, strict=True))
        log_counts("open fan-outs were read", counts, self.settings)
        self.emit(counts)

    def _woken(self, runtime: Runtime) -> None:
        """Queues the stripes with wakes whose moment has come, and measures how late the oldest of each handler is."""
        from streamfold.batch.wakes import enqueue_stripes  # few applications ask for the time

        check_application(runtime, write=False)
        ages = enqueue_stripes(runtime)
        self.enqueue(runtime, self._time_to_enqueue(runtime))
        counts = {WAKE_METRIC: int(max(ages.values(), default=0))}
        log_counts("wakes were read", counts, self.settings)
        self.emit(counts)
        for handler, seconds in ages.items() if self.settings.observe_handlers else ():
            measuring(self.app.name, self.settings, handler)({WAKE_METRIC: int(seconds)})

    def _worked(self, messages: Sequence[Mapping[str, Any]], runtime: Runtime) -> Report:
        report, segments = Report(), dict[QueuedSegment, list[str]]()
        for message in messages:
            identity = message["messageId"]
            try:
                segments.setdefault(read_message(message.get("body"), self.app.name), []).append(identity)
            except RecordError as error:
                report.failures.append(Failure(identity, "message", None, error))
        # Too little time at the begin fails the messages: handing over segments that never begin would go on for ever.
        begun = runtime.enough_time()
        for queued, identities in segments.items():
            if begun:
                merge(report, self._worked_on(queued, identities, runtime))
            else:
                report.failures += _failed(queued, identities, NotStarted(NO_TIME))
        handed = [queued for queued in dict.fromkeys(runtime.queued) if queued in segments]
        for queued in self.enqueue(runtime, self._time_to_enqueue(runtime)):
            report.failures += _failed(queued, segments.get(queued, ()), NotStarted(NOT_SENT))
        self._observe(report, len(segments), len(handed))
        return report

    def _worked_on(self, queued: QueuedSegment, identities: Sequence[str], runtime: Runtime) -> Report:
        """Works on a segment; its failures have the ids of its messages."""
        try:
            report = _work(runtime, queued)
        except NotStarted:
            runtime.enqueue(queued[0], [queued[1]])
            return Report()
        except EngineUnavailable as error:
            return Report(failures=_failed(queued, identities, error))
        # Those of items have no message: the segment goes on, and the schedule comes back to them.
        report.failures = [
            failure if failure.sequence is None else failure._replace(sequence=identity)
            for failure in report.failures
            for identity in (identities if failure.sequence is not None else identities[:1])
        ]
        return report

    def _time_to_enqueue(self, runtime: Runtime) -> Callable[[], bool]:
        return lambda: runtime.seconds_left() > self.settings.stop_seconds

    def _observe(self, report: Report, segments: int, handed: int) -> None:
        items = [failure for failure in report.failures if failure.sequence is None]
        report.failures = [failure for failure in report.failures if failure.sequence is not None]
        failed = len({failure.sequence for failure in report.failures})
        rows_written = sum(tally.written for tally in report.tallies.values())
        numbers = segments, handed, failed, len(items), sum(report.parked.values()), rows_written
        counts = dict(zip(WORKED_METRICS, numbers, strict=True))
        trouble = bool(items) or is_troubled(report)
        log_counts("segments were worked on", counts, self.settings, trouble=trouble)
        log_failures(report, FAILED)
        log_failures(Report(items), ITEM_FAILED)
        self.emit(counts)


def _work(runtime: Runtime, queued: QueuedSegment) -> Report:
    if not queued[0].startswith(VISITS):
        return work_on(runtime, queued)
    from streamfold.batch.wakes import visit_stripe  # few applications ask for the time

    return visit_stripe(runtime, queued)


def messages_of(event: Any) -> Sequence[Mapping[str, Any]]:
    """The messages of an event. Raises ``RecordError`` if the event is no batch of a queue."""
    records = event.get("Records") if isinstance(event, Mapping) else None
    if not isinstance(records, list) or not all(
        isinstance(record, Mapping) and record.get("eventSource") == SQS and isinstance(record.get("messageId"), str)
        for record in records
    ):
        raise RecordError(
            'The event is no batch of SQS messages: expected {"Records": [{"eventSource": "aws:sqs", "messageId": ..., '
            '"body": ...}]}, or {"ring": true} or {"wake": true} of a schedule. Records of a stream go to '
            "lambda_handler."
        )
    return records


def _failed(queued: QueuedSegment, identities: Sequence[str], error: Exception) -> list[Failure]:
    return [Failure(identity, f"fan-out {queued[0]}, segment {queued[1]}", None, error) for identity in identities]


def handle_queue(app: Application, event: Any, context: Any) -> Response:
    """Processes one invocation of the queue's function."""
    return function_of(app, QueueFunction)(event, context)
