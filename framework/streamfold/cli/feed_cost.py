"""``streamfold feed-cost``: what pushing an author's posts costs, against pulling them."""

import json
from typing import Any

import click

from streamfold.cli.grids import print_grid
from streamfold.cli.output import echo
from streamfold.cli.shared_options import price_option
from streamfold.lifecycle.feed_cost import Author, FeedCost, Prices, even_reads, pulled, pushed

DEFAULTS, PRICES = Author(1, 1, 1), Prices()


@click.command("feed-cost", short_help="Compare what pushing and pulling an author's posts cost.")
@click.option(
    "--posts", metavar="N", type=click.FloatRange(0), default=1, show_default=True, help="Posts of the author a day."
)
@click.option("--followers", metavar="N", type=click.IntRange(1), required=True, help="Followers of the author.")
@click.option(
    "--reads", metavar="N", type=click.FloatRange(0), default=5, show_default=True, help="Pages a follower reads a day."
)
@click.option(
    "--row-bytes",
    metavar="N",
    type=click.IntRange(1),
    default=DEFAULTS.row_bytes,
    show_default=True,
    help="Bytes of a row.",
)
@click.option(
    "--keep-days",
    metavar="DAYS",
    type=click.IntRange(1),
    default=DEFAULTS.keep_days,
    show_default=True,
    help="How long a row is kept.",
)
@price_option("write", PRICES.write, "a million write units")
@price_option("read", PRICES.read, "a million read units")
@price_option("stored", PRICES.stored, "a GB for a month")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object.")
def command(json_output: bool, price_write: float, price_read: float, price_stored: float, **author: Any) -> None:
    """Compare what pushing the posts of one author costs a day with what pulling them costs.

    Pushing writes a row for each follower. Pulling has each page that a follower reads query the author's posts. What
    a page of the feed costs anyway is in neither. Pushing makes reading quick. The last line says how many
    pages a day make both cost the same: below that number, pulling costs less money, and more time.

    \b
    Examples:
      streamfold feed-cost --followers 200
      streamfold feed-cost --followers 1000000 --posts 5 --reads 2 --json
    """
    of, prices = Author(**author), Prices(price_write, price_read, price_stored)
    ways = {"push": pushed(of), "pull": pulled(of)}
    even = even_reads(of, prices)
    if json_output:
        told = {name: {**cost._asdict(), "dollars": cost.dollars(prices)} for name, cost in ways.items()}
        echo(json.dumps({**told, "even_reads": even}))
        return
    print_grid(
        ["", "write units a day", "read units a day", "stored MB", "dollars a day"],
        [_row(name, cost, prices) for name, cost in ways.items()],
    )
    echo(f"\nBoth cost the same where a follower reads {even:,.1f} pages a day.")


def _row(name: str, cost: FeedCost, prices: Prices) -> list[str]:
    numbers = (cost.write_units, cost.read_units, cost.stored_bytes / 1e6)
    return [name, *(f"{number:,.0f}" for number in numbers), f"{cost.dollars(prices):,.4f}"]
