"""``streamfold backfill`` and ``streamfold rebuild``: handlers are led to all items, beside the live stream."""

import sys
from typing import Any

import click

from streamfold.cli.filling_options import filling_options, options_of
from streamfold.cli.filling_run import carried_out
from streamfold.cli.opening_run import histories_opened


@click.command("backfill", short_help="Count the items that were there before their handler.")
@click.argument("handlers", nargs=-1, metavar="[HANDLER...]")
@click.option(
    "--opening", is_flag=True, help="For audits that are named: write a first row of each item without a history."
)
@filling_options
def backfill(handlers: tuple[str, ...], *, opening: bool, **given: Any) -> None:
    """Lead handlers to all items of their tables, beside the live stream: items that no record brings count too.

    Without HANDLER, all handlers whose rows follow from items: views, indexes, attributes, copies, searches, feeds.
    Handlers that are switched off or of another group are left out. Each page reads the ledger, then the items, and
    writes what differs on what was read. So the stream goes on meanwhile, a second run changes nothing, and a run that
    was stopped goes on where it was with the same command.

    A handler can be filled 15 minutes after a function first named it (STREAMFOLD_GATE_SECONDS): until then, older
    code may still take records without it.

    \b
    Exit codes:
      0  every item was led to its rows
      1  a handler raised on some items, which are printed
      2  it did not run, or not to its end

    \b
    Examples:
      streamfold backfill --state shop.db
      streamfold backfill order_history --opening --state shop.db
      streamfold backfill daily_sales --engine dynamodb --table main=orders-prod --write-units 1000
    """
    options = options_of("backfill", handlers, given)
    sys.exit((histories_opened if opening else carried_out)(options))


@click.command("rebuild", short_help="Make rows again from all items, after the code of their handler changed.")
@click.argument("handlers", nargs=-1, required=True, metavar="HANDLER...")
@filling_options
def rebuild(handlers: tuple[str, ...], **given: Any) -> None:
    """Lead handlers to all items again, after their code changed: rows become what the new code makes of the items.

    Rows converge in place: each item moves in one transaction, so a sum is never empty. Readers who may not see a
    mixture need a handler with another name and target, filled by backfill. Every part is written, with a fence, so
    that nothing that older code planned before takes effect after it.

    \b
    Exit codes:
      0  every item was led to its rows
      1  a handler raised on some items, which are printed
      2  it did not run, or not to its end

    \b
    Example:
      streamfold rebuild daily_sales --engine dynamodb --table main=orders-prod
    """
    sys.exit(carried_out(options_of("rebuild", handlers, given)))
