"""``streamfold replay``: recorded records on a local or real store."""

import sys
from typing import Any

import click

from streamfold.cli.application import application_option
from streamfold.cli.chaos import chaos_options
from streamfold.cli.engines import DEFAULT_STATE, store_options
from streamfold.cli.replay_options import ReplayOptions, check_options
from streamfold.cli.replay_run import run_replay
from streamfold.cli.rows import SAMPLE_ROWS, SAMPLE_ROWS_MAX
from streamfold.cli.search_servers import search_url_option
from streamfold.replay.files import check_files
from streamfold.replay.replay import BATCH_RECORDS

BATCH_RECORDS_MAX = 10_000


@click.command("replay", short_help="Replay recorded records on a local store or on DynamoDB.")
@click.argument("files", nargs=-1, metavar="FILES...")
@application_option
@click.option(
    "--state",
    metavar="FILE",
    help=f"Keep the result in this file (embedded engine). Without it, the result stays in memory. Other commands read "
    f"{DEFAULT_STATE} unless told otherwise.",
)
@click.option(
    "--fresh",
    is_flag=True,
    help="Delete the state file before the replay. Without it, a replay of the same files that was stopped goes on "
    "behind its last whole batch.",
)
@store_options
@click.option(
    "--batch-size",
    type=click.IntRange(1, BATCH_RECORDS_MAX),
    default=BATCH_RECORDS,
    show_default=True,
    metavar="N",
    help="Records per batch; a batch of 8 MB of lines is full too.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be written to an empty store, and write nothing.")
@click.option(
    "--keep-going", is_flag=True, help="Skip bad lines and report them all, instead of stopping at the first."
)
@click.option(
    "--external",
    is_flag=True,
    help="Also call external handlers, and write to the buckets of archives and to STREAMFOLD_SEARCH.",
)
@click.option(
    "--park",
    metavar="PLACE",
    help='Where records are parked that a handler with on_error="park" cannot process: a file, s3://BUCKET/PREFIX or '
    "the URL of an SQS queue. Default: STREAMFOLD_PARK.",
)
@click.option(
    "--put-sources",
    is_flag=True,
    help="Also write the source items; an older version never replaces a newer one. Only with --engine dynamodb and a "
    "loopback endpoint.",
)
@click.option(
    "--create-tables", is_flag=True, help="Create missing tables. Only with --engine dynamodb and a loopback endpoint."
)
@click.option(
    "--force",
    is_flag=True,
    help="Replay on DynamoDB although a handler is partial: older records may then overwrite what a backfill wrote.",
)
@search_url_option("Write documents to this OpenSearch server instead of the local state.")
@click.option("--yes", is_flag=True, help="Do not ask before writing to AWS, or to a search server.")
@click.option(
    "--samples",
    type=click.IntRange(0, SAMPLE_ROWS_MAX),
    metavar="N",
    help=f"Print up to N rows of each target at the end. Default: {SAMPLE_ROWS}, and 0 with --json.",
)
@click.option(
    "--json",
    "json_output",
    is_flag=True,
    help="Print the summary as one JSON object. With --dry-run, first print the plan of each batch as one line.",
)
@chaos_options
def command(files: tuple[str, ...], **given: Any) -> None:
    """Replay recorded records on a local store or on DynamoDB.

    FILES hold Lambda events, lists of records, or one record a line (JSON Lines), plain or gzip. The name - stands for
    standard input.

    \b
    The table at the end counts for each handler:
      records       records that it got, one that is repeated in a batch once
      rows written  rows that were put or changed; a row counts for each item of a batch that changes it
      removed       rows that were removed
      unchanged     items of each batch whose rows stayed as they were, as where the state knew their changes; of
                    histories and "on" handlers the records that took effect before
      failed        records that failed

    \b
    Examples:
      streamfold replay events/*.jsonl --state shop.db
      streamfold replay batch.json --dry-run
      streamfold replay events/shop.jsonl --engine dynamodb --endpoint-url http://127.0.0.1:8000 --create-tables
      streamfold replay events/shop.jsonl --chaos --runs 50
    """
    options = ReplayOptions(**given)
    check_options(options)
    check_files(files)
    sys.exit(run_replay(files, options))
