"""``streamfold search rebuild``: a new index beside the live one."""

import sys
from typing import Any

import click

from streamfold.cli.search_places import Asked, asked_options, opened_place
from streamfold.cli.search_rebuilding import RebuildOptions, run_rebuild
from streamfold.cli.shared_options import (
    check_sample,
    read_units_option,
    sample_option,
    segments_option,
    tolerance_option,
)
from streamfold.errors import SettingsError
from streamfold.lifecycle.sources import PAGE_ITEMS


@click.command("rebuild", short_help="Build an index anew beside the live one, and move its alias.")
@asked_options
@click.option("--back", is_flag=True, help="Move the alias back to the index that was live before.")
@click.option("--drop", is_flag=True, help="Remove the index that the alias does not stand for any more.")
@click.option("--abort", is_flag=True, help="End the rebuild and remove the new index. The live one stays.")
@click.option("--take-over", is_flag=True, help="Move the alias of the search that this one replaces to its index.")
@click.option("--offline", is_flag=True, help="No function is at work now: do not wait for one.")
@sample_option(0)
@click.option("--full", is_flag=True, help="Compare all items and all documents before the alias is moved.")
@click.option("--accept-failed", is_flag=True, help="Leave out items on which the function raises.")
@tolerance_option
@segments_option
@click.option(
    "--page",
    "page_items",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=PAGE_ITEMS,
    show_default=True,
    help="Items at once.",
)
@read_units_option
@click.option("--yes", is_flag=True, help="Do not ask before writing to AWS, or to a search server.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
def command(
    asked: Asked,
    back: bool,
    drop: bool,
    abort: bool,
    take_over: bool,
    sample: int,
    full: bool,
    segments: int | None,
    **given: Any,
) -> None:
    """Build the index INDEX anew from the items, while the live one is read and written, and then move its alias: to
    repair it as a whole, after the function or the mapping changed, or for other settings.

    From its begin on, functions send every document to both indexes. All items are read then; what the new index did
    not take is sent again; a sample is compared. After a wait for batches that began before, the alias is moved in one
    step. The old index is written until --drop, so that --back may return to it. A rebuild that was stopped goes on
    with the same command.

    \b
    Exit codes:
      0  the step was done
      1  a handler raised on some items, or the new index differs: the alias was not moved
      2  it did not run, or not to its end

    \b
    Examples:
      streamfold search rebuild products --engine dynamodb --table main=shop-prod
      streamfold search rebuild products --drop --engine dynamodb --table main=shop-prod
      streamfold search rebuild products~next --take-over --engine dynamodb --table main=shop-prod
    """
    check_sample(full=full)
    chosen = {"back": back, "drop": drop, "abort": abort, "take-over": take_over}
    steps = [step for step, wanted in chosen.items() if wanted]
    if len(steps) > 1:
        raise SettingsError(f"Expected one of --{steps[0]} and --{steps[1]}: each is a step of its own.")
    options = RebuildOptions(
        step=steps[0] if steps else "",
        sample=None if full else sample,
        segments=segments or (1 if asked.store.engine == "embedded" else 16),
        **given,
    )
    with opened_place(asked, writes=True) as place:
        sys.exit(run_rebuild(asked, place, options))
