"""``streamfold state``: how large the state is, and what should expire."""

import sys

import click

from streamfold.cli.engines import REPORTED, Store, as_json, confirm_writes, state_options
from streamfold.cli.grids import counted, print_grid
from streamfold.cli.opened import opened_state
from streamfold.cli.output import echo
from streamfold.cli.progress import item_progress
from streamfold.cli.rows import name_text
from streamfold.lifecycle.state_size import PURPOSES, GarbageReport, PurposeSize, StateGarbage, state_sizes

SHOWN_MAX = 100
NUMBERS = ("items", "bytes", "expiring")


@click.group("state", short_help="Show how large the state is, and let items expire that nothing needs.")
def command() -> None:
    """Show how large the state is, and let go what nothing needs. The items themselves are shown by show --state-items.

    \b
    Examples:
      streamfold state stats --json
      streamfold state gc --dry-run
    """


@command.command("stats", short_help="Show items and bytes of the state, by purpose.")
@state_options
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
def stats(
    application: str,
    store: Store,
    tables: tuple[str, ...],
    json_output: bool,
) -> None:
    """Show how many items the state has for each purpose, how large they are, and how many have a time to live.

    Reads all of the state. Bytes are those that DynamoDB bills, 100 for each item included.

    \b
    Examples:
      streamfold state stats
      streamfold state stats --engine dynamodb --table main=shop --json
    """
    progress = item_progress("reading", None, shown=not json_output)
    with opened_state(application, tables, store) as opened, progress as advance:
        sizes = state_sizes(opened.app, opened.engine, advance)
    if json_output:
        purposes = {
            purpose: {"items": size.items, "bytes": size.size_bytes, "expiring": size.expiring}
            for purpose, size in sizes.items()
        }
        echo(as_json({"purposes": purposes, **_total(sizes)}))
        return
    rows = [
        [purpose, f"{size.items:,}", f"{size.size_bytes:,}", f"{size.expiring:,}", PURPOSES.get(purpose, "")]
        for purpose, size in sizes.items()
    ]
    print_grid(("purpose", *NUMBERS, "what"), rows, right=NUMBERS)
    total = _total(sizes)
    echo(f"\n{counted(total['items'], 'item')}, {total['bytes']:,} bytes.")


@command.command("gc", short_help="Let ledger items expire that hold nothing.")
@state_options
@click.option("--dry-run", is_flag=True, help="Print how many there are, and write nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before writing to AWS.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
def collect(
    application: str,
    store: Store,
    tables: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    json_output: bool,
) -> None:
    """Give a time to live to ledger items that hold nothing of their items and have none. Reads all of the state.

    Nothing is deleted: such an item keeps late records away, for STREAMFOLD_RETENTION_DAYS from now on. The live stream
    may go on.

    \b
    Exit codes:
      0  every such item has a time to live
      1  others changed some items all the time: run it again
      2  the command stopped early: an option, the application or the store is wrong

    \b
    Examples:
      streamfold state gc --dry-run
      streamfold state gc --engine dynamodb --table main=shop --yes
    """
    with opened_state(application, tables, store) as opened:
        if not dry_run:
            confirm_writes(opened.engine, opened.store, yes=yes)
        garbage = StateGarbage(opened.runtime)
        with item_progress("marking", None, shown=not json_output) as advance:
            for page in garbage.pages():
                if not dry_run:
                    garbage.mark(page)
                advance(len(page))
    _print_garbage(garbage.report, dry_run=dry_run, json_output=json_output)
    sys.exit(REPORTED if garbage.report.busy else 0)


def _total(sizes: dict[str, PurposeSize]) -> dict[str, int]:
    return {
        "items": sum(size.items for size in sizes.values()),
        "bytes": sum(size.size_bytes for size in sizes.values()),
    }


def _print_garbage(report: GarbageReport, *, dry_run: bool, json_output: bool) -> None:
    if json_output:
        busy = [list(key) for key in report.busy]
        echo(as_json({"dry_run": dry_run, "found": report.found, "marked": report.marked, "busy": busy}))
        return
    for key in report.busy[:SHOWN_MAX]:
        echo(f"Busy: state item {' / '.join(map(name_text, key))}: others changed it at every try.", err=True)
    if dry_run:
        echo(f"Dry run: {report.found:,} ledger items hold nothing and never expire. Nothing was written.")
    else:
        echo(f"{report.marked:,} of {report.found:,} ledger items that hold nothing got a time to live.")
