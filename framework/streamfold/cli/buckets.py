"""``streamfold buckets`` shows what waits for shared rows, and makes a state ready for code before deltas."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from streamfold.app import App
from streamfold.cli import shell
from streamfold.cli.items import row_object, row_text
from streamfold.cli.output import Note, Printed, Report, counted, first_lines, note
from streamfold.cli.session import Session
from streamfold.errors import printable
from streamfold.keys.table import is_in_state
from streamfold.lifecycle.buckets import Buckets, RefusingRow, WayBack, open_again, read_buckets
from streamfold.runtime import DeltasMark
from streamfold.writes.guarded import RowKey

LOCAL = "A local state has no deltas: one process works on it at a time."
NOTHING = Buckets(None, {}, (), (), {}, 0)
REMEDY = (
    "Correct or remove each of these rows and damaged deltas, run streamfold buckets --empty again, and then "
    "streamfold verify --full --repair. Older code would withdraw from a row what is still pending for it, so the mark "
    "remains closed."
)
CHANGED = (
    "Somebody changed the mark meanwhile, so it was not taken away: streamfold buckets shows it. Run the command again."
)


@shell.command(
    "buckets",
    "Show additions that wait for shared rows; move them before older code runs.",
    shell.STATE_OPTIONS,
    shell.flag("--empty", "Put no more deltas, wait for 15 minutes, move all into their rows, and let older code run."),
    shell.flag("--open", "Let deltas be put again after --empty."),
    shell.exclusive("--empty", "--open"),
    shell.refuses(
        "--engine embedded",
        *("--empty", "--open"),
        why="A local state has no deltas, so {other} has nothing to do: give --engine dynamodb.",
    ),
    shell.yes_flag(),
    shell.json_flag(),
)
def buckets(opened: Session) -> Report:
    """Show the additions to shared rows that wait in deltas, by bucket: how many are pending, which rows refuse them
    and why, who moves them now, and how many rows are known to be shared. By default, nothing is written.

    A mark in the manifest keeps code that does not know deltas from running. It is set when a process first meets
    another one at a row, and deltas may be put 15 minutes later.

    The option --empty is the way back to such code. It closes the mark, so that no process puts deltas any more. Then
    it waits until all batches have ended that began before: 15 minutes from when the mark was closed. Then it moves all
    deltas into their rows, and takes the mark away if nothing is pending. If it is stopped, the mark remains closed,
    and the same command goes on. Deploy the older code as soon as the command has ended: a process of newer code that
    meets another one sets the mark again. If the older code then stops with ManifestError, run the command again:
    within five minutes of a new mark it does not wait.

    \b
    Exit codes:
      0  no row refuses what is pending; with --empty, the mark was taken away
      1  a row refuses what is pending, or a delta is damaged; with --empty, the mark was not taken away
      2  the command stopped early: an option, the application or the store is wrong

    \b
    Examples:
      streamfold buckets --engine dynamodb --table main=shop
      streamfold buckets --engine dynamodb --table main=shop --empty --yes
      streamfold buckets --engine dynamodb --table main=shop --open
    """
    given, runtime = opened.given, opened.runtime
    if opened.local is not None:
        return Report([LOCAL], _object(opened.app, NOTHING))
    if given.empty or given.open:
        opened.confirm_writes()
    if given.open:
        open_again(runtime)
    problem = _emptied(opened) if given.empty else None
    found = read_buckets(runtime)
    lines, document = [*_lines(found)], _object(opened.app, found)
    if not given.empty:
        return Report(lines, document, bool(found.refusing or found.unread))
    return Report([*lines, *([Note(problem)] if problem else [])], {**document, "problem": problem}, bool(problem))


def _emptied(opened: Session) -> str | None:
    """Closes the mark, waits, empties the buckets and takes the mark away; returns why it is still there, or None."""
    way = WayBack(opened.runtime, _note_seconds)
    mark = way.close()
    if mark is not None:
        assert mark.closed is not None
        note(f"The mark is closed since {_time(mark.closed)}: no batch that begins now puts deltas.")
        if not way.wait(mark):
            return CHANGED
    if remaining := way.empty():
        pending = counted(remaining, "delta")
        found = read_buckets(opened.runtime)
        if found.refusing or found.unread:
            return f"{pending} could not be moved, because rows refuse them, or they are damaged. {REMEDY}"
        return f"{pending} could not be moved, because others hold the buckets. Run the command again."
    if mark is not None and not way.take_away(mark):
        return CHANGED
    return None


def _note_seconds(seconds: float) -> None:
    minutes = f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
    note(f"Waiting {minutes} for batches that began before; Ctrl-C leaves the mark closed.")


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _state(mark: DeltasMark | None) -> str:
    return "none" if mark is None else "open" if mark.closed is None else "closed"


def _lines(found: Buckets) -> Iterator[Printed]:
    yield _mark_line(found.mark)
    total = sum(found.pending.values())
    counts = ", ".join(f"{count:,} in {bucket:x}" for bucket, count in found.pending.items())
    yield f"Pending: {counted(total, 'delta')}{f' ({counts})' if counts else ''}."
    yield from first_lines(found.refusing, _refusing_line)
    yield from first_lines(found.unread, printable)
    for bucket, lease in found.leases.items():
        yield f"Bucket {bucket:x} is emptied by {printable(lease.holder)} until {_time(lease.until)}."
    yield f"Known to be shared: {counted(found.rows_shared, 'row')}."


def _mark_line(mark: DeltasMark | None) -> str:
    if mark is None:
        return "Mark: none. No deltas are put, and older code may run."
    if mark.closed is not None:
        return f"Mark: closed since {_time(mark.closed)}, set at {_time(mark.since)}. No deltas are put."
    return f"Mark: open, set at {_time(mark.since)}. Deltas may be put from {_time(mark.opens_at)} on."


def _refusing_line(each: RefusingRow) -> str:
    handlers = ", ".join(each.handlers)
    return f"Refused: row {row_text(each.row)}, additions of {printable(handlers)}: {printable(each.reason)}"


def _object(app: App, found: Buckets) -> dict[str, Any]:
    mark = found.mark
    times = {} if mark is None else {"since": _time(mark.since), "puts_from": _time(mark.opens_at)}
    closed = {} if mark is None or mark.closed is None else {"closed": _time(mark.closed)}
    return {
        "mark": {"state": _state(mark), **times, **closed},
        "pending": sum(found.pending.values()),
        "buckets": {f"{bucket:x}": count for bucket, count in found.pending.items()},
        "refused": [
            {"row": _row(app, each.row), "handlers": list(each.handlers), "reason": each.reason}
            for each in found.refusing
        ],
        "damaged": list(found.unread),
        "leases": [
            {"bucket": f"{bucket:x}", "holder": lease.holder, "until": _time(lease.until)}
            for bucket, lease in found.leases.items()
        ],
        "rows_shared": found.rows_shared,
    }


def _row(app: App, row: RowKey) -> dict[str, Any]:
    """The key of a row; its table may be that of a handler which is no longer declared."""
    return row_object(app, row) if is_in_state(row) or row[0] in app.tables else {"table": row[0], "key": list(row[1:])}
