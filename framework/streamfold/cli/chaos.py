"""``streamfold replay --chaos`` replays recorded records under faults and compares the rows with a clean replay."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.cli import shell
from streamfold.cli.output import Grid, Note, Printed, Report, counted, each_counted, note, progress_bar, warn
from streamfold.cli.report import chaos_section, check_page, write_sections
from streamfold.cli.session import Session, default_application, program
from streamfold.errors import RecordError, SettingsError, printable
from streamfold.records.envelope import Origins, RawRecord
from streamfold.replay.files import BadLine, RecordedFiles
from streamfold.replay.files import Line as RecordedLine

if TYPE_CHECKING:
    from streamfold.proofs.recorded import Recording, Run, Shortest
    from streamfold.records.change import Change

RUNS = 20
RUNS_MAX = 100_000
STEPS_SHOWN_MAX = 60
SEEDS_SHOWN_MAX = 20
OWN = ("--runs", "--seed", "--faults")
REFUSED = (
    *("--state", "--fresh", "--engine", "--endpoint-url", "--batch-size", "--dry-run", "--force", "--external"),
    *("--park", "--put-sources", "--create-tables", "--search-url", "--yes", "--samples", "--cost"),
    *("--price-read", "--price-write", "--until"),
)
"""Options of a replay about writing and external calls: runs under faults do neither."""
CHAOS_OPTIONS = (
    shell.flag(
        "--chaos",
        "Replay the records in memory with injected faults and compare the rows with those of a clean replay. Nothing "
        "is written and no external handler is called. At most 100000 records.",
    ),
    shell.number("--runs", "With --chaos, the number of runs. Run k has the seed S + k.", 1, RUNS_MAX, default=RUNS),
    shell.number("--seed", "With --chaos, the seed of the first run.", 0, metavar="S", default=0),
    shell.value(
        "--faults",
        "LIST",
        "With --chaos, use only these faults (comma-separated). 'list' explains all names, without FILES.",
    ),
    shell.Rule(
        lambda given, values: (
            next((f"{name} belongs to --chaos." for name in OWN if name in given), None)
            if "--chaos" not in given and not is_list(values["faults"])
            else None
        )
    ),
    shell.refuses(
        "--chaos",
        *REFUSED,
        why="{other} does not go with --chaos, which runs in memory, chooses its own batches, writes nothing and calls "
        "no external handler: leave it out.",
    ),
)


class TakenRecords(NamedTuple):
    """The records that were read: the changes to deliver, the number of derived rows, and the bad lines left out."""

    changes: list["Change"]
    derived: int
    bad_lines: list[BadLine]


class ChaosOutcome(NamedTuple):
    """The outcome of all runs. ``clean``: the error of the run without faults; there are no other runs then.

    ``unproved``: handlers that these records do not prove. ``left_out``: faults and events that were not tried.
    """

    clean: str | None
    runs: list["Run"]
    shortest: "Shortest | None"
    unproved: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def diverged(self) -> list["Run"]:
        return [run for run in self.runs if run.problem]


def is_list(faults: str | None) -> bool:
    """Whether the option asks for the names of all faults."""
    return faults is not None and faults.strip() == "list"


def faults_report() -> Report:
    """All faults with their meaning."""
    from streamfold.proofs.check import MEANINGS

    faults = [{"fault": name, "meaning": meaning} for name, meaning in MEANINGS.items()]
    return Report([Grid(("fault", "meaning"), [list(each.values()) for each in faults])], faults)


def chaos_report(opened: Session) -> Report:
    """Runs the records under faults. No store is opened."""
    from streamfold.proofs.check import chosen
    from streamfold.proofs.recorded import Recording

    given, aside = opened.given, opened.given.json_output
    check_page(opened)
    only = chosen(None if given.faults is None else [name.strip() for name in given.faults.split(",")])
    taken = _read(opened)
    recording, seeds = Recording(opened.app, taken.changes), range(given.seed, given.seed + given.runs)
    outcome = _outcome(recording, seeds if aside else shown_runs(seeds, len(taken.changes)), only)
    if outcome.diverged:
        first = outcome.diverged[0]
        tried = (lambda: None) if aside else shown_tries(first.seed, recording.tries_max)
        outcome = outcome._replace(shortest=recording.shortest(first, tried))
    reported = bool(outcome.clean or outcome.diverged or taken.bad_lines)
    found = _object(outcome, taken, given.seed)
    if given.html is not None:
        write_sections(opened, [chaos_section(found, redact=given.redact)])
    return Report(_lines(opened, outcome, taken), found, reported)


def _read(opened: Session) -> TakenRecords:
    from streamfold.proofs.recorded import RECORDS_MAX

    app, taken, derived = opened.app, TakenRecords([], 0, []), 0
    origins = Origins(app.source_tables, opened.settings, warn, app.tables)
    for entry in RecordedFiles(opened.given.files):
        read = entry if isinstance(entry, BadLine) else _change(origins, *entry)
        if isinstance(read, BadLine):
            if not opened.given.keep_going:
                why = read.why.rstrip(".")
                raise SettingsError(f"Bad line: {read.line}: {why}. --keep-going leaves bad lines out.")
            taken.bad_lines.append(read)
        elif app.derived(read.item):
            derived += 1
        elif len(taken.changes) >= RECORDS_MAX:
            raise SettingsError(
                f"--chaos keeps all records in memory, {RECORDS_MAX} at most, and the files hold more: give it a "
                "part of them."
            )
        else:
            taken.changes.append(read)
    return taken._replace(derived=derived)


def _change(origins: Origins, line: RecordedLine, record: RawRecord) -> "Change | BadLine":
    """The change of a record. It needs both images: a run compares the rows that handlers make of each."""
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


def shown_runs(seeds: Sequence[int], records: int) -> Iterator[int]:
    """The seeds of all runs, with progress: a bar on a terminal, and elsewhere lines of text."""
    note(f"Replaying {counted(records, 'record')} without faults, then {counted(len(seeds), 'time')} with faults.")
    with progress_bar("runs", len(seeds)) as show:
        for number, seed in enumerate(seeds if show else each_counted("runs", seeds)):
            yield seed
            if show:
                show(number + 1, "runs")


def shown_tries(seed: int, tries_max: int) -> Callable[[], object]:
    """Prints that a diverged run is being shortened; returns a function that shows progress before each try."""
    tries = counted(tries_max, "run")
    note(f"The run with seed {seed} diverged. Looking for the fewest records and faults that do, in {tries} at most.")
    tried = each_counted("runs", range(tries_max))
    return lambda: next(tried, None)


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


def _object(outcome: ChaosOutcome, taken: TakenRecords, seed: int) -> dict[str, Any]:
    shortest = outcome.shortest
    return {
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


def _lines(opened: Session, outcome: ChaosOutcome, taken: TakenRecords) -> Iterator[Printed]:
    from streamfold.proofs.coverage import by_reason

    for bad in taken.bad_lines:
        yield Note(f"Bad line: {printable(f'{bad.line}: {bad.why}')}")
    if outcome.clean:
        yield Note(f"{outcome.clean}\n\nNo run under faults was made: the records do not pass without any.")
        return
    columns = ("fault", "injected", "runs", "diverged")
    if rows := _table(outcome):
        yield Grid(columns, ([f"{row[column]}" for column in columns] for row in rows), columns[1:])
    deliveries = sum(run.deliveries for run in outcome.runs)
    injected = sum(run.faults.total() for run in outcome.runs)
    yield (
        f"\n{len(outcome.runs)} runs of {len(taken.changes)} records, {deliveries} deliveries, {injected} faults, "
        f"{len(outcome.diverged)} diverged."
    )
    if taken.derived:
        yield f"{taken.derived} records of declared targets were not delivered: their rows are made anew."
    yield from (f"Not proved: {handlers}." for handlers in by_reason(outcome.unproved))
    yield from (f"Left out: {what}." for what in outcome.left_out)
    if outcome.shortest:
        yield Note("\n".join(_diverged_lines(opened, outcome.diverged, outcome.shortest)))


def _diverged_lines(opened: Session, diverged: Sequence["Run"], shortest: "Shortest") -> Iterator[str]:
    """The shortest run that diverged, and the command that repeats it alone."""
    first, *others = diverged
    yield from (f"Run with seed {first.seed} diverged. {shortest.problem}", "", "The shortest steps that were found:")
    steps = [*shortest.records, *shortest.story]
    yield from (f"  {printable(step)}" for step in steps[:STEPS_SHOWN_MAX])
    if len(steps) > STEPS_SHOWN_MAX:
        yield f"  and {len(steps) - STEPS_SHOWN_MAX} more; --json has them all"
    given = opened.given
    words = [program(), "replay", *given.files, "--chaos", "--seed", str(first.seed), "--runs", "1"]
    words += ["--faults", given.faults] if given.faults is not None else []
    words += ["--app", given.application] if given.application != default_application() else []
    words += chain.from_iterable(("--table", table) for table in given.tables)
    words += ["--keep-going"] if given.keep_going else []
    yield from ("", f"Again: {shlex.join(words)}")
    if others:
        seeds = ", ".join(str(run.seed) for run in others[:SEEDS_SHOWN_MAX])
        yield f"Diverged too: {len(others)} runs, with the seeds {seeds}" + "." * (len(others) <= SEEDS_SHOWN_MAX)
