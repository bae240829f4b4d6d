"""What a function logs and measures: counts, names of handlers, and what failed without contents of items."""

from collections.abc import Callable, Mapping

from streamfold.batch.report import Report
from streamfold.derivations import SAYS
from streamfold.errors import SettingsError
from streamfold.lambda_entry.lines import NAMESPACE, Emit, log, metric_lines, unit_of, write_log
from streamfold.runtime import SendingPace
from streamfold.settings import Settings

FAILURES_LOGGED_MAX = 20

SAID = {word: said.log for word, said in SAYS.items() if said.log}
"""What is logged of a count, by word."""
NEAR_MISS = "records match a handler's key but for a field, and no handler of the key reads them"


def observer(service: str, settings: Settings) -> Callable[[Report, int, SendingPace], None]:
    """Logs and measures a report with what is switched on."""
    start_log(service, settings)
    measure = measuring(service, settings)
    if settings.tracer:
        _powertools_tracer(service)

    def observe(report: Report, records: int, pace: SendingPace) -> None:
        actions, conflicts = pace.told()
        counts = {
            "records": records,
            "failed": len({failure.sequence for failure in report.failures}),
            "known": report.known,
            "parked": sum(report.parked.values()),
            **{word: report.counts[word].total() if word in report.counts else 0 for word in SAID},
            "unrouted": sum(report.unrouted.values()),
            "near_misses": report.near_missed,
            "transaction_conflicts": conflicts,
            "transaction_actions": min(actions, settings.chunk_actions),
        }
        log.info("batch processed", extra=counts)
        log_failures(report, "record failed and comes again")
        for (key, name), count in report.near_misses.items():
            log.warning(NEAR_MISS, extra={"key": key, "field": name, "near_misses": count})
        for word, text in SAID.items():
            for handler, count in report.counts.get(word, {}).items():
                log.warning(text, extra={"handler": handler, word: count})
        measure({**counts, "rows_written": sum(tally.written for tally in report.tallies.values())})

    return observe


def log_failures(report: Report, text: str) -> None:
    """Logs what failed or was parked, without contents of items."""
    for failure in report.failures[:FAILURES_LOGGED_MAX]:
        log.error(
            text,
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


def start_log(service: str, settings: Settings) -> None:
    """Has the log written as JSON, with the name of the service, where that is switched on."""
    if not settings.logger:
        return
    if not settings.powertools:
        write_log(service)
        return
    from aws_lambda_powertools import Logger
    from aws_lambda_powertools.logging.utils import copy_config_to_registered_loggers

    copy_config_to_registered_loggers(Logger(service=service), include={log.name})


def measuring(service: str, settings: Settings) -> Emit:
    """Gives a function that measures counts, in the embedded metric format; one that does nothing if switched off."""
    if not settings.metrics:
        return lambda _: None
    return _powertools_counts(service) if settings.powertools else metric_lines(service)


def _powertools_counts(service: str) -> Emit:
    from aws_lambda_powertools import Metrics

    metrics = Metrics(namespace=NAMESPACE, service=service)

    def emit(counts: Mapping[str, int]) -> None:
        for name, count in counts.items():
            metrics.add_metric(name=name, unit=unit_of(name), value=count)
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
