"""``streamfold replay --cost``: what a million records like those of a recording cost, and what each handler adds."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from streamfold.app import App
from streamfold.batch.report import Report as BatchReport
from streamfold.cli import shell
from streamfold.cli.output import Grid, Note, Printed, Report, counted, each_counted, progress_bar
from streamfold.cli.report import ReportTable, Section, check_page, section, write_sections
from streamfold.cli.session import Session
from streamfold.deploy.functions import QUEUE, STREAM, DeployedFunction, Deployment
from streamfold.deploy.sam import SamTemplate
from streamfold.engines.capacity import PRICE_DATE, PRICE_REGION, dollars
from streamfold.engines.dynamodb_client import Consumed
from streamfold.errors import SettingsError
from streamfold.lambda_entry.queue import OPEN_METRICS, WORKED_METRICS
from streamfold.lambda_entry.telemetry import Processed, batch_numbers, metrics_line
from streamfold.lifecycle.verify import SAMPLE_METRICS
from streamfold.replay.costs import LAMBDA_BATCH_RECORDS, MILLION, Costs, Counted, Usage, beginning, costs, count_run
from streamfold.replay.files import STANDARD_INPUT, BadLine, RecordedFiles
from streamfold.replay.replay import FileEntry
from streamfold.runtime import SendingPace
from streamfold.settings import Settings

COUNTED_RECORDS_MAX = 1000
"""Records whose costs a page shows: more would take a tenth of a replay's time and longer."""
COLUMNS = ("requests", "write units", "read units", "dollars")
NOT_COUNTED = (
    "Not counted: writes of the items themselves, the stream, Lambda, storage, search servers, buckets, external "
    "calls, and retries where functions meet."
)
SHARED = "Handlers share ledger items, transactions and rows: savings do not add up, and chains save with their source."
REFUSED = (
    *("--state", "--fresh", "--engine", "--endpoint-url", "--dry-run", "--force", "--external", "--park"),
    *("--put-sources", "--create-tables", "--search-url", "--yes", "--samples", "--rows", "--chaos"),
)
"""Options of a replay about its store and its rows: a count has its own empty store, and shows no row."""
COST_OPTIONS = (
    shell.flag(
        "--cost",
        "Count requests and units in memory, and print what a million such records cost on DynamoDB, and what "
        "switching off each handler saves. Nothing is written.",
    ),
    shell.PRICES,
    shell.belongs("--price-read", "--cost"),
    shell.belongs("--price-write", "--cost"),
    shell.refuses(
        "--cost",
        *REFUSED,
        why="{other} does not go with --cost, which counts in memory on empty tables and writes nothing: leave it out.",
    ),
)


def cost_report(opened: Session) -> Report:
    """Counts the records of the files, with all handlers and without each one. No store is opened."""
    given = opened.given
    check_page(opened)
    entries = _entries(opened)
    batch_records = _batch_records(opened)
    found = costs(opened.app, opened.settings, entries, batch_records, lambda names: _shown_runs(opened, names))
    if not found.application.records:
        raise SettingsError("No record of the application's own items was read: name files that hold some.")
    if given.html is not None:
        write_sections(opened, [_section(opened, found)])
    return Report(_lines(opened, found), _object(opened, found), bool(found.application.failed))


def _entries(opened: Session) -> list[FileEntry]:
    """The first records of the files."""
    entries = beginning(RecordedFiles(opened.given.files))
    bad = next((entry for entry in entries if isinstance(entry, BadLine)), None)
    if bad is not None and not opened.given.keep_going:
        why = bad.why.rstrip(".")
        raise SettingsError(f"Bad line: {bad.line}: {why}. --keep-going leaves bad lines out.")
    return entries


def _shown_runs(opened: Session, names: Sequence[str]) -> Iterator[str]:
    with progress_bar("runs", len(names), shown=not opened.given.json_output) as show:
        for number, name in enumerate(names if show else each_counted("runs", names)):
            yield name
            if show:
                show(number + 1, f"without {name}")


def _dollars(opened: Session, usage: Usage) -> float:
    return dollars(usage.write_units, usage.read_units, opened.given.price_write, opened.given.price_read)


def _numbers(opened: Session, usage: Usage) -> list[float]:
    return [*(round(number) for number in usage), round(_dollars(opened, usage), 3)]


def _cells(opened: Session, usage: Usage) -> list[str]:
    *numbers, cost = _numbers(opened, usage)
    return [f"{number:,}" for number in numbers] + [f"{cost:,.2f}"]


def _by_saving(opened: Session, found: Costs) -> list[tuple[str, Usage]]:
    return sorted(found.saved.items(), key=lambda entry: -_dollars(opened, entry[1]))


def _batch_records(opened: Session) -> int:
    return min(opened.given.batch_size or LAMBDA_BATCH_RECORDS, LAMBDA_BATCH_RECORDS)


def _basis(opened: Session, run: Counted) -> list[str]:
    """What the numbers hold for."""
    given = opened.given
    prices = (
        f"Prices on demand: ${given.price_write} for a million write units, ${given.price_read} for a million read "
        f"units; the default is that of {PRICE_REGION} since {PRICE_DATE}."
    )
    batch = _batch_records(opened)
    refused = run.refused.write_units / (run.usage.write_units or 1)
    notes = [
        f"Counted over the first {counted(run.records, 'record')}, in batches of {batch}, on empty tables.",
        f"Write units of transactions that a guard refused, and which were planned again: {refused:.0%}.",
        f"Each change of the code costs {round(run.once.write_units)} write units more, for manifest and schemas.",
        prices,
        NOT_COUNTED,
    ]
    if run.derived:
        notes.append(f"{counted(run.derived, 'record')} of targets left out: their rows are derived anew.")
    if run.failed:
        notes.append(f"{counted(run.failed, 'record')} failed; their writes are missing from the numbers.")
    return notes


def counted_section(opened: Session) -> Section:
    """The section of a page for a million records like the first ones of the files, with all handlers."""
    if STANDARD_INPUT in opened.given.files:
        return section("Costs", ["Not estimated: standard input is read once. Give a file."])
    entries = beginning(RecordedFiles(opened.given.files), COUNTED_RECORDS_MAX)
    run = count_run(opened.app, opened.settings, entries, _batch_records(opened))
    if not run.records:
        return section("Costs", ["Not estimated: no record was read."])
    more = "streamfold replay --cost counts more records, and what each handler adds."
    return section("Costs", [*_basis(opened, run), more], [_table(opened, run.a_million(run.usage))])


def _section(opened: Session, found: Costs) -> Section:
    rows = [[name, *_numbers(opened, usage)] for name, usage in _by_saving(opened, found)]
    saved = ReportTable("Saved by switching off", ("handler", *COLUMNS), rows)
    return section(
        "Costs",
        [*_basis(opened, found.application), SHARED],
        [_table(opened, found.application.a_million(found.application.usage)), saved],
    )


def _table(opened: Session, usage: Usage) -> ReportTable:
    cells = zip(COLUMNS, _numbers(opened, usage), strict=True)
    return ReportTable("A million records", ("what", "number"), [list(cell) for cell in cells])


def _lines(opened: Session, found: Costs) -> Iterator[Printed]:
    run = found.application
    rows = [
        [f"in batches of {size}", *_cells(opened, counted_run.a_million(counted_run.usage))]
        for size, counted_run in found.sizes.items()
    ]
    yield Grid(("a million records", *COLUMNS), rows, COLUMNS)
    yield ""
    saved = [[name, *_cells(opened, usage)] for name, usage in _by_saving(opened, found)]
    yield Grid(("saved by switching off", *COLUMNS), saved, COLUMNS)
    yield Note(f"{found.runs} runs: one with all handlers, and one without each. {SHARED}")
    yield from map(Note, [*run.outside, *_basis(opened, run)])
    yield from map(Note, _observed(opened, found))


def _observed(opened: Session, found: Costs) -> Iterator[str]:
    """What CloudWatch bills besides."""
    try:
        watched = observation(opened.app, opened.settings)
    except SettingsError as error:
        yield f"Metrics and alarms are not priced: {error}"
        return
    yield (
        f"CloudWatch, of all functions that streamfold template prints: {counted(watched.metrics, 'metric')} at "
        f"${PRICE_METRIC:.2f} and {watched.alarms} of alarms at ${PRICE_ALARM:.2f} are ${watched.dollars_a_month:.2f} "
        "a month, at any rate."
    )
    lines = ", ".join(
        f"${log_dollars(watched.log_bytes(MILLION, size)):.2f} in batches of {size}" for size in found.sizes
    )
    yield (
        f"Log lines of a million records, at ${PRICE_LOG_GIGABYTE:.2f} a GB: {lines}. Lambda's own lines come on top."
    )


def _object(opened: Session, found: Costs) -> dict[str, Any]:
    def of(usage: Usage) -> dict[str, float]:
        numbers = {name: round(number) for name, number in usage._asdict().items()}
        return {**numbers, "dollars": round(_dollars(opened, usage), 4)}

    run = found.application
    sizes = {str(size): of(counted_run.a_million(counted_run.usage)) for size, counted_run in found.sizes.items()}
    return {
        **_observed_object(opened, found),
        "batches": sizes,
        "records": run.records,
        "derived": run.derived,
        "failed": run.failed,
        **({"outside": list(run.outside)} if run.outside else {}),
        "batch_records": found.batch_records,
        "runs": found.runs,
        "a_million": of(run.a_million(run.usage)),
        "saved_without": {name: of(usage) for name, usage in _by_saving(opened, found)},
        "refused": of(run.a_million(run.refused)),
        "once": of(run.once),
        "prices": {"write": opened.given.price_write, "read": opened.given.price_read},
    }


def _observed_object(opened: Session, found: Costs) -> dict[str, Any]:
    try:
        watched = observation(opened.app, opened.settings)
    except SettingsError:
        return {"observation": None}
    log = {str(size): round(log_dollars(watched.log_bytes(MILLION, size)), 4) for size in found.sizes}
    a_month = round(watched.dollars_a_month, 2)
    return {
        "observation": {"metrics": watched.metrics, "alarms": watched.alarms, "dollars_a_month": a_month, "log": log}
    }


# What CloudWatch bills.

PRICE_METRIC, PRICE_ALARM, PRICE_LOG_GIGABYTE = 0.30, 0.10, 0.50
"""Dollars a month for a metric (of the first 10,000) and for each metric of an alarm; for each gigabyte of log lines
(CloudWatch pricing, us-east-1; standard resolution, standard log class)."""
GIGABYTE = 10**9
ALARM = "AWS::CloudWatch::Alarm"
OF_HANDLER = 4
"""Metrics of each handler with ``STREAMFOLD_OBSERVE_HANDLERS`` (docs/alarms.md)."""
FRESHNESS = "freshness_seconds"
"""The metric that a batch without an applied record has not."""


class Observation(NamedTuple):
    """What watches an application, and what each batch writes."""

    metrics: int  # custom metrics of all functions
    alarms: int  # metrics that alarms read: CloudWatch bills each
    line_bytes: int  # the line of a batch without a failure

    @property
    def dollars_a_month(self) -> float:
        return self.metrics * PRICE_METRIC + self.alarms * PRICE_ALARM

    def log_bytes(self, records: float, batch_records: int) -> float:
        """The bytes of lines for records that come in batches of this size."""
        return self.line_bytes * records / batch_records


def log_dollars(log_bytes: float) -> float:
    return log_bytes / GIGABYTE * PRICE_LOG_GIGABYTE


def observation(app: App, settings: Settings) -> Observation:
    """Counts for all functions of an application. Raises ``SettingsError`` for one that no template can hold."""
    deployment = Deployment(app, app.name)
    resources = SamTemplate(deployment).content["Resources"].values()
    alarms = sum(_metrics_read(each["Properties"]) for each in resources if each["Type"] == ALARM)
    processed = Processed(BatchReport(), (), 0, Consumed(), 0.1, 0.0)
    numbers = {**batch_numbers(processed, SendingPace(), settings), FRESHNESS: 0.5}
    line = metrics_line({"service": app.name, "function": f"{app.name}-Projector"}, numbers)
    metrics = sum(_metrics(each, len(numbers), settings) for each in deployment.functions)
    if settings.observe == "off":
        return Observation(0, alarms, 0)
    return Observation(metrics, alarms, len(line))


def _metrics(function: DeployedFunction, of_batch: int, settings: Settings) -> int:
    """The metrics of a function, each name once. Those of deltas come only where functions meet at rows."""
    if function.sort == STREAM:
        of_batch += any(route.parts for route in function.routes)
        return of_batch + (OF_HANDLER * len(function.routes) if settings.observe_handlers else 0)
    return len(OPEN_METRICS) + len(WORKED_METRICS) if function.sort == QUEUE else len(SAMPLE_METRICS)


def _metrics_read(alarm: Mapping[str, Any]) -> int:
    return sum("MetricStat" in each for each in alarm.get("Metrics", ())) or 1
