"""``streamfold backfill`` and ``streamfold rebuild``: handlers are led to all items, beside the live stream."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from streamfold.cli.application import application_option
from streamfold.cli.engines import Store, state_option, store_options
from streamfold.cli.filling_run import FillingOptions, carried_out
from streamfold.lifecycle.estimate import PRICE_READ, PRICE_WRITE
from streamfold.lifecycle.keys import PAGE_ITEMS

F = TypeVar("F", bound=Callable[..., Any])


def filling_options(command: F) -> F:
    """The options of a run over all items."""
    for option in (
        click.option("--json", "json_output", is_flag=True, help="Print one JSON object with the counts."),
        click.option("--yes", is_flag=True, help="Do not ask before writing."),
        click.option("--dry-run", is_flag=True, help="Print the estimate, and write nothing."),
        click.option(
            "--load", is_flag=True, help="Put the items of the export into the local state before; with --export."
        ),
        click.option(
            "--export", metavar="MANIFEST", help="Take keys from an export: its manifest-files.json, a file or s3://."
        ),
        click.option(
            "--failed",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Write the keys of items that failed to this file, which repair --keys takes.",
        ),
        click.option("--function", metavar="NAME", help="The function whose lag --max-lag looks at."),
        click.option(
            "--max-lag",
            type=click.FloatRange(min=1),
            metavar="SECONDS",
            help="Wait while the function is further behind its stream (CloudWatch, IteratorAge).",
        ),
        click.option("--offline", is_flag=True, help="No stream delivers to the handlers now: do not wait for one."),
        click.option("--price-write", type=float, default=PRICE_WRITE, show_default=True, help="Dollars a million."),
        click.option("--price-read", type=float, default=PRICE_READ, show_default=True, help="Dollars a million."),
        click.option("--write-units", type=click.IntRange(0), default=0, help="Write units a second; 0: no limit."),
        click.option("--read-units", type=click.IntRange(0), default=0, help="Read units a second; 0: no limit."),
        click.option(
            "--page",
            "page_items",
            type=click.IntRange(1, 100_000),
            default=PAGE_ITEMS,
            show_default=True,
            help="Items at once; more of them share more writes of their rows.",
        ),
        click.option(
            "--segments", type=click.IntRange(1, 10_000), help="Segments of a table. Default: 1; DynamoDB 16."
        ),
    ):
        command = option(command)
    return store_options(state_option(application_option(command)))


def _options(what: str, handlers: tuple[str, ...], given: dict[str, Any]) -> FillingOptions:
    store = Store(given.pop("engine"), given.pop("state"), given.pop("endpoint_url"))
    return FillingOptions(what=what, handlers=handlers, store=store, **given)


@click.command("backfill", short_help="Lead new handlers to the items that were there before them.")
@click.argument("handlers", nargs=-1, metavar="[HANDLER]...")
@filling_options
def backfill(handlers: tuple[str, ...], application: str, tables: tuple[str, ...], **given: Any) -> None:
    """Lead handlers to all items of their tables, beside the live stream: items that no record brings count too.

    Without HANDLER, all handlers whose rows follow from items: views, indexes, attributes, searches. Handlers that are
    switched off or of another group are left out. Each page reads the ledger, then the items, and writes what differs
    on what was read. So the stream goes on meanwhile, a second run changes nothing, and a run that was stopped goes on
    where it was with the same command.

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
      streamfold backfill daily_sales --engine dynamodb --table main=orders-prod --write-units 1000
    """
    sys.exit(carried_out(application, tables, _options("backfill", handlers, given)))


@click.command("rebuild", short_help="Lead handlers to all items again, after their code changed.")
@click.argument("handlers", nargs=-1, required=True, metavar="HANDLER...")
@filling_options
def rebuild(handlers: tuple[str, ...], application: str, tables: tuple[str, ...], **given: Any) -> None:
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
    sys.exit(carried_out(application, tables, _options("rebuild", handlers, given)))
