"""The options of runs over all items: ``backfill`` and ``rebuild``."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from streamfold.cli.engines import Store, state_options
from streamfold.cli.shared_options import FilePath, price_option, read_units_option, segments_option
from streamfold.cli.stream_lag import lag_options
from streamfold.lifecycle.backfill import PRICE_READ, PRICE_WRITE
from streamfold.lifecycle.sources import PAGE_ITEMS

HERE, SPARK, ELSEWHERE = "processes", "spark", "elsewhere"
RUNNERS = (HERE, SPARK, ELSEWHERE)
"""Who carries a run: processes of this machine, a Spark cluster, or whoever is called with its parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FillingOptions:
    """What the command line said."""

    what: str
    handlers: tuple[str, ...]
    store: Store
    application: str
    tables: tuple[str, ...]
    segments: int | None
    page_items: int
    read_units: int
    write_units: int
    price_read: float
    price_write: float
    offline: bool
    export: str | None
    load: bool
    failed: Path | None
    max_lag: float | None
    function: str | None
    dry_run: bool
    yes: bool
    json_output: bool
    runner: str
    processes: int | None
    spark_master: str | None


def filling_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a run over all items."""
    for option in (
        click.option("--json", "json_output", is_flag=True, help="Print one JSON object with the counts."),
        click.option("--yes", is_flag=True, help="Do not ask before writing to AWS."),
        click.option("--dry-run", is_flag=True, help="Print the estimate, and write nothing."),
        click.option(
            "--load",
            is_flag=True,
            help="With --export, put its items into the local state before; make one if need be.",
        ),
        click.option(
            "--export", metavar="MANIFEST", help="Take keys from an export: its manifest-files.json, a file or s3://."
        ),
        click.option(
            "--failed",
            type=FilePath(),
            metavar="FILE",
            help="Write the keys of items that failed to this file, which repair --keys takes.",
        ),
        lag_options,
        click.option("--offline", is_flag=True, help="No stream delivers to the handlers now: do not wait for one."),
        click.option(
            "--processes",
            type=click.IntRange(1, 64),
            metavar="N",
            help="Processes of this machine, each with its share of the rates. Default: one for every 50,000 items, 4 "
            "at most; a local state has one.",
        ),
        click.option(
            "--runner",
            type=click.Choice(RUNNERS),
            default=HERE,
            show_default=True,
            help="Who does the parts of the run: processes of this machine, or Spark, which brings the items of an "
            "export together by row. With elsewhere, only its job is made, for streamfold work or a state machine.",
        ),
        click.option(
            "--spark-master",
            metavar="URL",
            help="The master of --runner spark. Default: that of spark-submit, or this machine's cores.",
        ),
        price_option("write", PRICE_WRITE, "a million write units"),
        price_option("read", PRICE_READ, "a million read units"),
        click.option(
            "--write-units",
            type=click.IntRange(0),
            metavar="N",
            default=0,
            help="Write units a second. Default: no limit.",
        ),
        read_units_option,
        click.option(
            "--page",
            "page_items",
            type=click.IntRange(1, 100_000),
            metavar="N",
            default=PAGE_ITEMS,
            show_default=True,
            help="Items at once; more of them share more writes of their rows.",
        ),
        segments_option,
    ):
        command = option(command)
    return state_options(command)


def options_of(what: str, handlers: tuple[str, ...], given: dict[str, Any]) -> FillingOptions:
    """The options that a command was given."""
    return FillingOptions(what=what, handlers=handlers, **given)
