"""What ``streamfold replay --chaos`` prints: what was tried, what it came to, and how a run is repeated."""

import shlex
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.cli.application import DEFAULT_APPLICATION, program
from streamfold.cli.engines import as_json
from streamfold.cli.grids import print_grid
from streamfold.cli.output import echo
from streamfold.errors import printable
from streamfold.replay.files import BadLine

if TYPE_CHECKING:
    from streamfold.proofs.recorded import Run, Shortest
    from streamfold.records.change import Change

STEPS_SHOWN_MAX = 60
SEEDS_SHOWN_MAX = 20


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


def print_json(outcome: ChaosOutcome, taken: TakenRecords, seed: int) -> None:
    """Prints the outcome as one JSON object."""
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
    echo(as_json(found))


def print_outcome(outcome: ChaosOutcome, taken: TakenRecords, options: dict[str, Any], faults: str | None) -> None:
    """Prints the outcome for a person; ``options`` and ``faults`` are those of the command."""
    for bad in taken.bad_lines:
        echo(f"Bad line: {printable(f'{bad.line}: {bad.why}')}", err=True)
    if outcome.clean:
        echo(f"{outcome.clean}\n\nNo run under faults was made: the records do not pass without any.", err=True)
        return
    columns = ("fault", "injected", "runs", "diverged")
    if rows := _table(outcome):
        print_grid(columns, ([f"{row[column]}" for column in columns] for row in rows), right=columns[1:])
    deliveries, injected = (sum(counts) for counts in zip(*_counts(outcome), strict=True))
    echo(
        f"\n{len(outcome.runs)} runs of {len(taken.changes)} records, {deliveries} deliveries, {injected} faults, "
        f"{len(outcome.diverged)} diverged."
    )
    if taken.derived:
        echo(f"{taken.derived} records of declared targets were not delivered: their rows are made anew.")
    _print_gaps(outcome)
    if outcome.shortest:
        _print_diverged(outcome, outcome.shortest, options, faults)


def _print_gaps(outcome: ChaosOutcome) -> None:
    from streamfold.proofs.coverage import by_reason

    for handlers in by_reason(outcome.unproved):
        echo(f"Not proved: {handlers}.")
    for what in outcome.left_out:
        echo(f"Left out: {what}.")


def _counts(outcome: ChaosOutcome) -> Iterator[tuple[int, int]]:
    return ((run.deliveries, run.faults.total()) for run in outcome.runs)


def _print_diverged(outcome: ChaosOutcome, shortest: "Shortest", options: dict[str, Any], faults: str | None) -> None:
    first, *others = outcome.diverged
    steps = [*shortest.records, *shortest.story]
    lines = [f"Run with seed {first.seed} diverged. {shortest.problem}", "", "The shortest steps that were found:"]
    lines += [f"  {printable(step)}" for step in steps[:STEPS_SHOWN_MAX]]
    if len(steps) > STEPS_SHOWN_MAX:
        lines.append(f"  and {len(steps) - STEPS_SHOWN_MAX} more; --json has them all")
    lines += ["", f"Again: {_command(options, first.seed, faults)}"]
    if others:
        seeds = ", ".join(str(run.seed) for run in others[:SEEDS_SHOWN_MAX])
        lines.append(
            f"Diverged too: {len(others)} runs, with the seeds {seeds}" + "." * (len(others) <= SEEDS_SHOWN_MAX)
        )
    echo("\n".join(lines), err=True)


def _command(options: dict[str, Any], seed: int, faults: str | None) -> str:
    """The command that repeats one run alone."""
    words = [program(), "replay", *options["files"], "--chaos", "--seed", str(seed), "--runs", "1"]
    words += ["--faults", faults] if faults is not None else []
    words += ["--app", options["application"]] if options["application"] != DEFAULT_APPLICATION else []
    words += [word for table in options["tables"] for word in ("--table", table)]
    words += ["--keep-going"] if options["keep_going"] else []
    return shlex.join(words)
