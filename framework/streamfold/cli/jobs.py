"""``streamfold jobs``: runs over all items and open fan-outs. Other commands process their fan-outs here, too."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from streamfold.batch.fan_outs import OpenFanOut, enqueue_open, open_fan_outs, run_chains, run_fan_outs
from streamfold.batch.report import Report as BatchReport
from streamfold.cli import shell
from streamfold.cli.items import item_text, name_text
from streamfold.cli.output import Report, counted, note
from streamfold.cli.session import Session
from streamfold.commit.outcome import Failure, by_cause
from streamfold.errors import SettingsError, printable
from streamfold.jobs.fan_outs import ROWS, is_over
from streamfold.jobs.job import Job, Jobs
from streamfold.lifecycle.backfill import BackfillProgress, ShowProgress
from streamfold.routes.moments import moment_text
from streamfold.runtime import Runtime

if TYPE_CHECKING:
    from streamfold.ledger.wakes import Wake

FAILED_SHOWN = 20
NAMED_MAX = 5
ALL = "all"
RATES = ("read_units", "write_units")


@shell.command(
    "jobs",
    "List, pause and change runs over all items; go on with open fan-outs.",
    shell.STATE_OPTIONS,
    shell.value("--pause", "JOB", "Pause a job after its current page.", callback=shell.utf8),
    shell.value("--resume", "JOB", "Let a paused job go on.", callback=shell.utf8),
    shell.value("--end", "JOB", "End a job; its writes are kept.", callback=shell.utf8),
    shell.value(
        "--set", "JOB NAME=VALUE", "Change read_units or write_units of a job.", "change", nargs=2, callback=shell.utf8
    ),
    shell.value(
        "--ring",
        "[FAN_OUT]",
        "Go on with all open fan-outs, or with one: enqueue them to STREAMFOLD_JOBS, or process them here if it is not "
        "set.",
        is_flag=False,
        flag_value=ALL,
        callback=shell.utf8,
    ),
    shell.exclusive("--pause", "--resume", "--end", "--set", "--ring"),
    shell.yes_flag(),
    shell.json_flag("Print one JSON object a line."),
    outside=True,
)
def jobs(opened: Session) -> Report:
    """List the runs of backfill, rebuild and search rebuild: their handlers, progress and rates. Then list the open
    fan-outs of feeds and cascades: their segments, the rows that they wrote, and their age.

    A running job reads these settings every 5 seconds. To continue a job that was stopped, give the command that began
    it again. Jobs are kept for 90 days after their end.

    \b
    Examples:
      streamfold jobs --engine dynamodb
      streamfold jobs --engine dynamodb --pause 20260301-100000-a1b2
      streamfold jobs --engine dynamodb --set 20260301-100000-a1b2 write_units=500
      streamfold jobs --ring --state social.db
      streamfold jobs --engine dynamodb --table main=social --ring timeline-push-0a1b2c3d4e5f
    """
    given, runtime = opened.given, opened.runtime
    known = Jobs.of(runtime)
    if given.pause or given.resume or given.change or given.end or (given.ring and opened.settings.jobs is None):
        opened.confirm_writes()
    failures = enqueue_again(runtime, "" if given.ring == ALL else given.ring) if given.ring else ()
    if given.pause or given.resume:
        known.change(given.pause or given.resume, paused=bool(given.pause))
    if given.change:
        known.change(given.change[0], **_rate(given.change[1]))
    if given.end:
        known.end(given.end)
    found = [_job_line(known, job) for job in known.all()] + list(fan_out_lines(runtime)) + list(wake_lines(runtime))
    lines = [text for _, text in found] or ["There are no jobs."]
    return Report(lines, [value for value, _ in found], bool(failures))


def _rate(text: str) -> dict[str, int]:
    name, _, number = text.partition("=")
    if name not in RATES or not number.isdecimal():
        raise SettingsError(f"--set {text!r}: expected read_units=N or write_units=N, in units a second; 0: no limit.")
    return {name: int(number)}


def _job_line(known: Jobs, job: Job) -> tuple[dict[str, Any], str]:
    """A job as JSON and as text."""
    done = job.segments if job.done else sum(each.done for each in known.segments(job).values())
    state = "done" if job.done else "ended" if job.ended else "paused" if job.paused else "open"
    found = {"id": job.id, "what": job.what, "handlers": job.handlers, "state": state, "segments": job.segments}
    counts = "".join(f", {number:,} {word}" for word, number in job.counts.items())
    name = f"{name_text(job.id)}  {job.what} {handlers_text(job.handlers)}"
    rates = {rate: getattr(job, rate) for rate in RATES}
    return {**found, "segments_done": done, **rates}, f"{name}: {state}, {done} of {job.segments} segments{counts}"


def keys_text(number: int, *, exported: bool = False, orphans_scanned: bool = True) -> str:
    """The number of keys that a run has read, and their source. An orphan scan reads the state, too."""
    return (
        f"{counted(number, 'key')} of the {'export' if exported else 'tables'}{' and the state' * orphans_scanned} read"
    )


def handlers_text(handlers: Sequence[str]) -> str:
    """The handlers of a run in one line, or their number if they are many."""
    return ", ".join(handlers) if len(handlers) <= NAMED_MAX else f"{len(handlers)} handlers"


def wake_lines(runtime: Runtime) -> Iterator[tuple[dict[str, Any], str]]:
    """Each handler with items that wait for a visit, because their moment has come, or because the handler raised at
    it; as JSON and as text.
    """
    if not runtime.application.asks_time:
        return
    from streamfold.batch.wakes import late_wakes, put_off_wakes  # few applications ask for the time

    asking = [route for route in runtime.application.routes if route.asks_time]
    for route in asking:
        if wakes := put_off_wakes(runtime, route):
            yield _put_off_line(route.name, wakes)
    for each in late_wakes(runtime, asking):
        if each.stripes:
            name, age = each.route.name, int(each.oldest_seconds)
            runs = runtime.settings.runs(name, each.route.group)
            found = {
                "wakes": name,
                "stripes": len(each.stripes),
                "age_seconds": age,
                "state": "late" if runs else "off",
            }
            why = "" if runs else ", not of this group, or off"
            yield found, f"wakes of {name}: items wait for a visit since {_duration(age)}{why}"


def _put_off_line(handler: str, wakes: "Sequence[Wake]") -> tuple[dict[str, Any], str]:
    first, tried = moment_text(wakes[0].first_moment), moment_text(min(each.moment for each in wakes))
    found = {"wakes": handler, "state": "put off", "items": len(wakes), "first_moment": first, "next_try": tried}
    text = (
        f"wakes of {handler}: {counted(len(wakes), 'item')} put off, because the handler raises; the first since "
        f"{first}, {item_text(wakes[0].item)}; next try {tried}"
    )
    return found, text


def fan_out_lines(runtime: Runtime) -> Iterator[tuple[dict[str, Any], str]]:
    """Each open fan-out, as JSON and as text."""
    names = {route.name for route in runtime.application.routes}
    for each in open_fan_outs(runtime):
        (handler,) = each.job.handlers
        state = "open"
        if each.route is None:
            state = "not of this group, or off" if handler in names else "retired"
        done, rows = sum(map(is_over, each.segments)), sum(segment.counts.get(ROWS, 0) for segment in each.segments)
        age = int(each.age_seconds(runtime.clock()))
        found = {"fan_out": each.job.id, "handler": handler, "what": each.job.what, "state": state}
        counts = {"lanes": each.job.segments, "lanes_done": done, "rows": rows, "age_seconds": age}
        failing = sum(len(segment.failing) for segment in each.segments)
        counts |= {"items_failing": failing} if failing else {}
        kept = f", {counted(failing, 'item')} failing" if failing else ""
        yield (
            {**found, **counts},
            (
                f"{each.job.id}  {each.job.what} of {handler}: {state}, {done} of {each.job.segments} segments, "
                f"{rows:,} rows, for {_duration(age)}{kept}"
            ),
        )


def _duration(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} seconds"
    return f"{seconds // 60} minutes" if seconds < 7200 else f"{seconds // 3600} hours"


def enqueue_again(runtime: Runtime, identity: str) -> Sequence[Failure]:
    """Enqueues open fan-outs, all or the one of an id. Without a queue, processes them here until all are done.

    Returns the failures. Raises ``SettingsError`` for a fan-out that is not open, or not of this process.
    """
    if identity:
        found = _known(runtime, identity)
        if found.route is None:
            raise SettingsError(
                f"Fan-out {identity} is of handler {found.job.handlers[0]!r}, which is retired, switched off, or of "
                "another group than STREAMFOLD_GROUP: no process would work on it."
            )
        runtime.enqueue(identity, [segment.number for segment in found.pending])
        count = len(found.pending)
    else:
        count = enqueue_open(runtime)
    queued = runtime.settings.jobs is not None and not runtime.store.is_local
    report = follow_fan_outs(runtime)
    rows = sum(tally.written for tally in report.tallies.values())
    note(f"Enqueued {count} segments." if queued else f"Processed {count} segments: {rows:,} rows written.")
    note_failed(report.failures)
    return report.failures


def _known(runtime: Runtime, identity: str) -> OpenFanOut:
    for each in open_fan_outs(runtime):
        if each.job.id == identity:
            return each
    raise SettingsError(f"Fan-out {identity} is not open: streamfold jobs lists those that are.")


def follow_fan_outs(runtime: Runtime) -> BatchReport:
    """Processes the fan-outs that a command opened: in the function of STREAMFOLD_JOBS, or here if none is set.

    A local state has no queue, so its fan-outs are processed here.
    """
    if runtime.settings.jobs is None or runtime.store.is_local:
        return run_fan_outs(runtime)
    from streamfold.jobs.fan_outs import SegmentQueue

    queued, runtime.queued = runtime.queued, []
    if queued:
        SegmentQueue(runtime.application.name, runtime.settings.jobs, runtime.warn).enqueue(queued)
    return BatchReport()


def with_fan_outs(runtime: Runtime, show: ShowProgress, failures: list[Failure]) -> ShowProgress:
    """Processes the fan-outs that a page of a run opened, after each page. A fan-out that fails stays open.

    failures: receives the first failures.
    """

    def after_page(progress: BackfillProgress) -> None:
        show(progress)
        failures.extend(follow_fan_outs(runtime).failures[: FAILED_SHOWN - len(failures)])

    return after_page


def followed_chains(opened: Session) -> Sequence[Failure]:
    """Processes the fan-outs, and on a local state the handlers that read derived rows; returns the failures.

    On AWS a stream delivers derived rows, and with STREAMFOLD_JOBS a queue delivers fan-outs.
    """
    if opened.local is None:
        failures = follow_fan_outs(opened.runtime).failures
    else:
        opened.local.retry(opened.settings.group)
        failures = run_chains(opened.runtime, opened.local).failures
    note_failed(failures[:FAILED_SHOWN], "chains: ")
    if (hidden := len(failures) - FAILED_SHOWN) > 0:
        note(f"... and {hidden:,} more.")
    return failures


def note_failed(failures: Sequence[Failure], what: str = "") -> None:
    """Prints failures. A fan-out that failed stays open, and streamfold jobs lists it."""
    for failure, count in by_cause(failures, lambda each: each.cause):
        others = f" So did {count - 1:,} more, for the same reason." if count > 1 else ""
        note(f"Failed: {what}{printable(str(failure))}{others}")
