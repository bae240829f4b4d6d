"""What messages cost, for ``streamfold replay --cost``."""

from collections.abc import Iterator, Sequence
from math import ceil

from streamfold.derivations.publish.local import LocalMessages
from streamfold.derivations.publish.options import EVENTBRIDGE, SNS, SQS, published_of
from streamfold.routes.route import Route

PRICES = {EVENTBRIDGE: 1.00, SNS: 0.50, SQS: 0.40}
FIFO_PRICES = {EVENTBRIDGE: 1.00, SNS: 0.30, SQS: 0.50}
"""Dollars a million in us-east-1 (the pages of prices of EventBridge, SNS and SQS). A request with several messages is
one at SNS and SQS: these are prices of requests with one message."""
BILLED_BYTES = 64 * 1024
"""Each 64 KB of a message counts as one (the same pages)."""
MILLION = 1_000_000


def message_costs(routes: Sequence[Route], opened: LocalMessages, records: int) -> Iterator[str]:
    """What the messages of a million records cost, a sentence each; ``records`` led to those in ``opened``."""
    for route in routes:
        to = published_of(route).to
        price = (FIFO_PRICES if to.is_fifo else PRICES)[to.service]
        own = [len(each.text.encode()) for each in opened.sent if each.handler == route.name]
        billed = sum(ceil(size / BILLED_BYTES) for size in own)
        yield (
            f"Publisher {route.name!r} sends {len(own) * MILLION / records:,.0f} messages for a million records to "
            f"{str(to)!r}: at most ${billed * price / records:,.2f}, at ${price:.2f} a million of 64 KB."
        )
