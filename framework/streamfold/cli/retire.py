"""``streamfold retire``: a handler that is given up leaves the state."""

import sys
from dataclasses import replace
from typing import Any

import click

from streamfold.cli.engines import REPORTED, Store, as_json, confirm_writes, state_options
from streamfold.cli.grids import counted
from streamfold.cli.items import item_text
from streamfold.cli.opened import OpenedState, followed_chains, opened_state
from streamfold.cli.output import echo
from streamfold.cli.progress import item_progress
from streamfold.cli.rows import name_text
from streamfold.derivations import kept_words
from streamfold.errors import printable
from streamfold.jobs.job import Jobs
from streamfold.ledger.state_keys import source_of
from streamfold.lifecycle.retire import KeptRetirement, PartKept, Retirement, check_no_run, check_retirable

SHOWN_MAX = 100


@click.command("retire", short_help="Remove what the state holds of a handler that is given up.")
@click.argument("handler")
@state_options
@click.option(
    "--rows",
    type=click.Choice(["keep", "remove"]),
    required=True,
    help="keep: its rows stay as they are. remove: what it contributed is taken back.",
)
@click.option("--dry-run", is_flag=True, help="Print how much there is, and write nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before writing to AWS.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
def command(
    handler: str,
    application: str,
    store: Store,
    tables: tuple[str, ...],
    rows: str,
    dry_run: bool,
    yes: bool,
    json_output: bool,
) -> None:
    """Remove what the state holds of HANDLER. Reads all of the state.

    No record may reach the handler any more: a later record would count once more. For --rows remove, the code still
    declares the handler, and STREAMFOLD_HANDLERS_OFF switches it off, in the function and here. For --rows keep, the
    handler may be retired already, App(..., retired=[...]). A local state needs neither. The stream of other handlers
    may go on. Doing it twice changes nothing.

    For a feed, the mirrors of posts and edges and the open fan-outs are removed. For a search, the counters of
    documents are removed. Both need --rows keep, because the ledger holds nothing of their rows.

    Rows that other handlers add to keep what these added. Afterwards, take the handler out of the code, name it in
    retired=, and never switch it on again.

    \b
    Exit codes:
      0  nothing of the handler is left in the ledger
      1  some parts were kept: they failed, or others changed them all the time
      2  the command stopped early: an option, the application or the store is wrong, or the handler is not stopped

    \b
    Examples:
      streamfold retire sales --rows remove --dry-run
      STREAMFOLD_HANDLERS_OFF=sales streamfold retire sales --rows remove --engine dynamodb --table main=shop
      streamfold retire old_index --rows keep --engine dynamodb --table main=shop --yes
    """
    with opened_state(application, tables, store) as opened:
        remove = rows == "remove"
        check_retirable(
            opened.app,
            opened.runtime.settings,
            opened.manifest,
            handler,
            remove=remove,
            offline=opened.local is not None,
        )
        check_no_run(Jobs(opened.app.name, opened.engine, opened.runtime.clock), handler)
        if not dry_run:
            confirm_writes(opened.engine, opened.store, yes=yes)
        retirement = _retirement(opened, handler, remove=remove)
        with item_progress("retiring", None, shown=not json_output) as advance:
            for looked_at in retirement.go(dry_run=dry_run):
                advance(looked_at)
        others = frozenset(route.name for route in opened.app.routes) - {handler}
        without = opened._replace(runtime=replace(opened.runtime, handlers=others))
        chains = 0 if dry_run else len(followed_chains(without))
    _print_json(retirement, chains, dry_run=dry_run) if json_output else _print(retirement, dry_run=dry_run)
    sys.exit(REPORTED if retirement.report.kept or chains else 0)


def _retirement(opened: OpenedState, handler: str, *, remove: bool) -> Retirement | KeptRetirement:
    """What takes a handler out of a state: parts of its ledger items, or what its kind keeps otherwise."""
    route = next((route for route in opened.app.routes if route.name == handler), None)
    kind = opened.manifest.handlers[handler]["kind"] if route is None else route.kind.name
    if words := kept_words(kind):
        return KeptRetirement(opened.runtime, handler, words)
    return Retirement(opened.runtime, handler, remove)


def _print(retirement: Retirement | KeptRetirement, *, dry_run: bool) -> None:
    report = retirement.report
    for kept in report.kept[:SHOWN_MAX]:
        echo(f"Kept: {_name(kept)}: {printable(str(kept.why))}", err=True)
    if (left := len(report.kept) - SHOWN_MAX) > 0:
        echo(f"... and {left:,} more; --json has them all.", err=True)
    found = f"{counted(report.parts, 'part')}, {report.stored:,} with a contribution"
    if isinstance(retirement, KeptRetirement):
        found = counted(report.parts, "state item")
    if dry_run:
        would = "Contributions would be taken back from rows" if retirement.remove else "Rows would stay as they are"
        echo(f"Dry run: {found}. {would}. Nothing was written.")
        return
    echo(
        f"Handler {retirement.handler}: {found}; {counted(report.rows, 'write')} of rows, {report.dropped:,} removed "
        f"from the state, {len(report.kept):,} kept."
    )
    if not report.kept:
        echo(f'Next: take the handler out of the code, App(..., retired=["{retirement.handler}"]).')


def _print_json(retirement: Retirement | KeptRetirement, chains: int, *, dry_run: bool) -> None:
    report = retirement.report
    told: dict[str, Any] = {
        "handler": retirement.handler,
        "rows": "remove" if retirement.remove else "keep",
        "dry_run": dry_run,
        "parts": report.parts,
        "stored": report.stored,
        "row_writes": report.rows,
        "dropped": report.dropped,
        "kept": [{"state_key": list(kept.key), "why": kept.why} for kept in report.kept],
        "chains_failed": chains,
    }
    echo(as_json(told))


def _name(kept: PartKept) -> str:
    source = source_of(kept.key)
    return f"item {item_text(source.item)}" if source else f"state item {' / '.join(map(name_text, kept.key))}"
