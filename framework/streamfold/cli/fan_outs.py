"""What commands do with fan-outs: list open ones, ring for them again, drop those of handlers that are gone."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from streamfold.app import App
from streamfold.batch.fan_outs import OpenFanOut, open_fan_outs, ring_open, run_fan_outs
from streamfold.batch.report import Report
from streamfold.cli.engines import as_json
from streamfold.cli.output import echo
from streamfold.commit.outcome import Failure
from streamfold.engines import Engine, OwnStream
from streamfold.errors import SettingsError, printable
from streamfold.jobs.fan_outs import ROWS, FanOuts, is_over
from streamfold.lifecycle.backfill import FillingProgress, Tell
from streamfold.run import Run

FAILED_SHOWN = 20


def follow_fan_outs(app: App, engine: Engine, run: Run) -> Report:
    """Has the lanes worked on that a command opened: by the function of STREAMFOLD_JOBS, or here if none is set.

    A local state has no queue: they are worked on here.
    """
    if run.settings.jobs is None or isinstance(engine, OwnStream):
        return run_fan_outs(app, engine, run)
    from streamfold.jobs.fan_outs import Doorbell

    rung, run.rung = run.rung, []
    if rung:
        Doorbell(app.name, run.settings.jobs, run.warn).ring(rung)
    return Report()


def with_fan_outs(app: App, engine: Engine, run: Run, tell: Tell, left: list[Failure]) -> Tell:
    """After each page of a run, has the fan-outs worked on that it opened; those that fail stay open.

    left: takes the first of what failed.
    """

    def told(progress: FillingProgress) -> None:
        tell(progress)
        left.extend(follow_fan_outs(app, engine, run).failures[: FAILED_SHOWN - len(left)])

    return told


def fan_out_lines(app: App, engine: Engine, run: Run, *, json_output: bool) -> Iterator[str]:
    """A line for each fan-out that is open."""
    for each in open_fan_outs(app, engine, run):
        told = _told(app, each, run)
        yield as_json(told) if json_output else _line(told)


def _told(app: App, each: OpenFanOut, run: Run) -> dict[str, Any]:
    (handler,) = each.job.handlers
    state = "open"
    if each.route is None:
        state = "not of this group, or off" if any(route.name == handler for route in app.routes) else "retired"
    return {
        "fan_out": each.job.id,
        "handler": handler,
        "what": each.job.what,
        "state": state,
        "lanes": each.job.segments,
        "lanes_done": sum(map(is_over, each.lanes)),
        "rows": sum(lane.counts.get(ROWS, 0) for lane in each.lanes),
        "age_seconds": int(each.age_seconds(run.clock())),
    }


def _line(told: dict[str, Any]) -> str:
    return (
        f"{told['fan_out']}  {told['what']} of {told['handler']}: {told['state']}, {told['lanes_done']} of "
        f"{told['lanes']} lanes, {told['rows']:,} rows, for {_duration(told['age_seconds'])}"
    )


def _duration(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} seconds"
    return f"{seconds // 60} minutes" if seconds < 7200 else f"{seconds // 3600} hours"


def ring_again(app: App, engine: Engine, run: Run, identity: str) -> Sequence[Failure]:
    """Rings for open fan-outs, all or the one of an id. Where that is here, works on them until none is left.

    Returns what failed. Raises ``SettingsError`` for a fan-out that is not open, or not of this process.
    """
    if identity:
        found = _known(app, engine, run, identity)
        if found.route is None:
            raise SettingsError(
                f"Fan-out {identity} is of handler {found.job.handlers[0]!r}, which is retired, switched off, or of "
                "another group than STREAMFOLD_GROUP: nobody would work on it."
            )
        run.ring(identity, [lane.number for lane in found.left])
        lanes = len(found.left)
    else:
        lanes = ring_open(app, engine, run)
    queued = run.settings.jobs is not None and not isinstance(engine, OwnStream)
    report = follow_fan_outs(app, engine, run)
    rows = sum(tally.written for tally in report.tallies.values())
    echo(f"Rang for {lanes} lanes." if queued else f"Worked on {lanes} lanes: {rows:,} rows written.", err=True)
    tell_failed(report.failures)
    return report.failures


def tell_failed(failures: Iterable[Failure]) -> None:
    """Says which fan-outs failed: they stay open, and streamfold jobs lists them."""
    for failure in failures:
        echo(f"Failed: {printable(str(failure))}", err=True)


def drop(app: App, engine: Engine, run: Run, identity: str) -> None:
    """Takes an open fan-out of a handler that the application does not have out of the state.

    Raises ``SettingsError`` for one that is not open, or whose handler is there.
    """
    found = _known(app, engine, run, identity)
    (handler,) = found.job.handlers
    if any(route.name == handler for route in app.routes):
        raise SettingsError(
            f"Fan-out {identity} is of handler {handler!r}, which the application has: its rows would be left half "
            "written. streamfold jobs --ring goes on with it."
        )
    if not FanOuts(app.name, engine, run).drop(found.job):
        raise SettingsError(f"Fan-out {identity} was opened again meanwhile; nothing was dropped.")
    echo(f"Fan-out {identity} was dropped.", err=True)


def _known(app: App, engine: Engine, run: Run, identity: str) -> OpenFanOut:
    for each in open_fan_outs(app, engine, run):
        if each.job.id == identity:
            return each
    raise SettingsError(f"Fan-out {identity} is not open: streamfold jobs lists those that are.")
