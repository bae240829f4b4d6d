"""``streamfold replay --chaos``: recorded records under faults, compared with their clean replay."""

import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from streamfold.app import App
from streamfold.cli.application import DEFAULT_APPLICATION, load_application, program
from streamfold.cli.chaos_progress import shown_runs
from streamfold.cli.engines import REPORTED, as_json, check_tables, make_settings, warn, warn_of_tables
from streamfold.cli.grids import print_grid
from streamfold.cli.prints import prints_of_handlers
from streamfold.errors import RecordError, SettingsError
from streamfold.records.envelope import Origins
from streamfold.replay.files import RecordedFiles, check_files
from streamfold.replay.lines import BadLine
from streamfold.settings import Settings

if TYPE_CHECKING:
    from streamfold.records.change import Change
    from streamfold.testing.recorded import Recording, Run, Shortest

RUNS = 20
RUNS_MAX = 100_000
STEPS_SHOWN_MAX = 60
SEEDS_SHOWN_MAX = 20
OWN = {"runs": "--runs", "seed": "--seed", "faults": "--faults"}
REFUSED = {
    "state": "--state",
    "fresh": "--fresh",
    "engine": "--engine",
    "endpoint_url": "--endpoint-url",
    "batch_size": "--batch-size",
    "dry_run": "--dry-run",
    "force": "--force",
    "external": "--external",
    "park": "--park",
    "put_sources": "--put-sources",
    "create_tables": "--create-tables",
    "search_url": "--search-url",
    "yes": "--yes",
    "samples": "--samples",
}
"""Options of a replay that say where to write, how, or whom to call: runs under faults do none of it."""


class TakenRecords(NamedTuple):
    """What was read: the changes to deliver, how many were of declared targets, and the bad lines left out."""

    changes: list["Change"]
    derived: int
    bad_lines: list[BadLine]


class ChaosOutcome(NamedTuple):
    """What all runs came to. ``clean`` is what is wrong without any fault, and then there are no runs.

    ``unproved`` names handlers that runs of these records do not prove, ``left_out`` says what else was not tried.
    """

    clean: str | None
    runs: list["Run"]
    shortest: "Shortest | None"
    unproved: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def diverged(self) -> list["Run"]:
        return [run for run in self.runs if run.problem]


def chaos_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options ``--chaos``, ``--runs``, ``--seed``, ``--faults``; with the first, the command does this instead."""

    @wraps(command)
    def either(*, chaos: bool, runs: int, seed: int, faults: str | None, **options: Any) -> Any:
        _check_options(chaos=chaos)
        if chaos:
            sys.exit(_run(options, runs, seed, faults))
        return command(**options)

    for option in (
        click.option(
            "--faults",
            metavar="LIST",
            is_eager=True,
            callback=_print_faults,
            help="With --chaos, use only these faults (comma-separated). 'list' explains all names, without FILES.",
        ),
        click.option(
            "--seed",
            type=click.IntRange(0),
            default=0,
            show_default=True,
            metavar="S",
            help="With --chaos, the seed of the first run.",
        ),
        click.option(
            "--runs",
            type=click.IntRange(1, RUNS_MAX),
            default=RUNS,
            show_default=True,
            metavar="N",
            help="With --chaos, the number of runs. Run k has the seed S + k.",
        ),
        click.option(
            "--chaos",
            is_flag=True,
            help="Replay the records in memory with injected faults and compare the rows with those of a clean replay. "
            "Nothing is written and no external handler is called. At most 100000 records.",
        ),
    ):
        either = option(either)
    return either


def _print_faults(context: click.Context, _: click.Parameter, faults: str | None) -> str | None:
    if faults is not None and faults.strip() == "list":
        from streamfold.testing.meanings import MEANINGS

        print_grid(("fault", "meaning"), MEANINGS.items())
        context.exit()
    return faults


def _check_options(*, chaos: bool) -> None:
    context = click.get_current_context()
    for parameter, name in (REFUSED if chaos else OWN).items():
        if context.get_parameter_source(parameter) is ParameterSource.DEFAULT:
            continue
        if chaos:
            raise SettingsError(
                f"{name} does not go with --chaos, which runs in memory, chooses its own batches, writes nothing and "
                "calls no external handler: leave it out."
            )
        raise SettingsError(f"{name} belongs to --chaos.")


def _run(options: dict[str, Any], runs: int, seed: int, faults: str | None) -> int:
    from streamfold.testing.names import chosen
    from streamfold.testing.recorded import Recording

    only = chosen(None if faults is None else [name.strip() for name in faults.split(",")])
    check_files(options["files"])
    app = load_application(options["application"])
    settings = make_settings(options["tables"])
    check_tables(app, options["tables"])
    warn_of_tables(app, settings)
    taken = _read(app, settings, options["files"], keep_going=options["keep_going"])
    recording = Recording(app, taken.changes)
    seeds, aside = range(seed, seed + runs), options["json_output"]
    with prints_of_handlers(aside=aside):
        outcome = _outcome(recording, seeds if aside else shown_runs(seeds, len(taken.changes)), only)
    if options["json_output"]:
        _print_json(outcome, taken, seed)
    else:
        _print(outcome, taken, options, faults)
    return REPORTED if outcome.clean or outcome.diverged or taken.bad_lines else 0


def _read(app: App, settings: Settings, files: tuple[str, ...], *, keep_going: bool) -> TakenRecords:
    from streamfold.testing.recorded import RECORDS_MAX

    origins = Origins(app.source_tables, settings, warn, app.tables)
    taken, derived = TakenRecords([], 0, []), 0
    for change in _changes(origins, files, taken.bad_lines, keep_going=keep_going):
        if app.derived(change.item):
            derived += 1
            continue
        if len(taken.changes) >= RECORDS_MAX:
            raise SettingsError(
                f"--chaos keeps all records in memory, {RECORDS_MAX} at most, and the files hold more: give it a "
                "part of them."
            )
        taken.changes.append(change)
    return taken._replace(derived=derived)


def _changes(
    origins: Origins, files: tuple[str, ...], bad_lines: list[BadLine], *, keep_going: bool
) -> Iterator["Change"]:
    for entry in RecordedFiles(files):
        try:
            if not isinstance(entry, BadLine):
                yield origins.change(entry[1])
                continue
            bad = entry
        except RecordError as error:
            assert not isinstance(entry, BadLine)
            bad = BadLine(entry[0], str(error))
        if not keep_going:
            raise SettingsError(f"Bad line: {bad.line}: {bad.why}. --keep-going leaves bad lines out.")
        bad_lines.append(bad)


def _outcome(recording: "Recording", seeds: Iterable[int], only: frozenset[str] | None) -> ChaosOutcome:
    from streamfold.testing.coverage import not_injected

    if problem := recording.clean_problem():
        return ChaosOutcome(problem, [], None)
    runs = [recording.run(seed, only) for seed in seeds]
    injected = {fault for run in runs for fault in run.faults}
    left_out = (*recording.left_out, *not_injected(recording.offered, injected))
    outcome = ChaosOutcome(None, runs, None, recording.unproved, left_out)
    return outcome._replace(shortest=recording.shortest(outcome.diverged[0])) if outcome.diverged else outcome


def _table(outcome: ChaosOutcome) -> list[dict[str, Any]]:
    """Per fault: how often it was injected, into how many runs, and how many of these diverged."""
    injected: Counter[str] = sum((run.faults for run in outcome.runs), Counter())
    return [
        {
            "fault": name,
            "injected": count,
            "runs": sum(name in run.faults for run in outcome.runs),
            "diverged": sum(name in run.faults for run in outcome.diverged),
        }
        for name, count in sorted(injected.items())
    ]


def _print_json(outcome: ChaosOutcome, taken: TakenRecords, seed: int) -> None:
    shortest = outcome.shortest
    found = {
        "records": len(taken.changes),
        "derived": taken.derived,
        "bad_lines": [{"line": str(bad.line), "why": bad.why} for bad in taken.bad_lines],
        "seed": seed,
        "runs": len(outcome.runs),
        "deliveries": sum(run.deliveries for run in outcome.runs),
        "faults": _table(outcome),
        "clean": outcome.clean,
        "unproved": list(outcome.unproved),
        "left_out": list(outcome.left_out),
        "diverged": [{"seed": run.seed, "problem": run.problem} for run in outcome.diverged],
        "shortest": shortest and {"problem": shortest.problem, "records": shortest.records, "story": shortest.story},
    }
    click.echo(as_json(found))


def _print(outcome: ChaosOutcome, taken: TakenRecords, options: dict[str, Any], faults: str | None) -> None:
    for bad in taken.bad_lines:
        click.echo(f"Bad line: {bad.line}: {bad.why}", err=True)
    if outcome.clean:
        click.echo(f"{outcome.clean}\n\nNo run under faults was made: the records do not pass without any.", err=True)
        return
    columns = ("fault", "injected", "runs", "diverged")
    if rows := _table(outcome):
        print_grid(columns, ([f"{row[column]}" for column in columns] for row in rows), right=columns[1:])
    deliveries, injected = (sum(counts) for counts in zip(*_counts(outcome), strict=True))
    click.echo(
        f"\n{len(outcome.runs)} runs of {len(taken.changes)} records, {deliveries} deliveries, {injected} faults, "
        f"{len(outcome.diverged)} diverged."
    )
    if taken.derived:
        click.echo(f"{taken.derived} records of declared targets were not delivered: their rows are made anew.")
    for handler in outcome.unproved:
        click.echo(f"Not proved: {handler}.")
    for what in outcome.left_out:
        click.echo(f"Left out: {what}.")
    if outcome.shortest:
        _print_diverged(outcome, outcome.shortest, options, faults)


def _counts(outcome: ChaosOutcome) -> Iterator[tuple[int, int]]:
    return ((run.deliveries, run.faults.total()) for run in outcome.runs)


def _print_diverged(outcome: ChaosOutcome, shortest: "Shortest", options: dict[str, Any], faults: str | None) -> None:
    first, *others = outcome.diverged
    steps = [*shortest.records, *shortest.story]
    lines = [f"Run with seed {first.seed} diverged. {shortest.problem}", "", "The shortest steps that were found:"]
    lines += [f"  {step}" for step in steps[:STEPS_SHOWN_MAX]]
    if len(steps) > STEPS_SHOWN_MAX:
        lines.append(f"  and {len(steps) - STEPS_SHOWN_MAX} more; --json has them all")
    lines += ["", f"Again: {_command(options, first.seed, faults)}"]
    if others:
        seeds = ", ".join(str(run.seed) for run in others[:SEEDS_SHOWN_MAX])
        lines.append(
            f"Diverged too: {len(others)} runs, with the seeds {seeds}" + "." * (len(others) <= SEEDS_SHOWN_MAX)
        )
    click.echo("\n".join(lines), err=True)


def _command(options: dict[str, Any], seed: int, faults: str | None) -> str:
    """The command that repeats one run alone."""
    words = [program(), "replay", *options["files"], "--chaos", "--seed", str(seed), "--runs", "1"]
    words += ["--faults", faults] if faults is not None else []
    words += ["--app", options["application"]] if options["application"] != DEFAULT_APPLICATION else []
    words += [word for table in options["tables"] for word in ("--table", table)]
    words += ["--keep-going"] if options["keep_going"] else []
    return shlex.join(words)
