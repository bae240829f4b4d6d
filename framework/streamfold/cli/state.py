"""``streamfold state`` shows the size of the state and lets items expire. ``streamfold retire`` removes a handler."""

from collections.abc import Iterator
from dataclasses import replace

import click

from streamfold.cli import shell
from streamfold.cli.items import item_text, state_text
from streamfold.cli.jobs import followed_chains
from streamfold.cli.output import Grid, Note, Printed, Report, counted, first_lines, item_progress
from streamfold.cli.session import Session
from streamfold.derivations import kept_words
from streamfold.errors import printable
from streamfold.jobs.job import Jobs
from streamfold.ledger.state_keys import source_of
from streamfold.lifecycle.retire import (
    PURPOSES,
    ContributionKept,
    KeptRetirement,
    Retirement,
    StateGarbage,
    check_no_run,
    check_retirable,
    state_sizes,
)

NUMBERS = ("items", "bytes", "expiring")


@click.group("state", short_help="Show how large the state is, and let unused items expire.")
def state() -> None:
    """Show how large the state is, and let unused items expire. To show the items themselves, use streamfold show
    --state-items.

    \b
    Examples:
      streamfold state stats --json
      streamfold state gc --dry-run
    """


@shell.command(
    "stats",
    "Show items and bytes of the state, by purpose.",
    shell.STATE_OPTIONS,
    shell.json_flag(),
    group=state,
    checks=True,
)
def stats(opened: Session) -> Report:
    """Show how many items the state has for each purpose, how large they are, and how many have a time to live.

    The command reads the whole state. Bytes are those that DynamoDB bills, with 100 for each item.

    \b
    Examples:
      streamfold state stats
      streamfold state stats --engine dynamodb --table main=shop --json
    """
    with item_progress("reading", None, shown=not opened.given.json_output) as advance:
        sizes = state_sizes(opened.app, opened.engine, advance)
    counts = {name: (size.items, size.size_bytes, size.expiring) for name, size in sizes.items()}
    items, size_bytes = (sum(each[column] for each in counts.values()) for column in (0, 1))
    rows = [[name, *(f"{n:,}" for n in each), PURPOSES.get(name, "")] for name, each in counts.items()]
    purposes = {name: dict(zip(NUMBERS, each, strict=True)) for name, each in counts.items()}
    return Report(
        [Grid(("purpose", *NUMBERS, "what"), rows, NUMBERS), f"\n{counted(items, 'item')}, {size_bytes:,} bytes."],
        {"purposes": purposes, "items": items, "bytes": size_bytes},
    )


@shell.command(
    "gc",
    "Let empty ledger items expire.",
    shell.STATE_OPTIONS,
    shell.flag("--dry-run", "Print how many there are, and write nothing."),
    shell.yes_flag(),
    shell.json_flag(),
    group=state,
    checks=True,
)
def collect(opened: Session) -> Report:
    """Give a time to live to ledger items without contributions that have none. The command reads the whole state.

    Nothing is deleted at once: for STREAMFOLD_RETENTION_DAYS, such an item still keeps late records from taking effect.
    The live stream may go on.

    \b
    Exit codes:
      0  every such item has a time to live
      1  other writers changed some items at every try: run the command again
      2  the command stopped early: an option, the application or the store is wrong

    \b
    Examples:
      streamfold state gc --dry-run
      streamfold state gc --engine dynamodb --table main=shop --yes
    """
    dry_run = opened.given.dry_run
    garbage = StateGarbage(opened.runtime)
    if not dry_run:
        opened.confirm_writes()
    with item_progress("marking", None, shown=not opened.given.json_output) as advance:
        for page in garbage.pages():
            if not dry_run:
                garbage.mark(page)
            advance(len(page))
    report = garbage.report
    done = f"{report.marked:,} of {report.found:,} empty ledger items got a time to live."
    if dry_run:
        done = f"Dry run: {report.found:,} empty ledger items never expire. Nothing was written."
    busy = "Busy: state item {}: other writers changed it at every try."
    lines = first_lines(report.busy, lambda key: Note(busy.format(state_text(key))), err=True)
    counts = {"dry_run": dry_run, "found": report.found, "marked": report.marked}
    return Report([*lines, done], {**counts, "busy": [list(key) for key in report.busy]}, bool(report.busy))


@shell.command(
    "retire",
    "Remove a retired handler from the state.",
    click.argument("handler"),
    shell.STATE_OPTIONS,
    shell.choice(
        "--rows",
        ("keep", "remove"),
        "keep: its rows are kept. remove: its contributions are taken back from the rows.",
        required=True,
    ),
    shell.flag("--dry-run", "Print how much there is, and write nothing."),
    shell.yes_flag(),
    shell.json_flag(),
    checks=True,
)
def retire(opened: Session) -> Report:
    """Remove HANDLER from the state. The command reads the whole state.

    No record may reach the handler any more: a later record would count once more. For --rows remove, the code must
    still declare the handler, and STREAMFOLD_HANDLERS_OFF must switch it off, in the function and here. For --rows
    keep, the handler may be retired already, App(..., retired=[...]). A local state needs neither. The stream of other
    handlers may go on. Doing it twice changes nothing.

    For a feed, the stored copies of posts and edges and the open fan-outs are removed. For a search, the counters of
    documents are removed. Both need --rows keep, because the ledger has no contributions to their rows.

    Rows that other handlers add to keep the contributions of these handlers. Afterwards, take the handler out of the
    code, name it in retired=, and never switch it on again.

    \b
    Exit codes:
      0  the ledger holds nothing of the handler any more
      1  some contributions were kept: they failed, or other writers changed them at every try
      2  the command stopped early: an option, the application or the store is wrong, or the handler is not stopped

    \b
    Examples:
      streamfold retire sales --rows remove --dry-run
      STREAMFOLD_HANDLERS_OFF=sales streamfold retire sales --rows remove --engine dynamodb --table main=shop
      streamfold retire old_index --rows keep --engine dynamodb --table main=shop --yes
    """
    app, handler, dry_run = opened.app, opened.given.handler, opened.given.dry_run
    remove, offline = opened.given.rows == "remove", opened.local is not None
    check_retirable(app, opened.settings, opened.manifest, handler, remove=remove, offline=offline)
    check_no_run(Jobs.of(opened.runtime), handler)
    if not dry_run:
        opened.confirm_writes()
    route = next((route for route in app.routes if route.name == handler), None)
    kind = opened.manifest.handlers[handler]["kind"] if route is None else route.kind.name
    retirement: Retirement | KeptRetirement = Retirement(opened.runtime, handler, remove)
    if words := kept_words(kind):  # its kind keeps state outside of ledger items
        retirement = KeptRetirement(opened.runtime, handler, words)
    with item_progress("retiring", None, shown=not opened.given.json_output) as advance:
        for looked_at in retirement.go(dry_run=dry_run):
            advance(looked_at)
    opened.runtime = replace(opened.runtime, handlers=frozenset(route.name for route in app.routes) - {handler})
    chains = 0 if dry_run else len(followed_chains(opened))
    report = retirement.report
    found = {
        "handler": handler,
        "rows": "remove" if retirement.remove else "keep",
        "dry_run": dry_run,
        "parts": report.contributions,
        "stored": report.stored,
        "row_writes": report.rows,
        "dropped": report.dropped,
        "kept": [{"state_key": list(kept.key), "why": kept.why} for kept in report.kept],
        "chains_failed": chains,
    }
    return Report(_retired_lines(retirement, dry_run=dry_run), found, bool(report.kept or chains))


def _retired_lines(retirement: Retirement | KeptRetirement, *, dry_run: bool) -> Iterator[Printed]:
    report = retirement.report

    def kept_note(kept: ContributionKept) -> Note:
        source = source_of(kept.key)
        name = f"item {item_text(source.item)}" if source else f"state item {state_text(kept.key)}"
        return Note(f"Kept: {name}: {printable(str(kept.why))}")

    yield from first_lines(report.kept, kept_note, err=True)
    found = f"{counted(report.contributions, 'ledger item')}, {report.stored:,} with a contribution"
    if isinstance(retirement, KeptRetirement):
        found = counted(report.contributions, "state item")
    if dry_run:
        would = "Contributions would be taken back from rows" if retirement.remove else "Rows would be kept"
        yield f"Dry run: {found}. {would}. Nothing was written."
        return
    yield (
        f"Handler {retirement.handler}: {found}; {counted(report.rows, 'write')} of rows, {report.dropped:,} removed "
        f"from the state, {len(report.kept):,} kept."
    )
    if not report.kept:
        yield f'Next: take the handler out of the code, App(..., retired=["{retirement.handler}"]).'
