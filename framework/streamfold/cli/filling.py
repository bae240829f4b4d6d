"""``streamfold backfill`` and ``streamfold rebuild``: rows are derived from all items, beside the live stream."""

import sys
from typing import Any

import click

from streamfold.cli.filling_options import filling_options, options_of
from streamfold.cli.filling_run import run_filling
from streamfold.cli.opening_run import run_openings


@click.command("backfill", short_help="Derive rows from the items that were there before their handler.")
@click.argument("handlers", nargs=-1, metavar="[HANDLER...]")
@click.option(
    "--opening", is_flag=True, help="For audits that are named: write a first row of each item without a history."
)
@filling_options
def backfill(handlers: tuple[str, ...], *, opening: bool, **given: Any) -> None:
    """Derive rows from all items of the handlers' tables, beside the live stream. No record brings older items.

    Without HANDLER, this is done for all handlers whose rows follow from items: views, indexes, attributes, copies,
    searches and feeds. Handlers that are switched off or of another group are left out. Each page reads the ledger,
    then the items, and writes the difference if neither has changed since. The stream may go on meanwhile. A second run
    changes nothing. A run that was stopped goes on with the same command.

    A backfill may begin 15 minutes after a function first named the handler (STREAMFOLD_GATE_SECONDS): until then,
    older code may still take records without the handler.

    \b
    Exit codes:
      0  rows were derived from every item
      1  a handler raised on some items, which are printed
      2  it did not run, or not to its end

    \b
    Examples:
      streamfold backfill --state shop.db
      streamfold backfill order_history --opening --state shop.db
      streamfold backfill daily_sales --engine dynamodb --table main=orders-prod --write-units 1000
    """
    options = options_of("backfill", handlers, given)
    sys.exit((run_openings if opening else run_filling)(options))


@click.command("rebuild", short_help="Derive rows again from all items, after the code of their handler changed.")
@click.argument("handlers", nargs=-1, required=True, metavar="HANDLER...")
@filling_options
def rebuild(handlers: tuple[str, ...], **given: Any) -> None:
    """Derive rows again from all items, after the code of their handlers changed.

    Rows change in place: each item moves in one transaction, so a sum is never empty. Readers who may not see a mixture
    of old and new rows need a handler with another name and target, filled by backfill. Each item is written even if
    nothing differs, so that no write that older code planned earlier takes effect later.

    At the end all rows are compared with what their items add up to, as verify --rows does, and corrected: so a row
    that somebody removed comes back whole.

    \b
    Exit codes:
      0  rows were derived from every item
      1  a handler raised on some items, or rows were left as they are, which are printed
      2  it did not run, or not to its end

    \b
    Example:
      streamfold rebuild daily_sales --engine dynamodb --table main=orders-prod
    """
    sys.exit(run_filling(options_of("rebuild", handlers, given)))
