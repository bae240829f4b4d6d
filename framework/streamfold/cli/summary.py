"""The output of a replay: the plans of a dry run, and at the end the outcome of the records and the next steps."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

from streamfold.app import App
from streamfold.cli.items import (
    SAMPLE_ROWS,
    Sample,
    item_grid,
    item_object,
    item_text,
    name_text,
    samples,
    state_text,
    text,
    values_text,
)
from streamfold.cli.output import SHOWN_MAX, Grid, Note, Printed, counted
from streamfold.cli.session import DEFAULT_STATE, Session, default_application, program, user_frames
from streamfold.commit.outcome import Failure, first_of_handlers
from streamfold.commit.plan import Deferred, Plan, Transaction
from streamfold.derivations import COUNTED_WORDS
from streamfold.derivations.derivation import derivation, searches
from streamfold.engines.protocol import Engine
from streamfold.errors import manual, plain, printable
from streamfold.records.images import hidden
from streamfold.records.values import to_json
from streamfold.replay.mismatches import UnseenAttribute
from streamfold.replay.replay import FailedRecord, PlannedWrites, Summary, as_counts
from streamfold.settings import Settings
from streamfold.writes import guarded
from streamfold.writes.descriptions import conditions

if TYPE_CHECKING:
    from streamfold.cli.documents import DocumentSamples

UNROUTED_SHOWN_MAX = 10
FAILURES_SHOWN_MAX = 10
FRAMES_SHOWN = 4
"""Lines of a handler that are shown from the beginning, and as many from the end: a recursion has a thousand."""
COLUMNS = ("handler", "records", "written", "removed", "unchanged", "failed")
THE_SAME = "the same command"
NextStep = tuple[str, str]
"""A command, and its effect."""


class Written(NamedTuple):
    """The outcome of a replay, and the names of the tables and the parking place that it wrote to."""

    opened: Session
    summary: Summary
    real_names: Mapping[str, str]  # of tables on DynamoDB
    parking: str | None  # the location of parked records

    @property
    def app(self) -> App:
        return self.opened.app

    @property
    def rows_max(self) -> int:
        """Rows of each target that are printed."""
        given = self.opened.given
        return given.samples if given.samples is not None else 0 if given.json_output else SAMPLE_ROWS

    @property
    def application(self) -> str:
        """The option with which other commands find the application."""
        named = self.opened.given.application
        return f" --app {named}" if named != default_application() else ""

    @property
    def store(self) -> str | None:
        """The options with which other commands find the rows; None if nothing was kept."""
        store = self.opened.store
        if store.is_local:
            if store.state is None:
                return None
            return "" if store.state == DEFAULT_STATE else f" --state {store.state}"
        at = f" --endpoint-url {store.endpoint_url}" if store.endpoint_url else ""
        return f" --engine dynamodb{at}{''.join(f' --table {name}={real}' for name, real in self.real_names.items())}"

    def documents(self) -> "list[DocumentSamples]":
        """The documents of a local state that are printed."""
        opened = self.opened
        local = opened.store.is_local and opened.given.search_url is None
        most = self.rows_max if local and not opened.given.dry_run else 0
        return samples_of(opened.app, opened.engine, opened.settings, most) if most else []


def samples_of(app: App, engine: Engine, settings: Settings, most: int) -> "list[DocumentSamples]":
    """Up to so many documents of each search of an application, in its local state."""
    if not searches(app.routes):
        return []  # and the modules of searches are not imported
    from streamfold.cli.documents import local_samples

    return list(local_samples(app, engine, settings, most))


def summary_json(written: Written) -> str:
    """The summary as one JSON object, with some rows of each target, or with the plan of a dry run."""
    opened, app, summary = written.opened, written.app, written.summary
    report, done = summary.report, dict[str, Any]()
    if opened.given.dry_run:
        done = asdict(summary.planned)
    elif written.rows_max:
        rows = samples(app, opened.engine, written.rows_max)
        done["samples"] = [
            {"target": each.target.template, "rows": each.rows, "ended_after": each.ended_after} for each in rows
        ]
    line = to_json(
        {
            "records": summary.records,
            "went_on_behind": summary.behind,
            "derived": summary.derived,
            "older_than_export": summary.older,
            "known": report.known,
            "handlers": as_counts(summary, app),
            "unrouted": dict(report.unrouted),
            "near_misses": [
                {
                    "template": missed.template.stored_name,
                    "field": missed.field,
                    "records": report.near_misses[key],
                    "value": str(missed.value),
                }
                for key, missed in report.first_near.items()
            ],
            "unseen_attributes": [unseen_object(each) for each in summary.unseen],
            "items_at_rows": {each.target.stored_name: each.records for each in summary.at_rows},
            "parked": dict(report.parked),
            "first_parked": {name: str(first) for name, first in report.first_parked.items()},
            "off": dict(report.off),
            **{word: dict(report.counts.get(word, {})) for word in COUNTED_WORDS},
            "failures": [failure_object(failed) for failed in summary.failures],
            "causes": [{**failure_object(first), "records": count} for first, count in summary.causes.values()],
            "failure_count": summary.failure_count,
            "bad_lines": [{"line": str(bad.line), "why": bad.why} for bad in summary.bad_lines],
            "bad_line_count": summary.bad_line_count,
            "stopped": summary.stopped,
            **({"absent": [item_object(app, each) for each in summary.absent]} if summary.absent else {}),
            **done,
        }
    )
    documents = written.documents()
    found = ",".join(each for sample in documents for each in sample.json())
    return f'{line[:-1]},"documents":[{found}]}}' if documents else line


def unseen_object(unseen: UnseenAttribute) -> dict[str, Any]:
    """An attribute that a declaration names and no item has."""
    named = unseen.named
    keys = [key.stored_name for key in named.keys]
    return {
        "handler": unseen.route.name, "option": named.option, "name": named.name, "keys": keys, "near": unseen.near
    }  # fmt: skip


def failure_object(failed: FailedRecord) -> dict[str, Any]:
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


def summary_lines(written: Written) -> Iterator[Printed]:
    """The summary for a person: handlers, rows, unrouted records, failures, and the next steps."""
    summary, app = written.summary, written.app
    counts = as_counts(summary, app)
    yield from counts_lines(counts)
    names = {row["handler"] for row in counts if is_busy(row)}
    if written.rows_max:
        for each in samples(app, written.opened.engine, written.rows_max):
            yield from _sample_lines(written, each, names)
    for sample in written.documents():
        if sample.found or sample.route.name in names:
            yield from sample.lines()
    success = " Nothing failed." if summary.records and summary.clean and not summary.report.parked else ""
    yield f"\n{counted(summary.records, 'record')} replayed.{success}"
    if summary.older:
        yield (
            f"{counted(summary.older, 'record')} of items that a loaded export has as they were later: only handlers "
            "that take each change by itself got them."
        )
    yield from unwanted_lines(summary)
    if summary.absent:
        number, shown = len(summary.absent), summary.absent[:SHOWN_MAX]
        more = f" and {number - len(shown):,} more" if number > len(shown) else ""
        yield Note(
            f"Warning: handlers look up {counted(number, 'item')} that no record showed: "
            f"{'; '.join(map(item_text, shown))}{more}. Rows lack what these hold. Replay records from the items' "
            "begin on, or make a state of an export: streamfold backfill --export MANIFEST --load."
        )
    yield from trouble_lines(summary, "applied")
    yield from _next_lines(written)


def is_busy(row: Mapping[str, Any]) -> bool:
    return any(row[column] for column in COLUMNS[1:])


def counts_lines(counts: Sequence[Mapping[str, Any]]) -> Iterator[Printed]:
    """The counts of handlers, and how many of them had no records."""
    busy = list(filter(is_busy, counts))
    if busy:
        headings = ["rows written" if column == "written" else column for column in COLUMNS]
        yield Grid(headings, ([str(row[column]) for column in COLUMNS] for row in busy), headings[1:])
    if idle := len(counts) - len(busy):
        yield f"{idle} {'other ' * bool(busy)}handler{'s' * (idle > 1)} had no records."


def dry_run_lines(summary: Summary) -> Iterator[Printed]:
    """The writes that a dry run has planned in all."""
    yield from planned_lines(summary.records, summary.planned)
    yield from unwanted_lines(summary)
    yield from trouble_lines(summary, "planned")
    if summary.stopped:
        yield "Next: correct the line; the same command with --keep-going skips bad lines, and reports them all."


def _sample_lines(written: Written, sample: Sample, busy: Collection[str]) -> Iterator[Printed]:
    """Some rows of a target. A target without rows is printed only if one of its handlers had records."""
    target, rows, ended_after, expired = sample
    names = [route.name for route in written.app.routes if target in route.into]
    if not rows and not any(name in busy for name in names):
        return
    yield f"\n{target.template}  ({', '.join(names)})"
    if rows:
        yield item_grid(target.table, rows, target.types)
    if ended_after is not None:
        store = " --state FILE" if written.store is None else written.store
        yield (
            f"no {'more ' * bool(rows)}rows among the first {ended_after:,} items. Next: "
            f"{program()} show{written.application}{store} --handler {names[0]}    searches all items"
        )
    elif not rows and expired is None:
        yield "no rows"
    if expired is not None:
        yield f"{'more ' * bool(rows)}rows have expired {expired} and are left out"


def unwanted_lines(summary: Summary) -> Iterator[Printed]:
    """The records that no handler wanted or processed, and why."""
    report = summary.report
    if summary.derived:
        yield f"{summary.derived} of them are of derived rows and were not delivered: the rows are derived again."
    for prefix, count in report.unrouted.most_common(UNROUTED_SHOWN_MAX):
        yield f"No handler wants {counted(count, 'record')} of {printable(prefix)}."
    for missed, miss in report.first_near.items():
        count, key = report.near_misses[missed], miss.template
        match, them, first = ("matches", "it", "") if count == 1 else ("match", "them", "the first: ")
        page = manual("times" if miss.is_of_time else "keys")
        yield (
            f"{counted(count, 'record')} {match} {key.template} but for {miss.field!r}, and no handler of this key "
            f"read {them}: {first}{plain(miss.why)}. Next: correct {os.path.relpath(key.declared_at)}; see {page}"
        )
    for at_rows in summary.at_rows:
        yield Note(f"Warning: {printable(plain(at_rows.text))}")
    yield from _unseen_lines(summary.unseen)
    yield from (f"Handler {name} is switched off: {count} records were skipped." for name, count in report.off.items())
    for word, message in COUNTED_WORDS.items():
        for name, count in report.counts.get(word, {}).items():
            yield message.text.format(name=name, count=count)
    for name, count in report.parked.items():
        were = "record was" if count == 1 else "records were"
        why = f"{'' if count == 1 else 'The first: '}{report.first_parked[name]}"
        yield Note(f"{count} {were} parked for handler {name}. {printable(why[0].upper() + why[1:])}")


def _unseen_lines(unseen: Sequence[UnseenAttribute]) -> Iterator[Printed]:
    """The attributes that declarations name and that no item had."""
    yield from (Note(f"Warning: {printable(plain(each.text))}") for each in unseen[:SHOWN_MAX])
    if len(unseen) > SHOWN_MAX:
        yield Note(f"... and {len(unseen) - SHOWN_MAX:,} more names that no item has; --json lists them.")


def trouble_lines(summary: Summary, done: str) -> Iterator[Note]:
    """The failures, each cause once, and the bad lines."""
    for first, count in first_of_handlers(summary.causes)[:FAILURES_SHOWN_MAX]:
        where = f"{first.line}: " if first.line else ""
        yield Note(f"Failed: {printable(f'{where}{first.failure}')}")
        yield from (Note(f"    {printable(line)}") for line in frames_of(first.failure))
        if count > 1:
            yield Note(f"    So did {counted(count - 1, 'more record')}, for the same reason.")
    if len(summary.causes) > FAILURES_SHOWN_MAX:
        yield Note(f"... {summary.failure_count} failures in all; --json lists more of them.")
    yield from (Note(f"Bad line: {printable(f'{bad.line}: {bad.why}')}") for bad in summary.bad_lines)
    if summary.stopped:
        yield Note(f"Stopped at the bad line; everything before it is {done}.")


def frames_of(failure: Failure) -> list[str]:
    """The lines of the user's code that led to a failure; the first and the last if there are many."""
    if failure.held:
        return []
    frames = [frame for error in (failure.error, failure.error.__cause__) if error for frame in user_frames(error)]
    lines = [f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames]
    left_out = len(lines) - 2 * FRAMES_SHOWN
    return lines if left_out <= 0 else [*lines[:FRAMES_SHOWN], f"... {left_out} more ...", *lines[-FRAMES_SHOWN:]]


def _next_lines(written: Written) -> Iterator[str]:
    """The next steps, and the number of records that were known before."""
    summary, store = written.summary, written.opened.store
    steps = [*(_past_bad_line(written) if summary.stopped else _showing(written)), *_remaining(written)]
    for number, (command, what) in enumerate(steps):
        yield f"{'      ' if number else f'{chr(10)}Next: '}{command}    {what}"
    if summary.report.known and written.store is not None:
        known = counted(summary.report.known, "record")
        anew = "--fresh starts" if store.is_local else "a replay onto empty tables starts"
        yield f"Known to the state before: {known}. Nothing counts twice; {anew} over."


def _past_bad_line(written: Written) -> Iterator[NextStep]:
    """The ways past the bad line at which a replay stopped."""
    again = f"{THE_SAME} without --fresh" if written.opened.given.fresh else THE_SAME
    goes = "starts over" if written.store is None else "applies the rest"
    yield again, f"{goes}, once {written.summary.bad_lines[-1].line} is corrected; nothing counts twice"
    yield f"{again}, with --keep-going", "skips bad lines, and reports them all"


def _showing(written: Written) -> Iterator[NextStep]:
    opened, show = written.opened, f"{program()} show{written.application}"
    has_rows = not opened.store.is_local or any(
        each.rows or each.ended_after for each in samples(written.app, opened.engine, 1)
    )
    if written.store is None:
        yield "the same with --state FILE", f"keeps the result, for {program()} show --state FILE"
    elif has_rows:
        yield f"{show}{written.store}", "prints all derived rows; add a partition key to see those of one"
    if (documents := _documents(written)) is not None:
        yield f"{show}{documents}", "prints documents"
    yield f"{program()} routes{written.application}", "prints the key chart"


def _remaining(written: Written) -> Iterator[NextStep]:
    """The ways to apply the other records."""
    summary, store = written.summary, written.store
    if store is None:
        return
    if summary.report.parked and written.parking is not None:
        redrive = f"{program()} redrive{written.application} {quote(written.parking)}{store} --apply"
        yield redrive, "processes the parked records, once their cause is corrected"
    if summary.failures:
        yield THE_SAME, "processes the failed records, once their cause is corrected"
    if summary.bad_lines and not summary.stopped:
        yield THE_SAME, "applies the bad lines too, once they are corrected"


def _documents(written: Written) -> str | None:
    """The options that show the documents of the first search that has any; None if no search has."""
    opened, url = written.opened, written.opened.given.search_url
    if url:  # the documents are on the server, so the first search that had records
        records = written.summary.report.records
        found = (route for route in searches(written.app.routes) if records[route.name])
    elif not opened.store.is_local or written.store is None:
        return None
    else:
        found = (each.route for each in samples_of(opened.app, opened.engine, opened.settings, 1) if each.found)
    route = next(found, None)
    if route is None:
        return None
    from streamfold.cli.documents import typed_index

    return f" --index {typed_index(route)}{f' --search-url {url}' if url else written.store}"


def plan_lines(plan: Plan, settings: Settings) -> Iterator[str]:
    """The plan of one batch, one line a write, with the row, the condition and the changes."""
    for number, transaction in enumerate(plan.transactions, 1):
        units, writes = len(transaction.units), len(transaction.writes)
        yield f"transaction {number}: {units} unit{'s' * (units > 1)}, {writes} write{'s' * (writes > 1)}"
        yield from (f"  {line}" for line in transaction_lines(transaction))
    yield from (write_line(put.row) for put in plan.puts)
    for deferred in plan.deferred:
        yield from _deferred_lines(deferred, settings)


def plan_object(plan: Plan, settings: Settings) -> dict[str, Any]:
    """The same as JSON."""
    deferred = [line for each in plan.deferred for line in _deferred_lines(each, settings)]
    puts = [write_line(put.row) for put in plan.puts]
    return {"transactions": list(map(transaction_lines, plan.transactions)), "puts": puts, "deferred": deferred}


def planned_lines(records: int, planned: PlannedWrites) -> Iterator[str]:
    """The writes of the plans of all batches."""
    within, them = planned.writes - planned.writes_behind, "it" if planned.transactions == 1 else "them"
    behind = f" and {planned.writes_behind:,} behind {them}" if planned.writes_behind else ""
    yield (
        f"Dry run: {counted(records, 'record')} would make {counted(within, 'write')} in "
        f"{counted(planned.transactions, 'transaction')}{behind}; nothing was written. Chains were not followed, and "
        "the store was taken to be empty."
    )
    left_out = (
        (planned.made_of_entries, "row", "to be computed from entries"),
        (planned.removed_if_empty, "row", "to be removed if empty"),
        (planned.other_steps, "step", "of other kinds"),
    )
    if any(count for count, *_ in left_out):
        counts = ", ".join(f"{counted(count, noun)} {what}" for count, noun, what in left_out if count)
        yield f"Not counted, because the store decides how many writes they make: {counts}."


def transaction_lines(transaction: Transaction) -> list[str]:
    return list(map(write_line, transaction.writes))


def _deferred_lines(deferred: Deferred, settings: Settings) -> Iterator[str]:
    """A step after the transactions: a separate write of a row, or a step of another kind."""
    row = getattr(deferred, "row", None)
    if row is not None:
        yield f"{deferred.route.kind}: {write_line(row)}"
        return
    for preview in derivation(deferred.route).preview(deferred, settings):
        fields = "" if preview.fields is None else f": {_attributes(preview.fields)}"
        yield f"{printable(plain(preview.text))}{fields}"


def write_line(write: guarded.GuardedWrite) -> str:
    """One write, with its condition."""
    guard = "".join(f", if {condition}" for condition in conditions(write))
    match write:
        case guarded.LedgerWrite():
            return f"guard {state_text(write.key)}{guard}: {', '.join(part.handler for part in write.contributions)}"
        case guarded.Claim():
            return f"guard {state_text(write.key)}{guard}"
        case guarded.AddRow():
            return f"add to {item_text(write.key)}{guard}: {_added(write)}"
        case guarded.PutRow() | guarded.GuardedPut() if write.attributes is not None:
            return f"put {item_text(write.key)}{guard}: {_attributes(write.attributes)}"
        case guarded.DeleteRow() | guarded.GuardedPut():
            return f"remove {item_text(write.key)}{guard}"
        case guarded.PutState():
            return f"put state {state_text(write.key)}"
        case guarded.DeleteState():
            return f"remove state {state_text(write.key)}"
    raise AssertionError(write)  # a plan has no other writes: later ones depend on what is stored


def _added(write: guarded.AddRow) -> str:
    changes = [f"{name_text(name)} {amount:+}" for name, amount in write.amounts.items() if amount]
    changes += [f"values of {name_text(changed.name) or 'the row'}" for changed in write.changed_entries]
    changes += [f"{name_text(name)}={text(value)}" for name, value in write.values.items()]
    changes += [f"without {name_text(name)}" for name in write.removed if not hidden(name)]
    changes += [f"contributors {write.contributors:+}"] if write.contributors else []
    return ", ".join(changes)


def _attributes(attributes: Mapping[str, Any]) -> str:
    return values_text({name: value for name, value in attributes.items() if not hidden(name)}, ", ")
