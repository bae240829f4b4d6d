"""What commands do with fan-outs: list open ones, ring for them again, drop those of handlers that are gone."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from streamfold.batch.fan_outs import OpenFanOut, open_fan_outs, ring_open, run_fan_outs
from streamfold.batch.report import Report
from streamfold.cli.engines import as_json
from streamfold.cli.output import echo
from streamfold.commit.outcome import Failure
from streamfold.engines import OwnStream
from streamfold.errors import SettingsError, printable
from streamfold.jobs.fan_outs import ROWS, FanOuts, is_over
from streamfold.lifecycle.backfill import FillingProgress, Tell
from streamfold.runtime import Runtime

FAILED_SHOWN = 20


def follow_fan_outs(runtime: Runtime) -> Report:
    """Has the lanes worked on that a command opened: by the function of STREAMFOLD_JOBS, or here if none is set.

    A local state has no queue: they are worked on here.
    """
    if runtime.settings.jobs is None or isinstance(runtime.store, OwnStream):
        return run_fan_outs(runtime)
    from streamfold.jobs.fan_outs import Doorbell

    rung, runtime.rung = runtime.rung, []
    if rung:
        Doorbell(runtime.application.name, runtime.settings.jobs, runtime.warn).ring(rung)
    return Report()


def with_fan_outs(runtime: Runtime, tell: Tell, left: list[Failure]) -> Tell:
    """After each page of a run, has the fan-outs worked on that it opened; those that fail stay open.

    left: takes the first of what failed.
    """

    def told(progress: FillingProgress) -> None:
        tell(progress)
        left.extend(follow_fan_outs(runtime).failures[: FAILED_SHOWN - len(left)])

    return told


def fan_out_lines(runtime: Runtime, *, json_output: bool) -> Iterator[str]:
    """A line for each fan-out that is open."""
    for each in open_fan_outs(runtime):
        told = _told(runtime, each)
        yield as_json(told) if json_output else _line(told)


def _told(runtime: Runtime, each: OpenFanOut) -> dict[str, Any]:
    (handler,) = each.job.handlers
    state = "open"
    if each.route is None:
        state = (
            "not of this group, or off"
            if any(route.name == handler for route in runtime.application.routes)
            else "retired"
        )
    return {
        "fan_out": each.job.id,
        "handler": handler,
        "what": each.job.what,
        "state": state,
        "lanes": each.job.segments,
        "lanes_done": sum(map(is_over, each.lanes)),
        "rows": sum(lane.counts.get(ROWS, 0) for lane in each.lanes),
        "age_seconds": int(each.age_seconds(runtime.clock())),
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


def ring_again(runtime: Runtime, identity: str) -> Sequence[Failure]:
    """Rings for open fan-outs, all or the one of an id. Where that is here, works on them until none is left.

    Returns what failed. Raises ``SettingsError`` for a fan-out that is not open, or not of this process.
    """
    if identity:
        found = _known(runtime, identity)
        if found.route is None:
            raise SettingsError(
                f"Fan-out {identity} is of handler {found.job.handlers[0]!r}, which is retired, switched off, or of "
                "another group than STREAMFOLD_GROUP: nobody would work on it."
            )
        runtime.ring(identity, [lane.number for lane in found.left])
        lanes = len(found.left)
    else:
        lanes = ring_open(runtime)
    queued = runtime.settings.jobs is not None and not isinstance(runtime.store, OwnStream)
    report = follow_fan_outs(runtime)
    rows = sum(tally.written for tally in report.tallies.values())
    echo(f"Rang for {lanes} lanes." if queued else f"Worked on {lanes} lanes: {rows:,} rows written.", err=True)
    tell_failed(report.failures)
    return report.failures


def tell_failed(failures: Iterable[Failure]) -> None:
    """Says which fan-outs failed: they stay open, and streamfold jobs lists them."""
    for failure in failures:
        echo(f"Failed: {printable(str(failure))}", err=True)


def drop(runtime: Runtime, identity: str) -> None:
    """Takes an open fan-out of a handler that the application does not have out of the state.

    Raises ``SettingsError`` for one that is not open, or whose handler is there.
    """
    found = _known(runtime, identity)
    (handler,) = found.job.handlers
    if any(route.name == handler for route in runtime.application.routes):
        raise SettingsError(
            f"Fan-out {identity} is of handler {handler!r}, which the application has: its rows would be left half "
            "written. streamfold jobs --ring goes on with it."
        )
    if not FanOuts(runtime).drop(found.job):
        raise SettingsError(f"Fan-out {identity} was opened again meanwhile; nothing was dropped.")
    echo(f"Fan-out {identity} was dropped.", err=True)


def _known(runtime: Runtime, identity: str) -> OpenFanOut:
    for each in open_fan_outs(runtime):
        if each.job.id == identity:
            return each
    raise SettingsError(f"Fan-out {identity} is not open: streamfold jobs lists those that are.")
