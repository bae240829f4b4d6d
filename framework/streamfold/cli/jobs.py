"""``streamfold jobs``: the runs over all items, and how far they are."""

import json
import sys
from collections.abc import Sequence
from contextlib import closing

import click

from streamfold.cli.engines import (
    REPORTED,
    Store,
    application_and_settings,
    confirm_writes,
    make_runtime,
    open_store,
    state_options,
)
from streamfold.cli.fan_outs import drop, fan_out_lines, ring_again
from streamfold.cli.grids import counted
from streamfold.cli.output import echo
from streamfold.cli.rows import name_text, typed_text
from streamfold.cli.shared_options import check_one
from streamfold.errors import SettingsError
from streamfold.jobs.job import Job, Jobs

NAMED_MAX = 5
ALL = "all"
RATES = ("read_units", "write_units")


@click.command("jobs", short_help="List, pause and change runs over all items; ring for fan-outs.")
@state_options
@click.option("--pause", metavar="JOB", callback=typed_text, help="Let a job pause after its page.")
@click.option("--resume", metavar="JOB", callback=typed_text, help="Let a paused job go on.")
@click.option("--end", metavar="JOB", callback=typed_text, help="End a job; what it did stays.")
@click.option(
    "--set",
    "change",
    nargs=2,
    metavar="JOB NAME=VALUE",
    callback=typed_text,
    help="Change read_units or write_units of a job.",
)
@click.option(
    "--ring",
    is_flag=False,
    flag_value=ALL,
    metavar="[FAN_OUT]",
    callback=typed_text,
    help="Go on with all open fan-outs, or with one: ring STREAMFOLD_JOBS, or work on them here if it is not set.",
)
@click.option(
    "--drop",
    "dropped",
    metavar="FAN_OUT",
    callback=typed_text,
    help="Drop an open fan-out of a handler that is retired.",
)
@click.option("--yes", is_flag=True, help="Do not ask before writing to AWS.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object a line.")
def command(
    application: str,
    store: Store,
    tables: tuple[str, ...],
    pause: str | None,
    resume: str | None,
    end: str | None,
    change: tuple[str, str] | None,
    ring: str | None,
    dropped: str | None,
    yes: bool,
    json_output: bool,
) -> None:
    """List the runs of backfill, rebuild and search rebuild: what they do, how far they are, and at which rate. Then
    the open fan-outs of feeds and cascades: their lanes, the rows that they wrote, and for how long.

    A running job looks at these settings every 5 seconds. A job that was stopped goes on with the command that began
    it. Jobs are kept for 90 days after their end.

    \b
    Examples:
      streamfold jobs --engine dynamodb
      streamfold jobs --engine dynamodb --pause 20260301-100000-a1b2
      streamfold jobs --engine dynamodb --set 20260301-100000-a1b2 write_units=500
      streamfold jobs --ring --state social.db
      streamfold jobs --engine dynamodb --table main=social --ring timeline-push-0a1b2c3d4e5f
    """
    given = {"--pause": pause, "--resume": resume, "--end": end, "--set": change, "--ring": ring, "--drop": dropped}
    check_one(given)
    app, settings = application_and_settings(application, tables)
    with closing(open_store(app, settings, store)) as opened:
        runtime = make_runtime(app, opened, store, settings, outside=True)
        if pause or resume or change or end or dropped or (ring and settings.jobs is None):
            confirm_writes(opened, store, yes=yes)
        if dropped:
            drop(runtime, dropped)
        failures = ring_again(runtime, "" if ring == ALL else ring) if ring else ()
        jobs = Jobs(app.name, opened)
        if pause:
            jobs.change(pause, paused=True)
        if resume:
            jobs.change(resume, paused=False)
        if change:
            jobs.change(change[0], **_rate(change[1]))
        if end:
            jobs.end(end)
        lines = [_line(jobs, job, json_output=json_output) for job in jobs.all()]
        lines += fan_out_lines(runtime, json_output=json_output)
        for line in lines:
            echo(line)
        if not lines and not json_output:
            echo("There are no jobs.")
    sys.exit(REPORTED if failures else 0)


def keys_text(number: int, *, exported: bool = False, swept: bool = True) -> str:
    """How many keys a run has read, and of what: a table has items and rows, and a sweep reads the state too."""
    return f"{counted(number, 'key')} of the {'export' if exported else 'tables'}{' and the state' * swept} read"


def handlers_text(handlers: Sequence[str]) -> str:
    """The handlers of a run in one line, or their number if they are many."""
    return ", ".join(handlers) if len(handlers) <= NAMED_MAX else f"{len(handlers)} handlers"


def _rate(text: str) -> dict[str, int]:
    name, _, value = text.partition("=")
    if name not in RATES or not value.isdecimal():
        raise SettingsError(f"--set {text!r}: expected read_units=N or write_units=N, in units a second; 0: no limit.")
    return {name: int(value)}


def _line(jobs: Jobs, job: Job, *, json_output: bool) -> str:
    done = job.segments if job.done else sum(each.done for each in jobs.segments(job).values())
    what = "done" if job.done else "ended" if job.ended else "paused" if job.paused else "open"
    if json_output:
        known = {"id": job.id, "what": job.what, "handlers": job.handlers, "state": what, "segments": job.segments}
        return json.dumps({**known, "segments_done": done, **{rate: getattr(job, rate) for rate in RATES}})
    counts = "".join(f", {number:,} {word}" for word, number in job.counts.items())
    name = name_text(job.id)
    return f"{name}  {job.what} {handlers_text(job.handlers)}: {what}, {done} of {job.segments} segments{counts}"
