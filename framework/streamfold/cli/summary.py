"""What a replay prints at its end."""

import os
from collections.abc import Collection, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from streamfold.app import App
from streamfold.cli.advice import Advice, print_next
from streamfold.cli.application import program, user_frames
from streamfold.cli.documents import DocumentSamples, print_samples, samples_json
from streamfold.cli.grids import counted, print_grid
from streamfold.cli.output import echo
from streamfold.cli.plans import chunk_lines, deferred_lines, plan_lines, planned_lines, write_line
from streamfold.cli.rows import Sample, print_items, samples
from streamfold.commit.outcome import Failure
from streamfold.commit.plan import Plan
from streamfold.derivations import SAYS
from streamfold.engines import Engine
from streamfold.errors import plain, printable
from streamfold.records.encoded import to_json
from streamfold.replay.replay import FailedRecord, Summary, as_counts
from streamfold.settings import Settings

UNROUTED_SHOWN_MAX = 10
FAILURES_SHOWN_MAX = 10
FRAMES_SHOWN = 4
"""Lines of a handler's that are shown from the beginning, and as many from the end; a recursion has a thousand."""
COLUMNS = ("handler", "records", "written", "removed", "unchanged", "failed")


def print_json(
    summary: Summary, app: App, engine: Engine | None, rows_max: int, documents: Sequence[DocumentSamples] = ()
) -> None:
    """The summary as one JSON object, with up to so many rows of each target; without an engine, that of a dry run."""
    report = summary.report
    done: dict[str, Any] = {}
    if engine is None:
        done = asdict(summary.planned)
    elif rows_max:
        done = {
            "samples": [
                {"target": each.target.template, "rows": each.rows, "ended_after": each.ended_after}
                for each in samples(app, engine, rows_max)
            ]
        }
    line = to_json(
        {
            "records": summary.records,
            "went_on_behind": summary.behind,
            "derived": summary.derived,
            "known": report.known,
            "handlers": as_counts(summary, app),
            "unrouted": dict(report.unrouted),
            "near_misses": [
                {
                    "template": missed.template.place,
                    "field": missed.field,
                    "records": report.near_misses[key],
                    "value": str(missed.value),
                }
                for key, missed in report.first_near.items()
            ],
            "parked": dict(report.parked),
            "first_parked": report.first_parked,
            "off": dict(report.off),
            **{word: dict(report.counts.get(word, {})) for word in SAYS},
            "failures": [_failure(failed) for failed in summary.failures],
            "failure_count": summary.failure_count,
            "bad_lines": [{"line": str(bad.line), "why": bad.why} for bad in summary.bad_lines],
            "bad_line_count": summary.bad_line_count,
            "stopped": summary.stopped,
            **done,
        }
    )
    echo(f'{line[:-1]},"documents":{samples_json(documents)}}}' if documents else line)


def print_plan_json(plan: Plan, settings: Settings) -> None:
    """The plan of one batch, as one JSON object."""
    transactions = [chunk_lines(chunk) for chunk in plan.chunks]
    puts = [write_line(put.row) for put in plan.puts]
    deferred = [line for each in plan.deferred for line in deferred_lines(each, settings)]
    echo(to_json({"transactions": transactions, "puts": puts, "deferred": deferred}))


def _failure(failed: FailedRecord) -> dict[str, Any]:
    failure = failed.failure
    return {
        "line": str(failed.line) if failed.line else None,
        "sequence": failure.sequence,
        "item": failure.item,
        "handler": failure.handler,
        "declared_at": failure.declared_at,
        "raised_at": failure.raised_at,
        "error": failure.what,
        "held": failure.held,
    }


def print_summary(
    summary: Summary,
    app: App,
    engine: Engine,
    advice: Advice,
    rows_max: int,
    documents: Sequence[DocumentSamples] = (),
) -> None:
    """The summary for a person: handlers, rows, what no route wanted, what failed, and what to do next."""
    counts = as_counts(summary, app)
    busy = [row for row in counts if any(row[column] for column in COLUMNS[1:])]
    if busy:
        headings = ["rows written" if column == "written" else column for column in COLUMNS]
        print_grid(headings, ([str(row[column]) for column in COLUMNS] for row in busy), right=headings[1:])
    if idle := len(counts) - len(busy):
        echo(f"{idle} {'other ' * bool(busy)}handler{'s' * (idle > 1)} had no records.")
    names = {row["handler"] for row in busy}
    if rows_max:
        for each in samples(app, engine, rows_max):
            _print_sample(app, each, names, advice)
    for sample in documents:
        if sample.found or sample.route.name in names:
            print_samples(sample)
    whole = " Nothing failed." if summary.records and summary.clean and not summary.report.parked else ""
    echo(f"\n{counted(summary.records, 'record')} replayed.{whole}")
    _print_unwanted(summary)
    _print_troubles(summary, "applied")
    print_next(summary, advice)


def print_plan(plan: Plan, settings: Settings) -> None:
    """The plan of one batch."""
    for line in plan_lines(plan, settings):
        echo(line)


def print_dry_run(summary: Summary) -> None:
    """What a dry run would have written in all."""
    for line in planned_lines(summary.records, summary.planned):
        echo(line)
    _print_unwanted(summary)
    _print_troubles(summary, "planned")
    if summary.stopped:
        echo("Next: mend the line; the same command with --keep-going skips bad lines, and reports them all.")


def _print_sample(app: App, sample: Sample, busy: Collection[str], advice: Advice) -> None:
    """Some rows of a target; that it has none is told only where a handler had records for it."""
    target, rows, ended_after = sample
    names = [route.name for route in app.routes if target in route.into]
    if not rows and not any(name in busy for name in names):
        return
    echo(f"\n{target.template}  ({', '.join(names)})")
    if rows:
        print_items(target.table, rows, target.types)
    if ended_after is not None:
        place = " --state FILE" if advice.store is None else advice.store
        echo(
            f"no {'more ' * bool(rows)}rows among the first {ended_after:,} items that were looked at. Next: "
            f"{program()} show{advice.application}{place} --handler {names[0]}    looks at all of them"
        )
    elif not rows:
        echo("no rows")


def _print_unwanted(summary: Summary) -> None:
    if summary.derived:
        echo(f"{summary.derived} of them are of declared targets and were not delivered: their rows are made anew.")
    for prefix, count in summary.report.unrouted.most_common(UNROUTED_SHOWN_MAX):
        echo(f"No handler wants {counted(count, 'record')} of {printable(prefix)}.")
    for missed, miss in summary.report.first_near.items():
        count, key = summary.report.near_misses[missed], miss.template
        match, them, first = ("matches", "it", "") if count == 1 else ("match", "them", "the first: ")
        page = "docs/times.md" if miss.is_of_time else "docs/keys.md"
        echo(
            f"{counted(count, 'record')} {match} {key.template} but for {miss.field!r}, and no handler of this key "
            f"read {them}: {first}{plain(miss.why)}. Next: mend {os.path.relpath(key.declared_at)}; see {page}"
        )
    for name, count in summary.report.off.items():
        echo(f"Handler {name} is switched off: {count} records were skipped.")
    for word, said in SAYS.items():
        for name, count in summary.report.counts.get(word, {}).items():
            echo(said.text.format(name=name, count=count))
    for name, count in summary.report.parked.items():
        were = "record was" if count == 1 else "records were"
        why = f"{'' if count == 1 else 'The first: '}{summary.report.first_parked[name]}"
        echo(f"{count} {were} parked for handler {name}. {printable(why[0].upper() + why[1:])}", err=True)


def _print_troubles(summary: Summary, done: str) -> None:
    causes: dict[tuple[str | None, int], list[FailedRecord]] = {}
    said: dict[str, int] = {}
    for failed in summary.failures:  # one row, or one store, that fails has one error for all records behind it
        cause = said.setdefault(str(failed.failure), id(failed.failure.error))
        causes.setdefault((failed.failure.handler, cause), []).append(failed)
    for first, *others in islice(causes.values(), FAILURES_SHOWN_MAX):
        where = f"{first.line}: " if first.line else ""
        echo(f"Failed: {printable(f'{where}{first.failure}')}", err=True)
        for place in _places(first.failure):
            echo(f"    {printable(place)}", err=True)
        if others:
            echo(f"    So did {len(others)} more record{'s' * (len(others) > 1)}, for the same reason.", err=True)
    if summary.failure_count > len(summary.failures) or len(causes) > FAILURES_SHOWN_MAX:
        echo(f"... {summary.failure_count} failures in all; --json lists more of them.", err=True)
    for bad in summary.bad_lines:
        echo(f"Bad line: {printable(f'{bad.line}: {bad.why}')}", err=True)
    if summary.stopped:
        echo(f"Stopped at the bad line; everything before it is {done}.", err=True)


def _places(failure: Failure) -> list[str]:
    """The user's own lines that led to a failure: the first and the last of them where they are many."""
    if failure.held:
        return []
    frames = [frame for error in (failure.error, failure.error.__cause__) if error for frame in user_frames(error)]
    lines = [f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames]
    left_out = len(lines) - 2 * FRAMES_SHOWN
    return lines if left_out <= 0 else [*lines[:FRAMES_SHOWN], f"... {left_out} more ...", *lines[-FRAMES_SHOWN:]]
