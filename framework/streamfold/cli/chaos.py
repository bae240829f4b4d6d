"""``streamfold replay --chaos``: recorded records under faults, compared with their clean replay."""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from streamfold.app import App
from streamfold.cli.application import load_application
from streamfold.cli.chaos_output import ChaosOutcome, TakenRecords, print_json, print_outcome
from streamfold.cli.chaos_progress import shown_runs, shown_tries
from streamfold.cli.engines import REPORTED, check_names, check_tables, make_settings, warn
from streamfold.cli.grids import print_grid
from streamfold.cli.prints import prints_of_handlers
from streamfold.errors import RecordError, SettingsError
from streamfold.records.envelope import Origins, RawRecord
from streamfold.replay.files import BadLine, Line, RecordedFiles, check_files
from streamfold.settings import Settings

if TYPE_CHECKING:
    from streamfold.proofs.recorded import Recording
    from streamfold.records.change import Change

RUNS = 20
RUNS_MAX = 100_000
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


def chaos_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options ``--chaos``, ``--runs``, ``--seed``, ``--faults``; with the first, the command does this instead."""

    @wraps(command)
    def either(*, chaos: bool, runs: int, seed: int, faults: str | None, **options: Any) -> Any:
        if faults is not None and faults.strip() == "list":
            from streamfold.proofs.meanings import MEANINGS

            print_grid(("fault", "meaning"), MEANINGS.items())
            return None
        if not options["files"]:
            raise click.UsageError("Missing argument 'FILES...'.")
        _check_options(chaos=chaos)
        if chaos:
            sys.exit(_run(options, runs, seed, faults))
        return command(**options)

    for option in (
        click.option(
            "--faults",
            metavar="LIST",
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
    from streamfold.proofs.meanings import chosen
    from streamfold.proofs.recorded import Recording

    only = chosen(None if faults is None else [name.strip() for name in faults.split(",")])
    check_files(options["files"])
    app = load_application(options["application"])
    settings = make_settings(options["tables"])
    check_tables(app, options["tables"])
    check_names(app, settings)
    taken = _read(app, settings, options["files"], keep_going=options["keep_going"])
    recording = Recording(app, taken.changes)
    seeds, aside = range(seed, seed + runs), options["json_output"]
    with prints_of_handlers(aside=aside):
        outcome = _outcome(recording, seeds if aside else shown_runs(seeds, len(taken.changes)), only)
        if outcome.diverged:
            first = outcome.diverged[0]
            tried = (lambda: None) if aside else shown_tries(first.seed, recording.tries_max)
            outcome = outcome._replace(shortest=recording.shortest(first, tried))
    if options["json_output"]:
        print_json(outcome, taken, seed)
    else:
        print_outcome(outcome, taken, options, faults)
    return REPORTED if outcome.clean or outcome.diverged or taken.bad_lines else 0


def _read(app: App, settings: Settings, files: tuple[str, ...], *, keep_going: bool) -> TakenRecords:
    from streamfold.proofs.recorded import RECORDS_MAX

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
        read = entry if isinstance(entry, BadLine) else _change(origins, *entry)
        if not isinstance(read, BadLine):
            yield read
            continue
        if not keep_going:
            raise SettingsError(f"Bad line: {read.line}: {read.why.rstrip('.')}. --keep-going leaves bad lines out.")
        bad_lines.append(read)


def _change(origins: Origins, line: Line, record: RawRecord) -> "Change | BadLine":
    """The change of a record. It needs both images: a run compares what handlers make of them."""
    try:
        change = origins.change(record)
        change.old, change.new  # noqa: B018 - raises where the record carries none
    except RecordError as error:
        return BadLine(line, str(error))
    return change


def _outcome(recording: "Recording", seeds: Iterable[int], only: frozenset[str] | None) -> ChaosOutcome:
    from streamfold.proofs.coverage import not_injected

    if problem := recording.clean_problem():
        return ChaosOutcome(problem, [], None)
    runs = [recording.run(seed, only) for seed in seeds]
    injected = {fault for run in runs for fault in run.faults}
    left_out = (*recording.left_out, *not_injected(recording.offered, injected))
    return ChaosOutcome(None, runs, None, recording.unproved, left_out)
