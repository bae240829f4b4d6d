"""``streamfold search purge``: removes documents that were hidden long ago."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from streamfold.cli.engines import as_json
from streamfold.cli.output import echo
from streamfold.cli.progress import item_progress
from streamfold.cli.search_servers import confirm, index_options, named_index, opened_server
from streamfold.derivations.search.opensearch import COMMAND_TRIES
from streamfold.errors import SettingsError
from streamfold.settings import Settings
from streamfold.settings.limits import SECONDS_A_DAY

if TYPE_CHECKING:
    from streamfold.derivations.search.maintenance import PurgedPage


@click.command("purge", short_help="Remove documents that were hidden long ago.")
@index_options
@click.option(
    "--older-than",
    type=click.IntRange(min=1),
    metavar="DAYS",
    help="Only documents that were hidden before so many days. Default, and at least: STREAMFOLD_RETENTION_DAYS.",
)
@click.option("--dry-run", is_flag=True, help="Count the documents, and remove none.")
@click.option("--yes", is_flag=True, help="Do not ask before removing documents.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
def command(
    name: str,
    application: str,
    search_url: str | None,
    older_than: int | None,
    dry_run: bool,
    yes: bool,
    json_output: bool,
) -> None:
    """Remove documents of items that are gone. They are hidden, and keep older records from bringing them back; after
    STREAMFOLD_RETENTION_DAYS no such record is on its way any more.

    A document is removed only if nobody wrote it since it was found. The command may be stopped at any time.

    \b
    Examples:
      streamfold search purge products --dry-run
      streamfold search purge products --older-than 90 --yes
    """
    from streamfold.derivations.search.maintenance import count_hidden, purge

    named = named_index(application, name, search_url)
    days = _days(older_than, named.settings)
    before = int((time.time() - days * SECONDS_A_DAY) * 1000)
    alias, where = named.index.alias, named.settings.search
    with opened_server(named.settings) as server:
        server.calls.tries = COMMAND_TRIES
        count = count_hidden(server, alias, before)
        if not dry_run and count:
            confirm(
                f"This removes {count} documents of index {alias} on {where}, hidden over {days} days ago.", yes=yes
            )
        pages = [] if dry_run or not count else purge(server, alias, before)
        removed, changed = _removed(pages, count, shown=not json_output)
    if json_output:
        found = {"alias": alias, "days": days, "dry_run": dry_run, "found": count}
        echo(as_json({**found, "removed": removed, "changed": changed}))
    elif dry_run:
        echo(f"Dry run: {count} documents of index {alias} were hidden over {days} days ago; none was removed.")
    else:
        since = f" {changed} were written meanwhile and stay." if changed else ""
        echo(f"{removed} documents of index {alias} were removed, hidden over {days} days ago.{since}")


def _days(older_than: int | None, settings: Settings) -> int:
    """How long documents are hidden before they are removed. Raises ``SettingsError`` for less than is safe."""
    least = settings.retention_days
    if older_than is not None and older_than < least:
        raise SettingsError(
            f"--older-than {older_than} is less than STREAMFOLD_RETENTION_DAYS={least}: records that are older than a "
            f"removal may still come, and would bring its document back. Expected {least} or more."
        )
    return older_than or least


def _removed(pages: Iterable["PurgedPage"], count: int, *, shown: bool) -> tuple[int, int]:
    """How many documents were removed, and how many were changed meanwhile."""
    removed = changed = 0
    with item_progress("removing", count, shown=shown and count > 0) as advance:
        for page in pages:
            removed, changed = removed + page.removed, changed + page.changed
            advance(page.removed)
    return removed, changed
